/* Claims: the death of a watched process is noticed at once, that of a forgotten one is not, and a
 * pid that is already gone counts as dead. */
#include "base/clock.h"
#include "comm/peer_watch_impl.h"
#include "tests/support/check_main.h"

#include <signal.h>
#include <sys/wait.h>

#define MS 1000000

static pid_t start_sleeper(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

START_TEST(a_killed_peer_is_named_before_it_is_reaped)
{
    struct peer_watch w;
    pid_t one = start_sleeper(), two = start_sleeper();
    ck_ok(peer_watch_init(&w, 2));
    ck_ok(peer_watch_add(&w, 1, one));
    ck_ok(peer_watch_add(&w, 2, two));
    ck_fails(peer_watch_add(&w, 3, two), CZ_INVALID);
    ck_assert_int_eq(peer_watch_wait(&w, MS), -1);
    ck_assert_int_eq(kill(two, SIGKILL), 0);
    int64_t begin = clock_now_ns();
    ck_assert_int_eq(peer_watch_wait(&w, (int64_t)10000 * MS), 2);
    ck_assert_int_lt(clock_now_ns() - begin, (int64_t)5000 * MS);
    ck_assert(peer_watch_has(&w, 2));
    peer_watch_forget(&w, 2);
    ck_assert(!peer_watch_has(&w, 2));
    ck_assert_int_eq(peer_watch_wait(&w, MS), -1);
    peer_watch_free(&w);
    kill(one, SIGKILL);
    waitpid(one, NULL, 0);
    waitpid(two, NULL, 0);
}
END_TEST

START_TEST(a_peer_that_is_gone_already_is_dead)
{
    struct peer_watch w;
    pid_t pid = start_sleeper();
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ck_ok(peer_watch_init(&w, 1));
    ck_ok(peer_watch_add(&w, 7, pid));
    ck_assert_int_eq(peer_watch_wait(&w, 0), 7);
    peer_watch_free(&w);
    peer_watch_free(&w);
}
END_TEST

START_TEST(the_sentence_names_rank_step_and_phase)
{
    ck_assert_int_eq(peer_died(1, 4, 12, "reducing gradients"), CZ_PEER);
    ck_assert_str_eq(cz_last_error(), "rank 1 of 4 died at step 12 (reducing gradients)");
    ck_assert_int_eq(peer_died(3, 4, 0, NULL), CZ_PEER);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "rank 3 of 4 died"));
}
END_TEST

TEST_MAIN("comm/peer_watch", a_killed_peer_is_named_before_it_is_reaped,
          a_peer_that_is_gone_already_is_dead, the_sentence_names_rank_step_and_phase)

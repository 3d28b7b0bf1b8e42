/* Claims: the death of a watched process is noticed at once, that of a forgotten one is not, and a
 * pid that is already gone counts as dead; a signal reaches those that are watched; also without
 * pidfd. */
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

static void kill_one_of_two(bool no_pidfd)
{
    struct peer_watch w;
    pid_t one = start_sleeper(), two = start_sleeper();
    ck_ok(peer_watch_init(&w, 2));
    w.no_pidfd = no_pidfd;
    ck_ok(peer_watch_add(&w, 1, one));
    ck_ok(peer_watch_add(&w, 2, two));
    ck_fails(peer_watch_add(&w, 3, two), CZ_INVALID);
    ck_assert_int_eq(peer_watch_wait(&w, MS), -1);
    ck_assert_int_eq(kill(two, SIGKILL), 0);
    int64_t begin = clock_now_ns();
    int dead = -1; /* without pidfd a sleep is not cut short */
    while (dead < 0 && clock_now_ns() - begin < (int64_t)5000 * MS)
        dead = peer_watch_wait(&w, (no_pidfd ? 5 : 5000) * (int64_t)MS);
    ck_assert_int_eq(dead, 2);
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

START_TEST(a_killed_peer_is_named_before_it_is_reaped)
{
    kill_one_of_two(false);
    kill_one_of_two(true);
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
    ck_ok(peer_watch_init(&w, 1));
    w.no_pidfd = true;
    ck_ok(peer_watch_add(&w, 7, getpid()));
    ck_assert_int_eq(peer_watch_wait(&w, 0), -1);
    w.starts[0]--; /* the pid now belongs to another process */
    ck_assert_int_eq(peer_watch_wait(&w, 0), 7);
    peer_watch_free(&w);
}
END_TEST

static void wait_for_state(pid_t pid, int options, bool (*is)(int))
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, options), pid);
    ck_assert(is(status));
}
static bool has_stopped(int status)
{
    return WIFSTOPPED(status);
}
static bool has_continued(int status)
{
    return WIFCONTINUED(status);
}

/* 1 is stopped, 2 is gone, 3 was forgotten: only the first gets the signal. */
static void continue_one(bool no_pidfd)
{
    struct peer_watch w;
    int status;
    pid_t stopped = start_sleeper(), gone = start_sleeper(), forgotten = start_sleeper();
    ck_ok(peer_watch_init(&w, 3));
    w.no_pidfd = no_pidfd;
    ck_ok(peer_watch_add(&w, 2, gone));
    ck_ok(peer_watch_add(&w, 3, forgotten));
    ck_ok(peer_watch_add(&w, 1, stopped));
    peer_watch_forget(&w, 3);
    kill(gone, SIGKILL);
    waitpid(gone, NULL, 0);
    kill(stopped, SIGSTOP);
    wait_for_state(stopped, WUNTRACED, has_stopped);
    kill(forgotten, SIGSTOP);
    wait_for_state(forgotten, WUNTRACED, has_stopped);
    peer_watch_signal(&w, SIGCONT);
    wait_for_state(stopped, WCONTINUED, has_continued);
    ck_assert_int_eq(waitpid(forgotten, &status, WCONTINUED | WNOHANG), 0);
    w.starts[2]--; /* without pidfd: the pid now belongs to another process */
    peer_watch_signal(&w, SIGKILL);
    if (no_pidfd) {
        ck_assert_int_eq(waitpid(stopped, &status, WNOHANG), 0);
        kill(stopped, SIGKILL);
    }
    waitpid(stopped, &status, 0);
    ck_assert(WIFSIGNALED(status));
    peer_watch_free(&w);
    kill(forgotten, SIGKILL);
    waitpid(forgotten, NULL, 0);
}

START_TEST(a_signal_reaches_the_watched_peers_alone)
{
    continue_one(false);
    continue_one(true);
}
END_TEST

TEST_MAIN("comm/peer_watch", a_killed_peer_is_named_before_it_is_reaped,
          a_peer_that_is_gone_already_is_dead, a_signal_reaches_the_watched_peers_alone)

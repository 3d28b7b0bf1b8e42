/* Claims: killed before any system call of a save, or with any of them failing, or on a full disk,
 * `latest` names the whole old tag or the whole new one, every visible tag is whole, and the next
 * save works and leaves nothing behind; no descriptor stays open. Also where folders cannot be
 * exchanged. */
#include "checkpoint/store/store_impl.h"
#include "tests/support/checkpoint/tag_scenarios.h"
#include "tests/support/descriptors.h"
#include "tests/support/faults_names.h"

#include <sys/wait.h>

#define LEAVES_OPEN 7 /* what a process exits with whose descriptors did not all close */

/* Do `act` in a process of its own under the faults that `plan` sets; true when it succeeded. */
static bool act_under(const struct scenario *s, const char *dir, void (*plan)(long), long arg)
{
    int how;
    pid_t pid = fork();
    if (pid == 0) {
        faults_no_exchange = s->no_exchange;
        faults_clear();
        char names[4096];
        int n = descriptors_open(names, sizeof names);
        plan(arg);
        cz_status st = s->act(dir);
        if (descriptors_open(names, sizeof names) != n) _exit(LEAVES_OPEN);
        _exit(st == CZ_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &how, 0), pid);
    ck_assert(WIFEXITED(how) || WTERMSIG(how) == SIGKILL);
    ck_assert_msg(!WIFEXITED(how) || WEXITSTATUS(how) != LEAVES_OPEN,
                  "%s, %ld: descriptors stay open", s->name, arg);
    return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

static void check_after(const struct scenario *s, const char *dir, bool succeeded, const char *what,
                        long n)
{
    ck_assert_msg(all_whole(dir), "%s, %s %ld: part of a tag is visible", s->name, what, n);
    const int version = tags_latest_version(dir);
    ck_assert_msg(version == s->old_version || version == s->new_version,
                  "%s, %s %ld: latest is of version %d", s->name, what, n, version);
    if (succeeded)
        ck_assert_msg(version == s->new_version, "%s, %s %ld: success, but latest is of version %d",
                      s->name, what, n, version);
    ck_ok(tags_save(dir, "after", 50, true));
    ck_assert_int_eq(tags_latest_version(dir), 50);
    ck_assert_msg(tags_n_leftovers(dir) == 0, "%s, %s %ld: leftovers stay", s->name, what, n);
}

/* Returns whether it succeeded. */
static bool trial(const struct scenario *s, const char *what, void (*plan)(long), long n)
{
    char dir[128];
    const char *tmp = fast_tmp();
    snprintf(dir, sizeof dir, "%s/run", tmp);
    s->before(dir);
    bool succeeded = act_under(s, dir, plan, n);
    check_after(s, dir, succeeded, what, n);
    ck_ok(store_remove_tree(tmp));
    return succeeded;
}

static void plan_kill(long n)
{
    faults_plan(FAULT_ANY, n, FAULT_KILL);
}

static void plan_eio(long n)
{
    faults_plan(FAULT_ANY, n, EIO);
}

static void plan_enospc(long n)
{
    faults_plan(FAULT_ANY, n, ENOSPC);
}

static void plan_full(long n)
{
    faults_disk_full(n);
}

static void plan_short(long n)
{
    faults_short_writes((uint32_t)n);
}

/* How many calls a whole act makes. */
static long count_calls(const struct scenario *s)
{
    char dir[128];
    const char *tmp = fast_tmp();
    snprintf(dir, sizeof dir, "%s/run", tmp);
    s->before(dir);
    faults_no_exchange = s->no_exchange;
    faults_clear();
    (void)s->act(dir); /* the one that must fail counts as well */
    long n = faults_count(FAULT_ANY);
    faults_no_exchange = false;
    faults_clear();
    ck_ok(store_remove_tree(tmp));
    return n;
}

/* Every call of every scenario, one after the other. */
static void at_every_call(const char *what, void (*plan)(long))
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(scenarios); i++) {
        const long n = count_calls(&scenarios[i]);
        ck_assert_int_gt(n, 20);
        for (long k = 0; k <= n; k++) trial(&scenarios[i], what, plan, k);
    }
}

START_TEST(killed_before_any_call)
{
    at_every_call("killed before call", plan_kill);
}
END_TEST

START_TEST(any_call_fails)
{
    at_every_call("EIO in call", plan_eio);
    at_every_call("ENOSPC in call", plan_enospc);
}
END_TEST

START_TEST(the_disk_is_full_at_any_byte)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(scenarios); i++) {
        bool succeeded = false;
        for (long n = 0; n < 8000; n += 113)
            succeeded = trial(&scenarios[i], "disk full at byte", plan_full, n);
        ck_assert(succeeded == (scenarios[i].new_version != scenarios[i].old_version));
    }
}
END_TEST

START_TEST(short_writes_are_continued)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(scenarios); i++)
        for (long n = 1; n < 20; n++)
            ck_assert(trial(&scenarios[i], "short writes", plan_short, n) ==
                      (scenarios[i].new_version != scenarios[i].old_version));
}
END_TEST

TEST_MAIN("checkpoint/store_faults", killed_before_any_call, any_call_fails,
          the_disk_is_full_at_any_byte, short_writes_are_continued)

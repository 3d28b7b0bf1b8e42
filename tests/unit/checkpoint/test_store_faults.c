/* Claims: killed before any system call of a save, or with any of them failing, or on a full disk,
 * `latest` names the whole old tag or the whole new one, every visible tag is whole, and the next
 * save works and leaves nothing behind; no descriptor stays open. Also where folders cannot be
 * exchanged. A rank's files that could not all be written are removed, with or without a name. */
#include "checkpoint/store/store_impl.h"
#include "tests/support/checkpoint/tag_scenarios.h"
#include "tests/support/check_main.h"
#include "tests/support/faults_names.h"
#include "tests/unit/checkpoint/ds_write_rig.h"

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

/* ---- a rank's files ---------------------------------------------------------------------------
 */

/* All jobs and the end; what stays behind is looked at by the caller. */
static cz_status write_one_rank(const struct rig *r, const char *dir)
{
    const struct ckpt_write_options options = rig_options(r, dir, 1);
    struct ckpt_writer *w;
    const struct manifest *part;
    float buf[1024];
    TRY(ckpt_writer_create(&options, &w));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < ckpt_writer_n_jobs(w) && st == CZ_OK; i++) {
        rig_fill(r, 1, ckpt_writer_job(w, i), buf);
        st = ckpt_writer_put(w, i, buf);
    }
    if (st == CZ_OK) st = ckpt_writer_finish(w, &part);
    ckpt_writer_destroy(w);
    return st;
}

/* Whichever call fails: also the second rename, when the first file has its name already. */
START_TEST(a_write_that_fails_leaves_nothing)
{
    char dir[64], names[1500];
    snprintf(dir, sizeof dir, "%s", test_tmp_make_fast());
    const struct rig_case c = {.stage = 3, .world_size = 2, .step = 1};
    struct rig r;
    struct ckpt_list left;
    rig_init(&r, &c);
    faults_clear();
    ck_ok(write_one_rank(&r, dir));
    const long n = faults_count(FAULT_ANY);
    ck_assert_int_gt(n, 10);
    ck_ok(ckpt_list_files(dir, "", &left));
    ck_assert_uint_eq(left.n, 2);
    for (size_t i = 0; i < left.n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", dir, left.names[i]);
        ck_ok(file_remove(path));
    }
    ckpt_list_free(&left);
    int n_failed = 0, n_open = descriptors_open(names, sizeof names);
    for (long k = 0; k < n; k++) {
        faults_clear();
        faults_plan(FAULT_ANY, k, EIO);
        cz_status st = write_one_rank(&r, dir);
        faults_clear();
        ck_ok(ckpt_list_files(dir, "", &left));
        ck_assert_msg(left.n == (st == CZ_OK ? 2 : 0), "call %ld of %ld: %zu files, %s, %s: %s", k,
                      n, left.n, left.n ? left.names[0] : "", cz_last_error(), cz_status_name(st));
        for (size_t i = 0; i < left.n; i++) {
            char path[1024];
            snprintf(path, sizeof path, "%s/%s", dir, left.names[i]);
            ck_ok(file_remove(path));
        }
        ckpt_list_free(&left);
        n_failed += st != CZ_OK;
        ck_assert_int_eq(descriptors_open(names, sizeof names), n_open);
    }
    ck_assert_int_gt(n_failed, 8); /* a call that only saves time may fail */
    rig_free(&r);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("checkpoint/store_faults", killed_before_any_call, any_call_fails,
          the_disk_is_full_at_any_byte, short_writes_are_continued,
          a_write_that_fails_leaves_nothing)

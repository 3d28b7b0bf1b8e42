/* Claim: a launcher inside a user's program ends only what it started: the ranks, and what they
 * leave behind. Other children of the program run on, those of other threads as well, and nothing
 * waits for them or takes their exit codes. The program is no reaper of others' orphans afterwards.
 */
#include "base/log.h"
#include "engine/launch/launch.h"
#include "tests/support/check_main.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static pid_t child(void)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    for (;;) pause();
}

static void *child_of_a_thread(void *pid)
{
    *(pid_t *)pid = child();
    return NULL;
}

static void write_nothing(bool to_stderr, const char *text, size_t nbytes, void *user)
{
    (void)to_stderr, (void)text, (void)nbytes, (void)user;
}

static cz_status launch(int n_ranks, const char *script, int *exit_code)
{
    char *const argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};
    return launch_local(&(struct launch_options){.n_ranks = n_ranks,
                                                 .bind = LAUNCH_BIND_NONE,
                                                 .program = "/bin/sh",
                                                 .argv = argv,
                                                 .write = write_nothing},
                        exit_code);
}

/* As a process leaves it: a zombie has ended. */
static bool runs(long pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    const bool known = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
    if (f) fclose(f);
    return known && state != 'Z' && state != 'X';
}

static int ended_orphans(const char *dir, int n_ranks)
{
    int n = 0;
    for (int r = 0; r < n_ranks; r++) {
        char path[1024];
        long pid = 0;
        snprintf(path, sizeof path, "%s/orphan%d", dir, r);
        FILE *f = fopen(path, "r");
        ck_assert_msg(f && fscanf(f, "%ld", &pid) == 1, "%s", path);
        fclose(f);
        n += !runs(pid);
    }
    return n;
}

/* ---- the program is found before ranks start --------------------------------------------------
 */

static void put_file(const char *path, mode_t mode)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_assert_int_eq(chmod(path, mode), 0);
}

/* Of the folders of PATH the first that has such a program; an empty entry is the current one; a
 * path that does not fit is none, to the byte. */
START_TEST(programs_are_found_as_a_shell_finds_them)
{
    char dir[64], dirs[256], want[128], path[256];
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    char *before = strdup(getenv("PATH")), *here = getcwd(NULL, 0);
    snprintf(path, sizeof path, "%s/a/tool", dir);
    snprintf(dirs, sizeof dirs, "mkdir -p %s/a %s/b/tool %s/c", dir, dir, dir);
    ck_assert_int_eq(system(dirs), 0); /* b/tool is a folder */
    put_file(path, 0600);              /* not executable */
    snprintf(want, sizeof want, "%s/c/tool", dir);
    put_file(want, 0700);
    snprintf(dirs, sizeof dirs, "%s/nowhere:%s/a:%s/b:%s/c", dir, dir, dir, dir);
    setenv("PATH", dirs, 1);
    const size_t n = strlen(want);
    for (size_t nbytes = n - 1; nbytes <= n + 2; nbytes++) {
        ck_fails(launch_find("tool", path, nbytes), nbytes > n ? CZ_OK : CZ_NOTFOUND);
        if (nbytes > n) ck_assert_str_eq(path, want);
        ck_fails(launch_find(want, path, nbytes), nbytes > n ? CZ_OK : CZ_NOTFOUND);
    }
    ck_fails(launch_find("tools", path, sizeof path), CZ_NOTFOUND);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "there is no program \"tools\" on PATH"));
    ck_fails(launch_find("", path, sizeof path), CZ_NOTFOUND);
    snprintf(dirs, sizeof dirs, "%s/a", dir);
    setenv("PATH", dirs, 1);
    ck_fails(launch_find("tool", path, sizeof path), CZ_NOTFOUND);
    snprintf(dirs, sizeof dirs, "%s/c", dir);
    ck_assert_int_eq(chdir(dirs), 0);
    static const char *const here_first[] = {":/nowhere", "/nowhere:", "/nowhere::/nowhere"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(here_first); i++) {
        setenv("PATH", here_first[i], 1);
        ck_ok(launch_find("tool", path, sizeof path));
        ck_assert_str_eq(path, "./tool");
    }
    setenv("PATH", "", 1); /* as if it were not set */
    ck_ok(launch_find("sh", path, sizeof path));
    ck_fails(launch_find("./nothing", path, sizeof path), CZ_NOTFOUND);
    ck_fails(launch_find("../b/tool", path, sizeof path), CZ_NOTFOUND);
    ck_assert_int_eq(chdir(here), 0);
    setenv("PATH", before, 1);
    free(before);
    free(here);
    test_tmp_remove(dir);
}
END_TEST

static char warning[256];
static void keep_warning(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == CZ_LOG_WARN) snprintf(warning, sizeof warning, "%s", line);
}

/* The ranks get a number of their own instead, so that no rank could tell. */
START_TEST(a_number_of_threads_that_is_none_is_told)
{
    static const struct {
        const char *asked, *words;
    } cases[] = {{"many", "OMP_NUM_THREADS=many is not a number of threads: using "},
                 {"0", "OMP_NUM_THREADS=0 is not a number of threads: using "},
                 {"2", ""},
                 {"", ""}};
    cz_log_set_sink(keep_warning, NULL);
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        int code = -1;
        warning[0] = '\0';
        setenv("OMP_NUM_THREADS", cases[i].asked, 1);
        ck_ok(launch(2, "exit 0", &code));
        ck_assert_int_eq(code, 0);
        ck_assert_msg(*cases[i].words ? strstr(warning, cases[i].words) != NULL : !*warning,
                      "OMP_NUM_THREADS=%s: %s", cases[i].asked, warning);
    }
    cz_log_set_sink(NULL, NULL);
}
END_TEST

START_TEST(other_children_of_the_program_run_on)
{
    static const char *const ends[] = {"exit 0", "exit 3", "kill -9 $$", "sleep 0.1"};
    const char *dir = test_tmp_make();
    pid_t ours[2], done;
    pthread_t thread;
    ours[0] = child();
    ck_assert_int_eq(pthread_create(&thread, NULL, child_of_a_thread, &ours[1]), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    done = fork();
    if (done == 0) _exit(7);
    for (size_t i = 0; i < CZ_ARRAY_LEN(ends); i++) {
        char script[512];
        int exit_code, status, is_reaper = -1;
        snprintf(script, sizeof script,
                 "sleep 1000 & echo $! >'%s/orphan'$CZERO_RANK; (sleep 1000 & sleep 1000) & %s",
                 dir, ends[i]);
        (void)launch(2, script, &exit_code);
        ck_assert_int_eq(exit_code, i == 1 ? 3 : i == 2);
        ck_assert_int_eq(ended_orphans(dir, 2), 2);
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(waitpid(ours[k], &status, WNOHANG), 0);
            ck_assert(runs(ours[k]));
        }
        ck_assert_int_eq(prctl(PR_GET_CHILD_SUBREAPER, &is_reaper), 0);
        ck_assert_int_eq(is_reaper, 0);
    }
    int status;
    ck_assert_int_eq(waitpid(done, &status, 0), done); /* its exit code is still there */
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    for (int k = 0; k < 2; k++) {
        kill(ours[k], SIGKILL);
        ck_assert_int_eq(waitpid(ours[k], NULL, 0), ours[k]);
    }
    test_tmp_remove(dir);
}
END_TEST

/* A program with a loop of waitpid(-1) in another thread takes a rank's exit code, but not the hang
 * of a launcher that waits for ever. */
static void *reaper(void *stop)
{
    while (!*(_Atomic bool *)stop)
        if (waitpid(-1, NULL, WNOHANG) <= 0) usleep(100);
    return NULL;
}

START_TEST(a_rank_that_another_thread_waited_for_ends_the_launch)
{
    static _Atomic bool stop;
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, reaper, (void *)&stop), 0);
    for (int i = 0; i < 5; i++) {
        int exit_code = -1;
        cz_status st = launch(2, "sleep 0.05", &exit_code);
        ck_assert(st == CZ_OK || st == CZ_PEER); /* whichever thread was first */
        ck_assert_int_eq(exit_code, st == CZ_OK ? 0 : 1);
    }
    stop = true;
    pthread_join(thread, NULL);
}
END_TEST

TEST_MAIN("engine/launch", a_number_of_threads_that_is_none_is_told,
          programs_are_found_as_a_shell_finds_them, other_children_of_the_program_run_on,
          a_rank_that_another_thread_waited_for_ends_the_launch)

/* Claims: a mark says of a process of this container whether it still runs, also when another one
 * has its number now; one of an earlier start of this host has ended; of other hosts, and of
 * containers that cannot be seen from here, nothing is known, whatever processes have that number
 * here. */
#include "base/host/process_mark.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* A process that writes its mark and waits. */
static pid_t marked(char mark[PROCESS_MARK_NBYTES])
{
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char text[PROCESS_MARK_NBYTES] = "";
        process_mark(text);
        if (write(ready[1], text, sizeof text) != (ssize_t)sizeof text) _exit(1);
        for (;;) pause();
    }
    ck_assert_int_eq(read(ready[0], mark, PROCESS_MARK_NBYTES), PROCESS_MARK_NBYTES);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

/* Another digit in the place. */
static void change(char *mark, int place)
{
    mark[place] = mark[place] == '5' ? '6' : '5';
}

START_TEST(a_mark_tells_whether_its_process_runs)
{
    char mine[PROCESS_MARK_NBYTES], theirs[PROCESS_MARK_NBYTES];
    process_mark(mine);
    ck_assert_uint_eq(strspn(mine, "0123456789abcdef-"), strlen(mine));
    ck_assert_int_eq(process_mark_fate(mine), PROCESS_RUNS);
    ck_assert(process_mark_is_of_this_boot(mine));
    pid_t pid = marked(theirs);
    ck_assert_str_ne(mine, theirs);
    ck_assert_int_eq(process_mark_fate(theirs), PROCESS_RUNS);
    kill(pid, SIGKILL);
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(process_mark_fate(theirs), PROCESS_ENDED); /* a zombie */
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(process_mark_fate(theirs), PROCESS_ENDED);
}
END_TEST

START_TEST(a_number_that_came_back_is_another_process)
{
    char mark[PROCESS_MARK_NBYTES];
    process_mark(mark);
    change(mark, (int)strlen(mark) - 1); /* of the start */
    ck_assert_int_eq(process_mark_fate(mark), PROCESS_ENDED);
}
END_TEST

START_TEST(other_hosts_and_containers_are_unknown)
{
    char mark[PROCESS_MARK_NBYTES];
    process_mark(mark);
    change(mark, 0); /* the boot */
    ck_assert_int_eq(process_mark_fate(mark), PROCESS_ENDED);
    ck_assert(!process_mark_is_of_this_boot(mark));
    change(mark, 8); /* and the host */
    ck_assert_int_eq(process_mark_fate(mark), PROCESS_UNKNOWN);
    process_mark(mark);
    memset(mark, '0', 8); /* of a host that does not tell its boots apart */
    ck_assert_int_eq(process_mark_fate(mark), PROCESS_UNKNOWN);
    ck_assert(!process_mark_is_of_this_boot(mark));
    process_mark(mark);
    change(mark, 16); /* the PID namespace */
    ck_assert_int_eq(process_mark_fate(mark), PROCESS_UNKNOWN);
    ck_assert(process_mark_is_of_this_boot(mark));
    process_mark(mark);
    change(mark, 8); /* a container's name under the same kernel */
    ck_assert_int_eq(process_mark_fate(mark), PROCESS_RUNS);
}
END_TEST

START_TEST(other_texts_are_no_marks)
{
    static const char *const texts[] = {"",
                                        "1",
                                        "99999999",
                                        "000000000000000000000000-1-0 ",
                                        " 00000000000000000000000-1-0",
                                        "0000000000000000000000a0-0-0",
                                        "0000000000000000000000a0-ffffffff-0",
                                        "0000000000000000000000A0-1-0"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(texts); i++)
        ck_assert_int_eq(process_mark_fate(texts[i]), PROCESS_UNKNOWN);
}
END_TEST

/* A process in a PID namespace of its own, whose number there is one that is in use here, or is
 * not. */
START_TEST(a_process_in_another_pid_namespace_is_unknown)
{
    int ready[2];
    char mark[PROCESS_MARK_NBYTES] = "";
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWPID) != 0) _exit(TEST_SKIPPED);
        pid_t inner = fork();
        if (inner == 0) {
            process_mark(mark);
            if (write(ready[1], mark, sizeof mark) < 0) _exit(1);
            pause();
        }
        _exit(inner < 0);
    }
    int status;
    close(ready[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (read(ready[0], mark, sizeof mark) == (ssize_t)sizeof mark)
        ck_assert_int_eq(process_mark_fate(mark), PROCESS_UNKNOWN);
    else
        printf("left out: this process may not make PID namespaces\n");
    close(ready[0]);
}
END_TEST

/* What fate() says of that mark to a process of that user; −1: it could not become one. */
static int fate_seen_by(uid_t user, const char *mark)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (user != 0 && setresuid(user, user, user) != 0) _exit(99);
        errno = ESRCH; /* of a call long ago */
        _exit((int)process_mark_fate(mark));
    }
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) == 99)
        return -1;
    return WEXITSTATUS(status);
}

/* In a PID namespace that still has the /proc of the one around it: only kill() knows, and of
 * processes that belong to others it may not say more than that they exist. */
START_TEST(without_a_proc_of_its_own_signals_tell)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() != 0 || unshare(CLONE_NEWPID) != 0) _exit(TEST_SKIPPED);
        pid_t inner = fork();
        if (inner == 0) {
            char mark[PROCESS_MARK_NBYTES] = "";
            pid_t other = marked(mark);
            if (fate_seen_by(0, mark) != PROCESS_RUNS) _exit(1);
            if (fate_seen_by(65534, mark) != PROCESS_RUNS) _exit(2);
            kill(other, SIGKILL);
            waitpid(other, NULL, 0);
            _exit(fate_seen_by(0, mark) != PROCESS_ENDED ? 3 : 0);
        }
        _exit(waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : 4);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == TEST_SKIPPED)
        printf("left out: this process may not make PID namespaces\n");
    else
        ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

TEST_MAIN("base/process_mark", a_mark_tells_whether_its_process_runs,
          a_number_that_came_back_is_another_process, other_hosts_and_containers_are_unknown,
          other_texts_are_no_marks, a_process_in_another_pid_namespace_is_unknown,
          without_a_proc_of_its_own_signals_tell)

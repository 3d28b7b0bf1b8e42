/* What reading something costs: CPU time and peak memory of a child process that does nothing else.
 * Limits are ratios to another input of the same size in the same run, so they hold on any machine
 * and under load. */
#ifndef CZ_TESTS_COST_H
#define CZ_TESTS_COST_H

#include "tests/support/check_main.h"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

struct cost {
    double seconds; /* user and system time, the least of three runs */
    double nbytes;  /* resident at most, beyond what a child that does nothing has */
};

#define COST_SECONDS_MAX 20 /* of CPU time: then the child is ended, and that is its cost */

static inline struct rusage cost_run(void (*work)(const void *), const void *user)
{
    struct rusage usage;
    int status;
    malloc_trim(0); /* or the child would find memory that counts as its parent's */
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct rlimit limit = {COST_SECONDS_MAX, COST_SECONDS_MAX};
        setrlimit(RLIMIT_CPU, &limit);
        if (work) work(user);
        _exit(0);
    }
    ck_assert_int_eq(wait4(child, &status, 0, &usage), child);
    ck_assert_msg((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                      (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                      (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU),
                  "the child ended with %#x", (unsigned)status);
    return usage;
}

static inline double cost_seconds(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

/* `work` is called in children only. It may fail, but must return. */
static inline struct cost cost_of(void (*work)(const void *), const void *user)
{
    const struct rusage nothing = cost_run(NULL, NULL);
    struct cost least = {.seconds = 1e9, .nbytes = 1e18};
    for (int i = 0; i < 3 && (i == 0 || least.seconds < 2); i++) {
        const struct rusage u = cost_run(work, user);
        const double nbytes = 1024 * ((double)u.ru_maxrss - (double)nothing.ru_maxrss);
        if (cost_seconds(&u) < least.seconds) least.seconds = cost_seconds(&u);
        if (nbytes < least.nbytes) least.nbytes = nbytes;
    }
    return least;
}

/* The hostile input may take `ratio` times the benign one's time, and what a clock tick hides. */
static inline void cost_compare(const char *what, struct cost hostile, struct cost benign,
                                double ratio)
{
    printf("%-32s %8.3f s, benign %8.3f s: %6.1f (at most %.0f)\n", what, hostile.seconds,
           benign.seconds, hostile.seconds / (benign.seconds + 1e-9), ratio);
    ck_assert_msg(hostile.seconds <= ratio * benign.seconds + 0.02, "%s: %.3f s, benign %.3f s",
                  what, hostile.seconds, benign.seconds);
}

/* Memory at most `multiple` times the input and `fixed` bytes. */
static inline void cost_limit(const char *what, struct cost cost, size_t nbytes, double multiple,
                              double fixed)
{
    printf("%-32s %8.1f MiB for %.1f MiB: %6.1f (at most %.0f)\n", what, cost.nbytes / 0x1p20,
           (double)nbytes / 0x1p20, cost.nbytes / (double)nbytes, multiple);
    ck_assert_msg(cost.nbytes <= multiple * (double)nbytes + fixed, "%s: %.1f MiB for %.1f MiB",
                  what, cost.nbytes / 0x1p20, (double)nbytes / 0x1p20);
}

#endif

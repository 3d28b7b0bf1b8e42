/* Ranks as processes: start them, wait for them with a bound, read what they reported.
 *
 * A rank must not use ck_…: Check's bookkeeping is its parent's. It returns a status and leaves
 * cz_last_error() in place, or calls rank_check(). */
#ifndef CZ_TESTS_RANKS_H
#define CZ_TESTS_RANKS_H

#include "base/clock.h"
#include "comm/shm/shm.h"
#include "tests/support/check_main.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define RANKS_MAX 64

/* A rank's end, in memory shared with the test. */
struct rank_report {
    cz_status status;
    char text[1024];
    int64_t ended_ns;
    volatile int mark; /* for the test's own use */
};

struct ranks {
    int n, fd; /* fd: the shared segment */
    pid_t pids[RANKS_MAX];
    int wait_status[RANKS_MAX];
    struct rank_report *reports; /* (n) */
};

typedef cz_status (*rank_main)(struct ranks *ranks, int rank, void *arg);

#define rank_check(expr)                                                                           \
    do {                                                                                           \
        if (!(expr)) return err_set(CZ_CORRUPT, 0, "%s:%d: %s", __FILE__, __LINE__, #expr);        \
    } while (0)

/* Ranks first … n−1 of n; those before are the test's to start (ranks_start_one). */
static inline void ranks_start_one(struct ranks *ranks, int rank, rank_main body, void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    ranks->pids[rank] = pid;
    if (pid > 0) return;
    struct rank_report *report = &ranks->reports[rank];
    err_clear();
    report->status = body(ranks, rank, arg);
    snprintf(report->text, sizeof report->text, "%s", cz_last_error());
    report->ended_ns = clock_now_ns();
    _exit(report->status == CZ_OK ? 0 : 1);
}

/* A segment without ranks. */
static inline void ranks_open(struct ranks *ranks, int n)
{
    memset(ranks, 0, sizeof *ranks);
    ranks->n = n;
    ck_assert_int_le(n, RANKS_MAX);
    ck_ok(comm_shm_segment_create(n, &ranks->fd));
    ranks->reports = mmap(NULL, (size_t)n * sizeof *ranks->reports, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(ranks->reports != MAP_FAILED);
}

static inline void ranks_start(struct ranks *ranks, int n, rank_main body, void *arg)
{
    ranks_open(ranks, n);
    for (int r = 0; r < n; r++) ranks_start_one(ranks, r, body, arg);
}

/* Wait for all; ranks that have not ended after timeout_s are killed. Whether none had to be. */
static inline bool ranks_wait(struct ranks *ranks, double timeout_s)
{
    int64_t until = clock_now_ns() + (int64_t)(timeout_s * 1e9);
    bool in_time = true;
    for (int r = 0; r < ranks->n; r++) {
        if (ranks->pids[r] == 0) continue;
        while (waitpid(ranks->pids[r], &ranks->wait_status[r], WNOHANG) == 0) {
            if (clock_now_ns() > until) {
                in_time = false;
                kill(ranks->pids[r], SIGKILL);
            }
            usleep(1000);
        }
        ranks->pids[r] = 0;
    }
    return in_time;
}

static inline void ranks_close(struct ranks *ranks)
{
    close(ranks->fd);
    munmap(ranks->reports, (size_t)ranks->n * sizeof *ranks->reports);
}

/* All ended well and in time. */
static inline void ranks_expect_ok(struct ranks *ranks, double timeout_s)
{
    bool in_time = ranks_wait(ranks, timeout_s);
    for (int r = 0; r < ranks->n; r++) {
        const struct rank_report *report = &ranks->reports[r];
        ck_assert_msg(report->status == CZ_OK, "rank %d of %d: %s", r, ranks->n, report->text);
        ck_assert_msg(!in_time || (WIFEXITED(ranks->wait_status[r]) &&
                                   WEXITSTATUS(ranks->wait_status[r]) == 0),
                      "rank %d of %d ended with wait status %d", r, ranks->n,
                      ranks->wait_status[r]);
    }
    ck_assert_msg(in_time, "%d ranks took more than %g s", ranks->n, timeout_s);
    ranks_close(ranks);
}

/* Rank `rank` ended by itself with this status, and its sentence has `part`. */
static inline void rank_expect(const struct ranks *ranks, int rank, cz_status want,
                               const char *part)
{
    const struct rank_report *report = &ranks->reports[rank];
    ck_assert_msg(report->status == want && strstr(report->text, part),
                  "rank %d: %s, %s; expected %s, …%s…", rank, cz_status_name(report->status),
                  report->text, cz_status_name(want), part);
}

#endif

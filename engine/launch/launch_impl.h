/* What the files of the launcher share: how cores are divided, what ranks print, mpirun's words. */
#ifndef CZ_ENGINE_LAUNCH_LAUNCH_IMPL_H
#define CZ_ENGINE_LAUNCH_LAUNCH_IMPL_H

#include "engine/launch/launch.h"

#include <hwloc.h>

/* ---- launch_bind.c: the cores of each rank ------------------------------------------------ */

struct launch_shares {
    int n_ranks;
    int n_threads;        /* of every rank: equal, so that no rank waits for a smaller one */
    bool bound;           /* sets holds the processors of each rank; otherwise all use all */
    bool passive;         /* more threads than cores: waiting threads should sleep */
    hwloc_cpuset_t *sets; /* (n_ranks) or NULL */
};

/* Divide the cores of `allowed` (whole cores: all their allowed processors) among n_ranks ≥ 1.
 * n_cores_quota: cores' worth of time that control groups grant; 0: no limit. Ranks stay on one
 * NUMA node where their number of cores lets them, spread over the nodes. With fewer cores than
 * ranks nothing is bound and every rank has one thread. CZ_NOMEM; release with
 * launch_shares_free(). */
cz_status launch_divide(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, int n_cores_quota,
                        int n_ranks, struct launch_shares *out);
void launch_shares_free(struct launch_shares *shares);

/* The same for the machine we are on and the processors this process may use, and for the number
 * of threads that the user asked for (OMP_NUM_THREADS; 0: none). A machine that hwloc cannot
 * describe is not an error: nothing is bound then. CZ_NOMEM. */
cz_status launch_divide_here(enum launch_bind bind, int n_threads_asked, int n_ranks,
                             struct launch_shares *out);

/* Run the calling thread, and those it starts, on these processors. A system that refuses is no
 * error: it is slower, not wrong. Safe between fork and exec. */
void launch_bind_self(hwloc_const_cpuset_t set);

/* ---- launch_output.c: lines of ranks -------------------------------------------------------- */

struct launch_stream {
    int fd; /* −1: closed; non-blocking otherwise */
    int rank;
    bool to_stderr;
    bool mid_line; /* the line at hand is longer than the buffer: its beginning was passed on */
    size_t n;
    char buffer[4096];
};

/* Pass on the whole lines that have arrived; closes the stream at its end, after what is left.
 * flush: pass on an unfinished line too. */
void launch_stream_pump(struct launch_stream *s, const struct launch_options *o, bool flush);

/* ---- launch_mpirun.c ------------------------------------------------------------------------ */

/* The words of the mpirun command, NULL-terminated, for an `environment` of NAME=VALUE; free() the
 * array; words are borrowed from the arguments and n_ranks_text. NULL: no memory. */
char **launch_mpirun_argv(const struct launch_options *o, const char *program, bool is_root,
                          char *const *environment, char n_ranks_text[16]);

#endif

/* Between the files of machine. */
#ifndef CZ_ENGINE_TUNE_MACHINE_IMPL_H
#define CZ_ENGINE_TUNE_MACHINE_IMPL_H

#include "base/clock.h"
#include "engine/machine/machine.h"
#include "offload/host_memory.h"
#include "ops/ops.h"

struct json_writer;

/* One measuring. */
struct machine_run {
    const struct machine_options *options;
    double seconds; /* for all of it */
    struct device *device;
    struct ops *ops;
    struct affinity *affinity; /* threads are bound and memory is placed as in training; or NULL */
    struct machine_profile *out;
};

/* CZ_BUSY when the caller wants to stop. */
cz_status machine_go_on(const struct machine_run *run);

/* Say what comes next. Errors: as machine_go_on(). */
cz_status machine_next(const struct machine_run *run, const char *fmt, ...) CZ_PRINTF(2, 3);

/* Bytes that may be taken for arrays: a quarter of what is available. */
cz_status machine_memory(const struct machine_run *run, size_t *nbytes);

/* Something to time, and what came out. */
struct machine_line {
    cz_status (*step)(void *user);
    double seconds; /* of the best repetition */
};

/* All lines in turns, so that what else the machine does meets them alike: once to warm up, then at
 * least three times and until `seconds` are over. Errors: those of the steps, CZ_BUSY. */
cz_status machine_time(const struct machine_run *run, double seconds, struct machine_line *lines,
                       size_t n_lines, void *user);

/* The parts; each writes its figures into run->out and keeps to about its share of the time. */
cz_status machine_measure_gemm(const struct machine_run *run);
cz_status machine_measure_memory(const struct machine_run *run); /* triad, Adam */
cz_status machine_measure_comm(const struct machine_run *run);
cz_status machine_measure_nvme(const struct machine_run *run);
cz_status machine_measure_device(const struct machine_run *run); /* nothing where there is no GPU */

/* The profile as one JSON object, as its file has it. */
void machine_put(struct json_writer *w, const struct machine_profile *profile);

static inline double machine_since(int64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) * 1e-9;
}

#endif

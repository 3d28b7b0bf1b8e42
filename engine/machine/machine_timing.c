/* What all measurements of a machine share: the clock, the wish to stop, memory for arrays. Below
 * the parts (machine_nvme.c, machine_gemm.c, …), which machine_measure.c calls one after the other.
 */
#include "engine/machine/machine_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>

cz_status machine_go_on(const struct machine_run *run)
{
    const struct machine_options *o = run->options;
    if (!o->stopped || !o->stopped(o->user)) return CZ_OK;
    return err_set(CZ_BUSY, 0, "stopped before everything was measured");
}

cz_status machine_next(const struct machine_run *run, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    TRY(machine_go_on(run));
    if (run->options->progress) run->options->progress(run->options->user, what);
    return CZ_OK;
}

/* A quarter: arrays must be larger than the caches, and other programs keep what they have. */
cz_status machine_memory(const struct machine_run *run, size_t *nbytes)
{
    size_t available, total;
    struct rlimit limit;
    TRY(run->device->ops->mem_info(run->device, &available, &total));
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < available)
        available = (size_t)limit.rlim_cur;
    *nbytes = available / 4;
    return CZ_OK;
}

/* The best repetition counts: disturbances only ever add time. n < 1: the warm-up round and the
 * first one set the value. */
cz_status machine_time(const struct machine_run *run, double seconds, struct machine_line *lines,
                       size_t n_lines, void *user)
{
    const int64_t start = clock_now_ns();
    for (int n = -1; n < 3 || machine_since(start) < seconds; n++)
        for (size_t i = 0; i < n_lines; i++) {
            const int64_t begin = clock_now_ns();
            TRY(lines[i].step(user));
            const double now = machine_since(begin);
            lines[i].seconds = n < 1 ? now : fmin(lines[i].seconds, now);
            TRY(machine_go_on(run));
        }
    return CZ_OK;
}

/* Measuring a machine, part by part: the folder first, so that a wrong one shows at once. */
#include "base/cpu.h"
#include "base/threads.h"
#include "engine/launch/world_impl.h"
#include "engine/tune/machine_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define SECONDS_DEFAULT 30.0
#define SECONDS_MAX     60.0

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

static cz_status check(const struct machine_options *o)
{
    if (!(o->seconds >= 0) || o->seconds > SECONDS_MAX)
        return err_set(CZ_INVALID, 0, "measuring for %g seconds: use more than 0, at most %g",
                       o->seconds, SECONDS_MAX);
    if (!o->nvme_path) return CZ_OK;
    if (!*o->nvme_path) return err_set(CZ_INVALID, 0, "the folder to measure has no name");
    if (strlen(o->nvme_path) >= sizeof((struct machine_profile *)0)->nvme_path)
        return err_set(CZ_INVALID, 0, "%s: longer than %zu bytes, which a profile cannot name",
                       o->nvme_path, sizeof((struct machine_profile *)0)->nvme_path - 1);
    return CZ_OK;
}

/* The cores and nodes that training would get as the only rank. */
static cz_status bind_threads(struct machine_run *run)
{
    struct comm *self;
    TRY(comm_self_create(0, 1, &self));
    cz_status st = world_place(self, "", &run->affinity);
    comm_destroy(self);
    return st;
}

static cz_status measure(struct machine_run *run)
{
    struct machine_profile *p = run->out;
    TRY(bind_threads(run));
    TRY(device_open("cpu", 0, &run->device));
    TRY(ops_create(run->device, &run->ops));
    snprintf(p->cpu, sizeof p->cpu, "%s", cpu_model_name());
    snprintf(p->isa, sizeof p->isa, "%s", ops_isa(run->ops));
    p->n_threads = threads_count();
    if (run->options->nvme_path) TRY(machine_measure_nvme(run));
    TRY(machine_measure_memory(run));
    TRY(machine_measure_gemm(run));
    TRY(machine_measure_device(run));
    return machine_measure_comm(run);
}

cz_status machine_measure(const struct machine_options *options, struct machine_profile *out)
{
    struct machine_run run = {.options = options, .out = out};
    memset(out, 0, sizeof *out);
    TRY(check(options));
    run.seconds = options->seconds > 0 ? options->seconds : SECONDS_DEFAULT;
    cz_status st = measure(&run);
    ops_destroy(run.ops);
    device_close(run.device);
    affinity_destroy(run.affinity);
    if (st != CZ_OK) memset(out, 0, sizeof *out);
    return st;
}

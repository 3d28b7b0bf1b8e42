/* Measuring a machine, part by part: the folder first, so that a wrong one shows at once. The
 * profile feeds the plan's times and the search of czero tune; it describes what training would
 * get, so threads and memory are placed as for a run's only rank. */
#include "base/cpu.h"
#include "base/threads.h"
#include "engine/launch/world_impl.h"
#include "engine/machine/machine_impl.h"

#include <stdio.h>
#include <string.h>

#define SECONDS_DEFAULT 30.0
#define SECONDS_MAX     60.0

static cz_status measure(struct machine_run *run)
{
    struct machine_profile *p = run->out;
    /* The cores and nodes that training would get as the only rank. */
    struct comm *self;
    TRY(comm_self_create(0, 1, &self));
    cz_status st = world_place(self, "", &run->affinity);
    comm_destroy(self);
    TRY(st);
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
    /* Options are checked before minutes are spent on measuring. */
    if (!(options->seconds >= 0) || options->seconds > SECONDS_MAX)
        return err_set(CZ_INVALID, 0, "measuring for %g seconds: use more than 0, at most %g",
                       options->seconds, SECONDS_MAX);
    if (options->nvme_path) {
        if (!*options->nvme_path)
            return err_set(CZ_INVALID, 0, "the folder to measure has no name");
        if (strlen(options->nvme_path) >= sizeof((struct machine_profile *)0)->nvme_path)
            return err_set(CZ_INVALID, 0, "%s: longer than %zu bytes, which a profile cannot name",
                           options->nvme_path, sizeof((struct machine_profile *)0)->nvme_path - 1);
    }
    run.seconds = options->seconds > 0 ? options->seconds : SECONDS_DEFAULT;
    cz_status st = measure(&run);
    ops_destroy(run.ops);
    device_close(run.device);
    affinity_destroy(run.affinity);
    if (st != CZ_OK) memset(out, 0, sizeof *out);
    return st;
}

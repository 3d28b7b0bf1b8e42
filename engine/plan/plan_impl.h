/* Parts of the plan, shared by the files that make it. */
#ifndef CZ_ENGINE_PLAN_PLAN_IMPL_H
#define CZ_ENGINE_PLAN_PLAN_IMPL_H

#include "comm/device/device_comm.h"
#include "engine/plan/description.h"
#include "formats/json/json_write.h"

#define PLAN_STATES_NAME "state" /* the row of a block that groups call differently */

#include <stdio.h>

/* ---- plan.c --------------------------------------------------------------------------------- */

/* Fill in what d->plan is for, from the config and the model. */
void plan_describe(struct description *d);

/* Fill the rest of d->plan from the chain and zero; measures the baseline. */
cz_status plan_fill(struct description *d);

/* ---- plan_device.c --------------------------------------------------------------------------- */

/* What only a GPU run has: names, kept activations, the context; looks at the GPU if there is one.
 */
cz_status plan_place_on_device(struct description *d);

/* The same once the ranks are connected: the ranks that share this GPU, and their transport.
 * Collective, on the host's communicator. */
cz_status plan_meet_on_device(struct description *d, enum device_comm_kind kind);

/* Totals, when rows have changed. Pinned memory is host memory, too. */
static inline void plan_add_up(struct cz_plan *p)
{
    size_t sums[PLAN_N_PLACES] = {0};
    for (size_t i = 0; i < p->n_rows; i++) sums[p->rows[i].place] += p->rows[i].nbytes;
    p->pinned_nbytes = sums[PLAN_PINNED];
    p->nvme_nbytes = sums[PLAN_NVME];
    p->device_peak_nbytes = sums[PLAN_DEVICE];
    p->host_peak_nbytes = p->baseline_nbytes + p->comm_nbytes + sums[PLAN_HOST] + sums[PLAN_PINNED];
}

/* What the run takes of the GPU beside what is in use there already. */
size_t plan_device_need(const struct cz_plan *p);

/* How much of the update a GPU makes: 0 on the CPU, 1 when nothing is offloaded, else 1 − ratio. */
double plan_device_share(const struct description *d);

/* ---- plan_phases.c, plan_times.c ------------------------------------------------------------ */

/* Fill the plan's phases, once its rows and totals stand; then their times on a machine (NULL:
 * unknown). */
void plan_fill_phases(struct description *d);
void plan_fill_times(struct description *d, const struct machine_profile *profile);

/* What a micro-batch costs one layer: its forward, its backward, and its forward once more where it
 * is recomputed. */
struct plan_work {
    struct plan_products {
        double flops;
        size_t moved_nbytes, weights_nbytes; /* as in struct plan_cost */
    } forward, backward, redo;
};
struct plan_work plan_layer_work(const struct description *d, size_t layer_idx);

/* Seconds on a machine; NAN: a rate is missing. Of what a phase moves to and from NVMe, too. */
double plan_work_seconds(struct description *d, const struct machine_profile *m,
                         const struct plan_products *work);
double plan_nvme_seconds(struct description *d, const struct machine_profile *m,
                         const struct plan_cost *cost);

/* Bytes per second of this rank's share of the swap file's disks together; 0: not measured. */
struct plan_rates {
    double read, write, both;
};
struct plan_rates plan_nvme_rates(const struct description *d, const struct machine_profile *m);

/* ---- plan_saved.c --------------------------------------------------------------------------- */

/* Place what layers save by the times of a machine, within `left` bytes of activations; in the swap
 * file where there is one. Needs what plan_describe() fills in. *is_chosen: false where the profile
 * lacks a rate (plan.missing_rate). */
cz_status plan_choose_saved(struct description *d, const struct machine_profile *m, bool has_file,
                            size_t left, bool *is_chosen);

/* How often in a step what comes and goes with a layer does so. */
static inline size_t plan_n_passes(const struct cz_plan *p)
{
    return p->order == PLAN_BY_LAYER ? 1 : (size_t)p->accumulation;
}

/* Bytes that the optimizer's update of this rank's partition reads and writes. */
size_t plan_update_nbytes(const struct description *d);

/* What the last pass of an update that is left to the next forward moves there; nothing where it is
 * not. */
struct plan_cost plan_late_update(const struct description *d);

/* Whether plan_row_in_phase() knows the row by its name. */
bool plan_row_is_known(const struct plan_row *row);

/* Whether a row holds masters or optimizer states. */
bool plan_row_is_state(const struct plan_row *row);

/* ---- plan_estimate.c ------------------------------------------------------------------------ */

/* plan_estimate_deepspeed() by numbers: all parameters, and those of the largest module. */
bool plan_estimate_numbers(double numel, double module_numel, int stage, bool optimizer_away,
                           bool params_away, int64_t world_size, struct plan_estimate *out);

#endif

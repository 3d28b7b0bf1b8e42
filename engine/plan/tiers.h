/* What rests where: the config's offload sections made places for the plan's rows, a swap file and
 * page-locked memory. */
#ifndef CZ_ENGINE_PLAN_TIERS_H
#define CZ_ENGINE_PLAN_TIERS_H

#include "engine/plan/description.h"
#include "offload/swap.h"

/* Which frozen parameters stay in the model's files: d->frozen_at and d->sources, for
 * tiers_swap() and tiers_swap_options(). Errors: CZ_NOMEM. */
cz_status tiers_find_in_place(struct description *d);

/* What zero keeps in the swap file. A GPU's gradients leave it for the host. */
struct zero_swap tiers_swap(const struct description *d);

/* What zero keeps in host memory while layers run on a GPU. As in DeepSpeed, the sections apply to
 * stages above 0, offload_param and ratio of stage 3. */
struct zero_offload tiers_offload(const struct description *d);

/* Bytes of the swap file, behind zero's, in which inputs of layers and what they save wait; *off:
 * where they begin. */
size_t tiers_activations_nbytes(const struct description *d, uint64_t *off);

/* How far layers' parameters are fetched ahead, and how many may be there at a time. */
struct zero_stage3 tiers_window(const struct description *d);

/* The swap file of this run; dir NULL: there is none. */
struct swap_options tiers_swap_options(const struct description *d);

/* The places of the run's rows on the CPU device, page-locked where the config and RLIMIT_MEMLOCK
 * allow, and the rows of the swap file behind the run's blocks. */
void tiers_place_rows(struct description *d);

/* Where a block's row is in a GPU run, before page-locking. */
enum plan_place tiers_device_place(const struct description *d, int block);

#endif

/* What rests where: the config's offload sections made places for the plan's rows, a swap file and
 * page-locked memory. */
#ifndef CZ_ENGINE_TIERS_IMPL_H
#define CZ_ENGINE_TIERS_IMPL_H

#include "engine/engine_impl.h"

/* Which frozen parameters stay in the model's files: e->frozen_at and e->sources, for
 * tiers_swap() and tiers_swap_options(). Errors: CZ_NOMEM. */
cz_status tiers_find_in_place(struct cz_engine *e);

/* What zero keeps in the swap file. A GPU's gradients leave it for the host. */
struct zero_swap tiers_swap(const struct cz_engine *e);

/* What zero keeps in host memory while layers run on a GPU. As in DeepSpeed, the sections apply to
 * stages above 0, offload_param and ratio of stage 3. */
struct zero_offload tiers_offload(const struct cz_engine *e);

/* Bytes of the swap file, behind zero's, in which inputs of layers and what they save wait; *off:
 * where they begin. */
size_t tiers_activations_nbytes(const struct cz_engine *e, uint64_t *off);

/* How far layers' parameters are fetched ahead, and how many may be there at a time. */
struct zero_stage3 tiers_window(const struct cz_engine *e);

/* The swap file of this run; dir NULL: there is none. */
struct swap_options tiers_swap_options(const struct cz_engine *e);

/* The places of the run's rows on the CPU device, page-locked where the config and RLIMIT_MEMLOCK
 * allow, and the rows of the swap file behind the run's blocks. */
void tiers_place_rows(struct cz_engine *e);

/* Memory of all places and the swap file, by the plan; what was not to be had is reported. */
cz_status tiers_allocate(struct cz_engine *e);

/* At a boundary: what the step behind it has moved. */
void tiers_count_step(struct cz_engine *e);

/* Accepts an engine without. After zero_destroy(): requests end in this memory. */
void tiers_free(struct cz_engine *e);

#endif

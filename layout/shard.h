/* Partitions of stage 3 (docs/deepspeed-behaviour.md, "Partitions of stage 3"): pure arithmetic.
 *
 * Each parameter is split on its own: chunk = ceil(numel / W); rank r owns [r·chunk, (r+1)·chunk)
 * cut at numel, and allocates a whole chunk. An optimizer group's parameters, in order, form
 * sub-groups, closed as soon as their chunks reach sub_group_size; a sub-group's masters and states
 * are one flat tensor, the concatenation of its chunks. All counts are elements.
 *
 * Life cycle: shard_group_init() → read → shard_group_free(). */
#ifndef CZ_LAYOUT_SHARD_H
#define CZ_LAYOUT_SHARD_H

#include "layout/param_table.h"

CZ_EXTERN_C_BEGIN

/* Elements of every rank's piece of a parameter. */
static inline size_t shard_chunk(size_t numel, int world_size)
{
    size_t w = (size_t)world_size;
    return numel / w + (numel % w != 0);
}

/* Real elements in rank's piece: 0 … chunk. */
static inline size_t shard_real(size_t numel, int world_size, int rank)
{
    size_t chunk = shard_chunk(numel, world_size);
    size_t begin = (size_t)rank * chunk;
    if (begin >= numel) return 0;
    return numel - begin < chunk ? numel - begin : chunk;
}

struct shard_param {
    size_t param_idx;
    size_t chunk;
    size_t off; /* of its chunk in the sub-group's flat tensor */
};

struct shard_sub_group {
    size_t first, n_params; /* positions in shard_group.params */
    size_t numel;           /* sum of chunks: the same on every rank */
};

struct shard_group {
    struct shard_param *params;
    size_t n_params;
    struct shard_sub_group *sub_groups;
    size_t n_sub_groups;
    size_t numel; /* over all sub-groups */
    int world_size;
};

/* Errors: CZ_INVALID (W < 1, overflow), CZ_NOMEM. */
cz_status shard_group_init(struct shard_group *g, const struct param_table *table,
                           const size_t *param_idx, size_t n, int world_size,
                           size_t sub_group_size);
void shard_group_free(struct shard_group *g); /* accepts zeroed; idempotent */

/* Which parameters stay gathered: numel ≤ param_threshold and the running total within
 * model_threshold, scanned in table order (one that does not fit is passed over). persistent:
 * n_params flags, written. Returns the elements they hold. */
size_t shard_persistent(const struct param_table *table, size_t param_threshold,
                        size_t model_threshold, bool *persistent);

CZ_EXTERN_C_END
#endif

/* Optimizer groups and parameters: which arrays a group has, how many elements of each are this
 * rank's, and where each gets its space in the blocks or in the swap file. The order of
 * zero_block_take() calls is the order in memory. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>

/* ---- parameters: their group and their last use ---------------------------------------------- */

static cz_status note_params(struct zero *z)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++) {
        const struct param_info *info = &o->table->params[i];
        if (info->trainable && o->group_of[i] >= o->n_groups)
            return err_set(CZ_INVALID, 0, "%s: there is no parameter group %zu", info->name,
                           o->group_of[i]);
        z->own.params[i].group = info->trainable ? o->group_of[i] : o->n_groups;
        z->own.params[i].ready_unit = o->n_units;
    }
    /* Backward goes through the units in reverse: a parameter's first use is the last to give it
     * gradients. */
    for (size_t u = o->n_units; u-- > 0;)
        for (size_t k = 0; k < o->units[u].n; k++) {
            struct zero_param *p = &z->own.params[o->units[u].param_idx[k]];
            p->tied |= p->ready_unit < o->n_units && p->ready_unit != u;
            p->ready_unit = u;
        }
    return CZ_OK;
}

/* ---- partitions ------------------------------------------------------------------------------ */

/* The 1-bit family exchanges its momentum instead of gradients: that is whole on every rank, and
 * parameters keep their own order, in which they are compressed. */
static bool exchanges(const struct zero_options *o)
{
    return onebit_of(o->groups, o->n_groups) != NULL;
}

/* Stages 0-2: parameters idx[0 … n) side by side in one flat buffer, cut evenly over the ranks. */
static cz_status group_flat(struct zero *z, size_t g, const size_t *idx, size_t n)
{
    const struct zero_options *o = &z->options;
    struct zero_group *group = &z->own.groups[g];
    const struct flat_options flat = {
        .world_size = o->comm->world_size,
        .round_robin = o->round_robin && o->stage > 0 && !exchanges(o),
        .param_align = o->align_params ? 16 / dtype_size(o->dtype) : 1};
    TRY(flat_group_init(&group->flat, o->table, idx, n, &flat));
    for (size_t p = 0; p < n; p++)
        z->own.params[group->flat.params[p].param_idx].off = group->flat.params[p].off;
    bool is_split = o->stage > 0;
    group->own_begin = is_split ? (size_t)o->comm->rank * group->flat.partition : 0;
    group->own_numel = is_split ? group->flat.partition : group->flat.numel_padded;
    z->figures.numel_padded += group->flat.numel_padded;
    return CZ_OK;
}

/* Stage 3: a chunk of each parameter, sub-group after sub-group. */
static cz_status group_shard(struct zero *z, size_t g, const size_t *idx, size_t n)
{
    const struct zero_options *o = &z->options;
    struct zero_group *group = &z->own.groups[g];
    size_t sub_group_numel = o->stage3.sub_group_numel ? o->stage3.sub_group_numel : SIZE_MAX;
    TRY(shard_group_init(&group->shard, o->table, idx, n, o->comm->world_size, sub_group_numel));
    size_t begin = 0;
    for (size_t s = 0; s < group->shard.n_sub_groups; s++) {
        const struct shard_sub_group *sub = &group->shard.sub_groups[s];
        for (size_t p = sub->first; p < sub->first + sub->n_params; p++)
            z->own.params[group->shard.params[p].param_idx].off =
                begin + group->shard.params[p].off;
        begin += sub->numel;
    }
    group->own_numel = group->shard.numel;
    z->figures.numel_padded += group->shard.numel * (size_t)o->comm->world_size;
    return CZ_OK;
}

/* `idx`: scratch for n_params indices. */
static cz_status partition_all(struct zero *z, size_t *idx)
{
    const struct zero_options *o = &z->options;
    for (size_t g = 0; g < o->n_groups; g++) {
        size_t n = 0;
        for (size_t i = 0; i < o->table->n_params; i++)
            if (z->own.params[i].group == g) idx[n++] = i;
        TRY(o->stage == 3 ? group_shard(z, g, idx, n) : group_flat(z, g, idx, n));
        z->own.groups[g].n_states = optim_n_states(&o->groups[g].hyper);
        z->figures.numel_own += z->own.groups[g].own_numel;
    }
    return CZ_OK;
}

/* Which masters and states stay in memory (with a swap file) or on the GPU (without): whole tiles
 * of the first groups, up to their share. */
static void choose_residents(struct zero *z)
{
    const struct zero_options *o = &z->options;
    double share = o->swap.optimizer ? o->swap.memory_share : o->offload.device_share;
    size_t tile = z->options.tile_numel;
    size_t left = (size_t)(share * (double)z->figures.numel_own);
    for (size_t g = 0; g < z->options.n_groups; g++) {
        struct zero_group *group = &z->own.groups[g];
        group->resident = left < group->own_numel ? left / tile * tile : group->own_numel;
        left -= group->resident;
    }
}

/* ---- space ----------------------------------------------------------------------------------- */

/* For one of the group's arrays that an update changes: its first elements in the block, the others
 * in the file. */
static cz_status array_take(struct zero *z, enum zero_block block, struct zero_group *group,
                            enum cz_dtype dtype, size_t *off, uint64_t *swap_off)
{
    size_t in_memory = z->options.swap.optimizer ? group->resident : group->own_numel, nbytes;
    TRY(size_mul(group->own_numel - in_memory, dtype_size(dtype), &nbytes));
    if (nbytes > 0) TRY(zero_swap_take(z, nbytes, 0, swap_off));
    if (zero_states_leave(&z->options)) { /* a share stays on the GPU, what is left is the host's */
        size_t s = block == ZERO_MASTERS ? 0 : 1 + (size_t)(block - ZERO_STATE_0);
        TRY(zero_block_take(z, ZERO_SHARE, group->resident, dtype, &group->share_off[s]));
        in_memory = z->options.swap.optimizer ? 0 : group->own_numel - group->resident;
    }
    size_t *swapped = &z->figures.master_swapped_nbytes;
    if (block != ZERO_MASTERS) swapped = &z->figures.swapped_nbytes[block - ZERO_STATE_0];
    *swapped += nbytes;
    return zero_block_take(z, block, in_memory, dtype, off);
}

/* For parameters: in memory, or in the file, where element `own_begin` begins a block, so that what
 * a rank writes of its own shares no block with others. */
static cz_status params_take(struct zero *z, size_t numel, size_t own_begin, size_t *off,
                             uint64_t *swap_off)
{
    size_t size = dtype_size(z->options.dtype), nbytes;
    if (!z->options.swap.params)
        return zero_block_take(z, ZERO_PARAMS, numel, z->options.dtype, off);
    TRY(size_mul(numel, size, &nbytes));
    z->figures.param_swapped_nbytes += nbytes;
    return zero_swap_take(z, nbytes, own_begin * size, swap_off);
}

static cz_status group_take(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    struct zero_group *group = &z->own.groups[g];
    size_t own = group->own_numel, whole = o->stage == 3 ? own : group->flat.numel_padded, s = 0;
    TRY(params_take(z, whole, group->own_begin, &group->param_off, &group->param_swap));
    if (z->mem.has_masters)
        TRY(array_take(z, ZERO_MASTERS, group, o->master_dtype, &group->master_off,
                       &group->master_swap));
    TRY(zero_grads_take(z, g, z->buckets.is_bucketed ? own : whole));
    if (exchanges(o)) { /* the whole momentum; state_off is that of the rank's own part */
        TRY(zero_block_take(z, ZERO_STATE_0, whole, DTYPE_F32, &group->state_off[0]));
        group->state_off[0] += group->own_begin * sizeof(float);
        s = 1;
    }
    for (; s < group->n_states; s++)
        TRY(array_take(z, (enum zero_block)(ZERO_STATE_0 + s), group, o->state_dtype,
                       &group->state_off[s], &group->state_swap[s]));
    return CZ_OK;
}

/* Frozen parameters come behind the groups, at stage 3 a chunk of each; or they stay where they
 * are.
 */
static cz_status frozen_take(struct zero *z)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++) {
        struct zero_param *p = &z->own.params[i];
        size_t numel = o->table->params[i].numel;
        uint64_t swap_off = 0;
        if (p->group != o->n_groups) continue;
        if (o->swap.frozen_at && o->swap.frozen_at[i] != 0) {
            struct zero_piece piece = {.numel = numel};
            if (o->stage == 3) piece = zero_piece_mine(z, i);
            p->frozen_off = o->swap.frozen_at[i] + piece.param_off * dtype_size(o->dtype);
            z->figures.in_place_nbytes += piece.numel * dtype_size(o->dtype);
            continue;
        }
        if (o->stage == 3) numel = shard_chunk(numel, o->comm->world_size);
        TRY(params_take(z, numel, 0, &p->frozen_off, &swap_off));
        if (o->swap.params) p->frozen_off = swap_off;
    }
    return CZ_OK;
}

/* ---- tensors of tiles, for optimizers with a norm per tensor --------------------------------- */

/* Which tensors are in each tile, and from where to where; and space for their sums and ratios. */
static cz_status group_segments(struct zero *z, size_t g)
{
    struct zero_group *group = &z->own.groups[g];
    size_t tile = z->options.tile_numel, n_params = zero_group_n_params(z, g);
    size_t n_tiles = tile_count(group->own_numel, tile);
    group->segments = calloc(n_params + n_tiles + 1, sizeof *group->segments);
    group->tile_segment = calloc(n_tiles + 1, sizeof *group->tile_segment);
    if (!group->segments || !group->tile_segment)
        return err_set(CZ_NOMEM, 0, "no memory for the segments of %zu tiles", n_tiles);
    size_t n = 0, pos = 0;
    for (size_t t = 0; t < n_tiles; t++) {
        size_t begin = t * tile, end = begin + tile_numel(group->own_numel, tile, t);
        group->tile_segment[t] = n;
        for (; pos < n_params; pos++) {
            struct zero_piece mine = zero_piece_mine(z, zero_group_param(z, g, pos));
            size_t lo = mine.own_off > begin ? mine.own_off : begin;
            size_t hi = mine.own_off + mine.numel < end ? mine.own_off + mine.numel : end;
            if (lo < hi)
                group->segments[n++] =
                    (struct lamb_segment){.begin = lo - begin, .end = hi - begin, .tensor = pos};
            if (mine.own_off + mine.numel >= end) break; /* the next tile may have more of it */
        }
    }
    group->tile_segment[n_tiles] = n;
    TRY(zero_block_take(z, ZERO_SMALL, n_params * sizeof(struct lamb_sums), DTYPE_U8,
                        &group->sums_off));
    TRY(zero_block_take(z, ZERO_SMALL, n_params, DTYPE_F32, &group->ratios_off));
    if (z->options.on_gpu) {
        TRY(zero_block_take(z, ZERO_STEP, n_params * sizeof(struct lamb_sums), DTYPE_U8,
                            &group->gpu_sums_off));
        TRY(zero_block_take(z, ZERO_STEP, n_params, DTYPE_F32, &group->gpu_ratios_off));
    }
    return zero_tensor_sums_init(z, g);
}

cz_status zero_groups_init(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t *idx = calloc(o->table->n_params + 1, sizeof *idx);
    if (!idx) return err_set(CZ_NOMEM, 0, "no memory for %zu parameters", o->table->n_params);
    cz_status st = note_params(z);
    if (st == CZ_OK) st = partition_all(z, idx);
    free(idx);
    TRY(st);
    choose_residents(z);
    for (size_t g = 0; g < o->n_groups; g++) {
        TRY(group_take(z, g));
        if (optim_stage_of(o->groups[g].hyper.cls, OPTIM_TENSOR_SUMS)) TRY(group_segments(z, g));
    }
    return frozen_take(z);
}

void zero_groups_free(struct zero *z)
{
    for (size_t g = 0; z->own.groups && g < z->options.n_groups; g++) {
        flat_group_free(&z->own.groups[g].flat);
        shard_group_free(&z->own.groups[g].shard);
        free(z->own.groups[g].segments);
        free(z->own.groups[g].tile_segment);
        free(z->own.groups[g].sums.spans);
    }
    free(z->own.groups);
    free(z->own.params);
}

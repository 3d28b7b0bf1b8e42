#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* Take `numel` elements of `dtype` at the end of a block. */
static cz_status block_take(struct zero *z, enum zero_block block, size_t numel, enum dtype dtype,
                            size_t *off)
{
    size_t nbytes;
    *off = z->nbytes[block];
    TRY(size_mul(numel, dtype_size(dtype), &nbytes));
    TRY(size_add(nbytes, ZERO_ALIGN - 1, &nbytes));
    return size_add(z->nbytes[block], nbytes / ZERO_ALIGN * ZERO_ALIGN, &z->nbytes[block]);
}

static cz_status check_options(const struct zero_options *o)
{
    if (o->stage < 0 || o->stage > 2)
        return err_set(CZ_UNSUPPORTED, 0, "zero_optimization.stage: %d is not done yet; 0, 1 or 2",
                       o->stage);
    if (o->grad_dtype != o->dtype && o->grad_dtype != DTYPE_F32)
        return err_set(CZ_UNSUPPORTED, 0,
                       "gradients of a %s model are kept in %s or fp32, not in %s",
                       dtype_name(o->dtype), dtype_name(o->dtype), dtype_name(o->grad_dtype));
    if (o->master_dtype != o->dtype && o->master_dtype != DTYPE_F32)
        return err_set(CZ_UNSUPPORTED, 0, "master weights of a %s model are %s or fp32, not %s",
                       dtype_name(o->dtype), dtype_name(o->dtype), dtype_name(o->master_dtype));
    for (size_t g = 0; g < o->n_groups; g++)
        if (o->stage > 0 && o->comm->world_size > 1 &&
            (o->groups[g].hyper.cls->flags & OPTIM_TENSOR_NORMS))
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s needs whole tensors, which stage %d splits over ranks; use stage 0",
                           o->groups[g].hyper.cls->name, o->stage);
    return CZ_OK;
}

static cz_status alloc_tables(struct zero *z)
{
    size_t n = z->options.table->n_params + 1, w = (size_t)z->options.comm->world_size;
    z->groups = calloc(z->options.n_groups + 1, sizeof *z->groups);
    z->frozen_off = calloc(n, sizeof *z->frozen_off);
    z->place_group = calloc(n, sizeof *z->place_group);
    z->place_off = calloc(n, sizeof *z->place_off);
    z->params = calloc(n, sizeof *z->params);
    z->grads = calloc(n, sizeof *z->grads);
    z->scans = calloc(w, sizeof *z->scans);
    z->norms = calloc(w, SUMSQ_PARTS * sizeof *z->norms);
    if (!z->groups || !z->frozen_off || !z->place_group || !z->place_off || !z->params ||
        !z->grads || !z->scans || !z->norms)
        return err_set(CZ_NOMEM, 0, "no memory for the tables of %zu parameters", n - 1);
    return CZ_OK;
}

/* Parameters of group g in table order, laid out; `idx` is scratch for n_params indices. */
static cz_status group_layout(struct zero *z, size_t g, size_t *idx)
{
    const struct zero_options *o = &z->options;
    struct zero_group *group = &z->groups[g];
    size_t n = 0;
    for (size_t i = 0; i < o->table->n_params; i++)
        if (o->table->params[i].trainable && o->group_of[i] == g) idx[n++] = i;
    const struct flat_options flat = {.world_size = o->comm->world_size,
                                      .round_robin = o->round_robin && o->stage > 0,
                                      .param_align =
                                          o->align_params ? 16 / dtype_size(o->dtype) : 1};
    TRY(flat_group_init(&group->flat, o->table, idx, n, &flat));
    for (size_t p = 0; p < n; p++) {
        const struct flat_param *at = &group->flat.params[p];
        z->place_group[at->param_idx] = g;
        z->place_off[at->param_idx] = at->off;
    }
    group->own_begin = o->stage == 0 ? 0 : (size_t)o->comm->rank * group->flat.partition;
    group->own_numel = o->stage == 0 ? group->flat.numel_padded : group->flat.partition;
    group->n_states = optim_n_states(&o->groups[g].hyper);
    z->numel_padded += group->flat.numel_padded;
    z->numel_own += group->own_numel;
    return CZ_OK;
}

static cz_status group_blocks(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    struct zero_group *group = &z->groups[g];
    TRY(block_take(z, ZERO_PARAMS, group->flat.numel_padded, o->dtype, &group->param_off));
    if (z->own_masters)
        TRY(block_take(z, ZERO_MASTERS, group->own_numel, o->master_dtype, &group->master_off));
    bool whole_grads = o->stage < 2 || o->comm->world_size == 1;
    TRY(block_take(z, ZERO_GRADS, whole_grads ? group->flat.numel_padded : group->own_numel,
                   o->grad_dtype, &group->grad_off));
    for (size_t s = 0; s < group->n_states; s++)
        TRY(block_take(z, (enum zero_block)(ZERO_STATE_0 + s), group->own_numel, o->state_dtype,
                       &group->state_off[s]));
    return CZ_OK;
}

/* Tensors inside each tile of this rank's range, for optimizers with a norm per tensor. */
static cz_status group_segments(struct zero *z, size_t g)
{
    struct zero_group *group = &z->groups[g];
    size_t tile = z->options.tile_numel;
    size_t n_tiles = tile_count(group->own_numel, tile);
    group->segments = calloc(group->flat.n_params + n_tiles + 1, sizeof *group->segments);
    group->tile_segment = calloc(n_tiles + 1, sizeof *group->tile_segment);
    if (!group->segments || !group->tile_segment)
        return err_set(CZ_NOMEM, 0, "no memory for the segments of %zu tiles", n_tiles);
    size_t n = 0;
    for (size_t t = 0; t < n_tiles; t++) {
        size_t begin = group->own_begin + t * tile;
        size_t end = begin + tile_numel(group->own_numel, tile, t);
        struct flat_piece piece;
        group->tile_segment[t] = n;
        for (size_t pos = 0; flat_group_next(&group->flat, begin, end, &pos, &piece);)
            group->segments[n++] = (struct lamb_segment){.begin = piece.range_off,
                                                         .end = piece.range_off + piece.numel,
                                                         .tensor = piece.pos};
    }
    group->tile_segment[n_tiles] = n;
    size_t n_params = group->flat.n_params;
    TRY(block_take(z, ZERO_SMALL, n_params * sizeof(struct lamb_sums), DTYPE_U8, &group->sums_off));
    return block_take(z, ZERO_SMALL, n_params, DTYPE_F32, &group->ratios_off);
}

/* Where gradients are gathered for a reduction: nothing is sent with one rank. */
static cz_status buckets(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t largest = 0, bucket = o->bucket_numel, off;
    if (o->comm->world_size == 1) return CZ_OK;
    for (size_t u = 0; u < o->n_units; u++) {
        size_t numel = 0;
        for (size_t i = 0; i < o->units[u].n; i++)
            numel += o->table->params[o->units[u].param_idx[i]].numel;
        if (numel > largest) largest = numel;
    }
    if (bucket > z->numel_padded) bucket = z->numel_padded;
    if (bucket < largest) bucket = largest;
    for (int i = 0; i < (o->overlap ? 2 : 1); i++)
        TRY(block_take(z, ZERO_BUCKETS, bucket, o->grad_dtype, &off));
    return CZ_OK;
}

static cz_status layout_all(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t n_params = o->table->n_params, off;
    for (size_t i = 0; i < n_params; i++) {
        z->place_group[i] = o->n_groups;
        if (o->table->params[i].trainable && o->group_of[i] >= o->n_groups)
            return err_set(CZ_INVALID, 0, "%s: there is no parameter group %zu",
                           o->table->params[i].name, o->group_of[i]);
    }
    TRY(block_take(z, ZERO_SMALL, o->n_groups * sizeof(struct step_scalars), DTYPE_U8, &off));
    size_t *idx = calloc(n_params + 1, sizeof *idx);
    if (!idx) return err_set(CZ_NOMEM, 0, "no memory for %zu parameters", n_params);
    cz_status st = CZ_OK;
    for (size_t g = 0; g < o->n_groups && st == CZ_OK; g++) {
        st = group_layout(z, g, idx);
        if (st == CZ_OK) st = group_blocks(z, g);
        if (st == CZ_OK && (o->groups[g].hyper.cls->flags & OPTIM_TENSOR_NORMS))
            st = group_segments(z, g);
    }
    free(idx);
    TRY(st);
    for (size_t i = 0; i < n_params; i++)
        if (!o->table->params[i].trainable)
            TRY(block_take(z, ZERO_PARAMS, o->table->params[i].numel, o->dtype, &z->frozen_off[i]));
    return buckets(z);
}

cz_status zero_create(const struct zero_options *options, struct zero **out)
{
    *out = NULL;
    TRY(check_options(options));
    struct zero *z = calloc(1, sizeof *z);
    if (!z) return err_set(CZ_NOMEM, 0, "no memory for the model state");
    z->options = *options;
    if (z->options.tile_numel == 0) z->options.tile_numel = TILE_NUMEL_MAX;
    z->own_masters = options->master_dtype != options->dtype;
    cz_status st;
    TRY_GOTO(alloc_tables(z), fail);
    TRY_GOTO(layout_all(z), fail);
    *out = z;
    return CZ_OK;
fail:
    zero_destroy(z);
    return st;
}

void zero_destroy(struct zero *z)
{
    if (!z) return;
    for (size_t g = 0; z->groups && g < z->options.n_groups; g++) {
        flat_group_free(&z->groups[g].flat);
        free(z->groups[g].segments);
        free(z->groups[g].tile_segment);
    }
    free(z->groups);
    free(z->frozen_off);
    free(z->place_group);
    free(z->place_off);
    free(z->params);
    free(z->grads);
    free(z->scans);
    free(z->norms);
    free(z);
}

size_t zero_block_nbytes(const struct zero *z, enum zero_block block)
{
    return z->nbytes[block];
}

size_t zero_numel_padded(const struct zero *z)
{
    return z->numel_padded;
}

size_t zero_numel_own(const struct zero *z)
{
    return z->numel_own;
}

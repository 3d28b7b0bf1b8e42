/* Elements wherever they rest: in memory, in the swap file, or the first in one and the others in
 * the other. Loading, restoring, saving and single tensors see arrays through here and know nothing
 * of tiers; only the sweep and the window, which must be fast, stream what is in the file. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <string.h>

cz_status zero_swap_take(struct zero *z, size_t nbytes, size_t aligned_at, uint64_t *off)
{
    size_t lead = (SWAP_ALIGN - aligned_at % SWAP_ALIGN) % SWAP_ALIGN, end;
    *off = z->mem.swap_nbytes + lead;
    TRY(size_add(nbytes, lead + SWAP_ALIGN - 1, &nbytes));
    TRY(size_add((size_t)z->mem.swap_nbytes, nbytes / SWAP_ALIGN * SWAP_ALIGN, &end));
    z->mem.swap_nbytes = end;
    return CZ_OK;
}

/* ---- placements ------------------------------------------------------------------------------ */

struct zero_placement zero_block_placement(const struct zero *z, enum zero_block block, size_t off,
                                           enum cz_dtype dtype)
{
    return (struct zero_placement){.dtype = dtype,
                                   .on_gpu = zero_is_on_gpu(z, block),
                                   .memory = z->mem.blocks[block] + off,
                                   .resident = SIZE_MAX};
}

struct zero_placement zero_params_placement(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->own.groups[group];
    if (z->options.swap.params)
        return (struct zero_placement){.dtype = z->options.dtype, .swap_off = g->param_swap};
    return zero_block_placement(z, ZERO_PARAMS, g->param_off, z->options.dtype);
}

struct zero_placement zero_own_params_placement(const struct zero *z, size_t group)
{
    return zero_placement_from(zero_params_placement(z, group), z->own.groups[group].own_begin);
}

struct zero_placement zero_param_placement(const struct zero *z, size_t param_idx)
{
    const struct zero_param *p = &z->own.params[param_idx];
    if (p->group != z->options.n_groups)
        return zero_placement_from(zero_params_placement(z, p->group), p->off);
    if (z->options.swap.params)
        return (struct zero_placement){.dtype = z->options.dtype, .swap_off = p->frozen_off};
    return zero_block_placement(z, ZERO_PARAMS, p->frozen_off, z->options.dtype);
}

/* An array that an update changes, masters (which 0) or a state (1 …): `memory` is its place in its
 * block. One that leaves a GPU begins with the GPU's share, in a block of its own. */
static struct zero_placement array_placement(const struct zero *z, size_t group, size_t which,
                                             enum cz_dtype dtype, unsigned char *memory,
                                             uint64_t swap_off)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *g = &z->own.groups[group];
    if (zero_states_leave(o))
        return (struct zero_placement){.dtype = dtype,
                                       .on_gpu = true,
                                       .memory = z->mem.blocks[ZERO_SHARE] + g->share_off[which],
                                       .resident = g->resident,
                                       .rest = o->swap.optimizer ? NULL : memory,
                                       .swap_off = swap_off};
    return (struct zero_placement){.dtype = dtype,
                                   .on_gpu = o->on_gpu,
                                   .memory = memory,
                                   .resident = o->swap.optimizer ? g->resident : SIZE_MAX,
                                   .swap_off = swap_off};
}

struct zero_placement zero_master_placement(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->own.groups[group];
    if (!z->mem.has_masters) return zero_own_params_placement(z, group);
    return array_placement(z, group, 0, z->options.master_dtype,
                           z->mem.blocks[ZERO_MASTERS] + g->master_off, g->master_swap);
}

struct zero_placement zero_state_placement(const struct zero *z, size_t group, size_t state_idx)
{
    const struct zero_group *g = &z->own.groups[group];
    return array_placement(z, group, 1 + state_idx, z->options.state_dtype,
                           z->mem.blocks[ZERO_STATE_0 + state_idx] + g->state_off[state_idx],
                           g->state_swap[state_idx]);
}

struct zero_placement zero_placement_from(struct zero_placement where, size_t off)
{
    size_t in_memory = off < where.resident ? off : where.resident;
    if (in_memory > 0) where.memory = zero_advance(where.memory, in_memory, where.dtype);
    if (where.resident != SIZE_MAX) where.resident -= in_memory;
    if (where.rest) where.rest = zero_advance(where.rest, off - in_memory, where.dtype);
    where.swap_off += (off - in_memory) * dtype_size(where.dtype);
    return where;
}

size_t zero_placement_ranges(const struct zero_placement *where, size_t off, size_t numel,
                             struct zero_range out[2])
{
    const struct zero_placement from = zero_placement_from(*where, off);
    size_t in_memory = numel < from.resident ? numel : from.resident, n = 0;
    size_t size = dtype_size(where->dtype);
    if (in_memory > 0)
        out[n++] = (struct zero_range){
            .memory = from.memory, .on_gpu = from.on_gpu, .nbytes = in_memory * size};
    if (in_memory < numel)
        out[n++] = (struct zero_range){
            .memory = from.rest, .off = from.swap_off, .nbytes = (numel - in_memory) * size};
    return n;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* What is in the file passes through the scratch where it has to be converted. */
cz_status zero_placement_get(struct zero *z, const struct zero_placement *where, size_t off,
                             size_t numel, float *dst)
{
    const struct zero_placement from = zero_placement_from(*where, off);
    size_t in_memory = numel < from.resident ? numel : from.resident, rest = numel - in_memory;
    size_t size = dtype_size(from.dtype), most = ZERO_SCRATCH_NBYTES / size;
    if (from.on_gpu)
        TRY(zero_pull(z, from.dtype, from.memory, dst, in_memory));
    else
        TRY(zero_cast(z, from.dtype, from.memory, DTYPE_F32, dst, in_memory));
    if (rest == 0) return CZ_OK;
    dst += in_memory;
    if (from.rest) return zero_cast(z, from.dtype, from.rest, DTYPE_F32, dst, rest);
    if (from.dtype == DTYPE_F32) return swap_read(z->mem.swap, from.swap_off, rest * size, dst);
    for (size_t at = 0, n; at < rest; at += n) {
        n = rest - at < most ? rest - at : most;
        TRY(swap_read(z->mem.swap, from.swap_off + at * size, n * size, z->mem.scratch));
        TRY(zero_cast(z, from.dtype, z->mem.scratch, DTYPE_F32, dst + at, n));
    }
    return CZ_OK;
}

/* Elements that rest in a file of others: what would be written must be there already, rounded. */
static cz_status compare(struct zero *z, const struct zero_placement *to, size_t numel,
                         const float *src)
{
    size_t size = dtype_size(to->dtype), most = ZERO_SCRATCH_NBYTES / (2 * size);
    unsigned char *rounded = z->mem.scratch + ZERO_SCRATCH_NBYTES / 2;
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < most ? numel - at : most;
        TRY(swap_read(z->mem.swap, to->swap_off + at * size, n * size, z->mem.scratch));
        TRY(zero_cast(z, DTYPE_F32, src + at, to->dtype, rounded, n));
        if (memcmp(rounded, z->mem.scratch, n * size) != 0)
            return err_set(CZ_INVALID, 0,
                           "a frozen parameter is read from the model's files and cannot be given "
                           "other values; \"czero\": {\"frozen_in_place\": false} copies it into "
                           "the swap file");
    }
    return CZ_OK;
}

cz_status zero_placement_put(struct zero *z, const struct zero_placement *where, size_t off,
                             size_t numel, const float *src)
{
    const struct zero_placement to = zero_placement_from(*where, off);
    size_t in_memory = numel < to.resident ? numel : to.resident, rest = numel - in_memory;
    size_t size = dtype_size(to.dtype), most = ZERO_SCRATCH_NBYTES / size;
    if (to.on_gpu)
        TRY(zero_push(z, to.dtype, src, to.memory, in_memory));
    else
        TRY(zero_cast(z, DTYPE_F32, src, to.dtype, to.memory, in_memory));
    if (rest == 0) return CZ_OK;
    src += in_memory;
    if (swap_is_source(to.swap_off)) return compare(z, &to, rest, src);
    if (to.rest) return zero_cast(z, DTYPE_F32, src, to.dtype, to.rest, rest);
    TRY(zero_late_interrupt(z));
    ring_forget(z->sweep.ring);
    if (to.dtype == DTYPE_F32) return swap_write(z->mem.swap, to.swap_off, rest * size, src);
    for (size_t at = 0, n; at < rest; at += n) {
        n = rest - at < most ? rest - at : most;
        TRY(zero_cast(z, DTYPE_F32, src + at, to.dtype, z->mem.scratch, n));
        TRY(swap_write(z->mem.swap, to.swap_off + at * size, n * size, z->mem.scratch));
    }
    return CZ_OK;
}

/* fp32 on its way; the first half of the scratch is for the conversions of get and put. */
static float *other_half(struct zero *z)
{
    return (float *)(void *)(z->mem.scratch + ZERO_SCRATCH_NBYTES);
}

#define HALF_NUMEL (ZERO_SCRATCH_NBYTES / sizeof(float))

/* Through fp32, as loading and saving see elements; host memory to host memory in one conversion.
 */
cz_status zero_placement_copy(struct zero *z, const struct zero_placement *from,
                              const struct zero_placement *to, size_t numel)
{
    bool is_direct = numel <= from->resident && numel <= to->resident;
    if (is_direct && !from->on_gpu && !to->on_gpu)
        return zero_cast(z, from->dtype, from->memory, to->dtype, to->memory, numel);
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < HALF_NUMEL ? numel - at : HALF_NUMEL;
        TRY(zero_placement_get(z, from, at, n, other_half(z)));
        TRY(zero_placement_put(z, to, at, n, other_half(z)));
    }
    return CZ_OK;
}

cz_status zero_placement_fill(struct zero *z, const struct zero_placement *where, size_t numel,
                              float value)
{
    float few[256], *values = z->mem.scratch ? other_half(z) : few;
    size_t most = z->mem.scratch ? HALF_NUMEL : CZ_ARRAY_LEN(few);
    for (size_t i = 0; i < most; i++) values[i] = value;
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < most ? numel - at : most;
        TRY(zero_placement_put(z, where, at, n, values));
    }
    return CZ_OK;
}

/* For a checkpoint's thread, beside training: a GPU's memory is read as it was settled last, on a
 * stream of its own. */
cz_status zero_range_read(const struct zero *z, const struct zero_range *range, void *dst)
{
    struct device *d = zero_device(z);
    if (!range->memory) return swap_read(z->mem.swap, range->off, range->nbytes, dst);
    if (!range->on_gpu) {
        memcpy(dst, range->memory, range->nbytes);
        return CZ_OK;
    }
    TRY(d->ops->stream_wait(d, z->gpu.reader, z->gpu.settled[0]));
    TRY(d->ops->copy(d, z->gpu.reader, dst, range->memory, range->nbytes));
    return d->ops->stream_sync(d, z->gpu.reader);
}

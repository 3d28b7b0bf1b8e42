/* Blocks: space in them is taken at creation, in order; afterwards they are found by these offsets.
 * What does not know of a particular array stands here. */
#include "ops/elementwise/elementwise.h"
#include "zero/zero_impl.h"

#include "base/size.h"

cz_status zero_block_take(struct zero *z, enum zero_block block, size_t numel, enum cz_dtype dtype,
                          size_t *off)
{
    size_t nbytes;
    *off = z->mem.nbytes[block];
    TRY(size_mul(numel, dtype_size(dtype), &nbytes));
    TRY(size_add(nbytes, ZERO_ALIGN - 1, &nbytes));
    return size_add(z->mem.nbytes[block], nbytes / ZERO_ALIGN * ZERO_ALIGN, &z->mem.nbytes[block]);
}

void *zero_group_params(const struct zero *z, size_t group)
{
    return z->mem.blocks[ZERO_PARAMS] + z->own.groups[group].param_off;
}

void *zero_own_grad(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->own.groups[group];
    return zero_advance(z->mem.blocks[ZERO_GRADS] + g->grad_off,
                        z->buckets.is_bucketed ? 0 : g->own_begin, z->options.grad_dtype);
}

/* What the file's requests read into and write from begins with a block. */
cz_status zero_lend_to_swap(struct zero *z, enum zero_block block)
{
    size_t lead = (SWAP_ALIGN - (uintptr_t)z->mem.blocks[block] % SWAP_ALIGN) % SWAP_ALIGN;
    if (z->mem.nbytes[block] == 0) return CZ_OK;
    z->mem.blocks[block] += lead;
    return swap_register(z->mem.swap, z->mem.blocks[block], z->mem.nbytes[block] - SWAP_ALIGN);
}

const void *const *zero_params(const struct zero *z)
{
    return z->pointers.params;
}

void *const *zero_grads(const struct zero *z)
{
    return z->pointers.grads;
}

cz_status zero_cast(struct zero *z, enum cz_dtype from, const void *x, enum cz_dtype to, void *y,
                    size_t numel)
{
    const struct cast_scale_args args = {
        .x_dtype = from, .y_dtype = to, .numel = numel, .alpha = 1, .x = x, .y = y};
    return numel == 0 ? CZ_OK : ops_cast_scale(zero_host_ops(z), NULL, &args);
}

/* ---- which memory ----------------------------------------------------------------------------
 *
 * Layers on a GPU:
 *
 *                        nothing offloaded   offload.optimizer, swap.optimizer   offload.params
 * parameters             device              device                              host, or the file
 * window                 -                   -                                   device
 * masters, states        device              host, or the file; a share of them
 *                                            on the device
 * gradients              device              host: they leave bucket by bucket,
 *                                            where layers make them in buckets
 *                                            (one rank; stages 2 and 3); else device
 *
 * What the 1-bit family adds (errors, messages, masks) is the device's, as all of its state. */

bool zero_params_leave(const struct zero_options *o)
{
    return o->on_gpu && (o->offload.params || o->swap.params);
}

bool zero_states_leave(const struct zero_options *o)
{
    return o->on_gpu && (o->offload.optimizer || o->swap.optimizer);
}

enum zero_memory zero_block_memory(const struct zero *z, enum zero_block block)
{
    const struct zero_options *o = &z->options;
    if (!o->on_gpu) return ZERO_HOST_MEMORY;
    switch (block) {
    case ZERO_PARAMS: return zero_params_leave(o) ? ZERO_HOST_MEMORY : ZERO_GPU_MEMORY;
    case ZERO_MASTERS:
    case ZERO_STATE_0:
    case ZERO_STATE_1:
    case ZERO_STATE_2: return zero_states_leave(o) ? ZERO_HOST_MEMORY : ZERO_GPU_MEMORY;
    case ZERO_GRADS: return z->buckets.rest_in_host ? ZERO_HOST_MEMORY : ZERO_GPU_MEMORY;
    case ZERO_WINDOW:
    case ZERO_BUCKETS:
    case ZERO_SHARE:
    case ZERO_STEP:
    case ZERO_ERRORS:
    case ZERO_SIGNS:
    case ZERO_UPDATE_GPU: return ZERO_GPU_MEMORY;
    case ZERO_SMALL:
    case ZERO_RING:
    case ZERO_STAGING:
    case ZERO_UPDATE_HOST:
    case ZERO_N_BLOCKS: break;
    }
    return ZERO_HOST_MEMORY;
}

bool zero_is_on_gpu(const struct zero *z, enum zero_block block)
{
    return zero_block_memory(z, block) == ZERO_GPU_MEMORY;
}

/* ---- where pages should be ------------------------------------------------------------------- */

struct visitor {
    const struct zero *z;
    void (*visit)(void *user, const struct zero_array *array);
    void *user;
};

static void give(const struct visitor *v, enum zero_block block, size_t off, size_t numel,
                 enum cz_dtype dtype)
{
    const struct zero_array array = {.block = block,
                                     .off = off,
                                     .nbytes = numel * dtype_size(dtype),
                                     .tile_nbytes = v->z->figures.tile_numel * dtype_size(dtype)};
    if (numel > 0 && !zero_is_on_gpu(v->z, block)) v->visit(v->user, &array);
}

/* Arrays that kernels go over in tiles and that are in host memory: on which node their pages
 * should be follows from the tiles. What the file or a GPU keeps is left out. */
static void give_group(const struct visitor *v, const struct zero_group *g)
{
    const struct zero *z = v->z;
    const struct zero_options *o = &z->options;
    size_t numel = g->own_numel, own_begin = g->own_begin * dtype_size(o->dtype);
    size_t kept = o->swap.optimizer && g->resident < numel ? g->resident : numel;
    if (zero_states_leave(o)) kept = o->swap.optimizer ? 0 : numel - g->resident;
    size_t own_grad = z->buckets.is_bucketed ? 0 : g->own_begin * dtype_size(o->grad_dtype);
    if (z->mem.has_masters) give(v, ZERO_MASTERS, g->master_off, kept, o->master_dtype);
    for (size_t s = 0; s < g->n_states; s++)
        give(v, (enum zero_block)(ZERO_STATE_0 + s), g->state_off[s], kept, o->state_dtype);
    if (!g->grads_swapped) give(v, ZERO_GRADS, g->grad_off + own_grad, numel, o->grad_dtype);
    if (!o->swap.params) give(v, ZERO_PARAMS, g->param_off + own_begin, numel, o->dtype);
}

void zero_each_array(const struct zero *z, void (*visit)(void *user, const struct zero_array *),
                     void *user)
{
    const struct visitor v = {.z = z, .visit = visit, .user = user};
    for (size_t g = 0; g < z->options.n_groups; g++) give_group(&v, &z->own.groups[g]);
}

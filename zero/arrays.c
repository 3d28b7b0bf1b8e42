#include "zero/zero_impl.h"

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

static void give_group(const struct visitor *v, const struct zero_group *g)
{
    const struct zero *z = v->z;
    const struct zero_options *o = &z->options;
    size_t numel = g->own_numel, own_begin = g->own_begin * dtype_size(o->dtype);
    size_t kept = o->swap.optimizer && g->resident < numel ? g->resident : numel;
    if (zero_states_leave(o)) kept = o->swap.optimizer ? 0 : numel - g->resident;
    size_t own_grad = z->buckets.is_bucketed ? 0 : g->own_begin * dtype_size(o->grad_dtype);
    if (z->own_masters) give(v, ZERO_MASTERS, g->master_off, kept, o->master_dtype);
    for (size_t s = 0; s < g->n_states; s++)
        give(v, (enum zero_block)(ZERO_STATE_0 + s), g->state_off[s], kept, o->state_dtype);
    if (!g->grads_swapped) give(v, ZERO_GRADS, g->grad_off + own_grad, numel, o->grad_dtype);
    if (!o->swap.params) give(v, ZERO_PARAMS, g->param_off + own_begin, numel, o->dtype);
}

void zero_each_array(const struct zero *z, void (*visit)(void *user, const struct zero_array *),
                     void *user)
{
    const struct visitor v = {.z = z, .visit = visit, .user = user};
    for (size_t g = 0; g < z->options.n_groups; g++) give_group(&v, &z->groups[g]);
}

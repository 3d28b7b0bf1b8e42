#include "zero/zero_impl.h"

#include <string.h>

void *zero_flat_params(const struct zero *z, size_t group)
{
    return z->blocks[ZERO_PARAMS] + z->groups[group].param_off;
}

void *zero_own_master(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    if (z->own_masters) return z->blocks[ZERO_MASTERS] + g->master_off;
    return (unsigned char *)zero_flat_params(z, group) +
           g->own_begin * dtype_size(z->options.dtype);
}

void *zero_own_grad(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    return z->blocks[ZERO_GRADS] + g->grad_off + g->own_begin * dtype_size(z->options.grad_dtype);
}

void *zero_own_state(const struct zero *z, size_t group, size_t state_idx)
{
    return z->blocks[ZERO_STATE_0 + state_idx] + z->groups[group].state_off[state_idx];
}

/* Optimizers that start from something else than zero (the blocks are zeroed). */
static cz_status states_init(struct zero *z, size_t g)
{
    const struct zero_group *group = &z->groups[g];
    if (z->options.state_dtype != DTYPE_F32) return CZ_OK;
    for (size_t s = 0; s < group->n_states; s++) {
        float value = (float)optim_state_init(&z->options.groups[g].hyper, s);
        float *state = zero_own_state(z, g, s);
        if (value == 0) continue;
        for (size_t i = 0; i < group->own_numel; i++) state[i] = value;
    }
    return CZ_OK;
}

cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS])
{
    const struct zero_options *o = &z->options;
    if (o->stage == 2 && o->comm->world_size > 1)
        return err_set(CZ_UNSUPPORTED, 0, "stage 2 over %d ranks is not done yet",
                       o->comm->world_size);
    for (int b = 0; b < ZERO_N_BLOCKS; b++) z->blocks[b] = blocks[b];
    z->scalars = (struct step_scalars *)(void *)z->blocks[ZERO_SMALL];
    size_t size = dtype_size(o->dtype), grad_size = dtype_size(o->grad_dtype);
    for (size_t i = 0; i < o->table->n_params; i++) {
        size_t g = z->place_group[i];
        if (g == o->n_groups) {
            z->params[i] = z->blocks[ZERO_PARAMS] + z->frozen_off[i];
            continue;
        }
        z->params[i] = (unsigned char *)zero_flat_params(z, g) + z->place_off[i] * size;
        z->grads[i] = z->blocks[ZERO_GRADS] + z->groups[g].grad_off + z->place_off[i] * grad_size;
    }
    for (size_t g = 0; g < o->n_groups; g++) TRY(states_init(z, g));
    return CZ_OK;
}

const void *const *zero_params(const struct zero *z)
{
    return z->params;
}

void *const *zero_grads(const struct zero *z)
{
    return z->grads;
}

static cz_status cast(struct zero *z, enum dtype from, const void *x, enum dtype to, void *y,
                      size_t numel)
{
    const struct cast_scale_args args = {
        .x_dtype = from, .y_dtype = to, .numel = numel, .alpha = 1, .x = x, .y = y};
    return z->options.ops->cast_scale(z->options.ops, z->options.stream, &args);
}

static cz_status load_param(struct zero *z, size_t i, zero_fetch fetch, void *user, float *staging,
                            size_t staging_numel)
{
    size_t numel = z->options.table->params[i].numel;
    unsigned char *dst = (unsigned char *)z->params[i];
    if (z->options.dtype == DTYPE_F32) return fetch(user, i, 0, numel, (float *)(void *)dst);
    for (size_t off = 0; off < numel;) {
        size_t n = numel - off < staging_numel ? numel - off : staging_numel;
        TRY(fetch(user, i, off, n, staging));
        TRY(cast(z, DTYPE_F32, staging, z->options.dtype, dst + off * dtype_size(z->options.dtype),
                 n));
        off += n;
    }
    return CZ_OK;
}

cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                    size_t staging_numel)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++)
        TRY(load_param(z, i, fetch, user, staging, staging_numel));
    for (size_t g = 0; z->own_masters && g < o->n_groups; g++) {
        const struct zero_group *group = &z->groups[g];
        const unsigned char *own =
            (unsigned char *)zero_flat_params(z, g) + group->own_begin * dtype_size(o->dtype);
        TRY(cast(z, o->dtype, own, o->master_dtype, zero_own_master(z, g), group->own_numel));
    }
    return CZ_OK;
}

/* ---- single tensors ------------------------------------------------------------------------- */

/* Where elements of a parameter lie, and in which dtype. */
static cz_status locate(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                        size_t off, size_t numel, unsigned char **p, enum dtype *dtype)
{
    const struct zero_options *o = &z->options;
    const struct param_info *info = &o->table->params[param_idx];
    *p = NULL;
    *dtype = o->dtype;
    if (off > info->numel || numel > info->numel - off)
        return err_set(CZ_INVALID, 0, "%s has %zu elements, not %zu at %zu", info->name,
                       info->numel, numel, off);
    size_t g = z->place_group[param_idx];
    if (g == o->n_groups) {
        if (what != ZERO_WEIGHT)
            return err_set(CZ_NOTFOUND, 0, "%s is frozen: it has a weight and nothing else",
                           info->name);
        *p = z->blocks[ZERO_PARAMS] + z->frozen_off[param_idx] + off * dtype_size(*dtype);
        return CZ_OK;
    }
    const struct zero_group *group = &z->groups[g];
    if (what == ZERO_STATE && state_idx >= group->n_states)
        return err_set(CZ_NOTFOUND, 0, "%s: %s keeps %zu states, there is no number %zu",
                       info->name, o->groups[g].hyper.cls->name, group->n_states, state_idx);
    size_t first = z->place_off[param_idx] + off;
    if (first < group->own_begin || first + numel > group->own_begin + group->own_numel)
        return err_set(CZ_UNSUPPORTED, 0, "%s lies in part on another rank", info->name);
    first -= group->own_begin;
    switch (what) {
    case ZERO_WEIGHT:
        *dtype = o->master_dtype;
        *p = zero_own_master(z, g);
        break;
    case ZERO_GRAD:
        *dtype = o->grad_dtype;
        *p = zero_own_grad(z, g);
        break;
    case ZERO_STATE:
        *dtype = o->state_dtype;
        *p = zero_own_state(z, g, state_idx);
        break;
    }
    *p += first * dtype_size(*dtype);
    return CZ_OK;
}

cz_status zero_read(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                    size_t off, size_t numel, float *dst)
{
    unsigned char *p;
    enum dtype dtype;
    TRY(locate(z, what, state_idx, param_idx, off, numel, &p, &dtype));
    return cast(z, dtype, p, DTYPE_F32, dst, numel);
}

cz_status zero_write(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                     size_t off, size_t numel, const float *src)
{
    unsigned char *p;
    enum dtype dtype;
    TRY(locate(z, what, state_idx, param_idx, off, numel, &p, &dtype));
    TRY(cast(z, DTYPE_F32, src, dtype, p, numel));
    if (what != ZERO_WEIGHT || !z->own_masters || z->place_group[param_idx] == z->options.n_groups)
        return CZ_OK;
    unsigned char *param =
        (unsigned char *)z->params[param_idx] + off * dtype_size(z->options.dtype);
    return cast(z, DTYPE_F32, src, z->options.dtype, param, numel);
}

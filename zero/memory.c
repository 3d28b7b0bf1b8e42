#include "zero/zero_impl.h"

#include "base/size.h"

cz_status zero_block_take(struct zero *z, enum zero_block block, size_t numel, enum dtype dtype,
                          size_t *off)
{
    size_t nbytes;
    *off = z->nbytes[block];
    TRY(size_mul(numel, dtype_size(dtype), &nbytes));
    TRY(size_add(nbytes, ZERO_ALIGN - 1, &nbytes));
    return size_add(z->nbytes[block], nbytes / ZERO_ALIGN * ZERO_ALIGN, &z->nbytes[block]);
}

void *zero_group_params(const struct zero *z, size_t group)
{
    return z->blocks[ZERO_PARAMS] + z->groups[group].param_off;
}

void *zero_own_master(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    if (z->own_masters) return z->blocks[ZERO_MASTERS] + g->master_off;
    return zero_advance(zero_group_params(z, group), g->own_begin, z->options.dtype);
}

void *zero_own_grad(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    return zero_advance(z->blocks[ZERO_GRADS] + g->grad_off, z->split_grads ? 0 : g->own_begin,
                        z->options.grad_dtype);
}

void *zero_own_state(const struct zero *z, size_t group, size_t state_idx)
{
    return z->blocks[ZERO_STATE_0 + state_idx] + z->groups[group].state_off[state_idx];
}

/* Optimizers that start from something else than zero (the blocks are zeroed). */
static void states_init(struct zero *z, size_t g)
{
    const struct zero_group *group = &z->groups[g];
    if (z->options.state_dtype != DTYPE_F32) return;
    for (size_t s = 0; s < group->n_states; s++) {
        float value = (float)optim_state_init(&z->options.groups[g].hyper, s);
        float *state = zero_own_state(z, g, s);
        if (value == 0) continue;
        for (size_t i = 0; i < group->own_numel; i++) state[i] = value;
    }
}

/* Parameters that lie whole, or as the one chunk of one rank. */
static void bind_params(struct zero *z)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++) {
        const struct zero_place *p = &z->places[i];
        if (p->group == o->n_groups)
            z->params[i] = zero_advance(z->blocks[ZERO_PARAMS], p->frozen_off, o->dtype);
        else
            z->params[i] = zero_advance(zero_group_params(z, p->group), p->off, o->dtype);
    }
}

cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS])
{
    const struct zero_options *o = &z->options;
    for (int b = 0; b < ZERO_N_BLOCKS; b++) z->blocks[b] = blocks[b];
    z->scalars = (struct step_scalars *)(void *)z->blocks[ZERO_SMALL];
    if (z->split_params)
        zero_gather_bind(z);
    else
        bind_params(z);
    unsigned char *grads = z->blocks[z->split_grads ? ZERO_BUCKETS : ZERO_GRADS];
    for (size_t i = 0; i < o->table->n_params; i++)
        if (z->places[i].group != o->n_groups)
            z->grads[i] = zero_advance(grads, z->places[i].grad_off, o->grad_dtype);
    for (size_t g = 0; g < o->n_groups; g++) states_init(z, g);
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

cz_status zero_cast(struct zero *z, enum dtype from, const void *x, enum dtype to, void *y,
                    size_t numel)
{
    const struct cast_scale_args args = {
        .x_dtype = from, .y_dtype = to, .numel = numel, .alpha = 1, .x = x, .y = y};
    return numel == 0 ? CZ_OK
                      : z->options.ops->cast_scale(z->options.ops, z->options.stream, &args);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The elements of a parameter that this rank keeps, and where: whole, or at stage 3 its chunk. */
static struct zero_piece kept_piece(const struct zero *z, size_t i, unsigned char **dst)
{
    const struct zero_place *p = &z->places[i];
    struct zero_piece piece = {.numel = z->options.table->params[i].numel};
    bool is_frozen = p->group == z->options.n_groups;
    if (z->options.stage == 3) piece = zero_piece_mine(z, i);
    *dst = is_frozen ? zero_advance(z->blocks[ZERO_PARAMS], p->frozen_off, z->options.dtype)
                     : zero_advance(zero_group_params(z, p->group), p->off, z->options.dtype);
    return piece;
}

static cz_status load_param(struct zero *z, size_t i, zero_fetch fetch, void *user, float *staging,
                            size_t staging_numel)
{
    unsigned char *dst;
    struct zero_piece piece = kept_piece(z, i, &dst);
    if (z->options.dtype == DTYPE_F32 && piece.numel > 0)
        return fetch(user, i, piece.param_off, piece.numel, (float *)(void *)dst);
    for (size_t off = 0; off < piece.numel;) {
        size_t n = piece.numel - off < staging_numel ? piece.numel - off : staging_numel;
        TRY(fetch(user, i, piece.param_off + off, n, staging));
        TRY(zero_cast(z, DTYPE_F32, staging, z->options.dtype,
                      zero_advance(dst, off, z->options.dtype), n));
        off += n;
    }
    return CZ_OK;
}

/* Local: what can fail on one rank alone. */
static cz_status load_own(struct zero *z, zero_fetch fetch, void *user, float *staging,
                          size_t staging_numel)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++)
        TRY(load_param(z, i, fetch, user, staging, staging_numel));
    for (size_t g = 0; z->own_masters && g < o->n_groups; g++) {
        const struct zero_group *group = &z->groups[g];
        const void *own = zero_advance(zero_group_params(z, g), group->own_begin, o->dtype);
        TRY(zero_cast(z, o->dtype, own, o->master_dtype, zero_own_master(z, g), group->own_numel));
    }
    return CZ_OK;
}

cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                    size_t staging_numel)
{
    TRY(comm_agree(z->options.comm, load_own(z, fetch, user, staging, staging_numel)));
    return z->split_params ? zero_gather_resident(z, false) : CZ_OK;
}

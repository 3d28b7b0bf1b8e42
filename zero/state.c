/* The whole state from outside: what a checkpoint reads, and what it puts back. */
#include "zero/zero_impl.h"

#include <string.h>

struct zero_layout zero_group_layout(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    bool is_sharded = z->options.stage == 3;
    return (struct zero_layout){.flat = is_sharded ? NULL : &g->flat,
                                .shard = is_sharded ? &g->shard : NULL,
                                .own_numel = g->own_numel,
                                .n_states = g->n_states};
}

const void *zero_source_at(const struct zero *z, enum zero_source source, size_t group,
                           size_t state_idx, size_t param_idx)
{
    switch (source) {
    case ZERO_FROM_PARAMS: return zero_group_params(z, group);
    case ZERO_FROM_FROZEN:
        return zero_advance(z->blocks[ZERO_PARAMS], z->places[param_idx].frozen_off,
                            z->options.dtype);
    case ZERO_FROM_MASTERS: return zero_own_master(z, group);
    case ZERO_FROM_STATES: break;
    }
    return zero_own_state(z, group, state_idx);
}

void zero_set_guard(struct zero *z, zero_guard guard, void *user)
{
    z->guard = guard;
    z->guard_user = user;
}

/* ---- restoring ------------------------------------------------------------------------------- */

/* Elements of this rank's piece of a parameter, into `dst` of any floating-point dtype. */
static cz_status restore_piece(struct zero *z, const struct zero_restore *a, enum zero_what what,
                               size_t state_idx, size_t param_idx, void *dst, enum dtype dtype)
{
    struct zero_piece piece = zero_piece_mine(z, param_idx);
    if (dtype == DTYPE_F32 && piece.numel > 0)
        return a->fetch(a->user, what, state_idx, param_idx, piece.param_off, piece.numel, dst);
    for (size_t off = 0, n; off < piece.numel; off += n) {
        n = piece.numel - off < a->staging_numel ? piece.numel - off : a->staging_numel;
        TRY(a->fetch(a->user, what, state_idx, param_idx, piece.param_off + off, n, a->staging));
        TRY(zero_cast(z, DTYPE_F32, a->staging, dtype, zero_advance(dst, off, dtype), n));
    }
    return CZ_OK;
}

static cz_status restore_trained(struct zero *z, const struct zero_restore *a, size_t i)
{
    const struct zero_options *o = &z->options;
    size_t g = z->places[i].group, at = zero_piece_mine(z, i).own_off;
    TRY(restore_piece(z, a, ZERO_WEIGHT, 0, i,
                      zero_advance(zero_own_master(z, g), at, o->master_dtype), o->master_dtype));
    for (size_t s = 0; a->states && s < z->groups[g].n_states; s++)
        TRY(restore_piece(z, a, ZERO_STATE, s, i,
                          zero_advance(zero_own_state(z, g, s), at, o->state_dtype),
                          o->state_dtype));
    return CZ_OK;
}

/* Local: what can fail on one rank alone. */
static cz_status restore_own(struct zero *z, const struct zero_restore *a)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++) {
        const struct zero_place *p = &z->places[i];
        if (a->weights && !a->weights[i]) continue;
        if (p->group != o->n_groups)
            TRY(restore_trained(z, a, i));
        else
            TRY(restore_piece(z, a, ZERO_WEIGHT, 0, i,
                              zero_advance(z->blocks[ZERO_PARAMS], p->frozen_off, o->dtype),
                              o->dtype));
    }
    for (size_t g = 0; g < o->n_groups; g++) {
        const struct zero_group *group = &z->groups[g];
        void *params = zero_advance(zero_group_params(z, g), group->own_begin, o->dtype);
        if (z->own_masters)
            TRY(zero_cast(z, o->master_dtype, zero_own_master(z, g), o->dtype, params,
                          group->own_numel));
    }
    return CZ_OK;
}

cz_status zero_restore(struct zero *z, const struct zero_restore *a)
{
    TRY(zero_pass_drain(z));
    TRY(comm_agree(z->options.comm, restore_own(z, a)));
    zero_grads_drop(z);
    if (z->split_params) return zero_gather_resident(z, false);
    return zero_gather(z);
}

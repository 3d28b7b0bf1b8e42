/* The whole state from outside: first weights, what a checkpoint reads, and what it puts back.
 * Reading copies nothing: a checkpoint is told where bytes are (zero_source_ranges()) and reads
 * them there while training continues; the guard makes a step wait that would change them first. */
#include "zero/zero_impl.h"

#include <string.h>

/* ---- first weights --------------------------------------------------------------------------- */

/* Local: what can fail on one rank alone. Masters begin as the rounded parameters, as DeepSpeed's
 * do.
 */
static cz_status load_own(struct zero *z, zero_fetch fetch, void *user, float *staging,
                          size_t staging_numel)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++) {
        const struct zero_placement where = zero_param_placement(z, i);
        struct zero_piece piece = {.numel = o->table->params[i].numel};
        if (o->stage == 3) piece = zero_piece_mine(z, i);
        if (swap_is_source(where.swap_off)) continue; /* it is there */
        if (where.dtype == DTYPE_F32 && where.memory && !where.on_gpu && piece.numel > 0) {
            TRY(fetch(user, i, piece.param_off, piece.numel, (float *)(void *)where.memory));
            continue;
        }
        for (size_t off = 0, n; off < piece.numel; off += n) {
            n = piece.numel - off < staging_numel ? piece.numel - off : staging_numel;
            TRY(fetch(user, i, piece.param_off + off, n, staging));
            TRY(zero_placement_put(z, &where, off, n, staging));
        }
    }
    for (size_t g = 0; z->mem.has_masters && g < o->n_groups; g++) {
        const struct zero_placement from = zero_own_params_placement(z, g),
                                    to = zero_master_placement(z, g);
        TRY(zero_placement_copy(z, &from, &to, z->own.groups[g].own_numel));
    }
    return CZ_OK;
}

cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                    size_t staging_numel)
{
    TRY(comm_agree(z->options.comm, load_own(z, fetch, user, staging, staging_numel)));
    if (z->window.is_used) TRY(zero_window_residents(z, false));
    return zero_gpu_settle(z);
}

/* ---- saving ---------------------------------------------------------------------------------- */

struct zero_layout zero_group_layout(const struct zero *z, size_t group)
{
    const struct zero_group *g = &z->own.groups[group];
    bool is_sharded = z->options.stage == 3;
    bool is_cut = z->own.local_steps && z->own.saved_stage > 0;
    return (struct zero_layout){.flat = is_sharded ? NULL : &g->flat,
                                .shard = is_sharded ? &g->shard : NULL,
                                .own_numel = is_cut ? g->flat.partition : g->own_numel,
                                .held_numel = g->own_numel,
                                .n_states = g->n_states};
}

size_t zero_source_ranges(const struct zero *z, enum zero_source source, size_t group,
                          size_t state_idx, size_t param_idx, size_t off, size_t numel,
                          struct zero_range out[2])
{
    struct zero_placement where = {0};
    bool is_own = source == ZERO_FROM_MASTERS || source == ZERO_FROM_STATES;
    /* Files of stage 1 have this rank's partition of what ZeroOneAdam keeps whole. */
    if (z->own.local_steps && z->own.saved_stage > 0 && is_own)
        off += (size_t)z->options.comm->rank * z->own.groups[group].flat.partition;
    if (z->own.local_steps && source == ZERO_FROM_PARAMS && z->options.dtype == DTYPE_F32)
        source = ZERO_FROM_MASTERS; /* without this rank's local steps */
    switch (source) {
    case ZERO_FROM_PARAMS: where = zero_params_placement(z, group); break;
    case ZERO_FROM_FROZEN: where = zero_param_placement(z, param_idx); break;
    case ZERO_FROM_MASTERS: where = zero_master_placement(z, group); break;
    case ZERO_FROM_STATES: where = zero_state_placement(z, group, state_idx); break;
    }
    return zero_placement_ranges(&where, off, numel, out);
}

void zero_set_guard(struct zero *z, zero_guard guard, void *user)
{
    z->mem.guard = guard;
    z->mem.guard_user = user;
}

/* ---- restoring ------------------------------------------------------------------------------- */

/* Elements of this rank's piece of a parameter, into `where` from element `at` on: straight there,
 * or through the staging where they are converted or not in memory. */
static cz_status restore_piece(struct zero *z, const struct zero_restore *a, enum zero_what what,
                               size_t state_idx, size_t param_idx, struct zero_placement where,
                               size_t at)
{
    struct zero_piece piece = zero_piece_mine(z, param_idx);
    where = zero_placement_from(where, at);
    if (where.dtype == DTYPE_F32 && !where.on_gpu && piece.numel > 0 &&
        piece.numel <= where.resident)
        return a->fetch(a->user, what, state_idx, param_idx, piece.param_off, piece.numel,
                        (float *)(void *)where.memory);
    for (size_t off = 0, n; off < piece.numel; off += n) {
        n = piece.numel - off < a->staging_numel ? piece.numel - off : a->staging_numel;
        TRY(a->fetch(a->user, what, state_idx, param_idx, piece.param_off + off, n, a->staging));
        TRY(zero_placement_put(z, &where, off, n, a->staging));
    }
    return CZ_OK;
}

/* Local: what can fail on one rank alone. */
static cz_status restore_own(struct zero *z, const struct zero_restore *a)
{
    const struct zero_options *o = &z->options;
    for (size_t i = 0; i < o->table->n_params; i++) {
        size_t g = z->own.params[i].group, at = zero_piece_mine(z, i).own_off;
        if (a->weights && !a->weights[i]) continue;
        if (g == o->n_groups) {
            TRY(restore_piece(z, a, ZERO_WEIGHT, 0, i, zero_param_placement(z, i), 0));
            continue;
        }
        TRY(restore_piece(z, a, ZERO_WEIGHT, 0, i, zero_master_placement(z, g), at));
        if (z->onebit) TRY(zero_onebit_wrote_weight(z, i, 0, o->table->params[i].numel));
        for (size_t s = 0; a->states && s < z->own.groups[g].n_states; s++)
            TRY(restore_piece(z, a, ZERO_STATE, s, i, zero_state_placement(z, g, s), at));
    }
    for (size_t g = 0; z->mem.has_masters && g < o->n_groups; g++) {
        const struct zero_placement from = zero_master_placement(z, g),
                                    to = zero_own_params_placement(z, g);
        TRY(zero_placement_copy(z, &from, &to, z->own.groups[g].own_numel));
    }
    return CZ_OK;
}

cz_status zero_restore(struct zero *z, const struct zero_restore *a)
{
    TRY(zero_pass_drain(z));
    cz_status st = zero_update_end(z);
    TRY(comm_agree(z->options.comm, st == CZ_OK ? restore_own(z, a) : st));
    zero_grads_drop(z);
    z->sweep.params_changed = true;
    if (!z->window.is_split) TRY(zero_gather(z));
    if (z->window.is_used) TRY(zero_window_residents(z, false));
    return zero_gpu_settle(z);
}

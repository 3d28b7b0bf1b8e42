/* The accumulation boundary: is any gradient of any rank not finite, the global norm, the update.
 * What is found by one rank is made known to all, so that all take the same decision. */
#include "zero/zero_impl.h"

#include <math.h>
#include <string.h>

/* ---- overflow and norm ----------------------------------------------------------------------- */

/* The parameter and value behind element `at` of the gradients of group g that this rank answers
 * for: its partition of the mean, or all of its own ones. */
static cz_status describe(struct zero *z, size_t g, size_t at, struct zero_scan *out)
{
    const struct flat_group *flat = &z->own.groups[g].flat;
    bool averages = zero_averages(z), is_param;
    if (averages) {
        is_param = zero_param_at(z, g, at, &out->param_idx, &out->elem);
    } else {
        size_t pos = flat_group_find(flat, at);
        is_param = pos < flat->n_params;
        if (is_param) {
            out->param_idx = flat->params[pos].param_idx;
            out->elem = at - flat->params[pos].off;
        }
    }
    if (!is_param)
        return err_set(CZ_INVALID, 0, "the gradient padding of group %zu was written to", g);
    out->finite = false;
    out->rank = z->options.comm->rank;
    if (averages) return zero_grads_get(z, g, at, 1, &out->value);
    const struct zero_placement whole =
        zero_block_placement(z, ZERO_GRADS, z->own.groups[g].grad_off, z->options.grad_dtype);
    return zero_placement_get(z, &whole, at, 1, &out->value);
}

/* A GPU writes what it found when it gets there: wait for it before that goes out of scope, also
 * when something went wrong. */
static cz_status found_arrived(const struct zero *z, cz_status st)
{
    struct err first;
    if (!zero_is_on_gpu(z, ZERO_GRADS)) return st;
    if (st == CZ_OK) return zero_sync(z);
    err_capture(&first);
    (void)zero_sync(z);
    return err_restore(&first);
}

/* Pieces come in any order; the offender that is reported is the first in the groups' order. */
cz_status zero_scan_piece(void *user, size_t group, const void *x, size_t at, size_t numel)
{
    struct zero *z = user;
    struct zero_found *found = &z->buckets.found;
    struct scan_result r = {.finite = true};
    const struct scan_args args = {.dtype = z->options.grad_dtype,
                                   .numel = numel,
                                   .x = x,
                                   .result = &r,
                                   .squares = z->options.skips_norm ? NULL : found->squares};
    TRY(found_arrived(z, ops_scan(zero_grads_ops(z), z->options.stream, &args)));
    if (r.max_abs > found->max_abs) found->max_abs = r.max_abs;
    if (r.finite) return CZ_OK;
    at += (size_t)r.first_nonfinite;
    bool is_first = found->finite || group < found->bad_group ||
                    (group == found->bad_group && at < found->bad_at);
    found->finite = false;
    if (is_first) found->bad_group = group, found->bad_at = at;
    return CZ_OK;
}

/* Ranks exchange what each has found, so that all skip the same steps. */
cz_status zero_scan(struct zero *z, struct zero_scan *out)
{
    struct comm *comm = z->options.comm;
    struct zero_found *found = &z->buckets.found;
    memset(out, 0, sizeof *out);
    if (!found->is_known) {
        *found = (struct zero_found){.finite = true};
        TRY(z->buckets.sink->visit(z, zero_scan_piece, z));
    }
    out->finite = true;
    if (!found->finite) TRY(describe(z, found->bad_group, found->bad_at, out));
    out->max_abs = found->max_abs;
    for (int r = 0; r < comm->world_size; r++) z->per_rank.scans[r] = *out;
    TRY(comm_all_gather(comm, &z->per_rank.scans[comm->rank], z->per_rank.scans, sizeof *out));
    for (int r = comm->world_size - 1; r >= 0; r--) {
        float max_abs = fmaxf(out->max_abs, z->per_rank.scans[r].max_abs);
        if (!z->per_rank.scans[r].finite) *out = z->per_rank.scans[r];
        out->max_abs = max_abs;
    }
    return CZ_OK;
}

/* The sum of squares is exact (ops/reduce): the norm is the same for every partition and every
 * order of arrival. */
cz_status zero_norm(struct zero *z, double *norm)
{
    const struct zero_options *o = &z->options;
    uint64_t squares[SQUARES_DIGITS], *all = z->per_rank.squares;
    bool averages = zero_averages(z);
    memcpy(squares, z->buckets.found.squares, sizeof squares);
    if ((o->stage > 0 || !averages) && o->comm->world_size > 1) {
        int n = o->comm->world_size * SQUARES_DIGITS;
        for (int i = 0; i < n; i++) all[i] = squares[i % SQUARES_DIGITS];
        TRY(comm_all_gather(o->comm, squares, all, sizeof squares));
        memset(squares, 0, sizeof squares);
        for (int i = 0; i < n; i++) squares[i % SQUARES_DIGITS] += all[i];
    }
    double square = ops_squares_value(squares);
    *norm = sqrt(averages ? square : square / (double)o->comm->world_size);
    return CZ_OK;
}

/* ---- the update ------------------------------------------------------------------------------ */

/* A group whose sweep failed stops the update of the next ones, but not the collectives that other
 * ranks are waiting in. Groups, like tiles, come the other way round in every second step: what the
 * ring holds at the end of one is used first in the next (sweep.c). */
cz_status zero_step(struct zero *z, uint64_t t, double loss_scale, double clip_factor)
{
    const struct zero_options *o = &z->options;
    TRY(zero_late_before_step(z));
    for (size_t g = 0; g < o->n_groups; g++)
        optim_step_scalars(&o->groups[g], t, loss_scale, clip_factor, &z->mem.scalars[g]);
    if (z->onebit) zero_onebit_scalars(z);
    if (o->on_gpu)
        TRY(zero_copy(z, o->stream, z->mem.blocks[ZERO_STEP], z->mem.scalars,
                      o->n_groups * sizeof *z->mem.scalars));
    if (z->onebit) return zero_onebit_step(z);
    if (z->late.on) return zero_late_begin(z, o->n_steps ? (uint64_t)*o->n_steps + 1 : t);
    cz_status st = CZ_OK;
    bool is_down = z->mem.swap && z->sweep.goes_down;
    z->sweep.goes_down = !is_down;
    for (size_t k = 0; k < o->n_groups; k++) {
        size_t g = is_down ? o->n_groups - 1 - k : k;
        st = st == CZ_OK ? zero_sweep_group(z, g) : zero_sweep_failed(z, g, st);
    }
    return st;
}

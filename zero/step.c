#include "zero/zero_impl.h"

#include <math.h>
#include <string.h>

/* ---- overflow and norm ------------------------------------------------------------------------
 */

/* The parameter and value behind element `at` of this rank's gradients of group g. */
static cz_status describe(struct zero *z, size_t g, size_t at, struct zero_scan *out)
{
    if (!zero_param_at(z, g, at, &out->param_idx, &out->elem))
        return err_set(CZ_INVALID, 0, "the gradient padding of group %zu was written to", g);
    out->finite = false;
    out->rank = z->options.comm->rank;
    return zero_own_grad_at(z, g, at, &out->value);
}

static cz_status scan_own(struct zero *z, struct zero_scan *out)
{
    const struct zero_options *o = &z->options;
    memset(out, 0, sizeof *out);
    out->finite = true;
    for (size_t g = 0; g < o->n_groups; g++) {
        struct scan_result r = {.finite = true};
        const struct scan_args args = {.dtype = o->grad_dtype,
                                       .numel = z->groups[g].own_numel,
                                       .x = zero_own_grad(z, g),
                                       .result = &r};
        if (args.numel == 0) continue;
        TRY(o->ops->scan(o->ops, o->stream, &args));
        TRY(o->ops->device->ops->stream_sync(o->ops->device, o->stream));
        if (r.max_abs > out->max_abs) out->max_abs = r.max_abs;
        if (!r.finite && out->finite) TRY(describe(z, g, (size_t)r.first_nonfinite, out));
    }
    return CZ_OK;
}

cz_status zero_scan(struct zero *z, struct zero_scan *out)
{
    struct comm *comm = z->options.comm;
    TRY(scan_own(z, out));
    for (int r = 0; r < comm->world_size; r++) z->scans[r] = *out;
    TRY(comm_all_gather(comm, &z->scans[comm->rank], z->scans, sizeof *out));
    for (int r = comm->world_size - 1; r >= 0; r--) {
        float max_abs = fmaxf(out->max_abs, z->scans[r].max_abs);
        if (!z->scans[r].finite) *out = z->scans[r];
        out->max_abs = max_abs;
    }
    return CZ_OK;
}

cz_status zero_norm(struct zero *z, float max_abs, double *norm)
{
    const struct zero_options *o = &z->options;
    double parts[SUMSQ_PARTS] = {0};
    for (size_t g = 0; g < o->n_groups; g++) {
        const struct sumsq_args args = {.dtype = o->grad_dtype,
                                        .numel = z->groups[g].own_numel,
                                        .x = zero_own_grad(z, g),
                                        .max_abs = max_abs,
                                        .parts = parts};
        if (args.numel > 0) TRY(o->ops->sumsq(o->ops, o->stream, &args));
    }
    TRY(o->ops->device->ops->stream_sync(o->ops->device, o->stream));
    if (o->stage > 0 && o->comm->world_size > 1) { /* limbs are integers: exact in any order */
        int n = o->comm->world_size * SUMSQ_PARTS;
        for (int i = 0; i < n; i++) z->norms[i] = parts[i % SUMSQ_PARTS];
        TRY(comm_all_gather(o->comm, parts, z->norms, sizeof parts));
        memset(parts, 0, sizeof parts);
        for (int i = 0; i < n; i++) parts[i % SUMSQ_PARTS] += z->norms[i];
    }
    *norm = sqrt(ops_sumsq_value(parts, max_abs));
    return CZ_OK;
}

/* ---- the sweep -------------------------------------------------------------------------------
 */

/* Tile t of group g: masters, gradients, states, and where the rounded parameters go. */
static struct optim_range tile_range(struct zero *z, size_t g, size_t t)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *group = &z->groups[g];
    size_t off = t * o->tile_numel;
    struct optim_range r = {
        .tensors = {.numel = tile_numel(group->own_numel, o->tile_numel, t),
                    .p = zero_advance(zero_own_master(z, g), off, o->master_dtype),
                    .p_dtype = o->master_dtype,
                    .g = zero_advance(zero_own_grad(z, g), off, o->grad_dtype),
                    .g_dtype = o->grad_dtype,
                    .state_dtype = o->state_dtype}};
    for (size_t s = 0; s < group->n_states; s++)
        r.tensors.states[s] = zero_advance(zero_own_state(z, g, s), off, o->state_dtype);
    if (z->own_masters) {
        r.tensors.out = zero_advance(zero_group_params(z, g), group->own_begin + off, o->dtype);
        r.tensors.out_dtype = o->dtype;
    }
    if (group->segments) {
        r.segments = group->segments + group->tile_segment[t];
        r.n_segments = group->tile_segment[t + 1] - group->tile_segment[t];
        r.sums = (struct lamb_sums *)(void *)(z->blocks[ZERO_SMALL] + group->sums_off);
        r.ratios = (float *)(void *)(z->blocks[ZERO_SMALL] + group->ratios_off);
    }
    return r;
}

/* A checkpoint may still be reading what this tile overwrites. */
static cz_status claim_tile(struct zero *z, const struct optim_range *r, size_t n_states)
{
    const struct step_tensors *t = &r->tensors;
    TRY(zero_claim(z, t->p, t->numel * dtype_size(t->p_dtype)));
    if (t->out) TRY(zero_claim(z, t->out, t->numel * dtype_size(t->out_dtype)));
    for (size_t s = 0; s < n_states; s++)
        TRY(zero_claim(z, t->states[s], t->numel * dtype_size(t->state_dtype)));
    return CZ_OK;
}

static cz_status sweep_group(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    const struct optim_hyper *hyper = &o->groups[g].hyper;
    const struct zero_group *group = &z->groups[g];
    size_t n_tiles = tile_count(group->own_numel, o->tile_numel);
    size_t n_tensors = zero_group_n_params(z, g);
    for (int pass = 0; n_tiles > 0 && pass < hyper->cls->n_passes; pass++) {
        struct optim_range r = tile_range(z, g, 0);
        if (pass == 0 && r.sums) memset(r.sums, 0, n_tensors * sizeof *r.sums);
        if (pass > 0 && hyper->cls->between)
            hyper->cls->between(hyper, r.sums, n_tensors, r.ratios);
        for (size_t t = 0; t < n_tiles; t++) {
            r = tile_range(z, g, t);
            TRY(claim_tile(z, &r, group->n_states));
            TRY(hyper->cls->step(o->ops, o->stream, hyper, &z->scalars[g], &r, pass));
        }
    }
    return CZ_OK;
}

cz_status zero_step(struct zero *z, uint64_t t, double loss_scale, double clip_factor)
{
    const struct zero_options *o = &z->options;
    for (size_t g = 0; g < o->n_groups; g++)
        optim_step_scalars(&o->groups[g], t, loss_scale, clip_factor, &z->scalars[g]);
    for (size_t g = 0; g < o->n_groups; g++) TRY(sweep_group(z, g));
    return CZ_OK;
}

/* Stages 1 and 2: a group's partitions, side by side, are its parameters. */
static cz_status gather_group(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    size_t nbytes = z->groups[g].own_numel * dtype_size(o->dtype);
    unsigned char *flat = zero_group_params(z, g);
    if (nbytes == 0) return CZ_OK;
    TRY(zero_claim(z, flat, nbytes * (size_t)o->comm->world_size));
    return comm_all_gather(o->comm, flat + (size_t)o->comm->rank * nbytes, flat, nbytes);
}

cz_status zero_gather(struct zero *z)
{
    const struct zero_options *o = &z->options;
    if (z->split_params) return zero_gather_resident(z, true);
    for (size_t g = 0; o->stage > 0 && o->comm->world_size > 1 && g < o->n_groups; g++)
        TRY(gather_group(z, g));
    return CZ_OK;
}

#include "zero/zero_impl.h"

#include <math.h>
#include <string.h>

/* ---- a pass over the layers: stages 0-2 keep all parameters whole on every rank ---------------
 */

cz_status zero_unit_acquire(struct zero *z, size_t unit_idx)
{
    if (unit_idx >= z->options.n_units)
        return err_set(CZ_INVALID, 0, "there is no unit %zu among %zu", unit_idx,
                       z->options.n_units);
    return CZ_OK;
}

cz_status zero_unit_release(struct zero *z, size_t unit_idx)
{
    return zero_unit_acquire(z, unit_idx);
}

cz_status zero_grads_ready(struct zero *z, size_t unit_idx)
{
    TRY(zero_unit_acquire(z, unit_idx));
    z->n_ready++;
    return CZ_OK;
}

void zero_grads_drop(struct zero *z)
{
    z->n_ready = 0;
}

/* ---- reduction ------------------------------------------------------------------------------ */

static cz_status reduce_group(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    struct zero_group *group = &z->groups[g];
    float scale = o->reduce_sum ? 1.0f : 1.0f / (float)o->comm->world_size;
    const unsigned char *whole = z->blocks[ZERO_GRADS] + group->grad_off;
    if (group->own_numel == 0) return CZ_OK;
    if (o->stage == 0)
        return comm_all_reduce(o->comm, whole, zero_own_grad(z, g), group->own_numel, o->grad_dtype,
                               o->wire_dtype, scale);
    const struct comm_span own = {
        .src_off = group->own_begin, .numel = group->own_numel, .owner = o->comm->rank};
    const struct comm_reduce args = {.src = whole,
                                     .dst = zero_own_grad(z, g),
                                     .src_dtype = o->grad_dtype,
                                     .dst_dtype = o->grad_dtype,
                                     .wire = o->wire_dtype,
                                     .scale = scale,
                                     .spans = &own,
                                     .n_spans = 1};
    return comm_reduce(o->comm, &args);
}

cz_status zero_reduce(struct zero *z)
{
    if (z->n_ready == 0 || z->n_ready % z->options.n_units != 0)
        return err_set(CZ_INVALID, 0, "gradients of %zu of %zu layers are ready: backward first",
                       z->n_ready % z->options.n_units, z->options.n_units);
    z->n_ready = 0;
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(reduce_group(z, g));
    return CZ_OK;
}

/* ---- overflow and norm ------------------------------------------------------------------------
 */

/* The parameter and value behind element `at` of this rank's gradients of group g. */
static cz_status describe(struct zero *z, size_t g, size_t at, struct zero_scan *out)
{
    const struct zero_group *group = &z->groups[g];
    size_t pos = flat_group_find(&group->flat, group->own_begin + at);
    if (pos == group->flat.n_params)
        return err_set(CZ_INVALID, 0, "the gradient padding of group %zu was written to", g);
    const struct flat_param *p = &group->flat.params[pos];
    out->finite = false;
    out->rank = z->options.comm->rank;
    out->param_idx = p->param_idx;
    out->elem = group->own_begin + at - p->off;
    return zero_read(z, ZERO_GRAD, 0, p->param_idx, out->elem, 1, &out->value);
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

static unsigned char *advance(void *p, size_t elems, enum dtype dtype)
{
    return (unsigned char *)p + elems * dtype_size(dtype);
}

/* Tile t of group g: masters, gradients, states, and where the rounded parameters go. */
static struct optim_range tile_range(struct zero *z, size_t g, size_t t)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *group = &z->groups[g];
    size_t off = t * o->tile_numel;
    struct optim_range r = {.tensors = {.numel = tile_numel(group->own_numel, o->tile_numel, t),
                                        .p = advance(zero_own_master(z, g), off, o->master_dtype),
                                        .p_dtype = o->master_dtype,
                                        .g = advance(zero_own_grad(z, g), off, o->grad_dtype),
                                        .g_dtype = o->grad_dtype,
                                        .state_dtype = o->state_dtype}};
    for (size_t s = 0; s < group->n_states; s++)
        r.tensors.states[s] = advance(zero_own_state(z, g, s), off, o->state_dtype);
    if (z->own_masters) {
        r.tensors.out = advance(zero_flat_params(z, g), group->own_begin + off, o->dtype);
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

static cz_status sweep_group(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    const struct optim_hyper *hyper = &o->groups[g].hyper;
    const struct zero_group *group = &z->groups[g];
    size_t n_tiles = tile_count(group->own_numel, o->tile_numel);
    for (int pass = 0; n_tiles > 0 && pass < hyper->cls->n_passes; pass++) {
        struct optim_range r = tile_range(z, g, 0);
        if (pass == 0 && r.sums) memset(r.sums, 0, group->flat.n_params * sizeof *r.sums);
        if (pass > 0 && hyper->cls->between)
            hyper->cls->between(hyper, r.sums, group->flat.n_params, r.ratios);
        for (size_t t = 0; t < n_tiles; t++) {
            r = tile_range(z, g, t);
            TRY(hyper->cls->step(o->ops, o->stream, hyper, &z->scalars[g], &r, pass));
        }
    }
    return CZ_OK;
}

static cz_status gather_params(struct zero *z, size_t g)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *group = &z->groups[g];
    size_t nbytes = group->flat.partition * dtype_size(o->dtype);
    unsigned char *flat = zero_flat_params(z, g);
    if (o->stage == 0 || o->comm->world_size == 1 || nbytes == 0) return CZ_OK;
    return comm_all_gather(o->comm, flat + (size_t)o->comm->rank * nbytes, flat, nbytes);
}

cz_status zero_step(struct zero *z, uint64_t t, double loss_scale, double clip_factor)
{
    const struct zero_options *o = &z->options;
    for (size_t g = 0; g < o->n_groups; g++)
        optim_step_scalars(&o->groups[g], t, loss_scale, clip_factor, &z->scalars[g]);
    for (size_t g = 0; g < o->n_groups; g++) TRY(sweep_group(z, g));
    return CZ_OK;
}

cz_status zero_gather(struct zero *z)
{
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(gather_params(z, g));
    return CZ_OK;
}

/* Where gradients are made and when they go: a schedule fixed at creation.
 *
 * Backward visits units in reverse, so gradients become ready in an order that never changes. Units
 * are dealt to flushes in that order: a flush takes units while they fit into the bucket. Where
 * gradients are kept whole (stages 0 and 1) a flush is what is reduced together, in place;
 * elsewhere it is the content of a bucket, and the units' gradients have fixed places in it.
 * Parameters used by several units have a place of their own until their last use.
 *
 * Where a flush goes is the sink's affair (zero/sinks/sink_impl.h). */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>

cz_status zero_grads_take(struct zero *z, size_t group, size_t numel)
{
    if (z->buckets.sink->take) return z->buckets.sink->take(z, group, numel);
    return zero_block_take(z, ZERO_GRADS, numel, z->options.grad_dtype,
                           &z->own.groups[group].grad_off);
}

/* ---- layout ---------------------------------------------------------------------------------- */

static bool is_trained(const struct zero *z, size_t param_idx)
{
    return z->own.params[param_idx].group != z->options.n_groups;
}

static struct zero_footprint footprint_of(const struct zero *z, size_t param_idx)
{
    const struct zero_sink *sink = z->buckets.sink;
    size_t numel = z->options.table->params[param_idx].numel;
    if (sink->footprint) return sink->footprint(z, param_idx);
    if (z->options.on_gpu) /* products write to 16 bytes at a time */
        numel = size_round_up(numel, ZERO_PRODUCT_ALIGN / dtype_size(z->options.grad_dtype));
    return (struct zero_footprint){.numel = numel};
}

/* Parameters by the unit whose backward is their last use: looked up unit by unit below, where a
 * walk over all parameters would take minutes for a model of many layers. */
static cz_status list_ready(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct zero_buckets *b = &z->buckets;
    b->ready_first = calloc(o->n_units + 2, sizeof *b->ready_first);
    b->ready_params = calloc(o->table->n_params + 1, sizeof *b->ready_params);
    if (!b->ready_first || !b->ready_params)
        return err_set(CZ_NOMEM, 0, "no memory for the reductions of %zu layers", o->n_units);
    /* Counts, one place to the right of where their sums go. */
    for (size_t i = 0; i < o->table->n_params; i++) {
        size_t unit = z->own.params[i].ready_unit;
        if (is_trained(z, i) && unit < o->n_units) b->ready_first[unit + 2]++;
    }
    for (size_t u = 2; u < o->n_units + 2; u++) b->ready_first[u] += b->ready_first[u - 1];
    for (size_t i = 0; i < o->table->n_params; i++) {
        size_t unit = z->own.params[i].ready_unit;
        if (is_trained(z, i) && unit < o->n_units) b->ready_params[b->ready_first[unit + 1]++] = i;
    }
    return CZ_OK;
}

/* Elements that become ready with a unit; with `in_bucket`, only those that are made there. */
static size_t unit_numel(const struct zero *z, size_t u, bool in_bucket)
{
    const struct zero_buckets *b = &z->buckets;
    size_t numel = 0;
    for (size_t k = b->ready_first[u]; k < b->ready_first[u + 1]; k++) {
        size_t i = b->ready_params[k];
        if (!(in_bucket && z->own.params[i].tied)) numel += footprint_of(z, i).numel;
    }
    return numel;
}

/* Deal units to flushes of up to min(reduce_bucket_size, all trainable, what the sink takes)
 * elements, but of the largest unit's at least. Returns what the fullest of them holds: buckets
 * need be no larger. */
static size_t deal_units(struct zero *z)
{
    struct zero_buckets *b = &z->buckets;
    size_t capacity = param_table_numel(z->options.table, true), used = 0, most = 0;
    if (capacity > z->options.bucket_numel) capacity = z->options.bucket_numel;
    if (capacity > b->sink->bucket_numel_max) capacity = b->sink->bucket_numel_max;
    for (size_t u = 0; u < z->options.n_units; u++) {
        size_t numel = unit_numel(z, u, b->is_bucketed);
        if (numel > capacity) capacity = numel;
    }
    for (size_t u = z->options.n_units; u-- > 0;) {
        size_t numel = unit_numel(z, u, b->is_bucketed);
        b->unit_flush[u] = ZERO_NO_FLUSH;
        if (unit_numel(z, u, false) == 0) continue;
        if (b->n_flushes == 0 || used + numel > capacity) {
            b->n_flushes++;
            used = 0;
        }
        used += numel;
        if (used > most) most = used;
        b->unit_flush[u] = b->n_flushes - 1;
        b->flushes[b->n_flushes - 1].unit = u;
    }
    return most;
}

/* Places of gradients in the buckets, which flushes take in turn. */
static cz_status make_buckets(struct zero *z, size_t bucket_numel)
{
    const struct zero_options *o = &z->options;
    const struct zero_buckets *b = &z->buckets;
    size_t n_buckets = o->overlap && b->n_flushes > 1 ? 2 : 1;
    size_t used = 0, flush = ZERO_NO_FLUSH, off;
    if (b->sink->n_buckets > 0) n_buckets = (size_t)b->sink->n_buckets;
    z->figures.n_buckets = (int)n_buckets;
    z->figures.bucket_numel = bucket_numel;
    for (size_t u = o->n_units; u-- > 0;) {
        if (b->unit_flush[u] == ZERO_NO_FLUSH) continue;
        if (b->unit_flush[u] != flush) used = 0;
        flush = b->unit_flush[u];
        for (size_t k = b->ready_first[u]; k < b->ready_first[u + 1]; k++) {
            size_t i = b->ready_params[k];
            struct zero_param *p = &z->own.params[i];
            if (p->tied) continue;
            const struct zero_footprint takes = footprint_of(z, i);
            p->grad_off = flush % n_buckets * bucket_numel + used + takes.lead;
            used += takes.numel;
        }
    }
    return zero_block_take(z, ZERO_BUCKETS, n_buckets * bucket_numel, o->grad_dtype, &off);
}

/* Whole gradients are laid out as the parameters are; tied ones come behind the buckets. */
static cz_status place_others(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t size = dtype_size(o->grad_dtype), off;
    for (size_t i = 0; i < o->table->n_params; i++) {
        struct zero_param *p = &z->own.params[i];
        if (!is_trained(z, i)) continue;
        if (!z->buckets.is_bucketed) {
            p->grad_off = z->own.groups[p->group].grad_off / size + p->off;
        } else if (p->tied) {
            const struct zero_footprint takes = footprint_of(z, i);
            TRY(zero_block_take(z, ZERO_BUCKETS, takes.numel, o->grad_dtype, &off));
            p->grad_off = off / size + takes.lead;
            z->figures.tied_numel += o->table->params[i].numel;
        }
    }
    return CZ_OK;
}

/* A flush's parameters stand together, in the table's order. Some may be in none: no layer uses
 * them. */
static void list_params(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct zero_buckets *b = &z->buckets;
    size_t at = 0;
    for (size_t u = 0; u < o->n_units; u++)
        if (b->unit_flush[u] != ZERO_NO_FLUSH)
            b->flushes[b->unit_flush[u]].n_params += b->ready_first[u + 1] - b->ready_first[u];
    for (size_t f = 0; f < b->n_flushes; f++) {
        b->flushes[f].first_param = at;
        at += b->flushes[f].n_params;
        b->flushes[f].n_params = 0; /* counts up again below */
    }
    for (size_t i = 0; i < o->table->n_params; i++) {
        size_t unit = z->own.params[i].ready_unit;
        if (!is_trained(z, i) || unit == o->n_units || b->unit_flush[unit] == ZERO_NO_FLUSH)
            continue;
        struct zero_flush *flush = &b->flushes[b->unit_flush[unit]];
        b->params[flush->first_param + flush->n_params++] = i;
    }
}

/* Flushes first, since their number decides how many buckets there are; then places; then what the
 * sink makes of them. */
cz_status zero_buckets_init(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct zero_buckets *b = &z->buckets;
    TRY(b->sink->init(z));
    b->flushes = calloc(o->n_units + 1, sizeof *b->flushes);
    b->unit_flush = calloc(o->n_units + 1, sizeof *b->unit_flush);
    b->params = calloc(o->table->n_params + 1, sizeof *b->params);
    if (!b->flushes || !b->unit_flush || !b->params)
        return err_set(CZ_NOMEM, 0, "no memory for the reductions of %zu layers", o->n_units);
    TRY(list_ready(z));
    size_t fullest = deal_units(z);
    if (b->is_bucketed) TRY(make_buckets(z, fullest));
    TRY(place_others(z));
    list_params(z);
    z->figures.n_reduces = b->n_flushes;
    return b->sink->dealt(z);
}

void zero_buckets_free(struct zero *z)
{
    struct zero_buckets *b = &z->buckets;
    if (b->sink) b->sink->free(z);
    free(b->flushes);
    free(b->unit_flush);
    free(b->params);
    free(b->ready_first);
    free(b->ready_params);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

cz_status zero_flush_begin(struct zero *z, size_t flush)
{
    z->buckets.flushes[flush].begun = true;
    z->buckets.is_under_way = true;
    return z->buckets.sink->begin(z, flush);
}

/* The bucket that the unit's gradients are about to be written to has been emptied, and holds what
 * layers add to. */
cz_status zero_bucket_acquire(struct zero *z, size_t unit_idx)
{
    const struct zero_buckets *b = &z->buckets;
    size_t f = b->unit_flush[unit_idx], n_buckets = (size_t)z->figures.n_buckets;
    if (!b->is_bucketed || f == ZERO_NO_FLUSH) return CZ_OK;
    if (b->sink->restore && b->n_passes > 0) return b->sink->restore(z, f);
    return f < n_buckets ? CZ_OK : b->sink->wait(z, f - n_buckets);
}

cz_status zero_bucket_ready(struct zero *z, size_t unit_idx)
{
    const struct zero_buckets *b = &z->buckets;
    size_t f = b->unit_flush[unit_idx];
    if (f == ZERO_NO_FLUSH || b->flushes[f].unit != unit_idx) return CZ_OK;
    if (b->sink->is_due && !b->sink->is_due(z)) return CZ_OK;
    TRY(zero_flush_begin(z, f));
    return z->options.overlap || b->sink->is_beside ? CZ_OK : b->sink->wait(z, f);
}

cz_status zero_bucket_finish(struct zero *z)
{
    if (!z->buckets.is_under_way) return CZ_OK;
    z->buckets.is_under_way = false;
    return z->buckets.sink->finish(z);
}

/* ---- the boundary ---------------------------------------------------------------------------- */

cz_status zero_reduce(struct zero *z)
{
    if (z->buckets.n_passes == 0)
        return err_set(CZ_INVALID, 0, "no gradients to reduce: call backward first");
    TRY(z->buckets.sink->boundary(z));
    z->buckets.reduced = zero_averages(z); /* otherwise they stay this rank's own */
    return CZ_OK;
}

bool zero_accumulates(const struct zero *z)
{
    return !z->buckets.is_bucketed || z->buckets.sink->restore;
}

void zero_grads_drop(struct zero *z)
{
    z->buckets.n_passes = 0;
    z->buckets.reduced = false;
    z->buckets.found.is_known = false;
}

/* ---- gradients at rest ----------------------------------------------------------------------- */

struct zero_placement zero_grads_placement(const struct zero *z, size_t group)
{
    if (z->own.groups[group].grads_swapped)
        return (struct zero_placement){.dtype = z->options.grad_dtype,
                                       .swap_off = z->own.groups[group].grad_swap};
    struct zero_placement where =
        zero_block_placement(z, ZERO_GRADS, z->own.groups[group].grad_off, z->options.grad_dtype);
    if (z->buckets.is_bucketed) return where;
    return zero_placement_from(where, z->own.groups[group].own_begin);
}

struct ops *zero_grads_ops(const struct zero *z)
{
    return zero_is_on_gpu(z, ZERO_GRADS) ? z->options.ops : zero_host_ops(z);
}

cz_status zero_visit_partition(struct zero *z, zero_grads_visit visit, void *user)
{
    for (size_t g = 0; g < z->options.n_groups; g++)
        if (z->own.groups[g].own_numel > 0)
            TRY(visit(user, g, zero_own_grad(z, g), 0, z->own.groups[g].own_numel));
    return CZ_OK;
}

cz_status zero_grads_get(struct zero *z, size_t group, size_t off, size_t numel, float *dst)
{
    const struct zero_placement where = zero_grads_placement(z, group);
    if (z->buckets.sink->get) return z->buckets.sink->get(z, group, off, numel, dst);
    return zero_placement_get(z, &where, off, numel, dst);
}

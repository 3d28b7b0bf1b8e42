/* Where gradients are made and when they are reduced: a schedule fixed at creation.
 *
 * Backward visits units in reverse, so gradients become ready in an order that never changes. Units
 * are dealt to flushes in that order: a flush takes units while they fit into the bucket. Where
 * gradients are kept whole (stages 0 and 1) a flush reduces them in place; where they are split
 * (stages 2 and 3) a flush is the content of a bucket, and the units' gradients have fixed places
 * in it. Parameters used by several units have a place of their own until their last use. */
#include "zero/zero_impl.h"

#include <stdlib.h>

/* Elements that become ready with a unit; with `bucketed`, only those that lie in the bucket. */
static size_t unit_numel(const struct zero *z, size_t u, bool bucketed)
{
    const struct zero_options *o = &z->options;
    size_t numel = 0;
    for (size_t i = 0; i < o->table->n_params; i++) {
        const struct zero_place *p = &z->places[i];
        if (p->group == o->n_groups || p->ready_unit != u) continue;
        if (!(bucketed && p->tied)) numel += zero_grad_room(z, i);
    }
    return numel;
}

/* min(reduce_bucket_size, all trainable), but at least the largest unit; no more than that where
 * gradients go to the swap file. */
static size_t bucket_capacity(const struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t all = param_table_numel(o->table, true), largest = 0;
    for (size_t u = 0; u < o->n_units; u++) {
        size_t numel = unit_numel(z, u, z->split_grads);
        if (numel > largest) largest = numel;
    }
    size_t capacity = o->bucket_numel < all ? o->bucket_numel : all;
    if (z->leaves_alone && capacity > ZERO_LEAVING_MAX) capacity = ZERO_LEAVING_MAX;
    if (z->swaps_grads) capacity = largest;
    return capacity > largest ? capacity : largest;
}

/* Deal units to flushes. Returns what the fullest of them holds: buckets need be no larger. */
static size_t deal_units(struct zero *z, size_t capacity)
{
    size_t used = 0, most = 0;
    for (size_t u = z->options.n_units; u-- > 0;) {
        size_t numel = unit_numel(z, u, z->split_grads);
        z->unit_flush[u] = SIZE_MAX;
        if (unit_numel(z, u, false) == 0) continue;
        if (z->n_flushes == 0 || used + numel > capacity) {
            z->n_flushes++;
            used = 0;
        }
        used += numel;
        if (used > most) most = used;
        z->unit_flush[u] = z->n_flushes - 1;
        z->flushes[z->n_flushes - 1].unit = u;
    }
    return most;
}

/* Places of gradients in the buckets, which flushes take in turn. */
static void place_in_buckets(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t used = 0, flush = SIZE_MAX;
    for (size_t u = o->n_units; u-- > 0;) {
        if (z->unit_flush[u] == SIZE_MAX) continue;
        if (z->unit_flush[u] != flush) used = 0;
        flush = z->unit_flush[u];
        size_t begin = flush % (size_t)z->figures.n_buckets * z->figures.bucket_numel;
        for (size_t i = 0; i < o->table->n_params; i++) {
            struct zero_place *p = &z->places[i];
            if (p->group == o->n_groups || p->ready_unit != u || p->tied) continue;
            p->grad_off = begin + used + zero_grad_lead(z, i);
            used += zero_grad_room(z, i);
        }
    }
}

static cz_status make_buckets(struct zero *z, size_t numel)
{
    struct zero_figures *f = &z->figures;
    size_t off;
    f->n_buckets = z->options.overlap && z->n_flushes > 1 ? 2 : 1;
    if (z->swaps_grads) f->n_buckets = 3; /* written, in work, read back */
    f->bucket_numel = numel;
    place_in_buckets(z);
    return zero_block_take(z, ZERO_BUCKETS, (size_t)f->n_buckets * numel, z->options.grad_dtype,
                           &off);
}

/* Whole gradients lie as the parameters do; tied ones behind the buckets. */
static cz_status place_others(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t size = dtype_size(o->grad_dtype), off;
    for (size_t i = 0; i < o->table->n_params; i++) {
        struct zero_place *p = &z->places[i];
        size_t numel = o->table->params[i].numel;
        if (p->group == o->n_groups) continue;
        if (!z->split_grads) {
            p->grad_off = z->groups[p->group].grad_off / size + p->off;
        } else if (p->tied) {
            TRY(zero_block_take(z, ZERO_BUCKETS, zero_grad_room(z, i), o->grad_dtype, &off));
            p->grad_off = off / size + zero_grad_lead(z, i);
            z->figures.tied_numel += numel;
        }
    }
    if (z->swaps_grads) /* the buckets' begin moves up to a block */
        return zero_block_take(z, ZERO_BUCKETS, SWAP_ALIGN, DTYPE_U8, &off);
    return CZ_OK;
}

/* ---- what goes where ------------------------------------------------------------------------- */

static size_t add_spans(struct zero *z, size_t at, size_t param_idx)
{
    const struct zero_options *o = &z->options;
    const struct zero_place *place = &z->places[param_idx];
    size_t base = z->groups[place->group].grad_off / dtype_size(o->grad_dtype);
    for (int r = 0; r < o->comm->world_size; r++) {
        struct zero_piece piece = zero_piece_of(z, param_idx, r);
        if (piece.numel == 0) continue;
        size_t src = place->grad_off + piece.param_off;
        z->flush_spans[at++] =
            (struct comm_span){.src_off = src,
                               .dst_off = z->split_grads ? base + piece.own_off : src,
                               .numel = piece.numel,
                               .owner = r,
                               .to = r};
    }
    return at;
}

static void span_flushes(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t at = 0;
    for (size_t f = 0; f < z->n_flushes; f++) {
        z->flushes[f].first_span = at;
        for (size_t u = o->n_units; u-- > 0;)
            for (size_t i = 0; z->unit_flush[u] == f && i < o->table->n_params; i++)
                if (z->places[i].group != o->n_groups && z->places[i].ready_unit == u)
                    at = add_spans(z, at, i);
        z->flushes[f].n_spans = at - z->flushes[f].first_span;
    }
}

static void count_reductions(struct zero *z)
{
    const struct comm *comm = z->options.comm;
    size_t others = (size_t)comm->world_size - 1, sent = 0;
    z->figures.n_reduces = z->n_flushes;
    for (size_t f = 0; f < z->n_flushes; f++)
        for (size_t s = 0; s < z->flushes[f].n_spans; s++) {
            const struct comm_span *span = &z->flush_spans[z->flushes[f].first_span + s];
            if (span->owner != comm->rank)
                sent += span->numel;
            else if (z->options.stage == 0)
                sent += span->numel * others;
        }
    z->figures.reduce_nbytes = sent * dtype_size(z->options.wire_dtype);
}

cz_status zero_buckets_init(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t n_spans = o->table->n_params * (size_t)o->comm->world_size;
    z->flushes = calloc(o->n_units + 1, sizeof *z->flushes);
    z->unit_flush = calloc(o->n_units + 1, sizeof *z->unit_flush);
    z->flush_spans = calloc(n_spans + 1, sizeof *z->flush_spans);
    if (!z->flushes || !z->unit_flush || !z->flush_spans)
        return err_set(CZ_NOMEM, 0, "no memory for the reductions of %zu layers", o->n_units);
    size_t fullest = deal_units(z, bucket_capacity(z));
    if (z->split_grads) TRY(make_buckets(z, fullest));
    TRY(place_others(z));
    span_flushes(z);
    count_reductions(z);
    return zero_grads_list(z);
}

void zero_buckets_free(struct zero *z)
{
    free(z->flushes);
    free(z->unit_flush);
    free(z->flush_spans);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static cz_status flush_begin(struct zero *z, struct zero_flush *flush)
{
    const struct zero_options *o = &z->options;
    flush->begun = true;
    z->is_reducing = true;
    if (z->swaps_grads) return zero_grads_write(z, (size_t)(flush - z->flushes));
    if (z->leaves_alone) return zero_leave_begin(z, (size_t)(flush - z->flushes));
    void *src = z->blocks[z->split_grads ? ZERO_BUCKETS : ZERO_GRADS];
    const struct comm_reduce args = {.src = src,
                                     .dst = z->blocks[ZERO_GRADS],
                                     .src_dtype = o->grad_dtype,
                                     .dst_dtype = o->grad_dtype,
                                     .wire = o->wire_dtype,
                                     .scale = zero_reduce_scale(z),
                                     .accumulate = z->split_grads && z->n_passes > 0,
                                     .all = o->stage == 0,
                                     .spans = z->flush_spans + flush->first_span,
                                     .n_spans = flush->n_spans};
    return comm_reduce_begin(o->comm, &args, &flush->ticket);
}

/* A flush's gradients have gone where they go. */
static cz_status flush_wait(struct zero *z, size_t f)
{
    if (z->leaves_alone) return zero_leave_wait(z, f);
    return z->swaps_grads ? zero_grads_wait(z, f)
                          : comm_wait(z->options.comm, z->flushes[f].ticket);
}

/* Gradients that a micro-batch adds to come back, the next flush's as well. */
static cz_status read_back(struct zero *z, size_t f)
{
    for (; z->n_grads_read <= f + 1 && z->n_grads_read < z->n_flushes; z->n_grads_read++) {
        size_t next = z->n_grads_read, n_buckets = (size_t)z->figures.n_buckets;
        if (next >= n_buckets) TRY(flush_wait(z, next - n_buckets));
        TRY(zero_grads_read(z, next));
    }
    return zero_grads_wait(z, f);
}

/* The bucket that the unit's gradients are about to be written to has been emptied. */
cz_status zero_bucket_acquire(struct zero *z, size_t unit_idx)
{
    size_t f = z->unit_flush[unit_idx], n_buckets = (size_t)z->figures.n_buckets;
    if (!z->split_grads || f == SIZE_MAX) return CZ_OK;
    if (z->leaves_alone && z->n_passes > 0) { /* tied ones may still be leaving from their place */
        if (f == 0) TRY(zero_after(z, z->options.stream, z->gpu.out));
        return zero_leave_back(z, f);
    }
    if (z->swaps_grads && z->n_passes > 0) return read_back(z, f);
    return f < n_buckets ? CZ_OK : flush_wait(z, f - n_buckets);
}

cz_status zero_bucket_ready(struct zero *z, size_t unit_idx)
{
    size_t f = z->unit_flush[unit_idx];
    bool early = z->options.overlap && z->pass == ZERO_PASS_LAST && zero_averages(z);
    bool now = z->split_grads || early;
    if (!now || f == SIZE_MAX || z->flushes[f].unit != unit_idx) return CZ_OK;
    if (zero_stays_alone(z)) return CZ_OK;
    TRY(flush_begin(z, &z->flushes[f]));
    bool is_beside = z->options.overlap || z->swaps_grads || z->leaves_alone;
    return is_beside ? CZ_OK : flush_wait(z, f);
}

/* Tickets of a communicator are waited for in order, those of the swap file each. */
cz_status zero_bucket_finish(struct zero *z)
{
    size_t f = z->n_flushes;
    if (!z->is_reducing) return CZ_OK;
    z->is_reducing = false;
    if (z->swaps_grads) return swap_drain(z->swap);
    if (z->leaves_alone) return zero_gpu_drain(z);
    while (!z->flushes[--f].begun) {
    }
    return flush_wait(z, f);
}

cz_status zero_reduce(struct zero *z)
{
    if (z->n_passes == 0)
        return err_set(CZ_INVALID, 0, "there are no gradients to reduce: backward first");
    bool is_sent = !z->split_grads && zero_averages(z) && !zero_stays_alone(z);
    for (size_t f = 0; f < z->n_flushes && is_sent; f++)
        if (!z->flushes[f].begun) TRY(flush_begin(z, &z->flushes[f]));
    if (!z->leaves_alone || zero_rounds_alone(z))
        TRY(zero_bucket_finish(z)); /* zero_scan() waits */
    TRY(zero_round_alone(z));
    z->reduced = zero_averages(z); /* otherwise they stay this rank's own */
    return CZ_OK;
}

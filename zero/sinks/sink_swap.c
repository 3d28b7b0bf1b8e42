/* Gradients of one rank rest in the swap file: layers make them in a bucket, as they do for
 * reductions, and from there they are written to their place in the flat order. A later micro-batch
 * reads them back first, so that layers add to them as they would in memory: the same bits.
 *
 * The file is read and written in blocks of SWAP_ALIGN bytes; a parameter seldom begins or ends
 * with one. Blocks that a parameter does not fill alone, the edges, stay in memory (ZERO_GRADS),
 * and whatever is read from the file is completed from them. So no block is ever written by two
 * parameters, and no write has to read first. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

struct swapped {
    uint64_t *edges; /* (n_edges) blocks, ascending, whose bytes are in ZERO_GRADS in this order */
    size_t n_edges;
    uint64_t *tickets; /* (n_params) of what was begun last for a gradient */
};

static struct swapped *swapped_of(const struct zero *z)
{
    return z->buckets.state;
}

/* A trained parameter's gradient: bytes [begin, end) of the file, of which [lo, hi) are blocks of
 * its own. */
struct extent {
    uint64_t begin, end, lo, hi;
};

static struct extent extent_of(const struct zero *z, size_t param_idx)
{
    const struct zero_param *p = &z->own.params[param_idx];
    size_t size = dtype_size(z->options.grad_dtype);
    struct extent x = {.begin = z->own.groups[p->group].grad_swap + p->off * size};
    x.end = x.begin + z->options.table->params[param_idx].numel * size;
    x.lo = size_round_up(x.begin, SWAP_ALIGN);
    x.hi = x.end / SWAP_ALIGN * SWAP_ALIGN;
    if (x.hi < x.lo) x.lo = x.hi = x.end; /* it fills no block */
    return x;
}

/* In the bucket a gradient has the same place within blocks as in the file. */
static struct zero_footprint swap_footprint(const struct zero *z, size_t param_idx)
{
    size_t size = dtype_size(z->options.grad_dtype);
    size_t lead = extent_of(z, param_idx).begin % SWAP_ALIGN / size;
    size_t numel = lead + z->options.table->params[param_idx].numel;
    return (struct zero_footprint){.lead = lead,
                                   .numel = size_round_up(numel * size, SWAP_ALIGN) / size};
}

/* ---- creation -------------------------------------------------------------------------------- */

static cz_status swap_take(struct zero *z, size_t group, size_t numel)
{
    size_t nbytes;
    TRY(size_mul(numel, dtype_size(z->options.grad_dtype), &nbytes));
    z->figures.grad_swapped_nbytes += nbytes;
    z->own.groups[group].grads_swapped = true;
    return zero_swap_take(z, nbytes, 0, &z->own.groups[group].grad_swap);
}

static int by_offset(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Finds the edges: the first and the last block of each gradient, neighbours' shared ones once. */
static cz_status swap_init(struct zero *z)
{
    size_t n = z->options.table->n_params, n_ends = 0, off;
    struct swapped *s = z->buckets.state = calloc(1, sizeof *s);
    if (s) s->edges = calloc(2 * n + 1, sizeof *s->edges);
    if (s) s->tickets = calloc(n + 1, sizeof *s->tickets);
    if (!s || !s->edges || !s->tickets)
        return err_set(CZ_NOMEM, 0, "no memory for the edges of %zu gradients", n);
    for (size_t i = 0; i < n; i++) {
        if (z->own.params[i].group == z->options.n_groups) continue;
        const struct extent x = extent_of(z, i);
        s->edges[n_ends++] = x.begin / SWAP_ALIGN * SWAP_ALIGN;
        s->edges[n_ends++] = (x.end - 1) / SWAP_ALIGN * SWAP_ALIGN;
    }
    qsort(s->edges, n_ends, sizeof *s->edges, by_offset);
    for (size_t i = 0; i < n_ends; i++)
        if (s->n_edges == 0 || s->edges[s->n_edges - 1] != s->edges[i])
            s->edges[s->n_edges++] = s->edges[i];
    return zero_block_take(z, ZERO_GRADS, s->n_edges * SWAP_ALIGN, DTYPE_U8, &off);
}

/* Buckets begin with a block of their memory: zero_lend_to_swap() moves them up to one. */
static cz_status swap_dealt(struct zero *z)
{
    size_t off;
    return zero_block_take(z, ZERO_BUCKETS, SWAP_ALIGN, DTYPE_U8, &off);
}

static cz_status swap_bind(struct zero *z)
{
    return zero_lend_to_swap(z, ZERO_BUCKETS);
}

static void swap_free(struct zero *z)
{
    struct swapped *s = swapped_of(z);
    if (!s) return;
    free(s->edges);
    free(s->tickets);
    free(s);
}

/* ---- edges ----------------------------------------------------------------------------------- */

/* The first edge at or behind a block; n_edges: none. */
static size_t edge_from(const struct swapped *s, uint64_t block)
{
    size_t lo = 0, hi = s->n_edges;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->edges[mid] < block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Copy between bytes [begin, end) of the file at `bytes` and the edges among them. */
static void copy_edges(struct zero *z, unsigned char *bytes, uint64_t begin, uint64_t end,
                       bool from_edges)
{
    const struct swapped *s = swapped_of(z);
    for (size_t i = edge_from(s, begin / SWAP_ALIGN * SWAP_ALIGN);
         i < s->n_edges && s->edges[i] < end; i++) {
        uint64_t lo = s->edges[i] > begin ? s->edges[i] : begin;
        uint64_t hi = s->edges[i] + SWAP_ALIGN < end ? s->edges[i] + SWAP_ALIGN : end;
        unsigned char *edge = z->mem.blocks[ZERO_GRADS] + i * SWAP_ALIGN + (lo - s->edges[i]);
        unsigned char *here = bytes + (lo - begin);
        memcpy(from_edges ? here : edge, from_edges ? edge : here, hi - lo);
    }
}

static void swap_complete(struct zero *z, unsigned char *bytes, uint64_t off, size_t nbytes)
{
    copy_edges(z, bytes, off, off + nbytes, true);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Everything of a flush goes from where layers made it to the file and the edges; in the last pass
 * before the boundary it is looked at, while it is in memory. */
static cz_status swap_begin(struct zero *z, size_t flush)
{
    const struct zero_flush *f = &z->buckets.flushes[flush];
    const bool is_last = z->turn.pass == ZERO_PASS_LAST;
    for (size_t k = f->first_param; k < f->first_param + f->n_params; k++) {
        size_t i = z->buckets.params[k];
        const struct extent x = extent_of(z, i);
        unsigned char *src = z->pointers.grads[i];
        uint64_t *ticket = &swapped_of(z)->tickets[i];
        if (is_last)
            TRY(zero_scan_piece(z, z->own.params[i].group, src, z->own.params[i].off,
                                z->options.table->params[i].numel));
        copy_edges(z, src, x.begin, x.end, false);
        *ticket = 0;
        if (x.lo < x.hi)
            TRY(swap_write_begin(z->mem.swap, src + (x.lo - x.begin), x.lo, x.hi - x.lo, ticket));
    }
    return CZ_OK;
}

/* What was begun for the flush, in either direction, is done. */
static cz_status swap_wait_flush(struct zero *z, size_t flush)
{
    const struct zero_flush *f = &z->buckets.flushes[flush];
    for (size_t k = f->first_param; k < f->first_param + f->n_params; k++)
        TRY(swap_wait(z->mem.swap, swapped_of(z)->tickets[z->buckets.params[k]]));
    return CZ_OK;
}

/* What earlier micro-batches made comes back into the bucket; gradients of tied parameters never
 * left their place. */
static cz_status read_begin(struct zero *z, size_t flush)
{
    const struct zero_flush *f = &z->buckets.flushes[flush];
    for (size_t k = f->first_param; k < f->first_param + f->n_params; k++) {
        size_t i = z->buckets.params[k];
        if (z->own.params[i].tied) continue;
        const struct extent x = extent_of(z, i);
        unsigned char *dst = z->pointers.grads[i];
        uint64_t *ticket = &swapped_of(z)->tickets[i];
        *ticket = 0;
        if (x.lo < x.hi)
            TRY(swap_read_begin(z->mem.swap, dst + (x.lo - x.begin), x.lo, x.hi - x.lo, ticket));
        copy_edges(z, dst, x.begin, x.lo < x.end ? x.lo : x.end, true);
        copy_edges(z, dst + (x.hi - x.begin), x.hi, x.end, true);
    }
    return CZ_OK;
}

/* The next flush's are read as well, into the bucket that has been written longest ago: one bucket
 * is written, one in work, one read. */
static cz_status swap_restore(struct zero *z, size_t flush)
{
    struct zero_buckets *b = &z->buckets;
    size_t n_buckets = (size_t)z->figures.n_buckets;
    for (; b->n_restored <= flush + 1 && b->n_restored < b->n_flushes; b->n_restored++) {
        if (b->n_restored >= n_buckets) TRY(swap_wait_flush(z, b->n_restored - n_buckets));
        TRY(read_begin(z, b->n_restored));
    }
    return swap_wait_flush(z, flush);
}

static cz_status swap_finish(struct zero *z)
{
    return swap_drain(z->mem.swap);
}

/* ---- the boundary ---------------------------------------------------------------------------- */

static cz_status swap_boundary(struct zero *z)
{
    z->buckets.found.is_known = z->turn.pass == ZERO_PASS_LAST;
    return zero_bucket_finish(z);
}

struct grad_tiles {
    const struct zero *z;
    size_t group;
};

/* A tile of a group's gradients, in a slot of the ring where the sweep has its own: the other
 * arrays there stay. */
static size_t grad_piece(void *user, size_t t, struct ring_piece *out)
{
    const struct grad_tiles *s = user;
    const struct zero *z = s->z;
    size_t size = dtype_size(z->options.grad_dtype), tile = z->options.tile_numel;
    size_t numel = tile_numel(z->own.groups[s->group].own_numel, tile, t);
    out[0] = (struct ring_piece){.off = z->own.groups[s->group].grad_swap + t * tile * size,
                                 .nbytes = size_round_up(numel * size, SWAP_ALIGN),
                                 .slot_off = zero_ring_grads_off(z),
                                 .is_read = true};
    return 1;
}

static cz_status each_tile(struct zero *z, size_t g, zero_grads_visit visit, void *user)
{
    size_t own = z->own.groups[g].own_numel, tile = z->options.tile_numel;
    size_t size = dtype_size(z->options.grad_dtype);
    unsigned char *slot;
    for (size_t at = 0; at < own; at += tile) {
        size_t numel = tile_numel(own, tile, at / tile);
        TRY(ring_next(z->sweep.ring, &slot));
        slot += zero_ring_grads_off(z);
        swap_complete(z, slot, z->own.groups[g].grad_swap + at * size, numel * size);
        TRY(visit(user, g, slot, at, numel));
        TRY(ring_done(z->sweep.ring));
    }
    return CZ_OK;
}

/* Tile by tile, through the ring that the optimizer's sweep uses later. */
static cz_status swap_visit(struct zero *z, zero_grads_visit visit, void *user)
{
    TRY(zero_late_interrupt(z));
    for (size_t g = 0; g < z->options.n_groups; g++) {
        size_t n_tiles = tile_count(z->own.groups[g].own_numel, z->options.tile_numel);
        struct grad_tiles s = {z, g};
        if (n_tiles == 0) continue;
        TRY(ring_begin(z->sweep.ring, n_tiles, grad_piece, &s));
        TRY(zero_ring_end(z, each_tile(z, g, visit, user)));
    }
    return CZ_OK;
}

/* Edges are completed before elements are converted. */
static cz_status swap_get(struct zero *z, size_t group, size_t off, size_t numel, float *dst)
{
    enum cz_dtype dtype = z->options.grad_dtype;
    size_t size = dtype_size(dtype), most = ZERO_SCRATCH_NBYTES / size;
    for (size_t at = 0, n; at < numel; at += n) {
        uint64_t begin = z->own.groups[group].grad_swap + (off + at) * size;
        n = numel - at < most ? numel - at : most;
        TRY(swap_read(z->mem.swap, begin, n * size, z->mem.scratch));
        swap_complete(z, z->mem.scratch, begin, n * size);
        TRY(zero_cast(z, dtype, z->mem.scratch, DTYPE_F32, dst + at, n));
    }
    return CZ_OK;
}

const struct zero_sink zero_sink_swap = {.name = "swap file",
                                         .bucket_numel_max = 0, /* one layer's gradients */
                                         .n_buckets = 3,        /* written, in work, read back */
                                         .is_beside = true,
                                         .footprint = swap_footprint,
                                         .init = swap_init,
                                         .dealt = swap_dealt,
                                         .bind = swap_bind,
                                         .free = swap_free,
                                         .take = swap_take,
                                         .begin = swap_begin,
                                         .wait = swap_wait_flush,
                                         .restore = swap_restore,
                                         .finish = swap_finish,
                                         .boundary = swap_boundary,
                                         .visit = swap_visit,
                                         .complete = swap_complete,
                                         .get = swap_get};

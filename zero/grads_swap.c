/* Gradients of one rank that rest in the swap file: layers make them in a bucket, as ranks do that
 * reduce theirs, and from there they are written to where they lie in the flat order. A later
 * micro-batch reads them back first, so that layers add to them as they would in memory.
 *
 * A parameter seldom begins or ends with a block of the file. Blocks that it does not fill alone,
 * the edges, stay in memory and are laid over what is read. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* A trained parameter's gradient: bytes [begin, end) of the file, of which [lo, hi) are blocks of
 * its own. */
struct extent {
    uint64_t begin, end, lo, hi;
};

static struct extent extent_of(const struct zero *z, size_t param_idx)
{
    const struct zero_place *p = &z->places[param_idx];
    size_t size = dtype_size(z->options.grad_dtype);
    struct extent x = {.begin = z->groups[p->group].grad_swap + p->off * size};
    x.end = x.begin + z->options.table->params[param_idx].numel * size;
    x.lo = size_round_up(x.begin, SWAP_ALIGN);
    x.hi = x.end / SWAP_ALIGN * SWAP_ALIGN;
    if (x.hi < x.lo) x.lo = x.hi = x.end; /* it fills no block */
    return x;
}

static bool is_trained(const struct zero *z, size_t param_idx)
{
    return z->places[param_idx].group != z->options.n_groups;
}

size_t zero_grad_lead(const struct zero *z, size_t param_idx)
{
    if (!z->swaps_grads || !is_trained(z, param_idx)) return 0;
    return extent_of(z, param_idx).begin % SWAP_ALIGN / dtype_size(z->options.grad_dtype);
}

size_t zero_grad_room(const struct zero *z, size_t param_idx)
{
    size_t size = dtype_size(z->options.grad_dtype),
           numel = z->options.table->params[param_idx].numel;
    if (!z->swaps_grads || !is_trained(z, param_idx)) return numel;
    return size_round_up((zero_grad_lead(z, param_idx) + numel) * size, SWAP_ALIGN) / size;
}

/* ---- edges ------------------------------------------------------------------------------------
 */

static int by_offset(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static size_t without_twins(uint64_t *sorted, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || sorted[kept - 1] != sorted[i]) sorted[kept++] = sorted[i];
    return kept;
}

cz_status zero_grads_swap_init(struct zero *z)
{
    size_t n = z->options.table->n_params, off;
    if (!z->swaps_grads) return CZ_OK;
    z->edges = calloc(2 * n + 1, sizeof *z->edges);
    z->grad_tickets = calloc(n + 1, sizeof *z->grad_tickets);
    if (!z->edges || !z->grad_tickets)
        return err_set(CZ_NOMEM, 0, "no memory for the edges of %zu gradients", n);
    for (size_t i = 0; i < n; i++) {
        if (!is_trained(z, i)) continue;
        const struct extent x = extent_of(z, i);
        z->edges[z->n_edges++] = x.begin / SWAP_ALIGN * SWAP_ALIGN;
        z->edges[z->n_edges++] = (x.end - 1) / SWAP_ALIGN * SWAP_ALIGN;
    }
    qsort(z->edges, z->n_edges, sizeof *z->edges, by_offset);
    z->n_edges = without_twins(z->edges, z->n_edges);
    return zero_block_take(z, ZERO_GRADS, z->n_edges * SWAP_ALIGN, DTYPE_U8, &off);
}

void zero_grads_swap_free(struct zero *z)
{
    free(z->edges);
    free(z->grad_tickets);
    free(z->flush_params);
    free(z->flush_first_param);
}

/* The first edge at or behind a block; n_edges: none. */
static size_t edge_from(const struct zero *z, uint64_t block)
{
    size_t lo = 0, hi = z->n_edges;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (z->edges[mid] < block)
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
    for (size_t i = edge_from(z, begin / SWAP_ALIGN * SWAP_ALIGN);
         i < z->n_edges && z->edges[i] < end; i++) {
        uint64_t lo = z->edges[i] > begin ? z->edges[i] : begin;
        uint64_t hi = z->edges[i] + SWAP_ALIGN < end ? z->edges[i] + SWAP_ALIGN : end;
        unsigned char *edge = z->blocks[ZERO_GRADS] + i * SWAP_ALIGN + (lo - z->edges[i]);
        unsigned char *here = bytes + (lo - begin);
        memcpy(from_edges ? here : edge, from_edges ? edge : here, hi - lo);
    }
}

void zero_grads_lay_edges(struct zero *z, unsigned char *bytes, uint64_t off, size_t nbytes)
{
    copy_edges(z, bytes, off, off + nbytes, true);
}

/* ---- buckets ----------------------------------------------------------------------------------
 */

/* The flush that takes a parameter's gradient; n_flushes: none does, as no layer uses it. */
static size_t flush_of(const struct zero *z, size_t param_idx)
{
    size_t unit = z->places[param_idx].ready_unit;
    return unit < z->options.n_units ? z->unit_flush[unit] : z->n_flushes;
}

/* Counted and dealt: a flush's parameters stand together, in the table's order. */
cz_status zero_grads_list(struct zero *z)
{
    size_t n = z->options.table->n_params;
    if (!z->swaps_grads && !z->leaves_alone) return CZ_OK;
    z->flush_params = calloc(n + 1, sizeof *z->flush_params);
    z->flush_first_param = calloc(z->n_flushes + 3, sizeof *z->flush_first_param);
    if (!z->flush_params || !z->flush_first_param)
        return err_set(CZ_NOMEM, 0, "no memory for the gradients of %zu layers", z->n_flushes);
    size_t *end = z->flush_first_param + 1; /* while dealing: where a flush's next one goes */
    for (size_t i = 0; i < n; i++)
        if (is_trained(z, i)) end[flush_of(z, i) + 1]++;
    for (size_t f = 0; f <= z->n_flushes; f++) end[f + 1] += end[f];
    for (size_t i = 0; i < n; i++)
        if (is_trained(z, i)) z->flush_params[end[flush_of(z, i)]++] = i;
    return CZ_OK;
}

/* Everything of a flush goes from where layers made it to the file and the edges. */
cz_status zero_grads_write(struct zero *z, size_t flush)
{
    for (size_t k = z->flush_first_param[flush]; k < z->flush_first_param[flush + 1]; k++) {
        size_t i = z->flush_params[k];
        const struct extent x = extent_of(z, i);
        unsigned char *src = z->grads[i];
        copy_edges(z, src, x.begin, x.end, false);
        z->grad_tickets[i] = 0;
        if (x.lo < x.hi)
            TRY(swap_write_begin(z->swap, src + (x.lo - x.begin), x.lo, x.hi - x.lo,
                                 &z->grad_tickets[i]));
    }
    return CZ_OK;
}

cz_status zero_grads_wait(struct zero *z, size_t flush)
{
    for (size_t k = z->flush_first_param[flush]; k < z->flush_first_param[flush + 1]; k++)
        TRY(swap_wait(z->swap, z->grad_tickets[z->flush_params[k]]));
    return CZ_OK;
}

/* What earlier micro-batches made comes back into the bucket; tied ones never left their place. */
cz_status zero_grads_read(struct zero *z, size_t flush)
{
    for (size_t k = z->flush_first_param[flush]; k < z->flush_first_param[flush + 1]; k++) {
        size_t i = z->flush_params[k];
        if (z->places[i].tied) continue;
        const struct extent x = extent_of(z, i);
        unsigned char *dst = z->grads[i];
        z->grad_tickets[i] = 0;
        if (x.lo < x.hi)
            TRY(swap_read_begin(z->swap, dst + (x.lo - x.begin), x.lo, x.hi - x.lo,
                                &z->grad_tickets[i]));
        copy_edges(z, dst, x.begin, x.lo < x.end ? x.lo : x.end, true);
        copy_edges(z, dst + (x.hi - x.begin), x.hi, x.end, true);
    }
    return CZ_OK;
}

/* ---- at the boundary ---------------------------------------------------------------------------
 */

struct grad_sweep {
    const struct zero *z;
    size_t group;
};

/* A tile of a group's gradients, at the beginning of a slot. */
static size_t grad_piece(void *user, size_t t, struct ring_piece *out)
{
    const struct grad_sweep *s = user;
    const struct zero *z = s->z;
    size_t size = dtype_size(z->options.grad_dtype), tile = z->options.tile_numel;
    size_t numel = tile_numel(z->groups[s->group].own_numel, tile, t);
    out[0] = (struct ring_piece){.off = z->groups[s->group].grad_swap + t * tile * size,
                                 .nbytes = size_round_up(numel * size, SWAP_ALIGN),
                                 .is_read = true};
    return 1;
}

static cz_status each_tile(struct zero *z, size_t g, zero_grads_visit visit, void *user)
{
    size_t n = tile_count(z->groups[g].own_numel, z->options.tile_numel);
    size_t size = dtype_size(z->options.grad_dtype);
    unsigned char *slot;
    for (size_t t = 0; t < n; t++) {
        size_t at = t * z->options.tile_numel;
        size_t numel = tile_numel(z->groups[g].own_numel, z->options.tile_numel, t);
        TRY(ring_next(z->ring, &slot));
        zero_grads_lay_edges(z, slot, z->groups[g].grad_swap + at * size, numel * size);
        TRY(visit(user, slot, at, numel));
        TRY(ring_done(z->ring));
    }
    return CZ_OK;
}

struct zero_placement zero_grads_placement(const struct zero *z, size_t group)
{
    return (struct zero_placement){.dtype = z->options.grad_dtype,
                                   .on_gpu = zero_is_on_gpu(z, ZERO_GRADS),
                                   .memory = zero_own_grad(z, group),
                                   .resident = SIZE_MAX};
}

struct ops *zero_grads_ops(const struct zero *z)
{
    return zero_is_on_gpu(z, ZERO_GRADS) ? z->options.ops : zero_host_ops(z);
}

cz_status zero_each_grads(struct zero *z, size_t group, zero_grads_visit visit, void *user)
{
    const struct zero_group *g = &z->groups[group];
    struct grad_sweep s = {z, group};
    if (g->own_numel == 0) return CZ_OK;
    if (!z->swaps_grads) return visit(user, zero_own_grad(z, group), 0, g->own_numel);
    TRY(ring_begin(z->ring, tile_count(g->own_numel, z->options.tile_numel), grad_piece, &s));
    return zero_ring_end(z, each_tile(z, group, visit, user));
}

cz_status zero_grads_get(struct zero *z, size_t group, size_t off, size_t numel, float *dst)
{
    enum dtype dtype = z->options.grad_dtype;
    size_t size = dtype_size(dtype), most = ZERO_SCRATCH_NBYTES / size;
    if (!z->swaps_grads) {
        const struct zero_placement where = zero_grads_placement(z, group);
        return zero_placement_get(z, &where, off, numel, dst);
    }
    for (size_t at = 0, n; at < numel; at += n) {
        uint64_t begin = z->groups[group].grad_swap + (off + at) * size;
        n = numel - at < most ? numel - at : most;
        TRY(swap_read(z->swap, begin, n * size, z->scratch));
        zero_grads_lay_edges(z, z->scratch, begin, n * size);
        TRY(zero_cast(z, dtype, z->scratch, DTYPE_F32, dst + at, n));
    }
    return CZ_OK;
}

/* Gradients of one rank rest in host memory while its layers are on a GPU: layers make them in a
 * bucket, as they do for reductions, and from there they are copied to host memory beside the
 * backward, on a stream of their own. A later micro-batch brings them back first, so that layers
 * add to them as they would where they stay: the same bits.
 *
 * Streams wait for events, and the host for none of it before the boundary: there it looks at
 * gradients flush by flush as they arrive, or, where nothing has to be known of all of them before
 * the update, updates the tiles whose gradients have arrived beside the rest of the backward. */
#include "zero/zero_impl.h"

#include <stdlib.h>

/* Elements of a bucket: quick to copy, so that the last one is soon there. */
#define BUCKET_NUMEL ((size_t)1 << 26)

struct host {
    struct dev_event **gone, **back; /* (n_flushes) gradients have left, have come back */
    size_t n_events;
    size_t **tile_flush; /* (n_groups, n_tiles) the last flush that brings of its gradients */
};

static struct host *host_of(const struct zero *z)
{
    return z->buckets.state;
}

/* Where a parameter's gradient rests. */
static unsigned char *rest_of(const struct zero *z, size_t param_idx)
{
    const struct zero_param *p = &z->own.params[param_idx];
    return zero_advance(z->mem.blocks[ZERO_GRADS] + z->own.groups[p->group].grad_off, p->off,
                        z->options.grad_dtype);
}

static size_t grad_nbytes(const struct zero *z, size_t param_idx)
{
    return z->options.table->params[param_idx].numel * dtype_size(z->options.grad_dtype);
}

/* ---- creation -------------------------------------------------------------------------------- */

static cz_status host_init(struct zero *z)
{
    struct host *h = z->buckets.state = calloc(1, sizeof *h);
    if (h) h->tile_flush = calloc(z->options.n_groups + 1, sizeof *h->tile_flush);
    if (!h || !h->tile_flush) return err_set(CZ_NOMEM, 0, "no memory for gradients of a GPU");
    return CZ_OK;
}

/* Which flush completes which tile. */
static cz_status host_dealt(struct zero *z)
{
    const struct zero_buckets *b = &z->buckets;
    struct host *h = host_of(z);
    size_t tile = z->options.tile_numel;
    for (size_t g = 0; g < z->options.n_groups; g++) {
        size_t n_tiles = tile_count(z->own.groups[g].own_numel, tile);
        h->tile_flush[g] = calloc(n_tiles + 1, sizeof *h->tile_flush[g]);
        if (!h->tile_flush[g])
            return err_set(CZ_NOMEM, 0, "no memory for the order of %zu tiles", n_tiles);
    }
    for (size_t f = 0; f < b->n_flushes; f++)
        for (size_t k = 0; k < b->flushes[f].n_params; k++) {
            size_t i = b->params[b->flushes[f].first_param + k];
            struct zero_piece mine = zero_piece_mine(z, i);
            size_t *last = h->tile_flush[z->own.params[i].group], end = mine.own_off + mine.numel;
            for (size_t t = mine.own_off / tile; t * tile < end; t++)
                if (last[t] < f) last[t] = f;
        }
    return CZ_OK;
}

static cz_status host_bind(struct zero *z)
{
    struct host *h = host_of(z);
    h->n_events = z->buckets.n_flushes;
    TRY(zero_events_make(z, &h->gone, h->n_events));
    return zero_events_make(z, &h->back, h->n_events);
}

static void host_free(struct zero *z)
{
    struct host *h = host_of(z);
    if (!h) return;
    zero_events_free(z, h->gone, h->n_events);
    zero_events_free(z, h->back, h->n_events);
    for (size_t g = 0; h->tile_flush && g < z->options.n_groups; g++) free(h->tile_flush[g]);
    free(h->tile_flush);
    free(h);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static cz_status host_begin(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    const struct zero_flush *f = &z->buckets.flushes[flush];
    TRY(zero_after(z, z->gpu.out, z->options.stream));
    for (size_t k = f->first_param; k < f->first_param + f->n_params; k++) {
        size_t i = z->buckets.params[k];
        TRY(zero_copy(z, z->gpu.out, rest_of(z, i), z->pointers.grads[i], grad_nbytes(z, i)));
    }
    return d->ops->event_record(d, host_of(z)->gone[flush], z->gpu.out);
}

/* The layers' stream waits, the host does not. */
static cz_status host_wait(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    return d->ops->stream_wait(d, z->options.stream, host_of(z)->gone[flush]);
}

/* After what left before: on the same stream. Gradients of tied parameters never left their place.
 */
static cz_status bring_back(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    const struct zero_flush *f = &z->buckets.flushes[flush];
    TRY(zero_after(z, z->gpu.in, z->gpu.out));
    TRY(zero_after(z, z->gpu.in, z->options.stream));
    for (size_t k = f->first_param; k < f->first_param + f->n_params; k++) {
        size_t i = z->buckets.params[k];
        if (z->own.params[i].tied) continue;
        TRY(zero_copy(z, z->gpu.in, z->pointers.grads[i], rest_of(z, i), grad_nbytes(z, i)));
    }
    return d->ops->event_record(d, host_of(z)->back[flush], z->gpu.in);
}

/* The next flush's come too, into the bucket whose gradients are leaving. */
static cz_status host_restore(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    struct zero_buckets *b = &z->buckets;
    size_t ahead = z->figures.n_buckets > 1 ? 1 : 0;
    if (flush == 0) /* tied ones may still be leaving from the place where layers add to them */
        TRY(zero_after(z, z->options.stream, z->gpu.out));
    for (; b->n_restored <= flush + ahead && b->n_restored < b->n_flushes; b->n_restored++)
        TRY(bring_back(z, b->n_restored));
    return d->ops->stream_wait(d, z->options.stream, host_of(z)->back[flush]);
}

static cz_status host_finish(struct zero *z)
{
    return zero_gpu_drain(z);
}

/* ---- the boundary ---------------------------------------------------------------------------- */

/* Gradients that need no rounding are left on their way. */
static cz_status host_boundary(struct zero *z)
{
    if (!zero_rounds_alone(z)) return CZ_OK;
    TRY(zero_bucket_finish(z));
    return zero_round_alone(z, z->mem.scratch, ZERO_SCRATCH_NBYTES / sizeof(float));
}

static cz_status arrived(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    return d->ops->event_wait_host(d, host_of(z)->gone[flush]);
}

/* As they arrive, beside the rest of the backward; then all have. */
static cz_status host_visit(struct zero *z, zero_grads_visit visit, void *user)
{
    struct zero_buckets *b = &z->buckets;
    if (!b->is_under_way) return zero_visit_partition(z, visit, user);
    for (size_t f = 0; f < b->n_flushes; f++) {
        TRY(arrived(z, f));
        for (size_t k = 0; k < b->flushes[f].n_params; k++) {
            size_t i = b->params[b->flushes[f].first_param + k];
            TRY(visit(user, z->own.params[i].group, rest_of(z, i), zero_piece_mine(z, i).own_off,
                      z->options.table->params[i].numel));
        }
    }
    b->is_under_way = false;
    return CZ_OK;
}

static cz_status host_tile_wait(struct zero *z, size_t group, size_t tile)
{
    return arrived(z, host_of(z)->tile_flush[group][tile]);
}

static cz_status host_read_pending(struct zero *z, size_t param_idx, size_t off, size_t numel,
                                   float *dst, bool *is_read)
{
    size_t at = zero_piece_mine(z, param_idx).own_off + off;
    TRY(zero_bucket_finish(z));
    *is_read = !z->buckets.reduced;
    if (z->buckets.reduced) return CZ_OK;
    TRY(zero_grads_get(z, z->own.params[param_idx].group, at, numel, dst));
    return zero_reduce_values(z, dst, numel, 1);
}

const struct zero_sink zero_sink_host = {.name = "host memory",
                                         .bucket_numel_max = BUCKET_NUMEL,
                                         .is_beside = true,
                                         .in_stream_order = true,
                                         .init = host_init,
                                         .dealt = host_dealt,
                                         .bind = host_bind,
                                         .free = host_free,
                                         .begin = host_begin,
                                         .wait = host_wait,
                                         .restore = host_restore,
                                         .finish = host_finish,
                                         .boundary = host_boundary,
                                         .visit = host_visit,
                                         .tile_wait = host_tile_wait,
                                         .read_pending = host_read_pending};

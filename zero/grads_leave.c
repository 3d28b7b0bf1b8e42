/* Gradients of one rank that leave a GPU: layers make them in a bucket, as ranks do that reduce
 * theirs, and from there they are copied to host memory beside the backward, on a stream of their
 * own. A later micro-batch brings them back first, so that layers add to them as they would where
 * they stay: the same bits. The host waits for none of it before the boundary. */
#include "zero/zero_impl.h"

#include <stdlib.h>

/* Where a parameter's gradient rests in host memory. */
static unsigned char *rest_of(const struct zero *z, size_t param_idx)
{
    const struct zero_place *p = &z->places[param_idx];
    return zero_advance(z->blocks[ZERO_GRADS] + z->groups[p->group].grad_off, p->off,
                        z->options.grad_dtype);
}

static size_t grad_nbytes(const struct zero *z, size_t param_idx)
{
    return z->options.table->params[param_idx].numel * dtype_size(z->options.grad_dtype);
}

cz_status zero_leave_begin(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    TRY(zero_after(z, z->gpu.out, z->options.stream));
    for (size_t k = z->flush_first_param[flush]; k < z->flush_first_param[flush + 1]; k++) {
        size_t i = z->flush_params[k];
        TRY(zero_copy(z, z->gpu.out, rest_of(z, i), z->grads[i], grad_nbytes(z, i)));
    }
    return d->ops->event_record(d, z->gpu.gone[flush], z->gpu.out);
}

cz_status zero_leave_wait(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    return d->ops->stream_wait(d, z->options.stream, z->gpu.gone[flush]);
}

cz_status zero_leave_arrived(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    return d->ops->event_wait_host(d, z->gpu.gone[flush]);
}

static void note_last_flush(struct zero *z, size_t param_idx, size_t flush)
{
    struct zero_group *group = &z->groups[z->places[param_idx].group];
    struct zero_piece mine = zero_piece_mine(z, param_idx);
    size_t tile = z->options.tile_numel, end = mine.own_off + mine.numel;
    for (size_t t = mine.own_off / tile; t * tile < end; t++)
        if (group->tile_flush[t] < flush) group->tile_flush[t] = flush;
}

cz_status zero_leave_tiles(struct zero *z)
{
    if (!z->leaves_alone) return CZ_OK;
    for (size_t g = 0; g < z->options.n_groups; g++) {
        size_t n_tiles = tile_count(z->groups[g].own_numel, z->options.tile_numel);
        z->groups[g].tile_flush = calloc(n_tiles + 1, sizeof *z->groups[g].tile_flush);
        if (!z->groups[g].tile_flush)
            return err_set(CZ_NOMEM, 0, "no memory for the order of %zu tiles", n_tiles);
    }
    for (size_t f = 0; f < z->n_flushes; f++)
        for (size_t k = z->flush_first_param[f]; k < z->flush_first_param[f + 1]; k++)
            note_last_flush(z, z->flush_params[k], f);
    return CZ_OK;
}

/* After what left before: on the same stream. Tied gradients never left their place. */
static cz_status bring_back(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    TRY(zero_after(z, z->gpu.in, z->gpu.out));
    TRY(zero_after(z, z->gpu.in, z->options.stream));
    for (size_t k = z->flush_first_param[flush]; k < z->flush_first_param[flush + 1]; k++) {
        size_t i = z->flush_params[k];
        if (z->places[i].tied) continue;
        TRY(zero_copy(z, z->gpu.in, z->grads[i], rest_of(z, i), grad_nbytes(z, i)));
    }
    return d->ops->event_record(d, z->gpu.back[flush], z->gpu.in);
}

/* The next flush's come too, into the bucket whose gradients are leaving. */
cz_status zero_leave_back(struct zero *z, size_t flush)
{
    struct device *d = zero_device(z);
    size_t ahead = z->figures.n_buckets > 1 ? 1 : 0;
    for (; z->n_grads_read <= flush + ahead && z->n_grads_read < z->n_flushes; z->n_grads_read++)
        TRY(bring_back(z, z->n_grads_read));
    return d->ops->stream_wait(d, z->options.stream, z->gpu.back[flush]);
}

/* Layers on a GPU: which blocks lie in its memory and which in the host's, the streams beside the
 * layers' own, and how elements pass between the two.
 *
 *                        nothing offloaded   offload.optimizer, swap.optimizer   offload.params
 * parameters             device              device                              host, or the file
 * window                 -                   -                                   device
 * masters, states        device              host, or the file; a share of them
 *                                            on the device
 * gradients              device              host: they leave bucket by bucket,
 *                                            where layers make them in buckets
 *                                            (one rank; stages 2 and 3); else device
 *
 * What the 1-bit family adds (errors, messages, masks) is the device's, as all of its state.
 *
 * A tile is updated where its masters and states lie. */
#include "zero/zero_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- where ------------------------------------------------------------------------------------
 */

bool zero_params_leave(const struct zero_options *o)
{
    return o->on_gpu && (o->offload.params || o->swap.params);
}

bool zero_states_leave(const struct zero_options *o)
{
    return o->on_gpu && (o->offload.optimizer || o->swap.optimizer);
}

enum zero_memory zero_block_memory(const struct zero *z, enum zero_block block)
{
    const struct zero_options *o = &z->options;
    if (!o->on_gpu) return ZERO_HOST_MEMORY;
    switch (block) {
    case ZERO_PARAMS: return zero_params_leave(o) ? ZERO_HOST_MEMORY : ZERO_GPU_MEMORY;
    case ZERO_MASTERS:
    case ZERO_STATE_0:
    case ZERO_STATE_1:
    case ZERO_STATE_2: return zero_states_leave(o) ? ZERO_HOST_MEMORY : ZERO_GPU_MEMORY;
    case ZERO_GRADS: return z->buckets.rest_in_host ? ZERO_HOST_MEMORY : ZERO_GPU_MEMORY;
    case ZERO_WINDOW:
    case ZERO_BUCKETS:
    case ZERO_SHARE:
    case ZERO_STEP:
    case ZERO_ERRORS:
    case ZERO_SIGNS:
    case ZERO_UPDATE_GPU: return ZERO_GPU_MEMORY;
    case ZERO_SMALL:
    case ZERO_RING:
    case ZERO_STAGING:
    case ZERO_UPDATE_HOST:
    case ZERO_N_BLOCKS: break;
    }
    return ZERO_HOST_MEMORY;
}

bool zero_is_on_gpu(const struct zero *z, enum zero_block block)
{
    return zero_block_memory(z, block) == ZERO_GPU_MEMORY;
}

cz_status zero_gpu_check(const struct zero_options *o)
{
    if (!o->on_gpu) return CZ_OK;
    if (o->swap.params && o->comm->world_size > 1 && o->stage < 3)
        return err_set(
            CZ_UNSUPPORTED, 0,
            "zero_optimization.offload_param.device: \"nvme\" with %d GPUs is for stage 3, "
            "at which ranks share the parameters; stage %d keeps all of them on each",
            o->comm->world_size, o->stage);
    if (o->swap.grads) return err_set(CZ_INVALID, 0, "gradients of a GPU leave it for host memory");
    return CZ_OK;
}

/* ---- streams and events -----------------------------------------------------------------------
 */

cz_status zero_events_make(struct zero *z, struct dev_event ***out, size_t n)
{
    *out = calloc(n + 1, sizeof **out);
    if (!*out) return err_set(CZ_NOMEM, 0, "no memory for %zu events", n);
    for (size_t i = 0; i < n; i++)
        TRY(zero_device(z)->ops->event_create(zero_device(z), &(*out)[i]));
    return CZ_OK;
}

void zero_events_free(struct zero *z, struct dev_event **events, size_t n)
{
    for (size_t i = 0; events && i < n; i++)
        if (events[i]) zero_device(z)->ops->event_destroy(zero_device(z), events[i]);
    free(events);
}

cz_status zero_gpu_bind(struct zero *z)
{
    struct device *d = zero_device(z);
    struct zero_gpu *gpu = &z->gpu;
    if (!z->options.on_gpu) return CZ_OK;
    TRY(d->ops->stream_create(d, &gpu->in));
    TRY(d->ops->stream_create(d, &gpu->out));
    TRY(d->ops->stream_create(d, &gpu->reader));
    TRY(zero_events_make(z, &gpu->moved, ZERO_MOVES));
    TRY(zero_events_make(z, &gpu->staged, ZERO_STAGE_SLOTS));
    TRY(zero_events_make(z, &gpu->now, 1));
    return zero_events_make(z, &gpu->settled, 1);
}

void zero_gpu_free(struct zero *z)
{
    struct zero_gpu *gpu = &z->gpu;
    if (!z->options.on_gpu) return;
    zero_events_free(z, gpu->moved, ZERO_MOVES);
    zero_events_free(z, gpu->staged, ZERO_STAGE_SLOTS);
    zero_events_free(z, gpu->now, 1);
    zero_events_free(z, gpu->settled, 1);
    struct dev_stream *streams[] = {gpu->in, gpu->out, gpu->reader};
    for (size_t i = 0; i < CZ_ARRAY_LEN(streams); i++)
        if (streams[i]) zero_device(z)->ops->stream_destroy(zero_device(z), streams[i]);
}

cz_status zero_after(struct zero *z, struct dev_stream *later, struct dev_stream *earlier)
{
    struct device *d = zero_device(z);
    TRY(d->ops->event_record(d, z->gpu.now[0], earlier));
    return d->ops->stream_wait(d, later, z->gpu.now[0]);
}

cz_status zero_gpu_settle(struct zero *z)
{
    struct device *d = zero_device(z);
    if (!z->options.on_gpu) return CZ_OK;
    TRY(zero_after(z, z->options.stream, z->gpu.in));
    TRY(zero_after(z, z->options.stream, z->gpu.out));
    return d->ops->event_record(d, z->gpu.settled[0], z->options.stream);
}

cz_status zero_gpu_drain(struct zero *z)
{
    struct device *d = zero_device(z);
    if (!z->gpu.in || !z->gpu.out) return CZ_OK; /* never bound */
    TRY(d->ops->stream_sync(d, z->gpu.in));
    TRY(d->ops->stream_sync(d, z->gpu.out));
    return zero_sync(z);
}

/* ---- elements ---------------------------------------------------------------------------------
 */

cz_status zero_copy(struct zero *z, struct dev_stream *stream, void *dst, const void *src,
                    size_t nbytes)
{
    return zero_device(z)->ops->copy(zero_device(z), stream, dst, src, nbytes);
}

static cz_status copy_now(struct zero *z, void *dst, const void *src, size_t nbytes)
{
    TRY(zero_copy(z, z->options.stream, dst, src, nbytes));
    return zero_sync(z);
}

cz_status zero_pull(struct zero *z, enum cz_dtype dtype, const void *src, float *dst, size_t numel)
{
    size_t size = dtype_size(dtype), most = ZERO_SCRATCH_NBYTES / size;
    if (dtype == DTYPE_F32) return copy_now(z, dst, src, numel * size);
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < most ? numel - at : most;
        TRY(copy_now(z, z->scratch, (const unsigned char *)src + at * size, n * size));
        TRY(zero_cast(z, dtype, z->scratch, DTYPE_F32, dst + at, n));
    }
    return CZ_OK;
}

cz_status zero_push(struct zero *z, enum cz_dtype dtype, const float *src, void *dst, size_t numel)
{
    size_t size = dtype_size(dtype), most = ZERO_SCRATCH_NBYTES / size;
    if (dtype == DTYPE_F32) return copy_now(z, dst, src, numel * size);
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < most ? numel - at : most;
        TRY(zero_cast(z, DTYPE_F32, src + at, dtype, z->scratch, n));
        TRY(copy_now(z, (unsigned char *)dst + at * size, z->scratch, n * size));
    }
    return CZ_OK;
}

/* ---- moves ------------------------------------------------------------------------------------
 *
 * One rank gathers from itself: copies, in order, beside the layers.
 */

static bool moves_alone(const struct zero *z)
{
    return z->options.on_gpu && z->options.comm->world_size == 1;
}

static cz_status copy_spans(struct zero *z, const struct comm_move *a)
{
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        TRY(zero_copy(z, z->gpu.in, (unsigned char *)a->dst + s->dst_off * a->elem_nbytes,
                      (const unsigned char *)a->src + s->src_off * a->elem_nbytes,
                      s->numel * a->elem_nbytes));
    }
    return CZ_OK;
}

cz_status zero_move_begin(struct zero *z, const struct comm_move *args, struct comm_ticket *ticket)
{
    struct device *d = zero_device(z);
    if (!moves_alone(z)) return comm_move_begin(z->options.comm, args, ticket);
    ticket->id = ++z->gpu.n_moves;
    TRY(zero_after(z, z->gpu.in, z->options.stream)); /* what is overwritten has been used */
    TRY(copy_spans(z, args));
    return d->ops->event_record(d, z->gpu.moved[ticket->id % ZERO_MOVES], z->gpu.in);
}

/* An event that a later move has taken over is past later still. */
cz_status zero_move_wait(struct zero *z, struct comm_ticket ticket)
{
    struct device *d = zero_device(z);
    if (!moves_alone(z)) return comm_wait(z->options.comm, ticket);
    if (ticket.id == 0) return CZ_OK;
    return d->ops->stream_wait(d, z->options.stream, z->gpu.moved[ticket.id % ZERO_MOVES]);
}

cz_status zero_move_wait_host(struct zero *z, struct comm_ticket ticket)
{
    struct device *d = zero_device(z);
    if (moves_alone(z))
        return ticket.id == 0 ? CZ_OK
                              : d->ops->event_wait_host(d, z->gpu.moved[ticket.id % ZERO_MOVES]);
    TRY(comm_wait(z->options.comm, ticket));
    return z->options.on_gpu ? zero_sync(z) : CZ_OK;
}

cz_status zero_move(struct zero *z, const struct comm_move *args)
{
    struct comm_ticket ticket;
    TRY(zero_move_begin(z, args, &ticket));
    return zero_move_wait(z, ticket);
}

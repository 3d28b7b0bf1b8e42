/* Layers on a GPU: the streams beside the layers' own, copies and conversions between its memory
 * and the host's, and moves of parameters within one rank, which has no communicator to move them.
 * On the CPU all of it does nothing, or what the communicator does. */
#include "zero/zero_impl.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- streams and events ---------------------------------------------------------------------- */

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

/* One event serves all: a wait that was put on a stream keeps the record that it saw. */
cz_status zero_after(struct zero *z, struct dev_stream *later, struct dev_stream *earlier)
{
    struct device *d = zero_device(z);
    TRY(d->ops->event_record(d, z->gpu.now[0], earlier));
    return d->ops->stream_wait(d, later, z->gpu.now[0]);
}

/* Until the next update the state stays as it is once these three streams have come here. */
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

/* ---- elements -------------------------------------------------------------------------------- */

cz_status zero_copy(struct zero *z, struct dev_stream *stream, void *dst, const void *src,
                    size_t nbytes)
{
    return zero_device(z)->ops->copy(zero_device(z), stream, dst, src, nbytes);
}

/* On the layers' stream, after what they still do there, and done on return. */
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
        TRY(copy_now(z, z->mem.scratch, (const unsigned char *)src + at * size, n * size));
        TRY(zero_cast(z, dtype, z->mem.scratch, DTYPE_F32, dst + at, n));
    }
    return CZ_OK;
}

cz_status zero_push(struct zero *z, enum cz_dtype dtype, const float *src, void *dst, size_t numel)
{
    size_t size = dtype_size(dtype), most = ZERO_SCRATCH_NBYTES / size;
    if (dtype == DTYPE_F32) return copy_now(z, dst, src, numel * size);
    for (size_t at = 0, n; at < numel; at += n) {
        n = numel - at < most ? numel - at : most;
        TRY(zero_cast(z, DTYPE_F32, src + at, dtype, z->mem.scratch, n));
        TRY(copy_now(z, (unsigned char *)dst + at * size, z->mem.scratch, n * size));
    }
    return CZ_OK;
}

/* ---- moves: one rank gathers from itself, by copies, in order, beside the layers ------------- */

static bool moves_alone(const struct zero *z)
{
    return z->options.on_gpu && z->options.comm->world_size == 1;
}

cz_status zero_move_begin(struct zero *z, const struct comm_move *a, struct comm_ticket *ticket)
{
    struct device *d = zero_device(z);
    if (!moves_alone(z)) return comm_move_begin(z->options.comm, a, ticket);
    ticket->id = ++z->gpu.n_moves;
    TRY(zero_after(z, z->gpu.in, z->options.stream)); /* what is overwritten has been used */
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        TRY(zero_copy(z, z->gpu.in, (unsigned char *)a->dst + s->dst_off * a->elem_nbytes,
                      (const unsigned char *)a->src + s->src_off * a->elem_nbytes,
                      s->numel * a->elem_nbytes));
    }
    return d->ops->event_record(d, z->gpu.moved[ticket->id % ZERO_MOVES], z->gpu.in);
}

/* Moves take ZERO_MOVES events in turn. Where a later move has taken over a ticket's event, waiting
 * for that one is enough: moves are copied in order. */
cz_status zero_move_wait(struct zero *z, struct comm_ticket ticket)
{
    struct device *d = zero_device(z);
    if (!moves_alone(z)) return comm_wait(z->options.comm, ticket);
    if (ticket.id == 0) return CZ_OK;
    return d->ops->stream_wait(d, z->options.stream, z->gpu.moved[ticket.id % ZERO_MOVES]);
}

/* With several ranks comm_wait() makes the layers' stream wait; then the host waits for that. */
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

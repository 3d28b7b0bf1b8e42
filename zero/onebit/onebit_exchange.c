/* The compressed all-reduce (docs/deepspeed-behaviour.md, "Compressed all-reduce"; Tang et al.
 * 2021, algorithm 1): every rank sends each other rank the signs of its chunk and one scale per
 * segment, serves its own chunk, and sends the result to all. What signs do not tell is kept in
 * the errors for the next time.
 *
 * All segments travel together, so an exchange is four collectives whatever the model: signs and
 * scales to the servers, signs and scales back. A message is one piece per rank, a piece the
 * segments' chunks side by side; chunks are whole bytes because segments are padded to a multiple
 * of W·lcm(W, 8). */
#include "zero/onebit/onebit_impl.h"

/* ---- to the servers -------------------------------------------------------------------------- */

/* A parameter's payload is added to its errors; partial sums of what they come to. */
static cz_status feed_run(struct zero *z, enum onebit_payload payload,
                          const struct onebit_segment *s, const struct onebit_run *run,
                          double *partials)
{
    struct zero_onebit_core *ob = z->onebit;
    struct ops *ops = z->options.ops;
    struct onebit_feed_args args = {.numel = run->numel,
                                    .g_dtype = z->options.grad_dtype,
                                    .scalars = zero_device_scalars(z, run->group),
                                    .coeff = 1,
                                    .e = ob->worker_errors + s->error_off + run->seg_off,
                                    .partials = partials};
    if (payload == PAYLOAD_MOVES) {
        args.g = onebit_moved(z, run->group) + run->flat_off;
        args.g_dtype = DTYPE_F32;
        args.scalars = &ob->constants->unit;
    } else {
        args.g = onebit_run_grads(z, run);
    }
    if (payload == PAYLOAD_MOMENTUM) args.m = onebit_momentum(z, run->group) + run->flat_off;
    if (onebit_is_lamb(z)) args.coeff = ob->tensors[run->param_idx].scaling_coeff;
    return ops_onebit_feed(ops, z->options.stream, &args);
}

/* A segment's scale, from the first `n` partial sums. */
static cz_status make_scale(struct zero *z, size_t n, size_t numel, float *scale)
{
    struct ops *ops = z->options.ops;
    const struct onebit_scale_args args = {
        .numel = numel, .partials = z->onebit->partials, .n_partials = n, .scale = scale};
    return ops_onebit_scale(ops, z->options.stream, &args);
}

/* What a rank sends of a segment: the payload joins the errors, sum by sum becomes the scale, signs
 * go into each server's piece of the message, and what they do not tell stays in the errors. */
static cz_status send_segment(struct zero *z, enum onebit_payload payload, size_t idx)
{
    struct zero_onebit_core *ob = z->onebit;
    const struct onebit_segment *s = &ob->segments[idx];
    struct ops *ops = z->options.ops;
    size_t n = 0;
    for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++) {
        TRY(feed_run(z, payload, s, &ob->runs[r], ob->partials + n));
        n += onebit_n_partials(ob->runs[r].numel);
    }
    /* The padding: nothing is added to its errors, but they count in the scale. */
    const struct onebit_feed_args padding = {.numel = s->numel_padded - s->numel,
                                             .e = ob->worker_errors + s->error_off + s->numel,
                                             .partials = ob->partials + n};
    if (padding.numel > 0) TRY(ops_onebit_feed(ops, z->options.stream, &padding));
    n += onebit_n_partials(padding.numel);
    float *scale = ob->worker_scales + (size_t)z->options.comm->rank * ob->n_segments + idx;
    TRY(make_scale(z, n, s->numel_padded, scale));
    const struct onebit_pack_args args = {.numel = s->numel_padded,
                                          .chunk_numel = s->numel_padded / onebit_world(z),
                                          .chunk_stride = ob->piece_nbytes,
                                          .scale = scale,
                                          .e = ob->worker_errors + s->error_off,
                                          .bits = ob->out + s->bits_off};
    return ops_onebit_pack(ops, z->options.stream, &args);
}

/* ---- and back -------------------------------------------------------------------------------- */

/* The server's part: the mean of what ranks sent of this rank's chunk joins the server's errors,
 * and is compressed again for the way back. */
static cz_status serve_segment(struct zero *z, size_t idx)
{
    struct zero_onebit_core *ob = z->onebit;
    const struct onebit_segment *s = &ob->segments[idx];
    struct ops *ops = z->options.ops;
    size_t chunk = s->numel_padded / onebit_world(z), rank = (size_t)z->options.comm->rank;
    float *scale = ob->server_scales + rank * ob->n_segments + idx;
    const struct onebit_serve_args serve = {.numel = chunk,
                                            .n_ranks = z->options.comm->world_size,
                                            .bits = ob->in + s->bits_off,
                                            .rank_stride = ob->piece_nbytes,
                                            .scales = ob->worker_scales + idx,
                                            .scale_stride = ob->n_segments,
                                            .inv_ranks = 1.0f / (float)onebit_world(z),
                                            .e = ob->server_errors + s->server_off,
                                            .partials = ob->partials};
    TRY(ops_onebit_serve(ops, z->options.stream, &serve));
    TRY(make_scale(z, onebit_n_partials(chunk), chunk, scale));
    const struct onebit_pack_args pack = {.numel = chunk,
                                          .chunk_numel = chunk,
                                          .scale = scale,
                                          .e = serve.e,
                                          .bits = ob->out + rank * ob->piece_nbytes + s->bits_off};
    return ops_onebit_pack(ops, z->options.stream, &pack);
}

/* Elements [begin, end) of a run; `fresh`: those of OneBitLamb's own partition. */
static cz_status take_part(struct zero *z, enum onebit_payload payload,
                           const struct onebit_segment *s, const struct onebit_run *run,
                           size_t begin, size_t end, float *fresh)
{
    struct zero_onebit_core *ob = z->onebit;
    struct ops *ops = z->options.ops;
    float *x =
        payload == PAYLOAD_MOVES ? onebit_moved(z, run->group) : onebit_momentum(z, run->group);
    struct onebit_unpack_args args = {
        .begin = run->seg_off + begin,
        .end = run->seg_off + end,
        .chunk_numel = s->numel_padded / onebit_world(z),
        .chunk_stride = ob->piece_nbytes,
        .bits = ob->out + s->bits_off,
        .scales = ob->server_scales + (size_t)(s - ob->segments),
        .scale_stride = ob->n_segments,
        .coeff = onebit_is_lamb(z) ? ob->tensors[run->param_idx].scaling_coeff : 1,
        .mask = onebit_mask_of(z, s, run),
        .blend = payload == PAYLOAD_GRADIENT ? zero_device_scalars(z, run->group) : NULL,
        .scalars = zero_device_scalars(z, run->group),
        .fresh = fresh,
        .x = x + run->flat_off + begin};
    args.mask.first += begin;
    return begin == end ? CZ_OK : ops_onebit_unpack(ops, z->options.stream, &args);
}

/* What has come back of a parameter becomes its momentum (or its moves). OneBitLamb also needs the
 * momentum unscaled for a fresh variance, on the elements of this rank's partition. */
static cz_status take_run(struct zero *z, enum onebit_payload payload,
                          const struct onebit_segment *s, const struct onebit_run *run)
{
    size_t begin, end;
    if (!onebit_is_lamb(z) || !onebit_own_part(z, run, &begin, &end))
        return take_part(z, payload, s, run, 0, run->numel, NULL);
    size_t own = run->flat_off + begin - z->own.groups[run->group].own_begin;
    const struct zero_placement where = zero_state_placement(z, run->group, 2);
    float *fresh = (float *)(void *)where.memory + own;
    TRY(take_part(z, payload, s, run, 0, begin, NULL));
    TRY(take_part(z, payload, s, run, begin, end, fresh));
    return take_part(z, payload, s, run, end, run->numel, NULL);
}

/* ---- the exchange ---------------------------------------------------------------------------- */

/* Wait until no checkpoint reads what the exchange changes. */
static cz_status claim(struct zero *z, enum onebit_payload payload)
{
    struct zero_onebit_core *ob = z->onebit;
    TRY(onebit_claim_floats(z, ob->worker_errors, ob->worker_numel));
    TRY(onebit_claim_floats(z, ob->server_errors, ob->server_numel));
    for (size_t g = 0; g < z->options.n_groups; g++) {
        const struct zero_group *group = &z->own.groups[g];
        const float *x = payload == PAYLOAD_MOVES ? onebit_moved(z, g) : onebit_momentum(z, g);
        TRY(onebit_claim_floats(z, x, group->flat.numel_padded));
        if (onebit_is_lamb(z))
            TRY(onebit_claim_floats(z, onebit_state(z, g, 2) + group->own_begin, group->own_numel));
    }
    return CZ_OK;
}

static cz_status gather_scales(struct zero *z, float *scales)
{
    size_t n = z->onebit->n_segments;
    return comm_all_gather(z->options.comm, scales + (size_t)z->options.comm->rank * n, scales,
                           n * sizeof *scales);
}

/* Gathers every rank's piece of `out` on all ranks. */
static cz_status gather_pieces(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    return comm_all_gather(z->options.comm,
                           ob->out + (size_t)z->options.comm->rank * ob->piece_nbytes, ob->out,
                           ob->piece_nbytes);
}

/* All segments at once, so that an exchange is four collectives however many there are. */
cz_status onebit_exchange(struct zero *z, enum onebit_payload payload)
{
    struct zero_onebit_core *ob = z->onebit;
    TRY(claim(z, payload));
    for (size_t i = 0; i < ob->n_segments; i++) TRY(send_segment(z, payload, i));
    TRY(comm_all_to_all(z->options.comm, ob->out, ob->in, ob->piece_nbytes));
    TRY(gather_scales(z, ob->worker_scales));
    for (size_t i = 0; i < ob->n_segments; i++) TRY(serve_segment(z, i));
    TRY(gather_pieces(z));
    TRY(gather_scales(z, ob->server_scales));
    for (size_t i = 0; i < ob->n_segments; i++) {
        const struct onebit_segment *s = &ob->segments[i];
        for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++)
            TRY(take_run(z, payload, s, &ob->runs[r]));
    }
    return CZ_OK;
}

/* The masks travel as a message does: pieces to their servers, which join them, and back. */
cz_status onebit_masks_join(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    struct ops *ops = z->options.ops;
    struct dev_stream *stream = z->options.stream;
    const struct onebit_mask_join_args args = {.nbytes = ob->piece_nbytes,
                                               .n_ranks = z->options.comm->world_size,
                                               .bits = ob->in,
                                               .rank_stride = ob->piece_nbytes,
                                               .out = ob->out + (size_t)z->options.comm->rank *
                                                                    ob->piece_nbytes};
    TRY(onebit_fill_zero(z, ob->out, onebit_world(z) * ob->piece_nbytes));
    TRY(zero_copy(z, stream, ob->out, ob->masks, ob->mask_nbytes));
    TRY(comm_all_to_all(z->options.comm, ob->out, ob->in, ob->piece_nbytes));
    TRY(ops_onebit_mask_join(ops, stream, &args));
    TRY(gather_pieces(z));
    return zero_copy(z, stream, ob->masks, ob->out, ob->mask_nbytes);
}

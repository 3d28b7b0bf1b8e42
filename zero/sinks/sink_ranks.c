/* Gradients become the mean over ranks, each in its owner's partition: the sink of every run whose
 * gradients stay where layers are, and of all runs of several ranks.
 *
 * At stages 0 and 1 a flush is reduced in place, at the boundary, or early in the last pass
 * with overlap_comm. At stages 2 and 3 it is reduced from its bucket, micro-batch by micro-batch:
 * the first one's mean is stored, later ones' are added. On one GPU nothing is sent; the boundary
 * rounds as a reduction over one rank would, so that the bits do not depend on the device. */
#include "ops/elementwise/elementwise.h"
#include "zero/zero_impl.h"

#include <stdlib.h>

#define ROUND_NUMEL ((size_t)1 << 20) /* gradients rounded at a time */

/* The parts of a flush and their destination ranks. */
struct reduction {
    size_t first_span, n_spans;
    struct comm_ticket ticket;
};

struct ranks {
    struct reduction *reductions; /* (n_flushes) */
    struct comm_span *spans;
    size_t round_off; /* bytes into ZERO_STEP: ROUND_NUMEL elements of wire_dtype */
};

static struct ranks *ranks_of(const struct zero *z)
{
    return z->buckets.state;
}

/* One rank with a GPU: there are no others to reduce its gradients with. */
static bool is_alone_on_gpu(const struct zero *z)
{
    return z->options.on_gpu && z->options.comm->world_size == 1;
}

/* ---- creation -------------------------------------------------------------------------------- */

static cz_status ranks_init(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t n_spans = o->table->n_params * (size_t)o->comm->world_size;
    struct ranks *r = z->buckets.state = calloc(1, sizeof *r);
    if (r) r->reductions = calloc(o->n_units + 1, sizeof *r->reductions);
    if (r) r->spans = calloc(n_spans + 1, sizeof *r->spans);
    if (!r || !r->reductions || !r->spans)
        return err_set(CZ_NOMEM, 0, "no memory for the reductions of %zu layers", o->n_units);
    if (!zero_rounds_alone(z)) return CZ_OK;
    return zero_block_take(z, ZERO_STEP, ROUND_NUMEL, o->wire_dtype, &r->round_off);
}

/* A parameter's gradient: from where layers make it to its owners, each its piece. */
static size_t add_spans(struct zero *z, size_t at, size_t param_idx)
{
    const struct zero_options *o = &z->options;
    const struct zero_param *p = &z->own.params[param_idx];
    size_t base = z->own.groups[p->group].grad_off / dtype_size(o->grad_dtype);
    for (int r = 0; r < o->comm->world_size; r++) {
        struct zero_piece piece = zero_piece_of(z, param_idx, r);
        if (piece.numel == 0) continue;
        size_t src = p->grad_off + piece.param_off;
        ranks_of(z)->spans[at++] =
            (struct comm_span){.src_off = src,
                               .dst_off = z->buckets.is_bucketed ? base + piece.own_off : src,
                               .numel = piece.numel,
                               .owner = r,
                               .to = r};
    }
    return at;
}

/* Spans in the order in which gradients become ready, and the bytes that this rank sends. */
static cz_status ranks_dealt(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct ranks *ranks = ranks_of(z);
    const struct zero_buckets *b = &z->buckets;
    size_t at = 0, others = (size_t)o->comm->world_size - 1, sent = 0, u = o->n_units;
    for (size_t f = 0; f < b->n_flushes; f++) {
        struct reduction *r = &ranks->reductions[f];
        r->first_span = at;
        /* Units were dealt in this order; those without trained parameters are in no flush. */
        for (; u > 0 && (b->unit_flush[u - 1] == f || b->unit_flush[u - 1] == ZERO_NO_FLUSH); u--)
            for (size_t k = b->ready_first[u - 1]; k < b->ready_first[u]; k++)
                if (b->unit_flush[u - 1] == f) at = add_spans(z, at, b->ready_params[k]);
        r->n_spans = at - r->first_span;
    }
    for (size_t s = 0; s < at; s++)
        if (ranks->spans[s].owner != o->comm->rank)
            sent += ranks->spans[s].numel;
        else if (o->stage == 0)
            sent += ranks->spans[s].numel * others;
    z->figures.reduce_nbytes = sent * dtype_size(o->wire_dtype);
    return CZ_OK;
}

static void ranks_free(struct zero *z)
{
    struct ranks *r = ranks_of(z);
    if (!r) return;
    free(r->reductions);
    free(r->spans);
    free(r);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Buckets are emptied as they fill; in place only what no further micro-batch adds to may go. */
static bool ranks_is_due(const struct zero *z)
{
    if (z->buckets.is_bucketed) return true;
    return z->options.overlap && z->turn.pass == ZERO_PASS_LAST && zero_averages(z) &&
           !is_alone_on_gpu(z);
}

/* The first micro-batch's mean is stored and later ones' are added; in place the whole sum goes
 * once. */
static cz_status ranks_begin(struct zero *z, size_t flush)
{
    const struct zero_options *o = &z->options;
    bool bucketed = z->buckets.is_bucketed;
    struct reduction *r = &ranks_of(z)->reductions[flush];
    const struct comm_reduce args = {.src = z->mem.blocks[bucketed ? ZERO_BUCKETS : ZERO_GRADS],
                                     .dst = z->mem.blocks[ZERO_GRADS],
                                     .src_dtype = o->grad_dtype,
                                     .dst_dtype = o->grad_dtype,
                                     .wire = o->wire_dtype,
                                     .scale = zero_reduce_scale(z),
                                     .accumulate = bucketed && z->buckets.n_passes > 0,
                                     .all = o->stage == 0,
                                     .spans = ranks_of(z)->spans + r->first_span,
                                     .n_spans = r->n_spans};
    return comm_reduce_begin(o->comm, &args, &r->ticket);
}

static cz_status ranks_wait(struct zero *z, size_t flush)
{
    return comm_wait(z->options.comm, ranks_of(z)->reductions[flush].ticket);
}

/* A communicator ends what was begun in order: when the last one has ended, all have. */
static cz_status ranks_finish(struct zero *z)
{
    size_t f = z->buckets.n_flushes;
    while (!z->buckets.flushes[--f].begun) {
    }
    return ranks_wait(z, f);
}

/* ---- the boundary ---------------------------------------------------------------------------- */

static cz_status ranks_boundary(struct zero *z)
{
    struct zero_buckets *b = &z->buckets;
    bool is_sent = !b->is_bucketed && zero_averages(z) && !is_alone_on_gpu(z);
    for (size_t f = 0; f < b->n_flushes && is_sent; f++)
        if (!b->flushes[f].begun) TRY(zero_flush_begin(z, f));
    TRY(zero_bucket_finish(z));
    if (!zero_rounds_alone(z)) return CZ_OK;
    return zero_round_alone(z, z->mem.blocks[ZERO_STEP] + ranks_of(z)->round_off, ROUND_NUMEL);
}

/* The rank's partition of the mean; all of its own gradients where they are not averaged. */
static cz_status ranks_visit(struct zero *z, zero_grads_visit visit, void *user)
{
    if (zero_averages(z)) return zero_visit_partition(z, visit, user);
    for (size_t g = 0; g < z->options.n_groups; g++)
        TRY(visit(user, g, z->mem.blocks[ZERO_GRADS] + z->own.groups[g].grad_off, 0,
                  z->own.groups[g].flat.numel_padded));
    return CZ_OK;
}

static cz_status ranks_read_pending(struct zero *z, size_t param_idx, size_t off, size_t numel,
                                    float *dst, bool *is_read)
{
    const struct zero_placement local =
        zero_block_placement(z, ZERO_GRADS, 0, z->options.grad_dtype);
    *is_read = false;
    if (z->buckets.is_bucketed) return CZ_OK;
    if (z->buckets.n_flushes > 0 && z->buckets.flushes[0].begun)
        TRY(zero_reduce(z)); /* they have begun to be means */
    if (z->buckets.reduced) return CZ_OK;
    *is_read = true;
    TRY(zero_placement_get(z, &local, z->own.params[param_idx].grad_off + off, numel, dst));
    return zero_reduce_values(z, dst, numel, zero_reduce_scale(z));
}

const struct zero_sink zero_sink_ranks = {.name = "ranks",
                                          .bucket_numel_max = SIZE_MAX,
                                          .init = ranks_init,
                                          .dealt = ranks_dealt,
                                          .free = ranks_free,
                                          .is_due = ranks_is_due,
                                          .begin = ranks_begin,
                                          .wait = ranks_wait,
                                          .finish = ranks_finish,
                                          .boundary = ranks_boundary,
                                          .visit = ranks_visit,
                                          .read_pending = ranks_read_pending};

/* ---- what a reduction does, for a rank that has no others ------------------------------------ */

bool zero_rounds_alone(const struct zero *z)
{
    return is_alone_on_gpu(z) && z->options.wire_dtype != z->options.grad_dtype;
}

/* There and back through the wire's dtype, piece by piece, by the kernels of whichever side keeps
 * the gradients. */
cz_status zero_round_alone(struct zero *z, void *through, size_t most)
{
    const struct zero_options *o = &z->options;
    struct ops *ops = zero_grads_ops(z);
    if (!zero_averages(z)) return CZ_OK;
    for (size_t g = 0; g < o->n_groups; g++) {
        size_t own = z->own.groups[g].own_numel;
        for (size_t at = 0, n; at < own; at += n) {
            n = own - at < most ? own - at : most;
            unsigned char *grads = zero_advance(zero_own_grad(z, g), at, o->grad_dtype);
            const struct cast_scale_args there = {.x_dtype = o->grad_dtype,
                                                  .y_dtype = o->wire_dtype,
                                                  .numel = n,
                                                  .alpha = 1,
                                                  .x = grads,
                                                  .y = through};
            const struct cast_scale_args back = {.x_dtype = o->wire_dtype,
                                                 .y_dtype = o->grad_dtype,
                                                 .numel = n,
                                                 .alpha = 1,
                                                 .x = through,
                                                 .y = grads};
            TRY(ops_cast_scale(ops, o->stream, &there));
            TRY(ops_cast_scale(ops, o->stream, &back));
        }
    }
    return CZ_OK;
}

cz_status zero_reduce_values(struct zero *z, float *x, size_t numel, float scale)
{
    const struct zero_options *o = &z->options;
    uint16_t stored[2048];
    TRY(comm_all_reduce(o->comm, x, x, numel, DTYPE_F32, o->wire_dtype, scale));
    for (size_t off = 0, n; off < numel && o->grad_dtype != DTYPE_F32; off += n) {
        n = numel - off < CZ_ARRAY_LEN(stored) ? numel - off : CZ_ARRAY_LEN(stored);
        TRY(zero_cast(z, DTYPE_F32, x + off, o->grad_dtype, stored, n));
        TRY(zero_cast(z, o->grad_dtype, stored, DTYPE_F32, x + off, n));
    }
    return CZ_OK;
}

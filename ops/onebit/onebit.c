/* The ops of the 1-bit optimizers on the host: compression to signs with error feedback, masks, and
 * the steps around them (docs/deepspeed-behaviour.md, "Compressed all-reduce"). Partial sums are
 * made per block of elements and added in order, so scales do not depend on threads. */
#include "ops/onebit/onebit_impl.h"
#include "ops/table_impl.h"

#include <math.h>

static const struct onebit_row *const rows[] = {
    &onebit_scalar,
    &onebit_avx2,
    &onebit_avx512,
};

const struct onebit_row *const *onebit_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* ---- compression ----------------------------------------------------------------------------- */

/* Parts are whole blocks: a partial sum belongs to a block, so its value does not depend on the
 * threads. */
static cz_status feed(struct ops *ops, struct dev_stream *stream, const struct onebit_feed_args *a)
{
    (void)stream;
    TRY(onebit_check_feed(a));
    if (a->numel == 0) return CZ_OK;
    OPS_IN_PARTS(ops_n_parts(a->numel, STEP_GRAIN), a->numel, ONEBIT_BLOCK,
                 ops->onebit_row->feed(a, begin, end));
    return CZ_OK;
}

/* The root of the mean square. Partials are added in order by one thread. In double: the float sum
 * of a few thousand partials would lose the digits that make runs comparable. */
static cz_status scale(struct ops *ops, struct dev_stream *stream,
                       const struct onebit_scale_args *a)
{
    double sum = 0;
    (void)ops, (void)stream;
    TRY(onebit_check_scale(a));
    for (size_t i = 0; i < a->n_partials; i++) sum += a->partials[i];
    *a->scale = a->numel > 0 ? (float)sqrt(sum / (double)a->numel) : 0;
    return CZ_OK;
}

/* Elements of whole cache lines of bits. */
#define BITS_UNIT (8 * OPS_PART_UNIT)

/* Parts are whole cache lines of bits, so no two threads write one byte. */
static cz_status pack(struct ops *ops, struct dev_stream *stream, const struct onebit_pack_args *a)
{
    (void)stream;
    TRY(onebit_check_pack(a));
    if (a->numel == 0) return CZ_OK;
    OPS_IN_PARTS(ops_n_parts(a->numel, STEP_GRAIN), a->numel, BITS_UNIT,
                 ops->onebit_row->pack(a, begin, end));
    return CZ_OK;
}

/* Blocks again: this makes partial sums, too. */
static cz_status serve(struct ops *ops, struct dev_stream *stream,
                       const struct onebit_serve_args *a)
{
    (void)stream;
    TRY(onebit_check_serve(a));
    if (a->numel == 0) return CZ_OK;
    OPS_IN_PARTS(ops_n_parts(a->numel, STEP_GRAIN), a->numel, ONEBIT_BLOCK,
                 ops->onebit_row->serve(a, begin, end));
    return CZ_OK;
}

/* The range may begin inside a byte; bits are read only. */
static cz_status unpack(struct ops *ops, struct dev_stream *stream,
                        const struct onebit_unpack_args *a)
{
    (void)stream;
    TRY(onebit_check_unpack(a));
    size_t numel = a->end - a->begin;
    if (numel == 0) return CZ_OK;
    OPS_IN_PARTS(ops_n_parts(numel, STEP_GRAIN), numel, OPS_PART_UNIT,
                 ops->onebit_row->unpack(a, a->begin + begin, a->begin + end));
    return CZ_OK;
}

/* ---- around it ------------------------------------------------------------------------------- */

/* Elementwise; parts are whole cache lines. */
static cz_status momentum(struct ops *ops, struct dev_stream *stream,
                          const struct onebit_momentum_args *a)
{
    (void)stream;
    TRY(onebit_check_momentum(a));
    if (a->numel == 0) return CZ_OK;
    OPS_IN_PARTS(ops_n_parts(a->numel, STEP_GRAIN), a->numel, OPS_PART_UNIT,
                 ops->onebit_row->momentum(a, begin, end));
    return CZ_OK;
}

/* Bits of a byte may belong to two calls, so each is set or cleared alone. For the same reason
 * there are no threads here. */
static cz_status mask_make(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_mask_make_args *a)
{
    (void)ops, (void)stream;
    TRY(onebit_check_mask_make(a));
    if (a->numel == 0) return CZ_OK;
    for (size_t i = 0; i < a->numel; i++) {
        size_t bit = a->first + i;
        uint8_t flag = (uint8_t)(0x80 >> bit % 8), *byte = a->bits + bit / 8;
        *byte = (uint8_t)(a->v[i] > a->floor ? *byte | flag : *byte & ~flag);
    }
    return CZ_OK;
}

/* An element is on where it is on for any rank. */
static cz_status mask_join(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_mask_join_args *a)
{
    (void)ops, (void)stream;
    TRY(onebit_check_mask_join(a));
    for (size_t i = 0; i < a->nbytes; i++) {
        unsigned byte = 0;
        for (size_t q = 0; q < (size_t)a->n_ranks; q++) byte |= a->bits[q * a->rank_stride + i];
        a->out[i] = (uint8_t)byte;
    }
    return CZ_OK;
}

static void norms_piece(struct ops *ops, const struct onebit_lamb_norms_args *a, size_t tensor,
                        size_t begin, size_t end)
{
    struct lamb_sums sums = {{0}, {0}};
    float factor = 0;
    ops->onebit_row->lamb_norms(a, begin, end, &sums, &factor);
#pragma omp critical(onebit_norms) /* in any order: sums are exact, and so is a maximum */
    {
        lamb_sums_add(&a->sums[tensor], &sums);
        if (factor > a->factors[tensor]) a->factors[tensor] = factor;
    }
}

/* A segment is part of one tensor; its sums are added to that tensor's, over all calls of the
 * step. */
static cz_status lamb_norms(struct ops *ops, struct dev_stream *stream,
                            const struct onebit_lamb_norms_args *a)
{
    (void)stream;
    TRY(onebit_check_lamb_norms(a));
    if (a->numel == 0) return CZ_OK;
    for (size_t i = 0; i < a->n_segments; i++) {
        const struct lamb_segment *segment = &a->segments[i];
        int n_parts = ops_n_parts(segment->end - segment->begin, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
        for (int part = 0; part < n_parts; part++) {
            size_t begin, end;
            lamb_segment_split(segment, n_parts, part, &begin, &end);
            norms_piece(ops, a, segment->tensor, begin, end);
        }
    }
    return CZ_OK;
}

/* ---- 0/1 Adam -------------------------------------------------------------------------------- */

/* One loop for the three elementwise passes of 0/1 Adam. */
static cz_status run_pieces(void (*pass)(const struct zero_one_args *, size_t, size_t),
                            const struct zero_one_args *a)
{
    OPS_IN_PARTS(ops_n_parts(a->numel, STEP_GRAIN), a->numel, OPS_PART_UNIT, pass(a, begin, end));
    return CZ_OK;
}

static cz_status zero_one_local(struct ops *ops, struct dev_stream *stream,
                                const struct zero_one_args *a)
{
    (void)stream;
    TRY(onebit_check_local(a));
    if (a->numel == 0) return CZ_OK;
    return run_pieces(ops->onebit_row->local, a);
}

static cz_status zero_one_gather(struct ops *ops, struct dev_stream *stream,
                                 const struct zero_one_args *a)
{
    (void)stream;
    TRY(onebit_check_gather(a));
    if (a->numel == 0) return CZ_OK;
    return run_pieces(ops->onebit_row->gather, a);
}

static cz_status zero_one_settle(struct ops *ops, struct dev_stream *stream,
                                 const struct zero_one_args *a)
{
    (void)stream;
    TRY(onebit_check_settle(a));
    if (a->numel == 0) return CZ_OK;
    return run_pieces(ops->onebit_row->settle, a);
}

/* Fill in this op's part of the table; the row is the fastest that the processor has. */
cz_status onebit_wire(struct ops *ops, uint32_t features)
{
    ops->onebit_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->onebit_feed = feed;
    ops->onebit_scale = scale;
    ops->onebit_pack = pack;
    ops->onebit_serve = serve;
    ops->onebit_unpack = unpack;
    ops->onebit_momentum = momentum;
    ops->onebit_mask_make = mask_make;
    ops->onebit_mask_join = mask_join;
    ops->onebit_lamb_norms = lamb_norms;
    ops->zero_one_local = zero_one_local;
    ops->zero_one_gather = zero_one_gather;
    ops->zero_one_settle = zero_one_settle;
    return CZ_OK;
}

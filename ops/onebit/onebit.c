/* Front door: checks, threads, choice of row; and what one thread does alone. */
#include "ops/onebit/onebit_impl.h"

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

static cz_status need(const char *op, const char *name, const void *p)
{
    return p ? CZ_OK : err_set(CZ_INVALID, 0, "%s: %s is missing", op, name);
}

/* ---- compression ---------------------------------------------------------------------------- */

static cz_status check_feed(const struct onebit_feed_args *a)
{
    TRY(need("onebit_feed", "e", a->e));
    TRY(need("onebit_feed", "partials", a->partials));
    if (!a->g) return a->m ? need("onebit_feed", "g beside m", a->g) : CZ_OK;
    TRY(need("onebit_feed", "scalars", a->scalars));
    return ops_check_dtype("onebit_feed", a->g_dtype);
}

static cz_status feed(struct ops *ops, struct dev_stream *stream, const struct onebit_feed_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(check_feed(a));
    int n_parts = ops_n_parts(a->numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, ONEBIT_BLOCK, n_parts, part, &begin, &end);
        ops->onebit_row->feed(a, begin, end);
    }
    return CZ_OK;
}

float onebit_scale(const double *partials, size_t n_partials, size_t numel)
{
    double sum = 0;
    for (size_t i = 0; i < n_partials; i++) sum += partials[i];
    return numel > 0 ? (float)sqrt(sum / (double)numel) : 0;
}

static cz_status check_chunks(const char *op, size_t numel, size_t chunk_numel, size_t chunk_stride)
{
    if (chunk_numel == 0 || chunk_numel % 8 != 0)
        return err_set(CZ_INVALID, 0, "%s: chunks of %zu elements, not a multiple of 8", op,
                       chunk_numel);
    if (numel > chunk_numel && chunk_stride < chunk_numel / 8)
        return err_set(CZ_INVALID, 0, "%s: chunks of %zu bytes lie %zu bytes apart", op,
                       chunk_numel / 8, chunk_stride);
    return CZ_OK;
}

static cz_status check_pack(const struct onebit_pack_args *a)
{
    TRY(check_chunks("onebit_pack", a->numel, a->chunk_numel, a->chunk_stride));
    if (a->numel % a->chunk_numel != 0)
        return err_set(CZ_INVALID, 0, "onebit_pack: %zu elements do not make chunks of %zu",
                       a->numel, a->chunk_numel);
    TRY(need("onebit_pack", "scale", a->scale));
    TRY(need("onebit_pack", "e", a->e));
    return need("onebit_pack", "bits", a->bits);
}

/* Elements of whole cache lines of bits. */
#define BITS_UNIT (8 * OPS_PART_UNIT)

static cz_status pack(struct ops *ops, struct dev_stream *stream, const struct onebit_pack_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(check_pack(a));
    int n_parts = ops_n_parts(a->numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, BITS_UNIT, n_parts, part, &begin, &end);
        ops->onebit_row->pack(a, begin, end);
    }
    return CZ_OK;
}

static cz_status check_serve(const struct onebit_serve_args *a)
{
    if (a->n_ranks < 1 || a->numel % 8 != 0)
        return err_set(CZ_INVALID, 0, "onebit_serve: %zu elements of %d ranks", a->numel,
                       a->n_ranks);
    if (a->n_ranks > 1 && a->rank_stride < a->numel / 8)
        return err_set(CZ_INVALID, 0, "onebit_serve: ranks' %zu bytes lie %zu bytes apart",
                       a->numel / 8, a->rank_stride);
    TRY(need("onebit_serve", "bits", a->bits));
    TRY(need("onebit_serve", "scales", a->scales));
    TRY(need("onebit_serve", "e", a->e));
    return need("onebit_serve", "partials", a->partials);
}

static cz_status serve(struct ops *ops, struct dev_stream *stream,
                       const struct onebit_serve_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(check_serve(a));
    int n_parts = ops_n_parts(a->numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, ONEBIT_BLOCK, n_parts, part, &begin, &end);
        ops->onebit_row->serve(a, begin, end);
    }
    return CZ_OK;
}

static cz_status check_unpack(const struct onebit_unpack_args *a)
{
    TRY(check_chunks("onebit_unpack", a->end, a->chunk_numel, a->chunk_stride));
    TRY(need("onebit_unpack", "bits", a->bits));
    TRY(need("onebit_unpack", "scales", a->scales));
    TRY(need("onebit_unpack", "x", a->x));
    if (!a->fresh) return CZ_OK;
    if (a->blend)
        return err_set(CZ_INVALID, 0, "onebit_unpack: fresh follows momenta, not a gradient");
    return need("onebit_unpack", "scalars", a->scalars);
}

static cz_status unpack(struct ops *ops, struct dev_stream *stream,
                        const struct onebit_unpack_args *a)
{
    (void)stream;
    if (a->begin > a->end)
        return err_set(CZ_INVALID, 0, "onebit_unpack: elements [%zu, %zu)", a->begin, a->end);
    size_t numel = a->end - a->begin;
    if (numel == 0) return CZ_OK;
    TRY(check_unpack(a));
    int n_parts = ops_n_parts(numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->onebit_row->unpack(a, a->begin + begin, a->begin + end);
    }
    return CZ_OK;
}

/* ---- around it ------------------------------------------------------------------------------ */

static cz_status check_momentum(const struct onebit_momentum_args *a)
{
    TRY(need("onebit_momentum", "g", a->g));
    TRY(need("onebit_momentum", "m", a->m));
    TRY(need("onebit_momentum", "scalars", a->scalars));
    return ops_check_dtype("onebit_momentum", a->g_dtype);
}

static cz_status momentum(struct ops *ops, struct dev_stream *stream,
                          const struct onebit_momentum_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(check_momentum(a));
    int n_parts = ops_n_parts(a->numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->onebit_row->momentum(a, begin, end);
    }
    return CZ_OK;
}

static cz_status mask_make(struct ops *ops, struct dev_stream *stream,
                           const struct onebit_mask_make_args *a)
{
    (void)ops, (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(need("onebit_mask_make", "v", a->v));
    TRY(need("onebit_mask_make", "bits", a->bits));
    for (size_t i = 0; i < a->numel; i++) {
        size_t bit = a->first + i;
        uint8_t flag = (uint8_t)(0x80 >> bit % 8), *byte = a->bits + bit / 8;
        *byte = (uint8_t)(a->v[i] > a->floor ? *byte | flag : *byte & ~flag);
    }
    return CZ_OK;
}

static cz_status check_norms(const struct onebit_lamb_norms_args *a)
{
    static const char op[] = "onebit_lamb_norms";
    TRY(need(op, "m", a->m));
    TRY(need(op, "v", a->v));
    TRY(need(op, "fresh", a->fresh));
    TRY(need(op, "p", a->p));
    TRY(need(op, "segments", a->segments));
    TRY(need(op, "sums", a->sums));
    TRY(need(op, "factors", a->factors));
    return lamb_check_segments(op, a->segments, a->n_segments, a->numel);
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

static cz_status lamb_norms(struct ops *ops, struct dev_stream *stream,
                            const struct onebit_lamb_norms_args *a)
{
    (void)stream;
    if (a->numel == 0 || a->n_segments == 0) return CZ_OK;
    TRY(check_norms(a));
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

/* ---- 0/1 Adam ------------------------------------------------------------------------------- */

static cz_status run_pieces(void (*pass)(const struct zero_one_args *, size_t, size_t),
                            const struct zero_one_args *a)
{
    int n_parts = ops_n_parts(a->numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        pass(a, begin, end);
    }
    return CZ_OK;
}

static cz_status check_local(const struct zero_one_args *a)
{
    static const char op[] = "zero_one_local";
    TRY(need(op, "g", a->g));
    TRY(need(op, "m", a->m));
    TRY(need(op, "moved", a->moved));
    TRY(need(op, "v", a->v));
    TRY(need(op, "p", a->p));
    TRY(need(op, "out", a->out));
    TRY(need(op, "scalars", a->scalars));
    TRY(ops_check_dtype(op, a->g_dtype));
    return ops_check_dtype(op, a->out_dtype);
}

static cz_status zero_one_local(struct ops *ops, struct dev_stream *stream,
                                const struct zero_one_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(check_local(a));
    return run_pieces(ops->onebit_row->local, a);
}

static cz_status zero_one_gather(struct ops *ops, struct dev_stream *stream,
                                 const struct zero_one_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(need("zero_one_gather", "moved", a->moved));
    TRY(need("zero_one_gather", "v", a->v));
    return run_pieces(ops->onebit_row->gather, a);
}

static cz_status check_settle(const struct zero_one_args *a)
{
    static const char op[] = "zero_one_settle";
    TRY(need(op, "m", a->m));
    TRY(need(op, "moved", a->moved));
    TRY(need(op, "v", a->v));
    TRY(need(op, "p", a->p));
    TRY(need(op, "out", a->out));
    TRY(need(op, "scalars", a->scalars));
    return ops_check_dtype(op, a->out_dtype);
}

static cz_status zero_one_settle(struct ops *ops, struct dev_stream *stream,
                                 const struct zero_one_args *a)
{
    (void)stream;
    if (a->numel == 0) return CZ_OK;
    TRY(check_settle(a));
    return run_pieces(ops->onebit_row->settle, a);
}

cz_status onebit_wire(struct ops *ops, uint32_t features)
{
    ops->onebit_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->onebit_feed = feed;
    ops->onebit_pack = pack;
    ops->onebit_serve = serve;
    ops->onebit_unpack = unpack;
    ops->onebit_momentum = momentum;
    ops->onebit_mask_make = mask_make;
    ops->onebit_lamb_norms = lamb_norms;
    ops->zero_one_local = zero_one_local;
    ops->zero_one_gather = zero_one_gather;
    ops->zero_one_settle = zero_one_settle;
    return CZ_OK;
}

/* Rotary embedding on the host: threads, choice of row, and the table of angles. */
#include "ops/rope/rope_impl.h"
#include "ops/table_impl.h"

#include <math.h>

static const struct rope_row *const rows[] = {
    &rope_scalar,
    &rope_avx2,
    &rope_avx512,
};

const struct rope_row *const *rope_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* Positions can be looked at on the host only; a GPU would have to wait for them. */
static cz_status check(const struct rope_args *a)
{
    TRY(rope_check(a));
    if (a->H == 0 || a->D == 0) return CZ_OK;
    for (int64_t n = 0; a->positions && n < a->N; n++)
        if (a->positions[n] < 0)
            return err_set(CZ_INVALID, 0, "rope: position %d of token %lld is negative",
                           a->positions[n], (long long)n);
    return CZ_OK;
}

static cz_status rope(struct ops *ops, struct dev_stream *stream, const struct rope_args *a)
{
    (void)stream;
    TRY(check(a));
    if (a->N == 0 || a->H == 0 || a->D == 0) return CZ_OK;
    size_t n_heads = (size_t)(a->N * a->H);
    int n_parts = ops_n_parts(n_heads * (size_t)a->D, OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(n_heads, 1, n_parts, part, &begin, &end);
        /* Heads [begin, end) of the N·H there are. */
        const size_t H = (size_t)a->H, D = (size_t)a->D, unit = dtype_size(a->dtype);
        const size_t half = (size_t)rope_width(a) / 2;
        for (size_t i = begin; i < end; i++) {
            size_t n = i / H, h = i % H;
            size_t position = (size_t)(a->positions ? a->positions[n] : (int64_t)n % a->T);
            char *x = (char *)a->x + (n * (size_t)a->stride + h * D) * unit;
            ops->rope_row->rotate(a->dtype, x, a->cos + position * half, a->sin + position * half,
                                  half, a->inverse);
        }
    }
    return CZ_OK;
}

/* A sine and a cosine cost some 20 ns. */
#define TABLE_GRAIN ((size_t)256)

static cz_status rope_table(struct ops *ops, struct dev_stream *stream,
                            const struct rope_table_args *a)
{
    (void)ops;
    (void)stream;
    TRY(rope_table_check(a));
    int n_parts = ops_n_parts((size_t)(a->N * a->half), TABLE_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split((size_t)a->N, 1, n_parts, part, &begin, &end);
        for (size_t n = begin; n < end; n++) {
            const size_t half = (size_t)a->half;
            const float position =
                a->positions ? (float)a->positions[n] : (float)(a->first + (int64_t)n);
            for (size_t d = 0; d < half; d++) {
                float sin, cos;
                sincosf(position * a->freq[d], &sin, &cos);
                a->cos[n * half + d] = a->scale * cos;
                a->sin[n * half + d] = a->scale * sin;
            }
        }
    }
    return CZ_OK;
}

cz_status rope_wire(struct ops *ops, uint32_t features)
{
    ops->rope_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->rope = rope;
    ops->rope_table = rope_table;
    return CZ_OK;
}

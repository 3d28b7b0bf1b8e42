/* Any strides, any dtype: blocks of A and B are copied densely into the workspace, widened to fp32,
 * and multiplied there; sums over k gather in an fp32
 * block of C, which is written out once. The workspace stays bounded (12 MiB and oneDNN's scratch)
 * however large the matrices.
 *
 * Blocks are near-equal parts of at most BLOCK a side. Packing touches 2·BLOCK² elements for
 * 2·BLOCK³ operations: 4 to 6 % of the product's time. */
#include "ops/matmul/matmul_impl.h"

#include "base/size.h"

#include <string.h>

#define BLOCK      1024
#define BLOCK_UNIT 64
#define ALIGN      ((size_t)64)

struct blocking {
    int64_t m, n, k;                     /* of a block; the last one along a side may be smaller */
    size_t a_nbytes, b_nbytes, c_nbytes; /* of the packed blocks, in the workspace */
};

static inline int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Near-equal blocks, so that no thin one is left at the end. */
static int64_t block_side(int64_t n)
{
    int64_t n_blocks = (n + BLOCK - 1) / BLOCK;
    int64_t side = (n + n_blocks - 1) / n_blocks;
    side = (side + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
    return side < n ? side : n;
}

static int64_t last_side(int64_t n, int64_t side)
{
    return n - (n - 1) / side * side;
}

/* Bytes for a block of a (rows, cols) matrix: those of the largest block, since fewer rows can mean
 * larger blocks (1024 is one block, 1025 are two), and a workspace must serve smaller batches. */
static size_t block_nbytes(int64_t rows, int64_t cols)
{
    return size_round_up((size_t)(least(rows, BLOCK) * least(cols, BLOCK)) * sizeof(float), ALIGN);
}

static struct blocking blocking_of(const struct matmul_args *a)
{
    struct blocking b = {.m = block_side(a->m), .n = block_side(a->n), .k = block_side(a->k)};
    b.a_nbytes = block_nbytes(a->m, a->k);
    b.b_nbytes = block_nbytes(a->k, a->n);
    b.c_nbytes = block_nbytes(a->m, a->n);
    return b;
}

static struct matmul_shape block_shape(const struct matmul_args *a, int64_t m, int64_t n, int64_t k,
                                       bool accumulate)
{
    return (struct matmul_shape){.m = m,
                                 .n = n,
                                 .k = k,
                                 .trans_a = a->trans_a,
                                 .trans_b = a->trans_b,
                                 .accumulate = accumulate};
}

static cz_status raise_scratch(struct matmul_cache *cache, const struct matmul_shape *shape,
                               size_t *nbytes)
{
    size_t need = 0;
    TRY(matmul_dense_scratch(cache, shape, &need));
    size_raise(nbytes, need);
    return CZ_OK;
}

/* Scratch of the shapes of full and last blocks along m and n, for one step along k. oneDNN's need
 * depends on the shape, so all that occur are asked for. */
static cz_status raise_scratch_step(struct matmul_cache *cache, const struct matmul_args *a,
                                    const struct blocking *b, int64_t k, bool accumulate,
                                    size_t *nbytes)
{
    const int64_t m[2] = {b->m, last_side(a->m, b->m)}, n[2] = {b->n, last_side(a->n, b->n)};
    for (int i = 0; i < 4; i++) {
        struct matmul_shape shape = block_shape(a, m[i / 2], n[i % 2], k, accumulate);
        TRY(raise_scratch(cache, &shape, nbytes));
    }
    return CZ_OK;
}

cz_status matmul_blocked_workspace(struct matmul_cache *cache, const struct matmul_args *a,
                                   size_t *nbytes)
{
    struct blocking b = blocking_of(a);
    size_t scratch = 0;
    TRY(raise_scratch_step(cache, a, &b, b.k, false, &scratch));
    if (b.k < a->k) TRY(raise_scratch_step(cache, a, &b, last_side(a->k, b.k), true, &scratch));
    if (2 * b.k < a->k) TRY(raise_scratch_step(cache, a, &b, b.k, true, &scratch));
    *nbytes = b.a_nbytes + b.b_nbytes + b.c_nbytes + scratch + ALIGN;
    return CZ_OK;
}

/* Copy `rows` by `cols` elements from row distance `ld` to dense fp32. */
static void pack(const struct matmul_vec *vec, enum cz_dtype from, const void *x, size_t first,
                 int64_t ld, int64_t rows, int64_t cols, float *y)
{
    int n_parts = ops_n_parts((size_t)(rows * cols), OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t row = 0; row < rows; row++) {
        const char *src = (const char *)x + (first + (size_t)(row * ld)) * dtype_size(from);
        float *dst = y + row * cols;
        if (from == DTYPE_F32)
            memcpy(dst, src, (size_t)cols * sizeof(float));
        else
            vec->widen(from, src, dst, (size_t)cols);
    }
}

/* Block (i, j) of a matrix with row distance ld, stored transposed or not. The packed block keeps
 * the order of storage. */
static void pack_block(const struct matmul_vec *vec, enum cz_dtype dtype, const void *x, int64_t ld,
                       bool trans, int64_t i, int64_t j, int64_t rows, int64_t cols, float *y)
{
    if (trans)
        pack(vec, dtype, x, (size_t)(j * ld + i), ld, cols, rows, y);
    else
        pack(vec, dtype, x, (size_t)(i * ld + j), ld, rows, cols, y);
}

/* Rounds once, from the fp32 sums, and adds bias or the old C on the way. */
static void write_block(const struct matmul_vec *vec, const struct matmul_args *a,
                        const float *sums, int64_t m0, int64_t n0, int64_t m, int64_t n)
{
    const char *bias = a->bias;
    if (bias) bias += (size_t)n0 * dtype_size(a->dtype);
    int n_parts = ops_n_parts((size_t)(m * n), OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t i = 0; i < m; i++) {
        size_t c_idx = (size_t)((m0 + i) * matmul_ldc(a) + n0);
        vec->write(a->c_dtype, (char *)a->c + c_idx * dtype_size(a->c_dtype), sums + i * n,
                   a->dtype, bias, a->accumulate, (size_t)n);
    }
}

struct packed {
    float *a, *b, *c;
    void *scratch;
    int64_t a_m0, a_k0, b_k0, b_n0; /* which blocks a and b hold; −1: none yet */
};

cz_status matmul_blocked(struct matmul_cache *cache, const struct matmul_args *a)
{
    size_t need = 0;
    TRY(matmul_blocked_workspace(cache, a, &need));
    TRY(ops_check_workspace("matmul", a->workspace, a->workspace_nbytes, need));
    const struct blocking b = blocking_of(a);
    char *p = (char *)size_round_up((uintptr_t)a->workspace, ALIGN);
    struct packed w = (struct packed){.a = (float *)(void *)p,
                                      .b = (float *)(void *)(p + b.a_nbytes),
                                      .c = (float *)(void *)(p + b.a_nbytes + b.b_nbytes),
                                      .scratch = p + b.a_nbytes + b.b_nbytes + b.c_nbytes,
                                      .a_m0 = -1,
                                      .b_k0 = -1};
    for (int64_t n0 = 0; n0 < a->n; n0 += b.n)
        for (int64_t m0 = 0; m0 < a->m; m0 += b.m) {
            int64_t m = least(b.m, a->m - m0), n = least(b.n, a->n - n0);
            for (int64_t k0 = 0; k0 < a->k; k0 += b.k) {
                /* c [+]= block (m0, k0) of A times block (k0, n0) of B. A block that is packed
                 * already is used again. */
                const struct matmul_vec *vec = cache->row->vec;
                int64_t k = least(b.k, a->k - k0);
                if (w.a_m0 != m0 || w.a_k0 != k0)
                    pack_block(vec, a->dtype, a->a, matmul_lda(a), a->trans_a, m0, k0, m, k, w.a);
                if (w.b_k0 != k0 || w.b_n0 != n0)
                    pack_block(vec, a->dtype, a->b, matmul_ldb(a), a->trans_b, k0, n0, k, n, w.b);
                w.a_m0 = m0, w.a_k0 = k0, w.b_k0 = k0, w.b_n0 = n0;
                struct matmul_shape shape = block_shape(a, m, n, k, k0 > 0);
                TRY(matmul_dense_run(cache, &shape, w.a, w.b, NULL, w.c, w.scratch));
            }
            write_block(cache->row->vec, a, w.c, m0, n0, m, n);
        }
    return CZ_OK;
}

/* Body of our own loops. Limit of the pack loops: the caches; of few_rows: reading B. */
#include "ops/matmul/matmul_impl.h"

#include <string.h>

VEC_FN void widen_loop(enum cz_dtype dtype, const void *x, float *y, size_t n)
{
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N) vf_store(y, i, DTYPE_F32, vf_load(x, i, dtype));
    if (i < n) vf_store_n(y, i, DTYPE_F32, vf_load_n(x, i, dtype, n - i), n - i);
}

static void widen(enum cz_dtype dtype, const void *x, float *y, size_t n)
{
    DTYPE_CALL(widen_loop, dtype, x, y, n);
}

/* c[j] for w ≤ VF_N columns from j on; a whole vector needs no mask. */
VEC_FN void write_vec(enum cz_dtype c_dtype, void *c, const float *sums, enum cz_dtype bias_dtype,
                      const void *bias, bool accumulate, size_t j, const size_t w)
{
    vf sum = w == VF_N ? vf_load(sums, j, DTYPE_F32) : vf_load_n(sums, j, DTYPE_F32, w);
    if (bias)
        sum = sum + (w == VF_N ? vf_load(bias, j, bias_dtype) : vf_load_n(bias, j, bias_dtype, w));
    if (accumulate) sum = sum + (w == VF_N ? vf_load(c, j, c_dtype) : vf_load_n(c, j, c_dtype, w));
    if (w == VF_N)
        vf_store(c, j, c_dtype, sum);
    else
        vf_store_n(c, j, c_dtype, sum, w);
}

VEC_FN void write_loop(enum cz_dtype c_dtype, void *c, const float *sums, enum cz_dtype bias_dtype,
                       const void *bias, bool accumulate, size_t n)
{
    size_t j = 0;
    for (; j + VF_N <= n; j += VF_N)
        write_vec(c_dtype, c, sums, bias_dtype, bias, accumulate, j, VF_N);
    if (j < n) write_vec(c_dtype, c, sums, bias_dtype, bias, accumulate, j, n - j);
}

static void write_out(enum cz_dtype c_dtype, void *c, const float *sums, enum cz_dtype bias_dtype,
                      const void *bias, bool accumulate, size_t n)
{
    DTYPE_CALL(write_loop, c_dtype, c, sums, bias_dtype, bias, accumulate, n);
}

/* ---- a few rows ------------------------------------------------------------------------------ */

#define FEW    MATMUL_FEW_ROWS
#define UNIT   MATMUL_FEW_UNIT
#define K_STEP 4 /* rows of B, or of Bᵀ, taken together */

/* sums (m, UNIT) += A[:, k0 .. k0 + n_k) · B[k0 .. k0 + n_k), n columns from j0 on: rows of B
 * stream, a vector of sums is loaded and stored once for n_k of them. */
VEC_FN void add_rows(enum cz_dtype dtype, const struct matmul_args *a, const int m, const int n_k,
                     size_t k0, size_t j0, size_t n, float *sums)
{
    const size_t lda = (size_t)matmul_lda(a), ldb = (size_t)matmul_ldb(a);
    vf x[FEW][K_STEP];
    for (int i = 0; i < m; i++)
        for (int l = 0; l < n_k; l++)
            x[i][l] = vf_set1(dtype_get(a->a, (size_t)i * lda + k0 + (size_t)l, dtype));
    for (size_t j = 0; j < n; j += VF_N) {
        const size_t w = n - j < VF_N ? n - j : VF_N;
        vf row[K_STEP];
        for (int l = 0; l < n_k; l++) {
            size_t at = (k0 + (size_t)l) * ldb + j0 + j;
            row[l] = w == VF_N ? vf_load(a->b, at, dtype) : vf_load_n(a->b, at, dtype, w);
        }
        for (int i = 0; i < m; i++) {
            float *at = sums + (size_t)i * UNIT + j;
            vf sum = vf_load(at, 0, DTYPE_F32);
            for (int l = 0; l < n_k; l++) sum = vf_fma(x[i][l], row[l], sum);
            vf_store(at, 0, DTYPE_F32, sum);
        }
    }
}

VEC_FN void few_plain(enum cz_dtype dtype, const struct matmul_args *a, const int m, size_t j0,
                      size_t n, float *sums)
{
    const size_t k = (size_t)a->k;
    size_t l = 0;
    for (; l + K_STEP <= k; l += K_STEP) add_rows(dtype, a, m, K_STEP, l, j0, n, sums);
    for (; l < k; l++) add_rows(dtype, a, m, 1, l, j0, n, sums);
}

/* sums[i][j] = A[i] · Bᵀ[j] for n_j columns from j0 on. */
VEC_FN void dot_columns(enum cz_dtype dtype, const struct matmul_args *a, const int m,
                        const int n_j, size_t j0, float *sums)
{
    const size_t lda = (size_t)matmul_lda(a), ldb = (size_t)matmul_ldb(a), k = (size_t)a->k;
    vf sum[FEW][K_STEP];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n_j; j++) sum[i][j] = vf_zero();
    for (size_t l = 0; l < k; l += VF_N) {
        const size_t w = k - l < VF_N ? k - l : VF_N;
        vf column[K_STEP];
        for (int j = 0; j < n_j; j++) {
            size_t at = (j0 + (size_t)j) * ldb + l;
            column[j] = w == VF_N ? vf_load(a->b, at, dtype) : vf_load_n(a->b, at, dtype, w);
        }
        for (int i = 0; i < m; i++) {
            size_t at = (size_t)i * lda + l;
            vf x = w == VF_N ? vf_load(a->a, at, dtype) : vf_load_n(a->a, at, dtype, w);
            for (int j = 0; j < n_j; j++) sum[i][j] = vf_fma(x, column[j], sum[i][j]);
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n_j; j++) sums[(size_t)i * UNIT + (size_t)j] = vf_hsum(sum[i][j]);
}

VEC_FN void few_trans(enum cz_dtype dtype, const struct matmul_args *a, const int m, size_t j0,
                      size_t n, float *sums)
{
    size_t j = 0;
    for (; j + K_STEP <= n; j += K_STEP) dot_columns(dtype, a, m, K_STEP, j0 + j, sums + j);
    for (; j < n; j++) dot_columns(dtype, a, m, 1, j0 + j, sums + j);
}

VEC_FN void few_of(enum cz_dtype dtype, const struct matmul_args *a, const int m, size_t j0,
                   size_t n, float *sums)
{
    if (a->trans_b)
        few_trans(dtype, a, m, j0, n, sums);
    else
        few_plain(dtype, a, m, j0, n, sums);
}

/* One body per number of rows, so that sums stay in registers. */
static void few_unit(const struct matmul_args *a, size_t j0, size_t n, float *sums)
{
    if (a->m == 1)
        DTYPE_CALL(few_of, a->dtype, a, 1, j0, n, sums);
    else if (a->m == 2)
        DTYPE_CALL(few_of, a->dtype, a, 2, j0, n, sums);
    else if (a->m == 3)
        DTYPE_CALL(few_of, a->dtype, a, 3, j0, n, sums);
    else
        DTYPE_CALL(few_of, a->dtype, a, 4, j0, n, sums);
}

static void few_rows(const struct matmul_args *a, size_t begin, size_t end)
{
    float sums[FEW * UNIT];
    for (size_t j0 = begin; j0 < end; j0 += UNIT) {
        const size_t n = end - j0 < UNIT ? end - j0 : UNIT;
        memset(sums, 0, sizeof sums);
        few_unit(a, j0, n, sums);
        const char *bias = a->bias;
        if (bias) bias += j0 * dtype_size(a->dtype);
        for (size_t i = 0; i < (size_t)a->m; i++) {
            size_t c_idx = i * (size_t)matmul_ldc(a) + j0;
            write_out(a->c_dtype, (char *)a->c + c_idx * dtype_size(a->c_dtype), sums + i * UNIT,
                      a->dtype, bias, a->accumulate, n);
        }
    }
}

/* The definition: one sum at a time, over k in order. */
#include "ops/matmul/matmul_impl.h"

void matmul_scalar(const struct matmul_args *a)
{
    int n_parts = ops_n_parts((size_t)a->m * (size_t)a->n * (size_t)a->k, OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->n; j++) {
            size_t c_idx = (size_t)(i * matmul_ldc(a) + j);
            const size_t lda = (size_t)matmul_lda(a), ldb = (size_t)matmul_ldb(a);
            const size_t row = (size_t)i, col = (size_t)j;
            float sum = 0;
            for (size_t l = 0; l < (size_t)a->k; l++) {
                float x = dtype_get(a->a, a->trans_a ? l * lda + row : row * lda + l, a->dtype);
                float y = dtype_get(a->b, a->trans_b ? col * ldb + l : l * ldb + col, a->dtype);
                sum += x * y;
            }
            if (a->bias) sum += dtype_get(a->bias, (size_t)j, a->dtype);
            if (a->accumulate) sum += dtype_get(a->c, c_idx, a->c_dtype);
            dtype_put(a->c, c_idx, a->c_dtype, sum);
        }
}

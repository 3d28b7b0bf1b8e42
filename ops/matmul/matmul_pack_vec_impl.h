/* Body of the pack loops. Limit: memory, mostly the caches'. */
#include "ops/matmul/matmul_impl.h"

VEC_FN void widen_loop(enum dtype dtype, const void *x, float *y, size_t n)
{
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N) vf_store(y, i, DTYPE_F32, vf_load(x, i, dtype));
    if (i < n) vf_store_n(y, i, DTYPE_F32, vf_load_n(x, i, dtype, n - i), n - i);
}

static void widen(enum dtype dtype, const void *x, float *y, size_t n)
{
    OPS_BY_DTYPE(widen_loop, dtype, x, y, n);
}

VEC_FN void write_loop(enum dtype c_dtype, void *c, const float *sums, enum dtype bias_dtype,
                       const void *bias, bool accumulate, size_t n)
{
    for (size_t j = 0; j < n; j += VF_N) {
        size_t w = n - j < VF_N ? n - j : VF_N;
        vf sum = vf_load_n(sums, j, DTYPE_F32, w);
        if (bias) sum = sum + vf_load_n(bias, j, bias_dtype, w);
        if (accumulate) sum = sum + vf_load_n(c, j, c_dtype, w);
        vf_store_n(c, j, c_dtype, sum, w);
    }
}

static void write_out(enum dtype c_dtype, void *c, const float *sums, enum dtype bias_dtype,
                      const void *bias, bool accumulate, size_t n)
{
    OPS_BY_DTYPE(write_loop, c_dtype, c, sums, bias_dtype, bias, accumulate, n);
}

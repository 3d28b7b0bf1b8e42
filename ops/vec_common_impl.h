/* What follows from either vec_*_impl.h, which include this at their end.
 *
 * Loops come as one body of `n` elements, called with the constant VF_N (or 2·VF_N) for whole
 * vectors and with the rest once: the _get and _put functions fold to plain loads and stores then.
 */
#ifndef CZ_OPS_VEC_COMMON_IMPL_H
#define CZ_OPS_VEC_COMMON_IMPL_H

VEC_FN vf vf_get(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    return n == VF_N ? vf_load(p, i, dtype) : vf_load_n(p, i, dtype, n);
}

VEC_FN void vf_put(void *p, size_t i, enum cz_dtype dtype, vf x, size_t n)
{
    if (n == VF_N)
        vf_store(p, i, dtype, x);
    else
        vf_store_n(p, i, dtype, x, n);
}

/* x as it reads back after a store. */
VEC_FN vf vf_rounded(vf x, enum cz_dtype dtype)
{
    return dtype == DTYPE_F32 ? x : vh_unpack(vh_pack(x, dtype), dtype);
}

/* The same for up to 2·VF_N elements: whole pairs as vf2_load has them, a rest in order. */
VEC_FN vf2 vf2_get(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    if (n == 2 * VF_N) return vf2_load(p, i, dtype);
    if (n <= VF_N) return (vf2){vf_get(p, i, dtype, n), vf_zero()};
    return (vf2){vf_load(p, i, dtype), vf_load_n(p, i + VF_N, dtype, n - VF_N)};
}

VEC_FN void vf2_put(void *p, size_t i, enum cz_dtype dtype, vf2 x, size_t n)
{
    if (n == 2 * VF_N) {
        vf2_store(p, i, dtype, x);
        return;
    }
    vf_put(p, i, dtype, x.a, n < VF_N ? n : VF_N);
    if (n > VF_N) vf_store_n(p, i + VF_N, dtype, x.b, n - VF_N);
}

/* x in the first n ≤ 2·VF_N elements, 0 behind them. */
VEC_FN vf2 vf2_first(vf2 x, size_t n)
{
    if (n < VF_N) return (vf2){vf_first(x.a, n), vf_zero()};
    return (vf2){x.a, vf_first(x.b, n - VF_N)};
}

VEC_FN vf2 vf2_add(vf2 x, vf2 y)
{
    return (vf2){x.a + y.a, x.b + y.b};
}

VEC_FN vf2 vf2_mul(vf2 x, vf2 y)
{
    return (vf2){x.a * y.a, x.b * y.b};
}

VEC_FN vf2 vf2_fma(vf2 x, vf2 y, vf2 z)
{
    return (vf2){vf_fma(x.a, y.a, z.a), vf_fma(x.b, y.b, z.b)};
}

/* Floats that were accumulated beside bf16 elements, whole pairs as vf2_load has them, put in
 * order. */
VEC_FN void floats_interleave(float *p, size_t numel, enum cz_dtype dtype)
{
    if (dtype != DTYPE_BF16) return;
    for (size_t i = 0; i + 2 * VF_N <= numel; i += 2 * VF_N)
        vf2_store(p, i, DTYPE_F32, vf2_interleave(vf2_load(p, i, DTYPE_F32)));
}

#endif

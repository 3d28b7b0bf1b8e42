/* What follows from either vec_*_impl.h, which include this at their end.
 *
 * Loops come as one body of `n` lanes, called with the constant VF_N for whole vectors and with the
 * rest once: vf_get and vf_put fold to plain loads and stores in the first case. */
#ifndef CZ_OPS_VEC_COMMON_IMPL_H
#define CZ_OPS_VEC_COMMON_IMPL_H

VEC_FN vf vf_get(const void *p, size_t i, enum dtype dtype, size_t n)
{
    return n == VF_N ? vf_load(p, i, dtype) : vf_load_n(p, i, dtype, n);
}

VEC_FN void vf_put(void *p, size_t i, enum dtype dtype, vf x, size_t n)
{
    if (n == VF_N)
        vf_store(p, i, dtype, x);
    else
        vf_store_n(p, i, dtype, x, n);
}

/* x as it reads back after a store. */
VEC_FN vf vf_rounded(vf x, enum dtype dtype)
{
    return dtype == DTYPE_F32 ? x : vh_unpack(vh_pack(x, dtype), dtype);
}

#endif

/* Arrays read and written N elements at a time, wherever they begin and end.
 *
 * Pack k of an array of numel elements is what is at [k·N − lead, (k + 1)·N − lead) of it. `lead`
 * is chosen so that packs are at multiples of their size: whole ones are one access; the first and
 * the last may be partial, and are then accessed element by element, which costs a warp a few
 * instructions. Arrays that are walked together must have the same lead. */
#ifndef CZ_DEVICE_CUDA_PACKS_H
#define CZ_DEVICE_CUDA_PACKS_H

#include "device/cuda/kernel.h"

/* Elements missing before the first of an array at `p`, which is aligned to its elements. */
static inline unsigned packs_lead(const void *p, size_t elem_nbytes, unsigned n)
{
    return (unsigned)((uintptr_t)p / elem_nbytes % n);
}

/* How many packs of n hold numel > 0 elements. */
static CZ_KERNEL_FN size_t packs_count(size_t numel, unsigned lead, unsigned n)
{
    return (numel + lead + n - 1) / n;
}

/* The first element of pack k: negative by up to N − 1 for k = 0. */
template <int N> CUDA_FN int64_t packs_at(size_t k, unsigned lead)
{
    return (int64_t)(k * N) - (int64_t)lead;
}

template <int N> CUDA_FN bool packs_whole(int64_t at, size_t numel)
{
    return at >= 0 && (size_t)at + N <= numel;
}

/* Whether lane i of the pack at `at` is an element. */
CUDA_FN bool packs_has(int64_t at, int i, size_t numel)
{
    return (size_t)(at + i) < numel;
}

/* N elements from `at` on; lanes outside [0, numel) are 0. */
template <int N, typename T> CUDA_FN void packs_load(const T *p, int64_t at, size_t numel, float *x)
{
    if (packs_whole<N>(at, numel)) {
        load_f32<N>(p + at, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = packs_has(at, i, numel) ? to_f32(p[at + i]) : 0;
}

/* Whole packs of global memory, not to be kept in the caches: what is streamed is not read again
 * soon. */
template <int N, typename T> CUDA_FN void packs_store_whole(T *p, const float *x)
{
    const words<T, N> y = words_of<T, N>(x);
    if constexpr (sizeof y == 16)
        __stcs((uint4 *)(void *)p, make_uint4(y.v[0], y.v[1], y.v[2], y.v[3]));
    else
        __stcs((uint2 *)(void *)p, make_uint2(y.v[0], y.v[1]));
}

/* Lanes outside [0, numel) are not stored. */
template <int N, typename T>
CUDA_FN void packs_store(T *p, int64_t at, size_t numel, const float *x)
{
    if (packs_whole<N>(at, numel)) {
        packs_store_whole<N>(p + at, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (packs_has(at, i, numel)) p[at + i] = from_f32<T>(x[i]);
}

/* ---- arrays whose dtype is known when the kernel runs ---------------------------------------- */

CUDA_FN float any_load(const void *p, enum cz_dtype dtype, size_t i)
{
    if (dtype == DTYPE_BF16) return to_f32(((const struct bf16 *)p)[i]);
    if (dtype == DTYPE_F16) return to_f32(((const struct f16 *)p)[i]);
    return ((const float *)p)[i];
}

CUDA_FN void any_store(void *p, enum cz_dtype dtype, size_t i, float x)
{
    if (dtype == DTYPE_BF16)
        ((struct bf16 *)p)[i] = from_f32<struct bf16>(x);
    else if (dtype == DTYPE_F16)
        ((struct f16 *)p)[i] = from_f32<struct f16>(x);
    else
        ((float *)p)[i] = x;
}

#endif

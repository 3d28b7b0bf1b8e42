/* What CUDA kernels are written with: launches, element types, vector accesses, reductions.
 *
 * Included by .cu files alone. They are compiled by nvcc, and by a plain C++ compiler against the
 * simulated device of tests/support/cuda_sim (CZ_CUDA_SIM), on which the default tests run them: so
 * kernels are launched through cuda_launch(), dynamic shared memory is had from
 * CUDA_DYNAMIC_SHARED(), and PTX stays behind functions that the simulator has twins of.
 *
 * Rules: no floating-point atomics; sums in trees fixed by shapes; fused multiply-adds are
 * written as fmaf() (--fmad=false), so that what agrees with the scalar row to the bit can. */
#ifndef CZ_DEVICE_CUDA_KERNEL_H
#define CZ_DEVICE_CUDA_KERNEL_H

#include "device/cuda/runtime.h"

#include "base/dtype.h"

#ifdef CZ_CUDA_SIM
#include "sim_kernel.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#define CUDA_FN static __device__ __forceinline__

/* A block's dynamic shared memory, aligned to 16 bytes, as an array of T. */
#ifdef CZ_CUDA_SIM
#define CUDA_DYNAMIC_SHARED(T, name) T *name = (T *)sim_dynamic_shared()
#else
#define CUDA_DYNAMIC_SHARED(T, name)                                                               \
    extern __shared__ __align__(16) unsigned char cz_dynamic_shared[];                             \
    T *name = (T *)(void *)cz_dynamic_shared
#endif

/* ---- launches -------------------------------------------------------------------------------- */

/* Run `kernel` over grid × block threads on the stream; `what` names it in errors. Dynamic shared
 * memory is asked for here, however little: with the kernel's static it may be more than 48 KiB. */
template <typename... P, typename... A>
static inline cz_status cuda_launch(const char *what, void (*kernel)(P...), dim3 grid, dim3 block,
                                    size_t shared_nbytes, struct dev_stream *stream, A... args)
{
    TRY(cuda_use(stream));
    if (shared_nbytes > 0) TRY(cuda_allow_shared(what, (const void *)kernel, shared_nbytes));
#ifdef CZ_CUDA_SIM
    CUDA_TRY(sim_launch(what, kernel, grid, block, shared_nbytes, cuda_stream(stream), args...),
             what);
#else
    kernel<<<grid, block, shared_nbytes, cuda_stream(stream)>>>(args...);
    CUDA_TRY(cudaGetLastError(), what);
#endif
    return CZ_OK;
}

/* Blocks for n items of `per_block` each; grids may have 2^31 − 1 in x. */
static inline unsigned cuda_blocks(size_t n, size_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}

/* A grid over rows of n_items each: blocks hold several short rows, or part of a long one. A thread
 * asks cuda_row() and cuda_item(); either may be past the end. Up to 65535·block_max items. */
struct cuda_rows {
    dim3 grid, block;
};

static inline struct cuda_rows cuda_rows(size_t n_rows, size_t n_items, unsigned block_max)
{
    if (n_items < block_max) {
        const unsigned width = n_items > 0 ? (unsigned)n_items : 1, height = block_max / width;
        return {dim3(cuda_blocks(n_rows, height)), dim3(width, height)};
    }
    const unsigned tiles = cuda_blocks(n_items, block_max);
    const unsigned width = (cuda_blocks(n_items, tiles) + 31) / 32 * 32;
    return {dim3((unsigned)n_rows, tiles), dim3(width)};
}

CUDA_FN int64_t cuda_row(void)
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

CUDA_FN int64_t cuda_item(void)
{
    return (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
}

/* ---- element types --------------------------------------------------------------------------- */

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

CUDA_FN float to_f32(float x)
{
    return x;
}

CUDA_FN float to_f32(struct bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

CUDA_FN float to_f32(struct f16 x)
{
#ifdef CZ_CUDA_SIM
    return f16_to_f32(x.bits);
#else
    return __half2float(__ushort_as_half(x.bits));
#endif
}

/* Rounded to nearest even; NaN stays NaN. */
template <typename T> CUDA_FN T from_f32(float x);

template <> __device__ __forceinline__ float from_f32<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ struct bf16 from_f32<struct bf16>(float x) {
    struct bf16 y;
#ifdef CZ_CUDA_SIM
    y.bits = f32_to_bf16(x);
#else
    y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#endif
    return y;
}

template <>
__device__ __forceinline__ struct f16 from_f32<struct f16>(float x) {
    struct f16 y;
#ifdef CZ_CUDA_SIM
    y.bits = f32_to_f16(x);
#else
    y.bits = __half_as_ushort(__float2half_rn(x));
#endif
    return y;
}

/* Two 16-bit numbers in a register, `low` in the lower half: rounded to nearest even; and back. */
template <typename T>
CUDA_FN uint32_t pack_halves(float low, float high);

template <> __device__ __forceinline__ uint32_t pack_halves<struct bf16>(float low, float high)
{
#ifdef CZ_CUDA_SIM
    return (uint32_t)f32_to_bf16(high) << 16 | f32_to_bf16(low);
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#endif
}
template <> __device__ __forceinline__ uint32_t pack_halves<struct f16>(float low, float high)
{
#ifdef CZ_CUDA_SIM
    return (uint32_t)f32_to_f16(high) << 16 | f32_to_f16(low);
#else
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#endif
}

template <typename T> CUDA_FN void unpack_halves(uint32_t bits, float *low, float *high);

template <>
__device__ __forceinline__ void unpack_halves<struct bf16>(uint32_t bits, float *low, float *high)
{
    *low = __uint_as_float(bits << 16);
    *high = __uint_as_float(bits & 0xffff0000u);
}
template <>
__device__ __forceinline__ void unpack_halves<struct f16>(uint32_t bits, float *low, float *high)
{
    *low = to_f32(f16{(uint16_t)bits});
    *high = to_f32(f16{(uint16_t)(bits >> 16)});
}

/* Run `...` with T the type of a floating-point dtype (fp32, bf16, fp16: ops_check_dtype). */
#define CUDA_BY_DTYPE(dtype, T, ...)                                                               \
    do {                                                                                           \
        if ((dtype) == DTYPE_BF16) {                                                               \
            using T = struct bf16;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == DTYPE_F16) {                                                         \
            using T = struct f16;                                                                  \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* N consecutive elements, one access when `p` is aligned to their size (4, 8 or 16 bytes). */
template <typename T, int N> struct __align__(sizeof(T) * N) pack
{
    T v[N];
};

/* How many elements of T one access moves at most. */
template <typename T> constexpr int CUDA_LANES = (int)(16 / sizeof(T));

/* N elements as they are stored, in registers of 32 bits. 16-bit ones are unpacked and made two at
 * a time, which is one instruction for each where one by one it is two or three. */
template <typename T, int N> using words = pack<uint32_t, (int)(N * sizeof(T) / 4)>;

template <typename T, int N> CUDA_FN void unpack(const words<T, N> &x, float out[N])
{
#pragma unroll
    for (int i = 0; i < (int)(N * sizeof(T) / 4); i++)
        if constexpr (sizeof(T) == 2)
            unpack_halves<T>(x.v[i], &out[2 * i], &out[2 * i + 1]);
        else
            out[i] = __uint_as_float(x.v[i]);
}

template <typename T, int N> CUDA_FN words<T, N> words_of(const float x[N])
{
    words<T, N> y;
#pragma unroll
    for (int i = 0; i < (int)(N * sizeof(T) / 4); i++)
        if constexpr (sizeof(T) == 2)
            y.v[i] = pack_halves<T>(x[2 * i], x[2 * i + 1]);
        else
            y.v[i] = __float_as_uint(x[i]);
    return y;
}

/* In one access of 4, 8 or 16 bytes, to which `p` is aligned; stores are to global memory. By
 * CUDA's types and intrinsics: the compiler takes accesses to structs apart where something else
 * uses their members one by one. */
template <typename T, int N> CUDA_FN words<T, N> words_load(const T *p)
{
    if constexpr (sizeof(words<T, N>) == 16) {
        const uint4 x = *(const uint4 *)(const void *)p;
        return {{x.x, x.y, x.z, x.w}};
    } else if constexpr (sizeof(words<T, N>) == 8) {
        const uint2 x = *(const uint2 *)(const void *)p;
        return {{x.x, x.y}};
    } else {
        return {{*(const uint32_t *)(const void *)p}};
    }
}

template <typename T, int N> CUDA_FN void words_store(T *p, const words<T, N> &x)
{
    if constexpr (sizeof x == 16)
        __stwb((uint4 *)(void *)p, make_uint4(x.v[0], x.v[1], x.v[2], x.v[3]));
    else if constexpr (sizeof x == 8)
        __stwb((uint2 *)(void *)p, make_uint2(x.v[0], x.v[1]));
    else
        __stwb((uint32_t *)(void *)p, x.v[0]);
}

/* As few accesses as N elements take; `p` is aligned to one of them (16 bytes at most). */
template <int N, typename T> CUDA_FN void load_f32(const T *p, float out[N])
{
    constexpr int M = N < CUDA_LANES<T> ? N : CUDA_LANES<T>;
    if constexpr (M * sizeof(T) < 4)
        out[0] = to_f32(*p);
    else
#pragma unroll
        for (int first = 0; first < N; first += M)
            unpack<T, M>(words_load<T, M>(p + first), out + first);
}

template <int N, typename T> CUDA_FN void store_f32(T *p, const float x[N])
{
    constexpr int M = N < CUDA_LANES<T> ? N : CUDA_LANES<T>;
    if constexpr (M * sizeof(T) < 4)
        *p = from_f32<T>(x[0]);
    else
#pragma unroll
        for (int first = 0; first < N; first += M)
            words_store<T, M>(p + first, words_of<T, M>(x + first));
}

/* The same where only the first n of N exist (what a vector holds of a tail): all N at once, or
 * element by element; out[i] is 0 from n on. */
template <int N, typename T> CUDA_FN void load_f32_upto(const T *p, size_t n, float out[N])
{
    if (n >= N) {
        load_f32<N>(p, out);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = i < (int)n ? to_f32(p[i]) : 0.0f;
}

template <int N, typename T> CUDA_FN void store_f32_upto(T *p, size_t n, const float x[N])
{
    if (n >= N) {
        store_f32<N>(p, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < (int)n) p[i] = from_f32<T>(x[i]);
}

static inline bool cuda_is_aligned(const void *p, size_t nbytes)
{
    return (uintptr_t)p % nbytes == 0;
}

/* ---- functions of one instruction ---------------------------------------------------------------
 *
 * CUDA's own (exp2f, __fdividef) take care of subnormal numbers, in three instructions more. */

#define CUDA_LOG2E 0x1.715476p+0f /* e^x is 2^(x·this) */

/* 2^x to about 2 units of the last place; 0 below 2^-126. */
CUDA_FN float exp2_approx(float x)
{
#ifdef CZ_CUDA_SIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* 1/x to about a unit of the last place; 0 below 2^-126. */
CUDA_FN float reciprocal_approx(float x)
{
#ifdef CZ_CUDA_SIM
    return 1.0f / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* ---- reductions over a warp and a block ------------------------------------------------------ */

#define CUDA_WARP      32
#define CUDA_ALL_LANES 0xffffffffu

struct sum_of {
    static __device__ __forceinline__ float apply(float a, float b) { return a + b; }
    static __device__ __forceinline__ float zero() { return 0; }
};

struct max_of {
    static __device__ __forceinline__ float apply(float a, float b) { return fmaxf(a, b); }
    static __device__ __forceinline__ float zero() { return -INFINITY; }
};

/* Every lane gets the result; a butterfly: the same bits in every lane. All 32 lanes call. */
template <typename Op> CUDA_FN float warp_reduce(float x)
{
#pragma unroll
    for (int lane = CUDA_WARP / 2; lane > 0; lane /= 2)
        x = Op::apply(x, __shfl_xor_sync(CUDA_ALL_LANES, x, lane));
    return x;
}

/* Every thread gets the result. `room`: shared memory of 32 floats, free again after the call's
 * next barrier; blocks of whole warps in x, all threads call. */
template <typename Op> CUDA_FN float block_reduce(float x, float *room)
{
    const unsigned lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
    const unsigned n_warps = blockDim.x / CUDA_WARP;
    x = warp_reduce<Op>(x);
    __syncthreads(); /* an earlier use of `room` is over */
    if (lane == 0) room[warp] = x;
    __syncthreads();
    return warp_reduce<Op>(lane < n_warps ? room[lane] : Op::zero());
}

#endif

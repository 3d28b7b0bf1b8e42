#include "comm/nccl/sum_cuda.h"

#include "device/cuda/kernel.h"

#define THREADS 256
#define WIDE    4 /* elements of a thread where memory is aligned: 16 bytes of fp32 */

/* ---- elements, NaN kept as base/dtype.h and the CPU's adder do ---------------------------------
 */

#define DEFAULT_NAN 0xffc00000u /* of x86: ∞ − ∞ */

CUDA_FN bool is_nan(float x)
{
    return x != x;
}

CUDA_FN float quiet(float x)
{
    return __uint_as_float(__float_as_uint(x) | 0x400000u);
}

CUDA_FN float widen(float x)
{
    return x;
}

CUDA_FN float widen(struct bf16 x)
{
    return to_f32(x);
}

CUDA_FN float widen(struct f16 x)
{
    const unsigned bits = x.bits;
    if ((bits & 0x7fffu) <= 0x7c00u) return to_f32(x);
    return __uint_as_float((bits & 0x8000u) << 16 | 0x7fc00000u | (bits & 0x3ffu) << 13);
}

template <typename T> CUDA_FN T narrow(float x);

template <> __device__ __forceinline__ float narrow<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ struct bf16 narrow<struct bf16>(float x) {
    struct bf16 y;
    if (!is_nan(x)) return from_f32<struct bf16>(x);
    y.bits = (uint16_t)(__float_as_uint(x) >> 16 | 0x40u);
    return y;
}

template <>
__device__ __forceinline__ struct f16 narrow<struct f16>(float x) {
    struct f16 y;
    if (!is_nan(x)) return from_f32<struct f16>(x);
    const unsigned bits = __float_as_uint(x);
    y.bits = (uint16_t)((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    return y;
}

/* c(x): what x is on the wire. */
template <typename W>
CUDA_FN float on_wire(float x)
{
    return widen(narrow<W>(x));
}

/* sum + x; a NaN in the sum stays. */
CUDA_FN float plus(float sum, float x)
{
    const float y = sum + x;
    if (!is_nan(y)) return y;
    if (is_nan(sum)) return sum;
    return is_nan(x) ? quiet(x) : __uint_as_float(DEFAULT_NAN);
}

CUDA_FN float times(float x, float scale)
{
    const float y = x * scale;
    if (!is_nan(y)) return y;
    return is_nan(x) ? x : __uint_as_float(DEFAULT_NAN);
}

template <int N, typename T> CUDA_FN void load(const T *p, float out[N])
{
    const pack<T, N> x = *(const pack<T, N> *)(const void *)p;
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = widen(x.v[i]);
}

template <int N, typename T> CUDA_FN void store(T *p, const float x[N])
{
    pack<T, N> y;
#pragma unroll
    for (int i = 0; i < N; i++) y.v[i] = narrow<T>(x[i]);
    *(pack<T, N> *)(void *)p = y;
}

/* ---- sums --------------------------------------------------------------------------------------
 */

/* A thread sums N elements over all ranks; blocks of THREADS, numel a multiple of N. */
template <typename S, typename W, typename D, int N> __global__ void sum_kernel(struct cuda_sum a)
{
    const size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float total[N], x[N];
    if (i >= a.numel) return;
#pragma unroll
    for (int k = 0; k < N; k++) total[k] = 0;
#pragma unroll 4
    for (int r = 0; r < a.n_ranks; r++) {
        if (a.all_own || r == a.own_rank) {
            load<N>((const S *)a.own + i, x);
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = on_wire<W>(x[k]);
        } else {
            load<N>((const W *)((const char *)a.in + (size_t)r * a.in_stride) + i, x);
        }
#pragma unroll
        for (int k = 0; k < N; k++) total[k] = plus(total[k], x[k]);
    }
#pragma unroll
    for (int k = 0; k < N; k++) total[k] = on_wire<W>(times(total[k], a.scale));
    if (a.shared) store<N>((W *)a.shared + i, total);
    if (!a.dst) return;
    if (a.accumulate) {
        load<N>((const D *)a.dst + i, x);
#pragma unroll
        for (int k = 0; k < N; k++) total[k] = plus(total[k], x[k]);
    }
    store<N>((D *)a.dst + i, total);
}

template <typename S, typename W, typename D, int N>
static cz_status launch_sum(struct dev_stream *stream, const struct cuda_sum &a)
{
    if (a.numel == 0) return CZ_OK;
    const dim3 grid(cuda_blocks(a.numel, (size_t)THREADS * N)), block(THREADS);
    return cuda_launch("a reduction's sum", sum_kernel<S, W, D, N>, grid, block, 0, stream, a);
}

static bool is_wide(const void *p, size_t size)
{
    return cuda_is_aligned(p, size * WIDE);
}

static void *ahead(const void *p, size_t numel, size_t size)
{
    return p ? (char *)(uintptr_t)p + numel * size : NULL;
}

/* Wide accesses as far as they go, then single elements. */
template <typename S, typename W, typename D>
static cz_status sum_typed(struct dev_stream *stream, const struct cuda_sum &a)
{
    const bool wide = is_wide(a.own, sizeof(S)) && is_wide(a.in, sizeof(W)) &&
                      a.in_stride % (sizeof(W) * WIDE) == 0 && is_wide(a.shared, sizeof(W)) &&
                      is_wide(a.dst, sizeof(D));
    struct cuda_sum head = a, tail = a;
    head.numel = wide ? a.numel / WIDE * WIDE : 0;
    TRY((launch_sum<S, W, D, WIDE>(stream, head)));
    tail.own = ahead(a.own, head.numel, sizeof(S));
    tail.in = ahead(a.in, head.numel, sizeof(W));
    tail.shared = ahead(a.shared, head.numel, sizeof(W));
    tail.dst = ahead(a.dst, head.numel, sizeof(D));
    tail.numel = a.numel - head.numel;
    return launch_sum<S, W, D, 1>(stream, tail);
}

extern "C" cz_status cuda_sum(struct dev_stream *stream, const struct cuda_sum *a)
{
    const enum cz_dtype dst_dtype = a->dst ? a->dst_dtype : a->wire;
    cz_status st = CZ_OK;
    CUDA_BY_DTYPE(
        a->own_dtype, S,
        CUDA_BY_DTYPE(a->wire, W,
                      CUDA_BY_DTYPE(dst_dtype, D, st = (sum_typed<S, W, D>(stream, *a)))));
    return st;
}

/* ---- conversions -------------------------------------------------------------------------------
 */

/* A thread converts N elements; src and dst may be the same place. */
template <typename S, typename D, int N>
__global__ void put_kernel(D *dst, const S *src, bool accumulate, size_t numel)
{
    const size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float x[N], y[N];
    if (i >= numel) return;
    load<N>(src + i, x);
    if (accumulate) {
        load<N>((const D *)dst + i, y);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = plus(x[k], y[k]);
    }
    store<N>(dst + i, x);
}

template <typename S, typename D, int N>
static cz_status launch_put(struct dev_stream *stream, D *dst, const S *src, bool accumulate,
                            size_t numel)
{
    if (numel == 0) return CZ_OK;
    const dim3 grid(cuda_blocks(numel, (size_t)THREADS * N)), block(THREADS);
    return cuda_launch("a reduction's conversion", put_kernel<S, D, N>, grid, block, 0, stream, dst,
                       src, accumulate, numel);
}

template <typename S, typename D>
static cz_status put_typed(struct dev_stream *stream, void *dst, const void *src, bool accumulate,
                           size_t numel)
{
    D *to = (D *)dst;
    const S *from = (const S *)src;
    const bool wide = is_wide(dst, sizeof(D)) && is_wide(src, sizeof(S));
    const size_t n = wide ? numel / WIDE * WIDE : 0;
    TRY((launch_put<S, D, WIDE>(stream, to, from, accumulate, n)));
    return launch_put<S, D, 1>(stream, to + n, from + n, accumulate, numel - n);
}

extern "C" cz_status cuda_put(struct dev_stream *stream, void *dst, enum cz_dtype dst_dtype,
                              const void *src, enum cz_dtype src_dtype, bool accumulate,
                              size_t numel)
{
    cz_status st = CZ_OK;
    CUDA_BY_DTYPE(
        src_dtype, S,
        CUDA_BY_DTYPE(dst_dtype, D, st = (put_typed<S, D>(stream, dst, src, accumulate, numel))));
    return st;
}

__global__ void note_kernel(uint64_t *word, uint64_t value)
{
    *word = value;
}

extern "C" cz_status cuda_note(struct dev_stream *stream, uint64_t *word, uint64_t value)
{
    return cuda_launch("the end of a collective", note_kernel, dim3(1), dim3(1), 0, stream, word,
                       value);
}

/* add, cast_scale and bias_grad on a GPU. All are limited by memory; results have the bits of the
 * scalar row. Vectors of 16 bytes where all tensors are aligned to that, else element by element.
 */
#include "device/cuda/kernel.h"
#include "ops/cuda_blocks_impl.h"
#include "ops/cuda_impl.h"
#include "ops/elementwise/elementwise_impl.h"

#define BLOCK 256

/* ---- add ---------------------------------------------------------------------------------------
 */

/* y = a + b, N elements per thread. Moves 3 times numel elements. */
template <typename T, int N>
static __global__ void __launch_bounds__(BLOCK)
    add_kernel(size_t numel, const T *a, const T *b, T *y)
{
    const size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * N;
    if (i >= numel) return;
    float x[N], z[N];
    load_f32_upto<N>(a + i, numel - i, x);
    load_f32_upto<N>(b + i, numel - i, z);
#pragma unroll
    for (int k = 0; k < N; k++) x[k] += z[k];
    store_f32_upto<N>(y + i, numel - i, x);
}

template <typename T, int N>
static cz_status add_by(struct dev_stream *stream, const struct add_args *a)
{
    return cuda_launch("add", add_kernel<T, N>, cuda_blocks(a->numel, BLOCK * N), BLOCK, 0, stream,
                       a->numel, (const T *)a->a, (const T *)a->b, (T *)a->y);
}

static cz_status add(struct ops *ops, struct dev_stream *stream, const struct add_args *a)
{
    (void)ops;
    TRY(add_check(a));
    if (a->numel == 0) return CZ_OK;
    const bool aligned =
        cuda_is_aligned(a->a, 16) && cuda_is_aligned(a->b, 16) && cuda_is_aligned(a->y, 16);
    CUDA_BY_DTYPE(a->dtype, T, {
        return aligned ? add_by<T, CUDA_LANES<T>>(stream, a) : add_by<T, 1>(stream, a);
    });
    return CZ_OK;
}

/* ---- cast_scale --------------------------------------------------------------------------------
 */

/* y = alpha·x, N elements per thread. Moves numel elements of each dtype. */
template <typename X, typename Y, int N>
static __global__ void __launch_bounds__(BLOCK)
    cast_scale_kernel(size_t numel, float alpha, const X *x, Y *y)
{
    const size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * N;
    if (i >= numel) return;
    float v[N];
    load_f32_upto<N>(x + i, numel - i, v);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] *= alpha;
    store_f32_upto<N>(y + i, numel - i, v);
}

template <typename X, typename Y, int N>
static cz_status cast_scale_by(struct dev_stream *stream, const struct cast_scale_args *a)
{
    return cuda_launch("cast_scale", cast_scale_kernel<X, Y, N>, cuda_blocks(a->numel, BLOCK * N),
                       BLOCK, 0, stream, a->numel, a->alpha, (const X *)a->x, (Y *)a->y);
}

static cz_status cast_scale(struct ops *ops, struct dev_stream *stream,
                            const struct cast_scale_args *a)
{
    TRY(cast_scale_check(a));
    const bool is_copy = cast_scale_is_copy(a);
    if (a->numel == 0 || (is_copy && a->x == a->y)) return CZ_OK;
    if (is_copy)
        return ops->device->ops->copy(ops->device, stream, a->y, a->x,
                                      a->numel * dtype_size(a->x_dtype));
    const bool aligned = cuda_is_aligned(a->x, 16) && cuda_is_aligned(a->y, 16);
    CUDA_BY_DTYPE(
        a->x_dtype, X, CUDA_BY_DTYPE(a->y_dtype, Y, {
            constexpr int N = CUDA_LANES < X >> CUDA_LANES<Y> ? CUDA_LANES<X> : CUDA_LANES<Y>;
            return aligned ? cast_scale_by<X, Y, N>(stream, a) : cast_scale_by<X, Y, 1>(stream, a);
        }));
    return CZ_OK;
}

/* ---- bias_grad ---------------------------------------------------------------------------------
 */

#define BIAS_BLOCK 64
#define BIAS_AHEAD 16 /* rows under way per thread */

/* partial (n_blocks,C): the columns' sums over each block of rows, in row order. N columns per
 * thread, blockIdx.y is the block. Reads N·C elements once. */
template <typename T, int N>
static __global__ void __launch_bounds__(BIAS_BLOCK, 8)
    column_sums_kernel(const T *dy, int64_t n_rows, int64_t C, int64_t block_rows, float *partial)
{
    const int64_t c = ((int64_t)blockIdx.x * BIAS_BLOCK + threadIdx.x) * N;
    if (c >= C) return;
    const int64_t begin = blockIdx.y * block_rows;
    const int64_t end = begin + block_rows < n_rows ? begin + block_rows : n_rows;
    float sums[N] = {0};
    int64_t n = begin;
    for (; n + BIAS_AHEAD <= end; n += BIAS_AHEAD) {
        pack<T, N> rows[BIAS_AHEAD];
#pragma unroll
        for (int r = 0; r < BIAS_AHEAD; r++)
            rows[r] = *(const pack<T, N> *)(const void *)(dy + (n + r) * C + c);
#pragma unroll
        for (int r = 0; r < BIAS_AHEAD; r++)
#pragma unroll
            for (int k = 0; k < N; k++) sums[k] += to_f32(rows[r].v[k]);
    }
    for (; n < end; n++) {
        float x[N];
        load_f32<N>(dy + n * C + c, x);
#pragma unroll
        for (int k = 0; k < N; k++) sums[k] += x[k];
    }
#pragma unroll
    for (int k = 0; k < N; k++) partial[(int64_t)blockIdx.y * C + c + k] = sums[k];
}

template <typename T, int N>
static cz_status column_sums_by(struct dev_stream *stream, const struct bias_grad_args *a)
{
    const dim3 grid(cuda_blocks((size_t)a->C, BIAS_BLOCK * N), (unsigned)ops_n_blocks(a->N));
    return cuda_launch("bias_grad", column_sums_kernel<T, N>, grid, BIAS_BLOCK, 0, stream,
                       (const T *)a->dy, a->N, a->C, ops_block_rows(a->N), (float *)a->workspace);
}

/* Narrow loads, many of them: few columns must do with the threads they have. */
static cz_status column_sums(struct dev_stream *stream, const struct bias_grad_args *a)
{
    CUDA_BY_DTYPE(a->dtype, T, {
        constexpr int N = (int)(4 / sizeof(T));
        return cuda_is_aligned(a->dy, 4) && a->C % N == 0 ? column_sums_by<T, N>(stream, a)
                                                          : column_sums_by<T, 1>(stream, a);
    });
    return CZ_OK;
}

static cz_status bias_grad(struct ops *ops, struct dev_stream *stream,
                           const struct bias_grad_args *a)
{
    (void)ops;
    TRY(bias_grad_check(a));
    if (a->C == 0) return CZ_OK;
    if (a->N > 0) TRY(column_sums(stream, a));
    const struct combine sums = {ops_n_blocks(a->N),
                                 a->C,
                                 (size_t)a->C,
                                 {{(const float *)a->workspace, a->accumulate, a->db}}};
    return cuda_combine_blocks("bias_grad", stream, &sums, 1, a->grad_dtype);
}

static size_t bias_grad_workspace(const struct ops *ops, const struct bias_grad_args *a)
{
    (void)ops;
    return bias_grad_nbytes(a);
}

extern "C" cz_status elementwise_wire_cuda(struct ops *ops)
{
    ops->add = add;
    ops->cast_scale = cast_scale;
    ops->bias_grad = bias_grad;
    ops->bias_grad_workspace = bias_grad_workspace;
    return CZ_OK;
}

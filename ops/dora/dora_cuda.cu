/* DoRA's ops on a GPU. All are limited by memory. Sums are fp32 in trees that the shape fixes,
 * within rounding of the scalar row; scaling has its bits where the compiler joins no product and
 * sum. */
#include "device/cuda/kernel.h"
#include "device/cuda/packs.h"
#include "ops/cuda_impl.h"
#include "ops/dora/dora_impl.h"

#define WIDTH CUDA_WARP /* columns of a block … */
#define PARTS 8         /* … and parts of each column; or rows of a block, a warp each */
#define BLOCK (WIDTH * PARTS)

CUDA_FN float inverse(float sumsq)
{
    return sumsq > 0.0f ? 1.0f / sqrtf(sumsq) : 0.0f;
}

/* Σ x·y down column o of n_rows rows of C, for the threads of part 0. `room`: BLOCK floats. */
template <typename T>
CUDA_FN float column_sum(const T *x, const T *y, int64_t n_rows, int64_t C, int64_t o, float *room)
{
    float sum = 0;
    for (int64_t n = threadIdx.y; o < C && n < n_rows; n += PARTS)
        sum += to_f32(x[n * C + o]) * to_f32(y[n * C + o]);
    room[threadIdx.y * WIDTH + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0) return 0;
    for (int part = 1; part < PARTS; part++) sum += room[part * WIDTH + threadIdx.x];
    return sum;
}

/* ---- norm ------------------------------------------------------------------------------------ */

/* A row per warp. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK) dora_norm_rows_kernel(struct dora_norm_args a)
{
    const int64_t o = (int64_t)blockIdx.x * PARTS + threadIdx.y;
    if (o >= a.O) return;
    const T *row = (const T *)a.v + o * a.I;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < a.I; i += WIDTH) sum += to_f32(row[i]) * to_f32(row[i]);
    sum = warp_reduce<sum_of>(sum);
    if (threadIdx.x == 0) a.inv_norm[o] = inverse(sum);
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK) dora_norm_columns_kernel(struct dora_norm_args a)
{
    __shared__ float room[BLOCK];
    const int64_t o = (int64_t)blockIdx.x * WIDTH + threadIdx.x;
    const T *v = (const T *)a.v;
    const float sum = column_sum(v, v, a.I, a.O, o, room);
    if (threadIdx.y == 0 && o < a.O) a.inv_norm[o] = inverse(sum);
}

static cz_status norm(struct ops *ops, struct dev_stream *stream, const struct dora_norm_args *a)
{
    (void)ops;
    TRY(ops_check_dtype("dora", a->dtype));
    if (a->O == 0) return CZ_OK;
    CUDA_BY_DTYPE(a->dtype, T, {
        if (a->in_out)
            return cuda_launch("dora_norm", dora_norm_columns_kernel<T>,
                               cuda_blocks((size_t)a->O, WIDTH), dim3(WIDTH, PARTS), 0, stream, *a);
        return cuda_launch("dora_norm", dora_norm_rows_kernel<T>, cuda_blocks((size_t)a->O, PARTS),
                           dim3(WIDTH, PARTS), 0, stream, *a);
    });
    return CZ_OK;
}

/* ---- scale ----------------------------------------------------------------------------------- */

/* An element per thread. The types are chosen at run time: all threads choose alike. */
static __global__ void __launch_bounds__(BLOCK) dora_scale_kernel(struct dora_scale_args a)
{
    const size_t at = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (size_t)(a.O * a.I)) return;
    const size_t o = a.in_out ? at % (size_t)a.O : at / (size_t)a.I;
    float y = any_load(a.m, a.dtype, o) * a.inv_norm[o] * any_load(a.x, a.x_dtype, at);
    if (a.w) y -= any_load(a.w, a.dtype, at);
    if (a.accumulate) y += any_load(a.y, a.y_dtype, at);
    any_store(a.y, a.y_dtype, at, y);
}

static cz_status scale(struct ops *ops, struct dev_stream *stream, const struct dora_scale_args *a)
{
    (void)ops;
    TRY(ops_check_dtype("dora", a->dtype));
    TRY(ops_check_dtype("dora", a->x_dtype));
    TRY(ops_check_dtype("dora", a->y_dtype));
    if (a->O == 0 || a->I == 0) return CZ_OK;
    return cuda_launch("dora_scale", dora_scale_kernel, cuda_blocks((size_t)(a->O * a->I), BLOCK),
                       BLOCK, 0, stream, *a);
}

/* ---- grad ------------------------------------------------------------------------------------ */

template <typename T>
static __global__ void __launch_bounds__(BLOCK) dora_grad_kernel(struct dora_grad_args a)
{
    __shared__ float room[BLOCK];
    const int64_t o = (int64_t)blockIdx.x * WIDTH + threadIdx.x;
    const float sum = column_sum((const T *)a.dy, (const T *)a.h, a.N, a.O, o, room);
    if (threadIdx.y > 0 || o >= a.O) return;
    const float dm = sum * a.inv_norm[o];
    const size_t at = (size_t)o;
    any_store(a.dm, a.grad_dtype, at, a.accumulate ? any_load(a.dm, a.grad_dtype, at) + dm : dm);
}

static cz_status grad(struct ops *ops, struct dev_stream *stream, const struct dora_grad_args *a)
{
    (void)ops;
    TRY(ops_check_dtype("dora", a->dtype));
    TRY(ops_check_dtype("dora", a->grad_dtype));
    if (a->O == 0) return CZ_OK;
    CUDA_BY_DTYPE(a->dtype, T, {
        return cuda_launch("dora_grad", dora_grad_kernel<T>, cuda_blocks((size_t)a->O, WIDTH),
                           dim3(WIDTH, PARTS), 0, stream, *a);
    });
    return CZ_OK;
}

extern "C" cz_status dora_wire_cuda(struct ops *ops)
{
    ops->dora_norm = norm;
    ops->dora_scale = scale;
    ops->dora_grad = grad;
    return CZ_OK;
}

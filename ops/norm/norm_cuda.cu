/* Layernorm and rmsnorm on a GPU. All kernels are limited by memory: forward moves 2·N·C elements
 * (4 with a residual), backward 3 (4 when dx accumulates); the partial sums of dweight and dbias
 * stay in the L2 cache.
 *
 * A row is read once and kept in registers by the threads of a block, N elements (16 bytes) at a
 * time, PACKS times; where tensors are not aligned to 16 bytes, the same threads read the same
 * elements one by one, so that sums do not depend on where a tensor lies. Rows that are too long
 * take the plain kernels below, which read a row as often as they need it. Sums are fp32, in trees
 * fixed by C; those over rows are cut into blocks fixed by N. */
#include "device/cuda/kernel.h"
#include "ops/cuda_blocks_impl.h"
#include "ops/cuda_impl.h"
#include "ops/norm/norm_impl.h"

#define THREADS_MAX   512 /* of a fast kernel's block */
#define PLAIN_THREADS 256
#define ROWS_MIN      4    /* rows per block of partial sums, at least … */
#define BLOCKS_MAX    1024 /* … and as many more as keep the blocks to so many */
#define PARTS         8    /* shares in which they are added up */

/* The arguments by value, for the device. */
struct norm_io {
    int64_t n_rows, C;
    float eps;
    bool centred, dx_accumulate;
    const void *x, *residual, *weight, *bias, *dy;
    void *sum, *y, *dx;
    float *mean, *rstd;
    float *partial; /* dweight, then dbias of each row block; NULL: neither is wanted */
    int64_t block_rows, stride;
};

static int64_t block_rows_of(int64_t n_rows)
{
    int64_t rows = (n_rows + BLOCKS_MAX - 1) / BLOCKS_MAX;
    return rows < ROWS_MIN ? ROWS_MIN : rows;
}

static int64_t n_blocks_of(int64_t n_rows)
{
    int64_t rows = block_rows_of(n_rows);
    return (n_rows + rows - 1) / rows;
}

/* Floats from one kind of sums of a block to the next: whole lines. */
static int64_t stride_of(int64_t C)
{
    return (C + 31) / 32 * 32;
}

/* K sums over the block's threads at once; every thread gets them. `room`: K·32 floats. */
template <int K> CUDA_FN void block_sums(float sums[K], float *room)
{
    const unsigned lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
    const unsigned n_warps = blockDim.x / CUDA_WARP;
#pragma unroll
    for (int k = 0; k < K; k++) sums[k] = warp_reduce<sum_of>(sums[k]);
    if (n_warps == 1) return;
    __syncthreads(); /* an earlier use of the room is over */
    if (lane == 0)
#pragma unroll
        for (int k = 0; k < K; k++) room[k * CUDA_WARP + warp] = sums[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; k++)
        sums[k] = warp_reduce<sum_of>(lane < n_warps ? room[k * CUDA_WARP + lane] : 0.0f);
}

/* Elements of a row from `p` on, of which `left` follow up to its end (0 past it): N in one access,
 * or one by one. */
template <int N, bool ALIGNED, typename T>
CUDA_FN void row_load(const T *p, int64_t left, float x[N])
{
    if (ALIGNED)
        load_f32<N>(p, x);
    else
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = k < left ? to_f32(p[k]) : 0.0f;
}

template <int N, bool ALIGNED, typename T>
CUDA_FN void row_store(T *p, int64_t left, const float x[N])
{
    if (ALIGNED)
        store_f32<N>(p, x);
    else
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < left) p[k] = from_f32<T>(x[k]);
}

/* The bits, to be kept. */
template <int N, bool ALIGNED, typename T>
CUDA_FN void row_keep(const T *p, int64_t left, pack<T, N> *x)
{
    if (ALIGNED)
        *x = *(const pack<T, N> *)(const void *)p;
    else
#pragma unroll
        for (int k = 0; k < N; k++) x->v[k] = k < left ? p[k] : T{};
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Elements [c, c + N) of a row, with the residual joined and stored as the model's dtype has it. */
template <typename T, int N, bool ALIGNED>
CUDA_FN void load_joined(const struct norm_io *io, size_t at, int64_t left, float s[N])
{
    row_load<N, ALIGNED>((const T *)io->x + at, left, s);
    if (!io->residual) return;
    float r[N];
    row_load<N, ALIGNED>((const T *)io->residual + at, left, r);
#pragma unroll
    for (int k = 0; k < N; k++) s[k] = to_f32(from_f32<T>(s[k] + r[k]));
    row_store<N, ALIGNED>((T *)io->sum + at, left, s);
}

template <typename T, int N, bool ALIGNED>
CUDA_FN void store_normed(const struct norm_io *io, size_t at, int64_t c, const float s[N],
                          float mean, float rstd)
{
    const int64_t left = io->C - c;
    float w[N], b[N] = {0}, y[N];
    row_load<N, ALIGNED>((const T *)io->weight + c, left, w);
    if (io->bias) row_load<N, ALIGNED>((const T *)io->bias + c, left, b);
#pragma unroll
    for (int k = 0; k < N; k++) y[k] = (s[k] - mean) * rstd * w[k] + b[k];
    row_store<N, ALIGNED>((T *)io->y + at, left, y);
}

CUDA_FN void keep_statistics(const struct norm_io *io, int64_t row, float mean, float rstd)
{
    if (threadIdx.x > 0) return;
    if (io->mean && io->centred) io->mean[row] = mean;
    if (io->rstd) io->rstd[row] = rstd;
}

/* A row per block. */
template <typename T, int N, int PACKS, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS_MAX) forward_kernel(const struct norm_io io)
{
    __shared__ float room[CUDA_WARP];
    const int64_t row = blockIdx.x, step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const size_t begin = (size_t)row * (size_t)io.C;
    float s[PACKS][N], sum = 0, mean = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io.C)
            load_joined<T, N, ALIGNED>(&io, begin + (size_t)(first + p * step),
                                       io.C - first - p * step, s[p]);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io.C && io.centred)
#pragma unroll
            for (int k = 0; k < N; k++) sum += s[p][k];
    if (io.centred) {
        block_sums<1>(&sum, room);
        mean = sum / (float)io.C;
    }
    float squares = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io.C)
#pragma unroll
            for (int k = 0; k < N; k++)
                if (ALIGNED || first + p * step + k < io.C)
                    squares += (s[p][k] - mean) * (s[p][k] - mean);
    block_sums<1>(&squares, room);
    const float rstd = 1.0f / sqrtf(squares / (float)io.C + io.eps);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io.C)
            store_normed<T, N, ALIGNED>(&io, begin + (size_t)(first + p * step), first + p * step,
                                        s[p], mean, rstd);
    keep_statistics(&io, row, mean, rstd);
}

/* The same for rows of any length: s is read again for each of the three. */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    forward_plain_kernel(const struct norm_io io)
{
    __shared__ float room[CUDA_WARP];
    const int64_t row = blockIdx.x;
    const size_t begin = (size_t)row * (size_t)io.C;
    const T *joined = (const T *)(io.residual ? io.sum : io.x) + begin;
    float sum = 0, mean = 0, squares = 0, s;
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        load_joined<T, 1, true>(&io, begin + (size_t)c, 1, &s);
        sum += s;
    }
    if (io.centred) {
        block_sums<1>(&sum, room);
        mean = sum / (float)io.C;
    }
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        s = to_f32(joined[c]) - mean;
        squares += s * s;
    }
    block_sums<1>(&squares, room);
    const float rstd = 1.0f / sqrtf(squares / (float)io.C + io.eps);
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        s = to_f32(joined[c]);
        store_normed<T, 1, true>(&io, begin + (size_t)c, c, &s, mean, rstd);
    }
    keep_statistics(&io, row, mean, rstd);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* dx of elements [c, c + N): rstd·(g − x̂·mean(g·x̂) − mean(g)), g = dy·weight. */
template <typename T, int N, bool ALIGNED>
CUDA_FN void store_dx(const struct norm_io *io, size_t at, int64_t left, const float g[N],
                      const float xhat[N], float mean_g, float mean_g_xhat, float rstd)
{
    float dx[N] = {0};
    if (io->dx_accumulate) row_load<N, ALIGNED>((const T *)io->dx + at, left, dx);
#pragma unroll
    for (int k = 0; k < N; k++) dx[k] += rstd * (g[k] - xhat[k] * mean_g_xhat - mean_g);
    row_store<N, ALIGNED>((T *)io->dx + at, left, dx);
}

/* The sums of a thread's columns over the block's rows. */
template <int N, int PACKS> struct column_sums {
    float weight[PACKS][N], bias[PACKS][N];
};

template <typename T, int N, int PACKS, bool ALIGNED>
CUDA_FN void backward_row(const struct norm_io *io, int64_t row, float *room,
                          struct column_sums<N, PACKS> *columns)
{
    const int64_t step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const size_t begin = (size_t)row * (size_t)io->C;
    const float mean = io->centred ? io->mean[row] : 0, rstd = io->rstd[row];
    pack<T, N> x[PACKS], dy[PACKS];
    float sums[2] = {0, 0}; /* of g, of g·x̂ */
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (first + p * step >= io->C) continue;
        const size_t at = begin + (size_t)(first + p * step);
        const int64_t left = io->C - first - p * step;
        row_keep<N, ALIGNED>((const T *)io->x + at, left, &x[p]);
        row_keep<N, ALIGNED>((const T *)io->dy + at, left, &dy[p]);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (first + p * step >= io->C) continue;
        float w[N];
        row_load<N, ALIGNED>((const T *)io->weight + first + p * step, io->C - first - p * step, w);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float d = to_f32(dy[p].v[k]), xhat = (to_f32(x[p].v[k]) - mean) * rstd;
            sums[0] += d * w[k];
            sums[1] += d * w[k] * xhat;
            columns->weight[p][k] += d * xhat;
            columns->bias[p][k] += d;
        }
    }
    block_sums<2>(sums, room);
    const float mean_g = io->centred ? sums[0] / (float)io->C : 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (first + p * step >= io->C) continue;
        float w[N], g[N], xhat[N];
        row_load<N, ALIGNED>((const T *)io->weight + first + p * step, io->C - first - p * step, w);
#pragma unroll
        for (int k = 0; k < N; k++) {
            g[k] = to_f32(dy[p].v[k]) * w[k];
            xhat[k] = (to_f32(x[p].v[k]) - mean) * rstd;
        }
        store_dx<T, N, ALIGNED>(io, begin + (size_t)(first + p * step), io->C - first - p * step, g,
                                xhat, mean_g, sums[1] / (float)io->C, rstd);
    }
}

/* A block of rows per block, one after the other. */
template <typename T, int N, int PACKS, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS_MAX) backward_kernel(const struct norm_io io)
{
    __shared__ float room[2 * CUDA_WARP];
    const int64_t step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const int64_t begin = blockIdx.x * io.block_rows;
    const int64_t end = begin + io.block_rows < io.n_rows ? begin + io.block_rows : io.n_rows;
    struct column_sums<N, PACKS> columns = {};
    for (int64_t row = begin; row < end; row++)
        backward_row<T, N, PACKS, ALIGNED>(&io, row, room, &columns);
    if (!io.partial) return;
    float *mine = io.partial + 2 * (int64_t)blockIdx.x * io.stride;
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int64_t c = first + p * step + k;
            if (c >= io.C) continue;
            mine[c] = columns.weight[p][k];
            mine[io.stride + c] = columns.bias[p][k];
        }
}

/* Rows of any length: first the columns' sums, a column per thread … */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    columns_plain_kernel(const struct norm_io io)
{
    const int64_t c = (int64_t)blockIdx.x * PLAIN_THREADS + threadIdx.x;
    const int64_t begin = blockIdx.y * io.block_rows;
    const int64_t end = begin + io.block_rows < io.n_rows ? begin + io.block_rows : io.n_rows;
    float weight = 0, bias = 0;
    if (c >= io.C) return;
    for (int64_t row = begin; row < end; row++) {
        const size_t at = (size_t)row * (size_t)io.C + (size_t)c;
        const float d = to_f32(((const T *)io.dy)[at]), mean = io.centred ? io.mean[row] : 0;
        weight += d * ((to_f32(((const T *)io.x)[at]) - mean) * io.rstd[row]);
        bias += d;
    }
    io.partial[2 * (int64_t)blockIdx.y * io.stride + c] = weight;
    io.partial[(2 * (int64_t)blockIdx.y + 1) * io.stride + c] = bias;
}

/* … then dx, which may lie over x or dy. */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS) dx_plain_kernel(const struct norm_io io)
{
    __shared__ float room[2 * CUDA_WARP];
    const int64_t row = blockIdx.x;
    const size_t begin = (size_t)row * (size_t)io.C;
    const float mean = io.centred ? io.mean[row] : 0, rstd = io.rstd[row];
    float sums[2] = {0, 0};
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        const float g =
            to_f32(((const T *)io.dy)[begin + (size_t)c]) * to_f32(((const T *)io.weight)[c]);
        sums[0] += g;
        sums[1] += g * ((to_f32(((const T *)io.x)[begin + (size_t)c]) - mean) * rstd);
    }
    block_sums<2>(sums, room);
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        const size_t at = begin + (size_t)c;
        const float g = to_f32(((const T *)io.dy)[at]) * to_f32(((const T *)io.weight)[c]);
        const float xhat = (to_f32(((const T *)io.x)[at]) - mean) * rstd;
        store_dx<T, 1, true>(&io, at, 1, &g, &xhat, io.centred ? sums[0] / (float)io.C : 0,
                             sums[1] / (float)io.C, rstd);
    }
}

/* ---- front doors ------------------------------------------------------------------------------
 */

static struct norm_io io_of(const struct norm_args *a, bool centred)
{
    struct norm_io io = {};
    io.n_rows = a->N, io.C = a->C, io.eps = a->eps;
    io.centred = centred, io.dx_accumulate = a->dx_accumulate;
    io.x = a->x, io.residual = a->residual, io.weight = a->weight, io.bias = a->bias;
    io.dy = a->dy, io.sum = a->sum, io.y = a->y, io.dx = a->dx;
    io.mean = a->mean, io.rstd = a->rstd;
    io.partial = a->dweight || a->dbias ? (float *)a->workspace : NULL;
    io.block_rows = block_rows_of(a->N), io.stride = stride_of(a->C);
    return io;
}

static bool lines_up(const void *p)
{
    return cuda_is_aligned(p, 16); /* NULL as well */
}

static bool aligned(const struct norm_io *io, int64_t n)
{
    return io->C % n == 0 && lines_up(io->x) && lines_up(io->residual) && lines_up(io->sum) &&
           lines_up(io->weight) && lines_up(io->bias) && lines_up(io->y) && lines_up(io->dy) &&
           lines_up(io->dx);
}

/* How many packs of 16 bytes a thread keeps, `most` or fewer; 0: the plain kernels. */
static int packs_of(const struct norm_io *io, size_t elem_nbytes, int most)
{
    const int64_t n = (int64_t)(16 / elem_nbytes);
    for (int packs = 1; packs <= most; packs *= 2)
        if (io->C <= n * packs * (packs == 1 ? THREADS_MAX / 2 : THREADS_MAX)) return packs;
    return 0;
}

static unsigned threads_of(const struct norm_io *io, size_t elem_nbytes, int packs)
{
    size_t per_thread = (size_t)packs * (16 / elem_nbytes);
    return cuda_blocks(cuda_blocks((size_t)io->C, per_thread), CUDA_WARP) * CUDA_WARP;
}

/* In registers. */
template <typename T, bool ALIGNED>
static cz_status forward_kept(struct dev_stream *stream, const char *op, const struct norm_io *io,
                              int packs)
{
    constexpr int N = (int)(16 / sizeof(T));
    const unsigned threads = threads_of(io, sizeof(T), packs);
    const unsigned n = (unsigned)io->n_rows;
    void (*kernel)(const struct norm_io) = packs == 1   ? forward_kernel<T, N, 1, ALIGNED>
                                           : packs == 2 ? forward_kernel<T, N, 2, ALIGNED>
                                                        : forward_kernel<T, N, 4, ALIGNED>;
    return cuda_launch(op, kernel, n, threads, 0, stream, *io);
}

template <typename T>
static cz_status forward_by(struct dev_stream *stream, const char *op, const struct norm_io *io)
{
    const int packs = packs_of(io, sizeof(T), 4);
    if (packs == 0)
        return cuda_launch(op, forward_plain_kernel<T>, (unsigned)io->n_rows, PLAIN_THREADS, 0,
                           stream, *io);
    return aligned(io, (int64_t)(16 / sizeof(T))) ? forward_kept<T, true>(stream, op, io, packs)
                                                  : forward_kept<T, false>(stream, op, io, packs);
}

static cz_status forward(struct dev_stream *stream, const struct norm_args *a, const char *op,
                         bool centred)
{
    TRY(norm_forward_check(a, op, centred));
    const struct norm_io io = io_of(a, centred);
    if (a->N == 0 || a->C == 0) return CZ_OK;
    CUDA_BY_DTYPE(a->dtype, T, { TRY(forward_by<T>(stream, op, &io)); });
    return CZ_OK;
}

template <typename T>
static cz_status backward_plain(struct dev_stream *stream, const char *op, const struct norm_io *io)
{
    const dim3 grid(cuda_blocks((size_t)io->C, PLAIN_THREADS), (unsigned)n_blocks_of(io->n_rows));
    if (io->partial)
        TRY(cuda_launch(op, columns_plain_kernel<T>, grid, PLAIN_THREADS, 0, stream, *io));
    return cuda_launch(op, dx_plain_kernel<T>, (unsigned)io->n_rows, PLAIN_THREADS, 0, stream, *io);
}

/* What 128 registers hold: rows of 8192 elements, with the sums of their columns. */
template <typename T> constexpr int BACKWARD_PACKS = sizeof(T) == 2 ? 2 : 4;

/* In registers. */
template <typename T, bool ALIGNED>
static cz_status backward_kept(struct dev_stream *stream, const char *op, const struct norm_io *io,
                               int packs)
{
    constexpr int N = (int)(16 / sizeof(T));
    const unsigned threads = threads_of(io, sizeof(T), packs);
    const unsigned n = (unsigned)n_blocks_of(io->n_rows);
    void (*kernel)(const struct norm_io) = packs == 1 ? backward_kernel<T, N, 1, ALIGNED>
                                           : packs == 2
                                               ? backward_kernel<T, N, 2, ALIGNED>
                                               : backward_kernel<T, N, BACKWARD_PACKS<T>, ALIGNED>;
    return cuda_launch(op, kernel, n, threads, 0, stream, *io);
}

template <typename T>
static cz_status backward_by(struct dev_stream *stream, const char *op, const struct norm_io *io)
{
    const int packs = packs_of(io, sizeof(T), BACKWARD_PACKS<T>);
    if (packs == 0) return backward_plain<T>(stream, op, io);
    return aligned(io, (int64_t)(16 / sizeof(T))) ? backward_kept<T, true>(stream, op, io, packs)
                                                  : backward_kept<T, false>(stream, op, io, packs);
}

static size_t norm_workspace_cuda(const struct ops *ops, const struct norm_args *a)
{
    (void)ops;
    return (size_t)(2 * n_blocks_of(a->N) * stride_of(a->C)) * sizeof(float);
}

static cz_status backward(struct dev_stream *stream, const struct norm_args *a, const char *op,
                          bool centred)
{
    TRY(norm_backward_check(a, op, centred, norm_workspace_cuda(NULL, a)));
    const struct norm_io io = io_of(a, centred);
    const int64_t n_blocks = n_blocks_of(a->N);
    if (a->C == 0) return CZ_OK;
    if (a->N > 0) CUDA_BY_DTYPE(a->dtype, T, { TRY(backward_by<T>(stream, op, &io)); });
    if (a->dweight)
        TRY(cuda_combine_blocks(op, stream, io.partial, n_blocks, 2 * (size_t)io.stride, a->C,
                                PARTS, a->grad_dtype, a->dweight_accumulate, a->dweight));
    if (a->dbias)
        TRY(cuda_combine_blocks(op, stream, io.partial + io.stride, n_blocks, 2 * (size_t)io.stride,
                                a->C, PARTS, a->grad_dtype, a->dbias_accumulate, a->dbias));
    return CZ_OK;
}

static cz_status layernorm_forward(struct ops *ops, struct dev_stream *stream,
                                   const struct norm_args *a)
{
    (void)ops;
    return forward(stream, a, "layernorm_forward", true);
}

static cz_status layernorm_backward(struct ops *ops, struct dev_stream *stream,
                                    const struct norm_args *a)
{
    (void)ops;
    return backward(stream, a, "layernorm_backward", true);
}

static cz_status rmsnorm_forward(struct ops *ops, struct dev_stream *stream,
                                 const struct norm_args *a)
{
    (void)ops;
    return forward(stream, a, "rmsnorm_forward", false);
}

static cz_status rmsnorm_backward(struct ops *ops, struct dev_stream *stream,
                                  const struct norm_args *a)
{
    (void)ops;
    return backward(stream, a, "rmsnorm_backward", false);
}

cz_status norm_wire_cuda(struct ops *ops)
{
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_backward = rmsnorm_backward;
    ops->norm_workspace = norm_workspace_cuda;
    return CZ_OK;
}

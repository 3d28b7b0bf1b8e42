/* Layernorm and rmsnorm on a GPU. All kernels are limited by memory: forward moves 2·N·C elements
 * (4 with a residual), backward 3 (4 with dx_add); the partial sums of dweight and dbias stay in
 * the L2 cache.
 *
 * A row is read once and kept in registers as it is stored, by the threads of a warp or, if it is
 * too long for that, of a block: N elements (16 bytes) at a time, PACKS times. Where tensors are
 * not aligned to 16 bytes, the same threads read the same elements one by one, so that sums do not
 * depend on where a tensor is. Rows that are too long for a block take the plain kernels below,
 * which read a row as often as they need it. Sums are fp32, in trees fixed by C; those over rows
 * are cut into blocks fixed by N.
 *
 * Bytes under way: at 4.3 TB/s and 0.8 µs an H200 wants 26 KB of reads per multiprocessor. A warp
 * per row needs no barrier and has its whole row under way at once: of 768 bf16 columns forward has
 * 1.5 KB (3 with a residual) in each of some 40 warps, backward 4.5 KB in each of 16. Where a row
 * is a block's, backward fetches the next one before it works on this.
 *
 * Instructions: in the time that 128 bytes of a warp take (4.3 TB/s, 1.755 GHz) a multiprocessor
 * issues 27, which is what forward has per element of 16 bits, and 41 what backward has. What is
 * done once per row and thread (sums over the warp, the root, addresses: about 100) is therefore
 * spread over as many elements as registers hold. */
#include "device/cuda/kernel.h"
#include "ops/cuda_blocks_impl.h"
#include "ops/cuda_impl.h"
#include "ops/norm/norm_impl.h"

#define THREADS_MAX    512 /* of a fast kernel's block */
#define PLAIN_THREADS  256
#define FORWARD_WARPS  4   /* rows of a block where a row is a warp's … */
#define BACKWARD_WARPS 8   /* … and rows under way, of the block's many */
#define ROWS_MIN       4   /* rows per block of partial sums, at least … */
#define BLOCKS_MAX     528 /* … and more where that keeps to 4 blocks per multiprocessor of 132 */

/* What 128 registers hold beside a row: the sums of its columns. Of a warp's, 768 in 16 bits; of a
 * block's, 8192. */
#define WARP_PACKS     3
#define BACKWARD_BLOCK 128 /* threads of a row, at least, where it is a block's */
#define FORWARD_PACKS  4   /* of a thread where a row is a block's … */
#define FORWARD_MOST   8   /* … and where it is a warp's */
template <typename T> constexpr int BACKWARD_PACKS = sizeof(T) == 2 ? 2 : 4;

/* The arguments by value, for the device. */
struct norm_io {
    int64_t n_rows, C;
    float eps, inv_C, offset;
    bool centred;
    const void *x, *residual, *weight, *bias, *dy, *dx_add;
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
    __syncthreads(); /* an earlier use of `room` is over */
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

CUDA_FN uint32_t bits_of(float x)
{
    return __float_as_uint(x);
}
template <typename T> CUDA_FN uint32_t bits_of(T x)
{
    return x.bits;
}

/* To be kept as they are stored. */
template <int N, bool ALIGNED, typename T>
CUDA_FN void row_keep(const T *p, int64_t left, words<T, N> *x)
{
    if (ALIGNED) {
        *x = words_load<T, N>(p);
        return;
    }
    *x = {};
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < left) x->v[k * sizeof(T) / 4] |= bits_of(p[k]) << (k * sizeof(T) % 4 * 8);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* s = x + residual as the model's dtype has it, over x. */
template <typename T, int N>
CUDA_FN void join(words<T, N> *x, const words<T, N> *residual, float joined[N])
{
    float more[N];
    unpack<T, N>(*x, joined);
    unpack<T, N>(*residual, more);
#pragma unroll
    for (int k = 0; k < N; k++) joined[k] += more[k];
    *x = words_of<T, N>(joined);
}

CUDA_FN float normed(float x, float mean, float rstd, float weight, float bias)
{
    return fmaf((x - mean) * rstd, weight, bias);
}

template <typename T, int N, bool ALIGNED>
CUDA_FN void store_normed(const struct norm_io *io, size_t at, int64_t c, const words<T, N> *s,
                          float mean, float rstd)
{
    const int64_t left = io->C - c;
    float x[N], w[N], b[N] = {0}, y[N];
    unpack<T, N>(*s, x);
    row_load<N, ALIGNED>((const T *)io->weight + c, left, w);
    if (io->bias) row_load<N, ALIGNED>((const T *)io->bias + c, left, b);
#pragma unroll
    for (int k = 0; k < N; k++) y[k] = normed(x[k], mean, rstd, w[k] + io->offset, b[k]);
    row_store<N, ALIGNED>((T *)io->y + at, left, y);
}

CUDA_FN void keep_statistics(const struct norm_io *io, int64_t row, float mean, float rstd)
{
    if (threadIdx.x > 0) return;
    if (io->mean && io->centred) io->mean[row] = mean;
    if (io->rstd) io->rstd[row] = rstd;
}

/* All of a thread's elements of a row, joined with the residual; all reads are under way before the
 * first is used. */
template <typename T, int N, int PACKS, bool ALIGNED>
CUDA_FN void load_joined(const struct norm_io *io, size_t begin, int64_t first, int64_t step,
                         words<T, N> s[PACKS])
{
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io->C)
            row_keep<N, ALIGNED>((const T *)io->x + begin + (size_t)(first + p * step),
                                 io->C - first - p * step, &s[p]);
    if (!io->residual) return;
    words<T, N> r[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io->C)
            row_keep<N, ALIGNED>((const T *)io->residual + begin + (size_t)(first + p * step),
                                 io->C - first - p * step, &r[p]);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io->C) {
            float joined[N];
            join<T, N>(&s[p], &r[p], joined);
            row_store<N, ALIGNED>((T *)io->sum + begin + (size_t)(first + p * step),
                                  io->C - first - p * step, joined);
        }
}

template <typename T, int N> CUDA_FN float sum_of_pack(const words<T, N> &s)
{
    float x[N], sum = 0;
    unpack<T, N>(s, x);
#pragma unroll
    for (int k = 0; k < N; k++) sum += x[k];
    return sum;
}

/* `to` and Σ (x − mean)² over the first `left` of a pack. */
template <typename T, int N>
CUDA_FN float add_squares(const words<T, N> &s, float mean, int64_t left, float to)
{
    float x[N];
    unpack<T, N>(s, x);
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < left) to = fmaf(x[k] - mean, x[k] - mean, to);
    return to;
}

/* A row per blockDim.x threads, blockDim.y rows per block; more than one only where they are warps.
 */
template <typename T, int N, int PACKS, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS_MAX) forward_kernel(const struct norm_io io)
{
    __shared__ float room[CUDA_WARP];
    const int64_t row = cuda_row(), step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const size_t begin = (size_t)row * (size_t)io.C;
    words<T, N> s[PACKS];
    float sum = 0, mean = 0, squares = 0;
    if (row >= io.n_rows) return;
    load_joined<T, N, PACKS, ALIGNED>(&io, begin, first, step, s);
    if (io.centred) {
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            if (first + p * step < io.C) sum += sum_of_pack<T, N>(s[p]);
        block_sums<1>(&sum, room);
        mean = sum * io.inv_C;
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io.C)
            squares = add_squares<T, N>(s[p], mean, ALIGNED ? N : io.C - first - p * step, squares);
    block_sums<1>(&squares, room);
    const float rstd = rsqrtf(fmaf(squares, io.inv_C, io.eps));
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (first + p * step < io.C)
            store_normed<T, N, ALIGNED>(&io, begin + (size_t)(first + p * step), first + p * step,
                                        &s[p], mean, rstd);
    keep_statistics(&io, row, mean, rstd);
}

/* The same for rows of any length: what is to be normed is read again for each of the three. */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    forward_plain_kernel(const struct norm_io io)
{
    __shared__ float room[CUDA_WARP];
    const int64_t row = blockIdx.x;
    const size_t begin = (size_t)row * (size_t)io.C;
    const T *x = (const T *)io.x + begin, *residual = (const T *)io.residual + begin;
    T *joined = (T *)io.sum + begin, *y = (T *)io.y + begin;
    const T *w = (const T *)io.weight, *b = (const T *)io.bias;
    float sum = 0, mean = 0, squares = 0;
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        T s = x[c];
        if (io.residual) joined[c] = s = from_f32<T>(to_f32(s) + to_f32(residual[c]));
        sum += to_f32(s);
    }
    if (io.residual) x = joined;
    if (io.centred) {
        block_sums<1>(&sum, room);
        mean = sum * io.inv_C;
    }
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        const float off = to_f32(x[c]) - mean;
        squares = fmaf(off, off, squares);
    }
    block_sums<1>(&squares, room);
    const float rstd = rsqrtf(fmaf(squares, io.inv_C, io.eps));
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS)
        y[c] = from_f32<T>(
            normed(to_f32(x[c]), mean, rstd, to_f32(w[c]) + io.offset, b ? to_f32(b[c]) : 0));
    keep_statistics(&io, row, mean, rstd);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* What all of a row's dx are made with: dx = rstd·(g − x̂·mean(g·x̂) − mean(g)) [+ add], g = dy·w,
 * x̂ = (x − mean)·rstd. */
struct row_means {
    float mean, rstd;
    float g, g_off; /* rstd·mean(g); rstd²·mean(g·x̂), what x − mean is multiplied with */
};

CUDA_FN float dx_of(float x, float g, const struct row_means *of)
{
    return fmaf(g, of->rstd, -fmaf(x - of->mean, of->g_off, of->g));
}

template <typename T, int N, bool ALIGNED>
CUDA_FN void store_dx(const struct norm_io *io, size_t at, int64_t left, const float x[N],
                      const float g[N], const words<T, N> *add, const struct row_means *of)
{
    float dx[N], more[N];
#pragma unroll
    for (int k = 0; k < N; k++) dx[k] = dx_of(x[k], g[k], of);
    if (io->dx_add) {
        unpack<T, N>(*add, more);
#pragma unroll
        for (int k = 0; k < N; k++) dx[k] += more[k];
    }
    row_store<N, ALIGNED>((T *)io->dx + at, left, dx);
}

/* sums: of g, of g·x̂, over the row. */
CUDA_FN struct row_means means_of(const struct norm_io *io, float mean, float rstd,
                                  const float sums[2])
{
    const float g = io->centred ? sums[0] * io->inv_C : 0, g_xhat = sums[1] * io->inv_C;
    return {mean, rstd, rstd * g, rstd * (rstd * g_xhat)};
}

/* The sums of a thread's columns over its rows. */
template <int N, int PACKS> struct column_sums {
    float weight[PACKS][N], bias[PACKS][N];
};

/* A thread's elements of a row, as they are stored. */
template <typename T, int N, int PACKS> struct kept_row {
    words<T, N> x[PACKS], dy[PACKS], add[PACKS];
    float mean, rstd;
};

template <typename T, int N, int PACKS, bool ALIGNED>
CUDA_FN void fetch_row(const struct norm_io *io, int64_t row, struct kept_row<T, N, PACKS> *kept)
{
    const int64_t step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const size_t begin = (size_t)row * (size_t)io->C;
    kept->mean = io->centred ? io->mean[row] : 0;
    kept->rstd = io->rstd[row];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (first + p * step >= io->C) continue;
        const size_t at = begin + (size_t)(first + p * step);
        const int64_t left = io->C - first - p * step;
        row_keep<N, ALIGNED>((const T *)io->x + at, left, &kept->x[p]);
        row_keep<N, ALIGNED>((const T *)io->dy + at, left, &kept->dy[p]);
        if (io->dx_add) row_keep<N, ALIGNED>((const T *)io->dx_add + at, left, &kept->add[p]);
    }
}

template <typename T, int N, int PACKS, bool ALIGNED>
CUDA_FN void backward_row(const struct norm_io *io, int64_t row,
                          const struct kept_row<T, N, PACKS> *kept, float *room,
                          struct column_sums<N, PACKS> *columns)
{
    const int64_t step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const size_t begin = (size_t)row * (size_t)io->C;
    float sums[2] = {0, 0}; /* of g, of g·x̂ */
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (first + p * step >= io->C) continue;
        float w[N], x[N], dy[N];
        row_load<N, ALIGNED>((const T *)io->weight + first + p * step, io->C - first - p * step, w);
        unpack<T, N>(kept->x[p], x);
        unpack<T, N>(kept->dy[p], dy);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float xhat = (x[k] - kept->mean) * kept->rstd, g = dy[k] * (w[k] + io->offset);
            sums[0] += g;
            sums[1] = fmaf(g, xhat, sums[1]);
            columns->weight[p][k] = fmaf(dy[k], xhat, columns->weight[p][k]);
            columns->bias[p][k] += dy[k];
        }
    }
    block_sums<2>(sums, room);
    const struct row_means means = means_of(io, kept->mean, kept->rstd, sums);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (first + p * step >= io->C) continue;
        float w[N], x[N], g[N];
        row_load<N, ALIGNED>((const T *)io->weight + first + p * step, io->C - first - p * step, w);
        unpack<T, N>(kept->x[p], x);
        unpack<T, N>(kept->dy[p], g);
#pragma unroll
        for (int k = 0; k < N; k++) g[k] *= w[k] + io->offset;
        store_dx<T, N, ALIGNED>(io, begin + (size_t)(first + p * step), io->C - first - p * step, x,
                                g, &kept->add[p], &means);
    }
}

/* A warp's sums of its columns; no two lanes meet in a bank, neither where each puts down its N
 * columns nor where they read 32 columns side by side. */
template <int N> struct warp_share {
    float of[N][CUDA_WARP + CUDA_WARP / N]; /* [k][lane]: column lane·N + k */
};

/* A thread's sums of N columns to the block's, `to` (C), from column c of thread 0 on. Where a row
 * is a warp's, warps have the same columns, and are added up in their order. All threads call. */
template <int N>
CUDA_FN void put_columns(const float sums[N], int64_t c, int64_t C, struct warp_share<N> *shares,
                         float *to)
{
    const unsigned lane = threadIdx.x % CUDA_WARP;
    const unsigned warp = (threadIdx.y * blockDim.x + threadIdx.x) / CUDA_WARP;
    const bool joint = blockDim.y > 1;
    const struct warp_share<N> *first = joint ? shares : shares + warp;
    if (!joint) c += (int64_t)(warp * CUDA_WARP * N);
    __syncthreads(); /* an earlier use of the shares is over */
#pragma unroll
    for (int k = 0; k < N; k++) shares[warp].of[k][lane] = sums[k];
    __syncthreads();
    for (unsigned i = joint ? warp * CUDA_WARP + lane : lane; i < CUDA_WARP * N && c + i < C;
         i += blockDim.y * CUDA_WARP) {
        float sum = first->of[i % N][i / N];
        for (unsigned w = 1; w < blockDim.y; w++) sum += first[w].of[i % N][i / N];
        to[c + i] = sum;
    }
}

/* A block of rows per block: blockDim.x threads for each, blockDim.y of them at a time. */
template <typename T, int N, int PACKS, bool ALIGNED>
static __global__ void
__launch_bounds__(PACKS == WARP_PACKS ? CUDA_WARP * BACKWARD_WARPS : THREADS_MAX,
                  PACKS == WARP_PACKS && ALIGNED ? 2 : 1) backward_kernel(const struct norm_io io)
{
    __shared__ float room[2 * CUDA_WARP];
    __shared__ struct warp_share<N> shares[THREADS_MAX / CUDA_WARP];
    const int64_t begin = blockIdx.x * io.block_rows;
    const int64_t end = begin + io.block_rows < io.n_rows ? begin + io.block_rows : io.n_rows;
    struct column_sums<N, PACKS> columns = {};
    struct kept_row<T, N, PACKS> kept, next;
    const bool ahead = PACKS != WARP_PACKS && blockDim.y == 1; /* elsewhere other warps' are */
    if (ahead && begin < end) fetch_row<T, N, PACKS, ALIGNED>(&io, begin, &next);
    for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
        if (ahead)
            kept = next;
        else
            fetch_row<T, N, PACKS, ALIGNED>(&io, row, &kept);
        if (ahead && row + 1 < end) fetch_row<T, N, PACKS, ALIGNED>(&io, row + 1, &next);
        backward_row<T, N, PACKS, ALIGNED>(&io, row, &kept, room, &columns);
    }
    if (!io.partial) return;
    float *mine = io.partial + 2 * (int64_t)blockIdx.x * io.stride;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t c = (int64_t)blockDim.x * N * p;
        put_columns<N>(columns.weight[p], c, io.C, shares, mine);
        put_columns<N>(columns.bias[p], c, io.C, shares, mine + io.stride);
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

/* … then dx, which may be over x or dy. */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS) dx_plain_kernel(const struct norm_io io)
{
    __shared__ float room[2 * CUDA_WARP];
    const int64_t row = blockIdx.x;
    const size_t begin = (size_t)row * (size_t)io.C;
    const float mean = io.centred ? io.mean[row] : 0, rstd = io.rstd[row];
    float sums[2] = {0, 0};
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        const float g = to_f32(((const T *)io.dy)[begin + (size_t)c]) *
                        (to_f32(((const T *)io.weight)[c]) + io.offset);
        sums[0] += g;
        sums[1] = fmaf(g, (to_f32(((const T *)io.x)[begin + (size_t)c]) - mean) * rstd, sums[1]);
    }
    block_sums<2>(sums, room);
    const struct row_means means = means_of(&io, mean, rstd, sums);
    for (int64_t c = threadIdx.x; c < io.C; c += PLAIN_THREADS) {
        const size_t at = begin + (size_t)c;
        const float g =
            to_f32(((const T *)io.dy)[at]) * (to_f32(((const T *)io.weight)[c]) + io.offset);
        const float dx = dx_of(to_f32(((const T *)io.x)[at]), g, &means);
        const float add = io.dx_add ? to_f32(((const T *)io.dx_add)[at]) : 0.0f;
        ((T *)io.dx)[at] = from_f32<T>(dx + add);
    }
}

/* ---- front doors ------------------------------------------------------------------------------
 */

static struct norm_io io_of(const struct norm_args *a, bool centred)
{
    struct norm_io io = {};
    io.n_rows = a->N, io.C = a->C, io.eps = a->eps, io.inv_C = (float)(1.0 / (double)a->C);
    io.centred = centred, io.offset = a->offset;
    io.x = a->x, io.residual = a->residual, io.weight = a->weight, io.bias = a->bias;
    io.dy = a->dy, io.dx_add = a->dx_add, io.sum = a->sum, io.y = a->y, io.dx = a->dx;
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
           lines_up(io->dx) && lines_up(io->dx_add);
}

/* The threads that keep a row, and the packs of 16 bytes of each; packs 0: none, the row is too
 * long.
 */
struct keepers {
    unsigned threads;
    int packs;
};

/* A warp where `warp_packs` each are enough, else the threads of a block: `most` packs each where
 * that leaves `threads_min` of them, fewer otherwise. */
static struct keepers keepers_of(int64_t C, size_t elem_nbytes, int warp_packs, int most,
                                 unsigned threads_min)
{
    const size_t n_packs = cuda_blocks((size_t)C, 16 / elem_nbytes);
    struct keepers k = {CUDA_WARP, (int)cuda_blocks(n_packs, CUDA_WARP)};
    if (k.packs <= warp_packs) return k;
    for (k.packs = most; k.packs > 1 && n_packs < (size_t)k.packs * threads_min;) k.packs /= 2;
    const size_t threads = cuda_blocks(n_packs, (size_t)k.packs);
    k.threads = cuda_blocks(threads, CUDA_WARP) * CUDA_WARP;
    if (k.threads > THREADS_MAX) k.packs = 0;
    return k;
}

/* In registers. */
template <typename T, bool ALIGNED>
static cz_status forward_kept(struct dev_stream *stream, const char *op, const struct norm_io *io,
                              struct keepers k)
{
    constexpr int N = (int)(16 / sizeof(T));
    const unsigned n_rows = k.threads == CUDA_WARP ? FORWARD_WARPS : 1;
    void (*kernel)(const struct norm_io) = k.packs == 1   ? forward_kernel<T, N, 1, ALIGNED>
                                           : k.packs == 2 ? forward_kernel<T, N, 2, ALIGNED>
                                           : k.packs == 3 ? forward_kernel<T, N, 3, ALIGNED>
                                           : k.packs == 4 ? forward_kernel<T, N, 4, ALIGNED>
                                                          : forward_kernel<T, N, 8, ALIGNED>;
    return cuda_launch(op, kernel, cuda_blocks((size_t)io->n_rows, n_rows), dim3(k.threads, n_rows),
                       0, stream, *io);
}

template <typename T>
static cz_status forward_by(struct dev_stream *stream, const char *op, const struct norm_io *io)
{
    const struct keepers k = keepers_of(io->C, sizeof(T), FORWARD_MOST, FORWARD_PACKS, CUDA_WARP);
    if (k.packs == 0)
        return cuda_launch(op, forward_plain_kernel<T>, (unsigned)io->n_rows, PLAIN_THREADS, 0,
                           stream, *io);
    return aligned(io, (int64_t)(16 / sizeof(T))) ? forward_kept<T, true>(stream, op, io, k)
                                                  : forward_kept<T, false>(stream, op, io, k);
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

/* In registers. */
template <typename T, bool ALIGNED>
static cz_status backward_kept(struct dev_stream *stream, const char *op, const struct norm_io *io,
                               struct keepers k)
{
    constexpr int N = (int)(16 / sizeof(T));
    const unsigned n_rows = k.threads == CUDA_WARP ? BACKWARD_WARPS : 1;
    void (*kernel)(const struct norm_io) = k.packs == 1   ? backward_kernel<T, N, 1, ALIGNED>
                                           : k.packs == 2 ? backward_kernel<T, N, 2, ALIGNED>
                                           : k.packs == 3
                                               ? backward_kernel<T, N, WARP_PACKS, ALIGNED>
                                               : backward_kernel<T, N, BACKWARD_PACKS<T>, ALIGNED>;
    return cuda_launch(op, kernel, (unsigned)n_blocks_of(io->n_rows), dim3(k.threads, n_rows), 0,
                       stream, *io);
}

template <typename T>
static cz_status backward_by(struct dev_stream *stream, const char *op, const struct norm_io *io)
{
    const struct keepers k =
        keepers_of(io->C, sizeof(T), WARP_PACKS, BACKWARD_PACKS<T>, BACKWARD_BLOCK);
    if (k.packs == 0) return backward_plain<T>(stream, op, io);
    return aligned(io, (int64_t)(16 / sizeof(T))) ? backward_kept<T, true>(stream, op, io, k)
                                                  : backward_kept<T, false>(stream, op, io, k);
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
    struct combine sums = {n_blocks, a->C, 2 * (size_t)io.stride, {}};
    unsigned n_kinds = 0;
    if (a->dweight) sums.of[n_kinds++] = {io.partial, a->dweight_accumulate, a->dweight};
    if (a->dbias) sums.of[n_kinds++] = {io.partial + io.stride, a->dbias_accumulate, a->dbias};
    if (n_kinds > 0) TRY(cuda_combine_blocks(op, stream, &sums, n_kinds, a->grad_dtype));
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

extern "C" cz_status norm_wire_cuda(struct ops *ops)
{
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_backward = rmsnorm_backward;
    ops->norm_workspace = norm_workspace_cuda;
    return CZ_OK;
}

/* Kernels for the tests of the simulated device: see kernels.h. */
#include "tests/gpu_sim/kernels.h"

#include "sim_kernel.h"

#define ALL 0xffffffffu

static __global__ void empty_kernel(void) {}

cudaError_t launch_empty(dim3 grid, dim3 block, size_t shared_nbytes, cudaStream_t s)
{
    return sim_launch("empty", empty_kernel, grid, block, shared_nbytes, s);
}

cudaError_t allow_shared(size_t nbytes)
{
    return cudaFuncSetAttribute(empty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)nbytes);
}

template <int N> struct params {
    int v[N];
};
template <int N> static __global__ void params_kernel(params<N>) {}

cudaError_t launch_big_params(bool too_big, cudaStream_t s)
{
    if (too_big) return sim_launch("4100 bytes", params_kernel<1025>, 1, 1, 0, s, params<1025>{});
    return sim_launch("4096 bytes", params_kernel<1024>, 1, 1, 0, s, params<1024>{});
}

static __global__ void where_kernel(int *out)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = (int)i;
}

cudaError_t launch_where(int *out, cudaStream_t s)
{
    return sim_launch("where", where_kernel, dim3(3, 4, 5), dim3(6, 7, 2), 0, s, out);
}

static __global__ void saxpy_kernel(float a, const float *__restrict__ x, float *y, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
}

cudaError_t launch_saxpy(float a, const float *x, float *y, size_t n, cudaStream_t s)
{
    return sim_launch("saxpy", saxpy_kernel, (unsigned)((n + 255) / 256), 256, 0, s, a, x, y, n);
}

template <bool RACY>
static __global__ void __launch_bounds__(256) sum_kernel(const float *x, float *out)
{
    __shared__ __align__(16) float part[256];
    unsigned t = threadIdx.x;
    part[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (unsigned n = 128; n > 0; n /= 2) {
        if (t < n) part[t] += part[t + n];
        if (!RACY) __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

cudaError_t launch_block_sum(const float *x, float *out, unsigned n_blocks, cudaStream_t s)
{
    return sim_launch("block_sum", sum_kernel<false>, n_blocks, 256, 0, s, x, out);
}

cudaError_t launch_racy_sum(const float *x, float *out, unsigned n_blocks, cudaStream_t s)
{
    return sim_launch("racy_sum", sum_kernel<true>, n_blocks, 256, 0, s, x, out);
}

static __global__ void unwritten_kernel(float *out)
{
    float *part = (float *)sim_dynamic_shared();
    if (threadIdx.x < 32) part[threadIdx.x] = 1;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += part[i];
    out[threadIdx.x] = sum;
}

cudaError_t launch_unwritten_sum(float *out, cudaStream_t s)
{
    return sim_launch("unwritten", unwritten_kernel, 1, 64, 64 * sizeof(float), s, out);
}

template <int N> static __global__ void unwritten_static_kernel(float *out)
{
    __shared__ float part[N];
    if (threadIdx.x < N / 2) part[threadIdx.x] = 1;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < N; i++) sum += part[i];
    part[threadIdx.x] = 1;
    out[threadIdx.x] = sum;
}

cudaError_t launch_unwritten_static(float *out, cudaStream_t s)
{
    return sim_launch("unwritten_static", unwritten_static_kernel<64>, 1, 64, 0, s, out);
}

/* Two of these, so that one that was allowed more is not the one that was not. */
template <bool> static __global__ void half_static_kernel(float *out)
{
    __shared__ float part[8 << 10];
    part[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = part[31 - threadIdx.x];
}

cudaError_t launch_half_static(bool allowed, float *out, size_t shared_nbytes, cudaStream_t s)
{
    return sim_launch("half_static", allowed ? half_static_kernel<true> : half_static_kernel<false>,
                      1, 32, shared_nbytes, s, out);
}

cudaError_t allow_half_static(size_t nbytes)
{
    return cudaFuncSetAttribute(half_static_kernel<true>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes);
}

template <bool RACY> static __global__ void turn_kernel(const int *x, int *out)
{
    __shared__ int box[32];
    int lane = (int)threadIdx.x;
    for (int turn = 0; turn < 4; turn++) {
        box[lane] = x[lane] + turn;
        if (!RACY) __syncwarp();
        int got = box[(lane + 1) % 32];
        out[lane] = turn == 0 ? got : out[lane] * 3 + got;
        if (!RACY) __syncwarp();
    }
}

cudaError_t launch_warp_turn(bool racy, const int *x, int *out, cudaStream_t s)
{
    return sim_launch("warp_turn", racy ? turn_kernel<true> : turn_kernel<false>, 1, 32, 0, s, x,
                      out);
}

static __global__ void collectives_kernel(int *out)
{
    int lane = (int)threadIdx.x, v = 10 * lane, k = 0;
    auto put = [&](int x) { out[32 * k++ + lane] = x; };
    put(__shfl_sync(ALL, v, 7));
    put(__shfl_sync(ALL, v, lane + 3, 8));
    put(__shfl_up_sync(ALL, v, 2, 16));
    put(__shfl_down_sync(ALL, v, 5, 16));
    put(__shfl_xor_sync(ALL, v, 9));
    put(__shfl_xor_sync(ALL, v, 16, 16));
    put((int)__ballot_sync(ALL, lane % 3 == 0));
    put(__any_sync(ALL, lane == 31) * 2 + __any_sync(ALL, 0));
    put(__all_sync(ALL, lane < 32) * 2 + __all_sync(ALL, lane < 31));
    put(__reduce_add_sync(ALL, v - 100));
    put(__reduce_max_sync(ALL, v - 400));
    put((int)__reduce_min_sync(ALL, (unsigned)v + 3u));
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    put(__reduce_add_sync(half, v));
    put((int)__shfl_sync(ALL, (double)lane * 0.5, 31)); /* 8 bytes: 15 */
    int odd = -1;
    if (lane % 2) odd = __shfl_sync(0xaaaaaaaau, v, 5);
    put(odd);
    put((int)__match_any_sync(ALL, lane / 8));
}

cudaError_t launch_collectives(int *out, cudaStream_t s)
{
    return sim_launch("collectives", collectives_kernel, 1, 32, 0, s, out);
}

static __global__ void votes_kernel(int *out)
{
    int t = (int)threadIdx.x;
    int count = __syncthreads_count(t < 5), any = __syncthreads_or(t < 0);
    int all = __syncthreads_and(t < 64), most = __syncthreads_and(t < 63);
    out[t] = count * 1000 + any * 100 + all * 10 + most;
}

cudaError_t launch_barrier_votes(int *out, cudaStream_t s)
{
    return sim_launch("votes", votes_kernel, 1, 64, 0, s, out);
}

static __global__ void atomics_kernel(int *sums)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&sums[0], i);
    atomicMax(&sums[1], i);
    atomicMin(&sums[2], -i);
    atomicOr((unsigned *)&sums[3], 1u << (i % 31));
    atomicExch(&sums[4], 5);
    int seen = sums[5];
    for (int old; (old = atomicCAS(&sums[5], seen, seen + 2)) != seen;) seen = old;
    atomicInc((unsigned *)&sums[6], 9);
    atomicSub(&sums[7], 1);
}

cudaError_t launch_atomics(int *sums, cudaStream_t s)
{
    return sim_launch("atomics", atomics_kernel, 4, 100, 0, s, sums);
}

/* ---- tensor cores ---- */

static uint32_t two(const uint16_t *low, const uint16_t *high)
{
    return (uint32_t)*high << 16 | *low;
}

template <bool F16>
static __global__ void mma_kernel(const uint16_t *a, const uint16_t *b, const float *c, float *d)
{
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    uint32_t ar[4], br[2];
    float cr[4];
    for (int r = 0; r < 4; r++) {
        const uint16_t *at = a + (g + 8 * (r % 2)) * 16 + 2 * t + 8 * (r / 2);
        ar[r] = two(at, at + 1);
        cr[r] = c[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2];
    }
    for (int r = 0; r < 2; r++) {
        const uint16_t *bt = b + (2 * t + 8 * r) * 8 + g;
        br[r] = two(bt, bt + 8);
    }
    if (F16)
        sim_mma_m16n8k16_f16(cr, ar, br, cr);
    else
        sim_mma_m16n8k16_bf16(cr, ar, br, cr);
    for (int r = 0; r < 4; r++) d[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = cr[r];
}

cudaError_t launch_mma(bool f16, const uint16_t *a, const uint16_t *b, const float *c, float *d,
                       cudaStream_t s)
{
    return sim_launch("mma", f16 ? mma_kernel<true> : mma_kernel<false>, 1, 32, 0, s, a, b, c, d);
}

/* A through ldmatrix.x4, B (row-major, so transposed) through ldmatrix.x2.trans. */
static __global__ void ldmatrix_kernel(const uint16_t *a, const uint16_t *b, const float *c,
                                       float *d)
{
    __shared__ __align__(16) uint16_t sa[16 * 16], sb[16 * 8];
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 256; i += 32) sa[i] = a[i];
    for (int i = lane; i < 128; i += 32) sb[i] = b[i];
    __syncwarp();
    uint32_t ar[4], br[2];
    sim_ldmatrix_x4(ar, &sa[(lane % 16) * 16 + lane / 16 * 8]);
    sim_ldmatrix_x2_trans(br, &sb[(lane % 16) * 8]);
    float cr[4];
    for (int r = 0; r < 4; r++) cr[r] = c[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2];
    sim_mma_m16n8k16_bf16(cr, ar, br, cr);
    for (int r = 0; r < 4; r++) d[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = cr[r];
}

cudaError_t launch_mma_ldmatrix(const uint16_t *a, const uint16_t *b, const float *c, float *d,
                                cudaStream_t s)
{
    return sim_launch("ldmatrix", ldmatrix_kernel, 1, 32, 0, s, a, b, c, d);
}

/* One warp; lanes 0..7 copy 16 bytes each, all 32 write a float each. */
template <bool BROKEN> static __global__ void async_kernel(const float *x, float *y, int n_tiles)
{
    __shared__ __align__(16) float tile[2][32];
    int lane = (int)threadIdx.x;
    auto fetch = [&](int i) {
        if (lane < 8 && i < n_tiles)
            sim_cp_async_16(&tile[i % 2][4 * lane], x + 32 * i + 4 * lane, true);
        sim_cp_async_commit();
    };
    fetch(0);
    for (int i = 0; i < n_tiles; i++) {
        fetch(i + 1);
        if (!BROKEN) sim_cp_async_wait_group(1);
        __syncwarp();
        y[32 * i + lane] = tile[i % 2][lane];
        __syncwarp();
    }
}

cudaError_t launch_async_copy(bool broken, const float *x, float *y, int n_tiles, cudaStream_t s)
{
    return sim_launch("async_copy", broken ? async_kernel<true> : async_kernel<false>, 1, 32, 0, s,
                      x, y, n_tiles);
}

/* ---- mistakes ---- */

static __attribute__((noinline)) int deep(volatile char *below)
{
    volatile char frame[4096];
    frame[0] = below ? below[0] : 1;
    return frame[0] ? deep(frame) + frame[0] : 0; /* never 0 */
}

static __global__ void mistake_kernel(enum mistake m, float *p, size_t n)
{
    int t = (int)threadIdx.x;
    switch (m) {
    case MISTAKE_HALF_BARRIER:
        if (t >= 32) return;
        __syncthreads();
        break;
    case MISTAKE_TWO_BARRIERS:
        if (t >= 32)
            __syncthreads();
        else
            __syncthreads();
        break;
    case MISTAKE_MISSING_LANE:
        if (t == 40) return;
        p[0] = __shfl_sync(ALL, 1.0f, 0);
        break;
    case MISTAKE_MASKS_DIFFER: __syncwarp(t % 32 == 0 ? 3u : ALL); break;
    case MISTAKE_NOT_IN_MASK: __syncwarp(0xfffffffeu); break;
    case MISTAKE_BEYOND:
        if (t == 0) p[n] = 1;
        break;
    case MISTAKE_FAR_BEYOND:
        if (t == 0) p[n + 256] = 1;
        break;
    case MISTAKE_SHARED_BEYOND: ((volatile float *)sim_dynamic_shared())[n + 1024] = 1; break;
    case MISTAKE_DEEP_STACK: p[0] = (float)deep(nullptr); break;
    case MISTAKE_UNALIGNED: p[0] = (*(const float2 *)(p + 1)).x; break;
    }
}

cudaError_t launch_mistake(enum mistake m, float *p, size_t n, cudaStream_t s)
{
    size_t shared = m == MISTAKE_SHARED_BEYOND ? n * sizeof(float) : 0;
    return sim_launch("mistake", mistake_kernel, 1, 64, shared, s, m, p, n);
}

static __global__ void add_one_kernel(const float *x, float *y, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}

cudaError_t launch_add_one(const float *x, float *y, size_t n, cudaStream_t s)
{
    return sim_launch("add_one", add_one_kernel, (unsigned)((n + 63) / 64), 64, 0, s, x, y, n);
}

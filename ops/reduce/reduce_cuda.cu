/* scan and sumsq on a GPU. Limit: memory, an element read once. What they find is a handful of
 * integers: the bits of a maximum, an index, limbs of an exact sum. Integer atomics bring the
 * blocks' together, in any order with the same result. */
#include "device/cuda/packs.h"
#include "ops/cuda_impl.h"
#include "ops/reduce/reduce_impl.h"
#include "ops/step/step_grid_impl.h"

#define BLOCK 256
#define PACKS 4 /* of 16 bytes, under way in a thread */
#define WARPS (BLOCK / CUDA_WARP)

/* Elements of a pack of 16 bytes. */
template <typename T> struct lanes_of {
    static constexpr int N = (int)(16 / sizeof(T));
};

/* ---- scan -------------------------------------------------------------------------------------
 */

#define INFINITY_BITS 0x7f800000u

/* Zero says: nothing but zeros. */
struct scan_found {
    unsigned max_bits; /* of the largest finite magnitude */
    unsigned unused;
    unsigned long long not_first; /* ~index of the first that is not finite; 0: all are */
};

/* What one pack says; lanes that are no elements are 0. */
template <int N>
CUDA_FN void scan_pack(const float *x, int64_t at, unsigned *most, unsigned long long *not_first)
{
    unsigned bits[N], all = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        bits[i] = __float_as_uint(x[i]) & 0x7fffffffu;
        all = max(all, bits[i]);
    }
    if (all < INFINITY_BITS) {
        *most = max(*most, all);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (bits[i] < INFINITY_BITS)
            *most = max(*most, bits[i]);
        else
            *not_first = max(*not_first, ~(unsigned long long)(at + i));
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    scan_kernel(const T *x, size_t numel, unsigned lead, struct scan_found *found)
{
    constexpr int N = lanes_of<T>::N;
    __shared__ unsigned room[WARPS];
    const size_t n_packs = packs_count(numel, lead, N);
    const size_t stride = (size_t)gridDim.x * (BLOCK * PACKS);
    unsigned most = 0;
    unsigned long long not_first = 0;
    for (size_t k = (size_t)blockIdx.x * (BLOCK * PACKS) + threadIdx.x; k < n_packs; k += stride) {
        float v[PACKS][N];
#pragma unroll
        for (int j = 0; j < PACKS; j++)
            packs_load<N>(x, packs_at<N>(k + j * BLOCK, lead), numel, v[j]);
#pragma unroll
        for (int j = 0; j < PACKS; j++)
            scan_pack<N>(v[j], packs_at<N>(k + j * BLOCK, lead), &most, &not_first);
    }
    if (not_first != 0) atomicMax(&found->not_first, not_first);
    most = __reduce_max_sync(CUDA_ALL_LANES, most);
    if (threadIdx.x % CUDA_WARP == 0) room[threadIdx.x / CUDA_WARP] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < WARPS; w++) most = max(most, room[w]);
    if (most != 0) atomicMax(&found->max_bits, most);
}

static void scan_take(const void *values, void *to)
{
    const struct scan_found *found = (const struct scan_found *)values;
    struct scan_result *result = (struct scan_result *)to;
    result->max_abs = f32_from_bits(found->max_bits);
    result->finite = found->not_first == 0;
    result->first_nonfinite = found->not_first == 0 ? 0 : ~found->not_first;
}

static unsigned blocks_for(const struct ops *ops, size_t numel, unsigned lead, unsigned n)
{
    return step_blocks(packs_count(numel, lead, n), BLOCK * PACKS,
                       ops->cuda->info.n_multiprocessors);
}

static cz_status scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a)
{
    struct cuda_result *result;
    TRY(reduce_check_scan(a));
    TRY(cuda_result_begin(ops, stream, &result));
    if (a->numel > 0)
        CUDA_BY_DTYPE(a->dtype, T, {
            const unsigned lead = packs_lead(a->x, sizeof(T), lanes_of<T>::N);
            TRY(cuda_launch("scan", scan_kernel<T>, blocks_for(ops, a->numel, lead, lanes_of<T>::N),
                            BLOCK, 0, stream, (const T *)a->x, a->numel, lead,
                            (struct scan_found *)result->device));
        });
    return cuda_result_deliver(stream, result, scan_take, a->result);
}

/* ---- sumsq ------------------------------------------------------------------------------------
 */

typedef unsigned __int128 wide;

/* Sums of limbs of 32 bits, which blocks add to: up to 2^32 blocks. */
struct sumsq_found {
    unsigned long long limbs[SUMSQ_PARTS];
};

/* Integers in a double: x + MAGIC has the integer nearest to x (ties to even) in its low bits. */
#define MAGIC 0x1.8p52

CUDA_FN long long magic_count(double x)
{
    return __double_as_longlong(x) - __double_as_longlong(MAGIC);
}

/* A square in units of the coarse grid, then its rest in units of the fine one: both counts are
 * those of the definition, since everything but the two roundings is exact. */
CUDA_FN void sumsq_add(float x, double root, long long *coarse, long long *fine)
{
    const double scaled = (double)x * root; /* x/√coarse: a power of two */
    const double whole = fma(scaled, scaled, MAGIC);
    const double rest = fma(scaled, scaled, -(whole - MAGIC));
    *coarse += magic_count(whole);
    *fine += magic_count(fma(rest, (double)(1ull << SUMSQ_COARSE_BITS), MAGIC));
}

CUDA_FN wide wide_xor_lanes(wide x, int lane)
{
    const unsigned long long low = __shfl_xor_sync(CUDA_ALL_LANES, (unsigned long long)x, lane);
    const unsigned long long high =
        __shfl_xor_sync(CUDA_ALL_LANES, (unsigned long long)(x >> 64), lane);
    return (wide)high << 64 | low;
}

/* Adds the block's sum to the limbs. All threads call. */
CUDA_FN void sumsq_block(wide sum, struct sumsq_found *found)
{
    __shared__ unsigned long long room[WARPS][2];
#pragma unroll
    for (int lane = CUDA_WARP / 2; lane > 0; lane /= 2) sum += wide_xor_lanes(sum, lane);
    if (threadIdx.x % CUDA_WARP == 0) {
        room[threadIdx.x / CUDA_WARP][0] = (unsigned long long)sum;
        room[threadIdx.x / CUDA_WARP][1] = (unsigned long long)(sum >> 64);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < WARPS; w++) sum += (wide)room[w][1] << 64 | room[w][0];
    for (int i = 0; i < SUMSQ_PARTS; i++)
        atomicAdd(&found->limbs[i], (unsigned long long)(unsigned)(sum >> (32 * i)));
}

/* A thread's counts stay within 64 bits for 2^22 elements: 2^35 per multiprocessor. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    sumsq_kernel(const T *x, size_t numel, unsigned lead, double root, struct sumsq_found *found)
{
    constexpr int N = lanes_of<T>::N;
    const size_t n_packs = packs_count(numel, lead, N);
    const size_t stride = (size_t)gridDim.x * (BLOCK * PACKS);
    long long coarse = 0, fine = 0;
    for (size_t k = (size_t)blockIdx.x * (BLOCK * PACKS) + threadIdx.x; k < n_packs; k += stride) {
        float v[PACKS][N];
#pragma unroll
        for (int j = 0; j < PACKS; j++)
            packs_load<N>(x, packs_at<N>(k + j * BLOCK, lead), numel, v[j]);
#pragma unroll
        for (int j = 0; j < PACKS; j++)
#pragma unroll
            for (int i = 0; i < N; i++) sumsq_add(v[j][i], root, &coarse, &fine);
    }
    sumsq_block(((wide)(__int128)coarse << SUMSQ_COARSE_BITS) + (wide)(__int128)fine, found);
}

/* The same additions as the host's front door: one sum, then its limbs. */
static void sumsq_take(const void *values, void *to)
{
    const struct sumsq_found *found = (const struct sumsq_found *)values;
    double *parts = (double *)to;
    wide total = 0;
    for (int i = 0; i < SUMSQ_PARTS; i++) total += (wide)found->limbs[i] << (32 * i);
    for (int i = 0; i < SUMSQ_PARTS; i++) parts[i] += (double)(uint32_t)(total >> (32 * i));
}

static cz_status sumsq(struct ops *ops, struct dev_stream *stream, const struct sumsq_args *a)
{
    struct cuda_result *result;
    TRY(reduce_check_sumsq(a));
    if (a->max_abs == 0 || a->numel == 0) return CZ_OK;           /* nothing but zeros */
    const double root = 1 / sqrt(reduce_grid(a->max_abs).coarse); /* exact: a power of four */
    TRY(cuda_result_begin(ops, stream, &result));
    CUDA_BY_DTYPE(a->dtype, T, {
        const unsigned lead = packs_lead(a->x, sizeof(T), lanes_of<T>::N);
        TRY(cuda_launch("sumsq", sumsq_kernel<T>, blocks_for(ops, a->numel, lead, lanes_of<T>::N),
                        BLOCK, 0, stream, (const T *)a->x, a->numel, lead, root,
                        (struct sumsq_found *)result->device));
    });
    return cuda_result_deliver(stream, result, sumsq_take, a->parts);
}

extern "C" cz_status reduce_wire_cuda(struct ops *ops)
{
    ops->scan = scan;
    ops->sumsq = sumsq;
    return CZ_OK;
}

/* The scan on a GPU: one kernel for the largest and the first that is not finite, one for the
 * squares. Limit: memory, an element read once by each; the squares take some twenty integer
 * instructions an element besides, since many GPUs have hardly any arithmetic in doubles. What they
 * find is a handful of integers: the bits of a maximum, an index, limbs of an exact sum. Integer
 * atomics bring the blocks' together, in any order with the same result. */
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

/* ---- squares ----------------------------------------------------------------------------------
 */

typedef unsigned __int128 wide;

/* The sum in limbs of 32 bits, each with as much space above: units as in ops/reduce/reduce.h. */
#define LIMBS 21 /* whole groups of three, which are two digits */

struct squares_found {
    unsigned long long limbs[LIMBS];
};

/* Squares that a thread has added up: sum·2^at units. One is added to others if its lowest bit is
 * at `at` or up to REACH above: then 2³² of them stay within 128 bits. */
struct thread_squares {
    wide sum;
    int at;
};
#define REACH 48
#define BELOW 36 /* of the reach: what is as much smaller than the square that decided about it */

/* Adds a thread's sum to the block's limbs. */
CUDA_FN void thread_squares_flush(const struct thread_squares *s, unsigned long long *limbs)
{
    const int first = s->at / 32, shift = s->at % 32;
    const wide low = s->sum << shift, high = shift > 0 ? s->sum >> (128 - shift) : 0;
    if (s->sum == 0) return;
    for (int i = 0; i < 4; i++)
        atomicAdd(&limbs[first + i], (unsigned long long)(unsigned)(low >> (32 * i)));
    if (high != 0) atomicAdd(&limbs[first + 4], (unsigned long long)high);
}

/* Gradients of a thread's share seldom differ by more than the reach: then this is a shift and an
 * addition. */
CUDA_FN void thread_squares_add(float x, struct thread_squares *s, unsigned long long *limbs)
{
    const struct float_square square = float_square(__float_as_uint(x));
    if (square.mantissa == 0) return;
    if (square.shift < s->at || square.shift > s->at + REACH) {
        thread_squares_flush(s, limbs);
        s->sum = 0;
        s->at = square.shift > BELOW ? square.shift - BELOW : 0;
    }
    s->sum += (wide)square.mantissa << (square.shift - s->at);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    squares_kernel(const T *x, size_t numel, unsigned lead, struct squares_found *found)
{
    constexpr int N = lanes_of<T>::N;
    __shared__ unsigned long long limbs[LIMBS];
    const size_t n_packs = packs_count(numel, lead, N);
    const size_t stride = (size_t)gridDim.x * (BLOCK * PACKS);
    struct thread_squares s = {0, 0};
    if (threadIdx.x < LIMBS) limbs[threadIdx.x] = 0;
    __syncthreads();
    for (size_t k = (size_t)blockIdx.x * (BLOCK * PACKS) + threadIdx.x; k < n_packs; k += stride) {
        float v[PACKS][N];
#pragma unroll
        for (int j = 0; j < PACKS; j++)
            packs_load<N>(x, packs_at<N>(k + j * BLOCK, lead), numel, v[j]);
#pragma unroll
        for (int j = 0; j < PACKS; j++)
#pragma unroll
            for (int i = 0; i < N; i++) thread_squares_add(v[j][i], &s, limbs);
    }
    thread_squares_flush(&s, limbs);
    __syncthreads();
    if (threadIdx.x != 0) return;
    /* Carried first, so that 2³² blocks can add theirs. */
    for (unsigned long long i = 0, carry = 0; i < LIMBS; i++) {
        const unsigned long long limb = limbs[i] + carry;
        if ((unsigned)limb != 0) atomicAdd(&found->limbs[i], (unsigned long long)(unsigned)limb);
        carry = limb >> 32;
    }
}

/* Three limbs are two digits. */
static void squares_take(const void *values, void *to)
{
    const struct squares_found *found = (const struct squares_found *)values;
    struct squares_sum sum = {{0}};
    unsigned long long limb[LIMBS], carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        const unsigned long long all = found->limbs[i] + carry;
        limb[i] = (unsigned)all;
        carry = all >> 32;
    }
    for (int i = 0; i < LIMBS / 3; i++) {
        const wide two = (wide)limb[3 * i + 2] << 64 | limb[3 * i + 1] << 32 | limb[3 * i];
        if (2 * i < SQUARES_DIGITS) sum.counts[2 * i] = (__int128)(two & SQUARES_DIGIT_MASK);
        if (2 * i + 1 < SQUARES_DIGITS)
            sum.counts[2 * i + 1] = (__int128)(two >> SQUARES_DIGIT_BITS);
    }
    squares_carry((uint64_t *)to, &sum);
}

/* ---- both --------------------------------------------------------------------------------------
 */

static cz_status begin_scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a)
{
    struct cuda_result *result;
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

static cz_status begin_squares(struct ops *ops, struct dev_stream *stream,
                               const struct scan_args *a)
{
    struct cuda_result *result;
    TRY(cuda_result_begin(ops, stream, &result));
    CUDA_BY_DTYPE(a->dtype, T, {
        const unsigned lead = packs_lead(a->x, sizeof(T), lanes_of<T>::N);
        TRY(cuda_launch("squares", squares_kernel<T>,
                        blocks_for(ops, a->numel, lead, lanes_of<T>::N), BLOCK, 0, stream,
                        (const T *)a->x, a->numel, lead, (struct squares_found *)result->device));
    });
    return cuda_result_deliver(stream, result, squares_take, a->squares);
}

static cz_status scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a)
{
    TRY(reduce_check_scan(a));
    TRY(begin_scan(ops, stream, a));
    return a->squares && a->numel > 0 ? begin_squares(ops, stream, a) : CZ_OK;
}

extern "C" cz_status reduce_wire_cuda(struct ops *ops)
{
    ops->scan = scan;
    return CZ_OK;
}

/* Lamb's exact sums on a GPU, and which block works on what: for the twins of Lamb and 1-bit Lamb.
 *
 * Squares go to grids of doubles (lamb_impl.h) whose additions are exact, so their order does not
 * show and needs no atomics: a thread keeps the LAMB_TOP highest grids that it has met, a block
 * adds up its threads', and leaves a partial in the scratch; a second kernel adds up the partials
 * of each tensor. Grids below the LAMB_TOP highest are dropped when a larger square comes:
 * lamb_sum() does not look at them. */
#ifndef CZ_OPS_LAMB_LAMB_SUMS_CUDA_IMPL_H
#define CZ_OPS_LAMB_LAMB_SUMS_CUDA_IMPL_H

#include "ops/lamb/lamb_batch_impl.h"
#include "ops/lamb/lamb_impl.h"
#include "ops/step/step_cuda_impl.h"

/* ---- sums of a thread ------------------------------------------------------------------------ */

struct lamb_acc {
    double grids[LAMB_TOP]; /* grid top − k */
    double odd;             /* squares that are infinite or NaN */
    double unit;            /* of the top grid */
    int top;
};

CUDA_FN void lamb_acc_clear(struct lamb_acc *acc)
{
    *acc = {{0, 0, 0, 0}, 0, lamb_unit(0), 0};
}

/* Make space for grids up to `top`. */
CUDA_FN void lamb_acc_raise(struct lamb_acc *acc, int top)
{
    for (; acc->top < top; acc->top++) {
#pragma unroll
        for (int k = LAMB_TOP - 1; k > 0; k--) acc->grids[k] = acc->grids[k - 1];
        acc->grids[0] = 0;
    }
    acc->unit = lamb_unit(acc->top);
}

/* The largest square of N elements. A NaN counts as the largest. */
template <int N> CUDA_FN double lamb_largest(const float *x)
{
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
    const double root = (double)__uint_as_float(most);
    return root * root;
}

/* Elements that do not fit the grids in use: rare. What is not finite becomes 0 and counts as odd.
 */
template <int N> CUDA_FN void lamb_acc_meet(struct lamb_acc *acc, float *x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((__float_as_uint(x[i]) & 0x7fffffffu) >= 0x7f800000u) {
            acc->odd += (double)x[i] * (double)x[i];
            x[i] = 0;
        }
    lamb_acc_raise(acc, lamb_top_grid(lamb_largest<N>(x)));
}

/* Add the squares of N elements. x is changed. */
template <int N> CUDA_FN void lamb_acc_take(struct lamb_acc *acc, float *x)
{
    /* not above what rounds to 0 on the grid above the top one (lamb_top_grid) */
    if (!(lamb_largest<N>(x) <= acc->unit * (double)(1 << (LAMB_GRID_BITS - 1))))
        lamb_acc_meet<N>(acc, x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        double square = (double)x[i] * (double)x[i];
#pragma unroll
        for (int k = 0; k < LAMB_TOP; k++) { /* lamb_deposit(); exact powers of two */
            const double c = acc->unit * (0x1.8p52 / (double)(1ull << (LAMB_GRID_BITS * k)));
            const double whole = square + c - c;
            acc->grids[k] += whole;
            square -= whole;
        }
    }
}

/* ---- of a block, of a tensor ----------------------------------------------------------------- */

/* What a block leaves: of p (or u0) and of u. */
struct lamb_partial {
    double grids[2][LAMB_TOP];
    double odd[2];
    int top[2];
    float factor; /* 1-bit Lamb's largest; not negative */
};
static_assert((LAMB_BLOCKS + LAMB_BATCH) * sizeof(struct lamb_partial) <= CUDA_SCRATCH_NBYTES,
              "the partials of a launch fit the scratch");

CUDA_FN void lamb_acc_join(struct lamb_acc *acc, const struct lamb_partial *from, int half)
{
    struct lamb_acc other = {{0, 0, 0, 0}, 0, 0, from->top[half]};
#pragma unroll
    for (int k = 0; k < LAMB_TOP; k++) other.grids[k] = from->grids[half][k];
    lamb_acc_raise(acc, other.top);
    lamb_acc_raise(&other, acc->top);
#pragma unroll
    for (int k = 0; k < LAMB_TOP; k++) acc->grids[k] += other.grids[k];
    acc->odd += from->odd[half];
}

/* The same bits in every lane: exact, or a sum of what is not finite. */
CUDA_FN double lamb_warp_sum(double x)
{
#pragma unroll
    for (int lane = CUDA_WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(CUDA_ALL_LANES, x, lane);
    return x;
}

/* Add up the block's threads; the result is thread 0's. All STEP_BLOCK threads call. */
CUDA_FN void lamb_acc_block(struct lamb_acc *acc)
{
    enum { WARPS = STEP_BLOCK / CUDA_WARP };
    __shared__ double sums[WARPS][LAMB_TOP + 1];
    __shared__ int tops[WARPS];
    const unsigned lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
    int top = __reduce_max_sync(CUDA_ALL_LANES, acc->top);
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) top = max(top, tops[w]);
    lamb_acc_raise(acc, top);
#pragma unroll
    for (int k = 0; k <= LAMB_TOP; k++) {
        const double sum = lamb_warp_sum(k < LAMB_TOP ? acc->grids[k] : acc->odd);
        if (lane == 0) sums[warp][k] = sum;
    }
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < WARPS; w++) {
#pragma unroll
        for (int k = 0; k < LAMB_TOP; k++) sums[0][k] += sums[w][k];
        sums[0][LAMB_TOP] += sums[w][LAMB_TOP];
    }
    if (threadIdx.x == 0) {
#pragma unroll
        for (int k = 0; k < LAMB_TOP; k++) acc->grids[k] = sums[0][k];
        acc->odd = sums[0][LAMB_TOP];
    }
    __syncthreads(); /* `room` is free again */
}

/* What the block's threads found, written to its partial by thread 0. */
CUDA_FN void lamb_partial_write(struct lamb_partial *out, struct lamb_acc *p, struct lamb_acc *u,
                                float factor)
{
    lamb_acc_block(p);
    lamb_acc_block(u);
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int k = 0; k < LAMB_TOP; k++)
        out->grids[0][k] = p->grids[k], out->grids[1][k] = u->grids[k];
    out->odd[0] = p->odd, out->odd[1] = u->odd;
    out->top[0] = p->top, out->top[1] = u->top;
    out->factor = factor;
}

CUDA_FN void lamb_acc_deposit(const struct lamb_acc *acc, double *grids)
{
#pragma unroll
    for (int k = 0; k < LAMB_TOP; k++)
        if (acc->top >= k) grids[acc->top - k] += acc->grids[k];
    if (acc->odd != 0) grids[LAMB_GRIDS - 1] += acc->odd; /* NaN, too */
}

/* A block per segment: its partials are added to its tensor's sums. Tensors of a batch differ. */
static __global__ void __launch_bounds__(STEP_BLOCK)
    lamb_sums_kernel(const __grid_constant__ struct lamb_batch batch,
                     const struct lamb_partial *partials, struct lamb_sums *sums, float *factors)
{
    struct lamb_acc p, u;
    const unsigned s = blockIdx.x;
    float factor = 0;
    lamb_acc_clear(&p), lamb_acc_clear(&u);
    for (unsigned i = batch.first_block[s] + threadIdx.x; i < batch.first_block[s + 1];
         i += STEP_BLOCK) {
        lamb_acc_join(&p, &partials[i], 0);
        lamb_acc_join(&u, &partials[i], 1);
        factor = fmaxf(factor, partials[i].factor);
    }
    lamb_acc_block(&p);
    lamb_acc_block(&u);
    if (factors) {
        __shared__ float per_warp[CUDA_WARP];
        factor = block_reduce<max_of>(factor, per_warp);
    }
    if (threadIdx.x != 0) return;
    lamb_acc_deposit(&p, sums[batch.tensor[s]].p);
    lamb_acc_deposit(&u, sums[batch.tensor[s]].u);
    if (factors) factors[batch.tensor[s]] = fmaxf(factors[batch.tensor[s]], factor);
}

/* ---- a block's part -------------------------------------------------------------------------- */

/* The segment that a block of a batch works on, and its elements [*begin, *end). */
CUDA_FN unsigned lamb_block_range(const struct lamb_batch &batch, size_t *begin, size_t *end)
{
    unsigned lo = 0, hi = batch.n;
    while (hi - lo > 1) {
        const unsigned middle = (lo + hi) / 2;
        if (batch.first_block[middle] <= blockIdx.x)
            lo = middle;
        else
            hi = middle;
    }
    *begin = batch.begin[lo] + (size_t)(blockIdx.x - batch.first_block[lo]) * batch.span;
    *end = min(batch.end[lo], *begin + batch.span);
    return lo;
}

#endif

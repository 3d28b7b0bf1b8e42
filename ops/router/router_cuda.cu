/* Mixtures of experts on a GPU. Probabilities are within rounding of the scalar row (sums in
 * trees); sorting, counting and adding rows have its bits. Limit: memory. */
#include "device/cuda/kernel.h"
#include "ops/cuda_impl.h"
#include "ops/router/router_impl.h"

#include <math.h>

#define BLOCK 256
#define WARPS (BLOCK / CUDA_WARP) /* a token or row each, where a warp takes one */

/* ---- router_forward ------------------------------------------------------------------------- */

/* The better of two candidates: more probable, the first of equals; −1 is none. */
CUDA_FN bool is_better(float p, int e, float best_p, int best)
{
    return e >= 0 && (best < 0 || p > best_p || (p == best_p && e < best));
}

/* All lanes get the next expert after `last` of probability `bound`; k where there are no numbers
 * to compare. */
CUDA_FN int next_expert(const float *probs, int E, int k, int last, float bound)
{
    const int lane = (int)threadIdx.x;
    float best_p = -INFINITY;
    int best = -1;
    for (int e = lane; e < E; e += CUDA_WARP) {
        const float p = probs[e];
        const bool is_after = k == 0 ? p == p : p < bound || (p == bound && e > last);
        if (is_after && is_better(p, e, best_p, best)) best_p = p, best = e;
    }
#pragma unroll
    for (int other = CUDA_WARP / 2; other > 0; other /= 2) {
        const float p = __shfl_xor_sync(CUDA_ALL_LANES, best_p, other);
        const int e = __shfl_xor_sync(CUDA_ALL_LANES, best, other);
        if (is_better(p, e, best_p, best)) best_p = p, best = e;
    }
    return best < 0 ? k : best;
}

/* A token per warp. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK) router_forward_kernel(struct router_args a)
{
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (n >= a.N) return;
    const int lane = (int)threadIdx.x, E = (int)a.E, K = (int)a.K;
    const T *logits = (const T *)a.logits + n * E;
    float *probs = a.probs + n * E, *weights = a.weights + n * K;
    int32_t *experts = a.experts + n * K;
    float max = -INFINITY, sum = 0;
    for (int e = lane; e < E; e += CUDA_WARP) max = fmaxf(max, to_f32(logits[e]));
    max = warp_reduce<max_of>(max);
    for (int e = lane; e < E; e += CUDA_WARP) sum += expf(to_f32(logits[e]) - max);
    sum = warp_reduce<sum_of>(sum);
    for (int e = lane; e < E; e += CUDA_WARP) probs[e] = expf(to_f32(logits[e]) - max) / sum;
    __syncwarp();
    float chosen = 0, bound = 0;
    int last = 0;
    for (int k = 0; k < K; k++) {
        last = next_expert(probs, E, k, last, bound);
        bound = probs[last];
        chosen += bound;
        if (lane == 0) experts[k] = last, weights[k] = bound;
    }
    if (lane > 0) return;
    for (int k = 0; k < K; k++)
        weights[k] = to_f32(from_f32<T>(a.normalised ? weights[k] / chosen : weights[k]));
}

static cz_status router_forward(struct ops *ops, struct dev_stream *stream,
                                const struct router_args *a)
{
    (void)ops;
    TRY(router_check(a));
    if (a->N == 0) return CZ_OK;
    const dim3 block(CUDA_WARP, WARPS);
    CUDA_BY_DTYPE(a->dtype, T, {
        return cuda_launch("router_forward", router_forward_kernel<T>,
                           cuda_blocks((size_t)a->N, WARPS), block, 0, stream, *a);
    });
    return CZ_OK;
}

/* ---- router_backward ------------------------------------------------------------------------ */

CUDA_FN float prob_grad(const struct router_grad_args &a, float dweight, float sum, float mean)
{
    return a.normalised ? (dweight - mean) / sum : dweight;
}

/* A token per warp; what its K choices need is little, and made by every lane. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK) router_backward_kernel(struct router_grad_args a)
{
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (n >= a.N) return;
    const int lane = (int)threadIdx.x, E = (int)a.E, K = (int)a.K;
    const float *probs = a.probs + n * E, *dweights = a.dweights + n * K;
    const float *dprobs = a.counts && !a.counts[n] ? nullptr : a.dprobs;
    const int32_t *experts = a.experts + n * K;
    T *dlogits = (T *)a.dlogits + n * E;
    float sum = 0, mean = 0, inner = 0, balance = 0;
    for (int k = 0; k < K; k++) {
        sum += probs[experts[k]];
        mean += dweights[k] * probs[experts[k]];
    }
    mean /= sum;
    for (int k = 0; k < K; k++) inner += probs[experts[k]] * prob_grad(a, dweights[k], sum, mean);
    for (int e = lane; dprobs && e < E; e += CUDA_WARP) balance += probs[e] * dprobs[e];
    inner += warp_reduce<sum_of>(balance);
    for (int e = lane; e < E; e += CUDA_WARP) {
        float dp = dprobs ? dprobs[e] : 0;
        for (int k = 0; k < K; k++)
            if (experts[k] == e) dp += prob_grad(a, dweights[k], sum, mean);
        dlogits[e] = from_f32<T>(probs[e] * (dp - inner));
    }
}

static cz_status router_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct router_grad_args *a)
{
    (void)ops;
    TRY(router_grad_check(a));
    if (a->N == 0) return CZ_OK;
    const dim3 block(CUDA_WARP, WARPS);
    CUDA_BY_DTYPE(a->dtype, T, {
        return cuda_launch("router_backward", router_backward_kernel<T>,
                           cuda_blocks((size_t)a->N, WARPS), block, 0, stream, *a);
    });
    return CZ_OK;
}

/* ---- router_sort ---------------------------------------------------------------------------- */

/* A block per expert, a stretch of the choices per thread: counted, then written behind those of
 * the threads before. */
static __global__ void __launch_bounds__(BLOCK) router_sort_kernel(struct router_sort_args a)
{
    __shared__ int32_t smaller[BLOCK], equal[BLOCK];
    const int expert = (int)blockIdx.x;
    const int64_t n_choices = a.N * a.K, part = (n_choices + BLOCK - 1) / BLOCK;
    const int64_t begin = (int64_t)threadIdx.x * part;
    const int64_t end = begin + part < n_choices ? begin + part : n_choices;
    int32_t n_smaller = 0, n_equal = 0;
    for (int64_t i = begin; i < end; i++) {
        n_smaller += a.experts[i] < expert;
        n_equal += a.experts[i] == expert;
    }
    smaller[threadIdx.x] = n_smaller;
    equal[threadIdx.x] = n_equal;
    __syncthreads();
    int32_t start = 0, place = 0;
    for (int t = 0; t < BLOCK; t++) {
        start += smaller[t];
        if (t < (int)threadIdx.x) place += equal[t];
    }
    place += start;
    if (threadIdx.x == 0) a.starts[expert] = start;
    if (threadIdx.x == 0 && expert + 1 == a.E) a.starts[a.E] = (int32_t)n_choices;
    for (int64_t i = begin; i < end; i++) {
        if (a.experts[i] != expert) continue;
        a.choices[place] = (int32_t)i;
        a.tokens[place] = (int32_t)(i / a.K);
        place++;
    }
}

static cz_status router_sort(struct ops *ops, struct dev_stream *stream,
                             const struct router_sort_args *a)
{
    (void)ops;
    TRY(router_sort_check(a));
    return cuda_launch("router_sort", router_sort_kernel, (unsigned)a->E, BLOCK, 0, stream, *a);
}

/* ---- router_balance -------------------------------------------------------------------------- */

#define EXPERTS_BLOCK 64

/* Counts and probabilities of an expert per thread over a block of tokens, in order; expert E
 * stands for the number of tokens that count. partial (n_blocks, 2, E+1). */
static __global__ void __launch_bounds__(EXPERTS_BLOCK)
    balance_block_kernel(struct router_balance_args a, int64_t per_block, float *partial)
{
    const int64_t e = (int64_t)blockIdx.x * EXPERTS_BLOCK + threadIdx.x, E = a.E;
    if (e > E) return;
    const int64_t first = blockIdx.y * per_block;
    const int64_t end = first + per_block < a.N ? first + per_block : a.N;
    float count = 0, sum = 0;
    for (int64_t n = first; n < end; n++) {
        if (a.counts && !a.counts[n]) continue;
        if (e == E) {
            count += 1.0f;
            continue;
        }
        sum += a.probs[n * E + e];
        for (int64_t k = 0; k < a.K; k++) count += a.experts[n * a.K + k] == (int32_t)e ? 1.0f : 0;
    }
    float *row = partial + (int64_t)blockIdx.y * 2 * (E + 1);
    row[e] = count;
    row[E + 1 + e] = sum;
}

static __global__ void __launch_bounds__(EXPERTS_BLOCK)
    balance_join_kernel(int64_t E, int64_t n_blocks, const float *partial, float *balance)
{
    const int64_t e = (int64_t)blockIdx.x * EXPERTS_BLOCK + threadIdx.x;
    if (e > E) return;
    float count = 0, sum = 0;
    for (int64_t block = 0; block < n_blocks; block++) {
        count += partial[block * 2 * (E + 1) + e];
        sum += partial[block * 2 * (E + 1) + E + 1 + e];
    }
    balance[e == E ? 3 * E : e] += count;
    if (e < E) balance[E + e] += sum;
}

static_assert(2 * OPS_BLOCKS_MAX * (ROUTER_EXPERTS_MAX + 1) * sizeof(float) <= CUDA_SCRATCH_NBYTES,
              "partial sums of the most experts fit the scratch");

static cz_status router_balance(struct ops *ops, struct dev_stream *stream,
                                const struct router_balance_args *a)
{
    TRY(router_balance_check(a));
    if (a->N == 0) return CZ_OK;
    void *partial;
    TRY(cuda_scratch(ops, stream, &partial));
    const int64_t per_block = ops_block_rows(a->N), n_blocks = ops_n_blocks(a->N);
    const unsigned groups = cuda_blocks((size_t)a->E + 1, EXPERTS_BLOCK);
    TRY(cuda_launch("router_balance", balance_block_kernel, dim3(groups, (unsigned)n_blocks),
                    EXPERTS_BLOCK, 0, stream, *a, per_block, (float *)partial));
    return cuda_launch("router_balance", balance_join_kernel, groups, EXPERTS_BLOCK, 0, stream,
                       a->E, n_blocks, (const float *)partial, a->balance);
}

/* One thread: a loss of one number, once per pass. */
static __global__ void balance_loss_kernel(struct router_balance_loss_args a)
{
    const int64_t E = a.E;
    const float n = a.balance[3 * E];
    float sum = 0;
    for (int64_t e = 0; e < E; e++) {
        const float share = n > 0 ? a.balance[e] / n : 0;
        const float product = n > 0 ? share * (a.balance[E + e] / n) : 0;
        a.balance[2 * E + e] = n > 0 ? a.dloss * a.coef * (float)E * share / n : 0;
        sum += product;
    }
    *a.loss += a.coef * (float)E * sum;
}

static cz_status router_balance_loss(struct ops *ops, struct dev_stream *stream,
                                     const struct router_balance_loss_args *a)
{
    (void)ops;
    TRY(router_balance_loss_check(a));
    return cuda_launch("router_balance_loss", balance_loss_kernel, 1, 1, 0, stream, *a);
}

/* ---- rows of experts --------------------------------------------------------------------------
 */

/* An element per thread. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK) expert_add_kernel(struct expert_add_args a)
{
    const int64_t i = cuda_row(), c = cuda_item();
    if (i >= a.n || c >= a.C) return;
    const float w = a.weights ? a.weights[a.choices[i]] : 1.0f;
    float *sum = a.sum + (int64_t)a.tokens[i] * a.C + c;
    const float product = w * to_f32(((const T *)a.x)[i * a.C + c]);
    *sum += product;
}

static cz_status expert_add(struct ops *ops, struct dev_stream *stream,
                            const struct expert_add_args *a)
{
    (void)ops;
    TRY(expert_add_check(a));
    if (a->n == 0 || a->C == 0) return CZ_OK;
    const struct cuda_rows rows = cuda_rows((size_t)a->n, (size_t)a->C, BLOCK);
    CUDA_BY_DTYPE(a->dtype, T, {
        return cuda_launch("expert_add", expert_add_kernel<T>, rows.grid, rows.block, 0, stream,
                           *a);
    });
    return CZ_OK;
}

/* A row per warp. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK) expert_weigh_kernel(struct expert_weigh_args a)
{
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (i >= a.n) return;
    const int32_t choice = a.choices[i];
    const float w = a.weights[choice];
    T *y = (T *)a.y + i * a.C, *dy = (T *)a.dy + i * a.C;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < a.C; c += CUDA_WARP) {
        const float u = to_f32(y[c]), v = to_f32(dy[c]);
        sum += u * v;
        y[c] = from_f32<T>(w * u);
        dy[c] = from_f32<T>(w * v);
    }
    sum = warp_reduce<sum_of>(sum);
    if (threadIdx.x == 0) a.dweights[choice] = sum;
}

static cz_status expert_weigh(struct ops *ops, struct dev_stream *stream,
                              const struct expert_weigh_args *a)
{
    (void)ops;
    TRY(expert_weigh_check(a));
    if (a->n == 0) return CZ_OK;
    const dim3 block(CUDA_WARP, WARPS);
    CUDA_BY_DTYPE(a->dtype, T, {
        return cuda_launch("expert_weigh", expert_weigh_kernel<T>, cuda_blocks((size_t)a->n, WARPS),
                           block, 0, stream, *a);
    });
    return CZ_OK;
}

extern "C" cz_status router_wire_cuda(struct ops *ops)
{
    ops->router_forward = router_forward;
    ops->router_backward = router_backward;
    ops->router_sort = router_sort;
    ops->router_balance = router_balance;
    ops->router_balance_loss = router_balance_loss;
    ops->expert_add = expert_add;
    ops->expert_weigh = expert_weigh;
    return CZ_OK;
}

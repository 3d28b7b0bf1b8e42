/* Sums of exponentials over logits in one pass, as the plain and the fused cross-entropy on a GPU
 * make them. */
#ifndef CZ_OPS_CROSS_ENTROPY_CUDA_IMPL_H
#define CZ_OPS_CROSS_ENTROPY_CUDA_IMPL_H

#include "device/cuda/kernel.h"

/* e^(x − base) of a logit that was stored as Z. In 16 bits logits have errors beside which that of
 * one more rounding is none. */
template <typename Z> CUDA_FN float exp_from(float x, float base)
{
    if (sizeof(Z) == 2) return exp2_approx(fmaf(x, CUDA_LOG2E, -base * CUDA_LOG2E));
    return exp2_approx((x - base) * CUDA_LOG2E);
}

/* What exponentials are relative to: the largest logit; 0 where all are −∞. */
CUDA_FN float base_of(float largest)
{
    return largest == -INFINITY ? 0.0f : largest;
}

/* What a thread has seen so far: the largest logit (−∞: none), and Σ exp(z − base_of(it)). NaN and
 * +∞ make the sum NaN. */
struct running {
    float largest, sum;
};

/* Adds A vectors of N logits; the one exponential that it costs beside theirs is shared by all. */
template <typename Z, int A, int N> CUDA_FN void running_add(struct running *r, const float x[A][N])
{
    float largest = r->largest;
#pragma unroll
    for (int a = 0; a < A; a++)
#pragma unroll
        for (int i = 0; i < N; i++) largest = fmaxf(largest, x[a][i]);
    const float base = base_of(largest);
    r->sum *= exp_from<Z>(r->largest, base);
#pragma unroll
    for (int a = 0; a < A; a++)
#pragma unroll
        for (int i = 0; i < N; i++) r->sum += exp_from<Z>(x[a][i], base);
    r->largest = largest;
}

#endif

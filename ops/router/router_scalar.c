/* The definition: a token's experts and the gradient of its logits, rows to and from experts. */
#include "ops/router/router_impl.h"

#include <math.h>

static float rounded(float x, enum cz_dtype dtype)
{
    float place;
    dtype_put(&place, 0, dtype, x);
    return dtype_get(&place, 0, dtype);
}

static void softmax(enum cz_dtype dtype, const void *logits, size_t first, size_t E, float *probs)
{
    float max = -INFINITY, sum = 0;
    for (size_t e = 0; e < E; e++) {
        probs[e] = dtype_get(logits, first + e, dtype);
        if (probs[e] > max) max = probs[e];
    }
    for (size_t e = 0; e < E; e++) sum += probs[e] = expf(probs[e] - max);
    for (size_t e = 0; e < E; e++) probs[e] /= sum;
}

/* The largest after expert `last` (probability `bound`) in the order of falling probability, the
 * first of equals first. Where there are no numbers to compare, experts in their order. */
static int32_t next_expert(const float *probs, int32_t E, int32_t k, int32_t last, float bound)
{
    int32_t best = -1;
    for (int32_t e = 0; e < E; e++) {
        const bool is_after = k == 0 || probs[e] < bound || (probs[e] == bound && e > last);
        if (is_after && (best < 0 || probs[e] > probs[best])) best = e;
    }
    return best < 0 || isnan(probs[best]) ? k : best;
}

void router_choose(const struct router_args *a, size_t n)
{
    const size_t E = (size_t)a->E, K = (size_t)a->K;
    float *probs = a->probs + n * E, *weights = a->weights + n * K;
    int32_t *experts = a->experts + n * K;
    softmax(a->dtype, a->logits, n * E, E, probs);
    float sum = 0;
    for (size_t k = 0; k < K; k++) {
        const int32_t last = k > 0 ? experts[k - 1] : 0;
        experts[k] = next_expert(probs, (int32_t)E, (int32_t)k, last, probs[last]);
        weights[k] = probs[experts[k]];
        sum += weights[k];
    }
    for (size_t k = 0; k < K; k++)
        weights[k] = rounded(a->normalised ? weights[k] / sum : weights[k], a->dtype);
}

/* Of the probability of choice k: dweight, or with w = p/S, (dweight − Σ dweights·w)/S. */
static float prob_grad(const struct router_grad_args *a, float dweight, float sum, float mean)
{
    return a->normalised ? (dweight - mean) / sum : dweight;
}

void router_choose_grad(const struct router_grad_args *a, size_t n)
{
    const size_t E = (size_t)a->E, K = (size_t)a->K;
    const float *probs = a->probs + n * E, *dweights = a->dweights + n * K;
    const float *dprobs = a->counts && !a->counts[n] ? NULL : a->dprobs;
    const int32_t *experts = a->experts + n * K;
    float sum = 0, mean = 0, inner = 0;
    for (size_t k = 0; k < K; k++) {
        sum += probs[experts[k]];
        mean += dweights[k] * probs[experts[k]];
    }
    mean /= sum;
    for (size_t k = 0; k < K; k++)
        inner += probs[experts[k]] * prob_grad(a, dweights[k], sum, mean);
    for (size_t e = 0; e < E && dprobs; e++) inner += probs[e] * dprobs[e];
    for (size_t e = 0; e < E; e++) {
        float dp = dprobs ? dprobs[e] : 0;
        for (size_t k = 0; k < K; k++)
            if (experts[k] == (int32_t)e) dp += prob_grad(a, dweights[k], sum, mean);
        dtype_put(a->dlogits, n * E + e, a->dtype, probs[e] * (dp - inner));
    }
}

static void add(enum cz_dtype dtype, const void *x, float w, float *sum, size_t C)
{
    for (size_t c = 0; c < C; c++) {
        const float product = w * dtype_get(x, c, dtype);
        sum[c] += product;
    }
}

static float weigh(enum cz_dtype dtype, void *y, void *dy, float w, size_t C)
{
    float sum = 0;
    for (size_t c = 0; c < C; c++) {
        const float a = dtype_get(y, c, dtype), b = dtype_get(dy, c, dtype);
        sum += a * b;
        dtype_put(y, c, dtype, w * a);
        dtype_put(dy, c, dtype, w * b);
    }
    return sum;
}

const struct router_row router_scalar = {{"scalar", 0}, add, weigh};

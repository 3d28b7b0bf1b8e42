/* The definition: one query or one key at a time, sums in order. Scores are computed again where
 * they are needed twice. */
#include "ops/attention/attention_impl.h"

#include <math.h>
#include <string.h>

/* Σ x[d]·y[d] over D elements from x_at and y_at on. */
static float dot(const struct attention_args *a, const void *x, size_t x_at, const void *y,
                 size_t y_at)
{
    float sum = 0;
    for (size_t d = 0; d < (size_t)a->D; d++)
        sum += dtype_get(x, x_at + d, a->dtype) * dtype_get(y, y_at + d, a->dtype);
    return sum;
}

static int64_t key_head(const struct attention_args *a, int64_t h)
{
    return h / (a->H / a->G);
}

/* The document of a query. */
static int32_t document_of(const struct attention_args *a, int64_t b, int64_t tq)
{
    return a->query_documents ? a->query_documents[b * a->Tq + tq] : a->documents[b * a->Tk + tq];
}

static bool sees(const struct attention_args *a, int64_t b, int64_t tq, int64_t tk)
{
    const int64_t behind = tq + a->Tk - a->Tq - tk; /* positions from the key to the query */
    if (a->causal && behind < 0) return false;
    if (a->window && (behind <= -a->window || behind >= a->window)) return false;
    if (a->documents && document_of(a, b, tq) != a->documents[b * a->Tk + tk]) return false;
    return !a->key_mask || a->key_mask[b * a->Tk + tk];
}

/* What the distance from a query to a key adds to their score. */
static float position_score(const struct attention_args *a, int64_t b, int64_t h, int64_t tq,
                            int64_t tk)
{
    const struct attention_positions *p = &a->positions;
    if (p->n_buckets == 0) return 0;
    const size_t r = (size_t)attention_bucket(a, tq, tk);
    float sum = 0;
    if (p->table) sum += dtype_get(p->table, r * (size_t)a->H + (size_t)h, a->dtype);
    if (p->q_scores)
        sum += dtype_get(p->q_scores, attention_q_scores_at(a, b, h, tq) + r, a->dtype);
    if (p->k_scores)
        sum += dtype_get(p->k_scores, attention_k_scores_at(a, b, h, tk) + r, a->dtype);
    return p->scale * sum;
}

/* Computed in fp32 from values as they are stored, as every row does. */
static float score(const struct attention_args *a, int64_t b, int64_t h, int64_t tq, int64_t tk)
{
    float s = a->scale * dot(a, a->q, attention_q_at(a, b, tq, h), a->k,
                             attention_kv_at(a, a->k_stride, b, tk, key_head(a, h))) +
              position_score(a, b, h, tq, tk);
    return a->softcap > 0 ? a->softcap * tanhf(s / a->softcap) : s;
}

/* The derivative of a score with respect to what it was before the cap. */
static float cap_slope(const struct attention_args *a, float s)
{
    return a->softcap > 0 ? 1 - (s / a->softcap) * (s / a->softcap) : 1;
}

/* What dropout multiplies p with: 0 or 1/(1−p). */
static float keep(const struct attention_args *a, int64_t b, int64_t h, int64_t tq, int64_t tk)
{
    if (a->dropout_p == 0) return 1;
    bool kept = rng_uniform(&a->rng, attention_draw_idx(a, b, h, tq, tk)) >= a->dropout_p;
    return kept ? 1.0f / (1.0f - a->dropout_p) : 0.0f;
}

static size_t scratch_numel(const struct attention_args *a, bool backward, bool whole)
{
    (void)whole;
    return backward ? 2 * (size_t)a->D : (size_t)(a->D + a->Tk);
}

/* p[tk] = exp(s − max s) of query tq; returns the sum, and max s in *most. Without the maximum
 * exp() would overflow. */
static float exponentials(const struct attention_args *a, int64_t b, int64_t h, int64_t tq,
                          float *p, float *most)
{
    *most = -INFINITY;
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        p[tk] = sees(a, b, tq, tk) ? score(a, b, h, tq, tk) : -INFINITY;
        if (p[tk] > *most) *most = p[tk];
    }
    float sum = 0;
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        p[tk] = sees(a, b, tq, tk) ? expf(p[tk] - *most) : 0.0f;
        sum += p[tk];
    }
    return sum;
}

/* A query that sees no key gets zeros, and lse −∞. */
static void forward_query(const struct attention_args *a, int64_t b, int64_t h, int64_t tq,
                          float *scratch)
{
    float *sums = scratch, *p = scratch + a->D, most;
    float total = exponentials(a, b, h, tq, p, &most);
    for (int64_t d = 0; d < a->D; d++) sums[d] = 0;
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        if (!sees(a, b, tq, tk)) continue;
        size_t v_at = attention_kv_at(a, a->v_stride, b, tk, key_head(a, h));
        float weight = p[tk] * keep(a, b, h, tq, tk);
        for (int64_t d = 0; d < a->D; d++)
            sums[d] += weight * dtype_get(a->v, v_at + (size_t)d, a->dtype);
    }
    bool any = total != 0;
    size_t out_at = attention_out_at(a, b, tq, h);
    for (int64_t d = 0; d < a->D; d++)
        dtype_put(a->out, out_at + (size_t)d, a->dtype, any ? sums[d] / total : 0.0f);
    if (a->lse) a->lse[attention_row_at(a, b, h, tq)] = any ? most + logf(total) : -INFINITY;
}

static void forward(const struct attention_args *a, int64_t b, int64_t h, int64_t q0, int64_t q1,
                    float *scratch)
{
    for (int64_t tq = q0; tq < q1; tq++) forward_query(a, b, h, tq, scratch);
}

/* One query and one key that it sees. */
struct pair {
    float p, kept; /* before and after dropout */
    float dp;      /* after dropout */
    float slope;   /* of the cap */
};

static struct pair pair(const struct attention_args *a, int64_t b, int64_t h, int64_t tq,
                        int64_t tk)
{
    const float s = score(a, b, h, tq, tk), keep_factor = keep(a, b, h, tq, tk);
    const float p = expf(s - a->lse[attention_row_at(a, b, h, tq)]);
    const float dp = dot(a, a->dout, attention_out_at(a, b, tq, h), a->v,
                         attention_kv_at(a, a->v_stride, b, tk, key_head(a, h)));
    return (struct pair){p, p * keep_factor, dp * keep_factor, cap_slope(a, s)};
}

/* δ = Σ p·dp / Σ p over the keys of a query, in double: Σ p is 1 but for the rounding of lse. */
static float delta_of(const struct attention_args *a, int64_t b, int64_t h, int64_t tq)
{
    double total = 0, sum = 0;
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        if (!sees(a, b, tq, tk)) continue;
        struct pair x = pair(a, b, h, tq, tk);
        total += (double)x.p;
        sum += (double)x.p * (double)x.dp;
    }
    return total == 0 ? 0 : (float)(sum / total);
}

/* The derivative of the loss with respect to what a score was before the cap. */
static float score_gradient(const struct pair *x, float delta)
{
    return x->p * (x->dp - delta) * x->slope;
}

/* The gradients of the position scores of one query, or of one key, in front of its sums; NULL:
 * there are none. */
static float *zero_scores(const struct attention_args *a, float *gradients, size_t at)
{
    if (a->positions.n_buckets == 0 || !gradients) return NULL;
    return memset(gradients + at, 0, (size_t)a->positions.n_buckets * sizeof(float));
}

void attention_scalar_dq(const struct attention_args *a, int64_t b, int64_t h, int64_t q0,
                         int64_t q1, const float *delta, float *sums)
{
    for (int64_t tq = q0; tq < q1; tq++) {
        float *ds_of = zero_scores(a, a->positions.dq_scores, attention_q_scores_at(a, b, h, tq));
        for (int64_t d = 0; d < a->D; d++) sums[d] = 0;
        for (int64_t tk = 0; tk < a->Tk; tk++) {
            if (!sees(a, b, tq, tk)) continue;
            struct pair x = pair(a, b, h, tq, tk);
            float ds = score_gradient(&x, delta[attention_row_at(a, b, h, tq)]);
            size_t k_at = attention_kv_at(a, a->k_stride, b, tk, key_head(a, h));
            for (int64_t d = 0; d < a->D; d++)
                sums[d] += ds * dtype_get(a->k, k_at + (size_t)d, a->dtype);
            if (ds_of) ds_of[attention_bucket(a, tq, tk)] += a->positions.scale * ds;
        }
        size_t q_at = attention_q_at(a, b, tq, h);
        for (int64_t d = 0; d < a->D; d++)
            dtype_put(a->dq, q_at + (size_t)d, a->dtype, a->scale * sums[d]);
    }
}

static void backward_q(const struct attention_args *a, int64_t b, int64_t h, int64_t q0, int64_t q1,
                       float *delta, float *sums)
{
    for (int64_t tq = q0; tq < q1; tq++)
        delta[attention_row_at(a, b, h, tq)] = delta_of(a, b, h, tq);
    attention_scalar_dq(a, b, h, q0, q1, delta, sums);
}

static void backward_k(const struct attention_args *a, int64_t b, int64_t g, int64_t k0, int64_t k1,
                       const float *delta, float *scratch)
{
    float *dk = scratch, *dv = scratch + a->D;
    const int64_t n_heads = a->H / a->G;
    for (int64_t tk = k0; tk < k1; tk++) {
        float *ds_of = zero_scores(a, a->positions.dk_scores, attention_k_scores_at(a, b, g, tk));
        for (int64_t d = 0; d < 2 * a->D; d++) scratch[d] = 0;
        for (int64_t h = g * n_heads; h < (g + 1) * n_heads; h++)
            for (int64_t tq = 0; tq < a->Tq; tq++)
                if (sees(a, b, tq, tk)) {
                    struct pair x = pair(a, b, h, tq, tk);
                    float ds = score_gradient(&x, delta[attention_row_at(a, b, h, tq)]);
                    size_t q_at = attention_q_at(a, b, tq, h),
                           out_at = attention_out_at(a, b, tq, h);
                    for (int64_t d = 0; d < a->D; d++) {
                        dk[d] += ds * dtype_get(a->q, q_at + (size_t)d, a->dtype);
                        dv[d] += x.kept * dtype_get(a->dout, out_at + (size_t)d, a->dtype);
                    }
                    if (ds_of) ds_of[attention_bucket(a, tq, tk)] += a->positions.scale * ds;
                }
        size_t k_at = attention_kv_at(a, a->k_stride, b, tk, g);
        size_t v_at = attention_kv_at(a, a->v_stride, b, tk, g);
        for (int64_t d = 0; d < a->D; d++) {
            dtype_put(a->dk, k_at + (size_t)d, a->dtype, a->scale * dk[d]);
            dtype_put(a->dv, v_at + (size_t)d, a->dtype, dv[d]);
        }
    }
}

const struct attention_row attention_scalar = {{"scalar", 0}, scratch_numel, forward,
                                               backward_q,    backward_k,    NULL};

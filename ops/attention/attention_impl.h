/* What a row of attention provides, and how the work is cut.
 *
 * A task is one block of one (batch row, head); tasks never add to each other's results, and the
 * order of every sum follows from the shape alone, so neither threads nor the two ways through
 * backward show in the result:
 *   forward   (b, h, block of queries)
 *   backward  (b, key head): the whole of it at once; or, when that gives fewer tasks than threads,
 *             dq by (b, h, block of queries), then dk, dv by (b, key head, block of keys), which
 *             computes p and ds twice. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_IMPL_H
#define CZ_OPS_ATTENTION_ATTENTION_IMPL_H

#include "ops/attention/attention.h"
#include "ops/ops_impl.h"

CZ_EXTERN_C_BEGIN

#define ATTENTION_FORWARD_Q 256 /* queries of a forward task */
#define ATTENTION_BLOCK     64  /* queries and keys of a block in backward, keys in forward */

struct attention_row {
    struct ops_row row;
    /* fp32 elements of scratch that one task of backward, or of forward, needs */
    size_t (*scratch_numel)(const struct attention_args *a, bool backward, bool whole);
    /* out and lse of queries [q0, q1) */
    void (*forward)(const struct attention_args *a, int64_t b, int64_t h, int64_t q0, int64_t q1,
                    float *scratch);
    /* dq of queries [q0, q1), and their δ to `delta` (B,H,Tq) */
    void (*backward_q)(const struct attention_args *a, int64_t b, int64_t h, int64_t q0, int64_t q1,
                       float *delta, float *scratch);
    /* dk, dv of keys [k0, k1), with δ of all queries */
    void (*backward_k)(const struct attention_args *a, int64_t b, int64_t g, int64_t k0, int64_t k1,
                       const float *delta, float *scratch);
    /* dq, dk, dv of key head g; NULL: this row has only the two above */
    void (*backward_whole)(const struct attention_args *a, int64_t b, int64_t g, float *scratch);
};

extern const struct attention_row attention_scalar, attention_avx2, attention_avx512;

/* The scalar row's dq with δ as it is given: tests give it a GPU's. */
void attention_scalar_dq(const struct attention_args *a, int64_t b, int64_t h, int64_t q0,
                         int64_t q1, const float *delta, float *sums);

/* The table, slowest first. */
const struct attention_row *const *attention_rows(size_t *n);

/* CZ_INVALID, with a sentence, unless the arguments make sense and there are workspace_nbytes of
 * workspace. Empty calls (no row of output) are the caller's to leave out first. */
cz_status attention_check(const struct attention_args *a, bool backward, size_t workspace_nbytes);

/* CZ_INVALID unless the numbers of documents rise, and those of queries are met. Only where the
 * host can read them. */
cz_status attention_check_documents(const struct attention_args *a);

/* Elements in front of (b, t, h, 0) of q, k or v, and out. */
static inline size_t attention_q_at(const struct attention_args *a, int64_t b, int64_t t, int64_t h)
{
    int64_t batch = a->q_batch ? a->q_batch : a->Tq * a->q_stride;
    return (size_t)(b * batch + t * a->q_stride + h * a->D);
}

static inline size_t attention_kv_at(const struct attention_args *a, int64_t stride, int64_t b,
                                     int64_t t, int64_t g)
{
    int64_t batch = a->kv_batch ? a->kv_batch : a->Tk * stride;
    return (size_t)(b * batch + t * stride + g * a->D);
}

static inline size_t attention_out_at(const struct attention_args *a, int64_t b, int64_t t,
                                      int64_t h)
{
    return (size_t)((b * a->Tq + t) * a->out_stride + h * a->D);
}

/* Elements in front of (b, h, t) of lse and δ. */
static inline size_t attention_row_at(const struct attention_args *a, int64_t b, int64_t h,
                                      int64_t tq)
{
    return (size_t)((b * a->H + h) * a->Tq + tq);
}

/* Positions [begin, end). */
struct attention_span {
    int64_t begin, end;
};

/* Keys that queries [t0, t0 + n) see, before the key mask. Neither end decreases from one query to
 * the next, so what several queries see together goes from the begin of the first to the end of the
 * last; begin = end, both 0, where a query sees none. */
void attention_keys_of(const struct attention_args *a, int64_t b, int64_t t0, int64_t n,
                       struct attention_span *keys);

/* Queries that see keys [t0, t0 + n), in the same way; without any, begin = end. */
void attention_queries_of(const struct attention_args *a, int64_t b, int64_t t0, int64_t n,
                          struct attention_span *queries);

static inline uint64_t attention_draw_idx(const struct attention_args *a, int64_t b, int64_t h,
                                          int64_t tq, int64_t tk)
{
    return (uint64_t)((((a->first_b + b) * a->H + h) * a->Tq + tq) * a->Tk + tk);
}

/* ---- positions ------------------------------------------------------------------------------- */

/* The bucket of key tk of query tq. */
static inline int64_t attention_bucket(const struct attention_args *a, int64_t tq, int64_t tk)
{
    return a->positions.buckets[tk - tq + a->Tq - 1] - a->positions.first_bucket;
}

/* Elements in front of (h, b, t, 0) of q_scores, k_scores and their gradients. */
static inline size_t attention_q_scores_at(const struct attention_args *a, int64_t b, int64_t h,
                                           int64_t tq)
{
    return (size_t)(((h * a->B + b) * a->Tq + tq) * a->positions.n_buckets);
}

static inline size_t attention_k_scores_at(const struct attention_args *a, int64_t b, int64_t h,
                                           int64_t tk)
{
    return (size_t)(((h * a->B + b) * a->Tk + tk) * a->positions.n_buckets);
}

/* Elements of dq_scores in the workspace of backward. */
static inline size_t attention_own_dq_scores(const struct attention_args *a)
{
    const bool own = a->positions.n_buckets > 0 && a->positions.dtable && !a->positions.dq_scores;
    return own ? attention_q_scores_at(a, 0, a->H, 0) : 0;
}

CZ_EXTERN_C_END
#endif

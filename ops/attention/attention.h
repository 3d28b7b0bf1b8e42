/* Scaled dot-product attention with an online softmax: the T×T scores never exist.
 *
 *   s = scale·q·kᵀ (+ positions, capped, masked),  p = softmax(s),  out = dropout(p)·v,
 *   lse = log Σ exp(s)
 * Backward recomputes p from q, k and lse:
 *   dv = pᵀ·dout,  dp = dout·vᵀ,  ds = p∘(dp − δ),  dq = scale·ds·k,  dk = scale·dsᵀ·q
 * where δ is rowsum(dout∘out) on a GPU, and rowsum(p∘dp) / rowsum(p) on the host. The two are equal
 * but for rounding. Only the second makes a row of ds add up to 0, so that what all keys have in
 * common (a bias, a norm's weight) does not collect rounding errors (docs/models.md).
 * Source: Dao, "FlashAttention-2", arXiv 2307.08691, algorithms 1 and 2. With a soft cap c, s is
 * c·tanh(s/c) and ds takes the factor 1 − (s/c)² (Gemma 2, arXiv 2408.00118, section 2).
 *
 * Query t is at position t' = t + (Tk − Tq) of the keys. What it sees is one range of keys, less
 * those that the key mask hides: k ≤ t' if causal, |t' − k| < window, the keys of its document.
 * Queries with documents of their own are at no position of the keys.
 * Time is that of the ranges, not of Tq·Tk.
 *
 * With positions, s(i,j) of query i and key j gets what depends on the bucket r(i,j) of the
 * distance between them, of R buckets:
 *   + positions.scale·(table[r,h] + q_scores[h,b,i,r] + k_scores[h,b,j,r])
 * The table is MPNet's (T5's: Raffel et al., arXiv 1910.10683, section 2.1); q_scores and k_scores
 * are products of queries and keys with vectors of positions (DeBERTa: He et al., arXiv 2006.03654,
 * equation 4), which the caller makes: arrays of H·B·T·R elements. Their gradients are sums of ds
 * over the keys, or queries, of a bucket, in order.
 *
 * Arithmetic in fp32, one rounding of each output. Results do not depend on threads. Keys that the
 * mask hides may hold anything, NaN too; a workspace for some B and T serves smaller ones.
 *
 * B batch, Tq query positions, Tk key positions, H query heads, G key/value heads (G divides H:
 * query head h reads key head h·G/H), D head width. Rows with no allowed key give out = 0. */
#ifndef CZ_OPS_ATTENTION_ATTENTION_H
#define CZ_OPS_ATTENTION_ATTENTION_H

#include "base/dtype.h"
#include "base/rng.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

/* NULL leaves a part out. As many key heads as query heads. */
struct attention_positions {
    int64_t n_buckets; /* R, below 2^16; 0: scores have none of this */
    /* (Tq + Tk − 1) in host memory: key j is in bucket buckets[j − i + Tq − 1] − first_bucket of
     * query i. Keys of one bucket are neighbours. */
    const int32_t *buckets;
    int32_t first_bucket;
    float scale;
    const void *table;               /* (R,H) of dtype, as the next two */
    const void *q_scores, *k_scores; /* (H,B,Tq,R) (H,B,Tk,R) */
    /* Backward, overwritten. dtable (R,H) is the sum of dq_scores over B and Tq; where a caller
     * does not want these, they are in the workspace. */
    float *dtable, *dq_scores, *dk_scores;
};

struct attention_args {
    int64_t B, Tq, Tk, H, G, D;
    enum cz_dtype dtype; /* q, k, v, out and their gradients */
    float scale;
    float softcap;                  /* s = softcap·tanh(s/softcap) before masks; 0: none */
    bool causal;                    /* query t sees keys ≤ t + (Tk − Tq) */
    int64_t window;                 /* and keys nearer than this to t + (Tk − Tq); 0: all */
    const uint8_t *key_mask;        /* (B,Tk) 1 = visible; NULL: all */
    const int32_t *documents;       /* (B,T), Tq = Tk = T: sees keys of equal number; NULL: one
                                       document. Numbers do not decrease in a row: the host
                                       refuses others, a GPU hides more keys than it should */
    const int32_t *query_documents; /* (B,Tq), rising as well: the documents of queries that are no
                                       positions of the keys, where Tq may be anything; all keys,
                                       no positions. Each is one of `documents` or behind the last
                                       of them. NULL: those of `documents` */
    const void *q, *k, *v;          /* element (b,t,h,d) at ((b·T + t)·stride + h·D + d) */
    int64_t q_stride, k_stride, v_stride; /* elements between positions (3·C for packed qkv) */
    void *out; /* (B,Tq,H,D) dense in h,d; read by a GPU's backward, too */
    int64_t out_stride;
    int64_t q_batch, kv_batch; /* elements between batch rows; 0: T·stride (a KV cache differs) */
    float *lse;                /* (B,H,Tq) fp32, saved by forward */
    float dropout_p;           /* on p; element index (((first_b + b)·H + h)·Tq + tq)·Tk + tk */
    struct rng_key rng;
    int64_t first_b; /* of a call for rows of a batch: batch row 0 draws as this one */
    struct attention_positions positions;
    const void *dout;   /* backward only; stride out_stride */
    void *dq, *dk, *dv; /* backward only, overwritten; strides as q, k, v */
    void *workspace;    /* ops_attention_workspace() bytes */
    size_t workspace_nbytes;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_attention_forward(struct ops *ops, struct dev_stream *stream,
                                const struct attention_args *a);
cz_status ops_attention_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct attention_args *a);

/* Bytes of workspace that a call of these shapes needs: ops/ops.h. */
size_t ops_attention_workspace(const struct ops *ops, const struct attention_args *a,
                               bool backward);

CZ_EXTERN_C_END
#endif

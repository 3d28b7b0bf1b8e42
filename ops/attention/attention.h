/* Scaled dot-product attention with an online softmax: the T×T scores never exist.
 *
 *   s = scale·q·kᵀ (capped, masked),  p = softmax(s),  out = dropout(p)·v,  lse = log Σ exp(s)
 * Backward recomputes p from q, k and lse:
 *   dv = pᵀ·dout,  dp = dout·vᵀ,  ds = p∘(dp − rowsum(dout∘out)),  dq = scale·ds·k,
 *   dk = scale·dsᵀ·q
 * Source: Dao, "FlashAttention-2", arXiv 2307.08691, algorithms 1 and 2. With a soft cap c, s is
 * c·tanh(s/c) and ds takes the factor 1 − (s/c)² (Gemma 2, arXiv 2408.00118, section 2).
 *
 * Query t is at position t' = t + (Tk − Tq) of the keys. What it sees is one range of keys, less
 * those that the key mask hides: k ≤ t' if causal, |t' − k| < window, the keys of its document.
 * Time is that of the ranges, not of Tq·Tk.
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

struct attention_args {
    int64_t B, Tq, Tk, H, G, D;
    enum cz_dtype dtype; /* q, k, v, out and their gradients */
    float scale;
    float softcap;            /* s = softcap·tanh(s/softcap) before masks; 0: none */
    bool causal;              /* query t sees keys ≤ t + (Tk − Tq) */
    int64_t window;           /* and keys nearer than this to t + (Tk − Tq); 0: all */
    const uint8_t *key_mask;  /* (B,Tk) 1 = visible; NULL: all */
    const int32_t *documents; /* (B,T), Tq = Tk = T: sees keys of equal number; NULL: one
                                 document. Numbers do not decrease in a row: the host
                                 refuses others, a GPU hides more keys than it should */
    const void *q, *k, *v;    /* element (b,t,h,d) at ((b·T + t)·stride + h·D + d) */
    int64_t q_stride, k_stride, v_stride; /* elements between positions (3·C for packed qkv) */
    void *out;                            /* (B,Tq,H,D) dense in h,d; also read by backward */
    int64_t out_stride;
    int64_t q_batch, kv_batch; /* elements between batch rows; 0: T·stride (a KV cache differs) */
    float *lse;                /* (B,H,Tq) fp32, saved by forward */
    float dropout_p;           /* on p; element index ((b·H + h)·Tq + tq)·Tk + tk */
    struct rng_key rng;
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

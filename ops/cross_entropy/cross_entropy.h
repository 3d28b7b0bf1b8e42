/* Cross-entropy, fused with the projection on the vocabulary.
 *
 *   z = x·wᵀ [+ bias]  (N,V) [, then c·tanh(z/c) with a soft cap c],   loss = Σ_n ω_n·(lse(z_n) −
 * z_n[label_n]) / Σ_n ω_n over rows whose label is not CZ_IGNORE_LABEL (ω_n = loss weight, 1 by
 * default); 0 when there is none. A divisor other than 0 takes the place of Σω. With gradients
 * wanted, each block of rows makes its logits, its loss and its dz = dloss·ω/Σω·(softmax(z) −
 * onehot) and spends them at once on dx = dz·w and dw += dzᵀ·x, so logits exist for one block only:
 * at most 64 MiB of them, in fp32 (on a GPU, or as much as eight (N,C) tensors take: dw is read and
 * written once a block; and where a 16-bit model learns, logits are rounded to its dtype). dz is
 * rounded to the model's dtype. Sums are in fp32; dx is rounded once, dw and dbias once per block
 * (16-bit gradients of a batch of several blocks are rounded as accumulation over micro-batches
 * rounds them). A logit that is NaN or +infinity makes the loss NaN. N rows, C channels, V
 * vocabulary. */
#ifndef CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H
#define CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct ce_head_args {
    int64_t N, C, V;
    enum cz_dtype dtype;       /* x, w, bias, dx */
    const void *x;             /* (N,C) */
    const void *w;             /* (V,C) */
    const void *bias;          /* (V) or NULL */
    float softcap;             /* of the logits; 0: none */
    const int32_t *labels;     /* (N) in [0,V) or CZ_IGNORE_LABEL; NULL: logits only */
    const float *loss_weights; /* (N) or NULL */
    float divisor;             /* of the sum of losses; 0: Σω */
    float *loss;               /* one fp32: the mean loss */
    float *hits;               /* one fp32: rows whose label has the largest logit; or NULL */
    float *log_probs; /* (N) z[label] − lse(z), 0 of a row that does not count; or NULL */
    float *logits;    /* (N,V) fp32, or NULL: never stored whole */
    float dloss;      /* gradient of the loss (loss scale / accumulation steps) */
    void *dx;         /* (N,C), or NULL: loss only, no gradient at all */
    bool dx_unwanted; /* dx is scratch: on the CPU it is not made, with no other effect */
    enum cz_dtype grad_dtype;
    void *dw;    /* (V,C) or NULL (frozen) */
    void *dbias; /* (V) or NULL */
    bool dw_accumulate, dbias_accumulate;
    void *dz;      /* (N,V) of dtype, in an order of its own; NULL: dz exists for one block only. On
                      the CPU only. A call that makes gradients leaves its dz there, */
    bool dz_given; /* and a call with the same N, V, C, dtype and x takes it from there: it makes dw
                      and dbias alone, to the same bits, and neither logits nor the loss */
    void *workspace; /* ops_ce_head_workspace() bytes, which depend on which of the pointers
                        labels, hits, logits, dx, dw and dbias are NULL */
    size_t workspace_nbytes;
};

/* The plain form over given fp32 logits (N,V): classification heads. dlogits may alias logits. A
 * label outside [0,V) is CZ_INVALID; on a GPU, where labels are not looked at before the call, it
 * makes the loss and its row of dlogits NaN. */
struct cross_entropy_args {
    int64_t N, V;
    const float *logits;
    const int32_t *labels;
    const float *loss_weights;
    float divisor;
    float *loss;
    float dloss;
    float *dlogits; /* (N,V) or NULL */
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_ce_head(struct ops *ops, struct dev_stream *stream, const struct ce_head_args *a);
cz_status ops_cross_entropy(struct ops *ops, struct dev_stream *stream,
                            const struct cross_entropy_args *a);

/* Bytes of workspace that a call of these shapes needs: ops/ops.h. */
cz_status ops_ce_head_workspace(struct ops *ops, const struct ce_head_args *a, size_t *nbytes);

CZ_EXTERN_C_END
#endif

/* Mixtures of experts: which experts compute a token, and the rows that travel to them and back.
 * N tokens, E experts, K of them for each token; choice n·K + k is the k-th expert of token n.
 *
 *   p = softmax(logits) in fp32; the K largest, the first of equals first; w = p of those, divided
 *   by their sum if `normalised`, rounded to the logits' dtype
 *
 * Source: transformers' Qwen3MoeTopKRouter and load_balancing_loss_func (Fedus et al., arXiv
 * 2101.03961, equations 4 to 6). Sums follow a fixed order: results do not depend on threads. */
#ifndef CZ_OPS_ROUTER_ROUTER_H
#define CZ_OPS_ROUTER_ROUTER_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

#define ROUTER_EXPERTS_MAX 1024

struct router_args {
    int64_t N, E, K;     /* 1 ≤ K ≤ E; N·K below 2^31 */
    enum cz_dtype dtype; /* of the logits and of their gradient */
    bool normalised;
    const void *logits; /* (N,E) */
    float *probs;       /* (N,E) */
    int32_t *experts;   /* (N,K) by falling probability */
    float *weights;     /* (N,K) */
};

/* The gradient of the logits, from those of the weights and, for the loss that balances experts, of
 * the probabilities. */
struct router_grad_args {
    int64_t N, E, K;
    enum cz_dtype dtype;
    bool normalised;
    const float *probs; /* as forward made them */
    const int32_t *experts;
    const float *dweights; /* (N,K) */
    const float *dprobs;   /* (E), the same for each token that counts; NULL: none */
    const uint8_t *counts; /* (N) 1: the token counts; NULL: all do */
    void *dlogits;         /* (N,E) */
};

/* The choices in the order of their experts, those of one expert in the order of tokens. */
struct router_sort_args {
    int64_t N, E, K;
    const int32_t *experts; /* (N,K) */
    int32_t *choices;       /* (N·K) */
    int32_t *tokens;        /* (N·K) choice / K */
    int32_t *starts;        /* (E+1) where each expert's begin; the last: N·K */
};

/* What balances experts over all layers of a model: floats in device memory, zero at first.
 *   counts (E)  tokens that chose the expert, over all layers
 *   probs (E)   its probabilities, added up
 *   dprobs (E)  gradient of the loss by each of these probabilities: router_balance_loss
 *   n (1)       tokens that count, over all layers */
static inline size_t router_balance_numel(int64_t E)
{
    return 3 * (size_t)E + 1;
}

/* counts, probs and n += those of one layer. */
struct router_balance_args {
    int64_t N, E, K;
    const float *probs;
    const int32_t *experts;
    const uint8_t *counts; /* as above */
    float *balance;
};

/* loss += coef·E·Σ counts·probs/n², and dprobs of it times dloss. Nothing is added where n is 0. */
struct router_balance_loss_args {
    int64_t E;
    float coef, dloss;
    float *balance;
    float *loss; /* (1) */
};

/* sum[tokens[i]] += w·x[i] for n rows of C, of n different tokens; w: weights[choices[i]]. */
struct expert_add_args {
    int64_t n, C;
    enum cz_dtype dtype;
    const void *x; /* (n,C) */
    const int32_t *tokens;
    const int32_t *choices; /* with weights */
    const float *weights;   /* NULL: 1 */
    float *sum;             /* (N,C) */
};

/* Where an expert's output was w·(y·map) and dy is the gradient of y·map before w came in:
 * dweights[choices[i]] = Σ y·dy of row i, then y = w·y and dy = w·dy. */
struct expert_weigh_args {
    int64_t n, C;
    enum cz_dtype dtype;
    const int32_t *choices; /* (n) */
    const float *weights;
    float *dweights;
    void *y, *dy; /* (n,C) */
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_router_forward(struct ops *ops, struct dev_stream *stream,
                             const struct router_args *a);
cz_status ops_router_backward(struct ops *ops, struct dev_stream *stream,
                              const struct router_grad_args *a);
cz_status ops_router_sort(struct ops *ops, struct dev_stream *stream,
                          const struct router_sort_args *a);
cz_status ops_router_balance(struct ops *ops, struct dev_stream *stream,
                             const struct router_balance_args *a);
cz_status ops_router_balance_loss(struct ops *ops, struct dev_stream *stream,
                                  const struct router_balance_loss_args *a);
cz_status ops_expert_add(struct ops *ops, struct dev_stream *stream,
                         const struct expert_add_args *a);
cz_status ops_expert_weigh(struct ops *ops, struct dev_stream *stream,
                           const struct expert_weigh_args *a);

CZ_EXTERN_C_END
#endif

/* A loss over what a head computed: values in, their gradients out.
 *
 * The head of a language model asks with the log-probability of each position's label, that of a
 * classifier with its logits. So no logits of a whole batch exist: with z the logits of a position,
 * y its label and c = d loss/d log p(y), the gradient is c·(onehot(y) − softmax(z)), that of a
 * cross-entropy whose weight is −c. Cross-entropy needs no objective: its c is known before. */
#ifndef CZ_MODEL_OBJECTIVE_H
#define CZ_MODEL_OBJECTIVE_H

#include "model/layer.h"

CZ_EXTERN_C_BEGIN

struct ce_head_args;

struct objective_call {
    const struct batch *batch; /* for the host to read */
    int64_t n, k;
    const float *values; /* (n,k): log-probabilities, k 1, 0 without a label; or logits */
    float dloss;         /* factor of the gradients */
    float *gradients;    /* (n,k), written whole: dloss·d loss/d value; NULL: not wanted */
    float loss;
};

struct objective {
    cz_status (*run)(const void *user, struct objective_call *call);
    const void *user;
    float *host; /* space for 2·n·k, where the host does not read the device's memory; or NULL */
};

/* Means over K targets t, then over rows, by their weights (struct batch has divisor and absent
 * targets): of (z − t)², and of log(1 + exp(z)) − t·z. */
extern const struct objective objective_squared_error, objective_binary;

/* Run it over (n,k) values in device memory; `gradients` (or NULL) and the loss go there, too. On a
 * GPU it waits for the stream. */
cz_status objective_ask(const struct objective *o, const struct layer_args *a, int64_t n, int64_t k,
                        const float *values, float *gradients, float *loss);

/* ops_ce_head() of a layer: log-probabilities where a->log_probs wants them and, in TRAIN, the
 * gradients of a->objective in the place of cross-entropy's. `ce` is complete but for these. */
cz_status objective_ce_head(const struct layer_args *a, struct ce_head_args *ce);

CZ_EXTERN_C_END
#endif

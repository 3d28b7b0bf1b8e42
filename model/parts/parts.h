/* Layers at both ends of a decoder, for the families and, through czero/layer.h, for custom chains.
 *
 * A layer_desc takes the class and its hyper-parameters, which are copied; the strings in them must
 * stay valid until the model is destroyed. */
#ifndef CZ_MODEL_PARTS_PARTS_H
#define CZ_MODEL_PARTS_PARTS_H

#include "model/layer.h"

CZ_EXTERN_C_BEGIN

/* out (B,T,C) = dropout(scale·token[id] [+ position[pos]]): the first layer of a decoder. pos is
 * the batch's, or 0 … T−1. */
struct model_embedding_hp {
    const char *token_name;    /* (V,C) */
    const char *position_name; /* (P,C) learned positions, or NULL */
    int64_t V, P, C;
    float dropout_p;
    float init_std;
    float scale;        /* 0: none; not with positions */
    bool rounds_scale;  /* to the dtype, as Gemma does */
    bool has_padding;   /* tokens of padding_id give their row no gradient */
    int64_t padding_id; /* in [0,V) */
};
extern const struct layer_class model_embedding_class;

/* Final norm, projection on the vocabulary, mean cross-entropy: the last layer of a decoder. In
 * training the logits never exist as a whole. */
struct model_lm_head_hp {
    const char *norm_weight_name;
    const char *norm_bias_name; /* NULL: RMS norm */
    const char *weight_name;    /* (V,C); the name of an earlier parameter ties it */
    const char *tied_alias;     /* its other name when tied, or NULL */
    int64_t V, C;
    float eps;
    float init_std;
    float divisor;     /* of the logits; 0: none */
    float softcap;     /* of the logits; 0: none */
    float norm_offset; /* of the norm's weight: 0, or 1, and then it starts from 0 */
    /* Adds the loss that balances so many experts, of what layers counted in layer_args.shared
     * (ops/router/router.h), times this; 0: there is none. */
    int64_t n_experts;
    float balance_coef;
};
extern const struct layer_class model_lm_head_class;

CZ_EXTERN_C_END
#endif

/* Layer classes that families share, with their hyper-parameters (plain data; the strings are
 * literals or lie inside the struct). */
#ifndef CZ_MODEL_PARTS_IMPL_H
#define CZ_MODEL_PARTS_IMPL_H

#include "model/blocks_impl.h"

/* out = dropout(token[id] [+ position[pos]]): the first layer of a decoder. */
struct embedding_hp {
    const char *token_name;    /* (V,C) */
    const char *position_name; /* (P,C) learned positions, or NULL */
    int64_t V, P, C;
    float dropout_p;
    float init_std;
};
extern const struct layer_class embedding_class;

/* Final norm, projection on the vocabulary, mean cross-entropy: the last layer of a decoder. */
struct lm_head_hp {
    const char *norm_weight_name;
    const char *norm_bias_name; /* NULL: RMS norm */
    const char *weight_name;    /* (V,C); a name declared earlier ties it */
    const char *tied_alias;     /* its other name when tied, or NULL */
    int64_t V, C;
    float eps;
    float init_std;
};
extern const struct layer_class lm_head_class;

/* One transformer block of GPT-2. */
struct gpt2_block_hp {
    int layer_idx;
    int64_t C, H, F; /* width, heads, width of the MLP */
    enum activation act;
    float eps;
    float attn_scale; /* on q·kᵀ */
    float attn_dropout_p, resid_dropout_p;
    float init_std, init_std_residual;
};
extern const struct layer_class gpt2_block_class;

#endif

/* GPT-2: its block, and the presets. */
#ifndef CZ_MODEL_GPT2_GPT2_IMPL_H
#define CZ_MODEL_GPT2_GPT2_IMPL_H

#include "model/model_impl.h"
#include "ops/activation/activation.h"

/* One transformer block: see gpt2_block.c. */
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

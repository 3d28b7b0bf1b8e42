/* LLaMA and its kin: how config.json describes them, rotary frequencies, the decoder block. */
#ifndef CZ_MODEL_LLAMA_LLAMA_IMPL_H
#define CZ_MODEL_LLAMA_LLAMA_IMPL_H

#include "formats/json/json_write.h"
#include "model/model_impl.h"

/* ---- rotary positions ----------------------------------------------------------------------- */

#define ROPE_HALF_MAX 512 /* heads of up to 1024 */

/* The frequencies that a config asks for: plain data, copied into each block. */
struct rope_plan {
    int64_t half;              /* D/2 */
    float scale;               /* on cosines and sines */
    float freq[ROPE_HALF_MAX]; /* (half) radians per position */
    /* Batches that reach beyond t_switch positions take other frequencies; 0: none do. */
    int64_t t_switch;
    float freq_long[ROPE_HALF_MAX]; /* longrope: these */
    bool is_dynamic;                /* dynamic NTK: those of a base that grows with the length */
    double theta, factor;
};

/* From rope_parameters (transformers 5), or rope_theta and rope_scaling (before), for heads of D.
 * Errors: CZ_UNSUPPORTED (a rope type or a partial rotation we do not have: lists those we have),
 * CZ_INVALID (D is odd or above 1024; a number out of range), CZ_NOTFOUND (a key is missing). */
cz_status rope_read(const struct json_node *config, int64_t D, int64_t max_positions,
                    struct rope_plan *out);

/* The (half) frequencies for positions below T; `buf` may hold them. */
const float *rope_frequencies(const struct rope_plan *plan, int64_t T, float buf[ROPE_HALF_MAX]);

/* ---- the block ------------------------------------------------------------------------------ */

/* See llama_block.c. */
struct llama_block_hp {
    int layer_idx;
    int64_t C, F;    /* width, width of the MLP */
    int64_t H, G, D; /* query heads, key heads (G divides H), head width */
    bool qkv_bias, o_bias, mlp_bias;
    float eps, attn_dropout_p, init_std;
    struct rope_plan rope;
};
extern const struct layer_class llama_block_class;
/* The same without decode, for frequencies that depend on the length: what a cache holds would have
 * been made with others. */
extern const struct layer_class llama_block_uncached_class;

/* ---- config.json ---------------------------------------------------------------------------- */

struct llama_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int64_t max_positions;
    int64_t window; /* attention sees no further back; 0: all the way */
    double eps, initializer_range, attention_dropout;
    bool qkv_bias, o_bias, mlp_bias, tie_word_embeddings;
    bool has_padding;
    int64_t padding_id;
    struct rope_plan rope;
};

/* What an absent key means. */
struct llama_defaults {
    int64_t vocab_size, hidden_size, intermediate_size, n_kv_heads, max_positions;
};

/* Everything but the biases and the window, which the families spell differently. */
cz_status llama_config_read(const struct json_node *config, const struct llama_defaults *defaults,
                            struct llama_config *c);

/* Embedding, blocks, head. */
cz_status llama_chain_build(const struct llama_config *c, const char *name, struct cz_model **out);

/* ---- presets -------------------------------------------------------------------------------- */

struct llama_preset {
    const char *name;
    int64_t n_layers, hidden_size, n_heads, n_kv_heads, intermediate_size, vocab_size;
    int64_t max_positions, bos_token_id, eos_token_id;
    double eps, rope_theta;
    bool tie_word_embeddings;
    double rope_factor; /* > 0: scaled as LLaMA 3.1 and later are, from 8192 positions */
};

/* config.json of the preset called `name`, text to free(). CZ_NOTFOUND names `family`. */
cz_status llama_preset_write(const struct llama_preset *presets, size_t n, const char *name,
                             const char *family, const char *architecture, char **text);

#endif

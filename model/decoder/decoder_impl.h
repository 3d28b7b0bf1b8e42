/* Decoders: how config.json describes them, rotary frequencies, the block. */
#ifndef CZ_MODEL_DECODER_DECODER_IMPL_H
#define CZ_MODEL_DECODER_DECODER_IMPL_H

#include "formats/json/json_write.h"
#include "model/model_impl.h"
#include "ops/activation/activation.h"

/* ---- rotary positions ----------------------------------------------------------------------- */

#define ROPE_HALF_MAX 512 /* heads of up to 1024 */

/* The frequencies that a config asks for: plain data, copied into each block. */
struct rope_plan {
    int64_t half;              /* of what is rotated of a head, D/2 or less */
    float scale;               /* on cosines and sines */
    float freq[ROPE_HALF_MAX]; /* (half) radians per position */
    /* Batches that reach beyond t_switch positions take other frequencies; 0: none do. */
    int64_t t_switch;
    float freq_long[ROPE_HALF_MAX]; /* longrope: these */
    bool is_dynamic;                /* dynamic NTK: those of a base that grows with the length */
    double theta, factor;
};

/* What a family has beside `config`. */
struct rope_defaults {
    double theta;
    bool in_part;     /* partial_rotary_factor counts */
    bool is_phi;      /* "su" and "yarn" are older names of longrope, whose length stands outside */
    const char *kind; /* parameters are those of this kind of layer, where they differ … */
    const char *theta_key; /* … and the older name of its theta; NULL: "rope_theta" */
};

/* From rope_parameters (transformers 5), or rope_theta and rope_scaling (before), for heads of D.
 * Errors: CZ_UNSUPPORTED (a rope type or a partial rotation we do not have: lists those we have),
 * CZ_INVALID (D is odd or above 1024; a number out of range), CZ_NOTFOUND (a key is missing). */
cz_status rope_read(const struct json_node *config, int64_t D, int64_t max_positions,
                    const struct rope_defaults *defaults, struct rope_plan *out);

/* The (half) frequencies for positions below T; `buf` may hold them. */
const float *rope_frequencies(const struct rope_plan *plan, int64_t T, float buf[ROPE_HALF_MAX]);

/* ---- the block ------------------------------------------------------------------------------ */

/* One block; decoder_block.c says what it computes. */
struct decoder_block_names;
struct decoder_block_hp {
    int layer_idx;
    int64_t C, F;    /* width, width of the MLP */
    int64_t H, G, D; /* query heads, key heads (G divides H), head width */
    bool qkv_bias, o_bias, mlp_bias;
    bool fused_maps; /* queries, keys and values in one weight, gate and up in another: no norms of
                        queries and keys */
    enum { NORMS_BEFORE = 0, NORMS_AFTER, NORMS_AROUND } norms; /* of attention and of the MLP */
    /* Queries and keys: as they are, each head normed, all heads of a token normed as one row. */
    enum { QK_NORM_NONE = 0, QK_NORM_HEADS, QK_NORM_WHOLE } qk_norm;
    bool no_rope;
    enum activation gate;
    bool plain_mlp;        /* act(h·W + b)·Wdown + b, where others multiply by a second map */
    float norm_offset;     /* of the weights of norms: 0, or 1, and then they start from 0 */
    float attention_scale; /* of the scores; 0: 1/sqrt(D) */
    float softcap;         /* of the scores; 0: none */
    int64_t window;        /* keys as far back as this are hidden; 0: none is */
    float residual_scale;  /* of what both halves add, norms before only; 0: 1 */
    float resid_dropout_p; /* of the same, norms before only */
    /* The MLP is so many of width F, of which a router chooses top_k for each token; 0: one. No
     * biases, no fused maps. */
    int64_t n_experts, top_k;
    bool weights_add_to_one; /* of the chosen ones */
    bool balances_experts;   /* a loss of the head's wants to know the router's choices */
    float eps, attn_dropout_p, init_std;
    struct rope_plan rope;

    /* What encoders with this block (ModernBERT, MegatronBERT) have otherwise; zeros are a
     * decoder's. */
    bool is_bidirectional; /* positions see keys on both sides, `window` on both */
    bool layer_norm;       /* norms in front subtract the mean */
    bool norm_bias;        /* and have a bias */
    bool no_first_norm;    /* attention reads the block's input as it is */
    float out_init_std;    /* of the maps onto the residual; 0: init_std */
    const struct decoder_block_names *names; /* NULL: "model.layers" and decoders' names */
};

/* What a family calls the parameters of this block. Literals: they outlive every model. */
struct decoder_block_names {
    const char *prefix; /* of block i: "<prefix>.<i>." */
    /* Without ".weight" and ".bias"; NULL: a map that the block does not have. */
    const char *q, *k, *v, *qkv, *o, *gate, *gate_up, *down, *norm1, *norm2;
};

extern const struct layer_class decoder_block_class;
/* The same without decode, for frequencies that depend on the length: what a cache holds would have
 * been made with others. */
extern const struct layer_class decoder_block_uncached_class;

/* ---- config.json ---------------------------------------------------------------------------- */

struct decoder_config {
    const struct json_node *node; /* borrowed */
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int64_t max_positions;
    double eps, initializer_range, attention_dropout;
    bool qkv_bias, o_bias, mlp_bias, tie_word_embeddings;
    bool has_padding;
    int64_t padding_id;
    struct rope_plan rope, sliding_rope; /* of all layers, or those that do not slide; of these */
    bool has_sliding_rope;
    struct decoder_block_hp block; /* places of norms and scales; the chain fills in the rest */
    double embedding_scale, logits_divisor, logits_softcap; /* 0: none */
    bool rounds_embedding_scale;

    /* Attention in sliding layers sees no further back than `window`; 0: there are none. They are
     * those that layer_types names, or all from first_sliding on, without each full_every-th;
     * slides_without_rope: those among them that do not rotate; slides_if_listed: those of
     * layer_types alone. */
    int64_t window, first_sliding, full_every;
    bool full_first; /* that n-th is counted from the first layer, which is one */
    bool slides_without_rope, slides_if_listed;
    /* Layers that do not rotate: those with a 0 in no_rope_layers, or every n-th; 0: none. */
    int64_t no_rope_every;

    /* Mixtures of experts of `expert_size` in every sparse_step-th layer, without those that
     * mlp_only_layers names; 0 experts: nowhere. */
    int64_t n_experts, top_k, expert_size, sparse_step;
    bool weights_add_to_one;
    double balance_coef; /* of the loss that balances experts; 0: none */
};

/* What an absent key means; 0: as in LLaMA. */
struct decoder_defaults {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int64_t max_positions;
    double eps;
    struct rope_defaults rope;
    const char *activation_key; /* with its gelu_pytorch_tanh; NULL: hidden_act, silu */
    bool tie_word_embeddings;
    bool has_padding;
    int64_t padding_id;
};

/* Everything but the biases, the window and what a family alone has. */
cz_status decoder_config_read(const struct json_node *config,
                              const struct decoder_defaults *defaults, struct decoder_config *c);

/* attention_bias, for queries, keys, values and the output. */
cz_status decoder_read_attention_bias(struct decoder_config *c);

/* sliding_window; null or 0: none. */
cz_status decoder_read_window(struct decoder_config *c, int64_t fallback);
/* The same, of which use_sliding_window says whether it counts. */
cz_status decoder_read_switched_window(struct decoder_config *c, int64_t fallback);

/* Of mixtures of experts, what absent keys mean. */
struct decoder_experts {
    int64_t n, top_k, size;
    double balance_coef;
};
cz_status decoder_read_experts(struct decoder_config *c, const struct decoder_experts *defaults);

/* What Gemma 2 and 3 share; the soft caps that an absent key means, 0: none. In gemma2.c. */
cz_status decoder_read_gemma(struct decoder_config *c, double score_cap, double logits_cap);

/* The block of layer `layer_idx`. */
cz_status decoder_block_of_layer(const struct decoder_config *c, int layer_idx,
                                 struct decoder_block_hp *out);

/* Embedding, blocks, the head of `task`. */
cz_status decoder_chain_build(const struct decoder_config *c, const char *name, enum cz_task task,
                              struct cz_model **out);

/* ---- presets -------------------------------------------------------------------------------- */

struct decoder_preset {
    const char *name;
    int64_t n_layers, hidden_size, n_heads, n_kv_heads, intermediate_size, vocab_size;
    int64_t max_positions, bos_token_id, eos_token_id;
    double eps, rope_theta;
    bool tie_word_embeddings;
    double rope_factor; /* > 0: scaled as LLaMA 3.1 and later are, from 8192 positions */
    /* Further keys with their JSON, in place of what stands above if that has the same key. */
    struct {
        const char *key, *json;
    } more[12];
};

/* config.json of the preset called `name`, text to free(). CZ_NOTFOUND names `family`. */
cz_status decoder_preset_write(const struct decoder_preset *presets, size_t n, const char *name,
                               const char *family, const char *architecture, char **text);

/* A family's head for texts and its head for tokens; Class is what transformers' names begin with.
 */
#define DECODER_CLASSIFIER(Class)                                                                  \
    {                                                                                              \
        CZ_TASK_CLASSIFICATION, Class "ForSequenceClassification", true                            \
    }
#define DECODER_TAGGER(Class)                                                                      \
    {                                                                                              \
        CZ_TASK_TOKEN_CLASSIFICATION, Class "ForTokenClassification"                               \
    }

/* model_family_<id>, of the file's `presets` and <id>_build(). lm and base: what the names of
 * transformers' language model and of its other classes begin with. `...`: heads beyond the
 * language model's. */
#define DECODER_FAMILY(id, type, shown, lm, base, example, ...)                                    \
    static const char *id##_preset_name(size_t idx)                                                \
    {                                                                                              \
        return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;                             \
    }                                                                                              \
                                                                                                   \
    static cz_status id##_preset_config(const char *name, char **text)                             \
    {                                                                                              \
        return decoder_preset_write(presets, CZ_ARRAY_LEN(presets), name, type, lm "ForCausalLM",  \
                                    text);                                                         \
    }                                                                                              \
                                                                                                   \
    static const struct model_head id##_heads[] = {{CZ_TASK_CAUSAL_LM, lm "ForCausalLM"},          \
                                                   __VA_ARGS__};                                   \
                                                                                                   \
    const struct model_family model_family_##id = {                                                \
        .model_type = type,                                                                        \
        .title = shown,                                                                            \
        .base_prefix = "model.",                                                                   \
        .base_architecture = base "Model",                                                         \
        .heads = id##_heads,                                                                       \
        .n_heads = CZ_ARRAY_LEN(id##_heads),                                                       \
        .ignored_suffixes = decoder_ignored,                                                       \
        .build = id##_build,                                                                       \
        .preset_name = id##_preset_name,                                                           \
        .preset_config = id##_preset_config,                                                       \
        .preset_example = example,                                                                 \
    }

extern const char *const decoder_ignored[]; /* suffixes of unused tensors in old files */

#endif

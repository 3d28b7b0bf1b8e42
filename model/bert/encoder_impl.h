/* Bidirectional encoders with the norm behind each residual (BERT, DistilBERT, RoBERTa, ELECTRA):
 * the layers, and the chain that these families build from their config.json.
 *
 * Legend: B batch, T positions, N = B·T tokens, C width, E width of the embeddings (C, mostly), H
 * heads, F width of the MLP, V vocabulary, P learned positions, S token types, K classes. */
#ifndef CZ_MODEL_BERT_ENCODER_IMPL_H
#define CZ_MODEL_BERT_ENCODER_IMPL_H

#include "model/decoder/decoder_impl.h"
#include "model/model_impl.h"
#include "model/parts/blocks_impl.h"
#include "model/parts/class_head.h"

/* ---- layers --------------------------------------------------------------------------------- */

/* Names in hyper-parameters are literals: they outlive every model. */

/* out (B,T,C) = y [·Wᵀ + b], y (B,T,E) = dropout(norm(s)), s = token[id] + type[t] + position[p];
 * or out = dropout(norm(s·Wᵀ)): encoder_embedding.c. */
struct encoder_embedding_hp {
    const char *token_name;    /* (V,E) */
    const char *position_name; /* (P,E); NULL: none */
    const char *type_name;     /* (S,E); NULL: none, and the batch's types mean nothing */
    const char *norm_weight_name, *norm_bias_name;       /* weight NULL: no norm, and no map
                                                            either; bias NULL: none, here and below */
    const char *project_weight_name, *project_bias_name; /* W (C,E), b; NULL: none, E is C */
    bool project_first; /* the map is before the norm, and has no bias */
    int64_t V, P, S, E, C;
    int64_t padding_id; /* the token whose row gets no gradient from here (PyTorch's padding_idx)
                           and starts as zeros; -1: none */
    int64_t position_padding_id; /* the same of positions */
    bool sinusoidal;             /* what the position table starts from */
    float eps, dropout_p, init_std;
};
extern const struct layer_class encoder_embedding_class;

/* The parameters of a block, in Hugging Face's order. */
enum {
    ENCODER_Q_W = 0,
    ENCODER_Q_B,
    ENCODER_K_W,
    ENCODER_K_B,
    ENCODER_V_W,
    ENCODER_V_B,
    ENCODER_PROJ_W,
    ENCODER_PROJ_B,
    ENCODER_LN1_W,
    ENCODER_LN1_B,
    ENCODER_FC_W,
    ENCODER_FC_B,
    ENCODER_OUT_W,
    ENCODER_OUT_B,
    ENCODER_LN2_W,
    ENCODER_LN2_B,
    ENCODER_N_PARAMS
};

/* What the distance from a token to another adds to their score: encoder_positions.c. All blocks
 * share the table, and its norm.
 *   table (R,H), no terms    + table[r,h]                                                   MPNet
 *   table (R,C) and terms    p = dropout(norm(table)), Kp = p·Wkᵀ + b, Qp = p·Wqᵀ + b    DeBERTa
 *     c2p                    + q_i·Kp[r]/√(D·n)
 *     p2c                    + k_j·Qp[r]/√(D·n), and q·k/√(D·n); n is 1 + the number of terms
 * where key j is in bucket r = buckets[j − i + P − 1] of query i. */
struct encoder_positions_hp {
    int64_t n_buckets;      /* R; 0: scores have none of this */
    const int32_t *buckets; /* (2·P − 1), of the model */
    const char *table_name;
    const char *norm_weight_name, *norm_bias_name; /* NULL: no norm */
    bool c2p, p2c;
    bool own_maps; /* Wk and Wq are not the block's of keys and queries: names behind its prefix */
    const char *key_weight_name, *key_bias_name, *query_weight_name, *query_bias_name;
};

/* encoder_block.c */
struct encoder_block_hp {
    int layer_idx;
    const char *prefix;       /* of block i: "<prefix>.<i>." */
    const char *const *names; /* [ENCODER_N_PARAMS] behind it */
    int64_t C, H, F, P;       /* P: positions, where `positions` has any */
    struct encoder_positions_hp positions;
    bool first_only; /* the layer behind reads the first position of each row only: no other is
                        made in training */
    enum activation act;
    float eps;
    float attn_dropout_p, proj_dropout_p, out_dropout_p;
    float init_std;
};
extern const struct layer_class encoder_block_class;

/* Attention of a block with its positions. R rows of the table are of use to T positions. */
struct encoder_positions_space {
    int64_t first_bucket, R;
    int64_t n_rows;          /* of a batch in one call of attention: position scores are large */
    void *p, *k_rel, *q_rel; /* (R,C) */
    void *dp;                /* (R,C) */
    float *mean, *rstd;      /* (R) */
    void *q_scores, *k_scores;
    float *dq_scores, *dk_scores;
    float *dk_rel, *dq_rel; /* (R,C) */
    float *dtable;          /* (R,H) */
};

/* Declares what `positions` has behind the block's own. */
cz_status encoder_positions_declare(const struct encoder_block_hp *hp, struct param_list *out);

/* Its memory, behind what s has; `backward`: with that of gradients. */
struct encoder_positions_space encoder_positions_take(const struct encoder_block_hp *hp, int64_t B,
                                                      int64_t T, bool first_only,
                                                      enum cz_dtype dtype, bool backward,
                                                      struct scratch *s);

/* The workspace of ops, and multiply-adds that count two. */
cz_status encoder_positions_workspace(const struct encoder_block_hp *hp,
                                      const struct batch_shape *s, size_t *nbytes_max);
double encoder_positions_flops(const struct encoder_block_hp *hp, int64_t B, int64_t Tq, int64_t T);

/* What sizes of attention depend on; for the buffers, the calls below fill in the rest. */
void encoder_positions_mark(const struct encoder_block_hp *hp, struct attention_args *args,
                            bool backward);

/* Attention with what positions add, and its gradients: dq, dk and dv, and in `space` what
 * encoder_positions_finish() makes those of parameters from, behind the block's own. */
cz_status encoder_attention_forward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                    const struct attention_args *args,
                                    struct encoder_positions_space *p, struct op_space space);
cz_status encoder_attention_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                     const struct attention_args *args,
                                     struct encoder_positions_space *p, struct op_space space);
cz_status encoder_positions_finish(const struct encoder_block_hp *hp, const struct layer_args *a,
                                   struct encoder_positions_space *p, struct op_space space);

/* out = norm(x): encoder_norm.c. */
struct encoder_norm_hp {
    const char *weight_name, *bias_name; /* bias NULL: none */
    int64_t C;
    float eps;
};
extern const struct layer_class encoder_norm_class;

/* What x̄ is: the first position, the mean over what the mask shows, each position by itself. */
enum summary_pooling { SUMMARY_FIRST = 0, SUMMARY_MEAN, SUMMARY_EACH };

/* out[:,0] = norm(act(x̄·Wᵀ + b)), zeros elsewhere; SUMMARY_EACH: out: encoder_summary.c. */
struct encoder_summary_hp {
    const char *dense_weight_name, *dense_bias_name; /* W (C,C), b; biases NULL: none */
    const char *norm_weight_name, *norm_bias_name;
    enum summary_pooling pooling;
    enum activation act;
    int64_t C;
    float eps, init_std;
};
extern const struct layer_class encoder_summary_class;

/* loss = cross-entropy of z (N,V) = norm(act(x·Wᵀ + b))·tokenᵀ + c over labelled rows: mlm_head.c.
 */
struct mlm_head_hp {
    const char *dense_weight_name, *dense_bias_name; /* W (E,C), b */
    const char *norm_weight_name, *norm_bias_name;
    const char *weight_name; /* (V,E); the name of an earlier parameter ties it */
    const char *tied_alias;  /* its other name when tied, or NULL */
    const char *bias_name;   /* c (V) */
    const char *bias_alias;  /* its other name */
    bool bias_first;         /* in the order of parameters */
    bool norm_first;         /* before the dense map, there */
    enum activation act;
    int64_t C, E, V;
    float eps, init_std;
};
extern const struct layer_class mlm_head_class;

/* loss = binary cross-entropy of z (N) = act(x·Wᵀ + b)·u + c over labelled rows: replaced_head.c.
 */
struct replaced_head_hp {
    const char *dense_weight_name, *dense_bias_name; /* W (C,C), b */
    const char *out_weight_name, *out_bias_name;     /* u (1,C), c */
    enum activation act;
    int64_t C;
    float init_std;
};
extern const struct layer_class replaced_head_class;

/* ---- from config.json to a chain ------------------------------------------------------------ */

/* What config.json says, under the words that all families share. */
struct encoder_config {
    int64_t V, P, S, C, n_layers, H, F;
    int64_t K; /* classes; 0 under another head */
    enum head_loss loss;
    int64_t E;             /* 0: C */
    bool project_first;    /* as in encoder_embedding_hp */
    int64_t padding_id;    /* before encoder_config_common(): its default */
    bool counts_positions; /* tokens other than padding_id count from padding_id + 1, and it has
                              position padding_id */
    enum activation act;
    double eps, init_std;
    double dropout, attn_dropout, proj_dropout;
    double class_dropout, token_dropout; /* in front of the classifier of rows, of tokens */
    double pool_dropout;                 /* in front of the classifier's first map */
    bool no_types;                       /* before encoder_config_bert(): not of its keys */
    bool sinusoidal, tied;
    struct encoder_positions_hp positions;
    int32_t *buckets; /* those of positions, from malloc(): encoder_build() takes them */
};

/* What a family calls its parameters. */
struct encoder_names {
    /* Blocks with the norms in front of their halves (model/decoder/), a norm behind the last and
     * none of the embeddings; NULL: the block of BERT. */
    const struct decoder_block_names *pre_norm;
    const char *final_norm_w, *final_norm_b;
    const char *token, *position, *type, *embedding_norm_w, *embedding_norm_b;
    const char *project_w, *project_b; /* where E is not C */
    const char *block_prefix;
    const char *const *block; /* [ENCODER_N_PARAMS] */
    const char *pool_w, *pool_b, *class_w, *class_b;
    const char *mlm_dense_w, *mlm_dense_b, *mlm_norm_w, *mlm_norm_b;
    const char *mlm_w;           /* the decoder's own name */
    const char *mlm_bias;        /* the decoder's bias */
    const char *mlm_bias_untied; /* of an untied decoder; NULL: the same */
    const char *replaced_dense_w, *replaced_dense_b, *replaced_w, *replaced_b;
    bool mlm_bias_first; /* of a tied decoder */
    bool mlm_norm_first;
    bool mlm_act_is_gelu; /* whatever hidden_act says */
    enum activation pool_act;
    bool pool_drops_input; /* as in front of the classifier; false: c->pool_dropout */
};

/* Names that several families share, in the initializer of an encoder_names. */
#define ENCODER_EMBEDDINGS(prefix)                                                                 \
    .token = prefix "embeddings.word_embeddings.weight",                                           \
    .position = prefix "embeddings.position_embeddings.weight"
#define ENCODER_EMBEDDING_NORM(prefix)                                                             \
    .embedding_norm_w = prefix "embeddings.LayerNorm.weight",                                      \
    .embedding_norm_b = prefix "embeddings.LayerNorm.bias"
#define ENCODER_TYPES(prefix) .type = prefix "embeddings.token_type_embeddings.weight"
#define ENCODER_BERT_HEADS                                                                         \
    .class_w = "classifier.weight", .class_b = "classifier.bias",                                  \
    .mlm_dense_w = "cls.predictions.transform.dense.weight",                                       \
    .mlm_dense_b = "cls.predictions.transform.dense.bias",                                         \
    .mlm_norm_w = "cls.predictions.transform.LayerNorm.weight",                                    \
    .mlm_norm_b = "cls.predictions.transform.LayerNorm.bias",                                      \
    .mlm_w = "cls.predictions.decoder.weight", .mlm_bias = "cls.predictions.bias",                 \
    .mlm_bias_untied = "cls.predictions.decoder.bias", .mlm_bias_first = true
#define ENCODER_ROBERTA_POOLER                                                                     \
    .pool_w = "classifier.dense.weight", .pool_b = "classifier.dense.bias",                        \
    .class_w = "classifier.out_proj.weight", .class_b = "classifier.out_proj.bias",                \
    .pool_drops_input = true
#define ENCODER_ROBERTA_HEADS                                                                      \
    ENCODER_ROBERTA_POOLER,                                                                        \
        .mlm_dense_w = "lm_head.dense.weight", .mlm_dense_b = "lm_head.dense.bias",                \
        .mlm_norm_w = "lm_head.layer_norm.weight", .mlm_norm_b = "lm_head.layer_norm.bias",        \
        .mlm_w = "lm_head.decoder.weight", .mlm_bias = "lm_head.bias",                             \
        .mlm_bias_untied = "lm_head.decoder.bias", .mlm_bias_first = true,                         \
        .mlm_act_is_gelu = true, .pool_act = ACT_TANH

/* Keys that mean the same in all: the classes (K), the padding token, and what is refused. c->V
 * must be set. Errors: CZ_INVALID, CZ_UNSUPPORTED, CZ_CORRUPT with the place in the file. */
cz_status encoder_config_common(const struct json_node *config, enum cz_task task,
                                struct encoder_config *c);

/* All keys, under BERT's names, of the families that use these; V: the default of vocab_size. What
 * c has in C, H, F, n_layers, eps and padding_id is their default, where it is not 0. Errors: the
 * same. */
cz_status encoder_config_bert(const struct json_node *config, int64_t V, enum cz_task task,
                              struct encoder_config *c);

/* [ENCODER_N_PARAMS] BERT's names of a block's parameters. */
extern const char *const encoder_bert_block[];

/* The chain of embedding, blocks and the head of `task`. */
cz_status encoder_build(const struct encoder_config *c, const struct encoder_names *names,
                        const char *name, enum cz_task task, struct cz_model **out);

/* ---- presets: encoder_presets.c ------------------------------------------------------------- */

struct encoder_preset {
    const char *name;
    int64_t n_layers, C, H; /* the MLP is 4·C wide */
    int64_t E;              /* embedding_size; 0: the family has no such key */
};

/* The presets of a family, and what all of them have in config.json. */
struct encoder_presets {
    int64_t V, P, S; /* S: 0: the family has no token types */
    int64_t padding_id;
    int64_t first_id, last_id; /* bos_token_id, eos_token_id; both 0: none */
    double eps;
    const struct encoder_preset *list;
    size_t n;
};

/* NULL after the last. */
const char *encoder_preset_name(const struct encoder_presets *presets, size_t idx);

/* config.json of the preset called `name`, text to free(). CZ_NOTFOUND names the family. */
cz_status encoder_preset_write(const struct encoder_presets *presets,
                               const struct model_family *family, const char *name, char **text);

extern const char *const encoder_ignored[]; /* suffixes of unused tensors in old files */

/* model_family_<id>, of the file's <id>_presets and <id>_build(). Class: what transformers' names
 * begin with. decoder: the masked language model's matrix. `...`: heads beyond the usual three. */
#define ENCODER_FAMILY(id, type, shown, prefix, Class, decoder, example, ...)                      \
    static const char *id##_preset_name(size_t idx)                                                \
    {                                                                                              \
        return encoder_preset_name(&id##_presets, idx);                                            \
    }                                                                                              \
                                                                                                   \
    static cz_status id##_preset_config(const char *name, char **text)                             \
    {                                                                                              \
        return encoder_preset_write(&id##_presets, &model_family_##id, name, text);                \
    }                                                                                              \
                                                                                                   \
    static const struct model_head id##_heads[] = {                                                \
        {CZ_TASK_CLASSIFICATION, Class "ForSequenceClassification"},                               \
        {CZ_TASK_TOKEN_CLASSIFICATION, Class "ForTokenClassification"},                            \
        {CZ_TASK_MASKED_LM, Class "ForMaskedLM"},                                                  \
        __VA_ARGS__};                                                                              \
                                                                                                   \
    const struct model_family model_family_##id = {                                                \
        .model_type = type,                                                                        \
        .title = shown,                                                                            \
        .base_prefix = prefix,                                                                     \
        .base_architecture = Class "Model",                                                        \
        .heads = id##_heads,                                                                       \
        .n_heads = CZ_ARRAY_LEN(id##_heads),                                                       \
        .ignored_suffixes = encoder_ignored,                                                       \
        .tied_param = prefix "embeddings.word_embeddings.weight",                                  \
        .tied_elsewhere = decoder,                                                                 \
        .build = id##_build,                                                                       \
        .preset_name = id##_preset_name,                                                           \
        .preset_config = id##_preset_config,                                                       \
        .preset_example = example,                                                                 \
    }

#endif

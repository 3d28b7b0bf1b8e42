/* What BERT and its relatives share: the keys of config.json that mean the same, and the chain. The
 * families differ in names and in a few parts, which struct encoder_names carries; a variant that
 * these layers cannot compute is refused by the key that asks for it. */
#include "model/bert/encoder_impl.h"

#include "model/hf/config_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---------------------------------------------------------------------------- */

/* Scores made from distances between tokens, which no model here has. */
static cz_status refuse_relative_positions(const struct json_node *config)
{
    const char *type = NULL, *key = "position_embedding_type";
    char why[256];
    TRY(json_opt_string(config, key, "absolute", &type));
    if (strcmp(type, "absolute") == 0) return CZ_OK;
    snprintf(why, sizeof why, "\"%.100s\" is not supported; supported: absolute", type);
    return config_refuse(json_get(config, key), CZ_UNSUPPORTED, why);
}

/* pad_token_id: *id as it is when absent, none when null, counted from the end when negative. */
static cz_status read_padding(const struct json_node *config, int64_t V, int64_t *id)
{
    const struct json_node *node = json_get(config, "pad_token_id");
    char why[96];
    if (!node) return CZ_OK;
    if (json_type(node) == JSON_NULL) {
        *id = -1;
        return CZ_OK;
    }
    TRY(json_as_int(node, id));
    if (*id < -V || *id >= V) {
        snprintf(why, sizeof why, "%lld is outside the vocabulary of %lld", (long long)*id,
                 (long long)V);
        return config_refuse(node, CZ_INVALID, why);
    }
    if (*id < 0) *id += V;
    return CZ_OK;
}

/* Keys that change the arithmetic are looked at even where their default is fine. */
cz_status encoder_config_common(const struct json_node *config, enum cz_task task,
                                struct encoder_config *c)
{
    TRY(config_refuse_variants(config));
    TRY(config_refuse_true(config, "is_decoder"));
    TRY(refuse_relative_positions(config));
    TRY(config_number(config, "initializer_range", 0.02, 0, 100, &c->init_std));
    TRY(json_opt_bool(config, "tie_word_embeddings", true, &c->tied));
    TRY(read_padding(config, c->V, &c->padding_id));
    return config_n_classes(config, task, &c->K, &c->loss);
}

/* Defaults are transformers': a key that the file leaves out means what BertConfig says, or that of
 * a family which set it before. */
cz_status encoder_config_bert(const struct json_node *config, int64_t V, enum cz_task task,
                              struct encoder_config *c)
{
    const int64_t any = INT32_MAX;
    TRY(config_size(config, "vocab_size", NULL, V, any, &c->V));
    TRY(config_size(config, "max_position_embeddings", NULL, 512, any, &c->P));
    if (!c->no_types) TRY(config_size(config, "type_vocab_size", NULL, 2, any, &c->S));
    TRY(config_size(config, "hidden_size", NULL, c->C ? c->C : 768, 1 << 24, &c->C));
    TRY(config_size(config, "num_hidden_layers", NULL, c->n_layers ? c->n_layers : 12, 1 << 16,
                    &c->n_layers));
    TRY(config_size(config, "num_attention_heads", NULL, c->H ? c->H : 12, 1 << 24, &c->H));
    TRY(config_size(config, "intermediate_size", NULL, c->F ? c->F : 3072, 1 << 28, &c->F));
    TRY(config_activation(config, "hidden_act", "gelu", &c->act));
    TRY(config_number(config, "layer_norm_eps", c->eps > 0 ? c->eps : 1e-12, 0, 1, &c->eps));
    TRY(config_number(config, "hidden_dropout_prob", 0.1, 0, 1, &c->dropout));
    TRY(config_number(config, "attention_probs_dropout_prob", 0.1, 0, 1, &c->attn_dropout));
    TRY(config_number(config, "classifier_dropout", c->dropout, 0, 1, &c->class_dropout));
    c->proj_dropout = c->dropout;
    c->token_dropout = c->class_dropout;
    TRY(encoder_config_common(config, task, c));
    return config_check_heads(config, "num_attention_heads", NULL, c->H, c->C);
}

const char *const encoder_bert_block[ENCODER_N_PARAMS] = {
    [ENCODER_Q_W] = "attention.self.query.weight",
    [ENCODER_Q_B] = "attention.self.query.bias",
    [ENCODER_K_W] = "attention.self.key.weight",
    [ENCODER_K_B] = "attention.self.key.bias",
    [ENCODER_V_W] = "attention.self.value.weight",
    [ENCODER_V_B] = "attention.self.value.bias",
    [ENCODER_PROJ_W] = "attention.output.dense.weight",
    [ENCODER_PROJ_B] = "attention.output.dense.bias",
    [ENCODER_LN1_W] = "attention.output.LayerNorm.weight",
    [ENCODER_LN1_B] = "attention.output.LayerNorm.bias",
    [ENCODER_FC_W] = "intermediate.dense.weight",
    [ENCODER_FC_B] = "intermediate.dense.bias",
    [ENCODER_OUT_W] = "output.dense.weight",
    [ENCODER_OUT_B] = "output.dense.bias",
    [ENCODER_LN2_W] = "output.LayerNorm.weight",
    [ENCODER_LN2_B] = "output.LayerNorm.bias",
};

/* ---- the chain ------------------------------------------------------------------------------ */

/* The hyper-parameters of a chain, alive while it is built. */
struct parts {
    struct encoder_embedding_hp embedding;
    struct encoder_block_hp *blocks;
    struct decoder_block_hp *pre_norm_blocks;
    struct encoder_norm_hp final_norm;
    struct class_head_hp class_head;
    struct mlm_head_hp mlm_head;
    struct replaced_head_hp replaced_head;
    struct layer_desc *layers;
};

static struct encoder_block_hp block_hp(const struct encoder_config *c,
                                        const struct encoder_names *n, int layer_idx)
{
    return (struct encoder_block_hp){.prefix = n->block_prefix,
                                     .names = n->block,
                                     .layer_idx = layer_idx,
                                     .C = c->C,
                                     .H = c->H,
                                     .F = c->F,
                                     .P = c->P,
                                     .positions = c->positions,
                                     .act = c->act,
                                     .eps = (float)c->eps,
                                     .attn_dropout_p = (float)c->attn_dropout,
                                     .proj_dropout_p = (float)c->proj_dropout,
                                     .out_dropout_p = (float)c->dropout,
                                     .init_std = (float)c->init_std};
}

/* The same with the norms in front of both halves. */
static struct decoder_block_hp pre_norm_block_hp(const struct encoder_config *c,
                                                 const struct encoder_names *n, int layer_idx)
{
    return (struct decoder_block_hp){.names = n->pre_norm,
                                     .layer_idx = layer_idx,
                                     .C = c->C,
                                     .F = c->F,
                                     .H = c->H,
                                     .G = c->H,
                                     .D = c->C / c->H,
                                     .qkv_bias = true,
                                     .o_bias = true,
                                     .mlp_bias = true,
                                     .plain_mlp = true,
                                     .gate = c->act,
                                     .no_rope = true,
                                     .is_bidirectional = true,
                                     .layer_norm = true,
                                     .norm_bias = true,
                                     .eps = (float)c->eps,
                                     .attn_dropout_p = (float)c->attn_dropout,
                                     .resid_dropout_p = (float)c->dropout,
                                     .init_std = (float)c->init_std};
}

/* The dropout is the classifier's own where the config names one. */
static struct class_head_hp class_head_hp(const struct encoder_config *c,
                                          const struct encoder_names *n)
{
    return (struct class_head_hp){
        .loss = c->loss,
        .pool_weight_name = n->pool_w,
        .pool_bias_name = n->pool_b,
        .class_weight_name = n->class_w,
        .class_bias_name = n->class_b,
        .act = n->pool_act,
        .input_dropout_p = (float)(n->pool_drops_input ? c->class_dropout : c->pool_dropout),
        .C = c->C,
        .K = c->K,
        .dropout_p = (float)c->class_dropout,
        .init_std = (float)c->init_std};
}

/* That of tokens has the same names in all families. */
static struct class_head_hp token_head_hp(const struct encoder_config *c)
{
    return (struct class_head_hp){.rows = HEAD_EACH,
                                  .class_weight_name = "classifier.weight",
                                  .class_bias_name = "classifier.bias",
                                  .C = c->C,
                                  .K = c->K,
                                  .dropout_p = (float)c->token_dropout,
                                  .init_std = (float)c->init_std};
}

static int64_t embedding_width(const struct encoder_config *c)
{
    return c->E > 0 ? c->E : c->C;
}

/* transformers keeps two biases of BERT when the decoder is not tied, and uses the decoder's own;
 * files of its older versions hold one under either name. */
static struct mlm_head_hp mlm_head_hp(const struct encoder_config *c, const struct encoder_names *n)
{
    const bool own_bias = !c->tied && n->mlm_bias_untied;
    return (struct mlm_head_hp){.dense_weight_name = n->mlm_dense_w,
                                .dense_bias_name = n->mlm_dense_b,
                                .norm_weight_name = n->mlm_norm_w,
                                .norm_bias_name = n->mlm_norm_b,
                                .weight_name = c->tied ? n->token : n->mlm_w,
                                .tied_alias = c->tied ? n->mlm_w : NULL,
                                .bias_name = own_bias ? n->mlm_bias_untied : n->mlm_bias,
                                .bias_alias = own_bias ? n->mlm_bias : n->mlm_bias_untied,
                                .bias_first = c->tied && n->mlm_bias_first,
                                .norm_first = n->mlm_norm_first,
                                .act = n->mlm_act_is_gelu ? ACT_GELU_ERF : c->act,
                                .C = c->C,
                                .E = embedding_width(c),
                                .V = c->V,
                                .eps = (float)c->eps,
                                .init_std = (float)c->init_std};
}

static struct encoder_embedding_hp embedding_hp(const struct encoder_config *c,
                                                const struct encoder_names *n)
{
    const int64_t E = embedding_width(c);
    return (struct encoder_embedding_hp){.token_name = n->token,
                                         .position_name = n->position,
                                         .type_name = n->type,
                                         .norm_weight_name = n->embedding_norm_w,
                                         .norm_bias_name = n->embedding_norm_b,
                                         .project_weight_name = E != c->C ? n->project_w : NULL,
                                         .project_bias_name = E != c->C ? n->project_b : NULL,
                                         .project_first = E != c->C && c->project_first,
                                         .V = c->V,
                                         .P = c->P,
                                         .S = c->S,
                                         .E = E,
                                         .C = c->C,
                                         .padding_id = c->padding_id,
                                         .position_padding_id =
                                             c->counts_positions ? c->padding_id : -1,
                                         .sinusoidal = c->sinusoidal,
                                         .eps = (float)c->eps,
                                         .dropout_p = (float)c->dropout,
                                         .init_std = (float)c->init_std};
}

static struct replaced_head_hp replaced_head_hp(const struct encoder_config *c,
                                                const struct encoder_names *n)
{
    return (struct replaced_head_hp){.dense_weight_name = n->replaced_dense_w,
                                     .dense_bias_name = n->replaced_dense_b,
                                     .out_weight_name = n->replaced_w,
                                     .out_bias_name = n->replaced_b,
                                     .act = c->act,
                                     .C = c->C,
                                     .init_std = (float)c->init_std};
}

static struct layer_desc head_layer(const struct parts *p, enum cz_task task)
{
    if (task == CZ_TASK_CLASSIFICATION || task == CZ_TASK_TOKEN_CLASSIFICATION)
        return (struct layer_desc){&class_head_class, &p->class_head, sizeof p->class_head};
    if (task == CZ_TASK_REPLACED_TOKENS)
        return (struct layer_desc){&replaced_head_class, &p->replaced_head,
                                   sizeof p->replaced_head};
    return (struct layer_desc){&mlm_head_class, &p->mlm_head, sizeof p->mlm_head};
}

static enum cz_labels labels_of(enum cz_task task)
{
    return task == CZ_TASK_REPLACED_TOKENS ? CZ_LABELS_REPLACED : CZ_LABELS_SAME;
}

/* Whether elements of positions are dropped. */
static bool drops(const struct encoder_config *c, enum cz_task task)
{
    return c->dropout > 0 || c->attn_dropout > 0 || c->proj_dropout > 0 ||
           (task == CZ_TASK_TOKEN_CLASSIFICATION && c->token_dropout > 0);
}

/* One embedding, the blocks, one head. Before a classification head the last block of BERT makes
 * only what the head reads (first_only). */
static cz_status chain_build(const struct encoder_config *c, const struct encoder_names *n,
                             const char *name, enum cz_task task, struct parts *p,
                             struct cz_model **out)
{
    const bool reads_first = task == CZ_TASK_CLASSIFICATION;
    struct layer_desc *next = p->layers;
    p->embedding = embedding_hp(c, n);
    p->class_head = reads_first ? class_head_hp(c, n) : token_head_hp(c);
    p->mlm_head = mlm_head_hp(c, n);
    p->replaced_head = replaced_head_hp(c, n);
    *next++ = (struct layer_desc){&encoder_embedding_class, &p->embedding, sizeof p->embedding};
    for (int64_t i = 0; i < c->n_layers && n->pre_norm; i++) {
        struct decoder_block_hp *hp = &p->pre_norm_blocks[i];
        *hp = pre_norm_block_hp(c, n, (int)i);
        *next++ = (struct layer_desc){&decoder_block_uncached_class, hp, sizeof *hp};
    }
    for (int64_t i = 0; i < c->n_layers && !n->pre_norm; i++) {
        struct encoder_block_hp *hp = &p->blocks[i];
        *hp = block_hp(c, n, (int)i);
        hp->first_only = reads_first && i + 1 == c->n_layers;
        *next++ = (struct layer_desc){&encoder_block_class, hp, sizeof *hp};
    }
    if (n->pre_norm) {
        p->final_norm = (struct encoder_norm_hp){.weight_name = n->final_norm_w,
                                                 .bias_name = n->final_norm_b,
                                                 .C = c->C,
                                                 .eps = (float)c->eps};
        *next++ = (struct layer_desc){&encoder_norm_class, &p->final_norm, sizeof p->final_norm};
    }
    *next++ = head_layer(p, task);
    const struct model_desc desc = {.name = name,
                                    .layers = p->layers,
                                    .n_layers = (size_t)(next - p->layers),
                                    .vocab_size = c->V,
                                    .t_max = c->counts_positions ? c->P - c->padding_id - 1 : c->P,
                                    .n_positions = c->counts_positions ? c->P : 0,
                                    .counts_positions = c->counts_positions,
                                    .padding_id = c->padding_id,
                                    .hidden_size = c->C,
                                    .n_classes = c->K,
                                    .n_types = n->type ? c->S : 0,
                                    .labels = labels_of(task),
                                    .unpads = c->positions.n_buckets == 0 && !drops(c, task),
                                    .block = c->buckets};
    return model_build(&desc, out);
}

/* Hyper-parameters are copied by model_build(): the arrays here are for building only. */
cz_status encoder_build(const struct encoder_config *c, const struct encoder_names *names,
                        const char *name, enum cz_task task, struct cz_model **out)
{
    const size_t n = (size_t)c->n_layers;
    struct parts p = {.blocks = calloc(n, sizeof *p.blocks),
                      .pre_norm_blocks = calloc(names->pre_norm ? n : 1, sizeof *p.pre_norm_blocks),
                      .layers = calloc(n + 3, sizeof *p.layers)};
    *out = NULL;
    cz_status st = p.blocks && p.pre_norm_blocks && p.layers
                       ? chain_build(c, names, name, task, &p, out)
                       : err_set(CZ_NOMEM, 0, "no memory for %lld layers", (long long)c->n_layers);
    free(p.blocks);
    free(p.pre_norm_blocks);
    free(p.layers);
    if (st != CZ_OK) free(c->buckets);
    return st;
}

/* What decoders share: reading config.json, putting the chain together, writing presets.
 * Defaults differ by family (struct decoder_defaults), since a file may leave out whatever its own
 * config class fills in. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"
#include "model/parts/class_head.h"
#include "model/parts/parts.h"
#include "ops/router/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Positions are fp32 numbers in the angles: whole numbers up to here. */
#define POSITIONS_MAX ((int64_t)1 << 24)

/* ---- reading -------------------------------------------------------------------------------- */

/* A head's width: given, or the hidden size shared out. */
static cz_status read_heads(const struct json_node *config, const struct decoder_defaults *defaults,
                            struct decoder_config *c)
{
    const char *kv = "num_key_value_heads";
    const int64_t heads = defaults->n_heads ? defaults->n_heads : 32;
    TRY(config_size(config, "num_attention_heads", NULL, heads, 1 << 24, &c->n_heads));
    /* null means as many as there are heads, absence may mean something else */
    int64_t absent = json_get(config, kv) ? c->n_heads : defaults->n_kv_heads;
    if (absent == 0) absent = c->n_heads;
    TRY(config_size(config, kv, NULL, absent, 1 << 24, &c->n_kv_heads));
    if (c->n_heads % c->n_kv_heads != 0) {
        char why[128];
        snprintf(why, sizeof why, "%lld key heads do not divide %lld query heads",
                 (long long)c->n_kv_heads, (long long)c->n_heads);
        const struct json_node *node = config_either(config, kv, NULL);
        return config_refuse(node ? node : config, CZ_INVALID, why);
    }
    int64_t width = defaults->head_dim;
    if (!config_either(config, "head_dim", NULL) && width == 0) {
        TRY(config_check_heads(config, "num_attention_heads", NULL, c->n_heads, c->hidden_size));
        width = c->hidden_size / c->n_heads;
    }
    return config_size(config, "head_dim", NULL, width, 2 * ROPE_HALF_MAX, &c->head_dim);
}

/* The token whose embedding takes no gradient, as PyTorch's padding_idx. */
static cz_status read_padding(const struct json_node *config,
                              const struct decoder_defaults *defaults, struct decoder_config *c)
{
    const struct json_node *node = config_either(config, "pad_token_id", NULL);
    c->has_padding = node != NULL;
    if (!json_get(config, "pad_token_id") && defaults->has_padding) { /* null means none */
        c->padding_id = defaults->padding_id;
        c->has_padding = c->padding_id < c->vocab_size;
    }
    if (!node) return CZ_OK;
    TRY(json_as_int(node, &c->padding_id));
    if (c->padding_id < 0) c->padding_id += c->vocab_size; /* counted from the end */
    if (c->padding_id >= 0 && c->padding_id < c->vocab_size) return CZ_OK;
    return config_refuse(node, CZ_INVALID, "this is not a token of the vocabulary");
}

/* The MLP's activation, fused with the product. */
static cz_status read_gate(const struct json_node *config, const struct decoder_defaults *defaults,
                           struct decoder_config *c)
{
    const char *key = defaults->activation_key ? defaults->activation_key : "hidden_act";
    return config_activation(config, key, defaults->activation_key ? "gelu_pytorch_tanh" : "silu",
                             &c->block.gate);
}

/* Sizes first: later keys are checked against them. */
cz_status decoder_config_read(const struct json_node *config,
                              const struct decoder_defaults *defaults, struct decoder_config *c)
{
    const int64_t any = INT32_MAX;
    const int64_t layers = defaults->n_layers ? defaults->n_layers : 32;
    const double eps = defaults->eps > 0 ? defaults->eps : 1e-6;
    *c = (struct decoder_config){.node = config};
    TRY(config_refuse_variants(config));
    TRY(config_size(config, "vocab_size", NULL, defaults->vocab_size, any, &c->vocab_size));
    TRY(config_size(config, "hidden_size", NULL, defaults->hidden_size, 1 << 24, &c->hidden_size));
    TRY(config_size(config, "intermediate_size", NULL, defaults->intermediate_size, 1 << 28,
                    &c->intermediate_size));
    TRY(config_size(config, "num_hidden_layers", NULL, layers, 1 << 16, &c->n_layers));
    TRY(config_size(config, "max_position_embeddings", NULL, defaults->max_positions, POSITIONS_MAX,
                    &c->max_positions));
    TRY(read_heads(config, defaults, c));
    TRY(read_gate(config, defaults, c));
    TRY(config_number(config, "rms_norm_eps", eps, 0, 1, &c->eps));
    TRY(config_number(config, "initializer_range", 0.02, 0, 100, &c->initializer_range));
    TRY(config_number(config, "attention_dropout", 0, 0, 1, &c->attention_dropout));
    TRY(json_opt_bool(config, "tie_word_embeddings", defaults->tie_word_embeddings,
                      &c->tie_word_embeddings));
    TRY(read_padding(config, defaults, c));
    return rope_read(config, c->head_dim, c->max_positions, &defaults->rope, &c->rope);
}

cz_status decoder_read_attention_bias(struct decoder_config *c)
{
    bool bias;
    TRY(json_opt_bool(c->node, "attention_bias", false, &bias));
    c->qkv_bias = c->o_bias = bias;
    return CZ_OK;
}

/* ---- layers of different kinds -------------------------------------------------------------- */

/* A list of one entry per layer, or NULL. */
static cz_status layer_list(const struct decoder_config *c, const char *key,
                            const struct json_node **out)
{
    const struct json_node *list = config_either(c->node, key, NULL);
    *out = list;
    if (!list) return CZ_OK;
    if (json_type(list) == JSON_ARRAY && json_count(list) == (size_t)c->n_layers) return CZ_OK;
    return config_refuse(list, CZ_INVALID, "a list of one kind per layer is expected");
}

/* 0 or 1, or as a truth value. */
static cz_status read_flag(const struct json_node *node, bool *out)
{
    int64_t number = 0;
    if (json_type(node) == JSON_BOOL) return json_as_bool(node, out);
    TRY(json_as_int(node, &number));
    *out = number != 0;
    return CZ_OK;
}

/* The list may be longer than there are layers, as transformers allows. */

static cz_status layer_rotates(const struct decoder_config *c, int64_t i, bool *out)
{
    const struct json_node *list = NULL;
    *out = c->no_rope_every == 0 || (i + 1) % c->no_rope_every != 0;
    if (c->no_rope_every == 0) return CZ_OK; /* no family without the interval has the list */
    list = config_either(c->node, "no_rope_layers", NULL);
    if (!list) return CZ_OK;
    if (json_type(list) != JSON_ARRAY || json_count(list) < (size_t)c->n_layers)
        return config_refuse(list, CZ_INVALID, "a list of 0 or 1 for each layer is expected");
    return read_flag(json_child(list, (size_t)i), out);
}

static cz_status layer_slides(const struct decoder_config *c, int64_t i, bool *out)
{
    const struct json_node *list;
    const char *type;
    bool rotates;
    TRY(layer_rotates(c, i, &rotates));
    *out = c->window > 0 && !c->slides_if_listed && i >= c->first_sliding &&
           !(c->slides_without_rope && rotates) &&
           (c->full_every == 0 || (i + (c->full_first ? 0 : 1)) % c->full_every != 0);
    TRY(layer_list(c, "layer_types", &list));
    if (!list) return CZ_OK;
    TRY(json_as_string(json_child(list, (size_t)i), &type));
    *out = strcmp(type, "sliding_attention") == 0;
    if (!*out && strcmp(type, "full_attention") != 0)
        return config_refuse(json_child(list, (size_t)i), CZ_UNSUPPORTED,
                             "layers are full_attention or sliding_attention");
    if (*out && c->window == 0)
        return config_refuse(json_child(list, (size_t)i), CZ_INVALID,
                             "sliding_attention without use_sliding_window and sliding_window");
    return CZ_OK;
}

cz_status decoder_read_window(struct decoder_config *c, int64_t fallback)
{
    const struct json_node *node = json_get(c->node, "sliding_window");
    c->window = 0;
    if (node ? json_type(node) == JSON_NULL : fallback == 0) return CZ_OK;
    return config_size(c->node, "sliding_window", NULL, fallback, INT32_MAX, &c->window);
}

cz_status decoder_read_switched_window(struct decoder_config *c, int64_t fallback)
{
    bool in_use = false;
    c->window = 0;
    TRY(json_opt_bool(c->node, "use_sliding_window", false, &in_use));
    return in_use ? decoder_read_window(c, fallback) : CZ_OK;
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* Whether the MLP of layer i is a mixture of experts. */
static cz_status layer_is_sparse(const struct decoder_config *c, int64_t i, bool *out)
{
    *out = c->n_experts > 0 && (i + 1) % c->sparse_step == 0;
    const struct json_node *list = config_either(c->node, "mlp_only_layers", NULL);
    if (c->n_experts == 0 || !list) return CZ_OK;
    if (json_type(list) != JSON_ARRAY)
        return config_refuse(list, CZ_INVALID, "a list of layers is expected");
    for (size_t k = 0; k < json_count(list); k++) {
        int64_t idx;
        TRY(json_as_int(json_child(list, k), &idx));
        if (idx == i) *out = false;
    }
    return CZ_OK;
}

cz_status decoder_read_experts(struct decoder_config *c, const struct decoder_experts *defaults)
{
    bool wants_loss;
    double coef;
    TRY(config_size(c->node, "num_experts", "num_local_experts", defaults->n, ROUTER_EXPERTS_MAX,
                    &c->n_experts));
    TRY(config_size(c->node, "num_experts_per_tok", NULL, defaults->top_k, c->n_experts,
                    &c->top_k));
    TRY(config_size(c->node, "moe_intermediate_size", NULL, defaults->size, INT32_MAX,
                    &c->expert_size));
    TRY(config_size(c->node, "decoder_sparse_step", NULL, 1, INT32_MAX, &c->sparse_step));
    TRY(json_opt_bool(c->node, "norm_topk_prob", false, &c->weights_add_to_one));
    TRY(json_opt_bool(c->node, "output_router_logits", false, &wants_loss));
    TRY(config_number(c->node, "router_aux_loss_coef", defaults->balance_coef, 0, 1e6, &coef));
    c->balance_coef = wants_loss ? coef : 0;
    return CZ_OK;
}

/* eps and dropout are fp32 in the kernels. */
cz_status decoder_block_of_layer(const struct decoder_config *c, int layer_idx,
                                 struct decoder_block_hp *out)
{
    bool rotates, slides = false, is_sparse;
    TRY(layer_is_sparse(c, layer_idx, &is_sparse));
    TRY(layer_rotates(c, layer_idx, &rotates));
    TRY(layer_slides(c, layer_idx, &slides));
    *out = c->block;
    out->layer_idx = layer_idx;
    out->C = c->hidden_size;
    out->F = c->intermediate_size;
    out->H = c->n_heads;
    out->G = c->n_kv_heads;
    out->D = c->head_dim;
    out->qkv_bias = c->qkv_bias;
    out->o_bias = c->o_bias;
    out->mlp_bias = c->mlp_bias;
    out->no_rope = !rotates;
    out->window = slides ? c->window : 0;
    out->eps = (float)c->eps;
    out->attn_dropout_p = (float)c->attention_dropout;
    out->init_std = (float)c->initializer_range;
    out->rope = slides && c->has_sliding_rope ? c->sliding_rope : c->rope;
    if (!is_sparse) return CZ_OK;
    out->F = c->expert_size;
    out->n_experts = c->n_experts;
    out->top_k = c->top_k;
    out->weights_add_to_one = c->weights_add_to_one;
    out->balances_experts = c->balance_coef != 0;
    return CZ_OK;
}

/* The head of a language model and of a classifier, of which the chain takes one. */
struct decoder_heads {
    struct model_lm_head_hp lm;
    struct class_head_hp class;
};

static const char *const tokens = "model.embed_tokens.weight";

/* Embedding and head share a parameter if the config ties them. */
static struct model_lm_head_hp lm_head_hp(const struct decoder_config *c)
{
    const char *lm_head = "lm_head.weight";
    return (struct model_lm_head_hp){.norm_weight_name = "model.norm.weight",
                                     .weight_name = c->tie_word_embeddings ? tokens : lm_head,
                                     .tied_alias = c->tie_word_embeddings ? lm_head : NULL,
                                     .V = c->vocab_size,
                                     .C = c->hidden_size,
                                     .eps = (float)c->eps,
                                     .init_std = (float)c->initializer_range,
                                     .divisor = (float)c->logits_divisor,
                                     .softcap = (float)c->logits_softcap,
                                     .norm_offset = c->block.norm_offset,
                                     .n_experts = c->n_experts,
                                     .balance_coef = (float)c->balance_coef};
}

/* What scales and caps the logits of tokens does nothing to those of classes. A negative id of
 * padding is that of no token here, as in transformers. */
static struct class_head_hp class_head_hp(const struct decoder_config *c, int64_t n_classes)
{
    const struct json_node *node = config_either(c->node, "pad_token_id", NULL);
    int64_t given = 0;
    const bool names_none = node && json_as_int(node, &given) == CZ_OK && given < 0;
    return (struct class_head_hp){.rows = HEAD_LAST,
                                  .padding_id = c->has_padding && !names_none ? c->padding_id : -1,
                                  .norm_weight_name = "model.norm.weight",
                                  .class_weight_name = "score.weight",
                                  .C = c->hidden_size,
                                  .K = n_classes,
                                  .eps = (float)c->eps,
                                  .norm_offset = c->block.norm_offset,
                                  .init_std = (float)c->initializer_range};
}

/* The classes of tokens, whose head is the model's own even where it has none of rows. */
static cz_status token_head_read(const struct decoder_config *c, int64_t n_classes,
                                 struct class_head_hp *out)
{
    double dropout;
    bool has_bias;
    TRY(config_token_dropout(c->node, &dropout));
    TRY(json_opt_bool(c->node, "token_classification_bias", true, &has_bias));
    *out = class_head_hp(c, n_classes);
    out->rows = HEAD_EACH;
    out->class_bias_name = has_bias ? "score.bias" : NULL;
    out->dropout_p = (float)dropout;
    return CZ_OK;
}

static cz_status chain_fill(const struct decoder_config *c, const char *name, enum cz_task task,
                            struct decoder_block_hp *blocks, struct layer_desc *layers,
                            struct cz_model **out)
{
    const bool is_tokens = task == CZ_TASK_TOKEN_CLASSIFICATION;
    int64_t n_classes = 0;
    enum head_loss loss;
    TRY(config_n_classes(c->node, task, &n_classes, &loss));
    struct decoder_heads heads = {lm_head_hp(c), class_head_hp(c, n_classes)};
    heads.class.loss = loss;
    if (is_tokens) TRY(token_head_read(c, n_classes, &heads.class));
    const struct model_embedding_hp embedding = {.token_name = tokens,
                                                 .V = c->vocab_size,
                                                 .C = c->hidden_size,
                                                 .init_std = (float)c->initializer_range,
                                                 .scale = (float)c->embedding_scale,
                                                 .rounds_scale = c->rounds_embedding_scale,
                                                 .has_padding = c->has_padding,
                                                 .padding_id = c->padding_id};
    const bool by_length = c->rope.t_switch || c->sliding_rope.t_switch;
    const bool drops =
        c->attention_dropout > 0 || c->block.resid_dropout_p > 0 || heads.class.dropout_p > 0;
    const struct layer_class *block =
        by_length ? &decoder_block_uncached_class : &decoder_block_class;
    const size_t n_layers = (size_t)c->n_layers + 2;
    layers[0] = (struct layer_desc){&model_embedding_class, &embedding, sizeof embedding};
    for (size_t i = 1; i + 1 < n_layers; i++) {
        TRY(decoder_block_of_layer(c, (int)i - 1, &blocks[i - 1]));
        layers[i] = (struct layer_desc){block, &blocks[i - 1], sizeof *blocks};
    }
    layers[n_layers - 1] =
        n_classes > 0 ? (struct layer_desc){&class_head_class, &heads.class, sizeof heads.class}
                      : (struct layer_desc){&model_lm_head_class, &heads.lm, sizeof heads.lm};
    const struct model_desc desc = {.name = name,
                                    .layers = layers,
                                    .n_layers = n_layers,
                                    .vocab_size = c->vocab_size,
                                    .t_max = c->max_positions,
                                    .hidden_size = c->hidden_size,
                                    .n_classes = n_classes,
                                    .unpads =
                                        n_classes > 0 && !by_length && !drops && c->n_experts == 0};
    return model_build(&desc, out);
}

/* Hyper-parameters are copied by model_build(): the arrays here are for building only. */
cz_status decoder_chain_build(const struct decoder_config *c, const char *name, enum cz_task task,
                              struct cz_model **out)
{
    struct decoder_block_hp *blocks = calloc((size_t)c->n_layers, sizeof *blocks);
    struct layer_desc *layers = calloc((size_t)c->n_layers + 2, sizeof *layers);
    cz_status st = blocks && layers
                       ? chain_fill(c, name, task, blocks, layers, out)
                       : err_set(CZ_NOMEM, 0, "no memory for %lld layers", (long long)c->n_layers);
    free(blocks);
    free(layers);
    if (st != CZ_OK) return st;
    /* No table of positions ends anywhere: longer sequences than the config's context can run. */
    (*out)->t_max_limit = POSITIONS_MAX;
    return CZ_OK;
}

/* ---- presets -------------------------------------------------------------------------------- */

/* Whether `more` says this key otherwise. */
static bool is_replaced(const struct decoder_preset *p, const char *key)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(p->more) && p->more[i].key; i++)
        if (strcmp(p->more[i].key, key) == 0) return true;
    return false;
}

static void put_int(struct json_writer *w, const struct decoder_preset *p, const char *key,
                    int64_t value)
{
    if (!is_replaced(p, key)) json_put_int(w, key, value);
}

/* In the older spelling, which all versions of transformers read. */
static void put_rope(struct json_writer *w, const struct decoder_preset *p)
{
    if (!is_replaced(p, "rope_scaling")) json_write_key(w, "rope_scaling");
    if (p->rope_factor > 0) {
        json_begin_object(w);
        json_put_double(w, "factor", p->rope_factor);
        json_put_double(w, "high_freq_factor", 4.0);
        json_put_double(w, "low_freq_factor", 1.0);
        json_put_int(w, "original_max_position_embeddings", 8192);
        json_put_string(w, "rope_type", "llama3");
        json_end_object(w);
    } else if (!is_replaced(p, "rope_scaling")) {
        json_write_null(w);
    }
    json_put_double(w, "rope_theta", p->rope_theta);
}

/* As transformers writes it, for the version that introduced the family. */
static cz_status write_config(const struct decoder_preset *p, const char *family,
                              const char *architecture, char **text)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, architecture);
    json_end_array(&w);
    json_put_double(&w, "attention_dropout", 0.0);
    json_put_int(&w, "bos_token_id", p->bos_token_id);
    json_put_int(&w, "eos_token_id", p->eos_token_id);
    put_int(&w, p, "head_dim", p->hidden_size / p->n_heads);
    if (!is_replaced(p, "hidden_act")) json_put_string(&w, "hidden_act", "silu");
    json_put_int(&w, "hidden_size", p->hidden_size);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", p->intermediate_size);
    json_put_int(&w, "max_position_embeddings", p->max_positions);
    json_put_string(&w, "model_type", family);
    json_put_int(&w, "num_attention_heads", p->n_heads);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "num_key_value_heads", p->n_kv_heads);
    json_put_double(&w, "rms_norm_eps", p->eps);
    put_rope(&w, p);
    json_put_bool(&w, "tie_word_embeddings", p->tie_word_embeddings);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "vocab_size", p->vocab_size);
    for (size_t i = 0; i < CZ_ARRAY_LEN(p->more) && p->more[i].key; i++) {
        json_write_key(&w, p->more[i].key);
        json_write_raw(&w, p->more[i].json);
    }
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

const char *const decoder_ignored[] = {".rotary_emb.inv_freq", NULL};

/* A preset's numbers are published ones: names of other families are not found here. */
cz_status decoder_preset_write(const struct decoder_preset *presets, size_t n, const char *name,
                               const char *family, const char *architecture, char **text)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(presets[i].name, name) == 0)
            return write_config(&presets[i], family, architecture, text);
    return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of %s", name, family);
}

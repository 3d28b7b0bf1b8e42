/* ModernBERT: config.json → chain, and the presets as config.json.
 * Sources: Warner et al., "Smarter, better, faster, longer" (2024), arXiv 2412.13663; names,
 * defaults and the standard deviations of random weights are those of Hugging Face's
 * ModernBertForSequenceClassification and ModernBertForMaskedLM. Its block is that of decoders,
 * with layer norms and attention in both directions: rotary positions of two bases, gated MLPs, a
 * window in all layers but each third. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS  "model.embeddings.tok_embeddings.weight"
#define DECODER "decoder.weight"

static const struct decoder_block_names block_names = {
    .prefix = "model.layers",
    .qkv = "attn.Wqkv",
    .o = "attn.Wo",
    .gate_up = "mlp.Wi",
    .down = "mlp.Wo",
    .norm1 = "attn_norm",
    .norm2 = "mlp_norm",
};

/* What config.json says beside what decoders have. */
struct config {
    struct decoder_config c;
    int64_t K;
    double embedding_dropout, class_dropout;
    bool norm_bias, classifier_bias, decoder_bias, mean;
    enum head_loss loss;
    enum activation head_act;
};

/* ---- config.json ---------------------------------------------------------------------------- */

/* Dropouts that the block does not have. */
static cz_status refuse_dropout(const struct json_node *config, const char *key)
{
    double p;
    TRY(config_number(config, key, 0, 0, 1, &p));
    if (p == 0) return CZ_OK;
    return config_refuse(json_get(config, key), CZ_UNSUPPORTED,
                         "a dropout other than 0 is not supported here");
}

static cz_status read_pooling(const struct json_node *config, bool *mean)
{
    const char *key = "classifier_pooling", *kind = NULL;
    char why[160];
    TRY(json_opt_string(config, key, "cls", &kind));
    *mean = strcmp(kind, "mean") == 0;
    if (*mean || strcmp(kind, "cls") == 0) return CZ_OK;
    snprintf(why, sizeof why, "\"%.64s\" is not supported; supported: cls, mean", kind);
    return config_refuse(json_get(config, key), CZ_UNSUPPORTED, why);
}

/* The token whose embedding takes no gradient; null: none. */
static cz_status read_padding(const struct json_node *config, struct decoder_config *c)
{
    const struct json_node *node = json_get(config, "pad_token_id");
    c->padding_id = 50283;
    c->has_padding = c->padding_id < c->vocab_size;
    if (!node) return CZ_OK;
    c->has_padding = json_type(node) != JSON_NULL;
    if (!c->has_padding) return CZ_OK;
    TRY(json_as_int(node, &c->padding_id));
    if (c->padding_id < 0) c->padding_id += c->vocab_size; /* counted from the end */
    if (c->padding_id >= 0 && c->padding_id < c->vocab_size) return CZ_OK;
    return config_refuse(node, CZ_INVALID, "this is not a token of the vocabulary");
}

/* Local layers see local_attention / 2 keys on either side. Parameters are by kind of layer: an
 * older rope_scaling would be about both. */
static cz_status read_positions(const struct json_node *config, struct decoder_config *c)
{
    static const struct rope_defaults global = {
        .theta = 160000, .kind = "full_attention", .theta_key = "global_rope_theta"};
    static const struct rope_defaults local = {
        .theta = 10000, .kind = "sliding_attention", .theta_key = "local_rope_theta"};
    const struct json_node *scaling = config_either(config, "rope_scaling", NULL);
    if (scaling)
        return config_refuse(scaling, CZ_UNSUPPORTED,
                             "rope_scaling is not supported here; supported: rope_parameters by "
                             "kind of layer");
    TRY(rope_read(config, c->head_dim, c->max_positions, &global, &c->rope));
    TRY(rope_read(config, c->head_dim, c->max_positions, &local, &c->sliding_rope));
    c->has_sliding_rope = true;
    TRY(config_size(config, "local_attention", NULL, 128, INT32_MAX, &c->window));
    c->window = c->window / 2 + 1;
    TRY(config_size(config, "global_attn_every_n_layers", NULL, 3, INT32_MAX, &c->full_every));
    c->full_first = true;
    return CZ_OK;
}

static cz_status read_sizes(const struct json_node *config, struct decoder_config *c)
{
    const int64_t any = INT32_MAX;
    TRY(config_size(config, "vocab_size", NULL, 50368, any, &c->vocab_size));
    TRY(config_size(config, "hidden_size", NULL, 768, 1 << 24, &c->hidden_size));
    TRY(config_size(config, "intermediate_size", NULL, 1152, 1 << 28, &c->intermediate_size));
    TRY(config_size(config, "num_hidden_layers", NULL, 22, 1 << 16, &c->n_layers));
    TRY(config_size(config, "num_attention_heads", NULL, 12, 1 << 24, &c->n_heads));
    TRY(config_size(config, "max_position_embeddings", NULL, 8192, 1 << 24, &c->max_positions));
    TRY(config_check_heads(config, "num_attention_heads", NULL, c->n_heads, c->hidden_size));
    c->n_kv_heads = c->n_heads;
    c->head_dim = c->hidden_size / c->n_heads;
    return CZ_OK;
}

static cz_status config_read(const struct json_node *config, enum cz_task task, struct config *m)
{
    struct decoder_config *c = &m->c;
    *m = (struct config){.c.node = config};
    TRY(config_refuse_variants(config));
    TRY(read_sizes(config, c));
    TRY(config_number(config, "norm_eps", 1e-5, 0, 1, &c->eps));
    TRY(config_number(config, "initializer_range", 0.02, 0, 100, &c->initializer_range));
    TRY(config_activation(config, "hidden_activation", "gelu", &c->block.gate));
    TRY(read_positions(config, c));
    TRY(read_padding(config, c));
    TRY(refuse_dropout(config, "attention_dropout"));
    TRY(refuse_dropout(config, "mlp_dropout"));
    TRY(config_number(config, "embedding_dropout", 0, 0, 1, &m->embedding_dropout));
    TRY(config_number(config, "classifier_dropout", 0, 0, 1, &m->class_dropout));
    TRY(decoder_read_attention_bias(c));
    TRY(json_opt_bool(config, "mlp_bias", false, &c->mlp_bias));
    TRY(json_opt_bool(config, "norm_bias", false, &m->norm_bias));
    TRY(json_opt_bool(config, "decoder_bias", true, &m->decoder_bias));
    TRY(json_opt_bool(config, "classifier_bias", false, &m->classifier_bias));
    TRY(json_opt_bool(config, "tie_word_embeddings", true, &c->tie_word_embeddings));
    TRY(config_activation(config, "classifier_activation", "gelu", &m->head_act));
    TRY(read_pooling(config, &m->mean));
    return config_n_classes(config, task, &m->K, &m->loss);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* The hyper-parameters of a chain, alive while it is built. */
struct parts {
    struct encoder_embedding_hp embedding;
    struct decoder_block_hp *blocks;
    struct encoder_norm_hp norm;
    struct encoder_summary_hp summary;
    struct class_head_hp class_head;
    struct mlm_head_hp mlm_head;
    struct layer_desc *layers;
};

static float out_std(const struct decoder_config *c)
{
    return (float)(c->initializer_range / sqrt(2.0 * (double)c->n_layers));
}

static cz_status fill_block(const struct config *m, int layer_idx, struct decoder_block_hp *hp)
{
    TRY(decoder_block_of_layer(&m->c, layer_idx, hp));
    hp->fused_maps = true;
    hp->is_bidirectional = true;
    hp->layer_norm = true;
    hp->norm_bias = m->norm_bias;
    hp->no_first_norm = layer_idx == 0;
    hp->out_init_std = out_std(&m->c);
    hp->names = &block_names;
    return CZ_OK;
}

static void fill_ends(const struct config *m, enum cz_task task, struct parts *p)
{
    const bool is_tokens = task == CZ_TASK_TOKEN_CLASSIFICATION;
    const struct decoder_config *c = &m->c;
    const float eps = (float)c->eps, std = (float)c->initializer_range;
    p->embedding = (struct encoder_embedding_hp){
        .token_name = TOKENS,
        .norm_weight_name = "model.embeddings.norm.weight",
        .norm_bias_name = m->norm_bias ? "model.embeddings.norm.bias" : NULL,
        .V = c->vocab_size,
        .E = c->hidden_size,
        .C = c->hidden_size,
        .padding_id = c->has_padding ? c->padding_id : -1,
        .position_padding_id = -1,
        .eps = eps,
        .dropout_p = (float)m->embedding_dropout,
        .init_std = std};
    p->norm = (struct encoder_norm_hp){.weight_name = "model.final_norm.weight",
                                       .bias_name = m->norm_bias ? "model.final_norm.bias" : NULL,
                                       .C = c->hidden_size,
                                       .eps = eps};
    p->summary = (struct encoder_summary_hp){
        .dense_weight_name = "head.dense.weight",
        .dense_bias_name = m->classifier_bias ? "head.dense.bias" : NULL,
        .norm_weight_name = "head.norm.weight",
        .norm_bias_name = m->norm_bias ? "head.norm.bias" : NULL,
        .pooling = is_tokens ? SUMMARY_EACH
                   : m->mean ? SUMMARY_MEAN
                             : SUMMARY_FIRST,
        .act = m->head_act,
        .C = c->hidden_size,
        .eps = eps,
        .init_std = out_std(c)};
    p->class_head = (struct class_head_hp){.rows = is_tokens ? HEAD_EACH : HEAD_FIRST,
                                           .loss = m->loss,
                                           .class_weight_name = "classifier.weight",
                                           .class_bias_name = "classifier.bias",
                                           .C = c->hidden_size,
                                           .K = m->K,
                                           .dropout_p = (float)m->class_dropout,
                                           .init_std = (float)(1.0 / sqrt((double)c->hidden_size))};
    p->mlm_head = (struct mlm_head_hp){.dense_weight_name = p->summary.dense_weight_name,
                                       .dense_bias_name = p->summary.dense_bias_name,
                                       .norm_weight_name = p->summary.norm_weight_name,
                                       .norm_bias_name = p->summary.norm_bias_name,
                                       .weight_name = c->tie_word_embeddings ? TOKENS : DECODER,
                                       .tied_alias = c->tie_word_embeddings ? DECODER : NULL,
                                       .bias_name = m->decoder_bias ? "decoder.bias" : NULL,
                                       .act = m->head_act,
                                       .C = c->hidden_size,
                                       .E = c->hidden_size,
                                       .V = c->vocab_size,
                                       .eps = eps,
                                       .init_std = out_std(c)};
}

/* As in model_desc. */
static bool may_unpad(const struct config *m, enum cz_task task)
{
    const bool drops =
        m->embedding_dropout > 0 || (task == CZ_TASK_TOKEN_CLASSIFICATION && m->class_dropout > 0);
    return !drops && m->c.rope.t_switch == 0 && m->c.sliding_rope.t_switch == 0;
}

/* Embedding, blocks, the last norm, and the head: of classes behind a summary of texts or of
 * tokens. */
static cz_status chain_build(const struct config *m, const char *name, enum cz_task task,
                             struct parts *p, struct cz_model **out)
{
    const size_t n_blocks = (size_t)m->c.n_layers;
    const bool classifies = m->K > 0;
    struct layer_desc *next = p->layers;
    fill_ends(m, task, p);
    *next++ = (struct layer_desc){&encoder_embedding_class, &p->embedding, sizeof p->embedding};
    for (size_t i = 0; i < n_blocks; i++) {
        TRY(fill_block(m, (int)i, &p->blocks[i]));
        *next++ =
            (struct layer_desc){&decoder_block_uncached_class, &p->blocks[i], sizeof *p->blocks};
    }
    *next++ = (struct layer_desc){&encoder_norm_class, &p->norm, sizeof p->norm};
    if (classifies) {
        *next++ = (struct layer_desc){&encoder_summary_class, &p->summary, sizeof p->summary};
        *next++ = (struct layer_desc){&class_head_class, &p->class_head, sizeof p->class_head};
    } else {
        *next++ = (struct layer_desc){&mlm_head_class, &p->mlm_head, sizeof p->mlm_head};
    }
    const struct model_desc desc = {.name = name,
                                    .layers = p->layers,
                                    .n_layers = (size_t)(next - p->layers),
                                    .vocab_size = m->c.vocab_size,
                                    .t_max = m->c.max_positions,
                                    .padding_id = p->embedding.padding_id,
                                    .hidden_size = m->c.hidden_size,
                                    .n_classes = m->K,
                                    .labels = CZ_LABELS_SAME,
                                    .unpads = may_unpad(m, task)};
    return model_build(&desc, out);
}

/* Hyper-parameters are copied by model_build(): the arrays here are for building only. */
static cz_status modernbert_build(const struct json_node *config, const char *name,
                                  enum cz_task task, struct cz_model **out)
{
    struct config m;
    *out = NULL;
    TRY(config_read(config, task, &m));
    struct parts p = {.blocks = calloc((size_t)m.c.n_layers, sizeof *p.blocks),
                      .layers = calloc((size_t)m.c.n_layers + 4, sizeof *p.layers)};
    cz_status st = p.blocks && p.layers
                       ? chain_build(&m, name, task, &p, out)
                       : err_set(CZ_NOMEM, 0, "no memory for %lld layers", (long long)m.c.n_layers);
    free(p.blocks);
    free(p.layers);
    return st;
}

/* ---- presets -------------------------------------------------------------------------------- */

static const struct preset {
    const char *name;
    int64_t n_layers, C, H, F;
} presets[] = {
    /* clang-format off */
    {"modernbert-base", 22, 768, 12, 1152},
    {"modernbert-large", 28, 1024, 16, 2624},
    /* clang-format on */
};

static const char *modernbert_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

static cz_status modernbert_preset_config(const char *name, char **text)
{
    const struct preset *p = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++)
        if (strcmp(presets[i].name, name) == 0) p = &presets[i];
    if (!p) return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of ModernBERT", name);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "ModernBertForSequenceClassification");
    json_end_array(&w);
    json_put_int(&w, "bos_token_id", 50281);
    json_put_string(&w, "classifier_pooling", "mean");
    json_put_int(&w, "cls_token_id", 50281);
    json_put_int(&w, "eos_token_id", 50282);
    json_put_int(&w, "global_attn_every_n_layers", 3);
    json_put_double(&w, "global_rope_theta", 160000.0);
    json_put_string(&w, "hidden_activation", "gelu");
    json_put_int(&w, "hidden_size", p->C);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", p->F);
    json_put_int(&w, "local_attention", 128);
    json_put_double(&w, "local_rope_theta", 10000.0);
    json_put_int(&w, "max_position_embeddings", 8192);
    json_put_string(&w, "model_type", "modernbert");
    json_put_double(&w, "norm_eps", 1e-5);
    json_put_int(&w, "num_attention_heads", p->H);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "pad_token_id", 50283);
    json_put_int(&w, "sep_token_id", 50282);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "vocab_size", 50368);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const char *const modernbert_ignored[] = {".inv_freq", NULL};

static const struct model_head modernbert_heads[] = {
    {CZ_TASK_CLASSIFICATION, "ModernBertForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "ModernBertForTokenClassification"},
    {CZ_TASK_MASKED_LM, "ModernBertForMaskedLM"},
};

const struct model_family model_family_modernbert = {
    .model_type = "modernbert",
    .title = "ModernBERT",
    .base_prefix = "model.",
    .base_architecture = "ModernBertModel",
    .heads = modernbert_heads,
    .n_heads = CZ_ARRAY_LEN(modernbert_heads),
    .ignored_suffixes = modernbert_ignored,
    .tied_param = TOKENS,
    .tied_elsewhere = DECODER,
    .build = modernbert_build,
    .preset_name = modernbert_preset_name,
    .preset_config = modernbert_preset_config,
    .preset_example = "modernbert-base",
};

/* DeBERTa v2 and v3: config.json → chain, and the presets as config.json.
 * Sources: He et al., "DeBERTa: decoding-enhanced BERT with disentangled attention" (2020), arXiv
 * 2006.03654, and "DeBERTaV3" (2021), arXiv 2111.09543; names, defaults and the init rule are those
 * of Hugging Face's DebertaV2ForSequenceClassification and DebertaV2ForMaskedLM. It differs from
 * BERT in scores, to which tokens' distances contribute (encoder_positions.c), in embeddings, which
 * may have neither positions nor types and whose norm is behind their map, and in its heads. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEW_MLM "lm_predictions.lm_head."

static const char *const block_names[ENCODER_N_PARAMS] = {
    [ENCODER_Q_W] = "attention.self.query_proj.weight",
    [ENCODER_Q_B] = "attention.self.query_proj.bias",
    [ENCODER_K_W] = "attention.self.key_proj.weight",
    [ENCODER_K_B] = "attention.self.key_proj.bias",
    [ENCODER_V_W] = "attention.self.value_proj.weight",
    [ENCODER_V_B] = "attention.self.value_proj.bias",
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

/* Of the model with all parts and the older head. */
static const struct encoder_names all_names = {
    ENCODER_EMBEDDINGS("deberta."),
    ENCODER_TYPES("deberta."),
    ENCODER_EMBEDDING_NORM("deberta."),
    .project_w = "deberta.embeddings.embed_proj.weight",
    .block_prefix = "deberta.encoder.layer",
    .block = block_names,
    .pool_w = "pooler.dense.weight",
    .pool_b = "pooler.dense.bias",
    ENCODER_BERT_HEADS,
};

static const struct encoder_positions_hp position_names = {
    .table_name = "deberta.encoder.rel_embeddings.weight",
    .norm_weight_name = "deberta.encoder.LayerNorm.weight",
    .norm_bias_name = "deberta.encoder.LayerNorm.bias",
    .key_weight_name = "attention.self.pos_key_proj.weight",
    .key_bias_name = "attention.self.pos_key_proj.bias",
    .query_weight_name = "attention.self.pos_query_proj.weight",
    .query_bias_name = "attention.self.pos_query_proj.bias",
};

/* ---- positions ------------------------------------------------------------------------------ */

/* One of a few words, of n bytes with spaces around, in any case. */
static bool is_word(const char *text, size_t n, const char *word)
{
    while (n > 0 && *text == ' ') text++, n--;
    while (n > 0 && text[n - 1] == ' ') n--;
    return n == strlen(word) && strncasecmp(text, word, n) == 0;
}

static cz_status refuse_word(const struct json_node *node, const char *text, size_t n,
                             const char *known)
{
    char why[200];
    snprintf(why, sizeof why, "\"%.*s\" is not supported; supported: %s", n < 64 ? (int)n : 64,
             text, known);
    return config_refuse(node, CZ_UNSUPPORTED, why);
}

static cz_status read_term(const struct json_node *node, const char *text, size_t n,
                           struct encoder_positions_hp *p)
{
    if (is_word(text, n, "c2p"))
        p->c2p = true;
    else if (is_word(text, n, "p2c"))
        p->p2c = true;
    else
        return refuse_word(node, text, n, "c2p, p2c");
    return CZ_OK;
}

/* A list of words, or a text of words with | between them. */
static cz_status read_terms(const struct json_node *config, struct encoder_positions_hp *p)
{
    const struct json_node *node = config_either(config, "pos_att_type", NULL);
    const char *text = NULL;
    if (node && json_type(node) == JSON_ARRAY) {
        for (size_t i = 0; i < json_count(node); i++) {
            TRY(json_as_string(json_child(node, i), &text));
            TRY(read_term(json_child(node, i), text, strlen(text), p));
        }
    } else if (node) {
        TRY(json_as_string(node, &text));
        for (size_t n; *text; text += n + (text[n] == '|')) {
            n = strcspn(text, "|");
            TRY(read_term(node, text, n, p));
        }
    }
    if (p->c2p || p->p2c) return CZ_OK;
    return config_refuse(node ? node : config, CZ_UNSUPPORTED,
                         "pos_att_type without c2p and p2c is not supported");
}

/* The norm of the vectors of positions. */
static cz_status read_norm(const struct json_node *config, struct encoder_positions_hp *p)
{
    const char *key = "norm_rel_ebd", *text = NULL;
    TRY(json_opt_string(config, key, "none", &text));
    if (is_word(text, strlen(text), "layer_norm")) return CZ_OK;
    if (!is_word(text, strlen(text), "none"))
        return refuse_word(json_get(config, key), text, strlen(text), "none, layer_norm");
    p->norm_weight_name = p->norm_bias_name = NULL;
    return CZ_OK;
}

/* Absent, null and numbers below 1: 0. */
static cz_status read_count(const struct json_node *config, const char *key, int64_t max,
                            int64_t *out)
{
    const struct json_node *node = config_either(config, key, NULL);
    char why[96];
    *out = 0;
    if (node) TRY(json_as_int(node, out));
    if (*out < 0) *out = 0;
    if (*out <= max) return CZ_OK;
    snprintf(why, sizeof why, "%lld is more than %lld", (long long)*out, (long long)max);
    return config_refuse(node, CZ_INVALID, why);
}

/* How distances fall into buckets: `middle` to each side have one each, then they widen with the
 * logarithm, so that distance `most` − 1 is in the last; middle 0: all have one. */
struct bucketing {
    int64_t middle, most, span; /* span: buckets to each side */
};

/* Of a key `behind` positions before the query. In fp32, as PyTorch computes it: where a bucket
 * begins depends on the rounding. */
static int32_t bucket_of(const struct bucketing *b, int64_t behind)
{
    const int64_t distance = behind < 0 ? -behind : behind;
    int64_t bucket = behind;
    if (b->middle > 0 && distance > b->middle) {
        const float share = logf((float)distance / (float)b->middle) /
                            logf((float)((double)(b->most - 1) / (double)b->middle));
        const int64_t far = (int64_t)ceilf(share * (float)(b->middle - 1)) + b->middle;
        bucket = behind < 0 ? -far : far;
    }
    bucket += b->span;
    return (int32_t)(bucket < 0 ? 0 : bucket >= 2 * b->span ? 2 * b->span - 1 : bucket);
}

static cz_status read_bucketing(const struct json_node *config, int64_t P, struct bucketing *b)
{
    const char *key = "position_buckets";
    int64_t n = 0;
    TRY(read_count(config, "max_relative_positions", (1 << 15) - 1, &b->most));
    TRY(read_count(config, key, (1 << 15) - 1, &n));
    if (b->most == 0) b->most = P;
    b->span = n > 0 ? n : b->most;
    b->middle = n / 2;
    if (n > 0 && (b->middle == 0 || (P - 1 > b->middle && b->most - 1 <= b->middle)))
        return config_refuse(json_get(config, key), CZ_UNSUPPORTED,
                             "this leaves no distance whose logarithm counts");
    if (b->span < 1 << 15) return CZ_OK;
    return config_refuse(json_get(config, "max_position_embeddings"), CZ_UNSUPPORTED,
                         "more than 32767 positions need position_buckets");
}

static cz_status read_positions(const struct json_node *config, struct encoder_config *c)
{
    struct bucketing b;
    bool relative, shared;
    c->positions = position_names;
    TRY(json_opt_bool(config, "relative_attention", false, &relative));
    if (!relative) {
        const struct json_node *node = json_get(config, "relative_attention");
        return config_refuse(node ? node : config, CZ_UNSUPPORTED,
                             "relative_attention that is not true is not supported");
    }
    TRY(json_opt_bool(config, "share_att_key", false, &shared));
    c->positions.own_maps = !shared;
    TRY(read_terms(config, &c->positions));
    TRY(read_norm(config, &c->positions));
    TRY(read_bucketing(config, c->P, &b));
    c->positions.n_buckets = 2 * b.span;
    c->buckets = malloc((size_t)(2 * c->P) * sizeof *c->buckets);
    if (!c->buckets)
        return err_set(CZ_NOMEM, 0, "no memory for %lld buckets", (long long)(2 * c->P));
    for (int64_t i = 0; i < 2 * c->P - 1; i++) c->buckets[i] = bucket_of(&b, c->P - 1 - i);
    c->positions.buckets = c->buckets;
    return CZ_OK;
}

/* ---- the rest of config.json ---------------------------------------------------------------- */

/* What changes the arithmetic in ways that no layer here has. */
static cz_status refuse_variants(const struct json_node *config, const struct encoder_config *c)
{
    int64_t conv, head_width, pool_width;
    TRY(read_count(config, "conv_kernel_size", INT32_MAX, &conv));
    if (conv > 0)
        return config_refuse(json_get(config, "conv_kernel_size"), CZ_UNSUPPORTED,
                             "a convolution behind the first layer (DeBERTa-v2) is not supported; "
                             "DeBERTa-v3 has none");
    TRY(config_size(config, "attention_head_size", NULL, c->C / c->H, INT32_MAX, &head_width));
    if (head_width != c->C / c->H)
        return config_refuse(json_get(config, "attention_head_size"), CZ_UNSUPPORTED,
                             "heads that are not hidden_size / num_attention_heads wide are not "
                             "supported");
    TRY(config_size(config, "pooler_hidden_size", NULL, c->C, INT32_MAX, &pool_width));
    if (pool_width == c->C) return CZ_OK;
    return config_refuse(json_get(config, "pooler_hidden_size"), CZ_UNSUPPORTED,
                         "a pooler that is not hidden_size wide is not supported");
}

/* The head of newer checkpoints, whose decoder is the embedding table whatever
 * tie_word_embeddings says. */
static cz_status read_head(const struct json_node *config, enum cz_task task,
                           struct encoder_config *c, struct encoder_names *n)
{
    bool legacy;
    TRY(json_opt_bool(config, "legacy", true, &legacy));
    TRY(config_activation(config, "pooler_hidden_act", "gelu", &n->pool_act));
    TRY(config_number(config, "pooler_dropout", 0, 0, 1, &c->pool_dropout));
    TRY(config_number(config, "cls_dropout", c->dropout, 0, 1, &c->class_dropout));
    c->token_dropout = c->dropout;
    if (legacy || task != CZ_TASK_MASKED_LM) return CZ_OK;
    if (c->E != c->C)
        return config_refuse(json_get(config, "legacy"), CZ_UNSUPPORTED,
                             "the newer head needs an embedding_size of hidden_size");
    c->tied = true;
    n->mlm_dense_w = NEW_MLM "dense.weight";
    n->mlm_dense_b = NEW_MLM "dense.bias";
    n->mlm_norm_w = NEW_MLM "LayerNorm.weight";
    n->mlm_norm_b = NEW_MLM "LayerNorm.bias";
    n->mlm_bias = NEW_MLM "bias";
    n->mlm_w = n->mlm_bias_untied = NULL;
    return CZ_OK;
}

static cz_status deberta_build(const struct json_node *config, const char *name, enum cz_task task,
                               struct cz_model **out)
{
    struct encoder_config c = {.C = 1536,
                               .H = 24,
                               .F = 6144,
                               .n_layers = 24,
                               .eps = 1e-7,
                               .no_types = true,
                               .project_first = true};
    struct encoder_names names = all_names;
    bool biased;
    *out = NULL;
    TRY(encoder_config_bert(config, 128100, task, &c));
    TRY(refuse_variants(config, &c));
    TRY(config_size(config, "embedding_size", NULL, c.C, 1 << 24, &c.E));
    TRY(read_count(config, "type_vocab_size", INT32_MAX, &c.S));
    TRY(json_opt_bool(config, "position_biased_input", true, &biased));
    if (c.S == 0) names.type = NULL;
    if (!biased) names.position = NULL;
    TRY(read_head(config, task, &c, &names));
    TRY(read_positions(config, &c));
    return encoder_build(&c, &names, name, task, out);
}

/* Files of models without positions may carry their table. */
static const char *const ignored[] = {".embeddings.position_ids",
                                      ".embeddings.position_embeddings.weight", NULL};

/* ---- presets -------------------------------------------------------------------------------- */

static const struct preset {
    const char *name;
    int64_t V, n_layers, C, H;
} presets[] = {
    /* clang-format off */
    {"deberta-v3-xsmall", 128100, 12, 384, 6},
    {"deberta-v3-small", 128100, 6, 768, 12},
    {"deberta-v3-base", 128100, 12, 768, 12},
    {"deberta-v3-large", 128100, 24, 1024, 16},
    {"mdeberta-v3-base", 251000, 12, 768, 12},
    /* clang-format on */
};

static const char *deberta_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

static cz_status deberta_preset_config(const char *name, char **text)
{
    const struct preset *p = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++)
        if (strcmp(presets[i].name, name) == 0) p = &presets[i];
    if (!p) return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of DeBERTa", name);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "DebertaV2ForSequenceClassification");
    json_end_array(&w);
    json_put_double(&w, "attention_probs_dropout_prob", 0.1);
    json_put_string(&w, "hidden_act", "gelu");
    json_put_double(&w, "hidden_dropout_prob", 0.1);
    json_put_int(&w, "hidden_size", p->C);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", 4 * p->C);
    json_put_double(&w, "layer_norm_eps", 1e-7);
    json_put_int(&w, "max_position_embeddings", 512);
    json_put_int(&w, "max_relative_positions", -1);
    json_put_string(&w, "model_type", "deberta-v2");
    json_put_string(&w, "norm_rel_ebd", "layer_norm");
    json_put_int(&w, "num_attention_heads", p->H);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "pad_token_id", 0);
    json_put_double(&w, "pooler_dropout", 0);
    json_put_string(&w, "pooler_hidden_act", "gelu");
    json_put_int(&w, "pooler_hidden_size", p->C);
    json_put_string(&w, "pos_att_type", "p2c|c2p");
    json_put_bool(&w, "position_biased_input", false);
    json_put_int(&w, "position_buckets", 256);
    json_put_bool(&w, "relative_attention", true);
    json_put_bool(&w, "share_att_key", true);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "type_vocab_size", 0);
    json_put_int(&w, "vocab_size", p->V);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const struct model_head heads[] = {
    {CZ_TASK_CLASSIFICATION, "DebertaV2ForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "DebertaV2ForTokenClassification"},
    {CZ_TASK_MASKED_LM, "DebertaV2ForMaskedLM"},
};

const struct model_family model_family_deberta = {
    .model_type = "deberta-v2",
    .title = "DeBERTa-v3",
    .base_prefix = "deberta.",
    .base_architecture = "DebertaV2Model",
    .heads = heads,
    .n_heads = CZ_ARRAY_LEN(heads),
    .ignored_suffixes = ignored,
    .tied_param = "deberta.embeddings.word_embeddings.weight",
    .tied_elsewhere = "cls.predictions.decoder.weight",
    .padding_differs = true, /* queries of padding see all keys alike there */
    .build = deberta_build,
    .preset_name = deberta_preset_name,
    .preset_config = deberta_preset_config,
    .preset_example = "deberta-v3-base",
};

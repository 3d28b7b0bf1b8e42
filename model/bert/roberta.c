/* RoBERTa and XLM-RoBERTa: config.json → chain, and the presets as config.json.
 * Sources: Liu et al., "RoBERTa: a robustly optimized BERT pretraining approach" (2019); Conneau et
 * al., "Unsupervised cross-lingual representation learning at scale" (2020); names, defaults and
 * the init rule are those of Hugging Face's classes, which differ between the two in the default of
 * the vocabulary alone. They differ from BERT in positions, which count tokens other than padding
 * from padding's id + 1, and in their heads. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <stdio.h>
static const struct encoder_names names = {
    .token = "roberta.embeddings.word_embeddings.weight",
    .position = "roberta.embeddings.position_embeddings.weight",
    .type = "roberta.embeddings.token_type_embeddings.weight",
    .embedding_norm_w = "roberta.embeddings.LayerNorm.weight",
    .embedding_norm_b = "roberta.embeddings.LayerNorm.bias",
    .block_prefix = "roberta.encoder.layer",
    .block = encoder_bert_block,
    .pool_w = "classifier.dense.weight",
    .pool_b = "classifier.dense.bias",
    .class_w = "classifier.out_proj.weight",
    .class_b = "classifier.out_proj.bias",
    .mlm_dense_w = "lm_head.dense.weight",
    .mlm_dense_b = "lm_head.dense.bias",
    .mlm_norm_w = "lm_head.layer_norm.weight",
    .mlm_norm_b = "lm_head.layer_norm.bias",
    .mlm_w = "lm_head.decoder.weight",
    .mlm_bias = "lm_head.bias",
    .mlm_bias_untied = "lm_head.decoder.bias",
    .mlm_bias_first = true,
    .mlm_act_is_gelu = true,
    .pool_act = ACT_TANH,
    .pool_drops_input = true,
};

/* Positions are counted from the padding token's id, so there must be one, and rows behind it. */
static cz_status check_positions(const struct json_node *config, const struct encoder_config *c)
{
    const struct json_node *padding = json_get(config, "pad_token_id");
    int64_t given = c->padding_id;
    char why[160];
    if (padding && json_type(padding) != JSON_NULL) TRY(json_as_int(padding, &given));
    if (c->padding_id < 0 || given < 0)
        return config_refuse(padding ? padding : config, CZ_UNSUPPORTED,
                             "positions are counted from the id of the padding token, which must "
                             "be 0 or more");
    if (c->P > c->padding_id + 1) return CZ_OK;
    const struct json_node *positions = config_either(config, "max_position_embeddings", NULL);
    snprintf(
        why, sizeof why,
        "%lld positions leave none for tokens, whose positions begin at pad_token_id + 1, %lld",
        (long long)c->P, (long long)c->padding_id + 1);
    return config_refuse(positions ? positions : config, CZ_INVALID, why);
}

static cz_status build(const struct json_node *config, const char *name, enum cz_task task,
                       int64_t V, struct cz_model **out)
{
    struct encoder_config c = {.padding_id = 1, .counts_positions = true};
    *out = NULL;
    TRY(encoder_config_bert(config, V, task, &c));
    TRY(check_positions(config, &c));
    return encoder_build(&c, &names, name, task, out);
}

static cz_status roberta_build(const struct json_node *config, const char *name, enum cz_task task,
                               struct cz_model **out)
{
    return build(config, name, task, 50265, out);
}

static cz_status xlm_roberta_build(const struct json_node *config, const char *name,
                                   enum cz_task task, struct cz_model **out)
{
    return build(config, name, task, 30522, out);
}

static const char *const ignored[] = {".embeddings.position_ids", NULL};

/* ---- presets -------------------------------------------------------------------------------- */

static const struct encoder_preset roberta_list[] = {
    /* clang-format off */
    {"roberta-base", 12, 768, 12, 0},
    {"roberta-large", 24, 1024, 16, 0},
    /* clang-format on */
};

static const struct encoder_presets roberta_presets = {
    .model_type = "roberta",
    .title = "RoBERTa",
    .classifier = "RobertaForSequenceClassification",
    .V = 50265,
    .P = 514,
    .S = 1,
    .padding_id = 1,
    .first_id = 0,
    .last_id = 2,
    .eps = 1e-5,
    .list = roberta_list,
    .n = CZ_ARRAY_LEN(roberta_list),
};

static const char *roberta_preset_name(size_t idx)
{
    return encoder_preset_name(&roberta_presets, idx);
}

static cz_status roberta_preset_config(const char *name, char **text)
{
    return encoder_preset_write(&roberta_presets, name, text);
}

static const struct encoder_preset xlm_roberta_list[] = {
    /* clang-format off */
    {"xlm-roberta-base", 12, 768, 12, 0},
    {"xlm-roberta-large", 24, 1024, 16, 0},
    /* clang-format on */
};

static const struct encoder_presets xlm_roberta_presets = {
    .model_type = "xlm-roberta",
    .title = "XLM-RoBERTa",
    .classifier = "XLMRobertaForSequenceClassification",
    .V = 250002,
    .P = 514,
    .S = 1,
    .padding_id = 1,
    .first_id = 0,
    .last_id = 2,
    .eps = 1e-5,
    .list = xlm_roberta_list,
    .n = CZ_ARRAY_LEN(xlm_roberta_list),
};

static const char *xlm_roberta_preset_name(size_t idx)
{
    return encoder_preset_name(&xlm_roberta_presets, idx);
}

static cz_status xlm_roberta_preset_config(const char *name, char **text)
{
    return encoder_preset_write(&xlm_roberta_presets, name, text);
}

/* ---- the families --------------------------------------------------------------------------- */

static const struct model_head roberta_heads[] = {
    {CZ_TASK_CLASSIFICATION, "RobertaForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "RobertaForTokenClassification"},
    {CZ_TASK_MASKED_LM, "RobertaForMaskedLM"},
};

static const struct model_head xlm_roberta_heads[] = {
    {CZ_TASK_CLASSIFICATION, "XLMRobertaForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "XLMRobertaForTokenClassification"},
    {CZ_TASK_MASKED_LM, "XLMRobertaForMaskedLM"},
};

const struct model_family model_family_roberta = {
    .model_type = "roberta",
    .title = "RoBERTa",
    .base_prefix = "roberta.",
    .base_architecture = "RobertaModel",
    .heads = roberta_heads,
    .n_heads = CZ_ARRAY_LEN(roberta_heads),
    .ignored_suffixes = ignored,
    .tied_param = "roberta.embeddings.word_embeddings.weight",
    .tied_elsewhere = "lm_head.decoder.weight",
    .build = roberta_build,
    .preset_name = roberta_preset_name,
    .preset_config = roberta_preset_config,
    .preset_example = "roberta-base",
};

const struct model_family model_family_xlm_roberta = {
    .model_type = "xlm-roberta",
    .title = "XLM-RoBERTa",
    .base_prefix = "roberta.",
    .base_architecture = "XLMRobertaModel",
    .heads = xlm_roberta_heads,
    .n_heads = CZ_ARRAY_LEN(xlm_roberta_heads),
    .ignored_suffixes = ignored,
    .tied_param = "roberta.embeddings.word_embeddings.weight",
    .tied_elsewhere = "lm_head.decoder.weight",
    .build = xlm_roberta_build,
    .preset_name = xlm_roberta_preset_name,
    .preset_config = xlm_roberta_preset_config,
    .preset_example = "xlm-roberta-base",
};

/* BERT: config.json → chain, and the presets as config.json.
 * Sources: Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
 * understanding" (2019); Turc et al., "Well-read students learn better" (2019) for the small sizes;
 * names, defaults and the init rule are those of Hugging Face's BertForSequenceClassification and
 * BertForMaskedLM. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#define LAYER "bert.encoder.layer"
#define MLM   "cls.predictions."

static const struct encoder_names names = {
    .token = "bert.embeddings.word_embeddings.weight",
    .position = "bert.embeddings.position_embeddings.weight",
    .type = "bert.embeddings.token_type_embeddings.weight",
    .embedding_norm_w = "bert.embeddings.LayerNorm.weight",
    .embedding_norm_b = "bert.embeddings.LayerNorm.bias",
    .block_prefix = LAYER,
    .block = encoder_bert_block,
    .pool_w = "bert.pooler.dense.weight",
    .pool_b = "bert.pooler.dense.bias",
    .class_w = "classifier.weight",
    .class_b = "classifier.bias",
    .mlm_dense_w = MLM "transform.dense.weight",
    .mlm_dense_b = MLM "transform.dense.bias",
    .mlm_norm_w = MLM "transform.LayerNorm.weight",
    .mlm_norm_b = MLM "transform.LayerNorm.bias",
    .mlm_w = MLM "decoder.weight",
    .mlm_bias = MLM "bias",
    .mlm_bias_untied = MLM "decoder.bias",
    .mlm_bias_first = true,
    .pool_act = ACT_TANH,
};

static cz_status bert_build(const struct json_node *config, const char *name, enum cz_task task,
                            struct cz_model **out)
{
    struct encoder_config c = {0};
    *out = NULL;
    TRY(encoder_config_bert(config, 30522, task, &c));
    return encoder_build(&c, &names, name, task, out);
}

static const char *const bert_ignored[] = {".embeddings.position_ids", NULL};

/* ---- presets -------------------------------------------------------------------------------- */

static const struct encoder_preset bert_list[] = {
    /* clang-format off */
    {"bert-tiny", 2, 128, 2, 0},
    {"bert-mini", 4, 256, 4, 0},
    {"bert-small", 4, 512, 8, 0},
    {"bert-medium", 8, 512, 8, 0},
    {"bert-base", 12, 768, 12, 0},
    {"bert-large", 24, 1024, 16, 0},
    /* clang-format on */
};

static const struct encoder_presets bert_presets = {
    .model_type = "bert",
    .title = "BERT",
    .classifier = "BertForSequenceClassification",
    .V = 30522,
    .P = 512,
    .S = 2,
    .padding_id = 0,
    .eps = 1e-12,
    .list = bert_list,
    .n = CZ_ARRAY_LEN(bert_list),
};

static const char *bert_preset_name(size_t idx)
{
    return encoder_preset_name(&bert_presets, idx);
}

static cz_status bert_preset_config(const char *name, char **text)
{
    return encoder_preset_write(&bert_presets, name, text);
}

static const struct model_head bert_heads[] = {
    {CZ_TASK_CLASSIFICATION, "BertForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "BertForTokenClassification"},
    {CZ_TASK_MASKED_LM, "BertForMaskedLM"},
    {CZ_TASK_MASKED_LM, "BertForPreTraining"}, /* its second head is left out */
};

const struct model_family model_family_bert = {
    .model_type = "bert",
    .title = "BERT",
    .base_prefix = "bert.",
    .base_architecture = "BertModel",
    .heads = bert_heads,
    .n_heads = CZ_ARRAY_LEN(bert_heads),
    .ignored_suffixes = bert_ignored,
    .tied_param = "bert.embeddings.word_embeddings.weight",
    .tied_elsewhere = "cls.predictions.decoder.weight",
    .build = bert_build,
    .preset_name = bert_preset_name,
    .preset_config = bert_preset_config,
    .preset_example = "bert-base",
};

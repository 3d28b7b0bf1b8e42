/* MegatronBERT: config.json → chain, and the preset as config.json.
 * Sources: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using
 * model parallelism" (2019), arXiv 1909.08053, figure 7 (norms in front of both halves); names,
 * defaults and the init rule are those of Hugging Face's MegatronBertForSequenceClassification and
 * MegatronBertForMaskedLM. It is BERT with pre-norm blocks, a norm after the last one, and none of
 * the embeddings. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#define MLM "cls.predictions."

static const struct decoder_block_names block_names = {
    .prefix = "bert.encoder.layer",
    .q = "attention.self.query",
    .k = "attention.self.key",
    .v = "attention.self.value",
    .o = "attention.output.dense",
    .gate = "intermediate.dense",
    .down = "output.dense",
    .norm1 = "attention.ln",
    .norm2 = "ln",
};

static const struct encoder_names names = {
    .pre_norm = &block_names,
    .final_norm_w = "bert.encoder.ln.weight",
    .final_norm_b = "bert.encoder.ln.bias",
    .token = "bert.embeddings.word_embeddings.weight",
    .position = "bert.embeddings.position_embeddings.weight",
    .type = "bert.embeddings.token_type_embeddings.weight",
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

/* transformers does not read classifier_dropout here. */
static cz_status megatron_bert_build(const struct json_node *config, const char *name,
                                     enum cz_task task, struct cz_model **out)
{
    struct encoder_config c = {.C = 1024, .n_layers = 24, .H = 16, .F = 4096};
    *out = NULL;
    TRY(encoder_config_bert(config, 29056, task, &c));
    c.class_dropout = c.token_dropout = c.dropout;
    return encoder_build(&c, &names, name, task, out);
}

static const char *const ignored[] = {".embeddings.position_ids", NULL};

/* ---- preset --------------------------------------------------------------------------------- */

static const struct encoder_preset list[] = {
    {"megatron-bert-1.3b", 24, 2048, 8, 0},
};

static const struct encoder_presets presets = {
    .model_type = "megatron-bert",
    .title = "MegatronBERT",
    .classifier = "MegatronBertForSequenceClassification",
    .V = 21248,
    .P = 512,
    .S = 2,
    .padding_id = 0,
    .eps = 1e-12,
    .list = list,
    .n = CZ_ARRAY_LEN(list),
};

static const char *megatron_bert_preset_name(size_t idx)
{
    return encoder_preset_name(&presets, idx);
}

static cz_status megatron_bert_preset_config(const char *name, char **text)
{
    return encoder_preset_write(&presets, name, text);
}

static const struct model_head heads[] = {
    {CZ_TASK_CLASSIFICATION, "MegatronBertForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "MegatronBertForTokenClassification"},
    {CZ_TASK_MASKED_LM, "MegatronBertForMaskedLM"},
    {CZ_TASK_MASKED_LM, "MegatronBertForPreTraining"}, /* its second head is left out */
};

const struct model_family model_family_megatron_bert = {
    .model_type = "megatron-bert",
    .title = "MegatronBERT",
    .base_prefix = "bert.",
    .base_architecture = "MegatronBertModel",
    .heads = heads,
    .n_heads = CZ_ARRAY_LEN(heads),
    .ignored_suffixes = ignored,
    .tied_param = "bert.embeddings.word_embeddings.weight",
    .tied_elsewhere = "cls.predictions.decoder.weight",
    .build = megatron_bert_build,
    .preset_name = megatron_bert_preset_name,
    .preset_config = megatron_bert_preset_config,
    .preset_example = "megatron-bert-1.3b",
};

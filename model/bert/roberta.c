/* RoBERTa and XLM-RoBERTa: config.json → chain, and the presets as config.json.
 * Sources: Liu et al., "RoBERTa: a robustly optimized BERT pretraining approach" (2019); Conneau et
 * al., "Unsupervised cross-lingual representation learning at scale" (2020); names, defaults and
 * the init rule are those of Hugging Face's classes, which differ between the two in the default of
 * the vocabulary alone. They differ from BERT in positions, which count tokens other than padding
 * from padding's id + 1, and in their heads. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <stdio.h>
#include <string.h>

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

static const struct preset {
    const char *size;
    int64_t n_layers, C, H;
} presets[] = {{"base", 12, 768, 12}, {"large", 24, 1024, 16}};

/* What distinguishes the families' presets. */
static const struct variant {
    const char *const *preset_names;
    const char *model_type, *title, *classifier;
    int64_t V;
} roberta = {(const char *const[]){"roberta-base", "roberta-large"}, "roberta", "RoBERTa",
             "RobertaForSequenceClassification", 50265},
  xlm_roberta = {(const char *const[]){"xlm-roberta-base", "xlm-roberta-large"}, "xlm-roberta",
                 "XLM-RoBERTa", "XLMRobertaForSequenceClassification", 250002};

static cz_status preset_config(const struct variant *v, const char *name, char **text)
{
    const struct preset *p = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++)
        if (strcmp(v->preset_names[i], name) == 0) p = &presets[i];
    if (!p) return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of %s", name, v->title);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, v->classifier);
    json_end_array(&w);
    json_put_double(&w, "attention_probs_dropout_prob", 0.1);
    json_put_int(&w, "bos_token_id", 0);
    json_put_int(&w, "eos_token_id", 2);
    json_put_string(&w, "hidden_act", "gelu");
    json_put_double(&w, "hidden_dropout_prob", 0.1);
    json_put_int(&w, "hidden_size", p->C);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", 4 * p->C);
    json_put_double(&w, "layer_norm_eps", 1e-5);
    json_put_int(&w, "max_position_embeddings", 514);
    json_put_string(&w, "model_type", v->model_type);
    json_put_int(&w, "num_attention_heads", p->H);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "pad_token_id", 1);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "type_vocab_size", 1);
    json_put_int(&w, "vocab_size", v->V);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const char *roberta_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? roberta.preset_names[idx] : NULL;
}

static cz_status roberta_preset_config(const char *name, char **text)
{
    return preset_config(&roberta, name, text);
}

static const char *xlm_roberta_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? xlm_roberta.preset_names[idx] : NULL;
}

static cz_status xlm_roberta_preset_config(const char *name, char **text)
{
    return preset_config(&xlm_roberta, name, text);
}

/* ---- the families --------------------------------------------------------------------------- */

static const struct model_head roberta_heads[] = {
    {CZ_TASK_CLASSIFICATION, "RobertaForSequenceClassification"},
    {CZ_TASK_MASKED_LM, "RobertaForMaskedLM"},
};

static const struct model_head xlm_roberta_heads[] = {
    {CZ_TASK_CLASSIFICATION, "XLMRobertaForSequenceClassification"},
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

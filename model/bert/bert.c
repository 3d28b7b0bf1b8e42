/* BERT: config.json → chain, and the presets as config.json.
 * Sources: Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
 * understanding" (2019); Turc et al., "Well-read students learn better" (2019) for the small sizes;
 * names, defaults and the init rule are those of Hugging Face's BertForSequenceClassification and
 * BertForMaskedLM. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <string.h>

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

static const struct preset {
    const char *name;
    int64_t n_layers, C, H;
} presets[] = {
    {"bert-tiny", 2, 128, 2},   {"bert-mini", 4, 256, 4},   {"bert-small", 4, 512, 8},
    {"bert-medium", 8, 512, 8}, {"bert-base", 12, 768, 12}, {"bert-large", 24, 1024, 16},
};

static const char *bert_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

/* Written as a config.json, so that a preset takes the same way as a folder. */
static cz_status bert_preset_config(const char *name, char **text)
{
    const struct preset *p = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++)
        if (strcmp(presets[i].name, name) == 0) p = &presets[i];
    if (!p) return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of BERT", name);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "BertForSequenceClassification");
    json_end_array(&w);
    json_put_double(&w, "attention_probs_dropout_prob", 0.1);
    json_put_string(&w, "hidden_act", "gelu");
    json_put_double(&w, "hidden_dropout_prob", 0.1);
    json_put_int(&w, "hidden_size", p->C);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", 4 * p->C);
    json_put_double(&w, "layer_norm_eps", 1e-12);
    json_put_int(&w, "max_position_embeddings", 512);
    json_put_string(&w, "model_type", "bert");
    json_put_int(&w, "num_attention_heads", p->H);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "pad_token_id", 0);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "type_vocab_size", 2);
    json_put_int(&w, "vocab_size", 30522);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const struct model_head bert_heads[] = {
    {CZ_TASK_CLASSIFICATION, "BertForSequenceClassification"},
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

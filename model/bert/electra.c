/* ELECTRA: config.json → chain, and the presets as config.json.
 * Sources: Clark et al., "ELECTRA: pre-training text encoders as discriminators rather than
 * generators" (2020); names, defaults and the init rule are those of Hugging Face's
 * ElectraForSequenceClassification, ElectraForPreTraining (the discriminator) and
 * ElectraForMaskedLM (the generator). It differs from BERT in
 * embeddings that may be narrower than the layers, with a map between, and in its heads. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <string.h>

static const struct encoder_names names = {
    .token = "electra.embeddings.word_embeddings.weight",
    .position = "electra.embeddings.position_embeddings.weight",
    .type = "electra.embeddings.token_type_embeddings.weight",
    .embedding_norm_w = "electra.embeddings.LayerNorm.weight",
    .embedding_norm_b = "electra.embeddings.LayerNorm.bias",
    .project_w = "electra.embeddings_project.weight",
    .project_b = "electra.embeddings_project.bias",
    .block_prefix = "electra.encoder.layer",
    .block = encoder_bert_block,
    .pool_w = "classifier.dense.weight",
    .pool_b = "classifier.dense.bias",
    .class_w = "classifier.out_proj.weight",
    .class_b = "classifier.out_proj.bias",
    .mlm_dense_w = "generator_predictions.dense.weight",
    .mlm_dense_b = "generator_predictions.dense.bias",
    .mlm_norm_w = "generator_predictions.LayerNorm.weight",
    .mlm_norm_b = "generator_predictions.LayerNorm.bias",
    .mlm_w = "generator_lm_head.weight",
    .mlm_bias = "generator_lm_head.bias",
    .replaced_dense_w = "discriminator_predictions.dense.weight",
    .replaced_dense_b = "discriminator_predictions.dense.bias",
    .replaced_w = "discriminator_predictions.dense_prediction.weight",
    .replaced_b = "discriminator_predictions.dense_prediction.bias",
    .mlm_norm_first = true,
    .mlm_act_is_gelu = true,
    .pool_act = ACT_GELU_ERF,
    .pool_drops_input = true,
};

static cz_status electra_build(const struct json_node *config, const char *name, enum cz_task task,
                               struct cz_model **out)
{
    struct encoder_config c = {.C = 256, .H = 4, .F = 1024};
    *out = NULL;
    TRY(config_size(config, "embedding_size", NULL, 128, 1 << 24, &c.E));
    TRY(encoder_config_bert(config, 30522, task, &c));
    return encoder_build(&c, &names, name, task, out);
}

static const char *const electra_ignored[] = {".embeddings.position_ids", NULL};

/* ---- presets -------------------------------------------------------------------------------- */

/* Of the discriminators. */
static const struct preset {
    const char *name;
    int64_t E, C, n_layers, H;
} presets[] = {
    {"electra-small", 128, 256, 12, 4},
    {"electra-base", 768, 768, 12, 12},
    {"electra-large", 1024, 1024, 24, 16},
};

static const char *electra_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

static cz_status electra_preset_config(const char *name, char **text)
{
    const struct preset *p = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++)
        if (strcmp(presets[i].name, name) == 0) p = &presets[i];
    if (!p) return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of ELECTRA", name);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "ElectraForSequenceClassification");
    json_end_array(&w);
    json_put_double(&w, "attention_probs_dropout_prob", 0.1);
    json_put_int(&w, "embedding_size", p->E);
    json_put_string(&w, "hidden_act", "gelu");
    json_put_double(&w, "hidden_dropout_prob", 0.1);
    json_put_int(&w, "hidden_size", p->C);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", 4 * p->C);
    json_put_double(&w, "layer_norm_eps", 1e-12);
    json_put_int(&w, "max_position_embeddings", 512);
    json_put_string(&w, "model_type", "electra");
    json_put_int(&w, "num_attention_heads", p->H);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "pad_token_id", 0);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "type_vocab_size", 2);
    json_put_int(&w, "vocab_size", 30522);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const struct model_head electra_heads[] = {
    {CZ_TASK_CLASSIFICATION, "ElectraForSequenceClassification"},
    {CZ_TASK_MASKED_LM, "ElectraForMaskedLM"},
    {CZ_TASK_REPLACED_TOKENS, "ElectraForPreTraining"},
};

const struct model_family model_family_electra = {
    .model_type = "electra",
    .title = "ELECTRA",
    .base_prefix = "electra.",
    .base_architecture = "ElectraModel",
    .heads = electra_heads,
    .n_heads = CZ_ARRAY_LEN(electra_heads),
    .ignored_suffixes = electra_ignored,
    .tied_param = "electra.embeddings.word_embeddings.weight",
    .tied_elsewhere = "generator_lm_head.weight",
    .build = electra_build,
    .preset_name = electra_preset_name,
    .preset_config = electra_preset_config,
    .preset_example = "electra-small",
};

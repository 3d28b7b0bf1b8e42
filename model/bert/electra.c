/* ELECTRA: config.json → chain, and the presets as config.json.
 * Sources: Clark et al., "ELECTRA: pre-training text encoders as discriminators rather than
 * generators" (2020); names, defaults and the init rule are those of Hugging Face's
 * ElectraForSequenceClassification, ElectraForPreTraining (the discriminator) and
 * ElectraForMaskedLM (the generator). It differs from BERT in
 * embeddings that may be narrower than the layers, with a map between, and in its heads. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

static const struct encoder_names names = {
    ENCODER_EMBEDDINGS("electra."),
    ENCODER_TYPES("electra."),
    ENCODER_EMBEDDING_NORM("electra."),
    .project_w = "electra.embeddings_project.weight",
    .project_b = "electra.embeddings_project.bias",
    .block_prefix = "electra.encoder.layer",
    .block = encoder_bert_block,
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
    ENCODER_ROBERTA_POOLER,
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

/* ---- presets -------------------------------------------------------------------------------- */

/* Of the discriminators. */
static const struct encoder_preset electra_list[] = {
    /* clang-format off */
    {"electra-small", 12, 256, 4, 128},
    {"electra-base", 12, 768, 12, 768},
    {"electra-large", 24, 1024, 16, 1024},
    /* clang-format on */
};

static const struct encoder_presets electra_presets = {
    .V = 30522,
    .P = 512,
    .S = 2,
    .padding_id = 0,
    .eps = 1e-12,
    .list = electra_list,
    .n = CZ_ARRAY_LEN(electra_list),
};

ENCODER_FAMILY(electra, "electra", "ELECTRA", "electra.", "Electra", "generator_lm_head.weight",
               "electra-small", {CZ_TASK_REPLACED_TOKENS, "ElectraForPreTraining"});

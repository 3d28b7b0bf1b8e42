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
    ENCODER_EMBEDDINGS("roberta."),     ENCODER_TYPES("roberta."),
    ENCODER_EMBEDDING_NORM("roberta."), .block_prefix = "roberta.encoder.layer",
    .block = encoder_bert_block,        ENCODER_ROBERTA_HEADS,
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

/* ---- presets -------------------------------------------------------------------------------- */

static const struct encoder_preset roberta_list[] = {
    /* clang-format off */
    {"roberta-base", 12, 768, 12, 0},
    {"roberta-large", 24, 1024, 16, 0},
    /* clang-format on */
};

static const struct encoder_presets roberta_presets = {
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

static const struct encoder_preset xlm_roberta_list[] = {
    /* clang-format off */
    {"xlm-roberta-base", 12, 768, 12, 0},
    {"xlm-roberta-large", 24, 1024, 16, 0},
    /* clang-format on */
};

static const struct encoder_presets xlm_roberta_presets = {
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

ENCODER_FAMILY(roberta, "roberta", "RoBERTa", "roberta.", "Roberta", "lm_head.decoder.weight",
               "roberta-base");
ENCODER_FAMILY(xlm_roberta, "xlm-roberta", "XLM-RoBERTa", "roberta.", "XLMRoberta",
               "lm_head.decoder.weight", "xlm-roberta-base");

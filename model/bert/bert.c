/* BERT: config.json → chain, and the presets as config.json.
 * Sources: Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
 * understanding" (2019); Turc et al., "Well-read students learn better" (2019) for the small sizes;
 * names, defaults and the init rule are those of Hugging Face's BertForSequenceClassification and
 * BertForMaskedLM. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

static const struct encoder_names names = {
    ENCODER_EMBEDDINGS("bert."),
    ENCODER_TYPES("bert."),
    ENCODER_EMBEDDING_NORM("bert."),
    .block_prefix = "bert.encoder.layer",
    .block = encoder_bert_block,
    .pool_w = "bert.pooler.dense.weight",
    .pool_b = "bert.pooler.dense.bias",
    .pool_act = ACT_TANH,
    ENCODER_BERT_HEADS,
};

static cz_status bert_build(const struct json_node *config, const char *name, enum cz_task task,
                            struct cz_model **out)
{
    struct encoder_config c = {0};
    *out = NULL;
    TRY(encoder_config_bert(config, 30522, task, &c));
    return encoder_build(&c, &names, name, task, out);
}

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
    .V = 30522,
    .P = 512,
    .S = 2,
    .padding_id = 0,
    .eps = 1e-12,
    .list = bert_list,
    .n = CZ_ARRAY_LEN(bert_list),
};

ENCODER_FAMILY(bert, "bert", "BERT", "bert.", "Bert", "cls.predictions.decoder.weight", "bert-base",
               {CZ_TASK_MASKED_LM, "BertForPreTraining"}); /* its second head is left out */

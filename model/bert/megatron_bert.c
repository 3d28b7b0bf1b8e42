/* MegatronBERT: config.json → chain, and the preset as config.json.
 * Sources: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using
 * model parallelism" (2019), arXiv 1909.08053, figure 7 (norms in front of both halves); names,
 * defaults and the init rule are those of Hugging Face's MegatronBertForSequenceClassification and
 * MegatronBertForMaskedLM. It is BERT with pre-norm blocks, a norm after the last one, and none of
 * the embeddings. */
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

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
    ENCODER_EMBEDDINGS("bert."),
    ENCODER_TYPES("bert."),
    .pre_norm = &block_names,
    .final_norm_w = "bert.encoder.ln.weight",
    .final_norm_b = "bert.encoder.ln.bias",
    .pool_w = "bert.pooler.dense.weight",
    .pool_b = "bert.pooler.dense.bias",
    .pool_act = ACT_TANH,
    ENCODER_BERT_HEADS,
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

/* ---- preset --------------------------------------------------------------------------------- */

static const struct encoder_preset list[] = {
    {"megatron-bert-1.3b", 24, 2048, 8, 0},
};

static const struct encoder_presets megatron_bert_presets = {
    .V = 21248,
    .P = 512,
    .S = 2,
    .padding_id = 0,
    .eps = 1e-12,
    .list = list,
    .n = CZ_ARRAY_LEN(list),
};

ENCODER_FAMILY(megatron_bert, "megatron-bert", "MegatronBERT", "bert.", "MegatronBert",
               "cls.predictions.decoder.weight", "megatron-bert-1.3b",
               {CZ_TASK_MASKED_LM, "MegatronBertForPreTraining"}); /* its second head is left out */

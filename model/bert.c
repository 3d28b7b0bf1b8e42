#include "model/config_impl.h"
#include "model/model_impl.h"

static cz_status bert_build(const struct json_node *config, const char *name, enum model_task task,
                            struct model **out)
{
    (void)name;
    (void)task;
    *out = NULL;
    return config_refuse(config, CZ_UNSUPPORTED, "bert is not there yet");
}

static const char *const bert_ignored[] = {NULL};

static const struct model_head bert_heads[] = {
    {MODEL_TASK_CLASSIFICATION, "BertForSequenceClassification"},
    {MODEL_TASK_MASKED_LM, "BertForMaskedLM"},
};

const struct model_family model_family_bert = {
    .model_type = "bert",
    .base_prefix = "bert.",
    .base_architecture = "BertModel",
    .heads = bert_heads,
    .n_heads = CZ_ARRAY_LEN(bert_heads),
    .ignored_suffixes = bert_ignored,
    .build = bert_build,
};

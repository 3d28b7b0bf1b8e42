#include "model/config_impl.h"
#include "model/model_impl.h"

static cz_status distilbert_build(const struct json_node *config, const char *name,
                                  enum model_task task, struct model **out)
{
    (void)name;
    (void)task;
    *out = NULL;
    return config_refuse(config, CZ_UNSUPPORTED, "distilbert is not there yet");
}

static const char *const distilbert_ignored[] = {NULL};

static const struct model_head distilbert_heads[] = {
    {MODEL_TASK_CLASSIFICATION, "DistilBertForSequenceClassification"},
};

const struct model_family model_family_distilbert = {
    .model_type = "distilbert",
    .base_prefix = "distilbert.",
    .base_architecture = "DistilBertModel",
    .heads = distilbert_heads,
    .n_heads = CZ_ARRAY_LEN(distilbert_heads),
    .ignored_suffixes = distilbert_ignored,
    .build = distilbert_build,
};

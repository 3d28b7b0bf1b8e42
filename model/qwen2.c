#include "model/config_impl.h"
#include "model/model_impl.h"

static cz_status qwen2_build(const struct json_node *config, const char *name, enum model_task task,
                             struct model **out)
{
    (void)name;
    (void)task;
    *out = NULL;
    return config_refuse(config, CZ_UNSUPPORTED, "qwen2 is not there yet");
}

static const char *const qwen2_ignored[] = {NULL};

static const struct model_head qwen2_heads[] = {
    {MODEL_TASK_CAUSAL_LM, "Qwen2ForCausalLM"},
};

const struct model_family model_family_qwen2 = {
    .model_type = "qwen2",
    .base_prefix = "model.",
    .base_architecture = "Qwen2Model",
    .heads = qwen2_heads,
    .n_heads = CZ_ARRAY_LEN(qwen2_heads),
    .ignored_suffixes = qwen2_ignored,
    .build = qwen2_build,
};

#include "model/config_impl.h"
#include "model/model_impl.h"

static cz_status llama_build(const struct json_node *config, const char *name, enum model_task task,
                             struct model **out)
{
    (void)name;
    (void)task;
    *out = NULL;
    return config_refuse(config, CZ_UNSUPPORTED, "llama is not there yet");
}

static const char *const llama_ignored[] = {NULL};

static const struct model_head llama_heads[] = {
    {MODEL_TASK_CAUSAL_LM, "LlamaForCausalLM"},
};

const struct model_family model_family_llama = {
    .model_type = "llama",
    .base_prefix = "model.",
    .base_architecture = "LlamaModel",
    .heads = llama_heads,
    .n_heads = CZ_ARRAY_LEN(llama_heads),
    .ignored_suffixes = llama_ignored,
    .build = llama_build,
};

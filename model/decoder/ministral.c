/* Ministral: Mistral with a window in some layers. Names, layouts, defaults and the init rule are
 * those of Hugging Face's MinistralForCausalLM. */
#include "model/decoder/decoder_impl.h"

static cz_status ministral_build(const struct json_node *config, const char *name,
                                 enum cz_task task, struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 32000,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 14336,
                                                     .n_kv_heads = 8,
                                                     .max_positions = 131072};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_window(&c, 4096));
    return decoder_chain_build(&c, name, task, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"ministral-tiny",
     2,
     64,
     4,
     2,
     160,
     256,
     64,
     0,
     0,
     1e-5,
     1e4,
     false,
     0,
     {{"sliding_window", "32"}}},
    {"ministral-8b",
     36,
     4096,
     32,
     8,
     12288,
     131072,
     32768,
     1,
     2,
     1e-5,
     1e8,
     false,
     0,
     {{"sliding_window", "32768"}}},
};

static const char *ministral_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

static cz_status ministral_preset_config(const char *name, char **text)
{
    return decoder_preset_write(presets, CZ_ARRAY_LEN(presets), name, "ministral",
                                "MinistralForCausalLM", text);
}

static const char *const ministral_ignored[] = {".rotary_emb.inv_freq", NULL};

static const struct model_head ministral_heads[] = {
    {CZ_TASK_CAUSAL_LM, "MinistralForCausalLM"},
    {CZ_TASK_CLASSIFICATION, "MinistralForSequenceClassification", true},
    {CZ_TASK_TOKEN_CLASSIFICATION, "MinistralForTokenClassification"},
};

const struct model_family model_family_ministral = {
    .model_type = "ministral",
    .title = "Ministral",
    .base_prefix = "model.",
    .base_architecture = "MinistralModel",
    .heads = ministral_heads,
    .n_heads = CZ_ARRAY_LEN(ministral_heads),
    .ignored_suffixes = ministral_ignored,
    .build = ministral_build,
    .preset_name = ministral_preset_name,
    .preset_config = ministral_preset_config,
    .preset_example = "ministral-8b",
};

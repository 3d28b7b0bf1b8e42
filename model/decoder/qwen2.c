/* Qwen2: LLaMA with biases on queries, keys and values. Yang et al., arXiv 2407.10671; names,
 * layouts, defaults and the init rule are those of Hugging Face's Qwen2ForCausalLM. Sliding windows
 * are accepted only where they are wider than the sequences, because attention here sees everything
 * before a position. */
#include "base/log.h"
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

#include <string.h>

/* ---- the window ----------------------------------------------------------------------------- */

/* Whether any layer looks back through the window alone: those that layer_types says, or those from
 * max_window_layers on. */
static cz_status any_sliding(const struct json_node *config, int64_t n_layers, bool *out)
{
    const struct json_node *types = config_either(config, "layer_types", NULL);
    int64_t first = 28;
    TRY(json_opt_int(config, "max_window_layers", 28, &first));
    *out = first < n_layers;
    if (!types) return CZ_OK;
    *out = false;
    if (json_type(types) != JSON_ARRAY || json_count(types) != (size_t)n_layers)
        return config_refuse(types, CZ_INVALID, "a list of one kind per layer is expected");
    for (size_t i = 0; i < json_count(types); i++) {
        const char *type;
        TRY(json_as_string(json_child(types, i), &type));
        if (strcmp(type, "sliding_attention") == 0)
            *out = true;
        else if (strcmp(type, "full_attention") != 0)
            return config_refuse(json_child(types, i), CZ_UNSUPPORTED,
                                 "layers are full_attention or sliding_attention");
    }
    return CZ_OK;
}

/* *window: how far attention sees in the layers that see least, 0 when all see everything. */
static cz_status read_window(const struct json_node *config, int64_t n_layers, int64_t *window)
{
    bool in_use = false, sliding = false;
    *window = 0;
    TRY(any_sliding(config, n_layers, &sliding));
    TRY(json_opt_bool(config, "use_sliding_window", false, &in_use));
    const struct json_node *node = json_get(config, "sliding_window");
    const bool is_null = node && json_type(node) == JSON_NULL;
    if (!in_use || is_null) {
        const struct json_node *types = config_either(config, "layer_types", NULL);
        if (!types || !sliding) return CZ_OK;
        return config_refuse(types, CZ_INVALID,
                             "sliding_attention without use_sliding_window and sliding_window");
    }
    if (!sliding) return CZ_OK;
    return config_size(config, "sliding_window", NULL, 4096, INT32_MAX, window);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* The window bounds T: within it both computations are the same. */
static cz_status qwen2_build(const struct json_node *config, const char *name, enum cz_task task,
                             struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 151936,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 22016,
                                                     .n_kv_heads = 32,
                                                     .max_positions = 32768};
    (void)task; /* the only one */
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(read_window(config, c.n_layers, &c.window));
    c.qkv_bias = true;
    if (c.window > 0 && c.window < c.max_positions)
        LOGV(LOG_WARN, SUB_MODEL,
             "%s: some layers see a window of %lld tokens; up to that length it hides nothing, and "
             "longer sequences are not supported",
             name, (long long)c.window);
    return decoder_chain_build(&c, name, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"qwen2-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e6, true, 0},
    {"qwen2-0.5b", 24, 896, 14, 2, 4864, 151936, 131072, 151643, 151643, 1e-6, 1e6, true, 0},
    {"qwen2-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, 151643, 151643, 1e-6, 1e6, true, 0},
    {"qwen2-7b", 28, 3584, 28, 4, 18944, 152064, 131072, 151643, 151643, 1e-6, 1e6, false, 0},
};

static const char *qwen2_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

static cz_status qwen2_preset_config(const char *name, char **text)
{
    return decoder_preset_write(presets, CZ_ARRAY_LEN(presets), name, "qwen2", "Qwen2ForCausalLM",
                                text);
}

static const char *const qwen2_ignored[] = {".rotary_emb.inv_freq", NULL};

static const struct model_head qwen2_heads[] = {
    {CZ_TASK_CAUSAL_LM, "Qwen2ForCausalLM"},
};

const struct model_family model_family_qwen2 = {
    .model_type = "qwen2",
    .title = "Qwen2",
    .base_prefix = "model.",
    .base_architecture = "Qwen2Model",
    .heads = qwen2_heads,
    .n_heads = CZ_ARRAY_LEN(qwen2_heads),
    .ignored_suffixes = qwen2_ignored,
    .build = qwen2_build,
    .preset_name = qwen2_preset_name,
    .preset_config = qwen2_preset_config,
    .preset_example = "qwen2-0.5b",
};

/* Mistral: LLaMA with a window that every layer looks through, in its first versions. Jiang et al.,
 * arXiv 2310.06825; names, layouts, defaults and the init rule are those of Hugging Face's
 * MistralForCausalLM. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

static cz_status mistral_build(const struct json_node *config, const char *name, enum cz_task task,
                               struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 32000,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 14336,
                                                     .n_kv_heads = 8,
                                                     .max_positions = 131072};
    struct decoder_config c;
    *out = NULL;
    const struct json_node *types = config_either(config, "layer_types", NULL);
    if (types)
        return config_refuse(
            types, CZ_UNSUPPORTED,
            "all layers of a mistral model are alike; model_type ministral has kinds");
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_window(&c, 4096));
    return decoder_chain_build(&c, name, task, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    /* clang-format off */
    {"mistral-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-5, 1e4, false, 0,
     {{"sliding_window", "null"}}},
    {"mistral-7b-v0.1", 32, 4096, 32, 8, 14336, 32000, 32768, 1, 2, 1e-5, 1e4, false, 0,
     {{"sliding_window", "4096"}}},
    {"mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32768, 1, 2, 1e-5, 1e6, false, 0,
     {{"sliding_window", "null"}}},
    /* clang-format on */
};

DECODER_FAMILY(mistral, "mistral", "Mistral", "Mistral", "Mistral", "mistral-7b",
               DECODER_CLASSIFIER("Mistral"), DECODER_TAGGER("Mistral"));

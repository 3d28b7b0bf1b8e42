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
    /* clang-format off */
    {"ministral-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-5, 1e4, false, 0,
     {{"sliding_window", "32"}}},
    {"ministral-8b", 36, 4096, 32, 8, 12288, 131072, 32768, 1, 2, 1e-5, 1e8, false, 0,
     {{"sliding_window", "32768"}}},
    /* clang-format on */
};

DECODER_FAMILY(ministral, "ministral", "Ministral", "Ministral", "Ministral", "ministral-8b",
               DECODER_CLASSIFIER("Ministral"), DECODER_TAGGER("Ministral"));

/* LLaMA 1 to 3: Touvron et al., arXiv 2302.13971 and 2307.09288; names, layouts, defaults and the
 * init rule are those of Hugging Face's LlamaForCausalLM. */
#include "model/decoder/decoder_impl.h"

static cz_status llama_build(const struct json_node *config, const char *name, enum cz_task task,
                             struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 32000,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 11008,
                                                     .max_positions = 2048};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_attention_bias(&c));
    TRY(json_opt_bool(config, "mlp_bias", false, &c.mlp_bias));
    return decoder_chain_build(&c, name, task, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"llama-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e4, false, 0},
    {"llama-160m", 12, 768, 12, 12, 3072, 32000, 2048, 1, 2, 1e-6, 1e4, false, 0},
    {"smollm2-135m", 30, 576, 9, 3, 1536, 49152, 8192, 0, 0, 1e-5, 1e5, true, 0},
    {"smollm2-360m", 32, 960, 15, 5, 2560, 49152, 8192, 0, 0, 1e-5, 1e5, true, 0},
    {"smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152, 8192, 0, 0, 1e-5, 1.3e5, true, 0},
    {"tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, 2048, 1, 2, 1e-5, 1e4, false, 0},
    {"llama-7b", 32, 4096, 32, 32, 11008, 32000, 4096, 1, 2, 1e-5, 1e4, false, 0},
    {"llama-13b", 40, 5120, 40, 40, 13824, 32000, 4096, 1, 2, 1e-5, 1e4, false, 0},
    {"llama-70b", 80, 8192, 64, 8, 28672, 32000, 4096, 1, 2, 1e-5, 1e4, false, 0},
    {"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, 128000, 128001, 1e-5, 5e5, false, 0},
    {"llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, 128000, 128001, 1e-5, 5e5, true, 32},
    {"llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, 131072, 128000, 128001, 1e-5, 5e5, true, 32},
};

DECODER_FAMILY(llama, "llama", "LLaMA", "Llama", "Llama", "llama-160m", DECODER_CLASSIFIER("Llama"),
               DECODER_TAGGER("Llama"));

/* Qwen2: LLaMA with biases on queries, keys and values, and a window in some layers where
 * use_sliding_window says so. Yang et al., arXiv 2407.10671; names, layouts, defaults and the init
 * rule are those of Hugging Face's Qwen2ForCausalLM. */
#include "model/decoder/decoder_impl.h"

static cz_status qwen2_build(const struct json_node *config, const char *name, enum cz_task task,
                             struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 151936,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 22016,
                                                     .n_kv_heads = 32,
                                                     .max_positions = 32768};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(json_opt_int(config, "max_window_layers", 28, &c.first_sliding));
    TRY(decoder_read_switched_window(&c, 4096));
    c.qkv_bias = true;
    return decoder_chain_build(&c, name, task, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"qwen2-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e6, true, 0},
    {"qwen2-0.5b", 24, 896, 14, 2, 4864, 151936, 131072, 151643, 151643, 1e-6, 1e6, true, 0},
    {"qwen2-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, 151643, 151643, 1e-6, 1e6, true, 0},
    {"qwen2-7b", 28, 3584, 28, 4, 18944, 152064, 131072, 151643, 151643, 1e-6, 1e6, false, 0},
};

DECODER_FAMILY(qwen2, "qwen2", "Qwen2", "Qwen2", "Qwen2", "qwen2-0.5b", DECODER_CLASSIFIER("Qwen2"),
               DECODER_TAGGER("Qwen2"));

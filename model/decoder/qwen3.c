/* Qwen3: LLaMA with a norm of each head of queries and keys. Yang et al., arXiv 2505.09388; names,
 * layouts, defaults and the init rule are those of Hugging Face's Qwen3ForCausalLM. */
#include "model/decoder/decoder_impl.h"

static cz_status qwen3_build(const struct json_node *config, const char *name, enum cz_task task,
                             struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 151936,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 22016,
                                                     .n_kv_heads = 32,
                                                     .head_dim = 128,
                                                     .max_positions = 32768};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_attention_bias(&c));
    TRY(json_opt_int(config, "max_window_layers", 28, &c.first_sliding));
    TRY(decoder_read_switched_window(&c, 4096));
    c.block.qk_norm = QK_NORM_HEADS;
    return decoder_chain_build(&c, name, task, out);
}

#define WIDE                                                                                       \
    {                                                                                              \
        {                                                                                          \
            "head_dim", "128"                                                                      \
        }                                                                                          \
    }

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"qwen3-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e6, true, 0},
    {"qwen3-0.6b", 28, 1024, 16, 8, 3072, 151936, 40960, 151643, 151645, 1e-6, 1e6, true, 0, WIDE},
    {"qwen3-1.7b", 28, 2048, 16, 8, 6144, 151936, 40960, 151643, 151645, 1e-6, 1e6, true, 0, WIDE},
    {"qwen3-4b", 36, 2560, 32, 8, 9728, 151936, 40960, 151643, 151645, 1e-6, 1e6, true, 0, WIDE},
    {"qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 40960, 151643, 151645, 1e-6, 1e6, false, 0, WIDE},
};

DECODER_FAMILY(qwen3, "qwen3", "Qwen3", "Qwen3", "Qwen3", "qwen3-0.6b", DECODER_CLASSIFIER("Qwen3"),
               DECODER_TAGGER("Qwen3"));

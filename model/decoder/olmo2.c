/* OLMo 2: norms behind attention and MLP instead of in front, and a norm over all heads of queries
 * and of keys. OLMo team, arXiv 2501.00656; names, layouts, defaults and the init rule are those of
 * Hugging Face's Olmo2ForCausalLM. */
#include "model/decoder/decoder_impl.h"

static cz_status olmo2_build(const struct json_node *config, const char *name, enum cz_task task,
                             struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 50304,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 11008,
                                                     .max_positions = 2048,
                                                     .eps = 1e-5,
                                                     .has_padding = true,
                                                     .padding_id = 1};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_attention_bias(&c));
    c.block.norms = NORMS_AFTER;
    c.block.qk_norm = QK_NORM_WHOLE;
    return decoder_chain_build(&c, name, task, out);
}

#define PADDING                                                                                    \
    {                                                                                              \
        {                                                                                          \
            "pad_token_id", "100277"                                                               \
        }                                                                                          \
    }
#define NO_PADDING                                                                                 \
    {                                                                                              \
        {                                                                                          \
            "pad_token_id", "null"                                                                 \
        }                                                                                          \
    }

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"olmo2-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e4, false, 0, NO_PADDING},
    {"olmo2-1b", 16, 2048, 16, 16, 8192, 100352, 4096, 100257, 100257, 1e-6, 5e5, false, 0,
     PADDING},
    {"olmo2-7b", 32, 4096, 32, 32, 11008, 100352, 4096, 100257, 100257, 1e-6, 5e5, false, 0,
     PADDING},
    {"olmo2-13b", 40, 5120, 40, 40, 13824, 100352, 4096, 100257, 100257, 1e-6, 5e5, false, 0,
     PADDING},
};

DECODER_FAMILY(olmo2, "olmo2", "OLMo 2", "Olmo2", "Olmo2", "olmo2-1b", DECODER_CLASSIFIER("Olmo2"));

/* Granite 3: LLaMA with multipliers on the embedding, the scores and what each half adds, and a
 * divisor of the logits. Names, layouts, defaults and the init rule are those of Hugging Face's
 * GraniteForCausalLM. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

/* A positive number; 1 is none. */
static cz_status multiplier(const struct json_node *config, const char *key, double *out)
{
    TRY(config_number(config, key, 1, 0, 1e30, out));
    if ((float)*out > 0) return CZ_OK;
    return config_refuse(json_get(config, key), CZ_INVALID, "a positive number is expected");
}

static cz_status granite_build(const struct json_node *config, const char *name, enum cz_task task,
                               struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 32000,
                                                     .hidden_size = 4096,
                                                     .intermediate_size = 11008,
                                                     .max_positions = 2048};
    struct decoder_config c;
    double scores, residual;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_attention_bias(&c));
    TRY(json_opt_bool(config, "mlp_bias", false, &c.mlp_bias));
    TRY(multiplier(config, "embedding_multiplier", &c.embedding_scale));
    TRY(multiplier(config, "logits_scaling", &c.logits_divisor));
    TRY(multiplier(config, "attention_multiplier", &scores));
    TRY(multiplier(config, "residual_multiplier", &residual));
    c.block.attention_scale = (float)scores;
    if (residual != 1) c.block.residual_scale = (float)residual;
    if (c.embedding_scale == 1) c.embedding_scale = 0;
    if (c.logits_divisor == 1) c.logits_divisor = 0;
    return decoder_chain_build(&c, name, task, out);
}

/* of the logits, of the scores */
#define SCALES(logits, scores)                                                                     \
    {                                                                                              \
        {"logits_scaling", logits}, {"attention_multiplier", scores},                              \
            {"embedding_multiplier", "12.0"},                                                      \
        {                                                                                          \
            "residual_multiplier", "0.22"                                                          \
        }                                                                                          \
    }

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"granite-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-5, 1e4, true, 0, SCALES("8.0", "0.25")},
    {"granite3-2b", 40, 2048, 32, 8, 8192, 49155, 131072, 0, 0, 1e-5, 5e6, true, 0,
     SCALES("8.0", "0.015625")},
    {"granite3-8b", 40, 4096, 32, 8, 12800, 49155, 131072, 0, 0, 1e-5, 1e7, true, 0,
     SCALES("16.0", "0.0078125")},
};

DECODER_FAMILY(granite, "granite", "Granite", "Granite", "Granite", "granite3-2b");

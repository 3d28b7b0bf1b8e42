/* SmolLM3: LLaMA with some layers, by default every fourth, that do not rotate (Yang et al., arXiv
 * 2501.18795). Names, layouts, defaults and the init rule are those of Hugging Face's
 * SmolLM3ForCausalLM. (SmolLM2 is LLaMA.) */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

static cz_status smollm3_build(const struct json_node *config, const char *name, enum cz_task task,
                               struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 128256,
                                                     .hidden_size = 2048,
                                                     .intermediate_size = 11008,
                                                     .n_layers = 36,
                                                     .n_heads = 16,
                                                     .n_kv_heads = 4,
                                                     .max_positions = 32768,
                                                     .rope.theta = 2e6,
                                                     .tie_word_embeddings = true,
                                                     .has_padding = true,
                                                     .padding_id = 128004};
    struct decoder_config c;
    bool slides = false;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_attention_bias(&c));
    TRY(json_opt_bool(config, "mlp_bias", false, &c.mlp_bias));
    TRY(config_size(config, "no_rope_layer_interval", NULL, 4, INT32_MAX, &c.no_rope_every));
    /* the switch says what an absent layer_types means, and nothing beside one */
    TRY(json_opt_bool(config, "use_sliding_window", false, &slides));
    TRY(decoder_read_window(&c, 0));
    c.slides_without_rope = true;
    c.slides_if_listed = !slides;
    return decoder_chain_build(&c, name, task, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    /* clang-format off */
    {"smollm3-tiny", 4, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e4, true, 0,
     {{"pad_token_id", "null"}}},
    {"smollm3-3b", 36, 2048, 16, 4, 11008, 128256, 65536, 128000, 128012, 1e-6, 5e6, true, 0,
     {{"pad_token_id", "128004"}}},
    /* clang-format on */
};

DECODER_FAMILY(smollm3, "smollm3", "SmolLM3", "SmolLM3", "SmolLM3", "smollm3-3b",
               DECODER_CLASSIFIER("SmolLM3"), DECODER_TAGGER("SmolLM3"));

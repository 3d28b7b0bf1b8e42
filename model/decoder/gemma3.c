/* Gemma 3, its text model: as Gemma 2, with a norm of each head of queries and keys in place of the
 * soft caps, and two bases of frequencies, one for layers with a window. Gemma team, arXiv
 * 2503.19786; names, layouts, defaults and the init rule are those of Hugging Face's
 * Gemma3ForCausalLM. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

static cz_status gemma3_build(const struct json_node *config, const char *name, enum cz_task task,
                              struct cz_model **out)
{
    static const struct decoder_defaults defaults = {
        .vocab_size = 262208,
        .hidden_size = 2304,
        .intermediate_size = 9216,
        .n_layers = 26,
        .n_heads = 8,
        .n_kv_heads = 4,
        .head_dim = 256,
        .max_positions = 131072,
        .rope = {.theta = 1e6, .kind = "full_attention"},
        .activation_key = "hidden_activation",
        .tie_word_embeddings = true,
        .has_padding = true,
        .padding_id = 0};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    static const struct rope_defaults local = {
        .theta = 1e4, .kind = "sliding_attention", .theta_key = "rope_local_base_freq"};
    TRY(rope_read(config, c.head_dim, c.max_positions, &local, &c.sliding_rope));
    TRY(decoder_read_gemma(&c, 0, 0));
    TRY(config_size(config, "sliding_window_pattern", NULL, 6, INT32_MAX, &c.full_every));
    c.has_sliding_rope = true;
    c.block.qk_norm = QK_NORM_HEADS;
    return decoder_chain_build(&c, name, task, out);
}

/* width of a head, divisor of the scores, window, each how many-th layer has none */
#define GEMMA(head_dim, scalar, window, pattern)                                                   \
    {                                                                                              \
        {"head_dim", head_dim}, {"query_pre_attn_scalar", scalar}, {"sliding_window", window},     \
            {"sliding_window_pattern", pattern}, {"hidden_act", "\"gelu_pytorch_tanh\""},          \
            {"hidden_activation", "\"gelu_pytorch_tanh\""}, {"pad_token_id", "0"},                 \
        {                                                                                          \
            "rope_local_base_freq", "10000.0"                                                      \
        }                                                                                          \
    }

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"gemma3-tiny", 3, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e6, true, 0,
     GEMMA("16", "16", "32", "3")},
    {"gemma3-270m", 18, 640, 4, 1, 2048, 262144, 32768, 2, 1, 1e-6, 1e6, true, 0,
     GEMMA("256", "256", "512", "6")},
    {"gemma3-1b", 26, 1152, 4, 1, 6912, 262144, 32768, 2, 1, 1e-6, 1e6, true, 0,
     GEMMA("256", "256", "512", "6")},
};

DECODER_FAMILY(gemma3, "gemma3_text", "Gemma 3", "Gemma3", "Gemma3Text", "gemma3-1b",
               DECODER_CLASSIFIER("Gemma3Text"));

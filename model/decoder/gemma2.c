/* Gemma 2: norms around attention and MLP, whose weights count from 1, a scaled embedding, gelu
 * gates, windows in every other layer, soft caps on scores and logits. Gemma team, arXiv
 * 2408.00118; names, layouts, defaults and the init rule are those of Hugging Face's
 * Gemma2ForCausalLM. What Gemma 3 shares is here. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

#include <math.h>

/* A positive number; null is none. */
static cz_status read_cap(const struct json_node *config, const char *key, double fallback,
                          double *out)
{
    const struct json_node *node = json_get(config, key);
    *out = 0;
    if (node && json_type(node) == JSON_NULL) return CZ_OK;
    TRY(config_number(config, key, fallback, 0, 1e30, out));
    if (!node || (float)*out > 0) return CZ_OK;
    return config_refuse(node, CZ_INVALID, "a positive number, or null, is expected");
}

cz_status decoder_read_gemma(struct decoder_config *c, double score_cap, double logits_cap)
{
    double score_divisor, cap = 0;
    TRY(decoder_read_attention_bias(c));
    TRY(config_refuse_true(c->node, "use_bidirectional_attention"));
    TRY(config_number(c->node, "query_pre_attn_scalar", 256, 1e-30, 1e30, &score_divisor));
    /* Gemma 3: transformers stores such a cap and applies none; a warning names the key */
    if (score_cap > 0) TRY(read_cap(c->node, "attn_logit_softcapping", score_cap, &cap));
    TRY(read_cap(c->node, "final_logit_softcapping", logits_cap, &c->logits_softcap));
    TRY(decoder_read_window(c, 4096));
    c->block.attention_scale = (float)(1.0 / sqrt(score_divisor));
    c->block.softcap = (float)cap;
    c->block.norms = NORMS_AROUND;
    c->block.norm_offset = 1;
    c->embedding_scale = sqrt((double)c->hidden_size);
    c->rounds_embedding_scale = true;
    return CZ_OK;
}

static cz_status gemma2_build(const struct json_node *config, const char *name, enum cz_task task,
                              struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 256000,
                                                     .hidden_size = 2304,
                                                     .intermediate_size = 9216,
                                                     .n_layers = 26,
                                                     .n_heads = 8,
                                                     .n_kv_heads = 4,
                                                     .head_dim = 256,
                                                     .max_positions = 8192,
                                                     .activation_key = "hidden_activation",
                                                     .tie_word_embeddings = true,
                                                     .has_padding = true,
                                                     .padding_id = 0};
    struct decoder_config c;
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_gemma(&c, 50, 30));
    c.full_every = 2;
    return decoder_chain_build(&c, name, task, out);
}

/* width of a head, divisor of the scores, window */
#define GEMMA(head_dim, scalar, window)                                                            \
    {                                                                                              \
        {"head_dim", head_dim}, {"query_pre_attn_scalar", scalar}, {"sliding_window", window},     \
            {"hidden_act", "\"gelu_pytorch_tanh\""},                                               \
            {"hidden_activation", "\"gelu_pytorch_tanh\""}, {"pad_token_id", "0"},                 \
            {"attn_logit_softcapping", "50.0"},                                                    \
        {                                                                                          \
            "final_logit_softcapping", "30.0"                                                      \
        }                                                                                          \
    }

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    {"gemma2-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e4, true, 0, GEMMA("16", "16", "32")},
    {"gemma2-2b", 26, 2304, 8, 4, 9216, 256000, 8192, 2, 1, 1e-6, 1e4, true, 0,
     GEMMA("256", "256", "4096")},
    {"gemma2-9b", 42, 3584, 16, 8, 14336, 256000, 8192, 2, 1, 1e-6, 1e4, true, 0,
     GEMMA("256", "256", "4096")},
    {"gemma2-27b", 46, 4608, 32, 16, 36864, 256000, 8192, 2, 1, 1e-6, 1e4, true, 0,
     GEMMA("128", "144", "4096")},
};

DECODER_FAMILY(gemma2, "gemma2", "Gemma 2", "Gemma2", "Gemma2", "gemma2-2b",
               DECODER_CLASSIFIER("Gemma2"), DECODER_TAGGER("Gemma2"));

/* Phi-3 and Phi-4: LLaMA with one weight for queries, keys and values and one for gate and up,
 * heads that may rotate in part, and frequencies by length (longrope). Abdin et al., arXiv
 * 2404.14219; names, layouts, defaults and the init rule are those of Hugging Face's
 * Phi3ForCausalLM. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

static cz_status phi3_build(const struct json_node *config, const char *name, enum cz_task task,
                            struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 32064,
                                                     .hidden_size = 3072,
                                                     .intermediate_size = 8192,
                                                     .max_positions = 4096,
                                                     .eps = 1e-5,
                                                     .rope = {.in_part = true, .is_phi = true},
                                                     .has_padding = true,
                                                     .padding_id = 32000};
    struct decoder_config c;
    double resid_pdrop; /* embd_pdrop does nothing in transformers */
    *out = NULL;
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(config_number(config, "resid_pdrop", 0, 0, 1, &resid_pdrop));
    TRY(decoder_read_window(&c, 0));
    c.block.fused_maps = true;
    c.block.resid_dropout_p = (float)resid_pdrop;
    return decoder_chain_build(&c, name, task, out);
}

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    /* clang-format off */
    {"phi3-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-5, 1e4, false, 0, {{"pad_token_id", "null"}}},
    {"phi3-mini", 32, 3072, 32, 32, 8192, 32064, 4096, 1, 32000, 1e-5, 1e4, false, 0,
     {{"pad_token_id", "32000"}, {"sliding_window", "2047"}}},
    {"phi4", 40, 5120, 40, 10, 17920, 100352, 16384, 100257, 100265, 1e-5, 2.5e5, false, 0,
     {{"pad_token_id", "100349"}}},
    /* clang-format on */
};

DECODER_FAMILY(phi3, "phi3", "Phi-3", "Phi3", "Phi3", "phi3-mini", DECODER_CLASSIFIER("Phi3"),
               DECODER_TAGGER("Phi3"));

/* Qwen3-MoE: Qwen3 whose MLPs are mixtures of experts. Yang et al., arXiv 2505.09388; names,
 * layouts, defaults and the init rule are those of Hugging Face's Qwen3MoeForCausalLM. Files hold
 * the experts one by one; transformers 5 joins those of a layer when it loads them, and takes them
 * apart again when it saves. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"

static cz_status qwen3_moe_build(const struct json_node *config, const char *name,
                                 enum cz_task task, struct cz_model **out)
{
    static const struct decoder_defaults defaults = {.vocab_size = 151936,
                                                     .hidden_size = 2048,
                                                     .intermediate_size = 6144,
                                                     .n_layers = 24,
                                                     .n_heads = 32,
                                                     .n_kv_heads = 4,
                                                     .max_positions = 32768};
    static const struct decoder_experts experts = {
        .n = 128, .top_k = 8, .size = 768, .balance_coef = 0.001};
    struct decoder_config c;
    *out = NULL;
    const struct json_node *types = config_either(config, "layer_types", NULL);
    if (types)
        return config_refuse(types, CZ_UNSUPPORTED, "all layers of a qwen3_moe model attend alike");
    TRY(decoder_config_read(config, &defaults, &c));
    TRY(decoder_read_attention_bias(&c));
    TRY(decoder_read_switched_window(&c, 4096));
    TRY(decoder_read_experts(&c, &experts));
    if (task != CZ_TASK_CAUSAL_LM) c.balance_coef = 0; /* as in transformers */
    c.block.qk_norm = QK_NORM_HEADS;
    return decoder_chain_build(&c, name, task, out);
}

/* clang-format off: a key per line */
#define EXPERTS(n, top_k, size)                                                                    \
    {"num_experts", n}, {"num_experts_per_tok", top_k}, {"moe_intermediate_size", size},           \
        {"decoder_sparse_step", "1"}, {"mlp_only_layers", "[]"}, {"norm_topk_prob", "true"},       \
        {"output_router_logits", "false"},                                                         \
    {                                                                                              \
        "router_aux_loss_coef", "0.001"                                                            \
    }

/* The first is for tests, over bytes; the published sizes follow. */
static const struct decoder_preset presets[] = {
    /* clang-format off */
    {"qwen3-moe-tiny", 2, 64, 4, 2, 160, 256, 64, 0, 0, 1e-6, 1e6, true, 0,
     {{"head_dim", "16"}, EXPERTS("8", "2", "48")}},
    {"qwen3-30b-a3b", 48, 2048, 32, 4, 6144, 151936, 40960, 151643, 151645, 1e-6, 1e6, false, 0,
     {{"head_dim", "128"}, EXPERTS("128", "8", "768")}},
    {"qwen3-235b-a22b", 94, 4096, 64, 4, 12288, 151936, 40960, 151643, 151645, 1e-6, 1e6, false, 0,
     {{"head_dim", "128"}, EXPERTS("128", "8", "1536")}},
    /* clang-format on */
};
/* clang-format on */

DECODER_FAMILY(qwen3_moe, "qwen3_moe", "Qwen3-MoE", "Qwen3Moe", "Qwen3Moe", "qwen3-30b-a3b",
               DECODER_CLASSIFIER("Qwen3Moe"), DECODER_TAGGER("Qwen3Moe"));

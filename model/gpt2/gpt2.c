/* GPT-2: config.json → chain, and the presets as config.json.
 * Sources: Radford et al., "Language models are unsupervised multitask learners" (2019);
 * names, layouts, defaults and the init rule are those of Hugging Face's GPT2LMHeadModel. */
#include "model/gpt2/gpt2_impl.h"

#include "formats/json/json_write.h"
#include "model/hf/config_impl.h"
#include "model/parts/class_head.h"
#include "model/parts/parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---------------------------------------------------------------------------- */

struct gpt2_config {
    int64_t vocab_size, n_positions, n_embd, n_layer, n_head, n_inner;
    enum activation act;
    double layer_norm_epsilon, initializer_range;
    double embd_pdrop, attn_pdrop, resid_pdrop;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx;
    bool tie_word_embeddings;
    int64_t padding_id; /* -1: none is named */
    int64_t n_classes;  /* 0: a language model */
    bool classifies_tokens;
    enum head_loss loss;
    double token_dropout; /* in front of that classifier */
};

/* n_ctx and n_positions are both in use; the newer name wins. */
static cz_status config_read(const struct json_node *config, struct gpt2_config *c)
{
    const int64_t any = INT32_MAX;
    TRY(config_refuse_variants(config));
    TRY(config_size(config, "vocab_size", NULL, 50257, any, &c->vocab_size));
    TRY(config_size(config, "n_ctx", NULL, 1024, any, &c->n_positions)); /* the older name */
    TRY(config_size(config, "n_positions", "max_position_embeddings", c->n_positions, any,
                    &c->n_positions));
    TRY(config_size(config, "n_embd", "hidden_size", 768, 1 << 24, &c->n_embd));
    TRY(config_size(config, "n_layer", "num_hidden_layers", 12, 1 << 16, &c->n_layer));
    TRY(config_size(config, "n_head", "num_attention_heads", 12, 1 << 24, &c->n_head));
    TRY(config_size(config, "n_inner", NULL, 4 * c->n_embd, 1 << 28, &c->n_inner));
    TRY(config_activation(config, "activation_function", "gelu_new", &c->act));
    TRY(config_number(config, "layer_norm_epsilon", 1e-5, 0, 1, &c->layer_norm_epsilon));
    TRY(config_number(config, "initializer_range", 0.02, 0, 100, &c->initializer_range));
    TRY(config_number(config, "embd_pdrop", 0.1, 0, 1, &c->embd_pdrop));
    TRY(config_number(config, "attn_pdrop", 0.1, 0, 1, &c->attn_pdrop));
    TRY(config_number(config, "resid_pdrop", 0.1, 0, 1, &c->resid_pdrop));
    TRY(json_opt_bool(config, "scale_attn_weights", true, &c->scale_attn_weights));
    TRY(json_opt_bool(config, "scale_attn_by_inverse_layer_idx", false,
                      &c->scale_attn_by_inverse_layer_idx));
    /* reorder_and_upcast_attn asks for fp32 scores, which attention here always has. */
    TRY(json_opt_bool(config, "tie_word_embeddings", true, &c->tie_word_embeddings));
    return config_check_heads(config, "n_head", "num_attention_heads", c->n_head, c->n_embd);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* scale_attn_by_inverse_layer_idx counts layers from 1. Residual projections start smaller, by
 * 1/√(2 n_layer), as in the paper. */
static struct gpt2_block_hp block_hp(const struct gpt2_config *c, int layer_idx)
{
    double scale = 1.0;
    if (c->scale_attn_weights) scale /= sqrt((double)(c->n_embd / c->n_head));
    if (c->scale_attn_by_inverse_layer_idx) scale /= layer_idx + 1;
    return (struct gpt2_block_hp){
        .layer_idx = layer_idx,
        .C = c->n_embd,
        .H = c->n_head,
        .F = c->n_inner,
        .act = c->act,
        .eps = (float)c->layer_norm_epsilon,
        .attn_scale = (float)scale,
        .attn_dropout_p = (float)c->attn_pdrop,
        .resid_dropout_p = (float)c->resid_pdrop,
        .init_std = (float)c->initializer_range,
        /* two residual paths per block add up over the depth */
        .init_std_residual = (float)(c->initializer_range / sqrt(2.0 * (double)c->n_layer)),
    };
}

/* Whether elements of positions are dropped. */
static bool drops(const struct gpt2_config *c)
{
    return c->embd_pdrop > 0 || c->attn_pdrop > 0 || c->resid_pdrop > 0 || c->token_dropout > 0;
}

/* Tied weights share one parameter: gradients then add up without further care. */
static cz_status chain_build(const struct gpt2_config *c, const char *name,
                             struct gpt2_block_hp *blocks, struct layer_desc *layers,
                             struct cz_model **out)
{
    const struct model_embedding_hp embedding = {.token_name = "transformer.wte.weight",
                                                 .position_name = "transformer.wpe.weight",
                                                 .V = c->vocab_size,
                                                 .P = c->n_positions,
                                                 .C = c->n_embd,
                                                 .dropout_p = (float)c->embd_pdrop,
                                                 .init_std = (float)c->initializer_range};
    const char *wte = "transformer.wte.weight", *lm_head = "lm_head.weight";
    const struct model_lm_head_hp head = {.norm_weight_name = "transformer.ln_f.weight",
                                          .norm_bias_name = "transformer.ln_f.bias",
                                          .weight_name = c->tie_word_embeddings ? wte : lm_head,
                                          .tied_alias = c->tie_word_embeddings ? lm_head : NULL,
                                          .V = c->vocab_size,
                                          .C = c->n_embd,
                                          .eps = (float)c->layer_norm_epsilon,
                                          .init_std = (float)c->initializer_range};
    const bool each = c->classifies_tokens;
    const struct class_head_hp class_head = {.rows = each ? HEAD_EACH : HEAD_LAST,
                                             .loss = c->loss,
                                             .padding_id = c->padding_id,
                                             .norm_weight_name = "transformer.ln_f.weight",
                                             .norm_bias_name = "transformer.ln_f.bias",
                                             .class_weight_name =
                                                 each ? "classifier.weight" : "score.weight",
                                             .class_bias_name = each ? "classifier.bias" : NULL,
                                             .C = c->n_embd,
                                             .K = c->n_classes,
                                             .eps = (float)c->layer_norm_epsilon,
                                             .dropout_p = (float)c->token_dropout,
                                             .init_std = (float)c->initializer_range};
    const size_t n_layers = (size_t)c->n_layer + 2;
    layers[0] = (struct layer_desc){&model_embedding_class, &embedding, sizeof embedding};
    for (size_t i = 1; i + 1 < n_layers; i++) {
        blocks[i - 1] = block_hp(c, (int)i - 1);
        layers[i] = (struct layer_desc){&gpt2_block_class, &blocks[i - 1], sizeof *blocks};
    }
    layers[n_layers - 1] =
        c->n_classes > 0 ? (struct layer_desc){&class_head_class, &class_head, sizeof class_head}
                         : (struct layer_desc){&model_lm_head_class, &head, sizeof head};
    const struct model_desc desc = {.name = name,
                                    .layers = layers,
                                    .n_layers = n_layers,
                                    .vocab_size = c->vocab_size,
                                    .t_max = c->n_positions,
                                    .hidden_size = c->n_embd,
                                    .n_classes = c->n_classes,
                                    .unpads = c->n_classes > 0 && !drops(c)};
    return model_build(&desc, out);
}

static cz_status gpt2_build(const struct json_node *config, const char *name, enum cz_task task,
                            struct cz_model **out)
{
    struct gpt2_config c = {.padding_id = -1};
    *out = NULL;
    TRY(config_read(config, &c));
    c.classifies_tokens = task == CZ_TASK_TOKEN_CLASSIFICATION;
    if (task == CZ_TASK_CLASSIFICATION && config_either(config, "pad_token_id", NULL))
        TRY(json_need_int(config, "pad_token_id", &c.padding_id));
    if (c.classifies_tokens) TRY(config_token_dropout(config, &c.token_dropout));
    TRY(config_n_classes(config, task, &c.n_classes, &c.loss));
    struct gpt2_block_hp *blocks = calloc((size_t)c.n_layer, sizeof *blocks);
    struct layer_desc *layers = calloc((size_t)c.n_layer + 2, sizeof *layers);
    cz_status st = blocks && layers
                       ? chain_build(&c, name, blocks, layers, out)
                       : err_set(CZ_NOMEM, 0, "no memory for %lld layers", (long long)c.n_layer);
    free(blocks);
    free(layers);
    return st;
}

static const char *const gpt2_ignored[] = {".attn.bias", ".attn.masked_bias", NULL};

/* ---- presets -------------------------------------------------------------------------------- */

static const struct preset {
    const char *name;
    int64_t n_layer, n_embd, n_head, vocab_size, n_positions;
    int64_t end_of_text;
    double dropout;
} presets[] = {
    {"gpt2-tiny", 2, 64, 4, 256, 64, 0, 0.0},
    {"gpt2", 12, 768, 12, 50257, 1024, 50256, 0.1},
    {"gpt2-medium", 24, 1024, 16, 50257, 1024, 50256, 0.1},
    {"gpt2-large", 36, 1280, 20, 50257, 1024, 50256, 0.1},
    {"gpt2-xl", 48, 1600, 25, 50257, 1024, 50256, 0.1},
    {"gpt2-1.3b", 24, 2048, 16, 50257, 1024, 50256, 0.1},
    /* no weights exist for these: sizes to plan with, and to train from scratch */
    {"gpt2-7b", 32, 4096, 32, 50257, 2048, 50256, 0.1},
    {"gpt2-13b", 40, 5120, 40, 50257, 2048, 50256, 0.1},
    {"gpt2-70b", 86, 8192, 64, 50257, 2048, 50256, 0.1},
};

static const char *gpt2_preset_name(size_t idx)
{
    return idx < CZ_ARRAY_LEN(presets) ? presets[idx].name : NULL;
}

/* The keys that transformers writes for GPT-2, in its order. */
static cz_status gpt2_preset_config(const char *name, char **text)
{
    const struct preset *p = NULL;
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++)
        if (strcmp(presets[i].name, name) == 0) p = &presets[i];
    if (!p) return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of GPT-2", name);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "activation_function", "gelu_new");
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "GPT2LMHeadModel");
    json_end_array(&w);
    json_put_double(&w, "attn_pdrop", p->dropout);
    json_put_int(&w, "bos_token_id", p->end_of_text);
    json_put_double(&w, "embd_pdrop", p->dropout);
    json_put_int(&w, "eos_token_id", p->end_of_text);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_double(&w, "layer_norm_epsilon", 1e-5);
    json_put_string(&w, "model_type", "gpt2");
    json_put_int(&w, "n_embd", p->n_embd);
    json_put_int(&w, "n_head", p->n_head);
    json_put_int(&w, "n_layer", p->n_layer);
    json_put_int(&w, "n_positions", p->n_positions);
    json_put_double(&w, "resid_pdrop", p->dropout);
    json_put_bool(&w, "tie_word_embeddings", true);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "vocab_size", p->vocab_size);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const struct model_head gpt2_heads[] = {
    {CZ_TASK_CAUSAL_LM, "GPT2LMHeadModel"},
    {CZ_TASK_CLASSIFICATION, "GPT2ForSequenceClassification", true},
    {CZ_TASK_TOKEN_CLASSIFICATION, "GPT2ForTokenClassification"},
};

const struct model_family model_family_gpt2 = {
    .model_type = "gpt2",
    .title = "GPT-2",
    .base_prefix = "transformer.",
    .base_architecture = "GPT2Model",
    .heads = gpt2_heads,
    .n_heads = CZ_ARRAY_LEN(gpt2_heads),
    .ignored_suffixes = gpt2_ignored,
    .build = gpt2_build,
    .preset_name = gpt2_preset_name,
    .preset_config = gpt2_preset_config,
    .preset_example = "gpt2",
};

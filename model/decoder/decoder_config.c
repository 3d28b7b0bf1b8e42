/* What decoders share: reading config.json, putting the chain together, writing presets.
 * Defaults differ by family (struct decoder_defaults), since a file may leave out whatever its own
 * config class fills in. */
#include "model/decoder/decoder_impl.h"
#include "model/hf/config_impl.h"
#include "model/parts/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Positions are fp32 numbers in the angles: whole numbers up to here. */
#define POSITIONS_MAX ((int64_t)1 << 24)

/* ---- reading -------------------------------------------------------------------------------- */

/* A head's width: given, or the hidden size shared out. */
static cz_status read_heads(const struct json_node *config, const struct decoder_defaults *defaults,
                            struct decoder_config *c)
{
    const char *kv = "num_key_value_heads";
    TRY(config_size(config, "num_attention_heads", NULL, 32, 1 << 24, &c->n_heads));
    /* null means as many as there are heads, absence may mean something else */
    int64_t absent = json_get(config, kv) ? c->n_heads : defaults->n_kv_heads;
    if (absent == 0) absent = c->n_heads;
    TRY(config_size(config, kv, NULL, absent, 1 << 24, &c->n_kv_heads));
    if (c->n_heads % c->n_kv_heads != 0) {
        char why[128];
        snprintf(why, sizeof why, "%lld key heads do not divide %lld query heads",
                 (long long)c->n_kv_heads, (long long)c->n_heads);
        const struct json_node *node = config_either(config, kv, NULL);
        return config_refuse(node ? node : config, CZ_INVALID, why);
    }
    if (!config_either(config, "head_dim", NULL))
        TRY(config_check_heads(config, "num_attention_heads", NULL, c->n_heads, c->hidden_size));
    return config_size(config, "head_dim", NULL, c->hidden_size / c->n_heads, 2 * ROPE_HALF_MAX,
                       &c->head_dim);
}

/* The token whose embedding takes no gradient, as PyTorch's padding_idx. */
static cz_status read_padding(const struct json_node *config, struct decoder_config *c)
{
    const struct json_node *node = config_either(config, "pad_token_id", NULL);
    c->has_padding = node != NULL;
    if (!node) return CZ_OK;
    TRY(json_as_int(node, &c->padding_id));
    if (c->padding_id < 0) c->padding_id += c->vocab_size; /* counted from the end */
    if (c->padding_id >= 0 && c->padding_id < c->vocab_size) return CZ_OK;
    return config_refuse(node, CZ_INVALID, "this is not a token of the vocabulary");
}

/* Sizes first: later keys are checked against them. */
cz_status decoder_config_read(const struct json_node *config,
                              const struct decoder_defaults *defaults, struct decoder_config *c)
{
    const int64_t any = INT32_MAX;
    *c = (struct decoder_config){0};
    TRY(config_refuse_variants(config));
    TRY(config_size(config, "vocab_size", NULL, defaults->vocab_size, any, &c->vocab_size));
    TRY(config_size(config, "hidden_size", NULL, defaults->hidden_size, 1 << 24, &c->hidden_size));
    TRY(config_size(config, "intermediate_size", NULL, defaults->intermediate_size, 1 << 28,
                    &c->intermediate_size));
    TRY(config_size(config, "num_hidden_layers", NULL, 32, 1 << 16, &c->n_layers));
    TRY(config_size(config, "max_position_embeddings", NULL, defaults->max_positions, POSITIONS_MAX,
                    &c->max_positions));
    TRY(read_heads(config, defaults, c));
    /* The MLP's gate is silu, fused with the product. */
    enum activation act;
    TRY(config_activation(config, "hidden_act", "silu", &act));
    if (act != ACT_SILU)
        TRY(config_refuse(
            json_get(config, "hidden_act"), CZ_UNSUPPORTED,
            "a gated MLP with another activation than silu (swish) is not supported"));
    TRY(config_number(config, "rms_norm_eps", 1e-6, 0, 1, &c->eps));
    TRY(config_number(config, "initializer_range", 0.02, 0, 100, &c->initializer_range));
    TRY(config_number(config, "attention_dropout", 0, 0, 1, &c->attention_dropout));
    TRY(json_opt_bool(config, "tie_word_embeddings", false, &c->tie_word_embeddings));
    TRY(read_padding(config, c));
    return rope_read(config, c->head_dim, c->max_positions, &c->rope);
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* eps and dropout are fp32 in the kernels. */
static struct decoder_block_hp block_hp(const struct decoder_config *c, int layer_idx)
{
    return (struct decoder_block_hp){.layer_idx = layer_idx,
                                     .C = c->hidden_size,
                                     .F = c->intermediate_size,
                                     .H = c->n_heads,
                                     .G = c->n_kv_heads,
                                     .D = c->head_dim,
                                     .qkv_bias = c->qkv_bias,
                                     .o_bias = c->o_bias,
                                     .mlp_bias = c->mlp_bias,
                                     .eps = (float)c->eps,
                                     .attn_dropout_p = (float)c->attention_dropout,
                                     .init_std = (float)c->initializer_range,
                                     .rope = c->rope};
}

/* Embedding and head share a parameter if the config ties them. */
static cz_status chain_fill(const struct decoder_config *c, const char *name,
                            struct decoder_block_hp *blocks, struct layer_desc *layers,
                            struct cz_model **out)
{
    const char *tokens = "model.embed_tokens.weight", *lm_head = "lm_head.weight";
    const struct model_embedding_hp embedding = {.token_name = tokens,
                                                 .V = c->vocab_size,
                                                 .C = c->hidden_size,
                                                 .init_std = (float)c->initializer_range,
                                                 .has_padding = c->has_padding,
                                                 .padding_id = c->padding_id};
    const struct model_lm_head_hp head = {.norm_weight_name = "model.norm.weight",
                                          .weight_name = c->tie_word_embeddings ? tokens : lm_head,
                                          .tied_alias = c->tie_word_embeddings ? lm_head : NULL,
                                          .V = c->vocab_size,
                                          .C = c->hidden_size,
                                          .eps = (float)c->eps,
                                          .init_std = (float)c->initializer_range};
    const struct layer_class *block =
        c->rope.t_switch ? &decoder_block_uncached_class : &decoder_block_class;
    const size_t n_layers = (size_t)c->n_layers + 2;
    layers[0] = (struct layer_desc){&model_embedding_class, &embedding, sizeof embedding};
    for (size_t i = 1; i + 1 < n_layers; i++) {
        blocks[i - 1] = block_hp(c, (int)i - 1);
        layers[i] = (struct layer_desc){block, &blocks[i - 1], sizeof *blocks};
    }
    layers[n_layers - 1] = (struct layer_desc){&model_lm_head_class, &head, sizeof head};
    const bool bounded = c->window > 0 && c->window < c->max_positions;
    const struct model_desc desc = {.name = name,
                                    .layers = layers,
                                    .n_layers = n_layers,
                                    .vocab_size = c->vocab_size,
                                    .t_max = bounded ? c->window : c->max_positions,
                                    .hidden_size = c->hidden_size};
    return model_build(&desc, out);
}

/* Hyper-parameters are copied by model_build(): the arrays here are for building only. */
cz_status decoder_chain_build(const struct decoder_config *c, const char *name,
                              struct cz_model **out)
{
    struct decoder_block_hp *blocks = calloc((size_t)c->n_layers, sizeof *blocks);
    struct layer_desc *layers = calloc((size_t)c->n_layers + 2, sizeof *layers);
    cz_status st = blocks && layers
                       ? chain_fill(c, name, blocks, layers, out)
                       : err_set(CZ_NOMEM, 0, "no memory for %lld layers", (long long)c->n_layers);
    free(blocks);
    free(layers);
    if (st != CZ_OK) return st;
    /* No table of positions ends anywhere: longer sequences than the config's context can run. */
    (*out)->t_max_limit = c->window > 0 ? c->window : POSITIONS_MAX;
    return CZ_OK;
}

/* ---- presets -------------------------------------------------------------------------------- */

/* As transformers writes it, for the version that introduced the family. */
static cz_status write_config(const struct decoder_preset *p, const char *family,
                              const char *architecture, char **text)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, architecture);
    json_end_array(&w);
    json_put_double(&w, "attention_dropout", 0.0);
    json_put_int(&w, "bos_token_id", p->bos_token_id);
    json_put_int(&w, "eos_token_id", p->eos_token_id);
    json_put_int(&w, "head_dim", p->hidden_size / p->n_heads);
    json_put_string(&w, "hidden_act", "silu");
    json_put_int(&w, "hidden_size", p->hidden_size);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "intermediate_size", p->intermediate_size);
    json_put_int(&w, "max_position_embeddings", p->max_positions);
    json_put_string(&w, "model_type", family);
    json_put_int(&w, "num_attention_heads", p->n_heads);
    json_put_int(&w, "num_hidden_layers", p->n_layers);
    json_put_int(&w, "num_key_value_heads", p->n_kv_heads);
    json_put_double(&w, "rms_norm_eps", p->eps);
    /* In the older spelling, which all versions of transformers read. */
    json_write_key(&w, "rope_scaling");
    if (p->rope_factor > 0) {
        json_begin_object(&w);
        json_put_double(&w, "factor", p->rope_factor);
        json_put_double(&w, "high_freq_factor", 4.0);
        json_put_double(&w, "low_freq_factor", 1.0);
        json_put_int(&w, "original_max_position_embeddings", 8192);
        json_put_string(&w, "rope_type", "llama3");
        json_end_object(&w);
    } else {
        json_write_null(&w);
    }
    json_put_double(&w, "rope_theta", p->rope_theta);
    json_put_bool(&w, "tie_word_embeddings", p->tie_word_embeddings);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "vocab_size", p->vocab_size);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

/* A preset's numbers are published ones: names of other families are not found here. */
cz_status decoder_preset_write(const struct decoder_preset *presets, size_t n, const char *name,
                               const char *family, const char *architecture, char **text)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(presets[i].name, name) == 0)
            return write_config(&presets[i], family, architecture, text);
    return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of %s", name, family);
}

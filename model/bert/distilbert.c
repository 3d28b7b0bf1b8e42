/* DistilBERT: config.json → chain, and its preset as config.json.
 * Sources: Sanh et al., "DistilBERT, a distilled version of BERT" (2019); names, defaults and the
 * init rule are those of Hugging Face's DistilBertForSequenceClassification and
 * DistilBertForMaskedLM. It differs from BERT in having no token types, no dropout behind the
 * attention, and another classification head. */
#include "formats/json/json_write.h"
#include "model/bert/encoder_impl.h"
#include "model/hf/config_impl.h"

#include <string.h>

static const char *const block_names[ENCODER_N_PARAMS] = {
    [ENCODER_Q_W] = "attention.q_lin.weight",
    [ENCODER_Q_B] = "attention.q_lin.bias",
    [ENCODER_K_W] = "attention.k_lin.weight",
    [ENCODER_K_B] = "attention.k_lin.bias",
    [ENCODER_V_W] = "attention.v_lin.weight",
    [ENCODER_V_B] = "attention.v_lin.bias",
    [ENCODER_PROJ_W] = "attention.out_lin.weight",
    [ENCODER_PROJ_B] = "attention.out_lin.bias",
    [ENCODER_LN1_W] = "sa_layer_norm.weight",
    [ENCODER_LN1_B] = "sa_layer_norm.bias",
    [ENCODER_FC_W] = "ffn.lin1.weight",
    [ENCODER_FC_B] = "ffn.lin1.bias",
    [ENCODER_OUT_W] = "ffn.lin2.weight",
    [ENCODER_OUT_B] = "ffn.lin2.bias",
    [ENCODER_LN2_W] = "output_layer_norm.weight",
    [ENCODER_LN2_B] = "output_layer_norm.bias",
};

static const struct encoder_names names = {
    ENCODER_EMBEDDINGS("distilbert."),
    ENCODER_EMBEDDING_NORM("distilbert."),
    .block_prefix = "distilbert.transformer.layer",
    .block = block_names,
    .pool_w = "pre_classifier.weight",
    .pool_b = "pre_classifier.bias",
    .class_w = "classifier.weight",
    .class_b = "classifier.bias",
    .mlm_dense_w = "vocab_transform.weight",
    .mlm_dense_b = "vocab_transform.bias",
    .mlm_norm_w = "vocab_layer_norm.weight",
    .mlm_norm_b = "vocab_layer_norm.bias",
    .mlm_w = "vocab_projector.weight",
    .mlm_bias = "vocab_projector.bias",
    .pool_act = ACT_RELU,
};

/* Both spellings of a key are read: transformers maps the common names onto DistilBERT's own. */
static cz_status config_read(const struct json_node *config, enum cz_task task,
                             struct encoder_config *c)
{
    const int64_t any = INT32_MAX;
    TRY(config_size(config, "vocab_size", NULL, 30522, any, &c->V));
    TRY(config_size(config, "max_position_embeddings", NULL, 512, any, &c->P));
    TRY(config_size(config, "dim", "hidden_size", 768, 1 << 24, &c->C));
    TRY(config_size(config, "n_layers", "num_hidden_layers", 6, 1 << 16, &c->n_layers));
    TRY(config_size(config, "n_heads", "num_attention_heads", 12, 1 << 24, &c->H));
    TRY(config_size(config, "hidden_dim", NULL, 4 * 768, 1 << 28, &c->F));
    TRY(config_activation(config, "activation", "gelu", &c->act));
    TRY(config_number(config, "dropout", 0.1, 0, 1, &c->dropout));
    TRY(config_number(config, "attention_dropout", 0.1, 0, 1, &c->attn_dropout));
    TRY(config_number(config, "seq_classif_dropout", 0.2, 0, 1, &c->class_dropout));
    c->token_dropout = c->dropout;
    TRY(json_opt_bool(config, "sinusoidal_pos_embds", false, &c->sinusoidal));
    c->eps = 1e-12; /* no key of the file */
    TRY(encoder_config_common(config, task, c));
    return config_check_heads(config, "n_heads", "num_attention_heads", c->H, c->C);
}

static cz_status distilbert_build(const struct json_node *config, const char *name,
                                  enum cz_task task, struct cz_model **out)
{
    struct encoder_config c = {0};
    *out = NULL;
    TRY(config_read(config, task, &c));
    return encoder_build(&c, &names, name, task, out);
}

static const char *const distilbert_ignored[] = {".embeddings.position_ids", NULL};

/* ---- preset --------------------------------------------------------------------------------- */

static const char *distilbert_preset_name(size_t idx)
{
    return idx == 0 ? "distilbert-base" : NULL;
}

/* As transformers writes it. */
static cz_status distilbert_preset_config(const char *name, char **text)
{
    if (strcmp(name, "distilbert-base") != 0)
        return err_set(CZ_NOTFOUND, 0, "\"%s\" is not a preset of DistilBERT", name);
    struct json_writer w;
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_put_string(&w, "activation", "gelu");
    json_write_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "DistilBertForSequenceClassification");
    json_end_array(&w);
    json_put_double(&w, "attention_dropout", 0.1);
    json_put_int(&w, "dim", 768);
    json_put_double(&w, "dropout", 0.1);
    json_put_int(&w, "hidden_dim", 3072);
    json_put_double(&w, "initializer_range", 0.02);
    json_put_int(&w, "max_position_embeddings", 512);
    json_put_string(&w, "model_type", "distilbert");
    json_put_int(&w, "n_heads", 12);
    json_put_int(&w, "n_layers", 6);
    json_put_int(&w, "pad_token_id", 0);
    json_put_double(&w, "seq_classif_dropout", 0.2);
    json_put_bool(&w, "sinusoidal_pos_embds", false);
    json_put_string(&w, "torch_dtype", "float32");
    json_put_int(&w, "vocab_size", 30522);
    json_end_object(&w);
    return json_writer_take(&w, text, NULL);
}

static const struct model_head distilbert_heads[] = {
    {CZ_TASK_CLASSIFICATION, "DistilBertForSequenceClassification"},
    {CZ_TASK_TOKEN_CLASSIFICATION, "DistilBertForTokenClassification"},
    {CZ_TASK_MASKED_LM, "DistilBertForMaskedLM"},
};

const struct model_family model_family_distilbert = {
    .model_type = "distilbert",
    .title = "DistilBERT",
    .base_prefix = "distilbert.",
    .base_architecture = "DistilBertModel",
    .heads = distilbert_heads,
    .n_heads = CZ_ARRAY_LEN(distilbert_heads),
    .ignored_suffixes = distilbert_ignored,
    .tied_param = "distilbert.embeddings.word_embeddings.weight",
    .tied_elsewhere = "vocab_projector.weight",
    .build = distilbert_build,
    .preset_name = distilbert_preset_name,
    .preset_config = distilbert_preset_config,
    .preset_example = "distilbert-base",
};

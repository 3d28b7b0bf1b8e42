/* Claim: config.json of decoders is read as transformers reads it (defaults, both spellings of
 * rope, head widths, biases, windows, what a family alone has), parameters stand in Hugging Face's
 * order, presets have the published sizes, exported folders load again, and what cannot be run is
 * refused with a sentence. */
#include "formats/file_io.h"
#include "model/decoder/decoder_impl.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

/* A model of `members` (of a config.json, without its braces) on top of a small base. */
static struct cz_model *model_of(const char *family, const char *members)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"vocab_size\": 31, \"hidden_size\": 24, "
             "\"intermediate_size\": 40%s, \"max_position_embeddings\": 64"
             "%s%s%s}",
             family, strstr(members, "num_hidden_layers") ? "" : ", \"num_hidden_layers\": 2",
             strstr(members, "num_attention_heads") ? "" : ", \"num_attention_heads\": 4",
             members[0] ? ", " : "", members);
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "config.json");
    ck_ok(file_save(path, text, strlen(text)));
    err_clear();
    struct cz_model *m = cz_model_open(dir);
    free(path);
    test_tmp_remove(dir);
    return m;
}

static void opens(const char *family, const char *members)
{
    struct cz_model *m = model_of(family, members);
    ck_assert_msg(m != NULL, "%s: %s", members, cz_last_error());
    cz_model_destroy(m);
}

static void refused(const char *family, const char *members, cz_status want, const char *says)
{
    ck_assert_msg(model_of(family, members) == NULL, "%s opened", members);
    ck_assert_msg(cz_last_status() == want, "%s: %s", members, cz_last_error());
    ck_assert_msg(strstr(cz_last_error(), says) != NULL, "\"%s\" lacks \"%s\"", cz_last_error(),
                  says);
    ck_assert_msg(strstr(cz_last_error(), "config.json:1:") != NULL, "%s", cz_last_error());
}

static const struct decoder_block_hp *block_of(const struct cz_model *m)
{
    return model_layer_at(m, 1)->hp;
}

/* ---- reading ----------------------------------------------------------------------------------
 */

START_TEST(parameters_stand_in_hugging_faces_order)
{
    static const char *const want[] = {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.v_proj.bias",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.o_proj.bias",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.gate_proj.bias",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.mlp.down_proj.bias",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
    };
    struct cz_model *m = model_of("llama", "\"attention_bias\": true, \"mlp_bias\": true");
    const struct param_table *t = model_params(m);
    for (size_t i = 0; i < CZ_ARRAY_LEN(want); i++) ck_assert_str_eq(t->params[i].name, want[i]);
    ck_assert_uint_eq(t->n_params, 1 + 2 * 16 + 2);
    ck_assert_str_eq(t->params[t->n_params - 2].name, "model.norm.weight");
    ck_assert_str_eq(t->params[t->n_params - 1].name, "lm_head.weight");
    cz_model_destroy(m);

    m = model_of("qwen2", "\"tie_word_embeddings\": true, \"num_key_value_heads\": 2");
    t = model_params(m);
    size_t idx;
    ck_assert_uint_eq(t->n_params, 1 + 2 * 12 + 1);
    ck_ok(param_table_find(t, "lm_head.weight", &idx)); /* the other name of the first */
    ck_assert_uint_eq(idx, 0);
    ck_ok(param_table_find(t, "model.layers.1.self_attn.v_proj.bias", &idx));
    ck_fails(param_table_find(t, "model.layers.1.self_attn.o_proj.bias", &idx), CZ_NOTFOUND);
    cz_model_destroy(m);
}
END_TEST

START_TEST(heads_are_as_transformers_has_them)
{
    struct cz_model *m = model_of("llama", "");
    ck_assert_int_eq(block_of(m)->G, 4);
    ck_assert_int_eq(block_of(m)->D, 6);
    cz_model_destroy(m);
    m = model_of("llama", "\"num_key_value_heads\": null, \"head_dim\": null");
    ck_assert_int_eq(block_of(m)->G, 4);
    cz_model_destroy(m);
    m = model_of("llama", "\"num_key_value_heads\": 1, \"head_dim\": 16");
    ck_assert_int_eq(block_of(m)->G, 1);
    ck_assert_int_eq(block_of(m)->D, 16);
    cz_model_destroy(m);
    m = model_of("llama", "\"num_attention_heads\": 5, \"head_dim\": 4"); /* 24 is no multiple */
    ck_assert_int_eq(block_of(m)->H, 5);
    cz_model_destroy(m);
    m = model_of("qwen2", "\"num_attention_heads\": 12, \"num_key_value_heads\": 2");
    ck_assert(block_of(m)->qkv_bias && !block_of(m)->o_bias && !block_of(m)->mlp_bias);
    cz_model_destroy(m);
    refused("llama", "\"num_attention_heads\": 5", CZ_INVALID, "5 heads do not divide");
    refused("llama", "\"num_key_value_heads\": 3", CZ_INVALID, "3 key heads do not divide 4");
    refused("qwen2", "", CZ_INVALID, "32 key heads do not divide 4"); /* the default there */
    refused("llama", "\"head_dim\": 7", CZ_INVALID, "even widths");
    refused("llama", "\"head_dim\": 4096", CZ_INVALID, "outside");
}
END_TEST

START_TEST(what_cannot_be_run_is_refused)
{
    refused("llama", "\"hidden_act\": \"laplace\"", CZ_UNSUPPORTED, "\"laplace\" is not supported");
    opens("llama", "\"hidden_act\": \"relu2\"");
    opens("llama", "\"hidden_act\": \"swish\"");
    refused("llama", "\"quantization_config\": {\"bits\": 4}", CZ_UNSUPPORTED, "quantized");
    refused("llama", "\"pad_token_id\": 31", CZ_INVALID, "not a token");
    refused("llama", "\"attention_dropout\": 1.0", CZ_INVALID, "outside");
    refused("llama", "\"architectures\": [\"LlamaForQuestionAnswering\"]", CZ_UNSUPPORTED,
            "LlamaForCausalLM");
    opens("llama", "\"architectures\": [\"LlamaModel\"], \"pretraining_tp\": 2");
    opens("llama", "\"pad_token_id\": -1");
}
END_TEST

/* Names of the parameters between the embedding and the second block. */
static void block_is(const char *family, const char *members, const char *const *want, size_t n)
{
    struct cz_model *m = model_of(family, members);
    ck_assert_msg(m != NULL, "%s: %s", family, cz_last_error());
    const struct param_table *t = model_params(m);
    for (size_t i = 0; i < n; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.%s.weight", want[i]);
        ck_assert_str_eq(t->params[1 + i].name, name);
    }
    ck_assert_str_eq(t->params[1 + n].name, "model.layers.1.self_attn.q_proj.weight");
    cz_model_destroy(m);
}

START_TEST(norms_stand_where_the_family_has_them)
{
    static const char *const qwen3[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",        "self_attn.o_proj",
        "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj",           "mlp.up_proj",
        "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm"};
    static const char *const olmo2[] = {"self_attn.q_proj",
                                        "self_attn.k_proj",
                                        "self_attn.v_proj",
                                        "self_attn.o_proj",
                                        "self_attn.q_norm",
                                        "self_attn.k_norm",
                                        "mlp.gate_proj",
                                        "mlp.up_proj",
                                        "mlp.down_proj",
                                        "post_attention_layernorm",
                                        "post_feedforward_layernorm"};
    block_is("qwen3", "\"num_key_value_heads\": 2", qwen3, CZ_ARRAY_LEN(qwen3));
    block_is("olmo2", "\"num_key_value_heads\": 2", olmo2, CZ_ARRAY_LEN(olmo2));
    struct cz_model *m = model_of("qwen3", "\"num_key_value_heads\": 2"); /* heads of 128 */
    ck_assert_uint_eq(model_params(m)->params[5].numel, 128);
    cz_model_destroy(m);
    m = model_of("olmo2", "\"num_key_value_heads\": 2");
    ck_assert_uint_eq(model_params(m)->params[5].numel, 24);
    ck_assert_uint_eq(model_params(m)->params[6].numel, 12);
    ck_assert_float_eq(block_of(m)->eps, 1e-5f); /* the default there */
    cz_model_destroy(m);
}
END_TEST

START_TEST(granite_has_its_multipliers)
{
    struct cz_model *m = model_of("granite", "\"attention_multiplier\": 0.5, "
                                             "\"residual_multiplier\": 0.25");
    ck_assert_float_eq(block_of(m)->attention_scale, 0.5f);
    ck_assert_float_eq(block_of(m)->residual_scale, 0.25f);
    cz_model_destroy(m);
    m = model_of("granite", "");
    ck_assert_float_eq(block_of(m)->attention_scale, 1.0f); /* not 1/sqrt(D) */
    ck_assert_float_eq(block_of(m)->residual_scale, 0.0f);
    cz_model_destroy(m);
    refused("granite", "\"logits_scaling\": 0", CZ_INVALID, "positive");
    refused("granite", "\"embedding_multiplier\": -1", CZ_INVALID, "outside");
    refused("granite", "\"residual_multiplier\": \"x\"", CZ_CORRUPT, "residual_multiplier");
}
END_TEST

static void rotating_layers_are(const char *members, const char *want)
{
    char text[512];
    snprintf(text, sizeof text, "\"num_hidden_layers\": %zu, \"num_key_value_heads\": 2, %s",
             strlen(want), members);
    struct cz_model *m = model_of("smollm3", text);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    for (size_t i = 0; want[i]; i++) {
        const struct decoder_block_hp *hp = model_layer_at(m, 1 + i)->hp;
        ck_assert_msg(hp->no_rope == (want[i] == '0'), "%s: layer %zu", members, i);
    }
    cz_model_destroy(m);
}

START_TEST(smollm3_has_layers_that_do_not_rotate)
{
    rotating_layers_are("\"pad_token_id\": null", "11101");
    rotating_layers_are("\"no_rope_layer_interval\": 2", "1010");
    rotating_layers_are("\"no_rope_layers\": [0, 1, 1]", "011");
    rotating_layers_are("\"no_rope_layers\": [0, 1, 1, 0, 0]", "011"); /* longer than needed */
    rotating_layers_are("\"no_rope_layers\": [false, true, 2]", "011");
    refused("smollm3", "\"num_key_value_heads\": 2, \"no_rope_layers\": [1]", CZ_INVALID,
            "0 or 1 for each layer");
    refused("smollm3", "\"num_key_value_heads\": 2, \"no_rope_layers\": [1, \"1\"]", CZ_CORRUPT,
            "no_rope_layers[1]");
}
END_TEST

START_TEST(windows_are_those_of_their_layers)
{
    static const struct {
        const char *family, *members;
        int64_t windows[2];
    } cases[] = {
        {"qwen2", "\"sliding_window\": 8", {0, 0}},                               /* not in use */
        {"qwen2", "\"use_sliding_window\": true, \"sliding_window\": 8", {0, 0}}, /* from 28 on */
        {"qwen2",
         "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 1",
         {0, 8}},
        {"qwen3",
         "\"use_sliding_window\": true, \"sliding_window\": null, \"max_window_layers\": 0",
         {0, 0}},
        {"qwen2",
         "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 0, "
         "\"layer_types\": [\"full_attention\", \"full_attention\"]",
         {0, 0}},
        {"qwen2",
         "\"use_sliding_window\": true, \"sliding_window\": 8, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"]",
         {8, 0}},
        {"smollm3",
         "\"use_sliding_window\": true, \"sliding_window\": 8, \"no_rope_layers\": [0, 1]",
         {8, 0}}, /* what does not rotate slides */
        {"smollm3", "\"sliding_window\": 8, \"no_rope_layers\": [0, 1]", {0, 0}},
        {"smollm3",
         "\"sliding_window\": 8, \"no_rope_layers\": [0, 1], "
         "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         {0, 8}}, /* the list counts, whatever use_sliding_window says */
        {"mistral", "\"sliding_window\": 8", {8, 8}},
        {"mistral", "\"sliding_window\": null", {0, 0}},
        {"mistral", "\"bos_token_id\": 1", {4096, 4096}},
        {"phi3", "\"sliding_window\": 8, \"pad_token_id\": null", {8, 8}},
        {"phi3", "\"pad_token_id\": null", {0, 0}},
        {"gemma2", "\"sliding_window\": 8", {8, 0}},
        {"gemma3_text", "\"sliding_window\": 8, \"sliding_window_pattern\": 1", {0, 0}},
        {"ministral",
         "\"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         {0, 8}},
    };
    char members[512];
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        snprintf(members, sizeof members, "\"num_key_value_heads\": 2, %s", cases[i].members);
        struct cz_model *m = model_of(cases[i].family, members);
        ck_assert_msg(m != NULL, "%s: %s", members, cz_last_error());
        ck_assert_int_eq(cz_model_t_max(m), 64);
        for (size_t l = 0; l < 2; l++) {
            const struct decoder_block_hp *hp = model_layer_at(m, 1 + l)->hp;
            ck_assert_msg(hp->window == cases[i].windows[l], "%s %s: layer %zu has %lld",
                          cases[i].family, members, l, (long long)hp->window);
        }
        cz_model_destroy(m);
    }
    refused("qwen2", "\"num_key_value_heads\": 2, \"layer_types\": [\"full_attention\"]",
            CZ_INVALID, "one kind per layer");
    refused("qwen2",
            "\"num_key_value_heads\": 2, \"layer_types\": [\"full_attention\", \"chunked\"]",
            CZ_UNSUPPORTED, "full_attention or sliding_attention");
    refused("qwen2",
            "\"num_key_value_heads\": 2, "
            "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
            CZ_INVALID, "without use_sliding_window");
    refused("mistral",
            "\"num_key_value_heads\": 2, "
            "\"layer_types\": [\"full_attention\", \"full_attention\"]",
            CZ_UNSUPPORTED, "ministral");
}
END_TEST

START_TEST(classifiers_do_not_balance_experts)
{
    static const char *const heads[] = {"Qwen3MoeForSequenceClassification",
                                        "Qwen3MoeForTokenClassification"};
    const char *experts = "\"num_key_value_heads\": 2, \"output_router_logits\": true, "
                          "\"num_experts\": 4, \"num_experts_per_tok\": 2, "
                          "\"moe_intermediate_size\": 8";
    char members[512];
    struct cz_model *m = model_of("qwen3_moe", experts);
    ck_assert(block_of(m)->balances_experts);
    cz_model_destroy(m);
    for (size_t i = 0; i < CZ_ARRAY_LEN(heads); i++) {
        snprintf(members, sizeof members, "\"architectures\": [\"%s\"], %s", heads[i], experts);
        m = model_of("qwen3_moe", members);
        ck_assert_msg(m != NULL, "%s: %s", heads[i], cz_last_error());
        ck_assert_int_eq(block_of(m)->n_experts, 4);
        ck_assert(!block_of(m)->balances_experts);
        cz_model_destroy(m);
    }
}
END_TEST

START_TEST(gemma_has_its_caps_norms_and_bases)
{
    struct cz_model *m = model_of("gemma2", "\"query_pre_attn_scalar\": 64");
    ck_assert_float_eq(block_of(m)->attention_scale, 0.125f);
    ck_assert_float_eq(block_of(m)->softcap, 50.0f); /* the default there */
    ck_assert_int_eq(block_of(m)->gate, ACT_GELU_TANH);
    ck_assert_str_eq(model_params(m)->params[10].name,
                     "model.layers.0.pre_feedforward_layernorm.weight");
    ck_assert_int_eq(model_params(m)->params[10].init, PARAM_INIT_ZERO); /* 1 is added */
    cz_model_destroy(m);
    m = model_of("gemma3_text", "\"rope_theta\": 100, \"head_dim\": 8, "
                                "\"rope_local_base_freq\": 10000, \"sliding_window_pattern\": 2");
    const struct decoder_block_hp *local = model_layer_at(m, 1)->hp;
    const struct decoder_block_hp *global = model_layer_at(m, 2)->hp;
    ck_assert_float_eq_tol(local->rope.freq[1], 0.1f, 1e-6f);
    ck_assert_float_eq_tol(global->rope.freq[1], 0.31622777f, 1e-6f);
    ck_assert_float_eq(local->softcap, 0.0f);
    cz_model_destroy(m);
    refused("gemma2", "\"use_bidirectional_attention\": true", CZ_UNSUPPORTED, "not supported");
    refused("gemma2", "\"attn_logit_softcapping\": 0", CZ_INVALID, "or null");
    m = model_of("gemma3_text", "\"attn_logit_softcapping\": 50.0, \"head_dim\": 8");
    ck_assert_float_eq(((const struct decoder_block_hp *)model_layer_at(m, 1)->hp)->softcap, 0.0f);
    cz_model_destroy(m);
    refused("gemma2", "\"hidden_activation\": \"prelu\"", CZ_UNSUPPORTED, "gelu_pytorch_tanh");
}
END_TEST

START_TEST(phi3_rotates_heads_in_part)
{
    struct cz_model *m = model_of("phi3", "\"num_attention_heads\": 2, \"pad_token_id\": null, "
                                          "\"partial_rotary_factor\": 0.7");
    ck_assert_int_eq(block_of(m)->D, 12);
    ck_assert_int_eq(block_of(m)->rope.half, 4);
    ck_assert_uint_eq(model_params(m)->params[2].numel, 3 * 24 * 24);
    ck_assert_str_eq(model_params(m)->params[2].name, "model.layers.0.self_attn.qkv_proj.weight");
    cz_model_destroy(m);
    refused("phi3", "\"pad_token_id\": null, \"partial_rotary_factor\": 0.5", CZ_INVALID, "even");
    refused("phi3", "\"pad_token_id\": null, \"resid_pdrop\": 1", CZ_INVALID, "outside");
    refused("phi3",
            "\"pad_token_id\": null, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
            CZ_UNSUPPORTED, "default and longrope");
    opens("phi3", "\"pad_token_id\": null, \"rope_scaling\": {\"type\": \"su\", "
                  "\"short_factor\": [1, 1, 1], \"long_factor\": [2, 2, 2]}");
}
END_TEST

/* Rotary positions end nowhere: beyond the context is allowed, and said. */
START_TEST(sequences_may_be_longer_than_the_context)
{
    struct cz_model *m = model_of("llama", "");
    ck_assert_int_eq(cz_model_t_max(m), 64);
    ck_ok(cz_model_set_shape(m, 1000));
    ck_assert_int_eq(cz_model_t_max(m), 1000);
    ck_fails(cz_model_set_shape(m, ((int64_t)1 << 24) + 1), CZ_INVALID);
    cz_model_destroy(m);
}
END_TEST

/* ---- rope -------------------------------------------------------------------------------------
 */

/* The plan of a config with these members, heads of D, a context of 64. */
static struct rope_plan plan_of(const char *members, int64_t D)
{
    char text[1024];
    struct json_doc *doc;
    struct rope_plan plan;
    snprintf(text, sizeof text, "{%s}", members);
    ck_ok(json_parse(text, strlen(text), "config.json", JSON_STRICT, &doc));
    ck_ok(rope_read(json_root(doc), D, 64, &(struct rope_defaults){0}, &plan));
    json_free(doc);
    return plan;
}

static void freq_is(const struct rope_plan *p, int64_t T, const double *want)
{
    float buf[ROPE_HALF_MAX];
    const float *freq = rope_frequencies(p, T, buf);
    for (int64_t i = 0; i < p->half; i++)
        ck_assert_double_eq_tol((double)freq[i], want[i], 3e-7 * want[i]);
}

START_TEST(rope_is_read_in_both_spellings)
{
    const double plain[] = {1, 0.1, 0.01, 0.001}, hundred[] = {1, 0.31622776601, 0.1, 0.0316227766};
    const double linear[] = {0.25, 0.025, 0.0025, 0.00025};
    struct rope_plan p = plan_of("", 8);
    freq_is(&p, 1000, plain);
    p = plan_of("\"rope_theta\": 100, \"rope_scaling\": null", 8);
    freq_is(&p, 1000, hundred);
    p = plan_of("\"rope_parameters\": {\"rope_theta\": 100.0, \"rope_type\": \"default\"}", 8);
    freq_is(&p, 1000, hundred);
    p = plan_of("\"rope_theta\": 7, \"rope_parameters\": {\"rope_theta\": 100.0}", 8);
    freq_is(&p, 1000, hundred); /* the inner one stands before the outer */
    p = plan_of("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}", 8);
    freq_is(&p, 1000, linear);
    p = plan_of("\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"x\", \"factor\": 4}, "
                "\"rope_parameters\": {\"rope_type\": \"default\"}",
                8);
    freq_is(&p, 1000, linear);
    ck_assert_float_eq(p.scale, 1.0f);
}
END_TEST

START_TEST(rope_follows_the_length_where_it_should)
{
    const double plain[] = {1, 0.1, 0.01, 0.001};
    struct rope_plan p = plan_of("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}", 8);
    freq_is(&p, 64, plain);
    double grown[4]; /* theta·(2·128/64 − 1)^(8/6) */
    for (int i = 0; i < 4; i++) grown[i] = pow(1e4 * pow(3, 8.0 / 6), -i / 4.0);
    freq_is(&p, 128, grown);

    const double divided[] = {1 / 2.0, 0.1 / 3, 0.01 / 4, 0.001 / 5};
    p = plan_of("\"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], "
                "\"long_factor\": [2, 3, 4, 5], \"original_max_position_embeddings\": 16}",
                8);
    freq_is(&p, 16, plain);
    freq_is(&p, 17, divided);
    ck_assert_float_eq_tol(p.scale, sqrtf(1.0f + logf(4.0f) / logf(16.0f)), 1e-6f);
    p = plan_of("\"original_max_position_embeddings\": 32, " /* the outer one, as Phi-3 writes it */
                "\"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], "
                "\"long_factor\": [2, 3, 4, 5], \"original_max_position_embeddings\": 16}",
                8);
    ck_assert_int_eq(p.t_switch, 32);
}
END_TEST

START_TEST(rope_scalings_have_their_limits)
{
    /* llama3: short waves stay, long ones are divided, between them it is monotonous */
    struct rope_plan p = plan_of(
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
        "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}",
        32);
    struct rope_plan plain = plan_of("", 32);
    ck_assert_float_eq(p.freq[0], 1.0f);
    ck_assert_float_eq(p.freq[15], plain.freq[15] / 8.0f);
    for (int i = 1; i < 16; i++) {
        ck_assert(p.freq[i] < p.freq[i - 1]);
        ck_assert(p.freq[i] <= plain.freq[i] && p.freq[i] >= plain.freq[i] / 8.0f);
    }
    /* yarn: the same, by dimension; attention gets sharper */
    p = plan_of("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                "\"original_max_position_embeddings\": 16}",
                32);
    ck_assert_float_eq(p.freq[0], 1.0f);
    ck_assert_float_eq_tol(p.freq[15], plain.freq[15] / 4.0f, 1e-9f);
    ck_assert_float_eq_tol(p.scale, 0.1f * logf(4.0f) + 1.0f, 1e-6f);
    /* A base of 2 blends from dimension -22 to 19 by the formula: from 0 to 15 in heads of 16 */
    p = plan_of("\"rope_theta\": 2, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                "\"original_max_position_embeddings\": 30}",
                16);
    for (int i = 0; i < 8; i++) {
        const double f = pow(2, -i / 8.0), ramp = i / 15.0;
        ck_assert_float_eq_tol(p.freq[i], (float)(f / 4 * ramp + f * (1 - ramp)), 1e-6f);
    }
    /* Where both bounds are one dimension, 4.03 here, it parts those that stay from the others. */
    p = plan_of("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": 1, "
                "\"beta_slow\": 1, \"truncate\": false, \"original_max_position_embeddings\": 64}",
                32);
    for (int i = 0; i < 16; i++)
        ck_assert_float_eq_tol(p.freq[i], plain.freq[i] / (i <= 4 ? 1.0f : 4.0f), 1e-7f);
    /* proportional: the rest does not turn */
    p = plan_of("\"partial_rotary_factor\": 0.5, "
                "\"rope_parameters\": {\"rope_type\": \"proportional\"}",
                32);
    ck_assert_float_eq(p.freq[7], plain.freq[7]);
    for (int i = 8; i < 16; i++) ck_assert_float_eq(p.freq[i], 0.0f);
}
END_TEST

START_TEST(wrong_rope_is_refused)
{
    refused("llama", "\"rope_scaling\": {\"type\": \"su\", \"factor\": 2}", CZ_UNSUPPORTED,
            "supported: default, linear, dynamic, yarn, longrope, llama3, proportional");
    refused("llama", "\"rope_scaling\": {\"type\": \"linear\"}", CZ_NOTFOUND, "factor is missing");
    refused("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}", CZ_INVALID,
            "positive");
    refused("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e-60}", CZ_INVALID,
            "positive");
    refused("llama",
            "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, "
            "\"original_max_position_embeddings\": 1e300}",
            CZ_CORRUPT, "original_max_position_embeddings");
    refused("llama", "\"rope_scaling\": {\"type\": 3}", CZ_CORRUPT, "type");
    refused("llama", "\"rope_scaling\": [2]", CZ_INVALID, "object");
    refused("llama", "\"rope_theta\": 0", CZ_INVALID, "outside");
    refused("llama", "\"partial_rotary_factor\": 0.5", CZ_UNSUPPORTED, "in part");
    refused("llama", "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}",
            CZ_UNSUPPORTED, "by kind of layer");
    refused("llama",
            "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2], "
            "\"long_factor\": [1, 2, 3]}",
            CZ_INVALID, "a list of 3 numbers");
    for (int more = 0; more < 2; more++) /* too short, too long */
        refused("llama",
                more ? "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2, 3], "
                       "\"long_factor\": [1, 2, 3, 4]}"
                     : "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2, 3], "
                       "\"long_factor\": [1, 2]}",
                CZ_INVALID, "a list of 3 numbers");
    refused("llama", "\"head_dim\": 2, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
            CZ_INVALID, "dynamic scaling needs heads wider than 2");
    opens("llama", "\"head_dim\": 4, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}");
    refused("llama", "\"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}",
            CZ_INVALID, "yarn needs a rope_theta other than 1");
    refused("llama", "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2, 3]}",
            CZ_NOTFOUND, "long_factor");
    refused("llama",
            "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1}",
            CZ_NOTFOUND, "high_freq_factor is missing");
    refused("llama",
            "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"beta_fast\": -1}",
            CZ_INVALID, "positive");
}
END_TEST

/* Families that name none have transformers' 1e-6. */
START_TEST(norms_have_an_epsilon)
{
    static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) {
        struct cz_model *m = model_of(families[i], "\"num_key_value_heads\": 4");
        ck_assert_msg(m && block_of(m)->eps == 1e-6f, "%s: %s", families[i], cz_last_error());
        cz_model_destroy(m);
    }
}
END_TEST

/* Frequencies that follow the length have no use for a cache of keys. */
START_TEST(only_fixed_frequencies_are_cached)
{
    struct cz_model *m =
        model_of("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}");
    ck_assert(model_layer_at(m, 1)->cls->decode != NULL);
    cz_model_destroy(m);
    m = model_of("llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4}");
    ck_assert(model_layer_at(m, 1)->cls->decode == NULL);
    cz_model_destroy(m);
}
END_TEST

/* ---- presets and export -----------------------------------------------------------------------
 */

START_TEST(presets_have_the_published_sizes)
{
    static const struct {
        const char *name;
        size_t numel;
        int64_t t_max;
    } presets[] = {
        {"llama-tiny", 119104, 64},
        {"qwen2-tiny", 102976, 64},
        {"llama-160m", 162417408, 2048},
        {"tinyllama-1.1b", 1100048384, 2048},
        {"llama-7b", 6738415616, 4096},
        {"llama-13b", 13015864320, 4096},
        {"llama-70b", 68976648192, 4096},
        {"llama3-8b", 8030261248, 8192},
        {"llama3.2-1b", 1235814400, 131072},
        {"llama3.2-3b", 3212749824, 131072},
        {"qwen2-0.5b", 494032768, 131072},
        {"qwen2-1.5b", 1543714304, 131072},
        {"qwen2-7b", 7615616512, 131072},
        {"smollm2-135m", 134515008, 8192},
        {"smollm2-360m", 361821120, 8192},
        {"smollm2-1.7b", 1711376384, 8192},
        {"qwen3-0.6b", 596049920, 40960},
        {"qwen3-1.7b", 1720574976, 40960},
        {"qwen3-4b", 4022468096, 40960},
        {"qwen3-8b", 8190735360, 40960},
        {"olmo2-1b", 1484916736, 4096},
        {"qwen3-30b-a3b", 30532122624, 40960},
        {"qwen3-235b-a22b", 235093634560, 40960},
        {"olmo2-7b", 7298617344, 4096},
        {"olmo2-13b", 13716198400, 4096},
        {"granite3-2b", 2533531648, 131072},
        {"granite3-8b", 8170848256, 131072},
        {"smollm3-3b", 3075098624, 65536},
        {"phi3-mini", 3821079552, 4096},
        {"phi4", 14659507200, 16384},
        {"mistral-7b-v0.1", 7241732096, 32768},
        {"mistral-7b", 7248023552, 32768},
        {"ministral-8b", 8019808256, 32768},
        {"gemma2-2b", 2614341888, 8192},
        {"gemma2-9b", 9241705984, 8192},
        {"gemma2-27b", 27227128320, 8192},
        {"gemma3-270m", 268098176, 32768},
        {"gemma3-1b", 999885952, 32768},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++) {
        struct cz_model *m = cz_model_open(presets[i].name);
        ck_assert_msg(m != NULL, "%s: %s", presets[i].name, cz_last_error());
        ck_assert_msg(param_table_numel(model_params(m), false) == presets[i].numel, "%s has %zu",
                      presets[i].name, param_table_numel(model_params(m), false));
        ck_assert_int_eq(cz_model_t_max(m), presets[i].t_max);
        cz_model_destroy(m);
    }
}
END_TEST

static cz_status fetch(void *user, size_t param_idx, size_t elem_off, size_t numel, float *dst)
{
    return model_read_weights(user, param_idx, elem_off, numel, dst);
}

START_TEST(exported_folders_load_again)
{
    static const char *const sources[] = {
        "llama-tiny",           "qwen2-tiny",          "qwen3-tiny",  "qwen3-moe-tiny",
        "olmo2-tiny",           "granite-tiny",        "phi3-tiny",   "mistral-tiny",
        "ministral-tiny",       "gemma2-tiny",         "gemma3-tiny", "smollm3-tiny",
        "models/llama-variant", "models/qwen2-variant"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(sources); i++) {
        const char *dir = test_tmp_make();
        struct cz_model *m =
            cz_model_open(strchr(sources[i], '/') ? test_fixture(sources[i]) : sources[i]);
        ck_assert_msg(m != NULL, "%s", cz_last_error());
        ck_ok(model_export_hf(m, dir, DTYPE_F32, fetch, m));
        struct cz_model *back = cz_model_open(dir);
        ck_assert_msg(back != NULL, "%s", cz_last_error());
        const struct param_table *t = model_params(m), *u = model_params(back);
        ck_assert_uint_eq(t->n_params, u->n_params);
        for (size_t p = 0; p < t->n_params; p++) {
            float a[8] = {0}, b[8] = {0};
            const size_t n = t->params[p].numel < 8 ? t->params[p].numel : 8;
            ck_assert_str_eq(t->params[p].name, u->params[p].name);
            ck_ok(model_read_weights(m, p, 0, n, a));
            ck_ok(model_read_weights(back, p, 0, n, b));
            ck_assert_mem_eq(a, b, sizeof a);
        }
        ck_assert_mem_eq(&block_of(m)->rope, &block_of(back)->rope, sizeof(struct rope_plan));
        cz_model_destroy(back);
        cz_model_destroy(m);
        test_tmp_remove(dir);
    }
}
END_TEST

TEST_MAIN("model/decoder_config", parameters_stand_in_hugging_faces_order,
          heads_are_as_transformers_has_them, what_cannot_be_run_is_refused,
          norms_stand_where_the_family_has_them, granite_has_its_multipliers,
          smollm3_has_layers_that_do_not_rotate, windows_are_those_of_their_layers,
          classifiers_do_not_balance_experts, gemma_has_its_caps_norms_and_bases,
          phi3_rotates_heads_in_part, sequences_may_be_longer_than_the_context,
          rope_is_read_in_both_spellings, rope_follows_the_length_where_it_should,
          rope_scalings_have_their_limits, wrong_rope_is_refused, only_fixed_frequencies_are_cached,
          norms_have_an_epsilon, presets_have_the_published_sizes, exported_folders_load_again)

/* Claim: ModernBERT's config.json becomes the parameters that transformers has, with its defaults;
 * presets have the published sizes; what is not supported is refused at its place in the file. Its
 * block, norm and summary stay inside the bytes they ask for, and their gradients are those of
 * their forward. */
#include "model/bert/encoder_impl.h"
#include "model/decoder/decoder_impl.h"
#include "tests/unit/model/layer_rig.h"

enum { B = 2, T = 7, C = 12 };

#define TINY                                                                                       \
    "\"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_attention_heads\": "  \
    "2, \"intermediate_size\": 6, \"max_position_embeddings\": 16, \"pad_token_id\": 0"

static cz_status build(const char *text, enum cz_task task, struct cz_model **out)
{
    struct json_doc *doc;
    ck_ok(json_parse(text, strlen(text), "config.json", JSON_STRICT, &doc));
    cz_status st = model_family_modernbert.build(json_root(doc), "tiny", task, out);
    if (st == CZ_OK)
        (*out)->config = doc;
    else
        json_free(doc);
    return st;
}

/* ---- config.json ---------------------------------------------------------------------------- */

START_TEST(parameters_have_transformers_names)
{
    static const char *const names[] = {"model.embeddings.tok_embeddings.weight",
                                        "model.embeddings.norm.weight",
                                        "model.layers.0.attn.Wo.weight",
                                        "model.layers.0.attn.Wqkv.weight",
                                        "model.layers.0.mlp.Wi.weight",
                                        "model.layers.0.mlp.Wo.weight",
                                        "model.layers.0.mlp_norm.weight",
                                        "model.layers.1.attn.Wo.weight",
                                        "model.layers.1.attn.Wqkv.weight",
                                        "model.layers.1.mlp.Wi.weight",
                                        "model.layers.1.mlp.Wo.weight",
                                        "model.layers.1.attn_norm.weight",
                                        "model.layers.1.mlp_norm.weight",
                                        "model.final_norm.weight",
                                        "head.dense.weight",
                                        "head.norm.weight",
                                        "classifier.weight",
                                        "classifier.bias"};
    struct cz_model *m;
    ck_ok(build("{" TINY "}", CZ_TASK_CLASSIFICATION, &m));
    const struct param_table *t = model_params(m);
    ck_assert_uint_eq(t->n_params, CZ_ARRAY_LEN(names));
    for (size_t i = 0; i < t->n_params; i++) ck_assert_str_eq(t->params[i].name, names[i]);
    cz_model_destroy(m);
    ck_ok(build("{" TINY "}", CZ_TASK_MASKED_LM, &m));
    ck_assert_uint_eq(model_params(m)->n_params, 17); /* the decoder is tied, its bias is not */
    cz_model_destroy(m);
    ck_ok(build("{" TINY ", \"decoder_bias\": false, \"norm_bias\": true}", CZ_TASK_MASKED_LM, &m));
    ck_assert_uint_eq(model_params(m)->n_params, 22); /* six norms */
    cz_model_destroy(m);
}
END_TEST

START_TEST(layers_are_of_two_kinds)
{
    struct cz_model *m;
    ck_ok(build("{\"model_type\": \"modernbert\", \"vocab_size\": 11}", CZ_TASK_MASKED_LM, &m));
    for (size_t i = 0; i < 22; i++) {
        const struct decoder_block_hp *hp = model_layer_at(m, i + 1)->hp;
        ck_assert_int_eq(hp->window, i % 3 == 0 ? 0 : 65);
        ck_assert_float_eq(hp->rope.freq[1], powf(i % 3 == 0 ? 160000 : 10000, -1.0f / 32));
        ck_assert_int_eq(hp->no_first_norm, i == 0);
        ck_assert_int_eq(hp->gate, ACT_GELU_ERF);
    }
    cz_model_destroy(m);
}
END_TEST

START_TEST(presets_have_the_published_sizes)
{
    static const struct {
        const char *name;
        size_t classifier, masked; /* as transformers counts */
    } presets[] = {{"modernbert-base", 149606402, 149655232},
                   {"modernbert-large", 395833346, 395881664}};
    const struct cz_model_options options = {.size = sizeof options, .task = CZ_TASK_MASKED_LM};
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++) {
        struct cz_model *m = cz_model_from_preset(presets[i].name);
        ck_assert_msg(m != NULL, "%s", cz_last_error());
        ck_assert_uint_eq(param_table_numel(model_params(m), true), presets[i].classifier);
        ck_assert_int_eq(cz_model_t_max(m), 8192);
        cz_model_destroy(m);
        m = cz_model_open_ex(presets[i].name, &options);
        ck_assert_uint_eq(param_table_numel(model_params(m), true), presets[i].masked);
        cz_model_destroy(m);
    }
}
END_TEST

START_TEST(other_variants_are_refused_by_place)
{
    static const struct {
        const char *key, *sentence;
        cz_status status;
    } cases[] = {
        {"\"attention_dropout\": 0.1", "dropout", CZ_UNSUPPORTED},
        {"\"mlp_dropout\": 0.1", "dropout", CZ_UNSUPPORTED},
        {"\"hidden_activation\": \"relu6\"", "\"relu6\" is not supported", CZ_UNSUPPORTED},
        {"\"classifier_pooling\": \"max\"", "supported: cls, mean", CZ_UNSUPPORTED},
        {"\"rope_scaling\": {\"rope_type\": \"linear\"}", "rope_parameters", CZ_UNSUPPORTED},
        {"\"layer_types\": [\"full_attention\"]", "one kind per layer", CZ_INVALID},
        {"\"local_attention\": 0", "local_attention", CZ_INVALID},
        {"\"pad_token_id\": 11", "vocabulary", CZ_INVALID},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512];
        struct cz_model *m;
        snprintf(text, sizeof text, "{\"vocab_size\": 11, \"num_hidden_layers\": 2,\n %s}",
                 cases[i].key);
        ck_fails(build(text, CZ_TASK_MASKED_LM, &m), cases[i].status);
        ck_assert_ptr_null(m);
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence) != NULL, "%s", cz_last_error());
        ck_assert_msg(strstr(cz_last_error(), "config.json:2:") != NULL, "%s", cz_last_error());
    }
}
END_TEST

/* ---- layers --------------------------------------------------------------------------------- */

static const struct decoder_block_names names = {"model.layers", "attn.Wqkv", "attn.Wo", "mlp.Wi",
                                                 "mlp.Wo",       "attn_norm", "mlp_norm"};
static uint8_t key_mask[B * T];

enum { BLOCK_FIRST, BLOCK, BLOCK_BIASES, NORM, SUMMARY, SUMMARY_BIASES, MEAN, EACH, N_LAYERS };

static struct decoder_block_hp block_hp(int kind)
{
    const bool biases = kind == BLOCK_BIASES;
    struct decoder_block_hp hp = {.C = C,
                                  .F = 10,
                                  .H = 3,
                                  .G = 3,
                                  .D = 4,
                                  .qkv_bias = biases,
                                  .o_bias = biases,
                                  .mlp_bias = biases,
                                  .fused_maps = true,
                                  .gate = ACT_GELU_ERF,
                                  .window = kind == BLOCK_FIRST ? 0 : 3,
                                  .eps = 1e-5f,
                                  .init_std = 0.02f,
                                  .rope = {.half = 2, .scale = 1.0f, .freq = {1.0f, 0.1f}},
                                  .is_bidirectional = true,
                                  .layer_norm = true,
                                  .norm_bias = biases,
                                  .no_first_norm = kind == BLOCK_FIRST,
                                  .names = &names};
    return hp;
}

static void open_layer(struct rig *r, int kind, enum cz_dtype dtype, float dropout_p)
{
    static struct decoder_block_hp blocks[N_LAYERS];
    static const struct encoder_norm_hp norm = {"n.weight", "n.bias", C, 1e-5f};
    static struct encoder_summary_hp summaries[N_LAYERS];
    (void)dropout_p; /* none has any */
    for (size_t i = 0; i < B * T; i++) key_mask[i] = i < T || i % T < 4;
    summaries[kind] =
        (struct encoder_summary_hp){.dense_weight_name = "d.weight",
                                    .dense_bias_name = kind == SUMMARY_BIASES ? "d.bias" : NULL,
                                    .norm_weight_name = "n.weight",
                                    .norm_bias_name = kind == SUMMARY_BIASES ? "n.bias" : NULL,
                                    .pooling = kind == MEAN   ? SUMMARY_MEAN
                                               : kind == EACH ? SUMMARY_EACH
                                                              : SUMMARY_FIRST,
                                    .act = ACT_GELU_ERF,
                                    .C = C,
                                    .eps = 1e-5f,
                                    .init_std = 0.02f};
    blocks[kind] = block_hp(kind);
    if (kind <= BLOCK_BIASES)
        rig_open(r, &decoder_block_uncached_class, &blocks[kind], B, T, C, C, dtype, true);
    else if (kind == NORM)
        rig_open(r, &encoder_norm_class, &norm, B, T, C, C, dtype, true);
    else
        rig_open(r, &encoder_summary_class, &summaries[kind], B, T, C, C, dtype, true);
    r->batch.key_mask = key_mask;
}

START_TEST(gradients_match_differences)
{
    for (int kind = 0; kind < N_LAYERS; kind++) {
        struct rig r;
        open_layer(&r, kind, DTYPE_F32, 0);
        rig_check_gradients(&r, 5e-3);
        rig_close(&r);
    }
}
END_TEST

START_TEST(layers_stay_inside_their_bytes)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int kind = 0; kind < N_LAYERS; kind++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++) {
            struct rig r;
            open_layer(&r, kind, dtypes[d], 0);
            for (int smaller = 0; smaller < 2; smaller++) {
                r.batch.B = B - smaller;
                r.batch.T = T - 2 * smaller;
                rig_forward(&r, LAYER_TRAIN);
                rig_backward(&r);
                rig_forward(&r, LAYER_EVAL);
            }
            rig_close(&r); /* looks at the guards */
        }
}
END_TEST

START_TEST(gradients_are_as_asked)
{
    for (int kind = 0; kind < N_LAYERS; kind++) {
        rig_check_accumulates(open_layer, kind);
        rig_check_frozen(open_layer, kind);
    }
}
END_TEST

START_TEST(recomputing_repeats_the_forward)
{
    for (int kind = 0; kind < N_LAYERS; kind++) rig_check_recomputes(open_layer, kind);
}
END_TEST

/* A window hides what is 3 or more away, before and behind; padding is hidden from all. */
START_TEST(positions_see_both_sides_of_their_window)
{
    struct rig r;
    open_layer(&r, BLOCK, DTYPE_F32, 0);
    float *in = rig_data(&r.in), *out = rig_data(&r.out), was[B * T * C];
    rig_forward(&r, LAYER_EVAL);
    memcpy(was, out, sizeof was);
    in[3 * C] += 1; /* of row 0 */
    rig_forward(&r, LAYER_EVAL);
    for (int t = 0; t < T; t++) {
        const bool same = memcmp(was + t * C, out + t * C, C * sizeof *out) == 0;
        ck_assert_msg(same == (abs(t - 3) >= 3), "position %d", t);
    }
    in[(T + 5) * C] += 1; /* padding of row 1 */
    memcpy(was, out, sizeof was);
    rig_forward(&r, LAYER_EVAL);
    for (int t = 0; t < T; t++)
        ck_assert_int_eq(memcmp(was + (T + t) * C, out + (T + t) * C, C * sizeof *out) == 0,
                         t != 5);
    rig_close(&r);
}
END_TEST

TEST_MAIN("model/modernbert", parameters_have_transformers_names, layers_are_of_two_kinds,
          presets_have_the_published_sizes, other_variants_are_refused_by_place,
          gradients_match_differences, layers_stay_inside_their_bytes, gradients_are_as_asked,
          recomputing_repeats_the_forward, positions_see_both_sides_of_their_window)

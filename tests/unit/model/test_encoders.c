/* Claim: config.json of BERT and its relatives becomes the parameters that transformers has, under
 * their names and in their order, with its defaults and its init; presets have the published sizes;
 * what is not supported is refused at its place in the file. */
#include "model/bert/encoder_impl.h"
#include "tests/support/check_main.h"
#include "tests/unit/model/family_build.h"

#include <math.h>
#include <string.h>

#define BERT_TINY                                                                                  \
    "\"model_type\": \"bert\", \"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 1, " \
    "\"num_attention_heads\": 2, \"intermediate_size\": 12, \"max_position_embeddings\": 7"
#define DISTIL_TINY                                                                                \
    "\"model_type\": \"distilbert\", \"vocab_size\": 11, \"dim\": 8, \"n_layers\": 1, "            \
    "\"n_heads\": 2, \"hidden_dim\": 12, \"max_position_embeddings\": 7"

static struct cz_model *must_build(const struct model_family *family, const char *text,
                                   enum cz_task task)
{
    struct cz_model *m = NULL;
    ck_ok(family_build(family, text, task, &m));
    return m;
}

static void expect_names(const struct cz_model *m, const char *const *names, size_t n)
{
    const struct param_table *t = model_params(m);
    ck_assert_uint_eq(t->n_params, n);
    for (size_t i = 0; i < n; i++) ck_assert_str_eq(t->params[i].name, names[i]);
}

/* ---- names ------------------------------------------------------------------------------------
 */

#define BERT_BODY                                                                                  \
    "bert.embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight",        \
        "bert.embeddings.token_type_embeddings.weight", "bert.embeddings.LayerNorm.weight",        \
        "bert.embeddings.LayerNorm.bias", "bert.encoder.layer.0.attention.self.query.weight",      \
        "bert.encoder.layer.0.attention.self.query.bias",                                          \
        "bert.encoder.layer.0.attention.self.key.weight",                                          \
        "bert.encoder.layer.0.attention.self.key.bias",                                            \
        "bert.encoder.layer.0.attention.self.value.weight",                                        \
        "bert.encoder.layer.0.attention.self.value.bias",                                          \
        "bert.encoder.layer.0.attention.output.dense.weight",                                      \
        "bert.encoder.layer.0.attention.output.dense.bias",                                        \
        "bert.encoder.layer.0.attention.output.LayerNorm.weight",                                  \
        "bert.encoder.layer.0.attention.output.LayerNorm.bias",                                    \
        "bert.encoder.layer.0.intermediate.dense.weight",                                          \
        "bert.encoder.layer.0.intermediate.dense.bias",                                            \
        "bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.0.output.dense.bias",      \
        "bert.encoder.layer.0.output.LayerNorm.weight",                                            \
        "bert.encoder.layer.0.output.LayerNorm.bias"

START_TEST(parameters_have_transformers_names_and_order)
{
    static const char *const classifier[] = {BERT_BODY, "bert.pooler.dense.weight",
                                             "bert.pooler.dense.bias", "classifier.weight",
                                             "classifier.bias"};
    static const char *const tied[] = {BERT_BODY,
                                       "cls.predictions.bias",
                                       "cls.predictions.transform.dense.weight",
                                       "cls.predictions.transform.dense.bias",
                                       "cls.predictions.transform.LayerNorm.weight",
                                       "cls.predictions.transform.LayerNorm.bias"};
    static const char *const untied[] = {BERT_BODY,
                                         "cls.predictions.transform.dense.weight",
                                         "cls.predictions.transform.dense.bias",
                                         "cls.predictions.transform.LayerNorm.weight",
                                         "cls.predictions.transform.LayerNorm.bias",
                                         "cls.predictions.decoder.weight",
                                         "cls.predictions.decoder.bias"};
    size_t idx;
    struct cz_model *m = must_build(&model_family_bert, "{" BERT_TINY "}", CZ_TASK_CLASSIFICATION);
    expect_names(m, classifier, CZ_ARRAY_LEN(classifier));
    ck_assert_int_eq(cz_model_labels(m), CZ_LABELS_CLASS);
    ck_assert_int_eq(cz_model_n_classes(m), 2);
    ck_assert_int_eq(cz_model_n_types(m), 2);
    ck_assert_int_eq(cz_model_t_max(m), 7);
    cz_model_destroy(m);

    m = must_build(&model_family_bert, "{" BERT_TINY "}", CZ_TASK_MASKED_LM);
    expect_names(m, tied, CZ_ARRAY_LEN(tied));
    ck_assert_int_eq(cz_model_labels(m), CZ_LABELS_SAME);
    ck_assert_int_eq(cz_model_n_classes(m), 0);
    ck_ok(param_table_find(model_params(m), "cls.predictions.decoder.weight", &idx));
    ck_assert_uint_eq(idx, 0);
    ck_ok(param_table_find(model_params(m), "cls.predictions.decoder.bias", &idx));
    ck_assert_uint_eq(idx, 21);
    cz_model_destroy(m);

    m = must_build(&model_family_bert, "{" BERT_TINY ", \"tie_word_embeddings\": false}",
                   CZ_TASK_MASKED_LM);
    expect_names(m, untied, CZ_ARRAY_LEN(untied));
    ck_ok(param_table_find(model_params(m), "cls.predictions.bias", &idx));
    ck_assert_uint_eq(idx, 26);
    cz_model_destroy(m);
}
END_TEST

START_TEST(distilberts_parameters_too)
{
    static const char *const names[] = {"distilbert.embeddings.word_embeddings.weight",
                                        "distilbert.embeddings.position_embeddings.weight",
                                        "distilbert.embeddings.LayerNorm.weight",
                                        "distilbert.embeddings.LayerNorm.bias",
                                        "distilbert.transformer.layer.0.attention.q_lin.weight",
                                        "distilbert.transformer.layer.0.attention.q_lin.bias",
                                        "distilbert.transformer.layer.0.attention.k_lin.weight",
                                        "distilbert.transformer.layer.0.attention.k_lin.bias",
                                        "distilbert.transformer.layer.0.attention.v_lin.weight",
                                        "distilbert.transformer.layer.0.attention.v_lin.bias",
                                        "distilbert.transformer.layer.0.attention.out_lin.weight",
                                        "distilbert.transformer.layer.0.attention.out_lin.bias",
                                        "distilbert.transformer.layer.0.sa_layer_norm.weight",
                                        "distilbert.transformer.layer.0.sa_layer_norm.bias",
                                        "distilbert.transformer.layer.0.ffn.lin1.weight",
                                        "distilbert.transformer.layer.0.ffn.lin1.bias",
                                        "distilbert.transformer.layer.0.ffn.lin2.weight",
                                        "distilbert.transformer.layer.0.ffn.lin2.bias",
                                        "distilbert.transformer.layer.0.output_layer_norm.weight",
                                        "distilbert.transformer.layer.0.output_layer_norm.bias",
                                        "pre_classifier.weight",
                                        "pre_classifier.bias",
                                        "classifier.weight",
                                        "classifier.bias"};
    struct cz_model *m = must_build(&model_family_distilbert,
                                    "{" DISTIL_TINY ", \"id2label\": {\"0\": \"a\", \"1\": \"b\", "
                                    "\"2\": \"c\"}}",
                                    CZ_TASK_CLASSIFICATION);
    expect_names(m, names, CZ_ARRAY_LEN(names));
    ck_assert_int_eq(cz_model_n_classes(m), 3);
    ck_assert_int_eq(cz_model_n_types(m), 0);
    cz_model_destroy(m);

    static const char *const tail[] = {"vocab_transform.weight",  "vocab_transform.bias",
                                       "vocab_layer_norm.weight", "vocab_layer_norm.bias",
                                       "vocab_projector.weight",  "vocab_projector.bias"};
    for (int tied = 0; tied < 2; tied++) {
        size_t idx;
        m = must_build(&model_family_distilbert,
                       tied ? "{" DISTIL_TINY "}"
                            : "{" DISTIL_TINY ", \"tie_word_embeddings\": false}",
                       CZ_TASK_MASKED_LM);
        ck_assert_uint_eq(model_params(m)->n_params, tied ? 25 : 26);
        for (size_t i = 0, at = 20; i < CZ_ARRAY_LEN(tail); i++) {
            ck_ok(param_table_find(model_params(m), tail[i], &idx));
            ck_assert_uint_eq(idx, tied && i == 4 ? 0 : at++);
        }
        cz_model_destroy(m);
    }
}
END_TEST

#define ROBERTA_TINY                                                                               \
    "\"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": "  \
    "2, \"intermediate_size\": 12, \"max_position_embeddings\": 9, \"type_vocab_size\": 1"
#define ELECTRA_TINY                                                                               \
    "\"vocab_size\": 11, \"embedding_size\": 6, \"hidden_size\": 8, \"num_hidden_layers\": 1, "    \
    "\"num_attention_heads\": 2, \"intermediate_size\": 12, \"max_position_embeddings\": 7"

/* The last n parameters, behind the base model's. */
static void expect_tail(const struct cz_model *m, size_t n_base, const char *const *names, size_t n)
{
    const struct param_table *t = model_params(m);
    ck_assert_uint_eq(t->n_params, n_base + n);
    for (size_t i = 0; i < n; i++) ck_assert_str_eq(t->params[n_base + i].name, names[i]);
}

START_TEST(robertas_parameters_too)
{
    static const char *const classifier[] = {"classifier.dense.weight", "classifier.dense.bias",
                                             "classifier.out_proj.weight",
                                             "classifier.out_proj.bias"};
    static const char *const tied[] = {"lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias",
                                       "lm_head.layer_norm.weight", "lm_head.layer_norm.bias"};
    static const char *const untied[] = {"lm_head.dense.weight",      "lm_head.dense.bias",
                                         "lm_head.layer_norm.weight", "lm_head.layer_norm.bias",
                                         "lm_head.decoder.weight",    "lm_head.decoder.bias"};
    static const struct model_family *const families[] = {&model_family_roberta,
                                                          &model_family_xlm_roberta};
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) {
        const struct model_family *f = families[i];
        struct cz_model *m = must_build(f, "{" ROBERTA_TINY "}", CZ_TASK_CLASSIFICATION);
        expect_tail(m, 21, classifier, CZ_ARRAY_LEN(classifier));
        ck_assert_str_eq(model_params(m)->params[5].name,
                         "roberta.encoder.layer.0.attention.self.query.weight");
        ck_assert_int_eq(cz_model_t_max(m), 7);
        ck_assert_int_eq(model_n_positions(m), 9);
        cz_model_destroy(m);
        m = must_build(f, "{" ROBERTA_TINY "}", CZ_TASK_MASKED_LM);
        expect_tail(m, 21, tied, CZ_ARRAY_LEN(tied));
        cz_model_destroy(m);
        m = must_build(f, "{" ROBERTA_TINY ", \"tie_word_embeddings\": false}", CZ_TASK_MASKED_LM);
        expect_tail(m, 21, untied, CZ_ARRAY_LEN(untied));
        cz_model_destroy(m);
    }
}
END_TEST

START_TEST(electras_parameters_too)
{
    static const char *const project[] = {"electra.embeddings_project.weight",
                                          "electra.embeddings_project.bias"};
    static const char *const tied[] = {
        "generator_predictions.LayerNorm.weight", "generator_predictions.LayerNorm.bias",
        "generator_predictions.dense.weight", "generator_predictions.dense.bias",
        "generator_lm_head.bias"};
    struct cz_model *m = must_build(&model_family_electra, "{" ELECTRA_TINY "}", CZ_TASK_MASKED_LM);
    expect_tail(m, 23, tied, CZ_ARRAY_LEN(tied));
    for (size_t i = 0; i < CZ_ARRAY_LEN(project); i++)
        ck_assert_str_eq(model_params(m)->params[5 + i].name, project[i]);
    ck_assert_int_eq(model_params(m)->params[5].shape[0], 8);
    ck_assert_int_eq(model_params(m)->params[5].shape[1], 6);
    cz_model_destroy(m);
    static const char *const detects[] = {"discriminator_predictions.dense.weight",
                                          "discriminator_predictions.dense.bias",
                                          "discriminator_predictions.dense_prediction.weight",
                                          "discriminator_predictions.dense_prediction.bias"};
    m = must_build(&model_family_electra, "{" ELECTRA_TINY "}", CZ_TASK_REPLACED_TOKENS);
    expect_tail(m, 23, detects, CZ_ARRAY_LEN(detects));
    ck_assert_int_eq(cz_model_labels(m), CZ_LABELS_REPLACED);
    cz_model_destroy(m);
    m = must_build(&model_family_electra,
                   "{\"embedding_size\": 8, \"hidden_size\": 8, \"num_hidden_layers\": 1}",
                   CZ_TASK_CLASSIFICATION);
    ck_assert_uint_eq(model_params(m)->n_params, 25); /* no map between equal widths */
    cz_model_destroy(m);
}
END_TEST

START_TEST(positions_count_tokens_behind_padding)
{
    static const int32_t ids[] = {4, 5, 1, 6, 1, 1, 1, 1, 7, 7, 7, 7},
                         want[] = {2, 3, 1, 4, 1, 1, 1, 1, 2, 3, 4, 5};
    int32_t positions[12];
    struct cz_model *m =
        must_build(&model_family_roberta, "{" ROBERTA_TINY "}", CZ_TASK_CLASSIFICATION);
    ck_assert(model_counts_positions(m));
    model_count_positions(m, ids, 3, 4, positions);
    ck_assert_mem_eq(positions, want, sizeof want);
    cz_model_destroy(m);
    m = must_build(&model_family_bert, "{" BERT_TINY "}", CZ_TASK_CLASSIFICATION);
    ck_assert(!model_counts_positions(m));
    cz_model_destroy(m);
}
END_TEST

/* ---- sizes ------------------------------------------------------------------------------------
 */

START_TEST(presets_have_the_published_sizes)
{
    static const struct {
        const char *name;
        size_t numel; /* with two classes, as transformers counts */
    } presets[] = {{"bert-tiny", 4386178},           {"bert-mini", 11171074},
                   {"bert-small", 28764674},         {"bert-medium", 41374210},
                   {"bert-base", 109483778},         {"bert-large", 335143938},
                   {"distilbert-base", 66955010},    {"roberta-base", 124647170},
                   {"roberta-large", 355361794},     {"xlm-roberta-base", 278045186},
                   {"xlm-roberta-large", 559892482}, {"electra-small", 13549314},
                   {"electra-base", 109483778},      {"electra-large", 335143938}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++) {
        struct cz_model *m = cz_model_from_preset(presets[i].name);
        ck_assert_msg(m != NULL, "%s", cz_last_error());
        ck_assert_uint_eq(param_table_numel(model_params(m), true), presets[i].numel);
        if (!strstr(presets[i].name, "roberta")) ck_assert_int_eq(cz_model_vocab_size(m), 30522);
        ck_assert_int_eq(cz_model_t_max(m), 512);
        ck_assert_int_eq(cz_model_n_classes(m), 2);
        cz_model_destroy(m);
    }
    struct cz_model *megatron = cz_model_from_preset("megatron-bert-1.3b");
    ck_assert_msg(megatron != NULL, "%s", cz_last_error());
    ck_assert_uint_eq(param_table_numel(model_params(megatron), true), 1257371650);
    ck_assert_int_eq(cz_model_vocab_size(megatron), 21248);
    cz_model_destroy(megatron);
    static const struct {
        const char *name;
        size_t numel;
    } masked[] = {{"bert-base", 109514298},        {"distilbert-base", 66985530},
                  {"roberta-base", 124697433},     {"roberta-large", 355412057},
                  {"xlm-roberta-base", 278295186}, {"xlm-roberta-large", 560142482},
                  {"electra-small", 13546682},     {"electra-base", 109514298},
                  {"electra-large", 335174458}};
    const struct cz_model_options options = {.size = sizeof options, .task = CZ_TASK_MASKED_LM};
    for (size_t i = 0; i < CZ_ARRAY_LEN(masked); i++) {
        struct cz_model *m = cz_model_open_ex(masked[i].name, &options);
        ck_assert_uint_eq(param_table_numel(model_params(m), true), masked[i].numel);
        cz_model_destroy(m);
    }
    static const struct {
        const char *name;
        size_t numel;
    } detects[] = {
        {"electra-small", 13549057}, {"electra-base", 109483009}, {"electra-large", 335142913}};
    const struct cz_model_options replaced = {.size = sizeof replaced,
                                              .task = CZ_TASK_REPLACED_TOKENS};
    for (size_t i = 0; i < CZ_ARRAY_LEN(detects); i++) {
        struct cz_model *m = cz_model_open_ex(detects[i].name, &replaced);
        ck_assert_uint_eq(param_table_numel(model_params(m), true), detects[i].numel);
        cz_model_destroy(m);
    }
    const struct cz_model_options causal = {.size = sizeof causal, .task = CZ_TASK_CAUSAL_LM};
    ck_assert_ptr_null(cz_model_open_ex("distilbert-base", &causal));
    ck_assert_int_eq(cz_last_status(), CZ_UNSUPPORTED);
}
END_TEST

START_TEST(defaults_are_transformers_own)
{
    struct cz_model *m =
        must_build(&model_family_bert, "{\"model_type\": \"bert\"}", CZ_TASK_CLASSIFICATION);
    ck_assert_uint_eq(param_table_numel(model_params(m), true), 109483778);
    const struct encoder_block_hp *block = model_layer_at(m, 1)->hp;
    ck_assert_int_eq(block->H, 12);
    ck_assert_int_eq(block->act, ACT_GELU_ERF);
    ck_assert_float_eq(block->eps, 1e-12f);
    ck_assert_float_eq(block->proj_dropout_p, 0.1f);
    const struct class_head_hp *head = model_layer_at(m, 13)->hp;
    ck_assert_int_eq(head->act, ACT_TANH);
    ck_assert_float_eq(head->dropout_p, 0.1f);
    cz_model_destroy(m);

    m = must_build(&model_family_distilbert, "{\"model_type\": \"distilbert\"}",
                   CZ_TASK_CLASSIFICATION);
    ck_assert_uint_eq(param_table_numel(model_params(m), true), 66955010);
    block = model_layer_at(m, 1)->hp;
    ck_assert_float_eq(block->proj_dropout_p, 0.0f);
    ck_assert_float_eq(block->out_dropout_p, 0.1f);
    head = model_layer_at(m, 7)->hp;
    ck_assert_int_eq(head->act, ACT_RELU);
    ck_assert_float_eq(head->dropout_p, 0.2f);
    cz_model_destroy(m);
}
END_TEST

START_TEST(classifier_dropout_overrides)
{
    struct cz_model *m = must_build(&model_family_bert,
                                    "{" BERT_TINY ", \"hidden_dropout_prob\": 0.3, "
                                    "\"classifier_dropout\": 0.5}",
                                    CZ_TASK_CLASSIFICATION);
    ck_assert_float_eq(((const struct class_head_hp *)model_layer_at(m, 2)->hp)->dropout_p, 0.5f);
    cz_model_destroy(m);
    m = must_build(&model_family_bert,
                   "{" BERT_TINY ", \"hidden_dropout_prob\": 0.3, \"classifier_dropout\": null}",
                   CZ_TASK_CLASSIFICATION);
    ck_assert_float_eq(((const struct class_head_hp *)model_layer_at(m, 2)->hp)->dropout_p, 0.3f);
    cz_model_destroy(m);
}
END_TEST

/* ---- init -------------------------------------------------------------------------------------
 */

START_TEST(padding_starts_as_zeros)
{
    static const struct {
        const char *key;
        int64_t row; /* -1: none */
    } cases[] = {{"", 0},
                 {", \"pad_token_id\": 3", 3},
                 {", \"pad_token_id\": -1", 10},
                 {", \"pad_token_id\": null", -1}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512];
        float x[11 * 8], piece[5];
        snprintf(text, sizeof text, "{%s%s}", BERT_TINY, cases[i].key);
        struct cz_model *m = must_build(&model_family_bert, text, CZ_TASK_CLASSIFICATION);
        ck_ok(model_read_weights(m, 0, 0, 11 * 8, x));
        for (int64_t row = 0; row < 11; row++)
            for (int64_t c = 0; c < 8; c++)
                ck_assert((x[row * 8 + c] == 0.0f) == (row == cases[i].row));
        for (size_t off = 0; off + 5 <= 11 * 8; off += 3) { /* any piece can be made alone */
            ck_ok(model_read_weights(m, 0, off, 5, piece));
            ck_assert_mem_eq(piece, x + off, sizeof piece);
        }
        cz_model_destroy(m);
    }
}
END_TEST

START_TEST(positions_may_start_as_sines)
{
    static const struct {
        size_t row, col;
        float value; /* transformers' */
    } want[] = {{0, 0, 0.0f},           {0, 1, 1.0f},          {1, 0, 0.8414709568f},
                {3, 5, 0.9553365111f},  {7, 2, 0.8004216552f}, {19, 14, 0.006008291617f},
                {19, 15, 0.9999819398f}};
    struct cz_model *m = must_build(&model_family_distilbert,
                                    "{\"model_type\": \"distilbert\", \"vocab_size\": 11, "
                                    "\"dim\": 16, \"n_heads\": 2, \"n_layers\": 1, "
                                    "\"hidden_dim\": 8, \"max_position_embeddings\": 20, "
                                    "\"sinusoidal_pos_embds\": true}",
                                    CZ_TASK_CLASSIFICATION);
    ck_assert(model_params(m)->params[1].trainable);
    for (size_t i = 0; i < CZ_ARRAY_LEN(want); i++) {
        float x;
        ck_ok(model_read_weights(m, 1, want[i].row * 16 + want[i].col, 1, &x));
        ck_assert_float_eq_tol(x, want[i].value, 1e-7f);
    }
    cz_model_destroy(m);
}
END_TEST

/* ---- refusals ---------------------------------------------------------------------------------
 */

START_TEST(other_models_are_refused_by_place)
{
    static const struct {
        const char *key, *sentence;
        cz_status status;
    } cases[] = {
        {"\"is_decoder\": true", "is_decoder", CZ_UNSUPPORTED},
        {"\"add_cross_attention\": true", "add_cross_attention", CZ_UNSUPPORTED},
        {"\"position_embedding_type\": \"relative_key\"", "relative_key", CZ_UNSUPPORTED},
        {"\"position_embedding_type\": 5", "position_embedding_type", CZ_CORRUPT},
        {"\"problem_type\": \"ranking\"", "\"ranking\" is not supported", CZ_UNSUPPORTED},
        {"\"num_labels\": 0", "config.json:2", CZ_INVALID},
        {"\"hidden_act\": \"hardswish\"", "hardswish", CZ_UNSUPPORTED},
        {"\"num_attention_heads\": 3", "3 heads", CZ_INVALID},
        {"\"pad_token_id\": 11", "outside the vocabulary of 11", CZ_INVALID},
        {"\"hidden_dropout_prob\": 1.0", "outside [0, 1)", CZ_INVALID},
        {"\"type_vocab_size\": 0", "type_vocab_size", CZ_INVALID},
        {"\"hidden_size\": \"8\"", "hidden_size", CZ_CORRUPT},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[512];
        struct cz_model *m;
        /* without the keys of BERT_TINY that a case sets */
        snprintf(text, sizeof text, "{\"vocab_size\": 11,\n %s, \"intermediate_size\": 12%s}",
                 cases[i].key, strstr(cases[i].key, "hidden_size") ? "" : ", \"hidden_size\": 8");
        if (!strstr(text, "num_attention_heads"))
            snprintf(text + strlen(text) - 1, 64, ", \"num_attention_heads\": 2}");
        ck_fails(family_build(&model_family_bert, text, CZ_TASK_CLASSIFICATION, &m),
                 cases[i].status);
        ck_assert_ptr_null(m);
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence) != NULL, "%s: %s", cases[i].key,
                      cz_last_error());
        ck_assert_msg(strstr(cz_last_error(), "config.json:2:") != NULL, "%s", cz_last_error());
    }
}
END_TEST

START_TEST(robertas_positions_need_padding)
{
    static const struct {
        const char *text, *sentence;
        cz_status status;
    } cases[] = {
        {"{\n \"pad_token_id\": null}", "must be 0 or more", CZ_UNSUPPORTED},
        {"{\n \"pad_token_id\": -1}", "must be 0 or more", CZ_UNSUPPORTED},
        {"{\n \"max_position_embeddings\": 2}", "pad_token_id + 1, 2", CZ_INVALID},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_model *m;
        ck_fails(family_build(&model_family_roberta, cases[i].text, CZ_TASK_CLASSIFICATION, &m),
                 cases[i].status);
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence) != NULL, "%s", cz_last_error());
        ck_assert_msg(strstr(cz_last_error(), "config.json:2:") != NULL, "%s", cz_last_error());
    }
}
END_TEST

TEST_MAIN("model/encoders", parameters_have_transformers_names_and_order,
          distilberts_parameters_too, robertas_parameters_too, electras_parameters_too,
          positions_count_tokens_behind_padding, robertas_positions_need_padding,
          presets_have_the_published_sizes, defaults_are_transformers_own,
          classifier_dropout_overrides, padding_starts_as_zeros, positions_may_start_as_sines,
          other_models_are_refused_by_place)

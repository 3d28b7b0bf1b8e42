/* Claim: MPNet's and DeBERTa's config.json become the parameters that transformers has, with its
 * defaults; distances fall into transformers' buckets; presets have the published sizes; what is
 * not supported is refused at its place in the file. */
#include "model/bert/encoder_impl.h"
#include "tests/support/check_main.h"
#include "tests/unit/model/family_build.h"

#include <string.h>

#define MPNET                                                                                      \
    "\"model_type\": \"mpnet\", \"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 2," \
    "\"num_attention_heads\": 2, \"intermediate_size\": 6"

#define DEBERTA                                                                                    \
    "\"model_type\": \"deberta-v2\", \"vocab_size\": 11, \"hidden_size\": 8, "                     \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 6, "             \
    "\"relative_attention\": true"

static void check_has(const struct cz_model *m, const char *name, bool want)
{
    size_t idx;
    ck_assert_msg((param_table_find(model_params(m), name, &idx) == CZ_OK) == want, "%s", name);
}

/* ---- config.json ---------------------------------------------------------------------------- */

START_TEST(mpnets_parameters_have_transformers_names)
{
    struct cz_model *m;
    ck_ok(family_build(&model_family_mpnet, "{" MPNET "}", CZ_TASK_CLASSIFICATION, &m));
    ck_assert_uint_eq(model_params(m)->n_params, 4 + 2 * 16 + 1 + 4);
    check_has(m, "mpnet.encoder.relative_attention_bias.weight", true);
    check_has(m, "mpnet.encoder.layer.1.attention.attn.o.bias", true);
    check_has(m, "classifier.out_proj.weight", true);
    check_has(m, "mpnet.embeddings.token_type_embeddings.weight", false);
    ck_assert_int_eq(cz_model_t_max(m), 510); /* positions count from 2 */
    cz_model_destroy(m);
    ck_ok(family_build(&model_family_mpnet, "{" MPNET "}", CZ_TASK_MASKED_LM, &m));
    check_has(m, "lm_head.layer_norm.weight", true);
    check_has(m, "lm_head.decoder.weight", true); /* another name of the embeddings */
    cz_model_destroy(m);
}
END_TEST

START_TEST(debertas_parameters_follow_its_options)
{
    struct cz_model *m;
    const struct model_family *f = &model_family_deberta;
    const char *shared = "{" DEBERTA ", \"pos_att_type\": \"p2c|c2p\", \"share_att_key\": true, "
                         "\"norm_rel_ebd\": \"layer_norm\", \"position_biased_input\": false}";
    ck_ok(family_build(f, shared, CZ_TASK_CLASSIFICATION, &m));
    ck_assert_uint_eq(model_params(m)->n_params, 3 + 2 * 16 + 3 + 4);
    check_has(m, "deberta.encoder.rel_embeddings.weight", true);
    check_has(m, "deberta.encoder.LayerNorm.bias", true);
    check_has(m, "pooler.dense.weight", true);
    check_has(m, "deberta.encoder.layer.0.attention.self.pos_key_proj.weight", false);
    cz_model_destroy(m);
    ck_ok(family_build(f,
                       "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"type_vocab_size\": 2, "
                       "\"embedding_size\": 5}",
                       CZ_TASK_MASKED_LM, &m));
    check_has(m, "deberta.embeddings.position_embeddings.weight", true);
    check_has(m, "deberta.embeddings.token_type_embeddings.weight", true);
    check_has(m, "deberta.embeddings.embed_proj.weight", true);
    check_has(m, "deberta.embeddings.embed_proj.bias", false);
    check_has(m, "deberta.encoder.layer.0.attention.self.pos_key_proj.bias", true);
    check_has(m, "deberta.encoder.layer.0.attention.self.pos_query_proj.bias", false);
    check_has(m, "deberta.encoder.LayerNorm.bias", false);
    check_has(m, "cls.predictions.transform.dense.weight", true);
    cz_model_destroy(m);
    ck_ok(family_build(f,
                       "{" DEBERTA ", \"pos_att_type\": \"P2C\", \"legacy\": false, "
                       "\"tie_word_embeddings\": false}",
                       CZ_TASK_MASKED_LM, &m));
    check_has(m, "lm_predictions.lm_head.bias", true);
    check_has(m, "cls.predictions.bias", false);
    check_has(m, "cls.predictions.decoder.weight", false);
    cz_model_destroy(m);
}
END_TEST

/* Σ of (i + 1)·bucket over the distances from 1 − P on, of transformers' functions in PyTorch. */
START_TEST(distances_have_transformers_buckets)
{
    static const struct {
        const struct model_family *family;
        const char *config;
        int64_t P;
        uint64_t sum;
    } cases[] = {
        {&model_family_mpnet, "{" MPNET ", \"max_position_embeddings\": 514}", 514, 13925288},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"position_buckets\": 256}", 512, 79172230},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"max_position_embeddings\": 64, "
         "\"position_buckets\": 8}",
         64, 37600},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"max_position_embeddings\": 100, "
         "\"max_relative_positions\": 70, \"position_buckets\": 33}",
         100, 362634},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"max_position_embeddings\": 40, "
         "\"max_relative_positions\": 5, \"position_buckets\": -1}",
         40, 7410},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"max_position_embeddings\": 90, "
         "\"max_relative_positions\": 1000, \"position_buckets\": 16}",
         90, 167144},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_model *m;
        uint64_t sum = 0;
        ck_ok(family_build(cases[i].family, cases[i].config, CZ_TASK_MASKED_LM, &m));
        const struct encoder_block_hp *hp = model_layer_at(m, 2)->hp;
        ck_assert_int_eq(hp->P, cases[i].P);
        for (int64_t n = 0; n < 2 * hp->P - 1; n++)
            sum += (uint64_t)(n + 1) * (uint64_t)hp->positions.buckets[n];
        ck_assert_uint_eq(sum, cases[i].sum);
        cz_model_destroy(m);
    }
}
END_TEST

START_TEST(presets_have_the_published_sizes)
{
    static const struct {
        const char *name;
        size_t classifier, masked; /* as transformers counts */
        int64_t t_max;
    } presets[] = {{"mpnet-base", 109488002, 109518527, 512},
                   {"deberta-v3-xsmall", 70830722, 70958820, 512},
                   {"deberta-v3-small", 141896450, 142024548, 512},
                   {"deberta-v3-base", 184423682, 184551780, 512},
                   {"deberta-v3-large", 435063810, 435191908, 512},
                   {"mdeberta-v3-base", 278810882, 279061880, 512}};
    const struct cz_model_options options = {.size = sizeof options, .task = CZ_TASK_MASKED_LM};
    for (size_t i = 0; i < CZ_ARRAY_LEN(presets); i++) {
        struct cz_model *m = cz_model_from_preset(presets[i].name);
        ck_assert_msg(m != NULL, "%s", cz_last_error());
        ck_assert_uint_eq(param_table_numel(model_params(m), true), presets[i].classifier);
        ck_assert_int_eq(cz_model_t_max(m), presets[i].t_max);
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
        const struct model_family *family;
        const char *config, *sentence;
        cz_status status;
    } cases[] = {
        {&model_family_mpnet, "{" MPNET ", \"relative_attention_num_buckets\": 16}", "32 buckets",
         CZ_UNSUPPORTED},
        {&model_family_mpnet, "{" MPNET ", \"max_position_embeddings\": 2}", "begin at 2",
         CZ_INVALID},
        {&model_family_mpnet, "{\"vocab_size\": 1, \"hidden_size\": 12}", "token 1 is padding",
         CZ_INVALID},
        {&model_family_mpnet, "{" MPNET ", \"hidden_act\": \"relu6\"}", "\"relu6\" is not",
         CZ_UNSUPPORTED},
        {&model_family_deberta, "{\"vocab_size\": 11}", "relative_attention that is not true",
         CZ_UNSUPPORTED},
        {&model_family_deberta, "{" DEBERTA "}", "pos_att_type without c2p and p2c",
         CZ_UNSUPPORTED},
        {&model_family_deberta, "{" DEBERTA ", \"pos_att_type\": \"c2p|p2p\"}",
         "\"p2p\" is not supported; supported: c2p, p2c", CZ_UNSUPPORTED},
        {&model_family_deberta, "{" DEBERTA ", \"pos_att_type\": [\"c2p\", 3]}", "pos_att_type[1]",
         CZ_CORRUPT},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"norm_rel_ebd\": \"rms\"}",
         "supported: none, layer_norm", CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"conv_kernel_size\": 3}",
         "a convolution behind the first layer", CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"attention_head_size\": 8}",
         "hidden_size / num_attention_heads", CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"pooler_hidden_size\": 4}",
         "hidden_size wide", CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"position_buckets\": 1}", "logarithm",
         CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"position_buckets\": 256, "
         "\"max_relative_positions\": 100}",
         "logarithm", CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"max_position_embeddings\": 40000}",
         "more than 32767 positions need position_buckets", CZ_UNSUPPORTED},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"max_relative_positions\": 40000}",
         "40000 is more than 32767", CZ_INVALID},
        {&model_family_deberta,
         "{" DEBERTA ", \"pos_att_type\": [\"c2p\"], \"legacy\": false, \"embedding_size\": 4}",
         "needs an embedding_size of hidden_size", CZ_UNSUPPORTED},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct cz_model *m;
        ck_fails(family_build(cases[i].family, cases[i].config, CZ_TASK_MASKED_LM, &m),
                 cases[i].status);
        ck_assert_msg(strstr(cz_last_error(), cases[i].sentence) != NULL, "%s: %s",
                      cases[i].sentence, cz_last_error());
        ck_assert_ptr_null(m);
    }
}
END_TEST

TEST_MAIN("model/deberta", mpnets_parameters_have_transformers_names,
          debertas_parameters_follow_its_options, distances_have_transformers_buckets,
          presets_have_the_published_sizes, other_variants_are_refused_by_place)

/* Small models that the shipped ones are not: deep enough that inputs of recomputed layers wait in
 * host memory, with dropout everywhere. Weights are those of the init rules. */
#ifndef CZ_TESTS_SMALL_MODELS_H
#define CZ_TESTS_SMALL_MODELS_H

#include "model/model.h"
#include "tests/support/check_main.h"

static const char small_gpt2[] =
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 5, "
    "\"n_embd\": 24, \"n_head\": 2, \"n_positions\": 32, \"vocab_size\": 61, "
    "\"activation_function\": \"gelu_new\", \"attn_pdrop\": 0.2, \"embd_pdrop\": 0.1, "
    "\"resid_pdrop\": 0.1}";
static const char small_llama[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 24, "
    "\"intermediate_size\": 40, \"num_hidden_layers\": 5, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"vocab_size\": 61, \"max_position_embeddings\": 32, "
    "\"rms_norm_eps\": 1e-6, \"attention_dropout\": 0.1, \"hidden_act\": \"silu\", "
    "\"tie_word_embeddings\": true}";
#define SMALL_BERT                                                                                 \
    "\"model_type\": \"bert\", \"hidden_size\": 24, \"intermediate_size\": 48, "                   \
    "\"num_attention_heads\": 2, \"num_hidden_layers\": 5, \"vocab_size\": 61, "                   \
    "\"max_position_embeddings\": 32, \"type_vocab_size\": 2, \"hidden_act\": \"gelu\", "          \
    "\"layer_norm_eps\": 1e-12, \"hidden_dropout_prob\": 0.1, "                                    \
    "\"attention_probs_dropout_prob\": 0.2, \"pad_token_id\": 0"
static const char small_bert[] = "{\"architectures\": [\"BertForMaskedLM\"], " SMALL_BERT "}";
static const char small_classifier[] =
    "{\"architectures\": [\"BertForSequenceClassification\"], "
    "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}, "
    "\"label2id\": {\"a\": 0, \"b\": 1, \"c\": 2}, " SMALL_BERT "}";

/* One of the above, or a folder of the fixtures. */
static inline struct cz_model *small_model(const char *config)
{
    struct cz_model *m;
    if (config[0] != '{') {
        m = cz_model_open(test_fixture(config));
    } else {
        char path[128];
        const char *dir = test_tmp_make();
        snprintf(path, sizeof path, "%s/config.json", dir);
        FILE *f = fopen(path, "w");
        ck_assert_ptr_nonnull(f);
        fputs(config, f);
        fclose(f);
        m = cz_model_open(dir);
        test_tmp_remove(dir);
    }
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    cz_model_set_seed(m, 3);
    return m;
}

#endif

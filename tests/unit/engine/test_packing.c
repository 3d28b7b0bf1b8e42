/* Claims: several texts in one row, apart by documents and positions, have the loss and the
 * gradients that they have in rows of their own, for models with learnt and with rotary positions,
 * full and sliding attention; documents out of order are refused by place. */
#include "formats/file_io.h"
#include "tests/support/gpu/trial_step.h"

#include <math.h>

enum { VOCAB = 23, T_MAX = 24, N_TEXTS = 3, LONGEST = 9 };

static const int lengths[N_TEXTS] = {9, 4, 7};

static const char *const configs[] = {
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 23, "
    "\"n_embd\": 16, \"n_layer\": 2, \"n_head\": 2, \"n_positions\": 24, \"attn_pdrop\": 0, "
    "\"embd_pdrop\": 0, \"resid_pdrop\": 0}",
    "{\"model_type\": \"qwen3\", \"architectures\": [\"Qwen3ForCausalLM\"], \"vocab_size\": 23, "
    "\"hidden_size\": 16, \"intermediate_size\": 32, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "
    "\"max_position_embeddings\": 24}",
    "{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], \"vocab_size\": "
    "23, \"hidden_size\": 16, \"intermediate_size\": 32, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "
    "\"max_position_embeddings\": 24, \"sliding_window\": 3}",
};

struct rows {
    int32_t ids[N_TEXTS * T_MAX], labels[N_TEXTS * T_MAX], positions[N_TEXTS * T_MAX],
        documents[N_TEXTS * T_MAX];
    uint8_t key_mask[N_TEXTS * T_MAX];
    struct cz_batch batch;
};

/* Token i of a text; every third is not trained, and the last predicts nothing. */
static void put_token(struct rows *r, int64_t at, int text, int i)
{
    r->ids[at] = 1 + (text * 7 + i * 5) % (VOCAB - 1);
    r->labels[at] = i + 1 < lengths[text] && i % 3 != 2 ? 1 + (text * 7 + (i + 1) * 5) % (VOCAB - 1)
                                                        : CZ_IGNORE_LABEL;
    r->positions[at] = i;
    r->documents[at] = text;
    r->key_mask[at] = 1;
}

static void put_padding(struct rows *r, int64_t at, int position, int document)
{
    r->ids[at] = 0;
    r->labels[at] = CZ_IGNORE_LABEL;
    r->positions[at] = position;
    r->documents[at] = document;
    r->key_mask[at] = 0;
}

static const struct cz_batch *fill(struct rows *r, bool packs)
{
    int64_t at = 0;
    for (int text = 0; text < N_TEXTS; text++) {
        for (int i = 0; i < lengths[text]; i++) put_token(r, at++, text, i);
        for (int i = lengths[text]; !packs && i < LONGEST; i++) put_padding(r, at++, i, text);
    }
    for (int i = 0; packs && at < T_MAX; i++) put_padding(r, at++, i, N_TEXTS);
    r->batch = (struct cz_batch){.size = sizeof r->batch,
                                 .B = packs ? 1 : N_TEXTS,
                                 .T = packs ? T_MAX : LONGEST,
                                 .ids = r->ids,
                                 .labels = r->labels,
                                 .key_mask = r->key_mask,
                                 .positions = packs ? r->positions : NULL,
                                 .documents = packs ? r->documents : NULL};
    return &r->batch;
}

static struct cz_engine *open_engine(const char *model_config, int stage)
{
    char dir[] = "/tmp/czero-packing-XXXXXX", config[256];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char *path = file_join(dir, "config.json");
    ck_ok(file_save(path, model_config, strlen(model_config)));
    free(path);
    struct cz_model *m = cz_model_from_hf(dir);
    test_tmp_remove(dir);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": %d}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}}",
             stage);
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

START_TEST(packed_rows_have_the_loss_and_gradients_of_their_texts)
{
    static struct rows rows, packed;
    static float want[4096], have[4096];
    for (size_t k = 0; k < CZ_ARRAY_LEN(configs); k++)
        for (int stage = 0; stage <= 3; stage++) {
            struct cz_engine *a = open_engine(configs[k], stage);
            struct cz_engine *b = open_engine(configs[k], stage);
            float loss_a, loss_b;
            ck_ok(engine_eval(a, fill(&rows, false), &loss_a));
            ck_ok(engine_eval(b, fill(&packed, true), &loss_b));
            ck_assert_double_eq_tol((double)loss_a, (double)loss_b, 1e-6);
            ck_ok(engine_forward(a, &rows.batch, &loss_a));
            ck_ok(engine_forward(b, &packed.batch, &loss_b));
            ck_assert_double_eq_tol((double)loss_a, (double)loss_b, 1e-6);
            ck_ok(engine_backward(a));
            ck_ok(engine_backward(b));
            const struct param_table *table = model_params(engine_get_model(a));
            double largest = 0;
            for (size_t i = 0; i < table->n_params; i++) {
                const struct param_info *p = &table->params[i];
                ck_assert(p->numel <= CZ_ARRAY_LEN(want));
                ck_ok(engine_param_get(a, p->name, "grad", want, p->numel));
                ck_ok(engine_param_get(b, p->name, "grad", have, p->numel));
                for (size_t j = 0; j < p->numel; j++) {
                    largest = fmax(largest, fabs((double)want[j]));
                    ck_assert_msg(fabs((double)(want[j] - have[j])) < 1e-5, "model %zu: %s[%zu]", k,
                                  p->name, j);
                }
            }
            ck_assert(largest > 1e-3);
            engine_destroy(a);
            engine_destroy(b);
        }
}
END_TEST

START_TEST(texts_without_documents_see_each_other)
{
    static struct rows packed;
    struct cz_engine *e = open_engine(configs[1], 0);
    float apart, together;
    ck_ok(engine_eval(e, fill(&packed, true), &apart));
    packed.batch.documents = NULL;
    ck_ok(engine_eval(e, &packed.batch, &together));
    ck_assert(fabs((double)(apart - together)) > 1e-4);
    engine_destroy(e);
}
END_TEST

START_TEST(documents_out_of_order_are_refused_by_place)
{
    static struct rows packed;
    struct cz_engine *e = open_engine(configs[0], 0);
    fill(&packed, true);
    packed.documents[12] = 0;
    ck_fails(engine_forward(e, &packed.batch, NULL), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "document 0 in row 0 at position 12 follows document 1"),
                  "%s", cz_last_error());
    engine_destroy(e);
}
END_TEST

TEST_MAIN("engine/packing", packed_rows_have_the_loss_and_gradients_of_their_texts,
          texts_without_documents_see_each_other, documents_out_of_order_are_refused_by_place)

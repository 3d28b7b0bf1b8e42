/* Claims: several texts in one row, apart by documents and positions, have the loss and the
 * gradients that they have in padded rows of their own, and so have rows that the engine frees of
 * their padding, for models with learnt and with rotary positions, full and sliding attention, and
 * heads of tokens and of rows; documents out of order are refused by place. */
#include "formats/file_io.h"
#include "tests/support/gpu/trial_step.h"

#include <math.h>

enum { VOCAB = 23, T_MAX = 24, N_TEXTS = 3, LONGEST = 9 };

/* Rows in which padding is computed; rows as a loader gives them; all texts in one row. */
enum layout { PADDED, ROWS, PACKED };

static const int lengths[N_TEXTS] = {9, 2, 4};

#define DECODER                                                                                    \
    "\"vocab_size\": 23, \"hidden_size\": 16, \"intermediate_size\": 32, \"num_hidden_layers\": "  \
    "2, "                                                                                          \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "                    \
    "\"max_position_embeddings\": 24"
#define MODERNBERT                                                                                 \
    "\"model_type\": \"modernbert\", \"vocab_size\": 23, \"hidden_size\": 16, "                    \
    "\"intermediate_size\": 32, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, "            \
    "\"max_position_embeddings\": 24, \"local_attention\": 4, \"pad_token_id\": 0, "
#define TWO_LABELS "\"id2label\": {\"0\": \"a\", \"1\": \"b\"}, \"label2id\": {\"a\": 0, \"b\": 1}"

static const struct model {
    const char *config;
    bool by_row; /* a label for each text */
} models[] = {
    {"{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 23, "
     "\"n_embd\": 16, \"n_layer\": 2, \"n_head\": 2, \"n_positions\": 24, \"attn_pdrop\": 0, "
     "\"embd_pdrop\": 0, \"resid_pdrop\": 0}",
     false},
    {"{\"model_type\": \"qwen3\", \"architectures\": [\"Qwen3ForCausalLM\"], " DECODER "}", false},
    {"{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], "
     "\"sliding_window\": 3, " DECODER "}",
     false},
    {"{\"model_type\": \"qwen3\", \"architectures\": [\"Qwen3ForSequenceClassification\"], "
     "\"pad_token_id\": 0, " TWO_LABELS ", " DECODER "}",
     true},
    {"{\"architectures\": [\"ModernBertForMaskedLM\"], " MODERNBERT
     "\"classifier_pooling\": \"cls\"}",
     false},
    {"{\"architectures\": [\"ModernBertForSequenceClassification\"], " MODERNBERT
     "\"classifier_pooling\": \"mean\", " TWO_LABELS "}",
     true},
    {"{\"architectures\": [\"ModernBertForSequenceClassification\"], " MODERNBERT
     "\"classifier_pooling\": \"cls\", " TWO_LABELS "}",
     true},
    {"{\"architectures\": [\"BertForSequenceClassification\"], \"model_type\": \"bert\", "
     "\"vocab_size\": 23, \"hidden_size\": 16, \"intermediate_size\": 32, "
     "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"max_position_embeddings\": 24, "
     "\"hidden_dropout_prob\": 0, \"attention_probs_dropout_prob\": 0, " TWO_LABELS "}",
     true},
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

static const struct cz_batch *fill(struct rows *r, const struct model *model, enum layout layout)
{
    const bool packs = layout == PACKED;
    int64_t at = 0;
    for (int text = 0; text < N_TEXTS; text++) {
        for (int i = 0; i < lengths[text]; i++) put_token(r, at++, text, i);
        for (int i = lengths[text]; !packs && i < LONGEST; i++) put_padding(r, at++, i, text);
    }
    for (int i = 0; packs && at < T_MAX; i++) put_padding(r, at++, i, N_TEXTS);
    for (int text = 0; model->by_row && text < N_TEXTS; text++) r->labels[text] = text & 1;
    r->batch = (struct cz_batch){.size = sizeof r->batch,
                                 .B = packs ? 1 : N_TEXTS,
                                 .T = packs ? T_MAX : LONGEST,
                                 .ids = r->ids,
                                 .labels = r->labels,
                                 .key_mask = r->key_mask,
                                 .positions = packs ? r->positions : NULL,
                                 .documents = layout == ROWS ? NULL : r->documents};
    return &r->batch;
}

static struct cz_engine *open_engine(const char *model_config, int stage, int accumulation)
{
    char dir[] = "/tmp/czero-packing-XXXXXX", config[320];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char *path = file_join(dir, "config.json");
    ck_ok(file_save(path, model_config, strlen(model_config)));
    free(path);
    struct cz_model *m = cz_model_from_hf(dir);
    test_tmp_remove(dir);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": %d}, "
             "\"gradient_accumulation_steps\": %d, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}}",
             stage, accumulation);
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

/* Gradients of two engines, of which one has been differentiated in another way. */
static void compare_gradients(const struct model *model, struct cz_engine *a, struct cz_engine *b)
{
    static float want[4096], have[4096];
    const struct param_table *table = model_params(engine_get_model(a));
    double largest = 0;
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        ck_assert(p->numel <= CZ_ARRAY_LEN(want));
        ck_ok(engine_param_get(a, p->name, "grad", want, p->numel));
        ck_ok(engine_param_get(b, p->name, "grad", have, p->numel));
        for (size_t j = 0; j < p->numel; j++) {
            largest = fmax(largest, fabs((double)want[j]));
            ck_assert_msg(fabs((double)(want[j] - have[j])) < 1e-5, "model %zu: %s[%zu]",
                          (size_t)(model - models), p->name, j);
        }
    }
    ck_assert(largest > 1e-3);
}

/* Loss and gradients of `layout` beside those of padded rows. */
static void compare(const struct model *model, int stage, enum layout layout)
{
    static struct rows padded, other;
    struct cz_engine *a = open_engine(model->config, stage, 1);
    struct cz_engine *b = open_engine(model->config, stage, 1);
    float loss_a, loss_b;
    ck_ok(engine_eval(a, fill(&padded, model, PADDED), &loss_a));
    ck_ok(engine_eval(b, fill(&other, model, layout), &loss_b));
    ck_assert_double_eq_tol((double)loss_a, (double)loss_b, 1e-6);
    ck_ok(engine_forward(a, &padded.batch, &loss_a));
    ck_ok(engine_forward(b, &other.batch, &loss_b));
    ck_assert_double_eq_tol((double)loss_a, (double)loss_b, 1e-6);
    ck_ok(engine_backward(a));
    ck_ok(engine_backward(b));
    compare_gradients(model, a, b);
    engine_destroy(a);
    engine_destroy(b);
}

/* The same beside texts that are batches of their own. */
static void compare_with_single_texts(const struct model *model, int stage)
{
    static struct rows rows;
    struct cz_engine *a = open_engine(model->config, stage, N_TEXTS);
    struct cz_engine *b = open_engine(model->config, stage, 1);
    float loss, loss_b;
    double sum = 0;
    fill(&rows, model, ROWS);
    for (int text = 0; text < N_TEXTS; text++) {
        const struct cz_batch one = {.size = sizeof one,
                                     .B = 1,
                                     .T = lengths[text],
                                     .ids = rows.ids + text * LONGEST,
                                     .labels = rows.labels + text};
        ck_ok(engine_forward(a, &one, &loss));
        ck_ok(engine_backward(a));
        if (text + 1 < N_TEXTS) ck_ok(engine_step(a));
        sum += (double)loss;
    }
    ck_ok(engine_forward(b, &rows.batch, &loss_b));
    ck_assert_double_eq_tol(sum / N_TEXTS, (double)loss_b, 1e-6);
    ck_ok(engine_backward(b));
    compare_gradients(model, a, b);
    engine_destroy(a);
    engine_destroy(b);
}

START_TEST(texts_have_the_loss_and_gradients_of_padded_rows)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(models); k++)
        for (int stage = 0; stage <= 3; stage++) {
            if (models[k].by_row) compare_with_single_texts(&models[k], stage);
            if (!models[k].by_row) compare(&models[k], stage, PACKED);
            if (!models[k].by_row) compare(&models[k], stage, ROWS);
        }
}
END_TEST

/* Logits are found where the batch has the position. */
START_TEST(logits_stand_where_the_batch_has_their_positions)
{
    static struct rows rows;
    static float want[N_TEXTS * LONGEST * VOCAB], have[N_TEXTS * LONGEST * VOCAB];
    for (size_t k = 0; k < CZ_ARRAY_LEN(models); k++) {
        const struct model *m = &models[k];
        struct cz_engine *e = open_engine(m->config, 0, 1);
        const size_t width = m->by_row ? 2 : VOCAB;
        fill(&rows, m, PADDED);
        if (m->by_row) rows.batch.documents = NULL;
        ck_ok(engine_predict(e, &rows.batch, want));
        ck_ok(engine_predict(e, fill(&rows, m, ROWS), have));
        for (size_t at = 0; at < (m->by_row ? N_TEXTS : N_TEXTS * LONGEST); at++)
            for (size_t i = 0; i < width && (m->by_row || rows.key_mask[at]); i++)
                ck_assert_double_eq_tol((double)want[at * width + i], (double)have[at * width + i],
                                        1e-5);
        engine_destroy(e);
    }
}
END_TEST

START_TEST(texts_without_documents_see_each_other)
{
    static struct rows packed;
    struct cz_engine *e = open_engine(models[1].config, 0, 1);
    float apart, together;
    ck_ok(engine_eval(e, fill(&packed, &models[1], PACKED), &apart));
    packed.batch.documents = NULL;
    ck_ok(engine_eval(e, &packed.batch, &together));
    ck_assert(fabs((double)(apart - together)) > 1e-4);
    engine_destroy(e);
}
END_TEST

START_TEST(documents_out_of_order_are_refused_by_place)
{
    static struct rows packed;
    struct cz_engine *e = open_engine(models[0].config, 0, 1);
    fill(&packed, &models[0], PACKED);
    packed.documents[12] = 0;
    ck_fails(engine_forward(e, &packed.batch, NULL), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), "document 0 in row 0 at position 12 follows document 2"),
                  "%s", cz_last_error());
    engine_destroy(e);
}
END_TEST

TEST_MAIN("engine/packing", texts_have_the_loss_and_gradients_of_padded_rows,
          logits_stand_where_the_batch_has_their_positions, texts_without_documents_see_each_other,
          documents_out_of_order_are_refused_by_place)

/* Claims: BERT, DistilBERT, Qwen3 and GPT-2 learn a toy task under the engine, as classifiers and
 * BERT as a masked language model; the logits that a training step hands out are those its loss is
 * made of; micro-batches of unequal size with a common divisor train as equal ones do; activation
 * checkpointing changes no bit, nor does the ZeRO stage at one or two ranks. */
#include "comm/comm.h"
#include "formats/file_io.h"
#include "tests/support/gpu/trial_step.h"

#include <math.h>

enum { VOCAB = 23, T_MAX = 12, TOKENS = 7, N_CLASSES = 3, ROWS = 8 };

/* ---- models -----------------------------------------------------------------------------------
 */

enum kind { BERT_CLASS = 0, BERT_MLM, DISTIL_CLASS, QWEN3_CLASS, GPT2_CLASS, N_KINDS };

static const char *config_of(enum kind kind, double dropout, char *text, size_t nbytes)
{
    static const char *const labels = "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}";
    if (kind == DISTIL_CLASS)
        snprintf(text, nbytes,
                 "{\"model_type\": \"distilbert\", \"architectures\": "
                 "[\"DistilBertForSequenceClassification\"], \"vocab_size\": %d, \"dim\": 16, "
                 "\"n_layers\": 2, \"n_heads\": 2, \"hidden_dim\": 32, "
                 "\"max_position_embeddings\": %d, \"dropout\": %g, \"attention_dropout\": %g, "
                 "\"seq_classif_dropout\": %g, %s}",
                 VOCAB, T_MAX, dropout, dropout, dropout, labels);
    else if (kind == QWEN3_CLASS)
        snprintf(text, nbytes,
                 "{\"model_type\": \"qwen3\", \"architectures\": "
                 "[\"Qwen3ForSequenceClassification\"], \"vocab_size\": %d, \"hidden_size\": 16, "
                 "\"intermediate_size\": 32, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "
                 "\"max_position_embeddings\": %d, \"attention_dropout\": %g, "
                 "\"pad_token_id\": 0, %s}",
                 VOCAB, T_MAX, dropout, labels);
    else if (kind == GPT2_CLASS)
        snprintf(text, nbytes,
                 "{\"model_type\": \"gpt2\", \"architectures\": "
                 "[\"GPT2ForSequenceClassification\"], \"vocab_size\": %d, \"n_embd\": 16, "
                 "\"n_layer\": 2, \"n_head\": 2, \"n_positions\": %d, \"attn_pdrop\": %g, %s}",
                 VOCAB, T_MAX, dropout, labels);
    else
        snprintf(text, nbytes,
                 "{\"model_type\": \"bert\", \"architectures\": [\"%s\"], \"vocab_size\": %d, "
                 "\"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                 "\"intermediate_size\": 32, \"max_position_embeddings\": %d, "
                 "\"hidden_dropout_prob\": %g, \"attention_probs_dropout_prob\": %g, %s}",
                 kind == BERT_MLM ? "BertForMaskedLM" : "BertForSequenceClassification", VOCAB,
                 T_MAX, dropout, dropout, labels);
    return text;
}

/* A folder with a config.json alone: its model has random weights. */
static void write_folder(enum kind kind, double dropout, char *dir)
{
    char text[1024];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char *path = file_join(dir, "config.json");
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(config_of(kind, dropout, text, sizeof text), f);
    ck_assert_int_eq(fclose(f), 0);
    free(path);
}

/* ---- data -------------------------------------------------------------------------------------
 */

struct rows {
    int32_t ids[ROWS * TOKENS], types[ROWS * TOKENS], labels[ROWS * TOKENS];
    uint8_t key_mask[ROWS * TOKENS];
    struct cz_batch batch;
};

/* Rows first … first + n: the class is how token 3 divides; padding from position 4 on in odd rows.
 * A masked language model finds token 2 again, which stands at position 3 too. */
static const struct cz_batch *fill(struct rows *r, enum kind kind, uint64_t first, int64_t n)
{
    const struct rng_key key = {.seed = 5};
    for (int64_t i = 0; i < n * TOKENS; i++) {
        const int64_t row = i / TOKENS, t = i % TOKENS;
        const uint64_t draw = (first + (uint64_t)row) * TOKENS + (uint64_t)t;
        r->ids[i] = 2 + (int32_t)(rng_u32(&key, draw) % (VOCAB - 2));
        r->types[i] = t > 3;
        r->key_mask[i] = t < 4 || (first + (uint64_t)row) % 2 == 0;
        if (!r->key_mask[i]) r->ids[i] = 0;
        if (kind == BERT_MLM) r->labels[i] = CZ_IGNORE_LABEL;
    }
    for (int64_t row = 0; row < n; row++) {
        int32_t *ids = r->ids + row * TOKENS;
        if (kind == BERT_MLM) {
            ids[2] = ids[2] % 4 + 2;
            ids[3] = ids[2];
            r->labels[row * TOKENS + 2] = ids[3];
            ids[2] = 1; /* [MASK] */
        } else {
            r->labels[row] = ids[3] % N_CLASSES;
        }
    }
    r->batch = (struct cz_batch){.size = sizeof(struct cz_batch),
                                 .B = n,
                                 .T = TOKENS,
                                 .ids = r->ids,
                                 .labels = r->labels,
                                 .types = r->types,
                                 .key_mask = r->key_mask,
                                 .sample = first};
    return &r->batch;
}

static struct cz_engine *open_engine(enum kind kind, double dropout, const char *config)
{
    char dir[] = "/tmp/czero-classifier-XXXXXX";
    write_folder(kind, dropout, dir);
    struct cz_model *m = cz_model_from_hf(dir);
    test_tmp_remove(dir);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

/* One micro-batch; its loss. */
static float micro(struct cz_engine *e, const struct cz_batch *batch)
{
    float loss = NAN;
    ck_ok(engine_forward(e, batch, &loss));
    ck_ok(engine_backward(e));
    ck_ok(engine_step(e));
    return loss;
}

#define ADAM                                                                                       \
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.004, \"weight_decay\": 0.01}}"

/* ---- learning ---------------------------------------------------------------------------------
 */

START_TEST(models_learn)
{
    static struct rows r;
    static const char *const dtypes[] = {"\"bf16\": {\"enabled\": false}",
                                         "\"bf16\": {\"enabled\": true}"};
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int d = 0; d < 2; d++) {
            char config[512];
            snprintf(config, sizeof config, "{\"train_micro_batch_size_per_gpu\": 8, %s, %s}",
                     dtypes[d], ADAM);
            struct cz_engine *e = open_engine((enum kind)kind, 0.05, config);
            double early = 0, late = 0;
            for (int step = 0; step < 200; step++) {
                const float loss =
                    micro(e, fill(&r, (enum kind)kind, (uint64_t)(step % 15) * ROWS, ROWS));
                ck_assert(isfinite(loss));
                if (step < 15) early += (double)loss / 15;
                if (step >= 185) late += (double)loss / 15;
            }
            ck_assert_msg(late < 0.6 * early, "kind %d: the loss goes from %g to %g", kind, early,
                          late);
            engine_destroy(e);
        }
}
END_TEST

static double loss_of(const float *logits, const int32_t *labels, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double z = 0;
        for (int k = 0; k < N_CLASSES; k++) z += exp((double)logits[i * N_CLASSES + k]);
        sum += log(z) - (double)logits[i * N_CLASSES + labels[i]];
    }
    return sum / (double)n;
}

START_TEST(logits_are_those_of_the_loss)
{
    static struct rows r;
    float logits[ROWS * N_CLASSES], plain[ROWS * N_CLASSES], loss;
    struct cz_engine *e =
        open_engine(BERT_CLASS, 0.3, "{\"train_micro_batch_size_per_gpu\": 8, " ADAM "}");
    const struct cz_batch *batch = fill(&r, BERT_CLASS, 0, ROWS);
    ck_ok(engine_forward_logits(e, batch, &loss, logits));
    ck_assert_double_eq_tol((double)loss, loss_of(logits, batch->labels, ROWS), 1e-5);
    ck_ok(engine_backward(e));
    ck_ok(engine_step(e));
    ck_ok(engine_predict(e, batch, plain));
    ck_assert_mem_ne(plain, logits, sizeof plain); /* dropout, and a step between them */
    ck_ok(engine_eval(e, batch, &loss));
    ck_assert_double_eq_tol((double)loss, loss_of(plain, batch->labels, ROWS), 1e-5);
    engine_destroy(e);
}
END_TEST

START_TEST(token_models_have_no_class_logits)
{
    static struct rows r;
    float logits[ROWS * N_CLASSES], loss;
    struct cz_engine *e =
        open_engine(BERT_MLM, 0.0, "{\"train_micro_batch_size_per_gpu\": 8, " ADAM "}");
    ck_fails(engine_forward_logits(e, fill(&r, BERT_MLM, 0, ROWS), &loss, logits), CZ_UNSUPPORTED);
    engine_destroy(e);
}
END_TEST

START_TEST(unknown_types_are_refused_by_place)
{
    static struct rows r;
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct cz_engine *e =
            open_engine((enum kind)kind, 0.0, "{\"train_micro_batch_size_per_gpu\": 8, " ADAM "}");
        fill(&r, (enum kind)kind, 0, ROWS);
        r.types[TOKENS + 3] = 2;
        if (kind >= DISTIL_CLASS) { /* they have none: types mean nothing */
            ck_ok(engine_forward(e, &r.batch, NULL));
        } else {
            ck_fails(engine_forward(e, &r.batch, NULL), CZ_INVALID);
            ck_assert_msg(strstr(cz_last_error(), "token type 2 in row 1 at position 3 is outside "
                                                  "the token types of 2") != NULL,
                          "%s", cz_last_error());
        }
        engine_destroy(e);
    }
}
END_TEST

/* ---- micro-batches of unequal size ------------------------------------------------------------
 */

static float *whole_tensor(struct cz_engine *e, const char *name, size_t *numel)
{
    size_t idx = 0;
    ck_ok(param_table_find(model_params(engine_get_model(e)), name, &idx));
    *numel = model_params(engine_get_model(e))->params[idx].numel;
    float *x = malloc(*numel * sizeof *x);
    ck_ok(engine_param_get(e, name, "weight", x, *numel));
    return x;
}

/* One boundary over the same eight rows, cut after `cut`. */
static void train_cut(struct cz_engine *e, int64_t cut, float divisor)
{
    static struct rows a, b;
    fill(&a, BERT_CLASS, 0, cut);
    fill(&b, BERT_CLASS, (uint64_t)cut, ROWS - cut);
    a.batch.loss_divisor = b.batch.loss_divisor = divisor;
    micro(e, &a.batch);
    micro(e, &b.batch);
}

START_TEST(an_uneven_cut_trains_as_an_even_one)
{
    static const char *const config =
        "{\"train_micro_batch_size_per_gpu\": 8, \"gradient_accumulation_steps\": 2, "
        "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.5}}, "
        "\"zero_allow_untested_optimizer\": true}";
    static const char *const names[] = {"bert.embeddings.word_embeddings.weight",
                                        "bert.encoder.layer.0.intermediate.dense.weight",
                                        "bert.pooler.dense.weight", "classifier.bias"};
    struct cz_engine *even = open_engine(BERT_CLASS, 0.0, config);
    struct cz_engine *uneven = open_engine(BERT_CLASS, 0.0, config);
    struct cz_engine *unaware = open_engine(BERT_CLASS, 0.0, config);
    train_cut(even, 4, 0);
    train_cut(uneven, 7, 4.0f);
    train_cut(unaware, 7, 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        size_t n;
        float *want = whole_tensor(even, names[i], &n), *have = whole_tensor(uneven, names[i], &n);
        float *other = whole_tensor(unaware, names[i], &n);
        double error = 0, difference = 0;
        for (size_t k = 0; k < n; k++) {
            error = fmax(error, fabs((double)(have[k] - want[k])));
            difference = fmax(difference, fabs((double)(other[k] - want[k])));
        }
        ck_assert_msg(error < 1e-6 && difference > 1e-5, "%s: off by %g (%g)", names[i], error,
                      difference);
        free(want);
        free(have);
        free(other);
    }
    engine_destroy(even);
    engine_destroy(uneven);
    engine_destroy(unaware);
}
END_TEST

/* ---- the same bytes ---------------------------------------------------------------------------
 */

struct run {
    enum kind kind;
    char dir[64];
    int stage;
    bool checkpointing;
    const char *dtype;
    uint64_t masters[2]; /* by rank */
};

static cz_status run_rank(struct ranks *ranks, int rank, void *arg)
{
    static struct rows r;
    struct run *run = arg;
    struct comm *comm;
    char config[512];
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 4, %s, %s, \"zero_optimization\": "
             "{\"stage\": %d, \"stage3_param_persistence_threshold\": 0}%s}",
             run->dtype, ADAM, run->stage,
             run->checkpointing ? ", \"activation_checkpointing\": {\"number_checkpoints\": 2}"
                                : "");
    struct cz_model *m = cz_model_from_hf(run->dir);
    if (!m) return cz_last_status();
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .world = comm_world(comm)};
    struct cz_engine *e = engine_initialize_ex(&options, m);
    if (!e) return cz_last_status();
    for (int step = 0; step < 4; step++) {
        TRY(engine_forward(
            e, fill(&r, run->kind, (uint64_t)((step * ranks->n + rank) * 4), 4 - step % 2), NULL));
        TRY(engine_backward(e));
        TRY(engine_step(e));
    }
    run->masters[rank] = TRIAL_HASH_BEGIN;
    TRY(trial_hash_tensors(e, "weight", &run->masters[rank]));
    TRY(trial_hash_tensors(e, "exp_avg_sq", &run->masters[rank]));
    engine_destroy(e);
    comm_destroy(comm);
    return CZ_OK;
}

static uint64_t masters_of(const struct run *want, int world)
{
    struct ranks ranks;
    struct run *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(run != MAP_FAILED);
    *run = *want;
    ranks_start(&ranks, world, run_rank, run);
    ranks_expect_ok(&ranks, 60);
    const uint64_t masters = run->masters[0];
    if (world == 2) ck_assert_uint_eq(run->masters[1], masters);
    munmap(run, sizeof *run);
    return masters;
}

START_TEST(stages_and_checkpointing_change_no_bit)
{
    static const char *const dtypes[] = {"\"bf16\": {\"enabled\": false}",
                                         "\"bf16\": {\"enabled\": true}"};
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int world = 1; world <= 2; world++) {
            struct run run = {.kind = (enum kind)kind,
                              .dir = "/tmp/czero-classifier-XXXXXX",
                              .dtype = dtypes[world - 1]};
            write_folder(run.kind, 0.1, run.dir);
            const uint64_t want = masters_of(&run, world);
            for (run.stage = 1; run.stage <= 3; run.stage++)
                ck_assert_msg(masters_of(&run, world) == want, "kind %d, stage %d, %d ranks", kind,
                              run.stage, world);
            run.checkpointing = true;
            for (run.stage = 0; run.stage <= 3; run.stage += 3)
                ck_assert_msg(masters_of(&run, world) == want,
                              "kind %d, stage %d, %d ranks, recomputing", kind, run.stage, world);
            test_tmp_remove(run.dir);
        }
}
END_TEST

TEST_MAIN("engine/classifier", models_learn, logits_are_those_of_the_loss,
          token_models_have_no_class_logits, unknown_types_are_refused_by_place,
          an_uneven_cut_trains_as_an_even_one, stages_and_checkpointing_change_no_bit)

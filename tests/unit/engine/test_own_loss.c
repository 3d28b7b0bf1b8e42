/* Claims: engine_eval_log_probs() and engine_eval_rows() give log softmax of the logits at the
 * labels, for causal, masked and replaced-token models; a loss of the program's own that is the
 * model's trains as the model's does, with dropout, accumulation, a loss scale, micro-batches one
 * after the other and by layer (with the tied vocabulary's gradients kept and made again), for
 * language models and for classifiers with any labels; another loss has the gradients of finite
 * differences; without its adapter a model is what it was before it was trained; misuse and errors
 * are told, and leave the run as it was. */
#include "engine/engine_impl.h"
#include "tests/support/check_main.h"
#include "tests/support/public_toys.h"
#include "tests/support/small_models.h"

#include <math.h>
#include <string.h>

enum { B = 3, T = 8, N = B * T, V = 61, K = 3, MICRO_BATCHES = 2, STEPS = 3 };

static const char small_electra[] =
    "{\"model_type\": \"electra\", \"architectures\": [\"ElectraForPreTraining\"], "
    "\"embedding_size\": 24, \"hidden_size\": 24, \"intermediate_size\": 48, "
    "\"num_attention_heads\": 2, \"num_hidden_layers\": 2, \"vocab_size\": 61, "
    "\"max_position_embeddings\": 32, \"type_vocab_size\": 2}";
#define PROBLEM_BERT(problem)                                                                      \
    "{\"architectures\": [\"BertForSequenceClassification\"], \"problem_type\": \"" problem "\", " \
    "\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}, "                                   \
    "\"label2id\": {\"a\": 0, \"b\": 1, \"c\": 2}, " SMALL_BERT "}"
static const char small_regression[] = PROBLEM_BERT("regression");
static const char small_multi[] = PROBLEM_BERT("multi_label_classification");

/* ---- data ------------------------------------------------------------------------------------ */

static int32_t ids[N], labels[N];
static float weights[N], targets[B * K];
static uint8_t mask[N];

/* Every third position has no label; the last row ends in padding. */
static struct cz_batch batch_of_number(const struct cz_model *m, int number)
{
    const enum cz_labels kind = cz_model_labels(m);
    struct cz_batch b = {.size = sizeof b, .B = B, .T = T, .ids = ids, .labels = labels};
    for (int i = 0; i < N; i++) {
        ids[i] = 1 + (i * 23 + number * 7) % (V - 1);
        labels[i] = i % 3 == 2 || i >= N - 2 ? CZ_IGNORE_LABEL : (i * 5 + number) % V;
        if (kind == CZ_LABELS_REPLACED && labels[i] >= 0) labels[i] %= 2;
        weights[i] = 0.5f + (float)(i % 4);
        mask[i] = i < N - 2;
    }
    for (int i = 0; i < B && kind == CZ_LABELS_CLASS; i++) labels[i] = (i + number) % K;
    for (int i = 0; i < B * K; i++) targets[i] = (float)((i + number) % 2);
    b.key_mask = kind == CZ_LABELS_NEXT ? NULL : mask;
    b.loss_weights = weights;
    if (kind == CZ_LABELS_VALUES || kind == CZ_LABELS_MULTI) {
        b.labels = NULL;
        b.targets = targets;
    }
    b.sample = (uint64_t)(number * B);
    return b;
}

/* ---- engines --------------------------------------------------------------------------------- */

static struct cz_engine *open_engine(struct cz_model *m, const char *more)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
             "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}, "
             "\"zero_allow_untested_optimizer\": true%s}",
             B, MICRO_BATCHES, more);
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .trains_batches = true, .seed = 5};
    ck_ok(cz_model_set_shape(m, T));
    struct cz_engine *e = engine_initialize_ex(&options, m);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

static struct cz_engine *open_plain(const char *config)
{
    return open_engine(small_model(config), "");
}

static void expect_error(cz_status have, cz_status want, const char *part)
{
    ck_assert_int_eq(have, want);
    ck_assert_msg(strstr(cz_last_error(), part) != NULL, "no \"%s\" in: %s", part, cz_last_error());
}

/* ---- the model's own loss, as a program would write it ----------------------------------------
 */

struct own {
    enum cz_labels kind;
    int n_calls, fails_at;
};

static double weight_at(const struct cz_batch *b, int64_t i)
{
    return b->loss_weights ? (double)b->loss_weights[i] : 1;
}

static void of_targets(const struct own *own, struct cz_loss_call *c)
{
    double sum = 0, total = 0;
    for (int64_t b = 0; b < c->n; b++) total += weight_at(c->batch, b);
    for (int64_t i = 0; i < c->n * c->k; i++) {
        const double z = (double)c->values[i], t = (double)c->batch->targets[i];
        const double part = weight_at(c->batch, i / c->k) / (total * (double)c->k);
        const bool squares = own->kind == CZ_LABELS_VALUES;
        sum += part * (squares ? (z - t) * (z - t) : log1p(exp(z)) - t * z);
        c->gradients[i] = (float)(part * (squares ? 2 * (z - t) : 1 / (1 + exp(-z)) - t));
    }
    c->loss = (float)sum;
}

static void of_classes(struct cz_loss_call *c)
{
    double sum = 0, total = 0;
    for (int64_t b = 0; b < c->n; b++) total += weight_at(c->batch, b);
    for (int64_t b = 0; b < c->n; b++) {
        const float *z = &c->values[b * c->k];
        const double part = weight_at(c->batch, b) / total;
        double all = 0;
        for (int64_t k = 0; k < c->k; k++) all += exp((double)z[k]);
        for (int64_t k = 0; k < c->k; k++) {
            const bool is_label = k == c->batch->labels[b];
            if (is_label) sum += part * (log(all) - (double)z[k]);
            c->gradients[b * c->k + k] = (float)(part * (exp((double)z[k]) / all - is_label));
        }
    }
    c->loss = (float)sum;
}

static void of_tokens(struct cz_loss_call *c)
{
    double sum = 0, total = 0;
    for (int64_t i = 0; i < c->n; i++)
        if (c->batch->labels[i] >= 0) total += weight_at(c->batch, i);
    for (int64_t i = 0; i < c->n; i++) {
        const double part = weight_at(c->batch, i) / total;
        if (c->batch->labels[i] < 0) ck_assert(c->values[i] == 0);
        sum -= part * (double)c->values[i];
        c->gradients[i] = (float)-part; /* of positions without a label, too: not used */
    }
    c->loss = (float)sum;
}

static cz_status own_loss(void *user, struct cz_loss_call *c)
{
    struct own *own = user;
    const bool by_row = own->kind == CZ_LABELS_CLASS || own->kind >= CZ_LABELS_VALUES;
    ck_assert_uint_eq(c->size, sizeof *c);
    ck_assert_int_eq(c->batch->B, B);
    ck_assert_int_eq(c->batch->T, T);
    ck_assert_mem_eq(c->batch->ids, ids, sizeof ids);
    ck_assert_int_eq(c->n, by_row ? B : N);
    ck_assert_int_eq(c->k, by_row ? K : 1);
    for (int64_t i = 0; i < c->n * c->k; i++) ck_assert(c->gradients[i] == 0);
    if (own->n_calls++ == own->fails_at) return cz_error(CZ_INVALID, "no loss today");
    if (own->kind >= CZ_LABELS_VALUES)
        of_targets(own, c);
    else if (by_row)
        of_classes(c);
    else
        of_tokens(c);
    return CZ_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct outcome {
    double losses[STEPS], norms[STEPS];
};

struct feed {
    struct cz_model *m;
    int n;
};

/* The same batch for all micro-batches of a step: own_loss() looks at it. */
static cz_status next(void *user, struct cz_batch *batch)
{
    struct feed *f = user;
    *batch = batch_of_number(f->m, f->n);
    return CZ_OK;
}

static void train(struct cz_engine *e, bool by_calls, struct outcome *out)
{
    struct feed f = {.m = e->desc.model};
    for (f.n = 0; f.n < STEPS; f.n++) {
        float loss = 0;
        if (!by_calls) ck_ok(engine_train_batch(e, next, &f, &loss));
        for (int g = 0; g < MICRO_BATCHES && by_calls; g++) {
            const struct cz_batch b = batch_of_number(f.m, f.n);
            ck_ok(engine_forward(e, &b, &loss));
            ck_ok(engine_backward(e));
            ck_ok(engine_step(e));
        }
        out->losses[f.n] = engine_get_boundary_loss(e);
        out->norms[f.n] = engine_get_global_grad_norm(e);
    }
}

static void check_same_training(const char *model, const char *more, bool by_calls, double tol)
{
    struct outcome want, have;
    struct cz_engine *e = open_engine(small_model(model), more);
    train(e, by_calls, &want);
    engine_destroy(e);
    e = open_engine(small_model(model), more);
    struct own own = {.kind = cz_model_labels(e->desc.model), .fails_at = -1};
    ck_ok(engine_set_loss(e, own_loss, &own));
    train(e, by_calls, &have);
    ck_assert_int_eq(own.n_calls, STEPS * MICRO_BATCHES);
    engine_destroy(e);
    for (int i = 0; i < STEPS; i++) {
        ck_assert_double_eq_tol(have.losses[i], want.losses[i], tol * fabs(want.losses[i]));
        ck_assert_double_eq_tol(have.norms[i], want.norms[i], tol * want.norms[i]);
    }
}

START_TEST(the_models_loss_trains_the_same)
{
    static const char *const models[] = {small_gpt2,    small_llama,      small_bert,
                                         small_electra, small_classifier, small_regression,
                                         small_multi};
    const char *fp16 = ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}";
    for (size_t i = 0; i < CZ_ARRAY_LEN(models); i++) {
        check_same_training(models[i], "", true, 1e-5);
        check_same_training(models[i], "", false, 1e-5);
        check_same_training(models[i], ", \"zero_optimization\": {\"stage\": 3}", true, 1e-5);
        check_same_training(models[i], fp16, true, 2e-3);
        check_same_training(models[i], ", \"czero\": {\"accumulation_order\": \"layers\"}", false,
                            1e-5);
    }
    /* What the tied vocabulary waits for does not fit: it is made again. */
    check_same_training(small_gpt2,
                        ", \"czero\": {\"accumulation_order\": \"layers\", "
                        "\"activation_memory\": 1}",
                        false, 1e-5);
}
END_TEST

/* ---- log-probabilities ----------------------------------------------------------------------- */

START_TEST(log_probabilities_are_those_of_the_logits)
{
    static const char *const models[] = {small_gpt2, small_llama, small_bert};
    for (size_t i = 0; i < CZ_ARRAY_LEN(models); i++) {
        struct cz_engine *e = open_plain(models[i]);
        static float logits[N * V], log_probs[N];
        double sums[B], want[B] = {0};
        const struct cz_batch b = batch_of_number(e->desc.model, 1);
        ck_ok(engine_predict(e, &b, logits));
        ck_ok(engine_eval_log_probs(e, &b, log_probs));
        ck_ok(engine_eval_rows(e, &b, sums));
        for (int n = 0; n < N; n++) {
            double all = 0, value = 0;
            for (int v = 0; v < V; v++) all += exp((double)logits[n * V + v]);
            if (labels[n] >= 0) value = (double)logits[n * V + labels[n]] - log(all);
            ck_assert_double_eq_tol((double)log_probs[n], value, 2e-5);
            want[n / T] += (double)log_probs[n];
        }
        for (int r = 0; r < B; r++) ck_assert(sums[r] == want[r]);
        engine_destroy(e);
    }
}
END_TEST

/* One logit z of each token: log σ(z) where it was replaced, log σ(−z) where not. */
START_TEST(replaced_tokens_have_log_probabilities)
{
    struct cz_engine *e = open_plain(small_electra);
    static float z[N], log_probs[N];
    const struct cz_batch b = batch_of_number(e->desc.model, 1);
    ck_ok(engine_predict(e, &b, z));
    ck_ok(engine_eval_log_probs(e, &b, log_probs));
    for (int n = 0; n < N; n++) {
        const double signed_z = labels[n] == 1 ? (double)z[n] : -(double)z[n];
        const double want = labels[n] < 0 ? 0 : -log1p(exp(-signed_z));
        ck_assert_double_eq_tol((double)log_probs[n], want, 2e-5);
    }
    engine_destroy(e);
}
END_TEST

/* ---- another loss ---------------------------------------------------------------------------- */

/* Σ over rows of (their log-probability)²/100: what a row's positions get depends on the whole row.
 */
static cz_status squares_of_rows(void *user, struct cz_loss_call *c)
{
    (void)user;
    double loss = 0;
    for (int b = 0; b < B; b++) {
        double sum = 0;
        for (int t = 0; t < T; t++) sum += (double)c->values[b * T + t];
        loss += sum * sum / 100;
        for (int t = 0; t < T; t++) c->gradients[b * T + t] = (float)(2 * sum / 100);
    }
    c->loss = (float)loss;
    return CZ_OK;
}

static double squares_now(struct cz_engine *e, const struct cz_batch *b)
{
    double sums[B], loss = 0;
    ck_ok(engine_eval_rows(e, b, sums));
    for (int r = 0; r < B; r++) loss += sums[r] * sums[r] / 100;
    return loss;
}

START_TEST(gradients_are_those_of_finite_differences)
{
    static const char no_dropout[] =
        "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
        "\"hidden_size\": 24, \"intermediate_size\": 40, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 61, "
        "\"max_position_embeddings\": 32, \"hidden_act\": \"silu\", "
        "\"tie_word_embeddings\": true}";
    struct cz_engine *e = open_plain(no_dropout);
    const struct cz_batch b = batch_of_number(e->desc.model, 1);
    static float w[V * 24], g[V * 24];
    const char *name = "model.embed_tokens.weight";
    float loss;
    ck_ok(engine_set_loss(e, squares_of_rows, NULL));
    const double before = squares_now(e, &b);
    ck_ok(engine_forward(e, &b, &loss));
    ck_assert_double_eq_tol((double)loss, before, 1e-5 * before);
    ck_ok(engine_backward(e));
    ck_ok(engine_param_get(e, name, "grad", g, V * 24));
    ck_ok(engine_param_get(e, name, "weight", w, V * 24));
    for (int i = 7; i < V * 24; i += 211) {
        const float at = w[i], h = 2e-3f;
        w[i] = at + h;
        ck_ok(engine_param_set(e, name, "weight", w, V * 24));
        const double up = squares_now(e, &b);
        w[i] = at - h;
        ck_ok(engine_param_set(e, name, "weight", w, V * 24));
        const double slope = (up - squares_now(e, &b)) / (2 * (double)h);
        w[i] = at;
        ck_assert_double_eq_tol((double)g[i] * MICRO_BATCHES, slope, 2e-2 * fabs(slope) + 2e-2);
    }
    engine_destroy(e);
}
END_TEST

/* ---- the adapter ----------------------------------------------------------------------------- */

static struct cz_engine *open_lora(const char *saved)
{
    struct cz_model *m = small_model(small_llama);
    const struct cz_lora_options lora = {
        .size = sizeof lora, .rank = 2, .alpha = 16, .modules_to_save = saved};
    ck_ok(cz_model_add_lora(m, &lora));
    return open_engine(m, "");
}

START_TEST(without_its_adapter_a_model_is_what_it_was)
{
    struct cz_engine *e = open_lora(NULL);
    const struct cz_batch b = batch_of_number(e->desc.model, 1);
    static float hidden[N * 24], again[N * 24];
    struct outcome ignored;
    double before[B], trained[B], off[B];
    float loss, loss_off;
    ck_ok(engine_eval_rows(e, &b, before));
    ck_ok(engine_hidden(e, &b, hidden));
    ck_ok(engine_eval(e, &b, &loss));
    train(e, true, &ignored);
    const struct cz_batch same = batch_of_number(e->desc.model, 1);
    ck_ok(engine_eval_rows(e, &same, trained));
    ck_assert(memcmp(trained, before, sizeof before) != 0);
    ck_ok(engine_use_adapter(e, false));
    ck_ok(engine_eval_rows(e, &same, off));
    ck_assert_mem_eq(off, before, sizeof before);
    ck_ok(engine_hidden(e, &same, again));
    ck_assert_mem_eq(again, hidden, sizeof hidden);
    ck_ok(engine_eval(e, &same, &loss_off));
    ck_assert(loss_off == loss);
    expect_error(engine_forward(e, &same, &loss), CZ_INVALID, "engine_use_adapter");
    struct feed f = {.m = e->desc.model};
    expect_error(engine_train_batch(e, next, &f, &loss), CZ_INVALID, "engine_use_adapter");
    ck_ok(engine_use_adapter(e, true));
    batch_of_number(e->desc.model, 1);
    ck_ok(engine_eval_rows(e, &same, off));
    ck_assert_mem_eq(off, trained, sizeof trained);
    train(e, true, &ignored);
    engine_destroy(e);
}
END_TEST

START_TEST(a_base_that_changes_is_no_reference)
{
    struct cz_engine *e = open_plain(small_llama);
    expect_error(engine_use_adapter(e, false), CZ_UNSUPPORTED, "has no adapter");
    engine_destroy(e);
    e = open_lora("norm");
    expect_error(engine_use_adapter(e, false), CZ_UNSUPPORTED, "is trained, too");
    engine_destroy(e);
}
END_TEST

/* ---- misuse ---------------------------------------------------------------------------------- */

START_TEST(misuse_is_told)
{
    struct cz_engine *e = open_plain(small_classifier);
    float values[N], loss;
    double sums[B];
    const struct cz_batch b = batch_of_number(e->desc.model, 0);
    expect_error(engine_eval_rows(e, &b, sums), CZ_UNSUPPORTED, "engine_predict");
    expect_error(engine_eval_log_probs(e, &b, values), CZ_UNSUPPORTED, "engine_predict");
    engine_destroy(e);
    e = open_plain(small_gpt2);
    struct own own = {.kind = CZ_LABELS_NEXT, .fails_at = -1};
    struct cz_batch c = batch_of_number(e->desc.model, 0);
    expect_error(engine_eval_rows(e, &c, NULL), CZ_INVALID, "sums is NULL");
    expect_error(engine_eval_log_probs(e, &c, NULL), CZ_INVALID, "log_probs is NULL");
    ck_ok(engine_forward(e, &c, &loss));
    expect_error(engine_set_loss(e, own_loss, &own), CZ_INVALID, "under way");
    ck_ok(engine_backward(e));
    expect_error(engine_set_loss(e, own_loss, &own), CZ_INVALID, "under way");
    ck_ok(engine_step(e));
    ck_ok(engine_set_loss(e, own_loss, &own)); /* between micro-batches of a step */
    c.labels = NULL;
    expect_error(engine_forward(e, &c, &loss), CZ_INVALID, "labels");
    expect_error(engine_eval_rows(e, &c, sums), CZ_INVALID, "labels");
    ck_assert_int_eq(own.n_calls, 0);
    engine_destroy(e);
}
END_TEST

static cz_status without_labels(void *user, struct cz_loss_call *c)
{
    ck_assert_ptr_null(c->batch->labels);
    c->gradients[0] = 1;
    c->loss = c->values[0];
    ++*(int *)user;
    return CZ_OK;
}

START_TEST(a_classifiers_own_loss_needs_no_labels)
{
    struct cz_engine *e = open_plain(small_classifier);
    struct cz_batch b = batch_of_number(e->desc.model, 0);
    int n_calls = 0;
    float loss, logits[B * K];
    b.labels = NULL;
    b.loss_weights = NULL;
    ck_ok(engine_set_loss(e, without_labels, &n_calls));
    ck_ok(engine_forward_logits(e, &b, &loss, logits));
    ck_assert_int_eq(n_calls, 1);
    ck_assert(loss == logits[0]);
    ck_ok(engine_backward(e));
    ck_ok(engine_step(e));
    ck_ok(engine_set_loss(e, NULL, NULL));
    expect_error(engine_forward(e, &b, &loss), CZ_INVALID, "labels");
    engine_destroy(e);
}
END_TEST

START_TEST(an_error_of_a_loss_ends_the_call)
{
    struct cz_engine *e = open_plain(small_llama);
    struct feed f = {.m = e->desc.model};
    struct own own = {.kind = CZ_LABELS_NEXT, .fails_at = 1};
    float loss;
    double before[B], after[B];
    const struct cz_batch b = batch_of_number(f.m, 0);
    ck_ok(engine_eval_rows(e, &b, before));
    ck_ok(engine_set_loss(e, own_loss, &own));
    expect_error(engine_train_batch(e, next, &f, &loss), CZ_INVALID, "no loss today");
    batch_of_number(f.m, 0);
    ck_ok(engine_eval_rows(e, &b, after));
    ck_assert_mem_eq(after, before, sizeof before);
    ck_ok(engine_train_batch(e, next, &f, &loss));
    ck_assert_int_eq(engine_get_global_steps(e), 1);
    ck_ok(engine_set_loss(e, NULL, NULL));
    ck_ok(engine_train_batch(e, next, &f, &loss));
    ck_assert_int_eq(own.n_calls, 4);
    engine_destroy(e);
}
END_TEST

START_TEST(a_loss_layer_of_the_programs_own_is_refused)
{
    struct cz_engine *e = open_engine(pub_model(1, T), "");
    const struct cz_batch b = {.size = sizeof b, .B = 1, .T = 1, .ids = ids, .labels = labels};
    struct own own = {.fails_at = -1};
    double sum;
    ids[0] = labels[0] = 1;
    expect_error(engine_set_loss(e, own_loss, &own), CZ_UNSUPPORTED, "\"dot\"");
    expect_error(engine_eval_rows(e, &b, &sum), CZ_UNSUPPORTED, "is the program's own");
    engine_destroy(e);
}
END_TEST

static cz_status ones(void *user, struct cz_loss_call *c)
{
    (void)user;
    for (int64_t i = 0; i < c->n * c->k; i++) c->gradients[i] = 1;
    return CZ_OK;
}

START_TEST(gradients_stay_in_their_place)
{
    struct own_loss own;
    const struct batch batch = {.B = 2, .T = 1};
    float gradients[] = {9, 9, 9};
    struct objective_call call = {
        .batch = &batch, .n = 2, .k = 1, .dloss = 0.5f, .gradients = gradients};
    own_loss_set(&own, ones, NULL, NULL);
    ck_ok(own_loss_objective(&own)->run(&own, &call));
    ck_assert(gradients[0] == 0.5f && gradients[1] == 0.5f && gradients[2] == 9);
}
END_TEST

TEST_MAIN("engine/own_loss", the_models_loss_trains_the_same,
          log_probabilities_are_those_of_the_logits, replaced_tokens_have_log_probabilities,
          gradients_are_those_of_finite_differences, without_its_adapter_a_model_is_what_it_was,
          a_base_that_changes_is_no_reference, misuse_is_told,
          a_classifiers_own_loss_needs_no_labels, an_error_of_a_loss_ends_the_call,
          a_loss_layer_of_the_programs_own_is_refused, gradients_stay_in_their_place)

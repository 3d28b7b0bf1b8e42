/* Claims: counters, boundaries, skipped steps and getters are those of docs/deepspeed-behaviour.md;
 * calls in a wrong order, bad batches and bad options are refused with a sentence; parameters,
 * gradients and states can be looked at and set; evaluation changes nothing. */
#include "base/log.h"
#include "engine/plan/plan.h"
#include "tests/support/replay.h"
#include "tests/support/toy_layers.h"

static struct cz_engine *make(const struct cz_engine_options *options, struct cz_model *model)
{
    struct cz_engine *e = engine_initialize_ex(options, model);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

static struct cz_engine *gpt2(const char *config)
{
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    struct cz_model *m = cz_model_from_hf(test_fixture("models/gpt2-tiny"));
    ck_assert_ptr_nonnull(m);
    ck_ok(cz_model_set_shape(m, 32));
    return make(&options, m);
}

#define TOY_B 2
#define TOY_T 4
static int32_t toy_ids[] = {0, 1, 2, 3, 4, 5, 6, 7}, toy_labels[] = {1, 2, 3, 4, 5, 6, 7, 0};
static const struct cz_batch toy_batch = {
    .size = sizeof toy_batch, .B = TOY_B, .T = TOY_T, .ids = toy_ids, .labels = toy_labels};

static struct cz_engine *toy(const char *config)
{
    const struct cz_engine_options options = {.size = sizeof options, .config_json = config};
    return make(&options, toy_model(3, TOY_T));
}

static void toy_micro(struct cz_engine *e)
{
    ck_ok(engine_forward(e, &toy_batch, NULL));
    ck_ok(engine_backward(e));
    ck_ok(engine_step(e));
}

#define ADAM       "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}"
#define TOY_CONFIG "{\"train_micro_batch_size_per_gpu\": 2, " ADAM "}"

/* ---- order of calls -------------------------------------------------------------------------- */

START_TEST(calls_out_of_order_are_refused)
{
    struct cz_engine *e = toy(TOY_CONFIG);
    float loss;
    ck_fails(engine_backward(e), CZ_INVALID);
    ck_fails(engine_step(e), CZ_INVALID);
    ck_ok(engine_forward(e, &toy_batch, &loss));
    ck_assert(isfinite(loss));
    ck_fails(engine_step(e), CZ_INVALID);
    ck_ok(engine_backward(e));
    ck_fails(engine_backward(e), CZ_INVALID);
    ck_assert_ptr_null(strstr(cz_last_error(), "dropped"));
    ck_ok(engine_step(e));
    engine_destroy(e);
    engine_destroy(NULL);
}
END_TEST

static char log_text[4096];

static void keep_log(enum cz_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    strncat(log_text, line, sizeof log_text - strlen(log_text) - 2);
    strcat(log_text, "\n");
}

static void expect_log(const char *part)
{
    ck_assert_msg(part ? strstr(log_text, part) != NULL : !*log_text, "%s", log_text);
    log_text[0] = '\0';
}

/* Ctrl-C and exceptions end a step anywhere: what follows does not depend on it. That bits stay the
 * same is test_train_batch's. */
START_TEST(a_forward_without_backward_is_dropped)
{
    enum { EVAL, PREDICT, HIDDEN, SET, SAVE, EXPORT, N_CALLS };
    static const char *const names[N_CALLS] = {"an evaluation",    "an evaluation", "an evaluation",
                                               "engine_param_set", "a save",        "an export"};
    const char *dir = test_tmp_make();
    float loss, x[C], out[TOY_B * TOY_T * V];
    for (int call = 0; call < N_CALLS; call++) {
        struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                                  "\"gradient_accumulation_steps\": 2, " ADAM "}");
        bool saved;
        cz_log_set_sink(keep_log, NULL);
        log_text[0] = '\0';
        for (int with_gradients = 0; with_gradients < 2; with_gradients++) {
            if (with_gradients) toy_micro(e);
            ck_ok(engine_param_get(e, "w0", "weight", x, C));
            ck_ok(engine_forward(e, &toy_batch, NULL));
            cz_status st = call == EVAL      ? engine_eval(e, &toy_batch, &loss)
                           : call == PREDICT ? engine_predict(e, &toy_batch, out)
                           : call == HIDDEN  ? engine_hidden(e, &toy_batch, out)
                           : call == SET     ? engine_param_set(e, "w0", "weight", x, C)
                           : call == SAVE    ? engine_save_checkpoint(e, dir, NULL)
                                             : engine_save_16bit_model(e, dir, NULL, false, &saved);
            if (st == CZ_UNSUPPORTED) st = CZ_OK; /* of the toy */
            if (!with_gradients) {
                char want[128];
                ck_ok(st);
                snprintf(want, sizeof want, "step 1: %s drops the training forward before it",
                         names[call]);
                expect_log(want);
                ck_fails(engine_backward(e), CZ_INVALID);
                ck_assert_ptr_nonnull(strstr(cz_last_error(), "dropped for"));
                ck_ok(engine_forward(e, &toy_batch, NULL)); /* said once */
                ck_ok(engine_eval(e, &toy_batch, &loss));
                expect_log(NULL);
                continue;
            }
            ck_assert_int_eq(st, CZ_INVALID); /* they would be lost */
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "1 micro-batches of its step"));
            ck_ok(engine_backward(e)); /* as the sentence says */
            ck_ok(engine_step(e));
            ck_assert_int_eq(engine_get_global_steps(e), 1);
        }
        cz_log_set_sink(NULL, NULL);
        engine_destroy(e);
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(another_forward_drops_what_was_abandoned)
{
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                              "\"gradient_accumulation_steps\": 2, " ADAM "}");
    cz_log_set_sink(keep_log, NULL);
    log_text[0] = '\0';
    ck_ok(engine_discard_step(e)); /* none has begun */
    ck_ok(engine_forward(e, &toy_batch, NULL));
    ck_ok(engine_forward(e, &toy_batch, NULL));
    expect_log("step 1: another engine_forward drops the training forward before it");
    ck_ok(engine_backward(e));
    ck_ok(engine_step(e));
    ck_ok(engine_forward(e, &toy_batch, NULL));
    for (int i = 0; i < 2; i++) { /* each time, since gradients are lost */
        if (i > 0) toy_micro(e);
        if (i > 0) ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_ok(engine_forward(e, &toy_batch, NULL));
        expect_log("step 1: another engine_forward drops the step, with the gradients of 1 of its "
                   "micro-batches");
        ck_assert_int_eq(engine_get_micro_steps(e), 0);
        ck_ok(engine_backward(e));
        ck_ok(engine_step(e));
        ck_ok(engine_discard_step(e));
    }
    expect_log(NULL); /* a call that asks for it says nothing */
    ck_assert_int_eq(engine_get_micro_steps(e), 0);
    for (int s = 0; s < 2; s++) { /* steps left out: once between two boundaries */
        ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_forward(e, &toy_batch, NULL));
        expect_log("Call engine_step after each engine_backward");
        ck_ok(engine_backward(e));
        ck_fails(engine_forward(e, &toy_batch, NULL), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "engine_step must follow"));
        ck_ok(engine_step(e));
        toy_micro(e);
        ck_assert_int_eq(engine_get_global_steps(e), s + 1);
    }
    for (int s = 0; s < 2; s++) { /* a step that is discarded counts as none left out */
        ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_ok(engine_discard_step(e));
        ck_fails(engine_backward(e), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "dropped for engine_discard_step"));
    }
    cz_log_set_sink(NULL, NULL);
    engine_destroy(e);

    /* Unmanaged, each backward adds to those before it. */
    e = toy(
        "{\"train_micro_batch_size_per_gpu\": 2, \"managed_gradient_accumulation\": false, " ADAM
        "}");
    toy_micro(e);
    for (int i = 0; i < 3; i++) {
        ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_ok(engine_backward(e));
    }
    ck_ok(engine_discard_step(e));
    ck_fails(engine_step(e), CZ_INVALID);
    ck_assert_int_eq(engine_get_micro_steps(e), 1);
    toy_micro(e);
    ck_assert_int_eq(engine_get_global_samples(e), 4);
    engine_destroy(e);
}
END_TEST

START_TEST(rates_are_numbers_from_0_on)
{
    struct cz_engine *e = toy(TOY_CONFIG);
    const double bad[] = {NAN, INFINITY, -INFINITY, -1e-9};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        ck_fails(engine_set_lr(e, bad[i]), CZ_INVALID);
        ck_assert_double_eq(engine_get_lr(e), 0.01);
    }
    ck_ok(engine_set_lr(e, 0));
    ck_assert_double_eq(engine_get_lr(e), 0);
    engine_destroy(e);
}
END_TEST

START_TEST(bad_batches_are_refused_by_place)
{
    struct cz_engine *e = toy(TOY_CONFIG);
    struct cz_batch b = toy_batch;
    int32_t ids[8], labels[8];
    memcpy(ids, toy_ids, sizeof ids);
    memcpy(labels, toy_labels, sizeof labels);
    b.ids = ids, b.labels = labels;
    ids[6] = V;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "token 8 in row 1 at position 2"));
    ids[6] = -1;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    ids[6] = 6, labels[1] = 9;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "label 9 in row 0 at position 1"));
    labels[1] = 2;
    int32_t positions[8] = {0, 1, 2, 3, 0, 1, 2, 99};
    b.positions = positions;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "position 99 in row 1 at position 3"));
    b.positions = NULL;
    b.B = 3;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    b.B = 1, b.T = 5;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    b.T = 0;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    b.T = 4, b.labels = NULL;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    b.ids = NULL;
    ck_fails(engine_forward(e, &b, NULL), CZ_INVALID);
    b.ids = ids, b.labels = labels;
    ck_ok(engine_forward(e, &b, NULL)); /* smaller than planned is fine */
    engine_destroy(e);
}
END_TEST

/* ---- counters -------------------------------------------------------------------------------- */

START_TEST(boundaries_come_every_accumulation_steps)
{
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                              "\"gradient_accumulation_steps\": 3, " ADAM "}");
    ck_assert_int_eq(engine_get_train_batch(e), 6);
    for (int i = 0; i < 7; i++) {
        bool is_boundary = i % 3 == 2;
        ck_assert(engine_is_gradient_accumulation_boundary(e) == is_boundary);
        ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_ok(engine_backward(e));
        ck_assert(engine_is_gradient_accumulation_boundary(e) == is_boundary);
        ck_ok(engine_step(e));
        ck_assert(engine_was_step_applied(e) == is_boundary);
        ck_assert_int_eq(engine_get_micro_steps(e), i + 1);
        ck_assert_int_eq(engine_get_global_steps(e), (i + 1) / 3);
        ck_assert_int_eq(engine_get_global_samples(e), (i + 1) / 3 * 6);
    }
    engine_destroy(e);
}
END_TEST

START_TEST(without_management_every_step_is_a_boundary)
{
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                              "\"gradient_accumulation_steps\": 2, "
                              "\"managed_gradient_accumulation\": false, " ADAM "}");
    for (int n = 1; n <= 3; n++) { /* n backward passes, then a step */
        for (int i = 0; i < n; i++) {
            ck_ok(engine_forward(e, &toy_batch, NULL));
            ck_ok(engine_backward(e));
        }
        ck_ok(engine_step(e));
        ck_assert(engine_was_step_applied(e));
        ck_assert_int_eq(engine_get_global_steps(e), n);
        ck_assert_int_eq(engine_get_global_samples(e), n * (n + 1) / 2 * 2);
    }
    engine_destroy(e);
}
END_TEST

START_TEST(accumulation_is_the_mean_over_micro_batches)
{
    const char *once = "{\"train_micro_batch_size_per_gpu\": 2, " ADAM "}";
    const char *twice = "{\"train_micro_batch_size_per_gpu\": 1, "
                        "\"gradient_accumulation_steps\": 2, " ADAM "}";
    struct cz_engine *a = gpt2(once), *b = gpt2(twice);
    static struct replay_data da, db;
    static float wa[256 * 64], wb[256 * 64];
    replay_data_open(&da);
    replay_data_open(&db);
    for (int s = 0; s < 3; s++) {
        replay_one_step(a, &da, 32);
        replay_one_step(b, &db, 32);
        ck_assert_double_eq_tol(engine_get_boundary_loss(a), engine_get_boundary_loss(b), 1e-5);
        ck_assert_double_eq_tol(engine_get_global_grad_norm(a), engine_get_global_grad_norm(b),
                                1e-4);
    }
    ck_ok(engine_param_get(a, "lm_head.weight", "weight", wa, 256 * 64)); /* an alias */
    ck_ok(engine_param_get(b, "transformer.wte.weight", "weight", wb, 256 * 64));
    for (int i = 0; i < 256 * 64; i++) ck_assert_float_eq_tol(wa[i], wb[i], 2e-3f);
    engine_destroy(a);
    engine_destroy(b);
}
END_TEST

/* ---- the timeline of docs/deepspeed-behaviour.md -------------------------------------------- */

START_TEST(the_worked_timeline)
{
    struct cz_engine *e =
        gpt2("{\"train_batch_size\": 8, \"gradient_accumulation_steps\": 2, "
             "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001}}, "
             "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, "
             "\"warmup_max_lr\": 0.001, \"warmup_num_steps\": 10, \"warmup_type\": \"linear\"}}, "
             "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, \"hysteresis\": 1}, "
             "\"zero_optimization\": {\"stage\": 1}, \"steps_per_print\": 2}");
    static struct replay_data d;
    replay_data_open(&d);
    float bias[64], poisoned[64];
    const char *name = "transformer.h.0.ln_1.bias";
    ck_ok(engine_param_get(e, name, "weight", bias, 64));
    memcpy(poisoned, bias, sizeof bias);
    poisoned[5] = NAN;
    ck_ok(engine_param_set(e, name, "weight", poisoned, 64)); /* the first boundary overflows */
    replay_one_step(e, &d, 32);
    ck_assert(!engine_was_step_applied(e));
    ck_assert_double_eq(engine_get_loss_scale(e), 128);
    ck_assert(isinf(engine_get_global_grad_norm(e)));
    ck_assert_int_eq(engine_get_skipped_steps(e), 1);
    ck_assert_int_eq(engine_get_micro_steps(e), 2);
    ck_ok(engine_param_set(e, name, "weight", bias, 64));
    const double lr[] = {0, 0, 1e-4, 2e-4};
    for (int s = 1; s < 4; s++) {
        ck_assert_double_eq(engine_get_lr(e), s == 1 ? 0 : lr[s - 1]);
        replay_one_step(e, &d, 32);
        ck_assert(engine_was_step_applied(e));
        ck_assert_double_eq_tol(engine_get_lr(e), lr[s], 1e-18);
        ck_assert_int_eq(engine_get_global_steps(e), s + 1);
        ck_assert_int_eq(engine_get_global_samples(e), 8 * (s + 1));
        ck_assert_int_eq(engine_get_skipped_steps(e), 1);
        ck_assert_double_eq(engine_get_loss_scale(e), 128);
    }
    engine_destroy(e);
}
END_TEST

/* ---- gradients that are not finite ------------------------------------------------------------
 */

START_TEST(a_poisoned_gradient_is_named_and_skipped)
{
    struct cz_engine *e = toy(TOY_CONFIG);
    float before[C], after[C];
    toy_micro(e);
    ck_ok(engine_param_get(e, "w1", "weight", before, C));
    cz_log_set_sink(keep_log, NULL);
    toy_poisoned = 1, toy_poison = INFINITY;
    toy_micro(e);
    toy_poisoned = -1;
    cz_log_set_sink(NULL, NULL);
    ck_assert_msg(strstr(log_text, "the gradient of w1 is Infinity at element 2") != NULL, "%s",
                  log_text);
    ck_assert(!engine_was_step_applied(e));
    ck_assert(isinf(engine_get_global_grad_norm(e)));
    ck_assert_int_eq(engine_get_global_steps(e), 2);
    ck_ok(engine_param_get(e, "w1", "weight", after, C));
    ck_assert_mem_eq(before, after, sizeof before);
    toy_micro(e); /* nothing of it is left */
    ck_assert(engine_was_step_applied(e));
    ck_assert(isfinite(engine_get_global_grad_norm(e)));
    engine_destroy(e);
}
END_TEST

START_TEST(too_many_skips_in_a_row_stop_the_run)
{
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                              "\"czero\": {\"max_consecutive_skips\": 3}, " ADAM "}");
    toy_poisoned = 2, toy_poison = NAN;
    for (int i = 0; i < 2; i++) toy_micro(e);
    toy_poisoned = -1;
    toy_micro(e); /* a clean step starts the count again */
    toy_poisoned = 2;
    for (int i = 0; i < 2; i++) toy_micro(e);
    ck_ok(engine_forward(e, &toy_batch, NULL));
    ck_ok(engine_backward(e));
    ck_fails(engine_step(e), CZ_DIVERGED);
    toy_poisoned = -1;
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "3 steps in a row"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "the gradient of w2 is NaN at element 2"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "the last loss scales were 1, 1, 1"));
    engine_destroy(e);
}
END_TEST

START_TEST(a_scale_at_its_minimum_stops_the_run)
{
    struct cz_engine *e = gpt2("{\"train_micro_batch_size_per_gpu\": 1, " ADAM ", "
                               "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 2, "
                               "\"min_loss_scale\": 2, \"hysteresis\": 1}}");
    static struct replay_data d;
    static struct replay_batch b;
    float w[64];
    replay_data_open(&d);
    ck_ok(engine_param_get(e, "transformer.ln_f.weight", "weight", w, 64));
    w[0] = INFINITY;
    ck_ok(engine_param_set(e, "transformer.ln_f.weight", "weight", w, 64));
    replay_one_step(e, &d, 32);
    ck_assert_double_eq(engine_get_loss_scale(e), 2);
    ck_ok(engine_forward(e, replay_next(&d, &b, 1, 32), NULL));
    ck_ok(engine_backward(e));
    ck_fails(engine_step(e), CZ_DIVERGED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "the last loss scales were 4, 2"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "the gradient of transformer.wte.weight is"));
    engine_destroy(e);
}
END_TEST

START_TEST(bf16_without_the_check_applies_what_comes)
{
    struct cz_engine *e = gpt2("{\"train_micro_batch_size_per_gpu\": 1, " ADAM ", "
                               "\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}}");
    static struct replay_data d;
    float w[64];
    replay_data_open(&d);
    ck_ok(engine_param_get(e, "transformer.ln_f.weight", "weight", w, 64));
    w[0] = NAN;
    ck_ok(engine_param_set(e, "transformer.ln_f.weight", "weight", w, 64));
    replay_one_step(e, &d, 32);
    ck_assert(engine_was_step_applied(e));
    ck_assert_int_eq(engine_get_skipped_steps(e), 0);
    ck_assert(isnan(engine_get_global_grad_norm(e)));
    engine_destroy(e);
}
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

/* SGD with rate 1 moves by the clipped gradient. */
START_TEST(clipping_bounds_the_update)
{
    struct cz_engine *e =
        toy("{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.01, "
            "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}}");
    static const char *const names[] = {"table", "w0", "w1", "w2", "v"};
    float before[5][V * C], after[V * C];
    for (int i = 0; i < 5; i++)
        ck_ok(engine_param_get(e, names[i], "weight", before[i], i == 0 ? V * C : C));
    toy_micro(e);
    double norm = engine_get_global_grad_norm(e), moved = 0;
    ck_assert_double_gt(norm, 0.01);
    for (int i = 0; i < 5; i++) {
        size_t n = i == 0 ? V * C : C;
        ck_ok(engine_param_get(e, names[i], "weight", after, n));
        for (size_t j = 0; j < n; j++) moved += pow((double)after[j] - (double)before[i][j], 2);
    }
    ck_assert_double_eq_tol(sqrt(moved), 0.01 * norm / (norm + 1e-6), 1e-6);
    engine_destroy(e);
}
END_TEST

START_TEST(the_norm_can_be_left_out)
{
    struct cz_engine *e =
        toy("{\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0, "
            "\"zero_optimization\": {\"stage\": 1, \"compute_grad_norm\": false}, " ADAM "}");
    toy_micro(e);
    ck_assert(engine_was_step_applied(e));
    ck_assert(isnan(engine_get_global_grad_norm(e)));
    engine_destroy(e);
}
END_TEST

/* ---- single tensors --------------------------------------------------------------------------
 */

START_TEST(tensors_can_be_read_and_set)
{
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                              "\"gradient_accumulation_steps\": 2, " ADAM "}");
    float x[C] = {1, 2, 3, 4}, y[C], table[V * C];
    ck_fails(engine_param_get(e, "w0", "grad", y, C), CZ_INVALID); /* none yet */
    toy_micro(e);
    ck_ok(engine_param_get(e, "w0", "grad", y, C));
    ck_assert_float_ne(y[0], 0);
    toy_micro(e);
    ck_ok(engine_param_get(e, "w0", "exp_avg", y, C));
    ck_assert_float_ne(y[0], 0);
    ck_ok(engine_param_set(e, "w0", "exp_avg_sq", x, C));
    ck_ok(engine_param_get(e, "w0", "exp_avg_sq", y, C));
    ck_assert_mem_eq(x, y, sizeof x);
    ck_ok(engine_param_set(e, "w0", "weight", x, C));
    ck_ok(engine_param_get(e, "w0", "weight", y, C));
    ck_assert_mem_eq(x, y, sizeof x);
    ck_ok(engine_param_get(e, "table", "weight", table, V * C));
    ck_fails(engine_param_get(e, "w0", "weight", table, V * C), CZ_INVALID);
    ck_fails(engine_param_get(e, "w0", "momentum", y, C), CZ_NOTFOUND);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "exp_avg and exp_avg_sq"));
    ck_fails(engine_param_get(e, "w9", "weight", y, C), CZ_NOTFOUND);
    ck_fails(engine_param_set(e, "w0", "grad", x, C), CZ_INVALID);
    cz_log_set_sink(keep_log, NULL);
    log_text[0] = '\0';
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        ck_ok(engine_param_set(e, "w0", "weight", x, C));
        expect_log(NULL);
        memcpy(y, x, sizeof y);
        y[C - 1] = bad[i];
        ck_ok(engine_param_set(e, "w0", i == 1 ? "exp_avg" : "weight", y, C));
        expect_log(i == 0   ? "w0: element 3 of weight is set to nan"
                   : i == 1 ? "w0: element 3 of exp_avg is set to inf"
                            : "w0: element 3 of weight is set to -inf");
    }
    cz_log_set_sink(NULL, NULL);
    engine_destroy(e);
}
END_TEST

/* What a backward still needs, or has half made, is left alone. */
START_TEST(a_waiting_forward_keeps_tensors_as_they_are)
{
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, "
                              "\"gradient_accumulation_steps\": 2, " ADAM "}");
    float x[C];
    toy_micro(e);
    ck_ok(engine_forward(e, &toy_batch, NULL));
    ck_ok(engine_param_get(e, "w0", "weight", x, C));
    ck_fails(engine_param_get(e, "w0", "grad", x, C), CZ_INVALID);
    ck_ok(engine_backward(e));
    ck_ok(engine_param_get(e, "w0", "grad", x, C));
    ck_ok(engine_param_set(e, "w0", "weight", x, C));
    engine_destroy(e);
}
END_TEST

/* Gradients are shown without the loss scale and with the mean over micro-batches. */
START_TEST(gradients_are_shown_unscaled)
{
    static struct replay_data d;
    static float want[64], have[64];
    const char *name = "transformer.ln_f.bias";
    for (int fp16 = 0; fp16 < 2; fp16++) {
        struct cz_engine *e = gpt2(fp16 ? "{\"train_micro_batch_size_per_gpu\": 1, " ADAM ", "
                                          "\"fp16\": {\"enabled\": true, \"loss_scale\": 1024}}"
                                        : "{\"train_micro_batch_size_per_gpu\": 1, " ADAM "}");
        static struct replay_batch b;
        replay_data_open(&d);
        ck_ok(engine_forward(e, replay_next(&d, &b, 1, 32), NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_param_get(e, name, "grad", fp16 ? have : want, 64));
        engine_destroy(e);
    }
    for (int i = 0; i < 64; i++) ck_assert_float_eq_tol(have[i], want[i], 2e-3f);
}
END_TEST

START_TEST(frozen_parameters_stay)
{
    struct cz_model *m = toy_model(3, TOY_T);
    ck_ok(cz_model_freeze(m, "^(table|w1)$", NULL));
    const struct cz_engine_options options = {.size = sizeof options, .config_json = TOY_CONFIG};
    struct cz_engine *e = make(&options, m);
    float before[C], after[C];
    ck_ok(engine_param_get(e, "w1", "weight", before, C));
    for (int i = 0; i < 3; i++) toy_micro(e);
    ck_ok(engine_param_get(e, "w1", "weight", after, C));
    ck_assert_mem_eq(before, after, sizeof before);
    ck_fails(engine_param_get(e, "w1", "grad", after, C), CZ_NOTFOUND);
    ck_fails(engine_param_get(e, "w1", "exp_avg", after, C), CZ_NOTFOUND);
    engine_destroy(e);
}
END_TEST

/* ---- groups ---------------------------------------------------------------------------------- */

START_TEST(groups_take_parameters_by_name)
{
    const struct cz_engine_group groups[] = {{sizeof groups[0], "^w[01]$", 0, NAN, NAN, NAN},
                                             {sizeof groups[0], "^nothing$", 5, NAN, NAN, NAN},
                                             {sizeof groups[0], "w", 0.5, NAN, 0.8, 0.9}};
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = TOY_CONFIG, .groups = groups, .n_groups = 3};
    cz_log_set_sink(keep_log, NULL);
    log_text[0] = '\0';
    struct cz_engine *e = make(&options, toy_model(3, TOY_T));
    double lrs[3];
    ck_fails(engine_get_lrs(e, lrs, 4), CZ_INVALID); /* the empty group is dropped */
    expect_log("parameter group 1: \"^nothing$\" matches no parameter that is left");
    cz_log_set_sink(NULL, NULL);
    ck_ok(engine_get_lrs(e, lrs, 3));
    ck_assert_double_eq(lrs[0], 0);
    ck_assert_double_eq(lrs[1], 0.5);
    ck_assert_double_eq(lrs[2], 0.01);
    float before[C], after[C];
    ck_ok(engine_param_get(e, "w0", "weight", before, C));
    toy_micro(e);
    ck_ok(engine_param_get(e, "w0", "weight", after, C));
    ck_assert_mem_eq(before, after, sizeof before); /* its rate is 0 */
    ck_ok(engine_param_get(e, "w2", "weight", after, C));
    ck_assert_float_gt(fabsf(after[0] - 1), 0.4f); /* Adam's first step is the rate */
    engine_set_lr(e, 0.25);
    ck_ok(engine_get_lrs(e, lrs, 3));
    for (int g = 0; g < 3; g++) ck_assert_double_eq(lrs[g], 0.25);
    engine_destroy(e);
}
END_TEST

/* Without gradients only decay moves weights: biases and norms stay under the hf grouping. */
START_TEST(the_hf_grouping_leaves_biases_and_norms_undecayed)
{
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": "
                       "\"AdamW\", \"params\": {\"lr\": 0.1, \"weight_decay\": 0.5}}}",
        .groups_hf = true};
    struct cz_model *m = cz_model_from_hf(test_fixture("models/gpt2-tiny"));
    ck_ok(cz_model_set_shape(m, 32));
    struct cz_engine *e = make(&options, m);
    double lrs[2];
    ck_ok(engine_get_lrs(e, lrs, 2));
    static struct replay_batch b;
    for (int i = 0; i < 32; i++) b.labels[i] = CZ_IGNORE_LABEL; /* no label: no gradient */
    b.batch = (struct cz_batch){
        .size = sizeof(struct cz_batch), .B = 1, .T = 32, .ids = b.ids, .labels = b.labels};
    float norm_w[2][64], matrix[2][64 * 64];
    for (int i = 0; i < 2; i++) {
        ck_ok(engine_param_get(e, "transformer.ln_f.weight", "weight", norm_w[i], 64));
        ck_ok(engine_param_get(e, "transformer.h.0.attn.c_proj.weight", "weight", matrix[i],
                               64 * 64));
        if (i == 1) break;
        ck_ok(engine_forward(e, &b.batch, NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_step(e));
    }
    ck_assert_mem_eq(norm_w[0], norm_w[1], sizeof norm_w[0]);
    for (int i = 0; i < 64 * 64; i++)
        ck_assert_float_eq_tol(matrix[1][i], 0.95f * matrix[0][i], 1e-6f);
    engine_destroy(e);
}
END_TEST

/* ---- evaluation and repetition ----------------------------------------------------------------
 */

START_TEST(evaluation_changes_nothing)
{
    const char *config = "{\"train_micro_batch_size_per_gpu\": 2, " ADAM "}";
    struct cz_engine *a = gpt2(config), *b = gpt2(config);
    static struct replay_data da, db, dc;
    static struct replay_batch batch;
    static float logits[2 * 32 * 256];
    replay_data_open(&da);
    replay_data_open(&db);
    replay_data_open(&dc);
    float loss, again;
    for (int s = 0; s < 3; s++) {
        replay_one_step(a, &da, 32);
        replay_one_step(b, &db, 32);
        dc.row = 7;
        replay_next(&dc, &batch, 2, 32);
        ck_ok(engine_eval(a, &batch.batch, &loss));
        ck_ok(engine_predict(a, &batch.batch, logits));
        ck_ok(engine_eval(a, &batch.batch, &again));
        ck_assert_float_eq(loss, again);
        ck_assert_double_eq(engine_get_boundary_loss(a), engine_get_boundary_loss(b));
    }
    double want = 0; /* mean of log Σ exp − logit of the label */
    for (int n = 0; n < 64; n++) {
        const float *z = logits + n * 256;
        double max = z[0], sum = 0;
        for (int v = 0; v < 256; v++) max = fmax(max, (double)z[v]);
        for (int v = 0; v < 256; v++) sum += exp((double)z[v] - max);
        want += (max + log(sum) - (double)z[batch.labels[n]]) / 64;
    }
    ck_assert_double_eq_tol(loss, want, 1e-5);
    batch.batch.labels = NULL;
    ck_ok(engine_predict(a, &batch.batch, logits));
    ck_fails(engine_eval(a, &batch.batch, &loss), CZ_INVALID);
    engine_destroy(a);
    engine_destroy(b);
}
END_TEST

/* A small GPT-2 with dropout, from the init rules. */
static struct cz_model *with_dropout(void)
{
    const char *dir = test_tmp_make();
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_head\": 2, \"n_embd\": 32, "
               "\"n_positions\": 16, \"vocab_size\": 97, \"attn_pdrop\": 0.1, "
               "\"embd_pdrop\": 0.2, \"resid_pdrop\": 0.3}");
    fclose(f);
    struct cz_model *m = cz_model_from_hf(dir);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    test_tmp_remove(dir);
    return m;
}

static void weights_after(const char *config, uint64_t seed, int steps, float *w)
{
    static struct replay_data d;
    replay_data_open(&d);
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .seed = seed};
    struct cz_model *m = with_dropout();
    struct cz_engine *e = make(&options, m);
    size_t numel = (size_t)cz_model_vocab_size(m) * (size_t)cz_model_hidden_size(m);
    for (int i = 0; i < REPLAY_TOKENS; i++) d.tokens[i] %= (int32_t)cz_model_vocab_size(m);
    for (int s = 0; s < steps; s++) replay_one_step(e, &d, 16);
    ck_ok(engine_param_get(e, "transformer.wte.weight", "weight", w, numel));
    engine_destroy(e);
}

START_TEST(recomputation_and_runs_repeat_to_the_bit)
{
    static const char *const configs[] = {
        "{\"train_micro_batch_size_per_gpu\": 3, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 3, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": 1}, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": 2, "
        "\"offload_optimizer\": {\"device\": \"cpu\"}}, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": 3, "
        "\"sub_group_size\": 100}, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 3, "
        "\"activation_checkpointing\": {\"number_checkpoints\": 3}, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 3, "
        "\"czero\": {\"activation_checkpointing\": {\"every\": 1}}, " ADAM "}"};
    static float want[97 * 32], have[97 * 32];
    weights_after(configs[0], 1, 4, want);
    for (size_t i = 1; i < CZ_ARRAY_LEN(configs); i++) {
        weights_after(configs[i], 1, 4, have);
        ck_assert_msg(memcmp(want, have, sizeof want) == 0, "%s", configs[i]);
    }
    weights_after(configs[0], 2, 4, have); /* another seed, other dropout */
    ck_assert_int_ne(memcmp(want, have, sizeof want), 0);
}
END_TEST

START_TEST(a_parameter_without_gradient_has_a_zero_one)
{
    toy_unused = 1;
    for (int stage = 0; stage < 4; stage++) {
        char config[256];
        float grad[C];
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, "
                 "\"zero_optimization\": {\"stage\": %d, \"ignore_unused_parameters\": %s}, " ADAM
                 "}",
                 stage, stage == 0 || stage == 3 ? "false" : "true");
        struct cz_engine *e = toy(config);
        for (int micro = 0; micro < 4; micro++) {
            ck_ok(engine_forward(e, &toy_batch, NULL));
            ck_ok(engine_backward(e));
            ck_ok(engine_param_get(e, "w1", "grad", grad, C));
            for (int c = 0; c < C; c++) ck_assert_float_eq(grad[c], 0);
            ck_ok(engine_param_get(e, "w0", "grad", grad, C));
            ck_assert_float_ne(grad[0], 0);
            ck_ok(engine_step(e));
        }
        engine_destroy(e);
    }
    struct cz_engine *e = toy("{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": "
                              "{\"stage\": 2, \"ignore_unused_parameters\": false}, " ADAM "}");
    ck_ok(engine_forward(e, &toy_batch, NULL));
    for (int i = 0; i < 2; i++) { /* the failed pass is over */
        if (i > 0) ck_ok(engine_forward(e, &toy_batch, NULL));
        ck_fails(engine_backward(e), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "w1 got no gradient"));
        ck_fails(engine_backward(e), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "needs an engine_forward"));
    }
    ck_ok(engine_forward(e, &toy_batch, NULL));
    ck_ok(engine_discard_step(e));
    engine_destroy(e);
    toy_unused = -1;
}
END_TEST

/* 16-bit masters: no fp32 copy in the plan, and it trains. */
START_TEST(masters_and_states_can_have_16_bits)
{
    static const char *const configs[] = {
        "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 1}, "
        "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
        "\"bf16_optimizer_states\": true}, " ADAM "}",
        "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 1, "
        "\"offload_optimizer\": {\"device\": \"cpu\"}}, \"fp16\": {\"enabled\": true, "
        "\"initial_scale_power\": 8, \"fp16_master_weights_and_grads\": true}, " ADAM "}"};
    static const char *const states[] = {"bf16", "fp32"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(configs); i++) {
        struct cz_engine *e = gpt2(configs[i]);
        static struct replay_data d;
        replay_data_open(&d);
        replay_one_step(e, &d, 32);
        double first = engine_get_boundary_loss(e);
        for (int s = 0; s < 15; s++) replay_one_step(e, &d, 32);
        ck_assert_double_lt(engine_get_boundary_loss(e), first - 1);
        ck_assert_int_eq(engine_get_skipped_steps(e), 0);
        const struct cz_plan *p = engine_get_plan(e);
        for (size_t r = 0; r < p->n_rows; r++)
            if (strcmp(p->rows[r].name, "master weights") == 0)
                ck_assert_uint_eq(p->rows[r].nbytes, 0);
            else if (strcmp(p->rows[r].name, "exp_avg") == 0)
                ck_assert_ptr_nonnull(strstr(p->rows[r].how, states[i]));
        engine_destroy(e);
    }
}
END_TEST

/* ---- options --------------------------------------------------------------------------------- */

static void refused(const struct cz_engine_options *options, cz_status status, const char *part)
{
    struct cz_model *m = toy_model(2, TOY_T);
    ck_assert_ptr_null(engine_initialize_ex(options, m));
    ck_assert_int_eq(cz_last_status(), status);
    ck_assert_msg(strstr(cz_last_error(), part) != NULL, "%s", cz_last_error());
    cz_model_destroy(m); /* still the caller's */
}

START_TEST(bad_options_are_refused)
{
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options)}, CZ_INVALID,
            "exactly one of");
    refused(
        &(struct cz_engine_options){.size = sizeof(struct cz_engine_options), .config_json = "{"},
        CZ_INVALID, "");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = "{\"train_batch_size\": 1}",
                                        .strict = true},
            CZ_INVALID, "needs an optimizer");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = TOY_CONFIG,
                                        .option_values =
                                            (const char *const[]){"optimizer.params.lr=7", NULL}},
            CZ_INVALID, "--lr (optimizer.params.lr) asks for 7");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_path = "/nonexistent.json"},
            CZ_NOTFOUND, "/nonexistent.json");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = TOY_CONFIG,
                                        .device = "tpu"},
            CZ_INVALID, "tpu");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = TOY_CONFIG,
                                        .compat = "1.0"},
            CZ_INVALID, "\"0.19\" or \"0.16\"");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = "{\"train_batch_size\": 1, "
                                                       "\"sequence_parallel_size\": 2, " ADAM "}"},
            CZ_UNSUPPORTED, "sequence parallelism");
    const struct cz_engine_group bad[] = {{sizeof bad[0], "(", NAN, NAN, NAN, NAN}};
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = TOY_CONFIG,
                                        .groups = bad,
                                        .n_groups = 1},
            CZ_INVALID, "parameter group 0: \"(\" is not a regular expression");
    const struct cz_engine_group second[] = {{sizeof bad[0], "w", NAN, NAN, NAN, NAN},
                                             {sizeof bad[0], "(?=w)", NAN, NAN, NAN, NAN}};
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = TOY_CONFIG,
                                        .groups = second,
                                        .n_groups = 2},
            CZ_UNSUPPORTED, "parameter group 1: \"(?=w)\"");
    refused(&(struct cz_engine_options){.size = sizeof(struct cz_engine_options),
                                        .config_json = TOY_CONFIG,
                                        .groups = bad,
                                        .n_groups = 1,
                                        .groups_hf = true},
            CZ_INVALID, "choose one");
    ck_assert_ptr_null(engine_initialize(NULL, NULL));
}
END_TEST

START_TEST(autos_are_filled_from_what_the_engine_knows)
{
    static const char *const autos[] = {"train_micro_batch_size_per_gpu=2", NULL};
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_micro_batch_size_per_gpu\": \"auto\", "
                       "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                       "{\"total_num_steps\": \"auto\", \"warmup_num_steps\": 2, "
                       "\"warmup_max_lr\": 0.01, \"warmup_type\": \"linear\"}}, " ADAM "}",
        .auto_values = autos,
        .total_steps = 4};
    struct cz_engine *e = make(&options, toy_model(2, TOY_T));
    const double want[] = {0, 0.005, 0.01, 0.005}; /* WarmupDecayLR: N = 2, T = 4 */
    for (int i = 0; i < 4; i++) {
        toy_micro(e);
        ck_assert_double_eq_tol(engine_get_lr(e), want[i], 1e-12);
    }
    engine_destroy(e);
}
END_TEST

START_TEST(exported_weights_are_the_masters)
{
    const char *dir = test_tmp_make();
    char path[128];
    snprintf(path, sizeof path, "%s/out", dir);
    struct cz_engine *e =
        gpt2("{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, " ADAM "}");
    static struct replay_data d;
    static float want[64 * 64], have[64 * 64];
    replay_data_open(&d);
    replay_one_step(e, &d, 32);
    const char *name = "transformer.h.1.attn.c_proj.weight";
    ck_ok(engine_param_get(e, name, "weight", want, 64 * 64));
    ck_ok(engine_export_hf(e, path, DTYPE_F32));
    engine_destroy(e);
    struct cz_model *m = cz_model_from_hf(path);
    size_t idx;
    ck_assert_ptr_nonnull(m);
    ck_ok(param_table_find(model_params(m), name, &idx));
    ck_ok(model_read_weights(m, idx, 0, 64 * 64, have));
    ck_assert_mem_eq(want, have, sizeof want);
    cz_model_destroy(m);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("engine", calls_out_of_order_are_refused, a_forward_without_backward_is_dropped,
          another_forward_drops_what_was_abandoned, rates_are_numbers_from_0_on,
          bad_batches_are_refused_by_place, boundaries_come_every_accumulation_steps,
          without_management_every_step_is_a_boundary, accumulation_is_the_mean_over_micro_batches,
          the_worked_timeline, a_poisoned_gradient_is_named_and_skipped,
          too_many_skips_in_a_row_stop_the_run, a_scale_at_its_minimum_stops_the_run,
          bf16_without_the_check_applies_what_comes, clipping_bounds_the_update,
          the_norm_can_be_left_out, tensors_can_be_read_and_set,
          a_waiting_forward_keeps_tensors_as_they_are, gradients_are_shown_unscaled,
          frozen_parameters_stay, groups_take_parameters_by_name,
          the_hf_grouping_leaves_biases_and_norms_undecayed, evaluation_changes_nothing,
          masters_and_states_can_have_16_bits, a_parameter_without_gradient_has_a_zero_one,
          recomputation_and_runs_repeat_to_the_bit, bad_options_are_refused,
          autos_are_filled_from_what_the_engine_knows, exported_weights_are_the_masters)

/* The run itself: steps, what is shown of them, evaluations, saves, the end. */
#include "tool.h"
#include "train.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/names.h"
#include "engine/plan.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- stopping ---------------------------------------------------------------------------------
 */

static volatile sig_atomic_t stop_asked, stop_agreed;

void run_ask_to_stop(void)
{
    /* A request that others had heard of first is no sign that a rank has died. */
    if (!stop_agreed || stop_asked) engine_world_interrupt();
    stop_asked = 1;
}

/* What ranks tell each other after each step. A signal reaches them at different steps: all stop
 * when one was asked to. */
struct tidings {
    bool stops;
    double n_hits, n_examples; /* of the step */
};

static cz_status exchange_tidings(struct run *r, struct tidings *out)
{
    const double mine[] = {stop_asked, r->n_hits, r->n_examples};
    double sums[CZ_ARRAY_LEN(mine)];
    TRY(engine_gather_metrics(r->engine, mine, CZ_ARRAY_LEN(mine), sums));
    r->n_hits = r->n_examples = 0;
    *out = (struct tidings){sums[0] > 0, sums[1], sums[2]};
    if (!out->stops) return CZ_OK;
    stop_agreed = 1; /* everyone is alive, and has time to save */
    engine_world_interrupt_over();
    return CZ_OK;
}

/* ---- steps ------------------------------------------------------------------------------------
 */

/* managed_gradient_accumulation false: every engine_step() ends an accumulation. */
static cz_status train_step(struct run *r)
{
    const int64_t n_micro = engine_get_accumulation(r->engine);
    for (int64_t g = 0; g < n_micro; g++) {
        TRY(r->task->train_micro(r));
        if (r->steps_managed || g + 1 == n_micro) TRY(engine_step(r->engine));
    }
    return CZ_OK;
}

static double quotient(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

static struct progress_step step_figures(const struct run *r, const struct tidings *t)
{
    const struct engine *e = r->engine;
    const struct engine_swap_traffic swap = engine_get_swap_traffic(e);
    return (struct progress_step){
        .step = engine_get_global_steps(e),
        .epoch = run_epoch(r, engine_get_global_steps(e)),
        .skipped = engine_get_skipped_steps(e),
        .loss = engine_get_boundary_loss(e),
        .accuracy = quotient(t->n_hits, t->n_examples),
        .lr_next = engine_get_lr(e),
        .grad_norm = engine_get_global_grad_norm(e),
        .loss_scale = engine_get_loss_scale(e),
        .samples = engine_get_global_samples(e),
        .sent_nbytes = engine_get_sent_bytes(e),
        .swaps = engine_get_plan(e)->nvme_nbytes > 0,
        .swap_read_nbytes = swap.read_nbytes,
        .swap_written_nbytes = swap.written_nbytes,
        .swap_waited_s = swap.waited_s,
        .step_s = swap.step_s,
    };
}

static double seconds_run(const struct run *r)
{
    return (double)(clock_now_ns() - r->start_ns) * 1e-9;
}

/* A step's row is on disk before a checkpoint of it can be. */
static cz_status report(struct run *r, const struct tidings *t, struct progress *progress)
{
    if (!run_is_first_rank(r)) return CZ_OK;
    const struct progress_step figures = step_figures(r, t);
    const struct metrics_row row = {.step = figures.step,
                                    .epoch = figures.epoch,
                                    .loss = figures.loss,
                                    .accuracy = figures.accuracy,
                                    .macro_f1 = NAN,
                                    .weighted_f1 = NAN,
                                    .lr = figures.lr_next,
                                    .seconds = seconds_run(r)};
    progress_update(progress, &figures);
    TRY(metrics_write(r->metrics, &row));
    return curve_write(r->curve, &figures);
}

/* ---- evaluation -------------------------------------------------------------------------------
 */

static cz_status log_evaluation(struct run *r, const struct evaluation *e)
{
    const int64_t step = engine_get_global_steps(r->engine);
    const bool classes = e->has_classes;
    const struct metrics_row row = {.step = step,
                                    .epoch = run_epoch(r, step),
                                    .is_eval = true,
                                    .loss = e->loss,
                                    .accuracy = classes ? e->classes.accuracy : NAN,
                                    .macro_f1 = classes ? e->classes.macro.f1 : NAN,
                                    .weighted_f1 = classes ? e->classes.weighted.f1 : NAN,
                                    .lr = NAN,
                                    .seconds = seconds_run(r)};
    return metrics_write(r->metrics, &row);
}

/* One line, or with --log-json one object. */
static void say_evaluation(const struct run *r, const struct evaluation *e, bool is_best)
{
    const struct train_options *o = r->options;
    const int64_t step = engine_get_global_steps(r->engine);
    if (o->log_json) {
        printf("{\"step\": %lld, \"eval_loss\": ", (long long)step);
        tool_put_json_number(stdout, e->loss);
        if (e->has_classes)
            printf(", \"eval_accuracy\": %.9g, \"eval_macro_f1\": %.9g, \"eval_weighted_f1\": %.9g",
                   e->classes.accuracy, e->classes.macro.f1, e->classes.weighted.f1);
        printf(", \"best\": %s}\n", is_best ? "true" : "false");
        fflush(stdout);
    }
    if (o->quiet) return;
    fprintf(stderr, "eval at step %lld (epoch %.2f)  loss %.4f", (long long)step,
            run_epoch(r, step), e->loss);
    if (e->has_classes)
        fprintf(stderr, "  accuracy %.4f  macro F1 %.4f", e->classes.accuracy, e->classes.macro.f1);
    fprintf(stderr, "%s\n", is_best ? "  (best)" : "");
}

/* SAVE/best: a checkpoint folder of its own, so that `latest` and --save-keep do not see it. */
static cz_status best_dir(const struct run *r, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/best", r->options->save) >= PATH_MAX)
        return err_set(CZ_INVALID, 0, "--save: the path is too long");
    return CZ_OK;
}

/* The step whose weights are in SAVE/best, −1 without any. */
static int64_t step_of_best(const char *dir)
{
    char *tag = NULL;
    long long step;
    int n = 0;
    if (ckpt_latest_read(dir, false, &tag) != CZ_OK ||
        sscanf(tag, "global_step%lld%n", &step, &n) != 1 || tag[n] != '\0')
        step = -1;
    err_clear();
    free(tag);
    return step;
}

/* Whether every rank sees some best weights in SAVE/best, or those of `step`. */
static cz_status best_is_there(const struct run *r, int64_t step, bool *out)
{
    char dir[PATH_MAX];
    TRY(best_dir(r, dir));
    const int64_t found = step_of_best(dir);
    const double mine = step < 0 ? found >= 0 : found == step;
    double all;
    TRY(engine_gather_metrics(r->engine, &mine, 1, &all));
    *out = all == (double)engine_get_world_size(r->engine);
    return CZ_OK;
}

cz_status run_resume_best(struct run *r, const char *state_json)
{
    bool there;
    TRY(engine_best_from_json(&r->best, state_json));
    if (!r->best.metric || !r->options->save || isnan(r->best.value)) return CZ_OK;
    TRY(best_is_there(r, -1, &there));
    if (there) return CZ_OK;
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_CKPT,
             "%s/best does not hold the best weights so far (%s %.6g at step %lld): the best is "
             "looked for anew from here on",
             r->options->save, r->best.metric, r->best.value, (long long)r->best.step);
    engine_best_init(&r->best, r->best.metric, r->best.smaller_is_better);
    return CZ_OK;
}

static cz_status save_best(struct run *r)
{
    char dir[PATH_MAX], state[ENGINE_BEST_NBYTES];
    struct data_cursor cursor;
    if (!r->options->save) return CZ_OK;
    TRY(best_dir(r, dir));
    r->task->tell(r, &cursor);
    engine_best_to_json(&r->best, state);
    const struct engine_save_options options = {
        .cursor = &cursor, .client_state_json = state, .keep = 1};
    return engine_save_begin(r->engine, dir, &options);
}

/* As a periodic save: one that fails is a warning, the run goes on. */
static void keep_best(struct run *r)
{
    if (save_best(r) == CZ_OK) return;
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_CKPT, "the best so far, step %lld, was not saved, the run goes on: %s",
             (long long)r->best.step, cz_last_error());
    err_clear();
}

static double metric_of(const struct run *r, const struct evaluation *e)
{
    return r->best.smaller_is_better ? e->loss : class_report_metric(&e->classes, r->best.metric);
}

static cz_status evaluate(struct run *r, struct progress *progress)
{
    const struct evaluation *e = &r->last;
    r->last_step = engine_get_global_steps(r->engine);
    TRY(r->task->evaluate(r, &r->last));
    const bool is_best =
        r->best.metric && engine_best_update(&r->best, metric_of(r, e), r->last_step);
    if (run_is_first_rank(r)) {
        progress_end(progress);
        say_evaluation(r, e, is_best);
        TRY(log_evaluation(r, e));
    }
    progress_skip(progress);
    if (is_best) keep_best(r);
    return CZ_OK;
}

static bool evaluation_is_due(const struct run *r)
{
    return r->eval_interval > 0 && engine_get_global_steps(r->engine) % r->eval_interval == 0;
}

static bool patience_is_over(const struct run *r)
{
    const int64_t patience = r->options->early_stopping;
    if (patience == 0 || r->best.n_since < patience) return false;
    if (run_is_first_rank(r))
        LOGV(LOG_INFO, SUB_ENGINE,
             "stopped early: %lld evaluations without a better %s than %.6g at step %lld",
             (long long)r->best.n_since, r->best.metric, r->best.value, (long long)r->best.step);
    return true;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

static void save_if_due(struct run *r)
{
    char state[ENGINE_BEST_NBYTES];
    struct data_cursor cursor;
    if (!saver_is_due(&r->saver, r->engine)) return;
    r->task->tell(r, &cursor);
    engine_best_to_json(&r->best, state);
    saver_step(&r->saver, r->engine, &cursor, state);
}

static cz_status train_all(struct run *r, struct progress *progress, bool *stopped)
{
    struct tidings tidings = {0};
    TRY(exchange_tidings(r, &tidings));
    while (!tidings.stops && engine_get_global_steps(r->engine) < r->steps &&
           !patience_is_over(r)) {
        TRY(train_step(r));
        TRY(exchange_tidings(r, &tidings));
        TRY(report(r, &tidings, progress));
        if (!tidings.stops && evaluation_is_due(r)) TRY(evaluate(r, progress));
        save_if_due(r);
    }
    *stopped = tidings.stops;
    return CZ_OK;
}

static cz_status save_last(struct run *r)
{
    char state[ENGINE_BEST_NBYTES];
    struct data_cursor cursor;
    r->task->tell(r, &cursor);
    engine_best_to_json(&r->best, state);
    return saver_end(&r->saver, r->engine, &cursor, state);
}

/* The figures of the weights that remain, on standard output. */
static cz_status report_end(struct run *r)
{
    const struct evaluation *e = &r->last;
    if (r->options->eval_data.n == 0) return CZ_OK;
    if (r->last_step != engine_get_global_steps(r->engine)) {
        TRY(r->task->evaluate(r, &r->last));
        if (run_is_first_rank(r) && !r->went_back) TRY(log_evaluation(r, e));
    }
    if (!run_is_first_rank(r)) return CZ_OK;
    if (e->has_classes && !r->options->log_json) {
        const size_t n = texts_n_labels(r->texts);
        TRY(class_report_print(stdout, r->confusion + n * n, n, texts_labels(r->texts), 4, true));
        printf("eval_accuracy %.6f\n", e->classes.accuracy);
    }
    printf("eval_loss %.6f\n", e->loss);
    return CZ_OK;
}

/* The weights of the best evaluation, when they are kept and are not these. */
static cz_status take_best(struct run *r)
{
    char dir[PATH_MAX];
    bool there;
    if (!r->best.metric || !r->options->save || isnan(r->best.value)) return CZ_OK;
    if (r->best.step == engine_get_global_steps(r->engine)) return CZ_OK;
    TRY(engine_save_wait(r->engine));
    TRY(best_dir(r, dir));
    TRY(best_is_there(r, r->best.step, &there));
    if (!there) {
        if (run_is_first_rank(r))
            LOGV(LOG_WARN, SUB_CKPT,
                 "%s does not hold the weights of step %lld, the best: those of the last step "
                 "remain",
                 dir, (long long)r->best.step);
        return CZ_OK;
    }
    if (run_is_first_rank(r))
        LOGV(LOG_INFO, SUB_ENGINE, "the best %s was %.6g, at step %lld: back to those weights",
             r->best.metric, r->best.value, (long long)r->best.step);
    r->last_step = -1; /* of other weights */
    r->went_back = true;
    return init_weights(dir, r->engine);
}

static cz_status export_model(struct run *r)
{
    const char *dir = r->options->export_dir;
    if (!dir) return CZ_OK;
    TRY(engine_export_hf(r->engine, dir, DTYPE_F32));
    if (run_is_first_rank(r)) TRY(tokenizer_export(r->tokenizer, dir));
    LOGV(LOG_INFO, SUB_ENGINE, "wrote %s", dir);
    return CZ_OK;
}

cz_status run_train(struct run *r)
{
    const struct train_options *o = r->options;
    struct progress progress;
    struct progress_options options = {
        .last_step = r->steps,
        .tokens_per_step = r->loader ? 0 : engine_get_train_batch(r->engine) * r->T,
        .samples_per_step = engine_get_train_batch(r->engine),
        .n_epochs = o->epochs,
        .quiet = o->quiet || !run_is_first_rank(r),
        .log_json = o->log_json && run_is_first_rank(r),
        .show_scale = r->fp16,
    };
    progress_begin(&progress, &options);
    bool stopped = false;
    cz_status st = train_all(r, &progress, &stopped);
    progress_end(&progress);
    if (st != CZ_OK) return st;
    TRY(save_last(r));
    if (stopped) {
        LOGV(LOG_INFO, SUB_ENGINE, "asked to stop: stopped after step %lld",
             (long long)engine_get_global_steps(r->engine));
        return CZ_OK;
    }
    TRY(take_best(r));
    TRY(report_end(r));
    return export_model(r);
}

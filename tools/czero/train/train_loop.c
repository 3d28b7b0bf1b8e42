/* The run itself: steps, what is shown of them, evaluations, saves, the end. Invariant: every rank
 * takes the same branch at every step, since all of them lead to collective operations; whatever
 * one rank alone knows (a signal, its accuracy) is exchanged first. */
#include "base/printable.h"
#include "base/size.h"
#include "tools/czero/args.h"
#include "tools/czero/terminal.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/train.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/plan/plan.h"
#include "formats/output.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- stopping ------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_asked, stop_agreed;

/* Called in a signal handler: only flags. */
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
    double n_cut;              /* texts that were longer than the rows, so far */
};

/* One gather per step for all that ranks need of each other. */
static cz_status exchange_tidings(struct run *r, struct tidings *out)
{
    const double n_cut = r->loader ? (double)cz_text_loader_n_cut(r->loader) : 0;
    const double mine[] = {stop_asked, r->n_hits, r->n_examples, n_cut};
    double sums[CZ_ARRAY_LEN(mine)];
    TRY(engine_gather_metrics(r->engine, mine, CZ_ARRAY_LEN(mine), sums));
    r->n_hits = r->n_examples = 0;
    *out = (struct tidings){sums[0] > 0, sums[1], sums[2], sums[3]};
    if (!out->stops) return CZ_OK;
    stop_agreed = 1; /* all ranks are alive, and have time to save */
    engine_world_interrupt_over();
    return CZ_OK;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static double quotient(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

/* "-nan" is how x86 prints most NaNs; the sign means nothing. */
static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

static struct progress_step step_figures(const struct run *r, const struct tidings *t)
{
    const struct cz_engine *e = r->engine;
    struct cz_swap_traffic swap = {.size = sizeof swap};
    engine_get_swap_traffic(e, &swap);
    return (struct progress_step){
        .step = engine_get_global_steps(e),
        .epoch = run_epoch(r),
        .skipped = engine_get_skipped_steps(e),
        .loss = unsigned_nan(engine_get_boundary_loss(e)),
        .accuracy = quotient(t->n_hits, t->n_examples),
        .lr_next = engine_get_lr(e),
        .grad_norm = unsigned_nan(engine_get_global_grad_norm(e)),
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

/* ---- evaluation ----------------------------------------------------------------------------- */

/* NaN where a task has no such figure: an empty cell. */
static cz_status log_evaluation(struct run *r, const struct evaluation *e)
{
    const int64_t step = engine_get_global_steps(r->engine);
    const bool classes = e->has_classes;
    const struct metrics_row row = {.step = step,
                                    .epoch = run_epoch(r),
                                    .is_eval = true,
                                    .loss = e->loss,
                                    .accuracy = classes         ? e->classes.accuracy
                                                : e->has_tokens ? e->token_accuracy
                                                                : NAN,
                                    .macro_f1 = classes ? e->classes.macro.f1 : NAN,
                                    .weighted_f1 = classes ? e->classes.weighted.f1 : NAN,
                                    .lr = NAN,
                                    .train_loss = quotient(r->since.loss, r->since.weight),
                                    .train_accuracy =
                                        quotient(r->since.n_hits, r->since.n_examples),
                                    .seconds = seconds_run(r)};
    return metrics_write(r->metrics, &row);
}

static void put_values_json(const struct value_summary *v)
{
    static const char *const names[] = {"mae", "pearson", "spearman", "r2"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        printable_print(stdout, ", \"eval_%s\": ", names[i]);
        tool_put_json_number(stdout, value_report_metric(v, names[i]));
    }
}

/* Weighted by examples: the last step of an epoch may have fewer. Steps that were skipped count,
 * unless their loss is not finite. */
static void add_to_means(struct run_means *m, double loss, const struct tidings *t)
{
    const double weight = t->n_examples > 0 ? t->n_examples : 1;
    m->n_hits += t->n_hits;
    m->n_examples += t->n_examples;
    if (!isfinite(loss)) return;
    m->loss += loss * weight;
    m->weight += weight;
}

/* Figures of an evaluation, in one piece: a terminal's line breaks between them. */
struct items {
    char text[512];
    size_t n, column;
    int columns; /* 0: as many as there are */
};

static void put_item(struct items *l, const char *fmt, ...) CZ_PRINTF(2, 3);

static void put_item(struct items *l, const char *fmt, ...)
{
    char item[96];
    va_list ap;
    va_start(ap, fmt);
    const size_t n = (size_t)vsnprintf(item, sizeof item, fmt, ap);
    va_end(ap);
    const bool breaks = l->columns > 0 && l->n > 0 && l->column + 2 + n > (size_t)l->columns;
    const char *gap = l->n == 0 ? "" : breaks ? "\n  " : "  ";
    if (l->n + 3 + n + 2 >= sizeof l->text) return; /* and a line end */
    l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s%s", gap, item);
    l->column = breaks ? 2 + n : l->column + strlen(gap) + n;
}

/* One line, or with --log-json one object. */
static void say_evaluation(const struct run *r, const struct evaluation *e, int place)
{
    const struct run_means *t = &r->since;
    const double train_loss = quotient(t->loss, t->weight);
    const double train_accuracy = quotient(t->n_hits, t->n_examples);
    const struct train_options *o = r->options;
    const int64_t step = engine_get_global_steps(r->engine);
    if (o->log_json) {
        printf("{\"step\": %lld, \"eval_loss\": ", (long long)step);
        tool_put_json_number(stdout, e->loss);
        if (e->has_entities)
            printf(", \"eval_precision\": %.9g, \"eval_recall\": %.9g, \"eval_f1\": %.9g",
                   e->entities.micro.precision, e->entities.micro.recall, e->entities.micro.f1);
        if (e->has_classes)
            printf(", \"eval_accuracy\": %.9g, \"eval_macro_f1\": %.9g, \"eval_weighted_f1\": %.9g",
                   e->classes.accuracy, e->classes.macro.f1, e->classes.weighted.f1);
        if (e->has_values) put_values_json(&e->values);
        if (!e->has_classes && !e->has_values) {
            printf(", \"eval_perplexity\": ");
            tool_put_json_number(stdout, exp(e->loss));
        }
        if (e->has_tokens) {
            printf(", \"eval_accuracy\": ");
            tool_put_json_number(stdout, e->token_accuracy);
        }
        if (!isnan(train_loss)) printf(", \"train_loss\": %.9g", train_loss);
        if (!isnan(train_accuracy)) printf(", \"train_accuracy\": %.9g", train_accuracy);
        printable_print(stdout, ", \"best\": %s}\n", place == 0 ? "true" : "false");
        fflush(stdout);
    }
    if (o->quiet) return;
    struct items line = {.columns = terminal_columns(stderr)};
    put_item(&line, "eval at step %lld (epoch %.2f)", (long long)step, run_epoch(r));
    put_item(&line, "loss %.4f", e->loss);
    if (e->has_entities) {
        put_item(&line, "F1 %.4f", e->entities.micro.f1);
        put_item(&line, "precision %.4f", e->entities.micro.precision);
        put_item(&line, "recall %.4f", e->entities.micro.recall);
        put_item(&line, "accuracy %.4f", e->classes.accuracy);
    } else if (e->has_values) {
        put_item(&line, "MAE %.4f", e->values.mae);
        put_item(&line, "Pearson %.4f", e->values.pearson);
        put_item(&line, "Spearman %.4f", e->values.spearman);
        put_item(&line, "R2 %.4f", e->values.r2);
    } else if (e->has_classes) {
        put_item(&line, "accuracy %.4f", e->classes.accuracy);
        put_item(&line, "macro F1 %.4f", e->classes.macro.f1);
    } else {
        put_item(&line, "perplexity %.2f", exp(e->loss));
    }
    if (e->has_tokens) put_item(&line, "accuracy %.4f", e->token_accuracy);
    if (!isnan(train_loss)) put_item(&line, "train loss %.4f", train_loss);
    if (!isnan(train_accuracy)) put_item(&line, "train accuracy %.4f", train_accuracy);
    if (place == 0) put_item(&line, "(best)");
    if (place > 0) put_item(&line, "(number %d of the best)", place + 1);
    line.text[line.n] = '\n'; /* put_item() keeps a byte for it */
    terminal_put_wrapped(stderr, line.text);
}

/* Figures of logits that are not finite are none, whatever class came first. */
static cz_status measure(struct run *r)
{
    TRY(r->task->evaluate(r, &r->last));
    r->last.loss = unsigned_nan(r->last.loss);
    return CZ_OK;
}

/* The result is kept as r->last: the end of the run need not evaluate the same weights twice. */
static cz_status evaluate(struct run *r, struct progress *progress)
{
    const struct evaluation *e = &r->last;
    r->last_step = engine_get_global_steps(r->engine);
    TRY(measure(r));
    const int place = run_place_best(r, e);
    if (run_is_first_rank(r)) {
        progress_end(progress);
        say_evaluation(r, e, place);
        TRY(log_evaluation(r, e));
    }
    progress_skip(progress);
    r->since = (struct run_means){0};
    if (place >= 0) run_keep_best(r, place);
    return CZ_OK;
}

/* True after an interval, after a step in which an epoch ended, and after the last step, whose
 * weights may be the best. */
static bool evaluation_is_due(const struct run *r, uint64_t n_epochs_before)
{
    const int64_t step = engine_get_global_steps(r->engine);
    if (r->eval_interval == 0 && !r->eval_epochs) return false;
    if (step == r->steps) return true;
    return r->eval_epochs ? run_epochs_over(r) > n_epochs_before : step % r->eval_interval == 0;
}

/* Counted in evaluations, not steps. */
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

/* After the first pass, or at the end of a shorter run: by then most texts have been read. */
static void say_cut(struct run *r, double n_cut, uint64_t n_epochs)
{
    char text[TOOL_CUT_NBYTES];
    const bool is_over = engine_get_global_steps(r->engine) == r->steps;
    if (r->is_cut_told || !(n_cut > 0) || (run_epochs_over(r) == n_epochs && !is_over)) return;
    r->is_cut_told = true;
    const uint64_t n = cz_texts_count(r->texts), cut = (uint64_t)n_cut;
    if (run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_DATA, "data: %s",
             tool_cut_sentence(text, cut < n ? cut : n, n, "text", r->T));
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* The order within a step is: train, exchange, show, evaluate, save. A checkpoint thus contains the
 * evaluation of its own step. */
static cz_status train_all(struct run *r, struct progress *progress, bool *stopped)
{
    struct tidings tidings = {0};
    TRY(exchange_tidings(r, &tidings));
    const bool evaluates = r->eval_interval > 0 || r->eval_epochs;
    if (r->since.evaluation_is_owed && evaluates && !tidings.stops) TRY(evaluate(r, progress));
    while (!tidings.stops && engine_get_global_steps(r->engine) < r->steps &&
           !patience_is_over(r)) {
        const uint64_t n_epochs = run_epochs_over(r);
        TRY(r->task->train_step(r));
        r->step_loss = engine_get_boundary_loss(r->engine);
        TRY(exchange_tidings(r, &tidings));
        add_to_means(&r->since, r->step_loss, &tidings);
        /* A step's row is on disk before a checkpoint of it can be. */
        if (run_is_first_rank(r)) {
            const struct progress_step figures = step_figures(r, &tidings);
            const struct metrics_row row = {.step = figures.step,
                                            .epoch = figures.epoch,
                                            .loss = figures.loss,
                                            .accuracy = figures.accuracy,
                                            .macro_f1 = NAN,
                                            .weighted_f1 = NAN,
                                            .lr = figures.lr_next,
                                            .train_loss = NAN,
                                            .train_accuracy = NAN,
                                            .seconds = seconds_run(r)};
            progress_update(progress, &figures);
            TRY(metrics_write(r->metrics, &row));
            TRY(curve_write(r->curve, &figures));
        }
        say_cut(r, tidings.n_cut, n_epochs);
        const bool is_due = evaluation_is_due(r, n_epochs);
        if (is_due && !tidings.stops) TRY(evaluate(r, progress));
        r->since.evaluation_is_owed = is_due && tidings.stops;
        /* The cursor is taken with the weights: a resumed run continues at the next sample. */
        if (saver_is_due(&r->saver, r->engine)) {
            const struct run_place place = run_tell(r);
            saver_step(&r->saver, r->engine, &place.cursor, place.state_json);
        }
    }
    *stopped = tidings.stops;
    return CZ_OK;
}

/* The figures of an evaluation on standard output. name: "eval" or "test"; is_new: no line told of
 * it yet. */
static cz_status print_report(const struct run *r, const struct evaluation *e, const char *name,
                              bool is_new)
{
    const bool tables = !r->options->log_json;
    if (e->has_values && tables) {
        TRY(value_report_print(stdout, &e->values, 6));
    } else if (e->has_entities && !r->scheme && tables) {
        const size_t n = cz_texts_n_labels(r->texts);
        TRY(set_report_print(stdout, r->entities + n, n, cz_texts_labels(r->texts), 4));
        printable_print(stdout, "%s_f1 %.6f\n", name, e->entities.micro.f1);
    } else if (e->has_entities && tables) {
        const size_t n = entity_scheme_n_types(r->scheme);
        TRY(entity_report_print(stdout, r->scheme, r->entities + n, 4));
        printable_print(stdout, "%s_f1 %.6f\n", name, e->entities.micro.f1);
    } else if (e->has_classes && tables) {
        const size_t n = cz_texts_n_labels(r->texts);
        TRY(class_report_print(stdout, r->confusion + n * n, n, cz_texts_labels(r->texts), 4,
                               true));
    }
    if (e->has_classes && tables)
        printable_print(stdout, "%s_accuracy %.6f\n", name, e->classes.accuracy);
    if (e->has_tokens && tables)
        printable_print(stdout, "%s_accuracy %.6f\n", name, e->token_accuracy);
    printable_print(stdout, "%s_loss %.6f\n", name, e->loss);
    if (e->has_classes || e->has_values || r->options->quiet || !is_new) return CZ_OK;
    printable_print(stderr, "%s of the end  loss %.4f  perplexity %.2f", name, e->loss,
                    exp(e->loss));
    if (e->has_tokens) fprintf(stderr, "  accuracy %.4f", e->token_accuracy);
    fputc('\n', stderr);
    return CZ_OK;
}

/* Evaluates the weights that the run ends with. */
static cz_status report_end(struct run *r)
{
    const struct evaluation *e = &r->last;
    if (!run_evaluates(r)) return CZ_OK;
    const bool is_new = r->last_step != engine_get_global_steps(r->engine);
    if (is_new) {
        TRY(measure(r));
        if (run_is_first_rank(r) && !r->went_back) TRY(log_evaluation(r, e));
    }
    return run_is_first_rank(r) ? print_report(r, e, "eval", is_new || r->went_back) : CZ_OK;
}

static void swap_test_data(struct run *r)
{
    struct cz_texts *texts = r->eval_texts;
    struct chat_set *chats = r->eval_chats;
    struct cz_data_loader *data = r->eval_data;
    r->eval_texts = r->test_texts;
    r->eval_chats = r->test_chats;
    r->eval_data = r->test_data;
    r->test_texts = texts;
    r->test_chats = chats;
    r->test_data = data;
}

/* Evaluates on --test-data, which chose neither the best weights nor the end of the run. */
static cz_status report_test(struct run *r)
{
    struct evaluation e = {0};
    if (r->options->test_data.n == 0) return CZ_OK;
    swap_test_data(r);
    cz_status st = r->task->evaluate(r, &e);
    swap_test_data(r);
    TRY(st);
    if (run_is_first_rank(r)) TRY(print_report(r, &e, "test", true));
    if (isfinite(e.loss)) return CZ_OK;
    return err_set(CZ_DIVERGED, 0, "the evaluation of --test-data has a loss of %s",
                   isnan(e.loss) ? "nan" : "inf");
}

/* A model that came in 16 bits is exported in them, too; an adapter is small, and PEFT writes its
 * in fp32. */
static enum cz_dtype export_dtype(const struct run *r)
{
    const char *name = r->options->export_dtype;
    if (!name && cz_model_has_adapter(run_model(r))) return DTYPE_F32;
    return args_dtype(name, model_weights_dtype(run_model(r)));
}

/* Steps without finite gradients change nothing: a run of many is not what was asked for, and one
 * that ends without a finite loss has failed. All ranks see the same. */
static cz_status check_finite(const struct run *r)
{
    const int64_t n = engine_get_global_steps(r->engine) - r->first_step;
    const int64_t n_skipped = engine_get_skipped_steps(r->engine) - r->first_skipped;
    const double loss = r->step_loss;
    if (n > 0 && !isfinite(loss))
        return err_set(
            CZ_DIVERGED, 0,
            "the run ended with a loss of %s; %lld of its %lld steps were skipped: lower "
            "the learning rate, or continue from an earlier checkpoint",
            isnan(loss) ? "nan" : "inf", (long long)n_skipped, (long long)n);
    if (run_evaluates(r) && !isfinite(r->last.loss))
        return err_set(CZ_DIVERGED, 0, "the evaluation of the end has a loss of %s",
                       isnan(r->last.loss) ? "nan" : "inf");
    if (2 * n_skipped > n && run_is_first_rank(r))
        LOGV(LOG_WARN, SUB_ENGINE,
             "%lld of %lld step%s skipped, because their gradients were not finite: the run made "
             "%lld "
             "update%s",
             (long long)n_skipped, (long long)n, n == 1 ? " was" : "s were",
             (long long)(n - n_skipped), plural((uint64_t)(n - n_skipped)));
    return CZ_OK;
}

/* The files of the tokenizer, and the chat template. */
static cz_status export_text(const struct run *r, const char *dir)
{
    struct out_folder folder;
    TRY(out_folder_open(dir, &folder));
    cz_status st = chat_template_export(r->chat.chat, r->tokenizer, &folder);
    out_folder_close(&folder);
    return st;
}

cz_status run_train(struct run *r)
{
    const struct train_options *o = r->options;
    struct progress progress;
    struct progress_options options = {
        .last_step = r->steps,
        .tokens_per_step =
            (int64_t)((double)engine_get_train_batch(r->engine) * run_row_tokens(r) + 0.5),
        .samples_per_step = engine_get_train_batch(r->engine),
        .n_epochs = isnan(o->epochs) ? 0 : o->epochs,
        .lr = engine_get_lr(r->engine),
        .first_step = r->first_step,
        .quiet = o->quiet || !run_is_first_rank(r),
        .log_json = o->log_json && run_is_first_rank(r),
        .show_scale = r->fp16,
    };
    progress_begin(&progress, &options);
    bool stopped = false;
    cz_status st = train_all(r, &progress, &stopped);
    progress_end(&progress);
    if (st != CZ_OK) return st;
    /* The last state is saved whatever the interval. */
    const struct run_place place = run_tell(r);
    TRY(saver_end(&r->saver, r->engine, &place.cursor, place.state_json));
    if (stopped) {
        LOGV(LOG_INFO, SUB_ENGINE, "received a stop signal: stopped after step %lld",
             (long long)engine_get_global_steps(r->engine));
        run_say_end(r, true);
        return CZ_OK;
    }
    TRY(run_take_best(r));
    TRY(report_end(r));
    TRY(report_test(r));
    /* The weights of the best evaluation are finite, even if the run diverged later. */
    if (!r->went_back) TRY(check_finite(r));
    /* All ranks take part in the export, one writes. */
    const char *dir = r->options->export_dir;
    if (dir) {
        TRY(engine_export_hf(r->engine, dir, export_dtype(r)));
        if (run_is_first_rank(r)) TRY(export_text(r, dir));
    }
    if (r->went_back) TRY(check_finite(r));
    run_say_end(r, false);
    return CZ_OK;
}

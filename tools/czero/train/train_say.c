/* What a run says of itself: lines before the first step, so that a wrong model, precision or
 * folder is seen before hours are spent, and a line after the last. */
#include "tools/czero/tool.h"
#include "tools/czero/train/train.h"

#include "base/clock.h"
#include "base/printable.h"
#include "base/size.h"
#include "engine/plan/plan.h"
#include "tools/czero/bar.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { TEXT_NBYTES = 1024 };

/* "124.4 M" */
static const char *parameters(size_t n, char buf[24])
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(units); i++)
        if ((double)n >= units[i].unit) {
            snprintf(buf, 24, "%.1f%s", (double)n / units[i].unit, units[i].name);
            return buf;
        }
    snprintf(buf, 24, "%zu", n);
    return buf;
}

static const char *weights(const struct run *r)
{
    const struct train_options *o = r->options;
    return r->is_random    ? "RANDOM weights"
           : r->resume.dir ? "resumed"
           : o->init       ? o->init
                           : o->model;
}

/* "runs/a (checkpoints), trained (model)", or that nothing stays. */
static const char *results(const struct train_options *o, bool adapts, char *buf, size_t nbytes)
{
    if (!o->save && !o->export_dir)
        return "NOTHING IS KEPT (--save DIR keeps checkpoints, --export DIR the model)";
    snprintf(buf, nbytes, "keeps %s%s%s%s%s", o->save ? o->save : "",
             o->save ? " (checkpoints)" : "", o->save && o->export_dir ? ", " : "",
             o->export_dir ? o->export_dir : "",
             !o->export_dir ? ""
             : adapts       ? " (adapter)"
                            : " (model)");
    return buf;
}

/* "9,506" */
static const char *grouped(size_t n, char buf[32])
{
    char digits[24];
    size_t at = 0;
    const size_t len = (size_t)snprintf(digits, sizeof digits, "%zu", n);
    for (size_t i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

static void say_trainable(const struct cz_model *m)
{
    const struct param_table *table = model_params(m);
    size_t n = 0, all = 0;
    char trained[32], total[32];
    for (size_t i = 0; i < table->n_params; i++) {
        all += table->params[i].numel;
        if (table->params[i].trainable) n += table->params[i].numel;
    }
    tool_note("czero: trainable: %s of %s (%.3g %%)", grouped(n, trained), grouped(all, total),
              100.0 * (double)n / (double)all);
}

/* Straight to stderr, in front of the log's lines that wait for it (tool_log_hold()). */
void run_say_start(const struct run *r)
{
    const struct train_options *o = r->options;
    const struct cz_plan *p = engine_get_plan(r->engine);
    char numel[24], host[24], device[24], kept[TEXT_NBYTES];
    if (o->quiet || !run_is_first_rank(r)) return;
    tool_note("czero: training %s: %s parameters, %s; tokenizer: %s", p->model_name,
              parameters(p->numel, numel), weights(r), cz_tokenizer_name(r->tokenizer));
    tool_note(
        "czero: %s, ZeRO stage %d, %lld rank%s, batch %lld = %lld x %lld x %lld, rows of %lld "
        "tokens, %lld step%s",
        dtype_name(p->dtype), p->stage, (long long)p->world_size, p->world_size == 1 ? "" : "s",
        (long long)engine_get_train_batch(r->engine), (long long)r->micro,
        (long long)r->accumulation, (long long)p->world_size, (long long)r->T, (long long)r->steps,
        r->steps == 1 ? "" : "s");
    const bool on_gpu = p->device_peak_nbytes > 0;
    tool_note("czero: planned memory: %s%s%s; %s",
              on_gpu ? size_human(p->device_peak_nbytes, device, sizeof device) : "",
              on_gpu ? " of the GPU, " : "", size_human(p->host_peak_nbytes, host, sizeof host),
              results(o, cz_model_has_adapter(run_model(r)), kept, sizeof kept));
    say_trainable(run_model(r));
    if (r->first_step > 0)
        printable_print(stderr, "czero: resumed %s at step %lld%s\n", r->resume.dir,
                        (long long)r->first_step,
                        r->finished ? ": all its steps are made, nothing is left to train" : "");
    char slow[200];
    if (*plan_slow_step(p, slow, sizeof slow) && !r->finished)
        printable_print(stderr, "czero: %s\n", slow);
}

/* What uses the model: data that the run was evaluated on, or trained on, are at hand. */
static void say_use(const struct run *r, bool adapts)
{
    const struct train_options *o = r->options;
    const char *data = o->test_data.n > 0   ? o->test_data.items[0]
                       : o->eval_data.n > 0 ? o->eval_data.items[0]
                                            : o->data.items[0];
    const bool is_bytes = strcmp(cz_tokenizer_name(r->tokenizer), "bytes") == 0;
    const bool predicts = r->texts != NULL;
    const bool chats = r->task == &train_task_sft, writes = r->task == &train_task_tokens;
    printable_print(stderr, "czero: next: czero %s --model %s%s%s",
                    predicts          ? "predict"
                    : chats || writes ? "generate"
                                      : "eval",
                    adapts ? o->model : o->export_dir, adapts ? " --adapter " : "",
                    adapts ? o->export_dir : "");
    if (is_bytes && predicts) printable_print(stderr, " --tokenizer bytes");
    if (predicts) {
        printable_print(stderr, " --data %s", data);
        if (o->text_column) printable_print(stderr, " --text-column \"%s\"", o->text_column);
        if (o->pair_column) printable_print(stderr, " --pair-column \"%s\"", o->pair_column);
        printable_print(stderr, r->scheme ? "" : " -o predictions.csv");
    } else if (chats) {
        printable_print(stderr, " --chat \"…\"");
    } else if (writes) {
        printable_print(stderr, " --prompt \"…\"");
    } else {
        printable_print(stderr, " --data %s --seq-len %lld", data, (long long)r->T);
    }
}

/* What to type next: a classifier predicts, a language model generates, a checkpoint is exported. A
 * line of its own, which no terminal's width breaks. */
static void say_next(const struct run *r)
{
    const struct train_options *o = r->options;
    const bool adapts = cz_model_has_adapter(run_model(r));
    if (o->export_dir)
        say_use(r, adapts);
    else if (o->save)
        printable_print(stderr, "czero: next: czero export %s%s%s exported",
                        adapts ? "--adapter " : "", o->save, r->best.n_kept > 0 ? "/best" : "");
    else
        return;
    fputc('\n', stderr);
}

/* Which checkpoint has which value: --init and czero export take a tag. */
static void say_best(const struct run *r)
{
    const struct engine_best *b = &r->best;
    if (!r->options->save || b->n_keep < 2 || b->n_kept == 0) return;
    printable_print(stderr, "czero: the best of %s/best by %s:", r->options->save, b->metric);
    for (size_t i = 0; i < b->n_kept; i++)
        printable_print(stderr, "%s global_step%lld (%.4f)", i > 0 ? "," : "",
                        (long long)b->kept[i].step, b->kept[i].value);
    fputc('\n', stderr);
}

void run_say_end(const struct run *r, bool stopped)
{
    const struct train_options *o = r->options;
    const int64_t step = engine_get_global_steps(r->engine), n = step - r->first_step;
    const double seconds = (double)(clock_now_ns() - r->start_ns) * 1e-9;
    const double rows = (double)(n * engine_get_train_batch(r->engine));
    struct rusage used;
    char time[32], speed[24], rate[64] = "", memory[24], step_text[32] = "";
    const char *save = o->save ? o->save : "", *export_dir = stopped ? NULL : o->export_dir;
    if (o->quiet || !run_is_first_rank(r)) return;
    say_best(r);
    getrusage(RUSAGE_SELF, &used);
    bar_duration(seconds, time, sizeof time);
    const double tokens = run_row_tokens(r);
    bar_rate(rows * (tokens > 0 ? tokens : 1) / seconds, speed, sizeof speed);
    if (n > 0) snprintf(rate, sizeof rate, ", %s %s/s", speed, tokens > 0 ? "tokens" : "samples");
    if (o->save) snprintf(step_text, sizeof step_text, "/global_step%lld", (long long)step);
    tool_note("czero: %s %lld step%s in %s%s, peak memory %s%s%s%s%s%s%s%s",
              stopped ? "stopped after" : "trained", (long long)n, n == 1 ? "" : "s", time, rate,
              size_human((size_t)used.ru_maxrss * 1024, memory, sizeof memory),
              o->save ? "; saved " : "", save, step_text, export_dir ? "; exported " : "",
              export_dir ? export_dir : "", o->save || o->export_dir ? "" : "; nothing was kept",
              stopped && o->save ? "; to continue: the same command with --resume" : "");
    if (!stopped) say_next(r);
}

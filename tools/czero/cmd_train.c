/* czero train: a DeepSpeed config, a model and data in; a trained model out. */
#include "args.h"
#include "curve.h"
#include "progress.h"
#include "saver.h"
#include "tool.h"

#include "base/log.h"
#include "data/data.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "model/model.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct train_options {
    const char *config, *model, *init, *tokenizer, *shuffle, *freeze, *device;
    const char *save, *resume, *export_dir, *curve, *precision, *compat, *groups;
    struct arg_list data, eval_data, set, autos;
    int64_t seq_len, steps, seed, save_interval, save_keep;
    int64_t micro_batch, accumulation, warmup_steps;
    double lr, weight_decay, max_grad_norm;
    bool log_json, quiet, strict;
};

#define FIELD(member) offsetof(struct train_options, member)

static const struct arg_spec train_specs[] = {
    {"--config", ARG_STRING, FIELD(config), "FILE", "DeepSpeed config", .required = true},
    {"--model", ARG_STRING, FIELD(model), "DIR|PRESET",
     "Hugging Face folder, or gpt2-tiny, gpt2, gpt2-medium, …", .required = true},
    {"--data", ARG_WORDS, FIELD(data), "PATH", "text or token files (.bin, Megatron .bin/.idx)",
     .required = true},
    {"--seq-len", ARG_INT, FIELD(seq_len), "T", "tokens per row", .min = 1, .required = true},
    {"--steps", ARG_INT, FIELD(steps), "N", "optimizer steps, skipped ones included", .min = 1,
     .required = true},
    {"", ARG_HEADING, 0, NULL, "Model and data:"},
    {"--init", ARG_STRING, FIELD(init), "random|DIR",
     "where weights come from: a Hugging Face folder, or a checkpoint, of which nothing else is "
     "used (default: the model's folder; random for a preset)"},
    {"--tokenizer", ARG_STRING, FIELD(tokenizer), "bytes|DIR",
     "how text becomes tokens (default: bytes)"},
    {"--seed", ARG_INT, FIELD(seed), "S",
     "weights, shuffling and dropout (default: 42; with --resume the run's)"},
    {"--shuffle", ARG_CHOICE, FIELD(shuffle), "on|off",
     "order of rows (default: on; with --resume the run's)"},
    {"--freeze", ARG_STRING, FIELD(freeze), "REGEX", "parameters that are not trained"},
    {"--device", ARG_CHOICE, FIELD(device), "cpu|cuda", "where to train (default: cpu)"},
    {"--groups", ARG_CHOICE, FIELD(groups), "one|hf",
     "hf: no weight decay on biases and norms (default: one group)"},
    {"", ARG_HEADING, 0, NULL, "Output:"},
    {"--export", ARG_STRING, FIELD(export_dir), "DIR", "write a Hugging Face folder at the end"},
    {"--eval-data", ARG_WORDS, FIELD(eval_data), "PATH", "report the loss on these at the end"},
    {"--curve", ARG_STRING, FIELD(curve), "FILE.csv",
     "write step,loss,lr_next,grad_norm,loss_scale"},
    {"--log-json", ARG_FLAG, FIELD(log_json), NULL, "one JSON object per step on stdout"},
    {"--quiet", ARG_FLAG, FIELD(quiet), NULL, "no progress, warnings only"},
    {"", ARG_HEADING, 0, NULL, "Checkpoints:"},
    {"--save", ARG_STRING, FIELD(save), "DIR",
     "write a checkpoint (DeepSpeed's format) after the last step"},
    {"--save-interval", ARG_INT, FIELD(save_interval), "N", "and after every N steps", .min = 1},
    {"--save-keep", ARG_INT, FIELD(save_keep), "N",
     "remove all but the newest N (default: keep all)", .min = 1},
    {"--resume", ARG_STRING, FIELD(resume), "DIR[:TAG]",
     "go on from a checkpoint, czero's or DeepSpeed's, of any stage and number of ranks (default "
     "tag: the latest)"},
    {"", ARG_HEADING, 0, NULL, "Values for \"auto\" in the config:"},
    {"--lr", ARG_DOUBLE, FIELD(lr), "X", "learning rate"},
    {"--warmup-steps", ARG_INT, FIELD(warmup_steps), "N", "steps of warm-up", .min = 0},
    {"--micro-batch", ARG_INT, FIELD(micro_batch), "N", "rows per forward pass", .min = 1},
    {"--accumulation", ARG_INT, FIELD(accumulation), "N", "micro-batches per step", .min = 1},
    {"--weight-decay", ARG_DOUBLE, FIELD(weight_decay), "X", "weight decay"},
    {"--max-grad-norm", ARG_DOUBLE, FIELD(max_grad_norm), "X", "gradient clipping"},
    {"--precision", ARG_CHOICE, FIELD(precision), "fp32|bf16|fp16", "arithmetic"},
    {"--auto", ARG_LIST, FIELD(autos), "NAME=VALUE", "any other \"auto\", by its path"},
    {"", ARG_HEADING, 0, NULL, "Config:"},
    {"--set", ARG_LIST, FIELD(set), "path=value", "override any key of the config"},
    {"--strict", ARG_FLAG, FIELD(strict), NULL, "unknown keys are errors"},
    {"--compat", ARG_CHOICE, FIELD(compat), "0.16|0.19",
     "defaults of that DeepSpeed version (default: 0.19)"},
};

static const struct arg_command train_command = {
    .name = "czero train",
    .summary = "Train a model from a DeepSpeed config.",
    .specs = train_specs,
    .n_specs = CZ_ARRAY_LEN(train_specs),
    .epilogue =
        "Example:\n"
        "  czero train --config configs/quickstart.json --model gpt2-tiny \\\n"
        "              --data corpus.txt --seq-len 64 --steps 600 --export trained/\n\n"
        "With --shuffle off, row k of the data is tokens [k*T, k*T+T], and micro step g of\n"
        "step s on rank r takes rows ((s*accumulation+g)*world+r)*micro + i.\n"
        "SIGTERM ends the run at the next step, saved if --save says where, with exit code 0.\n"
        "Several ranks: czero launch -n N -- train … (czero launch --help).",
};

/* --auto assignments made from the flags; texts owned by the struct. */
struct auto_values {
    char texts[40][96];
    const char *items[ARG_LIST_MAX + 41];
    size_t n_texts, n_items;
};

static void auto_add(struct auto_values *a, const char *path, const char *fmt, ...) CZ_PRINTF(3, 4);

static void auto_add(struct auto_values *a, const char *path, const char *fmt, ...)
{
    if (a->n_texts == CZ_ARRAY_LEN(a->texts)) return;
    char *text = a->texts[a->n_texts++];
    int n = snprintf(text, sizeof a->texts[0], "%s=", path);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof a->texts[0] - (size_t)n, fmt, ap);
    va_end(ap);
    a->items[a->n_items++] = text;
}

/* The Hugging Face integration's rules: which flag fills which "auto". */
static void auto_from_flags(struct auto_values *a, const struct train_options *o,
                            const struct model *model, int world_size)
{
    for (size_t i = 0; i < o->autos.n; i++) a->items[a->n_items++] = o->autos.items[i];
    auto_add(a, "hidden_size", "%lld", (long long)model_hidden_size(model));
    auto_add(a, "scheduler.params.total_num_steps", "%lld", (long long)o->steps);
    auto_add(a, "scheduler.params.warmup_min_lr", "0");
    if (o->micro_batch > 0)
        auto_add(a, "train_micro_batch_size_per_gpu", "%lld", (long long)o->micro_batch);
    if (o->accumulation > 0)
        auto_add(a, "gradient_accumulation_steps", "%lld", (long long)o->accumulation);
    if (o->micro_batch > 0)
        auto_add(
            a, "train_batch_size", "%lld",
            (long long)(o->micro_batch * (o->accumulation > 0 ? o->accumulation : 1) * world_size));
    if (!isnan(o->lr)) {
        auto_add(a, "optimizer.params.lr", "%.17g", o->lr);
        auto_add(a, "scheduler.params.warmup_max_lr", "%.17g", o->lr);
    }
    if (o->warmup_steps >= 0)
        auto_add(a, "scheduler.params.warmup_num_steps", "%lld", (long long)o->warmup_steps);
    if (!isnan(o->weight_decay))
        auto_add(a, "optimizer.params.weight_decay", "%.17g", o->weight_decay);
    if (!isnan(o->max_grad_norm)) auto_add(a, "gradient_clipping", "%.17g", o->max_grad_norm);
    if (o->precision) {
        auto_add(a, "fp16.enabled", "%s", strcmp(o->precision, "fp16") == 0 ? "true" : "false");
        auto_add(a, "bf16.enabled", "%s", strcmp(o->precision, "bf16") == 0 ? "true" : "false");
    }
}

/* A flag that fills no "auto" is not silently dropped: say what is in force instead. */
static void warn_unused(const char *flag, const char *path, double given, double in_force)
{
    if (isnan(given) || given == in_force) return;
    LOGV(LOG_WARN, SUB_CONFIG,
         "%s %g has no effect: the config gives %s as %g (write \"auto\" there, or use --set)",
         flag, given, path, in_force);
}

static void warn_unused_flags(const struct train_options *o, const struct ds_config *c)
{
    double micro = o->micro_batch > 0 ? (double)o->micro_batch : NAN;
    double accumulation = o->accumulation > 0 ? (double)o->accumulation : NAN;
    double warmup = o->warmup_steps >= 0 ? (double)o->warmup_steps : NAN;
    warn_unused("--micro-batch", "train_micro_batch_size_per_gpu", micro,
                (double)c->train_micro_batch_size_per_gpu);
    warn_unused("--accumulation", "gradient_accumulation_steps", accumulation,
                (double)c->gradient_accumulation_steps);
    warn_unused("--lr", "optimizer.params.lr", o->lr, c->optimizer.hyper.lr);
    warn_unused("--weight-decay", "optimizer.params.weight_decay", o->weight_decay,
                c->optimizer.hyper.weight_decay);
    warn_unused("--max-grad-norm", "gradient_clipping", o->max_grad_norm, c->gradient_clipping);
    bool has_warmup = c->scheduler.usable && (c->scheduler.params.kind == SCHEDULE_WARMUP ||
                                              c->scheduler.params.kind == SCHEDULE_WARMUP_DECAY ||
                                              c->scheduler.params.kind == SCHEDULE_WARMUP_COSINE);
    if (!has_warmup && !isnan(warmup))
        LOGV(LOG_WARN, SUB_CONFIG,
             "--warmup-steps has no effect: the config has no warm-up scheduler");
    /* DeepSpeed's schedules warm up for at least two steps. */
    if (has_warmup && warmup >= 2)
        warn_unused("--warmup-steps", "scheduler.params.warmup_num_steps", warmup,
                    (double)c->scheduler.params.warmup_num_steps);
    if (o->precision && strcmp(o->precision, dtype_name(c->model_dtype)) != 0)
        LOGV(
            LOG_WARN, SUB_CONFIG,
            "--precision %s has no effect: the config trains in %s (write \"auto\" in fp16.enabled "
            "and bf16.enabled, or use --set)",
            o->precision, dtype_name(c->model_dtype));
}

/* Everything a run holds; run_close() accepts any half-built state. */
struct run {
    const struct train_options *options;
    struct comm *world;
    bool speaks;         /* whether this rank prints what it fails with */
    struct model *model; /* NULL once the engine owns it */
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct data_loader *data;
    struct curve *curve;
    struct saver saver;
    struct resume_point resume;
    uint64_t seed;
    bool shuffle;
    struct auto_values autos;
    bool init_from_checkpoint;
    bool fp16, drop_last, steps_managed; /* from the config */
};

static volatile sig_atomic_t stop_asked, stop_agreed;

static void on_stop(int signal_number)
{
    (void)signal_number;
    /* A request that others had heard of first is no sign that a rank has died. */
    if (!stop_agreed || stop_asked) engine_world_interrupt();
    stop_asked = 1;
}

static bool is_first_rank(const struct run *r)
{
    return engine_world_rank(r->world) == 0;
}

static void run_close(struct run *r)
{
    curve_close(r->curve);
    resume_free(&r->resume);
    data_close(r->data);
    tokenizer_close(r->tokenizer);
    engine_destroy(r->engine);
    model_destroy(r->model);
    engine_world_destroy(r->world);
}

static cz_status check_options(const struct train_options *o)
{
    if (!o->save && (o->save_interval > 0 || o->save_keep > 0))
        return err_set(CZ_INVALID, 0, "%s needs --save, the folder to save into",
                       o->save_interval > 0 ? "--save-interval" : "--save-keep");
    return CZ_OK;
}

/* A run that goes on has its seed and order already. */
static cz_status find_resume_point(struct run *r)
{
    const struct train_options *o = r->options;
    if (o->resume) TRY(resume_parse(o->resume, &r->resume));
    bool has_cursor = r->resume.has_run && r->resume.run.has_cursor;
    r->seed = 42;
    r->shuffle = has_cursor ? r->resume.run.cursor.shuffle : true;
    if (r->resume.has_run) r->seed = has_cursor ? r->resume.run.cursor.seed : r->resume.run.seed;
    if (o->seed >= 0 && r->resume.has_run && r->seed != (uint64_t)o->seed)
        return err_set(CZ_INVALID, 0,
                       "--seed %lld: the run that goes on has seed %llu; leave the option out",
                       (long long)o->seed, (unsigned long long)r->seed);
    if (o->seed >= 0) r->seed = (uint64_t)o->seed;
    if (o->shuffle) r->shuffle = strcmp(o->shuffle, "on") == 0;
    return CZ_OK;
}

static cz_status open_model(struct run *r)
{
    const struct train_options *o = r->options;
    r->model = model_open(o->model);
    if (!r->model) return cz_last_status();
    bool random = o->init && strcmp(o->init, "random") == 0;
    r->init_from_checkpoint = o->init && !random && is_checkpoint(o->init);
    if (!o->init && !o->resume && access(o->model, F_OK) == 0 && !model_has_weights(r->model))
        return err_set(CZ_NOTFOUND, 0,
                       "%s holds no weights (model.safetensors); --init random starts without",
                       o->model);
    if (random || r->init_from_checkpoint || !model_has_weights(r->model))
        TRY(model_init_from(r->model, NULL, r->seed));
    if (o->init && !random && !r->init_from_checkpoint)
        TRY(model_init_from(r->model, o->init, r->seed));
    TRY(model_set_shape(r->model, o->seq_len));
    if (o->freeze) TRY(model_freeze(r->model, o->freeze, NULL));
    return CZ_OK;
}

/* Load the config once on its own, to tell the user about flags that it does not leave open. */
static cz_status check_flags(struct run *r)
{
    const struct train_options *o = r->options;
    struct config_options options = config_options_default();
    options.autos = r->autos.items;
    options.n_autos = r->autos.n_items;
    options.sets = o->set.items;
    options.n_sets = o->set.n;
    options.strict = o->strict;
    options.world_size = engine_world_size(r->world);
    if (o->compat)
        options.compat = strcmp(o->compat, "0.16") == 0 ? CONFIG_COMPAT_0_16 : CONFIG_COMPAT_0_19;
    struct ds_config *config;
    TRY(config_load(o->config, &options, &config));
    if (is_first_rank(r)) warn_unused_flags(o, config);
    r->fp16 = config->model_dtype == DTYPE_F16;
    r->drop_last = config->dataloader_drop_last;
    r->steps_managed = config->managed_gradient_accumulation;
    config_free(config);
    return CZ_OK;
}

static cz_status open_engine(struct run *r)
{
    const struct train_options *o = r->options;
    struct engine_options options = {
        .config_path = o->config,
        .comm = r->world,
        .device = o->device,
        .groups_hf = o->groups && strcmp(o->groups, "hf") == 0,
        .seed = r->seed,
        .compat = o->compat,
        .strict = o->strict,
        .total_steps = o->steps,
        .auto_values = r->autos.items,
        .set_values = o->set.items,
    };
    r->engine = engine_initialize_ex(&options, r->model);
    if (!r->engine) return cz_last_status();
    r->model = NULL;
    return CZ_OK;
}

static cz_status open_data(struct run *r, const struct arg_list *paths, bool once,
                           struct data_loader **out)
{
    const struct train_options *o = r->options;
    struct data_options options = {
        .paths = paths->items,
        .n_paths = paths->n,
        .tokenizer = r->tokenizer,
        .seq_len = o->seq_len,
        .micro_batch = engine_get_micro_batch(r->engine),
        .rank = engine_get_rank(r->engine),
        .world_size = engine_get_world_size(r->engine),
        .shuffle = !once && r->shuffle,
        .seed = r->seed,
        .drop_last = !once && r->drop_last,
        .once = once,
    };
    TRY(data_open(&options, out));
    return data_check_vocab(*out, model_vocab_size(engine_get_model(r->engine)));
}

static cz_status open_curve(struct run *r)
{
    const char *path = r->options->curve;
    if (!path || !is_first_rank(r)) return CZ_OK;
    return curve_open(path, engine_get_global_steps(r->engine), &r->curve);
}

/* The engine first: a checkpoint that cannot be loaded should not leave a started curve behind. */
static cz_status resume(struct run *r)
{
    struct engine_load_result result;
    if (r->init_from_checkpoint) TRY(init_weights(r->options->init, r->engine));
    if (!r->options->resume) return CZ_OK;
    TRY(resume_load(&r->resume, r->engine, &result));
    cz_status st = saver_resumed(&r->saver, r->engine, result.tag_dir);
    if (st == CZ_OK) st = resume_data(&result, r->engine, r->drop_last, r->data);
    engine_load_result_free(&result);
    return st;
}

/* Find out now, not after hours of training, that the export has nowhere to go. */
static cz_status check_export_folder(const char *dir)
{
    if (!dir) return CZ_OK;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return err_set(CZ_IO, errno, "--export: cannot create %s", dir);
    if (access(dir, W_OK | X_OK) != 0)
        return err_set(CZ_IO, errno, "--export: cannot write to %s", dir);
    return CZ_OK;
}

/* What can fail on one rank alone. */
static cz_status open_inputs(struct run *r)
{
    const struct train_options *o = r->options;
    TRY(check_options(o));
    TRY(find_resume_point(r));
    TRY(open_model(r));
    TRY(tokenizer_open(o->tokenizer, &r->tokenizer));
    auto_from_flags(&r->autos, o, r->model, engine_world_size(r->world));
    return check_flags(r);
}

static cz_status open_run(struct run *r)
{
    const struct train_options *o = r->options;
    TRY(open_engine(r));
    TRY(open_data(r, &o->data, false, &r->data));
    r->saver = (struct saver){
        .dir = o->save, .interval = o->save_interval, .keep = o->save_keep, .saved_step = -1};
    if (is_first_rank(r)) TRY(check_export_folder(o->export_dir));
    return is_first_rank(r) ? saver_check(&r->saver) : CZ_OK;
}

/* Between the two, ranks learn of each other's failures before they meet in the engine. */
static cz_status run_open(struct run *r)
{
    TRY(engine_world_agree(r->world, open_inputs(r), &r->speaks));
    TRY(engine_world_agree(r->world, open_run(r), &r->speaks));
    TRY(engine_world_agree(r->world, resume(r), &r->speaks));
    return engine_world_agree(r->world, open_curve(r), &r->speaks);
}

/* managed_gradient_accumulation false: every engine_step() ends an accumulation. */
static cz_status train_step(struct run *r)
{
    int64_t n_micro = engine_get_accumulation(r->engine);
    for (int64_t g = 0; g < n_micro; g++) {
        struct batch batch;
        TRY(data_next(r->data, &batch));
        TRY(engine_forward(r->engine, &batch, NULL));
        TRY(engine_backward(r->engine));
        if (r->steps_managed || g + 1 == n_micro) TRY(engine_step(r->engine));
    }
    return CZ_OK;
}

static struct progress_step step_figures(const struct engine *e)
{
    const struct engine_swap_traffic swap = engine_get_swap_traffic(e);
    return (struct progress_step){
        .step = engine_get_global_steps(e),
        .skipped = engine_get_skipped_steps(e),
        .loss = engine_get_boundary_loss(e),
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

/* A signal reaches ranks at different steps: all stop when one was asked to. */
static cz_status agree_to_stop(struct run *r, bool *stops)
{
    double asked = stop_asked, n_asked;
    TRY(engine_gather_metrics(r->engine, &asked, 1, &n_asked));
    *stops = n_asked > 0;
    if (*stops) { /* everyone is alive, and has time to save */
        stop_agreed = 1;
        engine_world_interrupt_over();
    }
    return CZ_OK;
}

/* A step's row is on disk before a checkpoint of it can be. */
static cz_status report(struct run *r, struct progress *progress)
{
    struct progress_step figures = step_figures(r->engine);
    progress_update(progress, &figures);
    return curve_write(r->curve, &figures);
}

static cz_status train_all(struct run *r, struct progress *progress, bool *stopped)
{
    for (;;) {
        TRY(agree_to_stop(r, stopped));
        if (*stopped || engine_get_global_steps(r->engine) >= r->options->steps) return CZ_OK;
        TRY(train_step(r));
        if (is_first_rank(r)) TRY(report(r, progress));
        saver_step(&r->saver, r->engine, r->data);
    }
}

/* ---- evaluation -------------------------------------------------------------------------------
 */

/* What a rank evaluates to keep company with others that still have rows. */
struct filler {
    int32_t *ids; /* (T) zeros: inputs and labels */
    struct batch batch;
};

static cz_status filler_init(struct filler *f, int64_t T)
{
    f->ids = calloc((size_t)T, sizeof *f->ids);
    if (!f->ids) return err_set(CZ_NOMEM, 0, "no memory for a row of %lld tokens", (long long)T);
    f->batch = (struct batch){.B = 1, .T = T, .ids = f->ids, .labels = f->ids};
    return CZ_OK;
}

/* Losses of this rank's rows, added up with the rows they stand for. */
static cz_status evaluate_rows(struct run *r, struct data_loader *data, const struct filler *filler,
                               double sums[2])
{
    while (!data_is_done(data)) {
        struct batch batch;
        float loss;
        TRY(data_next(data, &batch));
        const struct batch *shown = batch.B > 0 ? &batch : &filler->batch;
        TRY(engine_eval(r->engine, shown, &loss));
        if (batch.B == 0) continue;
        sums[0] += (double)loss * (double)batch.B;
        sums[1] += (double)batch.B;
    }
    return CZ_OK;
}

/* Mean loss over every row of --eval-data, each counted once, by one rank. */
static cz_status evaluate(struct run *r)
{
    const struct arg_list *paths = &r->options->eval_data;
    if (paths->n == 0) return CZ_OK;
    struct data_loader *data = NULL;
    struct filler filler = {0};
    double mine[2] = {0}, sums[2];
    cz_status st;
    TRY_GOTO(open_data(r, paths, true, &data), done);
    TRY_GOTO(filler_init(&filler, r->options->seq_len), done);
    TRY_GOTO(evaluate_rows(r, data, &filler, mine), done);
    TRY_GOTO(engine_gather_metrics(r->engine, mine, 2, sums), done);
    if (is_first_rank(r)) printf("eval_loss %.6f\n", sums[0] / sums[1]);
done:
    data_close(data);
    free(filler.ids);
    return st;
}

static cz_status run_train(struct run *r)
{
    const struct train_options *o = r->options;
    struct progress progress;
    struct progress_options options = {
        .last_step = o->steps,
        .tokens_per_step = engine_get_train_batch(r->engine) * o->seq_len,
        .quiet = o->quiet || !is_first_rank(r),
        .log_json = o->log_json,
        .show_scale = r->fp16,
    };
    progress_begin(&progress, &options);
    bool stopped = false;
    cz_status st = train_all(r, &progress, &stopped);
    progress_end(&progress);
    if (st != CZ_OK) return st;
    TRY(saver_end(&r->saver, r->engine, r->data));
    if (stopped) {
        LOGV(LOG_INFO, SUB_ENGINE, "asked to stop: stopped after step %lld",
             (long long)engine_get_global_steps(r->engine));
        return CZ_OK;
    }
    TRY(evaluate(r));
    if (!o->export_dir) return CZ_OK;
    TRY(engine_export_hf(r->engine, o->export_dir, DTYPE_F32));
    LOGV(LOG_INFO, SUB_ENGINE, "wrote %s", o->export_dir);
    return CZ_OK;
}

/* One rank ends at Ctrl-C as any program does, but for its swap file; several end together, after
 * the step under way. */
static void handle_signals(const struct run *r)
{
    bool several = engine_world_size(r->world) > 1;
    signal(SIGTERM, on_stop);
    if (several) signal(SIGINT, on_stop);
    tool_tidy_at_signals(engine_remove_swap_files, several ? SIGINT : 0);
}

/* Tell the user, unless another rank does, and the ranks that wait for this one. */
static int fail(const struct run *r, cz_status st)
{
    bool all_know = st == CZ_DIVERGED; /* agreed by all: one voice is enough */
    engine_world_leave(r->world, cz_last_error());
    if (!r->speaks || (all_know && !is_first_rank(r))) return tool_exit_code(st);
    return tool_fail();
}

int cmd_train(int argc, char **argv)
{
    struct train_options options = {
        .tokenizer = "bytes",
        .seed = -1,
        .warmup_steps = -1,
        .lr = NAN,
        .weight_decay = NAN,
        .max_grad_norm = NAN,
    };
    struct arg_command command = train_command;
    command.silent = engine_world_started_as() > 0;
    enum args_result parsed = args_parse(&command, argc, argv, &options);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(options.quiet);
    struct run run = {.options = &options, .speaks = true};
    tool_hold_signals(0);
    cz_status st = engine_world_create(&run.world);
    if (st == CZ_OK) {
        handle_signals(&run);
        st = run_open(&run);
    }
    if (st == CZ_OK) st = run_train(&run);
    int code = st == CZ_OK ? EXIT_OK : fail(&run, st);
    run_close(&run);
    return code;
}

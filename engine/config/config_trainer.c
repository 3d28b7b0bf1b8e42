/* What a trainer puts into a config: values for "auto", and an optimizer and a schedule where the
 * file has none, as transformers 5 does for its Trainer (docs/compatibility.md, "Configs of
 * trainers"; LLaMA-Factory, axolotl and ms-swift train through it).
 *
 * A file is a trainer's when it lacks an optimizer or says "auto" anywhere: only then a schedule is
 * added, since DeepSpeed itself trains at a constant rate without one. */
#include "engine/config/config_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* TrainingArguments' defaults. */
#define TRAINER_MICRO_BATCH   8
#define TRAINER_LR            5e-5
#define TRAINER_BETAS         "[0.9, 0.999]"
#define TRAINER_EPS           1e-8
#define TRAINER_WEIGHT_DECAY  0.0
#define TRAINER_MAX_GRAD_NORM 1.0

static struct cv *given_at(struct config_impl *c, const char *path)
{
    return config_at(c->given, path);
}

static bool is_auto(struct config_impl *c, const char *path)
{
    return cv_is_string(given_at(c, path), CONFIG_AUTO);
}

/* Whether the file leaves a named object of its own to the trainer: no section, or one without a
 * type. */
static bool lacks_type(struct config_impl *c, const char *section)
{
    const struct cv *given = cv_get(c->given, section), *type = cv_get(given, "type");
    if (given && given->kind != CV_DICT && given->kind != CV_NULL)
        return false; /* an error later */
    return !type || type->kind == CV_NULL;
}

static bool has_auto(const struct cv *value)
{
    bool found = cv_is_string(value, CONFIG_AUTO);
    for (size_t i = 0; !found && (value->kind == CV_DICT || value->kind == CV_LIST) && i < value->n;
         i++)
        found = has_auto(value->items[i]);
    return found;
}

/* Before any option is applied: what the file itself says. */
void config_look_for_trainer(struct config_impl *c)
{
    c->lacks_optimizer = lacks_type(c, "optimizer");
    c->lacks_schedule = lacks_type(c, "scheduler");
    c->is_trainers = c->lacks_optimizer || has_auto(c->given);
}

/* ---- values for "auto" ----------------------------------------------------------------------- */

static void fill(struct config_impl *c, const char *path, struct cv *value)
{
    if (is_auto(c, path)) config_put_at(c, path, value);
}

static void fill_number(struct config_impl *c, const char *path, double value)
{
    fill(c, path, cv_float(&c->pool, value, CV_TRAINER));
}

static void fill_int(struct config_impl *c, const char *path, int64_t value)
{
    fill(c, path, cv_int(&c->pool, value, CV_TRAINER));
}

/* ---- batch sizes ----------------------------------------------------------------------------- */

static int64_t whole(const struct cv *value, int64_t otherwise)
{
    bool usable = value && value->kind == CV_INT && !value->digits && value->integer > 0;
    return usable ? value->integer : otherwise;
}

/* A product that does not fit is refused by the check of the three sizes, as any wrong one. */
static int64_t product(int64_t a, int64_t b, int64_t ranks)
{
    int64_t out;
    if (__builtin_mul_overflow(a, b, &out) || __builtin_mul_overflow(out, ranks, &out))
        return INT64_MAX;
    return out;
}

/* Trainer's sizes come from its arguments alone and must agree with the file's. Where the file has
 * the whole batch, the other sizes follow from it here. */
static void fill_batch(struct config_impl *c)
{
    static const char train[] = "train_batch_size", micro[] = "train_micro_batch_size_per_gpu",
                      steps[] = "gradient_accumulation_steps";
    const int64_t batch = whole(given_at(c, train), 0), ranks = c->world_size;
    const int64_t per_rank = batch % ranks == 0 ? batch / ranks : 0;
    int64_t rows = TRAINER_MICRO_BATCH;
    if (per_rank > 0 && is_auto(c, micro)) {
        const int64_t n = whole(given_at(c, steps), 0);
        if (n > 0 && per_rank % n == 0) rows = per_rank / n;
        while (n == 0 && per_rank % rows != 0) rows--;
    }
    fill_int(c, micro, rows);
    rows = whole(given_at(c, micro), 1);
    fill_int(c, steps, per_rank > 0 && per_rank % rows == 0 ? per_rank / rows : 1);
    fill_int(c, train, product(rows, whole(given_at(c, steps), 1), ranks));
}

/* ---- optimizer ------------------------------------------------------------------------------- */

/* A parameter that this optimizer has and that was not given. */
static void add_param(struct config_impl *c, const struct optim_hyper *hyper, const char *name,
                      struct cv *value)
{
    const char *path = cv_text(&c->pool, "optimizer.params.%s", name);
    if (given_at(c, path) || settings_find(optim_settings(hyper), name) < 0) return;
    config_put_at(c, path, value);
}

/* The four settings that Trainer has arguments for; an optimizer that lacks one of them (SGD has no
 * betas) gets the others. */
static void add_optimizer(struct config_impl *c)
{
    static const char path[] = "optimizer.type";
    struct optim_hyper hyper;
    if (lacks_type(c, "optimizer"))
        config_put_at(c, path, cv_string(&c->pool, optim_type_default()->name, CV_TRAINER));
    const struct cv *type = given_at(c, path);
    if (type->kind != CV_STRING) return;
    if (optim_hyper_begin(type->string, OPTIM_FUSED, &hyper) != CZ_OK) {
        err_clear(); /* it is refused where it is used */
        return;
    }
    add_param(c, &hyper, "lr", cv_float(&c->pool, TRAINER_LR, CV_TRAINER));
    add_param(c, &hyper, "betas", cv_parse(&c->pool, TRAINER_BETAS, CV_TRAINER));
    add_param(c, &hyper, "eps", cv_float(&c->pool, TRAINER_EPS, CV_TRAINER));
    add_param(c, &hyper, "weight_decay", cv_float(&c->pool, TRAINER_WEIGHT_DECAY, CV_TRAINER));
}

/* ---- schedule -------------------------------------------------------------------------------- */

/* A ratio counts as transformers counts it: rounded up. */
static int64_t warmup_steps(const struct config_impl *c, const struct config_options *o)
{
    if (o->total_steps == CONFIG_ANY_STEPS && c->warmup_ratio > 0) return CONFIG_ANY_STEPS;
    return (int64_t)ceil((double)o->total_steps * c->warmup_ratio);
}

static bool has_setting(const char *type, const char *name)
{
    struct schedule_params params;
    if (schedule_params_begin(type, false, &params) == CZ_OK)
        return settings_find(schedule_settings(&params), name) >= 0;
    err_clear(); /* the type is refused where it is used */
    return false;
}

/* A rate that decays needs the length of the run: without it the rate stays. */
static void add_schedule(struct config_impl *c, const struct config_options *o)
{
    static const char path[] = "scheduler.type", params[] = "scheduler.params",
                      warmup[] = "scheduler.params.warmup_num_steps",
                      total[] = "scheduler.params.total_num_steps";
    const struct cv *type = given_at(c, path);
    if (!type && o->total_steps <= 0 && !given_at(c, total)) return;
    if (!type) config_put_at(c, path, cv_string(&c->pool, "linear", CV_TRAINER));
    type = given_at(c, path);
    if (type->kind != CV_STRING) return;
    if (!given_at(c, params)) config_put_at(c, params, cv_new(&c->pool, CV_DICT, CV_TRAINER));
    if (!given_at(c, warmup) && has_setting(type->string, "warmup_num_steps"))
        config_put_at(c, warmup, cv_int(&c->pool, warmup_steps(c, o), CV_TRAINER));
    if (!given_at(c, total) && o->total_steps > 0 && has_setting(type->string, "total_num_steps"))
        config_put_at(c, total, cv_int(&c->pool, o->total_steps, CV_TRAINER));
}

/* DeepSpeed's schedules refuse a warm-up of 0 steps. */
static void fill_schedule(struct config_impl *c, const struct config_options *o)
{
    static const char warmup[] = "scheduler.params.warmup_num_steps";
    const struct cv *lr = given_at(c, "optimizer.params.lr");
    const int64_t n = warmup_steps(c, o);
    fill_int(c, "scheduler.params.warmup_min_lr", 0);
    fill_number(c, "scheduler.params.warmup_max_lr",
                lr && cv_is_number(lr) ? lr->real : TRAINER_LR);
    fill_int(c, warmup, n > 1 ? n : 1);
    if (o->total_steps > 0) fill_int(c, "scheduler.params.total_num_steps", o->total_steps);
    if (c->warmup_ratio > 0 && !given_at(c, warmup) && !lacks_type(c, "scheduler"))
        config_put_at(c, warmup, cv_int(&c->pool, n > 1 ? n : 1, CV_TRAINER));
}

/* ---- the line that says what was filled in --------------------------------------------------- */

/* A value for the reader. */
static const char *show(struct config_impl *c, const struct cv *value)
{
    bool any =
        value->origin == CV_TRAINER && value->kind == CV_INT && value->integer == CONFIG_ANY_STEPS;
    return any ? "(from the steps of the run)" : cv_show(&c->pool, value);
}

/* "optimizer AdamW (lr 5e-05, …)", parameters of options included. No type has more than 32: more
 * are a file's own unknown keys, which are refused later. */
static const char *tell_object(struct config_impl *c, const char *name, const struct cv *object)
{
    const struct cv *type = cv_get(object, "type"), *params = cv_get(object, "params");
    const char *text = "";
    for (size_t i = 0; params && params->kind == CV_DICT && i < params->n && i < 32; i++)
        text = cv_text(&c->pool, "%s%s%.200s %s", text, i > 0 ? ", " : "", params->keys[i],
                       show(c, params->items[i]));
    return cv_text(&c->pool, "%s %s%s%s%s", name, type->string, *text ? " (" : "", text,
                   *text ? ")" : "");
}

/* "PATH VALUE, …" of what is filled in under `at`, appended to `text`. */
static const char *tell_filled(struct config_impl *c, const struct cv *at,
                               const struct config_path *path, const char *text)
{
    for (size_t i = 0; i < at->n; i++) {
        const struct cv *value = at->items[i], *type = cv_get(value, "type");
        const struct config_path here = {path, at->keys[i]};
        const char *more = NULL;
        if (!path && type && type->origin == CV_TRAINER && type->kind == CV_STRING)
            more = tell_object(c, here.name, value);
        else if (value->kind == CV_DICT)
            text = tell_filled(c, value, &here, text);
        else if (value->origin == CV_TRAINER)
            more = cv_text(&c->pool, "%s %s", config_path_text(c, &here), show(c, value));
        if (more) text = cv_text(&c->pool, "%s%s%s", text, *text ? ", " : "", more);
    }
    return text;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* With `strict` only what an option asks for is added. */
void config_fill_as_trainer(struct config_impl *c, const struct config_options *o)
{
    const bool adds_optimizer = c->lacks_optimizer && (!o->strict || cv_get(c->given, "optimizer"));
    const bool adds_schedule =
        c->lacks_schedule &&
        (cv_get(c->given, "scheduler") || c->warmup_ratio > 0 || (c->is_trainers && !o->strict));
    fill_batch(c);
    fill_number(c, "gradient_clipping", TRAINER_MAX_GRAD_NORM);
    /* accelerate turns DeepSpeed's own lines off. */
    fill(c, "steps_per_print", cv_new(&c->pool, CV_NULL, CV_TRAINER));
    fill_number(c, "optimizer.params.lr", TRAINER_LR);
    fill(c, "optimizer.params.betas", cv_parse(&c->pool, TRAINER_BETAS, CV_TRAINER));
    fill_number(c, "optimizer.params.eps", TRAINER_EPS);
    fill_number(c, "optimizer.params.weight_decay", TRAINER_WEIGHT_DECAY);
    fill(c, "fp16.enabled", cv_bool(&c->pool, false, CV_TRAINER));
    fill(c, "bf16.enabled", cv_bool(&c->pool, false, CV_TRAINER));
    if (adds_optimizer) add_optimizer(c);
    fill_schedule(c, o);
    if (adds_schedule) add_schedule(c, o);
    c->optimizer_added = adds_optimizer;
    const char *filled = tell_filled(c, c->given, NULL, "");
    if (*filled)
        config_say(c, CONFIG_NOTE_FILLED, NULL, "", "filled in as Hugging Face's Trainer does: %s",
                   filled);
}

/* The optimizer and scheduler sections, read by the tables of optim/: names, types and ranges of
 * parameters are known there only, and a new optimizer needs no change here. Problems become notes
 * at the key's place in the file. */
#include "engine/config/config_impl.h"

#include <string.h>

/* optim's sentences begin with the parameter's name, which the path says already. */
static const char *without_name(const char *sentence, const char *name)
{
    size_t n = strlen(name);
    return strncmp(sentence, name, n) == 0 && strncmp(sentence + n, ": ", 2) == 0 ? sentence + n + 2
                                                                                  : sentence;
}

/* optim/ returns errors; a config collects notes. An optimizer that czero lacks is "not supported",
 * a bad value is invalid. */
static void note_refusal(struct config_impl *c, cz_status status, const struct cv *value,
                         const char *path, const char *name)
{
    enum config_note_kind kind =
        status == CZ_UNSUPPORTED ? CONFIG_NOTE_UNSUPPORTED : CONFIG_NOTE_ENGINE_REJECTS;
    const char *sentence = cv_text(&c->pool, "%s", cz_last_error());
    err_clear();
    bool says_so = strstr(sentence, "not supported") || status != CZ_UNSUPPORTED;
    config_say(c, kind, value, path, "%s%s",
               says_so ? "" : "not supported: ", without_name(sentence, name));
}

/* Of the parameters together: at the one that the sentence begins with, if the file has it. */
static void note_refusal_of_all(struct config_impl *c, cz_status status, const char *section,
                                const struct cv *params)
{
    const char *path = cv_text(&c->pool, "%s.params", section), *sentence = cz_last_error();
    const char *name = cv_text(&c->pool, "%.*s", (int)strcspn(sentence, ":"), sentence);
    const struct cv *value = cv_get(params, name);
    if (value)
        note_refusal(c, status, value, config_join(c, path, name), name);
    else
        note_refusal(c, status, params, path, path);
}

/* The value in the form that optim/ takes; false for what no parameter takes. */
static bool setting_from(struct config_impl *c, const struct cv *value, struct setting_value *out)
{
    memset(out, 0, sizeof *out);
    out->number = value->real;
    out->integer = value->integer;
    switch (value->kind) {
    case CV_NULL: out->type = SETTING_NULL; return true;
    case CV_BOOL: out->type = SETTING_BOOL; return true;
    case CV_INT:
        out->type = value->as_float || value->digits ? SETTING_NUMBER : SETTING_INT;
        return true;
    case CV_FLOAT: out->type = SETTING_NUMBER; return true;
    case CV_STRING:
        out->type = SETTING_NAME;
        out->name = value->string;
        return true;
    case CV_LIST: break;
    default: return false;
    }
    double *list = cv_alloc(&c->pool, (value->n + 1) * sizeof *list);
    for (size_t i = 0; i < value->n; i++) {
        if (value->items[i]->kind != CV_INT && value->items[i]->kind != CV_FLOAT) return false;
        list[i] = value->items[i]->real;
    }
    out->type = SETTING_LIST;
    out->list = list;
    out->n = value->n;
    return true;
}

/* One of optim's two owners of settings. */
struct owner {
    const char *section;
    struct optim_hyper *hyper; /* one of both */
    struct schedule_params *schedule;
};

/* No value was given: --auto was applied before. */
static bool refuse_auto(struct config_impl *c, const struct cv *value, const char *path)
{
    if (!cv_is_string(value, CONFIG_AUTO)) return false;
    config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, path, "%s", config_auto_text(c, path));
    return true;
}

static bool apply_param(struct config_impl *c, const struct owner *owner, const char *name,
                        const struct cv *value)
{
    struct setting_value setting;
    const char *path = cv_text(&c->pool, "%s.params.%s", owner->section, name);
    if (refuse_auto(c, value, path)) return false;
    if (!setting_from(c, value, &setting)) {
        config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, path,
                   "%s cannot be the value of a parameter", cv_show(&c->pool, value));
        return false;
    }
    /* The owner is either an optimizer or a schedule; both check the value's type and range. */
    cz_status st = owner->hyper ? optim_hyper_set(owner->hyper, name, &setting)
                                : schedule_params_set(owner->schedule, name, &setting);
    if (st == CZ_OK) return true;
    note_refusal(c, st, value, path, name);
    return false;
}

/* All parameters are tried, so that all problems are reported. */
static bool apply_params(struct config_impl *c, const struct owner *owner, const struct cv *params)
{
    bool ok = true;
    for (size_t i = 0; params->kind == CV_DICT && i < params->n; i++)
        ok &= apply_param(c, owner, params->keys[i], params->items[i]);
    return ok;
}

/* Under offload_optimizer DeepSpeed builds its CPU classes, whose parameters differ. */
static enum optim_dialect dialect_of(const struct ds_config *config)
{
    bool offload = config->zero.offload_optimizer.device != CONFIG_OFFLOAD_NONE;
    return offload && config->zero.stage > 0 ? OPTIM_OFFLOAD : OPTIM_FUSED;
}

/* Not usable is no error here: `config check` continues to report the rest, and the engine
 * refuses. */
void config_fill_optimizer(struct ds_config *config)
{
    struct config_impl *c = config->impl;
    struct config_optimizer *o = &config->optimizer;
    const struct cv *type = config_at(c->resolved, "optimizer.type");
    const struct cv *params = config_at(c->resolved, "optimizer.params");
    if (type->kind != CV_STRING) return;
    o->type = type->string;
    if (refuse_auto(c, type, "optimizer.type")) return;
    /* The resolved name is in lower case; a refusal quotes what the user wrote. */
    const struct cv *given = config_at(c->given, "optimizer.type");
    cz_status st = optim_hyper_begin(given && given->kind == CV_STRING ? given->string : o->type,
                                     dialect_of(config), &o->hyper);
    if (st != CZ_OK) {
        note_refusal(c, st, type, "optimizer.type", "optimizer.type");
        return;
    }
    struct owner owner = {.section = "optimizer", .hyper = &o->hyper};
    if (!apply_params(c, &owner, params)) return;
    st = optim_hyper_finish(&o->hyper);
    if (st != CZ_OK) {
        note_refusal_of_all(c, st, "optimizer", params);
        return;
    }
    o->usable = true;
}

/* As DeepSpeed: no type, no schedule. */
void config_fill_scheduler(struct ds_config *config)
{
    struct config_impl *c = config->impl;
    struct config_scheduler *s = &config->scheduler;
    const struct cv *type = config_at(c->resolved, "scheduler.type");
    const struct cv *params = config_at(c->resolved, "scheduler.params");
    if (type->kind == CV_NULL) return;
    if (type->kind != CV_STRING || params->kind != CV_DICT) {
        bool bad_type = type->kind != CV_STRING;
        config_say(c, CONFIG_NOTE_ENGINE_REJECTS, bad_type ? type : params,
                   bad_type ? "scheduler.type" : "scheduler.params", "expected %s, got %s",
                   bad_type ? "a name such as \"WarmupLR\"" : "an object",
                   cv_show(&c->pool, bad_type ? type : params));
        return;
    }
    s->type = type->string;
    if (refuse_auto(c, type, "scheduler.type")) return;
    cz_status st = schedule_params_begin(s->type, c->compat == CONFIG_COMPAT_0_16, &s->params);
    if (st != CZ_OK) {
        note_refusal(c, st, type, "scheduler.type", "scheduler.type");
        return;
    }
    struct owner owner = {.section = "scheduler", .schedule = &s->params};
    if (!apply_params(c, &owner, params)) return;
    st = schedule_params_finish(&s->params);
    if (st == CZ_OK && config->optimizer.usable)
        st = schedule_fit_optimizer(&s->params, &config->optimizer.hyper);
    if (st != CZ_OK) {
        note_refusal_of_all(c, st, "scheduler", params);
        return;
    }
    s->usable = true;
}

/* The typed view: resolved values go into struct ds_config by the offsets of the key tables, with
 * notes about those that czero treats differently. After this the tree is not used: a value that
 * cannot be used is replaced by its default and reported, so that `config check` can list all of
 * them. */
#include "engine/config/config_impl.h"

#include <string.h>
#include <strings.h>

/* ---- raw values ----------------------------------------------------------------------------- */

/* What a message expects; types without an entry are checked elsewhere. */
static const char *wanted(enum key_type type)
{
    switch (type) {
    case KEY_BOOL: return "true or false";
    case KEY_INT: return "an integer";
    case KEY_FLOAT: return "a number";
    case KEY_STRING:
    case KEY_PATH: return "a string";
    default: return NULL;
    }
}

static bool has_type(const struct config_key *key, const struct cv *value)
{
    if (value->kind == CV_NULL) return key->flags & KEY_NULLABLE;
    switch (key->type) {
    case KEY_BOOL: return value->kind == CV_BOOL;
    case KEY_INT: return value->kind == CV_INT && !value->digits;
    case KEY_FLOAT: return value->kind == CV_INT || value->kind == CV_FLOAT;
    case KEY_STRING:
    case KEY_PATH: return value->kind == CV_STRING;
    default: return true;
    }
}

static bool in_range(const struct config_key *key, const struct cv *value)
{
    bool number = value->kind == CV_INT || value->kind == CV_FLOAT;
    if (!number || !key->has_low) return true;
    return key->low_open ? value->real > key->low : value->real >= key->low;
}

/* DeepSpeed's parser takes anything in a raw key; its engine, and ours, cannot use it. */
static bool check_raw(struct config_impl *c, const struct config_key *key, const struct cv *value,
                      const char *path)
{
    if (!wanted(key->type) || !cv_is_given(value)) return true;
    if (cv_is_string(value, CONFIG_AUTO)) {
        config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, path, "%s", config_auto_text(c, path));
    } else if (!has_type(key, value)) {
        config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, path, "expected %s, got %s",
                   wanted(key->type), cv_show(&c->pool, value));
    } else if (!in_range(key, value)) {
        config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, path,
                   "%s is out of range; it must be %s %g", cv_show(&c->pool, value),
                   key->low_open ? "above" : "at least", key->low);
    } else {
        return true;
    }
    return false;
}

/* ---- storing -------------------------------------------------------------------------------- */

/* An enum's constants stand in the order of the key's choices. */
static int choice_index(const struct config_key *key, const struct cv *value)
{
    if (key->type != KEY_CHOICE) return (int)value->integer;
    int idx = 0;
    while (key->choices[idx] && !cv_is_string(value, key->choices[idx])) idx++;
    return key->choices[idx] ? idx : 0;
}

/* Fields have C types of their own; a raw key's value was checked by check_raw() before. */
static void store(struct ds_config *config, const struct config_key *key, const struct cv *value)
{
    void *field = (char *)config + key->offset;
    int idx;
    switch (key->field) {
    case FIELD_NONE: break;
    case FIELD_BOOL: *(bool *)field = cv_is_true(value); break;
    case FIELD_INT64: *(int64_t *)field = value->integer; break;
    case FIELD_DOUBLE: *(double *)field = value->real; break;
    case FIELD_STRING: *(const char **)field = value->string; break;
    case FIELD_ENUM:
        idx = choice_index(key, value);
        memcpy(field, &idx, sizeof idx);
        break;
    }
}

/* ---- what czero makes of a key -------------------------------------------------------------- */

static bool starts_with_switch(const struct config_section *section)
{
    const char *first = section->keys[0].name;
    return strcmp(first, "enabled") == 0 || strcmp(first, "deepcompile") == 0;
}

static void fill_section(struct ds_config *config, const struct config_section *section,
                         const struct cv *resolved)
{
    struct config_impl *c = config->impl;
    /* A section whose switch is off asks for nothing. */
    if (cv_is_given(resolved) && resolved->kind != CV_NULL) {
        const struct cv *first = cv_get(resolved, section->keys[0].name);
        bool on = first && cv_is_true(first);
        const char *path =
            on ? config_join(c, section->name, section->keys[0].name) : section->name;
        if (section->effect == EFFECT_UNSUPPORTED || (section->effect == EFFECT_OFF && on))
            config_say(c, CONFIG_NOTE_UNSUPPORTED, on ? first : resolved, path, "not supported: %s",
                       section->why);
        if (section->effect == EFFECT_NONE && (on || !starts_with_switch(section)))
            config_say(c, CONFIG_NOTE_NO_EFFECT, resolved, section->name, "has no effect here: %s",
                       section->why);
    }
    for (size_t i = 0; i < section->n_keys; i++) {
        const struct config_key *key = &section->keys[i];
        const struct cv *value = cv_get(resolved, key->name);
        if (key->type == KEY_SECTION) {
            if (value && value->kind == CV_DICT) fill_section(config, key->section, value);
            continue;
        }
        if (!value) continue;
        const char *path = config_join(c, section->name, key->name);
        bool whole_section = section->effect != EFFECT_HONOURED;
        /* A key is reported only if the file gave it: defaults without effect are no news. */
        if (!whole_section && cv_is_given(value)) {
            if (key->effect == EFFECT_NONE)
                config_say(c, CONFIG_NOTE_NO_EFFECT, value, path, "has no effect here: %s",
                           key->why);
            if (key->effect == EFFECT_UNSUPPORTED &&
                !cv_equal(value, cv_parse(&c->pool, key->fallback, CV_DEFAULT)))
                config_say(c, CONFIG_NOTE_UNSUPPORTED, value, path, "not supported: %s", key->why);
        }
        bool usable =
            section->kind == SECTION_MODEL || whole_section || check_raw(c, key, value, path);
        if (!usable && key->fallback) value = cv_parse(&c->pool, key->fallback, CV_DEFAULT);
        store(config, key, value);
    }
}

/* ---- members that no single key gives ------------------------------------------------------- */

static const struct cv *at(const struct ds_config *config, const char *path)
{
    return config_at(config->impl->resolved, path);
}

/* DeepSpeed's list of names, with its prefixed ones. */
static bool dtype_by_name(const char *name, enum cz_dtype *out)
{
    static const struct {
        const char *name;
        enum cz_dtype dtype;
    } names[] = {
        {"fp32", DTYPE_F32},         {"float32", DTYPE_F32},         {"float", DTYPE_F32},
        {"fp16", DTYPE_F16},         {"float16", DTYPE_F16},         {"half", DTYPE_F16},
        {"bf16", DTYPE_BF16},        {"bfloat16", DTYPE_BF16},       {"int8", DTYPE_I8},
        {"torch.int8", DTYPE_I8},    {"torch.bfloat16", DTYPE_BF16}, {"torch.float16", DTYPE_F16},
        {"torch.float32", DTYPE_F32}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        if (strcmp(names[i].name, name) != 0) continue;
        *out = names[i].dtype;
        return true;
    }
    return false;
}

/* A dtype given by name, or *out as it was; names that mean nothing are noted. */
static bool fill_dtype(struct ds_config *config, const char *path, enum cz_dtype *out)
{
    struct config_impl *c = config->impl;
    const struct cv *value = at(config, path);
    if (!value || value->kind != CV_STRING || cv_is_string(value, CONFIG_AUTO)) return false;
    if (dtype_by_name(value->string, out) && *out != DTYPE_I8) return true;
    config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, path, "%s is not one of fp32, fp16, bf16",
               cv_show(&c->pool, value));
    return false;
}

/* 16-bit modes exclude each other (config_cross.c). Communication and accumulation follow the
 * model's type unless the file names another, as in DeepSpeed. */
static void fill_dtypes(struct ds_config *config)
{
    struct config_impl *c = config->impl;
    config->model_dtype = config->fp16.enabled   ? DTYPE_F16
                          : config->bf16.enabled ? DTYPE_BF16
                                                 : DTYPE_F32;
    config->communication_dtype = config->model_dtype;
    config->grad_accum_dtype = config->model_dtype;
    fill_dtype(config, "communication_data_type", &config->communication_dtype);
    config->grad_accum_dtype_given =
        fill_dtype(config, "data_types.grad_accum_dtype", &config->grad_accum_dtype);
    enum cz_dtype param = config->model_dtype;
    if (fill_dtype(config, "data_types.param_dtype", &param) && param != config->model_dtype)
        config_say(c, CONFIG_NOTE_ENGINE_REJECTS, at(config, "data_types.param_dtype"),
                   "data_types.param_dtype", "%s conflicts with the model's type, %s",
                   dtype_name(param), dtype_name(config->model_dtype));
}

/* Python's logging names, in any case. */
static void fill_log_level(struct ds_config *config)
{
    static const char *const levels[] = {"debug", "info", "warning", "error", "critical"};
    struct config_impl *c = config->impl;
    const struct cv *value = at(config, "log_level");
    if (value->kind != CV_STRING || cv_is_string(value, CONFIG_AUTO)) return;
    for (size_t i = 0; i < CZ_ARRAY_LEN(levels); i++) {
        if (strcasecmp(levels[i], value->string) != 0) continue;
        config->log_level = (enum config_log_level)(CONFIG_LOG_DEBUG + (int)i);
        return;
    }
    config_say(c, CONFIG_NOTE_ENGINE_REJECTS, value, "log_level",
               "%s is not one of debug, info, warning, error, critical", cv_show(&c->pool, value));
}

/* DeepSpeed turns the logger on because the section is there, even with "enabled": false; czero
 * follows the switch and says so. */
static void fill_prof_ops(struct ds_config *config)
{
    struct config_impl *c = config->impl;
    const struct cv *ops = at(config, "comms_logger.prof_ops");
    const char **names = cv_alloc(&c->pool, (ops->n + 1) * sizeof *names);
    size_t n = 0;
    for (size_t i = 0; i < ops->n; i++)
        if (ops->items[i]->kind == CV_STRING) names[n++] = ops->items[i]->string;
    config->comms_logger.prof_ops = names;
    config->comms_logger.n_prof_ops = n;
    const struct cv *section = at(config, "comms_logger");
    if (cv_is_given(section) && !config->comms_logger.enabled)
        config_say(
            c, CONFIG_NOTE_CHOICE, section, "comms_logger",
            "is off because \"enabled\" is false; DeepSpeed would log because the section exists");
}

/* A list of names as one text; NULL: an empty one. */
static const char *join_names(struct ds_config *config, const char *path)
{
    struct config_impl *c = config->impl;
    const struct cv *list = at(config, path);
    const char *text = NULL;
    for (size_t i = 0; list && list->kind == CV_LIST && i < list->n; i++)
        text =
            cv_text(&c->pool, "%s%s%s", text ? text : "", text ? "," : "", list->items[i]->string);
    return text;
}

static void fill_lora(struct ds_config *config)
{
    struct config_lora *lora = &config->czero.lora;
    lora->given = at(config, "czero.lora")->kind == CV_DICT;
    if (!lora->given) return;
    lora->targets = join_names(config, "czero.lora.targets");
    lora->modules_to_save = join_names(config, "czero.lora.modules_to_save");
}

/* As KEY_PATH has them: "/mnt/a/" is "/mnt/a". */
static const char *without_slash(struct config_impl *c, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return cv_text(&c->pool, "%.*s", (int)n, path);
}

/* More of them, or others than numbers, are refused by config_support.c. */
static void fill_nvme_paths(struct ds_config *config)
{
    struct config_czero *z = &config->czero;
    const struct cv *paths = at(config, "czero.nvme_paths");
    const struct cv *rates = at(config, "czero.nvme_rates");
    for (size_t i = 0; paths && i < paths->n && i < CONFIG_NVME_PATHS_MAX; i++)
        z->nvme_paths[z->n_nvme_paths++] = without_slash(config->impl, paths->items[i]->string);
    for (size_t i = 0; rates && i < rates->n && i < CONFIG_NVME_PATHS_MAX; i++)
        z->nvme_rates[z->n_nvme_rates++] = rates->items[i]->real;
}

/* The default of 1.0 came with 0.19: the note is for users that compare with runs of 0.16. */
static void fill_clipping(struct ds_config *config)
{
    struct config_impl *c = config->impl;
    config->gradient_clipping_given = cv_is_given(at(config, "gradient_clipping"));
    if (config->gradient_clipping_given || c->compat == CONFIG_COMPAT_0_16) return;
    config_say(c, CONFIG_NOTE_DEFAULT, NULL, "gradient_clipping",
               "is not given, so gradients are clipped to norm 1.0 as in DeepSpeed 0.19 (0.16 did "
               "not clip); 0 turns clipping off");
}

/* WarmupDecayLR (and WarmupLR under 0.16) has its own default rate. A config that sets only the
 * optimizer's rate trains at that default. */
static void say_default_rate(struct ds_config *config)
{
    const struct config_scheduler *s = &config->scheduler;
    const struct setting_list *peak = &s->params.warmup_max_lr;
    if (!s->usable || !config->optimizer.usable || peak->n != 1) return;
    const int i = settings_find(schedule_settings(&s->params), "warmup_max_lr");
    const double lr = config->optimizer.hyper.lr;
    if (i < 0 || (s->params.given >> i & 1) || peak->v[0] == lr) return;
    config_say(config->impl, CONFIG_NOTE_UNEXPECTED, NULL, "scheduler.params.warmup_max_lr",
               "is not given, so the rate goes to %g, %s's default, not to the optimizer's %g; "
               "\"auto\" is the optimizer's",
               peak->v[0], s->type, lr);
}

static bool is_asked_for(const struct cv *value)
{
    return value &&
           (value->origin == CV_SET || value->origin == CV_OPTION || value->origin == CV_AUTO);
}

/* These schedules have rates of their own, so an lr that was asked for changes nothing. */
static void say_replaced_rate(struct ds_config *config)
{
    static const char *const own[] = {"warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr"};
    struct config_impl *c = config->impl;
    const struct schedule_params *p = &config->scheduler.params;
    const struct setting_table *table = schedule_settings(p);
    const double lr = config->optimizer.hyper.lr;
    if (!config->scheduler.usable || !config->optimizer.usable) return;
    if (!is_asked_for(at(config, "optimizer.params.lr"))) return;
    for (size_t i = 0; i < CZ_ARRAY_LEN(own); i++) {
        const char *path = cv_text(&c->pool, "scheduler.params.%s", own[i]);
        const struct cv *rate = at(config, path);
        const int k = settings_find(table, own[i]);
        if (k < 0 || !(p->given >> k & 1) || !rate || rate->kind == CV_NULL) continue;
        const struct setting_list *list =
            (const struct setting_list *)((const char *)p + table->settings[k].offset);
        bool differs = false;
        for (size_t j = 0; j < list->n; j++) differs = differs || list->v[j] != lr;
        if (differs)
            config_say(c, CONFIG_NOTE_UNEXPECTED, rate, path,
                       "%s of the scheduler replaces optimizer.params.lr %g: give both the same "
                       "value, or write \"auto\" for %s",
                       cv_show(&c->pool, rate), lr, own[i]);
    }
}

/* Order: the optimizer needs the offload section (dialect), state dtypes need the optimizer, and
 * the last check needs everything. */
void config_fill(struct ds_config *config)
{
    const struct config_impl *c = config->impl;
    fill_section(config, &config_top, c->resolved);
    config->zero.offload_param.given =
        at(config, "zero_optimization.offload_param")->kind == CV_DICT;
    config->zero.offload_optimizer.given =
        at(config, "zero_optimization.offload_optimizer")->kind == CV_DICT;
    config->gradient_allreduce_sum = cv_is_string(at(config, "gradient_allreduce_op"), "sum");
    fill_dtypes(config);
    fill_log_level(config);
    fill_prof_ops(config);
    fill_lora(config);
    fill_nvme_paths(config);
    /* Any of them asks for a dynamic scaler, as in DeepSpeed; a static loss_scale does not. */
    static const char *const settings[] = {"initial_scale_power", "loss_scale_window",
                                           "min_loss_scale", "hysteresis",
                                           "consecutive_hysteresis"};
    const struct cv *fp16 = at(config, "fp16");
    for (size_t i = 0; i < CZ_ARRAY_LEN(settings); i++)
        config->fp16.scaler_given |= cv_is_given(cv_get(fp16, settings[i]));
    fill_clipping(config);
    config_fill_optimizer(config);
    config_fill_state_dtypes(config);
    config_fill_scheduler(config);
    say_default_rate(config);
    say_replaced_rate(config);
    config_check_support(config);
}

/* --set path=value, options of a command and --auto NAME=VALUE, applied to the tree before it is
 * resolved, so that all take the same checks as the file and messages can name the origin. */
#include "base/text/nearest.h"
#include "engine/config/config_impl.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* Split "path=value". Sections are nested no deeper than in a file. */
static cz_status split(struct config_impl *c, const char *flag, const char *text, const char **path,
                       const char **value)
{
    const char *equals = strchr(text, '=');
    size_t n_names = 1;
    if (!equals || equals == text)
        return err_set(CZ_INVALID, 0, "%s %s: write %s NAME=VALUE", flag, text, flag);
    for (const char *at = text; at < equals; at++) n_names += *at == '.';
    if (n_names > JSON_DEPTH_MAX)
        return err_set(CZ_INVALID, 0, "%s %.64s…: the path has %zu names: at most %d", flag, text,
                       n_names, JSON_DEPTH_MAX);
    *path = cv_text(&c->pool, "%.*s", (int)(equals - text), text);
    *value = equals + 1;
    return CZ_OK;
}

/* The object that holds the last name of `path`; sections on the way are made, with an origin of
 * `make`. NULL when a value is in the way: *last is then its name. */
static struct cv *find_parent(struct config_impl *c, const char *path, enum cv_origin make,
                              const char **last)
{
    struct cv *at = c->given;
    const char *dot;
    for (; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        const char *name = cv_text(&c->pool, "%.*s", (int)(dot - path), path);
        struct cv *next = cv_get(at, name);
        if (!next || next->kind == CV_NULL) {
            next = cv_new(&c->pool, CV_DICT, make);
            cv_put(&c->pool, at, name, next);
        }
        if (next->kind != CV_DICT) {
            *last = name;
            return NULL;
        }
        at = next;
    }
    *last = path;
    return at;
}

/* A key may have two names: the path with the one that the config has. */
static const char *path_as_given(struct config_impl *c, const char *path)
{
    const struct config_section *section = &config_top;
    const struct cv *at = c->given;
    const char *name = path, *dot;
    bool is_short;
    for (; (dot = strchr(name, '.')) != NULL; name = dot + 1) {
        const char *part = cv_text(&c->pool, "%.*s", (int)(dot - name), name);
        const struct config_key *key = config_find_key(section, part, &is_short);
        if (!key || key->type != KEY_SECTION) return path;
        section = key->section;
        at = at && at->kind == CV_DICT ? cv_get(at, part) : NULL;
    }
    const struct config_key *key = config_find_key(section, name, &is_short);
    if (!key || !key->short_name || !at || at->kind != CV_DICT || cv_get(at, name)) return path;
    const char *other = is_short ? key->name : key->short_name;
    return cv_get(at, other) ? cv_text(&c->pool, "%.*s%s", (int)(name - path), path, other) : path;
}

bool config_put_at(struct config_impl *c, const char *path, struct cv *value)
{
    const char *last;
    struct cv *parent = find_parent(c, path, value->origin, &last);
    if (!parent) return false;
    const struct cv *old = cv_get(parent, last);
    if (cv_is_string(old, CONFIG_AUTO)) value->node = old->node;
    cv_put(&c->pool, parent, last, value);
    return true;
}

/* Missing sections are made on the way: --set works on an empty config. */
cz_status config_apply_sets(struct config_impl *c, const struct config_options *options)
{
    for (size_t i = 0; i < options->n_sets; i++) {
        const char *path = NULL, *value = NULL, *last = NULL;
        TRY(split(c, "--set", options->sets[i], &path, &value));
        path = path_as_given(c, path);
        struct cv *parent = find_parent(c, path, CV_SET, &last);
        if (!parent) return err_set(CZ_INVALID, 0, "--set %s: \"%s\" is not an object", path, last);
        if (!last[0]) return err_set(CZ_INVALID, 0, "--set %s: the path ends in a dot", path);
        cv_put(&c->pool, parent, last, cv_parse(&c->pool, value, CV_SET));
    }
    return CZ_OK;
}

/* ---- options of a command -------------------------------------------------------------------- */

/* Users of Hugging Face's configs meet "auto" first, and options by their names. */
const char *config_option_of(const char *path)
{
    static const struct {
        const char *path, *option;
    } options[] = {
        {"train_batch_size", "--micro-batch and --accumulation"},
        {"train_micro_batch_size_per_gpu", "--micro-batch"},
        {"gradient_accumulation_steps", "--accumulation"},
        {"gradient_clipping", "--max-grad-norm"},
        {"fp16.enabled", "--precision"},
        {"bf16.enabled", "--precision"},
        {"optimizer.type", "--optimizer"},
        {"optimizer.params.lr", "--lr"},
        {"optimizer.params.betas", "--betas"},
        {"optimizer.params.eps", "--eps"},
        {"optimizer.params.weight_decay", "--weight-decay"},
        {"scheduler.type", "--lr-scheduler"},
        {"scheduler.params.warmup_max_lr", "--lr"},
        {"scheduler.params.warmup_num_steps", "--warmup-steps"},
        {"scheduler.params.total_num_steps", "--steps"},
        {"czero.lora.rank", "--lora rank"},
        {"czero.lora.alpha", "--lora alpha"},
        {"czero.lora.targets", "--lora targets"},
        {"czero.lora.layers", "--lora layers"},
        {"czero.lora.dropout", "--lora dropout"},
        {"czero.lora.rslora", "--lora rslora"},
        {"czero.lora.dora", "--lora dora"},
        {"czero.lora.modules_to_save", "--lora modules_to_save"},
        {"czero.machine_profile", "--profile"},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(options); i++)
        if (strcmp(options[i].path, path) == 0) return options[i].option;
    return NULL;
}

/* The message names the option of `czero train` that fills the key. */
const char *config_auto_text(struct config_impl *c, const char *path)
{
    const char *option = config_option_of(path);
    return cv_text(&c->pool, "\"auto\" must be filled in; give --auto %s=VALUE%s%s%s", path,
                   option ? " (to czero train: " : "", option ? option : "", option ? ")" : "");
}

/* ["q_proj", "v_proj"] of the config is "q_proj,v_proj" of an option. */
static bool joins_to(const struct cv *list, const char *text)
{
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i]->kind != CV_STRING) return false;
        const char *name = list->items[i]->string;
        const size_t n = strlen(name);
        if (strncmp(text, name, n) != 0 || text[n] != (i + 1 < list->n ? ',' : '\0')) return false;
        text += n + 1;
    }
    return list->n > 0;
}

/* Names of types have no case; 1e-4 and 0.0001 are the same number. */
static bool says_the_same(const char *path, const struct cv *old, const struct cv *value)
{
    if (old->kind == CV_LIST && value->kind == CV_STRING) return joins_to(old, value->string);
    if (old->kind == CV_DICT && value->kind == CV_DICT && value->n == 0) return true;
    if (old->kind == CV_STRING && value->kind == CV_STRING && strcmp(path, "optimizer.type") == 0)
        return strcasecmp(old->string, value->string) == 0;
    return cv_equal(old, value);
}

static const char lr_path[] = "optimizer.params.lr", peak_path[] = "scheduler.params.warmup_max_lr";

/* A number here is a rate that replaces the optimizer's. */
static bool has_peak(struct config_impl *c)
{
    const struct cv *peak = config_at(c->given, peak_path);
    return peak && cv_is_number(peak);
}

static void refuse_other(struct config_impl *c, const char *path, const struct cv *old,
                         const struct cv *value)
{
    const bool is_rate = strcmp(path, lr_path) == 0 || strcmp(path, peak_path) == 0;
    const char *new = cv_show(&c->pool, value), *both = "", *given = path_as_given(c, path);
    if (strncmp(path, "czero.lora.", 11) == 0 && value->origin == CV_OPTION) {
        config_error(c, old, given, "%s differs from %s=%s: give one of them",
                     cv_show(&c->pool, old), config_option_of(path), new);
        return;
    }
    if (is_rate && has_peak(c))
        both = cv_text(&c->pool, " --set %s=%s", strcmp(path, lr_path) == 0 ? peak_path : lr_path,
                       new);
    config_error(c, old, given,
                 "the config says %s, and %s asks for %s: write \"auto\" in the config, or replace "
                 "the option by --set %s=%s%s",
                 cv_show(&c->pool, old), config_place(c, value, path), new, path, new, both);
}

/* An option that asks for a precision switches the other one off: that says nothing to a file that
 * does not mention it. */
static void want(struct config_impl *c, const char *path, struct cv *value)
{
    const char *given = path_as_given(c, path);
    const struct cv *old = config_at(c->given, given);
    /* DeepSpeed's schedules, which alone say "auto" here, refuse a warm-up of 0 steps. */
    if (cv_is_string(old, CONFIG_AUTO) && value->kind == CV_INT && value->integer == 0 &&
        strcmp(path, "scheduler.params.warmup_num_steps") == 0)
        value = cv_int(&c->pool, 1, CV_OPTION);
    const bool is_off = value->kind == CV_BOOL && !value->boolean;
    if (old && old->kind != CV_NULL && !cv_is_string(old, CONFIG_AUTO)) {
        if (!says_the_same(path, old, value)) refuse_other(c, path, old, value);
    } else if ((old || !is_off) && !config_put_at(c, given, value)) {
        config_error(c, value, path, "a section on the way to it is not an object");
    }
}

/* "0.9,0.95" is a list: brackets are the shell's. */
static struct cv *parse_value(struct config_impl *c, const char *path, const char *text,
                              enum cv_origin origin)
{
    struct cv *value = cv_parse(&c->pool, text, origin);
    if (value->kind != CV_STRING || strcmp(path, "optimizer.params.betas") != 0) return value;
    return cv_parse(&c->pool, cv_text(&c->pool, "[%s]", text), origin);
}

static cz_status want_ratio(struct config_impl *c, const char *text)
{
    const struct cv *value = cv_parse(&c->pool, text, CV_OPTION);
    if (!cv_is_number(value) || !(value->real >= 0 && value->real <= 1))
        return err_set(CZ_INVALID, 0, "--warmup-ratio %s: a number from 0 to 1 is needed", text);
    c->warmup_ratio = value->real;
    return CZ_OK;
}

/* A schedule's own peak replaces the optimizer's lr: --lr has to agree with both. */
cz_status config_apply_wanted(struct config_impl *c, const struct config_options *options)
{
    for (size_t i = 0; i < options->n_wanted; i++) {
        const char *path = NULL, *text = NULL;
        TRY(split(c, "an option", options->wanted[i], &path, &text));
        if (strcmp(path, "warmup_ratio") == 0) {
            TRY(want_ratio(c, text));
            continue;
        }
        struct cv *value = parse_value(c, path, text, CV_OPTION);
        want(c, path, value);
        if (strcmp(path, lr_path) == 0 && config_at(c->given, peak_path))
            want(c, peak_path, cv_copy(&c->pool, value));
    }
    return CZ_OK;
}

/* ---- values for "auto" ----------------------------------------------------------------------- */

/* Put `value` where the file says "auto"; anything else stays. */
static bool fill(struct config_impl *c, const char *path, struct cv *value)
{
    /* Hugging Face's Trainer fills DeepSpeed's keys under their first names alone. */
    if (strncmp(path, "czero.", 6) == 0) path = path_as_given(c, path);
    if (!cv_is_string(config_at(c->given, path), CONFIG_AUTO)) return false;
    return config_put_at(c, path, value);
}

/* Paths of the "auto" values under `at`, up to n_max; the number of all. */
static size_t list_autos(struct config_impl *c, const struct cv *at, const struct config_path *path,
                         const char **out, size_t n_max, size_t n)
{
    for (size_t i = 0; i < at->n && at->kind == CV_DICT; i++) {
        const struct config_path here = {path, at->keys[i]};
        if (cv_is_string(at->items[i], CONFIG_AUTO) && n++ < n_max)
            out[n - 1] = config_path_text(c, &here);
        if (at->items[i]->kind == CV_DICT) n = list_autos(c, at->items[i], &here, out, n_max, n);
    }
    return n;
}

/* The one that ends in the same name ("lr"), or the nearest spelling. */
static const char *nearest_auto(const char *path, const char *const *names, size_t n)
{
    const char *dot = strrchr(path, '.'), *last = dot ? dot + 1 : path;
    for (size_t i = 0; i < n; i++) {
        const char *at = strrchr(names[i], '.');
        if (strcmp(at ? at + 1 : names[i], last) == 0) return names[i];
    }
    struct nearest search = nearest_begin(path);
    for (size_t i = 0; i < n; i++) nearest_consider(&search, names[i]);
    return search.best;
}

static void refuse_idle_auto(struct config_impl *c, const char *path, const struct cv *value)
{
    enum { N_MAX = 64 };
    const char *names[N_MAX];
    const struct cv *old = config_at(c->given, path_as_given(c, path));
    if (old && old->kind != CV_NULL) {
        if (!says_the_same(path, old, value)) refuse_other(c, path, old, value);
        return;
    }
    size_t n = list_autos(c, c->given, NULL, names, N_MAX, 0);
    const char *near = nearest_auto(path, names, n < N_MAX ? n : N_MAX);
    if (near)
        config_error(c, value, path, "the config has no \"auto\" there; did you mean %s?", near);
    else if (n > 0)
        config_error(c, value, path,
                     "the config has no \"auto\" there, but at %s%s; --set sets any key", names[0],
                     n > 1 ? " and elsewhere" : "");
    else
        config_error(c, value, path, "the config has no \"auto\"; --set sets any key");
}

/* Sizes that transformers derives from the model's width. Bounded to 2^30, so that its square is an
 * int64 (docs/deepspeed-behaviour.md, "The string auto"). */
static void fill_sizes(struct config_impl *c, int64_t width, enum cv_origin origin)
{
    fill(c, "zero_optimization.reduce_bucket_size", cv_int(&c->pool, width * width, origin));
    const struct cv *stage = config_at(c->given, "zero_optimization.stage");
    bool is_3 = stage && ((cv_is_number(stage) && stage->real == 3) || cv_is_string(stage, "3"));
    if (!is_3) return;
    int64_t prefetch = (int64_t)floor(0.9 * (double)width * (double)width);
    fill(c, "zero_optimization.stage3_prefetch_bucket_size", cv_int(&c->pool, prefetch, origin));
    fill(c, "zero_optimization.stage3_param_persistence_threshold",
         cv_int(&c->pool, 10 * width, origin));
}

cz_status config_apply_autos(struct config_impl *c, const struct config_options *options)
{
    const int64_t width_max = (int64_t)1 << 30;
    for (size_t i = 0; i < options->n_autos; i++) {
        const char *path = NULL, *text = NULL;
        TRY(split(c, "--auto", options->autos[i], &path, &text));
        struct cv *value = parse_value(c, path, text, CV_AUTO);
        if (strcmp(path, "hidden_size") == 0) {
            if (value->kind != CV_INT || value->digits || value->integer < 1 ||
                value->integer > width_max)
                return err_set(CZ_INVALID, 0,
                               "--auto hidden_size: expected a positive integer, got %s",
                               cv_show(&c->pool, value));
            fill_sizes(c, value->integer, CV_AUTO);
        } else if (!fill(c, path, value) && options->strict_autos) {
            refuse_idle_auto(c, path, value);
        }
    }
    if (options->hidden_size > 0 && options->hidden_size <= width_max)
        fill_sizes(c, options->hidden_size, CV_TRAINER);
    if (options->total_steps > 0)
        fill(c, "scheduler.params.total_num_steps",
             cv_int(&c->pool, options->total_steps, CV_TRAINER));
    return CZ_OK;
}

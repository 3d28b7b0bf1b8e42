/* From what a file gives to what DeepSpeed's parser would make of it. */
#include "base/printable.h"
#include "engine/config/config_impl.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static struct cv *resolve_section(struct config_impl *c, const struct config_section *section,
                                  const struct cv *given);

/* ---- sentences ------------------------------------------------------------------------------ */

const char *config_path_text(struct config_impl *c, const struct config_path *path)
{
    size_t end = 0;
    for (const struct config_path *at = path; at; at = at->up) end += strnlen(at->name, 200) + 1;
    char *out = cv_alloc(&c->pool, end + 1);                     /* zeroed */
    for (const struct config_path *at = path; at; at = at->up) { /* from its end */
        const size_t n = strnlen(at->name, 200);
        end -= n + 1;
        memcpy(out + end, at->name, n);
        if (at != path) out[end + n] = '.';
    }
    return out;
}

const char *config_join(struct config_impl *c, const char *section, const char *name)
{
    const size_t n_section = strlen(section), n_name = strnlen(name, 200);
    char *out = cv_alloc(&c->pool, n_section + n_name + 2), *at = mempcpy(out, section, n_section);
    if (n_section > 0) *at++ = '.';
    memcpy(at, name, n_name); /* cv_alloc() has zeroed what follows */
    return out;
}

const char *config_place(struct config_impl *c, const struct cv *value, const char *path)
{
    const char *colon = path[0] ? ": " : "";
    if (value && value->node)
        return cv_text(&c->pool, "%s:%d:%d%s%s", c->file, json_line(value->node),
                       json_column(value->node), colon, path);
    if (value && value->origin == CV_SET) return cv_text(&c->pool, "--set %s", path);
    if (value && value->origin == CV_OPTION && config_option_of(path))
        return cv_text(&c->pool, "%s (%s)", config_option_of(path), path);
    if (value && value->origin == CV_AUTO) return cv_text(&c->pool, "--auto %s", path);
    return cv_text(&c->pool, "%s%s%s", c->file, colon, path);
}

/* "PLACE: text", escaped: keys and values are a stranger's. */
static const char *sentence(struct config_impl *c, const struct cv *value, const char *path,
                            const char *fmt, va_list args)
{
    char buf[4096];
    size_t n =
        printable_format(buf, sizeof buf, sizeof buf / 2, "%s: ", config_place(c, value, path));
    printable_vformat(buf + n, sizeof buf - n, sizeof buf / 4, fmt, args);
    return cv_text(&c->pool, "%s", buf);
}

void config_error(struct config_impl *c, const struct cv *value, const char *path, const char *fmt,
                  ...)
{
    if (c->n_errors == CONFIG_ERRORS_MAX) {
        c->n_errors_dropped++;
        return;
    }
    va_list args;
    va_start(args, fmt);
    c->errors[c->n_errors++] = sentence(c, value, path, fmt, args);
    va_end(args);
}

void config_say(struct config_impl *c, enum config_note_kind kind, const struct cv *value,
                const char *path, const char *fmt, ...)
{
    if (c->n_notes == CONFIG_NOTES_MAX) {
        c->n_notes_dropped++;
        return;
    }
    va_list args;
    va_start(args, fmt);
    const char *text = sentence(c, value, path, fmt, args);
    va_end(args);
    c->notes[c->n_notes++] = (struct config_note){
        .kind = kind,
        .path = cv_text(&c->pool, "%s", path),
        .line = value && value->node ? json_line(value->node) : 0,
        .column = value && value->node ? json_column(value->node) : 0,
        .text = text,
    };
}

struct cv *config_at(const struct cv *root, const char *path)
{
    char name[256];
    const struct cv *at = root;
    while (at && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof name) return NULL;
        memcpy(name, path, n);
        name[n] = '\0';
        at = cv_get(at, name);
        path += n + (path[n] == '.');
    }
    return (struct cv *)at;
}

/* ---- unknown keys --------------------------------------------------------------------------- */

static const char *suggestion(struct config_impl *c, const struct config_section *section,
                              const char *name)
{
    char buf[256];
    if (strcmp(name, "grad_hooks") == 0)
        return "; DeepSpeed's documentation lists it, but it is not a setting: remove it";
    /* "lr" beside "type", or at the top: a parameter that stands one level deeper. */
    const bool holds_params = !section->name[0] || strcmp(section->name, "optimizer") == 0;
    struct optim_hyper usual;
    if (holds_params &&
        optim_hyper_begin(optim_type_default()->name, OPTIM_FUSED, &usual) == CZ_OK &&
        settings_find(optim_settings(&usual), name) >= 0)
        return cv_text(&c->pool, "; did you mean \"optimizer.params.%s\"?", name);
    const char *near = config_nearest_key(section, name);
    if (near)
        return cv_text(&c->pool, "; did you mean \"%s\"?", config_join(c, section->name, near));
    near = config_same_key_elsewhere(name, buf, sizeof buf);
    return near ? cv_text(&c->pool, "; did you mean \"%s\"?", near) : "; remove it";
}

static void unknown_raw_key(struct config_impl *c, const struct config_section *section,
                            const char *name, const struct cv *value)
{
    if (name[0] == '_') return;                         /* a comment */
    if (c->n_notes == CONFIG_NOTES_MAX && !c->strict) { /* looking for hints takes time */
        c->n_notes_dropped++;
        return;
    }
    const char *path = config_join(c, section->name, name);
    const char *hint = suggestion(c, section, name);
    if (c->strict || value->origin == CV_SET) {
        config_error(c, value, path, "unknown key%s", hint);
    } else {
        config_say(c, CONFIG_NOTE_UNKNOWN, value, path, "unknown key, ignored%s", hint);
    }
}

static void unknown_model_key(struct config_impl *c, const struct config_section *section,
                              const char *name, const struct cv *value)
{
    if (c->n_errors == CONFIG_ERRORS_MAX) {
        c->n_errors_dropped++;
        return;
    }
    const char *path = config_join(c, section->name, name);
    config_error(c, value, path, "unknown key%s", suggestion(c, section, name));
}

/* ---- sections ------------------------------------------------------------------------------- */

static const char *fallback_text(const struct config_impl *c, const struct config_key *key)
{
    bool older = c->compat == CONFIG_COMPAT_0_16 && key->fallback_0_16;
    return older ? key->fallback_0_16 : key->fallback;
}

/* The default of a key; NULL when the key is then absent. */
static struct cv *fallback(struct config_impl *c, const struct config_key *key)
{
    if (key->type == KEY_SECTION) return resolve_section(c, key->section, NULL);
    const char *text = fallback_text(c, key);
    if (!text) return NULL;
    struct cv *out = cv_parse(&c->pool, text, CV_DEFAULT);
    if (key->type == KEY_FLOAT && out->kind == CV_INT)
        out = cv_float(&c->pool, out->real, CV_DEFAULT);
    return out;
}

static struct cv *typed_value(struct config_impl *c, const struct config_key *key,
                              const struct cv *value, const char *path)
{
    if (key->type == KEY_SECTION) return resolve_section(c, key->section, value);
    return config_coerce(c, key, value, path);
}

/* Raw keys keep any value, apart from what DeepSpeed's code stumbles over. */
static struct cv *raw_value(struct config_impl *c, const struct config_key *key,
                            const struct cv *value, const char *path)
{
    if (key->type == KEY_SECTION) return resolve_section(c, key->section, value);
    if (key->type == KEY_CHOICE && cv_is_string(value, CONFIG_AUTO)) {
        config_error(c, value, path, "%s", config_auto_text(c, path));
        return NULL;
    }
    if (key->type == KEY_CHOICE) return config_coerce(c, key, value, path);
    if ((key->flags & KEY_NOT_EMPTY) && !cv_is_true(value)) {
        config_error(c, value, path, "must not be empty");
        return NULL;
    }
    return cv_copy(&c->pool, value);
}

/* The value given for a key: under its name, or its other name. Both: an error. */
static const struct cv *given_value(struct config_impl *c, const struct config_section *section,
                                    const struct config_key *key, const struct cv *given,
                                    bool drop_auto)
{
    const struct cv *value = cv_get(given, key->name);
    const struct cv *other = key->short_name ? cv_get(given, key->short_name) : NULL;
    if (drop_auto && cv_is_string(value, CONFIG_AUTO)) value = NULL;
    if (drop_auto && cv_is_string(other, CONFIG_AUTO)) other = NULL;
    if (value && other && section->kind == SECTION_MODEL)
        config_error(c, other, config_join(c, section->name, key->short_name),
                     "is given together with \"%s\", its other name; keep one of them", key->name);
    return value ? value : other;
}

static void resolve_key(struct config_impl *c, const struct config_section *section,
                        const struct config_key *key, const struct cv *given, bool drop_auto,
                        struct cv *out)
{
    const struct cv *value = given_value(c, section, key, given, drop_auto);
    const char *path = config_join(c, section->name, key->name);
    struct cv *resolved = !value                           ? fallback(c, key)
                          : section->kind == SECTION_MODEL ? typed_value(c, key, value, path)
                                                           : raw_value(c, key, value, path);
    if (resolved) cv_push(&c->pool, out, key->name, resolved);
}

/* Unknown keys that a model section lets pass: "auto" values are dropped before it looks, and its
 * constructor has an argument "strict" of its own ("self" would clash with another). */
static bool is_swallowed(const char *name, const struct cv *value, bool drop_auto)
{
    if (strcmp(name, "strict") == 0) return true;
    return drop_auto && cv_is_string(value, CONFIG_AUTO) && strcmp(name, "self") != 0;
}

static void unknown_keys(struct config_impl *c, const struct config_section *section,
                         const struct cv *given, bool drop_auto, struct cv *out)
{
    bool by_short_name;
    for (size_t i = 0; given && i < given->n; i++) {
        const char *name = given->keys[i];
        const struct cv *value = given->items[i];
        if (config_find_key(section, name, &by_short_name)) continue;
        if (section->kind == SECTION_RAW) {
            unknown_raw_key(c, section, name, value);
            if (section->keep_rest) cv_push(&c->pool, out, name, cv_copy(&c->pool, value));
        } else if (is_swallowed(name, value, drop_auto)) {
            config_say(c, CONFIG_NOTE_UNKNOWN, value, config_join(c, section->name, name),
                       "unknown key, ignored%s", suggestion(c, section, name));
        } else {
            unknown_model_key(c, section, name, value);
        }
    }
}

static struct cv *resolve_object(struct config_impl *c, const struct config_section *section,
                                 const struct cv *given)
{
    struct cv *out = cv_new(&c->pool, CV_DICT, given ? given->origin : CV_DEFAULT);
    out->node = given ? given->node : NULL;
    const struct cv *strict = cv_get(given, "strict");
    bool drop_auto = section->kind == SECTION_MODEL && !(strict && cv_is_true(strict));
    for (size_t i = 0; i < section->n_keys; i++)
        resolve_key(c, section, &section->keys[i], given, drop_auto, out);
    unknown_keys(c, section, given, drop_auto, out);
    return out;
}

static struct cv *resolve_section(struct config_impl *c, const struct config_section *section,
                                  const struct cv *given)
{
    if (given && section->drop_auto && cv_is_string(given, CONFIG_AUTO)) given = NULL;
    bool absent = !given || (given->kind == CV_NULL && section->nullable);
    if (absent && section->optional)
        return given ? cv_copy(&c->pool, given) : cv_new(&c->pool, CV_NULL, CV_DEFAULT);
    if (absent) return resolve_object(c, section, NULL);
    if (given->kind == CV_DICT) return resolve_object(c, section, given);
    config_error(c, given, section->name, "expected an object, got %s", cv_show(&c->pool, given));
    return NULL;
}

/* ---- sections with rules of their own ------------------------------------------------------- */

/* `cpu_offload: true` and its like: old names that stand for a new key. */
static void replace_old_name(struct config_impl *c, struct cv *zero, const char *old,
                             const char *replacement, struct cv *value)
{
    struct cv *given = cv_get(zero, old);
    if (!given) return;
    const char *path = config_join(c, "zero_optimization", old);
    if (cv_is_given(cv_get(zero, replacement)))
        config_error(c, given, path, "is an old name of \"%s\", which is given too; remove it",
                     replacement);
    config_say(c, CONFIG_NOTE_DEPRECATED, given, path, "an old name; write \"%s\"", replacement);
    if (value) {
        value->origin = given->origin;
        value->node = given->node;
        cv_put(&c->pool, zero, replacement, value);
    }
    cv_remove(zero, old);
}

static struct cv *offload_to_cpu(struct config_impl *c, const struct cv *zero, const char *old,
                                 const char *replacement)
{
    bool by_short_name;
    const struct cv *given = cv_get(zero, old);
    if (!given) return NULL;
    if (!cv_is_true(given)) return cv_new(&c->pool, CV_NULL, CV_DEFAULT);
    struct cv *section = cv_new(&c->pool, CV_DICT, CV_DERIVED);
    cv_push(&c->pool, section, "device", cv_string(&c->pool, "cpu", CV_DERIVED));
    return resolve_section(
        c, config_find_key(&config_zero_section, replacement, &by_short_name)->section, section);
}

/* The older boolean form: true is stage 1 with a bucket size from the top level. */
static struct cv *zero_from_bool(struct config_impl *c, const struct cv *given,
                                 const struct cv *top)
{
    struct cv *out = cv_new(&c->pool, CV_DICT, given->origin);
    out->node = given->node;
    struct cv *stage = cv_int(&c->pool, given->boolean, given->origin);
    stage->node = given->node;
    cv_push(&c->pool, out, "stage", stage);
    const struct cv *size = cv_get(top, "allgather_size");
    if (given->boolean && size)
        cv_push(&c->pool, out, "allgather_bucket_size", cv_copy(&c->pool, size));
    config_say(c, CONFIG_NOTE_DEPRECATED, given, "zero_optimization",
               "an old form; write {\"stage\": %d}", given->boolean);
    return out;
}

static struct cv *resolve_zero(struct config_impl *c, const struct cv *given, const struct cv *top)
{
    if (given && given->kind == CV_BOOL) given = zero_from_bool(c, given, top);
    struct cv *zero = resolve_section(c, &config_zero_section, given);
    if (!zero) return NULL;
    replace_old_name(c, zero, "cpu_offload_param", "offload_param",
                     offload_to_cpu(c, zero, "cpu_offload_param", "offload_param"));
    replace_old_name(c, zero, "cpu_offload", "offload_optimizer",
                     offload_to_cpu(c, zero, "cpu_offload", "offload_optimizer"));
    struct cv *fp16_weights = cv_get(zero, "stage3_gather_fp16_weights_on_model_save");
    replace_old_name(c, zero, "stage3_gather_fp16_weights_on_model_save",
                     "stage3_gather_16bit_weights_on_model_save",
                     fp16_weights ? cv_copy(&c->pool, fp16_weights) : NULL);
    const struct cv *overlap = cv_get(zero, "overlap_comm"), *stage = cv_get(zero, "stage");
    if (overlap && overlap->kind == CV_NULL && stage)
        cv_put(&c->pool, zero, "overlap_comm", cv_bool(&c->pool, stage->integer == 3, CV_DERIVED));
    return zero;
}

static const struct cv *given_bf16(struct config_impl *c, const struct cv *top)
{
    const struct cv *bf16 = cv_get(top, "bf16"), *older = cv_get(top, "bfloat16");
    if (!bf16 || bf16->kind == CV_NULL) return older;
    if (older)
        config_say(c, CONFIG_NOTE_NO_EFFECT, older, "bfloat16",
                   "has no effect: \"bf16\" is given too and has precedence");
    return bf16;
}

static bool contains_throughput(const struct cv *list)
{
    if (list->kind == CV_STRING) return strstr(list->string, "throughput") != NULL;
    for (size_t i = 0; i < list->n; i++)
        if (cv_is_string(list->items[i], "throughput")) return true;
    return false;
}

/* DeepSpeed only asks whether "throughput" is in it. */
static const struct cv *given_timers(struct config_impl *c, const struct cv *timers)
{
    bool iterable = timers && (timers->kind == CV_LIST || timers->kind == CV_STRING);
    if (!iterable || contains_throughput(timers)) return timers;
    config_say(c, CONFIG_NOTE_NO_EFFECT, timers, "timers",
               "has no effect: write {\"throughput\": {…}}");
    return NULL;
}

static const char *lower_case(struct config_impl *c, const char *text)
{
    char *lower = cv_alloc(&c->pool, strlen(text) + 1);
    for (size_t i = 0; (lower[i] = (char)tolower((unsigned char)text[i])) != '\0'; i++) {
    }
    return lower;
}

/* DeepSpeed's own optimizers are named without case; they are shown in lower case. */
static void lower_optimizer_type(struct config_impl *c, struct cv *optimizer)
{
    struct cv *type = cv_get(optimizer, "type");
    if (!type || type->kind == CV_NULL) return;
    if (type->kind != CV_STRING) {
        config_error(c, type, "optimizer.type", "expected a name such as \"AdamW\", got %s",
                     cv_show(&c->pool, type));
        return;
    }
    const struct optim_type *known = optim_type_find(type->string);
    if (known && known->origin == OPTIM_OF_DEEPSPEED) type->string = lower_case(c, known->name);
}

/* Without a type, DeepSpeed does not look at params. */
static void drop_params_without_type(struct config_impl *c, struct cv *section, const char *name)
{
    struct cv *type = cv_get(section, "type"), *params = cv_get(section, "params");
    if (!type || type->kind != CV_NULL || !params || params->kind == CV_NULL) return;
    config_say(c, CONFIG_NOTE_NO_EFFECT, params, config_join(c, name, "params"),
               "has no effect without \"type\"");
    cv_put(&c->pool, section, "params", cv_new(&c->pool, CV_NULL, CV_DERIVED));
}

static struct cv *resolve_named(struct config_impl *c, const struct config_key *key,
                                const struct cv *given)
{
    struct cv *out = resolve_section(c, key->section, given);
    if (!out) return NULL;
    if (strcmp(key->name, "optimizer") == 0) lower_optimizer_type(c, out);
    drop_params_without_type(c, out, key->name);
    return out;
}

static struct cv *resolve_top_section(struct config_impl *c, const struct config_key *key,
                                      const struct cv *top)
{
    const struct cv *given = cv_get(top, key->name);
    const char *name = key->name;
    if (strcmp(name, "zero_optimization") == 0) return resolve_zero(c, given, top);
    if (strcmp(name, "bf16") == 0) given = given_bf16(c, top);
    if (strcmp(name, "timers") == 0) given = given_timers(c, given);
    if (strcmp(name, "expert_parallel") == 0 && given && !cv_is_true(given)) given = NULL;
    if (strcmp(name, "optimizer") == 0 || strcmp(name, "scheduler") == 0)
        return resolve_named(c, key, given);
    return resolve_section(c, key->section, given);
}

/* ---- removed keys --------------------------------------------------------------------------- */

static bool is_switched_on(const struct cv *value)
{
    const struct cv *enabled = cv_get(value, "enabled");
    if (cv_is_number(value)) return value->real > 0; /* mics_shard_size: -1 */
    return cv_is_true(enabled ? enabled : value);
}

static void check_removed_keys(struct config_impl *c)
{
    for (size_t i = 0; i < config_n_removed_keys; i++) {
        const struct config_removed *removed = &config_removed_keys[i];
        const struct cv *value = config_at(c->given, removed->path);
        if (!value) continue;
        if (c->compat == CONFIG_COMPAT_0_16) {
            if (is_switched_on(value) && strcmp(removed->path, "elasticity") != 0)
                config_error(c, value, removed->path, "not supported: %s; %s", removed->what,
                             removed->instead);
            continue;
        }
        config_error(c, value, removed->path,
                     "DeepSpeed 0.19 removed %s and refuses the key even when it is off; %s",
                     removed->what, removed->instead);
    }
}

static bool is_removed(const char *path)
{
    for (size_t i = 0; i < config_n_removed_keys; i++)
        if (strcmp(config_removed_keys[i].path, path) == 0) return true;
    return false;
}

/* The given settings without the removed keys, which have been dealt with. */
static struct cv *without_removed(struct config_impl *c, const struct cv *given, const char *path)
{
    struct cv *out = cv_new(&c->pool, CV_DICT, given->origin);
    out->node = given->node;
    for (size_t i = 0; i < given->n; i++)
        if (!is_removed(config_join(c, path, given->keys[i])))
            cv_push(&c->pool, out, given->keys[i], given->items[i]);
    return out;
}

/* The one removed section that has a meaning under compat 0.16. */
static void apply_elasticity(struct config_impl *c, struct cv *given)
{
    const struct cv *value = cv_get(c->given, "elasticity");
    if (c->compat != CONFIG_COMPAT_0_16 || !value || !is_switched_on(value)) return;
    size_t n_errors = c->n_errors;
    const struct cv *section = resolve_section(c, &config_elastic_section, value);
    if (section && c->n_errors == n_errors) config_resolve_elastic(c, section, given);
}

void config_resolve(struct config_impl *c)
{
    check_removed_keys(c);
    struct cv *given = without_removed(c, c->given, "");
    apply_elasticity(c, given);
    const struct cv *zero = cv_get(given, "zero_optimization");
    if (zero && zero->kind == CV_DICT)
        cv_put(&c->pool, given, "zero_optimization", without_removed(c, zero, "zero_optimization"));

    struct cv *top = cv_new(&c->pool, CV_DICT, CV_FILE);
    for (size_t i = 0; i < config_top.n_keys; i++) {
        const struct config_key *key = &config_top.keys[i];
        if (key->type == KEY_SECTION) {
            struct cv *section = resolve_top_section(c, key, given);
            bool shown = section && (section->kind != CV_NULL || key->section->nullable);
            if (shown) cv_push(&c->pool, top, key->name, section);
        } else if (!(key->flags & KEY_HIDDEN)) {
            resolve_key(c, &config_top, key, given, false, top);
        }
    }
    unknown_keys(c, &config_top, given, false, top);
    config_resolve_batch(c, top);
    config_cross_check(c, top);
    c->resolved = top;
}

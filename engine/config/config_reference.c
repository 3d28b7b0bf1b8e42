/* docs/config.md, out of the tables. */
#include "engine/config/config_impl.h"

#include <string.h>

static const char *type_text(const struct config_key *key)
{
    switch (key->type) {
    case KEY_BOOL: return "true or false";
    case KEY_INT: return "integer";
    case KEY_FLOAT: return "number";
    case KEY_STRING: return "string";
    case KEY_PATH: return "path";
    case KEY_CHOICE: return "choice";
    case KEY_STAGE: return "0, 1, 2 or 3";
    case KEY_STRINGS: return "list of strings";
    case KEY_CHOICES: return "list of choices";
    case KEY_LIST: return "list";
    case KEY_DICT: return "object";
    case KEY_INT_OR_AUTO: return "integer or \"auto\"";
    case KEY_ANY: return "any";
    case KEY_SECTION: return "section";
    }
    return "";
}

static void write_bounds(struct json_writer *w, const struct config_key *key)
{
    for (size_t i = 0; key->choices && key->choices[i]; i++)
        json_write_format(w, "%s`%s`", i ? ", " : ": ", key->choices[i]);
    if (key->has_high) {
        json_write_format(w, key->low_open ? ", above %g, below %g" : ", %g to %g", key->low,
                          key->high);
    } else if (key->has_low) {
        json_write_format(w, key->low_open ? ", above %g" : ", at least %g", key->low);
    }
    if (key->flags & KEY_NULLABLE) json_write_text(w, ", or null");
}

static const char *default_text(const struct config_key *key)
{
    if (!key->fallback) return "absent";
    return strlen(key->fallback) > 60 ? "(a list)" : key->fallback;
}

static void write_effect(struct json_writer *w, enum key_effect effect, const char *why)
{
    if (effect == EFFECT_NONE) json_write_format(w, " *No effect here: %s.*", why);
    if (effect == EFFECT_UNSUPPORTED) json_write_format(w, " *Not supported: %s.*", why);
    if (effect == EFFECT_OFF) json_write_format(w, " *Not supported when on: %s.*", why);
}

static void write_key(struct json_writer *w, const struct config_key *key)
{
    if (key->type == KEY_SECTION) {
        json_write_format(w, "| `%s`%s%s%s | section | | see [%s](#%s) |\n", key->name,
                          key->short_name ? ", `" : "", key->short_name ? key->short_name : "",
                          key->short_name ? "`" : "", key->section->name, key->section->name);
        return;
    }
    json_write_format(w, "| `%s`", key->name);
    if (key->short_name) json_write_format(w, ", `%s`", key->short_name);
    json_write_format(w, " | %s", type_text(key));
    write_bounds(w, key);
    json_write_format(w, " | `%s`", default_text(key));
    if (key->fallback_0_16) json_write_format(w, " (0.16: `%s`)", key->fallback_0_16);
    char names[KEY_LIST_NBYTES];
    json_write_format(w, " | %s.", key->list ? key->list(names, sizeof names) : key->help);
    write_effect(w, key->effect, key->why);
    json_write_text(w, " |\n");
}

static void write_section(struct json_writer *w, const struct config_section *section)
{
    const char *name = section->name[0] ? section->name : "Top level";
    if (section->name[0]) json_write_format(w, "\n<a id=\"%s\"></a>\n", section->name);
    json_write_format(w, "\n## %s\n\n", name);
    json_write_format(w, "%s%s", section->help,
                      section->kind == SECTION_MODEL
                          ? " Typed: unknown keys are errors, `\"auto\"` means the default."
                          : "");
    write_effect(w, section->effect, section->why);
    json_write_text(w, "\n\n| key | value | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < section->n_keys; i++) write_key(w, &section->keys[i]);
    for (size_t i = 0; i < section->n_keys; i++)
        if (section->keys[i].type == KEY_SECTION) write_section(w, section->keys[i].section);
}

/* ---- types of optimizers and schedules ------------------------------------------------------ */

static void write_default(struct json_writer *w, const struct setting *s)
{
    char buf[2][JSON_FLOAT_NBYTES];
    const char *first = json_float_text(s->defaults[0], buf[0]);
    bool is_int = s->type == SETTING_INT || s->is_count;
    if (s->required) {
        json_write_text(w, "required");
    } else if (s->type == SETTING_BOOL) {
        json_write_text(w, s->defaults[0] != 0 ? "`true`" : "`false`");
    } else if (s->type == SETTING_PAIR) {
        json_write_format(w, "`[%s, %s]`", first, json_float_text(s->defaults[1], buf[1]));
    } else if (s->type == SETTING_NAME) {
        json_write_format(w, "`\"%s\"`", s->names[(int)s->defaults[0]]);
    } else if (s->defaults[0] != s->defaults[0]) {
        json_write_text(w, "absent");
    } else if (is_int) {
        json_write_format(w, "`%lld`", (long long)s->defaults[0]);
    } else {
        json_write_format(w, "`%s`", first);
    }
}

static void write_settings(struct json_writer *w, const char *type,
                           const struct setting_table *table)
{
    json_write_format(w, "\n### %s\n\n| parameter | default | meaning |\n|---|---|---|\n", type);
    for (size_t i = 0; i < table->n; i++) {
        const struct setting *s = &table->settings[i];
        json_write_format(w, "| `%s` | ", s->name);
        write_default(w, s);
        json_write_format(w, " | %s |\n", s->help);
    }
}

/* The states in a checkpoint: those of every form that a class is saved in. */
static void write_states(struct json_writer *w, const struct optim_class *cls)
{
    for (size_t s = 0; s < OPTIM_STATES_MAX && cls->state_names[s]; s++) {
        json_write_format(w, "%s`%s`", s > 0 ? ", " : "", cls->state_names[s]);
        for (size_t i = 0; s == 0 && i < cls->n_saved; i++)
            if (cls->saved[i].first_state)
                json_write_format(w, " (`%s` in %s)", cls->saved[i].first_state,
                                  cls->saved[i].name);
    }
}

static cz_status write_optimizers(struct json_writer *w)
{
    size_t n;
    const struct optim_type *types = optim_types(&n);
    json_write_text(
        w, "\n## Optimizer types\n\n| type | | states | case of the name |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        if (!types[i].cls) continue;
        json_write_format(w, "| %s | %s | ", types[i].name, types[i].text);
        write_states(w, types[i].cls);
        json_write_format(w, " | %s |\n", types[i].origin == OPTIM_OF_TORCH ? "as here" : "any");
    }
    for (size_t i = 0; i < n; i++)
        if (types[i].cls && types[i].same_as)
            json_write_format(w, "\n`%s` has the parameters of `%s`.\n", types[i].name,
                              types[i].same_as);
    for (size_t i = 0; i < n; i++) {
        struct optim_hyper hyper;
        if (!types[i].cls || types[i].same_as) continue;
        TRY(optim_hyper_begin(types[i].name, OPTIM_FUSED, &hyper));
        write_settings(w, types[i].name, optim_settings(&hyper));
    }
    return CZ_OK;
}

static cz_status write_types(struct json_writer *w)
{
    const char *schedules[SCHEDULE_TYPES_MAX];
    const size_t n_schedules = schedule_types(schedules);
    TRY(write_optimizers(w));
    json_write_text(w, "\n## Scheduler types\n");
    for (size_t i = 0; i < n_schedules; i++) {
        struct schedule_params params;
        TRY(schedule_params_begin(schedules[i], false, &params));
        write_settings(w, schedules[i], schedule_settings(&params));
    }
    return CZ_OK;
}

cz_status config_reference(char **out)
{
    struct json_writer w;
    cz_status st;
    json_writer_init(&w, 0);
    json_write_text(&w,
                    "# Keys of ds_config.json\n\n"
                    "Generated by `czero config reference` from the tables in `engine/`; a test "
                    "compares.\n"
                    "Defaults are those of DeepSpeed 0.19; `--compat 0.16` selects the others.\n");
    write_section(&w, &config_top);
    json_write_text(&w, "\n## Removed keys\n\nDeepSpeed 0.19 refuses these even when they are off; "
                        "`--compat 0.16` accepts them when they are off.\n\n");
    for (size_t i = 0; i < config_n_removed_keys; i++)
        json_write_format(&w, "- `%s`: %s\n", config_removed_keys[i].path,
                          config_removed_keys[i].instead);
    write_section(&w, &config_elastic_section);
    TRY_GOTO(write_types(&w), fail);
    return json_writer_take(&w, out, NULL);
fail:
    json_writer_free(&w);
    return st;
}

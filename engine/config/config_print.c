/* The resolved config as text: JSON, explained lines, differences. All three walk the key tables or
 * the tree itself, so a new key needs no code here. config_values() is what ranks compare with each
 * other: it leaves out origins, which may differ between ranks that run the same thing. */
#include "engine/config/config_impl.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The whole resolved tree, defaults included: a file that reproduces the run whatever the defaults
 * of a later version. */
cz_status config_json(const struct ds_config *config, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 2);
    cv_write(&w, config->impl->resolved);
    json_write_text(&w, "\n");
    return json_writer_take(&w, out, NULL);
}

/* ---- pieces --------------------------------------------------------------------------------- */

#define PATH_NBYTES  512
#define VALUE_NBYTES 200

static const char *join(char buf[PATH_NBYTES], const char *section, const char *name)
{
    snprintf(buf, PATH_NBYTES, "%s%s%s", section, section[0] ? "." : "", name);
    return buf;
}

/* The value on one line, cut after nbytes_max. */
static void put_value(struct json_writer *w, const struct cv *value, size_t nbytes_max)
{
    struct json_writer line;
    char *text;
    json_writer_init(&line, 0);
    cv_write(&line, value);
    if (json_writer_take(&line, &text, NULL) != CZ_OK) {
        w->failed = true;
        return;
    }
    size_t n = strlen(text);
    bool cut = n > nbytes_max;
    if (cut) n = nbytes_max;
    /* Not within a UTF-8 character. */
    while (cut && ((unsigned char)text[n] & 0xc0u) == 0x80u) n--;
    json_write_format(w, "%.*s%s", (int)n, text, cut ? "…" : "");
    free(text);
}

/* ---- explained ------------------------------------------------------------------------------ */

/* bare: nothing but what a run depends on. */
static void explain_section(struct json_writer *w, const struct config_section *section,
                            const struct cv *resolved, bool bare)
{
    char path[PATH_NBYTES];
    for (size_t i = 0; i < section->n_keys; i++) {
        const struct config_key *key = &section->keys[i];
        char names[KEY_LIST_NBYTES];
        const struct cv *value = cv_get(resolved, key->name);
        if (!value) continue;
        if (key->type == KEY_SECTION && value->kind == CV_DICT) {
            explain_section(w, key->section, value, bare);
            continue;
        }
        json_write_format(w, "%s = ", join(path, section->name, key->name));
        put_value(w, value, bare ? SIZE_MAX : VALUE_NBYTES);
        if (!bare) {
            json_write_text(w, "  # ");
            /* Where the value came from. */
            static const char *const words[] = {
                [CV_DEFAULT] = "default", [CV_FILE] = "file",   [CV_OPTION] = "option",
                [CV_SET] = "--set",       [CV_AUTO] = "--auto", [CV_TRAINER] = "filled in",
                [CV_DERIVED] = "derived"};
            if (value->origin == CV_FILE && value->node) {
                json_write_format(w, "line %d", json_line(value->node));
            } else {
                json_write_text(w, words[value->origin]);
            }
            json_write_format(w, "; %s",
                              key->type == KEY_SECTION ? key->section->help
                              : key->list              ? key->list(names, sizeof names)
                                                       : key->help);
        }
        json_write_text(w, "\n");
    }
}

cz_status config_explain(const struct ds_config *config, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    explain_section(&w, &config_top, config->impl->resolved, false);
    return json_writer_take(&w, out, NULL);
}

cz_status config_values(const struct ds_config *config, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    explain_section(&w, &config_top, config->impl->resolved, true);
    return json_writer_take(&w, out, NULL);
}

/* ---- differences ---------------------------------------------------------------------------- */

/* One side may lack the key. */
static void put_either(struct json_writer *w, const struct cv *value)
{
    if (value) {
        put_value(w, value, VALUE_NBYTES);
    } else {
        json_write_text(w, "absent");
    }
}

/* The receiver of the differences. */
struct comparison {
    void (*take)(struct comparison *c, const char *path, const struct cv *a, const struct cv *b);
    struct json_writer *w;
    size_t n;
    config_difference visit; /* of config_diff_walk() */
    void *user;
    cz_status st;
};

static void put_line(struct comparison *c, const char *path, const struct cv *a, const struct cv *b)
{
    json_write_format(c->w, "%s: ", path);
    put_either(c->w, a);
    json_write_text(c->w, " -> ");
    put_either(c->w, b);
    json_write_text(c->w, "\n");
}

static void put_object(struct comparison *c, const char *path, const struct cv *a,
                       const struct cv *b)
{
    json_begin_object(c->w);
    json_put_string(c->w, "key", path);
    if (a) json_write_key(c->w, "a");
    if (a) cv_write(c->w, a);
    if (b) json_write_key(c->w, "b");
    if (b) cv_write(c->w, b);
    json_end_object(c->w);
}

static cz_status either_text(const struct cv *value, char **out)
{
    struct json_writer w;
    json_writer_init(&w, 0);
    put_either(&w, value);
    return json_writer_take(&w, out, NULL);
}

static void show(struct comparison *c, const char *path, const struct cv *a, const struct cv *b)
{
    char *text_a = NULL, *text_b = NULL;
    if (c->st == CZ_OK) c->st = either_text(a, &text_a);
    if (c->st == CZ_OK) c->st = either_text(b, &text_b);
    if (c->st == CZ_OK) c->visit(c->user, path, text_a, text_b);
    free(text_a);
    free(text_b);
}

/* Each value that differs between a and b (either may be NULL). */
static void compare(struct comparison *c, const struct cv *a, const struct cv *b, const char *path)
{
    char inner[PATH_NBYTES];
    const bool dicts = a && b && a->kind == CV_DICT && b->kind == CV_DICT;
    if (a && b && !dicts && cv_equal(a, b)) return;
    if (!dicts) {
        c->take(c, path, a, b);
        c->n++;
        return;
    }
    struct cv_index of_a = cv_index_open(a), of_b = cv_index_open(b);
    for (size_t i = 0; i < a->n; i++)
        compare(c, a->items[i], cv_index_get(&of_b, a->keys[i]), join(inner, path, a->keys[i]));
    for (size_t i = 0; i < b->n; i++)
        if (!cv_index_get(&of_a, b->keys[i]))
            compare(c, NULL, b->items[i], join(inner, path, b->keys[i]));
    cv_index_close(&of_a);
    cv_index_close(&of_b);
}

cz_status config_diff(const struct ds_config *a, const struct ds_config *b, char **out,
                      size_t *n_out)
{
    struct json_writer w;
    struct comparison c = {.take = put_line, .w = &w};
    json_writer_init(&w, 0);
    json_write_text(&w, "");
    compare(&c, a->impl->resolved, b->impl->resolved, "");
    *n_out = c.n;
    return json_writer_take(&w, out, NULL);
}

cz_status config_diff_walk(const struct ds_config *a, const struct ds_config *b,
                           config_difference visit, void *user)
{
    struct comparison c = {.take = show, .visit = visit, .user = user, .st = CZ_OK};
    compare(&c, a->impl->resolved, b->impl->resolved, "");
    return c.st;
}

cz_status config_diff_json(const struct ds_config *a, const struct ds_config *b, char **out,
                           size_t *n_out)
{
    struct json_writer w;
    struct comparison c = {.take = put_object, .w = &w};
    json_writer_init(&w, 2);
    json_begin_object(&w);
    json_write_key(&w, "differences");
    json_begin_array(&w);
    compare(&c, a->impl->resolved, b->impl->resolved, "");
    *n_out = c.n;
    json_end_array(&w);
    json_end_object(&w);
    json_write_text(&w, "\n");
    return json_writer_take(&w, out, NULL);
}

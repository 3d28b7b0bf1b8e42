/* One bit for each node of the watched document: json_get() sets it. */
#include "formats/json/json_unread.h"

#include "formats/json/json_impl.h"

#include <stdlib.h>
#include <string.h>

struct json_watch {
    const struct json_doc *doc;
    struct json_watch *outer;
    unsigned char *asked; /* (n_nodes) */
};

static _Thread_local struct json_watch *current;

cz_status json_watch_begin(const struct json_doc *doc, struct json_watch **out)
{
    *out = NULL;
    struct json_watch *w = calloc(1, sizeof *w);
    if (w) w->asked = calloc(doc->n_nodes, 1);
    if (!w || !w->asked) {
        free(w);
        return err_set(CZ_NOMEM, 0, "%s: no memory to read it", doc->name);
    }
    w->doc = doc;
    w->outer = current;
    *out = current = w;
    return CZ_OK;
}

void json_watch_end(struct json_watch *w)
{
    if (!w) return;
    current = w->outer;
    free(w->asked);
    free(w);
}

void json_watch_note(const struct json_doc *doc, const struct json_node *node)
{
    for (struct json_watch *w = current; w; w = w->outer)
        if (w->doc == doc) w->asked[node->idx] = 1;
}

/* ---- what is left ---------------------------------------------------------------------------- */

static bool is_empty(const struct json_node *node)
{
    bool value = false;
    size_t nbytes;
    switch (json_type(node)) {
    case JSON_NULL: return true;
    case JSON_BOOL: return json_as_bool(node, &value) == CZ_OK && !value;
    case JSON_ARRAY:
    case JSON_OBJECT: return json_count(node) == 0;
    case JSON_STRING: return (void)json_text(node, &nbytes), nbytes == 2;
    default: return false;
    }
}

static bool path_matches(const char *pattern, const char *path)
{
    if (pattern[0] != '*') return strcmp(pattern, path) == 0;
    const size_t n = strlen(path), n_suffix = strlen(pattern + 1);
    return n >= n_suffix && strcmp(path + n - n_suffix, pattern + 1) == 0;
}

/* Without the zeros that end a fraction: 1.0 and 1. */
static size_t significant(const struct json_node *node, const char *text, size_t nbytes)
{
    if (json_type(node) != JSON_FLOAT || !memchr(text, '.', nbytes) || memchr(text, 'e', nbytes))
        return nbytes;
    while (text[nbytes - 1] == '0') nbytes--;
    return text[nbytes - 1] == '.' ? nbytes - 1 : nbytes;
}

static bool has_value(const struct json_node *node, const char *value)
{
    size_t nbytes;
    const char *text = json_text(node, &nbytes);
    nbytes = significant(node, text, nbytes);
    return nbytes == strlen(value) && memcmp(text, value, nbytes) == 0;
}

static bool is_harmless(const struct json_node *node, const char *path,
                        const struct json_harmless *known, size_t n, const char *kind)
{
    for (size_t i = 0; i < n; i++)
        if ((!known[i].kind || (kind && strcmp(known[i].kind, kind) == 0)) &&
            path_matches(known[i].path, path) &&
            (!known[i].value || has_value(node, known[i].value)))
            return true;
    return false;
}

static bool any_asked(const struct json_watch *w, const struct json_node *object)
{
    for (size_t i = 0; i < json_count(object); i++)
        if (w->asked[json_child(object, i)->idx]) return true;
    return false;
}

static void collect(const struct json_watch *w, const struct json_node *object,
                    const struct json_harmless *known, size_t n, const char *kind,
                    struct unread *unread)
{
    char path[UNREAD_NAME_NBYTES];
    for (size_t i = 0; i < json_count(object); i++) {
        const struct json_node *node = json_child(object, i);
        const bool asked = w->asked[node->idx];
        if (asked && json_type(node) == JSON_OBJECT && any_asked(w, node))
            collect(w, node, known, n, kind, unread);
        if (asked || is_empty(node)) continue;
        json_path(node, path, sizeof path);
        if (!is_harmless(node, path, known, n, kind))
            unread_add(unread, path, "line %d", json_line(node));
    }
}

void json_watch_collect(const struct json_watch *w, const struct json_harmless *known, size_t n,
                        const char *kind, struct unread *unread)
{
    const struct json_node *root = json_root(w->doc);
    if (json_type(root) == JSON_OBJECT) collect(w, root, known, n, kind, unread);
}

/* JSON documents: a tree of small nodes that point into the text and into one block of decoded
 * strings. The scanner (json_scan.c) checks the text and makes the nodes; so every error can name
 * line, column and path, and readers can have the original digits of a number.
 *
 * Members of an object are found by a walk when there are few, by a hash table otherwise; repeated
 * keys are refused, as they hide mistakes in configs. */
#include "formats/json/json.h"

#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_impl.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_OBJECT 8 /* up to here a walk is faster than a table */

/* ---- from a node to the others --------------------------------------------------------------- */

static const struct json_doc *doc_of(const struct json_node *node)
{
    const char *first = (const char *)(node - node->idx);
    const struct json_nodes *nodes = (const void *)(first - offsetof(struct json_nodes, at));
    return nodes->doc;
}

static const struct json_node *parent_of(const struct json_node *node)
{
    return node->idx > 0 ? node - node->idx + node->parent : NULL;
}

static const struct json_node *child_of(const struct json_doc *doc, const struct json_node *node,
                                        size_t idx)
{
    return &doc->nodes->at[doc->children[node->first_child + idx]];
}

static bool is_container(const struct json_node *node)
{
    return node->type == JSON_OBJECT || node->type == JSON_ARRAY;
}

static const char *key_of(const struct json_doc *doc, const struct json_node *node)
{
    return doc->strings + node->key_off;
}

/* ---- making a document ----------------------------------------------------------------------- */

/* Places the children of each container next to each other in doc->children, in two passes: how
 * many each has is known, and so where they begin. */
static cz_status link_children(struct json_doc *doc)
{
    struct json_node *nodes = doc->nodes->at;
    uint32_t at = 0;
    doc->children = malloc(doc->n_nodes * sizeof *doc->children);
    if (!doc->children)
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu JSON values", doc->name, doc->n_nodes);
    for (size_t i = 0; i < doc->n_nodes; i++) {
        if (!is_container(&nodes[i])) continue;
        nodes[i].first_child = at;
        at += nodes[i].n_children;
        nodes[i].n_children = 0; /* counts up again below */
    }
    for (size_t i = 1; i < doc->n_nodes; i++) {
        struct json_node *parent = &nodes[nodes[i].parent];
        doc->children[parent->first_child + parent->n_children++] = (uint32_t)i;
    }
    return CZ_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

struct wanted {
    const struct json_doc *doc;
    const struct json_node *object;
    const char *key;
};

static bool is_member(const void *key, size_t item)
{
    const struct wanted *w = key;
    const struct json_node *node = &w->doc->nodes->at[item];
    return node->parent == w->object->idx && strcmp(key_of(w->doc, node), w->key) == 0;
}

/* One table for all objects of a document: objects with equal keys differ by their number. */
static uint64_t hash_member(const struct json_node *object, const char *key)
{
    return hash_text(key) ^ hash_number(hash_key(), object->idx);
}

/* Among the first n children, so that a repeated key is found while the object is indexed. */
static const struct json_node *find_among(const struct json_doc *doc, const struct json_node *node,
                                          uint32_t n, const char *key)
{
    if (node->n_children > SMALL_OBJECT) {
        size_t at = hash_index_find(&doc->keys, hash_member(node, key), is_member,
                                    &(struct wanted){doc, node, key});
        return at == HASH_NONE ? NULL : &doc->nodes->at[at];
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct json_node *child = child_of(doc, node, i);
        if (strcmp(key_of(doc, child), key) == 0) return child;
    }
    return NULL;
}

/* Both places are named, since the first one is usually far up in the file. */
static cz_status fail_duplicate(const struct json_node *second, const struct json_node *first)
{
    int line, column;
    char path[256];
    const struct json_doc *doc = doc_of(first);
    json_locate(doc, first->text_off, &line, &column);
    return json_fail(doc, second->text_off, CZ_CORRUPT,
                     "duplicate key \"%s\": %s has a value at line %d, column %d already",
                     key_of(doc, second), json_path(first, path, sizeof path), line, column);
}

/* Called once per object, before any reader can ask: a repeated key is an error of the document,
 * whichever key is read later. */
static cz_status index_object(struct json_doc *doc, const struct json_node *node)
{
    for (uint32_t i = 0; i < node->n_children; i++) {
        const struct json_node *child = child_of(doc, node, i);
        const char *key = key_of(doc, child);
        const struct json_node *first = find_among(doc, node, i, key);
        if (first) return fail_duplicate(child, first);
        if (node->n_children > SMALL_OBJECT)
            TRY(hash_index_add(&doc->keys, hash_member(node, key), child->idx));
    }
    return CZ_OK;
}

static cz_status build(struct json_doc *doc)
{
    size_t n_indexed = 0;
    TRY(json_scan(doc));
    TRY(link_children(doc));
    const struct json_node *nodes = doc->nodes->at;
    for (size_t i = 0; i < doc->n_nodes; i++)
        if (nodes[i].type == JSON_OBJECT && nodes[i].n_children > SMALL_OBJECT)
            n_indexed += nodes[i].n_children;
    if (n_indexed > 0) TRY(hash_index_reserve(&doc->keys, n_indexed));
    for (size_t i = 0; i < doc->n_nodes; i++)
        if (nodes[i].type == JSON_OBJECT) TRY(index_object(doc, &nodes[i]));
    return CZ_OK;
}

cz_status json_adopt(char *text, size_t nbytes, const char *name, enum json_dialect dialect,
                     struct json_doc **out)
{
    cz_status st;
    *out = NULL;
    if (!name) name = "<memory>";
    struct json_doc *doc = calloc(1, sizeof *doc);
    if (!doc) {
        free(text);
        return err_set(CZ_NOMEM, 0, "%s: no memory", name);
    }
    doc->text = text;
    doc->nbytes = nbytes;
    doc->dialect = dialect;
    doc->name = strdup(name);
    if (!doc->name)
        st = err_set(CZ_NOMEM, 0, "%s: no memory", name);
    else if (nbytes > JSON_NBYTES_MAX)
        st = err_set(CZ_UNSUPPORTED, 0, "%s: %zu bytes of JSON; at most %zu are read", name, nbytes,
                     JSON_NBYTES_MAX);
    else {
        text[nbytes] = '\0';
        st = build(doc);
    }
    if (st != CZ_OK) {
        json_free(doc);
        return err_trace(st, __func__, __LINE__);
    }
    *out = doc;
    return CZ_OK;
}

/* The text is copied: nodes point into it for numbers and messages, as long as the document is
 * there. */
cz_status json_parse(const char *text, size_t nbytes, const char *name, enum json_dialect dialect,
                     struct json_doc **out)
{
    *out = NULL;
    if (!name) name = "<memory>";
    char *copy = nbytes < SIZE_MAX / 4 ? malloc(nbytes + 1) : NULL;
    if (!copy) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu bytes of JSON", name, nbytes);
    if (nbytes) memcpy(copy, text, nbytes);
    return json_adopt(copy, nbytes, name, dialect, out);
}

/* A config's length is the user's mistake, that of another file is damage, as with json_fail(). */
static cz_status too_long(cz_status st, enum json_dialect dialect)
{
    if (st != CZ_INVALID || dialect == JSON_CONFIG) return st;
    struct err err;
    err_capture(&err);
    err.status = CZ_CORRUPT;
    return err_restore(&err);
}

cz_status json_load(const char *path, enum json_dialect dialect, struct json_doc **out)
{
    char *text;
    size_t nbytes;
    *out = NULL;
    TRY(too_long(file_load_named(path, JSON_NAMED_NBYTES_MAX, &text, &nbytes), dialect));
    return json_adopt(text, nbytes, path, dialect, out);
}

/* Only a regular file: nothing in a folder of unknown origin may be a pipe to wait for. */
cz_status json_load_in(const char *dir, const char *name, enum json_dialect dialect,
                       struct json_doc **out)
{
    char *text, *path = dir ? file_join(dir, name) : strdup(name);
    size_t nbytes;
    *out = NULL;
    if (!path) return err_set(CZ_NOMEM, 0, "%s: no memory for a path", name);
    cz_status st = too_long(beneath_load(dir, name, JSON_FILE_NBYTES_MAX, &text, &nbytes), dialect);
    if (st == CZ_OK) st = json_adopt(text, nbytes, path, dialect, out);
    free(path);
    return st;
}

cz_status json_load_object(const char *dir, const char *name, struct json_doc **out)
{
    *out = NULL;
    if (!beneath_is_there(dir, name)) return CZ_OK;
    TRY(json_load_in(dir, name, JSON_STRICT, out));
    if (json_type(json_root(*out)) == JSON_OBJECT) return CZ_OK;
    const cz_status st =
        json_fail(*out, json_root(*out)->text_off, CZ_CORRUPT, "expected an object, got %s",
                  json_type_name(json_type(json_root(*out))));
    json_free(*out);
    *out = NULL;
    return st;
}

/* Also of a document whose building stopped half-way. */
void json_free(struct json_doc *doc)
{
    if (!doc) return;
    hash_index_free(&doc->keys);
    free(doc->marks);
    free(doc->strings);
    free(doc->nodes);
    free(doc->children);
    free(doc->name);
    free(doc->text);
    free(doc);
}

/* ---- looking --------------------------------------------------------------------------------- */

const struct json_node *json_root(const struct json_doc *doc)
{
    return &doc->nodes->at[0];
}

enum json_type json_type(const struct json_node *node)
{
    return (enum json_type)node->type;
}

const char *json_type_name(enum json_type type)
{
    switch (type) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return "true or false";
    case JSON_INT: return "an integer";
    case JSON_FLOAT: return "a number";
    case JSON_STRING: return "a string";
    case JSON_ARRAY: return "an array";
    case JSON_OBJECT: return "an object";
    }
    return "?";
}

size_t json_count(const struct json_node *node)
{
    return node && is_container(node) ? node->n_children : 0;
}

/* Constant time: the children of a container are next to each other. */
const struct json_node *json_child(const struct json_node *node, size_t idx)
{
    return child_of(doc_of(node), node, idx);
}

const struct json_node *json_get(const struct json_node *node, const char *key)
{
    if (!node || node->type != JSON_OBJECT) return NULL;
    const struct json_node *member = find_among(doc_of(node), node, node->n_children, key);
    if (member) json_watch_note(doc_of(node), member);
    return member;
}

const char *json_key(const struct json_node *node)
{
    const struct json_node *parent = parent_of(node);
    return parent && parent->type == JSON_OBJECT ? key_of(doc_of(node), node) : NULL;
}

const char *json_text(const struct json_node *node, size_t *nbytes)
{
    *nbytes = node->text_nbytes;
    return doc_of(node)->text + node->text_off;
}

int json_line(const struct json_node *node)
{
    int line, column;
    json_locate(doc_of(node), node->text_off, &line, &column);
    return line;
}

int json_column(const struct json_node *node)
{
    int line, column;
    json_locate(doc_of(node), node->text_off, &line, &column);
    return column;
}

/* Counts on beyond the end of the buffer, as snprintf() does. */
static size_t append(char *buf, size_t buf_nbytes, size_t at, const char *text)
{
    if (at < buf_nbytes) snprintf(buf + at, buf_nbytes - at, "%s", text);
    return at + strlen(text);
}

/* From the root down, by recursion over parents: depth is at most JSON_DEPTH_MAX. */
static size_t append_path(const struct json_node *node, char *buf, size_t buf_nbytes, size_t at)
{
    const struct json_node *parent = parent_of(node);
    if (!parent) return at;
    const struct json_doc *doc = doc_of(node);
    at = append_path(parent, buf, buf_nbytes, at);
    if (parent->type == JSON_OBJECT) {
        if (parent->idx > 0) at = append(buf, buf_nbytes, at, ".");
        return append(buf, buf_nbytes, at, key_of(doc, node));
    }
    size_t idx = 0, end = parent->n_children; /* children are numbered in rising order */
    while (idx + 1 < end) {
        size_t middle = idx + (end - idx) / 2;
        if (doc->children[parent->first_child + middle] <= node->idx)
            idx = middle;
        else
            end = middle;
    }
    char text[32];
    snprintf(text, sizeof text, "[%zu]", idx);
    return append(buf, buf_nbytes, at, text);
}

const char *json_path(const struct json_node *node, char *buf, size_t buf_nbytes)
{
    if (buf_nbytes) buf[0] = '\0';
    append_path(node, buf, buf_nbytes, 0);
    return buf;
}

const char *json_where(const struct json_node *node, char *buf, size_t buf_nbytes)
{
    char path[256];
    int line, column;
    json_locate(doc_of(node), node->text_off, &line, &column);
    json_path(node, path, sizeof path);
    snprintf(buf, buf_nbytes, "%s:%d:%d%s%s", doc_of(node)->name, line, column, path[0] ? ": " : "",
             path);
    return buf;
}

/* ---- values, checked ------------------------------------------------------------------------- */

/* "PATH: expected X, got TEXT", with the text as the file has it. */
static cz_status fail_type(const struct json_node *node, const char *wanted)
{
    char path[256];
    int shown = node->text_nbytes > 60 ? 60 : (int)node->text_nbytes;
    json_path(node, path, sizeof path);
    return json_fail(doc_of(node), node->text_off, CZ_CORRUPT, "%s%sexpected %s, got %.*s", path,
                     path[0] ? ": " : "", wanted, shown, doc_of(node)->text + node->text_off);
}

cz_status json_as_bool(const struct json_node *node, bool *out)
{
    if (node->type != JSON_BOOL) return fail_type(node, "true or false");
    *out = doc_of(node)->text[node->text_off] == 't';
    return CZ_OK;
}

cz_status json_as_double(const struct json_node *node, double *out)
{
    if (node->type != JSON_INT && node->type != JSON_FLOAT) return fail_type(node, "a number");
    double value = strtod(doc_of(node)->text + node->text_off, NULL);
    if (!isfinite(value)) return fail_type(node, "a number that fits in a double");
    *out = value;
    return CZ_OK;
}

/* 1e3 and 2.0 are integers, too: Python writes them where a float happens to be whole. */
cz_status json_as_int(const struct json_node *node, int64_t *out)
{
    if (node->type == JSON_INT) {
        errno = 0;
        long long value = strtoll(doc_of(node)->text + node->text_off, NULL, 10);
        if (errno == ERANGE) return fail_type(node, "an integer that fits in 64 bits");
        *out = value;
        return CZ_OK;
    }
    if (node->type != JSON_FLOAT) return fail_type(node, "an integer");
    double value = 0;
    TRY(json_as_double(node, &value));
    if (value != floor(value) || fabs(value) >= 0x1p63) return fail_type(node, "an integer");
    *out = (int64_t)value;
    return CZ_OK;
}

cz_status json_as_string(const struct json_node *node, const char **out)
{
    if (node->type != JSON_STRING) return fail_type(node, "a string");
    *out = doc_of(node)->strings + node->string_off;
    return CZ_OK;
}

/* A missing key is reported at the object that should have it. */
static cz_status find_member(const struct json_node *node, const char *key,
                             const struct json_node **out)
{
    char path[256];
    *out = json_get(node, key);
    if (*out) return CZ_OK;
    json_path(node, path, sizeof path);
    return json_fail(doc_of(node), node->text_off, CZ_CORRUPT, "%s%s\"%s\" is missing", path,
                     path[0] ? ": " : "", key);
}

cz_status json_need(const struct json_node *node, const char *key, enum json_type type,
                    const struct json_node **out)
{
    TRY(find_member(node, key, out));
    if ((*out)->type != type) return fail_type(*out, json_type_name(type));
    return CZ_OK;
}

cz_status json_need_bool(const struct json_node *node, const char *key, bool *out)
{
    const struct json_node *member;
    TRY(find_member(node, key, &member));
    return json_as_bool(member, out);
}

cz_status json_need_int(const struct json_node *node, const char *key, int64_t *out)
{
    const struct json_node *member;
    TRY(find_member(node, key, &member));
    return json_as_int(member, out);
}

cz_status json_need_double(const struct json_node *node, const char *key, double *out)
{
    const struct json_node *member;
    TRY(find_member(node, key, &member));
    return json_as_double(member, out);
}

cz_status json_need_string(const struct json_node *node, const char *key, const char **out)
{
    const struct json_node *member;
    TRY(find_member(node, key, &member));
    return json_as_string(member, out);
}

/* The member, or NULL when it is missing or null. */
static const struct json_node *given(const struct json_node *node, const char *key)
{
    const struct json_node *member = json_get(node, key);
    return member && member->type != JSON_NULL ? member : NULL;
}

cz_status json_opt_bool(const struct json_node *node, const char *key, bool fallback, bool *out)
{
    const struct json_node *member = given(node, key);
    *out = fallback;
    return member ? json_as_bool(member, out) : CZ_OK;
}

cz_status json_opt_int(const struct json_node *node, const char *key, int64_t fallback,
                       int64_t *out)
{
    const struct json_node *member = given(node, key);
    *out = fallback;
    return member ? json_as_int(member, out) : CZ_OK;
}

cz_status json_opt_double(const struct json_node *node, const char *key, double fallback,
                          double *out)
{
    const struct json_node *member = given(node, key);
    *out = fallback;
    return member ? json_as_double(member, out) : CZ_OK;
}

cz_status json_opt_string(const struct json_node *node, const char *key, const char *fallback,
                          const char **out)
{
    const struct json_node *member = given(node, key);
    *out = fallback;
    return member ? json_as_string(member, out) : CZ_OK;
}

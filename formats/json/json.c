/* JSON documents: cJSON's tree, tied to places in the text. The scanner (json_scan.c) checks the
 * text, notes where each value is, and hands cJSON a strict version; so every error can name line,
 * column and path, and readers can have the original digits of a number.
 *
 * Members of an object are found by a walk when there are few, by a hash table otherwise; repeated
 * keys are refused, as they hide mistakes in configs. */
#include "formats/json/json.h"

#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_OBJECT 8 /* up to here a walk is faster than a table */

/* ---- making a document ----------------------------------------------------------------------- */

/* A power of two, at least twice the number of members; 0 for objects that are walked. */
static uint32_t slot_count(uint32_t n_children)
{
    if (n_children <= SMALL_OBJECT) return 0;
    uint32_t n = 16;
    while (n < 2 * n_children) n *= 2;
    return n;
}

/* FNV-1a; with at most half of the slots used, a file of colliding keys costs time but ends. */
static uint32_t hash_key(const char *key)
{
    uint32_t h = 2166136261u;
    for (; *key; key++) h = (h ^ (unsigned char)*key) * 16777619u;
    return h ^ (h >> 15);
}

/* Places the children of each container next to each other in doc->children. Nodes come from the
 * scanner in the order of the text, each with its parent's index in first_child; the first pass
 * turns that into a pointer and gives every container its range. */
static cz_status link_children(struct json_doc *doc)
{
    size_t n_slots = 0;
    for (size_t i = 0; i < doc->n_nodes; i++)
        if (doc->nodes[i].type == JSON_OBJECT) n_slots += slot_count(doc->nodes[i].n_children);
    if (n_slots > UINT32_MAX) return err_set(CZ_NOMEM, 0, "%s: too many keys", doc->name);
    doc->children = calloc(doc->n_nodes, sizeof *doc->children);
    doc->slots = calloc(n_slots ? n_slots : 1, sizeof *doc->slots);
    if (!doc->children || !doc->slots)
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu JSON values", doc->name, doc->n_nodes);
    uint32_t child = 0, slot = 0;
    for (size_t i = 0; i < doc->n_nodes; i++) {
        struct json_node *node = &doc->nodes[i];
        if (i > 0) node->parent = &doc->nodes[node->first_child];
        node->first_child = child;
        node->first_slot = slot;
        child += node->n_children;
        if (node->type == JSON_OBJECT) slot += slot_count(node->n_children);
        node->n_children = 0; /* counts up again below */
    }
    for (size_t i = 1; i < doc->n_nodes; i++) {
        struct json_node *parent = &doc->nodes[doc->nodes[i].parent - doc->nodes];
        doc->children[parent->first_child + parent->n_children++] = &doc->nodes[i];
    }
    return CZ_OK;
}

/* Among the first n children, so that a repeated key is found while the object is indexed. */
static const struct json_node *small_find(const struct json_node *node, uint32_t n, const char *key)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct json_node *child = node->doc->children[node->first_child + i];
        if (strcmp(child->item->string, key) == 0) return child;
    }
    return NULL;
}

/* The slot of `key`: of its child, or the empty one where it would go. */
static uint32_t *find_slot(const struct json_node *node, const char *key)
{
    uint32_t mask = slot_count(node->n_children) - 1;
    uint32_t *slots = node->doc->slots + node->first_slot;
    for (uint32_t i = hash_key(key) & mask;; i = (i + 1) & mask) {
        if (slots[i] == 0) return &slots[i];
        const struct json_node *child = node->doc->children[node->first_child + slots[i] - 1];
        if (strcmp(child->item->string, key) == 0) return &slots[i];
    }
}

/* Both places are named, since the first one is usually far up in the file. */
static cz_status fail_duplicate(const struct json_node *second, const struct json_node *first)
{
    int line, column;
    char path[256];
    json_locate(first->doc, first->text_off, &line, &column);
    return json_fail(second->doc, second->text_off, CZ_CORRUPT,
                     "duplicate key \"%s\": %s has a value at line %d, column %d already",
                     second->item->string, json_path(first, path, sizeof path), line, column);
}

/* Called once per object, before any reader can ask: a repeated key is an error of the document,
 * whichever key is read later. */
static cz_status index_object(struct json_node *node)
{
    bool small = slot_count(node->n_children) == 0;
    for (uint32_t i = 0; i < node->n_children; i++) {
        const struct json_node *child = node->doc->children[node->first_child + i];
        if (small) {
            const struct json_node *first = small_find(node, i, child->item->string);
            if (first) return fail_duplicate(child, first);
            continue;
        }
        uint32_t *slot = find_slot(node, child->item->string);
        if (*slot != 0)
            return fail_duplicate(child, node->doc->children[node->first_child + *slot - 1]);
        *slot = i + 1;
    }
    return CZ_OK;
}

/* cJSON makes the values and the scanner the places; nothing of cJSON is visible outside of this
 * file and json_impl.h. */
static cz_status build(struct json_doc *doc)
{
    char *strict;
    TRY(json_scan(doc, &strict));
    doc->tree = cJSON_Parse(strict);
    free(strict);
    if (!doc->tree) /* the scanner accepts nothing that cJSON refuses */
        return err_set(CZ_NOMEM, 0, "%s: cJSON could not build the tree", doc->name);
    /* Both trees list values in the same order, so one walk over cJSON's gives every node its item.
     */
    size_t next = 0;
    const cJSON *item = doc->tree;
    const cJSON *stack[JSON_DEPTH_MAX + 1];
    int depth = 0;
    while (item) {
        doc->nodes[next++].item = item;
        if (item->child) {
            stack[depth++] = item;
            item = item->child;
            continue;
        }
        while (item && !item->next) item = depth > 0 ? stack[--depth] : NULL;
        if (item) item = item->next;
    }
    TRY(link_children(doc));
    for (size_t i = 0; i < doc->n_nodes; i++)
        if (doc->nodes[i].type == JSON_OBJECT) TRY(index_object(&doc->nodes[i]));
    return CZ_OK;
}

/* Takes over `text` (allocated, one byte longer than nbytes, for the terminator that the scanner
 * relies on). */
static cz_status adopt(char *text, size_t nbytes, const char *name, enum json_dialect dialect,
                       struct json_doc **out)
{
    cz_status st;
    struct json_doc *doc = calloc(1, sizeof *doc);
    if (!doc) {
        free(text);
        return err_set(CZ_NOMEM, 0, "%s: no memory", name);
    }
    text[nbytes] = '\0';
    doc->text = text;
    doc->nbytes = nbytes;
    doc->dialect = dialect;
    doc->name = strdup(name);
    if (!doc->name) {
        st = err_set(CZ_NOMEM, 0, "%s: no memory", name);
        goto fail;
    }
    TRY_GOTO(build(doc), fail);
    *out = doc;
    return CZ_OK;
fail:
    json_free(doc);
    return st;
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
    return adopt(copy, nbytes, name, dialect, out);
}

/* By reading until the end, because a size may not be known: the path may be a pipe. */
static cz_status read_all(FILE *file, const char *path, char **text, size_t *nbytes)
{
    size_t capacity = 4096, n = 0;
    char *buf = malloc(capacity + 1);
    while (buf) {
        n += fread(buf + n, 1, capacity - n, file);
        if (n < capacity) break;
        capacity *= 2;
        char *grown = capacity < SIZE_MAX / 4 ? realloc(buf, capacity + 1) : NULL;
        if (!grown) free(buf);
        buf = grown;
    }
    if (!buf) return err_set(CZ_NOMEM, 0, "%s: no memory to read the file", path);
    if (ferror(file)) {
        cz_status st = err_set(CZ_IO, errno, "%s: cannot read", path);
        free(buf);
        return st;
    }
    *text = buf;
    *nbytes = n;
    return CZ_OK;
}

cz_status json_load(const char *path, enum json_dialect dialect, struct json_doc **out)
{
    *out = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return err_set(CZ_IO, errno, "%s: cannot open", path);
    char *text = NULL;
    size_t nbytes = 0;
    cz_status st = read_all(file, path, &text, &nbytes);
    fclose(file);
    TRY(st);
    return adopt(text, nbytes, path, dialect, out);
}

/* Only a regular file: nothing in a folder of unknown origin may be a pipe to wait for. */
cz_status json_load_in(const char *dir, const char *name, enum json_dialect dialect,
                       struct json_doc **out)
{
    char *text, *path = dir ? file_join(dir, name) : strdup(name);
    size_t nbytes;
    *out = NULL;
    if (!path) return err_set(CZ_NOMEM, 0, "%s: no memory for a path", name);
    cz_status st = beneath_load(dir, name, JSON_FILE_NBYTES_MAX, &text, &nbytes);
    if (st == CZ_OK) st = adopt(text, nbytes, path, dialect, out);
    free(path);
    return st;
}

/* Also of a document whose building stopped half-way. */
void json_free(struct json_doc *doc)
{
    if (!doc) return;
    cJSON_Delete(doc->tree);
    free(doc->nodes);
    free(doc->children);
    free(doc->slots);
    free(doc->name);
    free(doc->text);
    free(doc);
}

/* ---- looking --------------------------------------------------------------------------------- */

const struct json_node *json_root(const struct json_doc *doc)
{
    return &doc->nodes[0];
}

enum json_type json_type(const struct json_node *node)
{
    return node->type;
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
    return node ? node->n_children : 0;
}

/* Constant time: the children of a container are next to each other. */
const struct json_node *json_child(const struct json_node *node, size_t idx)
{
    return node->doc->children[node->first_child + idx];
}

const struct json_node *json_get(const struct json_node *node, const char *key)
{
    if (!node || node->type != JSON_OBJECT) return NULL;
    if (slot_count(node->n_children) == 0) return small_find(node, node->n_children, key);
    uint32_t slot = *find_slot(node, key);
    return slot ? node->doc->children[node->first_child + slot - 1] : NULL;
}

const char *json_key(const struct json_node *node)
{
    return node->parent && node->parent->type == JSON_OBJECT ? node->item->string : NULL;
}

const char *json_text(const struct json_node *node, size_t *nbytes)
{
    *nbytes = node->text_nbytes;
    return node->doc->text + node->text_off;
}

/* Places are counted when asked for; most documents never have an error. */
int json_line(const struct json_node *node)
{
    int line, column;
    json_locate(node->doc, node->text_off, &line, &column);
    return line;
}

int json_column(const struct json_node *node)
{
    int line, column;
    json_locate(node->doc, node->text_off, &line, &column);
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
    if (!node->parent) return at;
    at = append_path(node->parent, buf, buf_nbytes, at);
    if (node->parent->type == JSON_OBJECT) {
        if (node->parent->parent) at = append(buf, buf_nbytes, at, ".");
        return append(buf, buf_nbytes, at, node->item->string);
    }
    size_t idx = 0;
    while (json_child(node->parent, idx) != node) idx++;
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
    json_locate(node->doc, node->text_off, &line, &column);
    json_path(node, path, sizeof path);
    snprintf(buf, buf_nbytes, "%s:%d:%d%s%s", node->doc->name, line, column, path[0] ? ": " : "",
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
    return json_fail(node->doc, node->text_off, CZ_CORRUPT, "%s%sexpected %s, got %.*s", path,
                     path[0] ? ": " : "", wanted, shown, node->doc->text + node->text_off);
}

cz_status json_as_bool(const struct json_node *node, bool *out)
{
    if (node->type != JSON_BOOL) return fail_type(node, "true or false");
    *out = cJSON_IsTrue(node->item);
    return CZ_OK;
}

/* From the text: cJSON's own conversion depends on the locale. */
cz_status json_as_double(const struct json_node *node, double *out)
{
    if (node->type != JSON_INT && node->type != JSON_FLOAT) return fail_type(node, "a number");
    double value = strtod(node->doc->text + node->text_off, NULL);
    if (!isfinite(value)) return fail_type(node, "a number that fits in a double");
    *out = value;
    return CZ_OK;
}

/* 1e3 and 2.0 are integers, too: Python writes them where a float happens to be whole. */
cz_status json_as_int(const struct json_node *node, int64_t *out)
{
    if (node->type == JSON_INT) {
        errno = 0;
        long long value = strtoll(node->doc->text + node->text_off, NULL, 10);
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
    *out = node->item->valuestring;
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
    return json_fail(node->doc, node->text_off, CZ_CORRUPT, "%s%s\"%s\" is missing", path,
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

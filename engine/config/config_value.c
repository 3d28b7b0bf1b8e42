/* Values of a config, as Python would hold them: integers of any size, floats that print as they
 * were written, dicts in order. DeepSpeed's checks are Python's comparisons and conversions, and
 * following them needs Python's values. All memory comes from one pool with a bound that follows
 * from the input's size, so that no input can make it grow further. */
#include "base/size.h"
#include "engine/config/config_value_impl.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 72 /* bytes of a value quoted in a sentence */

/* ---- the pool ------------------------------------------------------------------------------- */

/* A value takes under 200 bytes with its share of the parent's growing arrays and stands for at
 * least two bytes of input; tables, notes (CONFIG_NOTES_MAX) and errors are bounded by a constant.
 */
#define POOL_FIXED_NBYTES ((size_t)4 << 20)
#define POOL_PER_BYTE     ((size_t)256)

cz_status cv_pool_init(struct cv_pool *pool, size_t input_nbytes)
{
    size_t nbytes;
    memset(pool, 0, sizeof *pool);
    TRY(size_mul(input_nbytes, POOL_PER_BYTE, &nbytes));
    TRY(size_add(nbytes, POOL_FIXED_NBYTES, &nbytes));
    pool->base = malloc(nbytes); /* touched only as far as it is used */
    if (!pool->base) return err_set(CZ_NOMEM, 0, "no memory for a config of %zu bytes", nbytes);
    pool->nbytes = nbytes;
    return CZ_OK;
}

void cv_pool_free(struct cv_pool *pool)
{
    free(pool->base);
    memset(pool, 0, sizeof *pool);
}

/* Zeroed. The bound is our own arithmetic: running out is a bug, hence the assert. */
void *cv_alloc(struct cv_pool *pool, size_t nbytes)
{
    size_t take = size_round_up(nbytes, 16);
    assert(take <= pool->nbytes - pool->used);
    void *out = pool->base + pool->used;
    pool->used += take;
    return memset(out, 0, take);
}

/* Measured first: a message must not be cut. */
const char *cv_text(struct cv_pool *pool, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    assert(n >= 0);
    char *out = cv_alloc(pool, (size_t)n + 1);
    vsnprintf(out, (size_t)n + 1, fmt, again);
    va_end(again);
    return out;
}

/* ---- making values -------------------------------------------------------------------------- */

struct cv *cv_new(struct cv_pool *pool, enum cv_kind kind, enum cv_origin origin)
{
    struct cv *out = cv_alloc(pool, sizeof *out);
    out->kind = kind;
    out->origin = origin;
    return out;
}

/* All three members are set, since Python's True is 1 and 1.0. */
struct cv *cv_bool(struct cv_pool *pool, bool value, enum cv_origin origin)
{
    struct cv *out = cv_new(pool, CV_BOOL, origin);
    out->boolean = value;
    out->integer = value;
    out->real = value;
    return out;
}

struct cv *cv_int(struct cv_pool *pool, int64_t value, enum cv_origin origin)
{
    struct cv *out = cv_new(pool, CV_INT, origin);
    out->integer = value;
    out->real = (double)value;
    return out;
}

struct cv *cv_float(struct cv_pool *pool, double value, enum cv_origin origin)
{
    struct cv *out = cv_new(pool, CV_FLOAT, origin);
    out->real = value;
    return out;
}

struct cv *cv_string(struct cv_pool *pool, const char *value, enum cv_origin origin)
{
    struct cv *out = cv_new(pool, CV_STRING, origin);
    out->string = cv_text(pool, "%s", value);
    return out;
}

/* Shallow: values are not changed after they are made, but for origin and place. */
struct cv *cv_copy(struct cv_pool *pool, const struct cv *value)
{
    struct cv *out = cv_alloc(pool, sizeof *out);
    *out = *value;
    return out;
}

/* Old arrays stay in the pool: doubling wastes at most as much again, which POOL_PER_BYTE
 * counts. */
static void grow(struct cv_pool *pool, struct cv *value)
{
    if (value->n < value->capacity) return;
    size_t capacity = value->capacity ? value->capacity * 2 : 4;
    struct cv **items = cv_alloc(pool, capacity * sizeof *items);
    const char **keys = cv_alloc(pool, capacity * sizeof *keys);
    if (value->n) memcpy(items, value->items, value->n * sizeof *items);
    if (value->n && value->keys) memcpy(keys, value->keys, value->n * sizeof *keys);
    value->items = items;
    value->keys = keys;
    value->capacity = capacity;
}

void cv_append(struct cv_pool *pool, struct cv *list, struct cv *item)
{
    grow(pool, list);
    list->items[list->n++] = item;
}

/* Without a look for the key: for keys that are known to be new. */
void cv_push(struct cv_pool *pool, struct cv *dict, const char *key, struct cv *value)
{
    grow(pool, dict);
    dict->keys[dict->n] = key;
    dict->items[dict->n++] = value;
}

void cv_put(struct cv_pool *pool, struct cv *dict, const char *key, struct cv *value)
{
    for (size_t i = 0; i < dict->n; i++) {
        if (strcmp(dict->keys[i], key) != 0) continue;
        dict->items[i] = value;
        return;
    }
    cv_push(pool, dict, key, value);
}

void cv_remove(struct cv *dict, const char *key)
{
    for (size_t i = 0; i < dict->n; i++) {
        if (strcmp(dict->keys[i], key) != 0) continue;
        dict->n--;
        memmove(dict->items + i, dict->items + i + 1, (dict->n - i) * sizeof *dict->items);
        memmove(dict->keys + i, dict->keys + i + 1, (dict->n - i) * sizeof *dict->keys);
        return;
    }
}

struct cv *cv_get(const struct cv *dict, const char *key)
{
    if (!dict || dict->kind != CV_DICT) return NULL;
    for (size_t i = 0; i < dict->n; i++)
        if (strcmp(dict->keys[i], key) == 0) return dict->items[i];
    return NULL;
}

#define FEW_KEYS 16 /* searched as fast without a table */

struct cv_index cv_index_open(const struct cv *dict)
{
    struct cv_index x = {.dict = dict};
    if (dict->kind != CV_DICT || dict->n <= FEW_KEYS) return x;
    cz_status st = hash_index_reserve(&x.keys, dict->n);
    for (size_t i = 0; st == CZ_OK && i < dict->n; i++)
        st = hash_index_add(&x.keys, hash_text(dict->keys[i]), i);
    if (st == CZ_OK) return x;
    hash_index_free(&x.keys);
    err_clear();
    return (struct cv_index){.dict = dict};
}

struct searched_key {
    const struct cv *dict;
    const char *key;
};

static bool is_key(const void *searched, size_t item)
{
    const struct searched_key *s = searched;
    return strcmp(s->dict->keys[item], s->key) == 0;
}

struct cv *cv_index_get(const struct cv_index *x, const char *key)
{
    const struct searched_key searched = {x->dict, key};
    if (x->keys.n == 0) return cv_get(x->dict, key);
    const size_t i = hash_index_find(&x->keys, hash_text(key), is_key, &searched);
    return i == HASH_NONE ? NULL : x->dict->items[i];
}

void cv_index_close(struct cv_index *x)
{
    hash_index_free(&x->keys);
}

/* ---- reading -------------------------------------------------------------------------------- */

#define INT_DIGITS_MAX 4300 /* as Python's int() */

/* Past int64 the digits are kept: Python computes with them, and messages must show them. */
static cz_status import_int(struct cv_pool *pool, const struct json_node *node,
                            enum cv_origin origin, struct cv **imported)
{
    size_t n;
    const char *text = json_text(node, &n);
    char where[512];
    if (n > INT_DIGITS_MAX)
        return err_set(CZ_INVALID, 0, "%s: an integer of %zu digits is too large",
                       json_where(node, where, sizeof where), n);
    errno = 0;
    struct cv *out = cv_int(pool, strtoll(text, NULL, 10), origin);
    if (errno == ERANGE) {
        out->digits = cv_text(pool, "%.*s", (int)n, text);
        out->real = strtod(text, NULL);
    }
    *imported = out;
    return CZ_OK;
}

/* DeepSpeed reads with hjson, which turns 1e6 into an integer; the value remembers how it was
 * written (docs/deepspeed-behaviour.md, "JSON dialect"). */
static cz_status import_float(struct cv_pool *pool, const struct json_node *node,
                              enum cv_origin origin, struct cv **out)
{
    double value;
    TRY(json_as_double(node, &value));
    bool hjson_int = value == floor(value) && fabs(value) < 1e10;
    *out = hjson_int ? cv_int(pool, (int64_t)value, origin) : cv_float(pool, value, origin);
    (*out)->as_float = hjson_int;
    return CZ_OK;
}

static cz_status import_children(struct cv_pool *pool, const struct json_node *node,
                                 enum cv_origin origin, struct cv *out)
{
    size_t n = json_count(node);
    if (n == 0) return CZ_OK;
    out->items = cv_alloc(pool, n * sizeof *out->items);
    out->keys = cv_alloc(pool, n * sizeof *out->keys);
    out->capacity = n;
    for (size_t i = 0; i < n; i++) {
        const struct json_node *child = json_child(node, i);
        struct cv *item;
        TRY(cv_import(pool, child, origin, &item));
        out->items[out->n] = item;
        if (out->kind == CV_DICT) out->keys[out->n] = cv_text(pool, "%s", json_key(child));
        out->n++;
    }
    return CZ_OK;
}

cz_status cv_import(struct cv_pool *pool, const struct json_node *node, enum cv_origin origin,
                    struct cv **out)
{
    const char *string;
    bool value;
    switch (json_type(node)) {
    case JSON_NULL: *out = cv_new(pool, CV_NULL, origin); break;
    case JSON_BOOL:
        TRY(json_as_bool(node, &value));
        *out = cv_bool(pool, value, origin);
        break;
    case JSON_INT: TRY(import_int(pool, node, origin, out)); break;
    case JSON_FLOAT: TRY(import_float(pool, node, origin, out)); break;
    case JSON_STRING:
        TRY(json_as_string(node, &string));
        *out = cv_string(pool, string, origin);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        *out = cv_new(pool, json_type(node) == JSON_ARRAY ? CV_LIST : CV_DICT, origin);
        TRY(import_children(pool, node, origin, *out));
        break;
    }
    if (origin == CV_FILE) (*out)->node = node;
    return CZ_OK;
}

/* A value that is no JSON is a string: --set optimizer.type=AdamW needs no quotes. */
struct cv *cv_parse(struct cv_pool *pool, const char *text, enum cv_origin origin)
{
    struct json_doc *doc;
    struct cv *out;
    cz_status st = json_parse(text, strlen(text), NULL, JSON_STRICT, &doc);
    if (st == CZ_OK) {
        st = cv_import(pool, json_root(doc), origin, &out);
        json_free(doc);
        if (st == CZ_OK) return out;
    }
    pool->no_memory |= st == CZ_NOMEM;
    err_clear();
    return cv_string(pool, text, origin);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* Derived values were made by czero, not by a user. */
bool cv_is_given(const struct cv *value)
{
    return value && value->origin != CV_DEFAULT && value->origin != CV_DERIVED;
}

bool cv_is_string(const struct cv *value, const char *text)
{
    return value && value->kind == CV_STRING && strcmp(value->string, text) == 0;
}

bool cv_is_number(const struct cv *value)
{
    return value->kind == CV_INT || value->kind == CV_FLOAT || value->kind == CV_BOOL;
}

/* Python's truth value: "false" in quotes is true. */
bool cv_is_true(const struct cv *value)
{
    switch (value->kind) {
    case CV_NULL: return false;
    case CV_BOOL: return value->boolean;
    case CV_INT: return value->integer != 0;
    case CV_FLOAT: return value->real != 0.0;
    case CV_STRING: return value->string[0] != '\0';
    case CV_LIST:
    case CV_DICT: return value->n > 0;
    }
    return false;
}

static bool equal_children(const struct cv *a, const struct cv *b)
{
    bool equal = a->n == b->n;
    if (!equal) return false;
    struct cv_index of_b = cv_index_open(b);
    for (size_t i = 0; equal && i < a->n; i++) {
        const struct cv *other = a->kind == CV_DICT ? cv_index_get(&of_b, a->keys[i]) : b->items[i];
        equal = other && cv_equal(a->items[i], other);
    }
    cv_index_close(&of_b);
    return equal;
}

/* Python's ==: 1 == 1.0 == True; dicts in any order. */
bool cv_equal(const struct cv *a, const struct cv *b)
{
    if (cv_is_number(a) && cv_is_number(b)) {
        if (a->digits || b->digits)
            return a->digits && b->digits && strcmp(a->digits, b->digits) == 0;
        if (a->kind != CV_FLOAT && b->kind != CV_FLOAT) return a->integer == b->integer;
        return a->real == b->real;
    }
    if (a->kind != b->kind) return false;
    if (a->kind == CV_STRING) return strcmp(a->string, b->string) == 0;
    return a->kind == CV_NULL || equal_children(a, b);
}

/* ---- showing -------------------------------------------------------------------------------- */

void cv_write(struct json_writer *w, const struct cv *value)
{
    switch (value->kind) {
    case CV_NULL: json_write_null(w); break;
    case CV_BOOL: json_write_bool(w, value->boolean); break;
    case CV_INT:
        if (value->digits) {
            json_write_raw(w, value->digits);
        } else if (value->as_float) {
            json_write_double(w, value->real);
        } else {
            json_write_int(w, value->integer);
        }
        break;
    case CV_FLOAT: json_write_double(w, value->real); break;
    case CV_STRING: json_write_string(w, value->string); break;
    case CV_LIST:
        json_begin_array(w);
        for (size_t i = 0; i < value->n; i++) cv_write(w, value->items[i]);
        json_end_array(w);
        break;
    case CV_DICT:
        json_begin_object(w);
        for (size_t i = 0; i < value->n; i++) {
            json_write_key(w, value->keys[i]);
            cv_write(w, value->items[i]);
        }
        json_end_object(w);
        break;
    }
}

/* For messages: cut after SHOWN_MAX bytes, at a whole character. */
const char *cv_show(struct cv_pool *pool, const struct cv *value)
{
    struct json_writer w;
    char *text;
    json_writer_init(&w, 0);
    cv_write(&w, value);
    if (json_writer_take(&w, &text, NULL) != CZ_OK) {
        err_clear();
        return "…";
    }
    size_t n = strlen(text);
    bool cut = n > SHOWN_MAX;
    if (cut) {
        n = SHOWN_MAX;
        while (((unsigned char)text[n] & 0xc0u) == 0x80u) n--;
    }
    const char *out = cv_text(pool, "%.*s%s", (int)n, text, cut ? "…" : "");
    free(text);
    return out;
}

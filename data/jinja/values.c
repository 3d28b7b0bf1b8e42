/* Values as Python has them: lists, dicts, numbers and strings from JSON and from templates, their
 * equality, order, text, JSON, operators and members. Whatever walks a value counts its work first,
 * because lists may hold the same list twice, many times over. */
#include "data/jinja/jinja_impl.h"

#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ------------------------------------------------------------------------------------
 */

struct jinja_block {
    struct jinja_block *next;
};

void jinja_pool_begin(struct jinja_pool *p, void *block, size_t nbytes_max)
{
    *p = (struct jinja_pool){.at = block, .nbytes_max = nbytes_max};
    if (!block) return;
    p->end = p->at + JINJA_BLOCK_NBYTES;
    p->nbytes = JINJA_BLOCK_NBYTES;
}

char *jinja_take_text(struct jinja_pool *p, size_t n)
{
    if (n == 0) n = 1;
    if (!p->at || (size_t)(p->end - p->at) < n) {
        size_t size = n + sizeof(struct jinja_block);
        if (size < JINJA_BLOCK_NBYTES) size = JINJA_BLOCK_NBYTES;
        if (n > p->nbytes_max || size > p->nbytes_max - p->nbytes) return NULL;
        struct jinja_block *block = malloc(size);
        p->lacks_memory = !block;
        if (!block) return NULL;
        block->next = p->blocks;
        p->blocks = block;
        p->nbytes += size;
        p->at = (char *)(block + 1);
        p->end = (char *)block + size;
    }
    char *s = p->at;
    p->at += n;
    return s;
}

void *jinja_take(struct jinja_pool *p, size_t n)
{
    char *s = n < SIZE_MAX - 15 ? jinja_take_text(p, n + 15) : NULL;
    if (!s) return NULL;
    s += -(uintptr_t)s & 15;
    return memset(s, 0, n);
}

bool jinja_extend(struct jinja_pool *p, const char *s, size_t n, size_t m)
{
    if (s + n != p->at || (size_t)(p->end - p->at) < m) return false;
    p->at += m;
    return true;
}

void jinja_pool_free(struct jinja_pool *p)
{
    for (struct jinja_block *block = p->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    memset(p, 0, sizeof *p);
}

cz_status run_no_memory(struct jinja_run *r)
{
    if (r->pool.lacks_memory)
        return jinja_fail(r->t->name, r->line, CZ_NOMEM, "no memory is left for the template");
    return run_fail(r, "the template makes more than %zu bytes of values", r->pool.nbytes_max);
}

/* ---- making values -----------------------------------------------------------------------------
 */

struct jv jv_undefined(const char *what, size_t n)
{
    return (struct jv){.type = JV_UNDEFINED, .s = what, .n = n};
}

cz_status jv_of_bytes(struct jinja_run *r, const char *s, size_t n, struct jv *out)
{
    TRY(run_bytes(r, n));
    char *copy = jinja_take_text(&r->pool, n);
    if (!copy) return run_no_memory(r);
    if (n > 0) memcpy(copy, s, n);
    *out = jv_of_str(copy, n);
    return CZ_OK;
}

cz_status jv_take_buf(struct jinja_run *r, struct text_buf *b, struct jv *out)
{
    cz_status st = jv_of_bytes(r, b->s, b->n, out);
    run_drop(r, b);
    return st;
}

static cz_status reserve(struct jinja_run *r, void **at, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return CZ_OK;
    size_t more = *cap ? 2 * *cap : 4;
    void *grown = more > JINJA_NBYTES_MAX / size ? NULL : jinja_take(&r->pool, more * size);
    if (!grown) return run_no_memory(r);
    if (n > 0) memcpy(grown, *at, n * size);
    *at = grown;
    *cap = more;
    return CZ_OK;
}

cz_status jv_list_new(struct jinja_run *r, enum jv_type type, size_t cap, struct jv *out)
{
    struct jv_list *list = jinja_take(&r->pool, sizeof *list);
    if (!list || cap > JINJA_NBYTES_MAX / sizeof *list->at) return run_no_memory(r);
    if (cap > 0) list->at = jinja_take(&r->pool, cap * sizeof *list->at);
    if (cap > 0 && !list->at) return run_no_memory(r);
    list->cap = cap;
    *out = (struct jv){.type = (uint8_t)type, .list = list};
    return CZ_OK;
}

cz_status jv_list_add(struct jinja_run *r, struct jv v, struct jv item)
{
    struct jv_list *list = v.list;
    TRY(reserve(r, (void **)&list->at, list->n, &list->cap, sizeof *list->at));
    list->at[list->n++] = item;
    return run_steps(r, 1);
}

cz_status jv_dict_new(struct jinja_run *r, enum jv_type type, size_t cap, struct jv *out)
{
    struct jv_dict *dict = jinja_take(&r->pool, sizeof *dict);
    if (!dict || cap > JINJA_NBYTES_MAX / sizeof *dict->at) return run_no_memory(r);
    if (cap > 0) dict->at = jinja_take(&r->pool, cap * sizeof *dict->at);
    if (cap > 0 && !dict->at) return run_no_memory(r);
    dict->cap = cap;
    *out = (struct jv){.type = (uint8_t)type, .dict = dict};
    return CZ_OK;
}

bool jv_is_key(struct jv v)
{
    return v.type != JV_LIST && v.type != JV_DICT;
}

cz_status jv_dict_get(struct jinja_run *r, const struct jv_dict *d, struct jv key,
                      const struct jv **out)
{
    *out = NULL;
    TRY(run_steps(r, 1 + d->n / 16));
    for (size_t i = 0; i < d->n; i++) {
        const struct jv *k = &d->at[i].key;
        bool equal;
        if (key.type == JV_STR && k->type == JV_STR) {
            if (k->n != key.n) continue;
            TRY(run_bytes(r, key.n));
            equal = memcmp(k->s, key.s, key.n) == 0;
        } else
            TRY(jv_equal(r, *k, key, &equal));
        if (!equal) continue;
        *out = &d->at[i].value;
        return CZ_OK;
    }
    return CZ_OK;
}

cz_status jv_dict_put(struct jinja_run *r, struct jv v, struct jv key, struct jv value)
{
    const struct jv *old;
    struct jv_dict *d = v.dict;
    if (!jv_is_key(key)) return run_fail(r, "%s cannot be a key", jv_type_name(key));
    TRY(jv_dict_get(r, d, key, &old));
    if (old) {
        *(struct jv *)old = value;
        return CZ_OK;
    }
    TRY(reserve(r, (void **)&d->at, d->n, &d->cap, sizeof *d->at));
    d->at[d->n++] = (struct jv_pair){key, value};
    return CZ_OK;
}

static cz_status json_number(struct jinja_run *r, const struct json_node *node, struct jv *out)
{
    size_t n;
    const char *text = json_text(node, &n);
    if (json_type(node) == JSON_INT) {
        out->type = JV_INT;
        if (str_to_int(text, n, 10, &out->i)) return CZ_OK;
        return run_fail(r, "integers outside of 64 bits are not supported in values");
    }
    out->type = JV_FLOAT;
    if (str_to_float(text, n, &out->f)) return CZ_OK;
    return run_fail(r, "a number of the values is too long");
}

static cz_status json_string(struct jinja_run *r, const struct json_node *node, struct jv *out)
{
    const char *s;
    TRY(json_as_string(node, &s));
    *out = jv_of_str(s, strlen(s)); /* lent, as the document is */
    return run_steps(r, 1);
}

cz_status jv_from_json(struct jinja_run *r, const struct json_node *node, size_t n_items,
                       struct jv *out)
{
    size_t n = json_count(node) < n_items ? json_count(node) : n_items;
    switch (json_type(node)) {
    case JSON_NULL: *out = JV_NONE_VALUE; return CZ_OK;
    case JSON_BOOL: out->type = JV_BOOL; return json_as_bool(node, &out->b);
    case JSON_INT:
    case JSON_FLOAT: return json_number(r, node, out);
    case JSON_STRING: return json_string(r, node, out);
    case JSON_ARRAY:
        TRY(jv_list_new(r, JV_LIST, n, out));
        for (size_t i = 0; i < n; i++) {
            struct jv item = {0};
            TRY(jv_from_json(r, json_child(node, i), SIZE_MAX, &item));
            TRY(jv_list_add(r, *out, item));
        }
        return CZ_OK;
    case JSON_OBJECT: break;
    }
    TRY(jv_dict_new(r, JV_DICT, n, out));
    for (size_t i = 0; i < n; i++) {
        const struct json_node *child = json_child(node, i);
        struct jv_pair *pair = &out->dict->at[out->dict->n];
        pair->key = jv_of_str(json_key(child), strlen(json_key(child)));
        TRY(jv_from_json(r, child, SIZE_MAX, &pair->value));
        out->dict->n++;
    }
    return run_steps(r, n);
}

/* ---- looking -----------------------------------------------------------------------------------
 */

const char *jv_type_name(struct jv v)
{
    static const char *const names[] = {
        [JV_MISSING] = "nothing",   [JV_UNDEFINED] = "an undefined value",
        [JV_NONE] = "None",         [JV_BOOL] = "a truth value",
        [JV_INT] = "an integer",    [JV_FLOAT] = "a float",
        [JV_STR] = "a string",      [JV_LIST] = "a list",
        [JV_TUPLE] = "a tuple",     [JV_ITER] = "a generator",
        [JV_VIEW] = "a dict view",  [JV_DICT] = "a dict",
        [JV_SPACE] = "a namespace", [JV_MACRO] = "a macro",
        [JV_METHOD] = "a method",   [JV_FUNC] = "a function",
        [JV_LOOP] = "a loop",
    };
    return names[v.type];
}

static cz_status fail_undefined(struct jinja_run *r, struct jv v)
{
    return run_fail(r, "'%.*s' is undefined", (int)(v.n < 60 ? v.n : 60), v.s);
}

/* err_set for a value of the wrong type. */
static cz_status fail_type(struct jinja_run *r, struct jv v, const char *wanted)
{
    if (v.type == JV_UNDEFINED) return fail_undefined(r, v);
    return run_fail(r, "%s is not %s", jv_type_name(v), wanted);
}

bool jv_truth(struct jv v)
{
    switch (v.type) {
    case JV_MISSING:
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v.b;
    case JV_INT: return v.i != 0;
    case JV_FLOAT: return v.f != 0;
    case JV_STR: return v.n > 0;
    case JV_LIST:
    case JV_TUPLE:
    case JV_VIEW: return v.list->n > 0;
    case JV_DICT: return v.dict->n > 0;
    default: return true;
    }
}

bool jv_is_number(struct jv v)
{
    return v.type == JV_BOOL || v.type == JV_INT || v.type == JV_FLOAT;
}

static int64_t whole(struct jv v)
{
    return v.type == JV_BOOL ? v.b : v.i;
}

double jv_number(struct jv v)
{
    return v.type == JV_FLOAT ? v.f : (double)whole(v);
}

cz_status jv_equal(struct jinja_run *r, struct jv a, struct jv b, bool *out)
{
    *out = false;
    TRY(run_steps(r, 1));
    if (jv_is_number(a) && jv_is_number(b)) {
        bool both_whole = a.type != JV_FLOAT && b.type != JV_FLOAT;
        *out = both_whole ? whole(a) == whole(b) : jv_number(a) == jv_number(b);
        return CZ_OK;
    }
    if (a.type != b.type) return CZ_OK;
    switch (a.type) {
    case JV_MISSING:
    case JV_UNDEFINED:
    case JV_NONE: *out = true; return CZ_OK;
    case JV_STR:
        if (a.n != b.n) return CZ_OK;
        TRY(run_bytes(r, a.n));
        *out = a.n == 0 || memcmp(a.s, b.s, a.n) == 0;
        return CZ_OK;
    case JV_LIST:
    case JV_TUPLE:
        if (a.list->n != b.list->n) return CZ_OK;
        TRY(run_deeper(r));
        *out = true;
        for (size_t i = 0; i < a.list->n && *out; i++)
            TRY(jv_equal(r, a.list->at[i], b.list->at[i], out));
        r->depth--;
        return CZ_OK;
    case JV_DICT:
        if (a.dict->n != b.dict->n) return CZ_OK;
        TRY(run_deeper(r));
        *out = true;
        for (size_t i = 0; i < a.dict->n && *out; i++) {
            const struct jv *other;
            TRY(jv_dict_get(r, b.dict, a.dict->at[i].key, &other));
            *out = other;
            if (other) TRY(jv_equal(r, a.dict->at[i].value, *other, out));
        }
        r->depth--;
        return CZ_OK;
    case JV_FUNC: *out = a.i == b.i; return CZ_OK;
    default: *out = a.list == b.list; return CZ_OK; /* the same object */
    }
}

cz_status jv_order(struct jinja_run *r, struct jv a, struct jv b, int *out)
{
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.type != JV_FLOAT && b.type != JV_FLOAT) {
            *out = (whole(a) > whole(b)) - (whole(a) < whole(b));
            return CZ_OK;
        }
        double x = jv_number(a), y = jv_number(b);
        if (isnan(x) || isnan(y)) return run_fail(r, "NaN has no order");
        *out = (x > y) - (x < y);
        return CZ_OK;
    }
    if (a.type == JV_STR && b.type == JV_STR) {
        size_t n = a.n < b.n ? a.n : b.n;
        TRY(run_bytes(r, n));
        int c = n > 0 ? memcmp(a.s, b.s, n) : 0;
        *out = c ? c : (a.n > b.n) - (a.n < b.n);
        return CZ_OK;
    }
    if (a.type == b.type && (a.type == JV_LIST || a.type == JV_TUPLE)) {
        TRY(run_deeper(r));
        size_t i = 0, n = a.list->n < b.list->n ? a.list->n : b.list->n;
        for (; i < n; i++) {
            bool equal;
            TRY(jv_equal(r, a.list->at[i], b.list->at[i], &equal));
            if (!equal) break;
        }
        *out = (a.list->n > b.list->n) - (a.list->n < b.list->n);
        if (i < n) TRY(jv_order(r, a.list->at[i], b.list->at[i], out));
        r->depth--;
        return CZ_OK;
    }
    if (a.type == JV_UNDEFINED) return fail_undefined(r, a);
    if (b.type == JV_UNDEFINED) return fail_undefined(r, b);
    return run_fail(r, "%s and %s have no order", jv_type_name(a), jv_type_name(b));
}

cz_status jv_iterate(struct jinja_run *r, struct jv v, struct jv_list **out)
{
    struct jv list = {0};
    switch (v.type) {
    case JV_LIST:
    case JV_TUPLE:
    case JV_VIEW: *out = v.list; return run_steps(r, v.list->n);
    case JV_ITER: {
        size_t pos = v.list->pos;
        v.list->pos = v.list->n;
        if (pos == 0) {
            *out = v.list;
            return run_steps(r, v.list->n);
        }
        TRY(jv_list_new(r, JV_LIST, 0, &list));
        for (size_t i = pos; i < v.list->n; i++) TRY(jv_list_add(r, list, v.list->at[i]));
        *out = list.list;
        return CZ_OK;
    }
    case JV_UNDEFINED: TRY(jv_list_new(r, JV_LIST, 0, &list)); break;
    case JV_DICT:
        TRY(jv_list_new(r, JV_LIST, v.dict->n, &list));
        for (size_t i = 0; i < v.dict->n; i++) TRY(jv_list_add(r, list, v.dict->at[i].key));
        break;
    case JV_STR:
        TRY(run_bytes(r, v.n));
        TRY(jv_list_new(r, JV_LIST, str_length(v.s, v.n), &list));
        for (size_t at = 0, len; at < v.n; at += len) {
            len = str_offset(v.s + at, v.n - at, 1);
            TRY(jv_list_add(r, list, jv_of_str(v.s + at, len)));
        }
        break;
    default: return fail_type(r, v, "something to loop over");
    }
    *out = list.list;
    return CZ_OK;
}

cz_status jv_contains(struct jinja_run *r, struct jv item, struct jv in, bool *out)
{
    struct jv_list *list;
    *out = false;
    if (in.type == JV_STR) {
        if (item.type != JV_STR) return fail_type(r, item, "a string, which `in` wants here");
        TRY(run_bytes(r, in.n + item.n));
        *out = str_find(in.s, in.n, item.s, item.n) != NULL;
        return CZ_OK;
    }
    if (in.type == JV_DICT) {
        const struct jv *found;
        if (!jv_is_key(item)) return fail_type(r, item, "a key");
        TRY(jv_dict_get(r, in.dict, item, &found));
        *out = found;
        return CZ_OK;
    }
    TRY(jv_iterate(r, in, &list));
    for (size_t i = 0; i < list->n && !*out; i++) TRY(jv_equal(r, list->at[i], item, out));
    return CZ_OK;
}

cz_status jv_length(struct jinja_run *r, struct jv v, int64_t *out)
{
    switch (v.type) {
    case JV_UNDEFINED: *out = 0; return CZ_OK;
    case JV_STR:
        TRY(run_bytes(r, v.n));
        *out = (int64_t)str_length(v.s, v.n);
        return CZ_OK;
    case JV_LIST:
    case JV_TUPLE:
    case JV_VIEW: *out = (int64_t)v.list->n; return CZ_OK;
    case JV_DICT: *out = (int64_t)v.dict->n; return CZ_OK;
    default: return fail_type(r, v, "something with a length");
    }
}

/* ---- text and JSON -----------------------------------------------------------------------------
 */

#define PUT(text) run_put(r, out, text, sizeof(text) - 1)

/* For JSON: NaN, Infinity; for people: nan, inf. */
static cz_status put_number(struct jinja_run *r, struct jv v, bool is_json, struct text_buf *out)
{
    char text[JSON_FLOAT_NBYTES];
    if (v.type == JV_INT) {
        snprintf(text, sizeof text, "%" PRId64, v.i);
    } else if (is_json || isfinite(v.f)) {
        json_float_text(v.f, text);
    } else {
        snprintf(text, sizeof text, "%s", isnan(v.f) ? "nan" : v.f < 0 ? "-inf" : "inf");
    }
    return run_put(r, out, text, strlen(text));
}

static cz_status print_items(struct jinja_run *r, struct jv v, struct text_buf *out)
{
    bool is_dict = v.type == JV_DICT, is_tuple = v.type == JV_TUPLE;
    size_t n = is_dict ? v.dict->n : v.list->n;
    TRY(run_deeper(r));
    TRY(run_put(r, out, is_dict ? "{" : is_tuple ? "(" : "[", 1));
    for (size_t i = 0; i < n; i++) {
        if (i > 0) TRY(PUT(", "));
        TRY(jv_print(r, is_dict ? v.dict->at[i].key : v.list->at[i], true, out));
        if (!is_dict) continue;
        TRY(PUT(": "));
        TRY(jv_print(r, v.dict->at[i].value, true, out));
    }
    if (is_tuple && n == 1) TRY(PUT(","));
    r->depth--;
    return run_put(r, out, is_dict ? "}" : is_tuple ? ")" : "]", 1);
}

cz_status jv_print(struct jinja_run *r, struct jv v, bool is_repr, struct text_buf *out)
{
    switch (v.type) {
    case JV_UNDEFINED: return is_repr ? PUT("Undefined") : CZ_OK;
    case JV_NONE: return PUT("None");
    case JV_BOOL: return v.b ? PUT("True") : PUT("False");
    case JV_INT:
    case JV_FLOAT: return put_number(r, v, false, out);
    case JV_STR:
        if (!is_repr) return run_put(r, out, v.s, v.n);
        if (v.is_safe) TRY(PUT("Markup("));
        TRY(str_repr(r, v.s, v.n, out));
        return v.is_safe ? PUT(")") : CZ_OK;
    case JV_LIST:
    case JV_TUPLE:
    case JV_DICT: return print_items(r, v, out);
    default:
        return jinja_fail(r->t->name, r->line, CZ_UNSUPPORTED, "%s cannot be printed",
                          jv_type_name(v));
    }
}

cz_status jv_to_str(struct jinja_run *r, struct jv v, struct jv *out)
{
    struct text_buf b = {0};
    if (v.type == JV_STR) {
        *out = v;
        return CZ_OK;
    }
    cz_status st = jv_print(r, v, false, &b);
    if (st != CZ_OK) {
        run_drop(r, &b);
        return st;
    }
    return jv_take_buf(r, &b, out);
}

static cz_status json_break(struct jinja_run *r, const struct jv_json_form *f, int level,
                            struct text_buf *out)
{
    if (!f->is_indented) return CZ_OK;
    TRY(PUT("\n"));
    for (int i = 0; i < level; i++) TRY(run_put(r, out, f->indent.s, f->indent.n));
    return CZ_OK;
}

static cz_status json_key_text(struct jinja_run *r, struct jv key, const struct jv_json_form *f,
                               struct text_buf *out)
{
    switch (key.type) {
    case JV_STR: return str_json(r, key.s, key.n, f->escapes_wide, out);
    case JV_NONE: return PUT("\"null\"");
    case JV_BOOL: return key.b ? PUT("\"true\"") : PUT("\"false\"");
    case JV_INT:
    case JV_FLOAT:
        TRY(PUT("\""));
        TRY(put_number(r, key, true, out));
        return PUT("\"");
    default: return run_fail(r, "%s cannot be a key in JSON", jv_type_name(key));
    }
}

static cz_status sort_keys(struct jinja_run *r, struct jv_dict *d, const struct jv_pair ***out)
{
    const struct jv_pair **at = jinja_take(&r->pool, (d->n + 1) * sizeof(*at));
    if (!at) return run_no_memory(r);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = i;
        for (; k > 0; k--) {
            int order;
            TRY(run_steps(r, 1));
            TRY(jv_order(r, at[k - 1]->key, d->at[i].key, &order));
            if (order <= 0) break;
            at[k] = at[k - 1];
        }
        at[k] = &d->at[i];
    }
    *out = at;
    return CZ_OK;
}

static cz_status json_items(struct jinja_run *r, struct jv v, const struct jv_json_form *f,
                            int level, struct text_buf *out)
{
    bool is_dict = v.type == JV_DICT;
    size_t n = is_dict ? v.dict->n : v.list->n;
    const struct jv_pair **sorted = NULL;
    TRY(run_put(r, out, is_dict ? "{" : "[", 1));
    if (is_dict && f->sorts_keys) TRY(sort_keys(r, v.dict, &sorted));
    for (size_t i = 0; i < n; i++) {
        if (i > 0) TRY(run_put(r, out, f->item_separator.s, f->item_separator.n));
        TRY(json_break(r, f, level + 1, out));
        const struct jv_pair *pair = sorted ? sorted[i] : is_dict ? &v.dict->at[i] : NULL;
        if (pair) {
            TRY(json_key_text(r, pair->key, f, out));
            TRY(run_put(r, out, f->key_separator.s, f->key_separator.n));
        }
        TRY(jv_to_json(r, pair ? pair->value : v.list->at[i], f, level + 1, out));
    }
    if (n > 0) TRY(json_break(r, f, level, out));
    return run_put(r, out, is_dict ? "}" : "]", 1);
}

cz_status jv_to_json(struct jinja_run *r, struct jv v, const struct jv_json_form *f, int level,
                     struct text_buf *out)
{
    switch (v.type) {
    case JV_NONE: return PUT("null");
    case JV_BOOL: return v.b ? PUT("true") : PUT("false");
    case JV_INT:
    case JV_FLOAT: return put_number(r, v, true, out);
    case JV_STR: return str_json(r, v.s, v.n, f->escapes_wide, out);
    case JV_LIST:
    case JV_TUPLE:
    case JV_DICT:
        TRY(run_deeper(r));
        TRY(json_items(r, v, f, level, out));
        r->depth--;
        return CZ_OK;
    default: return fail_type(r, v, "a value of JSON");
    }
}

/* ---- operators ---------------------------------------------------------------------------------
 */

static cz_status fail_overflow(struct jinja_run *r)
{
    return run_fail(r, "an integer is outside of 64 bits");
}

static cz_status int_power(struct jinja_run *r, int64_t base, int64_t exponent, struct jv *out)
{
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return run_fail(r, "0 has no negative power");
        *out = jv_of_float(pow((double)base, (double)exponent));
        return CZ_OK;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = jv_of_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
        return CZ_OK;
    }
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result)) return fail_overflow(r);
    *out = jv_of_int(result);
    return CZ_OK;
}

static cz_status binary_ints(struct jinja_run *r, enum jn_op op, int64_t a, int64_t b,
                             struct jv *out)
{
    bool overflows = false;
    out->type = JV_INT;
    switch (op) {
    case JO_ADD: overflows = __builtin_add_overflow(a, b, &out->i); break;
    case JO_SUB: overflows = __builtin_sub_overflow(a, b, &out->i); break;
    case JO_MUL: overflows = __builtin_mul_overflow(a, b, &out->i); break;
    case JO_POW: return int_power(r, a, b, out);
    default:
        if (b == 0) return run_fail(r, "division by zero");
        if (op == JO_DIV) {
            *out = jv_of_float((double)a / (double)b);
        } else if (b == -1) {
            if (op == JO_MOD)
                out->i = 0;
            else
                overflows = __builtin_sub_overflow((int64_t)0, a, &out->i);
        } else {
            bool floors = a % b != 0 && (a < 0) != (b < 0);
            out->i = op == JO_MOD ? a % b + (floors ? b : 0) : a / b - (floors ? 1 : 0);
        }
        break;
    }
    return overflows ? fail_overflow(r) : CZ_OK;
}

static cz_status binary_floats(struct jinja_run *r, enum jn_op op, double a, double b,
                               struct jv *out)
{
    double x = 0;
    switch (op) {
    case JO_ADD: x = a + b; break;
    case JO_SUB: x = a - b; break;
    case JO_MUL: x = a * b; break;
    case JO_POW:
        if (a < 0 && b != floor(b)) return run_fail(r, "a power is not a real number");
        if (a == 0 && b < 0) return run_fail(r, "0 has no negative power");
        x = pow(a, b);
        break;
    default:
        if (b == 0) return run_fail(r, "division by zero");
        if (op == JO_DIV) {
            x = a / b;
            break;
        }
        double rest = fmod(a, b); /* as CPython's float_divmod() */
        double quotient = (a - rest) / b;
        if (rest != 0 && (b < 0) != (rest < 0)) {
            rest += b;
            quotient -= 1;
        } else if (rest == 0) {
            rest = copysign(0, b);
        }
        double whole_part = quotient != 0 ? floor(quotient) : copysign(0, a / b);
        if (quotient - whole_part > 0.5) whole_part += 1;
        x = op == JO_MOD ? rest : whole_part;
        break;
    }
    *out = jv_of_float(x);
    return CZ_OK;
}

/* A new string of both, in place where a was made last: text that a loop collects is not copied
 * again and again. */
static cz_status concat(struct jinja_run *r, struct jv a, struct jv b, struct jv *out)
{
    if (a.is_safe != b.is_safe) TRY(str_escape_html(r, a.is_safe ? b : a, a.is_safe ? &b : &a));
    bool is_safe = a.is_safe;
    TRY(run_bytes(r, b.n));
    if (a.n > 0 && jinja_extend(&r->pool, a.s, a.n, b.n)) {
        memmove((char *)a.s + a.n, b.s, b.n);
        *out = jv_of_str(a.s, a.n + b.n);
    } else {
        size_t n = a.n + b.n, spare = n < 1024 ? 0 : n / 2;
        TRY(run_bytes(r, a.n));
        char *s = jinja_take_text(&r->pool, n + spare);
        if (!s) return run_no_memory(r);
        r->pool.at -= spare; /* for what follows */
        if (a.n > 0) memcpy(s, a.s, a.n);
        if (b.n > 0) memcpy(s + a.n, b.s, b.n);
        *out = jv_of_str(s, n);
    }
    out->is_safe = is_safe;
    return CZ_OK;
}

/* `count` times a string or list. */
static cz_status repeat(struct jinja_run *r, struct jv v, int64_t count, struct jv *out)
{
    size_t n = v.type == JV_STR ? v.n : v.list->n, times = count > 0 ? (size_t)count : 0, total;
    if (n == 0) times = 0;
    if (__builtin_mul_overflow(n, times, &total) || total > JINJA_NBYTES_MAX)
        return run_fail(r, "a repeated value is longer than %zu bytes", JINJA_NBYTES_MAX);
    TRY(run_steps(r, total / 16));
    if (v.type == JV_STR) {
        char *s = jinja_take_text(&r->pool, total);
        if (!s) return run_no_memory(r);
        for (size_t i = 0; i < times; i++) memcpy(s + i * n, v.s, n);
        *out = jv_of_str(s, total);
        out->is_safe = v.is_safe;
        return CZ_OK;
    }
    TRY(jv_list_new(r, v.type, total, out));
    for (size_t i = 0; i < times; i++)
        for (size_t j = 0; j < n; j++) TRY(jv_list_add(r, *out, v.list->at[j]));
    return CZ_OK;
}

static bool is_series(struct jv v)
{
    return v.type == JV_STR || v.type == JV_LIST || v.type == JV_TUPLE;
}

cz_status jv_binary(struct jinja_run *r, enum jn_op op, struct jv a, struct jv b, struct jv *out)
{
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.type == JV_FLOAT || b.type == JV_FLOAT)
            return binary_floats(r, op, jv_number(a), jv_number(b), out);
        return binary_ints(r, op, whole(a), whole(b), out);
    }
    if (op == JO_ADD && a.type == JV_STR && b.type == JV_STR) return concat(r, a, b, out);
    if (op == JO_ADD && a.type == b.type && is_series(a)) {
        TRY(jv_list_new(r, a.type, a.list->n + b.list->n, out));
        for (size_t i = 0; i < a.list->n; i++) TRY(jv_list_add(r, *out, a.list->at[i]));
        for (size_t i = 0; i < b.list->n; i++) TRY(jv_list_add(r, *out, b.list->at[i]));
        return CZ_OK;
    }
    bool counts_b = b.type == JV_INT || b.type == JV_BOOL;
    bool counts_a = a.type == JV_INT || a.type == JV_BOOL;
    if (op == JO_MUL && is_series(a) && counts_b) return repeat(r, a, whole(b), out);
    if (op == JO_MUL && is_series(b) && counts_a) return repeat(r, b, whole(a), out);
    if (op == JO_MOD && a.type == JV_STR)
        return run_lacks(r, "formatting a string by %% is not supported");
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (a.type == JV_UNDEFINED) return fail_undefined(r, a);
    if (b.type == JV_UNDEFINED) return fail_undefined(r, b);
    return run_fail(r, "%s and %s have no operator %s", jv_type_name(a), jv_type_name(b),
                    signs[op]);
}

/* ---- members -----------------------------------------------------------------------------------
 */

static cz_status loop_attr(struct jinja_run *r, struct jv v, struct jv name, struct jv *out)
{
    const struct jv_loop *l = v.loop;
    int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    if (jv_is(name, "index"))
        *out = jv_of_int(i + 1);
    else if (jv_is(name, "index0"))
        *out = jv_of_int(i);
    else if (jv_is(name, "revindex"))
        *out = jv_of_int(n - i);
    else if (jv_is(name, "revindex0"))
        *out = jv_of_int(n - i - 1);
    else if (jv_is(name, "first"))
        *out = jv_of_bool(i == 0);
    else if (jv_is(name, "last"))
        *out = jv_of_bool(i == n - 1);
    else if (jv_is(name, "length"))
        *out = jv_of_int(n);
    else if (jv_is(name, "depth"))
        *out = jv_of_int(1); /* none is recursive */
    else if (jv_is(name, "depth0"))
        *out = jv_of_int(0);
    else if (jv_is(name, "previtem") && i > 0)
        *out = l->items->at[i - 1];
    else if (jv_is(name, "nextitem") && i + 1 < n)
        *out = l->items->at[i + 1];
    else if (jv_is(name, "cycle") || jv_is(name, "changed")) {
        struct jv_method *m = jinja_take(&r->pool, sizeof *m);
        if (!m) return run_no_memory(r);
        *m = (struct jv_method){v, jv_is(name, "cycle") ? "cycle" : "changed"};
        *out = (struct jv){.type = JV_METHOD, .method = m};
    } else {
        *out = jv_undefined(name.s, name.n);
    }
    return CZ_OK;
}

cz_status jv_attr(struct jinja_run *r, struct jv v, struct jv name, bool item_first, struct jv *out)
{
    const struct jv *found = NULL;
    if (v.type == JV_UNDEFINED) return fail_undefined(r, v);
    if (v.type == JV_LOOP) return loop_attr(r, v, name, out);
    if (v.type == JV_SPACE) TRY(jv_dict_get(r, v.dict, name, &found));
    if (v.type == JV_DICT && item_first) TRY(jv_dict_get(r, v.dict, name, &found));
    const char *method = found ? NULL : jinja_method_find(v, name);
    if (method) {
        struct jv_method *m = jinja_take(&r->pool, sizeof *m);
        if (!m) return run_no_memory(r);
        *m = (struct jv_method){v, method};
        *out = (struct jv){.type = JV_METHOD, .method = m};
        return CZ_OK;
    }
    if (v.type == JV_DICT && !item_first) TRY(jv_dict_get(r, v.dict, name, &found));
    *out = found ? *found : jv_undefined(name.s, name.n);
    return CZ_OK;
}

/* Item i, counted from the end where it is negative. */
static struct jv item_at(struct jv v, int64_t i)
{
    if (v.type == JV_STR) {
        int64_t n = (int64_t)str_length(v.s, v.n);
        if (i < 0) i += n;
        if (i < 0 || i >= n) return jv_undefined("item", 4);
        size_t at = str_offset(v.s, v.n, (size_t)i);
        struct jv c = jv_of_str(v.s + at, str_offset(v.s + at, v.n - at, 1));
        c.is_safe = v.is_safe;
        return c;
    }
    int64_t n = (int64_t)v.list->n;
    if (i < 0) i += n;
    return i < 0 || i >= n ? jv_undefined("item", 4) : v.list->at[i];
}

cz_status jv_item(struct jinja_run *r, struct jv v, struct jv key, struct jv *out)
{
    const struct jv *found = NULL;
    if (v.type == JV_UNDEFINED) return fail_undefined(r, v);
    if (is_series(v) && (key.type == JV_INT || key.type == JV_BOOL)) {
        TRY(run_bytes(r, v.type == JV_STR ? v.n : 0));
        *out = item_at(v, whole(key));
        return CZ_OK;
    }
    if (key.type == JV_STR) return jv_attr(r, v, key, true, out);
    if (v.type == JV_DICT && jv_is_key(key)) TRY(jv_dict_get(r, v.dict, key, &found));
    *out = found ? *found : jv_undefined("item", 4);
    return CZ_OK;
}

static cz_status bound(struct jinja_run *r, struct jv v, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (v.type == JV_NONE) return CZ_OK;
    if (v.type != JV_INT && v.type != JV_BOOL) return fail_type(r, v, "a bound of a slice");
    *out = whole(v);
    return CZ_OK;
}

cz_status jv_slice(struct jinja_run *r, struct jv v, const struct jv bounds[3], struct jv *out)
{
    int64_t begin, end, step;
    if (!is_series(v)) return fail_type(r, v, "something that can be cut");
    TRY(run_bytes(r, v.type == JV_STR ? v.n : 0));
    int64_t n = v.type == JV_STR ? (int64_t)str_length(v.s, v.n) : (int64_t)v.list->n;
    TRY(bound(r, bounds[2], 1, &step));
    if (step == 0) return run_fail(r, "a slice has a step of 0");
    if (step < -n - 1) step = -n - 1; /* the first item only, either way */
    if (step > n + 1) step = n + 1;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    TRY(bound(r, bounds[0], step > 0 ? low : INT64_MAX, &begin));
    TRY(bound(r, bounds[1], step > 0 ? INT64_MAX : INT64_MIN, &end));
    if (begin < 0) begin = begin < -n ? low : begin + n;
    if (end < 0) end = end < -n ? low : end + n;
    if (begin > high) begin = high;
    if (end > high) end = high;
    if (v.type == JV_STR && step == 1) {
        if (end < begin) end = begin;
        size_t at = str_offset(v.s, v.n, (size_t)begin);
        *out = jv_of_str(v.s + at, str_offset(v.s + at, v.n - at, (size_t)(end - begin)));
        out->is_safe = v.is_safe;
        return CZ_OK;
    }
    struct jv_list *items;
    TRY(jv_iterate(r, v, &items));
    struct text_buf text = {0};
    if (v.type != JV_STR) TRY(jv_list_new(r, v.type, 0, out));
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        struct jv item = items->at[i];
        cz_status st =
            v.type == JV_STR ? run_put(r, &text, item.s, item.n) : jv_list_add(r, *out, item);
        if (st != CZ_OK) {
            run_drop(r, &text);
            return st;
        }
    }
    return v.type == JV_STR ? jv_take_buf(r, &text, out) : CZ_OK;
}

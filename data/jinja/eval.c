/* Rendering: a walk over the tree that evaluates expressions and appends to the text. Scopes are
 * those of Jinja: a loop, a macro, a set block, a with and a generation block see the variables
 * around them, and what they set ends with them; if sets the variables around it. */
#include "data/jinja/jinja_impl.h"

#include <stdlib.h>
#include <time.h>

enum func { FUNC_RANGE, FUNC_NAMESPACE, FUNC_DICT, FUNC_RAISE, FUNC_NOW };

static cz_status eval(struct jinja_run *r, const struct jn *node, struct jv *out);
static cz_status exec_list(struct jinja_run *r, const struct jn_list *list);

/* ---- errors and limits --------------------------------------------------------------------------
 */

cz_status run_fail(struct jinja_run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_vset(CZ_INVALID, fmt, ap);
    va_end(ap);
    return err_prefix("%s:%d", r->t->name, r->line);
}

cz_status run_lacks(struct jinja_run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_vset(CZ_UNSUPPORTED, fmt, ap);
    va_end(ap);
    return err_prefix("%s:%d", r->t->name, r->line);
}

cz_status run_steps(struct jinja_run *r, uint64_t n)
{
    r->steps = n > JINJA_STEPS_MAX ? n : r->steps + n; /* no sum wraps: one of them ends the run */
    if (r->steps <= JINJA_STEPS_MAX) return CZ_OK;
    return run_fail(r, "the template takes more than %" PRIu64 " steps", JINJA_STEPS_MAX);
}

cz_status run_deeper(struct jinja_run *r)
{
    if (++r->depth > JINJA_DEPTH_MAX)
        return run_fail(r, "expressions, calls and values are nested deeper than %d levels",
                        JINJA_DEPTH_MAX);
    return run_steps(r, 1);
}

static cz_status enter(struct jinja_run *r, const struct jn *node)
{
    r->line = node->line;
    return run_deeper(r);
}

cz_status run_put(struct jinja_run *r, struct text_buf *out, const char *s, size_t n)
{
    if (n > JINJA_NBYTES_MAX - r->text_nbytes)
        return run_fail(r, "the text is longer than %zu bytes", JINJA_NBYTES_MAX);
    TRY(run_steps(r, 1 + n / 64));
    TRY(text_buf_put(out, s, n));
    r->text_nbytes += n;
    return CZ_OK;
}

void run_drop(struct jinja_run *r, struct text_buf *b)
{
    r->text_nbytes -= b->n;
    text_buf_free(b);
}

/* ---- variables
 * ----------------------------------------------------------------------------------- */

/* The steps that it takes are checked by the next run_steps(), of which each lookup has one. */
static struct jv *find_var(struct jinja_run *r, uint32_t name)
{
    for (struct jinja_scope *s = r->scope; s; s = s->parent) {
        if (!s->parent) return r->globals[name].type == JV_MISSING ? NULL : &r->globals[name];
        r->steps += s->n / 8;
        for (size_t i = 0; i < s->n; i++)
            if (s->at[i].name == name) return &s->at[i].value;
    }
    return NULL;
}

static cz_status set_var(struct jinja_run *r, uint32_t name, struct jv value)
{
    struct jinja_scope *s = r->scope;
    if (!s->parent) {
        r->globals[name] = value;
        return CZ_OK;
    }
    TRY(run_steps(r, s->n / 8));
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name) {
            s->at[i].value = value;
            return CZ_OK;
        }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        struct jinja_binding *at = jinja_take(&r->pool, cap * sizeof *at);
        if (!at) return run_no_memory(r);
        if (s->n > 0) memcpy(at, s->at, s->n * sizeof *at);
        s->at = at;
        s->cap = cap;
    }
    s->at[s->n++] = (struct jinja_binding){name, value};
    return CZ_OK;
}

static cz_status open_scope(struct jinja_run *r, struct jinja_scope *parent)
{
    struct jinja_scope *s = jinja_take(&r->pool, sizeof *s);
    if (!s) return run_no_memory(r);
    s->parent = parent;
    r->scope = s;
    return CZ_OK;
}

static cz_status assign(struct jinja_run *r, const struct jn *target, struct jv value)
{
    if (target->kind == JN_NAME) return set_var(r, target->name, value);
    if (target->kind == JN_ATTR) {
        struct jv space;
        TRY(eval(r, target->a, &space));
        if (space.type != JV_SPACE)
            return run_fail(r, "only a namespace has members that can be set, not %s",
                            jv_type_name(space));
        if (target->value.n > 0 && target->value.s[0] == '_')
            return run_fail(r, "a member of a namespace begins with an underscore");
        return jv_dict_put(r, space, target->value, value);
    }
    struct jv_list *items;
    TRY(jv_iterate(r, value, &items));
    if (value.type == JV_UNDEFINED || items->n != target->list.n)
        return run_fail(r, "%zu values do not fit %zu names", items->n, target->list.n);
    for (size_t i = 0; i < items->n; i++) TRY(assign(r, target->list.at[i], items->at[i]));
    return CZ_OK;
}

/* ---- expressions
 * --------------------------------------------------------------------------------- */

static const struct jv *find_kw(const struct jinja_args *args, struct jv name)
{
    for (size_t i = 0; i < args->n_kw; i++)
        if (args->kw[i].key.n == name.n && memcmp(args->kw[i].key.s, name.s, name.n) == 0)
            return &args->kw[i].value;
    return NULL;
}

/* Space for arguments, with what *list and **dict add. */
static cz_status take_args(struct jinja_run *r, size_t n, size_t n_kw, struct jinja_args *out)
{
    if (n > 0) out->at = jinja_take(&r->pool, n * sizeof *out->at);
    if (n_kw > 0) out->kw = jinja_take(&r->pool, n_kw * sizeof *out->kw);
    return (n > 0 && !out->at) || (n_kw > 0 && !out->kw) ? run_no_memory(r) : CZ_OK;
}

/* Named arguments of **dict: Python wants strings that are new. */
static cz_status add_named(struct jinja_run *r, const struct jv_dict *dict, struct jinja_args *out)
{
    for (size_t i = 0; i < dict->n; i++) {
        const struct jv_pair *pair = &dict->at[i];
        if (pair->key.type != JV_STR) return run_fail(r, "names of ** arguments are strings");
        TRY(run_steps(r, 1 + out->n_kw / 8));
        if (find_kw(out, pair->key)) return run_fail(r, "an argument is given twice");
        out->kw[out->n_kw++] = *pair;
    }
    return CZ_OK;
}

static cz_status eval_args(struct jinja_run *r, const struct jn *node, struct jinja_args *out)
{
    static const struct jv_list no_items = {0};
    static const struct jv_dict no_names = {0};
    const struct jv_dict *names = &no_names;
    const struct jv_list *items = &no_items;
    struct jv_list *given;
    struct jv v;
    *out = (struct jinja_args){0};
    if (node->b) {
        TRY(eval(r, node->b, &v));
        TRY(jv_iterate(r, v, &given));
        items = given;
    }
    if (node->c) {
        TRY(eval(r, node->c, &v));
        if (v.type != JV_DICT) return run_fail(r, "** takes a dict, not %s", jv_type_name(v));
        names = v.dict;
    }
    TRY(take_args(r, node->list.n + items->n, node->n_kw + names->n, out));
    for (; out->n < node->list.n; out->n++) TRY(eval(r, node->list.at[out->n], &out->at[out->n]));
    for (size_t i = 0; i < items->n; i++) out->at[out->n++] = items->at[i];
    for (; out->n_kw < node->n_kw; out->n_kw++) {
        out->kw[out->n_kw].key = node->kw[out->n_kw].name;
        TRY(eval(r, node->kw[out->n_kw].value, &out->kw[out->n_kw].value));
    }
    return add_named(r, names, out);
}

static cz_status eval_list(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv list, item;
    TRY(jv_list_new(r, node->kind == JN_LIST ? JV_LIST : JV_TUPLE, node->list.n, &list));
    for (size_t i = 0; i < node->list.n; i++) {
        TRY(eval(r, node->list.at[i], &item));
        TRY(jv_list_add(r, list, item));
    }
    *out = list;
    return CZ_OK;
}

static cz_status eval_dict(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv dict, key, value;
    TRY(jv_dict_new(r, JV_DICT, node->list.n / 2, &dict));
    for (size_t i = 0; i + 1 < node->list.n; i += 2) {
        TRY(eval(r, node->list.at[i], &key));
        TRY(eval(r, node->list.at[i + 1], &value));
        TRY(jv_dict_put(r, dict, key, value));
    }
    *out = dict;
    return CZ_OK;
}

static cz_status eval_slice(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv v, bounds[3];
    TRY(eval(r, node->a, &v));
    for (int i = 0; i < 3; i++) {
        bounds[i] = JV_NONE_VALUE;
        if (node->list.at[i]) TRY(eval(r, node->list.at[i], &bounds[i]));
    }
    return jv_slice(r, v, bounds, out);
}

static cz_status eval_compare(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv a, b;
    bool holds = true;
    TRY(eval(r, node->a, &a));
    for (size_t i = 0; i < node->list.n && holds; i++, a = b) {
        const struct jn *right = node->list.at[i];
        int order = 0;
        TRY(eval(r, right->a, &b));
        switch (right->op) {
        case JO_EQ:
        case JO_NE: TRY(jv_equal(r, a, b, &holds)); break;
        case JO_IN:
        case JO_NOT_IN: TRY(jv_contains(r, a, b, &holds)); break;
        default:
            TRY(jv_order(r, a, b, &order));
            holds = right->op == JO_LT   ? order < 0
                    : right->op == JO_LE ? order <= 0
                    : right->op == JO_GT ? order > 0
                                         : order >= 0;
        }
        if (right->op == JO_NE || right->op == JO_NOT_IN) holds = !holds;
    }
    *out = jv_of_bool(holds);
    return CZ_OK;
}

static cz_status eval_concat(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv all = JV_TEXT(""), part;
    for (size_t i = 0; i < node->list.n; i++) {
        TRY(eval(r, node->list.at[i], &part));
        TRY(jv_to_str(r, part, &part));
        part.is_safe = false;
        TRY(jv_binary(r, JO_ADD, all, part, &all));
    }
    *out = all;
    return CZ_OK;
}

static cz_status eval_sign(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv v;
    TRY(eval(r, node->a, &v));
    if (!jv_is_number(v)) return run_fail(r, "%s has no sign", jv_type_name(v));
    if (v.type == JV_FLOAT) {
        *out = jv_of_float(node->kind == JN_NEG ? -v.f : v.f);
        return CZ_OK;
    }
    return jv_binary(r, node->kind == JN_NEG ? JO_SUB : JO_ADD, jv_of_int(0), v, out);
}

static cz_status eval_call(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv callee;
    struct jinja_args args;
    TRY(eval(r, node->a, &callee));
    TRY(eval_args(r, node, &args));
    r->line = node->line;
    return jinja_call(r, callee, &args, out);
}

static cz_status eval_filter(struct jinja_run *r, const struct jn *node, struct jv v,
                             struct jv *out)
{
    struct jinja_args args;
    struct jv result = {0};
    TRY(eval_args(r, node, &args));
    r->line = node->line;
    TRY(jinja_filter_run(r, node->filter, v, &args, &result));
    *out = result;
    return CZ_OK;
}

static cz_status eval_test(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv v;
    struct jinja_args args;
    bool passes = false;
    TRY(eval(r, node->a, &v));
    TRY(eval_args(r, node, &args));
    r->line = node->line;
    TRY(node->test->run(r, v, &args, &passes));
    *out = jv_of_bool(passes != node->is_negated);
    return CZ_OK;
}

static cz_status eval_two(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv a, b;
    TRY(eval(r, node->a, &a));
    if (node->kind == JN_AND || node->kind == JN_OR) {
        *out = a;
        return jv_truth(a) == (node->kind == JN_AND) ? eval(r, node->b, out) : CZ_OK;
    }
    TRY(eval(r, node->b, &b));
    r->line = node->line;
    if (node->kind == JN_ITEM) return jv_item(r, a, b, out);
    return jv_binary(r, (enum jn_op)node->op, a, b, out);
}

static cz_status eval_kind(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jv v;
    switch (node->kind) {
    case JN_CONST: *out = node->value; return CZ_OK;
    case JN_NAME: {
        struct jv name = r->t->names[node->name];
        const struct jv *found = find_var(r, node->name);
        int func = found ? -1 : jinja_func_find(name);
        *out = found ? *found : jv_undefined(name.s, name.n);
        if (func >= 0) *out = (struct jv){.type = JV_FUNC, .i = func};
        return CZ_OK;
    }
    case JN_LIST:
    case JN_TUPLE: return eval_list(r, node, out);
    case JN_DICT: return eval_dict(r, node, out);
    case JN_ATTR:
        TRY(eval(r, node->a, &v));
        r->line = node->line;
        if (v.type == JV_DICT && node->is_plain) {
            const struct jv *found;
            TRY(jv_dict_get(r, v.dict, node->value, &found));
            *out = found ? *found : jv_undefined(node->value.s, node->value.n);
            return CZ_OK;
        }
        return jv_attr(r, v, node->value, false, out);
    case JN_SLICE: return eval_slice(r, node, out);
    case JN_CALL: return eval_call(r, node, out);
    case JN_FILTER: TRY(eval(r, node->a, &v)); return eval_filter(r, node, v, out);
    case JN_TEST: return eval_test(r, node, out);
    case JN_NOT:
        TRY(eval(r, node->a, &v));
        *out = jv_of_bool(!jv_truth(v));
        return CZ_OK;
    case JN_NEG:
    case JN_POS: return eval_sign(r, node, out);
    case JN_CONCAT: return eval_concat(r, node, out);
    case JN_COMPARE: return eval_compare(r, node, out);
    case JN_COND:
        TRY(eval(r, node->a, &v));
        if (jv_truth(v)) return eval(r, node->b, out);
        if (node->c) return eval(r, node->c, out);
        *out = jv_undefined("an if without else", 18);
        return CZ_OK;
    default: return eval_two(r, node, out);
    }
}

/* Most nodes are constants and variables, which need no call of their own. */
static cz_status eval(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    const struct jv *leaf = NULL;
    if (node->kind == JN_CONST)
        leaf = &node->value;
    else if (node->kind == JN_NAME)
        leaf = find_var(r, node->name);
    if (leaf && r->depth < JINJA_DEPTH_MAX) {
        r->line = node->line;
        *out = *leaf;
        return run_steps(r, 1);
    }
    TRY(enter(r, node));
    TRY(eval_kind(r, node, out));
    r->depth--;
    return CZ_OK;
}

/* ---- calls
 * --------------------------------------------------------------------------------------- */

/* Run statements into a string. */
static cz_status capture(struct jinja_run *r, const struct jn_list *body, struct jv *out)
{
    struct text_buf b = {0}, *outer = r->out;
    r->out = &b;
    cz_status st = exec_list(r, body);
    r->out = outer;
    if (st != CZ_OK) {
        run_drop(r, &b);
        return st;
    }
    return jv_take_buf(r, &b, out);
}

/* Arguments without a parameter: varargs and kwargs, where the macro reads them. */
static cz_status bind_rest(struct jinja_run *r, const struct jn *m, const struct jinja_args *args)
{
    struct jv name = r->t->names[m->name], rest;
    uint32_t number;
    if (args->n > m->n_names && !m->takes_varargs)
        return run_fail(r, "the macro %.*s takes %zu arguments, not %zu", (int)name.n, name.s,
                        m->n_names, args->n);
    if (m->takes_varargs && jinja_name_find(r->t, "varargs", 7, &number)) {
        TRY(jv_list_new(r, JV_TUPLE, 0, &rest));
        for (size_t i = m->n_names; i < args->n; i++) TRY(jv_list_add(r, rest, args->at[i]));
        TRY(set_var(r, number, rest));
    }
    TRY(jv_dict_new(r, JV_DICT, 0, &rest));
    for (size_t i = 0; i < args->n_kw; i++) {
        struct jv key = args->kw[i].key;
        size_t at = 0;
        TRY(run_steps(r, 1 + m->n_names / 8));
        while (at < m->n_names && (r->t->names[m->names[at]].n != key.n ||
                                   memcmp(r->t->names[m->names[at]].s, key.s, key.n) != 0))
            at++;
        if (at < args->n && at < m->n_names)
            return run_fail(r, "the macro %.*s gets the argument %.*s twice", (int)name.n, name.s,
                            (int)key.n, key.s);
        if (at < m->n_names) continue;
        if (!m->takes_kwargs)
            return run_fail(r, "the macro %.*s takes no argument %.*s", (int)name.n, name.s,
                            (int)key.n, key.s);
        TRY(jv_dict_put(r, rest, key, args->kw[i].value));
    }
    if (m->takes_kwargs && jinja_name_find(r->t, "kwargs", 6, &number))
        TRY(set_var(r, number, rest));
    return CZ_OK;
}

static cz_status call_macro(struct jinja_run *r, const struct jv_macro *macro,
                            const struct jinja_args *args, struct jv *out)
{
    const struct jn *m = macro->node;
    struct jinja_scope *outer = r->scope;
    TRY(open_scope(r, macro->scope));
    TRY(bind_rest(r, m, args));
    for (size_t i = 0; i < m->n_names; i++) {
        struct jv name = r->t->names[m->names[i]];
        TRY(run_steps(r, 1 + args->n_kw / 8));
        const struct jv *given = i < args->n ? &args->at[i] : find_kw(args, name);
        size_t first = m->n_names - m->list.n; /* with a default */
        struct jv value = jv_undefined(name.s, name.n);
        if (given)
            value = *given;
        else if (i >= first)
            TRY(eval(r, m->list.at[i - first], &value));
        TRY(set_var(r, m->names[i], value));
    }
    TRY(capture(r, &m->body, out));
    r->scope = outer;
    return CZ_OK;
}

static cz_status call_range(struct jinja_run *r, const struct jinja_args *args, struct jv *out)
{
    int64_t at[3] = {0, 0, 1};
    TRY(jinja_args_check(r, "range", args, 1, 3, NULL));
    for (size_t i = 0; i < args->n; i++) {
        struct jv v = args->at[i];
        if (v.type != JV_INT && v.type != JV_BOOL)
            return run_fail(r, "range() takes integers, not %s", jv_type_name(v));
        at[args->n == 1 ? 1 : i] = v.type == JV_INT ? v.i : v.b;
    }
    if (at[2] == 0) return run_fail(r, "range() takes no step of 0");
    TRY(jv_list_new(r, JV_LIST, 0, out));
    for (int64_t i = at[0]; at[2] > 0 ? i < at[1] : i > at[1];) {
        if (out->list->n == 100000) return run_fail(r, "a range has more than 100000 steps");
        TRY(jv_list_add(r, *out, jv_of_int(i)));
        if (__builtin_add_overflow(i, at[2], &i)) break;
    }
    return CZ_OK;
}

/* dict(…) and namespace(…): a dict to begin with, then named members. */
static cz_status call_dict(struct jinja_run *r, bool is_space, const struct jinja_args *args,
                           struct jv *out)
{
    TRY(jv_dict_new(r, is_space ? JV_SPACE : JV_DICT, args->n_kw, out));
    if (args->n > 1) return run_fail(r, "the function takes one argument without a name");
    if (args->n == 1 && args->at[0].type != JV_DICT)
        return run_lacks(r, "the function takes a dict, not %s", jv_type_name(args->at[0]));
    for (size_t i = 0; args->n == 1 && i < args->at[0].dict->n; i++)
        TRY(jv_dict_put(r, *out, args->at[0].dict->at[i].key, args->at[0].dict->at[i].value));
    for (size_t i = 0; i < args->n_kw; i++)
        TRY(jv_dict_put(r, *out, args->kw[i].key, args->kw[i].value));
    for (size_t i = 0; is_space && i < out->dict->n; i++) {
        struct jv key = out->dict->at[i].key;
        if (key.type == JV_STR && key.n > 0 && key.s[0] == '_')
            return run_fail(r, "a member of a namespace begins with an underscore");
    }
    return CZ_OK;
}

static cz_status call_now(struct jinja_run *r, const struct jinja_args *args, struct jv *out)
{
    char format[256], text[1024];
    struct tm tm;
    time_t now = (time_t)r->now;
    TRY(jinja_args_check(r, "strftime_now", args, 1, 1, NULL));
    if (args->at[0].type != JV_STR || args->at[0].n + 2 > sizeof format)
        return run_fail(r, "strftime_now() takes a short string");
    memcpy(format, args->at[0].s, args->at[0].n);
    memcpy(format + args->at[0].n, "|", 2); /* so that an empty text is told from a failure */
    if (!localtime_r(&now, &tm)) return run_fail(r, "strftime_now(): the time has no date");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, &tm);
#pragma GCC diagnostic pop
    if (n == 0) return run_fail(r, "strftime_now(): the text is too long");
    return jv_of_bytes(r, text, n - 1, out);
}

int jinja_func_find(struct jv name)
{
    static const char *const names[] = {
        [FUNC_RANGE] = "range",           [FUNC_NAMESPACE] = "namespace", [FUNC_DICT] = "dict",
        [FUNC_RAISE] = "raise_exception", [FUNC_NOW] = "strftime_now",
    };
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (jv_is(name, names[i])) return i;
    return -1;
}

cz_status jinja_func_call(struct jinja_run *r, int func, const struct jinja_args *args,
                          struct jv *out)
{
    struct jv text;
    switch (func) {
    case FUNC_RANGE: return call_range(r, args, out);
    case FUNC_NAMESPACE:
    case FUNC_DICT: return call_dict(r, func == FUNC_NAMESPACE, args, out);
    case FUNC_NOW: return call_now(r, args, out);
    default: break;
    }
    TRY(jinja_args_check(r, "raise_exception", args, 1, 1, (const char *const[]){"message", NULL}));
    TRY(jv_to_str(r, *jinja_arg(args, 0, "message"), &text));
    return run_fail(r, "the template refuses the conversation: %.*s",
                    (int)(text.n < 500 ? text.n : 500), text.s);
}

cz_status jinja_call(struct jinja_run *r, struct jv callee, const struct jinja_args *args,
                     struct jv *out)
{
    switch (callee.type) {
    case JV_MACRO: return call_macro(r, callee.macro, args, out);
    case JV_METHOD: return jinja_method_call(r, callee.method, args, out);
    case JV_FUNC: return jinja_func_call(r, (int)callee.i, args, out);
    case JV_UNDEFINED:
        return run_fail(r, "'%.*s' is undefined", (int)(callee.n < 60 ? callee.n : 60), callee.s);
    default: return run_fail(r, "%s cannot be called", jv_type_name(callee));
    }
}

/* ---- statements
 * ---------------------------------------------------------------------------------- */

static cz_status write_text(struct jinja_run *r, const char *s, size_t n)
{
    return run_put(r, r->out, s, n);
}

static cz_status exec_if(struct jinja_run *r, const struct jn *node)
{
    for (;; node = node->next) {
        struct jv condition;
        TRY(eval(r, node->a, &condition));
        if (jv_truth(condition)) return exec_list(r, &node->body);
        if (!node->next) return exec_list(r, &node->orelse);
    }
}

/* The items that pass the loop's condition, which sees the target and what is around the loop. */
static cz_status filter_loop(struct jinja_run *r, const struct jn *node, struct jv_list **items)
{
    struct jinja_scope *outer = r->scope;
    struct jv list, condition;
    TRY(jv_list_new(r, JV_LIST, 0, &list));
    TRY(open_scope(r, outer));
    for (size_t i = 0; i < (*items)->n; i++) {
        r->scope->n = 0;
        TRY(assign(r, node->a, (*items)->at[i]));
        TRY(eval(r, node->c, &condition));
        if (jv_truth(condition)) TRY(jv_list_add(r, list, (*items)->at[i]));
    }
    r->scope = outer;
    *items = list.list;
    return CZ_OK;
}

static cz_status exec_for(struct jinja_run *r, const struct jn *node)
{
    struct jinja_scope *outer = r->scope;
    struct jv_list *items;
    struct jv series;
    const uint32_t loop_name = r->t->loop_name;
    const bool reads_loop = loop_name != UINT32_MAX;
    bool runs_else = true;
    TRY(eval(r, node->b, &series));
    r->line = node->line;
    TRY(jv_iterate(r, series, &items));
    if (node->c) TRY(filter_loop(r, node, &items));
    struct jv_loop *loop = jinja_take(&r->pool, sizeof *loop);
    if (!loop) return run_no_memory(r);
    *loop = (struct jv_loop){.items = items};
    TRY(open_scope(r, outer));
    for (; loop->i < items->n && r->flow != JINJA_BREAKS; loop->i++) {
        r->scope->n = 0;
        r->line = node->line;
        TRY(run_steps(r, 1));
        if (reads_loop) TRY(set_var(r, loop_name, (struct jv){.type = JV_LOOP, .loop = loop}));
        TRY(assign(r, node->a, items->at[loop->i]));
        TRY(exec_list(r, &node->body));
        /* Jinja's mark that the loop has run comes behind the body. */
        if (r->flow == JINJA_GOES_ON) runs_else = false;
        if (r->flow == JINJA_CONTINUES) r->flow = JINJA_GOES_ON;
    }
    r->flow = JINJA_GOES_ON;
    r->scope = outer;
    if (!runs_else || node->orelse.n == 0) return CZ_OK;
    TRY(open_scope(r, outer));
    TRY(exec_list(r, &node->orelse));
    r->scope = outer;
    return CZ_OK;
}

/* The text of a body in a scope of its own, then through the filters of node->b. */
static cz_status exec_captured(struct jinja_run *r, const struct jn *node, struct jv *out)
{
    struct jinja_scope *outer = r->scope;
    TRY(open_scope(r, outer));
    TRY(capture(r, &node->body, out));
    r->scope = outer;
    const struct jn *chain[64];
    size_t n = 0;
    for (const struct jn *f = node->b; f; f = f->a) {
        if (n == sizeof chain / sizeof *chain) return run_fail(r, "too many filters");
        chain[n++] = f;
    }
    while (n > 0) TRY(eval_filter(r, chain[--n], *out, out));
    return CZ_OK;
}

static cz_status add_span(struct jinja_run *r, size_t begin, size_t end)
{
    struct jinja_text *t = r->text;
    if (t->n_spans == t->spans_cap) {
        size_t cap = t->spans_cap ? 2 * t->spans_cap : 16;
        struct jinja_span *spans = realloc(t->spans, cap * sizeof *spans);
        r->pool.lacks_memory = !spans;
        if (!spans) return run_no_memory(r);
        t->spans = spans;
        t->spans_cap = cap;
    }
    t->spans[t->n_spans++] = (struct jinja_span){begin, end};
    return CZ_OK;
}

static cz_status exec_generation(struct jinja_run *r, const struct jn *node)
{
    struct jv text;
    TRY(exec_captured(r, node, &text));
    TRY(add_span(r, r->text->text.n, r->text->text.n + text.n));
    return write_text(r, text.s, text.n);
}

static cz_status exec_with(struct jinja_run *r, const struct jn *node)
{
    struct jinja_scope *outer = r->scope, *inner;
    TRY(open_scope(r, outer));
    inner = r->scope;
    for (size_t i = 0; i + 1 < node->list.n; i += 2) {
        struct jv value;
        r->scope = outer; /* the values do not see each other */
        TRY(eval(r, node->list.at[i + 1], &value));
        r->scope = inner;
        TRY(assign(r, node->list.at[i], value));
    }
    r->scope = inner;
    TRY(exec_list(r, &node->body));
    r->scope = outer;
    return CZ_OK;
}

static cz_status exec_macro(struct jinja_run *r, const struct jn *node)
{
    struct jv_macro *macro = jinja_take(&r->pool, sizeof *macro);
    if (!macro) return run_no_memory(r);
    *macro = (struct jv_macro){node, r->scope};
    return set_var(r, node->name, (struct jv){.type = JV_MACRO, .macro = macro});
}

/* Write a + b + c: strings one after the other, without making their sum. As soon as one of them is
 * no plain string, the sum is made as it is elsewhere. */
static cz_status write_sum(struct jinja_run *r, const struct jn *node)
{
    enum { PARTS_MAX = 16 };
    const struct jn *sums[PARTS_MAX]; /* the last part first */
    struct jv parts[PARTS_MAX + 1], all;
    size_t n = 0, n_parts = 0;
    while (node->kind == JN_BINARY && node->op == JO_ADD && n < PARTS_MAX) {
        sums[n++] = node;
        node = node->a;
    }
    bool is_sum = false; /* all parts so far are in `all` */
    for (size_t i = n + 1; i-- > 0; node = i > 0 ? sums[i - 1]->b : NULL) {
        struct jv *part = &parts[n_parts++];
        TRY(eval(r, node, part));
        if (!is_sum && part->type == JV_STR && !part->is_safe) continue;
        for (size_t k = is_sum ? n_parts - 1 : 0; k < n_parts; k++) {
            if (k > 0) r->line = sums[n - k]->line;
            if (k == 0)
                all = parts[0];
            else
                TRY(jv_binary(r, JO_ADD, all, parts[k], &all));
        }
        is_sum = true;
    }
    if (is_sum)
        return all.type == JV_STR ? write_text(r, all.s, all.n) : jv_print(r, all, false, r->out);
    for (size_t i = 0; i < n_parts; i++) TRY(write_text(r, parts[i].s, parts[i].n));
    return CZ_OK;
}

static cz_status exec(struct jinja_run *r, const struct jn *node)
{
    struct jv v;
    r->line = node->line;
    switch (node->kind) {
    case JN_TEXT: return write_text(r, node->value.s, node->value.n);
    case JN_OUT:
        if (node->a->kind == JN_BINARY) return write_sum(r, node->a);
        TRY(eval(r, node->a, &v));
        return v.type == JV_STR ? write_text(r, v.s, v.n) : jv_print(r, v, false, r->out);
    case JN_IF: return exec_if(r, node);
    case JN_FOR: return exec_for(r, node);
    case JN_SET: TRY(eval(r, node->b, &v)); return assign(r, node->a, v);
    case JN_SET_BLOCK: TRY(exec_captured(r, node, &v)); return assign(r, node->a, v);
    case JN_FILTER_BLOCK:
        TRY(exec_captured(r, node, &v));
        TRY(jv_to_str(r, v, &v));
        return write_text(r, v.s, v.n);
    case JN_MACRO: return exec_macro(r, node);
    case JN_GENERATION: return exec_generation(r, node);
    case JN_WITH: return exec_with(r, node);
    case JN_BREAK: r->flow = JINJA_BREAKS; return CZ_OK;
    default: r->flow = JINJA_CONTINUES; return CZ_OK;
    }
}

static cz_status exec_list(struct jinja_run *r, const struct jn_list *list)
{
    for (size_t i = 0; i < list->n && r->flow == JINJA_GOES_ON; i++) {
        TRY(enter(r, list->at[i]));
        TRY(exec(r, list->at[i]));
        r->depth--;
    }
    return CZ_OK;
}

/* ---- the call
 * ------------------------------------------------------------------------------------ */

static cz_status set_given(struct jinja_run *r, const struct jinja_var *var)
{
    uint32_t name;
    if (!jinja_name_find(r->t, var->name, strlen(var->name), &name)) return CZ_OK;
    struct jv *v = &r->globals[name];
    if (var->node) return jv_from_json(r, var->node, var->is_cut ? var->n_items : SIZE_MAX, v);
    *v = var->text      ? jv_of_str(var->text, strlen(var->text))
         : var->is_none ? JV_NONE_VALUE
                        : jv_of_bool(var->truth);
    return CZ_OK;
}

cz_status jinja_render(const struct jinja_template *t, const struct jinja_var *vars, size_t n_vars,
                       int64_t now, struct jinja_text *out)
{
    struct jinja_run run = {.t = t, .text = out, .out = &out->text, .now = now, .line = 1};
    out->text.n = 0;
    out->n_spans = 0;
    if (!out->block && !(out->block = malloc(JINJA_BLOCK_NBYTES)))
        return err_set(CZ_NOMEM, 0, "no memory to render a template");
    jinja_pool_begin(&run.pool, out->block, JINJA_NBYTES_MAX);
    run.scope = &run.root;
    run.globals = jinja_take(&run.pool, (t->n_names + 1) * sizeof *run.globals);
    cz_status st = run.globals ? CZ_OK : run_no_memory(&run);
    for (size_t i = 0; i < n_vars && st == CZ_OK; i++) st = set_given(&run, &vars[i]);
    if (st == CZ_OK) st = exec_list(&run, &t->body);
    jinja_pool_free(&run.pool);
    out->steps = run.steps;
    return st;
}

void jinja_text_free(struct jinja_text *t)
{
    text_buf_free(&t->text);
    free(t->spans);
    free(t->block);
    memset(t, 0, sizeof *t);
}

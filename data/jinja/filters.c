/* Filters: value|name(arguments), as Jinja 3.1 defines them without autoescape, and tojson as
 * transformers does. */
#include "data/jinja/jinja_impl.h"

#include "data/tokenizer/chars_impl.h"

#include <math.h>

const struct jv *jinja_arg(const struct jinja_args *args, size_t place, const char *name)
{
    if (place < args->n) return &args->at[place];
    for (size_t i = 0; name && i < args->n_kw; i++)
        if (jv_is(args->kw[i].key, name)) return &args->kw[i].value;
    return NULL;
}

cz_status jinja_args_check(struct jinja_run *r, const char *what, const struct jinja_args *args,
                           size_t n_min, size_t n_max, const char *const *names)
{
    if (args->n > n_max)
        return run_fail(r, "%s takes at most %zu arguments, not %zu", what, n_max, args->n);
    for (size_t i = 0; i < args->n_kw; i++) {
        size_t at = 0;
        while (names && names[at] && !jv_is(args->kw[i].key, names[at])) at++;
        if (!names || !names[at] || at < args->n)
            return run_fail(r, "%s takes no argument %.*s", what,
                            (int)(args->kw[i].key.n < 60 ? args->kw[i].key.n : 60),
                            args->kw[i].key.s);
    }
    if (args->n + args->n_kw < n_min) return run_fail(r, "%s needs %zu arguments", what, n_min);
    return CZ_OK;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static cz_status arg_str(struct jinja_run *r, const struct jv *v, const char *what)
{
    if (!v || v->type == JV_STR) return CZ_OK;
    return run_fail(r, "%s takes a string, not %s", what, jv_type_name(*v));
}

static bool flag(const struct jv *v)
{
    return v && jv_truth(*v);
}

/* ---- text --------------------------------------------------------------------------------------
 */

static cz_status filter_trim(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                             struct jv *out)
{
    TRY(jinja_args_check(r, "trim", args, 0, 1, NAMES("chars")));
    const struct jv *set = jinja_arg(args, 0, "chars");
    if (set && set->type == JV_NONE) set = NULL;
    TRY(arg_str(r, set, "trim"));
    TRY(jv_to_str(r, v, &v));
    return str_strip_set(r, v, STR_LEFT | STR_RIGHT, set, out);
}

static cz_status set_case(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                          enum str_case how, struct jv *out)
{
    TRY(jinja_args_check(r, "the filter", args, 0, 0, NULL));
    TRY(jv_to_str(r, v, &v));
    return str_set_case(r, how, v, out);
}

static cz_status filter_upper(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              struct jv *out)
{
    return set_case(r, v, args, STR_UPPER, out);
}

static cz_status filter_lower(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              struct jv *out)
{
    return set_case(r, v, args, STR_LOWER, out);
}

static cz_status filter_capitalize(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                   struct jv *out)
{
    return set_case(r, v, args, STR_CAPITAL, out);
}

/* Words begin behind white space and -({[<; unlike str.title(), the first character becomes upper
 * case. */
static cz_status filter_title(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              struct jv *out)
{
    TRY(jinja_args_check(r, "title", args, 0, 0, NULL));
    TRY(jv_to_str(r, v, &v));
    TRY(run_chars(r, v.n));
    struct jv all = JV_TEXT("");
    size_t begin = 0, len, first = 0;
    for (size_t at = 0; at <= v.n; at += len) {
        int32_t c = at < v.n ? chars_at(v.s + at, v.n - at, &len) : (len = 1, ' ');
        bool parts = str_is_space(c) || (c < 0x80 && strchr("-({[<", c));
        if (at == begin) first = parts ? 0 : len;
        if (!parts) continue;
        struct jv head = {0}, tail = {0};
        TRY(str_set_case(r, STR_UPPER, jv_of_str(v.s + begin, first), &head));
        TRY(str_set_case(r, STR_LOWER, jv_of_str(v.s + begin + first, at - begin - first), &tail));
        TRY(jv_binary(r, JO_ADD, all, head, &all));
        TRY(jv_binary(r, JO_ADD, all, tail, &all));
        if (at < v.n) TRY(jv_binary(r, JO_ADD, all, jv_of_str(v.s + at, len), &all));
        begin = at + len;
    }
    *out = all;
    return CZ_OK;
}

static cz_status filter_string(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    TRY(jinja_args_check(r, "string", args, 0, 0, NULL));
    return jv_to_str(r, v, out);
}

static cz_status filter_safe(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                             struct jv *out)
{
    TRY(jinja_args_check(r, "safe", args, 0, 0, NULL));
    TRY(jv_to_str(r, v, out));
    out->is_safe = true;
    return CZ_OK;
}

static cz_status filter_escape(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    TRY(jinja_args_check(r, "escape", args, 0, 0, NULL));
    TRY(jv_to_str(r, v, out));
    return out->is_safe ? CZ_OK : str_escape_html(r, *out, out);
}

static cz_status filter_replace(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                struct jv *out)
{
    TRY(jinja_args_check(r, "replace", args, 2, 3, NAMES("old", "new", "count")));
    const struct jv *old = jinja_arg(args, 0, "old"), *with = jinja_arg(args, 1, "new");
    const struct jv *count = jinja_arg(args, 2, "count");
    struct jv old_text, with_text;
    int64_t max = -1;
    if (!old || !with) return run_fail(r, "replace needs 2 arguments");
    if (count && count->type != JV_NONE) {
        if (count->type != JV_INT && count->type != JV_BOOL)
            return run_fail(r, "replace counts in integers");
        max = count->type == JV_INT ? count->i : count->b;
    }
    TRY(jv_to_str(r, v, &v));
    TRY(jv_to_str(r, *old, &old_text));
    TRY(jv_to_str(r, *with, &with_text));
    return str_replace(r, v, old_text, with_text, max, out);
}

static cz_status filter_indent(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    TRY(jinja_args_check(r, "indent", args, 0, 3, NAMES("width", "first", "blank")));
    const struct jv *width = jinja_arg(args, 0, "width"), *first = jinja_arg(args, 1, "first");
    const struct jv *blank = jinja_arg(args, 2, "blank");
    struct jv pad = JV_TEXT("    "), all = JV_TEXT("");
    if (width && width->type == JV_STR)
        pad = *width;
    else if (width)
        TRY(jv_binary(r, JO_MUL, JV_TEXT(" "), *width, &pad));
    if (v.type != JV_STR) return run_fail(r, "indent takes a string, not %s", jv_type_name(v));
    struct jv_method splitlines = {v, "splitlines"};
    struct jinja_args none = {0};
    struct jv lines = {0};
    TRY(jv_binary(r, JO_ADD, v, JV_TEXT("\n"), &splitlines.self));
    TRY(jinja_method_call(r, &splitlines, &none, &lines));
    if (flag(first)) all = pad;
    for (size_t i = 0; i < lines.list->n; i++) {
        struct jv line = lines.list->at[i];
        if (i > 0) TRY(jv_binary(r, JO_ADD, all, JV_TEXT("\n"), &all));
        if (i > 0 && (line.n > 0 || flag(blank))) TRY(jv_binary(r, JO_ADD, all, pad, &all));
        TRY(jv_binary(r, JO_ADD, all, line, &all));
    }
    *out = all;
    return CZ_OK;
}

static cz_status filter_tojson(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    struct text_buf b = {0};
    TRY(jinja_args_check(r, "tojson", args, 0, 4,
                         NAMES("ensure_ascii", "indent", "separators", "sort_keys")));
    const struct jv *ascii = jinja_arg(args, 0, "ensure_ascii");
    const struct jv *indent = jinja_arg(args, 1, "indent");
    const struct jv *separators = jinja_arg(args, 2, "separators");
    const struct jv *sorts = jinja_arg(args, 3, "sort_keys");
    struct jv_json_form form = {.escapes_wide = ascii && jv_truth(*ascii),
                                .sorts_keys = sorts && jv_truth(*sorts),
                                .is_indented = indent && indent->type != JV_NONE,
                                .item_separator = JV_TEXT(", "),
                                .key_separator = JV_TEXT(": ")};
    if (form.is_indented) {
        form.item_separator = JV_TEXT(",");
        form.indent = *indent;
        if (indent->type != JV_STR) TRY(jv_binary(r, JO_MUL, JV_TEXT(" "), *indent, &form.indent));
    }
    if (separators && separators->type != JV_NONE) {
        struct jv_list *two;
        TRY(jv_iterate(r, *separators, &two));
        if (two->n != 2 || two->at[0].type != JV_STR || two->at[1].type != JV_STR)
            return run_fail(r, "separators of tojson are two strings");
        form.item_separator = two->at[0];
        form.key_separator = two->at[1];
    }
    cz_status st = jv_to_json(r, v, &form, 0, &b);
    if (st != CZ_OK) {
        run_drop(r, &b);
        return st;
    }
    return jv_take_buf(r, &b, out);
}

/* ---- numbers ------------------------------------------------------------------------------------
 */

static cz_status from_float(struct jinja_run *r, double f, struct jv fallback, struct jv *out)
{
    *out = fallback;
    if (!isfinite(f)) return CZ_OK;
    if (fabs(f) >= 0x1p63) return run_fail(r, "an integer is outside of 64 bits");
    *out = jv_of_int((int64_t)f);
    return CZ_OK;
}

static cz_status filter_int(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            struct jv *out)
{
    TRY(jinja_args_check(r, "int", args, 0, 2, NAMES("default", "base")));
    const struct jv *fallback = jinja_arg(args, 0, "default"), *base = jinja_arg(args, 1, "base");
    double f;
    *out = fallback ? *fallback : jv_of_int(0);
    switch (v.type) {
    case JV_UNDEFINED: return run_fail(r, "int: the value is undefined");
    case JV_BOOL: *out = jv_of_int(v.b); return CZ_OK;
    case JV_INT: *out = v; return CZ_OK;
    case JV_FLOAT: return from_float(r, v.f, *out, out);
    case JV_STR:
        if (base && base->type != JV_INT) return run_fail(r, "int: the base is no integer");
        if (base && base->i != 10 && base->i != 16 && base->i != 8 && base->i != 2)
            return run_lacks(r, "int in this base is not supported");
        TRY(run_chars(r, v.n));
        if (str_to_int(v.s, v.n, base ? (int)base->i : 10, &out->i)) {
            out->type = JV_INT;
            return CZ_OK;
        }
        return str_to_float(v.s, v.n, &f) ? from_float(r, f, *out, out) : CZ_OK;
    default: return CZ_OK;
    }
}

static cz_status filter_float(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              struct jv *out)
{
    TRY(jinja_args_check(r, "float", args, 0, 1, NAMES("default")));
    const struct jv *fallback = jinja_arg(args, 0, "default");
    double f;
    *out = fallback ? *fallback : jv_of_float(0);
    if (v.type == JV_UNDEFINED) return run_fail(r, "float: the value is undefined");
    TRY(run_chars(r, v.type == JV_STR ? v.n : 0));
    if (jv_is_number(v))
        *out = jv_of_float(jv_number(v));
    else if (v.type == JV_STR && str_to_float(v.s, v.n, &f))
        *out = jv_of_float(f);
    return CZ_OK;
}

static cz_status filter_abs(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            struct jv *out)
{
    TRY(jinja_args_check(r, "abs", args, 0, 0, NULL));
    if (!jv_is_number(v)) return run_fail(r, "%s has no absolute value", jv_type_name(v));
    if (v.type == JV_FLOAT) {
        *out = jv_of_float(fabs(v.f));
        return CZ_OK;
    }
    *out = jv_of_int(v.type == JV_BOOL ? v.b : v.i);
    return out->i < 0 ? jv_binary(r, JO_SUB, jv_of_int(0), *out, out) : CZ_OK;
}

/* ---- choice
 * -------------------------------------------------------------------------------------- */

static cz_status filter_default(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                struct jv *out)
{
    TRY(jinja_args_check(r, "default", args, 0, 2, NAMES("default_value", "boolean")));
    const struct jv *value = jinja_arg(args, 0, "default_value");
    const struct jv *boolean = jinja_arg(args, 1, "boolean");
    bool takes = v.type == JV_UNDEFINED || (boolean && jv_truth(*boolean) && !jv_truth(v));
    *out = !takes ? v : value ? *value : JV_TEXT("");
    return CZ_OK;
}

static cz_status filter_length(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    TRY(jinja_args_check(r, "length", args, 0, 0, NULL));
    out->type = JV_INT;
    return jv_length(r, v, &out->i);
}

static cz_status filter_list(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                             struct jv *out)
{
    struct jv_list *items;
    TRY(jinja_args_check(r, "list", args, 0, 0, NULL));
    TRY(jv_iterate(r, v, &items));
    TRY(jv_list_new(r, JV_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) TRY(jv_list_add(r, *out, items->at[i]));
    return CZ_OK;
}

static cz_status filter_first(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              struct jv *out)
{
    struct jv_list *items;
    TRY(jinja_args_check(r, "first", args, 0, 0, NULL));
    if (v.type == JV_ITER && v.list->pos < v.list->n) {
        *out = v.list->at[v.list->pos++];
        return CZ_OK;
    }
    TRY(jv_iterate(r, v, &items));
    *out = items->n > 0 ? items->at[0] : jv_undefined("first", 5);
    return CZ_OK;
}

static cz_status filter_last(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                             struct jv *out)
{
    struct jv_list *items;
    TRY(jinja_args_check(r, "last", args, 0, 0, NULL));
    if (v.type == JV_ITER) return run_fail(r, "a generator has no last item before it ends");
    TRY(jv_iterate(r, v, &items));
    *out = items->n > 0 ? items->at[items->n - 1] : jv_undefined("last", 4);
    return CZ_OK;
}

static cz_status filter_reverse(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                struct jv *out)
{
    struct jv_list *items;
    TRY(jinja_args_check(r, "reverse", args, 0, 0, NULL));
    TRY(jv_iterate(r, v, &items));
    struct jv all = JV_TEXT("");
    if (v.type != JV_STR) TRY(jv_list_new(r, JV_ITER, items->n, &all));
    for (size_t i = items->n; i-- > 0;)
        TRY(v.type == JV_STR ? jv_binary(r, JO_ADD, all, items->at[i], &all)
                             : jv_list_add(r, all, items->at[i]));
    *out = all;
    return CZ_OK;
}

/* ---- dicts
 * --------------------------------------------------------------------------------------- */

static cz_status pair_new(struct jinja_run *r, struct jv a, struct jv b, struct jv *out)
{
    TRY(jv_list_new(r, JV_TUPLE, 2, out));
    TRY(jv_list_add(r, *out, a));
    return jv_list_add(r, *out, b);
}

static cz_status filter_items(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              struct jv *out)
{
    TRY(jinja_args_check(r, "items", args, 0, 0, NULL));
    TRY(jv_list_new(r, JV_ITER, v.type == JV_DICT ? v.dict->n : 0, out));
    if (v.type == JV_UNDEFINED) return CZ_OK;
    if (v.type != JV_DICT) return run_fail(r, "%s has no items", jv_type_name(v));
    for (size_t i = 0; i < v.dict->n; i++) {
        struct jv pair;
        TRY(pair_new(r, v.dict->at[i].key, v.dict->at[i].value, &pair));
        TRY(jv_list_add(r, *out, pair));
    }
    return CZ_OK;
}

struct sort_item {
    struct jv key, item;
};

/* What to compare by: the value, or what make_attrgetter() reaches ("a.b.0"). */
static cz_status reach(struct jinja_run *r, struct jv v, const struct jv *path, struct jv *out)
{
    *out = v;
    if (!path || path->type == JV_NONE) return CZ_OK;
    if (path->type != JV_STR) return jv_item(r, v, *path, out);
    const char *s = path->s, *end = s + path->n;
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s));
        size_t n = (size_t)((dot ? dot : end) - s), n_digits = 0;
        struct jv part = jv_of_str(s, n);
        TRY(run_steps(r, 1 + n / 64));
        while (n_digits < n && n_digits < 18 && s[n_digits] >= '0' && s[n_digits] <= '9')
            n_digits++;
        bool is_number = n > 0 && n < 18 && n_digits == n;
        int64_t place;
        if (is_number && str_to_int(s, n, 10, &place)) part = jv_of_int(place);
        TRY(jv_item(r, *out, part, out));
        if (!dot) return CZ_OK;
        s = dot + 1;
    }
}

static cz_status fold(struct jinja_run *r, struct jv v, bool folds, struct jv *out)
{
    *out = v;
    return folds && v.type == JV_STR ? str_set_case(r, STR_LOWER, v, out) : CZ_OK;
}

/* Stable merge sort, as sorted() is; reverse keeps the order of equal ones. */
static cz_status sort_items(struct jinja_run *r, struct sort_item *at, struct sort_item *tmp,
                            size_t n, bool is_reverse)
{
    if (n < 2) return CZ_OK;
    size_t half = n / 2, i = 0, j = half, k = 0;
    TRY(sort_items(r, at, tmp, half, is_reverse));
    TRY(sort_items(r, at + half, tmp, n - half, is_reverse));
    while (i < half && j < n) {
        int order;
        TRY(run_steps(r, 1));
        TRY(jv_order(r, at[i].key, at[j].key, &order));
        bool takes_right = is_reverse ? order < 0 : order > 0;
        tmp[k++] = takes_right ? at[j++] : at[i++];
    }
    while (i < half) tmp[k++] = at[i++];
    memcpy(at, tmp, k * sizeof *at);
    return CZ_OK;
}

static cz_status sort_space(struct jinja_run *r, size_t n, struct sort_item **at,
                            struct sort_item **tmp)
{
    *at = n < JINJA_NBYTES_MAX / sizeof **at ? jinja_take(&r->pool, (n + 1) * sizeof **at) : NULL;
    *tmp = *at ? jinja_take(&r->pool, (n + 1) * sizeof **at) : NULL;
    return *tmp ? CZ_OK : run_no_memory(r);
}

static cz_status filter_dictsort(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                 struct jv *out)
{
    struct sort_item *at, *tmp;
    TRY(jinja_args_check(r, "dictsort", args, 0, 3, NAMES("case_sensitive", "by", "reverse")));
    const struct jv *by = jinja_arg(args, 1, "by");
    bool by_value = by && jv_is(*by, "value");
    if (by && !by_value && !jv_is(*by, "key"))
        return run_fail(r, "dictsort sorts by 'key' or 'value'");
    if (v.type != JV_DICT) return run_fail(r, "dictsort takes a dict, not %s", jv_type_name(v));
    TRY(sort_space(r, v.dict->n, &at, &tmp));
    for (size_t i = 0; i < v.dict->n; i++) {
        const struct jv_pair *pair = &v.dict->at[i];
        TRY(pair_new(r, pair->key, pair->value, &at[i].item));
        TRY(fold(r, by_value ? pair->value : pair->key, !flag(jinja_arg(args, 0, "case_sensitive")),
                 &at[i].key));
    }
    TRY(sort_items(r, at, tmp, v.dict->n, flag(jinja_arg(args, 2, "reverse"))));
    TRY(jv_list_new(r, JV_LIST, v.dict->n, out));
    for (size_t i = 0; i < v.dict->n; i++) TRY(jv_list_add(r, *out, at[i].item));
    return CZ_OK;
}

static cz_status filter_sort(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                             struct jv *out)
{
    struct sort_item *at, *tmp;
    struct jv_list *items;
    TRY(jinja_args_check(r, "sort", args, 0, 3, NAMES("reverse", "case_sensitive", "attribute")));
    const struct jv *attribute = jinja_arg(args, 2, "attribute");
    if (attribute && attribute->type == JV_STR && memchr(attribute->s, ',', attribute->n))
        return run_lacks(r, "sort by several attributes is not supported");
    TRY(jv_iterate(r, v, &items));
    TRY(sort_space(r, items->n, &at, &tmp));
    for (size_t i = 0; i < items->n; i++) {
        at[i].item = items->at[i];
        TRY(reach(r, items->at[i], attribute, &at[i].key));
        TRY(fold(r, at[i].key, !flag(jinja_arg(args, 1, "case_sensitive")), &at[i].key));
    }
    TRY(sort_items(r, at, tmp, items->n, flag(jinja_arg(args, 0, "reverse"))));
    TRY(jv_list_new(r, JV_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) TRY(jv_list_add(r, *out, at[i].item));
    return CZ_OK;
}

static cz_status filter_unique(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    struct jv_list *items;
    struct jv seen;
    TRY(jinja_args_check(r, "unique", args, 0, 2, NAMES("case_sensitive", "attribute")));
    TRY(jv_iterate(r, v, &items));
    TRY(jv_dict_new(r, JV_DICT, 0, &seen));
    TRY(jv_list_new(r, JV_ITER, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        struct jv key;
        const struct jv *old;
        TRY(reach(r, items->at[i], jinja_arg(args, 1, "attribute"), &key));
        TRY(fold(r, key, !flag(jinja_arg(args, 0, "case_sensitive")), &key));
        if (!jv_is_key(key)) return run_fail(r, "%s cannot be a key", jv_type_name(key));
        TRY(jv_dict_get(r, seen.dict, key, &old));
        if (old) continue;
        TRY(jv_dict_put(r, seen, key, JV_NONE_VALUE));
        TRY(jv_list_add(r, *out, items->at[i]));
    }
    return CZ_OK;
}

/* ---- over lists
 * ---------------------------------------------------------------------------------- */

static cz_status filter_join(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                             struct jv *out)
{
    struct jv_list *items;
    TRY(jinja_args_check(r, "join", args, 0, 2, NAMES("d", "attribute")));
    const struct jv *d = jinja_arg(args, 0, "d");
    struct jv between = JV_TEXT(""), all = JV_TEXT("");
    if (d) TRY(jv_to_str(r, *d, &between));
    between.is_safe = false;
    TRY(jv_iterate(r, v, &items));
    for (size_t i = 0; i < items->n; i++) {
        struct jv item;
        TRY(reach(r, items->at[i], jinja_arg(args, 1, "attribute"), &item));
        TRY(jv_to_str(r, item, &item));
        item.is_safe = false;
        if (i > 0) TRY(jv_binary(r, JO_ADD, all, between, &all));
        TRY(jv_binary(r, JO_ADD, all, item, &all));
    }
    *out = all;
    return CZ_OK;
}

/* map('upper', …) or map(attribute='name', default=…). */
static cz_status filter_map(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            struct jv *out)
{
    struct jv_list *items;
    const struct jinja_filter *filter = NULL;
    const struct jv *attribute = NULL, *fallback = NULL;
    struct jinja_args rest = {0};
    if (!jv_truth(v)) return jv_list_new(r, JV_ITER, 0, out); /* None, too */
    if (args->n > 0) {
        rest = (struct jinja_args){args->at + 1, args->n - 1, args->kw, args->n_kw};
        if (args->at[0].type == JV_STR) filter = jinja_filter_find(args->at[0]);
        if (!filter) return run_lacks(r, "map by this filter is not supported");
    } else {
        TRY(jinja_args_check(r, "map", args, 1, 0, NAMES("attribute", "default")));
        attribute = jinja_arg(args, 0, "attribute");
        fallback = jinja_arg(args, 0, "default");
        if (!attribute) return run_fail(r, "map needs a filter or an attribute");
    }
    TRY(jv_iterate(r, v, &items));
    TRY(jv_list_new(r, JV_ITER, items->n, out));
    for (size_t i = 0; i < items->n; i++) {
        struct jv item;
        TRY(filter ? jinja_filter_run(r, filter, items->at[i], &rest, &item)
                   : reach(r, items->at[i], attribute, &item));
        if (fallback && item.type == JV_UNDEFINED) item = *fallback;
        TRY(jv_list_add(r, *out, item));
    }
    return CZ_OK;
}

/* select, reject: args are a test and its arguments; selectattr, rejectattr: an attribute before.
 */
static cz_status choose(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                        bool by_attribute, bool keeps, struct jv *out)
{
    struct jv_list *items;
    const struct jv *attribute = by_attribute ? jinja_arg(args, 0, NULL) : NULL;
    size_t at = by_attribute ? 1 : 0;
    const struct jinja_test *test = NULL;
    if (!jv_truth(v)) return jv_list_new(r, JV_ITER, 0, out); /* None, too */
    if (by_attribute && !attribute) return run_fail(r, "the filter needs an attribute");
    if (args->n_kw > 0) return run_lacks(r, "named arguments of tests are not supported");
    struct jinja_args rest = {0};
    if (args->n > at) rest = (struct jinja_args){.at = args->at + at + 1, .n = args->n - at - 1};
    if (args->n > at) {
        if (args->at[at].type == JV_STR) test = jinja_test_find(args->at[at]);
        if (!test) return run_lacks(r, "a filter by this test is not supported");
        if (rest.n != (size_t)test->n_args)
            return run_fail(r, "the test %s takes %d arguments", test->name, test->n_args);
    }
    TRY(jv_iterate(r, v, &items));
    TRY(jv_list_new(r, JV_ITER, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        struct jv item;
        TRY(reach(r, items->at[i], attribute, &item));
        bool passes = jv_truth(item);
        if (test) TRY(test->run(r, item, &rest, &passes));
        if (passes == keeps) TRY(jv_list_add(r, *out, items->at[i]));
    }
    return CZ_OK;
}

static cz_status filter_select(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    return choose(r, v, args, false, true, out);
}

static cz_status filter_reject(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               struct jv *out)
{
    return choose(r, v, args, false, false, out);
}

static cz_status filter_selectattr(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                   struct jv *out)
{
    return choose(r, v, args, true, true, out);
}

static cz_status filter_rejectattr(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                   struct jv *out)
{
    return choose(r, v, args, true, false, out);
}

static cz_status filter_sum(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            struct jv *out)
{
    struct jv_list *items;
    TRY(jinja_args_check(r, "sum", args, 0, 2, NAMES("attribute", "start")));
    const struct jv *start = jinja_arg(args, 1, "start");
    struct jv all = start ? *start : jv_of_int(0);
    TRY(jv_iterate(r, v, &items));
    for (size_t i = 0; i < items->n; i++) {
        struct jv item;
        TRY(reach(r, items->at[i], jinja_arg(args, 0, "attribute"), &item));
        if (item.type == JV_STR) return run_fail(r, "sum does not add strings");
        TRY(jv_binary(r, JO_ADD, all, item, &all));
    }
    *out = all;
    return CZ_OK;
}

static cz_status extreme(struct jinja_run *r, struct jv v, const struct jinja_args *args, int sign,
                         struct jv *out)
{
    struct jv_list *items;
    struct jv best = {0};
    TRY(jinja_args_check(r, "min and max", args, 0, 2, NAMES("case_sensitive", "attribute")));
    TRY(jv_iterate(r, v, &items));
    *out = jv_undefined("the extreme of nothing", 22);
    for (size_t i = 0; i < items->n; i++) {
        struct jv key;
        int order = 1;
        TRY(reach(r, items->at[i], jinja_arg(args, 1, "attribute"), &key));
        TRY(fold(r, key, !flag(jinja_arg(args, 0, "case_sensitive")), &key));
        if (i > 0) {
            TRY(jv_order(r, key, best, &order));
            order *= sign;
        }
        if (order <= 0) continue;
        best = key;
        *out = items->at[i];
    }
    return CZ_OK;
}

static cz_status filter_min(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            struct jv *out)
{
    return extreme(r, v, args, -1, out);
}

static cz_status filter_max(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            struct jv *out)
{
    return extreme(r, v, args, 1, out);
}

cz_status jinja_filter_run(struct jinja_run *r, const struct jinja_filter *filter, struct jv v,
                           const struct jinja_args *args, struct jv *out)
{
    TRY(run_deeper(r));
    TRY(filter->run(r, v, args, out));
    r->depth--;
    return CZ_OK;
}

const struct jinja_filter *jinja_filter_find(struct jv name)
{
    static const struct jinja_filter table[] = {
        {"abs", filter_abs},
        {"capitalize", filter_capitalize},
        {"count", filter_length},
        {"d", filter_default},
        {"default", filter_default},
        {"dictsort", filter_dictsort},
        {"e", filter_escape},
        {"escape", filter_escape},
        {"first", filter_first},
        {"float", filter_float},
        {"indent", filter_indent},
        {"int", filter_int},
        {"items", filter_items},
        {"join", filter_join},
        {"last", filter_last},
        {"length", filter_length},
        {"list", filter_list},
        {"lower", filter_lower},
        {"map", filter_map},
        {"max", filter_max},
        {"min", filter_min},
        {"reject", filter_reject},
        {"rejectattr", filter_rejectattr},
        {"replace", filter_replace},
        {"reverse", filter_reverse},
        {"safe", filter_safe},
        {"select", filter_select},
        {"selectattr", filter_selectattr},
        {"sort", filter_sort},
        {"string", filter_string},
        {"sum", filter_sum},
        {"title", filter_title},
        {"tojson", filter_tojson},
        {"trim", filter_trim},
        {"unique", filter_unique},
        {"upper", filter_upper},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (jv_is(name, table[i].name)) return &table[i];
    return NULL;
}

/* Methods of strings, lists and dicts that templates call as in Python: value.name(arguments).
 * Names that Python's types have and this table has not are refused when they are called: they must
 * not be taken for missing members. */
#include "data/jinja/jinja_impl.h"

#include "data/tokenizer/chars_impl.h"

typedef cz_status method_fn(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out);
struct method {
    const char *name;
    method_fn *run; /* NULL: not supported */
};

static cz_status need_str(struct jinja_run *r, const char *what, const struct jinja_args *args,
                          size_t n_min, size_t n_max)
{
    TRY(jinja_args_check(r, what, args, n_min, n_max, NULL));
    for (size_t i = 0; i < args->n && i < n_min; i++)
        if (args->at[i].type != JV_STR)
            return run_fail(r, "%s() takes a string, not %s", what, jv_type_name(args->at[i]));
    return CZ_OK;
}

static cz_status int_arg(struct jinja_run *r, const struct jinja_args *args, size_t place,
                         const char *name, int64_t fallback, int64_t *out)
{
    const struct jv *v = jinja_arg(args, place, name);
    *out = fallback;
    if (!v) return CZ_OK;
    if (v->type != JV_INT) return run_fail(r, "%s is not an integer", jv_type_name(*v));
    *out = v->i;
    return CZ_OK;
}

/* ---- strings ------------------------------------------------------------------------------------
 */

static cz_status strip(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                       int sides, struct jv *out)
{
    TRY(jinja_args_check(r, "strip", args, 0, 1, NULL));
    const struct jv *set = args->n > 0 && args->at[0].type != JV_NONE ? &args->at[0] : NULL;
    if (set && set->type != JV_STR)
        return run_fail(r, "strip() takes a string, not %s", jv_type_name(*set));
    return str_strip_set(r, self, sides, set, out);
}

static cz_status str_strip_both(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                                struct jv *out)
{
    return strip(r, self, args, STR_LEFT | STR_RIGHT, out);
}

static cz_status str_lstrip(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out)
{
    return strip(r, self, args, STR_LEFT, out);
}

static cz_status str_rstrip(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out)
{
    return strip(r, self, args, STR_RIGHT, out);
}

static cz_status change_case(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                             enum str_case how, struct jv *out)
{
    TRY(jinja_args_check(r, "the method", args, 0, 0, NULL));
    return str_set_case(r, how, self, out);
}

static cz_status str_upper(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    return change_case(r, self, args, STR_UPPER, out);
}

static cz_status str_lower(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    return change_case(r, self, args, STR_LOWER, out);
}

static cz_status str_title(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    return change_case(r, self, args, STR_TITLE, out);
}

static cz_status str_capitalize(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                                struct jv *out)
{
    return change_case(r, self, args, STR_CAPITAL, out);
}

static struct jv part_of(struct jv self, const char *begin, const char *end)
{
    struct jv part = jv_of_str(begin, (size_t)(end - begin));
    part.is_safe = self.is_safe;
    return part;
}

/* split() without a separator: words between white space. */
static cz_status split_words(struct jinja_run *r, struct jv self, int64_t max, struct jv *out)
{
    const char *s = self.s, *end = s + self.n;
    TRY(run_chars(r, self.n));
    for (int64_t count = 0;; count++) {
        struct jv rest = str_strip(part_of(self, s, end), STR_LEFT);
        if (rest.n == 0) return CZ_OK;
        if (max >= 0 && count >= max)
            return jv_list_add(r, *out, rest); /* with the white space at its end, as Python */
        const char *word = rest.s;
        size_t len;
        for (s = word; s < end; s += len)
            if (str_is_space(chars_at(s, (size_t)(end - s), &len))) break;
        TRY(jv_list_add(r, *out, part_of(self, word, s)));
    }
}

static cz_status str_split(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    static const char *const names[] = {"sep", "maxsplit", NULL};
    int64_t max;
    TRY(jinja_args_check(r, "split", args, 0, 2, names));
    TRY(int_arg(r, args, 1, "maxsplit", -1, &max));
    const struct jv *sep = jinja_arg(args, 0, "sep");
    TRY(jv_list_new(r, JV_LIST, 0, out));
    if (!sep || sep->type == JV_NONE) return split_words(r, self, max, out);
    if (sep->type != JV_STR)
        return run_fail(r, "split() takes a string, not %s", jv_type_name(*sep));
    if (sep->n == 0) return run_fail(r, "split() takes no empty separator");
    TRY(run_bytes(r, self.n + sep->n));
    const char *s = self.s, *end = s + self.n, *found;
    for (; max != 0 && (found = str_find(s, (size_t)(end - s), sep->s, sep->n)); max--) {
        TRY(jv_list_add(r, *out, part_of(self, s, found)));
        s = found + sep->n;
    }
    return jv_list_add(r, *out, part_of(self, s, end));
}

/* *out: the last place of `what`, or NULL. Every place where its first byte is costs a comparison.
 */
static cz_status find_last(struct jinja_run *r, const char *s, size_t n, struct jv what,
                           const char **out)
{
    *out = what.n == 0 ? s + n : NULL;
    if (what.n == 0 || what.n > n) return CZ_OK;
    for (size_t at = n - what.n + 1; at > 0;) {
        const char *first = memrchr(s, what.s[0], at);
        const size_t passed = first ? (size_t)(s + at - first) : at;
        TRY(run_bytes(r, passed + 64 + what.n));
        if (!first) return CZ_OK;
        if (memcmp(first, what.s, what.n) == 0) {
            *out = first;
            return CZ_OK;
        }
        at = (size_t)(first - s);
    }
    return CZ_OK;
}

static cz_status str_rsplit(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out)
{
    static const char *const names[] = {"sep", "maxsplit", NULL};
    int64_t max;
    TRY(jinja_args_check(r, "rsplit", args, 0, 2, names));
    TRY(int_arg(r, args, 1, "maxsplit", -1, &max));
    const struct jv *sep = jinja_arg(args, 0, "sep");
    if (max < 0 && (!sep || sep->type != JV_STR)) return str_split(r, self, args, out);
    if (!sep || sep->type != JV_STR || sep->n == 0)
        return run_lacks(r, "rsplit() without a separator is not supported");
    struct jv reversed;
    size_t n = self.n;
    const char *found;
    TRY(jv_list_new(r, JV_LIST, 0, &reversed));
    for (; max != 0; max -= max > 0) {
        TRY(find_last(r, self.s, n, *sep, &found));
        if (!found) break;
        TRY(jv_list_add(r, reversed, part_of(self, found + sep->n, self.s + n)));
        n = (size_t)(found - self.s);
    }
    TRY(jv_list_add(r, reversed, part_of(self, self.s, self.s + n)));
    TRY(jv_list_new(r, JV_LIST, reversed.list->n, out));
    for (size_t i = reversed.list->n; i-- > 0;) TRY(jv_list_add(r, *out, reversed.list->at[i]));
    return CZ_OK;
}

/* Lines end at \n, \r, \r\n and Unicode's other line ends. */
static cz_status str_splitlines(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                                struct jv *out)
{
    static const char *const names[] = {"keepends", NULL};
    TRY(jinja_args_check(r, "splitlines", args, 0, 1, names));
    const struct jv *keep = jinja_arg(args, 0, "keepends");
    TRY(jv_list_new(r, JV_LIST, 0, out));
    TRY(run_chars(r, self.n));
    size_t begin = 0, len;
    for (size_t at = 0; at < self.n; at += len) {
        int32_t c = chars_at(self.s + at, self.n - at, &len);
        if (!((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
              c == 0x2029))
            continue;
        if (c == '\r' && at + 1 < self.n && self.s[at + 1] == '\n') len = 2;
        size_t end = keep && jv_truth(*keep) ? at + len : at;
        TRY(jv_list_add(r, *out, part_of(self, self.s + begin, self.s + end)));
        begin = at + len;
    }
    if (begin == self.n) return CZ_OK;
    return jv_list_add(r, *out, part_of(self, self.s + begin, self.s + self.n));
}

static cz_status starts_or_ends(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                                bool starts, struct jv *out)
{
    TRY(jinja_args_check(r, starts ? "startswith" : "endswith", args, 1, 1, NULL));
    struct jv one = args->at[0];
    struct jv_list single = {.at = &one, .n = 1};
    struct jv_list *list = one.type == JV_TUPLE ? one.list : &single;
    *out = jv_of_bool(false);
    for (size_t i = 0; i < list->n; i++) {
        struct jv x = list->at[i];
        if (x.type != JV_STR)
            return run_fail(r, "%s() takes a string, not %s", starts ? "startswith" : "endswith",
                            jv_type_name(x));
        TRY(run_steps(r, 1));
        if (x.n > self.n || out->b) continue;
        TRY(run_bytes(r, x.n));
        const char *place = starts ? self.s : self.s + (self.n - x.n);
        if (x.n == 0 || memcmp(place, x.s, x.n) == 0) out->b = true;
    }
    return CZ_OK;
}

static cz_status str_startswith(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                                struct jv *out)
{
    return starts_or_ends(r, self, args, true, out);
}

static cz_status str_endswith(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                              struct jv *out)
{
    return starts_or_ends(r, self, args, false, out);
}

static cz_status remove_affix(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                              bool starts, struct jv *out)
{
    TRY(need_str(r, starts ? "removeprefix" : "removesuffix", args, 1, 1));
    TRY(starts_or_ends(r, self, args, starts, out));
    size_t n = out->b ? args->at[0].n : 0;
    *out = self;
    out->n -= n;
    if (starts) out->s += n;
    return CZ_OK;
}

static cz_status str_removeprefix(struct jinja_run *r, struct jv self,
                                  const struct jinja_args *args, struct jv *out)
{
    return remove_affix(r, self, args, true, out);
}

static cz_status str_removesuffix(struct jinja_run *r, struct jv self,
                                  const struct jinja_args *args, struct jv *out)
{
    return remove_affix(r, self, args, false, out);
}

static cz_status str_replace_method(struct jinja_run *r, struct jv self,
                                    const struct jinja_args *args, struct jv *out)
{
    int64_t max;
    TRY(need_str(r, "replace", args, 2, 3));
    TRY(int_arg(r, args, 2, NULL, -1, &max));
    if (self.is_safe) return run_lacks(r, "replace() of a safe string is not supported");
    return str_replace(r, self, args->at[0], args->at[1], max, out);
}

static cz_status find_place(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            bool last, struct jv *out)
{
    TRY(need_str(r, "find", args, 1, 1));
    const struct jv what = args->at[0];
    const char *found;
    TRY(run_bytes(r, self.n + what.n));
    if (last)
        TRY(find_last(r, self.s, self.n, what, &found));
    else
        found = str_find(self.s, self.n, what.s, what.n);
    *out = jv_of_int(found ? (int64_t)str_length(self.s, (size_t)(found - self.s)) : -1);
    return CZ_OK;
}

static cz_status str_find_method(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                                 struct jv *out)
{
    return find_place(r, self, args, false, out);
}

static cz_status str_rfind(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    return find_place(r, self, args, true, out);
}

static cz_status str_index(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    TRY(find_place(r, self, args, false, out));
    return out->i < 0 ? run_fail(r, "index(): the string is not found") : CZ_OK;
}

static cz_status str_count(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    TRY(need_str(r, "count", args, 1, 1));
    struct jv what = args->at[0];
    const char *s = self.s, *end = s + self.n, *found;
    *out = jv_of_int(0);
    TRY(run_bytes(r, self.n + what.n));
    if (what.n == 0) out->i = (int64_t)str_length(self.s, self.n) + 1;
    for (; what.n > 0 && (found = str_find(s, (size_t)(end - s), what.s, what.n)); out->i++) {
        TRY(run_steps(r, 1));
        s = found + what.n;
    }
    return CZ_OK;
}

static cz_status str_join(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                          struct jv *out)
{
    struct jv_list *items;
    struct jv all = JV_TEXT("");
    TRY(jinja_args_check(r, "join", args, 1, 1, NULL));
    if (args->at[0].type == JV_UNDEFINED || self.is_safe)
        return run_fail(r, "join() takes a list of strings");
    TRY(jv_iterate(r, args->at[0], &items));
    for (size_t i = 0; i < items->n; i++) {
        if (items->at[i].type != JV_STR)
            return run_fail(r, "join() takes strings, not %s", jv_type_name(items->at[i]));
        items->at[i].is_safe = false;
        if (i > 0) TRY(jv_binary(r, JO_ADD, all, self, &all));
        TRY(jv_binary(r, JO_ADD, all, items->at[i], &all));
    }
    *out = all;
    return CZ_OK;
}

/* All characters of one class, and at least one. */
static cz_status all_of(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                        unsigned classes, struct jv *out)
{
    TRY(jinja_args_check(r, "the method", args, 0, 0, NULL));
    TRY(run_chars(r, self.n));
    *out = jv_of_bool(self.n > 0);
    for (size_t at = 0, len; at < self.n; at += len) {
        int32_t c = chars_at(self.s + at, self.n - at, &len);
        bool is_in = classes == CHAR_S ? str_is_space(c)
                                       : (chars_class(self.s + at, self.n - at, &len) & classes);
        if (classes == CHAR_NUMBER && c >= 0x80)
            return run_lacks(r, "isdigit() outside of ASCII is not supported");
        if (!is_in) out->b = false;
    }
    return CZ_OK;
}

static cz_status str_isspace(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                             struct jv *out)
{
    return all_of(r, self, args, CHAR_S, out);
}

static cz_status str_isdigit(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                             struct jv *out)
{
    return all_of(r, self, args, CHAR_NUMBER, out);
}

static cz_status str_isalpha(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                             struct jv *out)
{
    return all_of(r, self, args, CHAR_L, out);
}

static const struct method str_methods[] = {
    {"capitalize", str_capitalize},
    {"casefold", NULL},
    {"center", NULL},
    {"count", str_count},
    {"encode", NULL},
    {"endswith", str_endswith},
    {"expandtabs", NULL},
    {"find", str_find_method},
    {"format", NULL},
    {"format_map", NULL},
    {"index", str_index},
    {"isalnum", NULL},
    {"isalpha", str_isalpha},
    {"isascii", NULL},
    {"isdecimal", NULL},
    {"isdigit", str_isdigit},
    {"isidentifier", NULL},
    {"islower", NULL},
    {"isnumeric", NULL},
    {"isprintable", NULL},
    {"isspace", str_isspace},
    {"istitle", NULL},
    {"isupper", NULL},
    {"join", str_join},
    {"ljust", NULL},
    {"lower", str_lower},
    {"lstrip", str_lstrip},
    {"maketrans", NULL},
    {"partition", NULL},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace_method},
    {"rfind", str_rfind},
    {"rindex", NULL},
    {"rjust", NULL},
    {"rpartition", NULL},
    {"rsplit", str_rsplit},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"startswith", str_startswith},
    {"strip", str_strip_both},
    {"swapcase", NULL},
    {"title", str_title},
    {"translate", NULL},
    {"upper", str_upper},
    {"zfill", NULL},
    {NULL, NULL},
};

/* ---- lists and dicts
 * ----------------------------------------------------------------------------- */

static cz_status forbidden(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    (void)self, (void)args, (void)out;
    return run_fail(r, "templates may not change lists and dicts");
}

static cz_status list_index(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out)
{
    TRY(jinja_args_check(r, "index", args, 1, 1, NULL));
    for (size_t i = 0; i < self.list->n; i++) {
        bool equal;
        TRY(jv_equal(r, self.list->at[i], args->at[0], &equal));
        *out = jv_of_int((int64_t)i);
        if (equal) return CZ_OK;
    }
    return run_fail(r, "index(): the value is not in the list");
}

static cz_status list_count(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out)
{
    TRY(jinja_args_check(r, "count", args, 1, 1, NULL));
    *out = jv_of_int(0);
    for (size_t i = 0; i < self.list->n; i++) {
        bool equal;
        TRY(jv_equal(r, self.list->at[i], args->at[0], &equal));
        out->i += equal;
    }
    return CZ_OK;
}

static cz_status same(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                      struct jv *out)
{
    *out = self; /* nothing changes it, so that a copy needs no memory */
    return jinja_args_check(r, "copy", args, 0, 0, NULL);
}

static cz_status dict_get(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                          struct jv *out)
{
    const struct jv *found;
    TRY(jinja_args_check(r, "get", args, 1, 2, NULL));
    if (!jv_is_key(args->at[0]))
        return run_fail(r, "%s cannot be a key", jv_type_name(args->at[0]));
    TRY(jv_dict_get(r, self.dict, args->at[0], &found));
    *out = found ? *found : args->n > 1 ? args->at[1] : JV_NONE_VALUE;
    return CZ_OK;
}

static cz_status view(struct jinja_run *r, struct jv self, const struct jinja_args *args, bool keys,
                      bool values, struct jv *out)
{
    TRY(jinja_args_check(r, "the method", args, 0, 0, NULL));
    TRY(jv_list_new(r, JV_VIEW, self.dict->n, out));
    for (size_t i = 0; i < self.dict->n; i++) {
        struct jv item = keys ? self.dict->at[i].key : self.dict->at[i].value;
        if (keys && values) {
            TRY(jv_list_new(r, JV_TUPLE, 2, &item));
            TRY(jv_list_add(r, item, self.dict->at[i].key));
            TRY(jv_list_add(r, item, self.dict->at[i].value));
        }
        TRY(jv_list_add(r, *out, item));
    }
    return CZ_OK;
}

static cz_status dict_items(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                            struct jv *out)
{
    return view(r, self, args, true, true, out);
}

static cz_status dict_keys(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                           struct jv *out)
{
    return view(r, self, args, true, false, out);
}

static cz_status dict_values(struct jinja_run *r, struct jv self, const struct jinja_args *args,
                             struct jv *out)
{
    return view(r, self, args, false, true, out);
}

static const struct method list_methods[] = {
    {"append", forbidden}, {"clear", forbidden},   {"copy", same},        {"count", list_count},
    {"extend", forbidden}, {"index", list_index},  {"insert", forbidden}, {"pop", forbidden},
    {"remove", forbidden}, {"reverse", forbidden}, {"sort", forbidden},   {NULL, NULL},
};
static const struct method tuple_methods[] = {
    {"count", list_count},
    {"index", list_index},
    {NULL, NULL},
};
static const struct method dict_methods[] = {
    {"clear", forbidden},  {"copy", same},          {"fromkeys", NULL},
    {"get", dict_get},     {"items", dict_items},   {"keys", dict_keys},
    {"pop", forbidden},    {"popitem", forbidden},  {"setdefault", forbidden},
    {"update", forbidden}, {"values", dict_values}, {NULL, NULL},
};
static const struct method number_methods[] = {
    {"as_integer_ratio", NULL}, {"bit_count", NULL},   {"bit_length", NULL},
    {"conjugate", NULL},        {"denominator", NULL}, {"from_bytes", NULL},
    {"fromhex", NULL},          {"hex", NULL},         {"imag", NULL},
    {"is_integer", NULL},       {"numerator", NULL},   {"real", NULL},
    {"to_bytes", NULL},         {NULL, NULL},
};

static const struct method *methods_of(struct jv v)
{
    static const struct method none[] = {{NULL, NULL}};
    switch (v.type) {
    case JV_STR: return str_methods;
    case JV_LIST: return list_methods;
    case JV_TUPLE: return tuple_methods;
    case JV_DICT: return dict_methods;
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT: return number_methods;
    default: return none;
    }
}

const char *jinja_method_find(struct jv v, struct jv name)
{
    if (name.type != JV_STR || name.n == 0) return NULL;
    for (const struct method *m = methods_of(v); m->name; m++)
        if (m->name[0] == name.s[0] && jv_is(name, m->name)) return m->name;
    return NULL;
}

bool jinja_is_method_of_dicts(struct jv name)
{
    const struct jv dict = {.type = JV_DICT};
    return jinja_method_find(dict, name) != NULL;
}

/* loop.cycle(a, b, …) and loop.changed(value). */
static cz_status call_loop(struct jinja_run *r, const struct jv_method *m,
                           const struct jinja_args *args, struct jv *out)
{
    struct jv_loop *loop = m->self.loop;
    if (strcmp(m->name, "cycle") == 0) {
        TRY(jinja_args_check(r, "cycle", args, 1, SIZE_MAX, NULL));
        *out = args->at[loop->i % args->n];
        return CZ_OK;
    }
    struct jv now;
    bool equal = false;
    TRY(jinja_args_check(r, "changed", args, 0, SIZE_MAX, NULL));
    TRY(jv_list_new(r, JV_TUPLE, args->n, &now));
    for (size_t i = 0; i < args->n; i++) TRY(jv_list_add(r, now, args->at[i]));
    if (loop->changed.type != JV_MISSING) TRY(jv_equal(r, loop->changed, now, &equal));
    loop->changed = now;
    *out = jv_of_bool(!equal);
    return CZ_OK;
}

cz_status jinja_method_call(struct jinja_run *r, const struct jv_method *m,
                            const struct jinja_args *args, struct jv *out)
{
    if (m->self.type == JV_LOOP) return call_loop(r, m, args, out);
    for (const struct method *k = methods_of(m->self); k->name; k++) /* it is the table's name */
        if (k->name == m->name && k->run) return k->run(r, m->self, args, out);
    return run_lacks(r, "the method %s() of %s is not supported", m->name, jv_type_name(m->self));
}

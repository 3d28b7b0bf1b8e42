/* Tests: value is name(argument), as Jinja 3.1 defines them. */
#include "data/jinja/jinja_impl.h"

#include "data/tokenizer/chars_impl.h"

#define TEST(test_name, condition)                                                                 \
    static cz_status test_##test_name(struct jinja_run *r, struct jv v,                            \
                                      const struct jinja_args *args, bool *out)                    \
    {                                                                                              \
        (void)r, (void)args;                                                                       \
        *out = (condition);                                                                        \
        return CZ_OK;                                                                              \
    }

TEST(defined, v.type != JV_UNDEFINED)
TEST(undefined, v.type == JV_UNDEFINED)
TEST(none, v.type == JV_NONE)
TEST(boolean, v.type == JV_BOOL)
TEST(true, v.type == JV_BOOL && v.b)
TEST(false, v.type == JV_BOOL && !v.b)
TEST(integer, v.type == JV_INT)
TEST(float, v.type == JV_FLOAT)
TEST(number, jv_is_number(v))
TEST(string, v.type == JV_STR)
TEST(mapping, v.type == JV_DICT)
TEST(sequence, v.type == JV_UNDEFINED || v.type == JV_STR || v.type == JV_LIST ||
                   v.type == JV_TUPLE || v.type == JV_DICT)
TEST(iterable, v.type == JV_UNDEFINED || v.type == JV_STR || v.type == JV_LIST ||
                   v.type == JV_TUPLE || v.type == JV_ITER || v.type == JV_VIEW ||
                   v.type == JV_DICT || v.type == JV_LOOP)
TEST(callable, v.type == JV_MACRO || v.type == JV_METHOD || v.type == JV_FUNC ||
                   v.type == JV_UNDEFINED || v.type == JV_LOOP)
TEST(escaped, v.type == JV_STR && v.is_safe)

static cz_status test_equal(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            bool *out)
{
    return jv_equal(r, v, args->at[0], out);
}

static cz_status test_not_equal(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                bool *out)
{
    TRY(jv_equal(r, v, args->at[0], out));
    *out = !*out;
    return CZ_OK;
}

static cz_status test_below(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            bool *out)
{
    int order;
    TRY(jv_order(r, v, args->at[0], &order));
    *out = order < 0;
    return CZ_OK;
}

static cz_status test_above(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            bool *out)
{
    int order;
    TRY(jv_order(r, v, args->at[0], &order));
    *out = order > 0;
    return CZ_OK;
}

static cz_status test_at_most(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                              bool *out)
{
    TRY(test_above(r, v, args, out));
    *out = !*out;
    return CZ_OK;
}

static cz_status test_at_least(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                               bool *out)
{
    TRY(test_below(r, v, args, out));
    *out = !*out;
    return CZ_OK;
}

static cz_status test_in(struct jinja_run *r, struct jv v, const struct jinja_args *args, bool *out)
{
    return jv_contains(r, v, args->at[0], out);
}

static cz_status rest(struct jinja_run *r, struct jv v, struct jv by, int64_t wanted, bool *out)
{
    struct jv x;
    TRY(jv_binary(r, JO_MOD, v, by, &x));
    return jv_equal(r, x, jv_of_int(wanted), out);
}

static cz_status test_even(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                           bool *out)
{
    (void)args;
    return rest(r, v, jv_of_int(2), 0, out);
}

static cz_status test_odd(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                          bool *out)
{
    (void)args;
    return rest(r, v, jv_of_int(2), 1, out);
}

static cz_status test_divisible(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                                bool *out)
{
    return rest(r, v, args->at[0], 0, out);
}

/* Characters with a case that are no letters of it (Unicode's Other_Lowercase and Other_Uppercase,
 * as Python 3.11 has them): modifier letters, Roman numerals, letters in circles. Sorted. */
static const struct {
    int32_t first, last;
    unsigned class;
} other_case[] = {
    {0xAA, 0xAA, CHAR_LOWER},       {0xBA, 0xBA, CHAR_LOWER},       {0x2B0, 0x2B8, CHAR_LOWER},
    {0x2C0, 0x2C1, CHAR_LOWER},     {0x2E0, 0x2E4, CHAR_LOWER},     {0x345, 0x345, CHAR_LOWER},
    {0x37A, 0x37A, CHAR_LOWER},     {0x1D2C, 0x1D6A, CHAR_LOWER},   {0x1D78, 0x1D78, CHAR_LOWER},
    {0x1D9B, 0x1DBF, CHAR_LOWER},   {0x2071, 0x2071, CHAR_LOWER},   {0x207F, 0x207F, CHAR_LOWER},
    {0x2090, 0x209C, CHAR_LOWER},   {0x2160, 0x216F, CHAR_UPPER},   {0x2170, 0x217F, CHAR_LOWER},
    {0x24B6, 0x24CF, CHAR_UPPER},   {0x24D0, 0x24E9, CHAR_LOWER},   {0x2C7C, 0x2C7D, CHAR_LOWER},
    {0xA69C, 0xA69D, CHAR_LOWER},   {0xA770, 0xA770, CHAR_LOWER},   {0xA7F8, 0xA7F9, CHAR_LOWER},
    {0xAB5C, 0xAB5F, CHAR_LOWER},   {0x10780, 0x10780, CHAR_LOWER}, {0x10783, 0x10785, CHAR_LOWER},
    {0x10787, 0x107B0, CHAR_LOWER}, {0x107B2, 0x107BA, CHAR_LOWER}, {0x1F130, 0x1F149, CHAR_UPPER},
    {0x1F150, 0x1F169, CHAR_UPPER}, {0x1F170, 0x1F189, CHAR_UPPER}};

static unsigned case_of(const char *s, size_t n, size_t *len)
{
    const unsigned class = chars_class(s, n, len) & (CHAR_UPPER | CHAR_LOWER);
    const int32_t c = class ? 0 : chars_at(s, n, len);
    size_t begin = 0, end = c < other_case[0].first ? 0 : CZ_ARRAY_LEN(other_case);
    while (begin < end) {
        const size_t middle = (begin + end) / 2;
        if (c < other_case[middle].first)
            end = middle;
        else if (c > other_case[middle].last)
            begin = middle + 1;
        else
            return other_case[middle].class;
    }
    return class;
}

/* str(value).islower(): some character with a case, and all of them in this one. A title case such
 * as of U+01C5 is neither. */
static cz_status has_case(struct jinja_run *r, struct jv v, unsigned wanted, bool *out)
{
    bool any = false;
    TRY(jv_to_str(r, v, &v));
    TRY(run_chars(r, v.n));
    *out = true;
    for (size_t at = 0, len; at < v.n; at += len) {
        const unsigned class = case_of(v.s + at, v.n - at, &len);
        if (utf8proc_category(chars_at(v.s + at, v.n - at, &len)) == UTF8PROC_CATEGORY_LT)
            *out = false;
        if (class & wanted) any = true;
        if (class & ~wanted) *out = false;
    }
    *out = *out && any;
    return CZ_OK;
}

static cz_status test_lower(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            bool *out)
{
    (void)args;
    return has_case(r, v, CHAR_LOWER, out);
}

static cz_status test_upper(struct jinja_run *r, struct jv v, const struct jinja_args *args,
                            bool *out)
{
    (void)args;
    return has_case(r, v, CHAR_UPPER, out);
}

const struct jinja_test *jinja_test_find(struct jv name)
{
    static const struct jinja_test table[] = {
        {"!=", test_not_equal, 1},
        {"<", test_below, 1},
        {"<=", test_at_most, 1},
        {"==", test_equal, 1},
        {">", test_above, 1},
        {">=", test_at_least, 1},
        {"boolean", test_boolean, 0},
        {"callable", test_callable, 0},
        {"defined", test_defined, 0},
        {"divisibleby", test_divisible, 1},
        {"eq", test_equal, 1},
        {"equalto", test_equal, 1},
        {"escaped", test_escaped, 0},
        {"even", test_even, 0},
        {"false", test_false, 0},
        {"float", test_float, 0},
        {"ge", test_at_least, 1},
        {"greaterthan", test_above, 1},
        {"gt", test_above, 1},
        {"in", test_in, 1},
        {"integer", test_integer, 0},
        {"iterable", test_iterable, 0},
        {"le", test_at_most, 1},
        {"lessthan", test_below, 1},
        {"lower", test_lower, 0},
        {"lt", test_below, 1},
        {"mapping", test_mapping, 0},
        {"ne", test_not_equal, 1},
        {"none", test_none, 0},
        {"number", test_number, 0},
        {"odd", test_odd, 0},
        {"sequence", test_sequence, 0},
        {"string", test_string, 0},
        {"true", test_true, 0},
        {"undefined", test_undefined, 0},
        {"upper", test_upper, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (jv_is(name, table[i].name)) return &table[i];
    return NULL;
}

/* Claim: the parameter table keeps order of declaration, treats a second declaration of a name as a
 * tie when shapes agree, resolves aliases, and names what is wrong. */
#include "layout/param_table.h"
#include "tests/support/check_main.h"

#include <string.h>

static size_t add(struct param_table *t, const char *name, int ndim, int64_t a, int64_t b)
{
    size_t idx;
    ck_ok(param_table_add(t, name, ndim, (const int64_t[]){a, b}, PARAM_INIT_NORMAL, 0.02f, &idx));
    return idx;
}

START_TEST(order_of_declaration_is_kept)
{
    struct param_table t;
    param_table_init(&t);
    char name[32];
    for (size_t i = 0; i < 300; i++) { /* beyond several growths */
        snprintf(name, sizeof name, "p%zu", i);
        ck_assert_uint_eq(add(&t, name, 1, (int64_t)i + 1, 0), i);
    }
    ck_assert_uint_eq(t.n_params, 300);
    for (size_t i = 0; i < 300; i++) ck_assert_uint_eq(t.params[i].numel, i + 1);
    ck_assert_uint_eq(param_table_numel(&t, false), 300 * 301 / 2);
    param_table_free(&t);
}
END_TEST

START_TEST(fields_follow_from_the_declaration)
{
    struct param_table t;
    param_table_init(&t);
    size_t w = add(&t, "w", 2, 3, 70000), b = add(&t, "b", 1, 7, 0);
    ck_assert_int_eq(t.params[w].ndim, 2);
    ck_assert_int_eq(t.params[w].shape[0], 3);
    ck_assert_int_eq(t.params[w].shape[1], 70000);
    ck_assert_uint_eq(t.params[w].numel, 210000);
    ck_assert(t.params[w].trainable && t.params[w].decay_hint);
    ck_assert(t.params[b].trainable && !t.params[b].decay_hint);
    ck_assert_int_eq(t.params[w].init, PARAM_INIT_NORMAL);
    ck_assert_float_eq(t.params[w].init_std, 0.02f);
    t.params[w].trainable = false;
    ck_assert_uint_eq(param_table_numel(&t, true), 7);
    ck_assert_uint_eq(param_table_numel(&t, false), 210007);
    param_table_free(&t);
}
END_TEST

START_TEST(second_declaration_is_a_tie)
{
    struct param_table t;
    param_table_init(&t);
    size_t first = add(&t, "wte.weight", 2, 4, 6), idx = 99;
    ck_assert_uint_eq(add(&t, "wte.weight", 2, 4, 6), first);
    ck_assert_uint_eq(t.n_params, 1);
    ck_fails(
        param_table_add(&t, "wte.weight", 2, (const int64_t[]){6, 4}, PARAM_INIT_ZERO, 0, &idx),
        CZ_INVALID);
    ck_fails(param_table_add(&t, "wte.weight", 1, (const int64_t[]){24}, PARAM_INIT_ZERO, 0, &idx),
             CZ_INVALID);
    ck_assert(strstr(cz_last_error(), "wte.weight") != NULL);
    ck_assert_uint_eq(idx, 99);
    ck_assert_uint_eq(t.n_params, 1);
    param_table_free(&t);
}
END_TEST

START_TEST(aliases_stand_for_their_parameter)
{
    struct param_table t;
    param_table_init(&t);
    size_t wte = add(&t, "wte.weight", 2, 4, 6), b = add(&t, "b", 1, 4, 0), idx;
    ck_ok(param_table_alias(&t, "lm_head.weight", wte));
    ck_ok(param_table_alias(&t, "lm_head.weight", wte)); /* the same once more is no conflict */
    ck_assert_uint_eq(t.n_aliases, 1);
    ck_ok(param_table_find(&t, "lm_head.weight", &idx));
    ck_assert_uint_eq(idx, wte);
    ck_assert_uint_eq(add(&t, "lm_head.weight", 2, 4, 6), wte);
    ck_fails(param_table_alias(&t, "lm_head.weight", b), CZ_INVALID);
    ck_fails(param_table_alias(&t, "b", wte), CZ_INVALID);
    ck_fails(param_table_alias(&t, "c", 2), CZ_INVALID);
    param_table_free(&t);
}
END_TEST

START_TEST(unknown_name_gets_the_nearest)
{
    struct param_table t;
    param_table_init(&t);
    size_t idx = 99;
    ck_fails(param_table_find(&t, "x", &idx), CZ_NOTFOUND); /* an empty table has no nearest */
    add(&t, "transformer.h.0.attn.c_attn.weight", 1, 1, 0);
    add(&t, "transformer.h.0.mlp.c_fc.weight", 1, 1, 0);
    ck_fails(param_table_find(&t, "transformer.h.0.attn.c_atn.weight", &idx), CZ_NOTFOUND);
    ck_assert(strstr(cz_last_error(), "c_atn.weight\"") != NULL);
    ck_assert(strstr(cz_last_error(), "nearest: transformer.h.0.attn.c_attn.weight") != NULL);
    ck_assert_uint_eq(idx, 99);
    param_table_free(&t);
}
END_TEST

static void nearest_is(struct param_table *t, const char *wanted, const char *nearest)
{
    char text[800];
    size_t idx;
    ck_fails(param_table_find(t, wanted, &idx), CZ_NOTFOUND);
    snprintf(text, sizeof text, "no parameter is named \"%s\"%s%s%s", wanted,
             nearest ? " (nearest: " : "", nearest ? nearest : "", nearest ? ")" : "");
    ck_assert_str_eq(cz_last_error(), text);
}

/* The fewest letters put in, left out or replaced, in any order of declaration. */
START_TEST(nearest_is_counted_in_letters)
{
    static const char *const names[][4] = {
        /* wanted, nearest, others */
        {"abcd", "xbcd", "xxcd", "zzzzz"}, {"abcd", "abcx", "abxx", "zzzz"},
        {"abcd", "bcd", "cd", "xxcd"},     {"abcd", "abc", "ab", "abxx"},
        {"abcd", "aabcd", "aaabcd", "ax"}, {"abcd", "abcdd", "abcddd", "d"},
        {"abcd", "acbd", "dcba", "wxyz"},  {"ab", "abxx", "abxxx", "vwxyz"},
        {"abcdefgh", "efgh", "xxxxx", ""}, {"", "a", "bb", "ccc"},
        {"ab", "xaxb", "xaxbx", "xxxxx"},  {"xaxb", "ab", "b", "vwyz"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t first = 0; first < 3; first++) {
            struct param_table t;
            param_table_init(&t);
            for (size_t k = 0; k < 3; k++) add(&t, names[i][1 + (k + first) % 3], 1, 1, 0);
            nearest_is(&t, names[i][0], names[i][1]);
            param_table_free(&t);
        }
}
END_TEST

/* Of equally near names the first is named, and aliases are names; one of more than 255 letters is
 * near to none. */
START_TEST(nearest_of_equals_and_of_long_names)
{
    struct param_table t;
    char longest[257];
    memset(longest, 'a', sizeof longest);
    longest[256] = '\0';
    param_table_init(&t);
    size_t p = add(&t, "abd", 1, 1, 0);
    add(&t, "abe", 1, 1, 0);
    ck_ok(param_table_alias(&t, "xyz", p));
    nearest_is(&t, "abc", "abd");
    nearest_is(&t, "xyy", "xyz");
    nearest_is(&t, longest, NULL);
    nearest_is(&t, longest + 1, "abd");
    param_table_free(&t);
    param_table_init(&t);
    add(&t, longest, 1, 1, 0);
    nearest_is(&t, "abc", NULL);
    add(&t, longest + 1, 1, 1, 0);
    nearest_is(&t, "aaa", longest + 1);
    nearest_is(&t, longest + 2, longest + 1);
    param_table_free(&t);
}
END_TEST

START_TEST(impossible_shapes_are_refused)
{
    struct param_table t;
    param_table_init(&t);
    size_t idx;
    const int64_t shape[5] = {1, 1, 1, 1, 1};
    ck_fails(param_table_add(&t, "p", 0, shape, PARAM_INIT_ZERO, 0, &idx), CZ_INVALID);
    ck_fails(param_table_add(&t, "p", 5, shape, PARAM_INIT_ZERO, 0, &idx), CZ_INVALID);
    ck_fails(param_table_add(&t, "p", 2, (const int64_t[]){3, 0}, PARAM_INIT_ZERO, 0, &idx),
             CZ_INVALID);
    ck_fails(param_table_add(&t, "p", 2, (const int64_t[]){3, -1}, PARAM_INIT_ZERO, 0, &idx),
             CZ_INVALID);
    const int64_t huge[3] = {INT64_MAX, INT64_MAX, 2};
    ck_fails(param_table_add(&t, "p", 3, huge, PARAM_INIT_ZERO, 0, &idx), CZ_INVALID);
    ck_assert_uint_eq(t.n_params, 0);
    param_table_free(&t);
    param_table_free(&t); /* idempotent */
}
END_TEST

TEST_MAIN("layout/param_table", order_of_declaration_is_kept, fields_follow_from_the_declaration,
          second_declaration_is_a_tie, aliases_stand_for_their_parameter,
          unknown_name_gets_the_nearest, nearest_is_counted_in_letters,
          nearest_of_equals_and_of_long_names, impossible_shapes_are_refused)

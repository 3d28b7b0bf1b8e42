/* Claims: a setting takes values of its type alone, to the bounds that are named; a name that is
 * not known is an error, or the default; what is refused leaves the field as it was. */
#include "optim/settings.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

struct owner {
    double number, count, pair[2];
    int64_t whole;
    bool flag;
    struct setting_list list;
    int name, strict;
};

static const char *const letters[] = {"a", "b", "c", NULL};
#define AT(member) .name = #member, .offset = offsetof(struct owner, member)
static const struct setting number = {AT(number), .type = SETTING_NUMBER},
                            count = {AT(count), .type = SETTING_NUMBER, .is_count = true,
                                     .help = "steps"},
                            whole = {AT(whole), .type = SETTING_INT},
                            flag = {AT(flag), .type = SETTING_BOOL},
                            pair = {AT(pair), .type = SETTING_PAIR},
                            list = {AT(list), .type = SETTING_LIST},
                            name = {AT(name), .type = SETTING_NAME, .names = letters,
                                    .defaults = {2, 1}},
                            strict = {AT(strict), .type = SETTING_NAME, .names = letters,
                                      .names_only = true};

static struct setting_value plain(double v)
{
    return (struct setting_value){.type = SETTING_NUMBER, .number = v};
}

static struct setting_value integer(int64_t v)
{
    return (struct setting_value){.type = SETTING_INT, .number = (double)v, .integer = v};
}

static struct setting_value several(const double *v, size_t n)
{
    return (struct setting_value){.type = n == 2 ? SETTING_PAIR : SETTING_LIST, .list = v, .n = n};
}

static struct setting_value word(const char *text)
{
    return (struct setting_value){.type = SETTING_NAME, .name = text};
}

static struct owner o;

static void takes(const struct setting *s, struct setting_value v, bool lenient)
{
    memset(&o, 0xff, sizeof o);
    ck_ok(settings_put(s, &o, &v, lenient));
}

static void refuses(const struct setting *s, struct setting_value v, bool lenient, const char *why)
{
    struct owner before;
    memset(&o, 0x55, sizeof o);
    before = o;
    ck_fails(settings_put(s, &o, &v, lenient), CZ_INVALID);
    ck_assert_msg(strstr(cz_last_error(), why) != NULL, "%s", cz_last_error());
    if (s->type != SETTING_NAME) ck_assert_mem_eq(&o, &before, sizeof o);
}

START_TEST(numbers_and_counts)
{
    takes(&number, plain(-0.5), false);
    ck_assert_double_eq(o.number, -0.5);
    takes(&number, integer(3), false);
    ck_assert_double_eq(o.number, 3);
    refuses(&number, plain(INFINITY), false, "number: inf is not a finite number");
    refuses(&number, word("x"), false, "number: a number is needed");
    for (double v = 1; v <= 0x1p53; v = v == 1 ? 2 : v == 2 ? 0x1p53 : INFINITY) {
        takes(&count, plain(v), false);
        ck_assert_double_eq(o.count, v);
    }
    refuses(&count, plain(0), false, "count: 0 must be a whole number from 1 on (steps)");
    refuses(&count, plain(1.5), false, "must be a whole number");
    refuses(&count, plain(0x1p53 + 2), false, "must be a whole number");
}
END_TEST

START_TEST(integers_and_what_an_older_deepspeed_took_for_them)
{
    takes(&whole, integer(-7), false);
    ck_assert_int_eq(o.whole, -7);
    refuses(&whole, plain(100), false,
            "whole: must be an integer, got 100; write it without point");
    takes(&whole, plain(-100), true);
    ck_assert_int_eq(o.whole, -100);
    takes(&whole, plain(0x1p61), true);
    ck_assert_int_eq(o.whole, (int64_t)1 << 61);
    refuses(&whole, plain(0x1p62), true, "must be an integer");
    refuses(&whole, plain(1.5), true, "must be an integer");
    refuses(&whole, word("x"), true, "whole: must be an integer");
    takes(&flag, (struct setting_value){.type = SETTING_BOOL, .number = 1}, false);
    ck_assert(o.flag);
    refuses(&flag, plain(1), false, "flag");
}
END_TEST

START_TEST(lists_of_one_to_64_numbers)
{
    double v[OPTIM_GROUPS_MAX + 1];
    for (size_t i = 0; i <= OPTIM_GROUPS_MAX; i++) v[i] = (double)i;
    takes(&list, plain(5), false);
    ck_assert_uint_eq(o.list.n, 1);
    ck_assert_double_eq(o.list.v[0], 5);
    for (size_t n = 1; n <= OPTIM_GROUPS_MAX; n++) {
        takes(&list, several(v, n), false);
        ck_assert_uint_eq(o.list.n, n);
        ck_assert_mem_eq(o.list.v, v, n * sizeof *v);
    }
    refuses(&list, several(v, 0), false, "list: a list of 1 to 64 numbers is needed, got 0");
    refuses(&list, several(v, OPTIM_GROUPS_MAX + 1), false, "numbers is needed, got 65");
    refuses(&list, word("x"), false, "list: a number, or a list with one per parameter group");
    v[63] = NAN;
    refuses(&list, several(v, 64), false, "is not a finite number");
    takes(&pair, several(v, 2), false);
    ck_assert_double_eq(o.pair[1], 1);
    v[1] = INFINITY;
    refuses(&pair, several(v, 2), false, "is not a finite number");
    refuses(&pair, several(v, 3), false, "pair");
}
END_TEST

START_TEST(names_that_are_not_known)
{
    for (int i = 0; i < 3; i++) {
        takes(&name, word(letters[i]), false);
        ck_assert_int_eq(o.name, i);
        takes(&strict, word(letters[i]), false);
        ck_assert_int_eq(o.strict, i);
    }
    takes(&name, word("d"), false); /* its default, with a warning */
    ck_assert_int_eq(o.name, 2);
    refuses(&name, plain(1), false, "name: a string is needed, such as \"a\"");
    refuses(&strict, word("d"), false,
            "strict: \"d\" is not known; choose from \"a\", \"b\", \"c\"");
}
END_TEST

TEST_MAIN("optim/settings", numbers_and_counts, integers_and_what_an_older_deepspeed_took_for_them,
          lists_of_one_to_64_numbers, names_that_are_not_known)

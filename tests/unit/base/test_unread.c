/* Claims: a report is one warning that names each unread member once, in the order of the first
 * occurrence, with its first place and its count; a strict process gets CZ_INVALID with the same
 * text; a report empties the list; names and places are escaped, cut and bounded in number, and
 * what is beyond the bound is counted. */
#include "base/log.h"
#include "base/text/unread.h"
#include "tests/support/check_main.h"

#include <string.h>

static struct {
    int n;
    enum cz_log_level level;
    char last[4096];
} seen;

static void keep(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    seen.n++;
    seen.level = level;
    snprintf(seen.last, sizeof seen.last, "%s", line);
}

static void fresh(void)
{
    cz_set_strict(false);
    cz_log_set_sink(keep, NULL);
    log_set_level(LOG_WARN, 0); /* a warning passes every mask */
    memset(&seen, 0, sizeof seen);
}

START_TEST(one_warning_names_all)
{
    fresh();
    struct unread u = {.what = "members of rows"};
    ck_assert_int_eq(unread_report(&u, "a.jsonl"), CZ_OK);
    ck_assert_int_eq(seen.n, 0);
    unread_add(&u, "weight", "line %d", 3);
    unread_add(&u, "note", "line %d", 7);
    unread_add(&u, "weight", "line %d", 8);
    unread_add(&u, "whole", "%s", "");
    unread_add(&u, "often", "%s", "");
    unread_add(&u, "often", "%s", "");
    ck_assert_int_eq(unread_report(&u, "a.jsonl"), CZ_OK);
    ck_assert_int_eq(seen.n, 1);
    ck_assert_int_eq(seen.level, LOG_WARN);
    ck_assert_str_eq(seen.last,
                     "a.jsonl: members of rows that czero does not use: weight (2 times, first: "
                     "line 3), note (line 7), whole, often (2 times)");
    ck_assert_int_eq(unread_report(&u, "a.jsonl"), CZ_OK);
    ck_assert_int_eq(seen.n, 1);
    unread_add(&u, "weight", "line %d", 9);
    ck_assert_int_eq(unread_report(&u, "b.jsonl"), CZ_OK);
    ck_assert_str_eq(seen.last,
                     "b.jsonl: members of rows that czero does not use: weight (line 9)");
}
END_TEST

START_TEST(strict_is_an_error)
{
    fresh();
    struct unread u = {.what = "keys"};
    ck_assert(!unread_is_strict());
    cz_set_strict(true);
    ck_assert(unread_is_strict());
    ck_assert_int_eq(unread_report(&u, "c.json"), CZ_OK);
    unread_add(&u, "x", "%s", "");
    ck_assert_int_eq(unread_report(&u, "c.json"), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "c.json: keys that czero does not use: x");
    ck_assert_int_eq(seen.n, 0);
    ck_assert_int_eq(unread_report(&u, "c.json"), CZ_OK); /* empty again */
}
END_TEST

START_TEST(names_are_escaped_and_cut)
{
    fresh();
    struct unread u = {.what = "keys"};
    char a[300], b[300];
    memset(a, 'k', sizeof a);
    memcpy(b, a, sizeof a);
    a[299] = b[299] = '\0';
    b[298] = 'z'; /* the same as far as it is kept: counted together */
    unread_add(&u, a, "%s", "");
    unread_add(&u, b, "%s", "");
    unread_add(&u, "\x1b[2J", "row \"%s\"", "\n");
    ck_assert_uint_eq(u.n_names, 2);
    ck_assert_uint_eq(u.names[0].count, 2);
    ck_assert_uint_eq(strlen(u.names[0].name), UNREAD_NAME_NBYTES - 1);
    ck_assert_int_eq(unread_report(&u, "k"), CZ_OK);
    ck_assert_ptr_nonnull(strstr(seen.last, "\\x1b[2J (row \"\\n\")"));
}
END_TEST

START_TEST(many_names_are_counted)
{
    fresh();
    struct unread u = {.what = "keys"};
    char name[16];
    for (int i = 0; i < UNREAD_NAMES + 3; i++) {
        snprintf(name, sizeof name, "key%d", i);
        unread_add(&u, name, "%s", "");
    }
    unread_add(&u, "key0", "%s", "");
    ck_assert_uint_eq(u.n_names, UNREAD_NAMES);
    ck_assert_int_eq(unread_report(&u, "k"), CZ_OK);
    ck_assert_ptr_nonnull(strstr(seen.last, "key0 (2 times), key1, "));
    ck_assert_ptr_nonnull(strstr(seen.last, "key15, and 3 of other names"));
    ck_assert_ptr_null(strstr(seen.last, "key16"));

    /* long names do not fit one line: those are counted, too, with each of their occurrences */
    char longest[90];
    memset(longest, 'n', sizeof longest);
    longest[89] = '\0';
    for (int i = 0; i < UNREAD_NAMES; i++) {
        longest[0] = (char)('a' + i);
        unread_add(&u, longest, "%080d", 1);
        unread_add(&u, longest, "%s", "");
    }
    ck_assert_int_eq(unread_report(&u, "k"), CZ_OK);
    ck_assert_ptr_nonnull(strstr(seen.last, ", and "));
    ck_assert_ptr_nonnull(strstr(seen.last, " of other names"));
    ck_assert_uint_lt(strlen(seen.last), 1800);
}
END_TEST

TEST_MAIN("base/unread", one_warning_names_all, strict_is_an_error, names_are_escaped_and_cut,
          many_names_are_counted)

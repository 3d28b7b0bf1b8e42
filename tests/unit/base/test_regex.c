/* Claims: expressions match what Python's re and POSIX's extended expressions match; what they lack
 * and what is wrong is refused with its position; no expression takes more than its bounds in
 * states, depth and work. */
#include "base/text/regex.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool matches(const char *pattern, const char *text, bool whole)
{
    struct regex *re;
    uint64_t work = REGEX_WORK_MAX;
    bool found;
    ck_assert_msg(regex_compile(pattern, &(uint64_t){REGEX_WORK_MAX}, &re) == CZ_OK, "%s: %s",
                  pattern, cz_last_error());
    ck_ok(regex_match(re, text, strlen(text), whole, &work, &found));
    ck_assert_uint_lt(work, REGEX_WORK_MAX);
    regex_free(re);
    return found;
}

/* P: a part matches; W: all of it does, too; N: nothing. */
static const struct {
    const char *pattern, *text;
    char how;
} table[] = {
    {"", "", 'W'},
    {"", "a", 'P'},
    {"abc", "abc", 'W'},
    {"abc", "xabcx", 'P'},
    {"abc", "abd", 'N'},
    {"abc", "ab", 'N'},
    {"a.c", "abc", 'W'},
    {"a.c", "a\nc", 'N'},
    {"a.c",
     "a\xC3\xA9"
     "c",
     'W'},
    {"a..c",
     "a\xC3\xA9"
     "c",
     'N'},
    {"a.c",
     "a\xFF"
     "c",
     'W'},
    {"a[^x]c",
     "a\xFF"
     "c",
     'N'},
    {"\xC3\xA9+", "\xC3\xA9\xC3\xA9", 'W'},
    {"[\xC3\xA0-\xC3\xBF]", "\xC3\xA9", 'W'},
    {"a|b|cd", "cd", 'W'},
    {"a|b|cd", "b", 'W'},
    {"a|b|cd", "a", 'W'},
    {"a|b|cd", "c", 'N'},
    {"a|", "", 'W'},
    {"|a", "a", 'W'},
    {"(a|b)(c|d)", "bd", 'W'},
    {"(a|b)(c|d)", "ab", 'N'},
    {"(?:ab)+", "ababab", 'W'},
    {"(?:ab)+", "aba", 'P'},
    {"(?P<x>a)b", "ab", 'W'},
    {"a*", "", 'W'},
    {"a*b", "aaab", 'W'},
    {"a+b", "b", 'N'},
    {"a?b", "b", 'W'},
    {"a?b", "aab", 'P'},
    {"a*?b", "aab", 'W'},
    {"a+?", "aa", 'W'},
    {"a??b", "ab", 'W'},
    {"a{2}", "aa", 'W'},
    {"a{2}", "aaa", 'P'},
    {"a{2}", "a", 'N'},
    {"a{2,}", "aaaa", 'W'},
    {"a{2,}", "a", 'N'},
    {"a{2,3}b", "aaab", 'W'},
    {"^a{2,3}b", "aaaab", 'N'},
    {"a{,2}b", "aab", 'W'},
    {"^a{,2}b", "aaab", 'N'},
    {"a{0}b", "b", 'W'},
    {"a{2,3}?b", "aab", 'W'},
    {"a{x}", "a{x}", 'W'},
    {"a{,x", "a{,x", 'W'},
    {"{", "{", 'W'},
    {"a}b]", "a}b]", 'W'},
    {"[abc]+", "cab", 'W'},
    {"[^abc]", "d", 'W'},
    {"[^abc]", "a", 'N'},
    {"[a-c]x", "bx", 'W'},
    {"[a-c]x", "dx", 'N'},
    {"[]a]+", "]a", 'W'},
    {"[^]a]", "]", 'N'},
    {"[a-]+", "a-", 'W'},
    {"[-a]+", "-a", 'W'},
    {"[a\\]]+", "]a", 'W'},
    {"[\\d_]+", "1_2", 'W'},
    {"[\\D]", "1", 'N'},
    {"[^\\W]", "a", 'W'},
    {"[\\b]", "\b", 'W'},
    {"[[:digit:]a]+", "1a", 'W'},
    {"[[:alpha:]_]+", "aZ_", 'W'},
    {"[[:space:]]", "\t", 'W'},
    {"[[:blank:]]", "\n", 'N'},
    {"[[:punct:]]+", "!/:@[`{~", 'W'},
    {"[[:xdigit:]]+", "09afAF", 'W'},
    {"[[:xdigit:]]", "g", 'N'},
    {"[[:upper:]][[:lower:]][[:alnum:]]", "Aa0", 'W'},
    {"[[:upper:]]", "a", 'N'},
    {"[[:]+", "[:", 'W'},
    {"\\d+", "0123456789", 'W'},
    {"\\d", "a", 'N'},
    {"\\D", "/", 'W'},
    {"\\D", ":", 'W'},
    {"\\D", "9", 'N'},
    {"\\w+", "aZ_9", 'W'},
    {"\\w", "-", 'N'},
    {"\\W", "a", 'N'},
    {"\\s", " ", 'W'},
    {"\\s+", "\t\n\v\f\r", 'W'},
    {"\\S", "\t", 'N'},
    {"\\.", ".", 'W'},
    {"\\.", "a", 'N'},
    {"\\n\\t\\r\\f\\v\\a", "\n\t\r\f\v\a", 'W'},
    {"\\\\", "\\", 'W'},
    {"\\/\\-\\_", "/-_", 'W'},
    {"^a", "ba", 'N'},
    {"^a", "ab", 'P'},
    {"a$", "ab", 'N'},
    {"a$", "ba", 'P'},
    {"^$", "", 'W'},
    {"^$", "a", 'N'},
    {"a^b", "ab", 'N'},
    {"a$b", "ab", 'N'},
    {"(^a|b)c", "bc", 'W'},
    {"\\Aa\\Z", "a", 'W'},
    {"\\bfoo\\b", "a foo b", 'P'},
    {"\\bfoo\\b", "foo", 'W'},
    {"\\bfoo\\b", "food", 'N'},
    {"\\bfoo\\b", "_foo", 'N'},
    {"\\Boo", "foo", 'P'},
    {"\\Bfoo", "foo", 'N'},
    {"(a*)*", "aaa", 'W'},
    {"(a*)+b", "aab", 'W'},
    {"(a|b*)*c", "abbac", 'W'},
    {"(|a)+", "aa", 'W'},
    {"(a?){3}b", "aab", 'W'},
    {"(.*\\.)?(q_proj|v_proj)$", "model.layers.0.self_attn.q_proj", 'W'},
    {"(.*\\.)?(q_proj)$", "model.layers.0.self_attn.k_proj", 'N'},
    {"layers\\.(?:[0-3])\\.", "model.layers.3.mlp", 'P'},
    {"layers\\.(?:[0-3])\\.", "model.layers.13.mlp", 'N'},
    {".*layer\\.\\d+\\..*(query|key)", "bert.layer.11.attention.key", 'W'},
};

START_TEST(expressions_match_as_in_python)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++) {
        const bool part = matches(table[i].pattern, table[i].text, false);
        const bool whole = matches(table[i].pattern, table[i].text, true);
        ck_assert_msg(part == (table[i].how != 'N') && whole == (table[i].how == 'W'),
                      "\"%s\" in \"%s\": %d %d, not %c", table[i].pattern, table[i].text, part,
                      whole, table[i].how);
    }
}
END_TEST

START_TEST(what_is_wrong_is_refused_with_its_position)
{
    static const struct {
        const char *pattern, *sentence;
        cz_status st;
    } cases[] = {
        {"a(b", "position 4: a group has no )", CZ_INVALID},
        {"a)b", "position 2: a ) without its (", CZ_INVALID},
        {"*a", "position 1: nothing stands before", CZ_INVALID},
        {"a|+", "position 3: nothing stands before", CZ_INVALID},
        {"(?", "this kind of group", CZ_UNSUPPORTED},
        {"a**", "nothing stands before", CZ_INVALID},
        {"a{2}{3}", "position 5: nothing stands before", CZ_INVALID},
        {"{3}a", "nothing stands before", CZ_INVALID},
        {"a+??", "nothing stands before", CZ_INVALID},
        {"a{3,2}", "below its least", CZ_INVALID},
        {"[a", "a set has no ]", CZ_INVALID},
        {"[]", "a set has no ]", CZ_INVALID},
        {"[b-a]", "ends before it begins", CZ_INVALID},
        {"[a-\\d]", "ends before it begins", CZ_INVALID},
        {"a\\", "a backslash ends", CZ_INVALID},
        {"[\\", "a backslash ends", CZ_INVALID},
        {"\xFF", "position 1: not UTF-8", CZ_INVALID},
        {"(a)\\1", "position 5: a reference to a group", CZ_UNSUPPORTED},
        {"(a)\\0", "position 5: a reference to a group", CZ_UNSUPPORTED},
        {"(a)\\9", "position 5: a reference to a group", CZ_UNSUPPORTED},
        {"\\y", "this escape", CZ_UNSUPPORTED},
        {"(?=a)", "looking ahead or behind", CZ_UNSUPPORTED},
        {"(?!a)", "looking ahead or behind", CZ_UNSUPPORTED},
        {"(?<=a)", "looking ahead or behind", CZ_UNSUPPORTED},
        {"(?i)a", "this kind of group", CZ_UNSUPPORTED},
        {"(?P<a", "a group's name does not end", CZ_INVALID},
        {"\\p", "this escape", CZ_UNSUPPORTED},
        {"[[:odd:]]", "this class", CZ_UNSUPPORTED},
        {"[[::]]", "this class", CZ_UNSUPPORTED},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        struct regex *re;
        const cz_status st = regex_compile(cases[i].pattern, &(uint64_t){REGEX_WORK_MAX}, &re);
        ck_assert_msg(st == cases[i].st && strstr(cz_last_error(), cases[i].sentence), "%s: %d, %s",
                      cases[i].pattern, st, cz_last_error());
        ck_assert_ptr_null(re);
    }
}
END_TEST

static cz_status compile(const char *pattern)
{
    struct regex *re;
    const cz_status st = regex_compile(pattern, &(uint64_t){REGEX_WORK_MAX}, &re);
    regex_free(re);
    return st;
}

/* Nothing of these takes long, or much memory. */
START_TEST(expressions_are_bounded)
{
    char text[20000], number[32];
    const clock_t begin = clock();
    ck_fails(compile("((((.{1,255}){1,255}){1,255}){1,255})"), CZ_INVALID);
    ck_fails(compile("((((){4096}){4096}){4096}){4096}"), CZ_INVALID);
    ck_fails(compile("((((){0,4096}){0,4096}){0,4096}){0,4096}"), CZ_INVALID);
    ck_fails(compile("a{99999999999999999999}"), CZ_INVALID);
    /* the match, and as many characters: exactly as many states as there may be */
    sprintf(number, "a{%d}", REGEX_STATES_MAX - 1);
    ck_ok(compile(number));
    ck_assert(!matches(number, "aaa", false));
    sprintf(number, "a{%d}", REGEX_STATES_MAX);
    ck_fails(compile(number), CZ_INVALID);
    for (int depth = REGEX_DEPTH_MAX; depth <= REGEX_DEPTH_MAX + 1; depth++) {
        memset(text, '(', (size_t)depth);
        text[depth] = 'a';
        memset(text + depth + 1, ')', (size_t)depth);
        text[2 * depth + 1] = '\0';
        if (depth == REGEX_DEPTH_MAX)
            ck_ok(compile(text));
        else
            ck_fails(compile(text), CZ_INVALID);
    }
    memset(text, '|', sizeof text - 1); /* alternatives nest nothing */
    text[sizeof text - 1] = '\0';
    ck_fails(compile(text), CZ_INVALID);
    text[1500] = '\0';
    ck_assert(matches(text, "", true));
    memset(text, 'x', sizeof text - 1);
    ck_fails(compile(text), CZ_INVALID);
    ck_assert_double_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 5);
}
END_TEST

/* Expressions that take a backtracking matcher years. */
START_TEST(matches_take_linear_time_and_bounded_work)
{
    static const char *const patterns[] = {"((a*)*)*c", "(a|aa)+c", "(a?){30}a{30}c", "(.*)*(.*)*c",
                                           "(a|b|ab)*bc"};
    char text[5001];
    memset(text, 'a', 5000);
    text[5000] = '\0';
    const clock_t begin = clock();
    for (size_t i = 0; i < CZ_ARRAY_LEN(patterns); i++)
        ck_assert(!matches(patterns[i], text, false));
    ck_assert_double_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 5);

    struct regex *re;
    uint64_t work = 2000;
    bool found;
    ck_ok(regex_compile("(a?){30}c", &(uint64_t){REGEX_WORK_MAX}, &re));
    ck_fails(regex_match(re, text, 5000, false, &work, &found), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "take too long"));
    ck_assert(!found);
    work = 2000;
    ck_ok(regex_match(re, "aac", 3, true, &work, &found));
    ck_assert(found);
    ck_assert_uint_lt(work, 2000); /* the next match has what is left */
    const uint64_t left = work;
    ck_ok(regex_match(re, "aac", 3, true, &work, &found));
    ck_assert_uint_eq(2000 - left, left - work);
    work = 0;
    ck_fails(regex_match(re, "", 0, true, &work, &found), CZ_INVALID);
    regex_free(re);
    regex_free(NULL);
}
END_TEST

/* Sets have no bound on their members: a megabyte of them is read once, not once per member. */
START_TEST(reading_takes_linear_time_and_bounded_work)
{
    static const char *const pieces[] = {"[:", "a", "\xC3\xA9", "a-z"};
    enum { N = 1 << 20 };
    char *pattern = malloc(N + 8);
    ck_assert_ptr_nonnull(pattern);
    struct regex *re = NULL;
    const clock_t begin = clock();
    for (size_t i = 0; i < CZ_ARRAY_LEN(pieces); i++) {
        size_t n = 0;
        pattern[n++] = '[';
        while (n < N) n = (size_t)(stpcpy(pattern + n, pieces[i]) - pattern);
        strcpy(pattern + n, "a]x");
        uint64_t work = REGEX_WORK_MAX;
        ck_ok(regex_compile(pattern, &work, &re));
        regex_free(re);
        pattern[n] = '\0';
        ck_fails(regex_compile(pattern, &work, &re), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "a set has no ]"));
    }
    ck_assert_double_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 2);
    free(pattern);

    uint64_t work = 5000; /* what is compiled has the same bound as what is matched */
    ck_ok(regex_compile("ab", &work, &re));
    regex_free(re);
    const uint64_t one = 5000 - work;
    ck_assert_uint_ge(one, 256);
    ck_assert_uint_lt(one, 1000);
    ck_ok(regex_compile("(ab){9}", &work, &re));
    regex_free(re);
    ck_assert_uint_gt(5000 - work, 2 * one + 8 * 16);
    work = one;
    ck_ok(regex_compile("ab", &work, &re));
    ck_assert_uint_eq(work, 0);
    regex_free(re);
    work = one - 1;
    ck_fails(regex_compile("ab", &work, &re), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "take too long"));
    ck_assert_ptr_null(re);
    ck_assert_uint_eq(work, one - 1);
}
END_TEST

TEST_MAIN("base/regex", reading_takes_linear_time_and_bounded_work, expressions_match_as_in_python,
          what_is_wrong_is_refused_with_its_position, expressions_are_bounded,
          matches_take_linear_time_and_bounded_work)

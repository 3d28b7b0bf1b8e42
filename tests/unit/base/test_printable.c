/* Claims: text from a file is shown on one line, in valid UTF-8, without characters that control a
 * terminal or turn the direction of text; ordinary text of any language stays as it is; escaping
 * twice changes nothing; JSON strings stay exact; the printf of this module prints what the C
 * library's does except for strings, never cuts a character or an escape, and leaves the format
 * itself alone. */
#include "base/printable.h"

#include "base/utf8.h"
#include "tests/support/check_main.h"

#include <stdlib.h>
#include <string.h>

/* All n bytes, in the form. */
static const char *shown(enum printable_form form, const char *text, size_t n)
{
    static char buf[4096];
    FILE *f = fmemopen(buf, sizeof buf, "w");
    printable_put(f, form, text, n);
    fputc('\0', f);
    fclose(f);
    return buf;
}

static const char *line(const char *text)
{
    return shown(PRINTABLE_LINE, text, strlen(text));
}

static const struct {
    const char *text, *line, *json;
} hostile[] = {
    {"a\x1b[2Jb", "a\\x1b[2Jb", "a\\u001b[2Jb"},
    {"\x07\x7f", "\\x07\\x7f", "\\u0007\\u007f"},
    {"a\nb\tc\rd", "a\\nb\\tc\\rd", "a\\nb\\tc\\rd"},
    {"\xc2\x9b"
     "31m",
     "\\u009b31m", "\\u009b31m"}, /* CSI in one character */
    {"\xc2\x80\xc2\x9f\xc2\xa0", "\\u0080\\u009f\xc2\xa0", "\\u0080\\u009f\xc2\xa0"},
    {"\xe2\x80\xae"
     "fdp",
     "\\u202efdp", "\\u202efdp"}, /* right-to-left override */
    {"\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f", "\\u061c\\u200e\\u200f", "\\u061c\\u200e\\u200f"},
    {"\xe2\x80\xaa\xe2\x81\xa6\xe2\x81\xa9", "\\u202a\\u2066\\u2069", "\\u202a\\u2066\\u2069"},
    {"\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029", "\\u2028\\u2029"},
    {"\xe2\x80\x8b\xef\xbb\xbf\xe2\x81\xa0", "\\u200b\\ufeff\\u2060", "\\u200b\\ufeff\\u2060"},
    {"\xff\xc0\x80", "\\xff\\xc0\\x80", "\\ufffd\\ufffd\\ufffd"},                 /* overlong NUL */
    {"\xed\xa0\x80", "\\xed\\xa0\\x80", "\\ufffd\\ufffd\\ufffd"},                 /* a surrogate */
    {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"}, /* too large */
    {"a\xe2\x80", "a\\xe2\\x80", "a\\ufffd\\ufffd"},                              /* cut off */
    {"\x9b\x1b", "\\x9b\\x1b", "\\ufffd\\u001b"}, /* CSI of Latin-1 */
    {"\"\\\b\f", "\"\\\\x08\\x0c", "\\\"\\\\\\b\\f"},
    {"h\xc3\xa9llo \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80", NULL, NULL}, /* as they are */
    {"\xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb", NULL,
     NULL},
};

START_TEST(hostile_text_is_escaped_and_other_text_is_not)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(hostile); i++) {
        const char *text = hostile[i].text, *want = hostile[i].line ? hostile[i].line : text;
        ck_assert_str_eq(line(text), want);
        ck_assert_str_eq(line(want), want);
        ck_assert_str_eq(shown(PRINTABLE_JSON, text, strlen(text)),
                         hostile[i].json ? hostile[i].json : text);
    }
    ck_assert_str_eq(shown(PRINTABLE_LINE, "a\0b", 3), "a\\x00b");
    ck_assert_str_eq(shown(PRINTABLE_TEXT, "a\n\tb\r\x1b", 6), "a\n\tb\\r\\x1b");
}
END_TEST

/* Every byte and every character up to U+FFFF: no control character leaves, and what leaves is
 * valid UTF-8. */
START_TEST(nothing_that_leaves_controls_a_terminal)
{
    char text[8], escape[PRINTABLE_NBYTES];
    for (unsigned byte = 0; byte < 256; byte++) {
        text[0] = (char)byte;
        ck_assert_uint_eq(printable_next(PRINTABLE_LINE, text, 1, escape), 1);
        ck_assert_int_eq(escape[0] == '\0', byte >= 0x20 && byte < 0x7f);
    }
    for (uint32_t c = 0; c < 0x10000; c++) {
        const size_t n = utf8_encode(c, text);
        if (!utf8_is_valid(text, n)) continue; /* surrogates */
        ck_assert_uint_eq(printable_next(PRINTABLE_LINE, text, n, escape), n);
        for (const char *e = escape; *e; e++) ck_assert(*e > ' ' && *e < 0x7f);
        ck_assert_msg(escape[0] || (c >= 0x20 && !(c >= 0x7f && c < 0xa0)), "U+%04X", c);
    }
}
END_TEST

#define SAME(...)                                                                                  \
    do {                                                                                           \
        char want_[700], got_[700];                                                                \
        const size_t n_ = (size_t)snprintf(want_, sizeof want_, __VA_ARGS__);                      \
        ck_assert_uint_eq(printable_format(got_, sizeof got_, 0, __VA_ARGS__), n_);                \
        ck_assert_str_eq(got_, want_);                                                             \
    } while (0)

START_TEST(formats_are_those_of_printf)
{
    SAME("%s", "");
    SAME("100 %% of %s\n", "it");
    SAME("%d|%5d|%-5d|%05d|%+d|% d|%x|%#X|%o", -1, 42, 42, 42, 42, 42, 255u, 255u, 8u);
    SAME("%hhd %hd %hhu %hu", (signed char)-3, (short)-300, (unsigned char)200,
         (unsigned short)40000);
    const int wide = 70000 + 44;
    SAME("%hhd %hd %hhu %hu %hhx", wide, wide, (unsigned)wide, (unsigned)wide, (unsigned)wide);
    SAME("%zd %zu %td %jd %ju", (ssize_t)1 << 40, SIZE_MAX, -((ptrdiff_t)1 << 40), INTMAX_MIN,
         UINTMAX_MAX);
    SAME("%ld %lld %jd %zd %td", -1L, -2LL, (intmax_t)-3, (ssize_t)-4, (ptrdiff_t)5);
    SAME("%lu %llu %ju %zu %08lx", 1UL, 2ULL, (uintmax_t)3, (size_t)4, 0xbeefUL);
    SAME("%.*s|%.3s|%-8s|%8s|%*s|%-*s|", 2, "abcdef", "abcdef", "ab", "cd", 6, "ef", 6, "gh");
    SAME("%g %.9g %.17g %e %5.1f %-9.3g| %+.0f %a %.0Lf", 0.1, 1e-5, 0.1, 1.5, 2.25, 3.0, 4.0, 5.0,
         6.0L);
    SAME("%f %s", 1e308, "after");
    SAME("%c%c %p", 'a', 'b', (void *)0);
    SAME("%-*d|%*d|%.*f", 7, 1, 7, 2, 3, 1.0);
}
END_TEST

START_TEST(strings_are_escaped_and_the_format_is_not)
{
    char got[64];
    printable_format(got, sizeof got, 0, "%s:\n\t%s %c", "a\nb", "\x1b", '\a');
    ck_assert_str_eq(got, "a\\nb:\n\t\\x1b \\x07");
    printable_format(got, sizeof got, 0, "[%6s] [%-6s]", "\x1b", "\n");
    ck_assert_str_eq(got, "[  \\x1b] [\\n    ]");
    /* A length given by the caller is exact; one in the format cuts between characters. */
    printable_format(got, sizeof got, 0, "%.*s|%.2s|%.4s", 2, "a\xe2\x82\xac", "a\xe2\x82\xac",
                     "a\xe2\x82\xac.");
    ck_assert_str_eq(got, "a\\xe2|a|a\xe2\x82\xac");
    printable_format(got, sizeof got, 0, "%.3s|%.2s",
                     "a\xff"
                     "bcd",
                     "\xff\xfe\xfd");
    ck_assert_str_eq(got, "a\\xffb|\\xff\\xfe"); /* what is no character is cut anywhere */
}
END_TEST

START_TEST(nothing_is_cut_in_two)
{
    char got[32], whole[64];
    const char *text = "a\x1b\xe2\x82\xac\xff\xf0\x9f\x98\x80z";
    const size_t n = printable_format(whole, sizeof whole, 0, "%s", text);
    ck_assert_uint_eq(n, strlen(whole));
    for (size_t cap = 1; cap < sizeof got; cap++) {
        ck_assert_uint_eq(printable_format(got, cap, 0, "%s", text), n);
        const size_t len = strlen(got);
        ck_assert_uint_lt(len, cap);
        ck_assert_int_eq(strncmp(got, whole, len), 0);
        ck_assert(len == 0 || len == 1 || len == 5 || len == 8 || len == 12 || len == 16 ||
                  len == 17);
    }
}
END_TEST

START_TEST(a_long_string_loses_its_middle)
{
    char text[5001], got[256];
    for (size_t i = 0; i < 5000; i++) text[i] = (char)('a' + i % 26);
    text[5000] = '\0';
    printable_format(got, sizeof got, 100, "%s: is too long", text);
    ck_assert_uint_eq(strlen(got), 100 + strlen("…: is too long"));
    ck_assert_int_eq(strncmp(got, text, 75), 0);
    ck_assert_ptr_eq(strstr(got, "…"), got + 75);
    ck_assert_int_eq(strncmp(strstr(got, "…") + 3, text + 4975, 25), 0);
    ck_assert_ptr_nonnull(strstr(got, ": is too long"));
    printable_format(got, sizeof got, 100, "%s", text + 4900); /* just what is allowed */
    ck_assert_str_eq(got, text + 4900);
    printable_format(got, sizeof got, 100, "%s", text + 4899);
    ck_assert_uint_eq(strlen(got), 100 + strlen("…"));
    for (size_t at = 4903; at < 5000; at++) { /* an escape of four characters, anywhere */
        const char was = text[at];
        text[at] = '\x1b';
        printable_format(got, sizeof got, 100, "%s", text + 4903);
        ck_assert_uint_eq(strlen(got), 100);
        ck_assert_ptr_null(strstr(got, "…"));
        text[at] = was;
    }
}
END_TEST

START_TEST(a_print_of_any_length_is_whole)
{
    char *text = malloc(100001), *buf = NULL;
    size_t n;
    memset(text, '\x1b', 100000);
    text[100000] = '\0';
    FILE *f = open_memstream(&buf, &n);
    printable_print(f, "%s\n", text);
    fclose(f);
    ck_assert_uint_eq(n, 400001);
    ck_assert_int_eq(strncmp(buf + 400000 - 4, "\\x1b\n", 5), 0);
    free(buf);
    free(text);
}
END_TEST

TEST_MAIN("base/printable", hostile_text_is_escaped_and_other_text_is_not,
          nothing_that_leaves_controls_a_terminal, formats_are_those_of_printf,
          strings_are_escaped_and_the_format_is_not, nothing_is_cut_in_two,
          a_long_string_loses_its_middle, a_print_of_any_length_is_whole)

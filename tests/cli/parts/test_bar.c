/* Claims: a bar has as many marks as its share of the width, durations and rates are rounded and
 * written as bar.h says, the line of a long job has its amounts, its rate and the time that is
 * left, and nothing is drawn early, too often, where it is not wanted, or wider than the terminal.
 */
#include "tests/support/check_main.h"
#include "tools/czero/bar.c" /* the tools are no library */

#include <stdlib.h>

static const int64_t second_ns = 1000 * 1000 * 1000;

START_TEST(marks_are_the_share_of_the_width)
{
    char text[BAR_WIDTH_MAX + 4];
    bar_draw(text, 3, 0.5);
    ck_assert_str_eq(text, "");
    bar_draw(text, 4, 0.5);
    ck_assert_str_eq(text, "[##..] ");
    bar_draw(text, 10, 0);
    ck_assert_str_eq(text, "[..........] ");
    bar_draw(text, 10, 0.14);
    ck_assert_str_eq(text, "[#.........] ");
    bar_draw(text, 10, 0.15);
    ck_assert_str_eq(text, "[##........] ");
    bar_draw(text, 10, 1);
    ck_assert_str_eq(text, "[##########] ");
    bar_draw(text, BAR_WIDTH_MAX + 1, 1);
    ck_assert_str_eq(text, "[########################] ");
}
END_TEST

START_TEST(durations_are_hours_minutes_and_seconds)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0:00"},         {6.4, "0:06"},         {6.5, "0:07"},
                 {59.4, "0:59"},      {59.6, "1:00"},        {3599.4, "59:59"},
                 {3599.6, "1:00:00"}, {3723, "1:02:03"},     {360000, "100:00:00"},
                 {-1, "0:00"},        {(double)NAN, "0:00"}, {(double)INFINITY, "0:00"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[32];
        bar_duration(cases[i].seconds, text, sizeof text);
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

START_TEST(rates_have_three_figures)
{
    static const struct {
        double per_s;
        const char *text;
    } cases[] = {{0, "0"},         {350.4, "350"},     {9999, "9999"},     {10000, "10.0k"},
                 {12440, "12.4k"}, {999949, "999.9k"}, {1000000, "1.00M"}, {1240000, "1.24M"}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        char text[32];
        bar_rate(cases[i].per_s, text, sizeof text);
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

/* What bar_update() draws `seconds` after the beginning, and `since` after the last line. */
static const char *drawn(struct bar *bar, double seconds, double since, uint64_t done,
                         uint64_t total)
{
    static char text[512];
    memset(text, 0, sizeof text);
    bar->start_ns = clock_now_ns() - (int64_t)(seconds * (double)second_ns);
    bar->last_draw_ns = clock_now_ns() - (int64_t)(since * (double)second_ns);
    FILE *kept = stderr;
    stderr = fmemopen(text, sizeof text - 1, "w");
    bar_update(done, total, bar);
    fclose(stderr);
    stderr = kept;
    return text;
}

START_TEST(the_line_has_amounts_rate_and_the_time_that_is_left)
{
    struct bar bar;
    bar_begin(&bar, "reading", true);
    ck_assert(!bar.shown);
    bar.shown = true;
    /* Standard error is a file or a pipe here: 80 columns. */
    ck_assert_str_eq(drawn(&bar, 100, 1, 20000000000, 80000000000),
                     "\rreading [######..................] 20.00 of 80.00 GB  0.20 GB/s  eta "
                     "5:00\033[K");
    ck_assert(bar.line_open);
    ck_assert_str_eq(drawn(&bar, 100, 1, 80000000000, 80000000000),
                     "\rreading [########################] 80.00 of 80.00 GB  0.80 GB/s  eta "
                     "0:00\033[K");
    ck_assert_str_eq(drawn(&bar, 100, 1, 0, 80000000000),
                     "\rreading [........................] 0.00 of 80.00 GB  0.00 GB/s  eta "
                     "0:00\033[K");
    ck_assert_str_eq(drawn(&bar, 100, 1, 0, 0), /* nothing to do is done */
                     "\rreading [########################] 0.00 of 0.00 GB  0.00 GB/s  eta "
                     "0:00\033[K");
    bar.what = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901";
    const char *text = drawn(&bar, 100, 1, 1, 2);
    ck_assert_uint_eq(strlen(text), 1 + 79 + 3);
    ck_assert_int_eq(strncmp(text + 1, bar.what, 79), 0);
}
END_TEST

START_TEST(lines_come_late_seldom_and_where_they_are_wanted)
{
    struct bar bar;
    bar_begin(&bar, "reading", false);
    ck_assert(bar.shown == (isatty(STDERR_FILENO) == 1));
    ck_assert(bar.start_ns == bar.last_draw_ns && bar.start_ns <= clock_now_ns());
    bar.shown = false;
    ck_assert_str_eq(drawn(&bar, 9, 9, 1, 2), "");
    bar.shown = true;
    ck_assert_str_eq(drawn(&bar, 0.2, 0.2, 1, 2), "");
    ck_assert(!bar.line_open);
    bar_end(&bar);
    ck_assert_str_ne(drawn(&bar, 0.4, 0.4, 1, 2), "");
    ck_assert_int_le(clock_now_ns() - bar.last_draw_ns, second_ns);
    ck_assert_str_eq(drawn(&bar, 0.4, 0, 1, 2), "");
    ck_assert_str_ne(drawn(&bar, 0.4, 0.06, 1, 2), "");
    char text[64] = "";
    FILE *kept = stderr;
    stderr = fmemopen(text, sizeof text - 1, "w");
    bar_end(&bar);
    bar_end(&bar);
    fclose(stderr);
    stderr = kept;
    ck_assert_str_eq(text, "\r\033[K");
}
END_TEST

TEST_MAIN("cli/bar", marks_are_the_share_of_the_width, durations_are_hours_minutes_and_seconds,
          rates_have_three_figures, the_line_has_amounts_rate_and_the_time_that_is_left,
          lines_come_late_seldom_and_where_they_are_wanted)

/* Claims: the cells of a confusion matrix are as wide as the longest count needs, in rows,
 * and are as dark as their share of the row; many classes leave small cells without counts; the
 * accuracy is the diagonal's share. */
#include "tests/support/check_main.h"
#include "tools/czero/plot/plot_matrix.c" /* the tools are no library */

#include <string.h>

static double drawn_width, drawn_height;

void plot_svg_begin(FILE *out, double width, double height, const char *title)
{
    (void)out, (void)title;
    drawn_width = width;
    drawn_height = height;
}

void plot_svg_text(FILE *out, double x, double y, const char *kind, const char *text,
                   size_t columns)
{
    (void)columns;
    fprintf(out, "%s %.1f %.1f %s\n", kind, x, y, text);
}

static const char *const labels[40] = {"a", "bb", "c"};

/* What is drawn, until the next call. */
static const char *drawn(const double *confusion, size_t n, const char *const *names)
{
    static char text[1 << 18];
    FILE *f = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(f);
    plot_draw_matrix(confusion, n, names, NULL, f);
    fclose(f);
    return text;
}

static void has(const char *text, const char *fmt, ...)
{
    char want[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(want, sizeof want, fmt, ap);
    va_end(ap);
    ck_assert_msg(strstr(text, want) != NULL, "no %sin\n%s", want, text);
}

START_TEST(cells_are_as_wide_as_the_longest_count)
{
    /* The longest count comes first, last, or is short. */
    static const double cases[][4] = {{123456789, 2, 3, 1}, {1, 3, 0, 123456789}, {1, 3, 0, 4}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const double side = i < 2 ? fmax(44, 10 * PLOT_LETTER) : fmax(44, 2 * PLOT_LETTER);
        const double left = PLOT_PAD + 20 + 4 * PLOT_LETTER + 10;
        const double top = PLOT_PAD + 24 + (4 * PLOT_LETTER + 10) * 0.75;
        const char *text = drawn(cases[i], 2, labels);
        for (size_t k = 0; k < 4; k++) {
            const double x = left + (double)(k % 2) * side, y = top + (double)(k / 2) * side;
            const double *row = cases[i] + k / 2 * 2, share = cases[i][k] / (row[0] + row[1]);
            has(text, "x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill-opacity=\"%.3f\"",
                x + 1, y + 1, side - 2, side - 2, 0.06 + 0.9 * share);
            has(text, "count%s %.1f %.1f %.0f\n", share > 0.5 ? " light" : "", x + side / 2,
                y + side / 2 + 4, cases[i][k]);
        }
        ck_assert_double_eq(drawn_height, top + 2 * side + 36);
        ck_assert_double_ge(drawn_width, left + 2 * side);
    }
    has(drawn(cases[2], 2, labels), "accuracy 0.6250 over 8 examples\n");
}
END_TEST

START_TEST(many_classes_have_small_cells)
{
    static double confusion[40 * 40];
    const char *names[40];
    for (size_t i = 0; i < 40; i++) names[i] = "x";
    for (size_t n = 24; n <= 40; n++) {
        const double side = n == 24 ? 44 : fmax(12, 960 / (double)n);
        const char *text = drawn(confusion, n, names);
        has(text, "width=\"%.1f\" height=\"%.1f\"", side - 2, side - 2);
        ck_assert_int_eq(strstr(text, "count ") != NULL, side >= 40);
        has(text, "accuracy 0.0000 over 0 examples\n");
    }
}
END_TEST

TEST_MAIN("cli/plot_matrix", cells_are_as_wide_as_the_longest_count, many_classes_have_small_cells)

/* Claims: reports are scikit-learn's to the byte (tests/interop/models/class_report_check.py made the
 * goldens and compares thousands more); absent classes are named, not averaged; names of any
 * display width line up; metrics go by name. */
#include "engine/report/class_report.h"
#include "base/text/text_width.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define N_MAX 8

struct golden {
    int n, digits;
    char names[N_MAX][64];
    const char *name_ptrs[N_MAX];
    double confusion[N_MAX * N_MAX];
    char *text; /* the whole file */
    const char *report;
};

static void take_line(const char **at, char *line, size_t nbytes)
{
    size_t len = strcspn(*at, "\n");
    ck_assert_uint_lt(len, nbytes);
    memcpy(line, *at, len);
    line[len] = '\0';
    *at += len + 1;
}

static void golden_load(struct golden *g, const char *name)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "class_report/%s.txt", name);
    ck_ok(file_load(test_fixture(path), 1 << 16, &g->text, NULL));
    const char *at = g->text;
    take_line(&at, line, sizeof line);
    ck_assert_int_eq(sscanf(line, "%d %d", &g->n, &g->digits), 2);
    for (int k = 0; k < g->n; k++) {
        take_line(&at, g->names[k], sizeof g->names[k]);
        g->name_ptrs[k] = g->names[k];
    }
    for (int k = 0; k < g->n; k++) {
        take_line(&at, line, sizeof line);
        char *number = line;
        for (int i = 0; i < g->n; i++) g->confusion[k * g->n + i] = strtod(number, &number);
    }
    g->report = at;
}

static char *print(const double *confusion, size_t n, const char *const *names, int digits,
                   bool matrix)
{
    char *text;
    size_t nbytes;
    FILE *stream = open_memstream(&text, &nbytes);
    ck_ok(class_report_print(stream, confusion, n, names, digits, matrix));
    fclose(stream);
    return text;
}

START_TEST(reports_are_scikit_learns)
{
    static const char *const names[] = {"six", "never_predicted", "absent", "one_class"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        struct golden g;
        golden_load(&g, names[i]);
        char *text = print(g.confusion, (size_t)g.n, g.name_ptrs, g.digits, false);
        ck_assert_msg(strncmp(text, g.report, strlen(g.report)) == 0, "%s:\n%s", names[i], text);
        const char *rest = text + strlen(g.report);
        ck_assert_str_eq(rest, strcmp(names[i], "absent") == 0
                                   ? "\nneither labelled nor predicted: absent\n"
                                   : "");
        free(text);
        free(g.text);
    }
}
END_TEST

START_TEST(absent_classes_are_not_averaged)
{
    /* Class 1 is absent, class 2 only labelled: its F1 of 0 counts, absence does not. */
    const double confusion[] = {3, 0, 0, 0, 0, 0, 1, 0, 0};
    struct class_figures f[3];
    struct class_summary s = class_report_compute(confusion, 3, f);
    ck_assert_double_eq(s.n_examples, 4);
    ck_assert_double_eq(s.accuracy, 0.75);
    ck_assert_double_eq(f[0].precision, 0.75);
    ck_assert_double_eq(f[0].recall, 1);
    ck_assert_double_eq(f[0].f1, 6.0 / 7);
    ck_assert_double_eq(f[1].f1, 0);
    ck_assert_double_eq(f[2].support, 1);
    ck_assert_double_eq_tol(s.macro.f1, 3.0 / 7, 1e-15);
    ck_assert_double_eq_tol(s.weighted.f1, 4.5 / 7, 1e-15);
    ck_assert_double_eq(s.macro.support, 4);
}
END_TEST

START_TEST(metrics_go_by_name)
{
    const double confusion[] = {3, 1, 0, 4};
    struct class_summary s = class_report_compute(confusion, 2, NULL);
    ck_assert_double_eq(class_report_metric(&s, "accuracy"), 7.0 / 8);
    ck_assert_double_eq(class_report_metric(&s, "macro_f1"), s.macro.f1);
    ck_assert_double_eq(class_report_metric(&s, "weighted_f1"), s.weighted.f1);
    ck_assert_double_eq(class_report_metric(&s, "macro_precision"), s.macro.precision);
    ck_assert_double_eq(class_report_metric(&s, "macro_recall"), s.macro.recall);
    ck_assert(isnan(class_report_metric(&s, "loss")));
    ck_assert(isnan(class_report_metric(&s, "")));
}
END_TEST

START_TEST(nothing_at_all_is_zeros)
{
    const double confusion[] = {0, 0, 0, 0};
    struct class_summary s = class_report_compute(confusion, 2, NULL);
    ck_assert_double_eq(s.accuracy, 0);
    ck_assert_double_eq(s.macro.f1, 0);
    ck_assert_double_eq(s.weighted.f1, 0);
    s = class_report_compute(NULL, 0, NULL);
    ck_assert_double_eq(s.n_examples, 0);
    const char *const names[] = {"a", "b"};
    free(print(confusion, 2, names, 2, true));
}
END_TEST

START_TEST(wide_names_line_up)
{
    const char *const names[] = {"无", "喜好", "a name of some length"};
    const double confusion[] = {10, 2, 0, 1, 12345, 0, 0, 0, 7};
    char *text = print(confusion, 3, names, 2, true);
    ck_assert_str_eq(text, "                       precision    recall  f1-score   support\n"
                           "\n"
                           "                   无       0.91      0.83      0.87        12\n"
                           "                 喜好       1.00      1.00      1.00     12346\n"
                           "a name of some length       1.00      1.00      1.00         7\n"
                           "\n"
                           "             accuracy                           1.00     12365\n"
                           "            macro avg       0.97      0.94      0.96     12365\n"
                           "         weighted avg       1.00      1.00      1.00     12365\n"
                           "\n"
                           "confusion matrix (rows: true class, columns: predicted class)\n"
                           "\n"
                           "                       无   喜好  a name of some length\n"
                           "                   无  10      2                      0\n"
                           "                 喜好   1  12345                      0\n"
                           "a name of some length   0      0                      7\n");
    free(text);
}
END_TEST

START_TEST(names_cannot_move_the_cursor)
{
    ck_assert_uint_eq(text_width("abc"), 3);
    ck_assert_uint_eq(text_width("中文"), 4);
    ck_assert_uint_eq(text_width("e\xCC\x81"), 1);        /* e, combining acute */
    ck_assert_uint_eq(text_width("\xF0\x9F\x98\x80"), 2); /* an emoji */
    ck_assert_uint_eq(text_width("a\x1B[2J\n"), 10);
    ck_assert_uint_eq(text_width("\xFF\xE4\xBD"), 12); /* not UTF-8, cut off */
    ck_assert_uint_eq(text_width(""), 0);
    const char *const names[] = {"\x1B[2J\xE2\x80\xAE", "\xFF"};
    const double confusion[] = {1, 0, 0, 1};
    char *text = print(confusion, 2, names, 2, true);
    ck_assert_ptr_null(strpbrk(text, "\x1B\xFF\xE2"));
    ck_assert_ptr_nonnull(strstr(text, "\\x1b[2J\\u202e"));
    free(text);
}
END_TEST

START_TEST(failures_are_named)
{
    const char *const names[] = {"a"};
    const double confusion[] = {1};
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    ck_fails(class_report_print(full, confusion, 1, names, 2, true), CZ_IO);
    fclose(full);
    ck_fails(class_report_print(stdout, confusion, 1, names, 7, false), CZ_INVALID);
    ck_fails(class_report_print(stdout, confusion, 1, names, 1, false), CZ_INVALID);
}
END_TEST

START_TEST(one_row_of_logits)
{
    const float logits[] = {1.0f, 3.0f, 3.0f, -2.0f}, far[] = {0.0f, 2000.0f};
    const double sum = exp(1) + 2 * exp(3) + exp(-2);
    ck_assert_uint_eq(class_likeliest(logits, 4), 1); /* the first of equals */
    for (size_t k = 0; k < 4; k++)
        ck_assert_double_eq_tol(class_loss(logits, 4, k), log(sum) - (double)logits[k], 1e-12);
    ck_assert_double_eq(class_loss(far, 2, 0), 2000.0); /* where a probability would be 0 */
}
END_TEST

TEST_MAIN("engine/class_report", reports_are_scikit_learns, absent_classes_are_not_averaged,
          metrics_go_by_name, nothing_at_all_is_zeros, wide_names_line_up,
          names_cannot_move_the_cursor, one_row_of_logits, failures_are_named)

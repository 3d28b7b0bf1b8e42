/* Claims: figures of values are scikit-learn's and SciPy's (numbers below were computed by them),
 * ties share their ranks and constants have no correlation; figures of sets are scikit-learn's for
 * several labels. */
#include "engine/report/target_report.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

START_TEST(values_have_known_figures)
{
    static const double p[] = {1.5, 2.0, 2.0, 4.5, 3.0}, t[] = {1.0, 2.5, 2.0, 4.0, 5.0};
    struct value_summary s;
    ck_ok(value_report_compute(p, t, 5, &s));
    ck_assert_double_eq_tol(s.mse, 0.95, 1e-12);
    ck_assert_double_eq_tol(s.mae, 0.7, 1e-12);
    ck_assert_double_eq_tol(value_report_metric(&s, "pearson"), 0.7606598261858127, 1e-12);
    ck_assert_double_eq_tol(value_report_metric(&s, "spearman"), 0.8720815992723809, 1e-12);
    ck_assert_double_eq_tol(value_report_metric(&s, "r2"), 0.5343137254901961, 1e-12);
    ck_assert(isnan(value_report_metric(&s, "f1")));
    static const double same[] = {2, 2};
    ck_ok(value_report_compute(same, same, 2, &s));
    ck_assert(isnan(s.pearson) && isnan(s.spearman) && s.r2 == 1 && s.mse == 0);
}
END_TEST

START_TEST(sets_are_counted)
{
    static const float logits[2][3] = {{2, -1, 0}, {-3, 4, -0.1f}},
                       targets[2][3] = {{1, 0, 1}, {1, 1, 0}};
    struct entity_counts counts[3] = {{0}};
    struct class_figures each[3];
    ck_assert(set_report_count(logits[0], targets[0], 3, 0.5, counts));
    ck_assert(!set_report_count(logits[1], targets[1], 3, 0.5, counts));
    const struct entity_summary s = set_report_compute(counts, 3, each);
    ck_assert_double_eq(each[0].recall, 0.5);
    ck_assert_double_eq(each[0].precision, 1);
    ck_assert_double_eq_tol(s.micro.f1, 6.0 / 7, 1e-15);
    ck_assert_double_eq_tol(s.macro.f1, (2.0 / 3 + 2) / 3, 1e-15);
    ck_assert_double_eq_tol(s.weighted.f1, (2 * 2.0 / 3 + 2) / 4, 1e-15);
    ck_assert_double_eq_tol(set_report_loss(logits[0], targets[0], 3),
                            (log1p(exp(-2)) + log1p(exp(-1)) + log(2)) / 3, 1e-7);
    memset(counts, 0, sizeof counts);
    ck_assert(!set_report_count(logits[0], targets[0], 3, 0.9, counts)); /* 0.88 is not enough */
    ck_assert_double_eq(counts[0].found, 0);
}
END_TEST

START_TEST(reports_have_all_classes)
{
    static const char *const names[] = {"a", "bc"};
    static const struct entity_counts counts[] = {{4, 2, 1}, {0, 0, 0}};
    char *text;
    size_t nbytes;
    FILE *stream = open_memstream(&text, &nbytes);
    ck_ok(set_report_print(stream, counts, 2, names, 2));
    fclose(stream);
    ck_assert_ptr_nonnull(strstr(text, "           a       0.50      0.25      0.33         4\n"));
    ck_assert_ptr_nonnull(strstr(text, "          bc       0.00      0.00      0.00         0\n"));
    ck_assert_ptr_nonnull(strstr(text, "   macro avg       0.25      0.12      0.17         4\n"));
    free(text);
    ck_fails(set_report_print(stdout, counts, 2, names, 9), CZ_INVALID);
}
END_TEST

TEST_MAIN("engine/target_report", values_have_known_figures, sets_are_counted,
          reports_have_all_classes)

/* Claims, for every element-wise optimizer: rows agree to the bit; shards and threads do not show;
 * bad arguments are refused. Adam moves nothing without gradient, moments and decay; Lion's sign(0)
 * is 0, so padding and untouched parameters stay; SGD without momentum needs no state and leaves
 * one that it is given. */
#include "tests/support/gpu/step_ops.h"

static const struct step_test *const adam = &step_tests[STEP_ADAM];
static const struct step_test *const lion = &step_tests[STEP_LION];
static const struct step_test *const sgd = &step_tests[STEP_SGD];

static bool has_row(size_t r)
{
    return step_row_at(r) && agree_row_runs(step_row_at(r));
}

START_TEST(rows_agree_to_the_bit)
{
    for (int op = 0; op < STEP_N_OPS; op++) step_test_rows(&step_tests[op]);
}
END_TEST
START_TEST(shards_do_not_show)
{
    for (int op = 0; op < STEP_N_OPS; op++) step_test_shards(&step_tests[op]);
}
END_TEST
START_TEST(threads_do_not_show)
{
    for (int op = 0; op < STEP_N_OPS; op++) step_test_threads(&step_tests[op]);
}
END_TEST
START_TEST(bad_arguments_are_refused)
{
    for (int op = 0; op < STEP_N_OPS; op++) step_test_arguments(&step_tests[op]);
}
END_TEST

START_TEST(nothing_moves_without_gradient)
{
    for (size_t r = 0; has_row(r); r++) {
        float p[19], g[19] = {0}, m[19] = {0}, v[19] = {0};
        for (int i = 0; i < 19; i++) p[i] = 0.1f * (float)i - 1;
        step_run_fp32(adam, r, p, g, m, v, 19, &step_middle, 0);
        for (int i = 0; i < 19; i++) ck_assert_float_eq(p[i], 0.1f * (float)i - 1);
    }
}
END_TEST

START_TEST(sign_of_zero_is_zero)
{
    for (size_t r = 0; has_row(r); r++) {
        float p[19], g[19], m[19] = {0};
        for (int i = 0; i < 19; i++) p[i] = 1, g[i] = i % 2 ? 0.0f : -0.0f;
        g[7] = 1e-30f, g[11] = -1e-30f;
        step_run_fp32(lion, r, p, g, m, NULL, 19, &step_middle, 0);
        for (int i = 0; i < 19; i++) {
            float want = i == 7 ? 1 - 3e-3f : i == 11 ? 1 + 3e-3f : 1;
            ck_assert_float_eq(p[i], want);
        }
    }
}
END_TEST

START_TEST(plain_sgd_needs_no_state)
{
    for (size_t r = 0; has_row(r); r++) {
        float p[5] = {1, 1, 1, 1, 1}, g[5] = {1, 2, 3, 4, 5}, kept[5] = {7, 7, 7, 7, 7};
        step_run_fp32(sgd, r, p, g, NULL, NULL, 5, &step_first, 12);
        step_run_fp32(sgd, r, p, g, kept, NULL, 5, &step_first, 12);
        for (int i = 0; i < 5; i++) {
            ck_assert_float_eq_tol(p[i], 1 - 0.02f * g[i], 1e-7f);
            ck_assert_float_eq(kept[i], 7);
        }
    }
}
END_TEST

START_TEST(names_are_those_of_the_table)
{
    ck_assert_str_eq(step_name(STEP_ADAM), "adam");
    ck_assert_str_eq(step_name(STEP_ADAGRAD), "adagrad");
    ck_assert_str_eq(step_name(STEP_LION), "lion");
    ck_assert_str_eq(step_name(STEP_SGD), "sgd");
}
END_TEST

TEST_MAIN_SECONDS(240, "ops/step", rows_agree_to_the_bit, shards_do_not_show, threads_do_not_show,
                  bad_arguments_are_refused, nothing_moves_without_gradient, sign_of_zero_is_zero,
                  plain_sgd_needs_no_state, names_are_those_of_the_table)

/* Claims: Lion's rows agree to the bit; shards and threads do not show; bad arguments are refused;
 * sign(0) is 0, so padding and untouched parameters stay. */
#include "ops/lion/lion_impl.h"
#include "tests/support/gpu/step_ops.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct lion_row *const *rows = lion_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

static const struct step_op op = {"lion", 1, STEP_LION_VARIANTS, lion_wire, row, step_lion};

START_TEST(rows_agree_to_the_bit)
{
    step_test_rows(&op);
}
END_TEST
START_TEST(shards_do_not_show)
{
    step_test_shards(&op);
}
END_TEST
START_TEST(threads_do_not_show)
{
    step_test_threads(&op);
}
END_TEST
START_TEST(bad_arguments_are_refused)
{
    step_test_arguments(&op);
}
END_TEST

START_TEST(sign_of_zero_is_zero)
{
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        float p[19], g[19], m[19] = {0};
        for (int i = 0; i < 19; i++) p[i] = 1, g[i] = i % 2 ? 0.0f : -0.0f;
        g[7] = 1e-30f, g[11] = -1e-30f;
        step_run_fp32(&op, r, p, g, m, NULL, 19, &step_middle, 0);
        for (int i = 0; i < 19; i++) {
            float want = i == 7 ? 1 - 3e-3f : i == 11 ? 1 + 3e-3f : 1;
            ck_assert_float_eq(p[i], want);
        }
    }
}
END_TEST

TEST_MAIN("ops/lion", rows_agree_to_the_bit, shards_do_not_show, threads_do_not_show,
          bad_arguments_are_refused, sign_of_zero_is_zero)

/* Claims: Adam's rows agree to the bit; shards and threads do not show; bad arguments are refused;
 * an element with zero gradient, zero moments and no decay does not move. */
#include "ops/adam/adam_impl.h"
#include "tests/support/gpu/step_ops.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct adam_row *const *rows = adam_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

static const struct step_op op = {"adam", 2, STEP_ADAM_VARIANTS, adam_wire, row, step_adam};

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

START_TEST(nothing_moves_without_gradient)
{
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        float p[19], g[19] = {0}, m[19] = {0}, v[19] = {0};
        for (int i = 0; i < 19; i++) p[i] = 0.1f * (float)i - 1;
        step_run_fp32(&op, r, p, g, m, v, 19, &step_middle, 0);
        for (int i = 0; i < 19; i++) ck_assert_float_eq(p[i], 0.1f * (float)i - 1);
    }
}
END_TEST

TEST_MAIN("ops/adam", rows_agree_to_the_bit, shards_do_not_show, threads_do_not_show,
          bad_arguments_are_refused, nothing_moves_without_gradient)

/* Claims: SGD's rows agree to the bit in every mode; shards and threads do not show; bad arguments
 * are refused; without momentum no state is needed. */
#include "ops/sgd/sgd_impl.h"
#include "tests/support/gpu/step_ops.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct sgd_row *const *rows = sgd_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

static const struct step_op op = {"sgd", 1, STEP_SGD_VARIANTS, sgd_wire, row, step_sgd};

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

START_TEST(plain_sgd_needs_no_state)
{
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        float p[5] = {1, 1, 1, 1, 1}, g[5] = {1, 2, 3, 4, 5};
        step_run_fp32(&op, r, p, g, NULL, NULL, 5, &step_first, 12);
        for (int i = 0; i < 5; i++) ck_assert_float_eq_tol(p[i], 1 - 0.01f * g[i], 1e-7f);
    }
}
END_TEST

TEST_MAIN("ops/sgd", rows_agree_to_the_bit, shards_do_not_show, threads_do_not_show,
          bad_arguments_are_refused, plain_sgd_needs_no_state)

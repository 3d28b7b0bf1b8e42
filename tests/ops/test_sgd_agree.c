/* Claims: SGD's rows agree to the bit in every mode; shards and threads do not show; bad arguments
 * are refused; without momentum no state is needed. */
#include "ops/sgd/sgd_impl.h"
#include "tests/support/step_agree.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct sgd_row *const *rows = sgd_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

/* Bit 0 is for the scalars (first step or not), bit 1 decay, then momentum, nesterov, dampening. */
static cz_status run(struct ops *ops, const struct step_tensors *t, const struct step_scalars *s,
                     int variant)
{
    int mode = variant >> 2;
    struct sgd_args args = {.t = *t,
                            .scalars = s,
                            .momentum = mode < 3 ? 0.9f : 0,
                            .dampening = mode == 2 ? 0.5f : 0,
                            .weight_decay = variant & 2 ? 0.1f : 0,
                            .nesterov = mode == 1};
    return ops->sgd(ops, NULL, &args);
}

static const struct step_op op = {"sgd", 1, 16, sgd_wire, row, run};

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

/* Claims: Adagrad's rows agree to the bit; shards and threads do not show; bad arguments are
 * refused. */
#include "ops/adagrad/adagrad_impl.h"
#include "tests/support/step_agree.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct adagrad_row *const *rows = adagrad_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

static cz_status run(struct ops *ops, const struct step_tensors *t, const struct step_scalars *s,
                     int variant)
{
    struct adagrad_args args = {
        .t = *t, .scalars = s, .eps = 1e-10f, .weight_decay = variant & 2 ? 0.1f : 0};
    return ops->adagrad(ops, NULL, &args);
}

static const struct step_op op = {"adagrad", 1, 4, adagrad_wire, row, run};

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

TEST_MAIN("ops/adagrad", rows_agree_to_the_bit, shards_do_not_show, threads_do_not_show,
          bad_arguments_are_refused)

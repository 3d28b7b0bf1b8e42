/* Claims: Adagrad's rows agree to the bit; shards and threads do not show; bad arguments are
 * refused. */
#include "ops/adagrad/adagrad_impl.h"
#include "tests/support/gpu/step_ops.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct adagrad_row *const *rows = adagrad_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

static const struct step_op op = {"adagrad",    1,   STEP_ADAGRAD_VARIANTS,
                                  adagrad_wire, row, step_adagrad};

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

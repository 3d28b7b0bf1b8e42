/* Claims: with the 1-bit optimizers N steps are the same as k steps, a new process and N − k steps,
 * before, at and after the freeze: masters, states, counters, every rank's errors, losses and
 * norms, to the bit. */
#include "tests/support/zero/onebit_trial.h"

enum { FP32 = 0, BF16, FP16 };

START_TEST(one_bit_adam_goes_on_as_if_it_had_never_stopped)
{
    onebit_check_cell(&(const struct onebit_cell){0, 2, 0, FP32}, false);
    onebit_check_cell(&(const struct onebit_cell){0, 3, 1, BF16}, true);
    onebit_check_cell(&(const struct onebit_cell){0, 2, 1, FP16}, false);
}
END_TEST

START_TEST(zero_one_adam_too)
{
    onebit_check_cell(&(const struct onebit_cell){1, 3, 0, BF16}, false);
    onebit_check_cell(&(const struct onebit_cell){1, 2, 1, FP32}, true);
    onebit_check_cell(&(const struct onebit_cell){1, 1, 0, FP16}, false);
}
END_TEST

START_TEST(one_bit_lamb_too)
{
    onebit_check_cell(&(const struct onebit_cell){2, 2, 0, FP32}, true);
    onebit_check_cell(&(const struct onebit_cell){2, 3, 1, FP16}, false);
}
END_TEST

TEST_MAIN("engine/onebit_resume", one_bit_adam_goes_on_as_if_it_had_never_stopped,
          zero_one_adam_too, one_bit_lamb_too)

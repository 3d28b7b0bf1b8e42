/* Claim: test_onebit_resume.c's, for each optimizer, stage, precision and one to three ranks. */
#include "tests/support/zero/onebit_trial.h"

static void all_cells(int optimizer)
{
    for (int world = 1; world <= 3; world++)
        for (int stage = 0; stage < 2; stage++)
            for (int dtype = 0; dtype < 3; dtype++)
                onebit_check_cell(&(const struct onebit_cell){optimizer, world, stage, dtype},
                                  (world + stage + dtype) % 2 == 0);
}

START_TEST(one_bit_adam)
{
    all_cells(0);
}
END_TEST

START_TEST(zero_one_adam)
{
    all_cells(1);
}
END_TEST

START_TEST(one_bit_lamb)
{
    all_cells(2);
}
END_TEST

TEST_MAIN("engine/onebit_resume_slow", one_bit_adam, zero_one_adam, one_bit_lamb)

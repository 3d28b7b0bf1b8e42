/* Claim: zero_to_fp32 stays below 64 MiB of memory on a gigabyte of weights, in both formats, and
 * what it writes is whole. (test_zero_to_fp32_memory_slow.c: more than 4 GiB in one file.) */
#include "tests/support/checkpoint/sparse_run.h"

START_TEST(a_gigabyte_takes_no_more_memory_than_a_megabyte)
{
    sparse_run(40, 6700417, false, "5GB"); /* a prime: nothing is aligned */
}
END_TEST

START_TEST(nor_do_a_hundred_shards)
{
    sparse_run(100, 1000003, false, "5MB");
}
END_TEST

START_TEST(the_same_as_safetensors)
{
    sparse_run(1000, 100003, true, "4MB");
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {a_gigabyte_takes_no_more_memory_than_a_megabyte,
                                  nor_do_a_hundred_shards, the_same_as_safetensors};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("skipped: sanitizers take memory of their own\n");
    (void)cases;
    return TEST_SKIPPED;
#else
    return test_run("tools/zero_to_fp32_memory", cases, 3);
#endif
}

/* Claim: the same for a checkpoint of several gigabytes, whose files and tensors pass 4 GiB. */
#include "tests/support/checkpoint/sparse_run.h"

/* One tensor larger than 4 GiB: a .bin with zip64 sizes; it has a shard to itself. */
START_TEST(a_tensor_beyond_4_gib)
{
    sparse_run(1, 1200000011, false, "5GB");
}
END_TEST

START_TEST(safetensors_of_several_gigabytes)
{
    sparse_run(14, 100000007, true, "none");
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {a_tensor_beyond_4_gib, safetensors_of_several_gigabytes};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("skipped: sanitizers take memory of their own\n");
    (void)cases;
    return TEST_SKIPPED;
#else
    return test_run("tools/zero_to_fp32_memory_slow", cases, 2);
#endif
}

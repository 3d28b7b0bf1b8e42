/* The claims of tests/support/gpu/onebit_gpu.h on CUDA devices: alone, two ranks that share one
 * (staged), and two over NCCL: nothing is read before what makes it is done. */
#define ONEBIT_GPU_DEVICE "cuda"
#include "tests/support/gpu/onebit_gpu.h"

#include <stdlib.h>

/* Over NCCL only the simulated device lets ranks share a GPU. */
static bool may_use_nccl(void)
{
    const char *plugin = getenv("CZERO_CUDA_PLUGIN");
    return plugin && strstr(plugin, "cuda_sim");
}

static void all_optimizers(int n_ranks, enum device_comm_kind kind, int first)
{
    for (size_t k = 0; k < CZ_ARRAY_LEN(onebits); k++)
        for (int stage = 0; stage <= 1; stage++) {
            const enum cz_dtype dtype = (enum cz_dtype)((first + (int)k + stage) % 3);
            struct onebit_trial t = onebit_trial_of(k, dtype, stage);
            t.setting.device_comm = kind;
            t.setting.two_groups = stage;
            t.setting.freeze = !stage;
            compare_ranks(&t, n_ranks);
        }
}

START_TEST(one_rank_computes_what_it_does_on_the_cpu)
{
    all_optimizers(1, DEVICE_COMM_AUTO, 0);
}
END_TEST

START_TEST(two_ranks_that_share_a_gpu_do)
{
    all_optimizers(2, DEVICE_COMM_STAGED, 1);
}
END_TEST

START_TEST(two_ranks_over_nccl_do)
{
    if (may_use_nccl()) all_optimizers(2, DEVICE_COMM_NCCL, 2);
}
END_TEST

START_TEST(three_ranks_do)
{
    struct onebit_trial t = onebit_trial_of(0, DTYPE_F32, 1);
    t.setting.device_comm = DEVICE_COMM_STAGED;
    compare_ranks(&t, 3);
}
END_TEST

TEST_MAIN("cuda 1-bit ranks", one_rank_computes_what_it_does_on_the_cpu,
          two_ranks_that_share_a_gpu_do, two_ranks_over_nccl_do, three_ranks_do)

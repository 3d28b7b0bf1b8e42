/* Claim: the recorded runs of tests/fixtures/runs on two to four ranks are followed by as many
 * ranks, at their own stage: losses within the tolerances of tests/fixtures/README.md, learning
 * rate and loss scale exactly; also with optimizer states and parameters on NVMe. Aside: the 1-bit
 * family. */
#include "tests/support/replay.h"

static void follow(const char *name, int world, const char *freeze)
{
    const struct replay r = replay_of_fixture(name, freeze);
    printf("%-24s largest difference in the loss %.2g\n", name, replay_launch(&r, world, ""));
}

/* The same with everything on NVMe. */
static void follow_on_nvme(const char *name, int world, const char *freeze)
{
    struct replay r = replay_of_fixture(name, freeze);
    r.sets = replay_on_nvme("swap"); /* in the run's own folder */
    printf("%-24s on NVMe: largest difference in the loss %.2g\n", name,
           replay_launch(&r, world, ""));
}

START_TEST(stage_0)
{
    follow("s0-adagrad", 2, "");
    follow("s0-fp32-adamw", 2, "");
    follow("s0-bf16-adamw", 2, "");
}
END_TEST

START_TEST(stage_1)
{
    follow("s1-adagrad-cpu", 2, "");
    follow("s1-bf16-adamw-dp4", 4, "");
    follow("s1-fp16-static", 2, "");
    follow("s1-fp32-adamw", 2, "");
    follow("s1-fp32-dp3", 3, "");
    follow("s1-lion-cpu", 2, "");
}
END_TEST

START_TEST(stage_2)
{
    follow("s2-bf16-adamw", 2, "");
    follow("s2-bf16-cpuoffload", 2, "");
    follow("s2-fp16-dynscale", 2, "");
    follow("s2-fp32-adamw-gas2", 2, "");
    follow("s2-fp32-dp3-frozen", 3, "wpe");
    follow("v016-s2-bf16", 2, "");
}
END_TEST

START_TEST(stage_3)
{
    follow("s3-bf16-adamw", 2, "");
    follow("s3-bf16-cpuoffload", 2, "");
    follow("s3-bf16-dp3-frozen", 3, "h\\.0\\.");
    follow("s3-fp32-adamw", 2, "");
    follow("v016-s3-fp16", 2, "");
}
END_TEST

START_TEST(on_nvme)
{
    follow_on_nvme("s0-bf16-adamw", 2, "");
    follow_on_nvme("s1-adagrad-cpu", 2, "");
    follow_on_nvme("s1-fp16-static", 2, "");
    follow_on_nvme("s1-fp32-dp3", 3, "");
    follow_on_nvme("s1-lion-cpu", 2, "");
    follow_on_nvme("s2-bf16-cpuoffload", 2, "");
    follow_on_nvme("s2-fp16-dynscale", 2, "");
    follow_on_nvme("s2-fp32-adamw-gas2", 2, "");
    follow_on_nvme("s3-bf16-cpuoffload", 2, "");
    follow_on_nvme("s3-bf16-dp3-frozen", 3, "h\\.0\\.");
}
END_TEST

TEST_MAIN("engine/replay_ranks_runs", stage_0, stage_1, stage_2, stage_3, on_nvme)

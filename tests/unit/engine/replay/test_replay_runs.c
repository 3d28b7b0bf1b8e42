/* Claim: the recorded runs of tests/fixtures/runs that do not depend on ranks are followed on one
 * rank: world 1 as they are, larger worlds by accumulating the ranks' micro-batches, in the order
 * of tests/fixtures/README.md. Stage 3 is replayed as stage 2: the arithmetic is the same. */
#include "tests/support/replay.h"

static char sets[3][96];
static const char *set_list[4];

/* Rank r of micro step g takes rows ((s·gas + g)·world + r)·micro + i: on one rank these are the
 * micro-batches gas·world in a row. */
static const char *const *as_one_rank(int gas, int world, int stage)
{
    snprintf(sets[0], sizeof sets[0], "gradient_accumulation_steps=%d", gas * world);
    snprintf(sets[1], sizeof sets[1], "zero_optimization.stage=%d", stage == 3 ? 2 : stage);
    set_list[0] = sets[0];
    set_list[1] = stage > 0 ? sets[1] : NULL;
    set_list[2] = NULL;
    return set_list;
}

static void follow(const char *name, int world, int gas, int stage, const char *freeze)
{
    struct replay r = replay_of_fixture(name, freeze);
    if (world > 1) r.sets = as_one_rank(gas, world, stage);
    printf("%-24s largest difference in the loss %.2g\n", name, replay_run(&r));
}

START_TEST(one_rank)
{
    follow("s1-fp32-dp1-adam-l2", 1, 1, 1, "");
    follow("sched-onecycle", 1, 1, 1, "");
    follow("sched-rangetest", 1, 1, 1, "");
    follow("sched-warmupcosine", 1, 1, 1, "");
    follow("sched-warmupdecay", 1, 1, 1, "");
}
END_TEST

START_TEST(several_ranks_in_fp32)
{
    follow("s0-adagrad", 2, 1, 0, "");
    follow("s0-fp32-adamw", 2, 1, 0, "");
    follow("s1-adagrad-cpu", 2, 1, 1, "");
    follow("s1-fp32-adamw", 2, 1, 1, "");
    follow("s1-fp32-dp3", 3, 1, 1, "");
    follow("s1-lion-cpu", 2, 1, 1, "");
    follow("s2-fp32-adamw-gas2", 2, 2, 2, "");
    follow("s2-fp32-dp3-frozen", 3, 1, 2, "wpe");
    follow("s3-fp32-adamw", 2, 1, 3, "");
}
END_TEST

/* Not s2-fp16-dynscale: with a scale of 2^32 it matters whether S/W enters a rank's backward or
 * the ranks' mean, so which steps overflow depends on ranks. */
START_TEST(several_ranks_in_16_bits)
{
    follow("s0-bf16-adamw", 2, 1, 0, "");
    follow("s1-bf16-adamw-dp4", 4, 1, 1, "");
    follow("s1-fp16-static", 2, 1, 1, "");
    follow("s2-bf16-adamw", 2, 1, 2, "");
    follow("s2-bf16-cpuoffload", 2, 1, 2, "");
    follow("s3-bf16-adamw", 2, 1, 3, "");
    follow("s3-bf16-cpuoffload", 2, 1, 3, "");
    follow("s3-bf16-dp3-frozen", 3, 1, 3, "h\\.0\\.");
    follow("v016-s2-bf16", 2, 1, 2, "");
    follow("v016-s3-fp16", 2, 1, 3, "");
}
END_TEST

TEST_MAIN_SECONDS(120, "engine/replay_runs", one_rank, several_ranks_in_fp32,
                  several_ranks_in_16_bits)

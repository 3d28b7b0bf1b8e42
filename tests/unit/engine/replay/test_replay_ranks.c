/* Claim: `czero launch` follows DeepSpeed 0.19.8 on two to four ranks, at stages 0 to 3, in fp32,
 * bf16 and fp16, however gradients are reduced (predivided, prescaled, summed, in small buckets,
 * round robin, in other types) and state is divided (sub-groups, persistent, frozen and offloaded
 * parameters, two groups): the loss within the tolerances of tests/fixtures/curves/dense/README.md,
 * learning rate and loss scale exactly. */
#include "tests/support/replay.h"

static void follow(const char *kind, int n_expected)
{
    static struct replay_golden runs[REPLAY_GOLDEN_MAX];
    int n = 0;
    for (int i = 0, n_runs = replay_golden_read(runs); i < n_runs; i++) {
        if (runs[i].world == 1 || !strstr(runs[i].name, kind)) continue;
        const struct replay r = replay_of(&runs[i]);
        printf("%-36s largest difference in the loss %.2g\n", r.name,
               replay_launch(&r, runs[i].world, runs[i].groups));
        n++;
    }
    ck_assert_int_eq(n, n_expected);
}

START_TEST(stage_0)
{
    follow("-s0-", 6);
}
END_TEST

START_TEST(stage_1)
{
    follow("-s1-", 7);
}
END_TEST

START_TEST(stage_2)
{
    follow("-s2-", 7);
}
END_TEST

START_TEST(stage_3)
{
    follow("-s3-", 9);
}
END_TEST

TEST_MAIN("engine/replay_ranks", stage_0, stage_1, stage_2, stage_3)

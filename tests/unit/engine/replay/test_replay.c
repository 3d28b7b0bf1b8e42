/* Claim: training follows DeepSpeed 0.19.8 at world size 1, in fp32, bf16 and fp16, for Adam,
 * AdamW, Lion, Adagrad and SGD, with accumulation, frozen parameters, schedules and overflows: the
 * loss within the tolerances of tests/fixtures/curves/dense/README.md, learning rate and loss scale
 * exactly. */
#include "tests/support/replay.h"

static void follow(const char *kind)
{
    static struct replay_golden runs[REPLAY_GOLDEN_MAX];
    int n = 0;
    for (int i = 0, n_runs = replay_golden_read(runs); i < n_runs; i++) {
        if (runs[i].world != 1 || !strstr(runs[i].name, kind)) continue;
        const struct replay r = replay_of(&runs[i]);
        printf("%-36s largest difference in the loss %.2g\n", r.name, replay_run(&r));
        n++;
    }
    ck_assert_int_ge(n, 8);
}

START_TEST(fp32)
{
    follow("-fp32-");
}
END_TEST

START_TEST(bf16)
{
    follow("-bf16-");
}
END_TEST

START_TEST(fp16)
{
    follow("-fp16-");
}
END_TEST

TEST_MAIN_SECONDS(120, "engine/replay", fp32, bf16, fp16)

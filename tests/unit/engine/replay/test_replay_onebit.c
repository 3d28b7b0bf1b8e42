/* Claim: OneBitAdam, ZeroOneAdam and OneBitLamb follow DeepSpeed 0.16.9, and where it errs our own
 * replay, on one to four ranks at stage 0, in fp32, fp16 and bf16: the loss within the tolerances
 * of tests/fixtures/curves/onebit/README.md before and after the variance is frozen, learning rate
 * and loss scale exactly. Stage 1 gives the same curve to the last digit. */
#include "tests/support/replay.h"

#define RUNS_MAX 64

struct onebit_run {
    char name[64], groups[8], config[512], curve[512];
    int world, frozen_after;
    int64_t seq;
};

/* Names hold the precision, or are of fixtures/runs, which are in fp32. */
static struct replay replay_of_onebit(const struct onebit_run *run)
{
    bool is_fp32 = !strstr(run->name, "16-");
    return (struct replay){.name = run->name,
                           .config = run->config,
                           .curve = run->curve,
                           .seq = run->seq,
                           .loss_tol = is_fp32 ? 5e-4 : 2e-2,
                           .norm_tol = is_fp32 ? 1e-3 : 5e-2,
                           .frozen_after = run->frozen_after,
                           .frozen_loss_tol = is_fp32 ? 5e-3 : 2e-2,
                           .frozen_norm_tol = 5e-2};
}

static void expect_same(const char *name, const struct replay_curve *a,
                        const struct replay_curve *b)
{
    ck_assert_int_eq(a->n, b->n);
    for (int s = 0; s < a->n; s++)
        ck_assert_msg(a->rows[s].loss == b->rows[s].loss, "%s step %d: loss %.9g, at stage 1 %.9g",
                      name, s + 1, a->rows[s].loss, b->rows[s].loss);
}

static void follow(const struct onebit_run *run)
{
    static const char *const stage_1[] = {"zero_optimization.stage=1", NULL};
    static struct replay_curve whole, split;
    struct replay r = replay_of_onebit(run);
    double worst = replay_launch_curve(&r, run->world, run->groups, &whole);
    printf("%-28s largest difference in the loss %.2g\n", run->name, worst);
    r.sets = stage_1;
    replay_launch_curve(&r, run->world, run->groups, &split);
    expect_same(run->name, &whole, &split);
}

static void follow_fixture(const char *name, int world, int frozen_after)
{
    const struct replay r = replay_of_fixture(name, "");
    struct onebit_run run = {.world = world, .frozen_after = frozen_after, .seq = r.seq};
    snprintf(run.name, sizeof run.name, "%s", name);
    snprintf(run.config, sizeof run.config, "%s", r.config);
    snprintf(run.curve, sizeof run.curve, "%s", r.curve);
    follow(&run);
}

static void run_read(char *line, struct onebit_run *run)
{
    char *field[8];
    for (int i = 0; i < 8; i++) field[i] = strsep(&line, ",\n");
    ck_assert_ptr_nonnull(field[7]);
    *run = (struct onebit_run){
        .world = atoi(field[1]), .seq = atoi(field[3]), .frozen_after = atoi(field[6])};
    snprintf(run->name, sizeof run->name, "%s", field[0]);
    snprintf(run->groups, sizeof run->groups, "%s", field[5]);
    char relative[128];
    snprintf(relative, sizeof relative, "curves/onebit/%s/ds_config.json", run->name);
    snprintf(run->config, sizeof run->config, "%s", test_fixture(relative));
    snprintf(relative, sizeof relative, "curves/onebit/%s/curve.csv", run->name);
    snprintf(run->curve, sizeof run->curve, "%s", test_fixture(relative));
}

/* All golden runs whose name contains `kind`. */
static void follow_golden(const char *kind, int n_expected)
{
    char line[256];
    int n = 0;
    FILE *f = fopen(test_fixture("curves/onebit/runs.csv"), "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    ck_assert_str_eq(line, "name,world,steps,seq,freeze,groups,frozen_after,by\n");
    while (fgets(line, sizeof line, f)) {
        struct onebit_run run;
        run_read(line, &run);
        if (!strstr(run.name, kind)) continue;
        follow(&run);
        n++;
    }
    fclose(f);
    ck_assert_int_eq(n, n_expected);
}

START_TEST(adam_in_fp32)
{
    follow_golden("-fp32-adam", 6);
}
END_TEST

START_TEST(zero_one_adam_in_fp32)
{
    follow_golden("-fp32-zeroone", 4);
}
END_TEST

START_TEST(lamb_in_fp32)
{
    follow_golden("-fp32-lamb", 4);
}
END_TEST

START_TEST(fp16)
{
    follow_golden("-fp16-", 5);
}
END_TEST

START_TEST(bf16)
{
    follow_golden("-bf16-", 3);
}
END_TEST

START_TEST(recorded_runs)
{
    follow_fixture("s0-onebitadam", 2, 6);
    follow_fixture("s0-onebitadam-dp4", 4, 6);
    follow_fixture("s0-zerooneadam", 2, 13);
    follow_fixture("s0-onebitlamb", 2, 6);
    follow_fixture("s0-lamb-warmup-only", 2, 0);
}
END_TEST

TEST_MAIN("engine/replay_onebit", adam_in_fp32, zero_one_adam_in_fp32, lamb_in_fp32, fp16, bf16,
          recorded_runs)

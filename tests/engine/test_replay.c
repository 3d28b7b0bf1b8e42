/* Claim: training follows DeepSpeed 0.19.8 at world size 1, in fp32, bf16 and fp16, for Adam,
 * AdamW, Lion, Adagrad and SGD, with accumulation, frozen parameters, schedules and overflows: the
 * loss within the tolerances of tests/golden/curves/README.md, learning rate and loss scale
 * exactly. */
#include "tests/support/replay.h"

#define RUNS_MAX 64

static char names[RUNS_MAX][64], freezes[RUNS_MAX][64];
static int64_t seqs[RUNS_MAX];
static int n_runs;

static const char *golden(const char *name, const char *suffix)
{
    static char paths[2][512];
    static int turn;
    char *path = paths[turn++ & 1];
    snprintf(path, sizeof paths[0], "%s/tests/golden/curves/%s%s", CZ_SOURCE_DIR, name, suffix);
    return path;
}

static void read_runs(void)
{
    FILE *f = fopen(golden("runs", ".csv"), "r");
    char line[256];
    long long seq;
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    for (n_runs = 0; fgets(line, sizeof line, f) && n_runs < RUNS_MAX; n_runs++) {
        freezes[n_runs][0] = '\0';
        ck_assert_int_ge(
            sscanf(line, "%63[^,],%*d,%*d,%lld,%63[^\n\r]", names[n_runs], &seq, freezes[n_runs]),
            2);
        seqs[n_runs] = seq;
    }
    fclose(f);
}

/* bf16 gradients are rounded at other places than PyTorch's (an accumulated sum is rounded once).
 */
static void follow(const char *kind, double loss_tol, double norm_tol)
{
    int n = 0;
    read_runs();
    for (int i = 0; i < n_runs; i++) {
        if (!strstr(names[i], kind)) continue;
        const struct replay r = {.name = names[i],
                                 .config = golden(names[i], ".json"),
                                 .curve = golden(names[i], ".csv"),
                                 .seq = seqs[i],
                                 .freeze = freezes[i],
                                 .loss_tol = loss_tol,
                                 .norm_tol = norm_tol};
        printf("%-36s largest difference in the loss %.2g\n", names[i], replay_run(&r));
        n++;
    }
    ck_assert_int_ge(n, 8);
}

START_TEST(fp32)
{
    follow("-fp32-", 1e-4, 1e-3);
}
END_TEST

START_TEST(bf16)
{
    follow("-bf16-", 2e-2, 2e-1);
}
END_TEST

START_TEST(fp16)
{
    follow("-fp16-", 2e-2, 2e-1);
}
END_TEST

TEST_MAIN("engine/replay", fp32, bf16, fp16)

/* Claims: training does not depend on where optimizer states and parameters are kept: masters,
 * states, losses, rates, norms and loss scales are the same to the bit for none, cpu and nvme, both
 * ways, at every stage, on one to three ranks, in fp32, bf16 and fp16 with skipped steps, for every
 * optimizer, with groups, frozen and tied parameters and accumulation; swap files are there during
 * the run, one per rank, and gone after it; the plan gives each rank of a host its share of the
 * disk. CZ_OFFLOAD_STEPS=50 trains longer (default 7), CZ_OFFLOAD_ALL=1 the whole product:
 * test_offload_slow.sh does both. */
#include "engine/engine_impl.h"
#include "tests/support/zero/tiers.h"

static const char *root; /* the running test's folder */

static const char *swap_folder(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/swap/deeper", root);
    return path;
}

static int steps(void)
{
    const char *given = getenv("CZ_OFFLOAD_STEPS");
    return given ? atoi(given) : 7;
}

static void expect_same(const struct leg_outcome *want, const struct leg_outcome *have, int n_steps,
                        const char *what)
{
    size_t n = (size_t)n_steps * sizeof(double);
    ck_assert_msg(memcmp(want->losses, have->losses, n) == 0, "losses differ: %s", what);
    ck_assert_msg(memcmp(want->norms, have->norms, n) == 0, "norms differ: %s", what);
    ck_assert_msg(memcmp(want->scales, have->scales, n) == 0, "loss scales differ: %s", what);
    ck_assert_msg(memcmp(want->lrs, have->lrs, n) == 0, "rates differ: %s", what);
    ck_assert_msg(want->weights == have->weights, "masters differ: %s", what);
    ck_assert_msg(want->states == have->states, "states differ: %s", what);
    ck_assert_msg(want->skipped == have->skipped, "skipped steps differ: %s", what);
}

static struct leg_outcome train(struct leg_shared *s, const struct tier_run *run, struct tiers t)
{
    tiers_configure(&s->leg, run, t, swap_folder());
    s->leg.to = steps();
    struct leg_outcome out = leg_outcome_of(s, run->world);
    const char *what = tiers_describe(run, t);
    ck_assert_msg(out.n_swap_files == (tiers_swap(run, t) ? run->world : 0), "%d swap files: %s",
                  out.n_swap_files, what);
    ck_assert_msg(out.plans_nvme == tiers_swap(run, t), "the plan's NVMe bytes: %s", what);
    tiers_expect_gone(swap_folder(), what);
    return out;
}

/* Every pair of tiers against neither. */
static void all_tiers(struct leg_shared *s, const struct tier_run *run)
{
    struct leg_outcome want = train(s, run, tiers_none);
    if (strstr(run->dtype, "fp16\": {\"enabled\": true")) ck_assert_int_gt(want.skipped, 0);
    for (int t = 1; t < TIER_COUNT * TIER_COUNT; t++) {
        const struct tiers tiers = {t % TIER_COUNT, t / TIER_COUNT};
        struct leg_outcome have = train(s, run, tiers);
        expect_same(&want, &have, s->leg.to, tiers_describe(run, tiers));
    }
}

static bool all_asked(void)
{
    return getenv("CZ_OFFLOAD_ALL") != NULL;
}

/* One combination of a stage, a number of ranks and a precision, in all tiers. */
static void one_run(struct leg_shared *s, int stage, int world, int turn, const char *optimizer)
{
    const struct tier_run run = {.stage = stage,
                                 .world = world,
                                 .gas = 1 + turn % 2,
                                 .dtype = leg_dtypes[turn % 3],
                                 .optimizer = optimizer,
                                 .freeze = turn % 4 == 0 ? "h\\.0\\.|wpe" : NULL,
                                 .two_groups = turn % 4 < 2,
                                 .turn = stage + 4 * world + turn};
    all_tiers(s, &run);
}

/* Stages, ranks, precisions and optimizers so that any two of them meet; all tiers of each.
 * CZ_OFFLOAD_ALL: each precision with each of two optimizers. */
static void all_runs(int world, const char *folder)
{
    struct leg_shared *s = leg_make();
    root = folder;
    for (int stage = 0; stage < 4; stage++)
        for (int turn = stage + world; turn < stage + world + (all_asked() ? 3 : 1); turn++) {
            size_t o = (size_t)(stage + 4 * world + turn / 3) % CZ_ARRAY_LEN(tier_optimizers);
            one_run(s, stage, world, turn, tier_optimizers[o]);
            if (all_asked() && o > 0) one_run(s, stage, world, turn, tier_optimizers[0]);
        }
    test_tmp_remove(root);
}

START_TEST(one_rank)
{
    all_runs(1, test_tmp_make());
}
END_TEST

START_TEST(two_ranks)
{
    all_runs(2, test_tmp_make_fast());
}
END_TEST

START_TEST(three_ranks)
{
    all_runs(3, test_tmp_make_fast());
}
END_TEST

START_TEST(states_that_do_not_begin_with_0)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make_fast();
    const struct tier_run run = {.world = 2,
                                 .gas = 1,
                                 .dtype = leg_dtypes[2],
                                 .optimizer = tier_adagrad,
                                 .two_groups = true};
    all_tiers(s, &run);
    test_tmp_remove(root);
}
END_TEST

/* Each stage with a number of ranks and a precision; CZ_OFFLOAD_ALL: with each number. */
START_TEST(norms_of_whole_tensors)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make_fast();
    for (int stage = 0; stage < 4; stage++)
        for (int world = 1; world <= 3; world++)
            if (all_asked() || world == 1 + stage % 3 + (stage == 3))
                one_run(s, stage, world, stage + world, tier_lamb);
    test_tmp_remove(root);
}
END_TEST

static cz_status free_of_plan(struct cz_engine *e, uint64_t *own)
{
    *own = e->desc.plan.nvme_free_nbytes;
    return CZ_OK;
}

/* Other programs use the disk as well, so this is about shares of it, not bytes. */
START_TEST(ranks_of_a_host_share_its_disk)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    s->leg.probe = free_of_plan;
    double whole = 0;
    for (int world = 1; world <= 3; world++) {
        const struct tier_run run = {.stage = 1,
                                     .world = world,
                                     .gas = 1,
                                     .dtype = leg_dtypes[0],
                                     .optimizer = tier_optimizers[0]};
        tiers_configure(&s->leg, &run, (struct tiers){TIER_NVME, TIER_NONE}, swap_folder());
        s->leg.to = 1;
        (void)leg_outcome_of(s, world);
        if (world == 1) whole = (double)s->own[0];
        for (int r = 0; r < world; r++) {
            ck_assert_double_lt((double)s->own[r], 1.2 * whole / world);
            ck_assert_double_gt((double)s->own[r], 0.8 * whole / world);
        }
    }
    test_tmp_remove(root);
}
END_TEST

TEST_MAIN("engine/offload", one_rank, two_ranks, three_ranks, states_that_do_not_begin_with_0,
          norms_of_whole_tensors, ranks_of_a_host_share_its_disk)

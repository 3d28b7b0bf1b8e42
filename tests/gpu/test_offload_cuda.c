/* Claims of training on a CUDA device (real or simulated): it does not depend on where optimizer
 * states and parameters are kept (masters, states, losses, norms and loss scales are the same to
 * the bit for none, cpu and nvme, both ways, at every stage); it follows the same run on the CPU;
 * what is saved on a device continues there and on the CPU, and the other way round; the plan is
 * what the run takes. CZ_CUDA_ALL=1: the whole product of tiers, stages, precisions. */
#include "tests/support/zero/tiers.h"

#include "device/device.h"

enum { STEPS = 3 };

static char swap_dir[160];

static struct leg_outcome train(struct leg_shared *s, const struct tier_run *run, struct tiers t,
                                const char *device)
{
    tiers_configure(&s->leg, run, t, swap_dir);
    s->leg.device = device;
    s->leg.from = 0;
    s->leg.to = STEPS;
    return leg_outcome_of(s, run->world);
}

static void expect_same(const struct leg_outcome *want, const struct leg_outcome *have,
                        const char *what)
{
    size_t n = STEPS * sizeof(double);
    ck_assert_msg(memcmp(want->losses, have->losses, n) == 0, "losses differ: %s", what);
    ck_assert_msg(memcmp(want->norms, have->norms, n) == 0, "norms differ: %s", what);
    ck_assert_msg(memcmp(want->scales, have->scales, n) == 0, "loss scales differ: %s", what);
    ck_assert_msg(want->weights == have->weights, "masters differ: %s", what);
    ck_assert_msg(want->states == have->states, "states differ: %s", what);
}

/* Products and sums of a device are in another order: fp32 5e-4, 16 bits 3e-2 of the loss after a
 * few steps at these rates. */
static void expect_near(const struct leg_outcome *want, const struct leg_outcome *have,
                        bool is_fp32, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(fabs(want->losses[i] - have->losses[i]) <=
                          (is_fp32 ? 5e-4 : 3e-2) * fabs(want->losses[i]),
                      "loss %d is %.7g, on the CPU %.7g: %s", i, have->losses[i], want->losses[i],
                      what);
}

static void all_tiers(const struct tier_run *run, int first, int step)
{
    struct leg_shared *s = leg_make();
    struct leg_outcome want = train(s, run, tiers_none, "cuda");
    struct leg_outcome cpu = train(s, run, tiers_none, NULL);
    ck_assert_int_lt(want.skipped, STEPS);
    expect_near(&cpu, &want, strstr(run->dtype, "fp16\": {\"enabled\": false") != NULL,
                tiers_describe(run, tiers_none));
    for (int t = first; t < TIER_COUNT * TIER_COUNT; t += step) {
        const struct tiers tiers = {t % TIER_COUNT, t / TIER_COUNT};
        struct leg_outcome have = train(s, run, tiers, "cuda");
        expect_same(&want, &have, tiers_describe(run, tiers));
    }
    munmap(s, sizeof *s);
}

START_TEST(one_rank_trains_the_same_wherever_its_state_is_kept)
{
    bool all = getenv("CZ_CUDA_ALL") != NULL;
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", test_tmp_make_fast());
    for (int stage = 0; stage <= 3; stage++)
        for (int d = 0; d < 3; d++) {
            const struct tier_run run = {.stage = stage,
                                         .world = 1,
                                         .gas = 1 + (stage + d) % 2,
                                         .dtype = leg_dtypes[d],
                                         .optimizer = tier_optimizers[(stage + d) % 4],
                                         .freeze = d == 2 ? "h\\.0\\.|wpe" : NULL,
                                         .two_groups = d == 1,
                                         .turn = stage + d};
            if (!all && d != stage % 3) continue;
            all_tiers(&run, all ? 1 : 1 + stage % 2, all ? 1 : 3);
        }
}
END_TEST

/* The host reads a pass's first parameters from the file while the device still sends the last of
 * the pass before. */
START_TEST(parameters_of_the_file_wait_for_the_micro_batch_before)
{
    const struct tier_run run = {
        .stage = 3, .world = 1, .gas = 3, .dtype = leg_dtypes[0], .optimizer = tier_optimizers[0]};
    struct leg_shared *s = leg_make();
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", test_tmp_make_fast());
    struct leg_outcome want = train(s, &run, tiers_none, "cuda");
    for (int optimizer = TIER_NONE; optimizer < TIER_COUNT; optimizer++) {
        const struct tiers tiers = {(enum tier)optimizer, TIER_NVME};
        struct leg_outcome have = train(s, &run, tiers, "cuda");
        expect_same(&want, &have, tiers_describe(&run, tiers));
    }
    munmap(s, sizeof *s);
}
END_TEST

/* Nothing has to be known of all gradients: the host updates tiles as they come. */
START_TEST(updates_beside_the_backward_change_no_bit)
{
    static const struct tiers leaving[] = {
        {TIER_CPU, TIER_NONE}, {TIER_CPU, TIER_CPU}, {TIER_NVME, TIER_NVME}};
    struct leg_shared *s = leg_make();
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", test_tmp_make_fast());
    for (int k = 0; k < 2; k++) {
        struct tier_run run = {.stage = 3,
                               .world = 1,
                               .gas = 1 + k,
                               .dtype = "\"bf16\": {\"enabled\": true}",
                               .optimizer = k ? tier_lamb : tier_optimizers[0],
                               .two_groups = k == 0,
                               .unclipped = true,
                               .turn = k};
        struct leg_outcome want = train(s, &run, tiers_none, "cuda"); /* looks first */
        run.dtype = "\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}";
        for (size_t t = 0; t < CZ_ARRAY_LEN(leaving); t++) {
            struct leg_outcome have = train(s, &run, leaving[t], "cuda");
            expect_same(&want, &have, tiers_describe(&run, leaving[t]));
        }
    }
    munmap(s, sizeof *s);
}
END_TEST

/* By layer, every tier against the calls one by one: what leaves the device and comes to it does so
 * once a step; the last micro-batch is short. */
START_TEST(micro_batches_go_through_layers_together)
{
    static const struct tiers tiers[] = {
        {TIER_NONE, TIER_NONE}, {TIER_CPU, TIER_CPU}, {TIER_NVME, TIER_NVME}};
    struct leg_shared *s = leg_make();
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", test_tmp_make_fast());
    for (int d = 0; d < 3; d++) {
        struct tier_run run = {.stage = 3 - d % 2,
                               .world = 1,
                               .gas = 3,
                               .dtype = leg_dtypes[d],
                               .optimizer = tier_optimizers[0],
                               .turn = d};
        s->leg.whole_steps = s->leg.is_short = true;
        run.order = "micro_batches";
        struct leg_outcome want = train(s, &run, tiers_none, "cuda");
        run.order = "layers";
        for (size_t t = 0; t < CZ_ARRAY_LEN(tiers); t++) {
            if (!getenv("CZ_CUDA_ALL") && d > 0 && t != (size_t)d) continue;
            struct leg_outcome have = train(s, &run, tiers[t], "cuda");
            expect_same(&want, &have, tiers_describe(&run, tiers[t]));
        }
    }
    munmap(s, sizeof *s);
}
END_TEST

/* DEVICE_COMM: staged between two ranks on one GPU; nccl where each has its own. */
START_TEST(two_ranks_train_the_same_at_every_stage)
{
    bool all = getenv("CZ_CUDA_ALL") != NULL;
    struct leg_shared *s = leg_make();
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", test_tmp_make_fast());
    for (int d = 0; d < (all ? 3 : 1); d++) {
        struct tier_run run = {.world = 2,
                               .gas = 1,
                               .dtype = leg_dtypes[(d + 1) % 3],
                               .optimizer = tier_optimizers[d],
                               .two_groups = true};
        struct leg_outcome want = train(s, &run, tiers_none, "cuda");
        struct leg_outcome cpu = train(s, &run, tiers_none, NULL);
        expect_near(&cpu, &want, d == 2, tiers_describe(&run, tiers_none));
        for (run.stage = 1; run.stage <= 3; run.stage++) {
            const struct tiers offloaded = {run.stage == 2 ? TIER_NVME : TIER_CPU,
                                            run.stage == 3 ? TIER_CPU : TIER_NONE};
            struct leg_outcome have = train(s, &run, tiers_none, "cuda");
            expect_same(&want, &have, tiers_describe(&run, tiers_none));
            have = train(s, &run, offloaded, "cuda");
            expect_same(&want, &have, tiers_describe(&run, offloaded));
        }
    }
    munmap(s, sizeof *s);
}
END_TEST

/* Saved here, loaded there: hashes of what was loaded, and what comes of it. */
static struct leg_outcome resume(struct leg_shared *s, const struct tier_run *run, struct tiers t,
                                 const char *device, const char *folder, int to)
{
    tiers_configure(&s->leg, run, t, swap_dir);
    snprintf(s->leg.load, sizeof s->leg.load, "%s", folder);
    s->leg.load_options = (struct cz_load_options){.size = sizeof(struct cz_load_options)};
    s->leg.device = device;
    s->leg.from = STEPS;
    s->leg.to = to;
    s->leg.save[0] = '\0';
    return leg_outcome_of(s, run->world);
}

START_TEST(checkpoints_go_between_devices_and_tiers)
{
    static const struct tiers both[] = {{TIER_CPU, TIER_NONE}, {TIER_NVME, TIER_CPU}};
    struct leg_shared *s = leg_make();
    char folder[160];
    const char *root = test_tmp_make_fast();
    snprintf(swap_dir, sizeof swap_dir, "%s/swap", root);
    for (int k = 0; k < 2; k++) {
        const struct tier_run run = {.stage = 2 + k,
                                     .world = 1,
                                     .gas = 1,
                                     .dtype = leg_dtypes[1],
                                     .optimizer = tier_optimizers[0],
                                     .turn = k};
        const char *what = tiers_describe(&run, both[k]);
        snprintf(folder, sizeof folder, "%s/ckpt%d", root, k);
        memset(&s->leg, 0, sizeof s->leg);
        snprintf(s->leg.save, sizeof s->leg.save, "%s", folder);
        struct leg_outcome saved = train(s, &run, both[k], "cuda");
        struct leg_outcome loaded = resume(s, &run, tiers_none, "cuda", folder, STEPS);
        ck_assert_msg(saved.weights == loaded.weights && saved.states == loaded.states, "%s", what);
        loaded = resume(s, &run, tiers_none, NULL, folder, STEPS);
        ck_assert_msg(saved.weights == loaded.weights && saved.states == loaded.states, "%s", what);
        struct leg_outcome on = resume(s, &run, tiers_none, "cuda", folder, STEPS + 2);
        struct leg_outcome off = resume(s, &run, both[1 - k], "cuda", folder, STEPS + 2);
        ck_assert_msg(on.weights == off.weights && on.states == off.states, "%s", what);
    }
    munmap(s, sizeof *s);
}
END_TEST

TEST_MAIN_SECONDS(300, "offload on a CUDA device",
                  one_rank_trains_the_same_wherever_its_state_is_kept,
                  parameters_of_the_file_wait_for_the_micro_batch_before,
                  updates_beside_the_backward_change_no_bit,
                  micro_batches_go_through_layers_together, two_ranks_train_the_same_at_every_stage,
                  checkpoints_go_between_devices_and_tiers)

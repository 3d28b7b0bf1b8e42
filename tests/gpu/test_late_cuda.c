/* Claims of training on a CUDA device (real or simulated) whose optimizer is in host memory or on
 * NVMe: an update that the host makes beside the next forward gives the bytes of an update at the
 * boundary, with clipping, skipped fp16 steps, every optimizer, accumulation in either order, a
 * share of the states on the device, groups, frozen parameters and parameters that stay gathered,
 * on one rank at every stage and on two at stages 0 and 3; and so do evaluations, saves, single
 * tensors and a load that come between. A checkpoint that is written beside such updates is that of
 * its step. Where nothing has to be known of all gradients, one rank updates beside the backward
 * instead. CZ_CUDA_ALL=1: every tier at every stage. */
#include "tests/support/zero/late_trial.h"

enum { STEPS = 6 };

static const struct tiers away[] = {{TIER_CPU, TIER_NONE}, {TIER_NVME, TIER_NVME},
                                    {TIER_CPU, TIER_CPU},  {TIER_NVME, TIER_NONE},
                                    {TIER_CPU, TIER_NVME}, {TIER_NVME, TIER_CPU}};

static const char *const orders[] = {NULL, "layers", "micro_batches"};

/* Host memory takes states from stage 1 on, and parameters at stage 3. */
static bool is_possible(struct tiers t, int stage, int world)
{
    if (t.optimizer == TIER_CPU && stage == 0) return false;
    return stage == 3 || (t.params != TIER_CPU && (t.params == TIER_NONE || world == 1));
}

/* n cells, or half of them. */
static void some_of(int stage, int world, int first, int n)
{
    if (!getenv("CZ_CUDA_ALL")) n = (n + 1) / 2;
    late_device = "cuda";
    late_root = test_tmp_make_fast();
    for (int k = first; k < first + n; k++) {
        const struct tier_run run = {.stage = stage,
                                     .world = world,
                                     .gas = 1 + k % 2,
                                     .order = orders[(k + stage) % 3],
                                     .dtype = late_dtypes[(k + k / 3) % 3],
                                     .optimizer = k % 3 == 2 ? tier_lamb : tier_optimizers[k % 5],
                                     .freeze = k % 4 == 1 ? "h\\.0\\.|wpe" : NULL,
                                     .two_groups = k % 4 < 2,
                                     .turn = 2 * k + stage + world - 1,
                                     .pinned = k % 3 < 2};
        if (is_possible(away[k % 6], stage, world)) late_same_as_at_once(&run, away[k % 6], STEPS);
    }
    test_tmp_remove(late_root);
}

START_TEST(one_rank_with_chunks)
{
    some_of(3, 1, 0, 8);
}
END_TEST

START_TEST(one_rank_at_the_other_stages)
{
    for (int stage = 0; stage <= 2; stage++) some_of(stage, 1, stage, 4);
}
END_TEST

START_TEST(two_ranks_with_chunks)
{
    some_of(3, 2, 0, 4);
}
END_TEST

START_TEST(two_ranks_with_whole_parameters)
{
    some_of(0, 2, 3, 1);
}
END_TEST

START_TEST(looks_in_between_see_the_update)
{
    late_device = "cuda";
    late_looks_see_the_update(2, 1, 0, away[0]);
    late_looks_see_the_update(3, 1, 1, away[2]); /* with a share on the device */
    late_looks_see_the_update(3, 2, 2, away[1]);
}
END_TEST

/* Step 3 is saved while step 4 is trained; what is loaded continues as the run that saved it. */
START_TEST(a_checkpoint_beside_late_updates_is_of_its_step)
{
    late_device = "cuda";
    for (size_t k = 0; k < CZ_ARRAY_LEN(away); k++) {
        const struct tier_run run = {.stage = 3,
                                     .world = 1,
                                     .gas = 1,
                                     .dtype = leg_dtypes[1 + k % 2],
                                     .optimizer = tier_optimizers[k % 2],
                                     .turn = (int)k,
                                     .pinned = k % 2};
        struct leg_shared *s = leg_make();
        const char *what = tiers_describe(&run, away[k]);
        late_root = test_tmp_make_fast();
        snprintf(s->leg.save, sizeof s->leg.save, "%s/ckpt", late_root);
        s->leg.save_after = 1 << 2;
        struct leg_outcome want = late_train(s, &run, away[k], STEPS, "true");
        late_expect(s, &run, away[k], true);
        memcpy(s->leg.load, s->leg.save, sizeof s->leg.load);
        s->leg.save[0] = '\0';
        s->leg.from = 3;
        struct leg_outcome have = late_train(s, &run, away[k], STEPS, k % 2 ? "true" : "false");
        ck_assert_msg(want.weights == have.weights && want.states == have.states, "%s", what);
        test_tmp_remove(late_root);
        munmap(s, sizeof *s);
    }
}
END_TEST

/* Two ranks have to wait for each other's gradients: there the forward is what is left. */
START_TEST(an_update_that_waits_for_nothing_is_beside_the_backward)
{
    late_device = "cuda";
    for (int world = 1; world <= 2; world++) {
        const struct tier_run run = {.stage = 3,
                                     .world = world,
                                     .gas = 1,
                                     .dtype = "\"bf16\": {\"enabled\": true, "
                                              "\"check_grad_overflow\": false}",
                                     .optimizer = tier_optimizers[0],
                                     .unclipped = true,
                                     .turn = world};
        struct leg_shared *s = leg_make();
        late_root = test_tmp_make_fast();
        struct leg_outcome want = late_train(s, &run, away[0], STEPS, "false");
        struct leg_outcome have = late_train(s, &run, away[0], STEPS, "true");
        late_expect(s, &run, away[0], world == 2);
        ck_assert(memcmp(&want, &have, sizeof want) == 0);
        test_tmp_remove(late_root);
        munmap(s, sizeof *s);
    }
}
END_TEST

TEST_MAIN_SECONDS(300, "late updates on a CUDA device", one_rank_with_chunks,
                  one_rank_at_the_other_stages, two_ranks_with_chunks,
                  two_ranks_with_whole_parameters, looks_in_between_see_the_update,
                  a_checkpoint_beside_late_updates_is_of_its_step,
                  an_update_that_waits_for_nothing_is_beside_the_backward)

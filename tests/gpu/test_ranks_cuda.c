/* Claims: ranks that train on CUDA devices (two sharing one, staged; each with its own, over NCCL)
 * end with the same masters and moments, to the bit, whatever the stage, the kind of communicator,
 * buckets, prefetching, and where optimizer states and parameters wait; gradients read before the
 * boundary are the same at every stage; and they learn what ranks on CPUs learn. */
#include "tests/support/zero/rank_trial.h"

#include <stdlib.h>

static const char *const kinds[] = {"staged", "nccl"};

/* Over NCCL only the simulated device lets ranks share a GPU. */
static bool may_use(const char *kind)
{
    const char *plugin = getenv("CZERO_CUDA_PLUGIN");
    return strcmp(kind, "nccl") != 0 || (plugin && strstr(plugin, "cuda_sim"));
}

static const char *const variants[] = {
    "\"overlap_comm\": true, \"reduce_bucket_size\": 30000, \"sub_group_size\": 5000, "
    "\"stage3_prefetch_bucket_size\": 1000, \"stage3_max_live_parameters\": 60000, "
    "\"stage3_param_persistence_threshold\": 0",
    "\"overlap_comm\": false",
};

static const char *const offloads[] = {
    "\"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"cpu\"}",
    "\"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"cpu\"}, "
    "\"offload_param\": {\"device\": \"cpu\"}",
};

static struct trial_shared *make(int steps)
{
    struct trial_shared *s = trial_make();
    s->trial.device = "cuda";
    s->trial.steps = steps;
    return s;
}

static void expect_same(struct trial_shared *s, struct outcome *want, const char *kind, int world)
{
    if (!may_use(kind)) return;
    setenv("CZERO_DEVICE_COMM", kind, 1);
    struct outcome have = outcome_of(s, world);
    if (want->masters == 0) *want = have;
    ck_assert_msg(have.masters == want->masters, "%s: %s", kind, s->trial.config);
    ck_assert_msg(have.grads == want->grads, "%s: %s", kind, s->trial.config);
    ck_assert_double_eq(have.loss, want->loss);
    ck_assert_double_eq(have.norm, want->norm);
}

START_TEST(stages_and_communicators_change_no_bit)
{
    struct trial_shared *s = make(2);
    for (size_t d = 0; d < 2; d++) { /* fp32, bf16 */
        struct outcome want = {0};
        for (int stage = 0; stage < 4; stage++)
            for (size_t k = d; k < CZ_ARRAY_LEN(kinds); k++) { /* fp32 over both */
                configure(s, stage, variants[(size_t)stage % 2 ^ k], trial_dtypes[d], 1);
                expect_same(s, &want, kinds[k], 2);
            }
    }
}
END_TEST

START_TEST(where_states_and_parameters_wait_changes_no_bit)
{
    struct trial_shared *s = make(2);
    struct outcome want = {0};
    for (size_t k = 0; k < CZ_ARRAY_LEN(kinds); k++)
        for (int stage = 2; stage < 4; stage++) {
            if (k == 0) {
                configure(s, stage, variants[0], trial_dtypes[1], 1);
                expect_same(s, &want, kinds[k], 2);
            }
            configure(s, stage, offloads[0], trial_dtypes[1], 1);
            expect_same(s, &want, kinds[k], 2);
            if (stage < 3) continue;
            configure(s, stage, offloads[1], trial_dtypes[1], 1);
            expect_same(s, &want, kinds[k], 2);
        }
}
END_TEST

START_TEST(three_ranks_accumulate_and_read_gradients)
{
    struct trial_shared *s = make(1);
    s->trial.reads_grads = true;
    for (int first = 0; first < 4; first += 2) { /* the two classes of accumulation */
        struct outcome want = {0};
        for (int stage = first; stage < first + 2; stage++) {
            configure(s, stage, variants[1], trial_dtypes[2], 2);
            expect_same(s, &want, kinds[stage % 2], 3);
        }
    }
}
END_TEST

/* Lamb has a norm per tensor, to which all owners contribute. */
START_TEST(ranks_learn_what_ranks_on_cpus_learn)
{
    static const char *const optimizers[] = {
        NULL, "\"type\": \"Lamb\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}"};
    for (size_t o = 0; o < CZ_ARRAY_LEN(optimizers); o++) {
        struct trial_shared *s = make(3);
        struct outcome have = {0};
        s->trial.optimizer = optimizers[o];
        configure(s, 2, variants[0], trial_dtypes[0], 1);
        for (size_t k = 0; k < CZ_ARRAY_LEN(kinds); k++) expect_same(s, &have, kinds[k], 2);
        s->trial.device = NULL;
        struct outcome want = outcome_of(s, 2);
        /* sums in another order; Adam divides by what is near zero */
        ck_assert_double_eq_tol(have.loss, want.loss, 1e-5 * want.loss);
        ck_assert_double_eq_tol(have.norm, want.norm, 1e-4 * want.norm);
    }
}
END_TEST

TEST_MAIN_SECONDS(180, "cuda/ranks", stages_and_communicators_change_no_bit,
                  where_states_and_parameters_wait_changes_no_bit,
                  three_ranks_accumulate_and_read_gradients, ranks_learn_what_ranks_on_cpus_learn)

/* Claims: at a fixed number of ranks, fp32 masters after training have the same bytes whatever the
 * stage, overlap, bucket, sub-group, prefetch and persistence settings (with accumulation: inside
 * stages 0-1 and inside 2-3); also with frozen parameters and several groups. Every rank sees the
 * same whole tensors, gradients before the boundary as well, whatever they travel in. */
#include "base/log.h"
#include "tests/support/zero/rank_trial.h"

/* What must not matter: flags of zero_optimization. */
static const char *const variants[] = {
    "\"overlap_comm\": false",
    "\"overlap_comm\": true",
    "\"overlap_comm\": true, \"reduce_bucket_size\": 1000, \"sub_group_size\": 5000, "
    "\"stage3_prefetch_bucket_size\": 1000, \"stage3_max_live_parameters\": 60000, "
    "\"stage3_max_reuse_distance\": 1000, \"stage3_param_persistence_threshold\": 0",
    "\"overlap_comm\": false, \"reduce_bucket_size\": 30000, \"sub_group_size\": 1, "
    "\"stage3_prefetch_bucket_size\": 0, \"stage3_max_live_parameters\": 0, "
    "\"stage3_max_reuse_distance\": 0, \"stage3_param_persistence_threshold\": 100",
    "\"round_robin_gradients\": true, \"contiguous_gradients\": false, "
    "\"reduce_bucket_size\": 1000000000000, \"stage3_param_persistence_threshold\": 1000000000",
};

/* Two ranks without accumulation: all; else every other one, another half in each precision. */
static void compare(struct trial_shared *s, int world, int first_stage, int last_stage, int gas)
{
    const bool all = world == 2 && gas == 1;
    for (size_t d = 0; d < CZ_ARRAY_LEN(trial_dtypes); d++) {
        struct outcome want = {0};
        for (int stage = first_stage; stage <= last_stage; stage++)
            for (size_t v = 0; v < CZ_ARRAY_LEN(variants); v++) {
                if (!all && (v + d + (size_t)stage) % 2) continue;
                configure(s, stage, variants[v], trial_dtypes[d], gas);
                struct outcome have = outcome_of(s, world);
                if (want.masters == 0) want = have;
                ck_assert_msg(have.masters == want.masters, "world %d: %s", world, s->trial.config);
                ck_assert_double_eq(have.loss, want.loss);
                ck_assert_double_eq(have.norm, want.norm);
            }
    }
}

START_TEST(two_ranks_get_the_same_bytes_at_every_stage)
{
    compare(trial_make(), 2, 0, 3, 1);
}
END_TEST

START_TEST(three_ranks_get_the_same_bytes_at_every_stage)
{
    compare(trial_make(), 3, 0, 3, 1);
}
END_TEST

START_TEST(accumulation_has_two_classes)
{
    struct trial_shared *s = trial_make();
    s->trial.steps = 4;
    compare(s, 2, 0, 1, 3);
    compare(s, 2, 2, 3, 3);
    double losses[4];
    for (int stage = 0; stage < 4; stage++) {
        configure(s, stage, variants[0], trial_dtypes[0], 3);
        losses[stage] = outcome_of(s, 2).loss;
        ck_assert_double_eq_tol(losses[stage], losses[0], 1e-6);
    }
}
END_TEST

START_TEST(frozen_parameters_and_groups_are_right_at_every_stage)
{
    struct trial_shared *s = trial_make();
    for (int k = 0; k < 3; k++) {
        s->trial.freeze = k == 0 ? "wpe" : k == 1 ? "h.0.|ln_f" : "wte";
        s->trial.two_groups = k > 0;
        struct outcome want = {0};
        for (int stage = 0; stage < 4; stage++)
            for (size_t v = 1; v < 4; v++) {
                if ((v + (size_t)(stage + k)) % 2) continue;
                configure(s, stage, variants[v], trial_dtypes[1], 1);
                struct outcome have = outcome_of(s, 4);
                if (want.masters == 0) want = have;
                ck_assert_msg(have.masters == want.masters, "%s, freeze %s", s->trial.config,
                              s->trial.freeze);
            }
    }
}
END_TEST

START_TEST(gradients_read_before_the_boundary_are_the_same_at_every_stage)
{
    static const char *const dtypes[] = {
        "\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp32\"",
        "\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp16\"",
        "\"communication_data_type\": \"bf16\"",
    };
    struct trial_shared *s = trial_make();
    s->trial.reads_grads = true;
    s->trial.steps = 2;
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++) {
        struct outcome want = {0};
        for (int stage = 0; stage < 4; stage++)
            for (size_t v = 0; v < 2; v++) { /* overlap_comm: reduced when read, or not yet */
                configure(s, stage, variants[v], dtypes[d], 1);
                struct outcome have = outcome_of(s, 2);
                if (want.masters == 0) want = have;
                ck_assert_msg(have.grads == want.grads, "%s", s->trial.config);
            }
    }
}
END_TEST

/* An engine that ends with reductions or gathers on their way, and another one after it. */
static cz_status end_early(struct ranks *ranks, int rank, void *arg)
{
    struct trial_shared *s = arg;
    static struct replay_data data;
    static struct replay_batch b;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    replay_data_open(&data);
    for (int with_backward = 0; with_backward < 2; with_backward++) {
        struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
        const struct cz_engine_options options = {
            .size = sizeof options, .config_json = s->trial.config, .world = comm_world(comm)};
        struct cz_engine *e = engine_initialize_ex(&options, model);
        if (!e) return cz_last_status();
        TRY(engine_forward(e, replay_next(&data, &b, 2, TRIAL_T), NULL));
        if (with_backward) TRY(engine_backward(e));
        engine_destroy(e);
    }
    TRY(trial_run(comm, &s->trial, &s->outcomes[rank]));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(an_engine_may_end_before_the_boundary)
{
    struct trial_shared *s = trial_make();
    struct ranks ranks;
    s->trial.steps = 2;
    for (int stage = 0; stage < 4; stage++) {
        configure(s, stage, variants[2], trial_dtypes[0], 1);
        struct outcome want = outcome_of(s, 3);
        ranks_start(&ranks, 3, end_early, s);
        ranks_expect_ok(&ranks, 60);
        for (int r = 0; r < 3; r++) ck_assert_uint_eq(s->outcomes[r].masters, want.masters);
    }
}
END_TEST

static struct rank_report *log_report;

static void count_skips(enum cz_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    if (strstr(line, "skipped: the gradient of")) log_report->mark++;
}

static cz_status skip_rank(struct ranks *ranks, int rank, void *arg)
{
    log_report = &ranks->reports[rank];
    cz_log_set_sink(count_skips, NULL);
    return trial_rank(ranks, rank, arg);
}

START_TEST(a_skipped_step_is_said_once)
{
    struct trial_shared *s = trial_make();
    struct ranks ranks;
    s->trial.steps = 2;
    configure(s, 2, variants[1], "\"fp16\": {\"enabled\": true, \"loss_scale\": 16777216}", 1);
    ranks_start(&ranks, 3, skip_rank, s);
    ck_assert(ranks_wait(&ranks, 60));
    for (int r = 0; r < 3; r++) {
        rank_expect(&ranks, r, CZ_OK, "");
        ck_assert_int_eq(ranks.reports[r].mark, r == 0 ? 2 : 0);
        ck_assert_double_eq(s->outcomes[r].norm, INFINITY);
    }
    ranks_close(&ranks);
}
END_TEST

static cz_status group_rank(struct ranks *ranks, int rank, void *arg)
{
    struct trial_shared *s = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    const struct cz_engine_group group = {sizeof group, "bias", rank == 1 ? 0.5 : 0.25,
                                          NAN,          NAN,    NAN};
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = s->trial.config,
                                              .world = comm_world(comm),
                                              .groups = &group,
                                              .n_groups = 1};
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    struct cz_engine *e = engine_initialize_ex(&options, model);
    rank_check(e == NULL);
    return cz_last_status();
}

START_TEST(ranks_with_other_groups_are_told)
{
    struct trial_shared *s = trial_make();
    struct ranks ranks;
    configure(s, 1, variants[0], trial_dtypes[0], 1);
    ranks_start(&ranks, 3, group_rank, s);
    ck_assert(ranks_wait(&ranks, 60));
    for (int r = 0; r < 3; r++)
        rank_expect(&ranks, r, CZ_INVALID, "rank 1 has \"group 0: lr 0.5, betas");
    ranks_close(&ranks);
}
END_TEST

/* Rank 1 ends where the others evaluate. */
static cz_status evaluating_rank(struct ranks *ranks, int rank, void *arg)
{
    struct trial_shared *s = arg;
    static struct replay_data data;
    static struct replay_batch b;
    struct comm *comm;
    float loss;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = s->trial.config, .world = comm_world(comm)};
    struct cz_engine *e =
        engine_initialize_ex(&options, cz_model_open(test_fixture("models/gpt2-tiny")));
    if (!e) return cz_last_status();
    replay_data_open(&data);
    TRY(trial_step(e, &data, NULL));
    if (rank != 1) TRY(engine_eval(e, replay_next(&data, &b, 2, TRIAL_T), &loss));
    engine_destroy(e);
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(who_waits_in_an_evaluation_says_so)
{
    struct trial_shared *s = trial_make();
    struct ranks ranks;
    configure(s, 3, variants[2], trial_dtypes[0], 1);
    ranks_start(&ranks, 3, evaluating_rank, s);
    ck_assert(ranks_wait(&ranks, 60));
    rank_expect(&ranks, 0, CZ_PEER, "waited at step 1 (evaluation)");
    rank_expect(&ranks, 1, CZ_OK, "");
    rank_expect(&ranks, 2, CZ_PEER, "(evaluation)");
    ranks_close(&ranks);
}
END_TEST

TEST_MAIN_SECONDS(120, "engine/ranks", who_waits_in_an_evaluation_says_so,
                  a_skipped_step_is_said_once, ranks_with_other_groups_are_told,
                  an_engine_may_end_before_the_boundary,
                  gradients_read_before_the_boundary_are_the_same_at_every_stage,
                  two_ranks_get_the_same_bytes_at_every_stage,
                  three_ranks_get_the_same_bytes_at_every_stage, accumulation_has_two_classes,
                  frozen_parameters_and_groups_are_right_at_every_stage)

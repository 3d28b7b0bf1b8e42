/* Claims: at a fixed number of ranks, fp32 masters after training have the same bytes whatever the
 * stage, overlap, bucket, sub-group, prefetch and persistence settings (with accumulation: inside
 * stages 0-1 and inside 2-3); also with frozen parameters and several groups. Every rank sees the
 * same whole tensors, and what was sent is what the plan says. */
#include "comm/comm.h"
#include "engine/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/replay.h"

enum { T = 16, STEPS = 8 };

struct trial {
    char config[1024];
    const char *freeze;
    bool two_groups;
    int steps;
};

struct outcome {
    uint64_t masters; /* hash of all masters, then of all first moments */
    double loss, norm;
    uint64_t sent_nbytes, planned_nbytes; /* of one step, on this rank */
    struct comm_traffic traffic;          /* of one step */
};

/* Shared with the ranks. */
struct shared {
    struct trial trial;
    struct outcome outcomes[RANKS_MAX];
};

static uint64_t hash(uint64_t h, const void *data, size_t nbytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < nbytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static cz_status hash_tensors(struct engine *e, const char *what, uint64_t *h)
{
    static float x[256 * 64 + 1];
    const struct param_table *table = model_params(engine_get_model(e));
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        rank_check(p->numel <= CZ_ARRAY_LEN(x));
        if (!p->trainable && strcmp(what, "weight") != 0) continue;
        TRY(engine_param_get(e, p->name, what, x, p->numel));
        *h = hash(*h, x, p->numel * sizeof *x);
    }
    return CZ_OK;
}

static cz_status train_step(struct engine *e, struct replay_data *d)
{
    static struct replay_batch b;
    int64_t rank = engine_get_rank(e), world = engine_get_world_size(e);
    int64_t B = engine_get_micro_batch(e);
    for (int64_t g = 0; g < engine_get_accumulation(e); g++) {
        uint64_t first = d->row;
        d->row = first + (uint64_t)(rank * B);
        TRY(engine_forward(e, replay_next(d, &b, B, T), NULL));
        TRY(engine_backward(e));
        TRY(engine_step(e));
        d->row = first + (uint64_t)(world * B);
    }
    return CZ_OK;
}

static cz_status run(struct comm *comm, const struct trial *trial, struct outcome *out)
{
    static struct replay_data data;
    const struct engine_group groups[] = {{"bias|ln_", NAN, 0, NAN, NAN}};
    struct model *model = model_from_hf(test_data("models/gpt2-tiny"));
    if (!model) return cz_last_status();
    TRY(model_set_shape(model, T));
    if (trial->freeze) TRY(model_freeze(model, trial->freeze, NULL));
    const struct engine_options options = {.config_json = trial->config,
                                           .comm = comm,
                                           .groups = groups,
                                           .n_groups = trial->two_groups ? 1 : 0};
    struct engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    replay_data_open(&data);
    for (int s = 0; s < trial->steps; s++) {
        comm->traffic = (struct comm_traffic){0};
        TRY(train_step(e, &data));
    }
    out->traffic = comm->traffic;
    out->loss = engine_get_boundary_loss(e);
    out->norm = engine_get_global_grad_norm(e);
    out->planned_nbytes = engine_get_plan(e)->sent_nbytes_per_step;
    out->masters = 14695981039346656037u;
    TRY(hash_tensors(e, "weight", &out->masters));
    TRY(hash_tensors(e, "exp_avg", &out->masters));
    engine_destroy(e);
    return CZ_OK;
}

static cz_status body(struct ranks *ranks, int rank, void *arg)
{
    struct shared *s = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(run(comm, &s->trial, &s->outcomes[rank]));
    comm_destroy(comm);
    return CZ_OK;
}

/* Run a trial over `world` ranks; all of them must see the same. */
static struct outcome outcome_of(struct shared *s, int world)
{
    struct ranks ranks;
    ranks_start(&ranks, world, body, s);
    ranks_expect_ok(&ranks, 60);
    for (int r = 1; r < world; r++) {
        ck_assert_msg(s->outcomes[r].masters == s->outcomes[0].masters, "rank %d: %s", r,
                      s->trial.config);
        ck_assert_double_eq(s->outcomes[r].loss, s->outcomes[0].loss);
        ck_assert_double_eq(s->outcomes[r].norm, s->outcomes[0].norm);
    }
    return s->outcomes[0];
}

static struct shared *shared_make(void)
{
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(s != MAP_FAILED);
    s->trial.steps = STEPS;
    return s;
}

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

static const char *const dtypes[] = {
    "\"fp16\": {\"enabled\": false}",
    "\"bf16\": {\"enabled\": true}",
    "\"fp16\": {\"enabled\": true, \"loss_scale\": 1024}",
};

static void configure(struct shared *s, int stage, const char *variant, const char *dtype, int gas)
{
    snprintf(s->trial.config, sizeof s->trial.config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": 0.5, %s, \"zero_optimization\": {\"stage\": %d, %s}, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, "
             "\"weight_decay\": 0.1}}}",
             gas, dtype, stage, variant);
}

static void compare(struct shared *s, int world, int first_stage, int last_stage, int gas)
{
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++) {
        struct outcome want = {0};
        for (int stage = first_stage; stage <= last_stage; stage++)
            for (size_t v = 0; v < CZ_ARRAY_LEN(variants); v++) {
                configure(s, stage, variants[v], dtypes[d], gas);
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
    compare(shared_make(), 2, 0, 3, 1);
}
END_TEST

START_TEST(three_ranks_get_the_same_bytes_at_every_stage)
{
    compare(shared_make(), 3, 0, 3, 1);
}
END_TEST

START_TEST(accumulation_has_two_classes)
{
    struct shared *s = shared_make();
    s->trial.steps = 4;
    compare(s, 2, 0, 1, 3);
    compare(s, 2, 2, 3, 3);
    double losses[4];
    for (int stage = 0; stage < 4; stage++) {
        configure(s, stage, variants[0], dtypes[0], 3);
        losses[stage] = outcome_of(s, 2).loss;
        ck_assert_double_eq_tol(losses[stage], losses[0], 1e-6);
    }
}
END_TEST

START_TEST(frozen_parameters_and_groups_are_right_at_every_stage)
{
    struct shared *s = shared_make();
    for (int k = 0; k < 3; k++) {
        s->trial.freeze = k == 0 ? "wpe" : k == 1 ? "h.0.|ln_f" : "wte";
        s->trial.two_groups = k > 0;
        struct outcome want = {0};
        for (int stage = 0; stage < 4; stage++)
            for (size_t v = 1; v < 4; v++) {
                configure(s, stage, variants[v], dtypes[1], 1);
                struct outcome have = outcome_of(s, 4);
                if (want.masters == 0) want = have;
                ck_assert_msg(have.masters == want.masters, "%s, freeze %s", s->trial.config,
                              s->trial.freeze);
            }
    }
}
END_TEST

START_TEST(what_is_sent_is_what_was_planned)
{
    struct shared *s = shared_make();
    s->trial.steps = 2;
    for (int stage = 0; stage < 4; stage++)
        for (size_t v = 0; v < CZ_ARRAY_LEN(variants); v++)
            for (int gas = 1; gas <= 3; gas += 2) {
                configure(s, stage, variants[v], dtypes[1], gas);
                (void)outcome_of(s, 3);
                for (int r = 0; r < 3; r++) {
                    const struct outcome *o = &s->outcomes[r];
                    /* Besides: loss, scan, norm and agreement, a few hundred bytes each. */
                    uint64_t sent = o->traffic.reduce_sent_nbytes + o->traffic.move_sent_nbytes;
                    ck_assert_uint_ge(sent, o->planned_nbytes);
                    ck_assert_uint_le(sent, o->planned_nbytes + 2048);
                }
            }
}
END_TEST

TEST_MAIN("engine/ranks", two_ranks_get_the_same_bytes_at_every_stage,
          three_ranks_get_the_same_bytes_at_every_stage, accumulation_has_two_classes,
          frozen_parameters_and_groups_are_right_at_every_stage, what_is_sent_is_what_was_planned)

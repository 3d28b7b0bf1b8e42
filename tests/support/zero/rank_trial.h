/* Training runs over real ranks, for tests of what must not matter and of what is sent: a trial
 * says what to run, an outcome what came of it. */
#ifndef CZ_TESTS_RANK_TRIAL_H
#define CZ_TESTS_RANK_TRIAL_H

#include "comm/comm.h"
#include "engine/plan/plan.h"
#include "tests/support/gpu/trial_step.h"
#include "tests/support/peak.h"
#include "tests/support/ranks.h"

enum { TRIAL_STEPS = 8 };

struct trial {
    char config[1024];
    const char *freeze, *model; /* model NULL: the small one */
    const char *optimizer;      /* of configure(), members of its section; NULL: AdamW */
    const char *device;         /* NULL: the CPU */
    bool two_groups;
    bool reads_grads; /* after each backward; a test of traffic or speed does not */
    int steps;
};

struct outcome {
    uint64_t masters; /* hash of all masters, then of all first and second moments */
    uint64_t grads;   /* hash of what was read of them */
    double loss, norm;
    struct comm_traffic traffic; /* of one step, on this rank */
    struct cz_plan plan;
    size_t peak_nbytes; /* of resident memory, before tensors are put together */
    size_t locked_nbytes;
};

/* Shared with the ranks. */
struct trial_shared {
    struct trial trial;
    struct outcome outcomes[RANKS_MAX];
};

static inline cz_status trial_run(struct comm *comm, const struct trial *trial, struct outcome *out)
{
    static struct replay_data data;
    const struct cz_engine_group groups[] = {{sizeof groups[0], "bias|ln_", NAN, 0, NAN, NAN}};
    struct cz_model *model =
        cz_model_open(trial->model ? trial->model : test_fixture("models/gpt2-tiny"));
    if (!model) return cz_last_status();
    TRY(cz_model_set_shape(model, TRIAL_T));
    if (trial->freeze) TRY(cz_model_freeze(model, trial->freeze, NULL));
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = trial->config,
                                              .world = comm_world(comm),
                                              .device = trial->device,
                                              .groups = groups,
                                              .n_groups = trial->two_groups ? 1 : 0};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    replay_data_open(&data);
    out->grads = TRIAL_HASH_BEGIN;
    for (int s = 0; s < trial->steps; s++) {
        comm->traffic = (struct comm_traffic){0};
        TRY(trial_step(e, &data, trial->reads_grads ? &out->grads : NULL));
    }
    out->traffic = comm->traffic;
    out->loss = engine_get_boundary_loss(e);
    out->norm = engine_get_global_grad_norm(e);
    out->plan = *engine_get_plan(e);
    out->peak_nbytes = peak_resident();
    out->locked_nbytes = peak_status("VmLck");
    if (trial->model) { /* too large to be put together here */
        engine_destroy(e);
        return CZ_OK;
    }
    out->masters = TRIAL_HASH_BEGIN;
    TRY(trial_hash_tensors(e, "weight", &out->masters));
    TRY(trial_hash_tensors(e, "exp_avg", &out->masters));
    TRY(trial_hash_tensors(e, "exp_avg_sq", &out->masters));
    engine_destroy(e);
    return CZ_OK;
}

static inline cz_status trial_rank(struct ranks *ranks, int rank, void *arg)
{
    struct trial_shared *s = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(trial_run(comm, &s->trial, &s->outcomes[rank]));
    comm_destroy(comm);
    return CZ_OK;
}

/* Run a trial over `world` ranks; all of them must see the same. */
static inline struct outcome outcome_of(struct trial_shared *s, int world)
{
    struct ranks ranks;
    ranks_start(&ranks, world, trial_rank, s);
    ranks_expect_ok(&ranks, 60);
    for (int r = 1; r < world; r++) {
        ck_assert_msg(s->outcomes[r].masters == s->outcomes[0].masters, "rank %d: %s", r,
                      s->trial.config);
        ck_assert_msg(s->outcomes[r].grads == s->outcomes[0].grads, "rank %d: %s", r,
                      s->trial.config);
        ck_assert_double_eq(s->outcomes[r].loss, s->outcomes[0].loss);
        ck_assert_double_eq(s->outcomes[r].norm, s->outcomes[0].norm);
    }
    return s->outcomes[0];
}

static inline struct trial_shared *trial_make(void)
{
    struct trial_shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(s != MAP_FAILED);
    s->trial.steps = TRIAL_STEPS;
    return s;
}

static const char *const trial_dtypes[] = {
    "\"fp16\": {\"enabled\": false}",
    "\"bf16\": {\"enabled\": true}",
    "\"fp16\": {\"enabled\": true, \"loss_scale\": 1024}",
};

static inline void configure(struct trial_shared *s, int stage, const char *variant,
                             const char *dtype, int gas)
{
    snprintf(s->trial.config, sizeof s->trial.config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": 0.5, %s, \"zero_optimization\": {\"stage\": %d, %s}, "
             "\"zero_allow_untested_optimizer\": true, \"optimizer\": {%s}}",
             gas, dtype, stage, variant,
             s->trial.optimizer ? s->trial.optimizer
                                : "\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, "
                                  "\"weight_decay\": 0.1}");
}

#endif

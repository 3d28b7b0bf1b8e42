/* Trials of an update that is left to the next forward, for tests on the CPU and on a CUDA device:
 * the same run with czero.late_update and without; and looks at weights and states in between. */
#ifndef CZ_TESTS_LATE_TRIAL_H
#define CZ_TESTS_LATE_TRIAL_H

#include "engine/engine_impl.h"
#include "tests/support/zero/tiers.h"

/* fp16 begins with overflows and soon has a scale that fits; then it tries a larger one. */
static const char *const late_dtypes[] = {
    "\"fp16\": {\"enabled\": false}", "\"bf16\": {\"enabled\": true}",
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 17, \"loss_scale_window\": 2, "
    "\"hysteresis\": 1}"};

static const char *late_root;   /* a folder */
static const char *late_device; /* NULL: the CPU */

/* ---- the same bytes ---------------------------------------------------------------------------
 */

/* At the end, as probes are. */
static inline cz_status late_is_on(struct cz_engine *e, uint64_t *own)
{
    *own = zero_updates_late(e->desc.zero);
    return CZ_OK;
}

static inline struct leg_outcome late_train(struct leg_shared *s, const struct tier_run *run,
                                            struct tiers t, int steps, const char *late)
{
    char swap[128];
    struct tier_run settings = *run;
    settings.late = late;
    snprintf(swap, sizeof swap, "%s/swap", late_root);
    tiers_configure(&s->leg, &settings, t, swap);
    s->leg.device = late_device;
    s->leg.to = steps;
    s->leg.whole_steps = run->order != NULL;
    s->leg.probe = late_is_on;
    struct leg_outcome out = leg_outcome_of(s, run->world);
    tiers_expect_gone(swap, tiers_describe(run, t));
    return out;
}

static inline void late_expect(const struct leg_shared *s, const struct tier_run *run,
                               struct tiers t, bool is_on)
{
    for (int r = 0; r < run->world; r++)
        ck_assert_msg(s->own[r] == is_on, "late or not, rank %d: %s", r, tiers_describe(run, t));
}

static inline void late_same_as_at_once(const struct tier_run *run, struct tiers t, int steps)
{
    struct leg_shared *s = leg_make();
    struct leg_outcome want = late_train(s, run, t, steps, "false");
    late_expect(s, run, t, false);
    struct leg_outcome have = late_train(s, run, t, steps, "true");
    late_expect(s, run, t, true);
    const char *what = tiers_describe(run, t);
    if (strstr(run->dtype, "initial_scale_power")) ck_assert_int_gt(want.skipped, 0);
    ck_assert_msg(want.skipped < steps, "no step was applied: %s", what);
    ck_assert_msg(want.weights == have.weights, "masters differ: %s", what);
    ck_assert_msg(want.states == have.states, "states differ: %s", what);
    ck_assert_msg(memcmp(&want, &have, sizeof want) == 0, "losses or norms differ: %s", what);
    munmap(s, sizeof *s);
}

/* ---- looks in between -------------------------------------------------------------------------
 */

struct late_look {
    char configs[2][2048], dir[160];
    uint64_t hashes[RANKS_MAX][2];
    int64_t sent[RANKS_MAX][2], planned[RANKS_MAX][2]; /* by a step */
};

static inline cz_status late_engine(struct comm *comm, const char *config, struct cz_engine **out)
{
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    rank_check(model != NULL);
    TRY(cz_model_set_shape(model, TRIAL_T));
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = config,
                                              .device = late_device,
                                              .world = comm_world(comm)};
    *out = engine_initialize_ex(&options, model);
    return *out ? CZ_OK : cz_last_status();
}

static inline cz_status late_add_weight(struct cz_engine *e, const char *name, float *x,
                                        size_t numel, uint64_t *h)
{
    TRY(engine_param_get(e, name, "weight", x, numel));
    *h = trial_hash(*h, x, numel * sizeof *x);
    x[numel / 2] += 0.25f;
    return engine_param_set(e, name, "weight", x, numel);
}

/* After each step another kind of look comes first, of a large parameter and one that stays. */
static inline cz_status late_look_at_all(struct comm *comm, struct late_look *run, int late)
{
    static struct replay_data d;
    static struct replay_batch b;
    static float x[256 * 64];
    uint64_t h = TRIAL_HASH_BEGIN;
    struct cz_engine *e;
    float loss;
    TRY(late_engine(comm, run->configs[late], &e));
    replay_data_open(&d);
    for (int s = 0; s < 10; s++) {
        TRY(trial_step(e, &d, NULL));
        if (s == 5) { /* without a look before it */
            run->sent[comm->rank][late] = engine_get_sent_bytes(e);
            run->planned[comm->rank][late] = (int64_t)engine_get_plan(e)->sent_nbytes_per_step;
        }
        const uint64_t row = d.row;
        const struct cz_batch *batch = replay_next(&d, &b, 2, TRIAL_T);
        d.row = row;
        if (s % 5 == 0) TRY(engine_eval(e, batch, &loss));
        if (s % 5 == 0) h = trial_hash(h, &loss, sizeof loss);
        if (s % 5 == 1) TRY(late_add_weight(e, "transformer.h.1.ln_2.weight", x, 64, &h));
        if (s % 5 == 2) TRY(engine_save_checkpoint(e, run->dir, NULL));
        if (s % 5 == 3) TRY(late_add_weight(e, "transformer.wte.weight", x, CZ_ARRAY_LEN(x), &h));
    }
    TRY(engine_load_checkpoint(e, run->dir, NULL));
    TRY(trial_step(e, &d, NULL));
    TRY(trial_hash_tensors(e, "weight", &h));
    run->hashes[comm->rank][late] = h;
    engine_destroy(e);
    return CZ_OK;
}

static inline cz_status late_look_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    for (int late = 0; late < 2; late++) TRY(late_look_at_all(comm, arg, late));
    comm_destroy(comm);
    return CZ_OK;
}

static inline struct late_look *late_look_make(int stage, int world, int turn, struct tiers t)
{
    static struct leg leg;
    char swap[128];
    struct late_look *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(run != MAP_FAILED);
    late_root = test_tmp_make_fast();
    snprintf(swap, sizeof swap, "%s/swap", late_root);
    snprintf(run->dir, sizeof run->dir, "%s/ckpt", late_root);
    for (int late = 0; late < 2; late++) {
        const struct tier_run settings = {.stage = stage,
                                          .world = world,
                                          .gas = 1,
                                          .dtype = leg_dtypes[1],
                                          .optimizer = tier_optimizers[0],
                                          .late = late ? "true" : "false",
                                          .turn = turn};
        tiers_configure(&leg, &settings, t, swap);
        memcpy(run->configs[late], leg.config, sizeof leg.config);
    }
    return run;
}

static inline void late_looks_see_the_update(int stage, int world, int turn, struct tiers t)
{
    struct late_look *run = late_look_make(stage, world, turn, t);
    struct ranks ranks;
    ranks_start(&ranks, world, late_look_rank, run);
    ranks_expect_ok(&ranks, 60);
    for (int r = 0; r < world; r++) {
        ck_assert(run->hashes[r][0] == run->hashes[0][0]);
        ck_assert(run->hashes[r][1] == run->hashes[0][0]);
        ck_assert_int_eq(run->sent[r][1], run->sent[r][0]);
        ck_assert_int_eq(run->planned[r][1], run->planned[r][0]);
        ck_assert_int_ge(run->sent[r][1], run->planned[r][1]);
        ck_assert_int_le(run->sent[r][1], run->planned[r][1] + 2048); /* and what ranks agree on */
    }
    munmap(run, sizeof *run);
    test_tmp_remove(late_root);
}

#endif

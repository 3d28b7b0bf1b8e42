/* Claims: on two and three ranks at stages 0 and 3 an update that is left to the next forward gives
 * the bytes of an update at the boundary: with clipping, skipped fp16 steps, Lamb, accumulation in
 * either order, parameters in memory or on NVMe, a share of the states in memory, groups, frozen
 * parameters, parameters that stay gathered; and so do evaluations, saves and single tensors that
 * come between. A step sends as many bytes, as the plan says. A rank that looks alone at what is on
 * all ranks ends them instead of waiting. */
#include "engine/engine_impl.h"
#include "tests/support/zero/tiers.h"

enum { STEPS = 7 };

static const char *root;

static struct leg_outcome train(struct leg_shared *s, const struct tier_run *run, struct tiers t,
                                const char *late)
{
    char swap[128];
    struct tier_run settings = *run;
    settings.late = late;
    snprintf(swap, sizeof swap, "%s/swap", root);
    tiers_configure(&s->leg, &settings, t, swap);
    s->leg.to = STEPS;
    s->leg.whole_steps = run->order != NULL;
    struct leg_outcome out = leg_outcome_of(s, run->world);
    tiers_expect_gone(swap, tiers_describe(run, t));
    for (int r = 0; r < run->world; r++)
        ck_assert_msg(s->own[r] == (strcmp(late, "true") == 0), "late or not, rank %d: %s", r,
                      tiers_describe(run, t));
    return out;
}

/* At the end, as probes are. */
static cz_status is_late(struct cz_engine *e, uint64_t *own)
{
    *own = zero_updates_late(e->zero);
    return CZ_OK;
}

/* ---- the same bytes ---------------------------------------------------------------------------
 */

static void same_late_as_at_once(const struct tier_run *run, struct tiers t)
{
    struct leg_shared *s = leg_make();
    s->leg.probe = is_late;
    struct leg_outcome want = train(s, run, t, "false"), have = train(s, run, t, "true");
    const char *what = tiers_describe(run, t);
    if (strstr(run->dtype, "initial_scale_power")) ck_assert_int_gt(want.skipped, 0);
    ck_assert_msg(want.weights == have.weights, "masters differ: %s", what);
    ck_assert_msg(want.states == have.states, "states differ: %s", what);
    ck_assert_msg(memcmp(&want, &have, sizeof want) == 0, "losses or norms differ: %s", what);
    munmap(s, sizeof *s);
}

/* Every precision, optimizer, tier and accumulation meets every stage and number of ranks. */
static void all_of(int stage, int world)
{
    static const struct tiers tiers[] = {
        {TIER_NVME, TIER_NONE}, {TIER_NVME, TIER_NVME}, {TIER_CPU, TIER_NVME}};
    static const char *const orders[] = {NULL, "layers", "micro_batches"};
    root = test_tmp_make_fast();
    for (int k = 0; k < 6; k++) {
        const struct tier_run run = {.stage = stage,
                                     .world = world,
                                     .gas = k % 2 ? 4 : 1,
                                     .order = k % 2 ? orders[1 + k / 3 % 2] : orders[k / 2 % 3],
                                     .dtype = leg_dtypes[(k + k / 3) % 3],
                                     .optimizer = k % 3 == 2 ? tier_lamb : tier_optimizers[k % 3],
                                     .freeze = k % 4 == 1 ? "h\\.0\\.|wpe" : NULL,
                                     .two_groups = k % 4 < 2,
                                     .turn = k + world + stage};
        same_late_as_at_once(&run, tiers[(k + k / 3) % 3]);
    }
    test_tmp_remove(root);
}

START_TEST(two_ranks_with_chunks)
{
    all_of(3, 2);
}
END_TEST

START_TEST(three_ranks_with_chunks)
{
    all_of(3, 3);
}
END_TEST

START_TEST(ranks_with_whole_parameters)
{
    all_of(0, 2);
}
END_TEST

/* ---- looks in between -------------------------------------------------------------------------
 */

struct look_run {
    char configs[2][2048], dir[160];
    uint64_t hashes[RANKS_MAX][2];
    int64_t sent[RANKS_MAX][2], planned[RANKS_MAX][2]; /* by a step */
};

static cz_status make_engine(struct comm *comm, const char *config, struct cz_engine **out)
{
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    rank_check(model != NULL);
    TRY(cz_model_set_shape(model, TRIAL_T));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .world = comm_world(comm)};
    *out = engine_initialize_ex(&options, model);
    return *out ? CZ_OK : cz_last_status();
}

static cz_status add_weight(struct cz_engine *e, const char *name, float *x, size_t numel,
                            uint64_t *h)
{
    TRY(engine_param_get(e, name, "weight", x, numel));
    *h = trial_hash(*h, x, numel * sizeof *x);
    x[numel / 2] += 0.25f;
    return engine_param_set(e, name, "weight", x, numel);
}

/* After each step another kind of look comes first, of a large parameter and one that stays. */
static cz_status look_at_all(struct comm *comm, struct look_run *run, int late)
{
    static struct replay_data d;
    static struct replay_batch b;
    static float x[256 * 64];
    uint64_t h = TRIAL_HASH_BEGIN;
    struct cz_engine *e;
    float loss;
    TRY(make_engine(comm, run->configs[late], &e));
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
        if (s % 5 == 1) TRY(add_weight(e, "transformer.h.1.ln_2.weight", x, 64, &h));
        if (s % 5 == 2) TRY(engine_save_checkpoint(e, run->dir, NULL));
        if (s % 5 == 3) TRY(add_weight(e, "transformer.wte.weight", x, CZ_ARRAY_LEN(x), &h));
    }
    TRY(engine_load_checkpoint(e, run->dir, NULL));
    TRY(trial_step(e, &d, NULL));
    TRY(trial_hash_tensors(e, "weight", &h));
    run->hashes[comm->rank][late] = h;
    engine_destroy(e);
    return CZ_OK;
}

static cz_status look_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    for (int late = 0; late < 2; late++) TRY(look_at_all(comm, arg, late));
    comm_destroy(comm);
    return CZ_OK;
}

static struct look_run *look_run_make(int stage, int world, int turn)
{
    static struct leg leg;
    char swap[128];
    struct look_run *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(run != MAP_FAILED);
    root = test_tmp_make_fast();
    snprintf(swap, sizeof swap, "%s/swap", root);
    snprintf(run->dir, sizeof run->dir, "%s/ckpt", root);
    for (int late = 0; late < 2; late++) {
        const struct tier_run settings = {.stage = stage,
                                          .world = world,
                                          .gas = 1,
                                          .dtype = leg_dtypes[1],
                                          .optimizer = tier_optimizers[0],
                                          .late = late ? "true" : "false",
                                          .turn = turn};
        tiers_configure(&leg, &settings, (struct tiers){TIER_NVME, turn % 2 ? TIER_NVME : 0}, swap);
        memcpy(run->configs[late], leg.config, sizeof leg.config);
    }
    return run;
}

START_TEST(looks_in_between_see_the_update)
{
    for (int turn = 0; turn < 4; turn++) {
        const int stage = turn < 3 ? 3 : 0, world = 2 + turn % 2;
        struct look_run *run = look_run_make(stage, world, turn);
        struct ranks ranks;
        ranks_start(&ranks, world, look_rank, run);
        ranks_expect_ok(&ranks, 60);
        for (int r = 0; r < world; r++) {
            ck_assert(run->hashes[r][0] == run->hashes[0][0]);
            ck_assert(run->hashes[r][1] == run->hashes[0][0]);
            ck_assert_int_eq(run->sent[r][1], run->sent[r][0]);
            ck_assert_int_eq(run->planned[r][1], run->planned[r][0]);
            ck_assert_int_ge(run->sent[r][1], run->planned[r][1]);
            ck_assert_int_le(run->sent[r][1],
                             run->planned[r][1] + 2048); /* and what ranks agree on */
        }
        munmap(run, sizeof *run);
        test_tmp_remove(root);
    }
}
END_TEST

/* ---- a look of one rank -----------------------------------------------------------------------
 */

static cz_status alone_rank(struct ranks *ranks, int rank, void *arg)
{
    static struct replay_data d;
    static float x[64];
    const struct look_run *run = arg;
    struct comm *comm;
    struct cz_engine *e;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(make_engine(comm, run->configs[1], &e));
    replay_data_open(&d);
    for (int s = 0; s < 2; s++) TRY(trial_step(e, &d, NULL));
    cz_status st = rank == 0 ? engine_param_get(e, "transformer.h.1.ln_2.weight", "weight", x, 64)
                             : trial_step(e, &d, NULL);
    if (st != CZ_COMM && st != CZ_PEER)
        return err_set(CZ_INVALID, 0, "%s: %s", cz_status_name(st), cz_last_error());
    engine_destroy(e);
    comm_destroy(comm);
    err_clear();
    return CZ_OK;
}

START_TEST(a_rank_that_looks_alone_ends_them)
{
    for (int turn = 0; turn < 2; turn++) {
        struct look_run *run = look_run_make(3, 2, turn);
        struct ranks ranks;
        ranks_start(&ranks, 2, alone_rank, run);
        ranks_expect_ok(&ranks, 20);
        munmap(run, sizeof *run);
        test_tmp_remove(root);
    }
}
END_TEST

TEST_MAIN_SECONDS(120, "engine/offload_late", two_ranks_with_chunks, three_ranks_with_chunks,
                  ranks_with_whole_parameters, looks_in_between_see_the_update,
                  a_rank_that_looks_alone_ends_them)

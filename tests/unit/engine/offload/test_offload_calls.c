/* Claims: every call of the engine gives the same bytes wherever states and parameters are kept:
 * evaluation and logits between steps, gradients, weights and states read and written by name,
 * exports, 16-bit weights, weights loaded alone, a load that is refused, activations on the host.
 */
#include "tests/support/zero/tiers.h"

static const char *root;

static const char *folder(const char *name)
{
    static char paths[4][160];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static cz_status hash_file(const char *path, uint64_t *h)
{
    static unsigned char bytes[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(CZ_NOTFOUND, 0, "%s is not there", path);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    rank_check(n > 1000 && n < sizeof bytes);
    *h = trial_hash(*h, bytes, n);
    return CZ_OK;
}

/* Loss and logits without a change of state. */
static cz_status look(struct cz_engine *e, struct replay_data *d, uint64_t *h)
{
    static struct replay_batch b;
    static float logits[2 * TRIAL_T * 256];
    struct replay_data at = {.n = d->n, .row = 3};
    float loss;
    memcpy(at.tokens, d->tokens, sizeof at.tokens);
    const struct cz_batch *batch = replay_next(&at, &b, 2, TRIAL_T);
    TRY(engine_eval(e, batch, &loss));
    TRY(engine_predict(e, batch, logits));
    *h = trial_hash(*h, &loss, sizeof loss);
    *h = trial_hash(*h, logits, sizeof logits);
    return CZ_OK;
}

/* Some weights and a state are replaced by others. */
static cz_status set(struct cz_engine *e, uint64_t *h)
{
    static float x[256 * 64];
    const struct param_table *table = model_params(engine_get_model(e));
    for (size_t i = 0; i < table->n_params; i += 3) {
        const struct param_info *p = &table->params[i];
        TRY(engine_param_get(e, p->name, "weight", x, p->numel));
        for (size_t k = 0; k < p->numel; k++) x[k] = x[k] * 0.75f + 0.001f;
        TRY(engine_param_set(e, p->name, "weight", x, p->numel));
        if (!p->trainable) continue;
        TRY(engine_param_get(e, p->name, "exp_avg", x, p->numel));
        for (size_t k = 0; k < p->numel; k++) x[k] = x[k] * 0.5f - 0.0001f;
        TRY(engine_param_set(e, p->name, "exp_avg", x, p->numel));
    }
    TRY(trial_hash_tensors(e, "weight", h));
    return CZ_OK;
}

static cz_status files(struct cz_engine *e, int rank, uint64_t *h)
{
    bool saved;
    TRY(engine_export_hf(e, folder("export"), DTYPE_F32));
    TRY(engine_save_16bit_model(e, folder("export"), "sixteen.bin", false, &saved));
    rank_check(saved);
    if (rank > 0) return CZ_OK;
    TRY(hash_file(folder("export/model.safetensors"), h));
    return hash_file(folder("export/sixteen.bin"), h);
}

static cz_status all_calls(struct cz_engine *e, int rank, uint64_t *h)
{
    static struct replay_data d;
    const struct cz_load_options weights = {.size = sizeof weights, .module_only = true};
    replay_data_open(&d);
    TRY(look(e, &d, h));
    for (int s = 0; s < 2; s++) TRY(trial_step(e, &d, h));
    TRY(look(e, &d, h));
    TRY(engine_save_checkpoint(e, folder("ckpt"), NULL));
    TRY(trial_step(e, &d, h));
    TRY(set(e, h));
    TRY(look(e, &d, h));
    TRY(trial_step(e, &d, NULL));
    TRY(files(e, rank, h));
    rank_check(engine_load_checkpoint(e, folder("nowhere"), NULL) != CZ_OK);
    err_clear();
    TRY(trial_step(e, &d, NULL));
    TRY(trial_hash_tensors(e, "weight", h));
    TRY(engine_load_checkpoint_ex(e, folder("ckpt"), &weights, NULL));
    TRY(trial_step(e, &d, h));
    TRY(engine_load_checkpoint(e, folder("ckpt"), NULL));
    TRY(trial_step(e, &d, h));
    TRY(look(e, &d, h));
    TRY(trial_hash_tensors(e, "weight", h));
    uint64_t states;
    TRY(trial_hash_states(e, &states));
    *h ^= states;
    return CZ_OK;
}

struct calls {
    char config[2048];
    uint64_t sum[RANKS_MAX];
};

static cz_status calls_rank(struct ranks *ranks, int rank, void *arg)
{
    struct calls *c = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    rank_check(model != NULL);
    TRY(cz_model_set_shape(model, TRIAL_T));
    TRY(cz_model_freeze(model, "h\\.1\\.ln_", NULL));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = c->config, .world = comm_world(comm), .seed = 3};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    c->sum[rank] = TRIAL_HASH_BEGIN;
    TRY(all_calls(e, rank, &c->sum[rank]));
    engine_destroy(e);
    comm_destroy(comm);
    return CZ_OK;
}

static uint64_t run_calls(struct calls *c, const struct tier_run *run, struct tiers t)
{
    static const char gathers[] = "\"stage3_gather_16bit_weights_on_model_save\": true, "
                                  "\"sub_group_size\"";
    static const char on_host[] = "\"activation_checkpointing\": {\"number_checkpoints\": 2, "
                                  "\"cpu_checkpointing\": true}, \"czero\"";
    static struct leg leg;
    struct ranks ranks;
    char *at;
    root = test_tmp_make_fast();
    tiers_configure(&leg, run, t, folder("swap"));
    at = strstr(leg.config, "\"sub_group_size\"");
    snprintf(c->config, sizeof c->config, "%.*s%s%s", (int)(at - leg.config), leg.config, gathers,
             at + strlen("\"sub_group_size\""));
    memcpy(leg.config, c->config, sizeof leg.config);
    at = strstr(leg.config, "\"czero\"");
    snprintf(c->config, sizeof c->config, "%.*s%s%s", (int)(at - leg.config), leg.config,
             run->turn % 2 ? on_host : "\"czero\"", at + strlen("\"czero\""));
    ranks_start(&ranks, run->world, calls_rank, c);
    ranks_expect_ok(&ranks, 60);
    tiers_expect_gone(folder("swap"), tiers_describe(run, t));
    test_tmp_remove(root);
    return c->sum[0];
}

static void check_stage(int stage)
{
    struct calls *c =
        mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(c != MAP_FAILED);
    for (int world = 1; world < 3; world++) {
        const struct tier_run run = {.stage = stage,
                                     .world = world,
                                     .gas = 1 + stage % 2,
                                     .dtype = leg_dtypes[(stage + world) % 2],
                                     .optimizer = tier_optimizers[0],
                                     .turn = stage + world};
        uint64_t want = run_calls(c, &run, tiers_none);
        for (int t = 1; t < TIER_COUNT * TIER_COUNT; t++) {
            const struct tiers tiers = {t % TIER_COUNT, t / TIER_COUNT};
            ck_assert_msg(run_calls(c, &run, tiers) == want, "%s", tiers_describe(&run, tiers));
        }
    }
    munmap(c, sizeof *c);
}

START_TEST(stage_0)
{
    check_stage(0);
}
END_TEST

START_TEST(stage_1)
{
    check_stage(1);
}
END_TEST

START_TEST(stage_2)
{
    check_stage(2);
}
END_TEST

START_TEST(stage_3)
{
    check_stage(3);
}
END_TEST

TEST_MAIN("engine/offload_calls", stage_0, stage_1, stage_2, stage_3)

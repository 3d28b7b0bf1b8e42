/* Claims: what a step says it moved to and from the swap file is what must have moved, by closed
 * formulas over stages, ranks and precisions: 12 bytes an element each way for AdamW over 16-bit
 * parameters, 8 where parameters are their own masters, less the tiles that the sweep before has
 * left in the ring, and the parameters themselves; nothing without NVMe, nothing written on a
 * skipped step. The exposed time is that which the disk really cost, also while a background save
 * reads the same file. */
#include "engine/engine_impl.h"
#include "offload/swap/swap_impl.h"
#include "tests/support/zero/tiers.h"

/* gpt2-tiny */
enum { PSI = 120576, N_PARAMS = 28, TILE = 4096, KEPT_TILES = 4, BLOCK_DELAY_NS = 2000000 };

struct traffic_run {
    char config[2048], dir[160];
    enum { STEP_PLAIN = 0, STEP_SKIPPED, STEP_SLOW, STEP_SAVED } kind;
    int world;
    bool whole_steps; /* engine_train_batch() */
    struct cz_swap_traffic traffic[RANKS_MAX];
    int64_t n_blocks;
};

/* ---- a disk that takes its time ---------------------------------------------------------------
 */

static atomic_long n_delayed;

static size_t ask_all(void *user, const struct swap_block *b, size_t nbytes)
{
    (void)user, (void)b;
    return nbytes;
}

static long delay(void *user, const struct swap_block *b, long result)
{
    (void)user, (void)b;
    const struct timespec t = {0, BLOCK_DELAY_NS};
    nanosleep(&t, NULL);
    atomic_fetch_add(&n_delayed, 1);
    return result;
}

/* ---- one step, looked at ------------------------------------------------------------------------
 */

static cz_status look(struct comm *comm, struct traffic_run *run)
{
    static struct replay_data d;
    static const struct swap_fault slow = {ask_all, delay, NULL};
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    rank_check(model != NULL);
    TRY(cz_model_set_shape(model, TRIAL_T));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = run->config, .world = comm_world(comm)};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    replay_data_open(&d);
    for (int s = 0; s < 3; s++) {
        if (s == 2 && run->kind == STEP_SLOW) swap_set_fault(e->mem.swap, &slow);
        if (s == 2 && run->kind == STEP_SAVED) TRY(engine_save_begin(e, run->dir, NULL));
        TRY(run->whole_steps ? trial_train_batch(e, &d, false) : trial_step(e, &d, NULL));
    }
    rank_check(engine_was_step_applied(e) == (run->kind != STEP_SKIPPED));
    run->traffic[comm->rank].size = sizeof run->traffic[0];
    ck_ok(engine_get_swap_traffic(e, &run->traffic[comm->rank]));
    run->n_blocks = atomic_load(&n_delayed);
    engine_destroy(e);
    return CZ_OK;
}

static cz_status look_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(look(comm, arg));
    comm_destroy(comm);
    return CZ_OK;
}

static struct traffic_run *look_at(const struct tier_run *settings, struct tiers t, int kind)
{
    static struct leg leg;
    char swap[192];
    struct ranks ranks;
    struct traffic_run *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(run != MAP_FAILED);
    const char *root = test_tmp_make_fast();
    snprintf(swap, sizeof swap, "%s/swap", root);
    tiers_configure(&leg, settings, t, swap);
    memcpy(run->config, leg.config, sizeof leg.config);
    snprintf(run->dir, sizeof run->dir, "%s/ckpt", root);
    run->kind = kind;
    run->whole_steps = settings->order != NULL;
    run->world = settings->world;
    ranks_start(&ranks, settings->world, look_rank, run);
    ranks_expect_ok(&ranks, 60);
    test_tmp_remove(root);
    return run;
}

/* ---- formulas ----------------------------------------------------------------------------------
 */

/* At least what must move, at most that with every piece of every tile rounded to blocks. */
static void expect_between(double have, double want, size_t n_pieces, const char *what,
                           const struct tier_run *run, struct tiers t)
{
    double most = want + (double)n_pieces * SWAP_ALIGN;
    ck_assert_msg(have >= want && have <= most, "%.0f bytes %s, not %.0f to %.0f: %s", have, what,
                  want, most, tiers_describe(run, t));
}

static const char *const dtypes[] = {"\"fp16\": {\"enabled\": false}",
                                     "\"bf16\": {\"enabled\": true}"};

/* Gradients there too (one rank): written once, read once for the update. */
static void check_optimizer(int stage, int world, int dtype, bool gradients)
{
    const struct tiers t = {TIER_NVME, TIER_NONE};
    const struct tier_run settings = {.stage = stage,
                                      .world = world,
                                      .gas = 1,
                                      .dtype = dtypes[dtype],
                                      .optimizer = tier_optimizers[0],
                                      .turn = gradients ? 2 : 0};
    struct traffic_run *run = look_at(&settings, t, STEP_PLAIN);
    double own = (double)PSI / (stage == 0 ? 1 : world), each = dtype ? 12 : 8;
    double grad = gradients ? (dtype ? 2 : 4) * own : 0;
    double shared = gradients ? (double)SWAP_ALIGN * N_PARAMS : 0; /* blocks that stay in memory */
    size_t n_pieces = ((size_t)own / TILE + 2) * 3 * 2 + (gradients ? 2 * 2 * N_PARAMS : 0);
    for (int r = 0; r < world; r++) {
        const struct cz_swap_traffic *have = &run->traffic[r];
        /* the last rank has the padding */
        double want = each * (own - (stage == 0 ? 0 : 64));
        double found = each * KEPT_TILES * TILE;
        expect_between(have->read_nbytes, want - found + grad - shared, n_pieces, "read", &settings,
                       t);
        expect_between(have->written_nbytes, want + grad - shared, n_pieces, "written", &settings,
                       t);
        ck_assert(have->step_s > 0 && have->waited_s >= 0 && have->waited_s <= have->step_s);
    }
    munmap(run, sizeof *run);
}

START_TEST(a_sweep_reads_and_writes_masters_and_states_once)
{
    for (int stage = 0; stage < 4; stage++)
        for (int world = 1; world < 3; world++)
            for (int dtype = 0; dtype < 2; dtype++) {
                check_optimizer(stage, world, dtype, false);
                if (world == 1) check_optimizer(stage, world, dtype, true);
            }
}
END_TEST

/* Parameters alone on NVMe: an update writes 2 bytes an element, a pass reads each at least once.
 */
START_TEST(parameters_are_written_once_a_step)
{
    for (int stage = 0; stage < 4; stage++)
        for (int world = 1; world < 3; world++) {
            const struct tiers t = {TIER_NONE, TIER_NVME};
            const struct tier_run settings = {.stage = stage,
                                              .world = world,
                                              .gas = 2,
                                              .dtype = dtypes[1],
                                              .optimizer = tier_optimizers[0],
                                              .turn = 4};
            struct traffic_run *run = look_at(&settings, t, STEP_PLAIN);
            double written = 0, read = 0;
            for (int r = 0; r < world; r++) {
                written += run->traffic[r].written_nbytes;
                read += run->traffic[r].read_nbytes;
            }
            ck_assert_msg(written >= 2.0 * PSI, "%.0f bytes written: %s", written,
                          tiers_describe(&settings, t));
            ck_assert_msg(read >= 2.0 * PSI, "%.0f bytes read: %s", read,
                          tiers_describe(&settings, t));
            munmap(run, sizeof *run);
        }
}
END_TEST

/* Everything on NVMe, accumulation 8. By layer a step reads masters and states (12 bytes an
 * element), parameters for the forward and the backward (4), gradients for the norm and the update
 * (4), and writes masters and states, parameters and gradients (16); less what stays in memory at
 * the turn. One micro-batch after the other, parameters come 8 times, and gradients 7 times more,
 * both ways.
 */
START_TEST(by_layer_a_step_moves_parameters_and_gradients_once)
{
    static const char *const orders[] = {"layers", "micro_batches"};
    const struct tiers t = {TIER_NVME, TIER_NVME};
    for (int o = 0; o < 2; o++) {
        const struct tier_run settings = {.stage = 3,
                                          .world = 1,
                                          .gas = 8,
                                          .dtype = dtypes[1],
                                          .optimizer = tier_optimizers[0],
                                          .order = orders[o],
                                          .turn = 6};
        struct traffic_run *run = look_at(&settings, t, STEP_PLAIN);
        const struct cz_swap_traffic *have = &run->traffic[0];
        const size_t n_pieces = (PSI / TILE + 2) * 10 + (o ? 8 : 1) * 5 * N_PARAMS * 2;
        const double shared = (double)SWAP_ALIGN * N_PARAMS * 2, turn = 4 * 60000;
        const double read = (o ? 12 + 32 + 4 + 14 : 20) * (double)PSI;
        const double written = (o ? 14 + 16 : 16) * (double)PSI;
        ck_assert_msg(have->read_nbytes <= read + (double)(n_pieces * SWAP_ALIGN) &&
                          have->read_nbytes >= read - (o ? 8 : 1) * (shared + turn),
                      "%s: %.2f bytes read, not %.2f", orders[o], have->read_nbytes / PSI,
                      read / PSI);
        ck_assert_msg(have->written_nbytes <= written + (double)(n_pieces * SWAP_ALIGN) &&
                          have->written_nbytes >= written - (o ? 8 : 1) * shared,
                      "%s: %.2f bytes written, not %.2f", orders[o], have->written_nbytes / PSI,
                      written / PSI);
        munmap(run, sizeof *run);
    }
}
END_TEST

START_TEST(nothing_moves_without_nvme_or_on_a_skipped_step)
{
    struct tier_run settings = {.stage = 2,
                                .world = 1,
                                .gas = 1,
                                .dtype = dtypes[1],
                                .optimizer = tier_optimizers[0],
                                .turn = 0};
    struct traffic_run *run = look_at(&settings, (struct tiers){TIER_CPU, TIER_CPU}, STEP_PLAIN);
    ck_assert_double_eq(run->traffic[0].read_nbytes + run->traffic[0].written_nbytes, 0);
    ck_assert_double_eq(run->traffic[0].waited_s, 0);
    munmap(run, sizeof *run);

    /* fp16 whose first steps overflow: nothing is swept */
    settings.dtype = "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 40}";
    run = look_at(&settings, (struct tiers){TIER_NVME, TIER_NONE}, STEP_SKIPPED);
    ck_assert_double_eq(run->traffic[0].written_nbytes, 0);
    munmap(run, sizeof *run);
}
END_TEST

/* One block at a time, each delayed: the time is known. */
START_TEST(exposed_time_is_what_the_disk_cost)
{
    const struct tier_run settings = {.stage = 1,
                                      .world = 1,
                                      .gas = 1,
                                      .dtype = dtypes[1],
                                      .optimizer = tier_optimizers[0],
                                      .turn = 10}; /* depth 1, no read-ahead */
    struct traffic_run *run = look_at(&settings, (struct tiers){TIER_NVME, TIER_NONE}, STEP_SLOW);
    const struct cz_swap_traffic *t = &run->traffic[0];
    double cost = (double)run->n_blocks * BLOCK_DELAY_NS * 1e-9;
    ck_assert_int_gt(run->n_blocks, 100);
    ck_assert_msg(t->step_s >= cost, "%g s, but the disk took %g s", t->step_s, cost);
    ck_assert_msg(t->waited_s >= 0.7 * cost && t->waited_s <= t->step_s,
                  "%g of %g s exposed, the disk took %g s", t->waited_s, t->step_s, cost);
    munmap(run, sizeof *run);
}
END_TEST

START_TEST(a_background_save_is_not_time_that_the_run_waits)
{
    for (int stage = 0; stage < 4; stage++) {
        const struct tier_run settings = {.stage = stage,
                                          .world = 1,
                                          .gas = 1,
                                          .dtype = dtypes[1],
                                          .optimizer = tier_optimizers[0],
                                          .turn = 5};
        struct traffic_run *run =
            look_at(&settings, (struct tiers){TIER_NVME, TIER_NONE}, STEP_SAVED);
        const struct cz_swap_traffic *t = &run->traffic[0];
        ck_assert_msg(t->waited_s <= t->step_s, "%g of %g s exposed", t->waited_s, t->step_s);
        expect_between(t->written_nbytes, 12.0 * PSI, (PSI / TILE + 2) * 6, "written", &settings,
                       (struct tiers){TIER_NVME, TIER_NONE});
        munmap(run, sizeof *run);
    }
}
END_TEST

TEST_MAIN("engine/offload_traffic", a_sweep_reads_and_writes_masters_and_states_once,
          parameters_are_written_once_a_step, by_layer_a_step_moves_parameters_and_gradients_once,
          nothing_moves_without_nvme_or_on_a_skipped_step, exposed_time_is_what_the_disk_cost,
          a_background_save_is_not_time_that_the_run_waits)

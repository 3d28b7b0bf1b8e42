/* Claims: when the swap file of one rank fails under way (EIO, ENOSPC, a file that was cut off, a
 * flipped bit with checksums on), in the fetch of a parameter, in the optimizer's sweep, in a save,
 * a load, an export or an access to a tensor, that rank says so, naming the file, and the others
 * learn of it, all within a second; later calls fail too instead of continuing with wrong numbers,
 * the checkpoint before stays whole, and nothing remains in nvme_path. Interrupted, short and
 * deferred transfers change nothing. */
#include "engine/engine_impl.h"
#include "offload/swap/swap_impl.h"
#include "tests/support/zero/tiers.h"

#include <errno.h>

enum moment { FETCH = 0, GRADIENTS, SWEEP, SAVE, BACKGROUND_SAVE, LOAD, EXPORT, GET, SET };

static const char *const moments[] = {"fetch",  "gradients",       "sweep",
                                      "save",   "background save", "load",
                                      "export", "param_get",       "param_set"};

enum mishap { FAIL = 0, CUT_OFF, FLIP, MOLEST, SLOW };

struct fault_case {
    enum moment moment;
    enum mishap mishap;
    int error;  /* errno of FAIL */
    bool write; /* which kind of transfer */
    int nth;    /* of that kind, from the moment on */
    struct tiers tiers;
    int stage;
    const char *says; /* in the failing rank's sentence */
    bool norms;       /* an optimizer whose passes meet all ranks in between */
};

static const struct fault_case fault_cases[] = {
    {FETCH, FAIL, EIO, false, 0, {TIER_NVME, TIER_NVME}, 3, "Input/output error"},
    {FETCH, FAIL, EIO, false, 1, {TIER_NONE, TIER_NVME}, 2, "Input/output error"},
    {FETCH, CUT_OFF, 0, false, 0, {TIER_CPU, TIER_NVME}, 3, ""},
    {FETCH, FLIP, 0, false, 0, {TIER_NONE, TIER_NVME}, 1, "checksum"},
    {GRADIENTS, FAIL, EIO, true, 0, {TIER_NVME, TIER_NONE}, 2, "Input/output error"},
    {GRADIENTS, FAIL, EIO, false, 0, {TIER_NVME, TIER_NONE}, 0, "Input/output error"},
    {GRADIENTS, FLIP, 0, false, 1, {TIER_NVME, TIER_NVME}, 3, "checksum"},
    {SWEEP, FAIL, EIO, false, 3, {TIER_NVME, TIER_NONE}, 0, "Input/output error"},
    {SWEEP, FAIL, EIO, true, 2, {TIER_NVME, TIER_NONE}, 1, "Input/output error"},
    {SWEEP, FAIL, ENOSPC, true, 0, {TIER_NVME, TIER_NVME}, 2, "No space left on device"},
    {SWEEP, CUT_OFF, 0, false, 1, {TIER_NVME, TIER_NVME}, 3, ""},
    {SWEEP, FAIL, EIO, true, 1, {TIER_NONE, TIER_NVME}, 2, "Input/output error"},
    {SWEEP, FAIL, EIO, true, 4, {TIER_CPU, TIER_NVME}, 3, "Input/output error"},
    {SWEEP, FLIP, 0, false, 2, {TIER_NVME, TIER_CPU}, 3, "checksum"},
    {SWEEP, FAIL, EIO, false, 1, {TIER_NVME, TIER_NONE}, 1, "Input/output error", true},
    {SWEEP, FAIL, EIO, true, 2, {TIER_NVME, TIER_NVME}, 3, "Input/output error", true},
    {SWEEP, FLIP, 0, false, 4, {TIER_NVME, TIER_NONE}, 2, "checksum", true},
    {SWEEP, FAIL, EIO, false, 100, {TIER_NVME, TIER_NONE}, 2, "Input/output error", true},
    {SAVE, FAIL, EIO, false, 1, {TIER_NVME, TIER_NVME}, 3, "Input/output error"},
    {SAVE, FAIL, EIO, false, 0, {TIER_NVME, TIER_NONE}, 2, "Input/output error"},
    {SAVE, FLIP, 0, false, 1, {TIER_NVME, TIER_NONE}, 1, "checksum"},
    {BACKGROUND_SAVE, FAIL, EIO, false, 0, {TIER_NVME, TIER_NVME}, 3, "Input/output error"},
    {BACKGROUND_SAVE, FAIL, EIO, false, 2, {TIER_NVME, TIER_NONE}, 1, "Input/output error"},
    {LOAD, FAIL, EIO, true, 0, {TIER_NVME, TIER_NONE}, 1, "Input/output error"},
    {LOAD, FAIL, ENOSPC, true, 1, {TIER_NVME, TIER_NVME}, 3, "No space left on device"},
    {EXPORT, FAIL, EIO, false, 0, {TIER_NVME, TIER_NVME}, 3, "Input/output error"},
    {EXPORT, FAIL, EIO, false, 0, {TIER_NVME, TIER_NONE}, 2, "Input/output error"},
    {EXPORT, FLIP, 0, false, 0, {TIER_NVME, TIER_NONE}, 1, "checksum"},
    {GET, FAIL, EIO, false, 0, {TIER_NVME, TIER_NONE}, 0, "Input/output error"},
    {GET, FLIP, 0, false, 0, {TIER_NVME, TIER_NVME}, 2, "checksum"},
    {SET, FAIL, EIO, true, 0, {TIER_NVME, TIER_NONE}, 1, "Input/output error"},
    {SET, FAIL, ENOSPC, true, 0, {TIER_NVME, TIER_NVME}, 2, "No space left on device"},
};

/* ---- mishaps -----------------------------------------------------------------------------------
 */

static struct {
    const struct fault_case *_Atomic c; /* NULL: all is well */
    atomic_int n;
    _Atomic int64_t hit_ns;
} plan;

static size_t ask(void *user, const struct swap_block *b, size_t nbytes)
{
    (void)user;
    if (!plan.c || plan.c->mishap != MOLEST || atomic_load(&plan.n) % 3 != 1) return nbytes;
    return b->done + nbytes > SWAP_ALIGN && nbytes > SWAP_ALIGN ? SWAP_ALIGN : nbytes;
}

/* Every transfer is interrupted, put off or cut short now and then. */
static long molest(long result)
{
    switch (atomic_fetch_add(&plan.n, 1) % 7) {
    case 2: return -EINTR;
    case 4: return -EAGAIN;
    default: return result;
    }
}

static long dawdle(long result)
{
    unsigned x = (unsigned)atomic_fetch_add(&plan.n, 1) * 2654435761u >> 16;
    const struct timespec t = {0, (long)(x * 8)};
    if (x % 4 == 0) nanosleep(&t, NULL);
    return result;
}

static long result_of(void *user, const struct swap_block *b, long result)
{
    (void)user;
    const struct fault_case *c = plan.c;
    if (!c) return result;
    if (c->mishap == MOLEST) return molest(result);
    if (c->mishap == SLOW) return dawdle(result);
    if (b->is_write != c->write || atomic_fetch_add(&plan.n, 1) < c->nth) return result;
    int64_t none = 0, now = clock_now_ns();
    bool first = atomic_compare_exchange_strong(&plan.hit_ns, &none, now);
    if (c->mishap == FAIL) return -c->error;
    if (c->mishap == CUT_OFF) return 0;
    if (first && result > 0) b->buf[0] ^= 1;
    return result;
}

static void arm(struct cz_engine *e, const struct fault_case *c)
{
    static const struct swap_fault fault = {ask, result_of, NULL};
    plan.c = c;
    atomic_store(&plan.n, 0);
    atomic_store(&plan.hit_ns, 0);
    swap_set_fault(e->mem.swap, &fault);
}

/* ---- a run in which one happens ----------------------------------------------------------------
 */

struct faulty_run {
    char config[2048], dir[160], export[160];
    const struct fault_case *c;
    int bad_rank, world;
    int64_t took_ns[RANKS_MAX];
};

static cz_status save(struct cz_engine *e, const struct faulty_run *run, const char *tag, bool wait)
{
    const struct cz_save_options options = {.size = sizeof options, .tag = tag};
    return wait ? engine_save_checkpoint_ex(e, run->dir, &options)
                : engine_save_begin(e, run->dir, &options);
}

/* Ranks agree on what becomes of an engine_step. A forward or backward does not: a rank that fails
 * alone in it leaves the run with its sentence, as programs do. */
static cz_status step_or_leave(struct cz_engine *e, const struct faulty_run *run,
                               struct replay_data *d)
{
    static struct replay_batch b;
    int64_t n = engine_get_micro_batch(e);
    uint64_t first = d->row;
    d->row = first + (uint64_t)(e->desc.comm->rank * n);
    cz_status st = engine_forward(e, replay_next(d, &b, n, TRIAL_T), NULL);
    if (st == CZ_OK) st = engine_backward(e);
    d->row = first + (uint64_t)(e->desc.comm->world_size * n);
    if (st == CZ_OK) return engine_step(e);
    if (e->desc.comm->rank == run->bad_rank) comm_leave(e->desc.comm, cz_last_error());
    return st;
}

/* A save that fails in the background is noticed by a boundary or by the wait. */
static cz_status save_behind(struct cz_engine *e, const struct faulty_run *run,
                             struct replay_data *d)
{
    TRY(save(e, run, "second", false));
    for (int s = 0; s < 3; s++) TRY(step_or_leave(e, run, d));
    return engine_save_wait(e);
}

static cz_status the_moment(struct cz_engine *e, const struct faulty_run *run,
                            struct replay_data *d)
{
    static float x[256 * 64];
    /* with two ranks: of the first one's partition, and of the last one's */
    const char *name =
        run->bad_rank == 0 ? "transformer.wte.weight" : "transformer.h.1.mlp.c_proj.weight";
    switch (run->c->moment) {
    case SAVE: return save(e, run, "second", true);
    case BACKGROUND_SAVE: return save_behind(e, run, d);
    case LOAD: return engine_load_checkpoint(e, run->dir, NULL);
    case GET: return engine_param_get(e, name, "exp_avg", x, CZ_ARRAY_LEN(x));
    case SET: return engine_param_set(e, name, "exp_avg", x, CZ_ARRAY_LEN(x));
    case EXPORT: return engine_export_hf(e, run->export, DTYPE_F32);
    default: return step_or_leave(e, run, d);
    }
}

static cz_status expect_fault(const struct faulty_run *run, int rank, const char *swap_file,
                              cz_status st)
{
    const char *text = cz_last_error();
    if (st == CZ_OK)
        return err_set(CZ_INVALID, 0, "nothing failed in the %s", moments[run->c->moment]);
    /* the others get that rank's sentence, not one about collectives that do not match */
    if (rank != run->bad_rank) {
        if (st == CZ_PEER && strstr(text, run->bad_rank == 0 ? "rank 0" : "rank 1") &&
            strstr(text, "czero-swap") && strstr(text, run->c->says))
            return CZ_OK;
        return err_set(CZ_INVALID, 0, "rank %d: %s, %s", rank, cz_status_name(st), text);
    }
    if (st != CZ_IO && st != CZ_CORRUPT)
        return err_set(CZ_INVALID, 0, "%s: %s", cz_status_name(st), text);
    if (!strstr(text, swap_file) || !strstr(text, run->c->says))
        return err_set(CZ_INVALID, 0, "the sentence names neither %s nor \"%s\": %s", swap_file,
                       run->c->says, text);
    return CZ_OK;
}

static cz_status make_engine(struct comm *comm, const struct faulty_run *run,
                             struct cz_engine **out)
{
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    rank_check(model != NULL);
    TRY(cz_model_set_shape(model, TRIAL_T));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = run->config, .world = comm_world(comm)};
    *out = engine_initialize_ex(&options, model);
    return *out ? CZ_OK : cz_last_status();
}

static cz_status run_into_it(struct comm *comm, struct faulty_run *run)
{
    static struct replay_data d;
    struct cz_engine *e;
    char swap_file[512];
    TRY(make_engine(comm, run, &e));
    rank_check(e->mem.swap != NULL);
    snprintf(swap_file, sizeof swap_file, "%s", swap_path(e->mem.swap));
    replay_data_open(&d);
    for (int s = 0; s < 2; s++) TRY(trial_step(e, &d, NULL));
    TRY(save(e, run, "first", true));
    TRY(trial_step(e, &d, NULL));
    if (comm->rank == run->bad_rank) arm(e, run->c);
    int64_t before = clock_now_ns();
    cz_status st = the_moment(e, run, &d);
    int64_t hit = atomic_load(&plan.hit_ns);
    run->took_ns[comm->rank] = clock_now_ns() - (hit > 0 ? hit : before);
    TRY(expect_fault(run, comm->rank, swap_file, st));
    if (comm->rank == run->bad_rank) { /* and it stays so: no step on what may be wrong */
        plan.c = NULL;
        rank_check(trial_step(e, &d, NULL) != CZ_OK);
        if (run->c->moment == SWEEP) rank_check(save(e, run, "third", true) != CZ_OK);
    }
    engine_destroy(e);
    err_clear();
    return CZ_OK;
}

static cz_status faulty_rank(struct ranks *ranks, int rank, void *arg)
{
    struct faulty_run *run = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(run_into_it(comm, run));
    comm_destroy(comm);
    return CZ_OK;
}

/* Nothing but the first checkpoint, whole. */
static void expect_first_alone(const struct faulty_run *run)
{
    char command[640];
    snprintf(command, sizeof command,
             "[ \"$(cat '%s/latest')\" = first ] && [ \"$(ls -A '%s' | wc -l)\" = 2 ] && "
             "'%s/czero' fsck '%s' --quiet",
             run->dir, run->dir, CZ_BINARY_DIR, run->dir);
    ck_assert_msg(system(command) == 0, "%s", command);
}

/* Checksums where a flip has to be seen, gradients on NVMe where they are to fail. */
static int turn_of(const struct fault_case *c)
{
    bool sums = c->mishap == FLIP || c->mishap == SLOW, gradients = c->moment == GRADIENTS;
    if (gradients || c->mishap == SLOW) return sums ? 5 : 10;
    if (sums) return c->tiers.optimizer == TIER_NVME ? 7 : 5;
    return 4;
}

static struct faulty_run *run_make(const struct fault_case *c, const char *root, int world)
{
    static const char *const dtypes[] = {"\"bf16\": {\"enabled\": true}",
                                         "\"fp16\": {\"enabled\": false}"};
    static struct leg leg;
    char swap[192];
    struct faulty_run *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(run != MAP_FAILED);
    const struct tier_run settings = {.stage = c->stage,
                                      .gas = 1,
                                      .dtype = dtypes[c->nth % 2],
                                      .optimizer = c->norms ? tier_lamb : tier_optimizers[0],
                                      .turn = turn_of(c)};
    snprintf(swap, sizeof swap, "%s/swap", root);
    tiers_configure(&leg, &settings, c->tiers, swap);
    memcpy(run->config, leg.config, sizeof leg.config);
    snprintf(run->dir, sizeof run->dir, "%s/ckpt", root);
    snprintf(run->export, sizeof run->export, "%s/export", root);
    run->c = c;
    run->world = world;
    return run;
}

static void fails_cleanly(const struct fault_case *c, int world, int bad_rank)
{
    const char *root = world == 1 ? test_tmp_make() : test_tmp_make_fast();
    char swap[192];
    struct ranks ranks;
    struct faulty_run *run = run_make(c, root, world);
    run->bad_rank = bad_rank;
    printf("%s, rank %d of %d: %s %d at %d\n", moments[c->moment], bad_rank, world,
           c->write ? "write" : "read", c->mishap == FAIL ? c->error : -(int)c->mishap, c->nth);
    fflush(stdout);
    ranks_start(&ranks, world, faulty_rank, run);
    ranks_expect_ok(&ranks, 30);
    for (int r = 0; r < world; r++)
        ck_assert_msg(run->took_ns[r] < (int64_t)1e9, "rank %d noticed after %.2f s", r,
                      (double)run->took_ns[r] / 1e9);
    expect_first_alone(run);
    snprintf(swap, sizeof swap, "%s/swap", root);
    tiers_expect_gone(swap, moments[c->moment]);
    munmap(run, sizeof *run);
    test_tmp_remove(root);
}

START_TEST(a_swap_file_that_fails_ends_the_run_with_its_reason)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(fault_cases); i++) fails_cleanly(&fault_cases[i], 1, 0);
}
END_TEST

START_TEST(the_other_ranks_learn_of_it)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(fault_cases); i++)
        if (fault_cases[i].moment != GRADIENTS) /* those of several ranks stay in memory */
            fails_cleanly(&fault_cases[i], 2, 1);
}
END_TEST

START_TEST(they_learn_of_the_first_rank_s_too)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(fault_cases); i++)
        if (fault_cases[i].moment != GRADIENTS) fails_cleanly(&fault_cases[i], 2, 0);
}
END_TEST

/* ---- an update that the next forward makes -----------------------------------------------------
 */

/* Whatever needs the update of step 3 first says that it failed, with the file and the reason, on
 * every rank; no later call gets past it. */
static cz_status run_into_late_update(struct comm *comm, const struct faulty_run *run)
{
    static struct replay_data d;
    static float x[256 * 64];
    char swap_file[512];
    struct cz_engine *e;
    TRY(make_engine(comm, run, &e));
    snprintf(swap_file, sizeof swap_file, "%s", swap_path(e->mem.swap));
    replay_data_open(&d);
    for (int s = 0; s < 3; s++) TRY(trial_step(e, &d, NULL));
    if (comm->rank == run->bad_rank) arm(e, run->c);
    cz_status st = the_moment(e, run, &d);
    if (st == CZ_OK || !strstr(cz_last_error(), "the update of step 3: swap file"))
        return err_set(CZ_INVALID, 0, "%s: %s", cz_status_name(st), cz_last_error());
    TRY(expect_fault(run, comm->rank, swap_file, st));
    plan.c = NULL;
    if (comm->world_size == 1 || comm->rank == run->bad_rank) {
        rank_check(trial_step(e, &d, NULL) != CZ_OK);
        rank_check(comm->world_size > 1 || save(e, run, "later", true) != CZ_OK);
        rank_check(comm->world_size > 1 || engine_param_get(e, "transformer.wte.weight", "weight",
                                                            x, CZ_ARRAY_LEN(x)) != CZ_OK);
    }
    engine_destroy(e);
    err_clear();
    return CZ_OK;
}

static cz_status late_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(run_into_late_update(comm, arg));
    comm_destroy(comm);
    return CZ_OK;
}

static void late_update_fails(const struct fault_case *c, int world, int bad_rank)
{
    const char *root = world == 1 ? test_tmp_make() : test_tmp_make_fast();
    struct faulty_run *run = run_make(c, root, world);
    struct ranks ranks;
    run->bad_rank = bad_rank;
    printf("%s, rank %d of %d, stage %d: a late %s %d\n", moments[c->moment], bad_rank, world,
           c->stage, c->write ? "write" : "read", c->nth);
    fflush(stdout);
    ranks_start(&ranks, world, late_rank, run);
    ranks_expect_ok(&ranks, 30);
    munmap(run, sizeof *run);
    test_tmp_remove(root);
}

START_TEST(a_late_update_that_fails_names_its_step)
{
    static const enum moment all[] = {SWEEP, SAVE, BACKGROUND_SAVE, EXPORT, GET, SET};
    for (size_t i = 0; i < 2 * CZ_ARRAY_LEN(all); i++) {
        const bool write = i % 2;
        struct fault_case c = {.moment = all[i / 2],
                               .error = write ? ENOSPC : EIO,
                               .write = write,
                               .nth = 3 + (int)i / 2,
                               .tiers = {TIER_NVME, TIER_NONE},
                               .stage = (int)(i / 2) % 4,
                               .says = write ? "No space left on device" : "Input/output error"};
        late_update_fails(&c, 1, 0);
        c.tiers.params = i % 3 == 0 ? TIER_NVME : TIER_NONE;
        c.stage = i % 4 < 3 ? 3 : 0;
        late_update_fails(&c, 2, (int)(i / 2) % 2);
    }
}
END_TEST

/* ---- what is completed --------------------------------------------------------------------------
 */

static cz_status molested(struct comm *comm, const struct faulty_run *run, bool on, uint64_t *sum)
{
    static struct replay_data d;
    struct cz_engine *e;
    TRY(make_engine(comm, run, &e));
    replay_data_open(&d);
    arm(e, on ? run->c : NULL);
    for (int s = 0; s < 4; s++) TRY(trial_step(e, &d, NULL));
    TRY(save(e, run, "molested", true));
    TRY(engine_load_checkpoint(e, run->dir, NULL));
    TRY(trial_step(e, &d, NULL));
    uint64_t states;
    TRY(leg_hash(e, "weight", sum));
    TRY(trial_hash_states(e, &states));
    *sum ^= states;
    engine_destroy(e);
    return CZ_OK;
}

START_TEST(interrupted_short_and_deferred_transfers_change_nothing)
{
    for (int stage = 0; stage < 4; stage++) {
        const struct fault_case c = {
            .mishap = MOLEST, .tiers = {TIER_NVME, TIER_NVME}, .stage = stage};
        const char *root = test_tmp_make();
        struct faulty_run *run = run_make(&c, root, 1);
        struct comm *comm;
        uint64_t want, have;
        ck_ok(comm_self_create(0, 1, &comm));
        ck_ok(molested(comm, run, false, &want));
        ck_ok(molested(comm, run, true, &have));
        ck_assert_int_gt(atomic_load(&plan.n), 50);
        ck_assert(want == have);
        comm_destroy(comm);
        munmap(run, sizeof *run);
        test_tmp_remove(root);
    }
}
END_TEST

/* Saves read the file while the sweep writes it, out of step with each other: with checksums a
 * block that is read as it is being written would show. */
static cz_status save_at_every_step(struct comm *comm, struct faulty_run *run)
{
    static struct replay_data d;
    struct cz_engine *e;
    TRY(make_engine(comm, run, &e));
    replay_data_open(&d);
    arm(e, run->c);
    for (int s = 0; s < 8; s++) {
        TRY(save(e, run, "again", false));
        TRY(trial_step(e, &d, NULL));
    }
    TRY(engine_save_wait(e));
    engine_destroy(e);
    return CZ_OK;
}

static cz_status slow_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(save_at_every_step(comm, arg));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(saves_and_sweeps_meet_on_a_slow_disk)
{
    for (int stage = 0; stage < 4; stage++) {
        const struct fault_case c = {
            .mishap = SLOW, .nth = stage, .tiers = {TIER_NVME, TIER_NVME}, .stage = stage};
        const char *root = test_tmp_make_fast();
        struct faulty_run *run = run_make(&c, root, 2);
        struct ranks ranks;
        ck_assert(strstr(run->config, "\"offload_checksums\": true"));
        ranks_start(&ranks, 2, slow_rank, run);
        ranks_expect_ok(&ranks, 60);
        munmap(run, sizeof *run);
        test_tmp_remove(root);
    }
}
END_TEST

TEST_MAIN("engine/offload_faults", a_swap_file_that_fails_ends_the_run_with_its_reason,
          the_other_ranks_learn_of_it, they_learn_of_the_first_rank_s_too,
          a_late_update_that_fails_names_its_step,
          interrupted_short_and_deferred_transfers_change_nothing,
          saves_and_sweeps_meet_on_a_slow_disk)

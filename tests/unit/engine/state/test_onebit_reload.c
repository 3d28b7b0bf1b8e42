/* Claims: a checkpoint of the 1-bit optimizers loads at another number of ranks, at another stage
 * and in another precision: the mean of worker errors, momenta and moves over ranks, and the server
 * errors as one vector, are what was saved; training continues from there. Without all ranks'
 * errors (DeepSpeed's checkpoints, one rank, another phase, Adam) they begin at zero. A file of
 * errors that is missing, damaged or another rank's is an error with a sentence. */
#include "checkpoint/read/onebit_file.h"
#include "engine/state/run_state_impl.h"
#include "formats/file_io.h"
#include "tests/support/zero/onebit_trial.h"

enum { FP32 = 0, BF16, FP16 };
enum { PSI = 256 * 64 + 64 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64 };

static const char *root; /* the running test's folders */

static const char *folder(const char *name)
{
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", root, name);
    return path[next];
}

/* ---- what a checkpoint says of errors ---------------------------------------------------------
 */

struct errors {
    double worker[PSI], server[PSI]; /* worker: the mean over ranks */
    double momentum[PSI], moves[PSI];
    bool has_states;
};

static size_t offset_of(const char *name, size_t *numel)
{
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    const struct param_table *table = model_params(model);
    size_t at = 0, i = 0;
    while (i < table->n_params && strcmp(table->params[i].name, name) != 0)
        at += table->params[i++].numel;
    ck_assert_msg(i < table->n_params, "%s", name);
    *numel = table->params[i].numel;
    cz_model_destroy(model);
    return at;
}

static void read_states(const struct ckpt_onebit_file *f, const char *name, size_t base,
                        size_t numel, int world, struct errors *out)
{
    static float x[PSI];
    ck_ok(ckpt_onebit_read_state(f, name, "exp_avg", 0, numel, x));
    for (size_t i = 0; i < numel; i++) out->momentum[base + i] += (double)x[i] / world;
    ck_ok(ckpt_onebit_read_state(f, name, "momentum_accumulator", 0, numel, x));
    for (size_t i = 0; i < numel; i++) out->moves[base + i] += (double)x[i] / world;
}

static void read_segment(const struct ckpt_onebit_file *f, size_t s, int rank, int world,
                         struct errors *out)
{
    static float worker[2 * PSI], server[2 * PSI];
    const struct ckpt_onebit_segment segment = ckpt_onebit_segment_at(f, s);
    size_t chunk = segment.numel_padded / (size_t)world, begin = chunk * (size_t)rank, at = 0;
    ck_ok(ckpt_onebit_read(f, s, false, 0, segment.numel_padded, worker));
    ck_ok(ckpt_onebit_read(f, s, true, 0, chunk, server));
    for (size_t k = 0; k < segment.n_params; k++) {
        size_t numel, base = offset_of(ckpt_onebit_param(f, s, k), &numel);
        for (size_t i = 0; i < numel; i++) {
            out->worker[base + i] += (double)worker[at + i] / world;
            if (at + i >= begin && at + i < begin + chunk)
                out->server[base + i] = (double)server[at + i - begin];
        }
        if (out->has_states) read_states(f, ckpt_onebit_param(f, s, k), base, numel, world, out);
        at += numel;
    }
}

static struct errors *errors_of(const char *dir, const char *tag)
{
    struct run_state run;
    struct errors *out = calloc(1, sizeof *out);
    char *tag_dir = file_join(dir, tag);
    ck_assert(out && tag_dir);
    ck_ok(run_state_load(tag_dir, &run));
    ck_assert(run.onebit.has_files);
    for (int rank = 0; rank < run.world_size; rank++) {
        const struct ckpt_onebit_want want = {.tag_dir = tag_dir,
                                              .optimizer = run.onebit.optimizer,
                                              .rank = rank,
                                              .world_size = run.world_size,
                                              .step = (int64_t)run.onebit.clock.step,
                                              .global_steps = run.global_steps};
        struct ckpt_onebit_file *f;
        ck_ok(ckpt_onebit_open(&want, &f));
        out->has_states = ckpt_onebit_has_states(f);
        for (size_t s = 0; s < ckpt_onebit_n_segments(f); s++)
            read_segment(f, s, rank, run.world_size, out);
        ckpt_onebit_close(f);
    }
    run_state_free(&run);
    free(tag_dir);
    return out;
}

static void same_vector(const double *want, const double *have, double tolerance, const char *what)
{
    double largest = 0;
    for (size_t i = 0; i < PSI; i++) largest = fmax(largest, fabs(want[i]));
    ck_assert_msg(largest > 0, "%s: nothing is there", what);
    for (size_t i = 0; i < PSI; i++)
        ck_assert_msg(fabs(want[i] - have[i]) <= tolerance * largest, "%s: element %zu: %g, was %g",
                      what, i, have[i], want[i]);
}

static void same_errors(const struct errors *want, const struct errors *have)
{
    same_vector(want->worker, have->worker, 1e-6, "the mean of worker errors");
    same_vector(want->server, have->server, 0, "server errors");
    ck_assert(want->has_states == have->has_states);
    if (!want->has_states) return;
    same_vector(want->momentum, have->momentum, 1e-6, "the mean of momenta");
    same_vector(want->moves, have->moves, 1e-6, "the mean of moves");
}

/* ---- legs -------------------------------------------------------------------------------------
 */

/* Train to step `to` from scratch or from a folder's newest tag, and save there. */
static struct leg_outcome train(struct leg_shared *s, const struct onebit_cell *c, const char *load,
                                int from, int to, const char *save)
{
    onebit_configure(&s->leg, c);
    s->leg.probe = onebit_own;
    s->leg.from = from;
    s->leg.to = to;
    s->leg.save_every = 0;
    s->leg.unsaved_weights = load != NULL;
    s->leg.load_options = (struct cz_load_options){.size = sizeof(struct cz_load_options)};
    snprintf(s->leg.load, sizeof s->leg.load, "%s", load ? load : "");
    snprintf(s->leg.save, sizeof s->leg.save, "%s", save ? save : "");
    return leg_outcome_of(s, c->world);
}

static int last_of(int optimizer)
{
    return onebit_optimizers[optimizer].at[3];
}

static const char *tag_of(int step)
{
    static char tag[32];
    snprintf(tag, sizeof tag, "global_step%d", step);
    return tag;
}

/* ---- other worlds -----------------------------------------------------------------------------
 */

static void reload(int optimizer, struct onebit_cell from, struct onebit_cell to)
{
    struct leg_shared *s = leg_make();
    int step = last_of(optimizer);
    root = test_tmp_make();
    from.optimizer = to.optimizer = optimizer;
    struct leg_outcome saved = train(s, &from, NULL, 0, step, folder("from"));
    struct leg_outcome loaded = train(s, &to, folder("from"), step, step, folder("to"));
    ck_assert(saved.weights == loaded.weights);
    struct errors *want = errors_of(folder("from"), tag_of(step));
    struct errors *have = errors_of(folder("to"), tag_of(step));
    same_errors(want, have);
    free(want);
    free(have);
    munmap(s, sizeof *s);
    test_tmp_remove(root);
}

START_TEST(errors_keep_their_mean_in_another_world)
{
    reload(0, (struct onebit_cell){0, 2, 0, FP32}, (struct onebit_cell){0, 3, 0, FP32});
    reload(1, (struct onebit_cell){0, 3, 0, BF16}, (struct onebit_cell){0, 2, 0, BF16});
    reload(2, (struct onebit_cell){0, 2, 0, FP32}, (struct onebit_cell){0, 4, 0, FP32});
}
END_TEST

/* Segments are parameters in fp32 and groups in 16 bits; stages change nothing. */
START_TEST(errors_go_along_to_another_precision_and_stage)
{
    reload(0, (struct onebit_cell){0, 2, 0, FP32}, (struct onebit_cell){0, 2, 1, BF16});
    reload(1, (struct onebit_cell){0, 3, 1, BF16}, (struct onebit_cell){0, 2, 0, FP32});
}
END_TEST

START_TEST(a_run_goes_on_from_world_to_world)
{
    static const int worlds[] = {2, 3, 2, 1, 2};
    struct leg_shared *s = leg_make();
    for (int o = 1; o < 3; o++) {
        root = test_tmp_make();
        double first = NAN, gain = o < 2 ? 0.5 : -0.02; /* Lamb is slow to begin */
        for (int i = 0; i < (int)CZ_ARRAY_LEN(worlds); i++) {
            const struct onebit_cell c = {o, worlds[i], i % 2, FP32};
            int from = i == 0 ? 0 : last_of(o) + 3 * (i - 1), to = last_of(o) + 3 * i;
            struct leg_outcome out =
                train(s, &c, i == 0 ? NULL : folder("run"), from, to, folder("run"));
            if (i == 0) first = out.losses[0];
            for (int k = i == 0 ? to : from; k < to; k++)
                ck_assert_msg(out.losses[k] < first - gain, "%s: %g in step %d, began with %g",
                              s->leg.config, out.losses[k], k, first);
        }
        test_tmp_remove(root);
    }
}
END_TEST

/* ---- other groups -----------------------------------------------------------------------------
 */

/* Σ lr since the last exchange, the same in all groups. */
static cz_status sum_of_lrs(struct cz_engine *e, uint64_t *own)
{
    const double *lrs = zero_onebit(e->desc.zero).lrs;
    for (size_t g = 0; g < e->desc.n_groups; g++) rank_check(lrs[g] > 0 && lrs[g] == lrs[0]);
    *own = trial_hash(TRIAL_HASH_BEGIN, lrs, sizeof *lrs);
    return CZ_OK;
}

/* What ranks have moved alone becomes a momentum by the lr that moved it, in whatever groups. */
START_TEST(moves_keep_their_lr_in_other_groups)
{
    const struct onebit_cell cell = {.optimizer = 1, .world = 2};
    const int step = last_of(cell.optimizer);
    struct leg_shared *s = leg_make();
    uint64_t want = 0;
    root = test_tmp_make();
    for (int leg = 0; leg < 3; leg++) {
        onebit_configure(&s->leg, &cell);
        s->leg.two_groups = leg == 1;
        s->leg.probe = sum_of_lrs;
        s->leg.from = leg == 0 ? 0 : step;
        s->leg.to = step;
        snprintf(s->leg.load, sizeof s->leg.load, "%s",
                 leg == 0 ? "" : folder(leg == 1 ? "one" : "two"));
        snprintf(s->leg.save, sizeof s->leg.save, "%s",
                 leg == 2 ? "" : folder(leg == 0 ? "one" : "two"));
        leg_outcome_of(s, cell.world);
        if (leg == 0) want = s->own[0];
        ck_assert(s->own[0] == want && s->own[1] == want);
    }
    munmap(s, sizeof *s);
    test_tmp_remove(root);
}
END_TEST

/* ---- other phases -----------------------------------------------------------------------------
 */

/* step · 2 + frozen; plus 1000 if any error of this rank is not 0. */
static cz_status phase_of(struct cz_engine *e, uint64_t *own)
{
    const struct zero_onebit ob = zero_onebit(e->desc.zero);
    rank_check(ob.clock != NULL);
    *own = 2 * ob.clock->step + ob.clock->frozen;
    for (size_t s = 0; s < zero_n_segments(e->desc.zero); s++)
        for (int what = ZERO_WORKER_ERROR; what <= ZERO_SERVER_ERROR; what++) {
            struct zero_range r = zero_onebit_range(e->desc.zero, (enum zero_onebit_what)what, s);
            for (size_t i = 0; i < r.nbytes; i++)
                if (r.memory[i]) *own = 1000 + 2 * ob.clock->step + ob.clock->frozen;
        }
    return CZ_OK;
}

static const char *freeze_setting(int optimizer, int step)
{
    static char text[64];
    snprintf(text, sizeof text, "\"%s\": %d", optimizer == 1 ? "var_freeze_step" : "freeze_step",
             step);
    return text;
}

/* Load what stands at `at` with another freeze, and train `n` steps. */
static uint64_t with_freeze(struct leg_shared *s, int optimizer, int at, int freeze, int n)
{
    const struct onebit_cell c = {optimizer, 2, 0, FP32};
    char *config, params[160];
    onebit_configure(&s->leg, &c);
    snprintf(params, sizeof params, "%s", onebit_optimizers[optimizer].params);
    params[strcspn(params, ",")] = '\0'; /* the freeze comes first */
    config = strstr(s->leg.config, params);
    ck_assert_ptr_nonnull(config);
    char rest[2048];
    snprintf(rest, sizeof rest, "%s", config + strlen(params));
    snprintf(config, sizeof s->leg.config - (size_t)(config - s->leg.config), "%s%s",
             freeze_setting(optimizer, freeze), rest);
    s->leg.probe = phase_of;
    s->leg.from = at;
    s->leg.to = at + n;
    s->leg.save[0] = '\0';
    s->leg.unsaved_weights = true;
    snprintf(s->leg.load, sizeof s->leg.load, "%s", folder("run"));
    s->leg.load_options =
        (struct cz_load_options){.size = sizeof(struct cz_load_options), .tag = tag_of(at)};
    leg_outcome_of(s, 2);
    return s->own[0];
}

START_TEST(another_freeze_step_is_another_phase)
{
    struct leg_shared *s = leg_make();
    for (int o = 0; o < 3; o++) {
        const struct onebit_cell c = {o, 2, 0, FP32};
        root = test_tmp_make();
        s->leg.save_after = 0;
        onebit_whole(s, &c, folder("run"));
        uint64_t last = (uint64_t)last_of(o), first = (uint64_t)onebit_optimizers[o].at[0];
        /* Unchanged: frozen, with errors. */
        uint64_t freeze = o == 1 ? 7 : 5;
        ck_assert_uint_eq(with_freeze(s, o, (int)last, (int)freeze, 0), 1000 + 2 * last + 1);
        /* Later than it stands: back to averaged gradients, and nothing is left over. */
        ck_assert_uint_eq(with_freeze(s, o, (int)last, 50, 0), 2 * last);
        ck_assert_uint_eq(with_freeze(s, o, (int)last, 50, 2) % 1000 % 2, 0);
        /* Earlier: at once, but OneBitLamb makes its coefficients first. */
        ck_assert_uint_eq(with_freeze(s, o, (int)first, 2 - (o == 1), 0), 2 * first + (o != 2));
        ck_assert_uint_eq(with_freeze(s, o, (int)first, 2 - (o == 1), 2) % 1000,
                          2 * (first + 2) + 1);
        test_tmp_remove(root);
    }
}
END_TEST

/* ---- other optimizers -------------------------------------------------------------------------
 */

START_TEST(adam_becomes_one_of_them_and_back)
{
    struct leg_shared *s = leg_make();
    root = test_tmp_make();
    leg_configure(&s->leg, 1, leg_dtypes[0], 1);
    s->leg.to = 3;
    snprintf(s->leg.save, sizeof s->leg.save, "%s", folder("run"));
    struct leg_outcome adam = leg_outcome_of(s, 2);
    for (int o = 2; o >= 0; o--) {
        const struct onebit_cell c = {o, 2, 1, FP32};
        struct leg_outcome loaded = train(s, &c, folder("run"), 3, 3, folder("one"));
        ck_assert(loaded.weights == adam.weights);
        s->leg.probe = phase_of;
        s->leg.to = 12;
        leg_outcome_of(s, 2);
        ck_assert_uint_eq(s->own[0], 1000 + 2 * 12 + 1); /* steps count on, and it froze */
    }
    leg_configure(&s->leg, 2, leg_dtypes[0], 1);
    s->leg.probe = NULL;
    s->leg.from = 12;
    s->leg.to = 14;
    s->leg.save[0] = '\0';
    snprintf(s->leg.load, sizeof s->leg.load, "%s", folder("one"));
    struct leg_outcome back = leg_outcome_of(s, 2);
    ck_assert(isfinite(back.losses[13]));
    test_tmp_remove(root);
}
END_TEST

/* ---- killed ------------------------------------------------------------------------------------
 */

/* A step past a save, all ranks at once. */
START_TEST(a_killed_run_goes_on_from_its_last_save)
{
    struct leg_shared *whole = leg_make(), *s = leg_make();
    for (int o = 0; o < 2; o++) {
        const struct onebit_cell c = {o, 2, 1 - o, BF16};
        int steps = onebit_optimizers[o].steps, at = last_of(o) - 1;
        root = test_tmp_make();
        onebit_configure(&whole->leg, &c);
        whole->leg.probe = onebit_own;
        whole->leg.to = steps;
        leg_outcome_of(whole, 2);
        s->leg = whole->leg;
        snprintf(s->leg.save, sizeof s->leg.save, "%s", folder("killed"));
        s->leg.save_every = at;
        s->leg.abandon = at + 1;
        legs_kill(s, 2);
        s->leg.abandon = 0;
        onebit_rest(s, folder("killed"), at, 2);
        onebit_same_steps(s, whole, at, steps);
        onebit_same_end(s, whole, 2, "after a kill");
        test_tmp_remove(root);
    }
}
END_TEST

/* ---- damage -----------------------------------------------------------------------------------
 */

struct damage {
    struct leg leg;
    char part[2][96]; /* of each rank's sentence */
};

static cz_status refused_rank(struct ranks *ranks, int rank, void *arg)
{
    struct damage *d = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    struct cz_model *model = leg_model(&d->leg);
    rank_check(model != NULL);
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = d->leg.config, .world = comm_world(comm)};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    cz_status st = engine_load_checkpoint_ex(e, d->leg.load, &d->leg.load_options, NULL);
    rank_check(st == CZ_CORRUPT || st == CZ_PEER);
    if (!strstr(cz_last_error(), d->part[rank])) return st;
    err_clear();
    engine_destroy(e);
    comm_destroy(comm);
    return CZ_OK;
}

static void expect_refusal(struct damage *d, bool no_verify, const char *first, const char *second)
{
    struct ranks ranks;
    d->leg.load_options =
        (struct cz_load_options){.size = sizeof(struct cz_load_options), .no_verify = no_verify};
    snprintf(d->part[0], sizeof d->part[0], "%s", first);
    snprintf(d->part[1], sizeof d->part[1], "%s", second);
    ranks_start(&ranks, 2, refused_rank, d);
    ranks_expect_ok(&ranks, 60);
}

static void shell(const char *format, const char *dir)
{
    char command[1024];
    snprintf(command, sizeof command, format, dir, dir, dir);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(a_file_that_is_not_the_one_is_refused)
{
    static const char tag[] = "global_step7", zero[] = "czero_onebit_rank_00000.pt",
                      one[] = "czero_onebit_rank_00001.pt";
    struct leg_shared *s = leg_make();
    static struct damage d;
    const struct onebit_cell c = {0, 2, 0, FP32};
    char dir[512];
    root = test_tmp_make();
    train(s, &c, NULL, 0, 7, folder("run"));
    d.leg = s->leg;
    snprintf(d.leg.load, sizeof d.leg.load, "%s", folder("run"));
    snprintf(dir, sizeof dir, "%s/%s", folder("run"), tag);

    /* One bit: the checksums tell. */
    shell("cp '%s'/czero_onebit_rank_00001.pt '%s'/../../kept.pt", dir);
    shell("printf '\\377' | dd of='%s'/czero_onebit_rank_00001.pt bs=1 seek=9000 conv=notrunc "
          "status=none",
          dir);
    expect_refusal(&d, false, one, one);
    shell("cp '%s'/../../kept.pt '%s'/czero_onebit_rank_00001.pt", dir);

    /* Another rank's, with and without checksums. */
    shell("cp '%s'/czero_onebit_rank_00000.pt '%s'/czero_onebit_rank_00001.pt", dir);
    expect_refusal(&d, false, one, one);
    expect_refusal(&d, true, "rank is 0, not 1", "rank is 0, not 1");
    shell("cp '%s'/../../kept.pt '%s'/czero_onebit_rank_00000.pt", dir);
    expect_refusal(&d, true, "rank is", "rank is");

    /* Gone. */
    shell("rm '%s'/czero_onebit_rank_00000.pt", dir);
    expect_refusal(&d, false, zero, zero);
    expect_refusal(&d, true, zero, "is");
    test_tmp_remove(root);
}
END_TEST

/* ---- DeepSpeed's ------------------------------------------------------------------------------
 */

/* Rank 0's errors alone: they are dropped. The loss is about that of the recorded run's last row.
 */
START_TEST(deepspeeds_checkpoint_goes_on_with_errors_of_zero)
{
    struct leg_shared *s = leg_make();
    for (int stage = 0; stage < 2; stage++) {
        const struct onebit_cell c = {0, 2, stage, FP32};
        onebit_configure(&s->leg, &c);
        snprintf(s->leg.load, sizeof s->leg.load, "%s", test_fixture("runs/s0-onebitadam/ckpt"));
        s->leg.unsaved_weights = true;
        s->leg.probe = phase_of;
        s->leg.from = s->leg.to = 24;
        leg_outcome_of(s, 2);
        ck_assert_uint_eq(s->own[0], 2 * 24 + 1); /* frozen, and every error is 0 */
        s->leg.to = 26;
        struct leg_outcome out = leg_outcome_of(s, 2);
        ck_assert_uint_eq(s->own[1], 1000 + 2 * 26 + 1);
        ck_assert_uint_eq(out.n_restored, out.n_tensors);
        ck_assert(isfinite(out.losses[25]));
    }
}
END_TEST

TEST_MAIN("engine/onebit_reload", errors_keep_their_mean_in_another_world,
          errors_go_along_to_another_precision_and_stage, a_run_goes_on_from_world_to_world,
          moves_keep_their_lr_in_other_groups, another_freeze_step_is_another_phase,
          adam_becomes_one_of_them_and_back, a_killed_run_goes_on_from_its_last_save,
          a_file_that_is_not_the_one_is_refused, deepspeeds_checkpoint_goes_on_with_errors_of_zero)

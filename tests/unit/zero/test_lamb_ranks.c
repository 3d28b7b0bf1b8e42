/* Claims: Lamb's masters, both moments and the norm are the same bytes at every stage on one to
 * four ranks as on one rank with whole tensors, in every precision: wherever tensors are cut
 * between ranks, chunks and tiles, with groups, padding, dealt orders and swap files
 * (CZ_LAMB_ALL=1: all of the product; test_lamb_slow.sh). What adding up the tensors sends is what
 * the figures say, as often on every rank. */
#define ZERO_WORLD_SCALE 301 /* many tiles, and nothing begins with a block of the file */
#include "tests/support/ranks.h"
#include "tests/support/zero/zero_world.h"

enum { STEPS = 3, STATES = 2 };

struct end {
    float tensors[1 + STATES][TOTAL]; /* masters and states, whole */
    double norms[STEPS];
};

/* Shared with the ranks. */
struct trial {
    struct world_setting setting;
    struct end want;
};

static cz_status read_end(struct world *w, struct end *out)
{
    size_t at = 0;
    for (size_t i = 0; i < N_PARAMS; at += numels[i++]) {
        TRY(zero_read(w->z, ZERO_WEIGHT, 0, i, 0, numels[i], out->tensors[0] + at));
        for (size_t s = 0; s < STATES && w->table.params[i].trainable; s++)
            TRY(zero_read(w->z, ZERO_STATE, s, i, 0, numels[i], out->tensors[1 + s] + at));
    }
    return CZ_OK;
}

/* A step in which one rank has all of the gradient. */
static cz_status train_step(struct world *w, uint32_t t, enum cz_dtype dtype, double *norm)
{
    struct zero_scan scan;
    w->share = (int)t % w->comm->world_size == w->comm->rank ? 1 : 0;
    fill_grads(w, t, dtype);
    TRY(zero_reduce(w->z));
    TRY(zero_scan(w->z, &scan));
    TRY(zero_norm(w->z, norm));
    const struct comm_traffic before = w->comm->traffic;
    TRY(zero_step(w->z, t, 4, 1.5));
    const struct comm_traffic after = w->comm->traffic;
    const struct zero_figures f = zero_figures(w->z);
    rank_check(after.move_sent_nbytes - before.move_sent_nbytes == f.sums_nbytes);
    rank_check(after.n_move - before.n_move == f.n_sums);
    TRY(zero_gather(w->z));
    zero_grads_drop(w->z);
    return CZ_OK;
}

static cz_status train(struct world *w, enum cz_dtype dtype, struct end *out)
{
    for (uint32_t t = 1; t <= STEPS; t++) TRY(train_step(w, t, dtype, &out->norms[t - 1]));
    return read_end(w, out);
}

static cz_status one_stage(const struct trial *trial, struct world_setting s)
{
    static struct end have;
    struct world w;
    world_make(&w, s);
    TRY(train(&w, s.dtype, &have));
    for (int a = 0; a <= STATES; a++)
        rank_check(memcmp(have.tensors[a], trial->want.tensors[a], sizeof have.tensors[a]) == 0);
    rank_check(memcmp(have.norms, trial->want.norms, sizeof have.norms) == 0);
    world_free(&w);
    return CZ_OK;
}

static cz_status all_stages(struct ranks *ranks, int rank, void *arg)
{
    const struct trial *trial = arg;
    struct world_setting s = trial->setting;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &s.comm));
    for (s.stage = 0; s.stage <= 3; s.stage++) {
        char why[512];
        cz_status st = one_stage(trial, s);
        snprintf(why, sizeof why, "%s", cz_last_error());
        if (st != CZ_OK) return err_set(st, 0, "stage %d: %s", s.stage, why);
    }
    comm_destroy(s.comm);
    return CZ_OK;
}

/* Against what one rank has made. */
static void same_everywhere(struct trial *trial, int world)
{
    struct ranks ranks;
    trial->setting.world_size = world;
    ranks_start(&ranks, world, all_stages, trial);
    ranks_expect_ok(&ranks, 60);
}

/* One rank with whole tensors, in a process of its own: threads do not outlive a fork. */
static cz_status whole_main(struct ranks *ranks, int rank, void *arg)
{
    struct trial *trial = arg;
    struct world_setting s = plain;
    struct world whole;
    (void)ranks, (void)rank;
    s.optimizer = trial->setting.optimizer;
    s.dtype = trial->setting.dtype;
    s.grad_dtype = trial->setting.grad_dtype;
    s.freeze = trial->setting.freeze;
    world_make(&whole, s);
    TRY(train(&whole, s.dtype, &trial->want));
    world_free(&whole);
    return CZ_OK;
}

static struct trial *trial_of(struct world_setting s)
{
    static struct trial *trial;
    if (!trial) {
        trial =
            mmap(NULL, sizeof *trial, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert(trial != MAP_FAILED);
    }
    struct ranks ranks;
    memset(trial, 0, sizeof *trial);
    s.optimizer = "Lamb";
    s.sums = true; /* what one rank has is what comes out */
    trial->setting = s;
    ranks_start(&ranks, 1, whole_main, trial);
    ranks_expect_ok(&ranks, 60);
    return trial;
}

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static bool all_asked(void)
{
    return getenv("CZ_LAMB_ALL") != NULL;
}

/* Each number of ranks with a precision, another one in each test; CZ_LAMB_ALL: with all. */
static void precisions_and_worlds(struct world_setting s, int turn)
{
    for (int d = 0; d < 3; d++) {
        s.dtype = s.grad_dtype = dtypes[d];
        struct trial *trial = trial_of(s);
        for (int world = 1; world <= 4; world++)
            if (all_asked() || (world + turn) % 3 == d) same_everywhere(trial, world);
    }
}

START_TEST(tensors_in_one_flat_buffer)
{
    precisions_and_worlds(plain, 0);
}
END_TEST

START_TEST(tensors_cut_by_small_tiles_in_two_groups)
{
    struct world_setting s = plain;
    s.two_groups = s.freeze = s.overlap = true;
    s.tile = 777;
    s.bucket = 5000;
    s.stage3.sub_group_numel = 3000;
    s.stage3.param_persistence_threshold = 3000;
    s.stage3.model_persistence_threshold = SIZE_MAX;
    precisions_and_worlds(s, 1);
}
END_TEST

START_TEST(tensors_dealt_round_robin_with_gaps_between_them)
{
    struct world_setting s = plain;
    s.round_robin = s.align = true;
    s.tile = 1000;
    precisions_and_worlds(s, 2);
}
END_TEST

START_TEST(tensors_in_swap_files)
{
    struct world_setting s = plain;
    s.swap_dir = test_tmp_make_fast();
    s.tile = 4096;
    s.two_groups = true;
    for (int k = 0; k < 3; k++) {
        s.dtype = s.grad_dtype = dtypes[k];
        s.swap = (struct zero_swap){.optimizer = k != 1,
                                    .params = k != 0,
                                    .memory_share = k == 2 ? 0.3 : 0,
                                    .read_ahead = k > 0,
                                    .write_behind = k != 1};
        struct trial *trial = trial_of(s);
        for (int world = 1; world <= 3; world++)
            if (all_asked() || world == 3 - k) same_everywhere(trial, world);
    }
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}
END_TEST

TEST_MAIN("zero/lamb_ranks", tensors_in_one_flat_buffer, tensors_cut_by_small_tiles_in_two_groups,
          tensors_dealt_round_robin_with_gaps_between_them, tensors_in_swap_files)

/* Claims: when one rank cannot write its part, the save fails on all ranks with its reason, nothing
 * of it stays, the checkpoint before it stays whole, and the run continues; in the background the
 * same is a warning at the next boundary. So it is with the 1-bit optimizers' file per rank. */
#include "base/log.h"
#include "tests/support/faults.h"
#include "tests/support/zero/onebit_trial.h"

#include <dirent.h>

/* What goes wrong, and where. */
struct fault_case {
    int rank;
    enum fault_call call;
    long nth;
    int error;
};

static const struct fault_case fault_cases[] = {
    {1, FAULT_RESERVE, 0, ENOSPC}, {1, FAULT_PWRITE, 0, EIO}, {0, FAULT_PWRITE, 2, EIO},
    {1, FAULT_FSYNC, 0, EIO},      {0, FAULT_FSYNC, 2, EIO},  {0, FAULT_RENAME, 0, EIO},
};

struct run_case {
    char config[1024], dir[128];
    bool background;
    struct fault_case fault;
};

static int warnings;

static void count_warnings(enum cz_log_level level, const char *line, void *user)
{
    (void)user;
    warnings += level == LOG_WARN && strstr(line, "was not saved") != NULL;
}

static size_t n_entries(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) n += entry->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static cz_status expect_failure(const struct comm *comm, const struct run_case *c, cz_status st)
{
    rank_check(st == (comm->rank == c->fault.rank ? CZ_IO : CZ_PEER));
    rank_check(strstr(cz_last_error(), strerror(c->fault.error)) != NULL);
    err_clear();
    return CZ_OK;
}

/* Until rank 0 has said at a boundary that the save failed: a disk that others use may take its
 * time. */
static cz_status train_past_it(struct comm *comm, struct cz_engine *e, struct replay_data *d)
{
    for (int s = 0; s < 10000; s++) {
        int said[RANKS_MAX];
        TRY(trial_step(e, d, NULL));
        TRY(comm_all_gather(comm, &(int){warnings}, said, sizeof *said));
        if (s >= 60 && said[0] > 0) return CZ_OK;
        usleep(1000);
    }
    return CZ_OK;
}

static cz_status fail_one(struct comm *comm, const struct run_case *c, struct cz_engine *e,
                          struct replay_data *d)
{
    const struct cz_save_options options = {.size = sizeof options, .tag = "second"};
    if (comm->rank == c->fault.rank) faults_plan(c->fault.call, c->fault.nth, c->fault.error);
    cz_status st = c->background ? engine_save_begin(e, c->dir, &options)
                                 : engine_save_checkpoint_ex(e, c->dir, &options);
    if (st == CZ_OK) {
        rank_check(c->background);
        TRY(train_past_it(comm, e, d));
        if (comm->rank == 0) rank_check(warnings == 1);
        st = engine_save_wait(e);
    }
    faults_clear();
    return expect_failure(comm, c, st);
}

static cz_status faulty_run(struct comm *comm, const struct run_case *c)
{
    static struct replay_data d;
    uint64_t saved, loaded;
    struct cz_model *model = cz_model_open(test_fixture("models/gpt2-tiny"));
    rank_check(model != NULL);
    TRY(cz_model_set_shape(model, TRIAL_T));
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = c->config, .world = comm_world(comm)};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    cz_log_set_sink(count_warnings, NULL);
    replay_data_open(&d);
    faults_clear();
    TRY(trial_step(e, &d, NULL));
    TRY(engine_save_checkpoint(e, c->dir, "first"));
    TRY(leg_hash(e, "weight", &saved));
    TRY(trial_step(e, &d, NULL));
    TRY(fail_one(comm, c, e, &d));
    rank_check(n_entries(c->dir) == 2); /* first, latest */
    TRY(trial_step(e, &d, NULL));
    TRY(engine_load_checkpoint(e, c->dir, NULL));
    TRY(leg_hash(e, "weight", &loaded));
    rank_check(saved == loaded);
    TRY(engine_save_checkpoint(e, c->dir, "third"));
    engine_destroy(e);
    return CZ_OK;
}

static cz_status faulty_rank(struct ranks *ranks, int rank, void *arg)
{
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(faulty_run(comm, arg));
    comm_destroy(comm);
    return CZ_OK;
}

/* At stage 0 rank 1 writes its errors and nothing else. */
static void configure_case(struct leg *leg, int i, bool onebit)
{
    if (onebit)
        onebit_configure(leg, &(const struct onebit_cell){1, 2, i % 2, 1});
    else
        leg_configure(leg, 1 + i % 3, leg_dtypes[1], 1);
}

static void one_rank_fails(bool background, bool onebit)
{
    struct ranks ranks;
    struct leg leg = {0};
    struct run_case c = {.background = background};
    const char *dir = test_tmp_make();
    for (size_t i = 0; i < CZ_ARRAY_LEN(fault_cases); i++) {
        configure_case(&leg, (int)i, onebit);
        memcpy(c.config, leg.config, sizeof c.config);
        snprintf(c.dir, sizeof c.dir, "%s/case%zu", dir, i);
        c.fault = fault_cases[i];
        ranks_start(&ranks, 2, faulty_rank, &c);
        ranks_expect_ok(&ranks, 60);
    }
    test_tmp_remove(dir);
}

START_TEST(a_save_fails_on_all_ranks_when_one_cannot_write)
{
    one_rank_fails(false, false);
}
END_TEST

START_TEST(a_save_of_errors_fails_on_all_ranks_when_one_cannot_write)
{
    one_rank_fails(false, true);
    one_rank_fails(true, true);
}
END_TEST

START_TEST(a_background_save_that_fails_is_a_warning)
{
    one_rank_fails(true, false);
}
END_TEST

TEST_MAIN("engine/save_faults", a_save_fails_on_all_ranks_when_one_cannot_write,
          a_save_of_errors_fails_on_all_ranks_when_one_cannot_write,
          a_background_save_that_fails_is_a_warning)

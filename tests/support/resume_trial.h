/* Runs that stop and continue: a leg trains some steps over real ranks, from a checkpoint or
 * afresh, saves or not, and reports hashes of its whole state. */
#ifndef CZ_TESTS_RESUME_TRIAL_H
#define CZ_TESTS_RESUME_TRIAL_H

#include "base/status.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "engine/plan/plan.h"
#include "tests/support/gpu/trial_step.h"
#include <czero/engine.h>

#include <dirent.h>
#include <sys/stat.h>

enum { LEG_STEPS_MAX = 64 };

struct leg {
    char config[2048];
    const char *model, *freeze;
    const char *device;               /* NULL: the CPU */
    const char *optimizer;            /* of leg_configure(), members of its section; NULL: AdamW */
    bool two_groups, unsaved_weights; /* unsaved_weights: start from another seed's weights */
    bool whole_steps, is_short;       /* by engine_train_batch(); its last micro-batch is short */
    int from, to;                     /* steps; from > 0 resumes */
    char load[256], save[256];        /* folders; "" for neither */
    int save_every;                   /* 0: once, at the end */
    uint64_t save_after;              /* or after steps (bit s: of step s + 1), behind its back */
    int abandon;                      /* > 0: after this step it waits to be killed (legs_kill) */
    char swap_dir[256];               /* nvme_path: what is there during the run is counted */
    struct cz_load_options load_options;
    cz_status (*probe)(struct cz_engine *e,
                       uint64_t *own); /* what ranks need not agree on; or NULL */
};

struct leg_outcome {
    uint64_t weights, states; /* hashes: masters; all states, one after the other */
    double losses[LEG_STEPS_MAX], lrs[LEG_STEPS_MAX], norms[LEG_STEPS_MAX], scales[LEG_STEPS_MAX];
    int64_t global_steps, skipped, samples;
    size_t n_restored, n_tensors;
    int n_swap_files;         /* in swap_dir, before the first step */
    bool plans_nvme;          /* the plan has bytes on NVMe */
    volatile bool is_waiting; /* to be killed */
};

/* Shared with the ranks. */
struct leg_shared {
    struct leg leg;
    struct leg_outcome outcomes[RANKS_MAX];
    uint64_t own[RANKS_MAX]; /* of the probe, at the end */
};

static inline struct leg_shared *leg_make(void)
{
    struct leg_shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(s != MAP_FAILED);
    return s;
}

static inline cz_status leg_hash(struct cz_engine *e, const char *what, uint64_t *h)
{
    *h = TRIAL_HASH_BEGIN;
    return trial_hash_tensors(e, what, h);
}

static inline cz_status leg_save(struct cz_engine *e, const struct leg *leg, uint64_t row,
                                 bool wait)
{
    const struct cz_data_cursor cursor = {
        .sample = row, .n_rows = 1000, .seed = 7, .shuffle = true};
    const struct cz_save_options options = {
        .size = sizeof options, .cursor = &cursor, .client_state_json = "{\"who\": \"a leg\"}"};
    return wait ? engine_save_checkpoint_ex(e, leg->save, &options)
                : engine_save_begin(e, leg->save, &options);
}

static inline cz_status leg_resume(struct cz_engine *e, const struct leg *leg,
                                   struct replay_data *d, struct leg_outcome *out)
{
    struct cz_load_result result = {.size = sizeof result};
    struct cz_load_options options = leg->load_options; /* a trial without them is zeroed */
    options.size = sizeof options;
    TRY(engine_load_checkpoint_ex(e, leg->load, &options, &result));
    out->n_restored = result.n_restored;
    out->n_tensors = result.n_tensors;
    if (result.has_cursor) d->row = result.cursor.sample;
    cz_load_result_free(&result);
    return CZ_OK;
}

static inline cz_status leg_train(struct cz_engine *e, const struct leg *leg, struct replay_data *d,
                                  struct leg_outcome *out)
{
    for (int s = leg->from; s < leg->to; s++) {
        TRY(leg->whole_steps ? trial_train_batch(e, d, leg->is_short) : trial_step(e, d, NULL));
        out->losses[s] = engine_get_boundary_loss(e);
        out->lrs[s] = engine_get_lr(e);
        out->norms[s] = engine_get_global_grad_norm(e);
        out->scales[s] = engine_get_loss_scale(e);
        if (leg->save[0] && leg->save_every > 0 && (s + 1) % leg->save_every == 0)
            TRY(leg_save(e, leg, d->row, leg->abandon > 0));
        if (leg->save[0] && leg->save_after >> s & 1) TRY(leg_save(e, leg, d->row, false));
        out->is_waiting = leg->abandon == s + 1;
        while (out->is_waiting) pause();
    }
    if (leg->save[0] && leg->save_every == 0 && leg->save_after == 0)
        TRY(leg_save(e, leg, d->row, true));
    return CZ_OK;
}

/* Swap files in a folder. */
static inline int leg_swap_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *entry; d && (entry = readdir(d)) != NULL;)
        n += strncmp(entry->d_name, "czero-swap", strlen("czero-swap")) == 0;
    if (d) closedir(d);
    return n;
}

static inline struct cz_model *leg_model(const struct leg *leg)
{
    struct cz_model *model =
        cz_model_open(leg->model ? leg->model : test_fixture("models/gpt2-tiny"));
    if (!model || cz_model_set_shape(model, TRIAL_T) != CZ_OK) return NULL;
    if (leg->unsaved_weights && cz_model_init_from(model, NULL, 99) != CZ_OK) return NULL;
    if (leg->freeze && cz_model_freeze(model, leg->freeze, NULL) != CZ_OK) return NULL;
    return model;
}

static inline cz_status leg_run(struct comm *comm, const struct leg *leg, struct leg_outcome *out,
                                uint64_t *own)
{
    static struct replay_data data;
    const struct cz_engine_group groups[] = {{sizeof groups[0], "bias|ln_", NAN, 0, NAN, NAN}};
    struct cz_model *model = leg_model(leg);
    if (!model) return cz_last_status();
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_json = leg->config,
                                              .world = comm_world(comm),
                                              .groups = groups,
                                              .n_groups = leg->two_groups ? 1 : 0,
                                              .device = leg->device,
                                              .trains_batches = leg->whole_steps,
                                              .seed = leg->unsaved_weights ? 5 : 3};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    if (!e) return cz_last_status();
    memset(out, 0, sizeof *out);
    out->plans_nvme = engine_get_plan(e)->nvme_nbytes > 0;
    /* all have made theirs by now, and none can end before the others have trained */
    out->n_swap_files = leg->swap_dir[0] ? leg_swap_files(leg->swap_dir) : 0;
    replay_data_open(&data);
    if (leg->load[0]) TRY(leg_resume(e, leg, &data, out));
    TRY(leg_train(e, leg, &data, out));
    out->global_steps = engine_get_global_steps(e);
    out->skipped = engine_get_skipped_steps(e);
    out->samples = engine_get_global_samples(e);
    TRY(leg_hash(e, "weight", &out->weights));
    TRY(trial_hash_states(e, &out->states));
    if (leg->probe) TRY(leg->probe(e, own));
    TRY(engine_save_wait(e));
    engine_destroy(e);
    return CZ_OK;
}

static inline cz_status leg_rank(struct ranks *ranks, int rank, void *arg)
{
    struct leg_shared *s = arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &comm));
    TRY(leg_run(comm, &s->leg, &s->outcomes[rank], &s->own[rank]));
    comm_destroy(comm);
    return CZ_OK;
}

/* Run a leg that waits at its `abandon`, and kill all its ranks there. */
static inline void legs_kill(struct leg_shared *s, int world)
{
    struct ranks ranks;
    for (int r = 0; r < world; r++) s->outcomes[r].is_waiting = false;
    ranks_start(&ranks, world, leg_rank, s);
    int64_t until = clock_now_ns() + (int64_t)60e9;
    for (int r = 0; r < world; r++)
        while (!s->outcomes[r].is_waiting && clock_now_ns() < until) usleep(1000);
    for (int r = 0; r < world; r++) kill(ranks.pids[r], SIGKILL);
    ck_assert(ranks_wait(&ranks, 10));
    for (int r = 0; r < world; r++)
        ck_assert_msg(s->outcomes[r].is_waiting, "rank %d: %s", r, ranks.reports[r].text);
    ranks_close(&ranks);
}

/* Run a leg over `world` ranks; all of them must see the same. */
static inline struct leg_outcome leg_outcome_of(struct leg_shared *s, int world)
{
    struct ranks ranks;
    ranks_start(&ranks, world, leg_rank, s);
    ranks_expect_ok(&ranks, 120);
    for (int r = 1; r < world; r++)
        ck_assert_msg(memcmp(&s->outcomes[r], &s->outcomes[0], sizeof s->outcomes[0]) == 0,
                      "rank %d differs from rank 0: %s", r, s->leg.config);
    return s->outcomes[0];
}

static const char *const leg_dtypes[] = {
    "\"fp16\": {\"enabled\": false}",
    "\"bf16\": {\"enabled\": true}",
    /* begins with overflows, and soon has a scale that fits: skipped steps, and applied ones */
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 17, \"loss_scale_window\": 3, "
    "\"hysteresis\": 1}",
};

static inline void leg_configure(struct leg *leg, int stage, const char *dtype, int gas)
{
    snprintf(leg->config, sizeof leg->config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
             "\"gradient_clipping\": 0.5, %s, \"zero_optimization\": {\"stage\": %d, "
             "\"sub_group_size\": 5000}, "
             "\"zero_allow_untested_optimizer\": true, \"optimizer\": {%s}, \"scheduler\": "
             "{\"type\": \"WarmupDecayLR\", \"params\": "
             "{\"total_num_steps\": 12, \"warmup_num_steps\": 5, \"warmup_max_lr\": 0.003}}}",
             gas, dtype, stage,
             leg->optimizer ? leg->optimizer
                            : "\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, "
                              "\"weight_decay\": 0.1}");
}

#endif

/* Claims of the 1-bit family whose layers run on a GPU: with equal gradients on every rank,
 * masters, states, what layers find, every rank's errors, momentum and moves, scans and norms have
 * the bytes of the same ranks on the CPU after every step: in the warm-up, at the freeze and past
 * it, at stages 0 and 1, in every precision, with masked elements, groups, frozen parameters and a
 * skipped step; after tensors were set and errors restored. What is sent is the same number of
 * bytes.
 *
 * ONEBIT_GPU_DEVICE is the device: "cuda", or "cpu", which stands in for one (the same paths, with
 * nothing to wait for). */
#ifndef CZ_TESTS_ONEBIT_GPU_H
#define CZ_TESTS_ONEBIT_GPU_H

#define ZERO_WORLD_SCALE 101
#include "tests/support/ranks.h"
#include "tests/support/zero/zero_world.h"

enum { STEPS_MAX = 14, OVERFLOWS_AT = 5, SET_AT = 7, RESTORED_AT = 8 };

/* What a rank has come to after each step. */
struct course {
    struct zero_scan scans[STEPS_MAX];
    double norms[STEPS_MAX];
    uint64_t params[STEPS_MAX], weights[STEPS_MAX], states[STEPS_MAX], own[STEPS_MAX];
    uint64_t sent_nbytes[STEPS_MAX];
};

static cz_status adam_settings(struct optim_hyper *h)
{
    return optim_hyper_set_number(h, "freeze_step", 4);
}

static cz_status zero_one_settings(struct optim_hyper *h)
{
    TRY(optim_hyper_set_number(h, "var_freeze_step", 7));
    TRY(optim_hyper_set_number(h, "var_update_scaler", 2));
    TRY(optim_hyper_set_number(h, "local_step_scaler", 1));
    return optim_hyper_set_number(h, "local_step_clipper", 4);
}

static cz_status lamb_settings(struct optim_hyper *h)
{
    TRY(optim_hyper_set_number(h, "freeze_step", 4));
    return optim_hyper_set_number(h, "max_coeff", 0.3);
}

static const struct onebit_case {
    const char *name;
    cz_status (*tune)(struct optim_hyper *);
    int n_steps;
} onebits[] = {
    {"OneBitAdam", adam_settings, 10},
    {"ZeroOneAdam", zero_one_settings, STEPS_MAX},
    {"OneBitLamb", lamb_settings, 10},
};

/* ---- what a rank has --------------------------------------------------------------------------
 */

static uint64_t hash(uint64_t h, const void *bytes, size_t nbytes)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < nbytes; i++) h = (h ^ p[i]) * 1099511628211u; /* FNV-1a */
    return h;
}

static cz_status hash_params(struct world *w, size_t elem_nbytes, uint64_t *h)
{
    static unsigned char x[OF(45) * sizeof(float)];
    for (size_t i = 0; i < N_PARAMS; i++) {
        const size_t nbytes = numels[i] * elem_nbytes;
        TRY(w->device->ops->copy(w->device, w->stream, x, zero_params(w->z)[i], nbytes));
        TRY(w->device->ops->stream_sync(w->device, w->stream));
        *h = hash(*h, x, nbytes);
    }
    return CZ_OK;
}

static cz_status hash_tensors(struct world *w, enum zero_what what, size_t state_idx, uint64_t *h)
{
    static float x[OF(45)];
    for (size_t i = 0; i < N_PARAMS; i++) {
        if (what == ZERO_STATE && !w->table.params[i].trainable) continue;
        TRY(zero_read(w->z, what, state_idx, i, 0, numels[i], x));
        *h = hash(*h, x, numels[i] * sizeof *x);
    }
    return CZ_OK;
}

/* As a checkpoint reads it. */
static cz_status hash_range(struct world *w, enum zero_onebit_what what, size_t idx, uint64_t *h)
{
    static unsigned char bytes[2 * TOTAL * sizeof(float)];
    const struct zero_range range = zero_onebit_range(w->z, what, idx);
    rank_check(range.nbytes <= sizeof bytes);
    if (range.nbytes == 0) return CZ_OK;
    TRY(zero_range_read(w->z, &range, bytes));
    *h = hash(*h, bytes, range.nbytes);
    return CZ_OK;
}

static cz_status hash_own(struct world *w, uint64_t *h)
{
    for (size_t s = 0; s < zero_n_segments(w->z); s++) {
        TRY(hash_range(w, ZERO_WORKER_ERROR, s, h));
        TRY(hash_range(w, ZERO_SERVER_ERROR, s, h));
    }
    for (size_t i = 0; i < N_PARAMS; i++) {
        if (!w->table.params[i].trainable) continue;
        TRY(hash_range(w, ZERO_LOCAL_MOMENTUM, i, h));
        TRY(hash_range(w, ZERO_LOCAL_MOVES, i, h));
    }
    return CZ_OK;
}

/* ---- a run ------------------------------------------------------------------------------------
 */

/* Set from outside, on every rank: a weight, a momentum, a variance. */
static cz_status set_tensors(struct world *w)
{
    static float x[OF(9)];
    for (size_t i = 0; i < CZ_ARRAY_LEN(x); i++) x[i] = (float)i * 1e-3f;
    TRY(zero_write(w->z, ZERO_WEIGHT, 0, 3, 5, 700, x));
    TRY(zero_write(w->z, ZERO_STATE, 0, 4, 100, 800, x));
    return zero_write(w->z, ZERO_STATE, 1, 3, 0, OF(9), x);
}

/* Errors as a checkpoint would bring them: halved, but for one that is cleared. */
static cz_status restore_errors(struct world *w)
{
    static float x[2 * TOTAL];
    for (size_t s = 0; s < zero_n_segments(w->z); s++)
        for (int what = ZERO_WORKER_ERROR; what <= ZERO_SERVER_ERROR; what++) {
            const enum zero_onebit_what which = (enum zero_onebit_what)what;
            const size_t numel = zero_onebit_range(w->z, which, s).nbytes / sizeof *x;
            TRY(zero_onebit_read(w->z, which, s, 0, numel, x));
            for (size_t i = 0; i < numel; i++) x[i] /= 2;
            TRY(zero_onebit_write(w->z, which, s, 1, numel - 1, x + 1));
        }
    if (zero_n_segments(w->z) > 0) TRY(zero_onebit_clear(w->z, ZERO_SERVER_ERROR, 0));
    return zero_onebit_restored(w->z);
}

static cz_status run_step(struct world *w, const struct world_setting *s, int t, struct course *out)
{
    struct comm *comm = w->device_comm ? w->device_comm : w->comm;
    struct zero_scan *scan = &out->scans[t];
    comm->traffic = (struct comm_traffic){0};
    w->spoils = t == OVERFLOWS_AT && w->comm->rank + 1 == w->comm->world_size;
    fill_grads(w, (uint32_t)t, s->grad_dtype);
    TRY(zero_reduce(w->z));
    TRY(zero_scan(w->z, scan));
    if (t == OVERFLOWS_AT) { /* skipped */
        rank_check(!scan->finite && scan->param_idx == SPOILT && scan->elem == SPOILT_ELEM);
    } else {
        TRY(zero_norm(w->z, &out->norms[t]));
        TRY(zero_step(w->z, (uint64_t)t + 1, 4, 1.5));
        TRY(zero_gather(w->z));
    }
    zero_grads_drop(w->z);
    out->sent_nbytes[t] = comm->traffic.move_sent_nbytes + comm->traffic.reduce_sent_nbytes;
    if (t == SET_AT) TRY(set_tensors(w));
    return t == RESTORED_AT ? restore_errors(w) : CZ_OK;
}

static cz_status note(struct world *w, const struct world_setting *s, int t, struct course *out)
{
    TRY(hash_params(w, dtype_size(s->dtype), &out->params[t]));
    TRY(hash_tensors(w, ZERO_WEIGHT, 0, &out->weights[t]));
    for (size_t k = 0; k < zero_group_layout(w->z, 0).n_states; k++)
        TRY(hash_tensors(w, ZERO_STATE, k, &out->states[t]));
    return hash_own(w, &out->own[t]);
}

static cz_status run_course(struct world_setting s, int n_steps, struct course *out)
{
    struct world w;
    memset(out, 0, sizeof *out);
    world_make(&w, s);
    w.seed = (uint64_t)w.comm->rank;
    w.gaps = true;
    for (int t = 0; t < n_steps; t++) {
        TRY(run_step(&w, &s, t, out));
        TRY(note(&w, &s, t, out));
    }
    world_free(&w);
    return CZ_OK;
}

/* ---- beside the CPU's -------------------------------------------------------------------------
 */

static cz_status same_step(const struct course *a, const struct course *b, int t)
{
    rank_check(a->scans[t].finite == b->scans[t].finite);
    rank_check(a->scans[t].max_abs == b->scans[t].max_abs);
    rank_check(a->scans[t].rank == b->scans[t].rank);
    rank_check(a->scans[t].value == b->scans[t].value);
    rank_check(a->norms[t] == b->norms[t]);
    rank_check(a->states[t] == b->states[t]);
    rank_check(a->own[t] == b->own[t]);
    rank_check(a->weights[t] == b->weights[t]);
    rank_check(a->params[t] == b->params[t]);
    rank_check(a->sent_nbytes[t] == b->sent_nbytes[t]);
    return CZ_OK;
}

struct onebit_trial {
    struct onebit_case what;
    struct world_setting setting;
};

static cz_status compare_rank(struct ranks *ranks, int rank, void *arg)
{
    static struct course cpu, gpu;
    const struct onebit_trial *trial = arg;
    struct world_setting s = trial->setting;
    s.world_size = ranks->n;
    s.optimizer = trial->what.name;
    s.tune = trial->what.tune;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, 30, &s.comm));
    s.device_comm = DEVICE_COMM_AUTO;
    TRY(run_course(s, trial->what.n_steps, &cpu));
    s.on_gpu = true;
    s.device = ONEBIT_GPU_DEVICE;
    s.device_comm = trial->setting.device_comm;
    TRY(run_course(s, trial->what.n_steps, &gpu));
    for (int t = 0; t < trial->what.n_steps; t++) {
        char why[512];
        cz_status st = same_step(&cpu, &gpu, t);
        snprintf(why, sizeof why, "%s", cz_last_error());
        if (st != CZ_OK)
            return err_set(st, 0, "%s in %s, stage %d, %d ranks, step %d: %s", s.optimizer,
                           dtype_name(s.dtype), s.stage, s.world_size, t, why);
    }
    comm_destroy(s.comm);
    return CZ_OK;
}

/* In processes of their own: what is open of a GPU does not outlive a fork. */
static void compare_ranks(struct onebit_trial *trial, int n_ranks)
{
    struct ranks ranks;
    ranks_start(&ranks, n_ranks, compare_rank, trial);
    ranks_expect_ok(&ranks, 240);
}

static struct onebit_trial onebit_trial_of(size_t k, enum cz_dtype dtype, int stage)
{
    struct onebit_trial t = {.what = onebits[k], .setting = plain};
    t.setting.dtype = t.setting.grad_dtype = dtype;
    t.setting.stage = stage;
    t.setting.tile = 1024;
    t.setting.bucket = 5000;
    t.setting.overlap = stage > 0;
    return t;
}

#endif

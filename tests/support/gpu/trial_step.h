/* One rank's share of a training run over the recorded text, and hashes of its whole state. */
#ifndef CZ_TESTS_TRIAL_STEP_H
#define CZ_TESTS_TRIAL_STEP_H

#include "tests/support/ranks.h"
#include "tests/support/replay.h"

enum { TRIAL_T = 16 }; /* tokens per row */

#define TRIAL_HASH_BEGIN 14695981039346656037u

/* FNV-1a of eight bytes at a time; for comparisons within a test, never stored. */
static inline uint64_t trial_hash(uint64_t h, const void *data, size_t nbytes)
{
    const unsigned char *p = data;
    size_t i = 0;
    for (uint64_t word; i + sizeof word <= nbytes; i += sizeof word) {
        memcpy(&word, p + i, sizeof word);
        h = (h ^ word) * 1099511628211u;
        h ^= h >> 32;
    }
    for (; i < nbytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static inline cz_status trial_hash_tensors(struct cz_engine *e, const char *what, uint64_t *h)
{
    static float x[256 * 64 + 1];
    const struct param_table *table = model_params(engine_get_model(e));
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        rank_check(p->numel <= CZ_ARRAY_LEN(x));
        if (!p->trainable && strcmp(what, "weight") != 0) continue;
        TRY(engine_param_get(e, p->name, what, x, p->numel));
        *h = trial_hash(*h, x, p->numel * sizeof *x);
    }
    return CZ_OK;
}

/* All states of an optimizer, whichever it is. */
static inline cz_status trial_hash_states(struct cz_engine *e, uint64_t *h)
{
    static const char *const states[] = {
        "exp_avg",         "exp_avg_sq",       "sum",
        "momentum_buffer", "exp_avg_sq_fresh", "momentum_accumulator"};
    *h = TRIAL_HASH_BEGIN;
    for (size_t s = 0; s < CZ_ARRAY_LEN(states); s++) {
        cz_status st = trial_hash_tensors(e, states[s], h);
        if (st != CZ_OK && st != CZ_NOTFOUND) return st;
    }
    err_clear();
    return CZ_OK;
}

/* grads: hash what is there after each backward into it; may be NULL. */
static inline cz_status trial_step(struct cz_engine *e, struct replay_data *d, uint64_t *grads)
{
    static struct replay_batch b;
    int64_t rank = engine_get_rank(e), world = engine_get_world_size(e);
    int64_t B = engine_get_micro_batch(e);
    for (int64_t g = 0; g < engine_get_accumulation(e); g++) {
        uint64_t first = d->row;
        d->row = first + (uint64_t)(rank * B);
        TRY(engine_forward(e, replay_next(d, &b, B, TRIAL_T), NULL));
        TRY(engine_backward(e));
        if (grads) TRY(trial_hash_tensors(e, "grad", grads));
        TRY(engine_step(e));
        d->row = first + (uint64_t)(world * B);
    }
    return CZ_OK;
}

/* The same rows through engine_train_batch(). The last micro-batch of a step has one row less, if
 * `is_short`; alone otherwise as in trial_step(). */
struct trial_source {
    struct cz_engine *e;
    struct replay_data *d;
    int64_t g;
    bool is_short;
};

static inline cz_status trial_next(void *user, struct cz_batch *batch)
{
    static struct replay_batch b;
    struct trial_source *s = user;
    int64_t rank = engine_get_rank(s->e), world = engine_get_world_size(s->e);
    int64_t B = engine_get_micro_batch(s->e), n = engine_get_accumulation(s->e);
    uint64_t first = s->d->row;
    s->d->row = first + (uint64_t)(rank * B);
    *batch = *replay_next(s->d, &b, s->is_short && s->g + 1 == n ? B - 1 : B, TRIAL_T);
    s->d->row = first + (uint64_t)(world * B);
    s->g++;
    return CZ_OK;
}

static inline cz_status trial_train_batch(struct cz_engine *e, struct replay_data *d, bool is_short)
{
    struct trial_source source = {.e = e, .d = d, .is_short = is_short};
    float loss;
    TRY(engine_train_batch(e, trial_next, &source, &loss));
    rank_check(loss == (float)engine_get_boundary_loss(e));
    return CZ_OK;
}

#endif

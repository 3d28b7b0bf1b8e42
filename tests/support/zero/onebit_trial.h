/* Runs of the 1-bit optimizers that stop and continue: legs (resume_trial.h) that also report what
 * every rank has of its own. */
#ifndef CZ_TESTS_ONEBIT_TRIAL_H
#define CZ_TESTS_ONEBIT_TRIAL_H

#include "engine/engine_impl.h"
#include "tests/support/resume_trial.h"

/* An optimizer with a freeze in the middle of a few steps, and steps to resume from: in the
 * warm-up, one call before the freeze, at it and past it. */
struct onebit_optimizer {
    const char *type, *params;
    int steps, at[4];
};

static const struct onebit_optimizer onebit_optimizers[] = {
    {"OneBitAdam", "\"freeze_step\": 5", 8, {2, 4, 5, 7}},
    {"ZeroOneAdam",
     "\"var_freeze_step\": 7, \"var_update_scaler\": 2, \"local_step_scaler\": 1, "
     "\"local_step_clipper\": 4",
     14,
     {5, 7, 8, 13}},
    {"OneBitLamb", "\"freeze_step\": 5, \"max_coeff\": 0.3", 8, {2, 4, 5, 7}},
};

/* The fp16 one begins with overflows. Lamb wants a dynamic scale. */
static const char *const onebit_dtypes[] = {
    "\"fp16\": {\"enabled\": false}", "\"bf16\": {\"enabled\": true}",
    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 24, \"loss_scale_window\": 3, "
    "\"hysteresis\": 1}"};

struct onebit_cell {
    int optimizer, world, stage, dtype;
    const char *device; /* NULL: the CPU */
};

static inline void onebit_configure(struct leg *leg, const struct onebit_cell *c)
{
    const struct onebit_optimizer *o = &onebit_optimizers[c->optimizer];
    snprintf(leg->config, sizeof leg->config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, "
             "\"gradient_clipping\": 0.5, %s, \"zero_optimization\": {\"stage\": %d}, "
             "\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.002, \"eps\": 1e-4, "
             "\"weight_decay\": 0.1, %s}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
             "{\"warmup_num_steps\": 5, \"warmup_max_lr\": 0.002, \"warmup_type\": \"linear\"}}}",
             onebit_dtypes[c->dtype], c->stage, o->type, o->params);
}

/* Of what is in the memory of whatever device. */
static inline cz_status onebit_hash_range(struct cz_engine *e, const struct zero_range *range,
                                          uint64_t *h)
{
    if (range->nbytes == 0) return CZ_OK;
    void *bytes = malloc(range->nbytes);
    rank_check(bytes != NULL);
    TRY(zero_range_read(e->desc.zero, range, bytes));
    *h = trial_hash(*h, bytes, range->nbytes);
    free(bytes);
    return CZ_OK;
}

/* Counters, errors, momentum and moves of this rank, and OneBitLamb's values. */
static inline cz_status onebit_own(struct cz_engine *e, uint64_t *own)
{
    const struct param_table *table = model_params(engine_get_model(e));
    const struct zero_onebit ob = zero_onebit(e->desc.zero);
    uint64_t h = TRIAL_HASH_BEGIN;
    rank_check(ob.clock != NULL);
    const uint64_t clock[] = {ob.clock->step,
                              ob.clock->frozen,
                              ob.clock->var_interval,
                              ob.clock->var_counter,
                              ob.clock->local_step_interval,
                              ob.clock->local_step_counter};
    h = trial_hash(h, clock, sizeof clock);
    if (ob.lrs) h = trial_hash(h, ob.lrs, e->desc.n_groups * sizeof *ob.lrs);
    if (ob.tensors) h = trial_hash(h, ob.tensors, table->n_params * sizeof *ob.tensors);
    for (size_t s = 0; s < zero_n_segments(e->desc.zero); s++)
        for (int what = ZERO_WORKER_ERROR; what <= ZERO_SERVER_ERROR; what++) {
            struct zero_range r = zero_onebit_range(e->desc.zero, (enum zero_onebit_what)what, s);
            TRY(onebit_hash_range(e, &r, &h));
        }
    for (size_t i = 0; i < table->n_params; i++)
        for (int what = ZERO_LOCAL_MOMENTUM; what <= ZERO_LOCAL_MOVES; what++) {
            if (!table->params[i].trainable) continue;
            struct zero_range r = zero_onebit_range(e->desc.zero, (enum zero_onebit_what)what, i);
            TRY(onebit_hash_range(e, &r, &h));
        }
    *own = h;
    return CZ_OK;
}

static inline void onebit_same_end(const struct leg_shared *s, const struct leg_shared *want,
                                   int world, const char *what)
{
    const struct leg_outcome *a = &want->outcomes[0], *b = &s->outcomes[0];
    ck_assert_msg(a->weights == b->weights, "masters differ: %s: %s", what, s->leg.config);
    ck_assert_msg(a->states == b->states, "states differ: %s: %s", what, s->leg.config);
    for (int r = 0; r < world; r++)
        ck_assert_msg(want->own[r] == s->own[r], "errors or counters of rank %d differ: %s: %s", r,
                      what, s->leg.config);
    ck_assert_int_eq(a->global_steps, b->global_steps);
    ck_assert_int_eq(a->skipped, b->skipped);
}

static inline void onebit_same_steps(const struct leg_shared *s, const struct leg_shared *want,
                                     int from, int to)
{
    const struct leg_outcome *a = &want->outcomes[0], *b = &s->outcomes[0];
    size_t n = (size_t)(to - from) * sizeof(double);
    ck_assert_msg(memcmp(a->losses + from, b->losses + from, n) == 0, "losses: %s", s->leg.config);
    ck_assert_msg(memcmp(a->norms + from, b->norms + from, n) == 0, "norms: %s", s->leg.config);
    ck_assert_msg(memcmp(a->scales + from, b->scales + from, n) == 0, "scales: %s", s->leg.config);
}

/* A run of all steps that saves where others will resume into `dir`, behind its own back. */
static inline void onebit_whole(struct leg_shared *s, const struct onebit_cell *c, const char *dir)
{
    const struct onebit_optimizer *o = &onebit_optimizers[c->optimizer];
    onebit_configure(&s->leg, c);
    s->leg.device = c->device;
    s->leg.probe = onebit_own;
    s->leg.from = 0;
    s->leg.to = o->steps;
    for (size_t i = 0; i < CZ_ARRAY_LEN(o->at); i++)
        s->leg.save_after |= (uint64_t)1 << (o->at[i] - 1);
    s->leg.load[0] = '\0';
    s->leg.unsaved_weights = false;
    snprintf(s->leg.save, sizeof s->leg.save, "%s", dir);
    leg_outcome_of(s, c->world);
}

/* Continues from `at` to the end, with another seed's weights and seed until the load. */
static inline struct leg_outcome onebit_rest(struct leg_shared *s, const char *dir, int at,
                                             int world)
{
    static char tag[32];
    snprintf(tag, sizeof tag, "global_step%d", at);
    snprintf(s->leg.load, sizeof s->leg.load, "%s", dir);
    s->leg.load_options =
        (struct cz_load_options){.size = sizeof(struct cz_load_options), .tag = tag};
    s->leg.save[0] = '\0';
    s->leg.save_after = 0;
    s->leg.from = at;
    s->leg.unsaved_weights = true;
    return leg_outcome_of(s, world);
}

/* k steps and N − k steps are N steps, in a cell. */
static inline void onebit_check_cell(const struct onebit_cell *c, bool two_groups)
{
    const struct onebit_optimizer *o = &onebit_optimizers[c->optimizer];
    struct leg_shared *whole = leg_make(), *rest = leg_make();
    const char *dir = test_tmp_make();
    whole->leg.two_groups = two_groups;
    whole->leg.freeze = two_groups ? "h\\.0\\.mlp" : NULL;
    onebit_whole(whole, c, dir);
    for (size_t i = 0; i < CZ_ARRAY_LEN(o->at); i++) {
        char what[32];
        snprintf(what, sizeof what, "from step %d", o->at[i]);
        rest->leg = whole->leg;
        onebit_rest(rest, dir, o->at[i], c->world);
        onebit_same_steps(rest, whole, o->at[i], o->steps);
        onebit_same_end(rest, whole, c->world, what);
    }
    munmap(whole, sizeof *whole);
    munmap(rest, sizeof *rest);
    test_tmp_remove(dir);
}

#endif

/* Synthetic state of a small model, split as the engine would, and written by ckpt_writer_*.
 *
 * The value of every element follows from (what, parameter, element), so that a reader of a folder
 * knows every value. */
#ifndef CZ_TESTS_DS_WRITE_RIG_H
#define CZ_TESTS_DS_WRITE_RIG_H

#include "checkpoint/write/ds_write.h"
#include "tests/support/check_main.h"

#include <string.h>

#define RIG_PARAMS_MAX  16
#define RIG_GROUPS_MAX  2
#define RIG_WHAT_MASTER 0 /* RIG_WHAT_MASTER + 1 + i: state i */

struct rig_case {
    int stage, world_size;
    enum cz_dtype dtype;
    bool tied, frozen, two_groups, round_robin, fused, exclude_frozen, big;
    bool sgd; /* one kind of state, or with `plain` none, and no step */
    bool plain;
    size_t param_align, sub_group_size;
    int64_t step;
};

struct rig {
    struct rig_case c;
    struct param_table table;
    size_t group_of[RIG_PARAMS_MAX];
    size_t n_groups;
    struct flat_group flat[RIG_GROUPS_MAX];
    struct shard_group shard[RIG_GROUPS_MAX];
    struct ckpt_group groups[RIG_GROUPS_MAX];
    const char *client_state; /* NULL: none */
};

static const struct ckpt_setting rig_settings[] = {{"lr", CKPT_NUMBER, {0.00025, 0}},
                                                   {"betas", CKPT_PAIR, {0.9, 0.95}},
                                                   {"eps", CKPT_NUMBER, {1e-8, 0}},
                                                   {"weight_decay", CKPT_NUMBER, {0.1, 0}},
                                                   {"amsgrad", CKPT_BOOL, {0, 0}},
                                                   {"maximize", CKPT_BOOL, {0, 0}},
                                                   {"foreach", CKPT_NONE, {0, 0}},
                                                   {"capturable", CKPT_BOOL, {0, 0}},
                                                   {"differentiable", CKPT_BOOL, {0, 0}},
                                                   {"fused", CKPT_NONE, {0, 0}},
                                                   {"decoupled_weight_decay", CKPT_BOOL, {1, 0}}};

/* ---- the model ------------------------------------------------------------------------------- */

static inline void rig_param(struct rig *r, const char *name, int64_t rows, int64_t cols,
                             bool trainable)
{
    const int64_t shape[2] = {rows, cols};
    size_t idx;
    ck_ok(param_table_add(&r->table, name, cols ? 2 : 1, shape, PARAM_INIT_ZERO, 0, &idx));
    r->table.params[idx].trainable = trainable;
    bool second = r->c.two_groups && cols == 0;
    r->group_of[idx] = trainable ? (second ? 1 : 0) : r->n_groups;
}

static inline void rig_layout(struct rig *r, size_t group)
{
    size_t idx[RIG_PARAMS_MAX], n = 0;
    for (size_t i = 0; i < r->table.n_params; i++)
        if (r->group_of[i] == group) idx[n++] = i;
    const struct flat_options options = {.world_size = r->c.world_size,
                                         .round_robin = r->c.round_robin,
                                         .param_align = r->c.param_align};
    ck_ok(flat_group_init(&r->flat[group], &r->table, idx, n, &options));
    ck_ok(shard_group_init(&r->shard[group], &r->table, idx, n, r->c.world_size,
                           r->c.sub_group_size ? r->c.sub_group_size : 1000000000));
    struct ckpt_group *g = &r->groups[group];
    *g = (struct ckpt_group){.settings = rig_settings,
                             .n_settings = sizeof rig_settings / sizeof *rig_settings,
                             .step = r->c.step,
                             .states = {"exp_avg", "exp_avg_sq"},
                             .n_states = 2,
                             .step_is_tensor = !r->c.fused,
                             .flat = r->c.stage < 3 ? &r->flat[group] : NULL,
                             .shard = r->c.stage < 3 ? NULL : &r->shard[group]};
    if (!r->c.sgd) return;
    g->states[0] = "momentum_buffer";
    g->n_states = r->c.plain ? 0 : 1;
    g->no_step = true;
}

static inline void rig_init(struct rig *r, const struct rig_case *c)
{
    memset(r, 0, sizeof *r);
    r->c = *c;
    r->n_groups = c->two_groups ? 2 : 1;
    param_table_init(&r->table);
    rig_param(r, "emb.weight", 7, 5, true);
    rig_param(r, "h.0.l1.weight", 9, 5, true);
    rig_param(r, "h.0.l1.bias", 9, 0, true);
    rig_param(r, "h.0.fz.weight", 9, 9, !c->frozen);
    rig_param(r, "h.0.fz.bias", 9, 0, !c->frozen);
    rig_param(r, "h.1.norm.weight", 1, 0, true);
    rig_param(r, "h.1.norm.bias", 9, 0, true);
    if (c->big) rig_param(r, "h.1.big.weight", 1103, 1021, true);
    rig_param(r, "out.weight", 5, 9, true);
    if (c->tied) ck_ok(param_table_alias(&r->table, "head.weight", 0));
    for (size_t g = 0; g < r->n_groups; g++) rig_layout(r, g);
}

static inline void rig_free(struct rig *r)
{
    for (size_t g = 0; g < r->n_groups; g++) {
        flat_group_free(&r->flat[g]);
        shard_group_free(&r->shard[g]);
    }
    param_table_free(&r->table);
}

/* ---- values ---------------------------------------------------------------------------------- */

static inline float rig_value(size_t what, size_t param_idx, size_t elem)
{
    uint64_t mix = (what * 613 + param_idx * 7919 + elem * 104729 + 1) % 16777213;
    return (float)((int64_t)mix - 8388606) / 8388608.0f;
}

/* As stored in `dtype`; widened again. */
static inline float rig_rounded(float value, enum cz_dtype dtype)
{
    if (dtype == DTYPE_BF16) return bf16_to_f32(f32_to_bf16(value));
    if (dtype == DTYPE_F16) return f16_to_f32(f32_to_f16(value));
    return value;
}

/* Which element of which parameter stands at element `at` of a source; false: padding. */
static inline bool rig_locate(const struct rig *r, int rank, const struct ckpt_job *source,
                              size_t at, size_t *param_idx, size_t *elem)
{
    if (source->source == CKPT_FROM_FROZEN) {
        size_t numel = r->table.params[source->param_idx].numel;
        if (r->c.stage == 3) at += (size_t)rank * shard_chunk(numel, r->c.world_size);
        *param_idx = source->param_idx;
        *elem = at;
        size_t real = r->c.stage == 3 ? shard_real(numel, r->c.world_size, rank) : numel;
        size_t first = r->c.stage == 3 ? (size_t)rank * shard_chunk(numel, r->c.world_size) : 0;
        return at < first + real;
    }
    if (r->c.stage == 3) {
        const struct shard_group *shard = &r->shard[source->group];
        size_t sub = 0;
        while (at >= shard->sub_groups[sub].numel) at -= shard->sub_groups[sub++].numel;
        size_t i = shard->sub_groups[sub].first;
        while (at >= shard->params[i].off + shard->params[i].chunk) i++;
        size_t numel = r->table.params[shard->params[i].param_idx].numel;
        *param_idx = shard->params[i].param_idx;
        *elem = at - shard->params[i].off + (size_t)rank * shard->params[i].chunk;
        return at - shard->params[i].off < shard_real(numel, r->c.world_size, rank);
    }
    const struct flat_group *flat = &r->flat[source->group];
    if (source->source != CKPT_FROM_PARAM && r->c.stage > 0) at += (size_t)rank * flat->partition;
    size_t pos = flat_group_find(flat, at);
    if (pos >= flat->n_params) return false;
    *param_idx = flat->params[pos].param_idx;
    *elem = at - flat->params[pos].off;
    return true;
}

/* The value at element `at` of a source; padding has one of its own. */
static inline float rig_at(const struct rig *r, int rank, const struct ckpt_job *source, size_t at)
{
    size_t param_idx, elem, what = RIG_WHAT_MASTER;
    if (!rig_locate(r, rank, source, at, &param_idx, &elem)) return -77.0f;
    if (source->source == CKPT_FROM_STATE) what += 1 + source->state_idx;
    return rig_rounded(rig_value(what, param_idx, elem), source->dtype);
}

/* ---- writing --------------------------------------------------------------------------------- */

static inline struct ckpt_write_options rig_options(const struct rig *r, const char *dir, int rank)
{
    return (struct ckpt_write_options){
        .dir = dir,
        .table = &r->table,
        .group_of = r->group_of,
        .groups = r->groups,
        .n_groups = r->n_groups,
        .stage = r->c.stage,
        .rank = rank,
        .world_size = r->c.world_size,
        .dtype = r->c.dtype,
        .state_dtype = DTYPE_F32,
        .master_dtype = DTYPE_F32,
        .fp16 = r->c.dtype == DTYPE_F16,
        .fused = r->c.fused,
        .exclude_frozen = r->c.exclude_frozen,
        .clip_grad = 1.0,
        .scaler = {.dynamic = true,
                   .scale = 4096.0,
                   .factor = 2.0,
                   .min_scale = 1.0,
                   .iter = 12,
                   .last_overflow_iter = 5,
                   .window = 1000,
                   .delayed_shift = 2,
                   .hysteresis = 1},
        .global_steps = 12,
        .global_samples = 480,
        .skipped_steps = r->c.dtype == DTYPE_F16 ? 2 : 0,
        .has_scheduler = true,
        .last_batch_iteration = 11,
        .ds_config_json = "{\"train_micro_batch_size_per_gpu\": 4, \"optimizer\": {\"params\": "
                          "{\"lr\": 1e-3, \"betas\": [0.9, 0.95]}}, \"wall_clock_breakdown\": "
                          "false, \"nothing\": null}",
        .client_state_json = r->client_state};
}

static inline void rig_fill(const struct rig *r, int rank, const struct ckpt_job *job, void *dst)
{
    for (size_t i = 0; i < job->numel; i++) {
        float value = rig_at(r, rank, job, job->off + i);
        uint16_t half = job->dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
        if (job->dtype == DTYPE_F32)
            memcpy((float *)dst + i, &value, sizeof value);
        else
            memcpy((uint16_t *)dst + i, &half, sizeof half);
    }
}

/* One rank's files; the manifest's part is taken over by `all` (may be NULL). */
static inline void rig_write_rank(const struct rig *r, const char *dir, int rank,
                                  struct manifest *all)
{
    const struct ckpt_write_options options = rig_options(r, dir, rank);
    struct ckpt_writer *w;
    ck_ok(ckpt_writer_create(&options, &w));
    void *buf = malloc(CKPT_JOB_NUMEL * sizeof(float));
    ck_assert_ptr_nonnull(buf);
    size_t n = ckpt_writer_n_jobs(w);
    for (size_t i = 0; i < n; i++) { /* any order will do: the odd ones last */
        size_t idx = 2 * i < n ? 2 * i : 2 * (i - (n + 1) / 2) + 1;
        ck_assert_uint_le(ckpt_writer_job(w, idx)->numel, CKPT_JOB_NUMEL);
        rig_fill(r, rank, ckpt_writer_job(w, idx), buf);
        ck_ok(ckpt_writer_put(w, idx, buf));
    }
    const struct manifest *part;
    ck_ok(ckpt_writer_finish(w, &part));
    for (size_t i = 0; all && i < part->n_files; i++) {
        const struct manifest_file *from = &part->files[i];
        struct manifest_file *to;
        ck_ok(manifest_add_file(all, from->name, from->nbytes, from->crc, &to));
        for (size_t t = 0; t < from->n_tensors; t++)
            ck_ok(manifest_add_tensor(to, from->tensors[t].name, from->tensors[t].what,
                                      from->tensors[t].off, from->tensors[t].nbytes,
                                      from->tensors[t].crc));
    }
    ckpt_writer_destroy(w);
    free(buf);
}

static inline void rig_write(const struct rig *r, const char *dir, struct manifest *all)
{
    for (int rank = 0; rank < r->c.world_size; rank++) rig_write_rank(r, dir, rank, all);
}

#endif

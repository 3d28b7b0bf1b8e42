/* Replaying recorded training runs: the tokens of a text in the order of the recordings, an engine
 * from a config file, and a curve to agree with. */
#ifndef CZ_TESTS_REPLAY_H
#define CZ_TESTS_REPLAY_H

#include "base/cpu.h"
#include "engine/engine.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define REPLAY_STEPS_MAX 64
#define REPLAY_TOKENS    65536

/* Bytes of the text as tokens; row k is tokens [k·T, k·T + T], the last T of them the labels. */
struct replay_data {
    int32_t tokens[REPLAY_TOKENS];
    size_t n;
    uint64_t row; /* the next one */
};

static inline void replay_data_open(struct replay_data *d)
{
    FILE *f = fopen(test_fixture("text/fortunes-64k.txt"), "rb");
    ck_assert_ptr_nonnull(f);
    unsigned char *bytes = malloc(REPLAY_TOKENS);
    d->n = fread(bytes, 1, REPLAY_TOKENS, f);
    fclose(f);
    for (size_t i = 0; i < d->n; i++) d->tokens[i] = bytes[i];
    free(bytes);
    d->row = 0;
}

#define REPLAY_BATCH_MAX 4096

struct replay_batch {
    int32_t ids[REPLAY_BATCH_MAX], labels[REPLAY_BATCH_MAX];
    struct cz_batch batch;
};

static inline const struct cz_batch *replay_next(struct replay_data *d, struct replay_batch *b,
                                                 int64_t B, int64_t T)
{
    ck_assert_int_le(B * T, REPLAY_BATCH_MAX);
    size_t first = (size_t)d->row * (size_t)T, n = (size_t)(B * T);
    ck_assert_uint_lt(first + n, d->n);
    memcpy(b->ids, d->tokens + first, n * sizeof *b->ids);
    memcpy(b->labels, d->tokens + first + 1, n * sizeof *b->labels);
    b->batch = (struct cz_batch){.size = sizeof(struct cz_batch),
                                 .B = B,
                                 .T = T,
                                 .ids = b->ids,
                                 .labels = b->labels,
                                 .sample = d->row};
    d->row += (uint64_t)B;
    return &b->batch;
}

struct replay_row {
    double loss, lr_next, grad_norm, loss_scale;
};

struct replay_curve {
    struct replay_row rows[REPLAY_STEPS_MAX];
    int n;
};

static inline void replay_curve_read(const char *path, struct replay_curve *c)
{
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    char line[256];
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    for (c->n = 0; fgets(line, sizeof line, f);) {
        struct replay_row *r = &c->rows[c->n++];
        ck_assert_int_le(c->n, REPLAY_STEPS_MAX);
        ck_assert_int_eq(sscanf(line, "%*d,%lf,%lf,%lf,%lf", &r->loss, &r->lr_next, &r->grad_norm,
                                &r->loss_scale),
                         4);
    }
    fclose(f);
}

/* One recorded run and how to follow it. */
struct replay {
    const char *name, *config, *curve;
    int64_t seq;
    const char *freeze;      /* part of a name, or "" */
    const char *compat;      /* NULL: 0.19 */
    const char *const *sets; /* NULL-terminated overrides, or NULL */
    double loss_tol, norm_tol;
    int frozen_after;                        /* 0, or the last step that these two are for */
    double frozen_loss_tol, frozen_norm_tol; /* since then */
};

/* A run of tests/fixtures/runs. Its strings last until the next call. */
static inline struct replay replay_of_fixture(const char *name, const char *freeze)
{
    static char config[512], curve[512];
    char relative[160];
    bool is_fp32 = !strstr(name, "16-"); /* bf16-, fp16-, v016- */
    snprintf(relative, sizeof relative, "runs/%s/ds_config.json", name);
    snprintf(config, sizeof config, "%s", test_fixture(relative));
    snprintf(relative, sizeof relative, "runs/%s/curve.csv", name);
    snprintf(curve, sizeof curve, "%s", test_fixture(relative));
    return (struct replay){.name = name,
                           .config = config,
                           .curve = curve,
                           .seq = 64,
                           .freeze = freeze,
                           .compat = strncmp(name, "v016", 4) == 0 ? "0.16" : NULL,
                           .loss_tol = is_fp32 ? 1e-4 : 2e-2,
                           .norm_tol = is_fp32 ? 1e-3 : 2e-1};
}

/* Overrides that put optimizer states and parameters on NVMe, in a folder that is made for them. */
static inline const char *const *replay_on_nvme(const char *swap_dir)
{
    static char paths[2][192];
    static const char *const sets[] = {"zero_optimization.offload_optimizer.device=nvme", paths[0],
                                       "zero_optimization.offload_param.device=nvme",     paths[1],
                                       "zero_optimization.offload_param.max_in_cpu=0",    NULL};
    snprintf(paths[0], sizeof paths[0], "zero_optimization.offload_optimizer.nvme_path=%s",
             swap_dir);
    snprintf(paths[1], sizeof paths[1], "zero_optimization.offload_param.nvme_path=%s", swap_dir);
    return sets;
}

static inline struct cz_engine *replay_engine(const struct replay *r)
{
    struct cz_model *model = cz_model_from_hf(test_fixture("models/gpt2-tiny"));
    ck_assert_msg(model != NULL, "%s: %s", r->name, cz_last_error());
    ck_ok(cz_model_set_shape(model, r->seq));
    if (r->freeze && *r->freeze) ck_ok(cz_model_freeze(model, r->freeze, NULL));
    const struct cz_engine_options options = {.size = sizeof options,
                                              .config_path = r->config,
                                              .compat = r->compat,
                                              .set_values = r->sets};
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_msg(e != NULL, "%s: %s", r->name, cz_last_error());
    return e;
}

static inline void replay_one_step(struct cz_engine *e, struct replay_data *d, int64_t T)
{
    static struct replay_batch b;
    for (int64_t g = 0; g < engine_get_accumulation(e); g++) {
        ck_ok(engine_forward(e, replay_next(d, &b, engine_get_micro_batch(e), T), NULL));
        ck_ok(engine_backward(e));
        ck_ok(engine_step(e));
    }
}

static inline bool replay_close(double have, double want, double tol)
{
    return (isnan(want) && isnan(have)) || have == want || fabs(have - want) <= tol;
}

/* Compare a step (from 1); gives the difference in the loss. */
static inline double replay_compare(const struct replay *r, int step, const struct replay_row *have,
                                    const struct replay_row *want)
{
    bool frozen = r->frozen_after && step > r->frozen_after;
    double norm_tol = frozen ? r->frozen_norm_tol : r->norm_tol;
    ck_assert_msg(replay_close(have->loss, want->loss, frozen ? r->frozen_loss_tol : r->loss_tol),
                  "%s step %d: loss %.8g, not %.8g", r->name, step, have->loss, want->loss);
    ck_assert_msg(replay_close(have->lr_next, want->lr_next, 1e-9 * fabs(want->lr_next)),
                  "%s step %d: lr %.12g, not %.12g", r->name, step, have->lr_next, want->lr_next);
    ck_assert_msg(have->loss_scale == want->loss_scale, "%s step %d: loss scale %g, not %g",
                  r->name, step, have->loss_scale, want->loss_scale);
    ck_assert_msg(isnan(want->grad_norm) ||
                      replay_close(have->grad_norm, want->grad_norm, norm_tol * want->grad_norm),
                  "%s step %d: grad norm %.8g, not %.8g", r->name, step, have->grad_norm,
                  want->grad_norm);
    return fabs(have->loss - want->loss);
}

/* Train along and compare every step; gives the largest difference in the loss. */
static inline double replay_run(const struct replay *r)
{
    static struct replay_data data;
    static struct replay_curve curve;
    double worst = 0;
    replay_data_open(&data);
    replay_curve_read(r->curve, &curve);
    struct cz_engine *e = replay_engine(r);
    for (int s = 0; s < curve.n; s++) {
        replay_one_step(e, &data, r->seq);
        const struct replay_row have = {.loss = engine_get_boundary_loss(e),
                                        .lr_next = engine_get_lr(e),
                                        .grad_norm = engine_get_global_grad_norm(e),
                                        .loss_scale = engine_get_loss_scale(e)};
        worst = fmax(worst, replay_compare(r, s + 1, &have, &curve.rows[s]));
        ck_assert(engine_was_step_applied(e) == !isinf(curve.rows[s].grad_norm));
    }
    engine_destroy(e);
    return worst;
}

/* The same by `czero launch -n world -- train …`, in a process per rank; groups: "hf" or "". The
 * curve comes back too. */
static inline double replay_launch_curve(const struct replay *r, int world, const char *groups,
                                         struct replay_curve *have)
{
    static struct replay_curve want;
    double worst = 0;
    replay_curve_read(r->curve, &want);
    char dir[64], path[160], command[4096];
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    size_t n =
        (size_t)snprintf(command, sizeof command,
                         "cd %s && '%s/czero' launch -n %d -- train --config '%s' --model '%s' "
                         "--data '%s' --tokenizer bytes --shuffle off "
                         "--seq-len %d --steps %d --curve curve.csv --quiet",
                         dir, test_build(), world, r->config, test_fixture("models/gpt2-tiny"),
                         test_fixture("text/fortunes-64k.txt"), (int)r->seq, want.n);
    if (r->freeze && *r->freeze)
        n += (size_t)snprintf(command + n, sizeof command - n, " --freeze '%s'", r->freeze);
    if (*groups) n += (size_t)snprintf(command + n, sizeof command - n, " --groups %s", groups);
    if (r->compat)
        n += (size_t)snprintf(command + n, sizeof command - n, " --compat %s", r->compat);
    for (int i = 0; r->sets && r->sets[i]; i++)
        n += (size_t)snprintf(command + n, sizeof command - n, " --set '%s'", r->sets[i]);
    ck_assert_uint_lt(n, sizeof command);
    ck_assert_msg(system(command) == 0, "%s: failed: %s", r->name, command);
    snprintf(path, sizeof path, "%s/curve.csv", dir);
    replay_curve_read(path, have);
    ck_assert_int_eq(have->n, want.n);
    for (int s = 0; s < want.n; s++)
        worst = fmax(worst, replay_compare(r, s + 1, &have->rows[s], &want.rows[s]));
    test_tmp_remove(dir);
    return worst;
}

static inline double replay_launch(const struct replay *r, int world, const char *groups)
{
    static struct replay_curve have;
    return replay_launch_curve(r, world, groups, &have);
}

/* ---- the runs of tests/fixtures/curves/dense ------------------------------------------------- */

struct replay_golden {
    char name[64], freeze[32], groups[8], config[512], curve[512];
    int world;
    int64_t seq;
};

#define REPLAY_GOLDEN_MAX 128

/* Read runs.csv; gives how many there are. */
static inline int replay_golden_read(struct replay_golden *runs)
{
    char line[256], relative[128];
    int n = 0;
    FILE *f = fopen(test_fixture("curves/dense/runs.csv"), "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    ck_assert_str_eq(line, "name,world,steps,seq,freeze,groups\n");
    for (; fgets(line, sizeof line, f); n++) {
        char *rest = line, *field[6];
        for (int i = 0; i < 6; i++) field[i] = strsep(&rest, ",\n");
        ck_assert_ptr_nonnull(field[5]);
        ck_assert_int_lt(n, REPLAY_GOLDEN_MAX);
        struct replay_golden *g = &runs[n];
        snprintf(g->name, sizeof g->name, "%s", field[0]);
        snprintf(g->freeze, sizeof g->freeze, "%s", field[4]);
        snprintf(g->groups, sizeof g->groups, "%s", field[5]);
        g->world = atoi(field[1]);
        g->seq = atoi(field[3]);
        snprintf(relative, sizeof relative, "curves/dense/%s/ds_config.json", g->name);
        snprintf(g->config, sizeof g->config, "%s", test_fixture(relative));
        snprintf(relative, sizeof relative, "curves/dense/%s/curve.csv", g->name);
        snprintf(g->curve, sizeof g->curve, "%s", test_fixture(relative));
    }
    fclose(f);
    return n;
}

/* Tolerances of tests/fixtures/curves/dense/README.md. The norm of 16-bit gradients: they are
 * rounded at other places than PyTorch's (an accumulated sum is rounded once). */
static inline struct replay replay_of(const struct replay_golden *g)
{
    bool is_fp32 = strstr(g->name, "-fp32-") != NULL;
    /* The last step of this run depends on the last bits: gradients of attention grow sixfold with
     * AMX (oneDNN's products and ours alike), the norm by 28 %, while the loss is within 7e-5. */
    bool is_steep = (cpu_features() & CPU_AMX) && strcmp(g->name, "s0-bf16-adam-nobias") == 0;
    return (struct replay){.name = g->name,
                           .config = g->config,
                           .curve = g->curve,
                           .seq = g->seq,
                           .freeze = g->freeze,
                           .loss_tol = is_fp32 ? 1e-4 : 2e-2,
                           .norm_tol = is_fp32    ? 1e-3
                                       : is_steep ? 3e-1
                                                  : 2e-1};
}

#endif

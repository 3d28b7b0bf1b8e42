/* Replaying recorded training runs: the tokens of a text in the order of the recordings, an engine
 * from a config file, and a curve to agree with. */
#ifndef CZ_TESTS_REPLAY_H
#define CZ_TESTS_REPLAY_H

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
    FILE *f = fopen(test_data("text/fortunes-64k.txt"), "rb");
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
    struct batch batch;
};

static inline const struct batch *replay_next(struct replay_data *d, struct replay_batch *b,
                                              int64_t B, int64_t T)
{
    ck_assert_int_le(B * T, REPLAY_BATCH_MAX);
    size_t first = (size_t)d->row * (size_t)T, n = (size_t)(B * T);
    ck_assert_uint_lt(first + n, d->n);
    memcpy(b->ids, d->tokens + first, n * sizeof *b->ids);
    memcpy(b->labels, d->tokens + first + 1, n * sizeof *b->labels);
    b->batch = (struct batch){.B = B, .T = T, .ids = b->ids, .labels = b->labels, .sample = d->row};
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
};

static inline struct engine *replay_engine(const struct replay *r)
{
    struct model *model = model_from_hf(test_data("models/gpt2-tiny"));
    ck_assert_msg(model != NULL, "%s: %s", r->name, cz_last_error());
    ck_ok(model_set_shape(model, r->seq));
    if (r->freeze && *r->freeze) ck_ok(model_freeze(model, r->freeze, NULL));
    const struct engine_options options = {
        .config_path = r->config, .compat = r->compat, .set_values = r->sets};
    struct engine *e = engine_initialize_ex(&options, model);
    ck_assert_msg(e != NULL, "%s: %s", r->name, cz_last_error());
    return e;
}

static inline void replay_one_step(struct engine *e, struct replay_data *d, int64_t T)
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

/* Train along and compare every step; gives the largest difference in the loss. */
static inline double replay_run(const struct replay *r)
{
    static struct replay_data data;
    static struct replay_curve curve;
    double worst = 0;
    replay_data_open(&data);
    replay_curve_read(r->curve, &curve);
    struct engine *e = replay_engine(r);
    for (int s = 0; s < curve.n; s++) {
        const struct replay_row *want = &curve.rows[s];
        replay_one_step(e, &data, r->seq);
        double loss = engine_get_boundary_loss(e), lr = engine_get_lr(e);
        double norm = engine_get_global_grad_norm(e), scale = engine_get_loss_scale(e);
        ck_assert_msg(replay_close(loss, want->loss, r->loss_tol),
                      "%s step %d: loss %.8g, not %.8g", r->name, s + 1, loss, want->loss);
        ck_assert_msg(replay_close(lr, want->lr_next, 1e-9 * fabs(want->lr_next)),
                      "%s step %d: lr %.12g, not %.12g", r->name, s + 1, lr, want->lr_next);
        ck_assert_msg(scale == want->loss_scale, "%s step %d: loss scale %g, not %g", r->name,
                      s + 1, scale, want->loss_scale);
        ck_assert_msg(isnan(want->grad_norm) ||
                          replay_close(norm, want->grad_norm, r->norm_tol * want->grad_norm),
                      "%s step %d: grad norm %.8g, not %.8g", r->name, s + 1, norm,
                      want->grad_norm);
        ck_assert(engine_was_step_applied(e) == !isinf(want->grad_norm));
        worst = fmax(worst, fabs(loss - want->loss));
    }
    engine_destroy(e);
    return worst;
}

#endif

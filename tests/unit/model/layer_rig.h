/* A layer alone on the bench: memory of exactly the bytes it asks for, with guard bytes on both
 * sides of every piece, random parameters, and the calls that an engine would make. */
#ifndef CZ_TESTS_LAYER_RIG_H
#define CZ_TESTS_LAYER_RIG_H

#include "base/threads.h"
#include "model/layer.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

#define RIG_GUARD      ((size_t)64)
#define RIG_GUARD_BYTE 0xA5
#define RIG_PARAMS_MAX 32

/* Bytes between two guards. */
struct rig_block {
    unsigned char *base;
    size_t nbytes;
};

static inline void *rig_data(const struct rig_block *b)
{
    return b->base + RIG_GUARD;
}

static inline struct rig_block rig_block_make(size_t nbytes, int fill)
{
    struct rig_block b = {aligned_alloc(64, (nbytes + 63) / 64 * 64 + 2 * RIG_GUARD), nbytes};
    ck_assert_ptr_nonnull(b.base);
    memset(b.base, RIG_GUARD_BYTE, nbytes + 2 * RIG_GUARD);
    memset(rig_data(&b), fill, nbytes);
    return b;
}

static inline void rig_block_free(struct rig_block *b, const char *what)
{
    for (size_t i = 0; i < RIG_GUARD; i++) {
        ck_assert_msg(b->base[i] == RIG_GUARD_BYTE, "%s: a write before its start", what);
        ck_assert_msg(b->base[RIG_GUARD + b->nbytes + i] == RIG_GUARD_BYTE,
                      "%s: a write behind its end", what);
    }
    free(b->base);
    b->base = NULL;
}

struct rig {
    const struct layer_class *cls;
    const void *hp;
    struct device *device;
    struct ops *ops;
    struct batch_shape shape;
    struct layer_sizes sizes;
    struct param_table table;
    struct param_list list;
    int64_t C_in, C_out; /* 0: none */
    enum cz_dtype dtype, grad_dtype;

    struct rig_block in, out, dout, din, saved, workspace, cache;
    struct rig_block params[RIG_PARAMS_MAX], grads[RIG_PARAMS_MAX];
    const void *param_ptr[RIG_PARAMS_MAX];
    struct param_grad grad_ptr[RIG_PARAMS_MAX];
    struct batch batch;
    struct rng_key rng;
    bool no_dropout;
    bool zero_grad[RIG_PARAMS_MAX]; /* parameters whose gradient must be zero, and is */
    float loss;
};

static inline float rig_get(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return dtype == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static inline void rig_put(void *p, size_t i, enum cz_dtype dtype, float v)
{
    if (dtype == DTYPE_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = dtype == DTYPE_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
}

/* Normal numbers, the same for every dtype up to rounding. */
static inline void rig_fill(void *p, size_t numel, enum cz_dtype dtype, uint32_t site, float mean,
                            float std)
{
    const struct rng_key key = {.seed = 99, .site = site};
    for (size_t i = 0; i < numel; i++) rig_put(p, i, dtype, mean + std * rng_normal(&key, i));
}

/* Numbers that all dtypes hold exactly, so that runs in different dtypes see the same inputs. */
static inline void rig_fill_exact(void *p, size_t numel, enum cz_dtype dtype, uint32_t site,
                                  float mean, float std)
{
    const struct rng_key key = {.seed = 99, .site = site};
    for (size_t i = 0; i < numel; i++)
        rig_put(p, i, dtype, bf16_to_f32(f32_to_bf16(mean + std * rng_normal(&key, i))));
}

static inline void rig_declare(struct rig *r)
{
    param_table_init(&r->table);
    r->list = (struct param_list){.table = &r->table};
    ck_ok(r->cls->declare(r->hp, &r->list));
    ck_assert_uint_le(r->list.n, RIG_PARAMS_MAX);
    for (size_t i = 0; i < r->list.n; i++) {
        const struct param_info *p = &r->table.params[r->list.idx[i]];
        r->params[i] = rig_block_make(p->numel * dtype_size(r->dtype), 0);
        r->grads[i] = rig_block_make(p->numel * dtype_size(r->grad_dtype), 0x7f); /* NaN */
        const float mean = p->init == PARAM_INIT_ONE ? 1.0f : 0.0f;
        rig_fill_exact(rig_data(&r->params[i]), p->numel, r->dtype, 100 + (uint32_t)i, mean, 0.3f);
        r->param_ptr[i] = rig_data(&r->params[i]);
        r->grad_ptr[i] = (struct param_grad){rig_data(&r->grads[i]), false};
    }
}

static inline size_t rig_numel_out(const struct rig *r)
{
    return (size_t)(r->batch.B * r->batch.T * r->C_out);
}

static inline size_t rig_numel_in(const struct rig *r)
{
    return (size_t)(r->batch.B * r->batch.T * r->C_in);
}

static bool rig_keeps_all; /* of the rigs that are opened next: batch_shape.keeps_all */

/* Everything for batches of up to B×T; the caller then sets r->batch's arrays. */
static inline void rig_open(struct rig *r, const struct layer_class *cls, const void *hp, int64_t B,
                            int64_t T, int64_t C_in, int64_t C_out, enum cz_dtype dtype,
                            bool training)
{
    memset(r, 0, sizeof *r);
    r->cls = cls;
    r->hp = hp;
    r->C_in = C_in;
    r->C_out = C_out;
    r->dtype = dtype;
    r->grad_dtype = DTYPE_F32;
    threads_init(1);
    ck_ok(device_open("cpu", 0, &r->device));
    ck_ok(ops_create(r->device, &r->ops));
    r->shape = (struct batch_shape){.B = B,
                                    .T = T,
                                    .dtype = dtype,
                                    .grad_dtype = DTYPE_F32,
                                    .ops = r->ops,
                                    .training = training,
                                    .keeps_all = rig_keeps_all};
    ck_ok(cls->size(hp, &r->shape, &r->sizes));
    rig_declare(r);
    const size_t e = dtype_size(dtype), n = (size_t)(B * T);
    ck_assert_uint_eq(r->sizes.out_nbytes, n * (size_t)C_out * e);
    r->in = rig_block_make(n * (size_t)C_in * e, 0);
    r->din = rig_block_make(n * (size_t)C_in * e, 0x7f);
    r->out = rig_block_make(r->sizes.out_nbytes, 0x7f);
    r->dout = rig_block_make(r->sizes.out_nbytes, 0);
    r->saved = rig_block_make(r->sizes.saved_nbytes, 0x7f);
    r->workspace = rig_block_make(r->sizes.workspace_nbytes, 0x7f);
    r->cache = rig_block_make(r->sizes.cache_nbytes, 0x7f);
    rig_fill_exact(rig_data(&r->in), n * (size_t)C_in, dtype, 1, 0.0f, 1.0f);
    rig_fill_exact(rig_data(&r->dout), n * (size_t)C_out, dtype, 2, 0.0f, 1.0f);
    r->batch = (struct batch){.B = B, .T = T};
    r->rng = (struct rng_key){.seed = 5, .site = 3 * RNG_SITES_PER_LAYER, .step = 7, .sample = 40};
}

static inline void rig_close(struct rig *r)
{
    rig_block_free(&r->in, "in");
    rig_block_free(&r->din, "din");
    rig_block_free(&r->out, "out");
    rig_block_free(&r->dout, "dout");
    rig_block_free(&r->saved, "saved");
    rig_block_free(&r->workspace, "workspace");
    rig_block_free(&r->cache, "cache");
    for (size_t i = 0; i < r->list.n; i++) {
        rig_block_free(&r->params[i], "a parameter");
        rig_block_free(&r->grads[i], "a gradient");
    }
    free(r->list.idx);
    param_table_free(&r->table);
    ops_destroy(r->ops);
    device_close(r->device);
}

static inline struct layer_args rig_args(struct rig *r, enum layer_mode mode)
{
    const bool loss = (r->cls->flags & LAYER_LOSS) != 0;
    return (struct layer_args){.ops = r->ops,
                               .batch = &r->batch,
                               .mode = mode,
                               .no_dropout = r->no_dropout,
                               .keeps_all = r->shape.keeps_all,
                               .dtype = r->dtype,
                               .grad_dtype = r->grad_dtype,
                               .rng = r->rng,
                               .in = r->C_in ? rig_data(&r->in) : NULL,
                               .out = loss ? NULL : rig_data(&r->out),
                               .params = r->param_ptr,
                               .saved = mode == LAYER_EVAL ? NULL : rig_data(&r->saved),
                               .workspace = rig_data(&r->workspace),
                               .workspace_nbytes = r->sizes.workspace_nbytes,
                               .dparams = loss && mode != LAYER_EVAL ? r->grad_ptr : NULL,
                               .loss = loss ? &r->loss : NULL,
                               .dloss = 1.0f};
}

static inline void rig_forward(struct rig *r, enum layer_mode mode)
{
    memset(rig_data(&r->workspace), 0x7f, r->workspace.nbytes);
    const struct layer_args a = rig_args(r, mode);
    ck_ok(r->cls->forward(r->hp, &a));
}

static inline void rig_backward(struct rig *r)
{
    memset(rig_data(&r->workspace), 0x7f, r->workspace.nbytes);
    memset(rig_data(&r->din), 0x7f, r->din.nbytes);
    struct layer_args a = rig_args(r, LAYER_TRAIN);
    if (!(r->cls->flags & LAYER_LOSS)) {
        a.dout = rig_data(&r->dout);
        a.dparams = r->grad_ptr;
    }
    a.din = r->C_in ? rig_data(&r->din) : NULL;
    ck_ok(r->cls->backward(r->hp, &a));
}

/* What backward differentiates: the loss, or Σ dout·out. */
static inline double rig_objective(struct rig *r)
{
    rig_forward(r, LAYER_TRAIN);
    if (r->cls->flags & LAYER_LOSS) return (double)r->loss;
    double sum = 0;
    for (size_t i = 0; i < rig_numel_out(r); i++)
        sum += (double)rig_get(rig_data(&r->out), i, r->dtype) *
               (double)rig_get(rig_data(&r->dout), i, r->dtype);
    return sum;
}

/* The derivative along a random direction, by central difference and by `gradient` (fp32 layers).
 * The tensor is nudged in place and put back. */
static inline void rig_check_direction(struct rig *r, const char *what, float *x,
                                       const float *gradient, size_t numel, double rtol,
                                       bool may_be_zero)
{
    const struct rng_key key = {.seed = 31, .site = 1};
    const double step = 5e-4;
    float *kept = malloc(numel * sizeof *kept);
    double by_gradient = 0, scale = 0;
    memcpy(kept, x, numel * sizeof *kept);
    double side[2];
    for (int s = 0; s < 2; s++) {
        for (size_t i = 0; i < numel; i++)
            x[i] = kept[i] + (float)((s ? -step : step) * (double)rng_normal(&key, i));
        side[s] = rig_objective(r);
    }
    memcpy(x, kept, numel * sizeof *kept);
    for (size_t i = 0; i < numel; i++) {
        double part = (double)gradient[i] * (double)rng_normal(&key, i);
        by_gradient += part;
        scale += part * part;
    }
    free(kept);
    const double by_difference = (side[0] - side[1]) / (2 * step);
    const double tolerance = rtol * (fabs(by_gradient) + sqrt(scale)) + 1e-5 / step;
    ck_assert_msg(fabs(by_difference - by_gradient) <= tolerance,
                  "%s: difference quotient %g, gradient %g (tolerance %g)", what, by_difference,
                  by_gradient, tolerance);
    ck_assert_msg(isfinite(scale), "%s: the gradient is not finite", what);
    ck_assert_msg(scale > 0 || may_be_zero, "%s: the gradient is zero", what);
}

/* Every gradient of an fp32 layer, parameters and input. */
static inline void rig_check_gradients(struct rig *r, double rtol)
{
    rig_forward(r, LAYER_TRAIN);
    rig_backward(r);
    float *din = malloc(r->din.nbytes + 1), *grads[RIG_PARAMS_MAX];
    memcpy(din, rig_data(&r->din), r->din.nbytes);
    for (size_t p = 0; p < r->list.n; p++) { /* a loss layer's forward writes them again */
        grads[p] = malloc(r->grads[p].nbytes);
        memcpy(grads[p], rig_data(&r->grads[p]), r->grads[p].nbytes);
    }
    for (size_t p = 0; p < r->list.n; p++)
        rig_check_direction(r, r->table.params[r->list.idx[p]].name, rig_data(&r->params[p]),
                            grads[p], r->grads[p].nbytes / sizeof(float), rtol, r->zero_grad[p]);
    if (r->C_in) rig_check_direction(r, "in", rig_data(&r->in), din, rig_numel_in(r), rtol, false);
    for (size_t p = 0; p < r->list.n; p++) free(grads[p]);
    free(din);
}

/* How a file of tests opens its layer of kind `kind` for training. */
typedef void (*rig_opener)(struct rig *r, int kind, enum cz_dtype dtype, float dropout_p);

/* Asked to accumulate, a second backward doubles every gradient. */
static inline void rig_check_accumulates(rig_opener open, int kind)
{
    struct rig r;
    open(&r, kind, DTYPE_F32, 0.0f);
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r); /* overwrites the NaN that the gradients start from */
    float *once[RIG_PARAMS_MAX];
    for (size_t p = 0; p < r.list.n; p++) {
        once[p] = malloc(r.grads[p].nbytes);
        memcpy(once[p], rig_data(&r.grads[p]), r.grads[p].nbytes);
        r.grad_ptr[p].accumulate = true;
    }
    rig_forward(&r, LAYER_TRAIN);
    rig_backward(&r);
    for (size_t p = 0; p < r.list.n; p++) {
        const float *twice = rig_data(&r.grads[p]);
        for (size_t i = 0; i < r.grads[p].nbytes / sizeof(float); i++)
            ck_assert_float_eq_tol(twice[i], 2 * once[p][i], 1e-5f + 1e-5f * fabsf(twice[i]));
        free(once[p]);
    }
    rig_close(&r);
}

/* Frozen parameters get no gradient, and the others and din the same bytes: one each, then all. */
static inline void rig_check_frozen(rig_opener open, int kind)
{
    struct rig whole;
    open(&whole, kind, DTYPE_F32, 0.2f);
    rig_forward(&whole, LAYER_TRAIN);
    rig_backward(&whole);
    for (size_t frozen = 0; frozen <= whole.list.n; frozen++) {
        struct rig r;
        open(&r, kind, DTYPE_F32, 0.2f);
        for (size_t p = 0; p < r.list.n; p++)
            if (p == frozen || frozen == r.list.n) r.grad_ptr[p].dp = NULL;
        rig_forward(&r, LAYER_TRAIN);
        rig_backward(&r);
        for (size_t p = 0; p < r.list.n; p++)
            if (r.grad_ptr[p].dp)
                ck_assert_mem_eq(rig_data(&r.grads[p]), rig_data(&whole.grads[p]),
                                 r.grads[p].nbytes);
            else
                for (size_t i = 0; i < r.grads[p].nbytes; i++)
                    ck_assert_int_eq(((unsigned char *)rig_data(&r.grads[p]))[i], 0x7f);
        ck_assert_mem_eq(rig_data(&r.din), rig_data(&whole.din), r.din.nbytes);
        rig_close(&r);
    }
    rig_close(&whole);
}

/* A RECOMPUTE forward after everything kept was lost: the same output, if it is wanted, and the
 * same gradients, in every dtype and with dropout. */
static inline void rig_check_recomputes(rig_opener open, int kind)
{
    const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int d = 0; d < 3; d++)
        for (int with_out = 0; with_out < 2; with_out++) {
            struct rig r;
            open(&r, kind, dtypes[d], 0.25f);
            rig_forward(&r, LAYER_TRAIN);
            unsigned char *out = malloc(r.out.nbytes), *din = malloc(r.din.nbytes + 1);
            unsigned char *grad = malloc(r.grads[0].nbytes);
            memcpy(out, rig_data(&r.out), r.out.nbytes);
            rig_backward(&r);
            memcpy(din, rig_data(&r.din), r.din.nbytes);
            memcpy(grad, rig_data(&r.grads[0]), r.grads[0].nbytes);

            memset(rig_data(&r.saved), 0x7f, r.saved.nbytes);
            memset(rig_data(&r.workspace), 0x7f, r.workspace.nbytes);
            struct layer_args a = rig_args(&r, LAYER_RECOMPUTE);
            if (!with_out) a.out = NULL;
            ck_ok(r.cls->forward(r.hp, &a));
            ck_assert_mem_eq(rig_data(&r.out), out, r.out.nbytes);
            rig_backward(&r);
            ck_assert_mem_eq(rig_data(&r.din), din, r.din.nbytes);
            ck_assert_mem_eq(rig_data(&r.grads[0]), grad, r.grads[0].nbytes);
            free(out);
            free(din);
            free(grad);
            rig_close(&r);
        }
}

/* Largest |a − b| over the largest |b|. */
static inline double rig_error(const void *a, enum cz_dtype dtype_a, const void *b,
                               enum cz_dtype dtype_b, size_t numel)
{
    double worst = 0, largest = 1e-6;
    for (size_t i = 0; i < numel; i++) {
        double x = (double)rig_get(a, i, dtype_a), y = (double)rig_get(b, i, dtype_b);
        if (!(fabs(x - y) <= worst)) worst = fabs(x - y);
        if (fabs(y) > largest) largest = fabs(y);
    }
    return worst / largest;
}

/* A layer of 16 bits stays within `tolerance` of the same in fp32: output, loss, every gradient. */
static inline void rig_check_near_fp32(rig_opener open, int kind, enum cz_dtype dtype,
                                       double tolerance)
{
    struct rig r, want;
    open(&r, kind, dtype, 0.0f);
    open(&want, kind, DTYPE_F32, 0.0f);
    rig_forward(&r, LAYER_TRAIN);
    rig_forward(&want, LAYER_TRAIN);
    rig_backward(&r);
    rig_backward(&want);
    ck_assert_double_le(
        rig_error(rig_data(&r.out), dtype, rig_data(&want.out), DTYPE_F32, rig_numel_out(&r)),
        tolerance);
    ck_assert_double_le(
        rig_error(rig_data(&r.din), dtype, rig_data(&want.din), DTYPE_F32, rig_numel_in(&r)),
        tolerance);
    ck_assert_double_le(fabs((double)(r.loss - want.loss)), tolerance * fabs((double)want.loss));
    for (size_t p = 0; p < r.list.n; p++)
        ck_assert_double_le(rig_error(rig_data(&r.grads[p]), DTYPE_F32, rig_data(&want.grads[p]),
                                      DTYPE_F32, r.grads[p].nbytes / sizeof(float)),
                            tolerance);
    rig_close(&r);
    rig_close(&want);
}

#endif

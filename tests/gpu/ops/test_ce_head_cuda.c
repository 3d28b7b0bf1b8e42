/* Claims: the fused head on a CUDA device agrees with the scalar row: loss, dx, dw, dbias,
 * log-probabilities and labels that have the largest logit, for all dtypes, vocabularies that are
 * whole units and that are not, rows in one block and in several, ignored labels, weights, a
 * divisor, a soft cap, gradients that accumulate, logits given away; it writes nothing else; a
 * label outside the vocabulary makes the loss NaN and touches nothing; calls repeat to the bit; a
 * workspace for the largest batch serves every smaller one. */
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "ops/matmul/matmul_impl.h"
#include "tests/support/gpu/cuda_orders.h"

#include "base/batch.h"

/* A problem, and the device's copies of what it has. */
struct head {
    struct ce_head_args args;
    struct agree_buf x, w, bias, labels, weights; /* in */
    struct agree_buf loss, logits, dx, dw, dbias; /* out, hits behind the loss: row 0's … */
    struct agree_buf got_loss, got_logits, got_dx, got_dw, got_dbias; /* … and the device's */
    struct agree_buf log_probs, got_log_probs;
};

enum {
    WITH_BIAS = 1,
    WITH_WEIGHTS = 2,
    WITH_DIVISOR = 4,
    WITH_LOGITS = 8,
    ACCUMULATED = 16,
    WITHOUT_GRADIENTS = 32,
    WITHOUT_DW = 64,
    ALL_IGNORED = 128,
    WITH_CAP = 256,
    SIGNED_WEIGHTS = 512 /* adding up to 0 */
};

/* Absent tensors are empty structs. */
static struct agree_buf filled(bool present, enum cz_dtype dtype, int64_t numel, uint64_t seed,
                               float range)
{
    if (!present) return (struct agree_buf){0};
    struct agree_buf b = agree_buf_make(dtype, (size_t)numel, 0);
    if (dtype != DTYPE_I32) agree_fill(&b, seed, range);
    return b;
}

static void outputs_make(const struct ce_head_args *a, unsigned with, struct agree_buf *loss,
                         struct agree_buf *logits, struct agree_buf *dx, struct agree_buf *dw,
                         struct agree_buf *dbias)
{
    const bool gradients = !(with & WITHOUT_GRADIENTS);
    *loss = filled(true, DTYPE_F32, gradients ? 1 : 2, 6, 1.0f);
    *logits = filled(with & WITH_LOGITS, DTYPE_F32, a->N * a->V, 7, 1.0f);
    *dx = filled(gradients, a->dtype, a->N * a->C, 8, 1.0f);
    *dw = filled(gradients && !(with & WITHOUT_DW), a->grad_dtype, a->V * a->C, 9, 1.0f);
    *dbias = filled(gradients && with & WITH_BIAS, a->grad_dtype, a->V, 10, 1.0f);
}

static struct head head_make(const struct ce_head_args *args, unsigned with)
{
    struct head h = {.args = *args};
    struct ce_head_args *a = &h.args;
    a->dloss = 8.0f * (float)(a->N + 1); /* gradients of about 1 */
    a->divisor = with & WITH_DIVISOR ? 3.5f : 0.0f;
    a->softcap = with & WITH_CAP ? 1.5f : 0.0f;
    a->dw_accumulate = a->dbias_accumulate = with & ACCUMULATED;
    h.x = filled(true, a->dtype, a->N * a->C, 1, 2.0f);
    h.w = filled(true, a->dtype, a->V * a->C, 2, 1.0f);
    h.bias = filled(with & WITH_BIAS, a->dtype, a->V, 3, 1.0f);
    h.weights = filled(with & WITH_WEIGHTS, DTYPE_F32, a->N, 4, 1.0f);
    h.labels = filled(true, DTYPE_I32, a->N, 0, 0);
    for (int64_t n = 0; n < a->N; n++)
        ((int32_t *)h.labels.p)[n] = n % 4 == 2 || with & ALL_IGNORED
                                         ? CZ_IGNORE_LABEL
                                         : (int32_t)((n * 7919 + a->V - 1) % a->V);
    if (with & WITH_WEIGHTS)
        for (int64_t n = 0; n < a->N; n++) agree_set(&h.weights, (size_t)n, 0.5f + (float)(n % 3));
    if (with & SIGNED_WEIGHTS)
        for (int64_t n = 0; n < a->N; n++)
            agree_set(&h.weights, (size_t)n, n % 4 > 1 ? 0 : n % 4 ? -1.0f : 1.0f);
    outputs_make(a, with, &h.loss, &h.logits, &h.dx, &h.dw, &h.dbias);
    h.log_probs = filled(true, DTYPE_F32, a->N, 11, 1.0f);
    h.got_log_probs = filled(true, DTYPE_F32, a->N, 12, 1.0f);
    outputs_make(a, with, &h.got_loss, &h.got_logits, &h.got_dx, &h.got_dw, &h.got_dbias);
    return h;
}

static void head_free(struct head *h)
{
    struct agree_buf *const all[] = {
        &h->x,      &h->w,      &h->bias,      &h->labels,    &h->weights,      &h->loss,
        &h->logits, &h->dx,     &h->dw,        &h->dbias,     &h->got_loss,     &h->got_logits,
        &h->got_dx, &h->got_dw, &h->got_dbias, &h->log_probs, &h->got_log_probs};
    for (size_t i = 0; i < CZ_ARRAY_LEN(all); i++) agree_buf_free(all[i]);
}

static void run_scalar(struct head *h)
{
    static const struct ops_row scalar = {"scalar", 0};
    struct ops ops = agree_wire(cross_entropy_wire, &scalar);
    ck_ok(matmul_wire(&ops, 0));
    ck_ok(elementwise_wire(&ops, 0));
    struct ce_head_args a = h->args;
    a.x = h->x.p, a.w = h->w.p, a.bias = h->bias.p;
    a.labels = h->labels.p, a.loss_weights = h->weights.p;
    a.loss = h->loss.p, a.logits = h->logits.p;
    a.hits = h->loss.numel > 1 ? a.loss + 1 : NULL;
    a.log_probs = h->log_probs.p;
    a.dx = h->dx.p, a.dw = h->dw.p, a.dbias = h->dbias.p;
    ck_ok(ops_ce_head_workspace(&ops, &a, &a.workspace_nbytes));
    struct agree_buf workspace = agree_buf_make(DTYPE_U8, a.workspace_nbytes, 0);
    a.workspace = workspace.p;
    ck_ok(ops_ce_head(&ops, NULL, &a));
    agree_buf_free(&workspace);
    matmul_unwire(&ops);
}

/* One workspace for many calls: making it is what takes long. */
static struct {
    void *p;
    size_t nbytes;
} space;

static void space_raise(const struct cuda_rig *rig, size_t nbytes)
{
    if (nbytes <= space.nbytes) return;
    rig->dev->ops->mem_free(rig->dev, space.p, space.nbytes);
    space.nbytes = nbytes + ((size_t)2 << 20);
    space.p = rig_dirty(rig, space.nbytes);
}

static void with_space(const struct cuda_rig *rig, void (*claim)(const struct cuda_rig *))
{
    claim(rig);
    rig->dev->ops->mem_free(rig->dev, space.p, space.nbytes);
}

static void run_device(const struct cuda_rig *rig, struct head *h)
{
    struct ce_head_args a = h->args;
    const struct agree_buf *const host[] = {
        &h->x,      &h->w,          &h->bias,   &h->labels,    &h->weights,      &h->got_loss,
        &h->got_dx, &h->got_logits, &h->got_dw, &h->got_dbias, &h->got_log_probs};
    struct rig_buf d[CZ_ARRAY_LEN(host)];
    for (size_t i = 0; i < CZ_ARRAY_LEN(host); i++) d[i] = rig_put(rig, host[i]);
    a.x = d[0].p, a.w = d[1].p, a.bias = d[2].p, a.labels = d[3].p, a.loss_weights = d[4].p;
    a.loss = d[5].p, a.dx = d[6].p, a.logits = d[7].p, a.dw = d[8].p, a.dbias = d[9].p;
    a.hits = h->loss.numel > 1 ? a.loss + 1 : NULL;
    a.log_probs = d[10].p;
    ck_ok(ops_ce_head_workspace(rig->ops, &a, &a.workspace_nbytes));
    space_raise(rig, a.workspace_nbytes);
    a.workspace = space.p;
    ck_ok(ops_ce_head(rig->ops, rig->stream, &a));
    for (size_t i = 5; i < CZ_ARRAY_LEN(host); i++) rig_get(rig, &d[i], host[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(host); i++) rig_free(rig, &d[i]);
}

/* How far apart results may be, of the largest value: sums are made in another order; in 16 bits a
 * dz may fall on either side of a rounding edge (2⁻⁸ of it), since its lse differs in the last
 * bits; and while a 16-bit model learns, its logits (up to 8 here) are rounded by up to 2⁻⁶, which
 * is an error of as much in the loss, and relative in each dz. */
enum closeness { CLOSE, NARROW, ROUNDED };

static void check(const struct agree_buf *got, const struct agree_buf *want, enum closeness how,
                  const char *what)
{
    static const struct {
        float rtol, atol;
    } bounds[] = {
        [CLOSE] = {1e-5f, 1e-5f}, [NARROW] = {2e-2f, 4e-3f}, [ROUNDED] = {2e-2f, 0x1p-6f}};
    struct agree_tol tol = {"ce_head", bounds[how].rtol, 0,
                            "sums in another order, rounded logits"};
    float largest = 0;
    if (!got->block) return;
    for (size_t i = 0; i < want->numel; i++) largest = fmaxf(largest, fabsf(agree_get(want, i)));
    tol.atol = bounds[how].atol * largest + 1e-6f;
    agree_check(got, want, &tol, "cuda", what);
}

static void compare(const struct cuda_rig *rig, const struct ce_head_args *args, unsigned with)
{
    struct head h = head_make(args, with);
    char what[160];
    run_scalar(&h);
    run_device(rig, &h);
    snprintf(what, sizeof what, "N %lld, C %lld, V %lld, %s, gradients %s, with %u",
             (long long)args->N, (long long)args->C, (long long)args->V, dtype_name(args->dtype),
             dtype_name(args->grad_dtype), with);
    const bool rounds = args->dtype != DTYPE_F32 && !(with & (WITHOUT_GRADIENTS | WITH_LOGITS));
    const enum closeness how = rounds ? ROUNDED : args->dtype != DTYPE_F32 ? NARROW : CLOSE;
    const enum closeness grads = how == CLOSE && args->grad_dtype != DTYPE_F32 ? NARROW : how;
    check(&h.got_loss, &h.loss, rounds ? ROUNDED : CLOSE, what);
    check(&h.got_log_probs, &h.log_probs, rounds ? ROUNDED : CLOSE, what);
    check(&h.got_logits, &h.logits, CLOSE, what);
    check(&h.got_dx, &h.dx, how, what);
    check(&h.got_dw, &h.dw, grads, what);
    check(&h.got_dbias, &h.dbias, grads, what);
    head_free(&h);
}

static const struct {
    enum cz_dtype dtype, grad_dtype;
} kinds[] = {{DTYPE_F32, DTYPE_F32},
             {DTYPE_BF16, DTYPE_BF16},
             {DTYPE_BF16, DTYPE_F32},
             {DTYPE_F16, DTYPE_F16},
             {DTYPE_F16, DTYPE_F32}};

static struct ce_head_args shape(int64_t N, int64_t C, int64_t V, size_t kind)
{
    return (struct ce_head_args){
        .N = N, .C = C, .V = V, .dtype = kinds[kind].dtype, .grad_dtype = kinds[kind].grad_dtype};
}

static void small(const struct cuda_rig *rig)
{
    static const unsigned withs[] = {0,
                                     WITH_BIAS,
                                     WITH_WEIGHTS | ACCUMULATED | WITH_BIAS,
                                     WITH_DIVISOR | WITHOUT_DW,
                                     WITH_WEIGHTS | SIGNED_WEIGHTS | WITH_DIVISOR,
                                     WITH_LOGITS | WITH_BIAS,
                                     WITHOUT_GRADIENTS | WITH_BIAS,
                                     WITHOUT_GRADIENTS | WITH_LOGITS,
                                     WITH_CAP | WITH_BIAS | ACCUMULATED,
                                     WITH_CAP | WITH_LOGITS | WITH_BIAS,
                                     WITH_CAP | WITHOUT_GRADIENTS,
                                     ALL_IGNORED | WITH_BIAS,
                                     ALL_IGNORED | WITH_DIVISOR | ACCUMULATED};
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 8, 7}, {19, 16, 64}, {6, 3, 101}, {0, 4, 9}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
            const struct ce_head_args a = shape(shapes[s][0], shapes[s][1], shapes[s][2], kind);
            for (size_t i = kind; i < CZ_ARRAY_LEN(withs); i += kind < 3 ? 1 : 3)
                compare(rig, &a, withs[i]);
        }
}

/* Rows that are several groups of accesses: dz in the place of logits that others still read. */
static void long_rows(const struct cuda_rig *rig)
{
    static const int64_t vocabularies[] = {16384, 16385, 50257, 131072 + 8};
    for (size_t i = 0; i < CZ_ARRAY_LEN(vocabularies); i++)
        for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind += 2) {
            const struct ce_head_args a = shape(2, 2, vocabularies[i], kind);
            compare(rig, &a, WITH_BIAS);
            if (i == 2) compare(rig, &a, WITH_LOGITS | WITH_CAP);
        }
}

/* 70001 words: a block is of 256 rows in 16 bits, of 224 in fp32. */
static void several_blocks(const struct cuda_rig *rig)
{
    const struct ce_head_args a = shape(263, 2, 70001, 1);
    compare(rig, &a, WITH_BIAS | ACCUMULATED);
    const struct ce_head_args b = shape(226, 1, 70000, 0);
    compare(rig, &b, 0);
}

static void logits_alone(const struct cuda_rig *rig)
{
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++)
        for (int bias = 0; bias < 2; bias++) {
            const struct ce_head_args args = shape(5, 8, 33, kind);
            struct head h = head_make(&args, WITH_LOGITS | WITHOUT_GRADIENTS |
                                                 (bias ? WITH_BIAS | WITH_CAP : 0));
            agree_buf_free(&h.labels);
            h.labels = (struct agree_buf){0};
            run_scalar(&h);
            run_device(rig, &h);
            check(&h.got_logits, &h.logits, CLOSE, "logits alone");
            agree_same(&h.got_loss, &h.loss, "a loss that was not requested");
            head_free(&h);
        }
}

static void bad_labels(const struct cuda_rig *rig)
{
    static const int32_t labels[] = {-1, 33, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < CZ_ARRAY_LEN(labels); i++) {
        const struct ce_head_args args = shape(4, 8, 33, i % 3);
        struct head h = head_make(&args, WITH_BIAS);
        ((int32_t *)h.labels.p)[1] = labels[i];
        run_device(rig, &h);
        ck_assert(isnan(agree_get(&h.got_loss, 0)));
        agree_guards(&h.got_dx, "dx"), agree_guards(&h.got_dw, "dw");
        agree_guards(&h.got_dbias, "dbias");
        head_free(&h);
    }
}

static void repeat(const struct cuda_rig *rig)
{
    const struct ce_head_args args = shape(37, 24, 203, 1);
    struct head first = head_make(&args, WITH_BIAS | WITH_WEIGHTS);
    run_device(rig, &first);
    for (int i = 0; i < 3; i++) {
        struct head again = head_make(&args, WITH_BIAS | WITH_WEIGHTS);
        run_device(rig, &again);
        agree_same(&again.got_loss, &first.got_loss, "loss");
        agree_same(&again.got_dx, &first.got_dx, "dx");
        agree_same(&again.got_dw, &first.got_dw, "dw");
        agree_same(&again.got_dbias, &first.got_dbias, "dbias");
        head_free(&again);
    }
    head_free(&first);
}

static void special_logits(const struct cuda_rig *rig)
{
    static const float specials[] = {NAN, INFINITY, -INFINITY};
    for (size_t kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(specials); i++) {
            const struct ce_head_args args = shape(2, 8, 40, kind);
            struct head h = head_make(&args, WITH_BIAS);
            agree_set(&h.bias, 5, specials[i]); /* not a label */
            run_device(rig, &h);
            ck_assert_int_eq(isfinite(agree_get(&h.got_loss, 0)), i == 2);
            head_free(&h);
        }
}

/* Classes that cannot be, so many side by side that threads see nothing else: they take no part. */
static void impossible_classes(const struct cuda_rig *rig)
{
    for (size_t kind = 0; kind < CZ_ARRAY_LEN(kinds); kind++) {
        const struct ce_head_args args = shape(3, 8, 72, kind);
        struct head h = head_make(&args, WITH_BIAS);
        for (size_t v = 0; v < 32; v++) agree_set(&h.bias, v, -INFINITY);
        for (size_t n = 0; n < 3; n++) ((int32_t *)h.labels.p)[n] = (int32_t)(40 + n);
        run_scalar(&h);
        run_device(rig, &h);
        ck_assert(isfinite(agree_get(&h.loss, 0)));
        const enum closeness how = args.dtype == DTYPE_F32 ? CLOSE : ROUNDED;
        check(&h.got_loss, &h.loss, how, "loss");
        check(&h.got_dx, &h.dx, how, "dx");
        check(&h.got_dbias, &h.dbias, how, "dbias");
        head_free(&h);
    }
}

static void workspaces(const struct cuda_rig *rig)
{
    struct ce_head_args a = shape(0, 768, 50257, 1);
    size_t last = 0;
    int32_t label;
    float loss;
    a.labels = &label, a.loss = &loss, a.dx = &loss, a.dw = &loss;
    for (int64_t N = 0; N < 70000; N += N < 3000 ? 1 : 997) {
        size_t nbytes;
        a.N = N;
        ck_ok(ops_ce_head_workspace(rig->ops, &a, &nbytes));
        agree_assert(nbytes >= last, "%lld rows need %zu bytes, fewer need %zu", (long long)N,
                     nbytes, last);
        last = nbytes;
    }
    a.N = 4096, a.C = 64; /* the products' 32 MiB, 64 MiB of logits, and little else */
    ck_ok(ops_ce_head_workspace(rig->ops, &a, &last));
    ck_assert_uint_le(last, (size_t)98 << 20);
}

static void refuse(const struct cuda_rig *rig)
{
    char *p = (char *)(uintptr_t)0x1000; /* no memory */
    const struct ce_head_args good = {.N = 2,
                                      .C = 2,
                                      .V = 2,
                                      .x = p,
                                      .w = p,
                                      .labels = (int32_t *)(void *)p,
                                      .loss = (float *)(void *)p,
                                      .workspace = p,
                                      .workspace_nbytes = 16}; /* too small */
    struct ce_head_args bad = good;
    ck_fails(ops_ce_head(rig->ops, rig->stream, &bad), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "workspace"));
    bad = good, bad.V = 0;
    ck_fails(ops_ce_head(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.loss = NULL;
    ck_fails(ops_ce_head(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.labels = NULL;
    ck_fails(ops_ce_head(rig->ops, rig->stream, &bad), CZ_INVALID);
    bad = good, bad.x = NULL;
    ck_fails(ops_ce_head(rig->ops, rig->stream, &bad), CZ_INVALID);
    rig_wait(rig);
}

CUDA_ORDERS(small_heads_agree, with_space(&rig, small))
CUDA_ORDERS(long_rows_agree, with_space(&rig, long_rows))
CUDA_ORDER(several_blocks_of_rows_agree, forward, "forward", with_space(&rig, several_blocks))
CUDA_ORDER(logits_alone_agree, forward, "forward", with_space(&rig, logits_alone))
CUDA_ORDER(bad_labels_touch_nothing, reverse, "reverse", with_space(&rig, bad_labels))
CUDA_ORDER(calls_repeat_to_the_bit, random, "random:3", with_space(&rig, repeat))
CUDA_ORDER(special_logits_never_look_finite, forward, "forward", with_space(&rig, special_logits))
CUDA_ORDER(impossible_classes_take_no_part, forward, "forward",
           with_space(&rig, impossible_classes))
CUDA_ORDER(workspaces_grow_with_the_batch, forward, "forward", workspaces(&rig))
CUDA_ORDER(bad_arguments_are_refused, forward, "forward", refuse(&rig))

TEST_MAIN("cuda ce_head", CUDA_ORDERED(small_heads_agree), CUDA_ORDERED(long_rows_agree),
          several_blocks_of_rows_agree_forward, logits_alone_agree_forward,
          bad_labels_touch_nothing_reverse, calls_repeat_to_the_bit_random,
          special_logits_never_look_finite_forward, impossible_classes_take_no_part_forward,
          workspaces_grow_with_the_batch_forward, bad_arguments_are_refused_forward)

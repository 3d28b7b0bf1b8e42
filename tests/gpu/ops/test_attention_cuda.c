/* Claims: attention on a CUDA device gives what the scalar row gives, forward and backward, in fp32
 * arithmetic and on tensor cores, for any shape, stride, alignment, mask, grouping of heads,
 * dropout and dtype; its gradients are those of its own forward pass (finite differences); results
 * repeat to the bit in whatever order threads run; nothing outside the outputs is written; masked
 * keys may hold NaN; a row that sees no key is 0; CZERO_CUDA_ATTENTION chooses the row; a device
 * with 99 KiB of shared memory per block has tensor cores at all widths up to 128, too, and of the
 * same forward pass its gradients have the bits of one with 227 KiB. CZ_CUDA_ALL=1: all of these
 * widths, with every combination of features. */
#include "ops/attention/attention_impl.h"
#include "tests/support/cuda_sim/sim_trace.h"
#include "tests/support/gpu/cuda_rig.h"

#include <dlfcn.h>

/* The layout of q, k, v. What starts at 16 bytes goes to the tensor cores where the dtype allows.
 */
enum layout {
    PACKED,  /* columns of one matrix */
    ALIGNED, /* rows with 16 bytes between them, batch rows of keys with space after them (a cache)
              */
    ODD      /* rows with a few elements between them, odd starts */
};

struct shape {
    int64_t B, Tq, Tk, H, G, D;
    bool causal, masked;
    enum layout layout;
    float dropout_p;
    int64_t window;
    float softcap;
    int32_t document; /* positions of one; 0: no numbers */
    bool positioned;  /* scores with a table, q_scores and k_scores */
};

/* The parts of position scores. */
enum { TABLE, Q_SCORES, K_SCORES, N_PARTS };

/* The first six share the layouts of q, k, v. */
enum { Q, K, V, DQ, DK, DV, OUT, DOUT, N_TENSORS };

struct problem {
    struct attention_args args;
    struct agree_buf bufs[N_TENSORS], lse, packed, dpacked;
    uint8_t *key_mask;
    int32_t *documents, *query_documents, *buckets;
    struct agree_buf parts[N_PARTS], dparts[N_PARTS];
};

static void make_apart(struct problem *p, enum cz_dtype dtype, bool odd)
{
    struct attention_args *a = &p->args;
    const int64_t pad[4] = {odd ? 3 : 8, odd ? 1 : 16, odd ? 2 : 8, odd ? 5 : 24};
    a->q_stride = a->H * a->D + pad[0], a->k_stride = a->G * a->D + pad[1];
    a->v_stride = a->G * a->D + pad[2], a->out_stride = a->H * a->D + pad[3];
    if (!odd) {
        const int64_t widest = a->k_stride > a->v_stride ? a->k_stride : a->v_stride;
        a->q_batch = (a->Tq + 1) * a->q_stride, a->kv_batch = (a->Tk + 3) * widest;
    }
    const int64_t q_batch = odd ? a->Tq * a->q_stride : a->q_batch;
    const int64_t k_batch = odd ? a->Tk * a->k_stride : a->kv_batch;
    const int64_t v_batch = odd ? a->Tk * a->v_stride : a->kv_batch;
    const int64_t out_batch = a->Tq * a->out_stride;
    const int64_t batch[N_TENSORS] = {q_batch, k_batch, v_batch,   q_batch,
                                      k_batch, v_batch, out_batch, out_batch};
    for (size_t t = 0; t < N_TENSORS; t++)
        p->bufs[t] = agree_buf_make(dtype, (size_t)(a->B * batch[t]), odd ? t + 1 : 0);
}

static void make_packed(struct problem *p, enum cz_dtype dtype)
{
    struct attention_args *a = &p->args;
    const int64_t width = (a->H + 2 * a->G) * a->D;
    const size_t n = (size_t)(a->B * a->Tq * width), n_out = (size_t)(a->B * a->Tq * a->H * a->D);
    p->packed = agree_buf_make(dtype, n, 0), p->dpacked = agree_buf_make(dtype, n, 0);
    a->q_stride = a->k_stride = a->v_stride = width, a->out_stride = a->H * a->D;
    const size_t at[3] = {0, (size_t)(a->H * a->D), (size_t)((a->H + a->G) * a->D)};
    for (size_t t = 0; t < 6; t++) { /* views without guards of their own */
        const struct agree_buf *whole = t < 3 ? &p->packed : &p->dpacked;
        p->bufs[t] = (struct agree_buf){.p = (char *)whole->p + at[t % 3] * dtype_size(dtype),
                                        .dtype = dtype,
                                        .numel = n - at[t % 3]};
    }
    for (size_t t = OUT; t < N_TENSORS; t++) p->bufs[t] = agree_buf_make(dtype, n_out, 0);
}

/* About a quarter of the keys is hidden, and holds what must not be read. */
static void make_mask(struct problem *p)
{
    struct attention_args *a = &p->args;
    p->key_mask = malloc((size_t)(a->B * a->Tk) + 1);
    agree_assert(p->key_mask, "out of memory");
    for (int64_t i = 0; i < a->B * a->Tk; i++) p->key_mask[i] = agree_random(9, (size_t)i) % 4 != 0;
    if (a->B > 1) memset(p->key_mask, 0, (size_t)a->Tk); /* one batch row sees nothing at all */
    for (int64_t i = 0; i < a->B * a->Tk; i++)
        for (int64_t c = 0; c < a->G * a->D && !p->key_mask[i]; c++) {
            const int64_t b = i / a->Tk, t = i % a->Tk;
            const size_t k_at = attention_kv_at(a, a->k_stride, b, t, 0) + (size_t)c;
            const size_t v_at = attention_kv_at(a, a->v_stride, b, t, 0) + (size_t)c;
            agree_set(&p->bufs[K], k_at, c % 2 ? NAN : INFINITY);
            agree_set(&p->bufs[V], v_at, c % 3 ? INFINITY : NAN);
        }
    a->key_mask = p->key_mask;
}

static void make_documents(struct problem *p, int32_t document)
{
    const size_t n = (size_t)(p->args.B * p->args.Tk);
    p->documents = malloc(n * sizeof *p->documents);
    agree_assert(p->documents, "out of memory");
    for (size_t i = 0; i < n; i++) p->documents[i] = ((int32_t)i - 5) / document;
    p->args.documents = p->documents;
    const struct attention_args *a = &p->args;
    if (a->Tq == a->Tk) return;
    p->query_documents = malloc((size_t)(a->B * a->Tq) * sizeof *p->query_documents);
    agree_assert(p->query_documents, "out of memory");
    for (int64_t i = 0; i < a->B * a->Tq; i++) { /* the last of a row sees nothing */
        const int64_t b = i / a->Tq, t = i % a->Tq, is_last = a->Tq > 3 && t + 1 == a->Tq;
        const int32_t *row = p->documents + b * a->Tk;
        p->query_documents[i] = is_last ? row[a->Tk - 1] + 1 : row[t * a->Tk / a->Tq];
    }
    p->args.query_documents = p->query_documents;
}

/* Distances up to 20 have a bucket each, more share theirs; the first bucket is 3. */
static void make_positions(struct problem *p, enum cz_dtype dtype)
{
    struct attention_args *a = &p->args;
    const int64_t n = a->Tq + a->Tk - 1;
    p->buckets = malloc((size_t)n * sizeof *p->buckets);
    agree_assert(p->buckets, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        const int64_t behind = i - a->Tq + 1,
                      far = llabs(behind) > 20 ? 20 + llabs(behind) / 16 : 0;
        p->buckets[i] = (int32_t)(far == 0 ? 23 + behind : behind < 0 ? 43 + far : 243 + far);
    }
    const int64_t R = 400, rows = a->H * a->B;
    const int64_t numel[N_PARTS] = {R * a->H, rows * a->Tq * R, rows * a->Tk * R};
    for (size_t i = 0; i < N_PARTS; i++) {
        p->parts[i] = agree_buf_make(dtype, (size_t)numel[i], i);
        p->dparts[i] = agree_buf_make(DTYPE_F32, (size_t)numel[i], i);
        agree_fill(&p->parts[i], 20 + i, 1.5f);
    }
    a->positions = (struct attention_positions){.n_buckets = R,
                                                .buckets = p->buckets,
                                                .first_bucket = 3,
                                                .scale = 0.6f,
                                                .table = p->parts[TABLE].p,
                                                .q_scores = p->parts[Q_SCORES].p,
                                                .k_scores = p->parts[K_SCORES].p,
                                                .dtable = p->dparts[TABLE].p,
                                                .dq_scores = p->dparts[Q_SCORES].p,
                                                .dk_scores = p->dparts[K_SCORES].p};
}

static void problem_make(struct problem *p, const struct shape *s, enum cz_dtype dtype)
{
    memset(p, 0, sizeof *p);
    struct attention_args *a = &p->args;
    *a = (struct attention_args){.B = s->B,
                                 .Tq = s->Tq,
                                 .Tk = s->Tk,
                                 .H = s->H,
                                 .G = s->G,
                                 .D = s->D,
                                 .dtype = dtype,
                                 .scale = 1.0f / sqrtf((float)s->D),
                                 .softcap = s->softcap,
                                 .causal = s->causal,
                                 .window = s->window,
                                 .dropout_p = s->dropout_p,
                                 .rng = {.seed = 5, .site = 6, .step = 7, .sample = 8}};
    if (s->layout == PACKED)
        make_packed(p, dtype);
    else
        make_apart(p, dtype, s->layout == ODD);
    if (s->layout == PACKED) agree_fill(&p->packed, 1, 2.0f);
    for (size_t t = Q; t <= V && s->layout != PACKED; t++) agree_fill(&p->bufs[t], t + 1, 2.0f);
    agree_fill(&p->bufs[DOUT], 4, 1.0f);
    p->lse = agree_buf_make(DTYPE_F32, (size_t)(a->B * a->H * a->Tq), 1);
    if (s->masked) make_mask(p);
    if (s->document) make_documents(p, s->document);
    if (s->positioned) make_positions(p, dtype);
    a->q = p->bufs[Q].p, a->k = p->bufs[K].p, a->v = p->bufs[V].p;
    a->dq = p->bufs[DQ].p, a->dk = p->bufs[DK].p, a->dv = p->bufs[DV].p;
    a->out = p->bufs[OUT].p, a->dout = p->bufs[DOUT].p, a->lse = p->lse.p;
}

static void problem_free(struct problem *p)
{
    for (size_t t = 0; t < N_TENSORS; t++)
        if (p->bufs[t].block) agree_buf_free(&p->bufs[t]);
    agree_buf_free(&p->lse);
    if (p->packed.block) agree_buf_free(&p->packed), agree_buf_free(&p->dpacked);
    for (size_t i = 0; i < N_PARTS && p->buckets; i++)
        agree_buf_free(&p->parts[i]), agree_buf_free(&p->dparts[i]);
    free(p->key_mask), free(p->documents), free(p->query_documents), free(p->buckets);
}

/* ---- the device --------------------------------------------------------------------------------
 */

/* A problem's tensors on the device, and the arguments that name them. */
struct device_problem {
    struct rig_buf bufs[N_TENSORS], lse, packed, dpacked, parts[N_PARTS], dparts[N_PARTS];
    void *key_mask, *documents, *query_documents, *workspace;
    struct attention_args args;
};

static void *view_of(const struct rig_buf *d, const struct agree_buf *whole,
                     const struct agree_buf *view)
{
    return (char *)d->p + ((char *)view->p - (char *)whole->p);
}

static struct device_problem to_device(const struct cuda_rig *rig, const struct problem *p)
{
    struct device_problem d = {.args = p->args};
    struct attention_args *a = &d.args;
    void *at[N_TENSORS];
    d.packed = rig_put(rig, &p->packed), d.dpacked = rig_put(rig, &p->dpacked);
    d.lse = rig_put(rig, &p->lse);
    for (size_t t = 0; t < N_TENSORS; t++) {
        d.bufs[t] = rig_put(rig, &p->bufs[t]);
        at[t] = d.bufs[t].p;
        if (!p->bufs[t].block)
            at[t] = t < DQ ? view_of(&d.packed, &p->packed, &p->bufs[t])
                           : view_of(&d.dpacked, &p->dpacked, &p->bufs[t]);
    }
    if (p->key_mask) d.key_mask = rig_put_bytes(rig, p->key_mask, (size_t)(a->B * a->Tk));
    const size_t n_keys = (size_t)(a->B * a->Tk);
    if (p->documents) d.documents = rig_put_bytes(rig, p->documents, n_keys * sizeof(int32_t));
    a->documents = d.documents;
    const size_t n_queries = (size_t)(a->B * a->Tq);
    if (p->query_documents)
        d.query_documents = rig_put_bytes(rig, p->query_documents, n_queries * sizeof(int32_t));
    a->query_documents = d.query_documents;
    a->q = at[Q], a->k = at[K], a->v = at[V], a->dq = at[DQ], a->dk = at[DK], a->dv = at[DV];
    a->out = at[OUT], a->dout = at[DOUT], a->lse = d.lse.p, a->key_mask = d.key_mask;
    for (size_t i = 0; i < N_PARTS && p->buckets; i++) {
        d.parts[i] = rig_put(rig, &p->parts[i]);
        d.dparts[i] = rig_put(rig, &p->dparts[i]);
    }
    struct attention_positions *to = &a->positions;
    to->table = d.parts[TABLE].p, to->dtable = d.dparts[TABLE].p;
    to->q_scores = d.parts[Q_SCORES].p, to->dq_scores = d.dparts[Q_SCORES].p;
    to->k_scores = d.parts[K_SCORES].p, to->dk_scores = d.dparts[K_SCORES].p;
    if (!p->args.k) a->k = a->v = a->dk = a->dv = NULL;
    a->workspace_nbytes = ops_attention_workspace(rig->ops, a, true);
    const size_t forward = ops_attention_workspace(rig->ops, a, false);
    if (forward > a->workspace_nbytes) a->workspace_nbytes = forward;
    d.workspace = rig_dirty(rig, a->workspace_nbytes);
    a->workspace = d.workspace;
    return d;
}

/* Results come back over the host's. */
static void from_device(const struct cuda_rig *rig, struct device_problem *d, struct problem *p)
{
    for (size_t t = DQ; t <= OUT; t++) rig_get(rig, &d->bufs[t], &p->bufs[t]);
    rig_get(rig, &d->lse, &p->lse);
    rig_get(rig, &d->dpacked, &p->dpacked);
    for (size_t i = 0; i < N_PARTS && p->buckets; i++) rig_get(rig, &d->dparts[i], &p->dparts[i]);
}

static void device_free(const struct cuda_rig *rig, struct device_problem *d)
{
    for (size_t t = 0; t < N_TENSORS; t++)
        if (d->bufs[t].block) rig_free(rig, &d->bufs[t]);
    rig_free(rig, &d->lse);
    if (d->packed.block) rig_free(rig, &d->packed), rig_free(rig, &d->dpacked);
    if (d->key_mask) rig_free_bytes(rig, d->key_mask, (size_t)(d->args.B * d->args.Tk));
    if (d->documents)
        rig_free_bytes(rig, d->documents, (size_t)(d->args.B * d->args.Tk) * sizeof(int32_t));
    if (d->query_documents)
        rig_free_bytes(rig, d->query_documents, (size_t)(d->args.B * d->args.Tq) * sizeof(int32_t));
    for (size_t i = 0; i < N_PARTS && d->parts[i].p; i++)
        rig_free(rig, &d->parts[i]), rig_free(rig, &d->dparts[i]);
    rig_free_bytes(rig, d->workspace, d->args.workspace_nbytes);
}

static void run_on_device(const struct cuda_rig *rig, struct problem *p)
{
    struct device_problem d = to_device(rig, p);
    ck_ok(ops_attention_forward(rig->ops, rig->stream, &d.args));
    ck_ok(ops_attention_backward(rig->ops, rig->stream, &d.args));
    from_device(rig, &d, p);
    device_free(rig, &d);
}

/* The scalar row's, but for δ, which is a GPU's: Σ dout·out. */
static void backward_q(const struct attention_args *a, int64_t b, int64_t h, int64_t q0, int64_t q1,
                       float *delta, float *scratch)
{
    for (int64_t tq = q0; tq < q1; tq++) {
        const size_t at = attention_out_at(a, b, tq, h);
        float sum = 0;
        for (size_t d = 0; d < (size_t)a->D; d++)
            sum += dtype_get(a->dout, at + d, a->dtype) * dtype_get(a->out, at + d, a->dtype);
        delta[attention_row_at(a, b, h, tq)] = sum;
    }
    attention_scalar_dq(a, b, h, q0, q1, delta, scratch);
}

static void run_scalar(struct problem *p)
{
    struct ops ops = agree_wire(attention_wire, &attention_rows(&(size_t){0})[0]->row);
    struct attention_row row = *ops.attention_row;
    row.backward_q = backward_q;
    ops.attention_row = &row;
    struct attention_args a = p->args;
    a.workspace_nbytes = ops_attention_workspace(&ops, &a, true);
    size_t forward = ops_attention_workspace(&ops, &a, false);
    if (forward > a.workspace_nbytes) a.workspace_nbytes = forward;
    a.workspace = malloc(a.workspace_nbytes);
    agree_assert(a.workspace, "out of memory");
    ck_ok(ops_attention_forward(&ops, NULL, &a));
    ck_ok(ops_attention_backward(&ops, NULL, &a));
    free(a.workspace);
}

/* ---- comparing ---------------------------------------------------------------------------------
 */

/* Of the largest magnitude of a tensor. fp32: sums in another order, 2⁻²⁴ each, and exp magnifies
 * the rounding of scores up to 4·√D. 16-bit: p and ds are rounded before they meet the tensor
 * cores, delta is made from a rounded out; 2⁻⁹ each in bf16, 2⁻¹² in fp16. */
static double tolerance(enum cz_dtype dtype)
{
    return dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_BF16 ? 2e-2 : 2.5e-3;
}

/* And ‖got − want‖ of ‖want‖, where errors of single elements cannot hide: those of roundings are
 * 3.4e-3, 4.1e-4 and 8e-7 at most. */
static double norm_tolerance(enum cz_dtype dtype)
{
    return dtype == DTYPE_F32 ? 3e-6 : dtype == DTYPE_BF16 ? 5e-3 : 7e-4;
}

static void compare(const struct agree_buf *got, const struct agree_buf *want, const char *what,
                    const char *name)
{
    double most = 0, apart = 0, length = 0;
    for (size_t i = 0; i < want->numel; i++) {
        double x = fabs((double)agree_get(want, i));
        if (isfinite(x) && x > most) most = x;
    }
    for (size_t i = 0; i < want->numel; i++) {
        double g = (double)agree_get(got, i), w = (double)agree_get(want, i);
        if (isfinite(w)) length += w * w;
        if (agree_bits(got, i) == agree_bits(want, i)) continue;
        apart += (g - w) * (g - w);
        double bound = tolerance(got->dtype) * most + (double)agree_step(got->dtype, (float)w);
        agree_assert(fabs(g - w) <= bound, "%s: %s[%zu] is %.9g, the scalar row gives %.9g (±%.3g)",
                     name, what, i, g, w, bound);
    }
    apart = sqrt(apart), length = sqrt(length);
    agree_assert(apart <= norm_tolerance(got->dtype) * length,
                 "%s: %s is %.3g away from the scalar row's, by norm", name, what, apart / length);
    if (got->block) agree_guards(got, name);
}

static void compare_problems(const struct problem *got, const struct problem *want,
                             const struct shape *s)
{
    static const char *const names[N_TENSORS] = {"q", "k", "v", "dq", "dk", "dv", "out", "dout"};
    char name[200];
    snprintf(name, sizeof name,
             "%s B %d Tq %d Tk %d H %d G %d D %d%s%s layout %d dropout %g window %d cap %g "
             "documents of %d",
             dtype_name(got->args.dtype), (int)s->B, (int)s->Tq, (int)s->Tk, (int)s->H, (int)s->G,
             (int)s->D, s->causal ? " causal" : "", s->masked ? " masked" : "", (int)s->layout,
             (double)s->dropout_p, (int)s->window, (double)s->softcap, (int)s->document);
    compare(&got->lse, &want->lse, "lse", name);
    compare(&got->bufs[OUT], &want->bufs[OUT], names[OUT], name);
    for (size_t i = 0; i < N_PARTS && want->buckets; i++)
        compare(&got->dparts[i], &want->dparts[i], i == TABLE ? "dtable" : "scores", name);
    if (got->dpacked.block) {
        compare(&got->dpacked, &want->dpacked, "dq, dk, dv", name);
        return;
    }
    for (size_t t = DQ; t <= DV; t++) compare(&got->bufs[t], &want->bufs[t], names[t], name);
}

static void run_case(const struct cuda_rig *rig, const struct shape *s, enum cz_dtype dtype)
{
    struct problem got, want;
    problem_make(&got, s, dtype), problem_make(&want, s, dtype);
    run_on_device(rig, &got);
    run_scalar(&want);
    compare_problems(&got, &want, s);
    problem_free(&got), problem_free(&want);
}

static void run_cases(const char *order, const struct shape *shapes, size_t n,
                      const enum cz_dtype *dtypes, size_t n_dtypes)
{
    setenv("CZERO_CUDA_SIM_ORDER", order, 1);
    struct cuda_rig rig = cuda_rig_open();
    for (size_t s = 0; s < n; s++)
        for (size_t d = 0; d < n_dtypes; d++) run_case(&rig, &shapes[s], dtypes[d]);
    cuda_rig_close(&rig);
}

/* ---- cases -------------------------------------------------------------------------------------
 */

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

START_TEST(fp32_arithmetic_takes_every_case)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 1, false, false, ODD, 0},
        {2, 7, 7, 2, 1, 20, true, true, ODD, 0.3f},
        {1, 65, 130, 2, 2, 3, true, false, ODD, 0},
        {1, 70, 9, 1, 1, 16, true, false, ODD, 0},    /* the first queries see no key */
        {2, 3, 66, 4, 2, 33, false, true, ODD, 0.5f}, /* Tk is no multiple of 4 */
        {1, 5, 5, 1, 1, 130, true, false, PACKED, 0}, /* wider than a block's columns */
        {1, 66, 66, 1, 1, 256, false, false, ALIGNED, 0},
    };
    run_cases("forward", shapes, CZ_ARRAY_LEN(shapes), dtypes, 3);
}
END_TEST

START_TEST(positions_take_fp32_arithmetic)
{
    static const struct shape shapes[] = {
        {2, 7, 7, 2, 2, 20, false, true, ODD, 0.3f, .positioned = true},
        {1, 1, 66, 2, 2, 64, false, true, ALIGNED, 0, .positioned = true},
        {1, 140, 140, 2, 2, 64, false, false, ALIGNED, 0, .positioned = true},
        {1, 70, 66, 1, 1, 132, true, false, ODD, 0, .softcap = 2, .positioned = true},
    };
    run_cases("forward", shapes, CZ_ARRAY_LEN(shapes), dtypes, 2);
}
END_TEST

/* From here to forget_row() the row through wgmma takes what it can; devices that lack it take
 * another. */
static void ask_for_hopper(void)
{
    setenv("CZERO_CUDA_ATTENTION", "hopper", 1);
}

static void forget_row(void)
{
    unsetenv("CZERO_CUDA_ATTENTION");
}

/* Whatever the layout and the row asked for: what a row does not have, another one does. */
START_TEST(windows_caps_and_documents_agree)
{
    static const struct shape shapes[] = {
        {1, 150, 150, 1, 1, 32, true, false, PACKED, 0, .window = 20},
        {1, 150, 150, 1, 1, 16, false, true, ALIGNED, 0, .window = 70},
        {1, 90, 170, 2, 1, 8, true, false, ALIGNED, 0, .window = 65},
        {1, 90, 30, 1, 1, 8, false, false, ALIGNED, 0, .window = 9},
        {1, 1, 300, 2, 1, 64, true, false, ALIGNED, 0, .window = 150},
        {1, 4, 60, 2, 1, 20, false, true, ODD, 0, .window = 7, .softcap = 2},
        {2, 70, 70, 2, 1, 64, true, true, PACKED, 0.2f, .softcap = 3},
        {2, 150, 150, 1, 1, 16, true, false, PACKED, 0, .document = 40},
        {1, 260, 260, 1, 1, 8, false, false, ODD, 0, .document = 90},
        {2, 20, 90, 2, 1, 8, false, false, ODD, 0, .document = 7},
        {1, 75, 140, 2, 2, 64, false, true, ALIGNED, 0.2f, .document = 12},
        {2, 3, 3, 2, 1, 8, false, false, PACKED, 0, .document = 2},
        {2, 140, 140, 2, 1, 64, true, true, PACKED, 0.1f, 30, 2, 50},
        {1, 70, 70, 1, 1, 64, true, false, PACKED, 0, .window = 70}, /* hides nothing */
    };
    ask_for_hopper();
    run_cases("forward", shapes, CZ_ARRAY_LEN(shapes), dtypes, 2);
    forget_row();
}
END_TEST

START_TEST(tensor_cores_agree_alone_with_each_feature)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 64, false, false, PACKED, 0},
        {1, 65, 65, 1, 1, 32, false, false, PACKED, 0},
        {1, 130, 130, 1, 1, 64, true, false, PACKED, 0},
        {2, 7, 64, 2, 2, 64, false, true, ALIGNED, 0},
        {1, 64, 130, 4, 2, 128, false, false, ALIGNED, 0},
        {1, 64, 64, 1, 1, 64, false, false, PACKED, 0.2f},
        {1, 65, 66, 1, 1, 128, false, false, ALIGNED, 0.2f}, /* Tk is no multiple of 4 */
        {1, 130, 65, 1, 1, 80, true, false, ALIGNED, 0},     /* the first queries see no key */
        {1, 20, 140, 2, 1, 40, true, false, ALIGNED, 0},
    };
    run_cases("forward", shapes, CZ_ARRAY_LEN(shapes), dtypes + 1, 2);
}
END_TEST

static void run_hopper_cases(const char *order, const struct shape *shapes, size_t n,
                             const enum cz_dtype *types, size_t n_types)
{
    ask_for_hopper();
    run_cases(order, shapes, n, types, n_types);
    forget_row();
}

/* Tiles are of 64 or 128 keys, blocks of 128 queries; two places for tiles go round in forward,
 * three in backward. */
static const struct shape hopper_shapes[] = {
    {1, 1, 1, 1, 1, 64, false, false, PACKED, 0},
    {1, 70, 130, 1, 1, 64, false, false, ALIGNED, 0},
    {1, 200, 200, 1, 1, 64, true, false, PACKED, 0},
    {1, 20, 300, 2, 1, 64, true, false, ALIGNED, 0},
    {1, 130, 300, 1, 1, 128, false, false, ALIGNED, 0},
    {1, 260, 260, 1, 1, 128, true, false, ALIGNED, 0},
    {1, 130, 65, 1, 1, 128, true, false, ALIGNED, 0}, /* the first queries see no key */
    {2, 7, 64, 2, 2, 64, false, true, ALIGNED, 0},
    {2, 65, 132, 4, 2, 128, true, true, ALIGNED, 0},
    {2, 200, 200, 4, 2, 64, true, true, PACKED, 0},
    {4, 128, 128, 2, 1, 128, false, false, PACKED, 0}, /* no masks: nothing keeps warps together */
    {1, 70, 800, 1, 1, 64, true, false, ALIGNED, 0},
};

START_TEST(wgmma_agrees_with_each_feature)
{
    run_hopper_cases("forward", hopper_shapes, CZ_ARRAY_LEN(hopper_shapes), dtypes + 1, 2);
}
END_TEST

START_TEST(wgmma_agrees_in_reverse_order)
{
    run_hopper_cases("reverse", hopper_shapes + 3, 7, &dtypes[2], 1);
}
END_TEST

START_TEST(wgmma_agrees_in_a_random_order)
{
    run_hopper_cases("random:3", hopper_shapes + 1, 11, &dtypes[1], 1);
}
END_TEST

/* The simulated device's record of what was started. */
static struct {
    void (*reset)(void);
    void (*begin)(void);
    void (*end)(void);
    size_t (*count)(void);
    struct sim_trace_entry (*at)(size_t i);
} trace;

static bool find_trace(void)
{
    void *plugin = dlopen(getenv("CZERO_CUDA_PLUGIN"), RTLD_NOW);
    if (!plugin) return false;
    *(void **)&trace.reset = dlsym(plugin, "sim_reset");
    *(void **)&trace.begin = dlsym(plugin, "sim_trace_begin");
    *(void **)&trace.end = dlsym(plugin, "sim_trace_end");
    *(void **)&trace.count = dlsym(plugin, "sim_trace_count");
    *(void **)&trace.at = dlsym(plugin, "sim_trace_at");
    return trace.reset && trace.begin && trace.end && trace.count && trace.at;
}

/* Names of the kernels that forward and backward start on a device with a fault, or none (""). */
static const char *kernels_of(const struct shape *s, const char *fault)
{
    static char names[256];
    setenv("CZERO_CUDA_SIM_FAULT", fault, 1);
    trace.reset();
    struct cuda_rig rig = cuda_rig_open();
    trace.begin();
    run_case(&rig, s, DTYPE_BF16);
    names[0] = 0;
    for (size_t i = 0, at = 0; i < trace.count(); i++)
        if (trace.at(i).kind == SIM_KERNEL)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s; ", trace.at(i).name);
    trace.end();
    cuda_rig_close(&rig);
    unsetenv("CZERO_CUDA_SIM_FAULT");
    trace.reset();
    return names;
}

START_TEST(the_row_asked_for_runs_where_it_can)
{
    static const struct shape taken = {1, 9, 9, 1, 1, 64, true, false, PACKED, 0};
    static const struct shape dropped = {1, 9, 9, 1, 1, 64, true, false, PACKED, 0.1f};
    static const struct shape narrow = {1, 9, 9, 1, 1, 32, true, false, PACKED, 0};
    static const struct shape windowed = {1, 9, 9, 1, 1, 64, true, false, PACKED, 0, .window = 8};
    static const struct shape open = {1, 9, 9, 1, 1, 64, true, false, PACKED, 0, .window = 9};
    static const struct shape capped = {1, 9, 9, 1, 1, 64, true, false, PACKED, 0, .softcap = 9};
    static const struct shape split = {1, 9, 9, 1, 1, 64, true, false, PACKED, 0, .document = 4};
    static const char *const flash = "attention forward; attention delta; attention backward; ";
    static const char *const simt =
        "attention forward; attention delta; attention dq; attention dk, dv; ";
    static const char *const hopper =
        "attention forward (wgmma); attention delta; attention backward (wgmma); ";
    if (!find_trace()) return; /* a GPU keeps no record */
    ck_assert_str_eq(kernels_of(&taken, ""), flash);
    setenv("CZERO_CUDA_ATTENTION", "hopper", 1);
    ck_assert_str_eq(kernels_of(&taken, ""), hopper);
    ck_assert_str_eq(kernels_of(&dropped, ""), flash);
    ck_assert_str_eq(kernels_of(&narrow, ""), flash);
    ck_assert_str_eq(kernels_of(&open, ""), hopper);
    ck_assert_str_eq(kernels_of(&windowed, ""), simt);
    ck_assert_str_eq(kernels_of(&capped, ""), simt);
    ck_assert_str_eq(kernels_of(&split, ""), simt);
    setenv("CZERO_CUDA_ATTENTION", "hopper-forward", 1);
    ck_assert_str_eq(kernels_of(&taken, ""),
                     "attention forward (wgmma); attention delta; attention backward; ");
    setenv("CZERO_CUDA_ATTENTION", "hopper-backward", 1);
    ck_assert_str_eq(kernels_of(&taken, ""),
                     "attention forward; attention delta; attention backward (wgmma); ");
    setenv("CZERO_CUDA_ATTENTION", "hopper", 1);
    ck_assert_str_eq(kernels_of(&taken, "capability:8.0"), flash);
    ck_assert_str_eq(kernels_of(&taken, "capability:10.0"), flash);
    setenv("CZERO_CUDA_ATTENTION", "flash", 1);
    ck_assert_str_eq(kernels_of(&taken, ""), flash);
    setenv("CZERO_CUDA_ATTENTION", "fastest", 1);
    struct device *dev;
    struct ops *ops;
    ck_ok(device_open("cuda", 0, &dev));
    ck_fails(ops_create(dev, &ops), CZ_INVALID);
    ck_assert_ptr_nonnull(
        strstr(cz_last_error(), "CZERO_CUDA_ATTENTION=fastest: flash, hopper, hop"));
    device_close(dev);
    unsetenv("CZERO_CUDA_ATTENTION");
}
END_TEST

static const struct shape everything[] = {
    {2, 130, 130, 4, 2, 64, true, true, PACKED, 0.1f},
    {2, 65, 132, 2, 1, 128, true, true, ALIGNED, 0.1f},
    {2, 67, 130, 3, 1, 80, true, true, ALIGNED, 0.3f},
    {2, 140, 72, 2, 2, 32, true, true, ALIGNED, 0.1f},
};

/* What comes next runs on a simulated device with so much shared memory for a block; NULL: what its
 * capability has. A GPU keeps its own. No device is open. */
static void give_shared_memory(const char *kib)
{
    if (kib)
        setenv("CZERO_CUDA_SIM_SHARED", kib, 1);
    else
        unsetenv("CZERO_CUDA_SIM_SHARED");
    if (find_trace()) trace.reset();
}

START_TEST(little_shared_memory_takes_tensor_cores_too)
{
    static const char *const flash = "attention forward; attention delta; attention backward; ";
    static const char *const devices[] = {"capability:8.0", "capability:8.6", "capability:8.7",
                                          "capability:8.9", "capability:12.0"};
    if (!find_trace()) return; /* a GPU keeps no record */
    for (int64_t D = 64; D <= 128; D += 32) {
        const struct shape s = {1, 9, 9, 1, 1, D, true, false, PACKED, 0};
        for (size_t i = 0; i < CZ_ARRAY_LEN(devices); i++)
            ck_assert_str_eq(kernels_of(&s, devices[i]), flash);
        give_shared_memory("99"); /* this decides, not the capability */
        ck_assert_str_eq(kernels_of(&s, "capability:9.0"), flash);
        give_shared_memory("64");
        ck_assert_ptr_null(strstr(kernels_of(&s, "capability:9.0"), "attention backward; "));
        give_shared_memory(NULL);
    }
}
END_TEST

/* Tiles of 32 queries or of 64, several of keys, heads that share keys. */
START_TEST(tiles_for_little_shared_memory_agree)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 128, false, false, PACKED, 0},
        {1, 130, 65, 1, 1, 72, true, false, ALIGNED, 0}, /* the first queries see no key */
        {1, 20, 140, 2, 1, 96, true, false, ALIGNED, 0.2f},
        {2, 67, 130, 4, 2, 128, true, true, ALIGNED, 0.1f},
        {1, 70, 270, 2, 2, 128, true, false, ALIGNED, 0},
        {2, 33, 131, 2, 1, 64, true, true, ALIGNED, 0.3f},
    };
    give_shared_memory("99");
    run_cases("reverse", shapes, 2, &dtypes[1], 2);
    run_cases("random:9", shapes + 2, 4, &dtypes[1], 1);
    give_shared_memory(NULL);
}
END_TEST

/* Gradients of the forward pass that `of` has run, on a device with so much shared memory. */
static void run_backward_on(const char *kib, struct problem *p, const struct problem *of)
{
    memcpy(p->bufs[OUT].p, of->bufs[OUT].p, of->bufs[OUT].numel * dtype_size(of->args.dtype));
    memcpy(p->lse.p, of->lse.p, of->lse.numel * sizeof(float));
    give_shared_memory(kib);
    struct cuda_rig rig = cuda_rig_open();
    struct device_problem d = to_device(&rig, p);
    ck_ok(ops_attention_backward(rig.ops, rig.stream, &d.args));
    from_device(&rig, &d, p);
    device_free(&rig, &d);
    cuda_rig_close(&rig);
    give_shared_memory(NULL);
}

static void compare_bits_of_tiles(const struct shape *s, enum cz_dtype dtype)
{
    struct problem large, small;
    problem_make(&large, s, dtype), problem_make(&small, s, dtype);
    struct cuda_rig rig = cuda_rig_open();
    run_on_device(&rig, &large);
    cuda_rig_close(&rig);
    run_backward_on("99", &small, &large);
    for (size_t t = DQ; t <= DV; t++)
        agree_same(&large.bufs[t], &small.bufs[t], "a gradient with little shared memory");
    problem_free(&large), problem_free(&small);
}

START_TEST(gradients_have_the_same_bits_whatever_shared_memory_there_is)
{
    static const struct shape shapes[] = {
        {1, 140, 270, 2, 1, 128, true, true, ALIGNED, 0.1f},
        {2, 161, 131, 1, 1, 96, true, false, ALIGNED, 0},
        {1, 130, 260, 2, 2, 64, false, true, ALIGNED, 0},
        {1, 97, 40, 2, 1, 120, true, false, ALIGNED, 0},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(shapes); i++)
        compare_bits_of_tiles(&shapes[i], dtypes[1 + i % 2]);
}
END_TEST

/* Every width and combination of causal, masked, grouped-query and dropout, lengths that are no
 * multiple of a tile: each with one of the other, or all with all, and the bits of large tiles. */
START_TEST(all_widths_agree_with_little_shared_memory)
{
    const bool all = getenv("CZ_CUDA_ALL") != NULL;
    for (int64_t i = 0; i < 16 * 16; i++) {
        const int64_t width = i / 16, features = i % 16;
        if (!all && features != 7 * width % 16) continue;
        const struct shape s = {.B = 1 + features / 2 % 2, /* a masked one sees nothing */
                                .Tq = 33 + 7 * (features % 5) + 8 * width,
                                .Tk = 129 + 5 * (features % 7),
                                .H = 2,
                                .G = features & 4 ? 1 : 2,
                                .D = 8 + 8 * width,
                                .causal = features & 1,
                                .masked = features & 2,
                                .layout = ALIGNED,
                                .dropout_p = features & 8 ? 0.2f : 0};
        give_shared_memory("99");
        run_cases(features % 2 ? "forward" : "random:6", &s, 1, &dtypes[1 + width / 2 % 2], 1);
        if (all) run_cases("reverse", &s, 1, &dtypes[2 - width / 2 % 2], 1);
        give_shared_memory(NULL);
        for (size_t d = 1; all && d < 3; d++) compare_bits_of_tiles(&s, dtypes[d]);
    }
}
END_TEST

/* Blocks of several tiles of keys add to dq in turns: three tiles and more, heads that share keys,
 * more rows than a bundle holds, tiles of queries that the later keys do not see. */
START_TEST(blocks_take_turns_to_add_up_dq)
{
    static const struct shape shapes[] = {
        {3, 260, 260, 2, 2, 32, true, false, PACKED, 0},
        {1, 100, 400, 4, 2, 64, true, false, ALIGNED, 0},
        {1, 330, 300, 1, 1, 96, true, false, ALIGNED, 0},
        {2, 70, 390, 2, 1, 128, false, true, ALIGNED, 0},
    };
    static const char *const orders[] = {"forward", "reverse", "random:7"};
    setenv("CZERO_CUDA_SIM_MULTIPROCESSORS", "1", 1); /* narrow bundles */
    for (size_t i = 0; i < CZ_ARRAY_LEN(shapes); i++)
        run_cases(orders[i % CZ_ARRAY_LEN(orders)], &shapes[i], 1, &dtypes[1 + i % 2], 1);
    unsetenv("CZERO_CUDA_SIM_MULTIPROCESSORS");
}
END_TEST

/* Keys are split among blocks, whose softmaxes are joined; and without splits. */
START_TEST(few_queries_agree)
{
    static const struct shape shapes[] = {
        {2, 1, 300, 4, 2, 64, true, true, ALIGNED, 0},
        {1, 1, 129, 2, 1, 20, true, false, ODD, 0},
        {1, 4, 100, 2, 2, 128, true, true, ALIGNED, 0},
        {2, 2, 5, 5, 1, 256, false, false, ALIGNED, 0},
        {1, 1, 257, 6, 1, 80, true, false, ALIGNED, 0},
        {1, 3, 2, 1, 1, 1, true, false, ODD, 0}, /* the first query sees no key */
    };
    run_cases("random:8", shapes, CZ_ARRAY_LEN(shapes), dtypes, 3);
}
END_TEST

START_TEST(tensor_cores_agree_with_all_features_together)
{
    run_cases("reverse", everything, CZ_ARRAY_LEN(everything), &dtypes[1], 1);
}
END_TEST

START_TEST(tensor_cores_agree_in_a_random_order)
{
    run_cases("random:3", everything, CZ_ARRAY_LEN(everything), &dtypes[2], 1);
}
END_TEST

START_TEST(fp32_arithmetic_agrees_in_a_random_order)
{
    static const struct shape shapes[] = {
        {2, 67, 70, 2, 1, 20, true, true, ODD, 0.3f},
        {1, 66, 66, 2, 2, 72, true, false, PACKED, 0.1f},
    };
    run_cases("random:4", shapes, CZ_ARRAY_LEN(shapes), dtypes, 3);
}
END_TEST

/* Each run meets another order of threads. */
START_TEST(results_repeat_to_the_bit)
{
    static const struct shape shapes[] = {
        {2, 130, 260, 2, 1, 64, true, true, ALIGNED, 0.1f}, /* mma */
        {2, 130, 130, 2, 1, 64, true, true, ALIGNED, 0},    /* wgmma, where there is one */
        {2, 70, 66, 2, 1, 72, true, true, ODD, 0.1f},
    };
    ask_for_hopper();
    setenv("CZERO_CUDA_SIM_ORDER", "random:5", 1);
    struct cuda_rig rig = cuda_rig_open();
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++) {
        struct problem one, two;
        problem_make(&one, &shapes[s], DTYPE_BF16), problem_make(&two, &shapes[s], DTYPE_BF16);
        run_on_device(&rig, &one), run_on_device(&rig, &two);
        agree_same(&one.lse, &two.lse, "lse");
        for (size_t t = DQ; t <= OUT; t++) agree_same(&one.bufs[t], &two.bufs[t], "a result");
        problem_free(&one), problem_free(&two);
    }
    cuda_rig_close(&rig);
    forget_row();
}
END_TEST

/* Σ out∘dout in double, of a forward pass on the device. */
static double loss(const struct cuda_rig *rig, struct problem *p)
{
    double sum = 0;
    struct device_problem d = to_device(rig, p);
    ck_ok(ops_attention_forward(rig->ops, rig->stream, &d.args));
    rig_get(rig, &d.bufs[OUT], &p->bufs[OUT]);
    device_free(rig, &d);
    for (size_t i = 0; i < p->bufs[OUT].numel; i++)
        sum += (double)agree_get(&p->bufs[OUT], i) * (double)agree_get(&p->bufs[DOUT], i);
    return sum;
}

START_TEST(gradients_are_finite_differences_of_the_forward_pass)
{
    static const struct shape s = {1, 5, 5, 2, 1, 3, true, false, PACKED, 0.2f};
    struct cuda_rig rig = cuda_rig_open();
    struct problem p;
    problem_make(&p, &s, DTYPE_F32);
    run_on_device(&rig, &p);
    for (size_t i = 0; i < p.packed.numel; i++) {
        const float x = agree_get(&p.packed, i), step = 1e-2f;
        agree_set(&p.packed, i, x + step);
        double above = loss(&rig, &p);
        agree_set(&p.packed, i, x - step);
        double below = loss(&rig, &p);
        agree_set(&p.packed, i, x);
        double slope = (above - below) / (2 * (double)step);
        double got = (double)agree_get(&p.dpacked, i);
        /* second-order error of the difference, and its rounding */
        agree_assert(fabs(got - slope) <= 2e-3 + 2e-3 * fabs(slope),
                     "gradient %zu is %.6g, the slope %.6g", i, got, slope);
    }
    problem_free(&p);
    cuda_rig_close(&rig);
}
END_TEST

/* Its p is 1 whatever q and k are: in fp32 their gradients are 0, not a rounding error. */
START_TEST(one_visible_key_gives_no_gradient)
{
    static const struct shape s = {2, 1, 1, 4, 2, 20, true, false, ALIGNED, 0};
    struct cuda_rig rig = cuda_rig_open();
    struct problem p;
    problem_make(&p, &s, DTYPE_F32);
    run_on_device(&rig, &p);
    const struct attention_args *a = &p.args;
    for (int64_t b = 0; b < a->B; b++)
        for (size_t i = 0; i < (size_t)(a->H * a->D); i++) {
            const size_t k_at = attention_kv_at(a, a->k_stride, b, 0, 0);
            ck_assert_float_eq(agree_get(&p.bufs[DQ], attention_q_at(a, b, 0, 0) + i), 0);
            if (i < (size_t)(a->G * a->D)) ck_assert_float_eq(agree_get(&p.bufs[DK], k_at + i), 0);
        }
    problem_free(&p);
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(large_scores_do_not_overflow_and_nan_shows_in_its_row)
{
    static const enum cz_dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_BF16};
    ask_for_hopper(); /* it takes the last of these */
    struct cuda_rig rig = cuda_rig_open();
    for (size_t d = 0; d < CZ_ARRAY_LEN(types); d++) {
        const struct shape s = {1, 70, 70, 1, 1, d == 2 ? 64 : 32, true, false, ALIGNED, 0};
        struct problem p;
        problem_make(&p, &s, types[d]);
        agree_fill(&p.bufs[Q], 1, 2e4f), agree_fill(&p.bufs[K], 2, 2e4f);
        for (int64_t c = 0; c < s.D; c++)
            agree_set(&p.bufs[Q], attention_q_at(&p.args, 0, 40, 0) + (size_t)c, NAN);
        run_on_device(&rig, &p);
        for (int64_t t = 0; t < s.Tq; t++)
            for (int64_t c = 0; c < s.D; c++) {
                const size_t at = attention_out_at(&p.args, 0, t, 0) + (size_t)c;
                agree_assert(isfinite(agree_get(&p.bufs[OUT], at)) == (t != 40), "%s: out[%d][%d]",
                             dtype_name(types[d]), (int)t, (int)c);
            }
        problem_free(&p);
    }
    cuda_rig_close(&rig);
    forget_row();
}
END_TEST

/* No queries: dk and dv are 0. No keys: out and dq are 0, and k, v may be absent. */
START_TEST(nothing_to_see_gives_zeros)
{
    setenv("CZERO_CUDA_SIM_ORDER", "random:2", 1);
    ask_for_hopper(); /* it takes the last two */
    struct cuda_rig rig = cuda_rig_open();
    for (size_t i = 0; i < 6; i++) {
        const int64_t D = i < 4 ? 32 : 64;
        const struct shape s = {2, i % 2 ? 9 : 0, i % 2 ? 0 : 9, 2, 1, D, true, false, ALIGNED, 0};
        struct problem p;
        problem_make(&p, &s, i / 2 == 1 ? DTYPE_F32 : DTYPE_BF16);
        if (i % 2) p.args.k = p.args.v = p.args.dk = p.args.dv = NULL;
        run_on_device(&rig, &p);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t c = 0; c < 9 * D; c++) {
                const struct attention_args *a = &p.args;
                const int64_t t = c / D, e = c % D;
                const size_t k_at = attention_kv_at(a, a->k_stride, b, t, 0) + (size_t)e;
                const size_t q_at = attention_q_at(a, b, t, 1) + (size_t)e;
                const size_t out_at = attention_out_at(a, b, t, 1) + (size_t)e;
                if (i % 2 == 0) ck_assert_float_eq(agree_get(&p.bufs[DK], k_at), 0);
                if (i % 2) ck_assert_float_eq(agree_get(&p.bufs[DQ], q_at), 0);
                if (i % 2) ck_assert_float_eq(agree_get(&p.bufs[OUT], out_at), 0);
            }
        problem_free(&p);
    }
    cuda_rig_close(&rig);
    forget_row();
}
END_TEST

START_TEST(bad_arguments_are_refused_with_a_sentence)
{
    static const struct shape s = {1, 4, 4, 4, 2, 8, true, false, PACKED, 0};
    struct cuda_rig rig = cuda_rig_open();
    struct problem p;
    problem_make(&p, &s, DTYPE_F32);
    struct device_problem d = to_device(&rig, &p);
    struct ops *ops = rig.ops;
    struct attention_args bad = d.args;
    bad.workspace_nbytes = 1;
    ck_fails(ops_attention_backward(ops, rig.stream, &bad), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "workspace"));
    bad = d.args, bad.G = 3;
    ck_fails(ops_attention_forward(ops, rig.stream, &bad), CZ_INVALID);
    bad = d.args, bad.dropout_p = 1;
    ck_fails(ops_attention_forward(ops, rig.stream, &bad), CZ_INVALID);
    bad = d.args, bad.k_stride = 15;
    ck_fails(ops_attention_forward(ops, rig.stream, &bad), CZ_INVALID);
    bad = d.args, bad.lse = NULL;
    ck_fails(ops_attention_backward(ops, rig.stream, &bad), CZ_INVALID);
    bad = d.args, bad.dtype = DTYPE_F64;
    ck_fails(ops_attention_forward(ops, rig.stream, &bad), CZ_INVALID);
    bad = d.args, bad.Tk = (int64_t)1 << 31;
    ck_fails(ops_attention_forward(ops, rig.stream, &bad), CZ_UNSUPPORTED);
    bad = d.args, bad.B = 0;
    ck_ok(ops_attention_forward(ops, rig.stream, &bad));
    ck_ok(ops_attention_backward(ops, rig.stream, &bad));
    device_free(&rig, &d);
    problem_free(&p);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN_SECONDS(300, "cuda attention", fp32_arithmetic_takes_every_case,
                  positions_take_fp32_arithmetic, windows_caps_and_documents_agree,
                  tensor_cores_agree_alone_with_each_feature, blocks_take_turns_to_add_up_dq,
                  few_queries_agree, tensor_cores_agree_with_all_features_together,
                  tensor_cores_agree_in_a_random_order, wgmma_agrees_with_each_feature,
                  wgmma_agrees_in_reverse_order, wgmma_agrees_in_a_random_order,
                  the_row_asked_for_runs_where_it_can, little_shared_memory_takes_tensor_cores_too,
                  tiles_for_little_shared_memory_agree,
                  gradients_have_the_same_bits_whatever_shared_memory_there_is,
                  all_widths_agree_with_little_shared_memory,
                  fp32_arithmetic_agrees_in_a_random_order, results_repeat_to_the_bit,
                  gradients_are_finite_differences_of_the_forward_pass,
                  one_visible_key_gives_no_gradient,
                  large_scores_do_not_overflow_and_nan_shows_in_its_row, nothing_to_see_gives_zeros,
                  bad_arguments_are_refused_with_a_sentence)

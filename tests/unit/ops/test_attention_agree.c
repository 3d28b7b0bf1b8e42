/* Claims: every row of attention matches double precision, forward and backward, for any shape,
 * stride, mask, grouping of heads, dropout and dtype; its gradients are those of its own forward
 * pass (finite differences); results do not depend on threads; nothing outside the outputs is
 * written; padding may hold anything. */
#include "ops/attention/attention_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct attention_row *const *rows = attention_rows(&n_rows);                             \
    for (size_t row = 0; row < n_rows; row++)                                                      \
        if (ops_row_runs(&rows[row]->row, cpu_features()))                                         \
            for (struct ops ops = agree_wire(attention_wire, &rows[row]->row), *once = &ops; once; \
                 once = NULL)

struct shape {
    int64_t B, Tq, Tk, H, G, D;
    bool causal, masked, packed; /* packed: q, k, v are columns of one matrix; else padded rows */
    float dropout_p;
    int64_t window;
    float softcap;
    int64_t n_documents; /* of a row, not all equally long; 0: no numbers */
    unsigned positions;  /* of TABLE, Q_SCORES and K_SCORES */
};

/* Parts of position scores, and where their gradients are in the problem. */
enum { TABLE = 1, Q_SCORES = 2, K_SCORES = 4 };
enum { OF_TABLE, OF_Q, OF_K, N_PARTS };

/* Tensors in the order q k v dq dk dv out dout; the first six share the layouts of q, k, v. */
enum { Q, K, V, DQ, DK, DV, OUT, DOUT, N_TENSORS };

struct problem {
    struct attention_args args;
    struct agree_buf bufs[N_TENSORS], lse, packed, dpacked;
    uint8_t *key_mask;
    int32_t *documents, *query_documents, *buckets;
    struct agree_buf parts[N_PARTS], dparts[N_PARTS]; /* of positions */
    double *want_dparts[N_PARTS], *bound_dparts[N_PARTS];
    double *want_out, *want_lse,
        *want_d[3];     /* in double; d[0] like q, d[1], d[2] dense (B,Tk,G,D) */
    double *bound_d[3]; /* Σ of magnitudes of the terms of each gradient */
    double *bound_out;
};

static size_t q_numel(const struct attention_args *a)
{
    return (size_t)(a->B * a->Tq * a->H * a->D);
}

static size_t kv_numel(const struct attention_args *a)
{
    return (size_t)(a->B * a->Tk * a->G * a->D);
}

static double *doubles(size_t n)
{
    double *p = calloc(n + 1, sizeof *p);
    agree_assert(p, "out of memory");
    return p;
}

static void make_strided(struct problem *p, enum cz_dtype dtype, size_t offset)
{
    struct attention_args *a = &p->args;
    const int64_t rows[N_TENSORS] = {a->B * a->Tq, a->B * a->Tk, a->B * a->Tk, a->B * a->Tq,
                                     a->B * a->Tk, a->B * a->Tk, a->B * a->Tq, a->B * a->Tq};
    a->q_stride = a->H * a->D + 3, a->k_stride = a->G * a->D + 1, a->v_stride = a->G * a->D + 2;
    a->out_stride = a->H * a->D + 5;
    const int64_t strides[N_TENSORS] = {a->q_stride, a->k_stride, a->v_stride,   a->q_stride,
                                        a->k_stride, a->v_stride, a->out_stride, a->out_stride};
    for (size_t t = 0; t < N_TENSORS; t++)
        p->bufs[t] = agree_buf_make(dtype, (size_t)(rows[t] * strides[t]), offset + t);
}

static void make_packed(struct problem *p, enum cz_dtype dtype, size_t offset)
{
    struct attention_args *a = &p->args;
    const int64_t width = (a->H + 2 * a->G) * a->D;
    p->packed = agree_buf_make(dtype, (size_t)(a->B * a->Tq * width), offset);
    p->dpacked = agree_buf_make(dtype, (size_t)(a->B * a->Tq * width), offset);
    a->q_stride = a->k_stride = a->v_stride = width;
    a->out_stride = a->H * a->D;
    const size_t at[3] = {0, (size_t)(a->H * a->D), (size_t)((a->H + a->G) * a->D)};
    for (size_t t = 0; t < 6; t++) { /* views without guards of their own */
        const struct agree_buf *whole = t < 3 ? &p->packed : &p->dpacked;
        p->bufs[t] = (struct agree_buf){.p = (char *)whole->p + at[t % 3] * dtype_size(dtype),
                                        .dtype = dtype,
                                        .numel = whole->numel - at[t % 3]};
    }
    for (size_t t = OUT; t < N_TENSORS; t++) p->bufs[t] = agree_buf_make(dtype, q_numel(a), offset);
}

static void make_mask(struct problem *p)
{
    struct attention_args *a = &p->args;
    size_t n = (size_t)(a->B * a->Tk);
    p->key_mask = malloc(n + 1);
    agree_assert(p->key_mask, "out of memory");
    for (size_t i = 0; i < n; i++) p->key_mask[i] = agree_random(9, i) % 4 != 0;
    if (a->B > 1) memset(p->key_mask, 0, (size_t)a->Tk); /* one batch row sees nothing at all */
    a->key_mask = p->key_mask;
}

/* Numbers with gaps, below 0 too, in documents that begin anywhere. */
static void make_documents(struct problem *p, int64_t n_documents)
{
    struct attention_args *a = &p->args;
    p->documents = malloc((size_t)(a->B * a->Tk + 1) * sizeof *p->documents);
    agree_assert(p->documents, "out of memory");
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0, number = -3 * b; t < a->Tk; t++) {
            number += agree_random(10 + (uint64_t)b, (uint64_t)t) % (uint64_t)a->Tk <
                              (uint64_t)n_documents
                          ? 1 + t % 3
                          : 0;
            p->documents[b * a->Tk + t] = (int32_t)number;
        }
    a->documents = p->documents;
    if (a->Tq == a->Tk) return;
    p->query_documents = malloc((size_t)(a->B * a->Tq + 1) * sizeof *p->query_documents);
    agree_assert(p->query_documents, "out of memory");
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0; t < a->Tq; t++) { /* the last sees nothing */
            const int64_t at = t * a->Tk / a->Tq, is_last = a->Tq > 3 && t + 1 == a->Tq;
            const int32_t *row = p->documents + b * a->Tk;
            p->query_documents[b * a->Tq + t] = is_last ? row[a->Tk - 1] + 1 : row[at];
        }
    a->query_documents = p->query_documents;
}

/* Distances fall into runs of up to four, whose numbers are in no order, from 5 on. */
static int64_t make_buckets(struct problem *p)
{
    const size_t n = (size_t)(p->args.Tq + p->args.Tk - 1);
    int32_t run = 0;
    p->buckets = malloc(n * sizeof *p->buckets);
    agree_assert(p->buckets, "out of memory");
    for (size_t i = 0; i < n; i++) p->buckets[i] = run += i > 0 && agree_random(11, i) % 4 < 2;
    for (size_t i = 0; i < n; i++) p->buckets[i] = 5 + (p->buckets[i] ^ 1);
    return run + 3; /* and one or two without a distance */
}

static void make_positions(struct problem *p, unsigned parts, enum cz_dtype dtype, size_t offset)
{
    struct attention_args *a = &p->args;
    const int64_t R = make_buckets(p), rows = a->H * a->B;
    const int64_t numel[N_PARTS] = {R * a->H, rows * a->Tq * R, rows * a->Tk * R};
    for (size_t i = 0; i < N_PARTS; i++) {
        p->parts[i] = agree_buf_make(dtype, (size_t)numel[i], offset + i);
        p->dparts[i] = agree_buf_make(DTYPE_F32, (size_t)numel[i], offset + i);
        agree_fill(&p->parts[i], 20 + i, 1.5f);
        p->want_dparts[i] = doubles((size_t)numel[i]);
        p->bound_dparts[i] = doubles((size_t)numel[i]);
    }
    a->positions = (struct attention_positions){
        .n_buckets = R, .buckets = p->buckets, .first_bucket = 5, .scale = 0.6f};
    struct attention_positions *to = &a->positions;
    if (parts & TABLE) to->table = p->parts[OF_TABLE].p, to->dtable = p->dparts[OF_TABLE].p;
    if (parts & Q_SCORES) to->q_scores = p->parts[OF_Q].p, to->dq_scores = p->dparts[OF_Q].p;
    if (parts & K_SCORES) to->k_scores = p->parts[OF_K].p, to->dk_scores = p->dparts[OF_K].p;
}

static void problem_make(struct problem *p, const struct shape *s, enum cz_dtype dtype,
                         size_t offset)
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
    if (s->packed)
        make_packed(p, dtype, offset);
    else
        make_strided(p, dtype, offset);
    if (s->packed) agree_fill(&p->packed, 1, 2.0f);
    for (size_t t = Q; t <= V && !s->packed; t++) agree_fill(&p->bufs[t], t + 1, 2.0f);
    agree_fill(&p->bufs[DOUT], 4, 1.0f);
    p->lse = agree_buf_make(DTYPE_F32, (size_t)(a->B * a->H * a->Tq), offset);
    if (s->masked) make_mask(p);
    if (s->n_documents) make_documents(p, s->n_documents);
    if (s->positions) make_positions(p, s->positions, dtype, offset);
    a->q = p->bufs[Q].p, a->k = p->bufs[K].p, a->v = p->bufs[V].p;
    a->dq = p->bufs[DQ].p, a->dk = p->bufs[DK].p, a->dv = p->bufs[DV].p;
    a->out = p->bufs[OUT].p, a->dout = p->bufs[DOUT].p, a->lse = p->lse.p;
    p->want_out = doubles(q_numel(a)), p->bound_out = doubles(q_numel(a));
    p->want_lse = doubles(p->lse.numel);
    for (size_t i = 0; i < 3; i++) {
        size_t n = i == 0 ? q_numel(a) : kv_numel(a);
        p->want_d[i] = doubles(n), p->bound_d[i] = doubles(n);
    }
}

static void problem_free(struct problem *p)
{
    for (size_t t = 0; t < N_TENSORS; t++)
        if (p->bufs[t].block) agree_buf_free(&p->bufs[t]);
    agree_buf_free(&p->lse);
    if (p->packed.block) agree_buf_free(&p->packed), agree_buf_free(&p->dpacked);
    for (size_t i = 0; i < N_PARTS && p->buckets; i++) {
        agree_buf_free(&p->parts[i]), agree_buf_free(&p->dparts[i]);
        free(p->want_dparts[i]), free(p->bound_dparts[i]);
    }
    free(p->buckets);
    free(p->documents), free(p->query_documents), free(p->key_mask), free(p->want_out),
        free(p->bound_out), free(p->want_lse);
    for (size_t i = 0; i < 3; i++) free(p->want_d[i]), free(p->bound_d[i]);
}

/* ---- the truth --------------------------------------------------------------------------------
 */

static double at(const struct problem *p, int t, int64_t b, int64_t row, int64_t h, int64_t d)
{
    const struct attention_args *a = &p->args;
    size_t idx = t == Q || t == DQ ? attention_q_at(a, b, row, h)
                 : t == OUT || t == DOUT
                     ? attention_out_at(a, b, row, h)
                     : attention_kv_at(a, t == K || t == DK ? a->k_stride : a->v_stride, b, row, h);
    return (double)agree_get(&p->bufs[t], idx + (size_t)d);
}

static bool seen(const struct attention_args *a, int64_t b, int64_t tq, int64_t tk)
{
    const int64_t at = tq + a->Tk - a->Tq;
    if (a->key_mask && !a->key_mask[b * a->Tk + tk]) return false;
    if (a->window && llabs(at - tk) >= a->window) return false;
    const int32_t *own = a->query_documents ? a->query_documents + b * a->Tq + tq
                         : a->documents     ? a->documents + b * a->Tk + tq
                                            : NULL;
    if (own && *own != a->documents[b * a->Tk + tk]) return false;
    return !a->causal || tk <= at;
}

static double kept(const struct attention_args *a, int64_t b, int64_t h, int64_t tq, int64_t tk)
{
    if (a->dropout_p == 0) return 1;
    uint64_t idx = (uint64_t)(((b * a->H + h) * a->Tq + tq) * a->Tk + tk);
    return rng_uniform(&a->rng, idx) >= a->dropout_p ? 1 / (1 - (double)a->dropout_p) : 0;
}

/* Element of a part for a query and a key. */
static size_t part_at(const struct problem *p, size_t part, int64_t b, int64_t h, int64_t tq,
                      int64_t tk)
{
    const struct attention_args *a = &p->args;
    const int64_t R = a->positions.n_buckets, r = p->buckets[tk - tq + a->Tq - 1] - 5;
    if (part == OF_TABLE) return (size_t)(r * a->H + h);
    if (part == OF_Q) return (size_t)(((h * a->B + b) * a->Tq + tq) * R + r);
    return (size_t)(((h * a->B + b) * a->Tk + tk) * R + r);
}

static bool has_part(const struct problem *p, size_t part)
{
    const struct attention_positions *x = &p->args.positions;
    return part == OF_TABLE ? !!x->table : part == OF_Q ? !!x->q_scores : !!x->k_scores;
}

static double position_score(const struct problem *p, int64_t b, int64_t h, int64_t tq, int64_t tk)
{
    double sum = 0;
    for (size_t i = 0; i < N_PARTS; i++)
        if (has_part(p, i)) sum += (double)agree_get(&p->parts[i], part_at(p, i, b, h, tq, tk));
    return (double)p->args.positions.scale * sum;
}

static double score(const struct problem *p, int64_t b, int64_t h, int64_t tq, int64_t tk)
{
    const struct attention_args *a = &p->args;
    const double cap = (double)a->softcap;
    double s = 0;
    for (int64_t d = 0; d < a->D; d++)
        s += at(p, Q, b, tq, h, d) * at(p, K, b, tk, h / (a->H / a->G), d);
    s *= (double)a->scale;
    if (a->positions.n_buckets) s += position_score(p, b, h, tq, tk);
    return cap > 0 ? cap * tanh(s / cap) : s;
}

/* p of one query against all keys, and its log-sum-exp. */
static double truth_row(const struct problem *p, int64_t b, int64_t h, int64_t tq, double *prob)
{
    const struct attention_args *a = &p->args;
    double most = -INFINITY, total = 0;
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        prob[tk] = seen(a, b, tq, tk) ? score(p, b, h, tq, tk) : -INFINITY;
        if (prob[tk] > most) most = prob[tk];
    }
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        prob[tk] = isinf(prob[tk]) ? 0 : exp(prob[tk] - most);
        total += prob[tk];
    }
    for (int64_t tk = 0; tk < a->Tk && total > 0; tk++) prob[tk] /= total;
    return total > 0 ? most + log(total) : -INFINITY;
}

static void truth_forward_query(struct problem *p, int64_t b, int64_t h, int64_t tq, double *prob)
{
    const struct attention_args *a = &p->args;
    p->want_lse[(b * a->H + h) * a->Tq + tq] = truth_row(p, b, h, tq, prob);
    for (int64_t d = 0; d < a->D; d++) {
        size_t idx = (size_t)(((b * a->Tq + tq) * a->H + h) * a->D + d);
        for (int64_t tk = 0; tk < a->Tk; tk++) {
            double term = prob[tk] * kept(a, b, h, tq, tk) * at(p, V, b, tk, h / (a->H / a->G), d);
            p->want_out[idx] += term;
            p->bound_out[idx] += fabs(term);
        }
    }
}

/* Gradients of one query. delta, and its size, are sums over the keys: the first look at them. */
static void truth_backward_query(struct problem *p, int64_t b, int64_t h, int64_t tq, double *prob)
{
    const struct attention_args *a = &p->args;
    const int64_t g = h / (a->H / a->G);
    double delta = 0, delta_size = 0;
    truth_row(p, b, h, tq, prob);
    for (int64_t look = 0; look < 2 * a->Tk; look++) {
        const int64_t tk = look % a->Tk;
        if (prob[tk] == 0) continue;
        const double keep = kept(a, b, h, tq, tk);
        double dp = 0, size = 0;
        for (int64_t d = 0; d < a->D; d++) {
            dp += at(p, DOUT, b, tq, h, d) * at(p, V, b, tk, g, d) * keep;
            size += fabs(at(p, DOUT, b, tq, h, d) * at(p, V, b, tk, g, d)) * keep;
        }
        if (look < a->Tk) {
            delta += prob[tk] * dp, delta_size += prob[tk] * size;
            continue;
        }
        const double tanh_of = a->softcap > 0 ? score(p, b, h, tq, tk) / (double)a->softcap : 0;
        double ds = prob[tk] * (dp - delta) * (1 - tanh_of * tanh_of);
        size = prob[tk] * (size + delta_size);
        for (size_t i = 0; i < N_PARTS; i++) {
            if (!has_part(p, i)) continue;
            const size_t idx = part_at(p, i, b, h, tq, tk);
            p->want_dparts[i][idx] += (double)a->positions.scale * ds;
            p->bound_dparts[i][idx] += (double)a->positions.scale * size;
        }
        ds *= (double)a->scale, size *= (double)a->scale;
        for (int64_t d = 0; d < a->D; d++) {
            size_t q_idx = (size_t)(((b * a->Tq + tq) * a->H + h) * a->D + d);
            size_t kv_idx = (size_t)(((b * a->Tk + tk) * a->G + g) * a->D + d);
            double q = at(p, Q, b, tq, h, d), k = at(p, K, b, tk, g, d);
            double dv = prob[tk] * keep * at(p, DOUT, b, tq, h, d);
            p->want_d[0][q_idx] += ds * k, p->bound_d[0][q_idx] += size * fabs(k);
            p->want_d[1][kv_idx] += ds * q, p->bound_d[1][kv_idx] += size * fabs(q);
            p->want_d[2][kv_idx] += dv, p->bound_d[2][kv_idx] += fabs(dv);
        }
    }
}

static void truth(struct problem *p,
                  void (*query)(struct problem *, int64_t, int64_t, int64_t, double *))
{
    double *prob = doubles((size_t)p->args.Tk);
    for (int64_t b = 0; b < p->args.B; b++)
        for (int64_t h = 0; h < p->args.H; h++)
            for (int64_t tq = 0; tq < p->args.Tq; tq++) query(p, b, h, tq, prob);
    free(prob);
}

/* ---- comparing --------------------------------------------------------------------------------
 */

/* exp magnifies the rounding of a score: |s| ≤ 4·√D here, so a few hundred steps of fp32. */
#define RELATIVE (600 * 0x1p-24)

static void compare(double got, double want, double size, enum cz_dtype dtype, const char *row,
                    const char *what, size_t idx)
{
    double bound = RELATIVE * size + (double)agree_step(dtype, (float)want) * 0.501 + 1e-12;
    agree_assert(got == want || fabs(got - want) <= bound,
                 "attention %s: %s[%zu] is %.9g, exactly %.9g, off by more than %.3g", row, what,
                 idx, got, want, bound);
}

static void compare_forward(const struct problem *p, const char *row)
{
    const struct attention_args *a = &p->args;
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0; t < a->Tq; t++)
            for (int64_t h = 0; h < a->H; h++)
                for (int64_t d = 0; d < a->D; d++) {
                    size_t idx = (size_t)(((b * a->Tq + t) * a->H + h) * a->D + d);
                    compare(at(p, OUT, b, t, h, d), p->want_out[idx], p->bound_out[idx], a->dtype,
                            row, "out", idx);
                }
    for (size_t i = 0; i < p->lse.numel; i++)
        compare((double)agree_get(&p->lse, i), p->want_lse[i], 1 + fabs(p->want_lse[i]), DTYPE_F32,
                row, "lse", i);
    agree_guards(&p->lse, row);
    if (p->bufs[OUT].block) agree_guards(&p->bufs[OUT], row);
}

static void compare_backward(const struct problem *p, const char *row)
{
    const struct attention_args *a = &p->args;
    static const char *const names[] = {"dq", "dk", "dv"};
    const int64_t strides[] = {a->q_stride, a->k_stride, a->v_stride};
    for (int i = 0; i < 3; i++) {
        const int64_t T = i == 0 ? a->Tq : a->Tk, heads = i == 0 ? a->H : a->G;
        for (int64_t n = 0; n < a->B * T; n++)
            for (int64_t c = 0; c < heads * a->D; c++) {
                size_t idx = (size_t)(n * heads * a->D + c);
                compare((double)agree_get(&p->bufs[DQ + i], (size_t)(n * strides[i] + c)),
                        p->want_d[i][idx], p->bound_d[i][idx], a->dtype, row, names[i], idx);
            }
        if (p->bufs[DQ + i].block) agree_guards(&p->bufs[DQ + i], row);
    }
    if (p->dpacked.block) agree_guards(&p->dpacked, row);
    static const char *const parts[] = {"dtable", "dq_scores", "dk_scores"};
    for (size_t i = 0; i < N_PARTS; i++) {
        for (size_t n = 0; has_part(p, i) && n < p->dparts[i].numel; n++)
            compare((double)agree_get(&p->dparts[i], n), p->want_dparts[i][n],
                    p->bound_dparts[i][n], DTYPE_F32, row, parts[i], n);
        if (p->buckets) agree_guards(&p->dparts[i], row);
    }
}

/* What is between the rows of strided outputs is still the filling of agree_buf_make(). */
static void check_gaps(const struct problem *p, const char *row)
{
    const struct attention_args *a = &p->args;
    if (p->packed.block) return;
    uint8_t byte[4] = {AGREE_FILLING, AGREE_FILLING, AGREE_FILLING, AGREE_FILLING};
    for (int64_t n = 0; n < a->B * a->Tq; n++)
        for (int64_t c = a->H * a->D; c < a->out_stride; c++) {
            size_t unit = dtype_size(a->dtype), idx = (size_t)(n * a->out_stride + c);
            agree_assert(memcmp((char *)p->bufs[OUT].p + idx * unit, byte, unit) == 0,
                         "attention %s wrote between the rows of out", row);
        }
}

static void with_workspace(struct ops *ops, struct problem *p, bool backward)
{
    struct attention_args *a = &p->args;
    a->workspace_nbytes = ops_attention_workspace(ops, a, backward);
    struct agree_buf workspace = agree_buf_make(DTYPE_U8, a->workspace_nbytes, 1);
    a->workspace = workspace.p;
    if (backward)
        ck_ok(ops_attention_backward(ops, NULL, a));
    else
        ck_ok(ops_attention_forward(ops, NULL, a));
    agree_guards(&workspace, "workspace");
    agree_buf_free(&workspace);
}

static void run_case(struct ops *ops, const struct shape *s, enum cz_dtype dtype, size_t offset)
{
    struct problem p;
    problem_make(&p, s, dtype, offset);
    truth(&p, truth_forward_query);
    with_workspace(ops, &p, false);
    compare_forward(&p, ops_isa(ops));
    check_gaps(&p, ops_isa(ops));
    truth(&p, truth_backward_query);
    with_workspace(ops, &p, true);
    compare_backward(&p, ops_isa(ops));
    problem_free(&p);
}

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

START_TEST(small_shapes_match_double_precision)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 1, false, false, false, 0},
        {2, 5, 5, 2, 2, 3, true, false, true, 0},
        {1, 7, 7, 4, 2, 16, true, true, false, 0},
        {2, 3, 9, 2, 1, 17, false, true, false, 0},
        {1, 1, 70, 3, 3, 8, true, false, false, 0},
        {1, 9, 4, 1, 1, 5, true, false, false, 0},
        {2, 17, 17, 2, 1, 33, true, true, true, 0},
        {1, 6, 6, 6, 3, 64, false, false, true, 0},
        {1, 13, 13, 2, 2, 31, true, false, true, 0.3f},
        {2, 4, 11, 2, 1, 7, false, true, false, 0.5f},
    };
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
            run_case(&ops, &shapes[s], dtypes[d], s % 3);
}
END_TEST

/* Several blocks of queries and keys, with last blocks of one, and widths around the vectors'. */
START_TEST(blocked_shapes_match_double_precision)
{
    static const struct shape shapes[] = {
        {1, 129, 129, 1, 1, 16, true, false, true, 0},
        {1, 65, 130, 2, 1, 20, true, true, false, 0},
        {1, 259, 64, 1, 1, 9, true, false, false, 0},
        {2, 66, 63, 1, 1, 80, false, true, false, 0},
        {1, 261, 261, 1, 1, 12, true, false, true, 0.1f},
        {1, 3, 200, 2, 2, 128, true, false, false, 0},
    };
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        run_case(&ops, &shapes[s], dtypes[s % 3], 0), run_case(&ops, &shapes[s], DTYPE_F32, 1);
}
END_TEST

START_TEST(every_width_works)
{
    FOR_EACH_ROW(ops)
    for (int64_t D = 1; D <= 130; D += D < 70 ? 1 : 7)
        run_case(&ops, &(struct shape){1, 6, 6, 1, 1, D, true, false, true, 0}, DTYPE_F32, 0);
}
END_TEST

/* Every limit of a range at every place of a block, and several documents in one. */
START_TEST(windows_caps_and_documents_match_double_precision)
{
    static const struct shape shapes[] = {
        {1, 40, 40, 1, 1, 4, true, false, true, 0, .window = 1},
        {1, 150, 150, 1, 1, 4, true, false, true, 0, .window = 7},
        {1, 150, 150, 2, 1, 4, false, true, true, 0, .window = 33},
        {1, 300, 300, 1, 1, 4, true, false, true, 0, .window = 64},
        {1, 1, 200, 4, 2, 20, true, false, false, 0, .window = 70},
        {1, 5, 200, 2, 1, 12, false, true, false, 0, .window = 66},
        {1, 90, 30, 1, 1, 4, true, false, false, 0, .window = 9},
        {1, 90, 30, 1, 1, 4, false, false, false, 0, .window = 9},
        {2, 60, 60, 2, 1, 9, true, true, true, 0.2f, .softcap = 1.5f},
        {1, 60, 60, 2, 2, 16, false, false, true, 0, .softcap = 30},
        {2, 150, 150, 2, 1, 8, true, false, true, 0, .n_documents = 10},
        {2, 150, 150, 1, 1, 8, false, true, false, 0.1f, .n_documents = 40},
        {1, 280, 280, 1, 1, 4, false, false, true, 0, .n_documents = 4},
        {1, 9, 300, 2, 1, 8, false, false, false, 0, .n_documents = 12},
        {2, 70, 150, 2, 2, 16, false, true, false, 0.2f, .n_documents = 30},
        {1, 300, 20, 1, 1, 4, false, false, false, 0, .n_documents = 5, .softcap = 3},
        {2, 140, 140, 4, 2, 8, true, true, true, 0.3f, 20, 2, 6},
    };
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        run_case(&ops, &shapes[s], dtypes[s % 3], 0), run_case(&ops, &shapes[s], DTYPE_F32, 1);
}
END_TEST

/* Each part alone and all of them, with blocks, masks, windows, caps and drops. */
START_TEST(positions_match_double_precision)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 2, .positions = TABLE},
        {2, 9, 9, 3, 3, 5, .packed = true, .positions = TABLE},
        {2, 11, 11, 2, 2, 16, .masked = true, .packed = true, .positions = Q_SCORES},
        {2, 8, 8, 2, 2, 7, .packed = true, .positions = K_SCORES},
        {2, 1, 70, 2, 2, 8, .masked = true, .positions = Q_SCORES | K_SCORES},
        {1, 140, 140, 2, 2, 4, .packed = true, .positions = TABLE | Q_SCORES | K_SCORES},
        {2, 66, 130, 1, 1, 4, .causal = true, .masked = true, .positions = Q_SCORES | K_SCORES},
        {1, 260, 260, 1, 1, 4, false, true, true, 0.2f, .positions = Q_SCORES | K_SCORES},
        {1, 150, 150, 2, 2, 4, false, false, true, 0, 33, 1.5f, 4, TABLE | K_SCORES},
    };
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        run_case(&ops, &shapes[s], dtypes[s % 3], 0), run_case(&ops, &shapes[s], DTYPE_F32, 1);
}
END_TEST

static struct shape random_shape(uint64_t seed)
{
    uint64_t r[13];
    for (uint64_t i = 0; i < CZ_ARRAY_LEN(r); i++) r[i] = agree_random(100 + seed, i);
    const bool square = r[0] % 2 == 0;
    struct shape s = {.B = 1 + (int64_t)(r[1] % 2),
                      .Tq = 1 + (int64_t)(r[2] % 100),
                      .Tk = 1 + (int64_t)(r[3] % 100),
                      .H = 1 + (int64_t)(r[4] % 2),
                      .G = 1,
                      .D = 1 + (int64_t)(r[5] % 20),
                      .causal = r[6] % 2,
                      .masked = r[7] % 4 == 0,
                      .dropout_p = r[8] % 4 == 0 ? 0.2f : 0,
                      .window = r[9] % 4 ? (int64_t)(1 + r[9] / 4 % 70) : 0,
                      .softcap = r[10] % 2 ? 0.5f + (float)(r[10] / 2 % 8) : 0};
    if (square) s.Tk = s.Tq, s.packed = true, s.n_documents = (int64_t)(r[11] % 12);
    if (!square && !s.causal && r[11] % 2) s.window = 0, s.n_documents = (int64_t)(r[11] % 12);
    if (r[12] % 2 && (square || !s.n_documents)) s.G = s.H, s.positions = (unsigned)(r[12] / 2 % 8);
    return s;
}

START_TEST(random_options_match_double_precision)
{
    FOR_EACH_ROW(ops)
    for (uint64_t i = 0; i < 36; i++) {
        const struct shape s = random_shape(i);
        run_case(&ops, &s, dtypes[i % 3], i % 2);
    }
}
END_TEST

/* Options that hide and change nothing give the bits of none. */
START_TEST(options_without_effect_do_not_show)
{
    static const struct shape shapes[] = {{2, 150, 150, 4, 2, 20, true, false, true, 0.1f},
                                          {2, 70, 70, 2, 1, 16, false, true, true, 0}};
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (int way = 0; way < 2; way++) {
            struct problem none, some;
            problem_make(&none, &shapes[s], DTYPE_F32, 0);
            problem_make(&some, &shapes[s], DTYPE_F32, 0);
            int32_t zeros[2 * 150] = {0};
            if (way == 0) some.args.window = 150;
            if (way == 1) some.args.documents = zeros;
            memset(none.dpacked.p, 0, none.dpacked.nbytes);
            memset(some.dpacked.p, 0, some.dpacked.nbytes);
            with_workspace(&ops, &none, false), with_workspace(&ops, &none, true);
            with_workspace(&ops, &some, false), with_workspace(&ops, &some, true);
            ck_assert_uint_eq(some.args.workspace_nbytes, none.args.workspace_nbytes);
            agree_same(&some.bufs[OUT], &none.bufs[OUT], "out");
            agree_same(&some.lse, &none.lse, "lse");
            agree_same(&some.dpacked, &none.dpacked, "dq, dk, dv");
            problem_free(&none), problem_free(&some);
        }
}
END_TEST

/* A decode step reads a cache whose batch rows have a larger stride than Tk rows. */
START_TEST(batch_strides_reach_into_a_cache)
{
    enum { ROOM = 40, B = 2, H = 2, D = 8, C = H * D };
    float cache[2][B * ROOM * C], q[B * C], out[B * C], want[B * C];
    for (size_t i = 0; i < CZ_ARRAY_LEN(cache[0]); i++)
        cache[0][i] = (float)(agree_random(1, i) % 100) / 50, cache[1][i] = (float)(i % 7);
    for (size_t i = 0; i < CZ_ARRAY_LEN(q); i++) q[i] = (float)(agree_random(2, i) % 100) / 50;
    FOR_EACH_ROW(ops)
    {
        struct attention_args a = {.B = B,
                                   .Tq = 1,
                                   .Tk = 23,
                                   .H = H,
                                   .G = H,
                                   .D = D,
                                   .scale = 0.3f,
                                   .causal = true,
                                   .q = q,
                                   .k = cache[0],
                                   .v = cache[1],
                                   .q_stride = C,
                                   .k_stride = C,
                                   .v_stride = C,
                                   .out = out,
                                   .out_stride = C,
                                   .kv_batch = ROOM * C};
        a.workspace_nbytes = ops_attention_workspace(&ops, &a, false);
        a.workspace = malloc(a.workspace_nbytes);
        ck_ok(ops_attention_forward(&ops, NULL, &a));
        for (int64_t b = 0; b < B; b++) { /* each row alone, densely */
            struct attention_args one = a;
            one.B = 1, one.q = q + b * C, one.out = want + b * C;
            one.k = cache[0] + b * ROOM * C, one.v = cache[1] + b * ROOM * C;
            ck_ok(ops_attention_forward(&ops, NULL, &one));
        }
        ck_assert_mem_eq(out, want, sizeof out);
        free(a.workspace);
    }
}
END_TEST

/* Calls for each row of a batch, told which it is, give the bits of one for all. */
START_TEST(rows_of_a_batch_draw_as_in_the_batch)
{
    static const struct shape s = {2, 20, 20, 2, 2, 16, .dropout_p = 0.3f};
    FOR_EACH_ROW(ops)
    {
        struct problem all, apart;
        problem_make(&all, &s, DTYPE_F32, 0), problem_make(&apart, &s, DTYPE_F32, 0);
        with_workspace(&ops, &all, false);
        struct attention_args *a = &apart.args;
        for (a->B = 1; a->first_b < s.B; a->first_b++) {
            with_workspace(&ops, &apart, false);
            a->q = (const float *)a->q + a->Tq * a->q_stride;
            a->k = (const float *)a->k + a->Tk * a->k_stride;
            a->v = (const float *)a->v + a->Tk * a->v_stride;
            a->out = (float *)a->out + a->Tq * a->out_stride;
            a->lse += a->H * a->Tq;
        }
        agree_same(&apart.bufs[OUT], &all.bufs[OUT], "out");
        problem_free(&all), problem_free(&apart);
    }
}
END_TEST

START_TEST(threads_do_not_show)
{
    static const struct shape shapes[] = {
        {1, 150, 150, 4, 2, 20, true, false, true, 0.1f},
        {3, 70, 70, 2, 1, 16, true, true, true, 0},
        {1, 150, 150, 4, 2, 20, true, true, true, 0, 30, 2, 3},
        {1, 150, 150, 4, 4, 12, false, true, true, 0, .positions = TABLE | Q_SCORES | K_SCORES}};
    int n_threads = omp_get_max_threads();
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++) {
        struct problem one, many;
        problem_make(&one, &shapes[s], DTYPE_F32, 0), problem_make(&many, &shapes[s], DTYPE_F32, 0);
        memset(one.dpacked.p, 0, one.dpacked.nbytes),
            memset(many.dpacked.p, 0, many.dpacked.nbytes);
        omp_set_num_threads(1);
        with_workspace(&ops, &one, false), with_workspace(&ops, &one, true);
        for (int n = 2; n <= 5; n++) { /* five threads: backward in two passes */
            omp_set_num_threads(n);
            with_workspace(&ops, &many, false), with_workspace(&ops, &many, true);
            agree_same(&many.bufs[OUT], &one.bufs[OUT], "out");
            agree_same(&many.lse, &one.lse, "lse");
            agree_same(&many.dpacked, &one.dpacked, "dq, dk, dv");
            for (size_t i = 0; i < N_PARTS && one.buckets; i++)
                agree_same(&many.dparts[i], &one.dparts[i], "gradients of positions");
        }
        omp_set_num_threads(n_threads);
        problem_free(&one), problem_free(&many);
    }
}
END_TEST

static double loss(struct ops *ops, struct problem *p)
{
    double sum = 0;
    with_workspace(ops, p, false);
    for (size_t i = 0; i < p->bufs[OUT].numel; i++)
        sum += (double)agree_get(&p->bufs[OUT], i) * (double)agree_get(&p->bufs[DOUT], i);
    return sum;
}

START_TEST(gradients_are_finite_differences_of_the_forward_pass)
{
    static const struct shape shapes[] = {{1, 6, 6, 2, 1, 4, true, false, true, 0.2f},
                                          {1, 7, 7, 2, 1, 4, false, false, true, 0, 3, 1.5f},
                                          {1, 9, 9, 1, 1, 4, true, false, true, 0, 4, 2, 3}};
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++) {
        struct problem p;
        problem_make(&p, &shapes[s], DTYPE_F32, 0);
        memset(p.dpacked.p, 0, p.dpacked.nbytes);
        with_workspace(&ops, &p, false), with_workspace(&ops, &p, true);
        for (size_t i = 0; i < p.packed.numel; i++) {
            const float x = agree_get(&p.packed, i), step = 1e-2f;
            agree_set(&p.packed, i, x + step);
            double above = loss(&ops, &p);
            agree_set(&p.packed, i, x - step);
            double below = loss(&ops, &p);
            agree_set(&p.packed, i, x);
            double slope = (above - below) / (2 * (double)step);
            double got = (double)agree_get(&p.dpacked, i);
            /* second-order error of the difference, and its rounding */
            agree_assert(fabs(got - slope) <= 2e-3 + 2e-3 * fabs(slope),
                         "attention %s: gradient %zu is %.6g, the slope %.6g", ops.isa, i, got,
                         slope);
        }
        problem_free(&p);
    }
}
END_TEST

START_TEST(masked_keys_may_hold_anything)
{
    static const struct shape s = {1, 20, 20, 2, 2, 16, true, true, true, 0};
    FOR_EACH_ROW(ops)
    {
        struct problem clean, dirty;
        problem_make(&clean, &s, DTYPE_F32, 0), problem_make(&dirty, &s, DTYPE_F32, 0);
        for (int64_t t = 0; t < s.Tk; t++) {
            if (dirty.key_mask[t]) continue;
            for (int64_t c = 0; c < s.H * s.D; c++) {
                agree_set(&dirty.bufs[K], (size_t)(t * dirty.args.k_stride + c), NAN);
                agree_set(&dirty.bufs[V], (size_t)(t * dirty.args.v_stride + c), INFINITY);
            }
        }
        with_workspace(&ops, &clean, false), with_workspace(&ops, &dirty, false);
        agree_same(&dirty.bufs[OUT], &clean.bufs[OUT], "out");
        memset(clean.dpacked.p, 0, clean.dpacked.nbytes);
        memset(dirty.dpacked.p, 0, dirty.dpacked.nbytes);
        with_workspace(&ops, &clean, true), with_workspace(&ops, &dirty, true);
        agree_same(&dirty.dpacked, &clean.dpacked, "gradients");
        problem_free(&clean), problem_free(&dirty);
    }
}
END_TEST

START_TEST(large_scores_do_not_overflow_and_nan_shows)
{
    static const struct shape s = {1, 9, 9, 1, 1, 8, true, false, true, 0};
    FOR_EACH_ROW(ops)
    {
        struct problem p;
        problem_make(&p, &s, DTYPE_F32, 0);
        for (size_t i = 0; i < p.packed.numel; i++)
            agree_set(&p.packed, i, 1e4f * agree_get(&p.packed, i));
        with_workspace(&ops, &p, false);
        for (size_t i = 0; i < p.bufs[OUT].numel; i++)
            agree_assert(isfinite(agree_get(&p.bufs[OUT], i)), "%s: out[%zu]", ops.isa, i);
        agree_set(&p.bufs[Q], 8 * (size_t)p.args.q_stride, NAN); /* the last query */
        with_workspace(&ops, &p, false);
        for (size_t i = 0; i < p.bufs[OUT].numel; i++)
            agree_assert(isfinite(agree_get(&p.bufs[OUT], i)) == (i < 64), "%s: out[%zu]", ops.isa,
                         i);
        problem_free(&p);
    }
}
END_TEST

/* Mean of |dp| over the keys of a query. */
static double mean_dp(const struct problem *p, int64_t b, int64_t h, int64_t tq)
{
    const struct attention_args *a = &p->args;
    double mean = 0;
    for (int64_t tk = 0; tk < a->Tk; tk++) {
        double dp = 0;
        for (int64_t d = 0; d < a->D; d++)
            dp += at(p, DOUT, b, tq, h, d) * at(p, V, b, tk, h / (a->H / a->G), d);
        mean += fabs(dp) / (double)a->Tk;
    }
    return mean;
}

/* A row of ds adds up to 0. With keys that are all alike dq is that sum times the key: what is left
 * is the rounding of dp and of its mean, not that of the products that make dp. */
START_TEST(what_keys_have_in_common_gives_no_gradient)
{
    static const struct shape s = {4, 100, 8, 2, 1, 128, false, false, false, 0};
    FOR_EACH_ROW(ops)
    {
        struct problem p;
        problem_make(&p, &s, DTYPE_F32, 0);
        const struct attention_args *a = &p.args;
        for (size_t i = 0; i < p.bufs[K].numel; i++) agree_set(&p.bufs[K], i, 1.0f);
        with_workspace(&ops, &p, false);
        with_workspace(&ops, &p, true);
        for (int64_t i = 0; i < a->B * a->H * a->Tq; i++) {
            const int64_t b = i / a->H / a->Tq, h = i / a->Tq % a->H, tq = i % a->Tq;
            const double got = at(&p, DQ, b, tq, h, 0);
            const double bound = 3 * 0x1p-24 * (double)a->scale * mean_dp(&p, b, h, tq);
            agree_assert(fabs(got) <= bound, "attention %s: query %lld: dq is %.3g, not 0 ± %.3g",
                         ops.isa, (long long)i, got, bound);
        }
        problem_free(&p);
    }
}
END_TEST

/* Its p is 1 whatever q and k are: their gradients are 0, not a rounding error. */
START_TEST(one_visible_key_gives_no_gradient)
{
    static const struct shape shapes[] = {
        {2, 1, 1, 4, 2, 20, true, false, false, 0},
        {1, 1, 1, 2, 2, 64, true, false, true, 0.3f},
    };
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes) * CZ_ARRAY_LEN(dtypes); s++) {
        struct problem p;
        problem_make(&p, &shapes[s / CZ_ARRAY_LEN(dtypes)], dtypes[s % CZ_ARRAY_LEN(dtypes)], 0);
        with_workspace(&ops, &p, false);
        with_workspace(&ops, &p, true);
        const struct attention_args *a = &p.args;
        for (int64_t b = 0; b < a->B; b++)
            for (int64_t i = 0; i < a->H * a->D; i++) {
                ck_assert_double_eq(at(&p, DQ, b, 0, 0, i), 0);
                if (i < a->G * a->D) ck_assert_double_eq(at(&p, DK, b, 0, 0, i), 0);
            }
        problem_free(&p);
    }
}
END_TEST

START_TEST(a_workspace_for_the_largest_batch_serves_smaller_ones)
{
    FOR_EACH_ROW(ops)
    for (int backward = 0; backward < 2; backward++) {
        struct attention_args a = {.H = 6, .G = 3, .D = 20, .B = 5, .Tq = 300, .Tk = 300};
        size_t most = ops_attention_workspace(&ops, &a, backward);
        for (a.B = 1; a.B <= 5; a.B++)
            for (int64_t T = 1; T <= 300; T += 13) {
                a.Tq = a.Tk = T;
                ck_assert_uint_le(ops_attention_workspace(&ops, &a, backward), most);
            }
    }
}
END_TEST

START_TEST(bad_arguments_are_refused_with_a_sentence)
{
    static const struct shape s = {1, 4, 4, 4, 2, 8, true, false, true, 0};
    FOR_EACH_ROW(ops)
    {
        struct problem p;
        problem_make(&p, &s, DTYPE_F32, 0);
        struct attention_args bad = p.args;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID); /* no workspace */
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "workspace"));
        bad = p.args, bad.G = 3;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.G = 0;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.D = 0;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "cannot serve"));
        bad = p.args, bad.dropout_p = 1;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.k_stride = 15;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.lse = NULL;
        ck_fails(ops_attention_backward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.dtype = DTYPE_F64;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.window = -1;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "window"));
        bad = p.args, bad.softcap = -1;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.softcap = NAN;
        ck_fails(ops_attention_backward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "softcap"));
        bad = p.args, bad.documents = (const int32_t[]){0, 0, 0, 0}, bad.Tq = 3;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "documents"));
        bad.query_documents = (const int32_t[]){0, 0, 0}, bad.causal = true;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "documents of queries"));
        bad.documents = NULL, bad.causal = false;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad.documents = (const int32_t[]){0, 0, 2, 2};
        bad.query_documents = (const int32_t[]){0, 1, 2};
        ck_fails(attention_check_documents(&bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "query_documents[0,1] is 1"));
        with_workspace(&ops, &p, true);
        bad = p.args, bad.documents = (const int32_t[]){0, 2, 2, 1};
        char room[1 << 16];
        bad.workspace = room, bad.workspace_nbytes = sizeof room;
        if (ops_attention_workspace(&ops, &bad, false) <= sizeof room) {
            ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "documents[0,3] is 1 after 2"));
        }
        bad = p.args, bad.B = 0;
        ck_ok(ops_attention_forward(&ops, NULL, &bad));
        ck_ok(ops_attention_backward(&ops, NULL, &bad));
        problem_free(&p);
    }
}
END_TEST

START_TEST(bad_positions_are_refused_with_a_sentence)
{
    static const struct shape s = {1, 4, 4, 2, 2, 8, .positions = Q_SCORES | K_SCORES};
    FOR_EACH_ROW(ops)
    {
        struct problem p;
        problem_make(&p, &s, DTYPE_F32, 0);
        struct attention_args bad = p.args;
        bad.G = 1;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "as many key heads"));
        bad = p.args, bad.positions.n_buckets = 1 << 16;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.positions.buckets = NULL;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "65535"));
        bad = p.args, bad.positions.scale = NAN;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        bad = p.args, bad.positions.dk_scores = NULL;
        ck_fails(ops_attention_backward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "gradients of position scores"));
        bad = p.args, bad.positions.first_bucket = 6;
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "from 6"));
        bad = p.args, bad.positions.buckets = (const int32_t[]){5, 6, 6, 5, 7, 7, 7};
        ck_fails(ops_attention_forward(&ops, NULL, &bad), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "bucket 5 comes again at buckets[3]"));
        problem_free(&p);
    }
}
END_TEST

int main(void)
{
    if (cpu_isa_check() != CZ_OK) {
        printf("skipped: %s\n", cz_last_error());
        return TEST_SKIPPED;
    }
    const TTest *const cases[] = {small_shapes_match_double_precision,
                                  blocked_shapes_match_double_precision,
                                  windows_caps_and_documents_match_double_precision,
                                  positions_match_double_precision,
                                  random_options_match_double_precision,
                                  options_without_effect_do_not_show,
                                  every_width_works,
                                  batch_strides_reach_into_a_cache,
                                  rows_of_a_batch_draw_as_in_the_batch,
                                  threads_do_not_show,
                                  gradients_are_finite_differences_of_the_forward_pass,
                                  masked_keys_may_hold_anything,
                                  large_scores_do_not_overflow_and_nan_shows,
                                  one_visible_key_gives_no_gradient,
                                  what_keys_have_in_common_gives_no_gradient,
                                  a_workspace_for_the_largest_batch_serves_smaller_ones,
                                  bad_arguments_are_refused_with_a_sentence,
                                  bad_positions_are_refused_with_a_sentence};
    return test_run("ops/attention", cases, (int)CZ_ARRAY_LEN(cases));
}

/* Body of the vector rows. Limit: fused multiply-adds.
 *
 * Blocks of q, k, v and dout are copied to the scratch as fp32, k and v transposed where they take
 * part in dot products; scores, probabilities and sums live there too, in the L2 cache. Before
 * including this, a row defines VECS_MAX (columns of a register tile in vectors) and
 * vf_transpose(). Names: nq, nk queries and keys of the block, Dp = D rounded up to vectors. */
#include "ops/attention/attention_impl.h"
#include "ops/philox_vec_impl.h"
#include "ops/vecmath_impl.h"

#include <math.h>
#include <string.h>

#define ROWS 4 /* of a register tile */
#define BK   ATTENTION_BLOCK

VEC_FN size_t round_up_vec(size_t n)
{
    return (n + VF_N - 1) / VF_N * VF_N;
}

static inline size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- products -------------------------------------------------------------------------------- */

/* C (R, V vectors) [+]= A (R, n) · B (n, V vectors): A(r, l) = a[r·rs + l·cs]. */
VEC_FN void tile(const int R, const int V, const float *a, size_t rs, size_t cs, const float *b,
                 size_t ldb, size_t n, float *c, size_t ldc, bool add)
{
    vf sum[ROWS][VECS_MAX];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            sum[r][v] = add ? vf_load(c, (size_t)r * ldc + (size_t)v * VF_N, DTYPE_F32) : vf_zero();
    for (size_t l = 0; l < n; l++) {
        vf row[VECS_MAX];
        for (int v = 0; v < V; v++) row[v] = vf_load(b, l * ldb + (size_t)v * VF_N, DTYPE_F32);
        for (int r = 0; r < R; r++) {
            vf x = vf_set1(a[(size_t)r * rs + l * cs]);
            for (int v = 0; v < V; v++) sum[r][v] = vf_fma(x, row[v], sum[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            vf_store(c, (size_t)r * ldc + (size_t)v * VF_N, DTYPE_F32, sum[r][v]);
}

VEC_FN void tiles(const int R, const float *a, size_t rs, size_t cs, const float *b, size_t ldb,
                  size_t n, float *c, size_t ldc, size_t n_vecs, bool add)
{
    size_t v = 0;
    for (; v + VECS_MAX <= n_vecs; v += VECS_MAX)
        tile(R, VECS_MAX, a, rs, cs, b + v * VF_N, ldb, n, c + v * VF_N, ldc, add);
    b += v * VF_N, c += v * VF_N;
    if (VECS_MAX > 3 && n_vecs - v == 3) tile(R, 3, a, rs, cs, b, ldb, n, c, ldc, add);
    if (VECS_MAX > 2 && n_vecs - v == 2) tile(R, 2, a, rs, cs, b, ldb, n, c, ldc, add);
    if (n_vecs - v == 1) tile(R, 1, a, rs, cs, b, ldb, n, c, ldc, add);
}

/* The same for n_rows ≤ ROWS rows and any number of vectors. */
static void multiply(const float *a, size_t rs, size_t cs, const float *b, size_t ldb, size_t n,
                     float *c, size_t ldc, size_t n_rows, size_t n_vecs, bool add)
{
    if (n_rows == ROWS) {
        tiles(ROWS, a, rs, cs, b, ldb, n, c, ldc, n_vecs, add);
        return;
    }
    for (size_t r = 0; r < n_rows; r++)
        tiles(1, a + r * rs, rs, cs, b, ldb, n, c + r * ldc, ldc, n_vecs, add);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Which keys of a block exist and are not masked out, and what sees them before the mask. */
struct key_block {
    size_t k0, nk;
    const struct attention_span *queries; /* (nk), backward only */
    const uint8_t *mask;                  /* of its first key; NULL: all visible */
    float *shown;                         /* BK: 1 visible, 0 not (masked out, or past nk) */
};

static bool key_shown(const struct key_block *kb, size_t j)
{
    return j < kb->nk && (!kb->mask || kb->mask[j]);
}

static struct key_block key_block_of(const struct attention_args *a, int64_t b, size_t k0,
                                     float *shown)
{
    struct key_block kb = {.k0 = k0, .nk = least(BK, (size_t)a->Tk - k0), .shown = shown};
    if (a->key_mask) kb.mask = a->key_mask + (size_t)(b * a->Tk) + k0;
    for (size_t j = 0; j < BK; j++) shown[j] = key_shown(&kb, j) ? 1.0f : 0.0f;
    return kb;
}

/* y (n_rows, Dp) = rows of x as fp32, 0 behind D; rows of keys that are not shown are 0, so that
 * whatever padding holds stays out of the sums. */
VEC_FN void pack_of(enum cz_dtype dtype, const void *x, size_t at, size_t stride, size_t n_rows,
                    size_t D, const struct key_block *kb, float *y)
{
    const size_t Dp = round_up_vec(D);
    for (size_t i = 0; i < n_rows; i++, at += stride, y += Dp) {
        if (kb && !key_shown(kb, i)) {
            memset(y, 0, Dp * sizeof *y);
            continue;
        }
        size_t d = 0;
        for (; d + VF_N <= D; d += VF_N) vf_store(y, d, DTYPE_F32, vf_load(x, at + d, dtype));
        if (d < D) vf_store(y, d, DTYPE_F32, vf_load_n(x, at + d, dtype, D - d));
    }
}

static void pack(const struct attention_args *a, const void *x, size_t at, int64_t stride,
                 size_t n_rows, const struct key_block *kb, float *y)
{
    DTYPE_CALL(pack_of, a->dtype, x, at, (size_t)stride, n_rows, (size_t)a->D, kb, y);
}

/* y (D, BK) = the transposed rows of x (rows, D), 0 for keys that are not shown. */
VEC_FN void pack_transposed_of(enum cz_dtype dtype, const void *x, size_t at, size_t stride,
                               size_t D, const struct key_block *kb, float *y)
{
    for (size_t j = 0; j < kb->nk; j += VF_N)
        for (size_t d = 0; d < D; d += VF_N) {
            size_t n = least(VF_N, D - d);
            vf m[VF_N];
            for (size_t i = 0; i < VF_N; i++)
                m[i] = key_shown(kb, j + i) ? vf_load_n(x, at + (j + i) * stride + d, dtype, n)
                                            : vf_zero();
            vf_transpose(m);
            for (size_t i = 0; i < n; i++) vf_store(y, (d + i) * BK + j, DTYPE_F32, m[i]);
        }
}

static void pack_transposed(const struct attention_args *a, const void *x, size_t at,
                            int64_t stride, const struct key_block *kb, float *y)
{
    DTYPE_CALL(pack_transposed_of, a->dtype, x, at, (size_t)stride, (size_t)a->D, kb, y);
}

/* y = scale·x, rows of Dp floats to rows of D elements. */
VEC_FN void unpack_of(enum cz_dtype dtype, const float *x, float scale, size_t n_rows, size_t D,
                      void *y, size_t at, size_t stride)
{
    const size_t Dp = round_up_vec(D);
    for (size_t i = 0; i < n_rows; i++, at += stride, x += Dp)
        for (size_t d = 0; d < D; d += VF_N)
            vf_store_n(y, at + d, dtype, vf_load(x, d, DTYPE_F32) * vf_set1(scale),
                       least(VF_N, D - d));
}

static void unpack(const struct attention_args *a, const float *x, float scale, size_t n_rows,
                   void *y, size_t at, int64_t stride)
{
    DTYPE_CALL(unpack_of, a->dtype, x, scale, n_rows, (size_t)a->D, y, at, (size_t)stride);
}

/* ---- dropout --------------------------------------------------------------------------------- */

#define WORDS_MAX (BK + 8 * VF_N)

struct dropper {
    bool on;
    struct philox_vec philox;
    vi threshold;
    vf scale;
    uint32_t words[WORDS_MAX];
};

static void dropper_init(struct dropper *r, const struct attention_args *a)
{
    memset(r->words, 0, sizeof r->words);
    r->on = a->dropout_p > 0;
    r->philox = philox_vec_init(&a->rng);
    r->threshold = philox_keep_threshold(a->dropout_p);
    r->scale = vf_set1(1.0f / (1.0f - a->dropout_p));
}

/* The words of elements [idx, idx + BK): valid until the next call. */
static const uint32_t *dropper_words(struct dropper *r, uint64_t idx)
{
    const size_t skip = (size_t)(idx & 3);
    vi bits[4];
    for (size_t w = 0; w < skip + BK; w += 4 * VF_N) {
        philox_vec(&r->philox, (idx >> 2) + w / 4, bits);
        for (size_t i = 0; i < 4; i++) vi_store(r->words + w + i * VF_N, bits[i]);
    }
    return r->words + skip;
}

/* 1/(1−p) where element j.. is kept, else 0. */
VEC_FN vf keep_factor(const struct dropper *r, const uint32_t *words, size_t j)
{
    return vf_select(vi_at_least(vi_load(words + j), r->threshold), r->scale, vf_zero());
}

/* ---- one block of queries against one block of keys ------------------------------------------ */

/* Columns [begin, end) of a block. */
struct columns {
    size_t begin, end;
};

/* What of positions [first, first + n) is in [begin, end), counted from the first; empty as 0, 0.
 */
static struct columns columns_of(int64_t begin, int64_t end, size_t first, size_t n)
{
    begin -= (int64_t)first, end -= (int64_t)first;
    begin = begin > 0 ? begin : 0;
    end = end < (int64_t)n ? end : (int64_t)n;
    return begin < end ? (struct columns){(size_t)begin, (size_t)end} : (struct columns){0, 0};
}

/* Keys of the block that a query sees, before the key mask. */
static struct columns visible(const struct key_block *kb, const struct attention_span *keys)
{
    return columns_of(keys->begin, keys->end, kb->k0, kb->nk);
}

/* Keys of the block that some of n queries in a row see. */
static struct columns visible_to(const struct key_block *kb, const struct attention_span *keys,
                                 size_t n)
{
    return columns_of(keys[0].begin, keys[n - 1].end, kb->k0, kb->nk);
}

/* The same in whole vectors. */
static struct columns whole_vectors(struct columns c)
{
    return (struct columns){c.begin / VF_N * VF_N, round_up_vec(c.end)};
}

/* Columns `c` of row `s`, query i of the head: q·k becomes scale·q·k + what positions add. Loads
 * from places that the distance picks, two for each score beside D multiplications. */
VEC_FN void add_positions_of(enum cz_dtype dtype, const struct attention_args *a, int64_t b,
                             int64_t h, size_t i, const struct key_block *kb, struct columns c,
                             float *s)
{
    const struct attention_positions *p = &a->positions;
    const int32_t *buckets = p->buckets + kb->k0 + (size_t)a->Tq - 1 - i;
    const size_t R = (size_t)p->n_buckets, H = (size_t)a->H, end = least(c.end, kb->nk);
    const size_t q_at = attention_q_scores_at(a, b, h, (int64_t)i);
    const size_t k_at = attention_k_scores_at(a, b, h, (int64_t)kb->k0);
    for (size_t j = c.begin; j < end; j++) {
        const size_t r = (size_t)(buckets[j] - p->first_bucket);
        float sum = 0;
        if (p->table) sum += dtype_get(p->table, r * H + (size_t)h, dtype);
        if (p->q_scores) sum += dtype_get(p->q_scores, q_at + r, dtype);
        if (p->k_scores) sum += dtype_get(p->k_scores, k_at + j * R + r, dtype);
        s[j] = fmaf(p->scale, sum, s[j] * a->scale);
    }
}

static void add_positions(const struct attention_args *a, int64_t b, int64_t h, size_t i,
                          const struct key_block *kb, struct columns c, float *s)
{
    if (a->positions.n_buckets > 0) DTYPE_CALL(add_positions_of, a->dtype, a, b, h, i, kb, c, s);
}

/* Which gradients of position scores a pass makes. */
enum position_grads { POSITIONS_OF_Q = 1, POSITIONS_OF_K = 2 };

/* ds of columns `c` of row `ds`, query i, to the buckets: one key after the other, because
 * neighbours share buckets. */
static void put_positions(const struct attention_args *a, int64_t b, int64_t h, size_t i,
                          const struct key_block *kb, struct columns c, const float *ds,
                          unsigned wanted)
{
    const struct attention_positions *p = &a->positions;
    if (p->n_buckets == 0) return;
    const int32_t *buckets = p->buckets + kb->k0 + (size_t)a->Tq - 1 - i;
    const size_t R = (size_t)p->n_buckets, end = least(c.end, kb->nk);
    float *of_q = p->dq_scores, *of_k = p->dk_scores;
    if (of_q && (wanted & POSITIONS_OF_Q)) {
        of_q += attention_q_scores_at(a, b, h, (int64_t)i);
        for (size_t j = c.begin; j < end; j++)
            of_q[buckets[j] - p->first_bucket] += p->scale * ds[j];
    }
    if (of_k && (wanted & POSITIONS_OF_K)) {
        of_k += attention_k_scores_at(a, b, h, (int64_t)kb->k0);
        for (size_t j = c.begin; j < end; j++)
            of_k[j * R + (size_t)(buckets[j] - p->first_bucket)] += p->scale * ds[j];
    }
}

/* The sums of n queries, or keys, from `at` on begin with zeros. */
static void zero_scores(const struct attention_args *a, float *gradients, size_t at, size_t n)
{
    if (a->positions.n_buckets > 0 && gradients)
        memset(gradients + at, 0, n * (size_t)a->positions.n_buckets * sizeof(float));
}

/* What becomes of a product q·k: times the scale (with positions it was before), capped, and its
 * derivative. */
struct scores {
    vf scale, cap, uncap; /* uncap: 1/cap */
};

VEC_FN struct scores scores_of(const struct attention_args *a)
{
    const float scale = a->positions.n_buckets > 0 ? 1.0f : a->scale;
    return (struct scores){vf_set1(scale), vf_set1(a->softcap), vf_set1(1.0f / a->softcap)};
}

VEC_FN vf score(const bool capped, const struct scores *c, vf s)
{
    return capped ? c->cap * vf_tanh(s * c->scale * c->uncap) : s * c->scale;
}

/* The derivative of a score with respect to what it was before the cap. */
VEC_FN vf cap_slope(const struct scores *c, vf s)
{
    vf tanh = s * c->uncap;
    return vf_fnma(tanh, tanh, vf_set1(1.0f));
}

/* x where lane j.. is shown and, unless the row sees `all` of them, one of the columns; else −∞. */
VEC_FN vf masked(const bool all, vf x, const float *shown, size_t j, struct columns c)
{
    vf hidden = vf_set1(-INFINITY);
    x = vf_select(vf_lt(vf_zero(), vf_load(shown, j, DTYPE_F32)), x, hidden);
    if (all || (c.begin <= j && j + VF_N <= c.end)) return x;
    x = vf_select(vm_first(j < c.end ? least(c.end - j, VF_N) : 0), x, hidden);
    return vf_select(vm_first(j < c.begin ? least(c.begin - j, VF_N) : 0), hidden, x);
}

/* Calls f(capped, all, …), a copy of the loop for each case. `done` are the columns computed. */
#define ROW_CALL(a, seen, done, f, ...)                                                            \
    ((a)->softcap > 0                                           ? f(true, false, __VA_ARGS__)      \
     : (seen).begin <= (done).begin && (seen).end >= (done).end ? f(false, true, __VA_ARGS__)      \
                                                                : f(false, false, __VA_ARGS__))

/* Dropout's element of query q and the block's first key. */
static uint64_t draw_idx_of(const struct attention_args *a, int64_t b, int64_t h, size_t q,
                            const struct key_block *kb)
{
    return attention_draw_idx(a, b, h, (int64_t)q, (int64_t)kb->k0);
}

/* ---- forward --------------------------------------------------------------------------------- */

struct forward_space {
    float *q, *kt, *v, *s, *o; /* (nq,Dp) (D,BK) (BK,Dp) (nq,BK) (nq,Dp) */
    float *most, *total;       /* (nq) max of s so far; Σ exp(s − most) */
    float *shown;
    const struct attention_span *keys; /* (nq) that each query sees */
};

static size_t forward_layout(const struct attention_args *a, float *p, struct forward_space *w)
{
    const size_t nq = ATTENTION_FORWARD_Q, D = (size_t)a->D, Dp = round_up_vec(D);
    const size_t sizes[] = {nq * Dp, D * BK, BK * Dp, nq * BK, nq * Dp, nq, nq, BK};
    float **pieces[] = {&w->q, &w->kt, &w->v, &w->s, &w->o, &w->most, &w->total, &w->shown};
    size_t total = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); total += sizes[i++])
        if (p) *pieces[i] = p + total;
    return total;
}

/* Bring the sums of row i from its max so far to `most`. */
VEC_FN void rescale_row(const struct forward_space *w, size_t i, size_t Dp, float most)
{
    vf factor = vf_exp(vf_set1(w->most[i]) - vf_set1(most));
    float *o = w->o + i * Dp, first[VF_N];
    for (size_t d = 0; d < Dp; d += VF_N)
        vf_store(o, d, DTYPE_F32, vf_load(o, d, DTYPE_F32) * factor);
    vf_store(first, 0, DTYPE_F32, factor);
    w->total[i] *= first[0];
}

/* Products of row i become scores; returns the largest. */
VEC_FN float score_row(const bool capped, const bool all, const struct attention_args *a,
                       const struct forward_space *w, size_t i, struct columns seen,
                       struct columns done)
{
    float *s = w->s + i * BK;
    vf most = vf_set1(-INFINITY);
    const struct scores scores = scores_of(a);
    for (size_t j = done.begin; j < done.end; j += VF_N) {
        vf x = masked(all, score(capped, &scores, vf_load(s, j, DTYPE_F32)), w->shown, j, seen);
        vf_store(s, j, DTYPE_F32, x);
        most = vf_max(most, x);
    }
    return vf_hmax(most);
}

/* Row i of s becomes exp(s − max), after dropout; the sums so far move to the new max. */
VEC_FN void softmax_row(const struct attention_args *a, const struct forward_space *w, size_t i,
                        struct columns seen, struct columns done, struct dropper *r,
                        uint64_t draw_idx)
{
    float *s = w->s + i * BK;
    float most = ROW_CALL(a, seen, done, score_row, a, w, i, seen, done);
    if (!(most > w->most[i]))
        most = w->most[i];
    else if (w->most[i] != -INFINITY)
        rescale_row(w, i, round_up_vec((size_t)a->D), most);
    w->most[i] = most;

    float base = most == -INFINITY ? 0 : most; /* nothing seen yet: exp(−∞ − 0) = 0 */
    const uint32_t *words = r->on ? dropper_words(r, draw_idx) : NULL;
    vf total = vf_zero();
    for (size_t j = done.begin; j < done.end; j += VF_N) {
        vf p = vf_exp(vf_load(s, j, DTYPE_F32) - vf_set1(base));
        total = total + p;
        if (words) p = p * keep_factor(r, words, j);
        vf_store(s, j, DTYPE_F32, p);
    }
    w->total[i] += vf_hsum(total);
}

/* s = softmax numerators of queries [q0, q0 + nq) against the block of keys. */
static void forward_scores(const struct attention_args *a, const struct forward_space *w,
                           const struct key_block *kb, int64_t b, int64_t h, size_t q0, size_t nq,
                           struct dropper *r)
{
    const size_t D = (size_t)a->D, Dp = round_up_vec(D);
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = whole_vectors(visible_to(kb, w->keys + i0, n_rows));
        if (c.end == 0) continue;
        multiply(w->q + i0 * Dp, Dp, 1, w->kt + c.begin, BK, D, w->s + i0 * BK + c.begin, BK,
                 n_rows, (c.end - c.begin) / VF_N, false);
        for (size_t i = i0; i < i0 + n_rows; i++) {
            add_positions(a, b, h, q0 + i, kb, c, w->s + i * BK);
            softmax_row(a, w, i, visible(kb, &w->keys[i]), c, r, draw_idx_of(a, b, h, q0 + i, kb));
        }
    }
}

static void forward_values(const struct attention_args *a, const struct forward_space *w,
                           const struct key_block *kb, size_t nq)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = visible_to(kb, w->keys + i0, n_rows);
        if (c.end > 0)
            multiply(w->s + i0 * BK + c.begin, BK, 1, w->v + c.begin * Dp, Dp, c.end - c.begin,
                     w->o + i0 * Dp, Dp, n_rows, Dp / VF_N, true);
    }
}

static void forward_finish(const struct attention_args *a, const struct forward_space *w, int64_t b,
                           int64_t h, size_t q0, size_t nq)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    for (size_t i = 0; i < nq; i++) {
        float total = w->total[i];
        vf divisor = vf_set1(total == 0 ? 1 : total);
        for (size_t d = 0; d < Dp; d += VF_N)
            vf_store(w->o, i * Dp + d, DTYPE_F32, vf_load(w->o, i * Dp + d, DTYPE_F32) / divisor);
        if (a->lse)
            a->lse[(size_t)((b * a->H + h) * a->Tq) + q0 + i] =
                total == 0 ? -INFINITY : w->most[i] + logf(total);
    }
    unpack(a, w->o, 1.0f, nq, a->out, attention_out_at(a, b, (int64_t)q0, h), a->out_stride);
}

static void forward(const struct attention_args *a, int64_t b, int64_t h, int64_t first,
                    int64_t last, float *scratch)
{
    const size_t q0 = (size_t)first, nq = (size_t)(last - first);
    const size_t Dp = round_up_vec((size_t)a->D);
    const int64_t g = h / (a->H / a->G);
    struct attention_span keys[ATTENTION_FORWARD_Q];
    struct forward_space w;
    struct dropper dropper;
    forward_layout(a, scratch, &w);
    attention_keys_of(a, b, first, last - first, keys);
    w.keys = keys;
    dropper_init(&dropper, a);
    pack(a, a->q, attention_q_at(a, b, first, h), a->q_stride, nq, NULL, w.q);
    memset(w.o, 0, nq * Dp * sizeof(float));
    for (size_t i = 0; i < nq; i++) w.most[i] = -INFINITY, w.total[i] = 0;
    const size_t n_keys = (size_t)keys[nq - 1].end;
    for (size_t k0 = (size_t)keys[0].begin / BK * BK; k0 < n_keys; k0 += BK) {
        struct key_block kb = key_block_of(a, b, k0, w.shown);
        pack_transposed(a, a->k, attention_kv_at(a, a->k_stride, b, (int64_t)k0, g), a->k_stride,
                        &kb, w.kt);
        pack(a, a->v, attention_kv_at(a, a->v_stride, b, (int64_t)k0, g), a->v_stride, kb.nk, &kb,
             w.v);
        forward_scores(a, &w, &kb, b, h, q0, nq, &dropper);
        forward_values(a, &w, &kb, nq);
    }
    forward_finish(a, &w, b, h, q0, nq);
}

/* ---- backward -------------------------------------------------------------------------------- */

struct backward_space {
    float *q, *dout, *lse, *delta;         /* (BK,Dp) (BK,Dp) (BK) (BK): a block of queries */
    float *k, *kt, *vt, *shown;            /* (BK,Dp) (D,BK) (D,BK) (BK): a block of keys */
    float *p, *ds;                         /* (BK,BK): s, then p after dropout; dp, then ds/scale */
    float *dk, *dv;                        /* (BK,Dp) sums */
    float *dq;                             /* (heads,Tq,Dp) sums, or (BK,Dp) */
    struct attention_span *keys, *queries; /* (BK) that each query sees, and that see each key */
};

/* Space of the last two, on a stack. */
struct backward_spans {
    struct attention_span keys[BK], queries[BK];
};

static size_t backward_layout(const struct attention_args *a, bool whole, float *p,
                              struct backward_space *w)
{
    const size_t D = (size_t)a->D, Dp = round_up_vec(D), rows = BK * Dp;
    const size_t dq = whole ? (size_t)(a->H / a->G * a->Tq) * Dp : rows;
    const size_t sizes[] = {rows, rows,    BK,      BK,   rows, D * BK, D * BK,
                            BK,   BK * BK, BK * BK, rows, rows, dq};
    float **pieces[] = {&w->q,     &w->dout, &w->lse, &w->delta, &w->k,  &w->kt, &w->vt,
                        &w->shown, &w->p,    &w->ds,  &w->dk,    &w->dv, &w->dq};
    size_t total = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); total += sizes[i++])
        if (p) *pieces[i] = p + total;
    return total;
}

/* delta = Σ dout·out of one query. */
VEC_FN float delta_of(enum cz_dtype dtype, const struct attention_args *a, size_t at)
{
    const size_t D = (size_t)a->D;
    vf sum = vf_zero();
    for (size_t d = 0; d < D; d += VF_N) {
        size_t n = least(VF_N, D - d);
        sum =
            vf_fma(vf_load_n(a->dout, at + d, dtype, n), vf_load_n(a->out, at + d, dtype, n), sum);
    }
    return vf_hsum(sum);
}

static float delta(const struct attention_args *a, size_t at)
{
    if (a->dtype == DTYPE_BF16) return delta_of(DTYPE_BF16, a, at);
    if (a->dtype == DTYPE_F16) return delta_of(DTYPE_F16, a, at);
    return delta_of(DTYPE_F32, a, at);
}

/* A row without any key has lse = −∞; with +∞ in its place all its p come out 0. */
static void load_queries(const struct attention_args *a, const struct backward_space *w, int64_t b,
                         int64_t h, size_t q0, size_t nq)
{
    const float *lse = a->lse + (size_t)((b * a->H + h) * a->Tq) + q0;
    const size_t out_at = attention_out_at(a, b, (int64_t)q0, h);
    attention_keys_of(a, b, (int64_t)q0, (int64_t)nq, w->keys);
    pack(a, a->q, attention_q_at(a, b, (int64_t)q0, h), a->q_stride, nq, NULL, w->q);
    pack(a, a->dout, out_at, a->out_stride, nq, NULL, w->dout);
    for (size_t i = 0; i < nq; i++) {
        w->lse[i] = lse[i] == -INFINITY ? INFINITY : lse[i];
        w->delta[i] = delta(a, out_at + i * (size_t)a->out_stride);
    }
}

static struct key_block load_keys(const struct attention_args *a, const struct backward_space *w,
                                  int64_t b, int64_t g, size_t k0)
{
    struct key_block kb = key_block_of(a, b, k0, w->shown);
    attention_queries_of(a, b, (int64_t)k0, (int64_t)kb.nk, w->queries);
    kb.queries = w->queries;
    const size_t k_at = attention_kv_at(a, a->k_stride, b, (int64_t)k0, g);
    pack(a, a->k, k_at, a->k_stride, kb.nk, &kb, w->k);
    pack_transposed(a, a->k, k_at, a->k_stride, &kb, w->kt);
    pack_transposed(a, a->v, attention_kv_at(a, a->v_stride, b, (int64_t)k0, g), a->v_stride, &kb,
                    w->vt);
    return kb;
}

/* Row i: s and dp become p after dropout and ds/scale. Where all of the softmax is on one key
 * (the first query sees no other) dp and delta are one sum in two orders, and ds is 0; not so in 16
 * bits, where delta is of the rounded out. */
VEC_FN void pair_row(const bool capped, const bool all, const struct attention_args *a,
                     const struct backward_space *w, size_t i, struct columns seen,
                     struct columns done, struct dropper *r, uint64_t draw_idx)
{
    float *s = w->p + i * BK, *dp = w->ds + i * BK;
    const struct scores scores = scores_of(a);
    const vf lse = vf_set1(w->lse[i]), delta_i = vf_set1(w->delta[i]);
    const uint32_t *words = r->on ? dropper_words(r, draw_idx) : NULL;
    const vf one = vf_set1(1.0f), whole = vf_set1(a->dtype == DTYPE_F32 ? 1.0f : INFINITY);
    for (size_t j = done.begin; j < done.end; j += VF_N) {
        vf y = score(capped, &scores, vf_load(s, j, DTYPE_F32));
        vf p = vf_exp(masked(all, y, w->shown, j, seen) - lse);
        vf x = vf_load(dp, j, DTYPE_F32);
        vf kept = words ? keep_factor(r, words, j) : one;
        vf ds = p * vf_fma(x, kept, vf_neg(delta_i));
        if (capped) ds = ds * cap_slope(&scores, y);
        vf_store(s, j, DTYPE_F32, p * kept);
        vf_store(dp, j, DTYPE_F32, vf_select(vf_le(whole, p), vf_zero(), ds));
    }
}

/* p and ds of the loaded queries and keys, in the columns that each strip of rows sees; `wanted`
 * gradients of position scores. */
static void pair_blocks(const struct attention_args *a, const struct backward_space *w,
                        const struct key_block *kb, int64_t b, int64_t h, size_t q0, size_t nq,
                        unsigned wanted, struct dropper *r)
{
    const size_t D = (size_t)a->D, Dp = round_up_vec(D);
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = whole_vectors(visible_to(kb, w->keys + i0, n_rows));
        if (c.end == 0) continue;
        const size_t at = i0 * BK + c.begin, n_vecs = (c.end - c.begin) / VF_N;
        multiply(w->q + i0 * Dp, Dp, 1, w->kt + c.begin, BK, D, w->p + at, BK, n_rows, n_vecs,
                 false);
        multiply(w->dout + i0 * Dp, Dp, 1, w->vt + c.begin, BK, D, w->ds + at, BK, n_rows, n_vecs,
                 false);
        for (size_t i = i0; i < i0 + n_rows; i++) {
            const struct columns seen = visible(kb, &w->keys[i]);
            add_positions(a, b, h, q0 + i, kb, c, w->p + i * BK);
            ROW_CALL(a, seen, c, pair_row, a, w, i, seen, c, r, draw_idx_of(a, b, h, q0 + i, kb));
            put_positions(a, b, h, q0 + i, kb, c, w->ds + i * BK, wanted);
        }
    }
}

/* dq (nq,Dp) += ds·k */
static void add_dq(const struct attention_args *a, const struct backward_space *w,
                   const struct key_block *kb, size_t nq, float *dq)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = visible_to(kb, w->keys + i0, n_rows);
        if (c.end > 0)
            multiply(w->ds + i0 * BK + c.begin, BK, 1, w->k + c.begin * Dp, Dp, c.end - c.begin,
                     dq + i0 * Dp, Dp, n_rows, Dp / VF_N, true);
    }
}

/* dk += dsᵀ·q, dv += pᵀ·dout, from the first query that sees a strip's first key to the last that
 * sees its last: each sees some of the strip, and the columns that it does not see are 0 (strips
 * divide vectors, so they were computed). */
static void add_dk_dv(const struct attention_args *a, const struct backward_space *w,
                      const struct key_block *kb, size_t q0, size_t nq)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    for (size_t j0 = 0; j0 < kb->nk; j0 += ROWS) {
        size_t n_rows = least(ROWS, kb->nk - j0);
        struct columns c =
            columns_of(kb->queries[j0].begin, kb->queries[j0 + n_rows - 1].end, q0, nq);
        if (c.end == 0) continue;
        const size_t at = c.begin * BK + j0, n = c.end - c.begin;
        multiply(w->ds + at, 1, BK, w->q + c.begin * Dp, Dp, n, w->dk + j0 * Dp, Dp, n_rows,
                 Dp / VF_N, true);
        multiply(w->p + at, 1, BK, w->dout + c.begin * Dp, Dp, n, w->dv + j0 * Dp, Dp, n_rows,
                 Dp / VF_N, true);
    }
}

static void store_dk_dv(const struct attention_args *a, const struct backward_space *w, int64_t b,
                        int64_t g, const struct key_block *kb)
{
    const int64_t k0 = (int64_t)kb->k0;
    unpack(a, w->dk, a->scale, kb->nk, a->dk, attention_kv_at(a, a->k_stride, b, k0, g),
           a->k_stride);
    unpack(a, w->dv, 1.0f, kb->nk, a->dv, attention_kv_at(a, a->v_stride, b, k0, g), a->v_stride);
}

/* Every head of the group and block of queries that sees some of the keys, in order: dk and dv of
 * the block, and with `dq` (heads,Tq,Dp) what they add to it. */
static void keys_against_queries(const struct attention_args *a, const struct backward_space *w,
                                 const struct key_block *kb, int64_t b, int64_t g,
                                 struct dropper *r, float *dq)
{
    const size_t Dp = round_up_vec((size_t)a->D), Tq = (size_t)a->Tq;
    const int64_t n_heads = a->H / a->G;
    const size_t first = (size_t)kb->queries[0].begin / BK * BK;
    const size_t last = (size_t)kb->queries[kb->nk - 1].end;
    memset(w->dk, 0, BK * Dp * sizeof(float));
    memset(w->dv, 0, BK * Dp * sizeof(float));
    zero_scores(a, a->positions.dk_scores, attention_k_scores_at(a, b, g, (int64_t)kb->k0), kb->nk);
    for (int64_t i = 0; i < n_heads; i++)
        for (size_t q0 = first; q0 < last; q0 += BK) {
            const int64_t h = g * n_heads + i;
            size_t nq = least(BK, Tq - q0);
            load_queries(a, w, b, h, q0, nq);
            pair_blocks(a, w, kb, b, h, q0, nq,
                        dq ? POSITIONS_OF_Q | POSITIONS_OF_K : POSITIONS_OF_K, r);
            if (dq) add_dq(a, w, kb, nq, dq + ((size_t)i * Tq + q0) * Dp);
            add_dk_dv(a, w, kb, q0, nq);
        }
}

static void backward_q(const struct attention_args *a, int64_t b, int64_t h, int64_t first,
                       int64_t last, float *scratch)
{
    const size_t q0 = (size_t)first, nq = (size_t)(last - first);
    const size_t Dp = round_up_vec((size_t)a->D);
    struct backward_spans spans;
    struct backward_space w = {.keys = spans.keys, .queries = spans.queries};
    struct dropper dropper;
    backward_layout(a, false, scratch, &w);
    dropper_init(&dropper, a);
    memset(w.dq, 0, nq * Dp * sizeof(float));
    zero_scores(a, a->positions.dq_scores, attention_q_scores_at(a, b, h, first), nq);
    load_queries(a, &w, b, h, q0, nq);
    const size_t n_keys = (size_t)spans.keys[nq - 1].end;
    for (size_t k0 = (size_t)spans.keys[0].begin / BK * BK; k0 < n_keys; k0 += BK) {
        struct key_block kb = load_keys(a, &w, b, h / (a->H / a->G), k0);
        pair_blocks(a, &w, &kb, b, h, q0, nq, POSITIONS_OF_Q, &dropper);
        add_dq(a, &w, &kb, nq, w.dq);
    }
    unpack(a, w.dq, a->scale, nq, a->dq, attention_q_at(a, b, first, h), a->q_stride);
}

static void backward_k(const struct attention_args *a, int64_t b, int64_t g, int64_t first,
                       int64_t last, float *scratch)
{
    (void)last; /* the end of the block that starts at `first` */
    struct backward_spans spans;
    struct backward_space w = {.keys = spans.keys, .queries = spans.queries};
    struct dropper dropper;
    backward_layout(a, false, scratch, &w);
    dropper_init(&dropper, a);
    struct key_block kb = load_keys(a, &w, b, g, (size_t)first);
    keys_against_queries(a, &w, &kb, b, g, &dropper, NULL);
    store_dk_dv(a, &w, b, g, &kb);
}

static void backward_whole(const struct attention_args *a, int64_t b, int64_t g, float *scratch)
{
    const size_t Dp = round_up_vec((size_t)a->D), Tq = (size_t)a->Tq;
    const int64_t n_heads = a->H / a->G;
    struct backward_spans spans;
    struct backward_space w = {.keys = spans.keys, .queries = spans.queries};
    struct dropper dropper;
    backward_layout(a, true, scratch, &w);
    dropper_init(&dropper, a);
    memset(w.dq, 0, (size_t)n_heads * Tq * Dp * sizeof(float));
    zero_scores(a, a->positions.dq_scores, attention_q_scores_at(a, b, g, 0), Tq);
    for (size_t k0 = 0; k0 < (size_t)a->Tk; k0 += BK) {
        struct key_block kb = load_keys(a, &w, b, g, k0);
        keys_against_queries(a, &w, &kb, b, g, &dropper, w.dq);
        store_dk_dv(a, &w, b, g, &kb);
    }
    for (int64_t i = 0; i < n_heads; i++)
        unpack(a, w.dq + (size_t)i * Tq * Dp, a->scale, Tq, a->dq,
               attention_q_at(a, b, 0, g * n_heads + i), a->q_stride);
}

static size_t scratch_numel(const struct attention_args *a, bool backward, bool whole)
{
    struct forward_space f;
    struct backward_space b;
    return backward ? backward_layout(a, whole, NULL, &b) : forward_layout(a, NULL, &f);
}

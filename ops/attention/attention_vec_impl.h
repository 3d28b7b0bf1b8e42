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
            a->lse[attention_row_at(a, b, h, (int64_t)(q0 + i))] =
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

/* A block of queries against one of keys, (BK,BK) each. Without dropout `kept` is p. */
struct pairs {
    float *p;     /* q·k, then p */
    float *kept;  /* p after dropout */
    float *ds;    /* dp after dropout, then ds/scale */
    float *slope; /* of the cap; NULL: none */
};

struct backward_space {
    float *q, *dout, *lse, *delta;         /* (BK,Dp) (BK,Dp) (BK) (BK): a block of queries */
    float *k, *kt, *vt, *shown;            /* (BK,Dp) (D,BK) (D,BK) (BK): a block of keys */
    float *dq;                             /* (BK,Dp) sums */
    float *dk, *dv;                        /* sums of a block of keys, or of all: (Tk,Dp) */
    float *pairs;                          /* of one block of keys after the other */
    struct attention_span *keys, *queries; /* (BK) that each query sees, and that see each key */
    double *total, *sum;                   /* (BK) of each query: Σ p, Σ p·dp */
};

/* Space of the last four, on a stack. */
struct backward_stack {
    struct attention_span keys[BK], queries[BK];
    double total[BK], sum[BK];
};

static struct backward_space on_stack(struct backward_stack *stack)
{
    return (struct backward_space){
        .keys = stack->keys, .queries = stack->queries, .total = stack->total, .sum = stack->sum};
}

/* Elements of the pairs of two blocks. */
static size_t pairs_numel(const struct attention_args *a)
{
    const size_t n_kinds = 2 + (size_t)(a->dropout_p > 0) + (size_t)(a->softcap > 0);
    return n_kinds * BK * BK;
}

static struct pairs pairs_at(const struct attention_args *a, const struct backward_space *w,
                             size_t block)
{
    const size_t n = (size_t)BK * BK;
    float *p = w->pairs + block * pairs_numel(a);
    return (struct pairs){.p = p,
                          .kept = a->dropout_p > 0 ? p + 2 * n : p,
                          .ds = p + n,
                          .slope = a->softcap > 0 ? p + pairs_numel(a) - n : NULL};
}

static size_t backward_layout(const struct attention_args *a, bool whole, float *p,
                              struct backward_space *w)
{
    const size_t D = (size_t)a->D, Dp = round_up_vec(D), rows = BK * Dp;
    const size_t n_blocks = ((size_t)a->Tk + BK - 1) / BK, sums = whole ? n_blocks * rows : rows;
    const size_t sizes[] = {rows,   rows, BK,   BK,   rows, D * BK,
                            D * BK, BK,   rows, sums, sums, n_blocks * pairs_numel(a)};
    float **pieces[] = {&w->q,  &w->dout,  &w->lse, &w->delta, &w->k,  &w->kt,
                        &w->vt, &w->shown, &w->dq,  &w->dk,    &w->dv, &w->pairs};
    size_t total = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); total += sizes[i++])
        if (p) *pieces[i] = p + total;
    return total;
}

/* A row without any key has lse = −∞; with +∞ in its place all its p come out 0. */
static void load_queries(const struct attention_args *a, const struct backward_space *w, int64_t b,
                         int64_t h, size_t q0, size_t nq)
{
    const float *lse = a->lse + attention_row_at(a, b, h, (int64_t)q0);
    attention_keys_of(a, b, (int64_t)q0, (int64_t)nq, w->keys);
    pack(a, a->q, attention_q_at(a, b, (int64_t)q0, h), a->q_stride, nq, NULL, w->q);
    pack(a, a->dout, attention_out_at(a, b, (int64_t)q0, h), a->out_stride, nq, NULL, w->dout);
    for (size_t i = 0; i < nq; i++) w->lse[i] = lse[i] == -INFINITY ? INFINITY : lse[i];
    memset(w->total, 0, nq * sizeof *w->total);
    memset(w->sum, 0, nq * sizeof *w->sum);
}

/* The keys of a block, for scores and dp. */
static struct key_block load_keys(const struct attention_args *a, const struct backward_space *w,
                                  int64_t b, int64_t g, size_t k0)
{
    struct key_block kb = key_block_of(a, b, k0, w->shown);
    pack_transposed(a, a->k, attention_kv_at(a, a->k_stride, b, (int64_t)k0, g), a->k_stride, &kb,
                    w->kt);
    pack_transposed(a, a->v, attention_kv_at(a, a->v_stride, b, (int64_t)k0, g), a->v_stride, &kb,
                    w->vt);
    return kb;
}

/* Row i: q·k and dout·v become p, before and after dropout, and dp; their sums grow, in double. */
VEC_FN void p_row(const bool capped, const bool all, const struct attention_args *a,
                  const struct backward_space *w, const struct pairs *x, size_t i,
                  struct columns seen, struct columns done, struct dropper *r, uint64_t draw_idx)
{
    float *p_of = x->p + i * BK, *dp_of = x->ds + i * BK;
    const struct scores scores = scores_of(a);
    const vf lse = vf_set1(w->lse[i]);
    const uint32_t *words = r->on ? dropper_words(r, draw_idx) : NULL;
    vd total = vd_set1(0), sum = vd_set1(0);
    for (size_t j = done.begin; j < done.end; j += VF_N) {
        vf y = score(capped, &scores, vf_load(p_of, j, DTYPE_F32));
        vf p = vf_exp(masked(all, y, w->shown, j, seen) - lse);
        vf dp = vf_load(dp_of, j, DTYPE_F32);
        if (words) {
            vf kept = keep_factor(r, words, j);
            dp = dp * kept;
            vf_store(x->kept + i * BK, j, DTYPE_F32, p * kept);
            vf_store(dp_of, j, DTYPE_F32, dp);
        }
        if (capped) vf_store(x->slope + i * BK, j, DTYPE_F32, cap_slope(&scores, y));
        vf_store(p_of, j, DTYPE_F32, p);
        vd low = vd_low(p), high = vd_high(p);
        total = total + (low + high);
        sum = vd_fma(low, vd_low(dp), vd_fma(high, vd_high(dp), sum));
    }
    w->total[i] += vd_hsum(total);
    w->sum[i] += vd_hsum(sum);
}

/* p and dp of the loaded queries and keys, in the columns that each group of rows sees. */
static void pair_blocks(const struct attention_args *a, const struct backward_space *w,
                        const struct key_block *kb, int64_t b, int64_t h, size_t q0, size_t nq,
                        const struct pairs *x, struct dropper *r)
{
    const size_t D = (size_t)a->D, Dp = round_up_vec(D);
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = whole_vectors(visible_to(kb, w->keys + i0, n_rows));
        if (c.end == 0) continue;
        const size_t at = i0 * BK + c.begin, n_vecs = (c.end - c.begin) / VF_N;
        multiply(w->q + i0 * Dp, Dp, 1, w->kt + c.begin, BK, D, x->p + at, BK, n_rows, n_vecs,
                 false);
        multiply(w->dout + i0 * Dp, Dp, 1, w->vt + c.begin, BK, D, x->ds + at, BK, n_rows, n_vecs,
                 false);
        for (size_t i = i0; i < i0 + n_rows; i++) {
            const struct columns seen = visible(kb, &w->keys[i]);
            add_positions(a, b, h, q0 + i, kb, c, x->p + i * BK);
            ROW_CALL(a, seen, c, p_row, a, w, x, i, seen, c, r, draw_idx_of(a, b, h, q0 + i, kb));
        }
    }
}

/* δ of the loaded queries, whose p and dp are all there. By Σ p, because p comes from a rounded
 * lse: what is left of a row of ds, which should add up to 0, is what its own roundings leave. */
static void make_delta(const struct backward_space *w, size_t nq)
{
    for (size_t i = 0; i < nq; i++)
        w->delta[i] = w->total[i] == 0 ? 0 : (float)(w->sum[i] / w->total[i]);
}

/* Row i: dp becomes ds/scale. */
VEC_FN void ds_row(const bool capped, const struct pairs *x, size_t i, struct columns done,
                   float delta)
{
    const float *p = x->p + i * BK;
    float *ds = x->ds + i * BK;
    for (size_t j = done.begin; j < done.end; j += VF_N) {
        vf y = vf_load(p, j, DTYPE_F32) * (vf_load(ds, j, DTYPE_F32) - vf_set1(delta));
        if (capped) y = y * vf_load(x->slope + i * BK, j, DTYPE_F32);
        vf_store(ds, j, DTYPE_F32, y);
    }
}

/* ds of the loaded queries, and the `wanted` gradients of position scores. */
static void score_gradients(const struct attention_args *a, const struct backward_space *w,
                            const struct key_block *kb, int64_t b, int64_t h, size_t q0, size_t nq,
                            const struct pairs *x, unsigned wanted)
{
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = whole_vectors(visible_to(kb, w->keys + i0, n_rows));
        for (size_t i = i0; i < i0 + n_rows; i++) {
            if (x->slope)
                ds_row(true, x, i, c, w->delta[i]);
            else
                ds_row(false, x, i, c, w->delta[i]);
            put_positions(a, b, h, q0 + i, kb, c, x->ds + i * BK, wanted);
        }
    }
}

/* dq (nq,Dp) += ds·k */
static void add_dq(const struct attention_args *a, const struct backward_space *w,
                   const struct key_block *kb, size_t nq, const struct pairs *x)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    for (size_t i0 = 0; i0 < nq; i0 += ROWS) {
        size_t n_rows = least(ROWS, nq - i0);
        struct columns c = visible_to(kb, w->keys + i0, n_rows);
        if (c.end > 0)
            multiply(x->ds + i0 * BK + c.begin, BK, 1, w->k + c.begin * Dp, Dp, c.end - c.begin,
                     w->dq + i0 * Dp, Dp, n_rows, Dp / VF_N, true);
    }
}

/* dk += dsᵀ·q, dv += keptᵀ·dout, from the first query that sees a group's first key to the last
 * that sees its last: each sees some of the group, and the columns that it does not see are 0
 * (groups divide vectors, so they were computed). */
static void add_dk_dv(const struct attention_args *a, const struct backward_space *w,
                      const struct key_block *kb, size_t q0, size_t nq, const struct pairs *x,
                      float *dk, float *dv)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    for (size_t j0 = 0; j0 < kb->nk; j0 += ROWS) {
        size_t n_rows = least(ROWS, kb->nk - j0);
        struct columns c =
            columns_of(kb->queries[j0].begin, kb->queries[j0 + n_rows - 1].end, q0, nq);
        if (c.end == 0) continue;
        const size_t at = c.begin * BK + j0, n = c.end - c.begin;
        multiply(x->ds + at, 1, BK, w->q + c.begin * Dp, Dp, n, dk + j0 * Dp, Dp, n_rows, Dp / VF_N,
                 true);
        multiply(x->kept + at, 1, BK, w->dout + c.begin * Dp, Dp, n, dv + j0 * Dp, Dp, n_rows,
                 Dp / VF_N, true);
    }
}

/* dk and dv of n keys from k0 on. */
static void store_dk_dv(const struct attention_args *a, const struct backward_space *w, int64_t b,
                        int64_t g, int64_t k0, size_t n)
{
    unpack(a, w->dk, a->scale, n, a->dk, attention_kv_at(a, a->k_stride, b, k0, g), a->k_stride);
    unpack(a, w->dv, 1.0f, n, a->dv, attention_kv_at(a, a->v_stride, b, k0, g), a->v_stride);
}

/* A block of queries against all keys that it sees: δ, dq, and where `of_keys` what they add to the
 * sums of all keys. The pairs of a row are kept until its δ is known. */
static void queries_against_keys(const struct attention_args *a, const struct backward_space *w,
                                 int64_t b, int64_t h, size_t q0, size_t nq, bool of_keys,
                                 struct dropper *r)
{
    const size_t Dp = round_up_vec((size_t)a->D);
    const int64_t g = h / (a->H / a->G);
    load_queries(a, w, b, h, q0, nq);
    const size_t first = (size_t)w->keys[0].begin / BK, end = (size_t)w->keys[nq - 1].end;
    for (size_t block = first; block * BK < end; block++) {
        const struct pairs x = pairs_at(a, w, block - first);
        const struct key_block kb = load_keys(a, w, b, g, block * BK);
        pair_blocks(a, w, &kb, b, h, q0, nq, &x, r);
    }
    make_delta(w, nq);
    memset(w->dq, 0, nq * Dp * sizeof(float));
    for (size_t block = first; block * BK < end; block++) {
        const struct pairs x = pairs_at(a, w, block - first);
        struct key_block kb = key_block_of(a, b, block * BK, w->shown);
        score_gradients(a, w, &kb, b, h, q0, nq, &x,
                        of_keys ? POSITIONS_OF_Q | POSITIONS_OF_K : POSITIONS_OF_Q);
        pack(a, a->k, attention_kv_at(a, a->k_stride, b, (int64_t)kb.k0, g), a->k_stride, kb.nk,
             &kb, w->k);
        add_dq(a, w, &kb, nq, &x);
        if (!of_keys) continue;
        attention_queries_of(a, b, (int64_t)kb.k0, (int64_t)kb.nk, w->queries);
        kb.queries = w->queries;
        add_dk_dv(a, w, &kb, q0, nq, &x, w->dk + kb.k0 * Dp, w->dv + kb.k0 * Dp);
    }
    unpack(a, w->dq, a->scale, nq, a->dq, attention_q_at(a, b, (int64_t)q0, h), a->q_stride);
}

static void backward_q(const struct attention_args *a, int64_t b, int64_t h, int64_t first,
                       int64_t last, float *delta, float *scratch)
{
    const size_t nq = (size_t)(last - first);
    struct backward_stack stack;
    struct backward_space w = on_stack(&stack);
    struct dropper dropper;
    backward_layout(a, false, scratch, &w);
    dropper_init(&dropper, a);
    zero_scores(a, a->positions.dq_scores, attention_q_scores_at(a, b, h, first), nq);
    queries_against_keys(a, &w, b, h, (size_t)first, nq, false, &dropper);
    memcpy(delta + attention_row_at(a, b, h, first), w.delta, nq * sizeof *delta);
}

/* Every head of the group and block of queries that sees some of the keys, in order. */
static void backward_k(const struct attention_args *a, int64_t b, int64_t g, int64_t k0, int64_t k1,
                       const float *delta, float *scratch)
{
    const size_t Dp = round_up_vec((size_t)a->D), nk = (size_t)(k1 - k0), Tq = (size_t)a->Tq;
    const int64_t n_heads = a->H / a->G;
    struct backward_stack stack;
    struct backward_space w = on_stack(&stack);
    struct dropper dropper;
    backward_layout(a, false, scratch, &w);
    dropper_init(&dropper, a);
    const struct pairs x = pairs_at(a, &w, 0);
    struct key_block kb = load_keys(a, &w, b, g, (size_t)k0);
    attention_queries_of(a, b, k0, k1 - k0, w.queries);
    kb.queries = w.queries;
    memset(w.dk, 0, nk * Dp * sizeof(float));
    memset(w.dv, 0, nk * Dp * sizeof(float));
    zero_scores(a, a->positions.dk_scores, attention_k_scores_at(a, b, g, k0), nk);
    const size_t first = (size_t)w.queries[0].begin / BK * BK, last = (size_t)w.queries[nk - 1].end;
    for (int64_t h = g * n_heads; h < (g + 1) * n_heads; h++)
        for (size_t q0 = first; q0 < last; q0 += BK) {
            const size_t nq = least(BK, Tq - q0);
            load_queries(a, &w, b, h, q0, nq);
            memcpy(w.delta, delta + attention_row_at(a, b, h, (int64_t)q0), nq * sizeof *delta);
            pair_blocks(a, &w, &kb, b, h, q0, nq, &x, &dropper);
            score_gradients(a, &w, &kb, b, h, q0, nq, &x, POSITIONS_OF_K);
            add_dk_dv(a, &w, &kb, q0, nq, &x, w.dk, w.dv);
        }
    store_dk_dv(a, &w, b, g, k0, nk);
}

static void backward_whole(const struct attention_args *a, int64_t b, int64_t g, float *scratch)
{
    const size_t Dp = round_up_vec((size_t)a->D), Tq = (size_t)a->Tq, Tk = (size_t)a->Tk;
    const int64_t n_heads = a->H / a->G;
    struct backward_stack stack;
    struct backward_space w = on_stack(&stack);
    struct dropper dropper;
    backward_layout(a, true, scratch, &w);
    dropper_init(&dropper, a);
    memset(w.dk, 0, Tk * Dp * sizeof(float));
    memset(w.dv, 0, Tk * Dp * sizeof(float));
    zero_scores(a, a->positions.dq_scores, attention_q_scores_at(a, b, g, 0), Tq);
    zero_scores(a, a->positions.dk_scores, attention_k_scores_at(a, b, g, 0), Tk);
    for (int64_t h = g * n_heads; h < (g + 1) * n_heads; h++)
        for (size_t q0 = 0; q0 < Tq; q0 += BK)
            queries_against_keys(a, &w, b, h, q0, least(BK, Tq - q0), true, &dropper);
    store_dk_dv(a, &w, b, g, 0, Tk);
}

static size_t scratch_numel(const struct attention_args *a, bool backward, bool whole)
{
    struct forward_space f;
    struct backward_space b;
    return backward ? backward_layout(a, whole, NULL, &b) : forward_layout(a, NULL, &f);
}

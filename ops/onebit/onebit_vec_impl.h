/* Body of the vector rows. Limit: memory, but for lamb_norms (arithmetic: the exact sums). */
#include "ops/onebit/onebit_impl.h"

#include "ops/lamb/lamb_sums_vec_impl.h"
#include "ops/step/step_vec_impl.h"

/* ---- bits ------------------------------------------------------------------------------------ */

/* n bits from any bit on, the first one the highest of VF_N; reads no byte that has none of them.
 */
VEC_FN uint32_t bits_get(const uint8_t *bits, size_t first, size_t n)
{
    const uint8_t *p = bits + first / 8;
    const size_t lead = first % 8, n_bytes = (lead + n + 7) / 8;
    uint32_t word = 0;
    for (size_t k = 0; k < VF_N / 8 + 1; k++) word = word << 8 | (k < n_bytes ? p[k] : 0u);
    return word >> (8 - lead) & ((1u << VF_N) - 1);
}

VEC_FN void bytes_put(uint8_t *bytes, uint32_t word, size_t n)
{
    for (size_t k = 0; 8 * k < n; k++) bytes[k] = (uint8_t)(word >> (VF_N - 8 - 8 * k));
}

#define WORD_NUMEL ((size_t)32) /* elements of four bytes, which one load broadcasts */
#define WORD_VECS  (WORD_NUMEL / VF_N)

/* The bytes of n ≤ 32 elements, for vm_from_word(). */
VEC_FN vi word_get(const uint8_t *bytes, size_t n)
{
    uint32_t word = 0;
    memcpy(&word, bytes, n / 8);
    return vi_set1(word);
}

/* The same for 32 elements from any bit on. */
VEC_FN vi word_at(const uint8_t *bits, size_t first)
{
    const uint8_t *p = bits + first / 8;
    const size_t lead = first % 8;
    uint32_t word;
    memcpy(&word, p, sizeof word);
    if (lead > 0) word = __builtin_bswap32(__builtin_bswap32(word) << lead | p[4] >> (8 - lead));
    return vi_set1(word);
}

/* x, or 0 in lanes that are masked; lane 0 is the op's element i. */
VEC_FN vf masked(const struct onebit_mask *mask, size_t i, vf x, size_t n)
{
    if (!mask->bits) return x;
    return vf_select(vm_from_bits(bits_get(mask->bits, mask->first + i, n)), x, vf_zero());
}

/* ---- partial sums ---------------------------------------------------------------------------- */

#define VECS (ONEBIT_LANES / VF_N) /* vectors of 16 elements */

struct squares {
    vd lanes[2 * VECS];
};

VEC_FN struct squares squares_zero(void)
{
    struct squares s;
    for (size_t k = 0; k < 2 * VECS; k++) s.lanes[k] = vd_set1(0);
    return s;
}

/* x is vector k of 16 elements; squares are exact, so the fma only adds. */
VEC_FN void squares_add(struct squares *s, size_t k, vf x)
{
    vd low = vd_low(x), high = vd_high(x);
    s->lanes[2 * k] = vd_fma(low, low, s->lanes[2 * k]);
    s->lanes[2 * k + 1] = vd_fma(high, high, s->lanes[2 * k + 1]);
}

VEC_FN double squares_sum(const struct squares *s)
{
    double lanes[ONEBIT_LANES];
    memcpy(lanes, s->lanes, sizeof lanes);
    return onebit_lanes_sum(lanes);
}

/* Of the vector that begins at element j of n: how many elements it has. */
VEC_FN size_t lanes_left(size_t j, size_t n)
{
    return n <= j ? 0 : n - j < VF_N ? n - j : VF_N;
}

/* ---- feed ------------------------------------------------------------------------------------ */

struct feed_vec {
    vf grad_scale, beta1, one_beta1, coeff;
};

VEC_FN vf fed(const struct onebit_feed_args *a, const struct feed_vec *f, enum cz_dtype g_dtype,
              bool has_m, size_t i, size_t n)
{
    vf e = step_get(a->e, i, DTYPE_F32, n);
    vf x = step_get(a->g, i, g_dtype, n) * f->grad_scale;
    if (has_m) x = vf_fma(f->beta1, step_get(a->m, i, DTYPE_F32, n), f->one_beta1 * x);
    e = x * f->coeff + e;
    step_put(a->e, i, DTYPE_F32, e, n);
    return n == VF_N ? e : vf_first(e, n);
}

/* Up to 16 elements. */
VEC_FN void feed_some(const struct onebit_feed_args *a, const struct feed_vec *f,
                      enum cz_dtype g_dtype, bool has_g, bool has_m, struct squares *s, size_t i,
                      size_t n)
{
    for (size_t k = 0; k < VECS; k++) {
        size_t at = i + k * VF_N, m = lanes_left(k * VF_N, n);
        if (m == 0) break;
        squares_add(s, k,
                    has_g ? fed(a, f, g_dtype, has_m, at, m) : step_get(a->e, at, DTYPE_F32, m));
    }
}

VEC_FN void feed_blocks(enum cz_dtype g_dtype, const struct onebit_feed_args *a,
                        const struct feed_vec *f, bool has_g, bool has_m, size_t begin, size_t end)
{
    while (begin < end) {
        size_t i = begin, last = onebit_block_end(begin, end);
        struct squares s = squares_zero();
        for (; i + ONEBIT_LANES <= last; i += ONEBIT_LANES)
            feed_some(a, f, g_dtype, has_g, has_m, &s, i, ONEBIT_LANES);
        if (i < last) feed_some(a, f, g_dtype, has_g, has_m, &s, i, last - i);
        a->partials[begin / ONEBIT_BLOCK] = squares_sum(&s);
        begin = last;
    }
}

static void feed(const struct onebit_feed_args *a, size_t begin, size_t end)
{
    if (!a->g) {
        feed_blocks(DTYPE_F32, a, NULL, false, false, begin, end);
        return;
    }
    const struct step_scalars *s = a->scalars;
    const struct feed_vec f = {vf_set1(s->grad_scale), vf_set1(s->beta1), vf_set1(1.0f - s->beta1),
                               vf_set1(a->coeff)};
    if (a->m)
        DTYPE_CALL(feed_blocks, a->g_dtype, a, &f, true, true, begin, end);
    else
        DTYPE_CALL(feed_blocks, a->g_dtype, a, &f, true, false, begin, end);
}

/* ---- pack ------------------------------------------------------------------------------------ */

VEC_FN void pack_lanes(float *e, uint8_t *bits, vf scale, size_t n)
{
    vf x = step_get(e, 0, DTYPE_F32, n);
    bytes_put(bits, vf_sign_bits(x), n);
    step_put(e, 0, DTYPE_F32, x - vf_select(vf_le(vf_zero(), x), scale, vf_neg(scale)), n);
}

static void pack(const struct onebit_pack_args *a, size_t begin, size_t end)
{
    const vf scale = vf_set1(*a->scale);
    while (begin < end) {
        size_t chunk = begin / a->chunk_numel, at = begin % a->chunk_numel;
        size_t last = onebit_chunk_end(begin, end, a->chunk_numel), i = 0, n = last - begin;
        uint8_t *bits = a->bits + chunk * a->chunk_stride + at / 8;
        float *e = a->e + begin;
        for (; i + WORD_NUMEL <= n; i += WORD_NUMEL)
            for (size_t k = 0; k < WORD_NUMEL; k += VF_N)
                pack_lanes(e + i + k, bits + (i + k) / 8, scale, VF_N);
        for (; i < n; i += VF_N)
            pack_lanes(e + i, bits + i / 8, scale, n - i < VF_N ? n - i : VF_N);
        begin = last;
    }
}

/* ---- serve ----------------------------------------------------------------------------------- */

/* Up to WORD_NUMEL elements, a multiple of 8. */
VEC_FN void serve_some(const struct onebit_serve_args *a, vf inv_ranks, struct squares *s, size_t i,
                       size_t n)
{
    vf y[WORD_VECS];
    for (size_t k = 0; k < WORD_VECS; k++) y[k] = vf_zero();
    for (size_t q = 0; q < (size_t)a->n_ranks; q++) {
        const uint8_t *bits = a->bits + q * a->rank_stride + i / 8;
        vf scale = vf_set1(a->scales[q * a->scale_stride]), minus = vf_neg(scale);
        vi word = word_get(bits, n);
        for (size_t k = 0; k < WORD_VECS; k++)
            y[k] = y[k] + vf_select(vm_from_word(word, k), scale, minus);
    }
    for (size_t k = 0; k < WORD_VECS; k++) {
        size_t at = i + k * VF_N, m = lanes_left(k * VF_N, n);
        if (m == 0) break;
        vf e = vf_fma(y[k], inv_ranks, step_get(a->e, at, DTYPE_F32, m));
        step_put(a->e, at, DTYPE_F32, e, m);
        squares_add(s, k % VECS, m == VF_N ? e : vf_first(e, m));
    }
}

static void serve(const struct onebit_serve_args *a, size_t begin, size_t end)
{
    const vf inv_ranks = vf_set1(a->inv_ranks);
    while (begin < end) {
        size_t i = begin, last = onebit_block_end(begin, end);
        struct squares s = squares_zero();
        for (; i + WORD_NUMEL <= last; i += WORD_NUMEL) serve_some(a, inv_ranks, &s, i, WORD_NUMEL);
        if (i < last) serve_some(a, inv_ranks, &s, i, last - i);
        a->partials[begin / ONEBIT_BLOCK] = squares_sum(&s);
        begin = last;
    }
}

/* ---- unpack ---------------------------------------------------------------------------------- */

struct unpack_vec {
    vf scale; /* of the chunk, divided by coeff */
    vf beta1, one_beta1, beta2, one_beta2;
    bool blend, follow;
};

VEC_FN struct unpack_vec unpack_vec_make(const struct onebit_unpack_args *a)
{
    const struct step_scalars *s = a->blend ? a->blend : a->scalars;
    struct unpack_vec u = {.blend = a->blend, .follow = a->fresh};
    if (!u.blend && !u.follow) return u;
    u.beta1 = vf_set1(s->beta1), u.one_beta1 = vf_set1(1.0f - s->beta1);
    u.beta2 = vf_set1(s->beta2), u.one_beta2 = vf_set1(1.0f - s->beta2);
    return u;
}

VEC_FN void follow(const struct unpack_vec *u, float *fresh, vf before, vf after, size_t n)
{
    vf g = (after - u->beta1 * before) / u->one_beta1;
    vf f = step_get(fresh, 0, DTYPE_F32, n);
    step_put(fresh, 0, DTYPE_F32, vf_fma(u->beta2, f, u->one_beta2 * (g * g)), n);
}

/* n elements from j of x and fresh on. */
VEC_FN void unpack_lanes(const struct unpack_vec *u, vf value, float *x, float *fresh, size_t j,
                         size_t n)
{
    if (u->follow) follow(u, fresh + j, step_get(x, j, DTYPE_F32, n), value, n);
    if (u->blend) value = vf_fma(u->beta1, step_get(x, j, DTYPE_F32, n), u->one_beta1 * value);
    step_put(x, j, DTYPE_F32, value, n);
}

/* A few elements from bit i of a chunk on, j in x. */
VEC_FN void unpack_few(const struct onebit_unpack_args *a, const struct unpack_vec *u,
                       const uint8_t *bits, size_t i, size_t j, size_t n)
{
    vf value = vf_select(vm_from_bits(bits_get(bits, i, n)), u->scale, vf_neg(u->scale));
    unpack_lanes(u, masked(&a->mask, j, value, n), a->x, a->fresh, j, n);
}

/* WORD_NUMEL elements whose signs are whole bytes. */
VEC_FN void unpack_word(const struct onebit_unpack_args *a, const struct unpack_vec *u,
                        const uint8_t *bytes, size_t j)
{
    const struct onebit_mask *mask = &a->mask;
    float *x = a->x, *fresh = a->fresh;
    vi word = word_get(bytes, WORD_NUMEL), kept = word;
    if (mask->bits) kept = word_at(mask->bits, mask->first + j);
    for (size_t k = 0; k < WORD_VECS; k++) {
        vf value = vf_select(vm_from_word(word, k), u->scale, vf_neg(u->scale));
        if (mask->bits) value = vf_select(vm_from_word(kept, k), value, vf_zero());
        unpack_lanes(u, value, x, fresh, j + k * VF_N, VF_N);
    }
}

/* Elements [begin, end) of a chunk's bits; j: the first one's place in x. */
VEC_FN void unpack_bits(const struct onebit_unpack_args *a, const struct unpack_vec *u,
                        const uint8_t *bits, size_t begin, size_t end, size_t j)
{
    size_t i = begin;
    if (i % 8 != 0) { /* up to the next byte */
        size_t n = 8 - i % 8 < end - i ? 8 - i % 8 : end - i;
        unpack_few(a, u, bits, i, j, n);
        i += n;
    }
    for (; i + WORD_NUMEL <= end; i += WORD_NUMEL) unpack_word(a, u, bits + i / 8, j + (i - begin));
    for (; i < end; i += VF_N)
        unpack_few(a, u, bits, i, j + (i - begin), end - i < VF_N ? end - i : VF_N);
}

static void unpack(const struct onebit_unpack_args *a, size_t begin, size_t end)
{
    struct unpack_vec u = unpack_vec_make(a);
    while (begin < end) {
        size_t chunk = begin / a->chunk_numel, at = begin % a->chunk_numel;
        size_t last = onebit_chunk_end(begin, end, a->chunk_numel);
        u.scale = vf_set1(a->scales[chunk * a->scale_stride] / a->coeff);
        unpack_bits(a, &u, a->bits + chunk * a->chunk_stride, at, at + (last - begin),
                    begin - a->begin);
        begin = last;
    }
}

/* ---- around it ------------------------------------------------------------------------------- */

struct momentum_vec {
    vf grad_scale, beta1, one_beta1, beta2, one_beta2;
};

VEC_FN void momentum_lanes(const struct onebit_momentum_args *a, const struct momentum_vec *k,
                           size_t i, size_t n)
{
    vf m = step_get(a->m, i, DTYPE_F32, n);
    vf g = masked(&a->mask, i, step_get(a->g, i, a->g_dtype, n) * k->grad_scale, n);
    m = masked(&a->mask, i, vf_fma(k->beta1, m, k->one_beta1 * g), n);
    step_put(a->m, i, DTYPE_F32, m, n);
    if (!a->fresh) return;
    vf fresh = step_get(a->fresh, i, DTYPE_F32, n);
    step_put(a->fresh, i, DTYPE_F32, vf_fma(k->beta2, fresh, k->one_beta2 * (g * g)), n);
}

static void momentum(const struct onebit_momentum_args *a, size_t begin, size_t end)
{
    const struct step_scalars *s = a->scalars;
    const struct momentum_vec k = {vf_set1(s->grad_scale), vf_set1(s->beta1),
                                   vf_set1(1.0f - s->beta1), vf_set1(s->beta2),
                                   vf_set1(1.0f - s->beta2)};
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) momentum_lanes(a, &k, i, VF_N);
    if (i < end) momentum_lanes(a, &k, i, end - i);
}

/* √v + eps */
VEC_FN vf denominator(const float *v, vf eps, size_t i, size_t n)
{
    return vf_sqrt(step_get(v, i, DTYPE_F32, n)) + eps;
}

struct norms_vec {
    vf eps, wd;
    bool decay;
};

/* u0 and u (VF_N values, 0 behind n) for the sums; returns the ratios, 0 where none counts. */
VEC_FN vf norms_lanes(const struct onebit_lamb_norms_args *a, const struct norms_vec *k, size_t i,
                      size_t n, float *u0_out, float *u_out)
{
    vf d = denominator(a->v, k->eps, i, n);
    vf u0 = step_get(a->m, i, DTYPE_F32, n) / d;
    vf_store(u0_out, 0, DTYPE_F32, vf_first(u0, n));
    if (k->decay) {
        vf u = vf_fma(k->wd, step_get(a->p, i, DTYPE_F32, n), u0);
        vf_store(u_out, 0, DTYPE_F32, vf_first(u, n));
    }
    return vf_first(masked(&a->mask, i, d / denominator(a->fresh, k->eps, i, n), n), n);
}

/* Without decay u is u0, and so are its sums. */
static void lamb_norms(const struct onebit_lamb_norms_args *a, size_t begin, size_t end,
                       struct lamb_sums *sums, float *factor)
{
    const struct norms_vec k = {vf_set1(a->eps), vf_set1(a->weight_decay), a->weight_decay != 0};
    float u0[LAMB_BLOCK], u[LAMB_BLOCK];
    vf most = vf_zero(); /* a ratio that is NaN counts for nothing */
    for (size_t at = begin; at < end; at += LAMB_BLOCK) {
        size_t numel = end - at < LAMB_BLOCK ? end - at : LAMB_BLOCK, n = 0;
        for (; n + VF_N <= numel; n += VF_N)
            most = vf_max(norms_lanes(a, &k, at + n, VF_N, u0 + n, u + n), most);
        if (n < numel) {
            most = vf_max(norms_lanes(a, &k, at + n, numel - n, u0 + n, u + n), most);
            n += VF_N;
        }
        lamb_block_sum(u0, n, sums->p);
        lamb_block_sum(k.decay ? u : u0, n, sums->u);
    }
    *factor = fmaxf(*factor, vf_hmax(most));
}

/* ---- 0/1 Adam -------------------------------------------------------------------------------- */

struct local_vec {
    vf grad_scale, beta1, one_beta1, eps, wd, minus_lr;
    bool decay;
};

VEC_FN void local_lanes(const struct zero_one_args *a, const struct local_vec *k, size_t i,
                        size_t n)
{
    vf g = step_get(a->g, i, a->g_dtype, n) * k->grad_scale;
    vf m = vf_fma(k->beta1, step_get(a->m, i, DTYPE_F32, n), k->one_beta1 * g);
    vf u = masked(&a->mask, i, m / denominator(a->v, k->eps, i, n), n);
    vf p = step_get(a->p, i, DTYPE_F32, n), moved = step_get(a->moved, i, DTYPE_F32, n);
    if (k->decay) u = vf_fma(k->wd, p + moved, u);
    moved = vf_fma(k->minus_lr, u, moved);
    step_put(a->m, i, DTYPE_F32, masked(&a->mask, i, m, n), n);
    step_put(a->moved, i, DTYPE_F32, moved, n);
    step_put(a->out, i, a->out_dtype, p + moved, n);
}

static void local(const struct zero_one_args *a, size_t begin, size_t end)
{
    const struct step_scalars *s = a->scalars;
    const struct local_vec k = {
        vf_set1(s->grad_scale),   vf_set1(s->beta1), vf_set1(1.0f - s->beta1), vf_set1(a->eps),
        vf_set1(a->weight_decay), vf_set1(-s->lr),   a->weight_decay != 0};
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) local_lanes(a, &k, i, VF_N);
    if (i < end) local_lanes(a, &k, i, end - i);
}

VEC_FN void gather_lanes(const struct zero_one_args *a, vf eps, size_t i, size_t n)
{
    vf moved = step_get(a->moved, i, DTYPE_F32, n) * denominator(a->v, eps, i, n);
    step_put(a->moved, i, DTYPE_F32, moved, n);
}

static void gather(const struct zero_one_args *a, size_t begin, size_t end)
{
    const vf eps = vf_set1(a->eps);
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) gather_lanes(a, eps, i, VF_N);
    if (i < end) gather_lanes(a, eps, i, end - i);
}

VEC_FN void settle_lanes(const struct zero_one_args *a, vf eps, float step_size, size_t i, size_t n)
{
    vf moved = step_get(a->moved, i, DTYPE_F32, n), p = step_get(a->p, i, DTYPE_F32, n);
    if (step_size != 0) step_put(a->m, i, DTYPE_F32, vf_neg(moved) / vf_set1(step_size), n);
    p = p + moved / denominator(a->v, eps, i, n);
    step_put(a->p, i, DTYPE_F32, p, n);
    step_put(a->moved, i, DTYPE_F32, vf_zero(), n);
    step_put(a->out, i, a->out_dtype, p, n);
}

static void settle(const struct zero_one_args *a, size_t begin, size_t end)
{
    const vf eps = vf_set1(a->eps);
    const float step_size = a->scalars->step_size;
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) settle_lanes(a, eps, step_size, i, VF_N);
    if (i < end) settle_lanes(a, eps, step_size, i, end - i);
}

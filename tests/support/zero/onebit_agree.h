/* What the tests of the 1-bit family's kernels share: a case of each op, run by the definition and
 * by a row of the host or a device, and compared to the bit. */
#ifndef CZ_TESTS_ONEBIT_AGREE_H
#define CZ_TESTS_ONEBIT_AGREE_H

#include "ops/onebit/onebit_impl.h"
#include "tests/support/gpu/cuda_rig.h"

#include <omp.h>

/* ---- what a case is ---------------------------------------------------------------------------
 */

struct setting {
    struct ops *ops;            /* the row under test */
    const struct cuda_rig *rig; /* of a device; NULL: ops are the host's */
    int n_threads;
    size_t numel, offset; /* elements past a 64-byte line, bits past a byte */
    bool special;
    enum cz_dtype dtype; /* of gradients and parameters */
    int variant;
};

/* A tensor twice: for the definition in one thread, and for the row under test. */
struct pair {
    struct agree_buf want, got;
};

static struct pair pair_make(const struct setting *s, enum cz_dtype dtype, size_t numel,
                             uint64_t seed)
{
    struct pair p = {agree_buf_make(dtype, numel, 0), agree_buf_make(dtype, numel, s->offset)};
    if (s->special)
        agree_fill_special(&p.want, seed, 0.5f);
    else
        agree_fill(&p.want, seed, 0.5f);
    if (numel > 0) memcpy(p.got.p, p.want.p, p.want.nbytes);
    return p;
}

static struct pair floats(const struct setting *s, uint64_t seed)
{
    return pair_make(s, DTYPE_F32, s->numel, seed);
}

/* A variance: not negative, and sometimes 0. */
static struct pair variance(const struct setting *s, uint64_t seed)
{
    struct pair p = floats(s, seed);
    for (size_t i = 0; i < s->numel; i++) {
        if (s->special && i % 3 == 0) continue;
        float v = agree_random(seed, i) % 11 == 0 ? 0 : fabsf(agree_get(&p.want, i));
        agree_set(&p.want, i, v), agree_set(&p.got, i, v);
    }
    return p;
}

static struct pair bytes(const struct setting *s, size_t nbytes, uint64_t seed)
{
    struct pair p = {agree_buf_make(DTYPE_U8, nbytes, 0),
                     agree_buf_make(DTYPE_U8, nbytes, s->offset)};
    for (size_t i = 0; i < nbytes; i++)
        ((uint8_t *)p.want.p)[i] = ((uint8_t *)p.got.p)[i] = (uint8_t)agree_random(seed, i);
    return p;
}

static struct pair partials(size_t n)
{
    return (struct pair){agree_buf_make(DTYPE_F64, n, 0), agree_buf_make(DTYPE_F64, n, 0)};
}

static void check_bytes(struct pair *p, const char *what)
{
    agree_same(&p->got, &p->want, what);
    agree_guards(&p->got, what);
    agree_buf_free(&p->want), agree_buf_free(&p->got);
}

static void check_floats(const struct setting *s, struct pair *p, const char *what)
{
    const struct agree_tol tol = {.op = what, .why = "one written sequence: equal to the bit"};
    agree_check(&p->got, &p->want, &tol, s->ops->isa, what);
    agree_buf_free(&p->want), agree_buf_free(&p->got);
}

static void same_double(double got, double want, const char *what)
{
    if (isnan(got) && isnan(want)) return;
    agree_assert(memcmp(&got, &want, sizeof got) == 0, "%s: %.17g, not %.17g", what, got, want);
}

static void check_partials(struct pair *p)
{
    for (size_t i = 0; i < p->want.numel; i++)
        same_double(((double *)p->got.p)[i], ((double *)p->want.p)[i], "partial sum");
    agree_guards(&p->got, "partial sums");
    agree_buf_free(&p->want), agree_buf_free(&p->got);
}

static const struct step_scalars scalars = {
    .grad_scale = 0.37f, .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .step_size = 7e-3f};
static const struct step_scalars unsettled = {.step_size = 0};

/* From bit `offset` on; bit 1 of the variant leaves it out. */
static struct onebit_mask mask_of(const struct setting *s, const void *bits)
{
    return (struct onebit_mask){.bits = s->variant & 1 ? NULL : bits, .first = s->offset};
}

static struct pair mask_bits(const struct setting *s)
{
    return bytes(s, (s->offset + s->numel + 7) / 8, 90); /* none to spare: guards follow */
}

/* ---- the row's arguments, on its device -------------------------------------------------------
 *
 * What is lent to a device is copied there, guard bytes included, and back after the run. */

struct onebit_lent {
    void *host, *there;
    size_t nbytes;
    bool comes_back;
};
static struct onebit_lent lent[24];
static size_t n_lent;

static void *lend_block(const struct setting *s, void *host, size_t nbytes, bool comes_back)
{
    if (!s->rig || nbytes == 0) return host;
    ck_assert_uint_lt(n_lent, CZ_ARRAY_LEN(lent));
    void *there = rig_put_bytes(s->rig, host, nbytes);
    lent[n_lent++] = (struct onebit_lent){host, there, nbytes, comes_back};
    return there;
}

static void *lend(const struct setting *s, const struct agree_buf *b)
{
    size_t lead = (size_t)((unsigned char *)b->p - b->block);
    return (char *)lend_block(s, b->block, lead + b->nbytes + AGREE_GUARD, true) + lead;
}

static const struct step_scalars *lend_scalars(const struct setting *s,
                                               const struct step_scalars *scalars_)
{
    return scalars_ ? lend_block(s, (void *)(uintptr_t)scalars_, sizeof *scalars_, false) : NULL;
}

static void take_back(const struct setting *s)
{
    if (s->rig) ck_ok(s->rig->dev->ops->stream_sync(s->rig->dev, NULL));
    for (; n_lent > 0; n_lent--) {
        const struct onebit_lent *l = &lent[n_lent - 1];
        if (l->comes_back) rig_get_bytes(s->rig, l->there, l->host, l->nbytes);
        rig_free_bytes(s->rig, l->there, l->nbytes);
    }
}

static struct ops onebit_truth(void)
{
    static const struct ops_row scalar = {"scalar", 0};
    return agree_wire(onebit_wire, &scalar);
}

#define RUN(op, want_args, got_args)                                                               \
    do {                                                                                           \
        struct ops truth_ = onebit_truth();                                                        \
        omp_set_num_threads(1);                                                                    \
        ck_ok(truth_.op(&truth_, NULL, want_args));                                                \
        omp_set_num_threads(s->n_threads);                                                         \
        ck_ok(s->ops->op(s->ops, NULL, got_args));                                                 \
        take_back(s);                                                                              \
    } while (0)

/* ---- a case of each op ------------------------------------------------------------------------
 */

static void feed_case(const struct setting *s)
{
    struct pair e = floats(s, 1), m = floats(s, 2), g = pair_make(s, s->dtype, s->numel, 3);
    struct pair sums = partials(onebit_n_partials(s->numel));
    bool has_g = s->variant != 0, has_m = s->variant == 2;
    struct onebit_feed_args want = {.numel = s->numel,
                                    .m = has_m ? m.want.p : NULL,
                                    .g = has_g ? g.want.p : NULL,
                                    .g_dtype = s->dtype,
                                    .scalars = &scalars,
                                    .coeff = s->variant == 3 ? 1 : 1.7f,
                                    .e = e.want.p,
                                    .partials = sums.want.p};
    struct onebit_feed_args got = want;
    got.m = has_m ? lend(s, &m.got) : NULL, got.g = has_g ? lend(s, &g.got) : NULL;
    got.e = lend(s, &e.got), got.partials = lend(s, &sums.got);
    got.scalars = lend_scalars(s, &scalars);
    RUN(onebit_feed, &want, &got);
    check_floats(s, &e, "feed: e");
    check_bytes(&m, "feed: m"), check_bytes(&g, "feed: g");
    check_partials(&sums);
}

/* Of `numel` partial sums, more than a block of threads fetches at once; bit 1: of no elements. */
static void scale_case(const struct setting *s)
{
    struct pair sums = partials(s->numel);
    float want_scale = NAN, got_scale = NAN;
    for (size_t i = 0; i < s->numel; i++) {
        double sum = (double)(agree_random(7, i) >> 11) * 0x1p-53;
        if (s->special && i == s->numel / 2) sum = i % 2 ? NAN : INFINITY;
        ((double *)sums.want.p)[i] = ((double *)sums.got.p)[i] = sum;
    }
    struct onebit_scale_args want = {.numel = s->variant & 1 ? 0 : s->numel * ONEBIT_BLOCK + 1,
                                     .partials = sums.want.p,
                                     .n_partials = s->numel,
                                     .scale = &want_scale};
    struct onebit_scale_args got = want;
    got.partials = lend(s, &sums.got);
    got.scale = lend_block(s, &got_scale, sizeof got_scale, true);
    RUN(onebit_scale, &want, &got);
    same_double((double)got_scale, (double)want_scale, "scale");
    check_partials(&sums);
}

/* numel in chunks: one, three, or as many as there can be; with a gap between their bytes. */
static void pack_case(const struct setting *s)
{
    struct setting whole = *s;
    size_t chunk = s->variant == 2 ? 8 : (s->numel + 7) / 8 * 8;
    size_t n_chunks = s->variant == 2 ? (s->numel + 7) / 8 : s->variant == 1 ? 3 : 1;
    size_t stride = chunk / 8 + (s->variant == 0 ? 0 : 3);
    whole.numel = chunk * n_chunks;
    struct pair e = floats(&whole, 1), bits = bytes(s, n_chunks * stride, 5);
    float scale = s->special ? 0x1.234p-129f : 0.123f;
    struct onebit_pack_args want = {.numel = whole.numel,
                                    .chunk_numel = chunk,
                                    .chunk_stride = stride,
                                    .scale = &scale,
                                    .e = e.want.p,
                                    .bits = bits.want.p};
    struct onebit_pack_args got = want;
    got.e = lend(s, &e.got), got.bits = lend(s, &bits.got);
    got.scale = lend_block(s, &scale, sizeof scale, false);
    RUN(onebit_pack, &want, &got);
    check_floats(s, &e, "pack: e");
    check_bytes(&bits, "pack: bits");
}

/* The variant is how many ranks there are beyond one. */
static void serve_case(const struct setting *s)
{
    struct setting whole = *s;
    size_t n_ranks = (size_t)s->variant + 1, scale_stride = 1 + s->offset % 3;
    whole.numel = (s->numel + 7) / 8 * 8;
    size_t stride = whole.numel / 8 + s->offset % 2;
    struct pair e = floats(&whole, 1), sums = partials(onebit_n_partials(whole.numel));
    struct pair bits = bytes(s, (n_ranks - 1) * stride + whole.numel / 8, 5);
    struct pair scales = pair_make(s, DTYPE_F32, (n_ranks - 1) * scale_stride + 1, 6);
    struct onebit_serve_args want = {.numel = whole.numel,
                                     .n_ranks = (int)n_ranks,
                                     .bits = bits.want.p,
                                     .rank_stride = stride,
                                     .scales = scales.want.p,
                                     .scale_stride = scale_stride,
                                     .inv_ranks = 1.0f / (float)n_ranks,
                                     .e = e.want.p,
                                     .partials = sums.want.p};
    struct onebit_serve_args got = want;
    got.bits = lend(s, &bits.got), got.scales = lend(s, &scales.got), got.e = lend(s, &e.got);
    got.partials = lend(s, &sums.got);
    RUN(onebit_serve, &want, &got);
    check_floats(s, &e, "serve: e");
    check_bytes(&bits, "serve: bits"), check_bytes(&scales, "serve: scales");
    check_partials(&sums);
}

/* Elements from `begin` on, any place in a byte, over chunks of some size; bits 2 and 4 of the
 * variant: join a momentum, follow a gradient. */
static void unpack_from(const struct setting *s, size_t begin, size_t chunk)
{
    size_t n_chunks = (begin + s->numel + chunk - 1) / chunk, stride = chunk / 8 + 1;
    struct pair x = floats(s, 1), fresh = variance(s, 2), mask = mask_bits(s);
    struct pair bits = bytes(s, n_chunks * stride, 5);
    struct pair scales = pair_make(s, DTYPE_F32, 2 * n_chunks, 6);
    bool has_fresh = s->variant & 4;
    struct onebit_unpack_args want = {.begin = begin,
                                      .end = begin + s->numel,
                                      .chunk_numel = chunk,
                                      .chunk_stride = stride,
                                      .bits = bits.want.p,
                                      .scales = scales.want.p,
                                      .scale_stride = 2,
                                      .coeff = 1.3f,
                                      .mask = mask_of(s, mask.want.p),
                                      .blend = s->variant & 2 ? &scalars : NULL,
                                      .scalars = &scalars,
                                      .fresh = has_fresh ? fresh.want.p : NULL,
                                      .x = x.want.p};
    struct onebit_unpack_args got = want;
    got.bits = lend(s, &bits.got), got.scales = lend(s, &scales.got),
    got.mask = mask_of(s, lend(s, &mask.got));
    got.fresh = has_fresh ? lend(s, &fresh.got) : NULL, got.x = lend(s, &x.got);
    got.blend = lend_scalars(s, want.blend), got.scalars = lend_scalars(s, &scalars);
    RUN(onebit_unpack, &want, &got);
    check_floats(s, &x, "unpack: x"), check_floats(s, &fresh, "unpack: fresh");
    check_bytes(&bits, "unpack: bits"), check_bytes(&mask, "unpack: mask");
    check_bytes(&scales, "unpack: scales");
}

static void unpack_case(const struct setting *s)
{
    for (size_t begin = 0; begin < (s->numel > 200 ? 4 : 11); begin++) {
        unpack_from(s, begin * 7 % 11, 8);
        unpack_from(s, begin, 40);
        unpack_from(s, begin * 5 % 11, (begin * 5 % 11 + s->numel) / 8 * 8 + 8); /* one chunk */
    }
}

static void momentum_case(const struct setting *s)
{
    struct pair m = floats(s, 1), g = pair_make(s, s->dtype, s->numel, 3), fresh = variance(s, 4);
    struct pair mask = mask_bits(s);
    bool has_fresh = s->variant & 2;
    struct onebit_momentum_args want = {.numel = s->numel,
                                        .g = g.want.p,
                                        .g_dtype = s->dtype,
                                        .scalars = &scalars,
                                        .mask = mask_of(s, mask.want.p),
                                        .m = m.want.p,
                                        .fresh = has_fresh ? fresh.want.p : NULL};
    struct onebit_momentum_args got = want;
    got.g = lend(s, &g.got), got.mask = mask_of(s, lend(s, &mask.got)), got.m = lend(s, &m.got);
    got.fresh = has_fresh ? lend(s, &fresh.got) : NULL;
    got.scalars = lend_scalars(s, &scalars);
    RUN(onebit_momentum, &want, &got);
    check_floats(s, &m, "momentum: m"), check_floats(s, &fresh, "momentum: fresh");
    check_bytes(&g, "momentum: g"), check_bytes(&mask, "momentum: mask");
}

static void mask_make_case(const struct setting *s)
{
    struct pair v = variance(s, 1), bits = mask_bits(s);
    struct onebit_mask_make_args want = {
        .numel = s->numel, .v = v.want.p, .floor = 0.2f, .first = s->offset, .bits = bits.want.p};
    struct onebit_mask_make_args got = want;
    got.v = lend(s, &v.got), got.bits = lend(s, &bits.got);
    RUN(onebit_mask_make, &want, &got);
    check_bytes(&v, "mask_make: v"), check_bytes(&bits, "mask_make: bits");
}

/* The variant is how many ranks there are beyond one. */
static void mask_join_case(const struct setting *s)
{
    size_t n_ranks = (size_t)s->variant + 1, stride = s->numel + s->offset % 3;
    struct pair bits = bytes(s, (n_ranks - 1) * stride + s->numel, 5), out = bytes(s, s->numel, 6);
    struct onebit_mask_join_args want = {.nbytes = s->numel,
                                         .n_ranks = (int)n_ranks,
                                         .bits = bits.want.p,
                                         .rank_stride = stride,
                                         .out = out.want.p};
    struct onebit_mask_join_args got = want;
    got.bits = lend(s, &bits.got), got.out = lend(s, &out.got);
    RUN(onebit_mask_join, &want, &got);
    check_bytes(&bits, "mask_join: bits"), check_bytes(&out, "mask_join: out");
}

struct norms {
    struct lamb_sums sums[2];
    float factors[2];
};

static void norms_check(const struct norms *got, const struct norms *want)
{
    for (size_t t = 0; t < 2; t++) {
        same_double(lamb_sum(got->sums[t].p), lamb_sum(want->sums[t].p), "sum of u0");
        same_double(lamb_sum(got->sums[t].u), lamb_sum(want->sums[t].u), "sum of u");
        same_double((double)got->factors[t], (double)want->factors[t], "factor");
    }
}

/* Two tensors with a gap between them; bit 2 of the variant: weight decay. */
static void norms_case(const struct setting *s)
{
    struct pair m = floats(s, 1), v = variance(s, 2), fresh = variance(s, 3), p = floats(s, 4);
    struct pair mask = mask_bits(s);
    struct norms want_norms = {.factors = {0}}, got_norms = {.factors = {0}};
    size_t half = s->numel / 2;
    struct lamb_segment segments[] = {{0, half, 1}, {half + (half > 0), s->numel, 0}};
    struct onebit_lamb_norms_args want = {.numel = s->numel,
                                          .m = m.want.p,
                                          .v = v.want.p,
                                          .fresh = fresh.want.p,
                                          .p = p.want.p,
                                          .eps = 1e-6f,
                                          .weight_decay = s->variant & 2 ? 0.01f : 0,
                                          .mask = mask_of(s, mask.want.p),
                                          .segments = segments,
                                          .n_segments = 2,
                                          .sums = want_norms.sums,
                                          .factors = want_norms.factors};
    struct onebit_lamb_norms_args got = want;
    got.m = lend(s, &m.got), got.v = lend(s, &v.got), got.fresh = lend(s, &fresh.got),
    got.p = lend(s, &p.got);
    got.mask = mask_of(s, lend(s, &mask.got));
    got.sums = lend_block(s, got_norms.sums, sizeof got_norms.sums, true);
    got.factors = lend_block(s, got_norms.factors, sizeof got_norms.factors, true);
    RUN(onebit_lamb_norms, &want, &got);
    norms_check(&got_norms, &want_norms);
    check_bytes(&m, "norms: m"), check_bytes(&v, "norms: v"), check_bytes(&p, "norms: p");
    check_bytes(&fresh, "norms: fresh"), check_bytes(&mask, "norms: mask");
}

struct zero_one {
    struct pair g, mask, m, moved, v, p, out;
};

static struct zero_one zero_one_make(const struct setting *s)
{
    return (struct zero_one){.g = pair_make(s, s->dtype, s->numel, 1),
                             .mask = mask_bits(s),
                             .m = floats(s, 2),
                             .moved = floats(s, 3),
                             .v = variance(s, 4),
                             .p = floats(s, 5),
                             .out = pair_make(s, s->dtype, s->numel, 6)};
}

static struct zero_one_args zero_one_args(const struct setting *s, struct zero_one *z, bool is_got)
{
#define OF(name) (is_got ? lend(s, &z->name.got) : z->name.want.p)
    const struct step_scalars *with = s->variant & 4 ? &unsettled : &scalars;
    return (struct zero_one_args){.numel = s->numel,
                                  .g = OF(g),
                                  .g_dtype = s->dtype,
                                  .scalars = is_got ? lend_scalars(s, with) : with,
                                  .eps = 1e-8f,
                                  .weight_decay = s->variant & 2 ? 0.01f : 0,
                                  .mask = mask_of(s, OF(mask)),
                                  .m = OF(m),
                                  .moved = OF(moved),
                                  .v = OF(v),
                                  .p = OF(p),
                                  .out = OF(out),
                                  .out_dtype = s->dtype};
#undef OF
}

static void zero_one_check(const struct setting *s, struct zero_one *z)
{
    check_floats(s, &z->m, "m"), check_floats(s, &z->moved, "moved");
    check_floats(s, &z->p, "p"), check_floats(s, &z->out, "out");
    check_bytes(&z->g, "g"), check_bytes(&z->v, "v"), check_bytes(&z->mask, "mask");
}

static void local_case(const struct setting *s)
{
    struct zero_one z = zero_one_make(s);
    struct zero_one_args want = zero_one_args(s, &z, false), got = zero_one_args(s, &z, true);
    RUN(zero_one_local, &want, &got);
    zero_one_check(s, &z);
}

static void gather_case(const struct setting *s)
{
    struct zero_one z = zero_one_make(s);
    struct zero_one_args want = zero_one_args(s, &z, false), got = zero_one_args(s, &z, true);
    RUN(zero_one_gather, &want, &got);
    zero_one_check(s, &z);
}

static void settle_case(const struct setting *s)
{
    struct zero_one z = zero_one_make(s);
    struct zero_one_args want = zero_one_args(s, &z, false), got = zero_one_args(s, &z, true);
    RUN(zero_one_settle, &want, &got);
    zero_one_check(s, &z);
}

/* ---- all ops ----------------------------------------------------------------------------------
 */

static const struct op {
    void (*run)(const struct setting *s);
    int n_variants;
    int n_dtypes;
} op_feed = {feed_case, 4, 3}, op_scale = {scale_case, 2, 1}, op_pack = {pack_case, 3, 1},
  op_serve = {serve_case, 9, 1}, op_unpack = {unpack_case, 6, 1},
  op_mask_make = {mask_make_case, 1, 1}, op_mask_join = {mask_join_case, 3, 1},
  op_momentum = {momentum_case, 4, 3}, op_norms = {norms_case, 4, 1}, op_local = {local_case, 4, 3},
  op_gather = {gather_case, 1, 1}, op_settle = {settle_case, 5, 3};

#endif

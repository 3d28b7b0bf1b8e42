/* Claims: an exchange over two ranks gives the figures of docs/deepspeed-behaviour.md, twice;
 * what a sign does not say stays behind as error; masks are made bit by bit; the optimizers'
 * formulas come out as in double; bad arguments are refused, and no elements are nothing to do. */
#include "ops/onebit/onebit_impl.h"
#include "tests/support/agree.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct onebit_row *const *rows = onebit_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

/* ---- an exchange manually ----------------------------------------------------------------------
 */

enum { W = 2, N0 = 5, N = 16, CHUNK = N / W };

struct rank {
    float e[N], server_e[CHUNK];
    uint8_t bits[W]; /* of its vector, a byte per chunk */
    float scale, server_scale;
    uint8_t server_bits;
};

static const float inputs[W][N0] = {{1, -2, 3, 0, -.5f}, {2, 2, -1, 0, .5f}};
static const struct step_scalars unit = {.grad_scale = 1, .beta1 = 0.9f, .beta2 = 0.99f};

static void near(float got, float want, const char *what)
{
    agree_assert(fabsf(got - want) <= 2e-6f, "%s is %.8g, not %.8g", what, (double)got,
                 (double)want);
}

static void all_near(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) near(got[i], want[i], what);
}

static float scale_of(struct ops *ops, const double *partials, size_t n, size_t numel)
{
    float scale = NAN;
    const struct onebit_scale_args args = {
        .numel = numel, .partials = partials, .n_partials = n, .scale = &scale};
    ck_ok(ops_onebit_scale(ops, NULL, &args));
    return scale;
}

static void send(struct ops *ops, struct rank *r, const float x[N0])
{
    double partials[2];
    struct onebit_feed_args feed = {
        .numel = N0, .g = x, .scalars = &unit, .coeff = 1, .e = r->e, .partials = partials};
    struct onebit_feed_args padding = {
        .numel = N - N0, .e = r->e + N0, .partials = partials + 1, .coeff = 1};
    ck_ok(ops_onebit_feed(ops, NULL, &feed));
    ck_ok(ops_onebit_feed(ops, NULL, &padding));
    r->scale = scale_of(ops, partials, 2, N);
    struct onebit_pack_args pack = {.numel = N,
                                    .chunk_numel = CHUNK,
                                    .chunk_stride = 1,
                                    .scale = &r->scale,
                                    .e = r->e,
                                    .bits = r->bits};
    ck_ok(ops_onebit_pack(ops, NULL, &pack));
}

static void serve(struct ops *ops, struct rank ranks[W], size_t own)
{
    struct rank *r = &ranks[own];
    uint8_t got[W];
    float scales[W];
    double partial;
    for (size_t q = 0; q < W; q++) got[q] = ranks[q].bits[own], scales[q] = ranks[q].scale;
    struct onebit_serve_args args = {.numel = CHUNK,
                                     .n_ranks = W,
                                     .bits = got,
                                     .rank_stride = 1,
                                     .scales = scales,
                                     .scale_stride = 1,
                                     .inv_ranks = 1.0f / W,
                                     .e = r->server_e,
                                     .partials = &partial};
    ck_ok(ops_onebit_serve(ops, NULL, &args));
    r->server_scale = scale_of(ops, &partial, 1, CHUNK);
    struct onebit_pack_args pack = {.numel = CHUNK,
                                    .chunk_numel = CHUNK,
                                    .scale = &r->server_scale,
                                    .e = r->server_e,
                                    .bits = &r->server_bits};
    ck_ok(ops_onebit_pack(ops, NULL, &pack));
}

static void exchange(struct ops *ops, struct rank ranks[W], float result[N0])
{
    for (size_t q = 0; q < W; q++) send(ops, &ranks[q], inputs[q]);
    for (size_t q = 0; q < W; q++) serve(ops, ranks, q);
    const uint8_t bits[W] = {ranks[0].server_bits, ranks[1].server_bits};
    const float scales[W] = {ranks[0].server_scale, ranks[1].server_scale};
    struct onebit_unpack_args args = {.end = N0,
                                      .chunk_numel = CHUNK,
                                      .chunk_stride = 1,
                                      .bits = bits,
                                      .scales = scales,
                                      .scale_stride = 1,
                                      .coeff = 1,
                                      .x = result};
    ck_ok(ops_onebit_unpack(ops, NULL, &args));
}

static void first_call(const struct rank ranks[W], const float result[N0])
{
    static const float e0[N] = {.0562707f,  -1.0562707f, 2.0562707f, -.9437293f,
                                .4437293f,  -.9437293f,  -.9437293f, -.9437293f,
                                -.9437293f, -.9437293f,  -.9437293f, -.9437293f,
                                -.9437293f, -.9437293f,  -.9437293f, -.9437293f};
    static const float s0[CHUNK] = {.1761065f, .5842389f, -.5842389f, .1761065f,
                                    .5842389f, .1761065f, .1761065f,  .1761065f};
    static const float s1[CHUNK] = {0};
    static const float want[N0] = {.6759309f, -.6759309f, .6759309f, .6759309f, -.6759309f};
    near(ranks[0].scale, .9437293f, "scale of rank 0");
    near(ranks[1].scale, .7603453f, "scale of rank 1");
    ck_assert(ranks[0].bits[0] == 0xb7 && ranks[0].bits[1] == 0xff);
    ck_assert(ranks[1].bits[0] == 0xdf && ranks[1].bits[1] == 0xff);
    near(ranks[0].server_scale, .6759309f, "scale of server 0");
    near(ranks[1].server_scale, .8520373f, "scale of server 1");
    ck_assert(ranks[0].server_bits == 0xb7 && ranks[1].server_bits == 0xff);
    all_near(ranks[0].e, e0, N, "worker error");
    all_near(ranks[0].server_e, s0, CHUNK, "server error 0");
    all_near(ranks[1].server_e, s1, CHUNK, "server error 1");
    all_near(result, want, N0, "result");
}

static void second_call(const struct rank ranks[W], const float result[N0])
{
    static const float want[N0] = {1.161633f, 1.161633f, -1.161633f, -1.161633f, 1.161633f};
    near(ranks[0].scale, 1.708673f, "scale of rank 0");
    near(ranks[1].scale, 1.358363f, "scale of rank 1");
    ck_assert(ranks[0].bits[0] == 0xa0 && ranks[0].bits[1] == 0);
    ck_assert(ranks[1].bits[0] == 0xc8 && ranks[1].bits[1] == 0);
    near(ranks[0].server_scale, 1.161633f, "scale of server 0");
    near(ranks[1].server_scale, 1.533518f, "scale of server 1");
    all_near(result, want, N0, "result");
}

START_TEST(two_ranks_give_the_test_vector)
{
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(onebit_wire, row(r));
        struct rank ranks[W] = {{.scale = 0}};
        float result[N0];
        exchange(&ops, ranks, result);
        first_call(ranks, result);
        exchange(&ops, ranks, result);
        second_call(ranks, result);
    }
}
END_TEST

/* ---- error feedback ---------------------------------------------------------------------------
 */

START_TEST(what_a_sign_does_not_say_stays)
{
    enum { NUMEL = 10000 };
    static float x[NUMEL], before[NUMEL], e[NUMEL];
    uint8_t bits[NUMEL / 8];
    double partials[3];
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(onebit_wire, row(r));
        for (size_t i = 0; i < NUMEL; i++) {
            x[i] = (float)(agree_random(1, i) >> 40) * 0x1p-23f - 1;
            e[i] = before[i] = (float)(agree_random(2, i) >> 40) * 0x1p-24f - 0.5f;
        }
        struct onebit_feed_args feed = {
            .numel = NUMEL, .g = x, .scalars = &unit, .coeff = 1, .e = e, .partials = partials};
        ck_ok(ops_onebit_feed(&ops, NULL, &feed));
        ck_assert_uint_eq(onebit_n_partials(NUMEL), 3);
        float scale = scale_of(&ops, partials, 3, NUMEL);
        double squares = 0;
        for (size_t i = 0; i < NUMEL; i++) squares += (double)e[i] * (double)e[i];
        near(scale, (float)sqrt(squares / NUMEL), "scale");
        struct onebit_pack_args pack = {
            .numel = NUMEL, .chunk_numel = NUMEL, .scale = &scale, .e = e, .bits = bits};
        ck_ok(ops_onebit_pack(&ops, NULL, &pack));
        for (size_t i = 0; i < NUMEL; i++) {
            float said = onebit_bit(bits, i) ? scale : -scale, fed = x[i] + before[i];
            agree_assert(onebit_bit(bits, i) == (fed >= 0), "bit %zu", i);
            agree_assert(fabsf(said + e[i] - fed) <= 3e-7f, "element %zu: %g is lost", i,
                         (double)(said + e[i] - fed));
        }
        ck_assert_float_eq(scale_of(&ops, partials, 0, 0), 0);
    }
}
END_TEST

/* ---- masks ------------------------------------------------------------------------------------
 */

START_TEST(masks_are_made_bit_by_bit)
{
    const float v[13] = {0, 1, 0.5f, 0.25f, -1, NAN, INFINITY, 1, 1, 0, 0, 2, 0};
    for (size_t first = 0; first < 20; first++) {
        uint8_t bits[6], want[6];
        for (size_t k = 0; k < 6; k++) bits[k] = want[k] = (uint8_t)(0xa5 + 29 * k);
        for (size_t i = 0; i < 13; i++) {
            size_t bit = first + i;
            want[bit / 8] &= (uint8_t) ~(0x80 >> bit % 8);
            if (v[i] > 0.25f) want[bit / 8] |= (uint8_t)(0x80 >> bit % 8);
        }
        struct ops ops = agree_wire(onebit_wire, row(0));
        struct onebit_mask_make_args args = {
            .numel = 13, .v = v, .floor = 0.25f, .first = first, .bits = bits};
        ck_ok(ops_onebit_mask_make(&ops, NULL, &args));
        ck_assert_mem_eq(bits, want, sizeof bits);
    }
}
END_TEST

/* ---- what optimizers compute around it --------------------------------------------------------
 */

enum { K = 20 };

/* Values in [−1, 1), and beside them what the formulas say, in double. */
static struct values {
    float g[K], m[K], v[K], fresh[K], p[K], moved[K], out[K];
    uint8_t mask[3]; /* element i is bit 2 + i */
} values;

static const struct step_scalars step = {
    .grad_scale = 0.25f, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .step_size = 0.03f};

static float value(uint64_t seed, size_t i)
{
    return (float)(agree_random(seed, i) >> 40) * 0x1p-23f - 1;
}

/* Returns what it filled `values` with. */
static struct values refill(void)
{
    for (size_t i = 0; i < K; i++) {
        values.g[i] = value(1, i), values.m[i] = value(2, i);
        values.v[i] = fabsf(value(3, i)), values.fresh[i] = fabsf(value(4, i));
        values.p[i] = value(5, i), values.moved[i] = value(6, i);
    }
    memcpy(values.mask, "\xf5\x3b\xde", 3);
    return values;
}

static bool takes_part(size_t i)
{
    return onebit_bit(values.mask, 2 + i);
}

static void about(float got, double want, const char *what, size_t i)
{
    agree_assert(fabs((double)got - want) <= 2e-6 * fmax(1, fabs(want)),
                 "%s[%zu] is %.8g, not %.8g", what, i, (double)got, want);
}

static void momentum_of(struct ops *ops)
{
    const struct values was = refill();
    struct onebit_momentum_args args = {.numel = K,
                                        .g = values.g,
                                        .scalars = &step,
                                        .mask = {values.mask, 2},
                                        .m = values.m,
                                        .fresh = values.fresh};
    ck_ok(ops_onebit_momentum(ops, NULL, &args));
    for (size_t i = 0; i < K; i++) {
        double g = takes_part(i) ? 0.25 * (double)was.g[i] : 0;
        about(values.m[i], takes_part(i) ? 0.9 * (double)was.m[i] + 0.1 * g : 0, "m", i);
        about(values.fresh[i], 0.95 * (double)was.fresh[i] + 0.05 * g * g, "fresh", i);
    }
}

/* Elements 5 … 24 of three chunks of 16. */
static void unpack_of(struct ops *ops, bool blend)
{
    static const uint8_t bits[] = {0x35, 0xc1, 0x9e, 0x07, 0, 0};
    static const float scales[] = {0.5f, 9, 0.7f, 9, 0.8f};
    const struct values was = refill();
    struct onebit_unpack_args args = {.begin = 5,
                                      .end = 5 + K,
                                      .chunk_numel = 16,
                                      .chunk_stride = 2,
                                      .bits = bits,
                                      .scales = scales,
                                      .scale_stride = 2,
                                      .coeff = 2,
                                      .mask = {values.mask, 2},
                                      .blend = blend ? &step : NULL,
                                      .scalars = &step,
                                      .fresh = blend ? NULL : values.fresh,
                                      .x = values.m};
    ck_ok(ops_onebit_unpack(ops, NULL, &args));
    for (size_t i = 0; i < K; i++) {
        double x = 5 + i < 16 ? 0.25 : 0.35, before = (double)was.m[i];
        if (!onebit_bit(bits, 5 + i)) x = -x;
        if (!takes_part(i)) x = 0;
        double g = (x - 0.9 * before) / 0.1;
        about(values.m[i], blend ? 0.9 * before + 0.1 * x : x, "x", i);
        if (!blend) about(values.fresh[i], 0.95 * (double)was.fresh[i] + 0.05 * g * g, "fresh", i);
    }
}

static void norms_of(struct ops *ops, double decay)
{
    refill();
    const struct lamb_segment segments[] = {{0, 9, 1}, {11, K, 0}};
    struct lamb_sums sums[2] = {{{0}, {0}}, {{0}, {0}}};
    float factors[2] = {0};
    struct onebit_lamb_norms_args args = {.numel = K,
                                          .m = values.m,
                                          .v = values.v,
                                          .fresh = values.fresh,
                                          .p = values.p,
                                          .eps = 0.125f,
                                          .weight_decay = (float)decay,
                                          .mask = {values.mask, 2},
                                          .segments = segments,
                                          .n_segments = 2,
                                          .sums = sums,
                                          .factors = factors};
    ck_ok(ops_onebit_lamb_norms(ops, NULL, &args));
    for (size_t t = 0; t < 2; t++) {
        double of_u0 = 0, of_u = 0, factor = 0;
        for (size_t i = segments[1 - t].begin; i < segments[1 - t].end; i++) {
            double d = sqrt((double)values.v[i]) + 0.125, u0 = (double)values.m[i] / d;
            double u = u0 + decay * (double)values.p[i];
            of_u0 += u0 * u0, of_u += u * u;
            if (takes_part(i)) factor = fmax(factor, d / (sqrt((double)values.fresh[i]) + 0.125));
        }
        about((float)lamb_sum(sums[t].p), of_u0, "sum of u0", t);
        about((float)lamb_sum(sums[t].u), of_u, "sum of u", t);
        about(factors[t], factor, "factor", t);
    }
}

static struct zero_one_args zero_one_of(const struct step_scalars *scalars)
{
    return (struct zero_one_args){.numel = K,
                                  .g = values.g,
                                  .scalars = scalars,
                                  .eps = 0.125f,
                                  .weight_decay = 0.5f,
                                  .mask = {values.mask, 2},
                                  .m = values.m,
                                  .moved = values.moved,
                                  .v = values.v,
                                  .p = values.p,
                                  .out = values.out};
}

static void local_of(struct ops *ops)
{
    const struct values was = refill();
    struct zero_one_args args = zero_one_of(&step);
    ck_ok(ops_zero_one_local(ops, NULL, &args));
    for (size_t i = 0; i < K; i++) {
        double m = 0.9 * (double)was.m[i] + 0.1 * 0.25 * (double)was.g[i];
        if (!takes_part(i)) m = 0;
        double u = m / (sqrt((double)was.v[i]) + 0.125);
        u += 0.5 * ((double)was.p[i] + (double)was.moved[i]);
        about(values.m[i], m, "m", i);
        about(values.moved[i], (double)was.moved[i] - 0.01 * u, "moved", i);
        about(values.out[i], (double)was.p[i] + (double)was.moved[i] - 0.01 * u, "out", i);
        about(values.p[i], (double)was.p[i], "p", i);
    }
}

/* Without an exchange in between gather and settle are undone by each other, but for m and p. */
static void settle_of(struct ops *ops, float step_size)
{
    const struct values was = refill();
    const struct step_scalars scalars = {.step_size = step_size};
    struct zero_one_args args = zero_one_of(&scalars);
    ck_ok(ops_zero_one_gather(ops, NULL, &args));
    for (size_t i = 0; i < K; i++) {
        double d = sqrt((double)was.v[i]) + 0.125;
        about(values.moved[i], (double)was.moved[i] * d, "moved", i);
    }
    ck_ok(ops_zero_one_settle(ops, NULL, &args));
    for (size_t i = 0; i < K; i++) {
        double d = sqrt((double)was.v[i]) + 0.125, moved = (double)was.moved[i];
        double m = step_size != 0 ? -moved * d / (double)step_size : (double)was.m[i];
        about(values.m[i], m, "m", i);
        about(values.p[i], (double)was.p[i] + moved, "p", i);
        about(values.out[i], (double)was.p[i] + moved, "out", i);
        ck_assert(values.moved[i] == 0);
    }
}

START_TEST(formulas_are_the_headers)
{
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(onebit_wire, row(r));
        momentum_of(&ops);
        unpack_of(&ops, false), unpack_of(&ops, true);
        norms_of(&ops, 0), norms_of(&ops, 0.5);
        local_of(&ops);
        settle_of(&ops, 0.03f), settle_of(&ops, 0);
    }
}
END_TEST

/* ---- arguments --------------------------------------------------------------------------------
 */

/* That an op which takes `good` refuses it with one thing changed. */
#define REFUSED(op, good, change)                                                                  \
    do {                                                                                           \
        __typeof__(good) bad_ = (good);                                                            \
        bad_.change;                                                                               \
        ck_fails(ops.op(&ops, NULL, &bad_), CZ_INVALID);                                           \
    } while (0)

static float f0[16], f1[16], f2[16], f3[16], f4[16], f5[16];
static uint8_t some_bits[16];
static double sums_of[1];

START_TEST(bad_arguments_of_an_exchange_are_refused)
{
    struct ops ops = agree_wire(onebit_wire, row(0));
    struct onebit_feed_args feed = {
        .numel = 9, .m = f0, .g = f1, .scalars = &unit, .coeff = 1, .e = f2, .partials = sums_of};
    ck_ok(ops_onebit_feed(&ops, NULL, &feed));
    REFUSED(onebit_feed, feed, g = NULL);
    REFUSED(onebit_feed, feed, g_dtype = DTYPE_I32);
    REFUSED(onebit_feed, feed, scalars = NULL);
    REFUSED(onebit_feed, feed, e = NULL);
    REFUSED(onebit_feed, feed, partials = NULL);
    struct onebit_pack_args pack = {
        .numel = 16, .chunk_numel = 8, .chunk_stride = 1, .scale = f0, .e = f1, .bits = some_bits};
    ck_ok(ops_onebit_pack(&ops, NULL, &pack));
    REFUSED(onebit_pack, pack, numel = 12);
    REFUSED(onebit_pack, pack, chunk_numel = 4);
    REFUSED(onebit_pack, pack, chunk_numel = 0);
    REFUSED(onebit_pack, pack, chunk_stride = 0);
    REFUSED(onebit_pack, pack, scale = NULL);
    REFUSED(onebit_pack, pack, e = NULL);
    REFUSED(onebit_pack, pack, bits = NULL);
    struct onebit_serve_args serve_args = {.numel = 16,
                                           .n_ranks = 2,
                                           .bits = some_bits,
                                           .rank_stride = 2,
                                           .scales = f0,
                                           .scale_stride = 1,
                                           .e = f1,
                                           .partials = sums_of};
    ck_ok(ops_onebit_serve(&ops, NULL, &serve_args));
    REFUSED(onebit_serve, serve_args, numel = 12);
    REFUSED(onebit_serve, serve_args, n_ranks = 0);
    REFUSED(onebit_serve, serve_args, rank_stride = 1);
    REFUSED(onebit_serve, serve_args, bits = NULL);
    REFUSED(onebit_serve, serve_args, scales = NULL);
    REFUSED(onebit_serve, serve_args, e = NULL);
    REFUSED(onebit_serve, serve_args, partials = NULL);
    struct onebit_unpack_args unpack = {.begin = 3,
                                        .end = 16,
                                        .chunk_numel = 8,
                                        .chunk_stride = 1,
                                        .bits = some_bits,
                                        .scales = f0,
                                        .scale_stride = 1,
                                        .coeff = 1,
                                        .scalars = &unit,
                                        .fresh = f1,
                                        .x = f2};
    ck_ok(ops_onebit_unpack(&ops, NULL, &unpack));
    REFUSED(onebit_unpack, unpack, begin = 17);
    REFUSED(onebit_unpack, unpack, chunk_numel = 12);
    REFUSED(onebit_unpack, unpack, chunk_stride = 0);
    REFUSED(onebit_unpack, unpack, bits = NULL);
    REFUSED(onebit_unpack, unpack, scales = NULL);
    REFUSED(onebit_unpack, unpack, scalars = NULL);
    REFUSED(onebit_unpack, unpack, blend = &unit);
    REFUSED(onebit_unpack, unpack, x = NULL);
}
END_TEST

START_TEST(bad_arguments_around_it_are_refused)
{
    struct ops ops = agree_wire(onebit_wire, row(0));
    struct onebit_momentum_args momentum = {.numel = 9, .g = f0, .scalars = &unit, .m = f1};
    ck_ok(ops_onebit_momentum(&ops, NULL, &momentum));
    REFUSED(onebit_momentum, momentum, g = NULL);
    REFUSED(onebit_momentum, momentum, g_dtype = DTYPE_F64);
    REFUSED(onebit_momentum, momentum, scalars = NULL);
    REFUSED(onebit_momentum, momentum, m = NULL);
    struct onebit_mask_make_args mask = {.numel = 9, .v = f0, .bits = some_bits};
    REFUSED(onebit_mask_make, mask, v = NULL);
    REFUSED(onebit_mask_make, mask, bits = NULL);
    struct lamb_sums sums = {{0}, {0}};
    const struct lamb_segment segment = {0, 9, 0};
    struct onebit_lamb_norms_args norms = {.numel = 9,
                                           .m = f0,
                                           .v = f1,
                                           .fresh = f2,
                                           .p = f3,
                                           .eps = 1,
                                           .segments = &segment,
                                           .n_segments = 1,
                                           .sums = &sums,
                                           .factors = f4};
    ck_ok(ops_onebit_lamb_norms(&ops, NULL, &norms));
    REFUSED(onebit_lamb_norms, norms, numel = 8);
    REFUSED(onebit_lamb_norms, norms, m = NULL);
    REFUSED(onebit_lamb_norms, norms, v = NULL);
    REFUSED(onebit_lamb_norms, norms, fresh = NULL);
    REFUSED(onebit_lamb_norms, norms, p = NULL);
    REFUSED(onebit_lamb_norms, norms, segments = NULL);
    REFUSED(onebit_lamb_norms, norms, sums = NULL);
    REFUSED(onebit_lamb_norms, norms, factors = NULL);
}
END_TEST

START_TEST(bad_arguments_of_zero_one_adam_are_refused)
{
    struct ops ops = agree_wire(onebit_wire, row(0));
    struct zero_one_args args = {.numel = 9,
                                 .g = f0,
                                 .scalars = &unit,
                                 .eps = 1,
                                 .m = f1,
                                 .moved = f2,
                                 .v = f3,
                                 .p = f4,
                                 .out = f5};
    ck_ok(ops_zero_one_local(&ops, NULL, &args));
    REFUSED(zero_one_local, args, g = NULL);
    REFUSED(zero_one_local, args, g_dtype = DTYPE_F64);
    REFUSED(zero_one_local, args, scalars = NULL);
    REFUSED(zero_one_local, args, m = NULL);
    REFUSED(zero_one_local, args, moved = NULL);
    REFUSED(zero_one_local, args, v = NULL);
    REFUSED(zero_one_local, args, p = NULL);
    REFUSED(zero_one_local, args, out = NULL);
    REFUSED(zero_one_local, args, out_dtype = DTYPE_I8);
    args.g = NULL; /* the others do without */
    ck_ok(ops_zero_one_gather(&ops, NULL, &args));
    REFUSED(zero_one_gather, args, moved = NULL);
    REFUSED(zero_one_gather, args, v = NULL);
    ck_ok(ops_zero_one_settle(&ops, NULL, &args));
    REFUSED(zero_one_settle, args, scalars = NULL);
    REFUSED(zero_one_settle, args, m = NULL);
    REFUSED(zero_one_settle, args, moved = NULL);
    REFUSED(zero_one_settle, args, v = NULL);
    REFUSED(zero_one_settle, args, p = NULL);
    REFUSED(zero_one_settle, args, out = NULL);
    REFUSED(zero_one_settle, args, out_dtype = DTYPE_I8);
}
END_TEST

START_TEST(no_elements_are_nothing_to_do)
{
    struct ops ops = agree_wire(onebit_wire, row(0));
    ck_ok(ops_onebit_feed(&ops, NULL, &(struct onebit_feed_args){0}));
    ck_ok(ops_onebit_pack(&ops, NULL, &(struct onebit_pack_args){0}));
    ck_ok(ops_onebit_serve(&ops, NULL, &(struct onebit_serve_args){0}));
    ck_ok(ops_onebit_unpack(&ops, NULL, &(struct onebit_unpack_args){.begin = 3, .end = 3}));
    ck_ok(ops_onebit_momentum(&ops, NULL, &(struct onebit_momentum_args){0}));
    ck_ok(ops_onebit_mask_make(&ops, NULL, &(struct onebit_mask_make_args){0}));
    ck_ok(ops_onebit_lamb_norms(&ops, NULL, &(struct onebit_lamb_norms_args){0}));
    ck_ok(ops_zero_one_local(&ops, NULL, &(struct zero_one_args){0}));
    ck_ok(ops_zero_one_gather(&ops, NULL, &(struct zero_one_args){0}));
    ck_ok(ops_zero_one_settle(&ops, NULL, &(struct zero_one_args){0}));
}
END_TEST

TEST_MAIN("ops/onebit", two_ranks_give_the_test_vector, what_a_sign_does_not_say_stays,
          masks_are_made_bit_by_bit, formulas_are_the_headers,
          bad_arguments_of_an_exchange_are_refused, bad_arguments_around_it_are_refused,
          bad_arguments_of_zero_one_adam_are_refused, no_elements_are_nothing_to_do)

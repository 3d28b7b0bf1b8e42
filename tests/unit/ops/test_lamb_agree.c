/* Claims: Lamb's rows agree to the bit, norms included; norms and updates do not depend on shards,
 * tiles, threads or order; norms are right; padding outside all segments stays; bad arguments are
 * refused. */
#include "ops/lamb/lamb_impl.h"
#include "tests/support/gpu/step_agree.h"

static const struct ops_row *row(size_t idx)
{
    size_t n;
    const struct lamb_row *const *rows = lamb_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

static struct lamb_args args_make(const struct step_tensors *t, const struct step_scalars *s,
                                  int variant)
{
    return (struct lamb_args){.t = *t,
                              .scalars = s,
                              .eps = 1e-6f,
                              .weight_decay = variant & 2 ? 0.01f : 0,
                              .eps_inside_sqrt = variant & 4};
}

/* Both passes over a tile that is one tensor, or (bit 3) two with a gap between them. */
static cz_status run(struct ops *ops, const struct step_tensors *t, const struct step_scalars *s,
                     int variant)
{
    struct lamb_sums sums[2] = {{{0}, {0}}, {{0}, {0}}};
    float ratios[2];
    size_t half = t->numel / 2;
    struct lamb_segment one[] = {{0, t->numel, 1}};
    struct lamb_segment two[] = {{0, half, 1}, {half + (half > 0), t->numel, 0}};
    struct lamb_args args = args_make(t, s, variant);
    args.segments = variant & 8 ? two : one;
    args.n_segments = variant & 8 ? 2 : 1;
    args.sums = sums;
    args.ratios = ratios;
    TRY(ops_lamb_moments(ops, NULL, &args));
    for (int i = 0; i < 2; i++) ratios[i] = lamb_ratio(&sums[i], 0.01, 10);
    return ops_lamb_apply(ops, NULL, &args);
}

static const struct step_test op = {"lamb", 2, 16, lamb_wire, row, run, .fp32_states = true};

START_TEST(rows_agree_to_the_bit)
{
    step_test_rows(&op);
}
END_TEST

START_TEST(threads_do_not_show)
{
    step_test_threads(&op);
}
END_TEST
START_TEST(bad_arguments_are_refused)
{
    step_test_arguments(&op);
    struct ops ops = agree_wire(lamb_wire, row(0));
    struct step_tile tile = step_tile_make(&step_dtypes[0], 9, 0, 5, false);
    struct lamb_args args = args_make(&tile.t, &step_middle, 0);
    struct lamb_segment bad[] = {{0, 5, 0}, {4, 9, 0}};
    args.segments = bad, args.n_segments = 2;
    ck_fails(ops_lamb_moments(&ops, NULL, &args), CZ_INVALID);
    bad[1] = (struct lamb_segment){5, 10, 0};
    ck_fails(ops_lamb_apply(&ops, NULL, &args), CZ_INVALID);
    args.t.state_dtype = DTYPE_BF16;
    ck_fails(ops_lamb_moments(&ops, NULL, &args), CZ_UNSUPPORTED);
    step_tile_free(&tile);
}
END_TEST

struct norms {
    double p, u;
};

/* One tensor over n shards: sums of shards are added, in either order, then all apply. */
static struct norms run_shards(struct ops *ops, struct step_tile *tile, size_t n_shards,
                               bool backwards)
{
    struct lamb_sums sums = {{0}, {0}}, part;
    for (size_t k = 0; k < n_shards; k++) {
        size_t shard = backwards ? n_shards - 1 - k : k;
        struct step_tensors t = step_slice(&tile->t, shard * tile->t.numel / n_shards,
                                           (shard + 1) * tile->t.numel / n_shards);
        struct lamb_segment segment = {0, t.numel, 0};
        struct lamb_args args = args_make(&t, &step_middle, 2);
        args.segments = &segment, args.n_segments = 1;
        memset(&part, 0, sizeof part);
        args.sums = &part;
        ck_ok(ops_lamb_moments(ops, NULL, &args));
        for (int j = 0; j < LAMB_GRIDS; j++) sums.p[j] += part.p[j], sums.u[j] += part.u[j];
    }
    float ratio = lamb_ratio(&sums, 1e-6, 1e6);
    struct lamb_segment segment = {0, tile->t.numel, 0};
    struct lamb_args args = args_make(&tile->t, &step_middle, 2);
    args.segments = &segment, args.n_segments = 1, args.ratios = &ratio;
    ck_ok(ops_lamb_apply(ops, NULL, &args));
    return (struct norms){lamb_sum(sums.p), lamb_sum(sums.u)};
}

/* Parameters whose squares spread over many grids, in an order that gives each shard other maxima.
 */
static void spread(struct agree_buf *p)
{
    for (size_t i = 0; i < p->numel; i++)
        agree_set(p, i, ldexpf(agree_get(p, i), (int)(agree_random(3, i) % 80) - 60));
}

static void shards_of(const struct step_dtypes *d)
{
    struct step_tile whole = step_tile_make(d, 30011, 0, 5, false);
    struct ops truth = agree_wire(lamb_wire, row(0));
    spread(&whole.p);
    struct norms want = run_shards(&truth, &whole, 1, false);
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(lamb_wire, row(r));
        for (size_t n_shards = 1; n_shards <= 7; n_shards++) {
            struct step_tile split = step_tile_make(d, 30011, 0, 5, false);
            spread(&split.p);
            struct norms have = run_shards(&ops, &split, n_shards, n_shards & 1);
            ck_assert(have.p == want.p && have.u == want.u);
            agree_same(&split.p, &whole.p, "p");
            agree_same(&split.states[0], &whole.states[0], "exp_avg");
            agree_same(&split.states[1], &whole.states[1], "exp_avg_sq");
            agree_same(&split.out, &whole.out, "out");
            step_tile_free(&split);
        }
    }
    step_tile_free(&whole);
}

START_TEST(shards_do_not_show)
{
    for (size_t d = 0; d < CZ_ARRAY_LEN(step_dtypes); d++)
        if (step_takes(&op, &step_dtypes[d])) shards_of(&step_dtypes[d]);
}
END_TEST

static double norm_of(struct ops *ops, float *p, size_t numel)
{
    float *zero = calloc(3 * numel, sizeof *zero);
    struct lamb_sums sums = {{0}, {0}};
    struct step_tensors t = {
        .numel = numel, .p = p, .g = zero, .states = {zero + numel, zero + 2 * numel}};
    struct lamb_segment segment = {0, numel, 0};
    struct lamb_args args = args_make(&t, &step_middle, 2);
    args.segments = &segment, args.n_segments = 1, args.sums = &sums;
    ck_ok(ops_lamb_moments(ops, NULL, &args));
    free(zero);
    return sqrt(lamb_sum(sums.p));
}

START_TEST(norms_are_right)
{
    enum { N = 5000 };
    static float p[N];
    static const float scales[] = {1e-45f, 1e-38f, 1e-20f, 1e-3f, 1, 1e10f, 1e38f};
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(lamb_wire, row(r));
        for (size_t k = 0; k < CZ_ARRAY_LEN(scales); k++) {
            long double sum = 0;
            for (size_t i = 0; i < N; i++) {
                p[i] = scales[k] * ((float)(agree_random(9, i) >> 40) * 0x1p-22f - 2);
                sum += (long double)p[i] * (long double)p[i];
            }
            double want = (double)sqrtl(sum), have = norm_of(&ops, p, N);
            ck_assert_msg(fabs(have - want) <= 1e-14 * want, "%s: %.17g, not %.17g", ops.isa, have,
                          want);
        }
        p[77] = INFINITY;
        ck_assert(isinf(norm_of(&ops, p, N)));
        p[78] = NAN;
        ck_assert(isnan(norm_of(&ops, p, N)));
        ck_assert(norm_of(&ops, p, 0) == 0);
    }
}
END_TEST

START_TEST(ratio_is_clamped_and_one_without_a_norm)
{
    struct lamb_sums sums = {{0}, {0}};
    ck_assert_float_eq(lamb_ratio(&sums, 0.01, 10), 1);
    sums.p[15] = 4;
    ck_assert_float_eq(lamb_ratio(&sums, 0.01, 10), 1);
    sums.u[15] = 1;
    ck_assert_float_eq(lamb_ratio(&sums, 0.01, 10), 2);
    ck_assert_float_eq(lamb_ratio(&sums, 0.01, 1.5), 1.5f);
    ck_assert_float_eq(lamb_ratio(&sums, 3, 10), 3);
}
END_TEST

START_TEST(padding_stays)
{
    for (size_t r = 0; row(r) && agree_row_runs(row(r)); r++) {
        struct ops ops = agree_wire(lamb_wire, row(r));
        struct step_tile tile = step_tile_make(&step_dtypes[1], 101, 0, 5, false);
        struct step_tile before = step_tile_make(&step_dtypes[1], 101, 0, 5, false);
        ck_ok(run(&ops, &tile.t, &step_middle, 8)); /* segments [0, 50) and [51, 101) */
        ck_assert_uint_eq(agree_bits(&tile.p, 50), agree_bits(&before.p, 50));
        ck_assert_uint_eq(agree_bits(&tile.states[0], 50), agree_bits(&before.states[0], 50));
        ck_assert_uint_ne(agree_bits(&tile.p, 49), agree_bits(&before.p, 49));
        ck_assert_uint_ne(agree_bits(&tile.p, 51), agree_bits(&before.p, 51));
        step_tile_free(&tile), step_tile_free(&before);
    }
}
END_TEST

TEST_MAIN("ops/lamb", rows_agree_to_the_bit, threads_do_not_show, bad_arguments_are_refused,
          shards_do_not_show, norms_are_right, ratio_is_clamped_and_one_without_a_norm,
          padding_stays)

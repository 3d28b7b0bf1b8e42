/* Claims: scan finds the largest finite magnitude and the first element that is not finite,
 * wherever it is; sumsq is the sum of squares to 2^-40, and its parts have the same bits for every
 * row, cut, order of shards and number of threads, from denormals to the largest finite values. */
#include "ops/reduce/reduce_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct reduce_row *const *rows = reduce_rows(&n_rows);                                   \
    for (size_t row = 0; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(reduce_wire, &rows[row]->row), *once = &ops; once;        \
             once = NULL)

static struct scan_result scan_of(struct ops *ops, const struct agree_buf *x)
{
    struct scan_result r = {.max_abs = -1};
    struct scan_args a = {.dtype = x->dtype, .numel = x->numel, .x = x->p, .result = &r};
    ck_ok(ops_scan(ops, NULL, &a));
    return r;
}

/* The same by the words of the header. */
static struct scan_result scan_by_hand(const struct agree_buf *x)
{
    struct scan_result r = {.finite = true};
    for (size_t i = x->numel; i-- > 0;) {
        float v = agree_get(x, i);
        if (!isfinite(v))
            r.finite = false, r.first_nonfinite = i;
        else
            r.max_abs = fmaxf(r.max_abs, fabsf(v));
    }
    return r;
}

static void check_scan(struct ops *ops, const struct agree_buf *x)
{
    struct scan_result got = scan_of(ops, x), want = scan_by_hand(x);
    agree_assert(f32_bits(got.max_abs) == f32_bits(want.max_abs) && got.finite == want.finite &&
                     (want.finite || got.first_nonfinite == want.first_nonfinite),
                 "%s %s numel %zu: max %g finite %d at %llu, manually %g %d at %llu", ops_isa(ops),
                 dtype_name(x->dtype), x->numel, (double)got.max_abs, got.finite,
                 (unsigned long long)got.first_nonfinite, (double)want.max_abs, want.finite,
                 (unsigned long long)want.first_nonfinite);
}

START_TEST(scan_agrees_for_every_size_and_offset)
{
    size_t numels[AGREE_NUMELS];
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < agree_numels(AGREE_WIDTH, numels); i++)
            for (size_t offset = 0; offset < (numels[i] > 1000 ? 2 : 2 * AGREE_WIDTH); offset++) {
                struct agree_buf x = agree_buf_make(dtypes[d], numels[i], offset);
                agree_fill(&x, offset, 3.0f);
                check_scan(&ops, &x);
                agree_fill_special(&x, offset + 40, 3.0f);
                check_scan(&ops, &x);
                agree_buf_free(&x);
            }
}
END_TEST

START_TEST(scan_finds_the_first_of_several_wherever_they_are)
{
    enum { NUMEL = 70000 };
    static const size_t places[] = {0, 1, 15, 16, 17, 511, 512, 1023, 33333, 65535, NUMEL - 1};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++) {
        struct agree_buf x = agree_buf_make(dtypes[d], NUMEL, 1);
        for (size_t k = 0; k < CZ_ARRAY_LEN(places); k++) {
            agree_fill(&x, k, 1.0f);
            agree_set(&x, places[k], bad[k % 3]);
            agree_set(&x, NUMEL - 1, bad[(k + 1) % 3]);
            omp_set_num_threads((int)k % 5 + 1);
            check_scan(&ops, &x);
        }
        agree_buf_free(&x);
    }
}
END_TEST

static void sumsq_into(struct ops *ops, const struct agree_buf *x, size_t begin, size_t end,
                       float max_abs, double parts[SUMSQ_PARTS])
{
    struct sumsq_args a = {.dtype = x->dtype,
                           .numel = end - begin,
                           .max_abs = max_abs,
                           .x = (const char *)x->p + begin * dtype_size(x->dtype),
                           .parts = parts};
    ck_ok(ops_sumsq(ops, NULL, &a));
}

/* Magnitudes over the whole exponent range below max_abs, denormals and zeros among them. */
static void fill_wide(struct agree_buf *x, uint64_t seed, float max_abs)
{
    agree_fill(x, seed, 1.0f);
    for (size_t i = 0; i < x->numel; i++) {
        int down = (int)(agree_random(seed + 1, i) % 300);
        float v = ldexpf(agree_get(x, i) * max_abs, i % 3 ? -(down % 12) : -down);
        agree_set(x, i, v);
    }
    if (x->numel > 0) agree_set(x, x->numel / 2, -max_abs);
}

/* Σ x² with compensation in long double: good to 2^-60 or so. */
static long double exact_sumsq(const struct agree_buf *x)
{
    long double sum = 0;
    for (size_t i = 0; i < x->numel; i++) {
        long double v = agree_get(x, i);
        sum += v * v;
    }
    return sum;
}

START_TEST(sumsq_is_the_sum_of_squares)
{
    static const float scales[] = {1.0f, 0x1.fffffep127f, 0x1p-149f, 0x1.8p-120f, 3e19f, 1e-3f};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(scales); k++) {
            struct agree_buf x = agree_buf_make(dtypes[d], 50021, k);
            float scale = scales[k];
            if (dtypes[d] == DTYPE_BF16 && scale > 3e38f) scale = 0x1.fep127f;
            if (dtypes[d] == DTYPE_F16) scale = fminf(fmaxf(scale, 0x1p-24f), 65504.0f);
            if (dtypes[d] == DTYPE_BF16) scale = fmaxf(scale, 0x1p-133f);
            fill_wide(&x, k, scale);
            double parts[SUMSQ_PARTS] = {0};
            float max_abs = scan_of(&ops, &x).max_abs;
            sumsq_into(&ops, &x, 0, x.numel, max_abs, parts);
            double got = ops_sumsq_value(parts, max_abs);
            long double want = exact_sumsq(&x);
            agree_assert(fabsl((long double)got - want) <= want * 0x1p-40L,
                         "%s %s scale %g: %.17g instead of %.17Lg", ops.isa, dtype_name(dtypes[d]),
                         (double)scale, got, want);
            agree_buf_free(&x);
        }
}
END_TEST

START_TEST(sumsq_parts_agree_to_the_bit_for_every_size_and_offset)
{
    size_t numels[AGREE_NUMELS];
    struct ops truth = agree_wire(reduce_wire, &reduce_rows(&(size_t){0})[0]->row);
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < agree_numels(AGREE_WIDTH, numels); i++)
            for (size_t offset = 0; offset < (numels[i] > 1000 ? 1 : AGREE_WIDTH); offset++) {
                struct agree_buf x = agree_buf_make(dtypes[d], numels[i], offset);
                fill_wide(&x, offset, 2.5f);
                double got[SUMSQ_PARTS] = {0}, want[SUMSQ_PARTS] = {0};
                sumsq_into(&truth, &x, 0, x.numel, 3.0f, want);
                sumsq_into(&ops, &x, 0, x.numel, 3.0f, got);
                agree_assert(memcmp(got, want, sizeof got) == 0, "%s %s numel %zu", ops.isa,
                             dtype_name(dtypes[d]), x.numel);
                agree_buf_free(&x);
            }
}
END_TEST

START_TEST(sumsq_does_not_depend_on_shards_their_order_or_threads)
{
    enum { NUMEL = 100003 };
    static const size_t n_shards[] = {2, 3, 7, 64};
    FOR_EACH_ROW(ops)
    {
        struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 3);
        fill_wide(&x, 5, 1.7f);
        double whole[SUMSQ_PARTS] = {0};
        omp_set_num_threads(1);
        sumsq_into(&ops, &x, 0, NUMEL, 1.7f, whole);
        double value = ops_sumsq_value(whole, 1.7f);
        for (size_t k = 0; k < CZ_ARRAY_LEN(n_shards); k++) {
            double sum[SUMSQ_PARTS] = {0};
            omp_set_num_threads((int)k + 1);
            for (size_t shard = n_shards[k]; shard-- > 0;) { /* last first */
                double parts[SUMSQ_PARTS] = {0};
                sumsq_into(&ops, &x, NUMEL * shard / n_shards[k], NUMEL * (shard + 1) / n_shards[k],
                           1.7f, parts);
                for (int i = 0; i < SUMSQ_PARTS; i++) sum[i] += parts[i];
            }
            double cut = ops_sumsq_value(sum, 1.7f);
            ck_assert_msg(memcmp(&cut, &value, sizeof cut) == 0, "%zu shards: %a, whole %a",
                          n_shards[k], cut, value);
        }
        agree_buf_free(&x);
    }
}
END_TEST

START_TEST(empty_and_zero_buffers_give_zero)
{
    float zeros[5] = {0, -0.0f};
    double parts[SUMSQ_PARTS] = {0};
    FOR_EACH_ROW(ops)
    {
        struct agree_buf empty = agree_buf_make(DTYPE_F32, 0, 0);
        struct scan_result r = scan_of(&ops, &empty);
        ck_assert(r.finite && r.max_abs == 0);
        struct sumsq_args a = {.numel = 5, .x = zeros, .max_abs = 0, .parts = parts};
        ck_ok(ops_sumsq(&ops, NULL, &a));
        ck_assert(ops_sumsq_value(parts, 0) == 0);
        a.max_abs = 1.0f;
        ck_ok(ops_sumsq(&ops, NULL, &a));
        ck_assert(ops_sumsq_value(parts, 1.0f) == 0);
        agree_buf_free(&empty);
    }
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0};
    double parts[SUMSQ_PARTS] = {0};
    struct scan_result r;
    struct ops ops = agree_wire(reduce_wire, &reduce_rows(&(size_t){0})[0]->row);
    ck_fails(ops_scan(&ops, NULL, &(struct scan_args){.numel = 4, .result = &r}), CZ_INVALID);
    ck_fails(ops_scan(&ops, NULL, &(struct scan_args){.numel = 4, .x = x}), CZ_INVALID);
    struct sumsq_args a = {.numel = 4, .x = x, .max_abs = INFINITY, .parts = parts};
    ck_fails(ops_sumsq(&ops, NULL, &a), CZ_INVALID);
    a.max_abs = NAN;
    ck_fails(ops_sumsq(&ops, NULL, &a), CZ_INVALID);
    a.max_abs = 1, a.parts = NULL;
    ck_fails(ops_sumsq(&ops, NULL, &a), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/reduce", scan_agrees_for_every_size_and_offset,
          scan_finds_the_first_of_several_wherever_they_are, sumsq_is_the_sum_of_squares,
          sumsq_parts_agree_to_the_bit_for_every_size_and_offset,
          sumsq_does_not_depend_on_shards_their_order_or_threads, empty_and_zero_buffers_give_zero,
          bad_arguments_are_refused)

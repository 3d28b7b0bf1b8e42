/* Claims: scan finds the largest finite magnitude and the first element that is not finite,
 * wherever it is, with and without squares; their sum is exact: the same digits for every row, cut,
 * order of shards and number of threads, from denormals to the largest finite values. */
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

static struct scan_result scan_of(struct ops *ops, const struct agree_buf *x, bool with_squares)
{
    uint64_t squares[SQUARES_DIGITS] = {0};
    struct scan_result r = {.max_abs = -1};
    struct scan_args a = {.dtype = x->dtype,
                          .numel = x->numel,
                          .x = x->p,
                          .result = &r,
                          .squares = with_squares ? squares : NULL};
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
    struct scan_result want = scan_by_hand(x);
    for (int with_squares = 0; with_squares < 2; with_squares++) {
        struct scan_result got = scan_of(ops, x, with_squares);
        agree_assert(f32_bits(got.max_abs) == f32_bits(want.max_abs) && got.finite == want.finite &&
                         (want.finite || got.first_nonfinite == want.first_nonfinite),
                     "%s %s numel %zu squares %d: max %g finite %d at %llu, manually %g %d at %llu",
                     ops_isa(ops), dtype_name(x->dtype), x->numel, with_squares,
                     (double)got.max_abs, got.finite, (unsigned long long)got.first_nonfinite,
                     (double)want.max_abs, want.finite, (unsigned long long)want.first_nonfinite);
    }
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

static void add_squares(struct ops *ops, const struct agree_buf *x, size_t begin, size_t end,
                        uint64_t squares[SQUARES_DIGITS])
{
    struct scan_result r;
    struct scan_args a = {.dtype = x->dtype,
                          .numel = end - begin,
                          .x = (const char *)x->p + begin * dtype_size(x->dtype),
                          .result = &r,
                          .squares = squares};
    ck_ok(ops_scan(ops, NULL, &a));
}

/* As narrow as most gradients are; near the edge of what a batch of a vector row can hold, and
 * beyond; everything that a float can be. */
static const uint64_t octaves[] = {1, 8, 22, 26, 30, 300};

/* The largest that the type has, from its denormals on. */
static float scale_of(enum cz_dtype dtype, float scale)
{
    if (dtype == DTYPE_F16) return fminf(fmaxf(scale, 0x1p-24f), 65504.0f);
    return dtype == DTYPE_BF16 ? fminf(fmaxf(scale, 0x1p-133f), 0x1.fep127f) : scale;
}

/* Good to 2^-90 or so. */
static __float128 wide_squares(const struct agree_buf *x)
{
    __float128 sum = 0;
    for (size_t i = 0; i < x->numel; i++) {
        __float128 v = agree_get(x, i);
        sum += v * v;
    }
    return sum;
}

START_TEST(squares_add_up)
{
    static const float scales[] = {1.0f, 0x1.fffffep127f, 0x1p-149f, 0x1.8p-120f, 3e19f, 1e-3f};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(scales) * CZ_ARRAY_LEN(octaves); k++) {
            struct agree_buf x = agree_buf_make(dtypes[d], 50021, k);
            float scale = scale_of(dtypes[d], scales[k / CZ_ARRAY_LEN(octaves)]);
            agree_fill_octaves(&x, k, scale, octaves[k % CZ_ARRAY_LEN(octaves)]);
            uint64_t squares[SQUARES_DIGITS] = {0};
            add_squares(&ops, &x, 0, x.numel, squares);
            double got = ops_squares_value(squares);
            __float128 want = wide_squares(&x), off = got - want;
            agree_assert((off < 0 ? -off : off) <= want * 0x1p-52L,
                         "%s %s scale %g: %.17g instead of %.17g", ops.isa, dtype_name(dtypes[d]),
                         (double)scale, got, (double)want);
            agree_buf_free(&x);
        }
}
END_TEST

/* One of each: a bit for a bit, at both ends of what floats can be and around digits. */
START_TEST(nothing_is_rounded)
{
    static const int exponents[] = {-149, -126, -101, -100, -99, -1, 0, 1, 19, 20, 21, 126, 127};
    uint64_t want[SQUARES_DIGITS] = {0};
    struct agree_buf x = agree_buf_make(DTYPE_F32, CZ_ARRAY_LEN(exponents), 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(exponents); i++) {
        const int bit = 2 * exponents[i] + 298;
        want[bit / 48] |= (uint64_t)1 << bit % 48;
        agree_set(&x, i, ldexpf(i % 2 ? -1.0f : 1.0f, exponents[i]));
    }
    FOR_EACH_ROW(ops)
    {
        uint64_t got[SQUARES_DIGITS] = {0};
        add_squares(&ops, &x, 0, x.numel, got);
        agree_assert(memcmp(got, want, sizeof got) == 0, "%s", ops.isa);
        for (size_t i = 0; i < x.numel; i++) { /* each alone, then they are there twice */
            uint64_t one[SQUARES_DIGITS] = {0};
            add_squares(&ops, &x, i, i + 1, one);
            add_squares(&ops, &x, i, i + 1, got);
            ck_assert(ops_squares_value(one) == ldexp(1, 2 * exponents[i]));
        }
        ck_assert(ops_squares_value(got) == 2 * ops_squares_value(want));
    }
    agree_buf_free(&x);
}
END_TEST

START_TEST(squares_agree_to_the_bit_for_every_size_and_offset)
{
    size_t numels[AGREE_NUMELS];
    struct ops truth = agree_wire(reduce_wire, &reduce_rows(&(size_t){0})[0]->row);
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < agree_numels(AGREE_WIDTH, numels); i++)
            for (size_t offset = 0; offset < (numels[i] > 1000 ? 6 : AGREE_WIDTH); offset++) {
                struct agree_buf x = agree_buf_make(dtypes[d], numels[i], offset);
                agree_fill_octaves(&x, offset, 2.5f, octaves[offset % CZ_ARRAY_LEN(octaves)]);
                uint64_t got[SQUARES_DIGITS] = {0}, want[SQUARES_DIGITS] = {0};
                add_squares(&truth, &x, 0, x.numel, want);
                add_squares(&ops, &x, 0, x.numel, got);
                agree_assert(memcmp(got, want, sizeof got) == 0, "%s %s numel %zu", ops.isa,
                             dtype_name(dtypes[d]), x.numel);
                agree_buf_free(&x);
            }
}
END_TEST

START_TEST(squares_do_not_depend_on_shards_their_order_or_threads)
{
    enum { NUMEL = 100003 };
    static const size_t n_shards[] = {2, 3, 7, 64};
    FOR_EACH_ROW(ops)
    for (size_t k = 0; k < CZ_ARRAY_LEN(n_shards) * CZ_ARRAY_LEN(octaves); k++) {
        struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 3);
        size_t n = n_shards[k % CZ_ARRAY_LEN(n_shards)];
        agree_fill_octaves(&x, 5, 1.7f, octaves[k / CZ_ARRAY_LEN(n_shards)]);
        uint64_t whole[SQUARES_DIGITS] = {0}, sum[SQUARES_DIGITS] = {0};
        omp_set_num_threads(1);
        add_squares(&ops, &x, 0, NUMEL, whole);
        omp_set_num_threads((int)k % 5 + 1);
        for (size_t shard = n; shard-- > 0;) { /* last first */
            uint64_t squares[SQUARES_DIGITS] = {0};
            add_squares(&ops, &x, NUMEL * shard / n, NUMEL * (shard + 1) / n, squares);
            for (int i = 0; i < SQUARES_DIGITS; i++) sum[i] += squares[i];
        }
        double value = ops_squares_value(whole), cut = ops_squares_value(sum);
        ck_assert_msg(memcmp(&cut, &value, sizeof cut) == 0, "%zu shards: %a, whole %a", n, cut,
                      value);
        agree_buf_free(&x);
    }
}
END_TEST

/* Digits of many shards of the largest values, not carried in between. */
START_TEST(digits_of_many_shards_add_up)
{
    enum { N = 1 << 16 };
    uint64_t squares[SQUARES_DIGITS];
    for (int i = 0; i < SQUARES_DIGITS - 1; i++) squares[i] = (((uint64_t)1 << 48) - 1) * N;
    squares[SQUARES_DIGITS - 1] = 0;
    ck_assert(ops_squares_value(squares) == ldexp(1, 16 + 12 * 48 - 298));
}
END_TEST

START_TEST(empty_and_zero_buffers_give_zero)
{
    float zeros[5] = {0, -0.0f};
    uint64_t squares[SQUARES_DIGITS] = {0};
    FOR_EACH_ROW(ops)
    {
        struct agree_buf empty = agree_buf_make(DTYPE_F32, 0, 0);
        struct scan_result r = scan_of(&ops, &empty, true);
        ck_assert(r.finite && r.max_abs == 0);
        add_squares(&ops, &empty, 0, 0, squares);
        ck_ok(ops_scan(
            &ops, NULL,
            &(struct scan_args){.numel = 5, .x = zeros, .result = &r, .squares = squares}));
        ck_assert(ops_squares_value(squares) == 0);
        agree_buf_free(&empty);
    }
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0};
    struct scan_result r;
    struct ops ops = agree_wire(reduce_wire, &reduce_rows(&(size_t){0})[0]->row);
    ck_fails(ops_scan(&ops, NULL, &(struct scan_args){.numel = 4, .result = &r}), CZ_INVALID);
    ck_fails(ops_scan(&ops, NULL, &(struct scan_args){.numel = 4, .x = x}), CZ_INVALID);
    struct scan_args f64 = {.dtype = DTYPE_F64, .numel = 4, .x = x, .result = &r};
    ck_fails(ops_scan(&ops, NULL, &f64), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/reduce", scan_agrees_for_every_size_and_offset,
          scan_finds_the_first_of_several_wherever_they_are, squares_add_up, nothing_is_rounded,
          squares_agree_to_the_bit_for_every_size_and_offset,
          squares_do_not_depend_on_shards_their_order_or_threads, digits_of_many_shards_add_up,
          empty_and_zero_buffers_give_zero, bad_arguments_are_refused)

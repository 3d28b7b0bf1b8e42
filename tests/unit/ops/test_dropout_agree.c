/* Claims: every row of dropout draws rng_uniform's values and gives the bits of the definition, for
 * any size, alignment, first index (past 2^32 and 2^34 too), cut and number of threads; about p of
 * the elements are dropped and the mean stays; p outside [0,1) is refused. */
#include "ops/dropout/dropout_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {.op = "dropout",
                                     .why = "one multiplication or a zero: equal to the bit"};

static const struct rng_key key = {.seed = 11, .site = 35, .step = 7, .sample = 0x123456789};

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct dropout_row *const *rows = dropout_rows(&n_rows);                                 \
    struct ops truth = agree_wire(dropout_wire, &rows[0]->row);                                    \
    for (size_t row = 1; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(dropout_wire, &rows[row]->row), *once = &ops; once;       \
             once = NULL)

static void dropout_case(struct ops *ops, struct ops *truth, enum cz_dtype dtype, float p,
                         uint64_t first_idx, size_t numel, size_t offset)
{
    struct agree_buf x = agree_buf_make(dtype, numel, offset);
    struct agree_buf y = agree_buf_make(dtype, numel, offset / 2);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    agree_fill_special(&x, 1, 3.0f);
    struct dropout_args a = {.dtype = dtype,
                             .numel = numel,
                             .p = p,
                             .rng = key,
                             .first_idx = first_idx,
                             .x = x.p,
                             .y = want.p};
    ck_ok(ops_dropout(truth, NULL, &a));
    a.y = y.p;
    ck_ok(ops_dropout(ops, NULL, &a));
    agree_check(&y, &want, &tol, ops_isa(ops), "dropout");
    a.y = x.p;
    ck_ok(ops_dropout(ops, NULL, &a));
    agree_check(&x, &want, &tol, ops_isa(ops), "dropout in place");
    agree_buf_free(&x), agree_buf_free(&y), agree_buf_free(&want);
}

START_TEST(every_size_offset_and_first_index_agrees)
{
    static const uint64_t firsts[] = {0, 1, 2, 3, 1001, 0xFFFFFFF1, 0x3FFFFFFE5, 0x3FFFFFFFC};
    size_t numels[AGREE_NUMELS];
    FOR_EACH_ROW(ops)
    for (size_t i = 0; i + 1 < agree_numels(AGREE_WIDTH, numels); i++)
        for (size_t f = 0; f < CZ_ARRAY_LEN(firsts); f++)
            for (size_t offset = 0; offset < AGREE_WIDTH; offset++)
                dropout_case(&ops, &truth, dtypes[(i + f + offset) % 3], 0.3f, firsts[f], numels[i],
                             offset);
}
END_TEST

START_TEST(every_p_agrees)
{
    static const float ps[] = {0.0f, 0x1p-24f, 0x1p-30f, 0.1f, 0.5f, 0.9f, 0x1.fffffep-1f};
    FOR_EACH_ROW(ops)
    for (size_t k = 0; k < CZ_ARRAY_LEN(ps); k++)
        dropout_case(&ops, &truth, DTYPE_F32, ps[k], 5, 70001, 1);
}
END_TEST

START_TEST(a_draw_of_p_itself_is_kept)
{
    FOR_EACH_ROW(ops)
    for (uint64_t i = 0; i < 40; i++) {
        const float p = rng_uniform(&key, 5 + i), x[40] = {[0 ... 39] = 1};
        float y[40];
        struct dropout_args a = {
            .dtype = DTYPE_F32, .numel = 40, .p = p, .rng = key, .first_idx = 5, .x = x, .y = y};
        ck_ok(ops_dropout(&ops, NULL, &a));
        ck_assert_float_gt(y[i], 0);
        ck_ok(ops_dropout(&truth, NULL, &a));
        ck_assert_float_gt(y[i], 0);
    }
}
END_TEST

START_TEST(cuts_and_threads_do_not_show)
{
    enum { NUMEL = 30001 };
    FOR_EACH_ROW(ops)
    for (int n_pieces = 1; n_pieces <= 7; n_pieces += 2) {
        struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 0);
        struct agree_buf whole = agree_buf_make(DTYPE_F32, NUMEL, 0);
        struct agree_buf cut = agree_buf_make(DTYPE_F32, NUMEL, 0);
        agree_fill(&x, 2, 1.0f);
        struct dropout_args a = {
            .numel = NUMEL, .p = 0.25f, .rng = key, .first_idx = 77, .x = x.p, .y = whole.p};
        omp_set_num_threads(n_pieces);
        ck_ok(ops_dropout(&ops, NULL, &a));
        for (int piece = 0; piece < n_pieces; piece++) {
            size_t begin = NUMEL * (size_t)piece / (size_t)n_pieces;
            a.numel = NUMEL * (size_t)(piece + 1) / (size_t)n_pieces - begin;
            a.first_idx = 77 + begin;
            a.x = (float *)x.p + begin, a.y = (float *)cut.p + begin;
            ck_ok(ops_dropout(&ops, NULL, &a));
        }
        agree_same(&whole, &cut, "dropout in pieces");
        agree_buf_free(&x), agree_buf_free(&whole), agree_buf_free(&cut);
    }
    (void)truth;
}
END_TEST

START_TEST(about_p_are_dropped_and_the_mean_stays)
{
    enum { NUMEL = 200000 };
    FOR_EACH_ROW(ops)
    {
        struct agree_buf y = agree_buf_make(DTYPE_F32, NUMEL, 0);
        for (size_t i = 0; i < NUMEL; i++) agree_set(&y, i, 1.0f);
        struct dropout_args a = {.numel = NUMEL, .p = 0.1f, .rng = key, .x = y.p, .y = y.p};
        ck_ok(ops_dropout(&ops, NULL, &a));
        double sum = 0, n_dropped = 0;
        for (size_t i = 0; i < NUMEL; i++) {
            sum += agree_get(&y, i);
            n_dropped += agree_get(&y, i) == 0;
        }
        ck_assert_double_eq_tol(n_dropped / NUMEL, 0.1, 0.003); /* 4.5 standard deviations */
        ck_assert_double_eq_tol(sum / NUMEL, 1.0, 0.004);
        agree_buf_free(&y);
    }
    (void)truth;
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0};
    size_t n_rows;
    struct ops ops = agree_wire(dropout_wire, &dropout_rows(&n_rows)[0]->row);
    static const float bad[] = {-0.1f, 1.0f, 2.0f, NAN};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        struct dropout_args a = {.numel = 4, .p = bad[i], .x = x, .y = x};
        ck_fails(ops_dropout(&ops, NULL, &a), CZ_INVALID);
    }
    struct dropout_args no_x = {.numel = 4, .p = 0.5f, .y = x};
    ck_fails(ops_dropout(&ops, NULL, &no_x), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/dropout", every_size_offset_and_first_index_agrees, every_p_agrees,
          a_draw_of_p_itself_is_kept, cuts_and_threads_do_not_show,
          about_p_are_dropped_and_the_mean_stays, bad_arguments_are_refused)

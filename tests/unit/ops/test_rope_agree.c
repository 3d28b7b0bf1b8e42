/* Claims: every row of rope gives the bits of the definition, for any head width, stride, dtype and
 * number of threads; the inverse undoes it and is its transpose (the gradient); lengths stay. */
#include "ops/rope/rope_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {.op = "rope",
                                     .why = "no fused multiply-adds: equal to the bit"};

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct rope_row *const *rows = rope_rows(&n_rows);                                       \
    struct ops truth = agree_wire(rope_wire, &rows[0]->row);                                       \
    for (size_t row = 1; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(rope_wire, &rows[row]->row), *once = &ops; once;          \
             once = NULL)

enum { MAX_POSITION = 40 };

static void tables(struct agree_buf *cosines, struct agree_buf *sines, int64_t D)
{
    *cosines = agree_buf_make(DTYPE_F32, (size_t)(MAX_POSITION * D / 2), 1);
    *sines = agree_buf_make(DTYPE_F32, (size_t)(MAX_POSITION * D / 2), 3);
    for (size_t i = 0; i < cosines->numel; i++) {
        double half = (double)(D / 2), d = (double)(i % (size_t)(D / 2));
        double angle = (double)(i / (size_t)(D / 2)) * pow(10000.0, -d / half);
        agree_set(cosines, i, (float)cos(angle));
        agree_set(sines, i, (float)sin(angle));
    }
}

static void rope_case(struct ops *ops, struct ops *truth, enum cz_dtype dtype, int64_t N, int64_t H,
                      int64_t D, int64_t rotary, bool inverse, bool positions, size_t offset)
{
    int32_t at[64];
    int64_t stride = H * D + 5;
    struct agree_buf cosines, sines;
    struct agree_buf x = agree_buf_make(dtype, (size_t)(N * stride), offset);
    struct agree_buf want = agree_buf_make(dtype, (size_t)(N * stride), 0);
    tables(&cosines, &sines, rotary ? rotary : D);
    for (int64_t n = 0; n < N; n++) at[n] = (int32_t)(agree_random(1, (size_t)n) % MAX_POSITION);
    agree_fill_special(&x, 2, 3.0f);
    memcpy(want.p, x.p, x.nbytes);
    struct rope_args a = {.N = N,
                          .H = H,
                          .D = D,
                          .rotary = rotary,
                          .dtype = dtype,
                          .stride = stride,
                          .T = 7,
                          .positions = positions ? at : NULL,
                          .cos = cosines.p,
                          .sin = sines.p,
                          .inverse = inverse};
    a.x = want.p;
    ck_ok(ops_rope(truth, NULL, &a));
    a.x = x.p;
    ck_ok(ops_rope(ops, NULL, &a));
    agree_check(&x, &want, &tol, ops_isa(ops), "rope");
    agree_buf_free(&x), agree_buf_free(&want), agree_buf_free(&cosines), agree_buf_free(&sines);
}

START_TEST(every_width_agrees)
{
    static const int64_t widths[] = {2, 6, 14, 16, 18, 30, 32, 34, 64, 80, 128};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
            for (size_t offset = 0; offset < AGREE_WIDTH; offset++) {
                omp_set_num_threads((int)offset % 4 + 1);
                rope_case(&ops, &truth, dtypes[d], 1 + (int64_t)offset * 2, 1 + (int64_t)(w % 3),
                          widths[w], 0, offset & 1, w & 1, offset);
                if (widths[w] >= 6) /* the first of each head */
                    rope_case(&ops, &truth, dtypes[d], 3, 2, widths[w] + (int64_t)(offset & 3),
                              widths[w] / 4 * 2, offset & 1, w & 1, offset);
            }
}
END_TEST

START_TEST(many_tokens_agree_for_any_number_of_threads)
{
    FOR_EACH_ROW(ops)
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        omp_set_num_threads(n_threads);
        rope_case(&ops, &truth, DTYPE_F32, 64, 12, 64, 0, false, true, 0);
    }
}
END_TEST

START_TEST(the_inverse_undoes_it_and_is_its_transpose)
{
    enum { N = 9, H = 2, D = 20, NUMEL = N * H * D };
    FOR_EACH_ROW(ops)
    {
        struct agree_buf cosines, sines;
        struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 0),
                         y = agree_buf_make(DTYPE_F32, NUMEL, 0);
        struct agree_buf w = agree_buf_make(DTYPE_F32, NUMEL, 0),
                         v = agree_buf_make(DTYPE_F32, NUMEL, 0);
        tables(&cosines, &sines, D);
        agree_fill(&x, 3, 1.0f), agree_fill(&y, 3, 1.0f), agree_fill(&w, 4, 1.0f),
            agree_fill(&v, 4, 1.0f);
        struct rope_args a = {.N = N,
                              .H = H,
                              .D = D,
                              .stride = H * D,
                              .T = N,
                              .cos = cosines.p,
                              .sin = sines.p,
                              .x = y.p};
        ck_ok(ops_rope(&ops, NULL, &a)); /* y = R·x */
        a.x = w.p, a.inverse = true;
        ck_ok(ops_rope(&ops, NULL, &a)); /* w = Rᵀ·v */
        double forward = 0, transposed = 0, length_x = 0, length_y = 0;
        for (size_t i = 0; i < NUMEL; i++) {
            forward += (double)agree_get(&v, i) * agree_get(&y, i);
            transposed += (double)agree_get(&w, i) * agree_get(&x, i);
            length_x += (double)agree_get(&x, i) * agree_get(&x, i);
            length_y += (double)agree_get(&y, i) * agree_get(&y, i);
        }
        ck_assert_double_eq_tol(forward, transposed, 1e-5);
        ck_assert_double_eq_tol(length_x, length_y, 1e-4);
        a.x = y.p;
        ck_ok(ops_rope(&ops, NULL, &a));
        for (size_t i = 0; i < NUMEL; i++)
            ck_assert_float_eq_tol(agree_get(&y, i), agree_get(&x, i), 1e-6f);
        agree_buf_free(&x), agree_buf_free(&y), agree_buf_free(&w), agree_buf_free(&v);
        agree_buf_free(&cosines), agree_buf_free(&sines);
    }
    (void)truth;
}
END_TEST

/* The table is cos and sin of the rounded angle, wherever its rows start and for any threads. */
START_TEST(tables_hold_cosines_and_sines)
{
    enum { N = 300, HALF = 5, FIRST = 17 };
    const float freq[HALF] = {1.0f, 0.31f, 0.1f, 1e-4f, 0.0f};
    static float cosines[N * HALF + 1], sines[N * HALF + 1], at[2][N * HALF];
    static int32_t positions[N];
    struct ops ops = agree_wire(rope_wire, &rope_rows(&(size_t){0})[0]->row);
    for (int n = 0; n < N; n++) positions[n] = FIRST + n;
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        omp_set_num_threads(n_threads);
        cosines[N * HALF] = sines[N * HALF] = 7;
        struct rope_table_args a = {.N = N,
                                    .half = HALF,
                                    .first = FIRST,
                                    .freq = freq,
                                    .scale = 1.5f,
                                    .cos = cosines,
                                    .sin = sines};
        ck_ok(ops_rope_table(&ops, NULL, &a));
        a.positions = positions, a.first = 0, a.cos = at[0], a.sin = at[1];
        ck_ok(ops_rope_table(&ops, NULL, &a));
        ck_assert_mem_eq(at[0], cosines, sizeof at[0]);
        ck_assert_mem_eq(at[1], sines, sizeof at[1]);
        ck_assert(cosines[N * HALF] == 7 && sines[N * HALF] == 7);
    }
    for (int i = 0; i < N * HALF; i++) {
        float angle = (float)(FIRST + i / HALF) * freq[i % HALF];
        ck_assert_double_eq_tol((double)cosines[i], 1.5 * cos((double)angle), 2e-7);
        ck_assert_double_eq_tol((double)sines[i], 1.5 * sin((double)angle), 2e-7);
    }
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[8] = {0}, table[8] = {1};
    int32_t negative[] = {0, -1};
    struct ops ops = agree_wire(rope_wire, &rope_rows(&(size_t){0})[0]->row);
    const struct rope_args good = {
        .N = 2, .H = 1, .D = 4, .stride = 4, .T = 2, .cos = table, .sin = table, .x = x};
    struct rope_args a = good;
    ck_ok(ops_rope(&ops, NULL, &a));
    a = good, a.D = 3;
    ck_fails(ops_rope(&ops, NULL, &a), CZ_INVALID);
    a = good, a.T = 0;
    ck_fails(ops_rope(&ops, NULL, &a), CZ_INVALID);
    a = good, a.stride = 3;
    ck_fails(ops_rope(&ops, NULL, &a), CZ_INVALID);
    a = good, a.x = NULL;
    ck_fails(ops_rope(&ops, NULL, &a), CZ_INVALID);
    a = good, a.positions = negative;
    ck_fails(ops_rope(&ops, NULL, &a), CZ_INVALID);
    a = good, a.N = -1;
    ck_fails(ops_rope(&ops, NULL, &a), CZ_INVALID);
    struct rope_table_args t = {.N = 2, .half = 2, .freq = table, .cos = x, .sin = x + 4};
    ck_ok(ops_rope_table(&ops, NULL, &t));
    t.sin = NULL;
    ck_fails(ops_rope_table(&ops, NULL, &t), CZ_INVALID);
    t.sin = x + 4, t.first = -1;
    ck_fails(ops_rope_table(&ops, NULL, &t), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/rope", every_width_agrees, many_tokens_agree_for_any_number_of_threads,
          the_inverse_undoes_it_and_is_its_transpose, tables_hold_cosines_and_sines,
          bad_arguments_are_refused)

/* Claims: every row of add, cast_scale and bias_grad gives the bits of the definition, for any
 * size, alignment and value, in place too, with any number of threads; bad arguments are refused.
 */
#include "ops/elementwise/elementwise_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {
    .op = "elementwise", .why = "one add or multiply and one rounding: equal to the bit"};

/* For each row but row 0 that runs here. */
#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct elementwise_row *const *rows = elementwise_rows(&n_rows);                         \
    struct ops truth = agree_wire(elementwise_wire, &rows[0]->row);                                \
    for (size_t row = 1; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(elementwise_wire, &rows[row]->row), *once = &ops; once;   \
             once = NULL)

static void add_case(struct ops *ops, struct ops *truth, enum cz_dtype dtype, size_t numel,
                     size_t offset)
{
    struct agree_buf a = agree_buf_make(dtype, numel, offset);
    struct agree_buf b = agree_buf_make(dtype, numel, offset / 2);
    struct agree_buf y = agree_buf_make(dtype, numel, offset);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    agree_fill_special(&a, 1, 3.0f);
    agree_fill_special(&b, 2, 3.0f);
    ck_ok(ops_add(truth, NULL, &(struct add_args){dtype, numel, a.p, b.p, want.p}));
    ck_ok(ops_add(ops, NULL, &(struct add_args){dtype, numel, a.p, b.p, y.p}));
    agree_check(&y, &want, &tol, ops_isa(ops), "add");
    ck_ok(ops_add(ops, NULL, &(struct add_args){dtype, numel, a.p, b.p, a.p}));
    agree_check(&a, &want, &tol, ops_isa(ops), "add in place");
    agree_buf_free(&a), agree_buf_free(&b), agree_buf_free(&y), agree_buf_free(&want);
}

START_TEST(add_agrees)
{
    size_t numels[AGREE_NUMELS];
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < agree_numels(AGREE_WIDTH, numels); i++)
            for (size_t offset = 0; offset < (numels[i] > 1000 ? 2 : AGREE_WIDTH); offset++)
                add_case(&ops, &truth, dtypes[d], numels[i], offset);
}
END_TEST

static void cast_case(struct ops *ops, struct ops *truth, enum cz_dtype from, enum cz_dtype to,
                      float alpha, size_t numel, size_t offset)
{
    struct agree_buf x = agree_buf_make(from, numel, offset);
    struct agree_buf y = agree_buf_make(to, numel, offset / 2);
    struct agree_buf want = agree_buf_make(to, numel, 0);
    agree_fill_special(&x, 3, 2.0f);
    ck_ok(ops_cast_scale(truth, NULL,
                         &(struct cast_scale_args){from, to, numel, alpha, x.p, want.p}));
    ck_ok(ops_cast_scale(ops, NULL, &(struct cast_scale_args){from, to, numel, alpha, x.p, y.p}));
    if (alpha == 1.0f) agree_same(&y, &want, "cast: every bit, those of NaN too");
    agree_check(&y, &want, &tol, ops_isa(ops), "cast_scale");
    agree_buf_free(&x), agree_buf_free(&y), agree_buf_free(&want);
}

START_TEST(cast_scale_agrees)
{
    static const float alphas[] = {1.0f, 0.37f, 65536.0f};
    size_t numels[AGREE_NUMELS];
    FOR_EACH_ROW(ops)
    for (size_t pair = 0; pair < 9; pair++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(alphas); k++)
            for (size_t i = 0; i < agree_numels(AGREE_WIDTH, numels); i++)
                for (size_t offset = 0; offset < (numels[i] > 1000 ? 1 : AGREE_WIDTH); offset++)
                    cast_case(&ops, &truth, dtypes[pair / 3], dtypes[pair % 3], alphas[k],
                              numels[i], offset);
}
END_TEST

START_TEST(casts_to_16_bits_agree_with_dtype_h_on_every_high_half)
{
    /* Each upper half of an fp32 with four lower halves: zeros, a tie, around it. */
    static const uint32_t low[] = {0x0000, 0x8000, 0x7fff, 0x1000};
    size_t numel = 0x10000 * 4;
    struct agree_buf x = agree_buf_make(DTYPE_F32, numel, 0);
    for (uint32_t i = 0; i < numel; i++) {
        uint32_t bits = (i >> 2) << 16 | low[i & 3];
        memcpy((float *)x.p + i, &bits, sizeof bits);
    }
    FOR_EACH_ROW(ops)
    for (size_t d = 1; d < CZ_ARRAY_LEN(dtypes); d++) {
        struct agree_buf y = agree_buf_make(dtypes[d], numel, 0);
        struct cast_scale_args args = {DTYPE_F32, dtypes[d], numel, 1.0f, x.p, y.p};
        ck_ok(ops_cast_scale(&ops, NULL, &args));
        for (size_t i = 0; i < numel; i++) {
            float f = ((const float *)x.p)[i];
            uint16_t want = d == 1 ? f32_to_bf16(f) : f32_to_f16(f);
            agree_assert(((uint16_t *)y.p)[i] == want, "%s: %08x becomes %04x, not %04x", ops.isa,
                         f32_bits(f), ((uint16_t *)y.p)[i], want);
        }
        agree_buf_free(&y);
    }
    agree_buf_free(&x);
    (void)truth;
}
END_TEST

static void bias_grad_run(struct ops *ops, const struct agree_buf *dy, int64_t N, int64_t C,
                          struct agree_buf *db, bool accumulate)
{
    struct bias_grad_args a = {.N = N,
                               .C = C,
                               .dtype = dy->dtype,
                               .grad_dtype = db->dtype,
                               .dy = dy->p,
                               .db = db->p,
                               .accumulate = accumulate};
    struct agree_buf work = agree_buf_make(DTYPE_U8, ops_bias_grad_workspace(ops, &a), 0);
    a.workspace = work.p, a.workspace_nbytes = work.nbytes;
    agree_fill(db, 9, 1.0f);
    ck_ok(ops_bias_grad(ops, NULL, &a));
    agree_guards(&work, "bias_grad workspace");
    agree_guards(db, "bias_grad");
    agree_buf_free(&work);
}

START_TEST(bias_grad_agrees_for_any_number_of_threads)
{
    static const int64_t shapes[][2] = {{0, 5},   {1, 1},    {3, 7},     {4, 16},    {5, 17},
                                        {33, 35}, {70, 768}, {1000, 96}, {9000, 130}};
    FOR_EACH_ROW(ops)
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t d = 0; d < 6; d++)
            for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
                int64_t N = shapes[s][0], C = shapes[s][1];
                struct agree_buf dy = agree_buf_make(dtypes[d % 3], (size_t)(N * C), d);
                struct agree_buf db = agree_buf_make(dtypes[d / 2], (size_t)C, d);
                struct agree_buf want = agree_buf_make(dtypes[d / 2], (size_t)C, 0);
                agree_fill(&dy, 4, 1.0f);
                omp_set_num_threads(1);
                bias_grad_run(&truth, &dy, N, C, &want, d & 1);
                omp_set_num_threads(n_threads);
                bias_grad_run(&ops, &dy, N, C, &db, d & 1);
                agree_check(&db, &want, &tol, ops.isa, "bias_grad");
                agree_buf_free(&dy), agree_buf_free(&db), agree_buf_free(&want);
            }
}
END_TEST

START_TEST(bias_grad_is_the_sum_of_rows)
{
    enum { N = 300, C = 3 };
    size_t n_rows;
    const struct elementwise_row *const *rows = elementwise_rows(&n_rows);
    struct ops ops = agree_wire(elementwise_wire, &rows[0]->row);
    struct agree_buf dy = agree_buf_make(DTYPE_F32, N * C, 0);
    struct agree_buf db = agree_buf_make(DTYPE_F32, C, 0), before = agree_buf_make(DTYPE_F32, C, 0);
    agree_fill(&dy, 5, 1.0f);
    agree_fill(&before, 9, 1.0f); /* what bias_grad_run puts into db */
    bias_grad_run(&ops, &dy, N, C, &db, true);
    for (size_t c = 0; c < C; c++) {
        double sum = agree_get(&before, c);
        for (size_t n = 0; n < N; n++) sum += agree_get(&dy, n * C + c);
        ck_assert_double_eq_tol(agree_get(&db, c), sum, 1e-5);
    }
    agree_buf_free(&dy), agree_buf_free(&db), agree_buf_free(&before);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0};
    struct device *dev;
    struct ops *ops;
    ck_ok(device_open("cpu", 0, &dev));
    ck_ok(ops_create(dev, &ops));
    ck_ok(ops_add(ops, NULL, &(struct add_args){DTYPE_F32, 0, NULL, NULL, NULL}));
    ck_fails(ops_add(ops, NULL, &(struct add_args){DTYPE_F32, 4, x, NULL, x}), CZ_INVALID);
    ck_fails(ops_add(ops, NULL, &(struct add_args){DTYPE_I32, 4, x, x, x}), CZ_INVALID);
    struct cast_scale_args in_place = {DTYPE_F32, DTYPE_BF16, 4, 1.0f, x, x};
    ck_fails(ops_cast_scale(ops, NULL, &in_place), CZ_INVALID);
    struct bias_grad_args no_work = {.N = 2, .C = 2, .dy = x, .db = x};
    ck_fails(ops_bias_grad(ops, NULL, &no_work), CZ_INVALID);
    struct bias_grad_args negative = {.N = -1, .C = 2, .dy = x, .db = x};
    ck_fails(ops_bias_grad(ops, NULL, &negative), CZ_INVALID);
    ops_destroy(ops);
    device_close(dev);
}
END_TEST

TEST_MAIN("ops/elementwise", add_agrees, cast_scale_agrees,
          casts_to_16_bits_agree_with_dtype_h_on_every_high_half,
          bias_grad_agrees_for_any_number_of_threads, bias_grad_is_the_sum_of_rows,
          bad_arguments_are_refused)

/* Claims: every row of layernorm and rmsnorm is within its tolerance of the definition, with and
 * without residual, bias and frozen gradients; backward is the derivative of forward; no result
 * depends on the number of threads; a NaN stays in its row; bad arguments are refused. */
#include "tests/support/gpu/norm_case.h"

#include <omp.h>

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct norm_row *const *rows = norm_rows(&n_rows);                                       \
    struct ops truth = agree_wire(norm_wire, &rows[0]->row);                                       \
    for (size_t row = 1; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(norm_wire, &rows[row]->row), *once = &ops; once;          \
             once = NULL)

static void run_forward(struct ops *ops, struct norm_case *t)
{
    struct norm_args a = args_of(t);
    ck_ok(t->centred ? ops_layernorm_forward(ops, NULL, &a) : ops_rmsnorm_forward(ops, NULL, &a));
}

static void run_backward(struct ops *ops, struct norm_case *t)
{
    struct norm_args a = args_of(t);
    if (t->residual) a.x = t->sum.p;
    ck_ok(t->centred ? ops_layernorm_backward(ops, NULL, &a) : ops_rmsnorm_backward(ops, NULL, &a));
}

static void compare(struct ops *ops, struct ops *truth, bool centred, bool residual,
                    enum cz_dtype dtype, enum cz_dtype grad_dtype, int64_t N, int64_t C,
                    size_t offset)
{
    struct norm_case want = case_make(centred, residual, dtype, grad_dtype, N, C, 0);
    struct norm_case got = case_make(centred, residual, dtype, grad_dtype, N, C, offset);
    want.accumulate = got.accumulate = offset & 1;
    run_forward(truth, &want);
    run_forward(ops, &got);
    if (residual) agree_check(&got.sum, &want.sum, &exact, ops_isa(ops), "sum");
    agree_check(&got.y, &want.y, &row_tol, ops_isa(ops), "y");
    agree_check(&got.rstd, &want.rstd, &row_tol, ops_isa(ops), "rstd");
    if (centred) agree_check(&got.mean, &want.mean, &row_tol, ops_isa(ops), "mean");
    run_backward(truth, &want);
    run_backward(ops, &got);
    agree_check(&got.dx, &want.dx, &row_tol, ops_isa(ops), "dx");
    agree_check(&got.dweight, &want.dweight, &grad_tol, ops_isa(ops), "dweight");
    if (centred) agree_check(&got.dbias, &want.dbias, &grad_tol, ops_isa(ops), "dbias");
    case_free(&want), case_free(&got);
}

START_TEST(both_norms_agree_for_every_width)
{
    static const int64_t widths[] = {2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 67, 129, 768};
    FOR_EACH_ROW(ops)
    for (int variant = 0; variant < 4; variant++)
        for (size_t d = 0; d < 6; d++)
            for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
                for (int64_t N = 0; N <= 37; N += N < 3 ? 1 : 34)
                    compare(&ops, &truth, variant & 1, variant & 2, dtypes[d % 3], dtypes[d / 2], N,
                            widths[w], (w + d) % AGREE_WIDTH);
}
END_TEST

START_TEST(many_rows_agree)
{
    FOR_EACH_ROW(ops)
    for (int variant = 0; variant < 4; variant++)
        compare(&ops, &truth, variant & 1, variant & 2, DTYPE_F32, DTYPE_F32, 1100, 96, 1);
}
END_TEST

START_TEST(no_result_depends_on_threads)
{
    FOR_EACH_ROW(ops)
    for (int variant = 0; variant < 4; variant++) {
        struct norm_case one =
            case_make(variant & 1, variant & 2, DTYPE_F32, DTYPE_F32, 517, 131, 0);
        omp_set_num_threads(1);
        run_forward(&ops, &one);
        run_backward(&ops, &one);
        for (int n_threads = 2; n_threads <= 5; n_threads++) {
            struct norm_case many =
                case_make(variant & 1, variant & 2, DTYPE_F32, DTYPE_F32, 517, 131, 0);
            omp_set_num_threads(n_threads);
            run_forward(&ops, &many);
            run_backward(&ops, &many);
            agree_same(&many.y, &one.y, "y");
            agree_same(&many.dx, &one.dx, "dx");
            agree_same(&many.dweight, &one.dweight, "dweight");
            agree_same(&many.dbias, &one.dbias, "dbias");
            case_free(&many);
        }
        case_free(&one);
    }
    (void)truth;
}
END_TEST

START_TEST(a_nan_stays_in_its_row)
{
    enum { N = 6, C = 40 };
    FOR_EACH_ROW(ops)
    for (int centred = 0; centred < 2; centred++) {
        struct norm_case clean = case_make(centred, false, DTYPE_F32, DTYPE_F32, N, C, 0);
        struct norm_case t = case_make(centred, false, DTYPE_F32, DTYPE_F32, N, C, 0);
        agree_set(&t.x, 2 * C + 7, NAN);
        agree_set(&t.x, 4 * C + 39, INFINITY);
        run_forward(&ops, &clean);
        run_forward(&ops, &t);
        for (size_t i = 0; i < N * C; i++)
            if (i / C == 2)
                ck_assert(isnan(agree_get(&t.y, i)));
            else if (i / C == 4)
                ck_assert(!isfinite(agree_get(&t.y, i)) || agree_get(&t.y, i) == 0);
            else
                ck_assert(agree_get(&t.y, i) == agree_get(&clean.y, i));
        case_free(&t), case_free(&clean);
    }
    (void)truth;
}
END_TEST

START_TEST(frozen_gradients_are_left_out)
{
    FOR_EACH_ROW(ops)
    {
        struct norm_case all = case_make(true, false, DTYPE_F32, DTYPE_F32, 40, 33, 0);
        struct norm_case none = case_make(true, false, DTYPE_F32, DTYPE_F32, 40, 33, 0);
        struct norm_case bias = case_make(true, false, DTYPE_F32, DTYPE_F32, 40, 33, 0);
        struct norm_args a = args_of(&none), b = args_of(&bias);
        run_forward(&ops, &all);
        run_backward(&ops, &all);
        run_forward(&ops, &none);
        a.dweight = a.dbias = a.workspace = NULL;
        ck_ok(ops_layernorm_backward(&ops, NULL, &a));
        agree_same(&none.dx, &all.dx, "dx without weight gradients");
        run_forward(&ops, &bias);
        b.dweight = NULL;
        ck_ok(ops_layernorm_backward(&ops, NULL, &b));
        agree_same(&bias.dbias, &all.dbias, "dbias alone");
        case_free(&all), case_free(&none), case_free(&bias);
    }
    (void)truth;
}
END_TEST

struct loss {
    struct ops *ops;
    struct norm_case *t;
};

/* Σ dy·y: its gradients are dx, dweight and dbias. */
static double norm_loss(void *user)
{
    struct loss *l = user;
    double sum = 0;
    run_forward(l->ops, l->t);
    for (size_t i = 0; i < l->t->y.numel; i++)
        sum += (double)agree_get(&l->t->dy, i) * agree_get(&l->t->y, i);
    return sum;
}

START_TEST(backward_is_the_derivative_of_forward)
{
    enum { N = 3, C = 19 };
    size_t n_rows;
    struct ops truth = agree_wire(norm_wire, &norm_rows(&n_rows)[0]->row);
    for (int variant = 0; variant < 4; variant++) {
        struct norm_case t = case_make(variant & 1, variant & 2, DTYPE_F32, DTYPE_F32, N, C, 0);
        struct loss l = {&truth, &t};
        run_forward(&truth, &t);
        run_backward(&truth, &t);
        for (size_t i = 0; i < N * C; i++)
            agree_gradient(agree_get(&t.dx, i), agree_difference(&t.x, i, 0.01f, norm_loss, &l),
                           3e-4, "dx", i);
        for (size_t i = 0; i < N * C && t.residual; i++) /* both addends have the gradient of s */
            agree_gradient(agree_get(&t.dx, i), agree_difference(&t.res, i, 0.01f, norm_loss, &l),
                           3e-4, "dresidual", i);
        for (size_t c = 0; c < C; c++)
            agree_gradient(agree_get(&t.dweight, c),
                           agree_difference(&t.weight, c, 0.01f, norm_loss, &l), 3e-4, "dweight",
                           c);
        for (size_t c = 0; c < C && t.centred; c++)
            agree_gradient(agree_get(&t.dbias, c),
                           agree_difference(&t.bias, c, 0.01f, norm_loss, &l), 3e-4, "dbias", c);
        case_free(&t);
    }
}
END_TEST

START_TEST(rows_come_out_normalised)
{
    enum { N = 4, C = 200 };
    FOR_EACH_ROW(ops)
    for (int centred = 0; centred < 2; centred++) {
        struct norm_case t = case_make(centred, false, DTYPE_F32, DTYPE_F32, N, C, 0);
        for (size_t c = 0; c < C; c++) agree_set(&t.weight, c, 1), agree_set(&t.bias, c, 0);
        run_forward(&ops, &t);
        for (size_t n = 0; n < N; n++) {
            double sum = 0, squares = 0;
            for (size_t c = 0; c < C; c++) {
                double y = agree_get(&t.y, n * C + c);
                sum += y, squares += y * y;
            }
            if (centred) ck_assert_double_eq_tol(sum / C, 0, 1e-6);
            ck_assert_double_eq_tol(squares / C, 1, 1e-4);
        }
        case_free(&t);
    }
    (void)truth;
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    struct ops ops = agree_wire(norm_wire, &norm_rows(&(size_t){0})[0]->row);
    struct norm_case t = case_make(true, true, DTYPE_F32, DTYPE_F32, 2, 8, 0);
    struct norm_args a = args_of(&t);
    a.sum = NULL;
    ck_fails(ops_layernorm_forward(&ops, NULL, &a), CZ_INVALID);
    a = args_of(&t), a.N = -1;
    ck_fails(ops_layernorm_forward(&ops, NULL, &a), CZ_INVALID);
    a = args_of(&t), a.C = 0;
    ck_fails(ops_layernorm_forward(&ops, NULL, &a), CZ_INVALID);
    a = args_of(&t), a.eps = NAN;
    ck_fails(ops_layernorm_forward(&ops, NULL, &a), CZ_INVALID);
    a = args_of(&t); /* has a bias */
    ck_fails(ops_rmsnorm_forward(&ops, NULL, &a), CZ_INVALID);
    a = args_of(&t), a.rstd = NULL;
    ck_fails(ops_layernorm_backward(&ops, NULL, &a), CZ_INVALID);
    a = args_of(&t), a.workspace_nbytes = 8;
    ck_fails(ops_layernorm_backward(&ops, NULL, &a), CZ_INVALID);
    case_free(&t);
}
END_TEST

TEST_MAIN("ops/norm", both_norms_agree_for_every_width, many_rows_agree,
          no_result_depends_on_threads, a_nan_stays_in_its_row, frozen_gradients_are_left_out,
          backward_is_the_derivative_of_forward, rows_come_out_normalised,
          bad_arguments_are_refused)

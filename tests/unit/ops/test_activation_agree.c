/* Claims: every row of the activations and of swiglu is within its tolerance of the definition, for
 * any size, alignment and value; backward is the derivative of forward; an element's result does
 * not depend on where the tensor starts, ends or is cut. */
#include "ops/activation/activation_impl.h"
#include "tests/support/agree.h"

#include <omp.h>

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
static const char *const kind_names[] = {"gelu_tanh",  "gelu_erf", "silu", "relu", "tanh",
                                         "quick_gelu", "sigmoid",  "mish", "relu2"};

static const struct agree_tol forward_tol = {
    .op = "activation forward",
    .rtol = 1.2e-5f,
    .atol = 1e-30f,
    .why = "exp magnifies the roundings of its argument: 2^-22.5 |argument|, which is below 70 "
           "where the result is above atol"};

static const struct agree_tol backward_tol = {
    .op = "activation backward",
    .rtol = 1.2e-5f,
    .atol = 2e-6f,
    .why = "the slope crosses 0, where its two terms cancel: absolute error is 2^-22 of dy"};

#define FOR_EACH_ROW(ops)                                                                          \
    size_t n_rows;                                                                                 \
    const struct activation_row *const *rows = activation_rows(&n_rows);                           \
    struct ops truth = agree_wire(activation_wire, &rows[0]->row);                                 \
    for (size_t row = 1; row < n_rows && agree_row_runs(&rows[row]->row); row++)                   \
        for (struct ops ops = agree_wire(activation_wire, &rows[row]->row), *once = &ops; once;    \
             once = NULL)

static void activation_case(struct ops *ops, struct ops *truth, enum activation kind,
                            enum cz_dtype dtype, size_t numel, size_t offset)
{
    struct agree_buf x = agree_buf_make(dtype, numel, offset);
    struct agree_buf dy = agree_buf_make(dtype, numel, offset / 3);
    struct agree_buf got = agree_buf_make(dtype, numel, offset);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    const char *name = kind_names[kind];
    agree_fill_special(&x, 1, 12.0f);
    agree_fill(&dy, 2, 1.0f);
    struct activation_args a = {.kind = kind, .dtype = dtype, .numel = numel, .x = x.p, .dy = dy.p};
    a.y = a.dx = want.p;
    ck_ok(ops_activation_forward(truth, NULL, &a));
    a.y = a.dx = got.p;
    ck_ok(ops_activation_forward(ops, NULL, &a));
    agree_check(&got, &want, &forward_tol, ops_isa(ops), name);
    a.dx = want.p;
    ck_ok(ops_activation_backward(truth, NULL, &a));
    a.dx = dy.p; /* in place */
    ck_ok(ops_activation_backward(ops, NULL, &a));
    agree_check(&dy, &want, &backward_tol, ops_isa(ops), name);
    agree_buf_free(&x), agree_buf_free(&dy), agree_buf_free(&got), agree_buf_free(&want);
}

START_TEST(every_activation_agrees)
{
    size_t numels[AGREE_NUMELS];
    FOR_EACH_ROW(ops)
    for (int kind = 0; kind < ACTIVATIONS; kind++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
            for (size_t i = 0; i + 1 < agree_numels(AGREE_WIDTH, numels); i++)
                for (size_t offset = 0; offset < AGREE_WIDTH; offset++)
                    activation_case(&ops, &truth, (enum activation)kind, dtypes[d], numels[i],
                                    offset);
}
END_TEST

START_TEST(a_large_tensor_agrees)
{
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        activation_case(&ops, &truth, (enum activation)d, dtypes[d], 300007, 1);
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_comes_out_so)
{
    static const float dys[] = {INFINITY, -INFINITY, NAN};
    FOR_EACH_ROW(ops)
    for (int kind = 0; kind < ACTIVATIONS; kind++)
        for (int k = 0; k < 3; k++) {
            float x = 0.5f, dx = 0;
            struct activation_args a = {
                .kind = (enum activation)kind, .numel = 1, .x = &x, .dy = &dys[k], .dx = &dx};
            ck_ok(ops_activation_backward(&ops, NULL, &a));
            ck_assert(k == 2 ? isnan(dx) : dx == dys[k]);
        }
    (void)truth;
}
END_TEST

/* y over the whole tensor equals y over pieces cut anywhere, and over any number of threads. */
START_TEST(cuts_do_not_show)
{
    enum { NUMEL = 20011 };
    static const size_t n_pieces[] = {2, 3, 7};
    FOR_EACH_ROW(ops)
    for (int kind = 0; kind < ACTIVATIONS; kind++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(n_pieces); k++) {
            struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 0);
            struct agree_buf whole = agree_buf_make(DTYPE_F32, NUMEL, 0);
            struct agree_buf cut = agree_buf_make(DTYPE_F32, NUMEL, 0);
            agree_fill(&x, 3, 5.0f);
            struct activation_args a = {
                .kind = (enum activation)kind, .numel = NUMEL, .x = x.p, .y = whole.p};
            omp_set_num_threads((int)k + 1);
            ck_ok(ops_activation_forward(&ops, NULL, &a));
            for (size_t piece = 0; piece < n_pieces[k]; piece++) {
                size_t begin = NUMEL * piece / n_pieces[k];
                a.x = (float *)x.p + begin, a.y = (float *)cut.p + begin;
                a.numel = NUMEL * (piece + 1) / n_pieces[k] - begin;
                ck_ok(ops_activation_forward(&ops, NULL, &a));
            }
            agree_same(&whole, &cut, kind_names[kind]);
            agree_buf_free(&x), agree_buf_free(&whole), agree_buf_free(&cut);
        }
    (void)truth;
}
END_TEST

struct loss {
    struct ops *ops;
    struct activation_args a;
    struct swiglu_args swiglu;
    struct agree_buf y;
};

/* Σ (i mod 5 − 1.5)·y[i]: its gradient in y is what the tests give as dy. */
static double weighted(const struct agree_buf *y)
{
    double sum = 0;
    for (size_t i = 0; i < y->numel; i++) sum += ((double)(i % 5) - 1.5) * agree_get(y, i);
    return sum;
}

static void fill_weights(struct agree_buf *dy)
{
    for (size_t i = 0; i < dy->numel; i++) agree_set(dy, i, (float)(i % 5) - 1.5f);
}

static double activation_loss(void *user)
{
    struct loss *l = user;
    ck_ok(ops_activation_forward(l->ops, NULL, &l->a));
    return weighted(&l->y);
}

START_TEST(backward_is_the_derivative_of_forward)
{
    enum { NUMEL = 60 };
    size_t n_rows;
    struct ops truth = agree_wire(activation_wire, &activation_rows(&n_rows)[0]->row);
    for (int kind = 0; kind < ACTIVATIONS; kind++) {
        struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 0),
                         y = agree_buf_make(DTYPE_F32, NUMEL, 0);
        struct agree_buf dy = agree_buf_make(DTYPE_F32, NUMEL, 0),
                         dx = agree_buf_make(DTYPE_F32, NUMEL, 0);
        agree_fill(&x, 4, 4.0f);
        fill_weights(&dy);
        struct loss l = {.ops = &truth, .y = y};
        l.a = (struct activation_args){.kind = (enum activation)kind,
                                       .numel = NUMEL,
                                       .x = x.p,
                                       .y = y.p,
                                       .dy = dy.p,
                                       .dx = dx.p};
        ck_ok(ops_activation_backward(&truth, NULL, &l.a));
        for (size_t i = 0; i < NUMEL; i++) {
            if ((kind == ACT_RELU || kind == ACT_RELU2) && fabsf(agree_get(&x, i)) < 0.01f)
                continue; /* the kink */
            double want = agree_difference(&x, i, 0.01f, activation_loss, &l);
            agree_gradient(agree_get(&dx, i), want, 2e-4, kind_names[kind], i);
        }
        agree_buf_free(&x), agree_buf_free(&y), agree_buf_free(&dy), agree_buf_free(&dx);
    }
}
END_TEST

/* gate and up as halves of one (N, 2C) matrix, as the models hold them. */
static enum activation gate_kind; /* of the cases that follow */

static struct swiglu_args swiglu_over(struct agree_buf *in, struct agree_buf *out,
                                      struct agree_buf *din, int64_t N, int64_t C)
{
    size_t half = (size_t)C * dtype_size(in->dtype);
    return (struct swiglu_args){.act = gate_kind,
                                .dtype = in->dtype,
                                .N = N,
                                .C = C,
                                .stride = 2 * C,
                                .gate = in->p,
                                .up = (char *)in->p + half,
                                .y = out->p,
                                .dy = out->p,
                                .dgate = din->p,
                                .dup = (char *)din->p + half};
}

static void swiglu_case(struct ops *ops, struct ops *truth, enum cz_dtype dtype, int64_t N,
                        int64_t C)
{
    size_t numel = (size_t)(N * C);
    struct agree_buf in = agree_buf_make(dtype, 2 * numel, 1), y = agree_buf_make(dtype, numel, 2);
    struct agree_buf want_y = agree_buf_make(dtype, numel, 0);
    struct agree_buf din = agree_buf_make(dtype, 2 * numel, 3);
    agree_fill_special(&in, 5, 6.0f);
    for (size_t n = 0; n < (size_t)N; n++) /* up stays ordinary: 0.5e-45 · 3e38 is not for fp32 */
        for (size_t c = 0; c < (size_t)C; c++) agree_set(&in, (2 * n + 1) * (size_t)C + c, 1.5f);
    struct swiglu_args a = swiglu_over(&in, &want_y, &din, N, C);
    ck_ok(ops_swiglu_forward(truth, NULL, &a));
    a = swiglu_over(&in, &y, &din, N, C);
    ck_ok(ops_swiglu_forward(ops, NULL, &a));
    agree_check(&y, &want_y, &forward_tol, ops_isa(ops), "swiglu");

    agree_fill(&in, 6, 6.0f);
    agree_fill(&y, 7, 1.0f); /* dy */
    struct agree_buf want = agree_buf_make(dtype, 2 * numel, 0);
    a = swiglu_over(&in, &y, &want, N, C);
    ck_ok(ops_swiglu_backward(truth, NULL, &a));
    a = swiglu_over(&in, &y, &in, N, C); /* in place of gate and up */
    ck_ok(ops_swiglu_backward(ops, NULL, &a));
    agree_check(&in, &want, &backward_tol, ops_isa(ops), "swiglu backward");
    agree_buf_free(&in), agree_buf_free(&y), agree_buf_free(&want_y);
    agree_buf_free(&din), agree_buf_free(&want);
}

START_TEST(swiglu_agrees)
{
    static const int64_t shapes[][2] = {{0, 4},  {1, 1},  {2, 7},   {3, 16},
                                        {5, 17}, {9, 35}, {40, 260}};
    FOR_EACH_ROW(ops)
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
            for (gate_kind = 0; gate_kind < ACTIVATIONS; gate_kind++)
                swiglu_case(&ops, &truth, dtypes[d], shapes[s][0], shapes[s][1]);
}
END_TEST

static double swiglu_loss(void *user)
{
    struct loss *l = user;
    ck_ok(ops_swiglu_forward(l->ops, NULL, &l->swiglu));
    return weighted(&l->y);
}

START_TEST(swiglu_backward_is_the_derivative_of_forward)
{
    enum { N = 3, C = 11 };
    size_t n_rows;
    struct ops truth = agree_wire(activation_wire, &activation_rows(&n_rows)[0]->row);
    struct agree_buf in = agree_buf_make(DTYPE_F32, 2 * N * C, 0),
                     y = agree_buf_make(DTYPE_F32, N * C, 0);
    struct agree_buf dy = agree_buf_make(DTYPE_F32, N * C, 0),
                     din = agree_buf_make(DTYPE_F32, 2 * N * C, 0);
    agree_fill(&in, 8, 3.0f);
    fill_weights(&dy);
    for (gate_kind = 0; gate_kind < ACTIVATIONS; gate_kind++) {
        struct loss l = {.ops = &truth, .y = y, .swiglu = swiglu_over(&in, &y, &din, N, C)};
        l.swiglu.dy = dy.p;
        ck_ok(ops_swiglu_backward(&truth, NULL, &l.swiglu));
        const bool has_kink = gate_kind == ACT_RELU || gate_kind == ACT_RELU2;
        for (size_t i = 0; i < 2 * N * C; i++)
            if (!has_kink || fabsf(agree_get(&in, i)) >= 0.01f)
                agree_gradient(agree_get(&din, i), agree_difference(&in, i, 0.01f, swiglu_loss, &l),
                               2e-4, "swiglu", i);
    }
    agree_buf_free(&in), agree_buf_free(&y), agree_buf_free(&dy), agree_buf_free(&din);
}
END_TEST

START_TEST(known_values_come_out)
{
    /* at 1 and −2, from the formulas evaluated with 30 digits */
    static const struct {
        enum activation kind;
        float x;
        double y;
    } known[] = {
        {ACT_GELU_TANH, 1.0f, 0.84119199060827676},
        {ACT_GELU_TANH, -2.0f, -0.045402305912225},
        {ACT_GELU_ERF, 1.0f, 0.84134474606854293},
        {ACT_GELU_ERF, -2.0f, -0.045500263896358},
        {ACT_SILU, 1.0f, 0.73105857863000490},
        {ACT_SILU, -2.0f, -0.23840584404423519},
        {ACT_TANH, 1.0f, 0.76159415595576485},
        {ACT_RELU, -2.0f, 0.0},
        {ACT_QUICK_GELU, 1.0f, 0.8457957659328212},
        {ACT_QUICK_GELU, -2.0f, -0.06434137685579186},
        {ACT_SIGMOID, 1.0f, 0.73105857863000490},
        {ACT_SIGMOID, -2.0f, 0.11920292202211757},
        {ACT_MISH, 1.0f, 0.86509838826731034},
        {ACT_MISH, -2.0f, -0.2525014826957089},
        {ACT_RELU2, 1.5f, 2.25},
        {ACT_RELU2, -2.0f, 0.0},
    };
    size_t n_rows;
    const struct activation_row *const *rows = activation_rows(&n_rows);
    for (size_t row = 0; row < n_rows && agree_row_runs(&rows[row]->row); row++) {
        struct ops ops = agree_wire(activation_wire, &rows[row]->row);
        for (size_t i = 0; i < CZ_ARRAY_LEN(known); i++) {
            float y = 0;
            struct activation_args a = {
                .kind = known[i].kind, .numel = 1, .x = &known[i].x, .y = &y};
            ck_ok(ops_activation_forward(&ops, NULL, &a));
            ck_assert_double_eq_tol(y, known[i].y, 2e-7);
        }
    }
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0};
    size_t n_rows;
    struct ops ops = agree_wire(activation_wire, &activation_rows(&n_rows)[0]->row);
    struct activation_args unknown = {.kind = (enum activation)9, .numel = 4, .x = x, .y = x};
    ck_fails(ops_activation_forward(&ops, NULL, &unknown), CZ_INVALID);
    struct activation_args no_dy = {.numel = 4, .x = x, .dx = x};
    ck_fails(ops_activation_backward(&ops, NULL, &no_dy), CZ_INVALID);
    struct activation_args empty = {.numel = 0};
    ck_ok(ops_activation_forward(&ops, NULL, &empty));
    struct swiglu_args overlap = {.N = 2, .C = 2, .stride = 1, .gate = x, .up = x, .y = x};
    ck_fails(ops_swiglu_forward(&ops, NULL, &overlap), CZ_INVALID);
    struct swiglu_args unknown_gate = {
        .act = ACTIVATIONS, .N = 2, .C = 2, .stride = 2, .gate = x, .up = x, .y = x};
    ck_fails(ops_swiglu_forward(&ops, NULL, &unknown_gate), CZ_INVALID);
    struct swiglu_args no_up = {.N = 2, .C = 2, .stride = 2, .gate = x, .y = x};
    ck_fails(ops_swiglu_forward(&ops, NULL, &no_up), CZ_INVALID);
}
END_TEST

TEST_MAIN("ops/activation", every_activation_agrees, a_large_tensor_agrees,
          a_gradient_that_is_not_finite_comes_out_so, cuts_do_not_show,
          backward_is_the_derivative_of_forward, swiglu_agrees,
          swiglu_backward_is_the_derivative_of_forward, known_values_come_out,
          bad_arguments_are_refused)

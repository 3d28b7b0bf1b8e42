/* Claims: every activation and swiglu on a CUDA device are within their tolerance of the scalar
 * row, forward and backward, for any size, alignment, stride, dtype and value, in place too; an
 * element's result does not depend on where a tensor is cut; bad arguments are refused. */
#include "ops/activation/activation_impl.h"
#include "tests/support/gpu/cuda_orders.h"

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

static struct ops scalar_ops(void)
{
    return agree_wire(activation_wire, &activation_rows(&(size_t){0})[0]->row);
}

static void activation_case(const struct cuda_rig *rig, enum activation kind, enum cz_dtype dtype,
                            size_t numel, size_t offset)
{
    struct ops truth = scalar_ops();
    struct agree_buf x = agree_buf_make(dtype, numel, offset);
    struct agree_buf dy = agree_buf_make(dtype, numel, offset);
    struct agree_buf y = agree_buf_make(dtype, numel, offset);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    agree_fill_special(&x, 1, 12.0f);
    agree_fill(&dy, 2, 1.0f);
    struct activation_args a = {.kind = kind, .dtype = dtype, .numel = numel, .x = x.p, .dy = dy.p};
    struct rig_buf gx = rig_put(rig, &x), gdy = rig_put(rig, &dy), gy = rig_put(rig, &y);
    struct activation_args on_gpu = a;
    on_gpu.x = gx.p, on_gpu.dy = gdy.p, on_gpu.y = gy.p, on_gpu.dx = gdy.p;
    a.y = a.dx = want.p;
    ck_ok(ops_activation_forward(&truth, NULL, &a));
    ck_ok(ops_activation_forward(rig->ops, rig->stream, &on_gpu));
    rig_get(rig, &gy, &y);
    agree_check(&y, &want, &forward_tol, "cuda", kind_names[kind]);
    ck_ok(ops_activation_backward(&truth, NULL, &a));
    ck_ok(ops_activation_backward(rig->ops, rig->stream, &on_gpu)); /* over dy */
    rig_get(rig, &gdy, &dy);
    agree_check(&dy, &want, &backward_tol, "cuda", kind_names[kind]);
    on_gpu.y = gx.p;
    ck_ok(ops_activation_forward(rig->ops, rig->stream, &on_gpu)); /* over x */
    rig_get(rig, &gx, &x);
    agree_same(&x, &y, "in place");
    rig_free(rig, &gx), rig_free(rig, &gdy), rig_free(rig, &gy);
    agree_buf_free(&x), agree_buf_free(&dy), agree_buf_free(&y), agree_buf_free(&want);
}

static void every_activation_agrees(const struct cuda_rig *rig)
{
    static const size_t numels[] = {0, 1, 4, 7, 8, 9, 2049, 3001};
    for (int kind = 0; kind < ACTIVATIONS; kind++)
        for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
            for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
                for (size_t offset = 0; offset<9; offset += numels[i]> 9 ? 8 : 3)
                    activation_case(rig, (enum activation)kind, dtypes[d], numels[i], offset);
}

CUDA_ORDERS(every_activation_agrees, every_activation_agrees(&rig))

START_TEST(a_gradient_that_is_not_finite_comes_out_so)
{
    static const float dys[] = {INFINITY, -INFINITY, NAN, 1.0f};
    struct cuda_rig rig = cuda_rig_open();
    const float x[4] = {0.5f, 0.5f, 0.5f, NAN};
    float dx[4];
    float *gx = rig_put_bytes(&rig, x, sizeof x), *gdy = rig_put_bytes(&rig, dys, sizeof dys);
    float *gdx = rig_put_bytes(&rig, dx, sizeof dx);
    for (int kind = 0; kind < ACTIVATIONS; kind++) {
        struct activation_args a = {
            .kind = (enum activation)kind, .numel = 4, .x = gx, .dy = gdy, .dx = gdx};
        ck_ok(ops_activation_backward(rig.ops, rig.stream, &a));
        rig_get_bytes(&rig, gdx, dx, sizeof dx);
        ck_assert(dx[0] == INFINITY && dx[1] == -INFINITY && isnan(dx[2]));
        ck_assert(kind == ACT_RELU ? dx[3] == 1.0f : isnan(dx[3]));
    }
    rig_free_bytes(&rig, gx, sizeof x), rig_free_bytes(&rig, gdy, sizeof dys);
    rig_free_bytes(&rig, gdx, sizeof dx);
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(cuts_do_not_show)
{
    enum { NUMEL = 3011 };
    struct cuda_rig rig = cuda_rig_open();
    for (int kind = 0; kind < ACTIVATIONS; kind++)
        for (size_t n_pieces = 2; n_pieces <= 7; n_pieces += 5) {
            struct agree_buf x = agree_buf_make(DTYPE_F32, NUMEL, 0);
            struct agree_buf whole = agree_buf_make(DTYPE_F32, NUMEL, 0);
            struct agree_buf cut = agree_buf_make(DTYPE_F32, NUMEL, 0);
            agree_fill(&x, 3, 5.0f);
            struct rig_buf gx = rig_put(&rig, &x), gwhole = rig_put(&rig, &whole);
            struct rig_buf gcut = rig_put(&rig, &cut);
            struct activation_args a = {
                .kind = (enum activation)kind, .numel = NUMEL, .x = gx.p, .y = gwhole.p};
            ck_ok(ops_activation_forward(rig.ops, rig.stream, &a));
            for (size_t piece = 0; piece < n_pieces; piece++) {
                size_t begin = NUMEL * piece / n_pieces;
                a.x = (float *)gx.p + begin, a.y = (float *)gcut.p + begin;
                a.numel = NUMEL * (piece + 1) / n_pieces - begin;
                ck_ok(ops_activation_forward(rig.ops, rig.stream, &a));
            }
            rig_get(&rig, &gwhole, &whole), rig_get(&rig, &gcut, &cut);
            agree_same(&whole, &cut, kind_names[kind]);
            rig_free(&rig, &gx), rig_free(&rig, &gwhole), rig_free(&rig, &gcut);
            agree_buf_free(&x), agree_buf_free(&whole), agree_buf_free(&cut);
        }
    cuda_rig_close(&rig);
}
END_TEST

/* gate and up as halves of one (N, 2C) matrix at `in`, as the models hold them. */
static enum activation gate_kind; /* of the cases that follow */

static struct swiglu_args swiglu_over(enum cz_dtype dtype, void *in, void *y, void *dy, void *din,
                                      int64_t N, int64_t C)
{
    size_t half = (size_t)C * dtype_size(dtype);
    return (struct swiglu_args){.act = gate_kind,
                                .dtype = dtype,
                                .N = N,
                                .C = C,
                                .stride = 2 * C,
                                .gate = in,
                                .up = (char *)in + half,
                                .y = y,
                                .dy = dy,
                                .dgate = din,
                                .dup = (char *)din + half};
}

static void swiglu_case(const struct cuda_rig *rig, enum cz_dtype dtype, int64_t N, int64_t C,
                        size_t offset)
{
    size_t numel = (size_t)(N * C);
    struct ops truth = scalar_ops();
    struct agree_buf in = agree_buf_make(dtype, 2 * numel, offset);
    struct agree_buf y = agree_buf_make(dtype, numel, offset);
    struct agree_buf dy = agree_buf_make(dtype, numel, offset);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    struct agree_buf want_din = agree_buf_make(dtype, 2 * numel, 0);
    agree_fill(&in, 6, 6.0f), agree_fill(&dy, 7, 1.0f);
    struct swiglu_args a = swiglu_over(dtype, in.p, want.p, dy.p, want_din.p, N, C);
    ck_ok(ops_swiglu_forward(&truth, NULL, &a));
    ck_ok(ops_swiglu_backward(&truth, NULL, &a));
    struct rig_buf gin = rig_put(rig, &in), gy = rig_put(rig, &y), gdy = rig_put(rig, &dy);
    a = swiglu_over(dtype, gin.p, gy.p, gdy.p, gin.p, N, C); /* gradients over gate and up */
    ck_ok(ops_swiglu_forward(rig->ops, rig->stream, &a));
    ck_ok(ops_swiglu_backward(rig->ops, rig->stream, &a));
    rig_get(rig, &gy, &y), rig_get(rig, &gin, &in);
    agree_check(&y, &want, &forward_tol, "cuda", "swiglu");
    agree_check(&in, &want_din, &backward_tol, "cuda", "swiglu backward");
    rig_free(rig, &gin), rig_free(rig, &gy), rig_free(rig, &gdy);
    agree_buf_free(&in), agree_buf_free(&y), agree_buf_free(&dy);
    agree_buf_free(&want), agree_buf_free(&want_din);
}

static void swiglu_agrees(const struct cuda_rig *rig)
{
    static const int64_t shapes[][2] = {{0, 4},  {3, 0},  {1, 1},    {2, 7},   {3, 16},
                                        {5, 17}, {9, 40}, {2, 2056}, {300, 8}, {2, 1031}};
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
            for (size_t offset = 0; offset < 9; offset += 8) {
                gate_kind = (enum activation)((s + 3 * d) % ACTIVATIONS);
                swiglu_case(rig, dtypes[d], shapes[s][0], shapes[s][1], offset / 8);
            }
}

CUDA_ORDERS(swiglu_agrees, swiglu_agrees(&rig))

START_TEST(bad_arguments_are_refused)
{
    float x[4] = {0}; /* never read */
    struct cuda_rig rig = cuda_rig_open();
    struct ops *ops = rig.ops;
    struct activation_args unknown = {.kind = (enum activation)9, .numel = 4, .x = x, .y = x};
    ck_fails(ops_activation_forward(ops, NULL, &unknown), CZ_INVALID);
    struct activation_args no_dy = {.numel = 4, .x = x, .dx = x};
    ck_fails(ops_activation_backward(ops, NULL, &no_dy), CZ_INVALID);
    struct activation_args empty = {.numel = 0};
    ck_ok(ops_activation_forward(ops, NULL, &empty));
    struct swiglu_args overlap = {.N = 2, .C = 2, .stride = 1, .gate = x, .up = x, .y = x};
    ck_fails(ops_swiglu_forward(ops, NULL, &overlap), CZ_INVALID);
    struct swiglu_args no_up = {.N = 2, .C = 2, .stride = 2, .gate = x, .y = x};
    ck_fails(ops_swiglu_forward(ops, NULL, &no_up), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda activation", CUDA_ORDERED(every_activation_agrees),
          a_gradient_that_is_not_finite_comes_out_so, cuts_do_not_show, CUDA_ORDERED(swiglu_agrees),
          bad_arguments_are_refused)

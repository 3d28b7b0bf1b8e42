/* Claims: add, cast_scale and bias_grad on a CUDA device give the bits of the scalar row for any
 * size, alignment, dtype and value (a NaN for a NaN), in place too; bad arguments are refused. */
#include "ops/elementwise/elementwise_impl.h"
#include "tests/support/gpu/cuda_orders.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol tol = {
    .op = "elementwise", .why = "one add or multiply and one rounding: equal to the bit"};

/* Sums of up to 8300 terms, in shares of the blocks instead of in block order. */
static const struct agree_tol sum_tol = {
    .op = "elementwise", .rtol = 0x1p-8f, .atol = 1e-4f, .why = "sums in another order"};
static const struct agree_tol sum_tol_f32 = {
    .op = "elementwise", .rtol = 1e-6f, .atol = 1e-5f, .why = "sums in another order"};

static struct ops scalar_ops(void)
{
    return agree_wire(elementwise_wire, &elementwise_rows(&(size_t){0})[0]->row);
}

static void add_case(const struct cuda_rig *rig, enum cz_dtype dtype, size_t numel, size_t offset)
{
    struct ops truth = scalar_ops();
    struct agree_buf a = agree_buf_make(dtype, numel, offset);
    struct agree_buf b = agree_buf_make(dtype, numel, offset / 2);
    struct agree_buf want = agree_buf_make(dtype, numel, 0);
    agree_fill_special(&a, 1, 3.0f);
    agree_fill_special(&b, 2, 3.0f);
    ck_ok(ops_add(&truth, NULL, &(struct add_args){dtype, numel, a.p, b.p, want.p}));
    struct agree_buf y = agree_buf_make(dtype, numel, offset);
    struct rig_buf da = rig_put(rig, &a), db = rig_put(rig, &b), dy = rig_put(rig, &y);
    const struct add_args args = {dtype, numel, da.p, db.p, dy.p};
    ck_ok(ops_add(rig->ops, rig->stream, &args));
    rig_get(rig, &dy, &y);
    agree_check(&y, &want, &tol, "cuda", "add");
    const struct add_args in_place = {dtype, numel, da.p, db.p, db.p};
    ck_ok(ops_add(rig->ops, rig->stream, &in_place));
    rig_get(rig, &db, &b);
    agree_check(&b, &want, &tol, "cuda", "add in place");
    rig_free(rig, &da), rig_free(rig, &db), rig_free(rig, &dy);
    agree_buf_free(&a), agree_buf_free(&b), agree_buf_free(&y), agree_buf_free(&want);
}

static const size_t numels[] = {0, 1, 3, 4, 8, 9, 255, 2049, 5003};

static void add_agrees(const struct cuda_rig *rig)
{
    for (size_t d = 0; d < CZ_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
            for (size_t offset = 0; offset < 9; offset += 4)
                add_case(rig, dtypes[d], numels[i], offset);
}

CUDA_ORDERS(add_agrees, add_agrees(&rig))

static void cast_case(const struct cuda_rig *rig, enum cz_dtype from, enum cz_dtype to, float alpha,
                      size_t numel, size_t offset)
{
    struct ops truth = scalar_ops();
    struct agree_buf x = agree_buf_make(from, numel, offset), y = agree_buf_make(to, numel, offset);
    struct agree_buf want = agree_buf_make(to, numel, 0);
    agree_fill_special(&x, 3, 2.0f);
    const struct cast_scale_args on_host = {from, to, numel, alpha, x.p, want.p};
    ck_ok(ops_cast_scale(&truth, NULL, &on_host));
    struct rig_buf dx = rig_put(rig, &x), dy = rig_put(rig, &y);
    const struct cast_scale_args args = {from, to, numel, alpha, dx.p, dy.p};
    ck_ok(ops_cast_scale(rig->ops, rig->stream, &args));
    rig_get(rig, &dy, &y);
    agree_check(&y, &want, &tol, "cuda", "cast_scale");
    if (dtype_size(from) == dtype_size(to)) {
        const struct cast_scale_args in_place = {from, to, numel, alpha, dx.p, dx.p};
        ck_ok(ops_cast_scale(rig->ops, rig->stream, &in_place));
        x.dtype = to;
        rig_get(rig, &dx, &x);
        agree_check(&x, &want, &tol, "cuda", "cast_scale in place");
    }
    rig_free(rig, &dx), rig_free(rig, &dy);
    agree_buf_free(&x), agree_buf_free(&y), agree_buf_free(&want);
}

static void cast_scale_agrees(const struct cuda_rig *rig)
{
    static const float alphas[] = {1.0f, 0.37f, 65536.0f};
    for (size_t pair = 0; pair < 9; pair++)
        for (size_t k = 0; k < CZ_ARRAY_LEN(alphas); k++)
            for (size_t i = 0; i < CZ_ARRAY_LEN(numels); i++)
                cast_case(rig, dtypes[pair / 3], dtypes[pair % 3], alphas[k], numels[i],
                          (i + k) % 3 * 4);
}

CUDA_ORDERS(cast_scale_agrees, cast_scale_agrees(&rig))

static void bias_case(const struct cuda_rig *rig, enum cz_dtype dtype, enum cz_dtype grad_dtype,
                      int64_t N, int64_t C, bool accumulate, size_t offset)
{
    struct ops truth = scalar_ops();
    struct agree_buf dy = agree_buf_make(dtype, (size_t)(N * C), offset);
    struct agree_buf db = agree_buf_make(grad_dtype, (size_t)C, offset);
    struct agree_buf want = agree_buf_make(grad_dtype, (size_t)C, 0);
    agree_fill(&dy, 4, 1.0f), agree_fill(&db, 9, 1.0f), agree_fill(&want, 9, 1.0f);
    struct bias_grad_args a = {.N = N,
                               .C = C,
                               .dtype = dtype,
                               .grad_dtype = grad_dtype,
                               .accumulate = accumulate,
                               .dy = dy.p,
                               .db = want.p};
    struct agree_buf space = agree_buf_make(DTYPE_U8, ops_bias_grad_workspace(rig->ops, &a), 0);
    struct agree_buf host = agree_buf_make(DTYPE_U8, ops_bias_grad_workspace(&truth, &a), 0);
    a.workspace = host.p, a.workspace_nbytes = host.nbytes;
    ck_ok(ops_bias_grad(&truth, NULL, &a));
    struct rig_buf ddy = rig_put(rig, &dy), ddb = rig_put(rig, &db), dspace = rig_put(rig, &space);
    a.dy = ddy.p, a.db = ddb.p, a.workspace = dspace.p, a.workspace_nbytes = space.nbytes;
    ck_ok(ops_bias_grad(rig->ops, rig->stream, &a));
    rig_get(rig, &ddb, &db);
    rig_get(rig, &dspace, &space);
    agree_check(&db, &want, grad_dtype == DTYPE_F32 ? &sum_tol_f32 : &sum_tol, "cuda", "bias_grad");
    agree_guards(&space, "workspace");
    rig_free(rig, &ddy), rig_free(rig, &ddb), rig_free(rig, &dspace);
    agree_buf_free(&dy), agree_buf_free(&db), agree_buf_free(&want);
    agree_buf_free(&space), agree_buf_free(&host);
}

static void bias_grad_agrees(const struct cuda_rig *rig)
{
    static const int64_t shapes[][2] = {{0, 5},  {0, 0},   {1, 1},    {3, 7},   {16, 16},
                                        {33, 2}, {70, 67}, {300, 96}, {8300, 3}};
    for (size_t s = 0; s < CZ_ARRAY_LEN(shapes); s++)
        for (size_t d = 0; d < 6; d++)
            bias_case(rig, dtypes[d % 3], dtypes[d / 2], shapes[s][0], shapes[s][1], d & 1,
                      d % 4 * 2);
}

CUDA_ORDERS(bias_grad_agrees, bias_grad_agrees(&rig))

START_TEST(bad_arguments_are_refused)
{
    struct cuda_rig rig = cuda_rig_open();
    struct ops *ops = rig.ops;
    float x[4] = {0}; /* never read */
    ck_ok(ops_add(ops, NULL, &(struct add_args){DTYPE_F32, 0, NULL, NULL, NULL}));
    ck_fails(ops_add(ops, NULL, &(struct add_args){DTYPE_F32, 4, x, NULL, x}), CZ_INVALID);
    ck_fails(ops_add(ops, NULL, &(struct add_args){DTYPE_I32, 4, x, x, x}), CZ_INVALID);
    struct cast_scale_args in_place = {DTYPE_F32, DTYPE_BF16, 4, 1.0f, x, x};
    ck_fails(ops_cast_scale(ops, NULL, &in_place), CZ_INVALID);
    struct bias_grad_args no_work = {.N = 2, .C = 2, .dy = x, .db = x};
    ck_fails(ops_bias_grad(ops, NULL, &no_work), CZ_INVALID);
    struct bias_grad_args negative = {.N = -1, .C = 2, .dy = x, .db = x};
    ck_fails(ops_bias_grad(ops, NULL, &negative), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("cuda elementwise", CUDA_ORDERED(add_agrees), CUDA_ORDERED(cast_scale_agrees),
          CUDA_ORDERED(bias_grad_agrees), bad_arguments_are_refused)

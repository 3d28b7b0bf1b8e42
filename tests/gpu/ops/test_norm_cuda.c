/* Claims: layernorm and rmsnorm on a CUDA device are within the host rows' tolerances of the
 * definition, in registers and in the plain kernels (long rows), with and without residual,
 * accumulation and frozen gradients, in place, in every order of threads; the place of tensors does
 * not show; the sum with the residual has the definition's bits; bad arguments are refused. */
#include "tests/support/gpu/cuda_orders.h"
#include "tests/support/gpu/norm_case.h"

/* The tensors of a case on the device. */
struct norm_twin {
    struct rig_buf x, res, sum, weight, bias, y, mean, rstd, dy, dx, dweight, dbias, workspace;
};

static struct norm_twin twin_make(const struct cuda_rig *rig, const struct norm_case *t)
{
    return (struct norm_twin){
        rig_put(rig, &t->x),        rig_put(rig, &t->res),     rig_put(rig, &t->sum),
        rig_put(rig, &t->weight),   rig_put(rig, &t->bias),    rig_put(rig, &t->y),
        rig_put(rig, &t->mean),     rig_put(rig, &t->rstd),    rig_put(rig, &t->dy),
        rig_put(rig, &t->dx),       rig_put(rig, &t->dweight), rig_put(rig, &t->dbias),
        rig_put(rig, &t->workspace)};
}

static void twin_free(const struct cuda_rig *rig, struct norm_twin *d)
{
    struct rig_buf *all = (struct rig_buf *)(void *)d;
    for (size_t i = 0; i < sizeof *d / sizeof *all; i++) rig_free(rig, &all[i]);
}

static struct norm_args on_device(const struct norm_args *host, const struct norm_twin *d)
{
    struct norm_args a = *host;
    a.x = d->x.p;
    a.residual = a.residual ? d->res.p : NULL;
    a.sum = a.sum ? d->sum.p : NULL;
    a.weight = d->weight.p;
    a.bias = a.bias ? d->bias.p : NULL;
    a.y = d->y.p;
    a.mean = d->mean.p, a.rstd = d->rstd.p;
    a.dy = d->dy.p, a.dx = d->dx.p;
    if (a.dx_add) a.dx_add = host->dx_add == host->dx ? d->dx.p : d->res.p;
    a.dweight = a.dweight ? d->dweight.p : NULL;
    a.dbias = a.dbias ? d->dbias.p : NULL;
    a.workspace = d->workspace.p;
    return a;
}

static void check_forward(const struct norm_case *got, const struct norm_case *want)
{
    if (want->residual) agree_check(&got->sum, &want->sum, &exact, "cuda", "sum");
    agree_check(&got->y, &want->y, &row_tol, "cuda", "y");
    agree_check(&got->rstd, &want->rstd, &row_tol, "cuda", "rstd");
    if (want->centred) agree_check(&got->mean, &want->mean, &row_tol, "cuda", "mean");
}

static void check_backward(const struct norm_case *got, const struct norm_case *want)
{
    agree_check(&got->dx, &want->dx, &row_tol, "cuda", "dx");
    agree_check(&got->dweight, &want->dweight, &grad_tol, "cuda", "dweight");
    agree_check(&got->dbias, &want->dbias, &grad_tol, "cuda", "dbias");
}

struct shape {
    bool centred, residual, frozen;
    enum cz_dtype dtype, grad_dtype;
    int64_t N, C;
    size_t offset;
};

static void run(struct ops *ops, struct dev_stream *stream, bool centred, bool forward,
                struct norm_args *a)
{
    if (forward)
        ck_ok(centred ? ops_layernorm_forward(ops, stream, a)
                      : ops_rmsnorm_forward(ops, stream, a));
    else
        ck_ok(centred ? ops_layernorm_backward(ops, stream, a)
                      : ops_rmsnorm_backward(ops, stream, a));
}

static void compare(const struct cuda_rig *rig, const struct shape *s)
{
    struct ops truth = agree_wire(norm_wire, &norm_rows(&(size_t){0})[0]->row);
    struct norm_case want =
        case_make(s->centred, s->residual, s->dtype, s->grad_dtype, s->N, s->C, 0);
    struct norm_case got =
        case_make(s->centred, s->residual, s->dtype, s->grad_dtype, s->N, s->C, s->offset);
    want.accumulate = got.accumulate = s->offset % 2 || s->N % 2;
    agree_buf_free(&got.workspace);
    const struct norm_args shape = {.N = s->N, .C = s->C};
    got.workspace = agree_buf_make(DTYPE_U8, ops_norm_workspace(rig->ops, &shape), 0);
    struct norm_args host = args_of(&want), mine = args_of(&got);
    if (s->frozen) host.dweight = host.dbias = mine.dweight = mine.dbias = NULL;
    struct norm_twin d = twin_make(rig, &got);
    struct norm_args device = on_device(&mine, &d);
    run(&truth, NULL, s->centred, true, &host);
    run(rig->ops, rig->stream, s->centred, true, &device);
    if (s->residual) host.x = host.sum, device.x = device.sum;
    run(&truth, NULL, s->centred, false, &host);
    run(rig->ops, rig->stream, s->centred, false, &device);
    rig_get(rig, &d.sum, &got.sum), rig_get(rig, &d.y, &got.y);
    rig_get(rig, &d.mean, &got.mean), rig_get(rig, &d.rstd, &got.rstd);
    rig_get(rig, &d.dx, &got.dx), rig_get(rig, &d.workspace, &got.workspace);
    rig_get(rig, &d.dweight, &got.dweight), rig_get(rig, &d.dbias, &got.dbias);
    check_forward(&got, &want);
    check_backward(&got, &want);
    twin_free(rig, &d);
    case_free(&want), case_free(&got);
}

/* Both directions with a residual; the tensors as the device leaves them. */
static struct norm_case case_on_device(const struct cuda_rig *rig, bool centred,
                                       enum cz_dtype dtype, int64_t N, int64_t C, size_t offset)
{
    struct norm_case t = case_make(centred, true, dtype, DTYPE_F32, N, C, offset);
    agree_buf_free(&t.workspace);
    const struct norm_args shape = {.N = N, .C = C};
    t.workspace = agree_buf_make(DTYPE_U8, ops_norm_workspace(rig->ops, &shape), 0);
    const struct norm_args host = args_of(&t);
    struct norm_twin d = twin_make(rig, &t);
    struct norm_args device = on_device(&host, &d);
    run(rig->ops, rig->stream, centred, true, &device);
    device.x = device.sum;
    run(rig->ops, rig->stream, centred, false, &device);
    rig_get(rig, &d.sum, &t.sum), rig_get(rig, &d.y, &t.y);
    rig_get(rig, &d.mean, &t.mean), rig_get(rig, &d.rstd, &t.rstd);
    rig_get(rig, &d.dx, &t.dx), rig_get(rig, &d.workspace, &t.workspace);
    rig_get(rig, &d.dweight, &t.dweight), rig_get(rig, &d.dbias, &t.dbias);
    twin_free(rig, &d);
    return t;
}

/* Widths of every number of packs, and some that are not whole ones. */
static void norms_agree(const struct cuda_rig *rig)
{
    static const int64_t widths[] = {1, 7, 8, 64, 67, 768, 1028, 2056, 4104, 8192, 16400};
    for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
        for (size_t d = 0; d < 3; d++) {
            const struct shape s = {.centred = (w + d) % 2,
                                    .residual = (w + d) % 3 == 0,
                                    .frozen = (w + d) % 5 == 4,
                                    .dtype = dtypes[d],
                                    .grad_dtype = w % 2 ? DTYPE_F32 : dtypes[d],
                                    .N = widths[w] > 1000 ? 3 : 21,
                                    .C = widths[w],
                                    .offset = w % 4 == 1 ? 3 : 0};
            compare(rig, &s);
        }
}

static void few_and_many_rows_agree(const struct cuda_rig *rig)
{
    static const int64_t rows[] = {0, 1, 4, 5, 1100};
    for (size_t n = 0; n < CZ_ARRAY_LEN(rows); n++)
        for (int centred = 0; centred < 2; centred++) {
            const struct shape s = {.centred = centred,
                                    .residual = true,
                                    .dtype = DTYPE_BF16,
                                    .grad_dtype = DTYPE_F32,
                                    .N = rows[n],
                                    .C = 40};
            compare(rig, &s);
        }
}

/* More rows than blocks: each block adds several up. */
static void very_many_rows_agree(const struct cuda_rig *rig)
{
    const struct shape s = {
        .centred = true, .dtype = DTYPE_F32, .grad_dtype = DTYPE_F32, .N = 4500, .C = 8};
    compare(rig, &s);
}

CUDA_ORDERS(norms_agree, norms_agree(&rig))
CUDA_ORDERS(rows_agree, few_and_many_rows_agree(&rig))

START_TEST(row_blocks_agree)
{
    struct cuda_rig rig = cuda_rig_open();
    very_many_rows_agree(&rig);
    cuda_rig_close(&rig);
}
END_TEST

/* Sums are in the same order wherever tensors are: results have the same bits. */
START_TEST(alignment_does_not_show)
{
    static const int64_t widths[] = {1, 24, 67, 520, 1040, 4104, 16400};
    struct cuda_rig rig = cuda_rig_open();
    for (size_t w = 0; w < CZ_ARRAY_LEN(widths); w++)
        for (size_t d = 0; d < 6; d++) {
            struct norm_case t[2];
            for (size_t offset = 0; offset < 2; offset++)
                t[offset] =
                    case_on_device(&rig, d & 1, dtypes[d / 2], 5, widths[w], offset * (1 + d));
            agree_same(&t[0].sum, &t[1].sum, "sum");
            agree_same(&t[0].y, &t[1].y, "y");
            agree_same(&t[0].mean, &t[1].mean, "mean");
            agree_same(&t[0].rstd, &t[1].rstd, "rstd");
            agree_same(&t[0].dx, &t[1].dx, "dx");
            agree_same(&t[0].dweight, &t[1].dweight, "dweight");
            agree_same(&t[0].dbias, &t[1].dbias, "dbias");
            case_free(&t[0]), case_free(&t[1]);
        }
    cuda_rig_close(&rig);
}
END_TEST

/* y over x, dx over dy: as layers call it. */
START_TEST(tensors_may_lie_over_each_other)
{
    struct cuda_rig rig = cuda_rig_open();
    for (int64_t C = 65; C <= 768; C += 703) {
        struct ops truth = agree_wire(norm_wire, &norm_rows(&(size_t){0})[0]->row);
        struct norm_case want = case_make(true, false, DTYPE_BF16, DTYPE_BF16, 9, C, 0);
        agree_buf_free(&want.workspace);
        const struct norm_args shape = {.N = 9, .C = C};
        size_t nbytes = ops_norm_workspace(&truth, &shape),
               mine = ops_norm_workspace(rig.ops, &shape);
        want.workspace = agree_buf_make(DTYPE_U8, nbytes > mine ? nbytes : mine, 0);
        struct norm_args host = args_of(&want);
        struct norm_twin d = twin_make(&rig, &want);
        struct norm_args device = on_device(&host, &d);
        run(&truth, NULL, true, true, &host);
        run(rig.ops, rig.stream, true, true, &device);
        device.dx = (void *)(uintptr_t)device.dy;
        run(&truth, NULL, true, false, &host);
        run(rig.ops, rig.stream, true, false, &device);
        struct agree_buf dx = agree_buf_make(DTYPE_BF16, want.dx.numel, 0);
        rig_get(&rig, &d.dy, &dx);
        agree_check(&dx, &want.dx, &row_tol, "cuda", "dx over dy");
        struct agree_buf dweight = agree_buf_make(DTYPE_BF16, (size_t)C, 0);
        rig_get(&rig, &d.dweight, &dweight);
        agree_check(&dweight, &want.dweight, &grad_tol, "cuda", "dweight beside it");
        agree_buf_free(&dx), agree_buf_free(&dweight);
        twin_free(&rig, &d);
        case_free(&want);
    }
    cuda_rig_close(&rig);
}
END_TEST

START_TEST(bad_arguments_are_refused)
{
    struct cuda_rig rig = cuda_rig_open();
    struct norm_args a = {.N = 2, .C = 0, .dtype = DTYPE_F32, .eps = 1e-5f};
    ck_fails(ops_layernorm_forward(rig.ops, rig.stream, &a), CZ_INVALID);
    a.C = 4;
    ck_fails(ops_rmsnorm_forward(rig.ops, rig.stream, &a), CZ_INVALID);
    ck_fails(ops_layernorm_backward(rig.ops, rig.stream, &a), CZ_INVALID);
    cuda_rig_close(&rig);
}
END_TEST

TEST_MAIN("norm on a CUDA device", CUDA_ORDERED(norms_agree), CUDA_ORDERED(rows_agree),
          row_blocks_agree, alignment_does_not_show, tensors_may_lie_over_each_other,
          bad_arguments_are_refused)

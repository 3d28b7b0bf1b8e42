/* A call of layernorm or rmsnorm with all of its tensors, and how far from the definition a row may
 * be. */
#ifndef CZ_TESTS_NORM_CASE_H
#define CZ_TESTS_NORM_CASE_H

#include "ops/norm/norm_impl.h"
#include "tests/support/agree.h"

static const enum cz_dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static const struct agree_tol exact = {.op = "norm sum", .why = "one add, one rounding"};

static const struct agree_tol row_tol = {
    .op = "norm",
    .rtol = 4e-6f,
    .atol = 4e-6f,
    .why = "fp32 sums over C in another order; s − mean cancels to 2^-23 of |s| ≤ 4, times rstd"};

static const struct agree_tol grad_tol = {
    .op = "norm weight gradient",
    .rtol = 1e-5f,
    .atol = 2e-5f,
    .why = "fp32 sums over up to 32 rows per block of terms up to 6, each with the error of xhat"};

/* All tensors of a call. */
struct norm_case {
    int64_t N, C;
    bool centred, residual, accumulate;
    struct agree_buf x, res, sum, weight, bias, y, mean, rstd, dy, dx, dweight, dbias, workspace;
};

static inline struct norm_case case_make(bool centred, bool residual, enum cz_dtype dtype,
                                         enum cz_dtype grad_dtype, int64_t N, int64_t C,
                                         size_t offset)
{
    size_t numel = (size_t)(N * C), c = (size_t)C, n = (size_t)N;
    struct norm_case t = {.N = N, .C = C, .centred = centred, .residual = residual};
    t.x = agree_buf_make(dtype, numel, offset);
    t.res = agree_buf_make(dtype, numel, offset / 2);
    t.sum = agree_buf_make(dtype, numel, offset);
    t.y = agree_buf_make(dtype, numel, offset / 3);
    t.dy = agree_buf_make(dtype, numel, offset);
    t.dx = agree_buf_make(dtype, numel, offset);
    t.weight = agree_buf_make(dtype, c, offset);
    t.bias = agree_buf_make(dtype, c, offset);
    t.dweight = agree_buf_make(grad_dtype, c, offset);
    t.dbias = agree_buf_make(grad_dtype, c, offset);
    t.mean = agree_buf_make(DTYPE_F32, n, offset);
    t.rstd = agree_buf_make(DTYPE_F32, n, offset);
    agree_fill(&t.x, 1, 2.0f), agree_fill(&t.res, 2, 2.0f), agree_fill(&t.weight, 3, 1.0f);
    agree_fill(&t.bias, 4, 1.0f), agree_fill(&t.dy, 5, 1.0f), agree_fill(&t.dx, 6, 1.0f);
    agree_fill(&t.dweight, 7, 1.0f), agree_fill(&t.dbias, 8, 1.0f);
    struct norm_args shape = {.N = N, .C = C};
    const struct ops definition = agree_wire(norm_wire, &norm_rows(&(size_t){0})[0]->row);
    t.workspace = agree_buf_make(DTYPE_U8, ops_norm_workspace(&definition, &shape), 0);
    return t;
}

static inline void case_free(struct norm_case *t)
{
    struct agree_buf *all[] = {&t->x,     &t->res,     &t->sum,      &t->weight, &t->bias,
                               &t->y,     &t->dy,      &t->dx,       &t->mean,   &t->rstd,
                               &t->dbias, &t->dweight, &t->workspace};
    for (size_t i = 0; i < CZ_ARRAY_LEN(all); i++) {
        agree_guards(all[i], "norm");
        agree_buf_free(all[i]);
    }
}

static inline struct norm_args args_of(struct norm_case *t)
{
    return (struct norm_args){.N = t->N,
                              .C = t->C,
                              .dtype = t->x.dtype,
                              .eps = 1e-5f,
                              .x = t->x.p,
                              .residual = t->residual ? t->res.p : NULL,
                              .sum = t->residual ? t->sum.p : NULL,
                              .weight = t->weight.p,
                              .offset = !t->centred && t->residual ? 1.0f : 0.0f,
                              .bias = t->centred ? t->bias.p : NULL,
                              .y = t->y.p,
                              .mean = t->mean.p,
                              .rstd = t->rstd.p,
                              .dy = t->dy.p,
                              .dx = t->dx.p,
                              .dx_add = !t->accumulate ? NULL
                                        : t->residual  ? t->res.p
                                                       : t->dx.p,
                              .grad_dtype = t->dweight.dtype,
                              .dweight = t->dweight.p,
                              .dbias = t->centred ? t->dbias.p : NULL,
                              .dweight_accumulate = t->accumulate,
                              .dbias_accumulate = t->accumulate,
                              .workspace = t->workspace.p,
                              .workspace_nbytes = t->workspace.nbytes};
}

#endif

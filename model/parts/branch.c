/* Low-rank branches: branch_impl.h has the formulas. Each of the six products is described once, by
 * a function that both the call and the size of its workspace use. */
#include "model/parts/branch_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

const struct layer_branch *branch_of(const struct layer_args *a, const void *w)
{
    for (size_t i = 0; i < a->n_branches; i++)
        if (a->params[a->branches[i].w] == w) return &a->branches[i];
    return NULL;
}

bool branch_wants(const struct layer_args *a, const struct layer_branch *br)
{
    return a->dparams && (a->dparams[br->a].dp || a->dparams[br->b].dp);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* A branch's own pieces, in front of its products' workspace. */
struct branch_space {
    float *wide; /* (N,R) sums of u or e */
    void *u, *e; /* (N,R) */
    void *x;     /* (N,I) dropout(x), or e·A before its dropout; NULL without dropout */
    struct scratch own;
};

static struct branch_space take_space(const struct linear *l, int64_t N, int64_t R, bool drops,
                                      enum cz_dtype dtype, void *base)
{
    struct branch_space s = {.own = {.base = base}};
    s.wide = scratch_take(&s.own, N, R, sizeof(float));
    s.u = scratch_take(&s.own, N, R, dtype_size(dtype));
    s.e = scratch_take(&s.own, N, R, dtype_size(dtype));
    if (drops) s.x = scratch_take(&s.own, N, l->n_in, dtype_size(dtype));
    return s;
}

/* What the products may use behind the pieces. */
static struct op_space rest_of(const struct branch_space *s, struct op_space space)
{
    if (s->own.used >= space.nbytes) return (struct op_space){NULL, 0};
    return (struct op_space){(unsigned char *)space.p + s->own.used, space.nbytes - s->own.used};
}

/* ---- products ------------------------------------------------------------------------------- */

/* (N,R) = x·Aᵀ in fp32 */
static struct matmul_args down_args(const struct linear *l, int64_t N, int64_t R,
                                    enum cz_dtype dtype)
{
    return (struct matmul_args){
        .m = N, .n = R, .k = l->n_in, .dtype = dtype, .c_dtype = DTYPE_F32, .trans_b = true};
}

/* y (N,n) += u·Bᵀ */
static struct matmul_args up_args(int64_t n, int64_t N, int64_t R, int64_t y_stride,
                                  enum cz_dtype dtype)
{
    return (struct matmul_args){.m = N,
                                .n = n,
                                .k = R,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_b = true,
                                .accumulate = true,
                                .ldc = y_stride};
}

/* (N,R) = dy·B in fp32 */
static struct matmul_args back_args(const struct linear *l, int64_t N, int64_t R,
                                    enum cz_dtype dtype)
{
    return (struct matmul_args){
        .m = N, .n = R, .k = l->n_out, .dtype = dtype, .c_dtype = DTYPE_F32};
}

/* dA (R,I) [+]= eᵀ·x */
static struct matmul_args da_args(const struct linear *l, int64_t N, int64_t R, enum cz_dtype dtype,
                                  enum cz_dtype grad_dtype, bool accumulate)
{
    return (struct matmul_args){.m = R,
                                .n = l->n_in,
                                .k = N,
                                .dtype = dtype,
                                .c_dtype = grad_dtype,
                                .trans_a = true,
                                .accumulate = accumulate};
}

/* dB (O,R) [+]= dyᵀ·u */
static struct matmul_args db_args(const struct linear *l, int64_t N, int64_t R, enum cz_dtype dtype,
                                  enum cz_dtype grad_dtype, bool accumulate)
{
    return (struct matmul_args){.m = l->n_out,
                                .n = R,
                                .k = N,
                                .dtype = dtype,
                                .c_dtype = grad_dtype,
                                .trans_a = true,
                                .accumulate = accumulate};
}

/* dx (N,I) [+]= e·A */
static struct matmul_args dx_args(const struct linear *l, int64_t N, int64_t R, enum cz_dtype dtype,
                                  bool accumulate)
{
    return (struct matmul_args){
        .m = N, .n = l->n_in, .k = R, .dtype = dtype, .c_dtype = dtype, .accumulate = accumulate};
}

static cz_status run(const struct layer_args *a, struct matmul_args args, const void *x,
                     const void *y, void *c, struct op_space space)
{
    args.a = x;
    args.b = y;
    args.c = c;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    return ops_matmul(a->ops, a->stream, &args);
}

/* to (N,R) = scale·wide, rounded once */
static cz_status scale_into(const struct layer_args *a, const struct layer_branch *br, int64_t N,
                            const float *wide, void *to)
{
    const struct cast_scale_args args = {.x_dtype = DTYPE_F32,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(N * br->rank),
                                         .alpha = br->scale,
                                         .x = wide,
                                         .y = to};
    return ops_cast_scale(a->ops, a->stream, &args);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* *x becomes dropout(x) where that acts; then u. */
static cz_status make_u(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, int64_t N, const struct branch_space *s,
                        const void **x, struct op_space rest)
{
    if (dropout_acts(a, br->dropout_p)) {
        TRY(dropout_apply(a, br->dropout_p, br->site, (size_t)(N * l->n_in), *x, s->x));
        *x = s->x;
    }
    TRY(run(a, down_args(l, N, br->rank, a->dtype), *x, a->params[br->a], s->wide, rest));
    return scale_into(a, br, N, s->wide, s->u);
}

cz_status branch_forward(const struct layer_args *a, const struct layer_branch *br,
                         const struct linear *l, int64_t first, int64_t n, int64_t N, const void *x,
                         void *y, int64_t y_stride, struct op_space space)
{
    const struct branch_space s =
        take_space(l, N, br->rank, dropout_acts(a, br->dropout_p), a->dtype, space.p);
    const struct op_space rest = rest_of(&s, space);
    const void *b = elem_at(a, a->params[br->b], (size_t)(first * br->rank));
    TRY(make_u(a, br, l, N, &s, &x, rest));
    return run(a, up_args(n, N, br->rank, y_stride, a->dtype), s.u, b, y, rest);
}

/* ---- backward ------------------------------------------------------------------------------- */

static cz_status make_e(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, int64_t N, const struct branch_space *s,
                        const void *dy, struct op_space rest)
{
    TRY(run(a, back_args(l, N, br->rank, a->dtype), dy, a->params[br->b], s->wide, rest));
    return scale_into(a, br, N, s->wide, s->e);
}

cz_status branch_grads(const struct layer_args *a, const struct layer_branch *br,
                       const struct linear *l, int64_t N, const void *x, const void *dy,
                       struct op_space space)
{
    const struct param_grad *ga = &a->dparams[br->a], *gb = &a->dparams[br->b];
    const struct branch_space s =
        take_space(l, N, br->rank, dropout_acts(a, br->dropout_p), a->dtype, space.p);
    const struct op_space rest = rest_of(&s, space);
    TRY(make_u(a, br, l, N, &s, &x, rest));
    if (gb->dp)
        TRY(run(a, db_args(l, N, br->rank, a->dtype, a->grad_dtype, gb->accumulate), dy, s.u,
                gb->dp, rest));
    if (!ga->dp) return CZ_OK;
    TRY(make_e(a, br, l, N, &s, dy, rest));
    return run(a, da_args(l, N, br->rank, a->dtype, a->grad_dtype, ga->accumulate), s.e, x, ga->dp,
               rest);
}

cz_status branch_dx_add(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, int64_t N, const void *dy, void *dx,
                        struct op_space space)
{
    const bool drops = dropout_acts(a, br->dropout_p);
    const struct branch_space s = take_space(l, N, br->rank, drops, a->dtype, space.p);
    const struct op_space rest = rest_of(&s, space);
    const size_t numel = (size_t)(N * l->n_in);
    TRY(make_e(a, br, l, N, &s, dy, rest));
    TRY(run(a, dx_args(l, N, br->rank, a->dtype, !drops), s.e, a->params[br->a], drops ? s.x : dx,
            rest));
    if (!drops) return CZ_OK;
    TRY(dropout_apply(a, br->dropout_p, br->site, numel, s.x, s.x));
    return residual_add(a, numel, dx, s.x, dx);
}

/* ---- workspace ------------------------------------------------------------------------------ */

static cz_status raise_by(const struct batch_shape *shape, struct matmul_args args,
                          size_t *nbytes_max)
{
    size_t nbytes = 0;
    TRY(ops_matmul_workspace(shape->ops, &args, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

static cz_status size_of(const struct batch_shape *shape, const struct layer_branch *br,
                         const struct linear *l, int64_t n, int64_t N, int64_t y_stride,
                         size_t *nbytes_max)
{
    const int64_t R = br->rank;
    const enum cz_dtype dtype = shape->dtype;
    const bool drops = shape->training && br->dropout_p > 0.0f;
    size_t ops_nbytes = 0;
    TRY(raise_by(shape, down_args(l, N, R, dtype), &ops_nbytes));
    TRY(raise_by(shape, up_args(n, N, R, y_stride, dtype), &ops_nbytes));
    if (shape->training) {
        TRY(raise_by(shape, back_args(l, N, R, dtype), &ops_nbytes));
        for (int more = 0; more < 2; more++) {
            TRY(raise_by(shape, da_args(l, N, R, dtype, shape->grad_dtype, more), &ops_nbytes));
            TRY(raise_by(shape, db_args(l, N, R, dtype, shape->grad_dtype, more), &ops_nbytes));
            TRY(raise_by(shape, dx_args(l, N, R, dtype, more), &ops_nbytes));
        }
    }
    const size_t own = take_space(l, N, R, drops, dtype, NULL).own.used;
    size_raise(nbytes_max, own > SIZE_MAX - ops_nbytes ? SIZE_MAX : own + ops_nbytes);
    return CZ_OK;
}

/* A map does not know which branch is its own: all of the layer's are as large as the largest,
 * which all-linear adapters are anyway. */
cz_status branch_workspace(const struct batch_shape *shape, const struct linear *l, int64_t n,
                           int64_t N, int64_t y_stride, size_t *nbytes_max)
{
    for (size_t i = 0; i < shape->n_branches; i++)
        TRY(size_of(shape, &shape->branches[i], l, n, N, y_stride, nbytes_max));
    return CZ_OK;
}

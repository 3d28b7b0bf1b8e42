/* Low-rank branches: branch_impl.h has the formulas. Each of the six products is described once, by
 * a function that both the call and the size of its workspace use. */
#include "model/parts/branch_impl.h"
#include "ops/dora/dora.h"
#include "ops/elementwise/elementwise.h"

const struct layer_branch *branch_of(const struct layer_args *a, const void *w)
{
    for (size_t i = 0; i < a->n_branches; i++)
        if (a->params[a->branches[i].w] == w) return &a->branches[i];
    return NULL;
}

bool branch_wants(const struct layer_args *a, const struct layer_branch *br)
{
    return a->dparams &&
           (a->dparams[br->a].dp || a->dparams[br->b].dp || (br->is_dora && a->dparams[br->m].dp));
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

/* ---- DoRA ----------------------------------------------------------------------------------- */

/* Behind the branch's own pieces, if it has any. */
struct dora_space {
    float *inv_norm; /* (O) */
    void *bs;        /* (O,R) scale·B, or g ⊙ scale·B */
    float *t;        /* (O,R) dyᵀ·u */
    void *v;         /* as the map's weight: V, W' or W' − w */
    void *h;         /* (N,O) x·Vᵀ */
    struct scratch own;
};

static struct dora_space take_dora(const struct linear *l, int64_t N, int64_t R,
                                   enum cz_dtype dtype, struct scratch own)
{
    struct dora_space s = {.own = own};
    s.inv_norm = scratch_take(&s.own, l->n_out, 1, sizeof(float));
    s.bs = scratch_take(&s.own, l->n_out, R, dtype_size(dtype));
    s.t = scratch_take(&s.own, l->n_out, R, sizeof(float));
    s.v = scratch_take(&s.own, l->n_out, l->n_in, dtype_size(dtype));
    if (N > 0) s.h = scratch_take(&s.own, N, l->n_out, dtype_size(dtype));
    return s;
}

static struct op_space rest_of_dora(const struct dora_space *s, struct op_space space)
{
    return rest_of(&(struct branch_space){.own = s->own}, space);
}

/* v += bs·A, stored as the map's weight */
static struct matmul_args sum_args(const struct linear *l, int64_t R, enum cz_dtype dtype)
{
    return (struct matmul_args){.m = l->in_out ? l->n_in : l->n_out,
                                .n = l->in_out ? l->n_out : l->n_in,
                                .k = R,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_a = l->in_out,
                                .trans_b = l->in_out,
                                .accumulate = true};
}

/* y (N,n) [+]= x·vᵀ of n of the map's columns */
static struct matmul_args wide_args(const struct linear *l, int64_t n, int64_t N, int64_t y_stride,
                                    enum cz_dtype dtype, bool accumulate)
{
    return (struct matmul_args){.m = N,
                                .n = n,
                                .k = l->n_in,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_b = !l->in_out,
                                .ldb = l->in_out ? l->n_out : l->n_in,
                                .ldc = y_stride,
                                .accumulate = accumulate};
}

/* dx (N,I) [+]= dy·v */
static struct matmul_args wide_back_args(const struct linear *l, int64_t N, enum cz_dtype dtype,
                                         bool accumulate)
{
    return (struct matmul_args){.m = N,
                                .n = l->n_in,
                                .k = l->n_out,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_b = l->in_out,
                                .accumulate = accumulate};
}

/* dB's sum (O,R) = dyᵀ·u in fp32 */
static struct matmul_args t_args(const struct linear *l, int64_t N, int64_t R, enum cz_dtype dtype)
{
    return (struct matmul_args){
        .m = l->n_out, .n = R, .k = N, .dtype = dtype, .c_dtype = DTYPE_F32, .trans_a = true};
}

static struct dora_scale_args by_rows(const struct layer_args *a, const struct layer_branch *br,
                                      const struct dora_space *s, int64_t O, int64_t I)
{
    return (struct dora_scale_args){.O = O,
                                    .I = I,
                                    .dtype = a->dtype,
                                    .x_dtype = a->dtype,
                                    .y_dtype = a->dtype,
                                    .m = a->params[br->m],
                                    .inv_norm = s->inv_norm};
}

/* V and what its rows are scaled by. */
static cz_status make_v(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, const struct dora_space *s, struct op_space rest)
{
    const size_t numel = (size_t)(l->n_out * l->n_in);
    const struct cast_scale_args scaled = {.x_dtype = a->dtype,
                                           .y_dtype = a->dtype,
                                           .numel = (size_t)(l->n_out * br->rank),
                                           .alpha = br->scale,
                                           .x = a->params[br->b],
                                           .y = s->bs};
    const struct cast_scale_args copy = {.x_dtype = a->dtype,
                                         .y_dtype = a->dtype,
                                         .numel = numel,
                                         .alpha = 1,
                                         .x = a->params[br->w],
                                         .y = s->v};
    const struct dora_norm_args norm = {.O = l->n_out,
                                        .I = l->n_in,
                                        .in_out = l->in_out,
                                        .dtype = a->dtype,
                                        .v = s->v,
                                        .inv_norm = s->inv_norm};
    const void *down = a->params[br->a];
    TRY(ops_cast_scale(a->ops, a->stream, &scaled));
    TRY(ops_cast_scale(a->ops, a->stream, &copy));
    TRY(matmul_run(a, sum_args(l, br->rank, a->dtype), l->in_out ? down : s->bs,
                   l->in_out ? s->bs : down, s->v, rest));
    return ops_dora_norm(a->ops, a->stream, &norm);
}

/* W', or W' − w. */
static cz_status make_weight(const struct layer_args *a, const struct layer_branch *br,
                             const struct linear *l, const struct dora_space *s, bool is_difference,
                             struct op_space rest)
{
    TRY(make_v(a, br, l, s, rest));
    struct dora_scale_args args = by_rows(a, br, s, l->n_out, l->n_in);
    args.in_out = l->in_out;
    args.x = args.y = s->v;
    args.w = is_difference ? a->params[br->w] : NULL;
    return ops_dora_scale(a->ops, a->stream, &args);
}

cz_status branch_replace(const struct layer_args *a, const struct layer_branch *br,
                         const struct linear *l, const void **w, struct op_space *space)
{
    if (!br || !br->is_dora || dropout_acts(a, br->dropout_p)) return CZ_OK;
    const struct dora_space s =
        take_dora(l, 0, br->rank, a->dtype, (struct scratch){.base = space->p});
    *space = rest_of_dora(&s, *space);
    *w = s.v;
    return make_weight(a, br, l, &s, false, *space);
}

/* dm, dB and the u and e that dB and dA need. */
static cz_status dora_grads(const struct layer_args *a, const struct layer_branch *br,
                            const struct linear *l, int64_t N, const struct branch_space *s,
                            const void *x, const void *dy, struct op_space space)
{
    const struct param_grad *ga = &a->dparams[br->a], *gb = &a->dparams[br->b],
                            *gm = &a->dparams[br->m];
    const int64_t R = br->rank;
    const struct dora_space d = take_dora(l, N, R, a->dtype, s->own);
    const struct op_space rest = rest_of_dora(&d, space);
    TRY(make_v(a, br, l, &d, rest));
    if (gm->dp) {
        const struct dora_grad_args args = {.N = N,
                                            .O = l->n_out,
                                            .dtype = a->dtype,
                                            .grad_dtype = a->grad_dtype,
                                            .dy = dy,
                                            .h = d.h,
                                            .inv_norm = d.inv_norm,
                                            .dm = gm->dp,
                                            .accumulate = gm->accumulate};
        TRY(matmul_run(a, wide_args(l, l->n_out, N, 0, a->dtype, false), x, d.v, d.h, rest));
        TRY(ops_dora_grad(a->ops, a->stream, &args));
    }
    if (gb->dp) {
        struct dora_scale_args args = by_rows(a, br, &d, l->n_out, R);
        args.x_dtype = DTYPE_F32;
        args.y_dtype = a->grad_dtype;
        args.x = d.t;
        args.y = gb->dp;
        args.accumulate = gb->accumulate;
        TRY(matmul_run(a, t_args(l, N, R, a->dtype), dy, s->u, d.t, rest));
        TRY(ops_dora_scale(a->ops, a->stream, &args));
    }
    if (!ga->dp) return CZ_OK;
    struct dora_scale_args args = by_rows(a, br, &d, l->n_out, R);
    args.x = args.y = d.bs;
    TRY(ops_dora_scale(a->ops, a->stream, &args));
    const struct layer_branch whole = {.rank = R, .scale = 1};
    TRY(matmul_run(a, back_args(l, N, R, a->dtype), dy, d.bs, s->wide, rest));
    TRY(scale_into(a, &whole, N, s->wide, s->e));
    return matmul_run(a, da_args(l, N, R, a->dtype, a->grad_dtype, ga->accumulate), s->e, x, ga->dp,
                      rest);
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
    TRY(matmul_run(a, down_args(l, N, br->rank, a->dtype), *x, a->params[br->a], s->wide, rest));
    return scale_into(a, br, N, s->wide, s->u);
}

/* With dropout: y += dropout(x)·(W' − w)ᵀ. Without, W' has stood in for the weight. */
static cz_status dora_forward(const struct layer_args *a, const struct layer_branch *br,
                              const struct linear *l, int64_t first, int64_t n, int64_t N,
                              const struct branch_space *s, const void *x, void *y,
                              int64_t y_stride, struct op_space space)
{
    if (!dropout_acts(a, br->dropout_p)) return CZ_OK;
    const struct dora_space d = take_dora(l, 0, br->rank, a->dtype, s->own);
    const struct op_space rest = rest_of_dora(&d, space);
    const size_t off = (size_t)(l->in_out ? first : first * l->n_in);
    TRY(dropout_apply(a, br->dropout_p, br->site, (size_t)(N * l->n_in), x, s->x));
    TRY(make_weight(a, br, l, &d, true, rest));
    return matmul_run(a, wide_args(l, n, N, y_stride, a->dtype, true), s->x, elem_at(a, d.v, off),
                      y, rest);
}

cz_status branch_forward(const struct layer_args *a, const struct layer_branch *br,
                         const struct linear *l, int64_t first, int64_t n, int64_t N, const void *x,
                         void *y, int64_t y_stride, struct op_space space)
{
    const struct branch_space s =
        take_space(l, N, br->rank, dropout_acts(a, br->dropout_p), a->dtype, space.p);
    const struct op_space rest = rest_of(&s, space);
    const void *b = elem_at(a, a->params[br->b], (size_t)(first * br->rank));
    if (br->is_dora) return dora_forward(a, br, l, first, n, N, &s, x, y, y_stride, space);
    TRY(make_u(a, br, l, N, &s, &x, rest));
    return matmul_run(a, up_args(n, N, br->rank, y_stride, a->dtype), s.u, b, y, rest);
}

/* ---- backward ------------------------------------------------------------------------------- */

static cz_status make_e(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, int64_t N, const struct branch_space *s,
                        const void *dy, struct op_space rest)
{
    TRY(matmul_run(a, back_args(l, N, br->rank, a->dtype), dy, a->params[br->b], s->wide, rest));
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
    if (br->is_dora) return dora_grads(a, br, l, N, &s, x, dy, space);
    if (gb->dp)
        TRY(matmul_run(a, db_args(l, N, br->rank, a->dtype, a->grad_dtype, gb->accumulate), dy, s.u,
                       gb->dp, rest));
    if (!ga->dp) return CZ_OK;
    TRY(make_e(a, br, l, N, &s, dy, rest));
    return matmul_run(a, da_args(l, N, br->rank, a->dtype, a->grad_dtype, ga->accumulate), s.e, x,
                      ga->dp, rest);
}

cz_status branch_dx_add(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, int64_t N, const void *dy, void *dx,
                        struct op_space space)
{
    const bool drops = dropout_acts(a, br->dropout_p);
    const struct branch_space s = take_space(l, N, br->rank, drops, a->dtype, space.p);
    const struct op_space rest = rest_of(&s, space);
    const size_t numel = (size_t)(N * l->n_in);
    if (br->is_dora && !drops) return CZ_OK;
    if (br->is_dora) {
        const struct dora_space d = take_dora(l, 0, br->rank, a->dtype, s.own);
        const struct op_space less = rest_of_dora(&d, space);
        TRY(make_weight(a, br, l, &d, true, less));
        TRY(matmul_run(a, wide_back_args(l, N, a->dtype, false), dy, d.v, s.x, less));
    } else {
        TRY(make_e(a, br, l, N, &s, dy, rest));
        TRY(matmul_run(a, dx_args(l, N, br->rank, a->dtype, !drops), s.e, a->params[br->a],
                       drops ? s.x : dx, rest));
    }
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
    struct scratch own_pieces = take_space(l, N, R, drops, dtype, NULL).own;
    if (br->is_dora) {
        TRY(raise_by(shape, sum_args(l, R, dtype), &ops_nbytes));
        TRY(raise_by(shape, t_args(l, N, R, dtype), &ops_nbytes));
        for (int more = 0; more < 2; more++) {
            TRY(raise_by(shape, wide_args(l, l->n_out, N, 0, dtype, more), &ops_nbytes));
            TRY(raise_by(shape, wide_args(l, n, N, y_stride, dtype, more), &ops_nbytes));
            TRY(raise_by(shape, wide_back_args(l, N, dtype, more), &ops_nbytes));
        }
        own_pieces = take_dora(l, N, R, dtype, own_pieces).own;
    }
    const size_t own = own_pieces.used;
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

/* Pieces that layers are built of: linear maps, norms, dropout, residuals, and the arithmetic of
 * their memory. Each piece has a function that runs it and one that sizes its workspace, made from
 * the same arguments, so that a plan and a run cannot disagree. */
#include "model/parts/branch_impl.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/norm.h"

#include "base/size.h"

#include <string.h>

/* ---- memory --------------------------------------------------------------------------------- */

#define PIECE_ALIGN ((size_t)64)

/* Sizes of a plan may overflow for absurd models: SIZE_MAX then fails the final check, and every
 * sum in between stays readable. */
static size_t saturating_add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static size_t saturating_mul(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Counts are not negative: batch_shape_check() was first. */
size_t rows_nbytes(int64_t n_rows, int64_t row_numel, size_t elem_nbytes)
{
    return saturating_mul((size_t)n_rows, saturating_mul((size_t)row_numel, elem_nbytes));
}

/* base NULL only measures: the same code sizes and places. */
void *scratch_take(struct scratch *s, int64_t n_rows, int64_t row_numel, size_t elem_nbytes)
{
    size_t nbytes = rows_nbytes(n_rows, row_numel, elem_nbytes);
    nbytes = nbytes > SIZE_MAX - PIECE_ALIGN ? SIZE_MAX : size_round_up(nbytes, PIECE_ALIGN);
    void *piece = s->base ? s->base + s->used : NULL;
    s->used = saturating_add(s->used, nbytes);
    return piece;
}

/* What a layer has not taken is the operations' workspace. */
struct op_space scratch_rest(const struct scratch *s, const struct layer_args *a)
{
    if (s->used >= a->workspace_nbytes) return (struct op_space){NULL, 0};
    return (struct op_space){(unsigned char *)a->workspace + s->used,
                             a->workspace_nbytes - s->used};
}

/* N fits an int32: kernels index rows with it. */
cz_status batch_shape_check(const char *what, const struct batch_shape *shape)
{
    const int64_t N_max = INT32_MAX;
    if (shape->B < 1 || shape->T < 1 || shape->B > N_max / shape->T)
        return err_set(CZ_INVALID, 0, "%s: a batch of %lld × %lld tokens cannot be planned", what,
                       (long long)shape->B, (long long)shape->T);
    return CZ_OK;
}

int64_t batch_shape_n_rows(const struct batch_shape *shape)
{
    return shape->n_texts > 0 ? shape->n_texts : shape->B;
}

int64_t batch_shape_row_length(const struct batch_shape *shape)
{
    return shape->B * shape->T / batch_shape_n_rows(shape);
}

/* One check for all sums that were made on the way. */
cz_status sizes_finish(const char *what, size_t own_nbytes, size_t op_nbytes,
                       struct layer_sizes *out)
{
    out->workspace_nbytes = saturating_add(own_nbytes, op_nbytes);
    size_t largest = out->workspace_nbytes;
    size_raise(&largest, out->saved_nbytes);
    size_raise(&largest, out->out_nbytes);
    size_raise(&largest, out->cache_nbytes);
    if (largest >= SIZE_MAX / 2)
        return err_set(CZ_INVALID, 0, "%s: a batch of this shape is beyond any memory", what);
    return CZ_OK;
}

/* ---- linear --------------------------------------------------------------------------------- */

/* y (N,O) = x·w + b */
static struct matmul_args linear_fwd_args(const struct linear *l, int64_t N, enum cz_dtype dtype)
{
    return (struct matmul_args){.m = N,
                                .n = l->n_out,
                                .k = l->n_in,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_b = !l->in_out,
                                .b_stays = true};
}

/* dx (N,I) = dy·wᵀ */
static struct matmul_args linear_dgrad_args(const struct linear *l, int64_t N, enum cz_dtype dtype)
{
    return (struct matmul_args){.m = N,
                                .n = l->n_in,
                                .k = l->n_out,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_b = l->in_out,
                                .b_stays = true};
}

/* dw [+]= xᵀ·dy (I,O), or dyᵀ·x (O,I); db [+]= Σ dy may come along */
static struct matmul_args linear_wgrad_args(const struct linear *l, int64_t N, enum cz_dtype dtype,
                                            enum cz_dtype grad_dtype, bool accumulate)
{
    return (struct matmul_args){.m = l->in_out ? l->n_in : l->n_out,
                                .n = l->in_out ? l->n_out : l->n_in,
                                .k = N,
                                .dtype = dtype,
                                .c_dtype = grad_dtype,
                                .trans_a = true,
                                .accumulate = accumulate};
}

/* The product that makes dw reads dy anyway: its row or column sums come along. */
static enum matmul_bias_grad bias_grad_of(const struct linear *l)
{
    return l->in_out ? MATMUL_BIAS_GRAD_OF_B : MATMUL_BIAS_GRAD_OF_A;
}

cz_status param_grad_zero(const struct layer_args *a, const struct param_grad *g, int64_t numel)
{
    struct device *device = ops_device(a->ops);
    if (!g->dp || g->accumulate) return CZ_OK;
    return device->ops->fill_zero(device, a->stream, g->dp,
                                  (size_t)numel * dtype_size(a->grad_dtype));
}

cz_status matmul_run(const struct layer_args *a, struct matmul_args args, const void *x,
                     const void *y, void *c, struct op_space space)
{
    args.a = x;
    args.b = y;
    args.c = c;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    return ops_matmul(a->ops, a->stream, &args);
}

/* The weight that a product reads: w, or what the branch makes of it in the workspace. */
static cz_status weight_of(const struct layer_args *a, const struct layer_branch *branch,
                           const struct linear *l, struct matmul_args *args, const void **w,
                           struct op_space *space)
{
    const void *own = *w;
    TRY(branch_replace(a, branch, l, w, space));
    args->b_stays = *w == own;
    return CZ_OK;
}

cz_status linear_forward(const struct layer_args *a, const struct linear *l, int64_t N,
                         const void *x, const void *w, const void *b, void *y,
                         struct op_space space)
{
    struct matmul_args args = linear_fwd_args(l, N, a->dtype);
    const struct layer_branch *branch = branch_of(a, w);
    struct op_space rest = space;
    TRY(weight_of(a, branch, l, &args, &w, &rest));
    args.bias = b;
    TRY(matmul_run(a, args, x, w, y, rest));
    return branch ? branch_forward(a, branch, l, 0, l->n_out, N, x, y, 0, space) : CZ_OK;
}

/* In the product's epilogue the residual is read where it would be written and read again by a pass
 * of its own, and by the norm behind it. Behind a branch it cannot be. */
cz_status linear_forward_add(const struct layer_args *a, const struct linear *l, int64_t N,
                             const void *x, const void *w, const void *b, const void *residual,
                             void *room, void *y, struct op_space space)
{
    struct matmul_args args = linear_fwd_args(l, N, a->dtype);
    if (ops_adds_residual(a->ops) && !branch_of(a, w)) {
        args.bias = b;
        args.residual = residual;
        return matmul_run(a, args, x, w, y, space);
    }
    TRY(linear_forward(a, l, N, x, w, b, room, space));
    return residual_add(a, (size_t)(N * l->n_out), residual, room, y);
}

/* The activation in the product's epilogue saves a pass over y; behind a branch it cannot be. */
cz_status linear_act_forward(const struct layer_args *a, const struct linear *l,
                             enum activation act, int64_t N, const void *x, const void *w,
                             const void *b, void *pre, void *y, struct op_space space)
{
    struct matmul_args args = linear_fwd_args(l, N, a->dtype);
    if (branch_of(a, w)) {
        void *sum = pre ? pre : y;
        TRY(linear_forward(a, l, N, x, w, b, sum, space));
        return activation_apply(a, act, (size_t)(N * l->n_out), sum, y);
    }
    args.bias = b;
    args.epilogue = MATMUL_ACT;
    args.act = act;
    args.aux = pre == y ? NULL : pre;
    return matmul_run(a, args, x, w, y, space);
}

/* A column range of the map, for a cache that takes keys and values apart. */
static struct matmul_args linear_columns_args(const struct linear *l, int64_t n, int64_t N,
                                              int64_t y_stride, enum cz_dtype dtype)
{
    struct matmul_args args = linear_fwd_args(l, N, dtype);
    args.n = n;
    args.ldb = l->in_out ? l->n_out : l->n_in;
    args.ldc = y_stride;
    return args;
}

cz_status linear_columns(const struct layer_args *a, const struct linear *l, int64_t first,
                         int64_t n, int64_t N, const void *x, const void *w, const void *b, void *y,
                         int64_t y_stride, struct op_space space)
{
    struct matmul_args args = linear_columns_args(l, n, N, y_stride, a->dtype);
    size_t w_off = (size_t)(l->in_out ? first : first * l->n_in);
    const struct layer_branch *branch = branch_of(a, w);
    struct op_space rest = space;
    TRY(weight_of(a, branch, l, &args, &w, &rest));
    args.bias = b ? elem_at(a, b, (size_t)first) : NULL;
    TRY(matmul_run(a, args, x, elem_at(a, w, w_off), y, rest));
    return branch ? branch_forward(a, branch, l, first, n, N, x, y, y_stride, space) : CZ_OK;
}

/* Frozen parameters have no dp. */
static bool wanted(const struct param_grad *g)
{
    return g && g->dp;
}

/* For a frozen weight with a trained bias. */
static cz_status bias_backward(const struct layer_args *a, int64_t N, int64_t C, const void *dy,
                               const struct param_grad *g, struct op_space space)
{
    struct bias_grad_args args = {.N = N,
                                  .C = C,
                                  .dtype = a->dtype,
                                  .grad_dtype = a->grad_dtype,
                                  .dy = dy,
                                  .db = g->dp,
                                  .accumulate = g->accumulate,
                                  .workspace = space.p,
                                  .workspace_nbytes = space.nbytes};
    return ops_bias_grad(a->ops, a->stream, &args);
}

bool linear_wants_input(const struct layer_args *a, const void *w, const struct param_grad *gw)
{
    const struct layer_branch *branch = branch_of(a, w);
    return wanted(gw) || (branch && branch_wants(a, branch));
}

/* Weight and bias in one product where both are wanted. x NULL: nothing that needs it is. */
static cz_status params_backward(const struct layer_args *a, const struct linear *l, int64_t N,
                                 const void *x, const void *dy, const void *w,
                                 const struct param_grad *gw, const struct param_grad *gb,
                                 struct op_space space)
{
    const struct layer_branch *branch = x ? branch_of(a, w) : NULL;
    if (branch && branch_wants(a, branch)) TRY(branch_grads(a, branch, l, N, x, dy, space));
    if (!wanted(gw)) return wanted(gb) ? bias_backward(a, N, l->n_out, dy, gb, space) : CZ_OK;
    struct matmul_args args = linear_wgrad_args(l, N, a->dtype, a->grad_dtype, gw->accumulate);
    if (wanted(gb)) {
        args.bias_grad_of = bias_grad_of(l);
        args.bias_grad = gb->dp;
        args.bias_grad_accumulate = gb->accumulate;
    }
    return matmul_run(a, args, l->in_out ? x : dy, l->in_out ? dy : x, gw->dp, space);
}

cz_status linear_backward(const struct layer_args *a, const struct linear *l, int64_t N,
                          const void *x, const void *dy, const void *w, const struct param_grad *gw,
                          const struct param_grad *gb, void *dx, struct op_space space)
{
    TRY(params_backward(a, l, N, x, dy, w, gw, gb, space));
    if (!dx) return CZ_OK;
    struct matmul_args args = linear_dgrad_args(l, N, a->dtype);
    const struct layer_branch *branch = branch_of(a, w);
    struct op_space rest = space;
    TRY(weight_of(a, branch, l, &args, &w, &rest));
    TRY(matmul_run(a, args, dy, w, dx, rest));
    return branch ? branch_dx_add(a, branch, l, N, dy, dx, space) : CZ_OK;
}

cz_status linear_act_backward(const struct layer_args *a, const struct linear *l,
                              enum activation act, int64_t N, const void *x, const void *pre,
                              const void *dy, const void *w, const struct param_grad *gw,
                              const struct param_grad *gb, void *dx, struct op_space space)
{
    if (branch_of(a, w)) {
        TRY(linear_backward(a, l, N, x, dy, w, gw, gb, dx, space));
        return activation_grad(a, act, (size_t)(N * l->n_in), pre, dx, dx);
    }
    TRY(params_backward(a, l, N, x, dy, w, gw, gb, space));
    struct matmul_args args = linear_dgrad_args(l, N, a->dtype);
    args.epilogue = MATMUL_ACT_GRAD;
    args.act = act;
    args.aux = (void *)(uintptr_t)pre; /* read only */
    return matmul_run(a, args, dy, w, dx, space);
}

/* Several maps read one input: their gradients add up in place. */
cz_status linear_dx_add(const struct layer_args *a, const struct linear *l, int64_t N,
                        const void *dy, const void *w, void *dx, struct op_space space)
{
    struct matmul_args args = linear_dgrad_args(l, N, a->dtype);
    const struct layer_branch *branch = branch_of(a, w);
    args.accumulate = true;
    struct op_space rest = space;
    TRY(weight_of(a, branch, l, &args, &w, &rest));
    TRY(matmul_run(a, args, dy, w, dx, rest));
    return branch ? branch_dx_add(a, branch, l, N, dy, dx, space) : CZ_OK;
}

static cz_status matmul_raise(struct ops *ops, const struct matmul_args *args, size_t *nbytes_max)
{
    size_t nbytes = 0;
    TRY(ops_matmul_workspace(ops, args, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

/* The largest over forward and both gradients. */
cz_status linear_workspace(const struct batch_shape *shape, const struct linear *l, int64_t N,
                           size_t *nbytes_max)
{
    struct ops *ops = shape->ops;
    struct matmul_args args = linear_fwd_args(l, N, shape->dtype);
    TRY(matmul_raise(ops, &args, nbytes_max));
    TRY(branch_workspace(shape, l, l->n_out, N, 0, nbytes_max));
    if (!shape->training) return CZ_OK;
    args = linear_dgrad_args(l, N, shape->dtype);
    TRY(matmul_raise(ops, &args, nbytes_max));
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        args = linear_wgrad_args(l, N, shape->dtype, shape->grad_dtype, accumulate);
        args.bias_grad_of = bias_grad_of(l);
        TRY(matmul_raise(ops, &args, nbytes_max));
    }
    const struct bias_grad_args bias = {
        .N = N, .C = l->n_out, .dtype = shape->dtype, .grad_dtype = shape->grad_dtype};
    size_raise(nbytes_max, ops_bias_grad_workspace(ops, &bias));
    return CZ_OK;
}

cz_status linear_dx_add_workspace(const struct batch_shape *shape, const struct linear *l,
                                  int64_t N, size_t *nbytes_max)
{
    struct matmul_args args = linear_dgrad_args(l, N, shape->dtype);
    args.accumulate = true;
    return matmul_raise(shape->ops, &args, nbytes_max);
}

cz_status linear_columns_workspace(const struct batch_shape *shape, const struct linear *l,
                                   int64_t n, int64_t N, int64_t y_stride, size_t *nbytes_max)
{
    const struct matmul_args args = linear_columns_args(l, n, N, y_stride, shape->dtype);
    TRY(matmul_raise(shape->ops, &args, nbytes_max));
    return branch_workspace(shape, l, n, N, y_stride, nbytes_max);
}

/* ---- norm ----------------------------------------------------------------------------------- */

cz_status norm_forward(const struct layer_args *a, const struct norm *n, int64_t N,
                       const struct norm_io *io, const void *w, const void *b)
{
    const struct norm_args args = {.N = N,
                                   .C = n->C,
                                   .dtype = a->dtype,
                                   .eps = n->eps,
                                   .offset = n->offset,
                                   .x = io->x,
                                   .residual = io->residual,
                                   .sum = io->sum,
                                   .weight = w,
                                   .bias = b,
                                   .y = io->y,
                                   .mean = io->mean,
                                   .rstd = io->rstd};
    return n->rms ? ops_rmsnorm_forward(a->ops, a->stream, &args)
                  : ops_layernorm_forward(a->ops, a->stream, &args);
}

/* Statistics of forward are read, not made again: recomputing them could round otherwise. */
cz_status norm_backward(const struct layer_args *a, const struct norm *n, int64_t N,
                        const struct norm_grad_io *io, const void *w, const struct param_grad *gw,
                        const struct param_grad *gb, struct op_space space)
{
    const struct norm_args args = {.N = N,
                                   .C = n->C,
                                   .dtype = a->dtype,
                                   .eps = n->eps,
                                   .offset = n->offset,
                                   .x = io->x,
                                   .weight = w,
                                   .mean = (float *)(uintptr_t)io->mean, /* read only */
                                   .rstd = (float *)(uintptr_t)io->rstd,
                                   .dy = io->dy,
                                   .dx = io->dx,
                                   .dx_add = io->dx_add,
                                   .grad_dtype = a->grad_dtype,
                                   .dweight = wanted(gw) ? gw->dp : NULL,
                                   .dbias = wanted(gb) ? gb->dp : NULL,
                                   .dweight_accumulate = wanted(gw) && gw->accumulate,
                                   .dbias_accumulate = wanted(gb) && gb->accumulate,
                                   .workspace = space.p,
                                   .workspace_nbytes = space.nbytes};
    return n->rms ? ops_rmsnorm_backward(a->ops, a->stream, &args)
                  : ops_layernorm_backward(a->ops, a->stream, &args);
}

void norm_workspace(const struct batch_shape *shape, const struct norm *n, int64_t N,
                    size_t *nbytes_max)
{
    const struct norm_args args = {
        .N = N, .C = n->C, .dtype = shape->dtype, .grad_dtype = shape->grad_dtype};
    if (shape->training) size_raise(nbytes_max, ops_norm_workspace(shape->ops, &args));
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Mask, documents and dropout are the batch's, in forward and backward alike. */
void attention_complete(struct attention_args *args, const struct layer_args *a, float p,
                        uint32_t site, struct op_space space)
{
    args->key_mask = a->batch->key_mask;
    args->documents = a->batch->documents;
    if (dropout_acts(a, p)) {
        args->dropout_p = p;
        args->rng = a->rng;
        args->rng.site += site;
    }
    args->workspace = space.p;
    args->workspace_nbytes = space.nbytes;
}

/* ---- logits --------------------------------------------------------------------------------- */

#define LOGITS_BLOCK_NBYTES ((int64_t)16 << 20)

/* A block small enough for the GPU's workspace, at least one row. */
int64_t logits_block_rows(const struct ops *ops, int64_t N, int64_t V)
{
    if (host_reads(ops)) return 0;
    const int64_t n = LOGITS_BLOCK_NBYTES / (V * (int64_t)sizeof(float));
    return n < 1 ? 1 : n < N ? n : N;
}

cz_status logits_copy_out(const struct layer_args *a, const float *block, int64_t first, int64_t n,
                          int64_t V)
{
    struct device *device = ops_device(a->ops);
    return device->ops->copy(device, a->stream, a->logits + first * V, block,
                             (size_t)(n * V) * sizeof *block);
}

/* ---- small ones ----------------------------------------------------------------------------- */

/* The mask is a function of (key, site, element): backward repeats it without storing it. */
cz_status dropout_apply(const struct layer_args *a, float p, uint32_t site, size_t numel,
                        const void *x, void *y)
{
    struct dropout_args args = {
        .dtype = a->dtype, .numel = numel, .p = p, .rng = a->rng, .x = x, .y = y};
    args.rng.site += site;
    return ops_dropout(a->ops, a->stream, &args);
}

cz_status activation_apply(const struct layer_args *a, enum activation kind, size_t numel,
                           const void *x, void *y)
{
    const struct activation_args args = {
        .kind = kind, .dtype = a->dtype, .numel = numel, .x = x, .y = y};
    return ops_activation_forward(a->ops, a->stream, &args);
}

cz_status activation_grad(const struct layer_args *a, enum activation kind, size_t numel,
                          const void *x, const void *dy, void *dx)
{
    const struct activation_args args = {
        .kind = kind, .dtype = a->dtype, .numel = numel, .x = x, .dy = dy, .dx = dx};
    return ops_activation_backward(a->ops, a->stream, &args);
}

cz_status residual_add(const struct layer_args *a, size_t numel, const void *x1, const void *x2,
                       void *y)
{
    const struct add_args args = {.dtype = a->dtype, .numel = numel, .a = x1, .b = x2, .y = y};
    return ops_add(a->ops, a->stream, &args);
}

cz_status elements_copy(const struct layer_args *a, size_t numel, const void *x, void *y)
{
    struct device *device = ops_device(a->ops);
    return device->ops->copy(device, a->stream, y, x, numel * dtype_size(a->dtype));
}

/* ---- first positions ------------------------------------------------------------------------ */

/* The element of x (N,C) where row i of the batch begins. */
static size_t first_of(const struct layer_args *a, int64_t C, int64_t i)
{
    return (size_t)batch_row_start(batch_on_host(a->batch), i) * (size_t)C;
}

cz_status first_positions_take(const struct layer_args *a, int64_t C, const void *x, void *first)
{
    const size_t row = (size_t)C;
    for (int64_t i = 0; i < batch_n_rows(a->batch); i++)
        TRY(elements_copy(a, row, elem_at(a, x, first_of(a, C, i)),
                          elem_at(a, first, (size_t)i * row)));
    return CZ_OK;
}

cz_status first_positions_put(const struct layer_args *a, int64_t C, const void *first, void *x)
{
    const size_t N = (size_t)(a->batch->B * a->batch->T), row = (size_t)C;
    struct device *device = ops_device(a->ops);
    TRY(device->ops->fill_zero(device, a->stream, x, N * row * dtype_size(a->dtype)));
    for (int64_t i = 0; i < batch_n_rows(a->batch); i++)
        TRY(elements_copy(a, row, elem_at(a, first, (size_t)i * row),
                          elem_at(a, x, first_of(a, C, i))));
    return CZ_OK;
}

/* The pieces that layers are made of: memory layout, linear maps, norms, dropout. They only
 * translate a layer's terms (parameter indices, modes) into ops.
 *
 * Legend: N rows (B·T tokens), I and O channels in and out. */
#ifndef CZ_MODEL_PARTS_BLOCKS_IMPL_H
#define CZ_MODEL_PARTS_BLOCKS_IMPL_H

#include "base/size.h"
#include "model/layer.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/matmul/matmul.h"

/* ---- memory --------------------------------------------------------------------------------- */

/* Memory handed out piece by piece. With base NULL it only counts, so that size() and the layer
 * itself run the same layout code. Sizes saturate at SIZE_MAX instead of wrapping. */
struct scratch {
    unsigned char *base;
    size_t used;
};

/* n_rows · row_numel elements of elem_nbytes each; pieces start 64 bytes apart. */
void *scratch_take(struct scratch *s, int64_t n_rows, int64_t row_numel, size_t elem_nbytes);

/* Workspace of an op: what is left behind the layer's own pieces. */
struct op_space {
    void *p;
    size_t nbytes;
};
struct op_space scratch_rest(const struct scratch *s, const struct layer_args *a);

/* Bytes of n_rows rows, SIZE_MAX when that overflows. */
size_t rows_nbytes(int64_t n_rows, int64_t row_numel, size_t elem_nbytes);

/* The start of every size(): a batch of at least one token and fewer than 2^31. CZ_INVALID. */
cz_status batch_shape_check(const char *what, const struct batch_shape *shape);

/* How many rows there are, and how many positions one has, on average. */
int64_t batch_shape_n_rows(const struct batch_shape *shape);
int64_t batch_shape_row_length(const struct batch_shape *shape);

/* The end of every size(): own pieces plus the largest op; CZ_INVALID when a sum saturated. */
cz_status sizes_finish(const char *what, size_t own_nbytes, size_t op_nbytes,
                       struct layer_sizes *out);

/* The product c = x·y that `args` describe, with `space` as its workspace. */
cz_status matmul_run(const struct layer_args *a, struct matmul_args args, const void *x,
                     const void *y, void *c, struct op_space space);

/* Writes zeros as a gradient of numel elements: for one that is zero in exact arithmetic, or of no
 * row. Nothing where it is not wanted, or adds to what is there. */
cz_status param_grad_zero(const struct layer_args *a, const struct param_grad *g, int64_t numel);

/* ---- linear --------------------------------------------------------------------------------- */

/* y (N,O) = x (N,I) · w [+ b]. w is (O,I) as torch.nn.Linear stores it, or (I,O) as GPT-2 does. A
 * map whose weight is one of a->params that has a low-rank branch (model/layer.h) computes that
 * along, in every call below; backward then gives the branch's gradients to a->dparams. */
struct linear {
    int64_t n_in, n_out;
    bool in_out; /* w is (I,O) */
};

cz_status linear_forward(const struct layer_args *a, const struct linear *l, int64_t N,
                         const void *x, const void *w, const void *b, void *y,
                         struct op_space space);

/* y = residual + x·w [+ b]; y may be the residual. `room` (N,O): for devices whose products add no
 * residual; it may be y unless that is the residual. */
cz_status linear_forward_add(const struct layer_args *a, const struct linear *l, int64_t N,
                             const void *x, const void *w, const void *b, const void *residual,
                             void *room, void *y, struct op_space space);

/* y = act(x·w [+ b]); `pre`, unless NULL or y, keeps x·w [+ b]. */
cz_status linear_act_forward(const struct layer_args *a, const struct linear *l,
                             enum activation act, int64_t N, const void *x, const void *w,
                             const void *b, void *pre, void *y, struct op_space space);

/* Whether linear_backward() reads x: a gradient of the weight (gw as there) or of its branch is
 * wanted. */
bool linear_wants_input(const struct layer_args *a, const void *w, const struct param_grad *gw);

/* dw [+]= xᵀ·dy, db [+]= Σ dy, then dx = dy·wᵀ; dx may be the memory of x. gw, gb: NULL or dp NULL
 * when not wanted; dx NULL likewise. x NULL: dx alone. */
cz_status linear_backward(const struct layer_args *a, const struct linear *l, int64_t N,
                          const void *x, const void *dy, const void *w, const struct param_grad *gw,
                          const struct param_grad *gb, void *dx, struct op_space space);

/* The same where x = act(pre): dx is the gradient of `pre`. */
cz_status linear_act_backward(const struct layer_args *a, const struct linear *l,
                              enum activation act, int64_t N, const void *x, const void *pre,
                              const void *dy, const void *w, const struct param_grad *gw,
                              const struct param_grad *gb, void *dx, struct op_space space);

/* dx += dy·wᵀ: joined in fp32, rounded once. Its own workspace, besides linear_workspace(). */
cz_status linear_dx_add(const struct layer_args *a, const struct linear *l, int64_t N,
                        const void *dy, const void *w, void *dx, struct op_space space);
cz_status linear_dx_add_workspace(const struct batch_shape *shape, const struct linear *l,
                                  int64_t N, size_t *nbytes_max);

/* Op workspace of these for up to N rows; `training` includes backward. */
cz_status linear_workspace(const struct batch_shape *shape, const struct linear *l, int64_t N,
                           size_t *nbytes_max);

/* Output columns [first, first + n) alone, rows of y `y_stride` elements apart (a KV cache). */
cz_status linear_columns(const struct layer_args *a, const struct linear *l, int64_t first,
                         int64_t n, int64_t N, const void *x, const void *w, const void *b, void *y,
                         int64_t y_stride, struct op_space space);

cz_status linear_columns_workspace(const struct batch_shape *shape, const struct linear *l,
                                   int64_t n, int64_t N, int64_t y_stride, size_t *nbytes_max);

/* ---- norm ----------------------------------------------------------------------------------- */

struct norm {
    bool rms; /* RMS norm: no bias, no mean */
    int64_t C;
    float eps;
    float offset; /* of the weight: 0, or 1 */
};

/* y = norm(x). With sum: s = x + residual is stored there and normed. mean, rstd may be NULL. */
struct norm_io {
    const void *x, *residual;
    void *sum, *y;
    float *mean, *rstd;
};
cz_status norm_forward(const struct layer_args *a, const struct norm *n, int64_t N,
                       const struct norm_io *io, const void *w, const void *b);

/* dx = gradient of s through the norm [+ dx_add, which may be dx]; x is s as forward saw it. */
struct norm_grad_io {
    const void *x, *dy;
    const float *mean, *rstd;
    void *dx;
    const void *dx_add;
};
cz_status norm_backward(const struct layer_args *a, const struct norm *n, int64_t N,
                        const struct norm_grad_io *io, const void *w, const struct param_grad *gw,
                        const struct param_grad *gb, struct op_space space);

void norm_workspace(const struct batch_shape *shape, const struct norm *n, int64_t N,
                    size_t *nbytes_max);

/* ---- attention ------------------------------------------------------------------------------ */

/* What attention over this batch needs besides shapes and arrays: the key mask, workspace, and in
 * training dropout of probability p under the layer's draw number `site`. */
void attention_complete(struct attention_args *args, const struct layer_args *a, float p,
                        uint32_t site, struct op_space space);

/* ---- logits --------------------------------------------------------------------------------- */

/* Kernels of the host write them where they are wanted. Those of a GPU make a block of rows at a
 * time in the workspace, which is copied to where they are wanted: host memory, mostly. */

/* Rows of V logits in a block, for N rows; 0: kernels write where they are wanted. */
int64_t logits_block_rows(const struct ops *ops, int64_t N, int64_t V);

/* Rows [first, first + n) of a->logits from a block. */
cz_status logits_copy_out(const struct layer_args *a, const float *block, int64_t first, int64_t n,
                          int64_t V);

/* ---- small ones ----------------------------------------------------------------------------- */

/* y = dropout(x) under the layer's draw number `site`; forward and backward alike. y may be x. */
cz_status dropout_apply(const struct layer_args *a, float p, uint32_t site, size_t numel,
                        const void *x, void *y);

/* True when a dropout of probability p acts in this mode. */
static inline bool dropout_acts(const struct layer_args *a, float p)
{
    return p > 0.0f && a->mode != LAYER_EVAL && !a->no_dropout;
}

cz_status activation_apply(const struct layer_args *a, enum activation kind, size_t numel,
                           const void *x, void *y);
/* dx = dy·f'(x); dx may be dy. */
cz_status activation_grad(const struct layer_args *a, enum activation kind, size_t numel,
                          const void *x, const void *dy, void *dx);

/* y = a + b over numel elements of the layer's dtype; y may be either. */
cz_status residual_add(const struct layer_args *a, size_t numel, const void *x1, const void *x2,
                       void *y);

/* Whether kernels and the host see the same memory. */
static inline bool host_reads(const struct ops *ops)
{
    return ops_device(ops)->ops->kind == DEVICE_HOST;
}

/* Copy numel elements of the layer's dtype. */
cz_status elements_copy(const struct layer_args *a, size_t numel, const void *x, void *y);

/* first (n,C) = the first position of each of the batch's n rows of x (N,C); and x = zeros, but for
 * these. */
cz_status first_positions_take(const struct layer_args *a, int64_t C, const void *x, void *first);
cz_status first_positions_put(const struct layer_args *a, int64_t C, const void *first, void *x);

/* The address of element `idx` of an array of the layer's dtype. */
static inline void *elem_at(const struct layer_args *a, const void *base, size_t idx)
{
    return (unsigned char *)(uintptr_t)base + idx * dtype_size(a->dtype);
}

#endif

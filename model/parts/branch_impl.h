/* Low-rank branches of linear maps (LoRA, arXiv 2106.09685): y += scale·(dropout(x)·Aᵀ)·Bᵀ.
 *
 * Only the maps of blocks.c call this: a map whose weight has a branch runs it behind its own
 * product, so that families and layers need no code for it. Legend: N rows, I and O channels in and
 * out of the map, R rank. A (R,I) and B (O,R) are stored as PEFT stores them, whatever the
 * orientation of the map's weight.
 *
 *   u = scale·dropout(x)·Aᵀ   y  += u·Bᵀ
 *   e = scale·dy·B            dA += eᵀ·dropout(x)   dB += dyᵀ·u   dx += dropout'(e·A)
 *
 * With DoRA (ops/dora/dora.h), V = w + scale·B·A, g = m/‖V‖ by rows, W' = g ⊙ V, without dropout
 *
 *   y = x·W'ᵀ   e = scale·(g ⊙ dy)·B   dB += g ⊙ (dyᵀ·u)   dm += Σ dy ⊙ (x·Vᵀ)/‖V‖   dx = dy·W'
 *
 * and with it y = x·wᵀ + dropout(x)·(W' − w)ᵀ. V, W' and W' − w are made in the workspace by each
 * call, which costs R/N of the map's product, and x·Vᵀ is made again in backward.
 *
 * Sums of u and e are in fp32 and rounded once, behind the scale. Nothing is kept for backward: u
 * is made again, which costs R/O of the map's own product. */
#ifndef CZ_MODEL_PARTS_BRANCH_IMPL_H
#define CZ_MODEL_PARTS_BRANCH_IMPL_H

#include "model/parts/blocks_impl.h"

/* The branch of the map whose weight `w` is; NULL: it has none. */
const struct layer_branch *branch_of(const struct layer_args *a, const void *w);

/* A weight to use instead of the map's, W', made in front of the space: of DoRA without dropout.
 * Others have none: *w stays. Then the calls below that add to y and dx add nothing. */
cz_status branch_replace(const struct layer_args *a, const struct layer_branch *br,
                         const struct linear *l, const void **w, struct op_space *space);

/* y (N,n) += output columns [first, first + n) of the branch; rows of y are y_stride elements
 * apart. */
cz_status branch_forward(const struct layer_args *a, const struct layer_branch *br,
                         const struct linear *l, int64_t first, int64_t n, int64_t N, const void *x,
                         void *y, int64_t y_stride, struct op_space space);

/* Whether its gradients, for which backward needs x, are asked for. */
bool branch_wants(const struct layer_args *a, const struct layer_branch *br);

/* dA and dB, where they are wanted. */
cz_status branch_grads(const struct layer_args *a, const struct layer_branch *br,
                       const struct linear *l, int64_t N, const void *x, const void *dy,
                       struct op_space space);

/* dx += the branch's share. */
cz_status branch_dx_add(const struct layer_args *a, const struct layer_branch *br,
                        const struct linear *l, int64_t N, const void *dy, void *dx,
                        struct op_space space);

/* Workspace of any of the shape's branches beside this map: output columns [?, ? + n), rows of y
 * y_stride apart. */
cz_status branch_workspace(const struct batch_shape *shape, const struct linear *l, int64_t n,
                           int64_t N, int64_t y_stride, size_t *nbytes_max);

#endif

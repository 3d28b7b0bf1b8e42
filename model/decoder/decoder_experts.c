/* The MLP half of a decoder block whose tokens go to K of E experts each:
 *
 *   m = Σ over a token's experts e of w_e·MLP_e(h),   w from softmax(h·Wrouter)
 * (ops/router/router.h)
 *
 * An expert gathers the rows of its tokens, computes them and adds them, weighted, to fp32 sums:
 * expert after expert, so that the order of every sum is fixed. Experts without a token are not
 * computed, and their gradient is zero. Products need to know how many rows there are: on a GPU the
 * host waits for those numbers, once in each direction. Where a product of a new size takes memory
 * (ops_matmul_is_by_shape()), an expert's rows are filled up with zeros to one of few sizes, all
 * known beforehand.
 *
 * The gradient of a weight w_e is dm·MLP_e(h), which is (dm·Wdown)·y: what experts gave is not
 * kept.
 */
#include "model/decoder/block_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/router/router.h"

#include <stdio.h>

/* The rows [first, first + n) that one expert computes, of all in the order of experts. */
struct expert {
    int64_t idx, first, n;
    int64_t n_filled; /* of products; those behind n are zeros */
    void *gate, *up;  /* (n_filled,F) */
};

static struct linear map_of(const struct decoder_block_hp *hp, int map)
{
    return block_map(hp, map == EXPERT_DOWN ? DOWN_W : map == EXPERT_UP ? UP_W : GATE_W);
}

cz_status experts_declare(const struct decoder_block_hp *hp, struct param_list *out)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int64_t e = 0; e < hp->n_experts; e++)
        for (int map = 0; map < N_EXPERT_MAPS; map++) {
            char name[96];
            const struct linear l = map_of(hp, map);
            const int64_t shape[] = {l.n_out, l.n_in};
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%lld.%s.weight", hp->layer_idx,
                     (long long)e, names[map]);
            TRY(param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, hp->init_std));
        }
    return CZ_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

cz_status experts_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                            int64_t N, size_t *nbytes_max)
{
    const bool by_shape = ops_matmul_is_by_shape(s->ops, s->dtype);
    for (int64_t n = by_shape ? 1 : N, rows; n <= N; n = rows + 1) {
        rows = by_shape ? matmul_rows_filled(n) : n;
        for (int map = 0; map < N_EXPERT_MAPS; map++) {
            const struct linear l = map_of(hp, map);
            TRY(linear_workspace(s, &l, rows, nbytes_max));
            if (s->training && map == EXPERT_UP)
                TRY(linear_dx_add_workspace(s, &l, rows, nbytes_max));
        }
    }
    return CZ_OK;
}

void experts_take_kept(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                       bool keeps_each, struct scratch *s, struct mlp_kept *k)
{
    const int64_t E = hp->n_experts, K = hp->top_k;
    const int64_t rows = experts_rows(N) + (keeps_each ? N * (K - 1) : 0);
    const size_t e = dtype_size(dtype);
    k->gate = scratch_take(s, rows, hp->F, e);
    k->up = scratch_take(s, rows, hp->F, e);
    k->experts.probs = scratch_take(s, N, E, sizeof(float));
    k->experts.weights = scratch_take(s, N, K, sizeof(float));
    k->experts.experts = scratch_take(s, N, K, sizeof(int32_t));
    k->experts.choices = scratch_take(s, N, K, sizeof(int32_t));
    k->experts.tokens = scratch_take(s, N, K, sizeof(int32_t));
    k->experts.starts = scratch_take(s, 1, E + 1, sizeof(int32_t));
}

void experts_take_space(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                        bool training, struct scratch *s, struct experts_space *space)
{
    const size_t e = dtype_size(dtype);
    *space = (struct experts_space){.keeps_each = training};
    space->logits = scratch_take(s, N, hp->n_experts, e);
    space->sum = scratch_take(s, N, hp->C, sizeof(float));
    space->x = scratch_take(s, experts_rows(N), hp->C, e);
    if (!training) return;
    space->dout = scratch_take(s, experts_rows(N), hp->C, e);
    space->dy = scratch_take(s, experts_rows(N), hp->F, e);
    space->dweights = scratch_take(s, N, hp->top_k, sizeof(float));
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* starts (E+1) for the host, which waits for a GPU's. */
static cz_status read_starts(const struct block_run *r, int32_t *starts)
{
    struct device *device = ops_device(r->a->ops);
    TRY(device->ops->copy(device, r->a->stream, starts, r->k.mlp.experts.starts,
                          (size_t)(r->hp->n_experts + 1) * sizeof *starts));
    return device->ops->stream_sync(device, r->a->stream);
}

static struct expert expert_at(const struct block_run *r, const int32_t *starts, int64_t idx)
{
    const struct layer_args *a = r->a;
    struct expert x = {.idx = idx, .first = starts[idx], .n = starts[idx + 1] - starts[idx]};
    const size_t at = r->s.experts.keeps_each ? (size_t)(x.first * r->hp->F) : 0;
    x.n_filled = ops_matmul_is_by_shape(a->ops, a->dtype) ? matmul_rows_filled(x.n) : x.n;
    x.gate = elem_at(a, r->k.mlp.gate, at);
    x.up = elem_at(a, r->k.mlp.up, at);
    return x;
}

/* Rows of `width` behind the expert's own, which products read as well: zeros. */
static cz_status fill(const struct block_run *r, const struct expert *x, int64_t width, void *rows)
{
    struct device *device = ops_device(r->a->ops);
    if (x->n_filled == x->n) return CZ_OK;
    return device->ops->fill_zero(device, r->a->stream, elem_at(r->a, rows, (size_t)(x->n * width)),
                                  (size_t)((x->n_filled - x->n) * width) * dtype_size(r->a->dtype));
}

/* y (n_filled,C) = the rows of x (N,C) that this expert computes. */
static cz_status gather(const struct block_run *r, const struct expert *x, const void *from,
                        void *to)
{
    const struct embedding_args args = {.N = x->n,
                                        .C = r->hp->C,
                                        .V = r->N,
                                        .dtype = r->a->dtype,
                                        .ids = r->k.mlp.experts.tokens + x->first,
                                        .table = from,
                                        .y = to};
    TRY(ops_embedding_forward(r->a->ops, r->a->stream, &args));
    return fill(r, x, r->hp->C, to);
}

/* The sums of its tokens += the rows, weighted if asked. */
static cz_status add_rows(const struct block_run *r, const struct expert *x, const void *rows,
                          bool weighted)
{
    const struct experts_kept *k = &r->k.mlp.experts;
    const struct expert_add_args args = {.n = x->n,
                                         .C = r->hp->C,
                                         .dtype = r->a->dtype,
                                         .x = rows,
                                         .tokens = k->tokens + x->first,
                                         .choices = k->choices + x->first,
                                         .weights = weighted ? k->weights : NULL,
                                         .sum = r->s.experts.sum};
    return ops_expert_add(r->a->ops, r->a->stream, &args);
}

static cz_status clear_sums(const struct block_run *r)
{
    struct device *device = ops_device(r->a->ops);
    return device->ops->fill_zero(device, r->a->stream, r->s.experts.sum,
                                  (size_t)(r->N * r->hp->C) * sizeof(float));
}

static cz_status round_sums(const struct block_run *r, void *y)
{
    const struct cast_scale_args args = {.x_dtype = DTYPE_F32,
                                         .y_dtype = r->a->dtype,
                                         .numel = (size_t)(r->N * r->hp->C),
                                         .alpha = 1.0f,
                                         .x = r->s.experts.sum,
                                         .y = y};
    return ops_cast_scale(r->a->ops, r->a->stream, &args);
}

static cz_status map_forward(const struct block_run *r, const struct expert *x, int map,
                             const void *from, void *to)
{
    const struct linear l = map_of(r->hp, map);
    return linear_forward(r->a, &l, x->n_filled, from, r->p.experts[x->idx * N_EXPERT_MAPS + map],
                          NULL, to, r->space);
}

static struct swiglu_args swiglu_over(const struct block_run *r, const struct expert *x)
{
    return (struct swiglu_args){.act = r->hp->gate,
                                .dtype = r->a->dtype,
                                .N = x->n,
                                .C = r->hp->F,
                                .stride = r->hp->F,
                                .gate = x->gate,
                                .up = x->up};
}

static cz_status activate(const struct block_run *r, const struct expert *x, void *y)
{
    struct swiglu_args args = swiglu_over(r, x);
    args.y = y;
    TRY(ops_swiglu_forward(r->a->ops, r->a->stream, &args));
    return fill(r, x, r->hp->F, y);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Padding counts for nothing. A pass that is repeated has been counted. */
static cz_status count_choices(const struct block_run *r)
{
    const struct experts_kept *k = &r->k.mlp.experts;
    const struct layer_args *a = r->a;
    if (!r->hp->balances_experts || !a->shared || a->mode == LAYER_RECOMPUTE) return CZ_OK;
    const struct router_balance_args args = {.N = r->N,
                                             .E = r->hp->n_experts,
                                             .K = r->hp->top_k,
                                             .probs = k->probs,
                                             .experts = k->experts,
                                             .counts = a->batch->key_mask,
                                             .balance = a->shared};
    return ops_router_balance(a->ops, a->stream, &args);
}

static cz_status choose(const struct block_run *r, const void *h)
{
    const struct experts_kept *k = &r->k.mlp.experts;
    const struct layer_args *a = r->a;
    TRY(block_map_forward(r, ROUTER_W, h, r->s.experts.logits));
    const struct router_args router = {.N = r->N,
                                       .E = r->hp->n_experts,
                                       .K = r->hp->top_k,
                                       .dtype = a->dtype,
                                       .normalised = r->hp->weights_add_to_one,
                                       .logits = r->s.experts.logits,
                                       .probs = k->probs,
                                       .experts = k->experts,
                                       .weights = k->weights};
    TRY(ops_router_forward(a->ops, a->stream, &router));
    const struct router_sort_args sort = {.N = r->N,
                                          .E = r->hp->n_experts,
                                          .K = r->hp->top_k,
                                          .experts = k->experts,
                                          .choices = k->choices,
                                          .tokens = k->tokens,
                                          .starts = k->starts};
    TRY(ops_router_sort(a->ops, a->stream, &sort));
    return count_choices(r);
}

/* Its rows of m over the rows of h that it has read. */
static cz_status expert_forward(const struct block_run *r, const struct expert *x, const void *h,
                                bool wants_m)
{
    void *rows = r->s.experts.x;
    TRY(gather(r, x, h, rows));
    TRY(map_forward(r, x, EXPERT_GATE, rows, x->gate));
    TRY(map_forward(r, x, EXPERT_UP, rows, x->up));
    if (!wants_m) return CZ_OK;
    TRY(activate(r, x, r->s.y));
    TRY(map_forward(r, x, EXPERT_DOWN, r->s.y, rows));
    return add_rows(r, x, rows, true);
}

cz_status experts_forward(struct block_run *r, const void *h, void *m)
{
    int32_t starts[ROUTER_EXPERTS_MAX + 1];
    TRY(choose(r, h));
    TRY(read_starts(r, starts));
    if (m) TRY(clear_sums(r));
    for (int64_t e = 0; e < r->hp->n_experts; e++) {
        const struct expert x = expert_at(r, starts, e);
        if (x.n > 0) TRY(expert_forward(r, &x, h, m != NULL));
    }
    return m ? round_sums(r, m) : CZ_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

static const struct param_grad *grad_of(const struct block_run *r, int64_t expert, int map)
{
    return &r->p.expert_grads[expert * N_EXPERT_MAPS + map];
}

static cz_status map_grads(const struct block_run *r, const struct expert *x, int map,
                           const void *from, const void *dy)
{
    const struct linear l = map_of(r->hp, map);
    return linear_backward(r->a, &l, x->n_filled, from, dy,
                           r->p.experts[x->idx * N_EXPERT_MAPS + map], grad_of(r, x->idx, map),
                           NULL, NULL, r->space);
}

static cz_status map_input_grad(const struct block_run *r, const struct expert *x, int map,
                                const void *dy, void *dx, bool accumulate)
{
    const struct linear l = map_of(r->hp, map);
    const void *w = r->p.experts[x->idx * N_EXPERT_MAPS + map];
    return accumulate
               ? linear_dx_add(r->a, &l, x->n_filled, dy, w, dx, r->space)
               : linear_backward(r->a, &l, x->n_filled, NULL, dy, w, NULL, NULL, dx, r->space);
}

/* No token went to it: its gradient is zero, not missing. */
static cz_status clear_grads(const struct block_run *r, int64_t expert)
{
    for (int map = 0; map < N_EXPERT_MAPS; map++)
        TRY(param_grad_zero(r->a, grad_of(r, expert, map), r->hp->C * r->hp->F));
    return CZ_OK;
}

static bool wants_rows(const struct block_run *r, int64_t expert)
{
    return grad_of(r, expert, EXPERT_GATE)->dp || grad_of(r, expert, EXPERT_UP)->dp;
}

bool experts_want_input(const struct block_run *r)
{
    for (int64_t e = 0; e < r->hp->n_experts; e++)
        if (wants_rows(r, e)) return true;
    return false;
}

/* y again; dy through the last map; then both weighted, and the gradients of the weights. */
static cz_status expert_output_backward(const struct block_run *r, const struct expert *x,
                                        const void *dout)
{
    const struct experts_space *s = &r->s.experts;
    TRY(gather(r, x, dout, s->dout));
    TRY(activate(r, x, r->s.y));
    TRY(map_input_grad(r, x, EXPERT_DOWN, s->dout, s->dy, false));
    const struct expert_weigh_args weigh = {.n = x->n,
                                            .C = r->hp->F,
                                            .dtype = r->a->dtype,
                                            .choices = r->k.mlp.experts.choices + x->first,
                                            .weights = r->k.mlp.experts.weights,
                                            .dweights = s->dweights,
                                            .y = r->s.y,
                                            .dy = s->dy};
    TRY(ops_expert_weigh(r->a->ops, r->a->stream, &weigh));
    return map_grads(r, x, EXPERT_DOWN, r->s.y, s->dout);
}

static cz_status expert_backward(const struct block_run *r, const struct expert *x, const void *h,
                                 const void *dout)
{
    const struct experts_space *s = &r->s.experts;
    TRY(expert_output_backward(r, x, dout));
    struct swiglu_args args = swiglu_over(r, x);
    args.dy = s->dy;
    args.dgate = x->gate;
    args.dup = x->up;
    TRY(ops_swiglu_backward(r->a->ops, r->a->stream, &args));
    TRY(fill(r, x, r->hp->F, x->gate));
    TRY(fill(r, x, r->hp->F, x->up));
    if (wants_rows(r, x->idx)) TRY(gather(r, x, h, s->x));
    TRY(map_grads(r, x, EXPERT_GATE, s->x, x->gate));
    TRY(map_grads(r, x, EXPERT_UP, s->x, x->up));
    TRY(map_input_grad(r, x, EXPERT_GATE, x->gate, s->dout, false));
    TRY(map_input_grad(r, x, EXPERT_UP, x->up, s->dout, true));
    return add_rows(r, x, s->dout, false);
}

/* dh = what experts gave of it, and through the router. */
static cz_status router_backward(const struct block_run *r, const void *h, void *dh)
{
    const struct experts_kept *k = &r->k.mlp.experts;
    const struct layer_args *a = r->a;
    const float *balance = r->hp->balances_experts ? a->shared : NULL;
    const struct router_grad_args args = {.N = r->N,
                                          .E = r->hp->n_experts,
                                          .K = r->hp->top_k,
                                          .dtype = a->dtype,
                                          .normalised = r->hp->weights_add_to_one,
                                          .probs = k->probs,
                                          .experts = k->experts,
                                          .dweights = r->s.experts.dweights,
                                          .dprobs = balance ? balance + 2 * r->hp->n_experts : NULL,
                                          .counts = a->batch->key_mask,
                                          .dlogits = r->s.experts.logits};
    TRY(ops_router_backward(a->ops, a->stream, &args));
    TRY(block_map_grads(r, ROUTER_W, h, r->s.experts.logits));
    TRY(round_sums(r, dh));
    return block_map_input_grad(r, ROUTER_W, r->s.experts.logits, dh, true);
}

/* From the last expert to the first: what fills up an expert's rows is over those of the next. */
cz_status experts_backward(struct block_run *r, const void *h, const void *dout, void *dh)
{
    int32_t starts[ROUTER_EXPERTS_MAX + 1];
    TRY(read_starts(r, starts));
    TRY(clear_sums(r));
    for (int64_t e = r->hp->n_experts - 1; e >= 0; e--) {
        const struct expert x = expert_at(r, starts, e);
        TRY(x.n > 0 ? expert_backward(r, &x, h, dout) : clear_grads(r, e));
    }
    return router_backward(r, h, dh);
}

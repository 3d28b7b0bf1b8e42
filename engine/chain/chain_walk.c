/* The dynamic side of a chain: forward, backward with recomputation, evaluation, decoding. Every
 * visit of a layer is enter (parameters become valid), arguments, call, leave. Nothing is
 * allocated, and nothing depends on the pass before but the activations that a training forward
 * leaves for its backward (`pending`). */
#include "engine/chain/chain_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

#include <string.h>

static unsigned char *at(void *block, size_t off)
{
    return block ? (unsigned char *)block + off : NULL;
}

/* Parameters of ZeRO stage 3 exist between enter and leave only, hence the order in every visit
 * below. */
static cz_status enter(struct chain *c, size_t i, enum chain_phase phase)
{
    const struct chain_hooks *h = &c->memory.hooks;
    return h->enter ? h->enter(h->user, i, phase) : CZ_OK;
}

static cz_status leave(struct chain *c, size_t i, enum chain_phase phase)
{
    const struct chain_hooks *h = &c->memory.hooks;
    return h->leave ? h->leave(h->user, i, phase) : CZ_OK;
}

/* Positions of the longest row. */
static int64_t longest_row(const struct batch *batch)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < batch_n_rows(batch); b++)
        if (batch_row_length(batch, b) > longest) longest = batch_row_length(batch, b);
    return longest;
}

/* A shape other than the planned one (a short last batch): every piece must fit its place. Asking
 * for sizes also lets ops prepare the shape. */
static cz_status check_shape(struct chain *c, const struct batch *batch)
{
    const struct chain_shape shape = chain_shape_of(batch), *last = &c->shape;
    if (shape.B == last->B && shape.T == last->T && shape.n_texts == last->n_texts) return CZ_OK;
    const int64_t B = batch_n_rows(batch), T = longest_row(batch);
    if (B < 1 || T < 1 || B > c->options.B || T > c->options.T ||
        (batch->texts && (!c->options.unpads || shape.T > c->options.B * c->options.T)))
        return err_set(CZ_INVALID, 0,
                       "a batch of %lld rows × %lld tokens is outside what was planned (1…%lld × "
                       "1…%lld)",
                       (long long)B, (long long)T, (long long)c->options.B,
                       (long long)c->options.T);
    for (size_t i = 0; i < c->n_nodes; i++) {
        const struct layer_sizes *planned = &c->nodes[i].sizes;
        struct layer_sizes now;
        TRY(chain_layer_size(c, i, shape, &now));
        c->nodes[i].out_nbytes = now.out_nbytes;
        if (now.out_nbytes > planned->out_nbytes || now.saved_nbytes > planned->saved_nbytes ||
            now.workspace_nbytes > c->sizes.workspace)
            return err_set(CZ_NOMEM, 0,
                           "layer %zu (%s) needs more memory for a batch of %lld×%lld than for "
                           "the planned %lld×%lld",
                           i, c->nodes[i].layer.cls->name, (long long)B, (long long)T,
                           (long long)c->options.B, (long long)c->options.T);
    }
    c->shape = shape;
    return CZ_OK;
}

static void *out_of(const struct chain *c, size_t i, size_t set)
{
    return at(c->memory.activations, c->nodes[i].out_off + set * c->nodes[i].out_stride);
}

static void *saved_of(const struct chain *c, size_t i, size_t set)
{
    const struct chain_node *node = &c->nodes[i];
    if (chain_is_together(c) && node->saved_where == CHAIN_SAVED_IN_FILE)
        return at(c->memory.activations, chain_swap_off(c, i, set));
    return at(c->memory.activations, node->saved_off + set * node->saved_stride);
}

static void *shared_of(const struct chain *c, size_t set)
{
    const size_t stride = size_round_up(c->shared_nbytes, CHAIN_ALIGN);
    return at(c->memory.activations, c->shared_off + set * stride);
}

/* Where the gradient of layer i's output is made and read. Two places take turns, since each
 * gradient is needed by exactly one layer. Together, where outputs stay in memory, the output of
 * the layer behind is no longer read (place_together()); the last layers have places of their own.
 */
static void *gradient_of(const struct chain *c, size_t i, size_t set)
{
    const size_t last = c->n_nodes - 1;
    if (!chain_is_together(c) || c->n_kept > 0) {
        const size_t place = c->sizes.gradients / 2, stride = place / c->n_sets;
        return at(c->memory.gradients, ((i + 1) & 1) * place + set * stride);
    }
    const size_t stride = c->sizes.gradients / c->n_sets;
    if (i + 1 == last) return at(c->memory.gradients, set * stride);
    if (i + 2 == last && c->tied_layer != SIZE_MAX)
        return at(c->memory.gradients, set * stride + stride / 2);
    return out_of(c, i + 1, set);
}

/* Where the loss layer keeps what it puts off; NULL: nowhere. */
static void *put_off_of(const struct chain *c, size_t set)
{
    if (c->n_runs == 1 || !chain_keeps_put_off(c)) return NULL;
    return at(c->memory.activations, c->put_off_at + set * c->put_off_stride);
}

/* Arguments that all phases share; parameters are read from the table after `enter`. */
static struct layer_args layer_args(struct chain *c, size_t i, size_t set,
                                    const struct chain_run *run, enum layer_mode mode)
{
    struct chain_node *node = &c->nodes[i];
    for (size_t p = 0; p < node->layer.n_params; p++)
        node->params[p] = c->memory.params[node->layer.param_idx[p]];
    struct layer_args a = {.ops = c->options.ops,
                           .stream = run->stream,
                           .batch = run->batch,
                           .mode = mode,
                           .no_dropout = run->no_dropout,
                           .keeps_all = c->options.keeps_all,
                           .dtype = c->options.dtype,
                           .grad_dtype = c->options.grad_dtype,
                           .rng = run->rng,
                           .params = node->params,
                           .branches = node->layer.branches,
                           .n_branches = run->no_branches ? 0 : node->layer.n_branches,
                           .workspace = c->memory.workspace,
                           .workspace_nbytes = c->sizes.workspace};
    a.rng.site = (uint32_t)i * RNG_SITES_PER_LAYER;
    if (node->layer.cls->flags & LAYER_LOSS) {
        a.log_probs = run->log_probs;
        a.objective = run->objective;
    }
    if (mode != LAYER_EVAL) a.saved = saved_of(c, i, set);
    if (c->shared_nbytes > 0) a.shared = shared_of(c, set);
    return a;
}

/* Whether the loss layer's gradient of a parameter waits for the layer that it is shared with. */
static bool is_put_off(const struct chain *c, size_t param_idx)
{
    if (c->n_runs == 1 || c->tied_layer == SIZE_MAX) return false;
    const struct model_layer *tied = &c->nodes[c->tied_layer].layer;
    for (size_t k = 0; k < tied->n_params; k++)
        if (tied->param_idx[k] == param_idx) return true;
    return false;
}

/* Which of a layer's gradients are made. */
enum grads_wanted { GRADS_ALL = 0, GRADS_NOW, GRADS_PUT_OFF };

/* Where this layer's gradients go. The first use of a parameter in a pass overwrites (unless the
 * run accumulates), every later one adds: that is how micro-batches together, and tied parameters,
 * are summed. */
static struct param_grad *layer_grads(struct chain *c, size_t i, enum grads_wanted wanted)
{
    struct chain_node *node = &c->nodes[i];
    for (size_t p = 0; p < node->layer.n_params; p++) {
        size_t idx = node->layer.param_idx[p];
        struct param_grad *d = &node->dparams[p];
        *d = (struct param_grad){0};
        if (wanted != GRADS_ALL && is_put_off(c, idx) != (wanted == GRADS_PUT_OFF)) continue;
        d->dp = c->memory.grads ? c->memory.grads[idx] : NULL;
        d->accumulate = c->runs[0].accumulate || c->touched[idx];
        c->touched[idx] = true;
    }
    return node->dparams;
}

/* What the layer said it has no gradient for is zero, unless something is there already. */
static cz_status settle_grads(struct chain *c, size_t i, size_t set)
{
    const struct chain_node *node = &c->nodes[i];
    for (size_t p = 0; p < node->layer.n_params; p++) {
        const struct param_grad *d = &node->dparams[p];
        size_t idx = node->layer.param_idx[p];
        if (!d->none) c->used[set * c->n_params + idx] = true;
        if (!d->none || d->accumulate || !d->dp) continue;
        if (!c->memory.grad_numel)
            return err_set(CZ_UNSUPPORTED, 0, "layer %zu (%s) gives no gradient of a parameter", i,
                           node->layer.cls->name);
        struct device *device = ops_device(c->options.ops);
        TRY(device->ops->fill_zero(device, c->runs[0].stream, d->dp,
                                   c->memory.grad_numel[idx] * dtype_size(c->options.grad_dtype)));
    }
    return CZ_OK;
}

/* touched: some layer had the parameter; used: some layer gave it a gradient. Both are of the last
 * pass. */
size_t chain_param_unused(const struct chain *c)
{
    for (size_t i = 0; i < c->n_params; i++)
        for (size_t set = 0; set < c->n_runs; set++)
            if (c->touched[i] && !c->used[set * c->n_params + i] && c->memory.grads[i]) return i;
    return SIZE_MAX;
}

/* An error names the layer: kernels know neither their place nor their model. */
static cz_status call(struct chain *c, size_t i,
                      cz_status (*f)(const void *hp, const struct layer_args *a),
                      const struct layer_args *a)
{
    const struct model_layer *layer = &c->nodes[i].layer;
    if (f(layer->hp, a) != CZ_OK) return err_prefix("layer %zu (%s)", i, layer->cls->name);
    return CZ_OK;
}

/* The input of layer i in a TRAIN pass: the output of the layer before it. */
static const void *train_in(struct chain *c, size_t i, size_t set)
{
    return i == 0 ? NULL : out_of(c, i - 1, set);
}

/* Forward and recomputation are one function, since they must give the same bits: random numbers
 * follow from keys, not from how often a layer ran. A recomputed segment does not write its own
 * output, which was kept. */
static cz_status train_forward(struct chain *c, size_t i, size_t set, enum layer_mode mode)
{
    const struct chain_run *run = &c->runs[set];
    struct chain_node *node = &c->nodes[i];
    struct layer_args a = layer_args(c, i, set, run, mode);
    a.in = train_in(c, i, set);
    if (node->layer.cls->flags & LAYER_LOSS) {
        a.loss = run->loss;
        a.logits = mode == LAYER_TRAIN ? run->logits : NULL;
        a.dloss = run->dloss;
        a.put_off = put_off_of(c, set);
        a.dparams = layer_grads(c, i, GRADS_NOW);
    } else if (mode != LAYER_RECOMPUTE || (!chain_is_together(c) && (i + 1) % c->segment != 0)) {
        a.out = out_of(c, i, set); /* a segment's own output was kept */
    }
    TRY(call(c, i, node->layer.cls->forward, &a));
    return a.dparams ? settle_grads(c, i, set) : CZ_OK;
}

/* The loss layer once more, for those of its gradients alone that it shares with another layer:
 * from what it kept for them, or from its input. */
static cz_status put_off_grads(struct chain *c, size_t set)
{
    const size_t i = c->n_nodes - 1;
    const struct chain_run *run = &c->runs[set];
    struct layer_args a = layer_args(c, i, set, run, LAYER_TRAIN);
    a.in = train_in(c, i, set);
    a.shared = NULL; /* what the layers told it is spent */
    a.dloss = run->dloss;
    a.no_din = true;
    a.put_off = put_off_of(c, set);
    a.dparams = layer_grads(c, i, GRADS_PUT_OFF);
    for (size_t p = 0; p < c->nodes[i].layer.n_params; p++)
        if (a.dparams[p].dp) {
            TRY(call(c, i, c->nodes[i].layer.cls->forward, &a));
            return settle_grads(c, i, set);
        }
    return CZ_OK; /* they are frozen */
}

static cz_status train_backward(struct chain *c, size_t i, size_t set)
{
    struct chain_node *node = &c->nodes[i];
    const bool is_loss = node->layer.cls->flags & LAYER_LOSS;
    struct layer_args a = layer_args(c, i, set, &c->runs[set], LAYER_TRAIN);
    a.in = train_in(c, i, set);
    a.din = i == 0 ? NULL : gradient_of(c, i - 1, set);
    if (!is_loss) { /* a loss layer did its share in forward */
        a.dout = gradient_of(c, i, set);
        a.dparams = layer_grads(c, i, GRADS_ALL);
    }
    TRY(call(c, i, node->layer.cls->backward, &a));
    return a.dparams ? settle_grads(c, i, set) : CZ_OK;
}

/* Together, the loss layer hands its gradient on at once, so that all micro-batches can use one
 * place for what it saves. */
static cz_status forward_set(struct chain *c, size_t i, size_t set, enum layer_mode mode)
{
    TRY(chain_swap_before(c, i, set));
    TRY(train_forward(c, i, set, mode));
    TRY(chain_swap_after_forward(c, i, set));
    return chain_is_together(c) && i + 1 == c->n_nodes ? train_backward(c, i, set) : CZ_OK;
}

/* Together, a layer is recomputed for one micro-batch at a time, and the loss layer is done. */
static cz_status backward_set(struct chain *c, size_t i, size_t set)
{
    if (chain_is_together(c) && i + 1 == c->n_nodes) return CZ_OK;
    if (i == c->tied_layer && c->n_runs > 1) TRY(put_off_grads(c, set));
    if (chain_is_together(c) && chain_is_recomputed(c, i))
        TRY(train_forward(c, i, set, LAYER_RECOMPUTE));
    TRY(chain_swap_before(c, i, set));
    TRY(train_backward(c, i, set));
    return chain_swap_after_backward(c, i, set);
}

/* All micro-batches of the pass: the first packs the layer's weights for the others. */
static cz_status all_sets(struct chain *c, size_t i, enum chain_phase phase)
{
    const enum layer_mode mode = phase == CHAIN_RECOMPUTE ? LAYER_RECOMPUTE : LAYER_TRAIN;
    const bool keep = c->keeps_packed && c->n_runs > 1;
    cz_status st = CZ_OK;
    if (keep)
        ops_matmul_keep(c->options.ops, at(c->memory.activations, c->packed_at), c->packed_nbytes);
    for (size_t set = 0; set < c->n_runs && st == CZ_OK; set++)
        st = phase == CHAIN_BACKWARD ? backward_set(c, i, set) : forward_set(c, i, set, mode);
    if (keep) ops_matmul_keep(c->options.ops, NULL, 0);
    return st;
}

static cz_status forward_layer(struct chain *c, size_t i, enum chain_phase phase)
{
    const bool again = phase == CHAIN_RECOMPUTE;
    TRY(enter(c, i, phase));
    TRY(again ? chain_kept_before_read(c, i) : chain_kept_before_write(c, i));
    TRY(all_sets(c, i, phase));
    if (!again) TRY(chain_kept_after_write(c, i));
    return leave(c, i, phase);
}

/* Two outputs in turn, in the block of activations. */
static void *turn(struct chain *c, size_t i)
{
    size_t stride = (c->out_nbytes_max + CHAIN_ALIGN - 1) / CHAIN_ALIGN * CHAIN_ALIGN;
    return at(c->memory.activations, (i & 1) * stride);
}

/* n elements of the chain's dtype, widened. */
static cz_status widen(struct chain *c, const struct chain_run *run, const void *x, size_t n,
                       float *y)
{
    const struct cast_scale_args cast = {.x_dtype = c->options.dtype,
                                         .y_dtype = DTYPE_F32,
                                         .numel = n,
                                         .alpha = 1.0f,
                                         .x = x,
                                         .y = y};
    return ops_cast_scale(c->options.ops, run->stream, &cast);
}

static bool is_head(const struct chain *c, size_t i)
{
    return (c->nodes[i].layer.cls->flags & (LAYER_LOSS | LAYER_HEAD)) != 0;
}

/* The last hidden state: what the head's first layer i reads, behind its norm if it has one,
 * widened. On a GPU it is widened at the place that holds neither, and copied out from there. */
static cz_status copy_hidden(struct chain *c, size_t i, const struct chain_run *run,
                             struct layer_args *a)
{
    struct device *device = ops_device(c->options.ops);
    const size_t elem = dtype_size(c->options.dtype), room = c->out_nbytes_max / sizeof(float);
    struct chain_node *node = &c->nodes[i];
    struct layer_sizes sizes;
    bool normed = false;
    if (i == 0) return err_set(CZ_INVALID, 0, "a chain of one layer has no hidden states");
    TRY(chain_layer_size(c, i - 1, chain_shape_of(run->batch), &sizes));
    a->out = turn(c, i);
    if (node->layer.cls->hidden && node->layer.cls->hidden(node->layer.hp, a, &normed) != CZ_OK)
        return err_prefix("layer %zu (%s)", i, node->layer.cls->name);
    const unsigned char *x = normed ? a->out : a->in;
    void *wide = turn(c, normed ? i - 1 : i);
    const size_t numel = sizes.out_nbytes / elem;
    if (device->ops->kind == DEVICE_HOST) return widen(c, run, x, numel, run->hidden);
    for (size_t at_elem = 0, n; at_elem < numel; at_elem += n) {
        n = numel - at_elem < room ? numel - at_elem : room;
        TRY(widen(c, run, x + at_elem * elem, n, wide));
        TRY(device->ops->copy(device, run->stream, run->hidden + at_elem, wide, n * sizeof(float)));
    }
    return CZ_OK;
}

/* Evaluation keeps nothing: two places in turn are enough. The head runs only when a loss or logits
 * are wanted. Hidden states take the place of its output, or behind a loss layer of its input. */
static cz_status eval_layer(struct chain *c, size_t i, const struct chain_run *run)
{
    struct chain_node *node = &c->nodes[i];
    TRY(enter(c, i, CHAIN_FORWARD));
    struct layer_args a = layer_args(c, i, 0, run, LAYER_EVAL);
    a.in = i == 0 ? NULL : turn(c, i - 1);
    const bool is_loss = (node->layer.cls->flags & LAYER_LOSS) != 0;
    const bool gives_hidden = run->hidden && is_head(c, i) && (i == 0 || !is_head(c, i - 1));
    const bool runs = !run->hidden || run->loss || run->logits || !is_head(c, i);
    if (gives_hidden && !is_loss) TRY(copy_hidden(c, i, run, &a));
    a.out = is_loss ? NULL : turn(c, i);
    if (is_loss) {
        a.loss = run->loss;
        a.hits = run->hits;
        a.logits = run->logits;
    }
    if (runs) TRY(call(c, i, node->layer.cls->forward, &a));
    if (gives_hidden && is_loss) TRY(copy_hidden(c, i, run, &a));
    return leave(c, i, CHAIN_FORWARD);
}

/* Layers add to it on their way. */
static cz_status clear_shared(struct chain *c, struct dev_stream *stream, size_t n_sets)
{
    if (c->shared_nbytes == 0) return CZ_OK;
    struct device *device = ops_device(c->options.ops);
    for (size_t set = 0; set < n_sets; set++)
        TRY(device->ops->fill_zero(device, stream, shared_of(c, set), c->shared_nbytes));
    return CZ_OK;
}

/* A failed forward leaves no pass that backward could differentiate. */
cz_status chain_forward_all(struct chain *c, const struct chain_run *runs, size_t n)
{
    c->pending = false;
    if (n < 1 || n > c->n_sets)
        return err_set(CZ_INVALID, 0, "%zu micro-batches together; this chain was made for %zu", n,
                       c->n_sets);
    for (size_t set = 0; set < n; set++) {
        TRY(check_shape(c, runs[set].batch));
        if (runs[set].mode != LAYER_TRAIN || !c->options.training)
            return err_set(CZ_INVALID, 0, "this chain was made for evaluation only");
    }
    TRY(chain_kept_begin(c, runs->stream));
    TRY(chain_swap_begin(c));
    TRY(clear_shared(c, runs->stream, n));
    memset(c->touched, 0, c->n_params * sizeof *c->touched);
    memset(c->used, 0, n * c->n_params * sizeof *c->used);
    memcpy(c->runs, runs, n * sizeof *runs);
    c->n_runs = n;
    for (size_t i = 0; i < c->n_nodes; i++) TRY(forward_layer(c, i, CHAIN_FORWARD));
    c->pending = true;
    return CZ_OK;
}

cz_status chain_forward(struct chain *c, const struct chain_run *run)
{
    if (run->mode != LAYER_EVAL) return chain_forward_all(c, run, 1);
    c->pending = false;
    TRY(check_shape(c, run->batch));
    TRY(chain_kept_begin(c, run->stream));
    TRY(chain_swap_begin(c));
    TRY(clear_shared(c, run->stream, 1));
    for (size_t i = 0; i < c->n_nodes; i++) TRY(eval_layer(c, i, run));
    return CZ_OK;
}

static cz_status backward_layer(struct chain *c, size_t i)
{
    TRY(enter(c, i, CHAIN_BACKWARD));
    TRY(chain_kept_before_read(c, i));
    TRY(all_sets(c, i, CHAIN_BACKWARD));
    TRY(chain_kept_after_backward(c, i));
    return leave(c, i, CHAIN_BACKWARD);
}

/* The second part of the visits, in the order that chain_order() laid down. */
cz_status chain_backward(struct chain *c)
{
    if (!c->pending)
        return err_set(CZ_INVALID, 0, "backward needs a training forward pass before it");
    c->pending = false;
    TRY(chain_swap_turn(c));
    for (size_t v = c->n_nodes; v < c->n_visits; v++) {
        size_t i = c->visits[v].layer_idx;
        TRY(c->visits[v].phase == CHAIN_RECOMPUTE ? forward_layer(c, i, CHAIN_RECOMPUTE)
                                                  : backward_layer(c, i));
    }
    return CZ_OK;
}

bool chain_can_decode(const struct chain *c)
{
    for (size_t i = 0; i < c->n_nodes; i++)
        if (!c->nodes[i].layer.cls->decode) return false;
    return c->options.cache;
}

static cz_status decode_layer(struct chain *c, size_t i, const struct chain_run *run,
                              int64_t position)
{
    struct chain_node *node = &c->nodes[i];
    TRY(enter(c, i, CHAIN_DECODE));
    struct layer_args a = layer_args(c, i, 0, run, LAYER_EVAL);
    a.in = i == 0 ? NULL : turn(c, i - 1);
    a.out = node->layer.cls->flags & LAYER_LOSS ? NULL : turn(c, i);
    a.logits = node->layer.cls->flags & LAYER_LOSS ? run->logits : NULL;
    a.shared = NULL;
    a.cache = at(c->memory.cache, node->cache_off);
    a.position = position;
    a.cache_T = c->options.T;
    TRY(call(c, i, node->layer.cls->decode, &a));
    return leave(c, i, CHAIN_DECODE);
}

/* The cache is indexed by position: a caller that goes back in a sequence overwrites what
 * followed. */
cz_status chain_decode(struct chain *c, struct dev_stream *stream, const struct batch *batch,
                       int64_t position, float *logits)
{
    if (!chain_can_decode(c))
        return err_set(CZ_UNSUPPORTED, 0, "this chain has a layer without decoding, or no cache");
    if (batch->B < 1 || batch->B > c->options.B || batch->T < 1 || position < 0 ||
        position > c->options.T - batch->T)
        return err_set(CZ_INVALID, 0,
                       "decoding takes 1…%lld sequences of up to %lld tokens, not %lld with %lld "
                       "after %lld",
                       (long long)c->options.B, (long long)c->options.T, (long long)batch->B,
                       (long long)batch->T, (long long)position);
    const struct chain_run run = {
        .stream = stream, .batch = batch, .mode = LAYER_EVAL, .logits = logits};
    c->pending = false;
    for (size_t i = 0; i < c->n_nodes; i++) TRY(decode_layer(c, i, &run, position));
    return CZ_OK;
}

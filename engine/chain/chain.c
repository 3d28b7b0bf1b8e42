/* The static side of a chain: what each layer needs for a batch shape, in which order a training
 * pass visits layers, and where every piece is placed in the blocks that the caller lends. All of
 * it is decided at creation, since a plan must know the sizes before memory exists and the step
 * allocates nothing (chain_walk.c does the walking). */
#include "engine/chain/chain_impl.h"

#include "base/size.h"
#include "ops/matmul/matmul.h"

#include <stdlib.h>
#include <string.h>

cz_status chain_layer_size(const struct chain *chain, size_t layer_idx, struct chain_shape of,
                           struct layer_sizes *out)
{
    const struct model_layer *layer = &chain->nodes[layer_idx].layer;
    const struct batch_shape shape = {.B = of.B,
                                      .T = of.T,
                                      .n_texts = of.n_texts,
                                      .dtype = chain->options.dtype,
                                      .grad_dtype = chain->options.grad_dtype,
                                      .ops = chain->options.ops,
                                      .training = chain->options.training,
                                      .keeps_all = chain->options.keeps_all,
                                      .branches = layer->branches,
                                      .n_branches = layer->n_branches};
    memset(out, 0, sizeof *out);
    if (layer->cls->size(layer->hp, &shape, out) != CZ_OK)
        return err_prefix("layer %zu (%s)", layer_idx, layer->cls->name);
    return CZ_OK;
}

/* Tables behind the nodes: one allocation each, split by the layers' numbers of parameters. */
static cz_status chain_alloc(struct chain *c, const struct model_layer *layers)
{
    size_t n_slots = 0;
    for (size_t i = 0; i < c->n_nodes; i++) n_slots += layers[i].n_params;
    c->nodes = calloc(c->n_nodes, sizeof *c->nodes);
    c->slots = calloc(n_slots + 1, sizeof *c->slots);
    c->grads = calloc(n_slots + 1, sizeof *c->grads);
    c->touched = calloc(c->n_params + 1, sizeof *c->touched);
    c->used = calloc(c->n_sets * (c->n_params + 1), sizeof *c->used);
    c->swapped = calloc(c->n_nodes, sizeof *c->swapped);
    c->runs = calloc(c->n_sets, sizeof *c->runs);
    if (!c->nodes || !c->slots || !c->grads || !c->touched || !c->used || !c->swapped || !c->runs)
        return err_set(CZ_NOMEM, 0, "no memory for a chain of %zu layers", c->n_nodes);
    size_t at = 0;
    for (size_t i = 0; i < c->n_nodes; i++) {
        c->nodes[i].layer = layers[i];
        c->nodes[i].saved_where =
            c->options.checkpoint_every > 0 ? CHAIN_SAVED_NOWHERE : CHAIN_SAVED_IN_MEMORY;
        c->nodes[i].params = c->slots + at;
        c->nodes[i].dparams = c->grads + at;
        at += layers[i].n_params;
    }
    return CZ_OK;
}

static void visit(struct chain *c, size_t layer_idx, enum chain_phase phase)
{
    c->visits[c->n_visits++] = (struct chain_visit){layer_idx, phase};
}

/* Visits of a training pass. Before a segment is differentiated, it is recomputed; the last one is
 * still there from the forward. Micro-batches together recompute within the backward: one visit of
 * a layer is then for all of them. */
static cz_status chain_order(struct chain *c)
{
    size_t last = c->n_nodes - 1;
    c->visits = calloc(3 * c->n_nodes, sizeof *c->visits);
    if (!c->visits) return err_set(CZ_NOMEM, 0, "no memory for a chain of %zu layers", c->n_nodes);
    for (size_t i = 0; i < c->n_nodes; i++) visit(c, i, CHAIN_FORWARD);
    for (size_t i = c->n_nodes; i-- > 0;) {
        bool ends_segment = i < last && ((i + 1) % c->segment == 0 || i + 1 == last);
        size_t begin = i / c->segment * c->segment;
        bool recomputes = ends_segment && !chain_is_together(c) && chain_is_recomputed(c, i);
        for (size_t k = begin; recomputes && k <= i; k++) visit(c, k, CHAIN_RECOMPUTE);
        visit(c, i, CHAIN_BACKWARD);
    }
    return CZ_OK;
}

size_t chain_n_visits(const struct chain *chain)
{
    return chain->n_visits;
}

struct chain_visit chain_visit_at(const struct chain *chain, size_t k)
{
    return chain->visits[k];
}

/* Kept from forward to backward: the output of each segment and what the loss layer saves. The
 * values inside a segment share one scratch area after it, refilled by recomputation. Without
 * checkpointing there is one segment, whose scratch is simply never overwritten. */
static cz_status chain_place(struct chain *c)
{
    size_t kept = 0, scratch_max = 0;
    size_t last = c->n_nodes - 1;
    TRY(chain_kept_plan(c, &kept));
    for (size_t i = 0; i < last; i++)
        if (((i + 1) % c->segment == 0 || i + 1 == last) && !chain_is_kept(c, i))
            TRY(chain_place_piece(&kept, c->nodes[i].sizes.out_nbytes, &c->nodes[i].out_off));
    TRY(chain_place_piece(&kept, c->nodes[last].sizes.saved_nbytes, &c->nodes[last].saved_off));
    for (size_t begin = 0; begin < last; begin += c->segment) {
        size_t scratch = kept;
        for (size_t i = begin; i < last && i < begin + c->segment; i++) {
            bool kept_out = (i + 1) % c->segment == 0 || i + 1 == last;
            if (!kept_out)
                TRY(chain_place_piece(&scratch, c->nodes[i].sizes.out_nbytes,
                                      &c->nodes[i].out_off));
            TRY(chain_place_piece(&scratch, c->nodes[i].sizes.saved_nbytes,
                                  &c->nodes[i].saved_off));
        }
        if (scratch > scratch_max) scratch_max = scratch;
    }
    c->sizes.activations = scratch_max > kept ? scratch_max : kept;
    return CZ_OK;
}

/* Micro-batches together: what each of them has of a layer stands side by side. Where outputs stay
 * in memory, the gradient of an output is made where the next layer's output was, which is no
 * longer read by then, hence the larger size of both. What the loss layer saves is used up at once,
 * and what recomputed layers do, so all sets share those. */
static cz_status place_together(struct chain *c)
{
    size_t *block = &c->sizes.activations, loss_off, scratch = 0, last = c->n_nodes - 1, nbytes;
    for (size_t i = 0; i < last; i++) {
        struct chain_node *node = &c->nodes[i];
        const size_t before = i > 0 ? c->nodes[i - 1].sizes.out_nbytes : 0;
        node->out_stride = size_round_up(node->sizes.out_nbytes, CHAIN_ALIGN);
        if (c->n_kept == 0 && before > node->out_stride)
            node->out_stride = size_round_up(before, CHAIN_ALIGN);
    }
    TRY(chain_swap_plan(c, block));
    TRY(chain_kept_plan(c, block));
    for (size_t i = 0; i < last; i++) {
        struct chain_node *node = &c->nodes[i];
        TRY(size_mul(c->n_sets, node->out_stride, &nbytes));
        if (!chain_is_kept(c, i)) TRY(chain_place_piece(block, nbytes, &node->out_off));
        if (node->saved_where == CHAIN_SAVED_IN_FILE) continue;
        if (node->saved_where == CHAIN_SAVED_NOWHERE) {
            node->saved_stride = 0;
            if (node->sizes.saved_nbytes > scratch) scratch = node->sizes.saved_nbytes;
            continue;
        }
        node->saved_stride = size_round_up(node->sizes.saved_nbytes, CHAIN_ALIGN);
        TRY(size_mul(c->n_sets, node->saved_stride, &nbytes));
        TRY(chain_place_piece(block, nbytes, &node->saved_off));
    }
    if (chain_keeps_put_off(c)) TRY(chain_place_piece(block, c->put_off_nbytes, &c->put_off_at));
    if (c->keeps_packed) TRY(chain_place_piece(block, c->packed_nbytes, &c->packed_at));
    if (c->nodes[last].sizes.saved_nbytes > scratch) scratch = c->nodes[last].sizes.saved_nbytes;
    TRY(chain_place_piece(block, scratch, &loss_off));
    for (size_t i = 0; i < c->n_nodes; i++)
        if (i == last || c->nodes[i].saved_where == CHAIN_SAVED_NOWHERE)
            c->nodes[i].saved_off = loss_off;
    return CZ_OK;
}

/* Places of all that stays from forward to backward, behind them what layers tell each other.
 * Evaluation alternates between two outputs, in the same block. */
static cz_status chain_place_all(struct chain *c)
{
    struct chain_sizes *s = &c->sizes;
    size_t pair = 0, shared = 0, off;
    TRY(chain_place_piece(&pair, c->out_nbytes_max, &off));
    TRY(chain_place_piece(&pair, c->out_nbytes_max, &off));
    s->activations = s->kept = s->file = c->n_kept = 0;
    if (c->options.training) {
        TRY(chain_is_together(c) ? place_together(c) : chain_place(c));
        s->gradients = pair;
        /* The gradient that the loss layer makes, of each micro-batch; and another one where the
         * loss layer's input is still needed, or outputs have no places of their own. */
        const bool one = c->tied_layer == SIZE_MAX && c->n_kept == 0;
        if (chain_is_together(c)) TRY(size_mul(c->n_sets, one ? pair / 2 : pair, &s->gradients));
    }
    if (s->activations < pair) s->activations = pair;
    if (c->shared_nbytes > 0) {
        TRY(chain_place_piece(&shared, c->shared_nbytes, &off));
        TRY(size_mul(c->n_sets, shared, &shared));
        TRY(chain_place_piece(&s->activations, shared, &c->shared_off));
    }
    if (s->file == 0) return CZ_OK;
    return size_add(s->activations, CHAIN_FILE_ALIGN, &s->activations); /* see chain_bind() */
}

/* Half of all addresses is more than there is, and less than what rounding up overflows. */
static cz_status check_sizes(const struct chain *c, size_t i, const struct layer_sizes *s)
{
    const size_t any = s->out_nbytes | s->saved_nbytes | s->workspace_nbytes | s->cache_nbytes |
                       s->shared_nbytes | s->put_off_nbytes;
    if (any <= SIZE_MAX / 2) return CZ_OK;
    return err_set(CZ_INVALID, 0, "layer %zu (%s) needs more memory than there are addresses", i,
                   c->nodes[i].layer.cls->name);
}

/* A layer's sizes for the largest batch; where batches may come without padding, for all of its
 * tokens in one row, too. */
static cz_status measure_layer(struct chain *c, size_t i, struct layer_sizes *sizes)
{
    const struct chain_options *o = &c->options;
    struct layer_sizes one;
    TRY(chain_layer_size(c, i, (struct chain_shape){o->B, o->T, 0}, sizes));
    TRY(check_sizes(c, i, sizes));
    if (!o->unpads) return CZ_OK;
    TRY(chain_layer_size(c, i, (struct chain_shape){1, o->B * o->T, o->B}, &one));
    size_raise(&sizes->out_nbytes, one.out_nbytes);
    size_raise(&sizes->saved_nbytes, one.saved_nbytes);
    size_raise(&sizes->workspace_nbytes, one.workspace_nbytes);
    size_raise(&sizes->shared_nbytes, one.shared_nbytes);
    size_raise(&sizes->put_off_nbytes, one.put_off_nbytes);
    return CZ_OK;
}

/* Sizes depend on a layer's class, hyper-parameters and branches. Most models repeat a layer, or a
 * few in turn; plans ask thousands of times. */
#define TURNS_MAX 8

static bool has_same_hp(const struct model_layer *a, const struct model_layer *b)
{
    const size_t skip = a->cls->flags & LAYER_INDEXED ? sizeof(int) : 0, n = a->hp_nbytes;
    if (n != b->hp_nbytes || n <= skip) return a->hp == b->hp;
    return memcmp((const char *)a->hp + skip, (const char *)b->hp + skip, n - skip) == 0;
}

static bool is_alike(const struct model_layer *a, const struct model_layer *b)
{
    return a->cls == b->cls && has_same_hp(a, b) && a->n_branches == b->n_branches &&
           (a->n_branches == 0 ||
            memcmp(a->branches, b->branches, a->n_branches * sizeof *a->branches) == 0);
}

/* A layer like layer i, shortly before it; NULL: there is none. */
static const struct chain_node *alike_before(const struct chain *c, size_t i)
{
    for (size_t k = 1; k <= TURNS_MAX && k <= i; k++)
        if (is_alike(&c->nodes[i - k].layer, &c->nodes[i].layer)) return &c->nodes[i - k];
    return NULL;
}

/* Asks every layer at the planned shape, the largest there will be; a smaller batch is checked
 * against this in chain_walk.c. */
static cz_status chain_measure(struct chain *c)
{
    struct chain_sizes *s = &c->sizes;
    for (size_t i = 0; i < c->n_nodes; i++) {
        struct chain_node *node = &c->nodes[i];
        const struct chain_node *alike = alike_before(c, i);
        if (alike)
            node->sizes = alike->sizes;
        else
            TRY(measure_layer(c, i, &node->sizes));
        node->out_nbytes = node->sizes.out_nbytes;
        size_raise(&s->workspace, node->sizes.workspace_nbytes);
        size_raise(&c->out_nbytes_max, node->sizes.out_nbytes);
        size_raise(&c->shared_nbytes, node->sizes.shared_nbytes);
        if (c->options.cache)
            TRY(chain_place_piece(&s->cache, node->sizes.cache_nbytes, &node->cache_off));
        s->flops_forward += node->sizes.flops_forward;
    }
    if (c->puts_off) {
        const size_t nbytes = c->nodes[c->n_nodes - 1].sizes.put_off_nbytes;
        c->put_off_stride = size_round_up(nbytes, CHAIN_ALIGN);
        TRY(size_mul(c->n_sets, c->put_off_stride, &c->put_off_nbytes));
    }
    return chain_place_all(c);
}

/* ---- parameters that layers share ------------------------------------------------------------ */

static bool uses(const struct model_layer *layer, size_t param_idx)
{
    for (size_t k = 0; k < layer->n_params; k++)
        if (layer->param_idx[k] == param_idx) return true;
    return false;
}

/* A parameter's sum is h₀ + e₀ + h₁ + e₁ + … where the loss layer gives hₖ and another layer eₖ of
 * micro-batch k. Together, all hₖ would come before all eₖ; so the loss layer puts off its hₖ until
 * eₖ is due. Between two other layers there is no such remedy. */
static const char *find_tie(const struct model_layer *layers, size_t n, size_t n_params,
                            size_t *tied)
{
    size_t *user = calloc(n_params + 1, sizeof *user); /* 1 + a layer before the loss layer */
    const char *obstacle = user ? NULL : "there is no memory to look for shared parameters";
    *tied = SIZE_MAX;
    for (size_t i = 0; !obstacle && i + 1 < n; i++)
        for (size_t k = 0; !obstacle && k < layers[i].n_params; k++) {
            size_t p = layers[i].param_idx[k];
            if (user[p] != 0 && user[p] != i + 1)
                obstacle = "layers in front of the last one share a parameter";
            user[p] = i + 1;
            if (!uses(&layers[n - 1], p)) continue;
            if (*tied != SIZE_MAX && *tied != i)
                obstacle = "several layers share parameters with the last one";
            *tied = i;
        }
    free(user);
    return obstacle;
}

/* Whether a layer in front of the loss layer shares a trained parameter with it. Without a table
 * all are trained. */
static bool shares_trained(const struct model_layer *layer, const struct model_layer *loss,
                           const struct param_table *table)
{
    for (size_t k = 0; k < layer->n_params; k++) {
        const size_t p = layer->param_idx[k];
        if (uses(loss, p) && (!table || table->params[p].trainable)) return true;
    }
    return false;
}

const char *chain_together_obstacle(const struct cz_model *model)
{
    const size_t n = model_n_layers(model);
    struct model_layer *layers = calloc(n + 1, sizeof *layers);
    size_t tied;
    if (!layers) return "there is no memory to look at the layers";
    for (size_t i = 0; i < n; i++) layers[i] = *model_layer_at(model, i);
    const char *obstacle = find_tie(layers, n, model_params(model)->n_params, &tied);
    free(layers);
    return obstacle;
}

size_t chain_tied_layer(const struct chain *chain)
{
    return chain_is_together(chain) ? chain->tied_layer : SIZE_MAX;
}

size_t chain_put_off_nbytes(const struct chain *chain)
{
    return chain->put_off_nbytes;
}

bool chain_keeps_put_off(const struct chain *chain)
{
    return chain->put_off_nbytes > 0 &&
           chain->nodes[chain->n_nodes - 1].saved_where == CHAIN_SAVED_IN_MEMORY;
}

size_t chain_packed_nbytes(const struct chain *chain)
{
    return chain->packed_nbytes;
}

cz_status chain_keep_packed(struct chain *chain, bool keep)
{
    chain->keeps_packed = keep && chain->packed_nbytes > 0;
    return chain_place_all(chain);
}

bool chain_keeps_packed(const struct chain *chain)
{
    return chain->keeps_packed;
}

/* Nothing waits in a file where nothing is saved, nor anything of the loss layer's. */
cz_status chain_place_saved(struct chain *chain, const enum chain_saved *where)
{
    if (!chain_is_together(chain) || chain->options.checkpoint_every > 0) return CZ_OK;
    for (size_t i = 0; i < chain->n_nodes; i++) {
        struct chain_node *node = &chain->nodes[i];
        node->saved_where = where[i];
        if (where[i] == CHAIN_SAVED_IN_FILE && node->sizes.saved_nbytes == 0)
            node->saved_where = CHAIN_SAVED_IN_MEMORY;
    }
    struct chain_node *loss = &chain->nodes[chain->n_nodes - 1];
    if (loss->saved_where == CHAIN_SAVED_IN_FILE) loss->saved_where = CHAIN_SAVED_NOWHERE;
    return chain_place_all(chain);
}

enum chain_saved chain_saved_at(const struct chain *chain, size_t layer_idx)
{
    return chain->nodes[layer_idx].saved_where;
}

/* Bytes of a layer's packed weights, in both directions; 0 where there are more of them than are
 * kept. */
static size_t packed_nbytes_of(const struct chain *c, const struct model_layer *layer,
                               const struct param_table *table)
{
    size_t n = 0, nbytes = 0;
    if (!(layer->cls->flags & LAYER_MAPS)) return 0;
    for (size_t slot = 0; slot < layer->n_params; slot++) {
        const struct param_info *p = &table->params[layer->param_idx[slot]];
        if (p->ndim != 2 || p->is_adapter) continue;
        for (int side = 0; side < 2; side++, n++)
            nbytes += ops_matmul_kept_nbytes(c->options.ops, c->options.dtype, p->shape[side],
                                             p->shape[1 - side]);
    }
    return n <= OPS_MATMUL_KEPT_MAX ? nbytes : 0;
}

/* Without checkpointing there is one segment of all layers before the loss: one rule covers both
 * cases. table: what is trained; NULL: all of it. */
static cz_status create(const struct model_layer *layers, size_t n_layers, size_t n_params,
                        const struct param_table *table, const struct chain_options *options,
                        struct chain **out)
{
    *out = NULL;
    if (n_layers == 0) return err_set(CZ_INVALID, 0, "a chain needs at least one layer");
    if (options->B < 1 || options->T < 1)
        return err_set(CZ_INVALID, 0, "a chain needs a batch of at least 1×1, not %lld×%lld",
                       (long long)options->B, (long long)options->T);
    if (options->checkpoint_every < 0)
        return err_set(CZ_INVALID, 0, "checkpoint_every is %lld; 0 or more would work",
                       (long long)options->checkpoint_every);
    for (size_t i = 0; i < n_layers; i++) {
        bool is_loss = layers[i].cls->flags & LAYER_LOSS;
        if (is_loss != (i + 1 == n_layers))
            return err_set(CZ_INVALID, 0, "layer %zu (%s): a loss layer comes last, and only there",
                           i, layers[i].cls->name);
    }
    struct chain *c = calloc(1, sizeof *c);
    if (!c) return err_set(CZ_NOMEM, 0, "no memory for a chain");
    c->options = *options;
    c->n_nodes = n_layers;
    c->n_params = n_params;
    size_t inner = n_layers > 1 ? n_layers - 1 : 1;
    c->segment = inner;
    if (options->checkpoint_every > 0 && (size_t)options->checkpoint_every < inner)
        c->segment = (size_t)options->checkpoint_every;
    c->n_segments = (inner + c->segment - 1) / c->segment;
    c->n_sets = options->training && options->n_together > 1 ? (size_t)options->n_together : 1;
    c->tied_layer = SIZE_MAX;
    cz_status st = CZ_OK;
    if (chain_is_together(c)) {
        c->segment = 1; /* every layer's input is kept */
        c->n_segments = inner;
        const char *obstacle = find_tie(layers, n_layers, n_params, &c->tied_layer);
        if (obstacle)
            TRY_GOTO(err_set(CZ_UNSUPPORTED, 0, "micro-batches cannot go through it together: %s",
                             obstacle),
                     fail);
        c->puts_off = c->tied_layer != SIZE_MAX &&
                      shares_trained(&layers[c->tied_layer], &layers[n_layers - 1], table);
        for (size_t i = 0; table && i + 1 < n_layers; i++)
            size_raise(&c->packed_nbytes, packed_nbytes_of(c, &layers[i], table));
    }
    TRY_GOTO(chain_alloc(c, layers), fail);
    TRY_GOTO(chain_order(c), fail);
    TRY_GOTO(chain_measure(c), fail);
    TRY_GOTO(chain_kept_create(c), fail);
    c->shape = (struct chain_shape){options->B, options->T, 0};
    *out = c;
    return CZ_OK;
fail:
    chain_destroy(c);
    return st;
}

cz_status chain_create_layers(const struct model_layer *layers, size_t n_layers, size_t n_params,
                              const struct chain_options *options, struct chain **out)
{
    return create(layers, n_layers, n_params, NULL, options, out);
}

/* The model's layers are copied: chain_create_layers() serves layers without a model, too. */
cz_status chain_create(const struct cz_model *model, const struct chain_options *options,
                       struct chain **out)
{
    *out = NULL;
    size_t n_layers = model_n_layers(model);
    struct model_layer *layers = calloc(n_layers + 1, sizeof *layers);
    if (!layers) return err_set(CZ_NOMEM, 0, "no memory for a chain of %zu layers", n_layers);
    for (size_t i = 0; i < n_layers; i++) layers[i] = *model_layer_at(model, i);
    const struct param_table *table = model_params(model);
    cz_status st = create(layers, n_layers, table->n_params, table, options, out);
    free(layers);
    if (st != CZ_OK) return err_prefix("model %s", cz_model_name(model));
    return CZ_OK;
}

void chain_destroy(struct chain *chain)
{
    if (!chain) return;
    chain_kept_free(chain);
    free(chain->nodes);
    free(chain->slots);
    free(chain->grads);
    free(chain->touched);
    free(chain->used);
    free(chain->swapped);
    free(chain->visits);
    free(chain->runs);
    free(chain);
}

struct chain_sizes chain_sizes(const struct chain *chain)
{
    return chain->sizes;
}

size_t chain_n_layers(const struct chain *chain)
{
    return chain->n_nodes;
}

const struct model_layer *chain_layer(const struct chain *chain, size_t layer_idx)
{
    return &chain->nodes[layer_idx].layer;
}

struct layer_sizes chain_layer_sizes(const struct chain *chain, size_t layer_idx)
{
    return chain->nodes[layer_idx].sizes;
}

/* The last segment is not: its activations are still in the scratch area when backward begins. */
bool chain_is_recomputed(const struct chain *chain, size_t layer_idx)
{
    if (chain_is_together(chain))
        return layer_idx + 1 < chain->n_nodes &&
               chain->nodes[layer_idx].saved_where == CHAIN_SAVED_NOWHERE;
    return layer_idx + 1 < chain->n_nodes && layer_idx / chain->segment + 1 < chain->n_segments;
}

/* New memory holds nothing of an earlier forward. Where a file reads and writes it, it begins where
 * the file's requests may. */
void chain_bind(struct chain *chain, const struct chain_memory *memory)
{
    chain->memory = *memory;
    if (chain->sizes.file > 0)
        chain->memory.activations =
            (void *)size_round_up((uintptr_t)memory->activations, CHAIN_FILE_ALIGN);
    chain->pending = false;
}

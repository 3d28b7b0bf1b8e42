/* The life of a struct zero: options are checked, choices made, every part laid out (nothing large
 * is allocated), memory bound, and everything freed. */
#include "zero/zero_impl.h"

#include "base/size.h"
#include "ops/reduce/reduce.h"

#include <stdlib.h>
#include <string.h>

/* The limits of the groups' classes, which the config has been held against already, and the
 * kernels that they call. */
static cz_status check_classes(const struct zero_options *o)
{
    const bool leaves = zero_states_leave(o), swaps = o->swap.optimizer;
    const double share = swaps ? (double)o->swap.memory_share : (double)o->offload.device_share;
    const struct optim_use use = {.stage = o->stage,
                                  .states_offloaded = swaps || leaves,
                                  .params_offloaded = o->swap.params || zero_params_leave(o),
                                  .sums = o->reduce_sum,
                                  .fp16_states = o->state_dtype == DTYPE_F16,
                                  .bf16_states = o->state_dtype == DTYPE_BF16};
    for (size_t g = 0; g < o->n_groups; g++) {
        const struct optim_class *cls = o->groups[g].hyper.cls;
        size_t from = 0;
        const struct optim_limit *limit = optim_limit_next(cls, &use, &from);
        if (limit)
            return err_set(CZ_UNSUPPORTED, 0, "%s: not supported with %s: %s", limit->key,
                           cls->name, limit->why);
        for (size_t i = 0; cls->ops[i]; i++) {
            if (leaves && o->host_ops) TRY(ops_require(o->host_ops, cls->ops[i]));
            if (!leaves || share > 0) TRY(ops_require(o->ops, cls->ops[i]));
        }
    }
    return CZ_OK;
}

static cz_status check_options(const struct zero_options *o)
{
    if (o->stage < 0 || o->stage > 3)
        return err_set(CZ_INVALID, 0, "zero_optimization.stage: %d is outside 0..3", o->stage);
    if (o->grad_dtype != o->dtype && o->grad_dtype != DTYPE_F32)
        return err_set(CZ_UNSUPPORTED, 0,
                       "gradients of a %s model are kept in %s or fp32, not in %s",
                       dtype_name(o->dtype), dtype_name(o->dtype), dtype_name(o->grad_dtype));
    if (o->master_dtype != o->dtype && o->master_dtype != DTYPE_F32)
        return err_set(CZ_UNSUPPORTED, 0, "master weights of a %s model are %s or fp32, not %s",
                       dtype_name(o->dtype), dtype_name(o->dtype), dtype_name(o->master_dtype));
    TRY(check_classes(o));
    TRY(zero_onebit_check(o));
    TRY(zero_gpu_check(o));
    for (size_t v = 0; v < o->n_visits; v++)
        if (o->visits[v].unit_idx >= o->n_units || (v < o->n_units && o->visits[v].unit_idx != v))
            return err_set(CZ_INVALID, 0, "visit %zu of the pass is of unit %zu", v,
                           o->visits[v].unit_idx);
    return CZ_OK;
}

static cz_status alloc_tables(struct zero *z)
{
    size_t n = z->options.table->n_params + 1, w = (size_t)z->options.comm->world_size;
    z->own.groups = calloc(z->options.n_groups + 1, sizeof *z->own.groups);
    z->own.params = calloc(n, sizeof *z->own.params);
    z->pointers.params = calloc(n, sizeof *z->pointers.params);
    z->pointers.grads = calloc(n, sizeof *z->pointers.grads);
    z->per_rank.scans = calloc(w, sizeof *z->per_rank.scans);
    z->per_rank.squares = calloc(w, SQUARES_DIGITS * sizeof *z->per_rank.squares);
    z->per_rank.spans = calloc(w, sizeof *z->per_rank.spans);
    if (!z->own.groups || !z->own.params || !z->pointers.params || !z->pointers.grads ||
        !z->per_rank.scans || !z->per_rank.squares || !z->per_rank.spans)
        return err_set(CZ_NOMEM, 0, "no memory for the tables of %zu parameters", n - 1);
    return CZ_OK;
}

/* Bytes from a multiple of ZERO_PRODUCT_ALIGN to a parameter, where layers read it. */
static size_t param_lead(const struct zero *z, size_t param_idx)
{
    const struct zero_options *o = &z->options;
    const struct zero_param *p = &z->own.params[param_idx];
    if (z->window.is_used) /* blocks of the swap file come as they are */
        return o->swap.params && !z->window.is_split
                   ? zero_param_placement(z, param_idx).swap_off % ZERO_PRODUCT_ALIGN
                   : 0;
    return p->group == o->n_groups ? 0 : p->off * dtype_size(o->dtype) % ZERO_PRODUCT_ALIGN;
}

/* DeepSpeed's flat buffers put parameters side by side at any address; a GPU's products pass those
 * that are not aligned, and their gradients, through memory that is (ops_lend_aligned). A weight
 * and a bias may come together: the two largest have space. */
static cz_status take_aligned(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t largest = 0, second = 0;
    if (!o->on_gpu) return CZ_OK;
    for (size_t i = 0; i < o->table->n_params; i++) {
        const struct zero_param *p = &z->own.params[i];
        const size_t numel = o->table->params[i].numel, size = dtype_size(o->grad_dtype);
        size_t nbytes = param_lead(z, i) ? numel * dtype_size(o->dtype) : 0;
        if (p->group != o->n_groups && p->grad_off * size % ZERO_PRODUCT_ALIGN)
            nbytes = numel * (size > dtype_size(o->dtype) ? size : dtype_size(o->dtype));
        if (nbytes > largest)
            second = largest, largest = nbytes;
        else if (nbytes > second)
            second = nbytes;
    }
    z->mem.aligned_nbytes = size_round_up(largest, ZERO_ALIGN) + size_round_up(second, ZERO_ALIGN);
    return zero_block_take(z, ZERO_STEP, z->mem.aligned_nbytes, DTYPE_U8, &z->mem.aligned_off);
}

/* Every part takes its space, in the order that fixes where arrays are in their blocks. Buckets
 * come after groups (a gradient in the swap file has its place by then), windows last. */
static cz_status layout_all(struct zero *z)
{
    size_t off, scalars = z->options.n_groups * sizeof(struct step_scalars);
    TRY(zero_block_take(z, ZERO_SMALL, scalars, DTYPE_U8, &off));
    if (z->options.on_gpu) TRY(zero_block_take(z, ZERO_STEP, scalars, DTYPE_U8, &off));
    TRY(zero_groups_init(z));
    /* Two halves: one to read or round into, one for what is on its way. */
    if (z->mem.swap_nbytes > 0 || z->options.on_gpu)
        TRY(zero_block_take(z, ZERO_SMALL, 2 * ZERO_SCRATCH_NBYTES, DTYPE_U8, &z->mem.scratch_off));
    TRY(zero_buckets_init(z));
    TRY(zero_sweep_init(z));
    TRY(zero_onebit_init(z));
    zero_gather_count(z);
    TRY(zero_window_init(z));
    TRY(take_aligned(z));
    TRY(zero_late_init(z));
    return zero_ring_take(z);
}

/* What follows from the options for all parts. */
static void choose(struct zero *z)
{
    struct zero_options *o = &z->options;
    struct zero_buckets *b = &z->buckets;
    bool is_alone = o->comm->world_size == 1, is_swapped = o->swap.optimizer || o->swap.params;
    bool leaves = zero_states_leave(o), is_shared = false;
    const struct optim_hyper *onebit = onebit_of(o->groups, o->n_groups);
    if (!o->host_ops) o->host_ops = o->ops; /* on the CPU */

    /* With a swap file a tile ends where a block of the file does, whatever its arrays' dtypes. */
    if (o->tile_numel == 0) o->tile_numel = is_swapped ? TILE_NUMEL_SWAP : TILE_NUMEL_MAX;
    if (is_swapped) o->tile_numel = size_round_up(o->tile_numel, TILE_NUMEL_UNIT);
    z->figures.tile_numel = o->tile_numel;

    /* ZeroOneAdam's ranks take local steps over all weights, starting from masters that they share:
     * nothing can be split, and masters are arrays of their own in fp32 too. */
    z->own.saved_stage = o->stage;
    z->own.local_steps = onebit && optim_moves_alone(onebit);
    if (z->own.local_steps) o->stage = 0;

    /* Parameters are their own masters if both have one dtype and, on a GPU, are in one memory. */
    if (leaves)
        is_shared = (o->swap.optimizer ? o->swap.memory_share : o->offload.device_share) > 0;
    z->mem.has_masters = o->master_dtype != o->dtype || z->own.local_steps || is_shared ||
                         leaves != zero_params_leave(o);

    /* One rank may send its gradients where they rest instead of reducing them: to the swap file,
     * or from its GPU to host memory, where its optimizer is. */
    b->sink = &zero_sink_ranks;
    if (is_alone && leaves) b->sink = &zero_sink_host;
    if (is_alone && o->swap.grads && o->swap.optimizer && o->wire_dtype == o->grad_dtype)
        b->sink = &zero_sink_swap;
    b->is_bucketed = b->sink != &zero_sink_ranks || (o->stage >= 2 && !is_alone);
    b->rest_in_host = leaves && (is_alone || o->stage >= 2);

    z->window.is_split = is_alone ? zero_params_leave(o) : o->stage == 3;
    z->window.is_used = z->window.is_split || o->swap.params;
    /* Where a rank updates whole parameters, or the chunks that it sends layer by layer; of a
     * GPU's, those that the host updates. */
    z->late.on = o->late_update && (o->on_gpu ? leaves : is_swapped) && !onebit &&
                 (is_alone || o->stage == 0 || o->stage == 3);
    z->sweep.params_changed = true; /* nothing has been gathered yet */
}

cz_status zero_create(const struct zero_options *options, struct zero **out)
{
    *out = NULL;
    TRY(check_options(options));
    struct zero *z = calloc(1, sizeof *z);
    if (!z) return err_set(CZ_NOMEM, 0, "no memory for the model state");
    z->options = *options;
    choose(z);
    cz_status st;
    TRY_GOTO(alloc_tables(z), fail);
    TRY_GOTO(layout_all(z), fail);
    *out = z;
    return CZ_OK;
fail:
    zero_destroy(z);
    return st;
}

/* ---- bind ------------------------------------------------------------------------------------ */

/* Memory and swap file are there: every part finds its own, in the order in which the swap file's
 * buffers should be registered when the kernel takes only some of them. */
cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS], struct swap *swap)
{
    const struct zero_options *o = &z->options;
    bool is_swapped = z->mem.swap_nbytes > 0;
    for (int b = 0; b < ZERO_N_BLOCKS; b++) z->mem.blocks[b] = blocks[b];
    z->mem.scalars = (struct step_scalars *)(void *)z->mem.blocks[ZERO_SMALL];
    if (z->mem.scratch_off > 0) z->mem.scratch = z->mem.blocks[ZERO_SMALL] + z->mem.scratch_off;
    z->mem.swap = swap;
    if (is_swapped && !swap) return err_set(CZ_INVALID, 0, "the model state needs a swap file");
    TRY(zero_gpu_bind(z));
    if (z->mem.aligned_nbytes > 0)
        ops_lend_aligned(o->ops, z->mem.blocks[ZERO_STEP] + z->mem.aligned_off,
                         z->mem.aligned_nbytes);
    if (is_swapped) TRY(zero_sweep_bind(z));
    if (z->buckets.sink->bind) TRY(z->buckets.sink->bind(z));
    if (is_swapped && o->swap.params)
        TRY(zero_lend_to_swap(z, z->window.is_split ? ZERO_STAGING : ZERO_WINDOW));
    TRY(zero_onebit_bind(z));
    if (z->window.is_used) zero_window_bind(z);
    unsigned char *grads = z->mem.blocks[z->buckets.is_bucketed ? ZERO_BUCKETS : ZERO_GRADS];
    for (size_t i = 0; i < o->table->n_params; i++) {
        if (!z->window.is_used) z->pointers.params[i] = zero_param_placement(z, i).memory;
        if (z->own.params[i].group != o->n_groups)
            z->pointers.grads[i] = zero_advance(grads, z->own.params[i].grad_off, o->grad_dtype);
    }
    /* Blocks and file are zeroed; some optimizers start from something else. */
    for (size_t g = 0; g < o->n_groups; g++)
        for (size_t s = 0; s < z->own.groups[g].n_states; s++) {
            float value = (float)optim_state_init(&o->groups[g].hyper, s);
            const struct zero_placement where = zero_state_placement(z, g, s);
            if (value != 0) TRY(zero_placement_fill(z, &where, z->own.groups[g].own_numel, value));
        }
    return CZ_OK;
}

/* What is under way ends first: it uses blocks, communicator and swap file, which the caller frees
 * next. The caller's error is kept. */
void zero_destroy(struct zero *z)
{
    struct err mine;
    if (!z) return;
    err_capture(&mine);
    (void)zero_late_interrupt(z);
    (void)zero_pass_drain(z); /* a world that has failed moves nothing any more */
    (void)zero_gpu_drain(z);  /* copies use blocks that go next */
    err_restore(&mine);
    if (z->mem.aligned_nbytes > 0) ops_lend_aligned(z->options.ops, NULL, 0);
    zero_buckets_free(z);
    zero_window_free(z);
    zero_onebit_free(z);
    zero_gpu_free(z);
    zero_late_free(z);
    ring_destroy(z->sweep.ring);
    zero_groups_free(z);
    free(z->pointers.params);
    free(z->pointers.grads);
    free(z->per_rank.scans);
    free(z->per_rank.squares);
    free(z->per_rank.spans);
    free(z);
}

void zero_set_comm(struct zero *z, struct comm *comm)
{
    z->options.comm = comm;
}

size_t zero_swap_nbytes(const struct zero *z)
{
    return (size_t)z->mem.swap_nbytes;
}

size_t zero_block_nbytes(const struct zero *z, enum zero_block block)
{
    return z->mem.nbytes[block];
}

struct zero_figures zero_figures(const struct zero *z)
{
    return z->figures;
}

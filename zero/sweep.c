/* The optimizer's sweep over a group's partition, tile by tile, so that a tile is read once,
 * updated in the cache and written once: masters, states and rounded parameters in place in memory,
 * or in a slot of the ring through which the swap file streams. An optimizer of several stages
 * (Lamb) sweeps several times; what an element becomes does not depend on where tiles begin.
 *
 * A tile is updated by the kernels of the side (GPU or host) on which its masters and states rest.
 * Gradients that come from the other side, and rounded parameters that go there, pass through a
 * slot of staging, so that copying one tile overlaps the update of the next. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* The arrays of a tile, in the order of their places in a slot. ARRAY_OUT: parameters, rounded from
 * their masters. */
enum {
    ARRAY_MASTER = 0,
    ARRAY_OUT,
    ARRAY_GRAD,
    ARRAY_STATE,
    N_ARRAYS = ARRAY_STATE + OPTIM_STATES_MAX
};

/* Equal pieces of 2^k bytes side by side would meet in the same memory banks (base/arena.h). */
#define SLOT_SKEW (5 * SWAP_ALIGN)

/* Rounded parameters on their way between a GPU and host memory; nbytes 0: none. */
struct staged {
    unsigned char *from, *to;
    size_t nbytes;
};

/* One stage over a group. */
struct sweep {
    struct zero *z;
    size_t group;
    size_t stage;
    size_t n_tiles;
    bool is_down;     /* the last tile first */
    const float *one; /* the last of the frozen stages instead, with this as the ratio of classes
                         that have none; NULL: the class's stages */
    bool beside;      /* the backward, perhaps: each tile waits for its own gradients */
    bool late;        /* beside the next forward: late.c */
    struct staged staged; /* of the tile in work */
};

/* Where an array of the group is; false: the group has none. */
static bool array_placement(const struct zero *z, size_t g, size_t array,
                            struct zero_placement *out)
{
    if (array == ARRAY_MASTER) {
        *out = zero_master_placement(z, g);
        return true;
    }
    if (array == ARRAY_OUT) {
        *out = zero_own_params_placement(z, g);
        return z->mem.has_masters;
    }
    if (array == ARRAY_GRAD) {
        *out = zero_grads_placement(z, g);
        return true;
    }
    size_t state_idx = array - ARRAY_STATE;
    if (state_idx >= z->own.groups[g].n_states) return false;
    *out = zero_state_placement(z, g, state_idx);
    return true;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Elements of the largest tile. */
static size_t largest_tile(const struct zero *z)
{
    size_t most = 0;
    for (size_t g = 0; g < z->options.n_groups; g++)
        if (z->own.groups[g].own_numel > most) most = z->own.groups[g].own_numel;
    return most < z->options.tile_numel ? most : z->options.tile_numel;
}

/* Where an array begins in a slot of the ring; that of N_ARRAYS is the slot's end. Only arrays that
 * are in the file take part of it. Where parameters are their own masters, the masters are in the
 * file if the parameters are. */
static size_t slot_off(const struct zero *z, size_t array)
{
    const struct zero_options *o = &z->options;
    size_t numel = largest_tile(z), n_states = 0, off = 0;
    for (size_t g = 0; g < o->n_groups; g++)
        if (z->own.groups[g].n_states > n_states) n_states = z->own.groups[g].n_states;
    for (size_t a = 0; a < array; a++) {
        enum cz_dtype dtype = o->state_dtype;
        bool is_swapped = o->swap.optimizer && a - ARRAY_STATE < n_states;
        if (a == ARRAY_MASTER) {
            dtype = o->master_dtype;
            is_swapped = z->mem.has_masters ? o->swap.optimizer : o->swap.params;
        } else if (a == ARRAY_OUT) {
            dtype = o->dtype;
            is_swapped = z->mem.has_masters && o->swap.params;
        } else if (a == ARRAY_GRAD) {
            dtype = o->grad_dtype;
            is_swapped = z->figures.grad_swapped_nbytes > 0;
        }
        size_t nbytes = numel * dtype_size(dtype);
        if (is_swapped && nbytes > 0) off += size_round_up(nbytes, SWAP_ALIGN) + SLOT_SKEW;
    }
    return off;
}

size_t zero_kept_nbytes(const struct zero *z, size_t g, size_t t)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *group = &z->own.groups[g];
    size_t numel = tile_numel(group->own_numel, o->tile_numel, t), size = 0;
    if (o->swap.optimizer && t * o->tile_numel >= group->resident) {
        size += group->n_states * dtype_size(o->state_dtype);
        if (z->mem.has_masters) size += dtype_size(o->master_dtype);
    }
    bool is_shared = o->comm->world_size > 1 && numel * dtype_size(o->dtype) % SWAP_ALIGN != 0;
    if (!z->mem.has_masters && o->swap.params && !is_shared) size += dtype_size(o->dtype);
    return numel * size;
}

/* The same of the first tiles of a group, or its last ones, as long as `*n_slots` hold them. */
static size_t end_nbytes(const struct zero *z, size_t g, bool is_last, size_t *n_slots)
{
    size_t n = tile_count(z->own.groups[g].own_numel, z->options.tile_numel), sum = 0;
    for (size_t k = 0; *n_slots > 0 && k < n; k++) {
        size_t nbytes = zero_kept_nbytes(z, g, is_last ? n - 1 - k : k);
        *n_slots -= nbytes > 0;
        sum += nbytes;
    }
    return sum;
}

/* What a step finds in the ring, on average of the two directions. A second stage comes back to
 * where the first one ended, and the next step to where this one did, unless a gather has used the
 * ring's memory meanwhile. */
static size_t found_nbytes(const struct zero *z)
{
    size_t n_groups = z->options.n_groups, sum = 0, n_slots;
    bool two_stages = false;
    for (size_t g = 0; g < n_groups; g++) {
        n_slots = z->sweep.n_slots;
        if (z->options.groups[g].hyper.cls->n_stages < 2) continue;
        two_stages = true;
        sum += end_nbytes(z, g, true, &n_slots);
    }
    if (zero_gathers_through_ring(z)) return sum;
    for (int is_down = 0; is_down < 2; is_down++) {
        size_t ends = 0;
        n_slots = z->sweep.n_slots;
        for (size_t k = 0; k < n_groups; k++)
            ends += end_nbytes(z, is_down ? n_groups - 1 - k : k, is_down && !two_stages, &n_slots);
        sum += ends / 2;
    }
    return sum;
}

size_t zero_ring_grads_off(const struct zero *z)
{
    return slot_off(z, ARRAY_GRAD);
}

/* What a step reads from the swap file and writes to it, for plans. */
static void count_traffic(struct zero *z)
{
    struct zero_figures *f = &z->figures;
    size_t out = z->mem.has_masters && z->options.swap.params
                     ? f->numel_own * dtype_size(z->options.dtype)
                     : 0;
    size_t own = z->mem.has_masters || !z->options.swap.params
                     ? f->master_swapped_nbytes
                     : f->numel_own * dtype_size(z->options.dtype);
    size_t states = 0;
    for (size_t s = 0; s < OPTIM_STATES_MAX; s++) states += f->swapped_nbytes[s];
    /* gradients once, to update: for overflows and the norm they are looked at as they leave */
    f->update_read_nbytes = own + states + f->grad_swapped_nbytes;
    f->update_written_nbytes = own + states + out;
    f->pass_written_nbytes = f->grad_swapped_nbytes;
    for (size_t g = 0; g < z->options.n_groups; g++)
        if (z->options.groups[g].hyper.cls->n_stages > 1) { /* states and gradients once more */
            f->update_read_nbytes += own + states + f->grad_swapped_nbytes;
            f->update_written_nbytes += states;
            f->update_early_read_nbytes = own + states + f->grad_swapped_nbytes;
            f->update_early_written_nbytes = states;
            break;
        }
}

/* Memory for what an update on one side (GPU, host) reads from the other, and writes to it. With a
 * share of the states on the GPU both sides update tiles. */
static cz_status take_staging(struct zero *z)
{
    const struct zero_options *o = &z->options;
    bool leaves = zero_states_leave(o), on_gpu = !leaves, on_host = false;
    size_t numel = largest_tile(z), out = 0, grads = 0, off;
    if (!o->on_gpu) return CZ_OK;
    for (size_t g = 0; leaves && g < o->n_groups; g++) {
        on_gpu |= z->own.groups[g].resident > 0;
        on_host |= z->own.groups[g].resident < z->own.groups[g].own_numel;
    }
    if (z->mem.has_masters &&
        ((on_gpu && zero_params_leave(o)) || (on_host && !zero_params_leave(o))))
        out = size_round_up(numel * dtype_size(o->dtype), ZERO_ALIGN);
    if (zero_is_on_gpu(z, ZERO_GRADS) ? on_host : on_gpu)
        grads = size_round_up(numel * dtype_size(o->grad_dtype), ZERO_ALIGN);
    z->sweep.stage_grads_off = out;
    z->sweep.stage_slot_nbytes = out + grads;
    size_t nbytes = ZERO_STAGE_SLOTS * z->sweep.stage_slot_nbytes;
    if (on_gpu) TRY(zero_block_take(z, ZERO_UPDATE_GPU, nbytes, DTYPE_U8, &off));
    return on_host ? zero_block_take(z, ZERO_UPDATE_HOST, nbytes, DTYPE_U8, &off) : CZ_OK;
}

cz_status zero_sweep_init(struct zero *z)
{
    TRY(take_staging(z));
    if (z->mem.swap_nbytes == 0) return CZ_OK;
    count_traffic(z);
    z->sweep.n_slots = RING_SLOTS;
    z->sweep.ring_slot_nbytes = slot_off(z, N_ARRAYS);
    return CZ_OK;
}

cz_status zero_ring_take(struct zero *z)
{
    struct zero_figures *f = &z->figures;
    size_t off;
    if (z->mem.swap_nbytes == 0) return CZ_OK;
    f->ring_slots = z->sweep.n_slots;
    f->update_found_nbytes = z->late.on ? zero_late_found_nbytes(z) : found_nbytes(z);
    f->update_read_nbytes -= f->update_found_nbytes;
    if (!z->late.on) {
        f->update_early_read_nbytes = f->update_read_nbytes;
        f->update_early_written_nbytes = f->update_written_nbytes;
    } else if (f->update_found_nbytes > 0) { /* everything, in each stage */
        if (f->update_early_written_nbytes > 0)
            f->update_early_read_nbytes = f->grad_swapped_nbytes;
    }
    return zero_block_take(z, ZERO_RING, z->sweep.n_slots * z->sweep.ring_slot_nbytes + SWAP_ALIGN,
                           DTYPE_U8, &off);
}

cz_status zero_sweep_bind(struct zero *z)
{
    TRY(zero_lend_to_swap(z, ZERO_RING));
    const struct ring_options options = {.swap = z->mem.swap,
                                         .memory = z->mem.blocks[ZERO_RING],
                                         .n_slots = z->sweep.n_slots,
                                         .slot_nbytes = z->sweep.ring_slot_nbytes,
                                         .read_ahead = z->options.swap.read_ahead,
                                         .write_behind = z->options.swap.write_behind};
    return ring_create(&options, &z->sweep.ring);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* An array's run in tile t: its bytes in the file (memory NULL), or its place in memory. A share of
 * an array that rests elsewhere is whole tiles (choose_residents() in group_arrays.c), so that no
 * tile is cut in two. */
static struct zero_range array_range(const struct zero *z, size_t g,
                                     const struct zero_placement *where, size_t t)
{
    struct zero_range ranges[2];
    size_t tile = z->options.tile_numel, own = z->own.groups[g].own_numel;
    zero_placement_ranges(where, t * tile, tile_numel(own, tile, t), ranges);
    return ranges[0];
}

/* Parameters change in the last stage only; states may in any. */
static bool is_changed(const struct sweep *s, size_t array)
{
    const struct optim_class *cls = s->z->options.groups[s->group].hyper.cls;
    return array >= ARRAY_STATE || (array != ARRAY_GRAD && s->stage + 1 == cls->n_stages);
}

/* The k-th tile to be updated. */
static size_t tile_in_turn(const struct sweep *s, size_t k)
{
    return s->is_down ? s->n_tiles - 1 - k : k;
}

/* What the ring reads and writes of the k-th tile. Rounded parameters are only written; but the
 * last tile may end inside a block, which then holds elements of another rank or group: those are
 * read, to be written as they were, and others change them. So do gradients' layers. */
static size_t tile_pieces(void *user, size_t k, struct ring_piece *out)
{
    const struct sweep *s = user;
    struct zero_placement where;
    size_t n = 0, t = tile_in_turn(s, k);
    for (size_t a = 0; a < N_ARRAYS; a++) {
        if (!array_placement(s->z, s->group, a, &where)) continue;
        struct zero_range range = array_range(s->z, s->group, &where, t);
        bool is_written = is_changed(s, a);
        bool ends_in_block = t + 1 == s->n_tiles && range.nbytes % SWAP_ALIGN != 0;
        bool is_read = a != ARRAY_OUT || (is_written && ends_in_block);
        bool is_state = a >= ARRAY_STATE || (a == ARRAY_MASTER && s->z->mem.has_masters);
        bool is_param = a == ARRAY_MASTER && !s->z->mem.has_masters;
        bool is_shared = ends_in_block && s->z->options.comm->world_size > 1;
        if (range.memory || !(is_read || is_written)) continue;
        out[n++] = (struct ring_piece){.off = range.off,
                                       .nbytes = size_round_up(range.nbytes, SWAP_ALIGN),
                                       .slot_off = slot_off(s->z, a),
                                       .is_read = is_read,
                                       .is_written = is_written,
                                       .is_kept = is_state || (is_param && !is_shared)};
    }
    return n;
}

bool zero_tile_is_on_gpu(const struct zero *z, size_t g, size_t t)
{
    const struct zero_options *o = &z->options;
    return o->on_gpu && (!zero_states_leave(o) || t * o->tile_numel < z->own.groups[g].resident);
}

static bool is_gpu_tile(const struct sweep *s, size_t t)
{
    return zero_tile_is_on_gpu(s->z, s->group, t);
}

/* What is on the other side passes through a slot of staging. Gradients are copied into it now;
 * rounded parameters will be made in it and sent by send_staged(), once what used the slot before
 * has arrived. */
static cz_status stage(struct sweep *s, size_t array, size_t t, unsigned char *there, size_t nbytes,
                       void **out)
{
    struct zero *z = s->z;
    struct device *d = zero_device(z);
    bool on_gpu = is_gpu_tile(s, t);
    unsigned char *slot = z->mem.blocks[on_gpu ? ZERO_UPDATE_GPU : ZERO_UPDATE_HOST] +
                          t % ZERO_STAGE_SLOTS * z->sweep.stage_slot_nbytes;
    if (array == ARRAY_OUT) {
        s->staged = (struct staged){.from = slot, .to = there, .nbytes = nbytes};
        *out = slot;
        return d->ops->event_wait_host(d, z->gpu.staged[t % ZERO_STAGE_SLOTS]);
    }
    *out = slot + z->sweep.stage_grads_off;
    if (on_gpu) return zero_copy(z, z->options.stream, *out, there, nbytes);
    if (!s->late) TRY(zero_after(z, z->gpu.out, z->options.stream));
    TRY(zero_copy(z, z->gpu.out, *out, there, nbytes));
    return d->ops->stream_sync(d, z->gpu.out);
}

/* What the kernel made goes to the other side, while it makes the next tile.
 *
 * Layers may still be using the old parameters, so the copy waits for the layers' stream. Beside
 * the backward it must not, or nothing would be beside it, and need not: the visit that used a
 * tile's old parameters last is the one that made its gradients. Unless an evaluation has used them
 * since. Beside the next forward, zero_late_begin() has waited for all that used the old ones. */
static cz_status send_staged(struct sweep *s, size_t t, bool in_slot)
{
    struct zero *z = s->z;
    struct device *d = zero_device(z);
    struct dev_stream *way = is_gpu_tile(s, t) ? z->gpu.out : z->gpu.in;
    struct dev_event *arrived = z->gpu.staged ? z->gpu.staged[t % ZERO_STAGE_SLOTS] : NULL;
    const struct staged staged = s->staged;
    bool is_free = s->late || (s->beside && z->turn.pass != ZERO_PASS_EVAL);
    if (staged.nbytes == 0) return CZ_OK;
    s->staged = (struct staged){0};
    if (!is_free || is_gpu_tile(s, t)) TRY(zero_after(z, way, z->options.stream));
    TRY(zero_copy(z, way, staged.to, staged.from, staged.nbytes));
    TRY(d->ops->event_record(d, arrived, way));
    return in_slot ? d->ops->event_wait_host(d, arrived) : CZ_OK;
}

/* Where the kernel finds an array of tile t; NULL: the group has none. What the stage changes is
 * claimed first, because a checkpoint may still be reading it. */
static cz_status array_ready(struct sweep *s, size_t array, size_t t, unsigned char *slot,
                             void **out)
{
    struct zero_placement where;
    *out = NULL;
    if (!array_placement(s->z, s->group, array, &where)) return CZ_OK;
    struct zero_range range = array_range(s->z, s->group, &where, t);
    unsigned char *there =
        range.memory ? (unsigned char *)(uintptr_t)range.memory : slot + slot_off(s->z, array);
    if (is_changed(s, array)) TRY(zero_claim(s->z, &range));
    *out = there;
    if (range.on_gpu == is_gpu_tile(s, t)) return CZ_OK;
    if (array == ARRAY_OUT && !is_changed(s, array)) return CZ_OK; /* not in this stage */
    return stage(s, array, t, there, range.nbytes, out);
}

/* Masters, gradients, states of tile t, and where the rounded parameters go. */
static cz_status tile_range(struct sweep *s, size_t t, unsigned char *slot, struct optim_range *r)
{
    struct zero *z = s->z;
    const struct zero_options *o = &z->options;
    const struct zero_group *group = &z->own.groups[s->group];
    const struct zero_sink *sink = z->buckets.sink;
    void *grads;
    *r = (struct optim_range){.tensors = {.numel = tile_numel(group->own_numel, o->tile_numel, t),
                                          .p_dtype = o->master_dtype,
                                          .g_dtype = o->grad_dtype,
                                          .state_dtype = o->state_dtype,
                                          .out_dtype = o->dtype}};
    TRY(array_ready(s, ARRAY_MASTER, t, slot, &r->tensors.p));
    TRY(array_ready(s, ARRAY_OUT, t, slot, &r->tensors.out));
    TRY(array_ready(s, ARRAY_GRAD, t, slot, &grads));
    r->tensors.g = grads;
    if (sink->complete) {
        size_t at = t * o->tile_numel, size = dtype_size(o->grad_dtype);
        sink->complete(z, grads, group->grad_swap + at * size, r->tensors.numel * size);
    }
    for (size_t i = 0; i < group->n_states; i++)
        TRY(array_ready(s, ARRAY_STATE + i, t, slot, &r->tensors.states[i]));
    if (group->segments) {
        r->segments = group->segments + group->tile_segment[t];
        r->n_segments = group->tile_segment[t + 1] - group->tile_segment[t];
        bool on_gpu = is_gpu_tile(s, t);
        r->sums = on_gpu ? zero_device_sums(z, s->group) : zero_group_sums(z, s->group);
        r->ratios = on_gpu ? zero_device_ratios(z, s->group) : zero_group_ratios(z, s->group);
    }
    return CZ_OK;
}

/* One stage over tile t, whose swapped arrays are in `slot`. */
static cz_status update_tile(struct sweep *s, size_t t, unsigned char *slot, struct optim_range *r)
{
    const struct zero_options *o = &s->z->options;
    const struct optim_hyper *hyper = &o->groups[s->group].hyper;
    const struct step_scalars *scalars = &s->z->mem.scalars[s->group];
    struct ops *ops = zero_host_ops(s->z);
    TRY(tile_range(s, t, slot, r));
    if (s->one) { /* the 1-bit family, whose state is in memory: weights from its momentum */
        const struct lamb_segment whole = {.end = r->tensors.numel};
        if (!r->segments) {
            r->segments = &whole;
            r->n_segments = 1;
            r->ratios = s->one;
        }
        const struct optim_stage *last =
            &hyper->cls->frozen_stages[hyper->cls->n_frozen_stages - 1];
        return last->run(o->ops, o->stream, hyper, zero_device_scalars(s->z, s->group), r);
    }
    if (is_gpu_tile(s, t)) {
        ops = o->ops;
        scalars = zero_device_scalars(s->z, s->group);
    }
    TRY(hyper->cls->stages[s->stage].run(ops, o->stream, hyper, scalars, r));
    return send_staged(s, t, o->swap.params);
}

static cz_status sweep_tile(struct sweep *s, size_t t)
{
    struct optim_range r;
    unsigned char *slot;
    TRY(ring_next(s->z->sweep.ring, &slot));
    if (s->beside) TRY(s->z->buckets.sink->tile_wait(s->z, s->group, t));
    TRY(update_tile(s, t, slot, &r));
    return ring_done(s->z->sweep.ring);
}

cz_status zero_ring_end(struct zero *z, cz_status st)
{
    struct err first;
    if (st == CZ_OK) return ring_end(z->sweep.ring);
    err_capture(&first);
    (void)ring_end(z->sweep.ring); /* nothing is under way when the error is returned */
    return err_restore(&first);
}

/* One stage over all tiles. Through the ring every stage goes the other way than the one before it,
 * so that it begins with the tiles that the slots still hold. Backward makes the last layers'
 * gradients first, so beside it the last tiles come first. Afterwards layers on a GPU find what has
 * come there, and readers of host memory what has left it. */
static cz_status sweep_tiles(struct sweep *s)
{
    struct zero *z = s->z;
    struct device *d = zero_device(z);
    cz_status st = CZ_OK;
    bool *goes_down = &z->own.groups[s->group].goes_down;
    if (s->n_tiles == 0) return CZ_OK;
    s->is_down = s->beside || (z->sweep.ring && *goes_down);
    *goes_down = !s->is_down;
    TRY(ring_begin(z->sweep.ring, s->n_tiles, tile_pieces, s));
    for (size_t k = 0; k < s->n_tiles && st == CZ_OK; k++) st = sweep_tile(s, tile_in_turn(s, k));
    TRY(zero_ring_end(z, st));
    if (zero_params_leave(&z->options)) TRY(d->ops->stream_sync(d, z->gpu.out));
    return zero_gpu_settle(z);
}

/* A stage for the ratios of whole tensors. Also where this rank owns nothing, and where its sweep
 * fails: the others wait for its part of the sums. */
static cz_status sweep_sums(struct sweep *s, const struct optim_stage *stage)
{
    struct zero *z = s->z;
    cz_status st = zero_sums_clear(z, s->group);
    if (st == CZ_OK) st = sweep_tiles(s);
    if (st == CZ_OK) st = zero_sums_join(z, s->group);
    TRY(zero_tensor_sums_after(z, s->group, st));
    stage->ratios(&z->options.groups[s->group].hyper, zero_group_sums(z, s->group),
                  zero_group_n_params(z, s->group), zero_group_ratios(z, s->group));
    return zero_ratios_send(z, s->group);
}

/* The first n stages of a group's update. */
static cz_status sweep_stages(struct zero *z, size_t group, size_t n)
{
    const struct zero_group *g = &z->own.groups[group];
    const struct optim_class *cls = z->options.groups[group].hyper.cls;
    struct sweep s = {.z = z,
                      .group = group,
                      .n_tiles = tile_count(g->own_numel, z->options.tile_numel),
                      .beside = zero_grads_arrive(z)};
    for (; s.stage < n; s.stage++) {
        const struct optim_stage *stage = &cls->stages[s.stage];
        TRY(stage->kind == OPTIM_TENSOR_SUMS ? sweep_sums(&s, stage) : sweep_tiles(&s));
    }
    return CZ_OK;
}

cz_status zero_sweep_group(struct zero *z, size_t group)
{
    return sweep_stages(z, group, z->options.groups[group].hyper.cls->n_stages);
}

cz_status zero_sweep_failed(struct zero *z, size_t group, cz_status st)
{
    const struct optim_class *cls = z->options.groups[group].hyper.cls;
    for (size_t i = 0; i < cls->n_stages; i++)
        if (optim_stage_waits(&cls->stages[i])) st = zero_tensor_sums_after(z, group, st);
    return st;
}

/* ---- the last stage, tile by tile: late.c ------------------------------------------------------
 */

cz_status zero_sweep_before_last(struct zero *z, size_t group)
{
    return sweep_stages(z, group, z->options.groups[group].hyper.cls->n_stages - 1);
}

static struct sweep last_stage(const struct zero *z, size_t group)
{
    return (struct sweep){.z = (struct zero *)(uintptr_t)z,
                          .group = group,
                          .stage = z->options.groups[group].hyper.cls->n_stages - 1,
                          .n_tiles =
                              tile_count(z->own.groups[group].own_numel, z->options.tile_numel),
                          .late = true};
}

bool zero_tile_reads_params(const struct zero *z, struct zero_tile tile)
{
    const struct zero_options *o = &z->options;
    const size_t own = z->own.groups[tile.group].own_numel;
    return tile.tile + 1 == tile_count(own, o->tile_numel) &&
           own * dtype_size(o->dtype) % SWAP_ALIGN != 0;
}

size_t zero_tile_pieces(const struct zero *z, struct zero_tile tile, struct ring_piece *out)
{
    struct sweep s = last_stage(z, tile.group);
    return tile_pieces(&s, tile.tile, out);
}

cz_status zero_tile_update(struct zero *z, struct zero_tile tile, unsigned char *slot,
                           const unsigned char **params)
{
    struct sweep s = last_stage(z, tile.group);
    struct optim_range r;
    TRY(update_tile(&s, tile.tile, slot, &r));
    *params = r.tensors.out ? r.tensors.out : r.tensors.p;
    return CZ_OK;
}

size_t zero_ring_params_off(const struct zero *z)
{
    return slot_off(z, z->mem.has_masters ? ARRAY_OUT : ARRAY_MASTER);
}

cz_status zero_sweep_apply(struct zero *z, size_t group, const float *one)
{
    const struct optim_class *cls = z->options.groups[group].hyper.cls;
    struct sweep s = {.z = z,
                      .group = group,
                      .stage = cls->n_stages - 1, /* masters change */
                      .n_tiles = tile_count(z->own.groups[group].own_numel, z->options.tile_numel),
                      .one = one};
    return sweep_tiles(&s);
}

/* The optimizer's sweep over tiles: masters, states and rounded parameters where they lie in
 * memory, or in the slot of a ring through which the swap file streams. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

/* The arrays of a tile, in the order of their places in a slot. */
enum {
    ARRAY_MASTER = 0,
    ARRAY_OUT,
    ARRAY_GRAD,
    ARRAY_STATE,
    N_ARRAYS = ARRAY_STATE + OPTIM_STATES_MAX
};

/* Equal pieces of 2^k bytes side by side would meet in the same memory banks (base/arena.h). */
#define SLOT_SKEW (5 * SWAP_ALIGN)

/* One pass over a group. */
struct sweep {
    struct zero *z;
    size_t group;
    int pass;
    size_t n_tiles;
    bool applies; /* the class's apply() instead of its passes */
};

/* Where an array of the group lies, and whether the group has it. */
static bool array_home(const struct zero *z, size_t g, size_t array, struct zero_home *out)
{
    if (array == ARRAY_MASTER) {
        *out = zero_master_home(z, g);
        return true;
    }
    if (array == ARRAY_OUT) {
        *out = zero_own_params_home(z, g);
        return z->own_masters;
    }
    if (array == ARRAY_GRAD) {
        *out = (struct zero_home){.dtype = z->options.grad_dtype,
                                  .memory = z->swaps_grads ? NULL : zero_own_grad(z, g),
                                  .resident = z->swaps_grads ? 0 : SIZE_MAX,
                                  .swap_off = z->groups[g].grad_swap};
        return true;
    }
    size_t state_idx = array - ARRAY_STATE;
    if (state_idx >= z->groups[g].n_states) return false;
    *out = zero_state_home(z, g, state_idx);
    return true;
}

/* ---- slots ------------------------------------------------------------------------------------
 */

/* Elements of the largest tile. */
static size_t largest_tile(const struct zero *z)
{
    size_t most = 0;
    for (size_t g = 0; g < z->options.n_groups; g++)
        if (z->groups[g].own_numel > most) most = z->groups[g].own_numel;
    return most < z->options.tile_numel ? most : z->options.tile_numel;
}

/* Bytes per element of an array that passes through slots; 0: it lies in memory. */
static size_t slot_elem_nbytes(const struct zero *z, size_t array)
{
    const struct zero_options *o = &z->options;
    size_t n_states = 0;
    for (size_t g = 0; g < o->n_groups; g++)
        if (z->groups[g].n_states > n_states) n_states = z->groups[g].n_states;
    if (array == ARRAY_GRAD) return z->swaps_grads ? dtype_size(o->grad_dtype) : 0;
    if (array == ARRAY_OUT) return z->own_masters && o->swap.params ? dtype_size(o->dtype) : 0;
    if (array == ARRAY_MASTER)
        return (z->own_masters ? o->swap.optimizer : o->swap.params) ? dtype_size(o->master_dtype)
                                                                     : 0;
    return o->swap.optimizer && array - ARRAY_STATE < n_states ? dtype_size(o->state_dtype) : 0;
}

/* Where an array begins in a slot; that of N_ARRAYS is the slot's end. */
static size_t slot_off(const struct zero *z, size_t array)
{
    size_t numel = largest_tile(z), off = 0;
    for (size_t a = 0; a < array; a++) {
        size_t nbytes = numel * slot_elem_nbytes(z, a);
        if (nbytes > 0) off += size_round_up(nbytes, SWAP_ALIGN) + SLOT_SKEW;
    }
    return off;
}

/* What a step reads and writes, for plans. */
static void count_traffic(struct zero *z)
{
    struct zero_figures *f = &z->figures;
    size_t out =
        z->own_masters && z->options.swap.params ? f->numel_own * dtype_size(z->options.dtype) : 0;
    size_t own = z->own_masters || !z->options.swap.params
                     ? f->master_swapped_nbytes
                     : f->numel_own * dtype_size(z->options.dtype);
    size_t states = 0;
    for (size_t s = 0; s < OPTIM_STATES_MAX; s++) states += f->swapped_nbytes[s];
    /* gradients: once to look for overflows, once for the norm, once to update */
    f->update_read_nbytes = own + states + 3 * f->grad_swapped_nbytes;
    f->update_written_nbytes = own + states + out;
    f->pass_written_nbytes = f->grad_swapped_nbytes;
    for (size_t g = 0; g < z->options.n_groups; g++)
        if (z->options.groups[g].hyper.cls->n_passes > 1) { /* states once more */
            f->update_read_nbytes += own + states + f->grad_swapped_nbytes;
            f->update_written_nbytes += states;
            break;
        }
}

cz_status zero_sweep_init(struct zero *z)
{
    size_t off;
    if (z->swap_nbytes == 0) return CZ_OK;
    count_traffic(z);
    z->ring_slot_nbytes = slot_off(z, N_ARRAYS);
    return zero_block_take(z, ZERO_RING, RING_SLOTS * z->ring_slot_nbytes + SWAP_ALIGN, DTYPE_U8,
                           &off);
}

cz_status zero_sweep_bind(struct zero *z)
{
    const struct ring_options options = {.swap = z->swap,
                                         .memory = z->blocks[ZERO_RING],
                                         .slot_nbytes = z->ring_slot_nbytes,
                                         .read_ahead = z->options.swap.read_ahead,
                                         .write_behind = z->options.swap.write_behind};
    return ring_create(&options, &z->ring);
}

/* ---- tiles ------------------------------------------------------------------------------------
 */

/* An array's run in tile t: its bytes in the file (memory NULL), or its place in memory. */
static struct zero_range array_range(const struct zero *z, size_t g, const struct zero_home *home,
                                     size_t t)
{
    struct zero_range ranges[2];
    size_t tile = z->options.tile_numel, own = z->groups[g].own_numel;
    zero_home_ranges(home, t * tile, tile_numel(own, tile, t), ranges); /* never cut in two */
    return ranges[0];
}

/* Parameters change in an optimizer's last pass only; states may in any. */
static bool is_changed(const struct sweep *s, size_t array)
{
    const struct optim_class *cls = s->z->options.groups[s->group].hyper.cls;
    return array >= ARRAY_STATE || (array != ARRAY_GRAD && s->pass + 1 == cls->n_passes);
}

/* The last block of a tile may hold elements of another rank, or of a group: they are read to be
 * written as they were. */
static bool ends_inside_a_block(const struct sweep *s, size_t t, size_t nbytes)
{
    return t + 1 == s->n_tiles && nbytes % SWAP_ALIGN != 0;
}

static size_t tile_pieces(void *user, size_t t, struct ring_piece *out)
{
    const struct sweep *s = user;
    struct zero_home home;
    size_t n = 0;
    for (size_t a = 0; a < N_ARRAYS; a++) {
        if (!array_home(s->z, s->group, a, &home)) continue;
        struct zero_range range = array_range(s->z, s->group, &home, t);
        bool is_written = is_changed(s, a);
        bool is_read = a != ARRAY_OUT || (is_written && ends_inside_a_block(s, t, range.nbytes));
        if (range.memory || !(is_read || is_written)) continue;
        out[n++] = (struct ring_piece){.off = range.off,
                                       .nbytes = size_round_up(range.nbytes, SWAP_ALIGN),
                                       .slot_off = slot_off(s->z, a),
                                       .is_read = is_read,
                                       .is_written = is_written};
    }
    return n;
}

/* Where the kernel finds an array of tile t. A checkpoint may still be reading what it overwrites.
 */
static cz_status array_ready(const struct sweep *s, size_t array, size_t t, unsigned char *slot,
                             void **out)
{
    struct zero_home home;
    *out = NULL;
    if (!array_home(s->z, s->group, array, &home)) return CZ_OK;
    struct zero_range range = array_range(s->z, s->group, &home, t);
    *out = range.memory ? (void *)(uintptr_t)range.memory : slot + slot_off(s->z, array);
    return is_changed(s, array) ? zero_claim(s->z, &range) : CZ_OK;
}

static cz_status grads_ready(const struct sweep *s, size_t t, unsigned char *slot, const void **out)
{
    size_t size = dtype_size(s->z->options.grad_dtype), tile = s->z->options.tile_numel;
    void *g;
    TRY(array_ready(s, ARRAY_GRAD, t, slot, &g));
    *out = g;
    if (s->z->swaps_grads)
        zero_grads_lay_edges(s->z, g, s->z->groups[s->group].grad_swap + t * tile * size,
                             tile_numel(s->z->groups[s->group].own_numel, tile, t) * size);
    return CZ_OK;
}

/* Masters, gradients, states of tile t, and where the rounded parameters go. */
static cz_status tile_range(const struct sweep *s, size_t t, unsigned char *slot,
                            struct optim_range *r)
{
    struct zero *z = s->z;
    const struct zero_options *o = &z->options;
    const struct zero_group *group = &z->groups[s->group];
    *r = (struct optim_range){.tensors = {.numel = tile_numel(group->own_numel, o->tile_numel, t),
                                          .p_dtype = o->master_dtype,
                                          .g_dtype = o->grad_dtype,
                                          .state_dtype = o->state_dtype,
                                          .out_dtype = o->dtype}};
    TRY(array_ready(s, ARRAY_MASTER, t, slot, &r->tensors.p));
    TRY(array_ready(s, ARRAY_OUT, t, slot, &r->tensors.out));
    TRY(grads_ready(s, t, slot, &r->tensors.g));
    for (size_t i = 0; i < group->n_states; i++)
        TRY(array_ready(s, ARRAY_STATE + i, t, slot, &r->tensors.states[i]));
    if (group->segments) {
        r->segments = group->segments + group->tile_segment[t];
        r->n_segments = group->tile_segment[t + 1] - group->tile_segment[t];
        r->sums = zero_group_sums(z, s->group);
        r->ratios = zero_group_ratios(z, s->group);
    }
    return CZ_OK;
}

/* The 1-bit family, whose state is in memory: weights from a momentum that has come. */
static cz_status apply_tile(const struct sweep *s, struct optim_range *r)
{
    const struct zero_options *o = &s->z->options;
    const struct optim_hyper *hyper = &o->groups[s->group].hyper;
    const struct lamb_segment whole = {.end = r->tensors.numel};
    if (!r->segments) {
        r->segments = &whole;
        r->n_segments = 1;
        r->ratios = zero_onebit_one(s->z);
    }
    return hyper->cls->apply(o->ops, o->stream, hyper, &s->z->scalars[s->group], r);
}

static cz_status sweep_tile(const struct sweep *s, size_t t)
{
    const struct zero_options *o = &s->z->options;
    const struct optim_hyper *hyper = &o->groups[s->group].hyper;
    struct optim_range r;
    unsigned char *slot = NULL;
    if (s->z->ring) TRY(ring_next(s->z->ring, &slot));
    TRY(tile_range(s, t, slot, &r));
    if (s->applies) return apply_tile(s, &r);
    TRY(hyper->cls->step(o->ops, o->stream, hyper, &s->z->scalars[s->group], &r, s->pass));
    return s->z->ring ? ring_done(s->z->ring) : CZ_OK;
}

cz_status zero_ring_end(struct zero *z, cz_status st)
{
    struct err first;
    if (st == CZ_OK) return ring_end(z->ring);
    err_capture(&first);
    (void)ring_end(z->ring); /* nothing is under way when the error is told */
    return err_restore(&first);
}

static cz_status sweep_tiles(struct sweep *s)
{
    cz_status st = CZ_OK;
    if (s->n_tiles == 0) return CZ_OK;
    if (s->z->ring) TRY(ring_begin(s->z->ring, s->n_tiles, tile_pieces, s));
    for (size_t t = 0; t < s->n_tiles && st == CZ_OK; t++) st = sweep_tile(s, t);
    return s->z->ring ? zero_ring_end(s->z, st) : st;
}

/* Pass 0 over what this rank owns, and the ratios of whole tensors. Also where that is nothing: the
 * others count on this rank. */
static cz_status sweep_norms(struct sweep *s)
{
    struct zero *z = s->z;
    const struct optim_hyper *hyper = &z->options.groups[s->group].hyper;
    struct lamb_sums *sums = zero_group_sums(z, s->group);
    size_t n_tensors = zero_group_n_params(z, s->group);
    memset(sums, 0, n_tensors * sizeof *sums);
    TRY(zero_tensor_sums_after(z, s->group, sweep_tiles(s)));
    hyper->cls->between(hyper, sums, n_tensors, zero_group_ratios(z, s->group));
    s->pass++;
    return CZ_OK;
}

cz_status zero_sweep_group(struct zero *z, size_t group)
{
    const struct zero_group *g = &z->groups[group];
    const struct optim_class *cls = z->options.groups[group].hyper.cls;
    struct sweep s = {
        .z = z, .group = group, .n_tiles = tile_count(g->own_numel, z->options.tile_numel)};
    if (cls->flags & OPTIM_TENSOR_NORMS) TRY(sweep_norms(&s));
    for (; s.pass < cls->n_passes; s.pass++) TRY(sweep_tiles(&s));
    return CZ_OK;
}

cz_status zero_sweep_apply(struct zero *z, size_t group)
{
    const struct optim_class *cls = z->options.groups[group].hyper.cls;
    struct sweep s = {.z = z,
                      .group = group,
                      .pass = cls->n_passes - 1, /* masters change */
                      .n_tiles = tile_count(z->groups[group].own_numel, z->options.tile_numel),
                      .applies = true};
    return sweep_tiles(&s);
}

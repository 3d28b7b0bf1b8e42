/* Single tensors, for debugging and for tools: put together from their owners, or taken apart to
 * them. Slow and collective, but the same on every rank at every stage. */
#include "zero/zero_impl.h"

#include <string.h>

/* A range of a parameter, checked. */
struct target {
    enum zero_what what;
    size_t state_idx, param_idx, off, numel;
};

static cz_status check_target(const struct zero *z, const struct target *t)
{
    const struct zero_options *o = &z->options;
    const struct param_info *info = &o->table->params[t->param_idx];
    if (t->off > info->numel || t->numel > info->numel - t->off)
        return err_set(CZ_INVALID, 0, "%s has %zu elements, not %zu at %zu", info->name,
                       info->numel, t->numel, t->off);
    size_t g = z->own.params[t->param_idx].group;
    if (g == o->n_groups && t->what != ZERO_WEIGHT)
        return err_set(CZ_NOTFOUND, 0, "%s is frozen: it has a weight and nothing else",
                       info->name);
    if (t->what == ZERO_STATE && t->state_idx >= z->own.groups[g].n_states)
        return err_set(CZ_NOTFOUND, 0, "%s: %s keeps %zu states, there is no number %zu",
                       info->name, o->groups[g].hyper.cls->name, z->own.groups[g].n_states,
                       t->state_idx);
    return CZ_OK;
}

/* What of the range is in a piece; numel 0: nothing. param_off and own_off are its beginning. */
static struct zero_piece meet(struct zero_piece piece, size_t off, size_t numel)
{
    size_t lo = piece.param_off > off ? piece.param_off : off;
    size_t end = piece.param_off + piece.numel, hi = end < off + numel ? end : off + numel;
    if (lo >= hi) return (struct zero_piece){0};
    return (struct zero_piece){
        .param_off = lo, .own_off = piece.own_off + (lo - piece.param_off), .numel = hi - lo};
}

/* Where this rank's part of a group (or of a frozen parameter) is. */
static struct zero_placement own_placement(const struct zero *z, const struct target *t)
{
    const struct zero_param *p = &z->own.params[t->param_idx];
    if (p->group == z->options.n_groups) return zero_param_placement(z, t->param_idx);
    switch (t->what) {
    case ZERO_WEIGHT: return zero_master_placement(z, p->group);
    case ZERO_GRAD: /* zero_grads_get() reads them */
    case ZERO_STATE: break;
    }
    return zero_state_placement(z, p->group, t->state_idx);
}

/* A plan looks at one rank of several without the others. */
static bool is_pretended(const struct zero *z)
{
    return z->options.comm->world_size > 1 && strcmp(z->options.comm->ops->name, "self") == 0;
}

/* Each owner sends its piece of the range to all ranks. */
static cz_status share_pieces(struct zero *z, const struct target *t, float *dst)
{
    int w = z->options.comm->world_size;
    for (int r = 0; r < w; r++) {
        struct zero_piece p = meet(zero_piece_of(z, t->param_idx, r), t->off, t->numel);
        size_t at = p.numel > 0 ? p.param_off - t->off : 0;
        z->per_rank.spans[r] = (struct comm_span){
            .src_off = at, .dst_off = at, .numel = p.numel, .owner = r, .to = COMM_ALL};
    }
    const struct comm_move args = {.src = dst,
                                   .dst = dst,
                                   .elem_nbytes = sizeof *dst,
                                   .spans = z->per_rank.spans,
                                   .n_spans = (size_t)w};
    return comm_move(z->options.comm, &args);
}

cz_status zero_read(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                    size_t off, size_t numel, float *dst)
{
    const struct target t = {what, state_idx, param_idx, off, numel};
    TRY(check_target(z, &t));
    cz_status st = zero_update_end(z);
    bool is_read = false;
    if (st == CZ_OK && what == ZERO_GRAD && z->buckets.sink->read_pending)
        TRY(z->buckets.sink->read_pending(z, param_idx, off, numel, dst, &is_read));
    if (is_read) return CZ_OK;
    struct zero_piece mine = meet(zero_piece_mine(z, param_idx), off, numel);
    if (mine.numel < numel && is_pretended(z))
        return err_set(CZ_UNSUPPORTED, 0, "%s is in part on another rank",
                       z->options.table->params[param_idx].name);
    size_t group = z->own.params[param_idx].group;
    bool has_part = st == CZ_OK && mine.numel > 0;
    if (has_part && what == ZERO_GRAD) {
        st = zero_grads_get(z, group, mine.own_off, mine.numel, dst + (mine.param_off - off));
    } else if (has_part) {
        const struct zero_placement where = own_placement(z, &t);
        st = zero_placement_get(z, &where, mine.own_off, mine.numel, dst + (mine.param_off - off));
    }
    /* One rank's disk may fail, and the others would wait for its piece, or continue without it. */
    TRY(z->mem.swap && !is_pretended(z) ? comm_agree(z->options.comm, st) : st);
    bool is_split = z->options.stage == 3 || (z->options.stage > 0 && group != z->options.n_groups);
    if (z->options.comm->world_size == 1) return CZ_OK;
    if (what == ZERO_STATE && zero_onebit_is_apart(z, group)) /* every rank has another: the mean */
        return comm_all_reduce(z->options.comm, dst, dst, numel, DTYPE_F32, DTYPE_F32,
                               1.0f / (float)z->options.comm->world_size);
    return is_split ? share_pieces(z, &t, dst) : CZ_OK;
}

/* The rounded parameter, wherever this rank keeps a copy of it: at rest (whole, or its chunk), and
 * in the window if it stays there. */
static cz_status write_param(struct zero *z, const struct target *t, const float *src)
{
    const struct zero_options *o = &z->options;
    const struct zero_param *p = &z->own.params[t->param_idx];
    struct zero_piece mine = {.param_off = t->off, .numel = t->numel};
    const struct zero_placement where = zero_param_placement(z, t->param_idx);
    if (z->window.is_split) mine = meet(zero_piece_mine(z, t->param_idx), t->off, t->numel);
    size_t begin = z->window.is_split ? zero_piece_mine(z, t->param_idx).param_off : 0;
    size_t at = mine.param_off - begin;
    if (mine.numel > 0)
        TRY(zero_placement_put(z, &where, at, mine.numel, src + (mine.param_off - t->off)));
    if (!z->window.is_used || !p->resident) return CZ_OK;
    const struct zero_placement gathered = zero_block_placement(z, ZERO_WINDOW, 0, o->dtype);
    return zero_placement_put(z, &gathered, p->resident_off + t->off, t->numel, src);
}

/* Every rank brings all of src and keeps what it has: its piece of the master or state, its copy or
 * chunk of the parameter, and what the 1-bit family keeps whole. */
cz_status zero_write(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                     size_t off, size_t numel, const float *src)
{
    const struct target t = {what, state_idx, param_idx, off, numel};
    TRY(check_target(z, &t));
    TRY(zero_update_end(z));
    struct zero_piece mine = meet(zero_piece_mine(z, param_idx), off, numel);
    if (mine.numel < numel && is_pretended(z))
        return err_set(CZ_UNSUPPORTED, 0, "%s is in part on another rank",
                       z->options.table->params[param_idx].name);
    if (mine.numel > 0) {
        const struct zero_placement where = own_placement(z, &t);
        TRY(zero_placement_put(z, &where, mine.own_off, mine.numel, src + (mine.param_off - off)));
    }
    if (what == ZERO_STATE && z->onebit)
        TRY(zero_onebit_wrote(z, state_idx, param_idx, off, numel, src));
    if (what == ZERO_WEIGHT && z->onebit) TRY(zero_onebit_wrote_weight(z, param_idx, off, numel));
    if (what == ZERO_WEIGHT) TRY(write_param(z, &t, src));
    return zero_gpu_settle(z);
}

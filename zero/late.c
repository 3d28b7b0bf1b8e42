/* The update at first use: at the boundary everything that a step depends on is known (overflow,
 * norm, scalars, norms of tensors), and the last pass over the tiles is left to the next forward.
 * There a tile is updated just before the first layer that uses any of its parameters, so the swap
 * file is read and written while layers compute. An element's new value depends on its own
 * gradient, state and the step's scalars alone: when a tile's turn comes does not matter to any
 * bit.
 *
 * Turns are fixed at creation. A forward visit needs the tiles of its unit's parameters; with
 * parameters in the file, those of everything that begins to come to the window at the visit. What
 * a tile makes is copied there, to parameters that stay and to those that come, and is written to
 * the file for the backward. Only a parameter whose tiles had their turns earlier, with others, is
 * read from the file. After the last turn the ring continues with the next step's first tiles,
 * beside the backward. The last forward visit needs all tiles: gradients of a tile are overwritten
 * later than that.
 *
 * On several ranks at stage 3 each rank does this with its own chunks, before a layer's gather
 * begins; tiles and turns are its own affair. Of the parameters that stay in the window every rank
 * sends its part to the others, those of a visit one visit ahead: so what is waited for was begun
 * before that visit's other gathers. These collectives depend on the visit alone, never on how far
 * a rank's tiles are.
 *
 * On a GPU the host has put the kernels of the layers before on their stream when a tile's turn
 * comes: it updates the tile while they run. The new parameters go to the GPU on another stream,
 * which the layers' waits for before it continues. What the GPU updates itself has the first turns,
 * at the boundary. */
#include "zero/zero_impl.h"

#include <stdlib.h>
#include <string.h>

/* Memory for slots beyond the usual ones: what a layer's tiles take, but no more than this. */
#define SLOTS_NBYTES_MAX ((size_t)256 << 20)

/* Whether ranks send each other their parts of what stays in the window. */
static bool shares(const struct zero *z)
{
    return z->window.is_split && z->options.comm->world_size > 1;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static size_t group_tiles(const struct zero *z, size_t g)
{
    return tile_count(z->own.groups[g].own_numel, z->options.tile_numel);
}

#define NO_TURN SIZE_MAX

static size_t *turn_of(const struct zero *z, size_t group, size_t tile)
{
    return &z->late.turn_of[z->late.first_tile[group] + tile];
}

static void deal_tile(struct zero *z, size_t group, size_t tile)
{
    struct zero_late *l = &z->late;
    size_t *turn = turn_of(z, group, tile);
    if (*turn != NO_TURN) return;
    *turn = l->n_turns;
    l->turns[l->n_turns++] = (struct zero_tile){group, tile};
}

/* The tiles [first, end) that have this rank's elements of a parameter: none of a frozen one. */
struct tiles {
    size_t first, end;
};

static struct tiles tiles_of(const struct zero *z, size_t param_idx)
{
    const struct zero_piece mine = zero_piece_mine(z, param_idx);
    size_t tile = z->options.tile_numel;
    if (z->own.params[param_idx].group == z->options.n_groups || mine.numel == 0)
        return (struct tiles){0, 0};
    return (struct tiles){mine.own_off / tile, (mine.own_off + mine.numel - 1) / tile + 1};
}

static void deal_param(struct zero *z, size_t param_idx)
{
    const struct tiles tiles = tiles_of(z, param_idx);
    for (size_t t = tiles.first; t < tiles.end; t++)
        deal_tile(z, z->own.params[param_idx].group, t);
}

/* What a forward visit needs: its unit's parameters, what begins to be read or gathered (chunks are
 * read one gather ahead), and what is sent to other ranks for the next one. */
static void deal_visit(struct zero *z, size_t visit)
{
    const struct zero_unit *unit = &z->options.units[visit], *next = unit + 1;
    const struct fetch_schedule *s = &z->window.schedule;
    for (size_t k = 0; k < unit->n; k++) deal_param(z, unit->param_idx[k]);
    if (!z->window.is_used) return;
    for (size_t i = s->op_begin[visit]; i < zero_window_reads_until(z, visit); i++) {
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++)
            deal_param(z, s->stays[k].param_idx);
        z->late.due_op[i] = z->late.n_turns;
    }
    for (size_t k = 0; shares(z) && visit + 1 < z->options.n_units && k < next->n; k++)
        if (z->own.params[next->param_idx[k]].resident) deal_param(z, next->param_idx[k]);
}

static void deal_all(struct zero *z)
{
    struct zero_late *l = &z->late;
    size_t n_visits = z->options.n_units;
    for (size_t g = 0; g < z->options.n_groups; g++)
        for (size_t t = 0; t < group_tiles(z, g); t++)
            if (zero_tile_is_on_gpu(z, g, t)) deal_tile(z, g, t);
    l->n_at_once = l->n_turns;
    for (size_t v = 0; v < n_visits; v++) {
        deal_visit(z, v);
        l->due[v] = l->n_turns;
    }
    for (size_t g = 0; g < z->options.n_groups; g++)
        for (size_t t = 0; t < group_tiles(z, g); t++) deal_tile(z, g, t);
    if (n_visits > 0) l->due[n_visits - 1] = l->n_turns;
}

/* ---- from tiles into the window -------------------------------------------------------------- */

/* Parameters that take what a tile makes: those that stay, and, of a file, those that come. */
static bool takes(const struct zero *z, size_t param_idx)
{
    const struct zero_param *p = &z->own.params[param_idx];
    return p->group != z->options.n_groups && (p->resident || z->options.swap.params);
}

struct overlap {
    size_t lo, end; /* elements of the group's partition; lo ≥ end: none */
};

static struct overlap overlap_of(const struct zero *z, struct zero_tile at, size_t param_idx)
{
    const struct zero_piece mine = zero_piece_mine(z, param_idx);
    size_t begin = at.tile * z->options.tile_numel;
    size_t end =
        begin + tile_numel(z->own.groups[at.group].own_numel, z->options.tile_numel, at.tile);
    size_t mine_end = mine.own_off + mine.numel;
    return (struct overlap){.lo = mine.own_off > begin ? mine.own_off : begin,
                            .end = mine_end < end ? mine_end : end};
}

/* By turn, in the order of the parameters. Each parameter is asked for its tiles, because a large
 * model has thousands of both, and plans list them as well: counted first, then listed. */
static cz_status list_copied(struct zero *z)
{
    struct zero_late *l = &z->late;
    const size_t n_params = z->options.table->n_params;
    l->first_copied = calloc(l->n_turns + 2, sizeof *l->first_copied);
    if (!l->first_copied) return err_set(CZ_NOMEM, 0, "no memory for %zu tiles", l->n_turns);
    for (size_t i = 0; i < n_params; i++) {
        const struct tiles tiles = takes(z, i) ? tiles_of(z, i) : (struct tiles){0, 0};
        for (size_t t = tiles.first; t < tiles.end; t++)
            l->first_copied[*turn_of(z, z->own.params[i].group, t) + 2]++;
    }
    for (size_t k = 1; k < l->n_turns + 2; k++) l->first_copied[k] += l->first_copied[k - 1];
    const size_t n = l->first_copied[l->n_turns + 1];
    l->copied = calloc(n + 1, sizeof *l->copied);
    if (!l->copied) return err_set(CZ_NOMEM, 0, "no memory for %zu parameters", n);
    for (size_t i = 0; i < n_params; i++) {
        const struct tiles tiles = takes(z, i) ? tiles_of(z, i) : (struct tiles){0, 0};
        for (size_t t = tiles.first; t < tiles.end; t++)
            l->copied[l->first_copied[*turn_of(z, z->own.params[i].group, t) + 1]++] = i;
    }
    return CZ_OK;
}

/* What the tile `at` made, `params`, of a parameter's elements on this rank, to `dst`. */
static void copy_part(const struct zero *z, struct zero_tile at, const unsigned char *params,
                      size_t param_idx, unsigned char *dst)
{
    const struct overlap o = overlap_of(z, at, param_idx);
    const size_t size = dtype_size(z->options.dtype), begin = at.tile * z->options.tile_numel;
    if (o.lo >= o.end) return;
    memcpy(dst + (o.lo - zero_piece_mine(z, param_idx).own_off) * size,
           params + (o.lo - begin) * size, (o.end - o.lo) * size);
}

/* On a GPU after the kernel that made them, or, where the host did, beside the layers: then the
 * slot that they are taken from may be used again once they have arrived. */
static cz_status copy_params(struct zero *z, size_t turn, const unsigned char *params)
{
    const struct zero_late *l = &z->late;
    bool stays = false;
    struct device *d = zero_device(z);
    bool at_once = turn < l->n_at_once;
    struct dev_stream *way = at_once ? z->options.stream : z->gpu.in;
    size_t size = dtype_size(z->options.dtype), first = l->first_copied[turn];
    size_t begin = l->turns[turn].tile * z->options.tile_numel, end = l->first_copied[turn + 1];
    for (size_t k = first; k < end; k++) {
        size_t i = l->copied[k];
        if (!z->own.params[i].resident) {
            if (l->open[i]) copy_part(z, l->turns[turn], params, i, l->open[i]);
            continue;
        }
        const struct overlap o = overlap_of(z, l->turns[turn], i);
        const struct zero_piece mine = zero_piece_mine(z, i);
        size_t at = z->own.params[i].resident_off + mine.param_off + (o.lo - mine.own_off);
        TRY(zero_copy(z, way, z->mem.blocks[ZERO_WINDOW] + at * size,
                      params + (o.lo - begin) * size, (o.end - o.lo) * size));
        stays = true;
    }
    if (!stays || at_once || !z->options.on_gpu) return CZ_OK;
    struct dev_event *arrived = z->gpu.staged[l->turns[turn].tile % ZERO_STAGE_SLOTS];
    TRY(d->ops->event_record(d, arrived, way));
    return z->options.swap.params ? d->ops->event_wait_host(d, arrived) : CZ_OK;
}

/* Whether what the tile of a turn makes is still in its slot after it: the next tile that is read
 * into the slot does not bring the same array. */
static bool leaves_params(const struct zero *z, size_t turn)
{
    const size_t next = turn + z->sweep.n_slots;
    if (!z->mem.has_masters || turn < z->late.n_at_once) return false;
    return next >= z->late.n_turns || !zero_tile_reads_params(z, z->late.turns[next]);
}

bool zero_late_feeds(const struct zero *z, size_t param_idx, size_t n_done)
{
    const struct tiles tiles = tiles_of(z, param_idx);
    if (!z->late.on || !z->options.swap.params) return false;
    for (size_t t = tiles.first; t < tiles.end; t++) {
        size_t turn = *turn_of(z, z->own.params[param_idx].group, t);
        if (turn < n_done && !(turn + 1 == n_done && leaves_params(z, turn))) return false;
    }
    return tiles.first < tiles.end;
}

/* Often a tile has the last elements of one parameter and the first ones of the next, which begins
 * to come after it. */
void zero_late_open(struct zero *z, size_t param_idx, unsigned char *dst)
{
    struct zero_late *l = &z->late;
    l->open[param_idx] = dst;
    if (l->n_done == 0 || l->turns[l->n_done - 1].group != z->own.params[param_idx].group) return;
    copy_part(z, l->turns[l->n_done - 1], l->last_params, param_idx, dst);
}

/* A parameter's parts that ranks have copied to their places in the window. */
static size_t span_parts(const struct zero *z, size_t param_idx, struct comm_span *spans)
{
    size_t n = 0;
    for (int r = 0; r < z->options.comm->world_size; r++) {
        const struct zero_piece piece = zero_piece_of(z, param_idx, r);
        size_t at = z->own.params[param_idx].resident_off + piece.param_off;
        if (piece.numel == 0) continue;
        spans[n++] = (struct comm_span){
            .src_off = at, .dst_off = at, .numel = piece.numel, .owner = r, .to = COMM_ALL};
    }
    return n;
}

/* Those that stay, by their first forward visit. One that no unit uses comes with the last. */
static cz_status list_shared(struct zero *z)
{
    struct zero_late *l = &z->late;
    size_t n_params = z->options.table->n_params, n_units = z->options.n_units, n = 0, v, k;
    bool *is_listed = calloc(n_params + 1, sizeof *is_listed);
    l->shared = calloc(n_params * (size_t)z->options.comm->world_size + 1, sizeof *l->shared);
    l->first_shared = calloc(n_units + 1, sizeof *l->first_shared);
    bool has_memory = is_listed && l->shared && l->first_shared;
    z->figures.n_updates = 0;
    for (size_t i = 0; has_memory && i < n_params; i++) {
        const struct zero_param *p = &z->own.params[i];
        is_listed[i] = !p->resident || p->group == z->options.n_groups;
    }
    for (v = 0; has_memory && v < n_units; v++) {
        const struct zero_unit *unit = &z->options.units[v];
        size_t n_candidates = v + 1 < n_units ? unit->n : n_params;
        l->first_shared[v] = n;
        for (k = 0; k < n_candidates; k++) {
            size_t i = v + 1 < n_units ? unit->param_idx[k] : k;
            if (!is_listed[i]) n += span_parts(z, i, l->shared + n);
            is_listed[i] = true;
        }
        l->first_shared[v + 1] = n;
        z->figures.n_updates += n > l->first_shared[v];
    }
    free(is_listed);
    l->n_shared = n_units;
    return has_memory ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu parameters", n_params);
}

/* ---- creation -------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Slots for the tiles of a layer of the usual size, and two more: they are written, and the next
 * layer's read, while the layer computes. `sizes`: scratch for as many as there are units. */
static size_t choose_slots(const struct zero *z, size_t *sizes)
{
    size_t n = 0, most = RING_SLOTS, before = z->late.n_at_once;
    /* a rank without an element of its own has slots of 0 bytes */
    if (z->late.n_turns > 0) most = SLOTS_NBYTES_MAX / z->sweep.ring_slot_nbytes;
    if (most < RING_SLOTS) most = RING_SLOTS;
    if (most > RING_SLOTS_MAX) most = RING_SLOTS_MAX;
    for (size_t v = 0; v < z->options.n_units; v++) {
        if (z->late.due[v] > before) sizes[n++] = z->late.due[v] - before;
        before = z->late.due[v];
    }
    qsort(sizes, n, sizeof *sizes, by_size);
    size_t n_slots = n > 0 ? sizes[n / 2] + 2 : RING_SLOTS;
    if (n_slots < RING_SLOTS) n_slots = RING_SLOTS;
    return n_slots < most ? n_slots : most;
}

/* Whether nothing else uses the ring between the last tile of one step and the first of the next
 * (but zero_late_interrupt()). A short sweep might come back to a tile that is still being written.
 */
static bool may_read_ahead(const struct zero *z)
{
    bool alone = true;
    for (size_t g = 0; g < z->options.n_groups; g++)
        alone &= z->options.groups[g].hyper.cls->n_stages == 1;
    return alone && z->late.n_turns > 2 * z->sweep.n_slots;
}

cz_status zero_late_init(struct zero *z)
{
    struct zero_late *l = &z->late;
    bool has_file = z->mem.swap_nbytes > 0;
    l->on &= has_file || z->options.on_gpu;
    if (!l->on) return CZ_OK;
    l->first_tile = calloc(z->options.n_groups + 1, sizeof *l->first_tile);
    if (!l->first_tile) return err_set(CZ_NOMEM, 0, "no memory for the order of tiles");
    for (size_t g = 0; g < z->options.n_groups; g++)
        l->first_tile[g + 1] = l->first_tile[g] + group_tiles(z, g);
    const size_t n_tiles = l->first_tile[z->options.n_groups];
    size_t *sizes = calloc(z->options.n_units + 1, sizeof *sizes);
    l->turns = calloc(n_tiles + 1, sizeof *l->turns);
    l->turn_of = calloc(n_tiles + 1, sizeof *l->turn_of);
    l->due = calloc(z->options.n_units + 1, sizeof *l->due);
    l->due_op = calloc(z->window.schedule.n_ops + 1, sizeof *l->due_op);
    l->open = calloc(z->options.table->n_params + 1, sizeof *l->open);
    bool has_memory = sizes && l->turns && l->turn_of && l->due && l->due_op && l->open;
    if (has_memory) {
        for (size_t k = 0; k < n_tiles; k++) l->turn_of[k] = NO_TURN;
        deal_all(z);
        if (has_file) z->sweep.n_slots = choose_slots(z, sizes);
        l->reads_ahead = has_file && may_read_ahead(z);
    }
    free(sizes);
    if (!has_memory) return err_set(CZ_NOMEM, 0, "no memory for the order of %zu tiles", n_tiles);
    z->figures.pass_fed_nbytes = zero_window_fed_nbytes(z);
    TRY(list_copied(z));
    return shares(z) ? list_shared(z) : CZ_OK;
}

void zero_late_free(struct zero *z)
{
    free(z->late.turns);
    free(z->late.turn_of);
    free(z->late.first_tile);
    free(z->late.due);
    free(z->late.due_op);
    free(z->late.open);
    free(z->late.first_copied);
    free(z->late.copied);
    free(z->late.first_shared);
    free(z->late.shared);
}

/* All of it, once it fits into the slots; otherwise a tile's turn comes when others have its slot.
 */
size_t zero_late_found_nbytes(const struct zero *z)
{
    const struct zero_late *l = &z->late;
    size_t sum = 0, n_kept = 0;
    for (size_t k = 0; k < l->n_turns; k++) {
        const struct zero_tile at = l->turns[k];
        size_t nbytes = zero_kept_nbytes(z, at.group, at.tile);
        sum += nbytes * z->options.groups[at.group].hyper.cls->n_stages;
        n_kept += nbytes > 0 || z->options.swap.params || z->figures.grad_swapped_nbytes > 0;
    }
    return n_kept <= z->sweep.n_slots ? sum : 0;
}

/* ---- the update ------------------------------------------------------------------------------ */

bool zero_updates_late(const struct zero *z)
{
    return z->late.on;
}

/* Whether a turn's tile is read before the step, perhaps, and its gradients are still to be made.
 */
static bool lacks_grads(const struct zero *z, size_t turn)
{
    return z->late.is_early && turn < z->sweep.n_slots && z->figures.grad_swapped_nbytes > 0;
}

static size_t turn_pieces(void *user, size_t k, struct ring_piece *out)
{
    const struct zero *z = user;
    size_t n = zero_tile_pieces(z, z->late.turns[k], out);
    for (size_t i = 0; i < n && lacks_grads(z, k); i++)
        if (out[i].slot_off == zero_ring_grads_off(z)) out[i].is_read = false;
    return n;
}

static cz_status read_grads(struct zero *z, size_t turn, unsigned char *slot)
{
    struct ring_piece pieces[RING_PIECES_MAX];
    size_t n = zero_tile_pieces(z, z->late.turns[turn], pieces);
    for (size_t i = 0; i < n; i++)
        if (pieces[i].slot_off == zero_ring_grads_off(z))
            TRY(swap_read(z->mem.swap, pieces[i].off, pieces[i].nbytes, slot + pieces[i].slot_off));
    return CZ_OK;
}

/* The ring comes to the first tile: it reads ahead from here on; is_early: before the step. */
static cz_status ring_to_first(struct zero *z, bool is_early)
{
    struct zero_late *l = &z->late;
    l->is_early = is_early;
    if (l->n_turns > z->sweep.n_slots) ring_forget(z->sweep.ring);
    TRY(ring_begin(z->sweep.ring, l->n_turns, turn_pieces, z));
    l->is_begun = true;
    return ring_ahead(z->sweep.ring);
}

cz_status zero_late_interrupt(struct zero *z)
{
    if (!z->late.is_begun) return CZ_OK;
    z->late.is_begun = false;
    return ring_end(z->sweep.ring);
}

static cz_status update_next(struct zero *z)
{
    struct zero_late *l = &z->late;
    unsigned char *slot;
    l->is_unwritten = true;
    TRY(ring_next(z->sweep.ring, &slot));
    if (lacks_grads(z, l->n_done)) TRY(read_grads(z, l->n_done, slot));
    TRY(zero_tile_update(z, l->turns[l->n_done], slot, &l->last_params));
    TRY(copy_params(z, l->n_done, l->last_params));
    TRY(ring_done(z->sweep.ring));
    l->n_done++;
    return CZ_OK;
}

static cz_status name_step(const struct zero *z, cz_status st)
{
    if (st == CZ_OK) return CZ_OK;
    return err_prefix("the update of step %llu", (unsigned long long)z->late.step);
}

/* The first `n` tiles are updated, and layers see it. After the last one the ring continues with
 * the next step. */
static cz_status update_until(struct zero *z, size_t n)
{
    struct zero_late *l = &z->late;
    cz_status st = CZ_OK;
    size_t n_before = l->n_done;
    if (!l->is_pending) return CZ_OK;
    if (!l->is_begun) {
        st = ring_flush(z->sweep.ring, SIZE_MAX);
        if (st == CZ_OK) st = ring_to_first(z, false);
    }
    while (st == CZ_OK && l->n_done < n) st = update_next(z);
    TRY(name_step(z, st));
    if (l->n_done > n_before) TRY(zero_gpu_settle(z));
    if (l->n_done < l->n_turns) return CZ_OK;
    l->is_pending = l->is_begun = false;
    return l->reads_ahead ? ring_to_first(z, true) : CZ_OK;
}

/* What a GPU updates: its parameters are where they belong when the host looks for them. */
static cz_status update_at_once(struct zero *z)
{
    struct device *d = zero_device(z);
    if (z->late.n_at_once == 0) return CZ_OK;
    TRY(update_until(z, z->late.n_at_once));
    return zero_params_leave(&z->options) ? d->ops->stream_sync(d, z->gpu.out) : CZ_OK;
}

/* On a GPU all that used the old parameters, or made the gradients, is on the layers' stream by
 * now: the tiles' copies wait for it here, and not again when there are layers that they run
 * beside. */
cz_status zero_late_begin(struct zero *z, uint64_t step)
{
    struct zero_late *l = &z->late;
    cz_status st = zero_grads_arrive(z) ? zero_bucket_finish(z) : CZ_OK;
    if (st == CZ_OK && !l->is_begun) st = ring_flush(z->sweep.ring, SIZE_MAX);
    for (size_t g = 0; g < z->options.n_groups; g++) {
        if (z->options.groups[g].hyper.cls->n_stages == 1) continue;
        if (l->n_turns > z->sweep.n_slots) ring_forget(z->sweep.ring);
        st = st == CZ_OK ? zero_sweep_before_last(z, g) : zero_sweep_failed(z, g, st);
    }
    TRY(st);
    if (z->options.on_gpu) TRY(zero_after(z, z->gpu.in, z->options.stream));
    if (z->options.on_gpu) TRY(zero_after(z, z->gpu.out, z->options.stream));
    l->step = step;
    l->n_done = l->n_shared = 0;
    l->is_pending = true;
    return update_at_once(z);
}

/* Parameters that stay and that the first `n` forward visits use begin to go to all ranks. */
static cz_status share_until(struct zero *z, size_t n)
{
    struct zero_late *l = &z->late;
    if (!shares(z)) return CZ_OK;
    for (; l->n_shared < n && l->n_shared < z->options.n_units; l->n_shared++) {
        const struct comm_span *spans = l->shared + l->first_shared[l->n_shared];
        const struct comm_move args = {.src = z->mem.blocks[ZERO_WINDOW],
                                       .dst = z->mem.blocks[ZERO_WINDOW],
                                       .elem_nbytes = dtype_size(z->options.dtype),
                                       .spans = spans,
                                       .n_spans = l->first_shared[l->n_shared + 1] -
                                                  l->first_shared[l->n_shared]};
        if (args.n_spans > 0) TRY(zero_move_begin(z, &args, &l->tickets[l->n_shared % 2]));
    }
    return CZ_OK;
}

static cz_status wait_shared(struct zero *z, size_t visit)
{
    const struct comm_ticket ticket = z->late.tickets[visit % 2];
    z->late.tickets[visit % 2].id = 0;
    return ticket.id > 0 ? zero_move_wait(z, ticket) : CZ_OK;
}

cz_status zero_late_drain(struct zero *z)
{
    cz_status first = wait_shared(z, 0), second = wait_shared(z, 1);
    return first != CZ_OK ? first : second;
}

/* This rank's part of it. */
static cz_status end_own(struct zero *z)
{
    TRY(update_until(z, z->late.n_turns));
    z->late.is_unwritten = false;
    return name_step(z, ring_flush(z->sweep.ring, SIZE_MAX));
}

/* One rank's disk may fail, and the others would wait for its part of what ranks share. */
cz_status zero_update_end(struct zero *z)
{
    if (!z->late.on) return CZ_OK;
    cz_status st = end_own(z);
    if (!shares(z)) return st;
    TRY(comm_agree(z->options.comm, st));
    TRY(share_until(z, z->options.n_units));
    return zero_late_drain(z);
}

/* As a rule a pass has ended it: then ranks need not agree here. */
cz_status zero_late_before_step(struct zero *z)
{
    bool is_shared = !shares(z) || z->late.n_shared == z->options.n_units;
    return z->late.on && is_shared ? end_own(z) : zero_update_end(z);
}

static bool is_forward(const struct zero *z)
{
    return z->turn.pass != ZERO_PASS_EVAL && z->turn.visit < z->options.n_units;
}

cz_status zero_late_op(struct zero *z, size_t op)
{
    const struct fetch_op *o = &z->window.schedule.ops[op];
    cz_status st = is_forward(z) ? update_until(z, z->late.due_op[op]) : CZ_OK;
    for (size_t k = o->first; k < o->first + o->n; k++)
        z->late.open[z->window.schedule.stays[k].param_idx] = NULL;
    return st;
}

cz_status zero_late_written(struct zero *z)
{
    if (!z->late.is_unwritten) return CZ_OK;
    TRY(name_step(z, ring_flush(z->sweep.ring, zero_ring_params_off(z))));
    z->late.is_unwritten = false;
    return CZ_OK;
}

cz_status zero_late_acquire(struct zero *z)
{
    if (!is_forward(z)) return CZ_OK;
    TRY(update_until(z, z->late.due[z->turn.visit]));
    TRY(share_until(z, z->turn.visit + 2));
    return wait_shared(z, z->turn.visit);
}

/* Claims: the order of an update that is left to the next forward is the one that a plain reading
 * of the rules gives, for random models, ranks, placements and tiles: every tile has one turn, what
 * a visit or a read of the window needs has had its turn by then and nothing else has, each tile
 * lists the parameters that it makes, ranks share each parameter that stays once, and the ring has
 * the slots and the finds of that order. No table is written outside. CZ_SEED=n starts elsewhere.
 * What ranks send each other has come when a visit uses it, and a GPU's copies wait for what used
 * the old parameters. */
#define ZERO_WORLD_SCALE 301
#include "tests/support/guarded_memory.h"
#include "tests/support/zero/zero_world.h"
#include "zero/zero_impl.h"

#include <stdio.h>

enum { PARAMS_MAX = 24, UNITS_MAX = 9, UNIT_MAX = 5, TILES_MAX = 1024, ROUNDS = 500 };

static uint64_t state;

static uint64_t dice(uint64_t n)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 20) % n;
}

/* ---- a random model -------------------------------------------------------------------------- */

struct drawn {
    struct param_table table;
    size_t group_of[PARAMS_MAX], lists[UNITS_MAX][UNIT_MAX];
    struct zero_unit units[UNITS_MAX];
    struct zero_visit visits[2 * UNITS_MAX];
    struct optim_group groups[2];
    struct device *device;
    struct ops *ops;
    struct comm *comm;
    struct zero_options options;
};

/* Less than a tile, about one, several; `unit`: the elements of the smallest tile, or more. */
static size_t draw_numel(size_t unit)
{
    static const size_t to[] = {3, 40, 4096, 4096, 9000, 50000};
    const size_t most = to[dice(CZ_ARRAY_LEN(to))];
    return (1 + dice(most)) * (unit / 4096);
}

static void draw_params(struct drawn *d, size_t unit)
{
    const size_t n = 1 + dice(PARAMS_MAX);
    param_table_init(&d->table);
    for (size_t i = 0; i < n; i++) {
        char name[8];
        size_t idx;
        const int64_t shape[] = {(int64_t)(dice(9) ? draw_numel(unit) : 4096 * (1 + dice(3)))};
        snprintf(name, sizeof name, "p%zu", i);
        ck_ok(param_table_add(&d->table, name, 1, shape, PARAM_INIT_NORMAL, 1, &idx));
        d->group_of[i] = dice(2);
        d->table.params[i].trainable = dice(6) > 0;
    }
}

/* Parameters may be in several units or in none. */
static void draw_units(struct drawn *d)
{
    const size_t n = 1 + dice(UNITS_MAX);
    for (size_t v = 0; v < n; v++) {
        bool is_in[PARAMS_MAX] = {false};
        d->units[v] = (struct zero_unit){.param_idx = d->lists[v]};
        for (size_t k = 0; k < 1 + dice(UNIT_MAX); k++) {
            const size_t i = dice(d->table.n_params);
            if (!is_in[i]) d->lists[v][d->units[v].n++] = i;
            is_in[i] = true;
        }
        d->visits[v] = (struct zero_visit){.unit_idx = v};
        d->visits[2 * n - 1 - v] =
            (struct zero_visit){.unit_idx = v, .writes_grads = true, .is_backward = true};
    }
    d->options.n_units = n;
    d->options.n_visits = 2 * n;
}

static void draw_places(struct zero_options *o, bool is_alone)
{
    const bool may_leave = is_alone || o->stage == 3;
    o->swap = (struct zero_swap){.optimizer = dice(4) > 0,
                                 .params = dice(2),
                                 .grads = dice(2),
                                 .memory_share = dice(2) ? 0 : (double)dice(11) / 10,
                                 .params_in_memory = dice(2) ? 0 : dice(100000),
                                 .read_ahead = dice(2),
                                 .write_behind = dice(2)};
    if (dice(3)) return;
    o->on_gpu = true;
    o->swap.grads = false;
    o->swap.params &= may_leave;
    o->offload = (struct zero_offload){.optimizer = !o->swap.optimizer,
                                       .params = may_leave && !o->swap.params && dice(2),
                                       .device_share = dice(2) ? 0 : (double)dice(10) / 10};
}

static void draw(struct drawn *d)
{
    static const char *const optimizers[] = {"AdamW", "AdamW", "Lamb", "SGD"};
    static const size_t tiles[] = {4096, 4096, 8192, (size_t)2 << 20};
    const int world = dice(2) ? 1 : 1 + (int)dice(5);
    const size_t tile = tiles[dice(CZ_ARRAY_LEN(tiles))];
    struct zero_options *o = &d->options;
    struct optim_hyper hyper;
    memset(d, 0, sizeof *d);
    draw_params(d, tile);
    draw_units(d);
    for (int g = 0; g < 2; g++) {
        ck_ok(optim_hyper_begin(optimizers[dice(CZ_ARRAY_LEN(optimizers))], OPTIM_FUSED, &hyper));
        ck_ok(optim_hyper_finish(&hyper));
        ck_ok(optim_group_init(&d->groups[g], &hyper, NULL));
    }
    ck_ok(device_open("cpu", 0, &d->device));
    ck_ok(ops_create(d->device, &d->ops));
    ck_ok(comm_self_create((int)dice((uint64_t)world), world, &d->comm));
    o->table = &d->table, o->units = d->units, o->visits = d->visits;
    o->group_of = d->group_of, o->groups = d->groups, o->n_groups = 2;
    o->stage = dice(8) ? 3 * (int)dice(2) : (int)dice(4);
    o->dtype = o->grad_dtype = o->wire_dtype = dice(2) ? DTYPE_BF16 : DTYPE_F32;
    o->master_dtype = dice(3) ? DTYPE_F32 : o->dtype;
    o->overlap = dice(2);
    o->bucket_numel = dice(2) * 5000;
    o->tile_numel = tile;
    o->late_update = true;
    o->stage3 = (struct zero_stage3){.prefetch_numel = dice(2) * dice(100000),
                                     .param_persistence_threshold = dice(2) * dice(9000),
                                     .model_persistence_threshold = SIZE_MAX,
                                     .max_live = dice(2) * dice(1000000),
                                     .max_reuse = dice(2) * dice(1000000)};
    o->comm = d->comm, o->ops = o->host_ops = d->ops;
    draw_places(o, world == 1);
}

static void drawn_free(struct drawn *d)
{
    comm_destroy(d->comm);
    ops_destroy(d->ops);
    device_close(d->device);
    param_table_free(&d->table);
}

/* ---- the rules, read plainly ------------------------------------------------------------------
 */

/* A set of tiles, numbered group by group. */
struct tile_set {
    bool has[TILES_MAX];
    size_t n;
};

static struct zero_tile tile_at(const struct zero *z, size_t k)
{
    const size_t first = tile_count(z->own.groups[0].own_numel, z->options.tile_numel);
    return k < first ? (struct zero_tile){0, k} : (struct zero_tile){1, k - first};
}

static size_t tiles_of_all(const struct zero *z)
{
    return tile_count(z->own.groups[0].own_numel, z->options.tile_numel) +
           tile_count(z->own.groups[1].own_numel, z->options.tile_numel);
}

static bool is_in_tile(const struct zero *z, size_t param_idx, struct zero_tile t)
{
    const size_t tile = z->options.tile_numel;
    if (z->own.params[param_idx].group != t.group) return false; /* a frozen one has none */
    const struct zero_piece mine = zero_piece_mine(z, param_idx);
    return mine.numel > 0 && mine.own_off < (t.tile + 1) * tile &&
           mine.own_off + mine.numel > t.tile * tile;
}

static void add_param(const struct zero *z, struct tile_set *s, size_t param_idx)
{
    for (size_t k = 0; k < tiles_of_all(z); k++)
        if (!s->has[k] && is_in_tile(z, param_idx, tile_at(z, k))) s->has[k] = true, s->n++;
}

/* The tiles of the set are those that have the first turns, and no other is. */
static void has_first_turns(const struct zero *z, const struct tile_set *s, const char *what)
{
    const struct zero_late *l = &z->late;
    for (size_t k = 0; k < tiles_of_all(z); k++)
        ck_assert_msg(s->has[k] == (l->turn_of[k] < s->n), "%s: tile %zu has turn %zu of %zu", what,
                      k, l->turn_of[k], s->n);
}

static void check_turns(const struct zero *z)
{
    const struct zero_late *l = &z->late;
    ck_assert_uint_eq(l->n_turns, tiles_of_all(z));
    for (size_t k = 0; k < l->n_turns; k++) { /* one each, and back */
        const struct zero_tile t = tile_at(z, k);
        ck_assert_uint_lt(l->turn_of[k], l->n_turns);
        ck_assert_uint_eq(l->turns[l->turn_of[k]].group, t.group);
        ck_assert_uint_eq(l->turns[l->turn_of[k]].tile, t.tile);
    }
}

static bool are_shared(const struct zero *z)
{
    return z->options.stage == 3 && z->options.comm->world_size > 1;
}

static void check_due(const struct zero *z)
{
    static struct tile_set s;
    size_t due_op[4 * UNITS_MAX * UNIT_MAX], n_ops = z->window.schedule.n_ops;
    const struct fetch_schedule *f = &z->window.schedule;
    s = (struct tile_set){.n = 0};
    for (size_t k = 0; k < tiles_of_all(z); k++)
        if (zero_tile_is_on_gpu(z, tile_at(z, k).group, tile_at(z, k).tile)) s.has[k] = true, s.n++;
    ck_assert_uint_eq(z->late.n_at_once, s.n);
    has_first_turns(z, &s, "at once");
    ck_assert_uint_le(n_ops, CZ_ARRAY_LEN(due_op));
    memset(due_op, 0, sizeof due_op);
    for (size_t v = 0; v < z->options.n_units; v++) {
        const struct zero_unit *unit = &z->options.units[v];
        for (size_t k = 0; k < unit->n; k++) add_param(z, &s, unit->param_idx[k]);
        size_t from = z->window.is_used ? f->op_begin[v] : 0;
        size_t to = z->window.is_used ? zero_window_reads_until(z, v) : 0;
        for (size_t i = from; i < to; i++) {
            for (size_t k = 0; k < f->ops[i].n; k++)
                add_param(z, &s, f->stays[f->ops[i].first + k].param_idx);
            due_op[i] = s.n;
            has_first_turns(z, &s, "an op");
        }
        if (are_shared(z) && v + 1 < z->options.n_units)
            for (size_t k = 0; k < unit[1].n; k++)
                if (z->own.params[unit[1].param_idx[k]].resident)
                    add_param(z, &s, unit[1].param_idx[k]);
        has_first_turns(z, &s, "a visit");
        ck_assert_uint_eq(z->late.due[v], v + 1 < z->options.n_units ? s.n : z->late.n_turns);
    }
    for (size_t i = 0; i < n_ops; i++) ck_assert_uint_eq(z->late.due_op[i], due_op[i]);
}

static void check_copied(const struct zero *z)
{
    const struct zero_late *l = &z->late;
    size_t at = 0;
    for (size_t k = 0; k < l->n_turns; k++) {
        ck_assert_uint_eq(l->first_copied[k], at);
        for (size_t i = 0; i < z->options.table->n_params; i++) {
            const bool is_there = z->own.params[i].resident || z->options.swap.params;
            if (is_there && is_in_tile(z, i, l->turns[k])) ck_assert_uint_eq(l->copied[at++], i);
        }
        ck_assert_uint_eq(l->first_copied[k + 1], at);
    }
}

static void check_shared(const struct zero *z)
{
    const struct zero_late *l = &z->late;
    bool is_listed[PARAMS_MAX] = {false};
    size_t at = 0, n_filled = 0;
    for (size_t v = 0; are_shared(z) && v < z->options.n_units; v++) {
        const bool is_last = v + 1 == z->options.n_units;
        const struct zero_unit *unit = &z->options.units[v];
        const size_t n = is_last ? z->options.table->n_params : unit->n, begin = at;
        ck_assert_uint_eq(l->first_shared[v], at);
        for (size_t k = 0; k < n; k++) {
            const size_t i = is_last ? k : unit->param_idx[k];
            const struct zero_param *p = &z->own.params[i];
            for (int r = 0; r < z->options.comm->world_size; r++) {
                const struct zero_piece piece = zero_piece_of(z, i, r);
                if (is_listed[i] || !p->resident || p->group == 2 || piece.numel == 0) continue;
                const struct comm_span *s = &l->shared[at++];
                ck_assert_uint_eq(s->src_off, p->resident_off + piece.param_off);
                ck_assert_uint_eq(s->dst_off, s->src_off);
                ck_assert_uint_eq(s->numel, piece.numel);
                ck_assert_int_eq(s->owner, r);
                ck_assert_int_eq(s->to, COMM_ALL);
            }
            is_listed[i] = true;
        }
        ck_assert_uint_eq(l->first_shared[v + 1], at);
        n_filled += at > begin;
    }
    if (!are_shared(z)) return;
    ck_assert_uint_eq(l->n_shared, z->options.n_units);
    ck_assert_uint_eq(z->figures.n_updates, n_filled);
}

/* The layers' usual number of tiles and two more, within bounds; 256 MiB unless four take more. */
static void check_slots(const struct zero *z)
{
    size_t sizes[UNITS_MAX], n = 0, before = z->late.n_at_once;
    size_t most = 4, want = 4;
    bool has_one_pass = true;
    for (size_t v = 0; v < z->options.n_units; v++) {
        const size_t size = z->late.due[v] - before;
        size_t k = n;
        before = z->late.due[v];
        if (size == 0) continue;
        for (; k > 0 && sizes[k - 1] > size; k--) sizes[k] = sizes[k - 1];
        sizes[k] = size;
        n++;
    }
    if (z->late.n_turns > 0) most = ((size_t)256 << 20) / z->sweep.ring_slot_nbytes;
    if (n > 0 && sizes[n / 2] > 2) want = sizes[n / 2] + 2;
    if (most > 32) most = 32;
    if (want > most) want = most < 4 ? 4 : most;
    ck_assert_uint_eq(z->sweep.n_slots, want);
    for (int g = 0; g < 2; g++) has_one_pass &= z->options.groups[g].hyper.cls->n_stages == 1;
    ck_assert_int_eq(z->late.reads_ahead, has_one_pass && z->late.n_turns > 2 * want);
}

/* All of it, if all tiles have a slot. */
static void check_found(const struct zero *z)
{
    size_t sum = 0, n = 0;
    const bool all_take_one = z->options.swap.params || z->figures.grad_swapped_nbytes > 0;
    for (size_t k = 0; k < tiles_of_all(z); k++) {
        const struct zero_tile t = tile_at(z, k);
        const size_t kept = zero_kept_nbytes(z, t.group, t.tile);
        sum += kept * z->options.groups[t.group].hyper.cls->n_stages;
        n += kept > 0 || all_take_one;
    }
    ck_assert_uint_eq(zero_late_found_nbytes(z), n > z->sweep.n_slots ? 0 : sum);
}

/* The slot of the tile done last has the parameters that it made until another tile's come there:
 * of parameters only a group's end is read, if it shares a block. */
static bool has_params(const struct zero *z, size_t turn)
{
    const struct zero_late *l = &z->late;
    const size_t next = turn + z->sweep.n_slots, tile = z->options.tile_numel;
    if (!z->mem.has_masters || turn < l->n_at_once) return false;
    if (next >= l->n_turns || !z->options.swap.params) return true;
    const size_t own = z->own.groups[l->turns[next].group].own_numel;
    const bool is_last = (l->turns[next].tile + 1) * tile >= own;
    return !is_last || own * dtype_size(z->options.dtype) % SWAP_ALIGN == 0;
}

static void check_fed(const struct zero *z)
{
    const struct zero_late *l = &z->late;
    for (size_t i = 0; i < z->options.table->n_params; i++)
        for (size_t n_done = 0; n_done <= l->n_turns; n_done++) {
            bool has_any = false, is_gone = false;
            for (size_t k = 0; k < l->n_turns; k++) {
                if (!is_in_tile(z, i, l->turns[k])) continue;
                has_any = true;
                is_gone |= k + 1 < n_done || (k + 1 == n_done && !has_params(z, k));
            }
            ck_assert_int_eq(zero_late_feeds(z, i, n_done),
                             z->options.swap.params && has_any && !is_gone);
        }
}

static bool is_late(const struct zero *z)
{
    const struct zero_options *o = &z->options;
    const bool is_offloaded = o->offload.optimizer || o->swap.optimizer;
    if (o->comm->world_size > 1 && o->stage != 0 && o->stage != 3) return false;
    return o->on_gpu ? is_offloaded : zero_swap_nbytes(z) > 0;
}

START_TEST(the_order_is_that_of_the_rules)
{
    static struct drawn d;
    const char *seed = getenv("CZ_SEED");
    size_t n_late = 0, n_shared = 0, n_gpu = 0, n_ahead = 0;
    state = (seed ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
    guarded_begin();
    for (int round = 0; round < ROUNDS; round++) {
        struct zero *z;
        draw(&d);
        printf("%d: stage %d, rank %d of %d%s\n", round, d.options.stage, d.comm->rank,
               d.comm->world_size, d.options.on_gpu ? ", GPU" : "");
        fflush(stdout); /* for what fails */
        ck_ok(zero_create(&d.options, &z));
        ck_assert_uint_le(tiles_of_all(z), TILES_MAX);
        ck_assert_int_eq(zero_updates_late(z), is_late(z));
        if (zero_updates_late(z)) {
            check_turns(z);
            check_due(z);
            check_copied(z);
            check_shared(z);
            if (zero_swap_nbytes(z) > 0) check_slots(z);
            if (zero_swap_nbytes(z) > 0) check_found(z);
            check_fed(z);
            n_late++;
            n_shared += are_shared(z);
            n_gpu += d.options.on_gpu;
            n_ahead += z->late.reads_ahead;
        }
        zero_destroy(z);
        drawn_free(&d);
    }
    ck_assert_uint_gt(n_late, ROUNDS / 2); /* no kind is rare */
    ck_assert_uint_gt(n_shared, ROUNDS / 20);
    ck_assert_uint_gt(n_gpu, ROUNDS / 20);
    ck_assert_uint_gt(n_ahead, ROUNDS / 20);
}
END_TEST

/* ---- what waits for what ----------------------------------------------------------------------
 */

/* Moves of parameters to where they are already: those that ranks share. */
static struct {
    const struct comm_ops *sound;
    const void *window;
    uint64_t n, n_shared, n_arrived;
    bool is_shared[1000], has_arrived[1000];
} moves;

static cz_status watched_move(struct comm *c, const struct comm_move *a, struct comm_ticket *ticket)
{
    const bool is_shared = a->src == a->dst && a->dst == moves.window;
    ticket->id = is_shared ? ++moves.n_shared : 500 + ++moves.n; /* the first is 1 */
    ck_assert_uint_lt(ticket->id, CZ_ARRAY_LEN(moves.is_shared));
    moves.is_shared[ticket->id] = is_shared;
    moves.has_arrived[ticket->id] = false;
    struct comm_ticket none;
    return moves.sound->move(c, a, &none);
}

static cz_status watched_wait(struct comm *c, struct comm_ticket ticket)
{
    (void)c;
    moves.n_arrived += moves.is_shared[ticket.id] && !moves.has_arrived[ticket.id];
    moves.has_arrived[ticket.id] = true;
    return CZ_OK;
}

static void late_boundary(struct world *w, uint64_t t)
{
    struct zero_scan scan;
    double norm;
    ck_ok(zero_reduce(w->z));
    ck_ok(zero_scan(w->z, &scan));
    ck_ok(zero_norm(w->z, &norm));
    ck_ok(zero_step(w->z, t, 1, 1));
    ck_ok(zero_gather(w->z));
    zero_grads_drop(w->z);
}

/* With `freeze` the first unit has nothing to share. */
static void check_shares(bool freeze)
{
    struct world_setting s = plain;
    const size_t n_all = freeze ? 1 : N_UNITS;
    struct world w;
    s.stage = 3;
    s.world_size = 3;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.late = true;
    s.freeze = freeze;
    s.stage3.param_persistence_threshold = OF(9); /* one in each unit */
    s.stage3.model_persistence_threshold = SIZE_MAX;
    s.swap = (struct zero_swap){.optimizer = true};
    s.swap_dir = test_tmp_make_fast();
    world_make(&w, s);
    struct comm_ops ops = *w.comm->ops;
    moves.sound = w.comm->ops;
    moves.window = w.z->mem.blocks[ZERO_WINDOW];
    ops.move = watched_move, ops.wait = watched_wait;
    w.comm->ops = &ops;
    for (uint64_t t = 1; t <= 3; t++) {
        fill_grads(&w, (uint32_t)t, s.dtype);
        late_boundary(&w, t);
        moves.n = moves.n_shared = moves.n_arrived = 0;
        ck_ok(zero_pass_begin(w.z, ZERO_PASS_TRAIN));
        for (size_t v = 0; v < N_UNITS; v++) {
            ck_ok(zero_unit_acquire(w.z, v));
            ck_assert_uint_eq(moves.n_shared, n_all); /* the next visit's, too */
            ck_assert_uint_eq(moves.n_arrived, freeze ? v : v + 1);
            ck_ok(zero_unit_release(w.z, v));
        }
    }
    w.comm->ops = moves.sound;
    world_free(&w);
    ck_assert_int_eq(rmdir(s.swap_dir), 0);
}

START_TEST(a_visit_has_what_other_ranks_send)
{
    check_shares(false);
    check_shares(true);
}
END_TEST

/* Pairs of streams of which one waited for the other, as often as they did. */
static struct {
    struct {
        struct dev_event *event;
        struct dev_stream *stream;
    } records[64];
    struct {
        struct dev_stream *later, *earlier;
    } waits[1000];
    size_t n_records, n_waits;
} order;

static cz_status watched_record(struct device *d, struct dev_event *e, struct dev_stream *s)
{
    size_t i = 0;
    while (i < order.n_records && order.records[i].event != e) i++;
    ck_assert_uint_lt(i, CZ_ARRAY_LEN(order.records));
    order.records[i].event = e;
    order.records[i].stream = s;
    if (i == order.n_records) order.n_records++;
    return device_host_ops.event_record(d, e, s);
}

static cz_status watched_stream_wait(struct device *d, struct dev_stream *s, struct dev_event *e)
{
    for (size_t i = 0; i < order.n_records; i++) {
        if (order.records[i].event != e) continue;
        ck_assert_uint_lt(order.n_waits, CZ_ARRAY_LEN(order.waits));
        order.waits[order.n_waits].later = s;
        order.waits[order.n_waits++].earlier = order.records[i].stream;
    }
    return device_host_ops.stream_wait(d, s, e);
}

static cz_status named_stream(struct device *d, struct dev_stream **out)
{
    static char names[8];
    static size_t n;
    (void)d;
    *out = (void *)&names[n++ % CZ_ARRAY_LEN(names)];
    return CZ_OK;
}

static size_t n_waits(const struct dev_stream *later, const struct dev_stream *earlier)
{
    size_t n = 0;
    for (size_t i = 0; i < order.n_waits; i++)
        n += order.waits[i].later == later && order.waits[i].earlier == earlier;
    return n;
}

/* What a GPU does on three streams: both ways of copies wait for the layers once a step, and the
 * layers for both once a visit that has turns. */
START_TEST(copies_of_a_gpu_wait_for_its_layers_and_they_for_copies)
{
    struct world_setting s = plain;
    struct world w;
    s.dtype = s.grad_dtype = DTYPE_BF16;
    s.late = s.on_gpu = true;
    s.device = "cpu"; /* stands in for one */
    s.offload = (struct zero_offload){.optimizer = true};
    s.tile = 4096;
    world_lay_out(&w, s);
    static struct device_ops ops;
    ops = device_host_ops;
    ops.event_record = watched_record, ops.stream_wait = watched_stream_wait;
    ops.stream_create = named_stream;
    w.device->ops = &ops;
    ck_ok(world_begin(&w));
    const struct zero_gpu *gpu = &w.z->gpu;
    for (uint64_t t = 1; t <= 3; t++) {
        fill_grads(&w, (uint32_t)t, s.dtype);
        ck_ok(zero_reduce(w.z));
        order.n_waits = 0;
        ck_ok(zero_step(w.z, t, 1, 1));
        ck_assert_uint_eq(n_waits(gpu->in, w.stream), 1);
        ck_assert_uint_eq(n_waits(gpu->out, w.stream), 1);
        ck_ok(zero_gather(w.z));
        zero_grads_drop(w.z);
        ck_ok(zero_pass_begin(w.z, ZERO_PASS_TRAIN));
        order.n_waits = 0;
        for (size_t v = 0; v < N_UNITS; v++) {
            ck_assert_uint_lt(w.z->late.n_done, w.z->late.due[v]);
            ck_ok(zero_unit_acquire(w.z, v));
            ck_assert_uint_eq(n_waits(w.stream, gpu->in), v + 1);
            ck_assert_uint_eq(n_waits(w.stream, gpu->out), v + 1);
            ck_ok(zero_unit_release(w.z, v));
        }
        ck_ok(zero_unit_acquire(w.z, visits[N_UNITS].unit_idx)); /* no turn is left */
        ck_assert_uint_eq(n_waits(w.stream, gpu->in), N_UNITS);
    }
    w.device->ops = &device_host_ops;
    world_free(&w);
}
END_TEST

TEST_MAIN("zero/late", the_order_is_that_of_the_rules, a_visit_has_what_other_ranks_send,
          copies_of_a_gpu_wait_for_its_layers_and_they_for_copies)

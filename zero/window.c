/* Parameters come for the visits that use them, or for good: put together from all ranks' chunks at
 * stage 3, read from the swap file, read as chunks and then put together, or brought from host
 * memory to a GPU. All four go into one window, by one schedule (layout/fetch.h) that is made at
 * creation: each stay of a parameter has a fixed place, so the window's size is in the plan.
 *
 * From the swap file whole blocks are read. Read straight into the window, a parameter's place
 * there includes the rest of its first and last block (lead, slack); read as a chunk, it lands
 * in a slot of ZERO_STAGING, from where the gather takes what it would have taken from ZERO_PARAMS.
 */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>

/* ---- reads from the swap file: what a parameter takes ---------------------------------------- */

/* What this rank keeps of a parameter, as whole blocks of the file. */
struct run {
    uint64_t off;
    size_t nbytes;
    size_t lead; /* bytes of the first block that belong to others */
};

static struct run run_of(const struct zero *z, size_t param_idx, size_t numel)
{
    const struct zero_placement where = zero_param_placement(z, param_idx);
    size_t lead = where.swap_off % SWAP_ALIGN, nbytes = numel * dtype_size(where.dtype);
    return (struct run){.off = where.swap_off - lead,
                        .nbytes = numel > 0 ? size_round_up(lead + nbytes, SWAP_ALIGN) : 0,
                        .lead = lead};
}

static struct run run_mine(const struct zero *z, size_t param_idx)
{
    size_t numel = z->options.table->params[param_idx].numel;
    if (z->window.is_split) numel = zero_piece_mine(z, param_idx).numel;
    return run_of(z, param_idx, numel);
}

/* Whether a parameter is frozen and rests in a file of others. */
static bool is_in_place(const struct zero *z, size_t param_idx)
{
    return z->options.swap.frozen_at && z->options.swap.frozen_at[param_idx] != 0;
}

/* Bytes that a chunk takes in staging: the same on every rank. Where chunks rest in a file of
 * others, each rank's begins anywhere in a block. */
static size_t chunk_nbytes(const struct zero *z, size_t param_idx)
{
    size_t numel =
        shard_chunk(z->options.table->params[param_idx].numel, z->options.comm->world_size);
    if (is_in_place(z, param_idx))
        return size_round_up(numel * dtype_size(z->options.dtype), SWAP_ALIGN) + SWAP_ALIGN;
    return run_of(z, param_idx, numel).nbytes;
}

/* Bytes in front of a rank's chunk in staging: every rank has the same table of spans. */
static size_t chunk_lead(const struct zero *z, size_t param_idx, int rank)
{
    if (!z->options.swap.params) return 0;
    if (!is_in_place(z, param_idx)) return run_mine(z, param_idx).lead;
    size_t begin = zero_piece_of(z, param_idx, rank).param_off * dtype_size(z->options.dtype);
    return (size_t)((z->options.swap.frozen_at[param_idx] + begin) % SWAP_ALIGN);
}

/* Whether blocks of the file go straight into the window. */
static bool is_direct(const struct zero *z)
{
    return z->options.swap.params && !z->window.is_split;
}

/* Bytes in front of a parameter's first element in the window. */
static size_t lead_of(const struct zero *z, size_t param_idx)
{
    return is_direct(z) ? zero_param_placement(z, param_idx).swap_off % SWAP_ALIGN : 0;
}

/* Elements that its place needs beside its own. */
static size_t slack(const struct zero *z)
{
    return is_direct(z) ? SWAP_ALIGN / dtype_size(z->options.dtype) : 0;
}

/* ---- gathers: spans -------------------------------------------------------------------------- */

/* First element of a parameter's chunk in ZERO_PARAMS: the same place on every rank. */
static size_t chunk_off(const struct zero *z, size_t param_idx)
{
    const struct zero_param *p = &z->own.params[param_idx];
    size_t size = dtype_size(z->options.dtype);
    if (p->group == z->options.n_groups) return p->frozen_off / size;
    return z->own.groups[p->group].param_off / size + p->off;
}

/* Gathers the ranks' chunks of a parameter, from element `src` there (of staging: where their first
 * blocks are) to `dst` here: adds to `spans`
 * from `at` on, returns where they end. */
static size_t span_chunks(const struct zero *z, struct comm_span *spans, size_t at,
                          size_t param_idx, size_t src, size_t dst)
{
    size_t size = dtype_size(z->options.dtype);
    for (int r = 0; r < z->options.comm->world_size; r++) {
        struct zero_piece piece = zero_piece_of(z, param_idx, r);
        if (piece.numel > 0)
            spans[at++] = (struct comm_span){.src_off = src + chunk_lead(z, param_idx, r) / size,
                                             .dst_off = dst + piece.param_off,
                                             .numel = piece.numel,
                                             .owner = r,
                                             .to = COMM_ALL};
    }
    return at;
}

static size_t sent_nbytes(const struct zero *z, const struct comm_span *spans, size_t n)
{
    size_t numel = 0;
    for (size_t i = 0; i < n; i++)
        if (spans[i].owner == z->options.comm->rank) numel += spans[i].numel;
    return numel * (size_t)(z->options.comm->world_size - 1) * dtype_size(z->options.dtype);
}

/* From ZERO_PARAMS, or from staging where chunks are read first, into the window. */
static struct comm_move into_window(const struct zero *z, const struct comm_span *spans, size_t n)
{
    enum zero_block from = z->options.swap.params ? ZERO_STAGING : ZERO_PARAMS;
    return (struct comm_move){.src = z->mem.blocks[from],
                              .dst = z->mem.blocks[ZERO_WINDOW],
                              .elem_nbytes = dtype_size(z->options.dtype),
                              .spans = spans,
                              .n_spans = n};
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* A place in the window; what is read straight into it comes in whole blocks. */
static cz_status window_take(struct zero *z, size_t numel, size_t *off)
{
    if (is_direct(z)) numel = size_round_up(numel, slack(z));
    return zero_block_take(z, ZERO_WINDOW, numel, z->options.dtype, off);
}

/* Which parameters stay: small ones, and, from the swap file, of the others the first that fit into
 * what memory may hold (max_in_cpu). */
static cz_status place_residents(struct zero *z, bool *resident)
{
    const struct zero_options *o = &z->options;
    size_t left = o->swap.params ? o->swap.params_in_memory : 0, off;
    shard_persistent(o->table, o->stage3.param_persistence_threshold,
                     o->stage3.model_persistence_threshold, resident);
    for (size_t i = 0; i < o->table->n_params; i++) {
        size_t numel = o->table->params[i].numel;
        if (resident[i] || numel > left) continue;
        left -= numel;
        resident[i] = true;
    }
    for (size_t i = 0; i < o->table->n_params; i++) {
        struct zero_param *p = &z->own.params[i];
        p->resident = resident[i];
        if (!resident[i]) continue;
        z->figures.resident_numel += o->table->params[i].numel;
        TRY(window_take(z, o->table->params[i].numel + slack(z), &off));
        p->resident_off = (off + lead_of(z, i)) / dtype_size(o->dtype);
    }
    return CZ_OK;
}

/* The schedule sees parameters as large as their places in the window: with slack where whole
 * blocks of the file are read into it. */
static cz_status make_schedule(struct zero *z, const bool *resident)
{
    const struct zero_options *o = &z->options;
    size_t n_params = o->table->n_params, align = is_direct(z) ? SWAP_ALIGN : ZERO_ALIGN;
    size_t *numel = calloc(n_params + 1, sizeof *numel);
    struct fetch_visit *visits = calloc(o->n_visits + 1, sizeof *visits);
    cz_status st = CZ_OK;
    if (!numel || !visits) {
        st = err_set(CZ_NOMEM, 0, "no memory for the schedule of %zu visits", o->n_visits);
    } else {
        for (size_t i = 0; i < n_params; i++) numel[i] = o->table->params[i].numel + slack(z);
        for (size_t v = 0; v < o->n_visits; v++) {
            const struct zero_unit *unit = &o->units[o->visits[v].unit_idx];
            visits[v] = (struct fetch_visit){.param_idx = unit->param_idx, .n = unit->n};
        }
        const struct fetch_options options = {.numel = numel,
                                              .resident = resident,
                                              .n_params = n_params,
                                              .visits = visits,
                                              .n_visits = o->n_visits,
                                              .max_live = o->stage3.max_live,
                                              .prefetch_numel = o->stage3.prefetch_numel,
                                              .max_reuse = o->stage3.max_reuse,
                                              .align = align / dtype_size(o->dtype)};
        st = fetch_schedule_init(&z->window.schedule, &options);
    }
    free(numel);
    free(visits);
    return st;
}

/* Chunks of the parameters that stay: trained ones first, which an update changes. */
static cz_status span_residents(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct zero_window *w = &z->window;
    size_t n = o->table->n_params * (size_t)o->comm->world_size, at = 0;
    w->resident_spans = calloc(n + 1, sizeof *w->resident_spans);
    if (!w->resident_spans) return err_set(CZ_NOMEM, 0, "no memory for %zu spans", n);
    for (int frozen = 0; frozen < 2; frozen++) {
        for (size_t i = 0; i < o->table->n_params; i++)
            if (z->own.params[i].resident && o->table->params[i].trainable == !frozen)
                at = span_chunks(z, w->resident_spans, at, i, chunk_off(z, i),
                                 z->own.params[i].resident_off);
        if (!frozen) w->n_resident_spans_trained = at;
    }
    w->n_resident_spans = at;
    z->figures.update_nbytes = sent_nbytes(z, w->resident_spans, w->n_resident_spans_trained);
    z->figures.n_updates = w->n_resident_spans_trained > 0;
    return CZ_OK;
}

/* Every op's gather, as one table of spans: begun by number, nothing is computed in a pass. */
static cz_status span_fetches(struct zero *z)
{
    struct zero_window *w = &z->window;
    const struct fetch_schedule *s = &w->schedule;
    size_t n = s->n_stays * (size_t)z->options.comm->world_size, at = 0;
    w->spans = calloc(n + 1, sizeof *w->spans);
    w->first_span = calloc(s->n_ops + 1, sizeof *w->first_span);
    if (!w->spans || !w->first_span)
        return err_set(CZ_NOMEM, 0, "no memory for %zu gathers", s->n_ops);
    for (size_t i = 0; i < s->n_ops; i++) {
        w->first_span[i] = at;
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++)
            at = span_chunks(z, w->spans, at, s->stays[k].param_idx,
                             chunk_off(z, s->stays[k].param_idx), w->off + s->stays[k].off);
    }
    w->first_span[s->n_ops] = at;
    z->figures.fetch_nbytes = sent_nbytes(z, w->spans, at);
    return CZ_OK;
}

/* Bytes into staging of a stay's chunk. */
static size_t staging_at(const struct zero *z, size_t op, size_t stay)
{
    return op % ZERO_FETCH_SLOTS * z->window.staging_slot_nbytes + z->window.staging_off[stay];
}

/* Chunks that are read get places in a slot of staging, which holds any op's, and any resident
 * parameter's; gathers take them from there instead of ZERO_PARAMS. */
static cz_status place_chunks(struct zero *z)
{
    struct zero_window *w = &z->window;
    const struct fetch_schedule *s = &w->schedule;
    size_t size = dtype_size(z->options.dtype), most = 0, off;
    for (size_t i = 0; i < s->n_ops; i++) {
        size_t used = 0;
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++) {
            w->staging_off[k] = used;
            used += chunk_nbytes(z, s->stays[k].param_idx);
        }
        if (used > most) most = used;
    }
    for (size_t i = 0; i < z->options.table->n_params; i++)
        if (z->own.params[i].resident && chunk_nbytes(z, i) > most) most = chunk_nbytes(z, i);
    w->staging_slot_nbytes = most;
    for (size_t i = 0; i < s->n_ops; i++) {
        size_t at = w->first_span[i];
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++) {
            size_t param_idx = s->stays[k].param_idx;
            size_t src = staging_at(z, i, k);
            at = span_chunks(z, w->spans, at, param_idx, src / size, w->off + s->stays[k].off);
        }
    }
    return zero_block_take(z, ZERO_STAGING, ZERO_FETCH_SLOTS * most + SWAP_ALIGN, DTYPE_U8, &off);
}

static cz_status init_reads(struct zero *z)
{
    struct zero_window *w = &z->window;
    size_t n = w->schedule.n_stays + 1, off;
    w->read_tickets = calloc(n, sizeof *w->read_tickets);
    w->staging_off = calloc(n, sizeof *w->staging_off);
    w->is_read = calloc(n, sizeof *w->is_read);
    if (!w->read_tickets || !w->staging_off || !w->is_read)
        return err_set(CZ_NOMEM, 0, "no memory for %zu reads of parameters", n - 1);
    for (size_t k = 0; k < w->schedule.n_stays; k++) {
        const struct fetch_stay *stay = &w->schedule.stays[k];
        const struct run run = run_mine(z, stay->param_idx);
        z->figures.pass_read_nbytes += run.nbytes;
        if (stay->first_visit < z->options.n_units) z->figures.forward_read_nbytes += run.nbytes;
    }
    for (size_t i = 0; i < z->options.table->n_params; i++)
        if (z->own.params[i].resident && z->options.table->params[i].trainable && !z->late.on)
            z->figures.update_read_nbytes += run_mine(z, i).nbytes;
    if (w->is_split) return place_chunks(z);
    /* the window's begin moves up to a block: zero_lend_to_swap() */
    return zero_block_take(z, ZERO_WINDOW, SWAP_ALIGN, DTYPE_U8, &off);
}

cz_status zero_window_init(struct zero *z)
{
    struct zero_window *w = &z->window;
    size_t off;
    cz_status st;
    if (!w->is_used) return CZ_OK;
    bool *resident = calloc(z->options.table->n_params + 1, sizeof *resident);
    if (!resident) return err_set(CZ_NOMEM, 0, "no memory for resident parameters");
    TRY_GOTO(place_residents(z, resident), end);
    TRY_GOTO(make_schedule(z, resident), end);
end:
    free(resident);
    if (st != CZ_OK) return st;
    z->figures.window_numel = w->schedule.window_numel;
    z->figures.live_max = w->schedule.live_max;
    z->figures.fetched_numel = w->schedule.fetched_numel;
    z->figures.n_gathers = w->is_split ? w->schedule.n_ops : 0;
    TRY(window_take(z, w->schedule.window_numel, &off));
    w->off = off / dtype_size(z->options.dtype);
    w->tickets = calloc(w->schedule.n_ops + 1, sizeof *w->tickets);
    if (!w->tickets) return err_set(CZ_NOMEM, 0, "no memory for %zu gathers", w->schedule.n_ops);
    if (w->is_split) {
        TRY(span_residents(z));
        TRY(span_fetches(z));
    }
    return z->options.swap.params ? init_reads(z) : CZ_OK;
}

void zero_window_free(struct zero *z)
{
    fetch_schedule_free(&z->window.schedule);
    free(z->window.spans);
    free(z->window.first_span);
    free(z->window.tickets);
    free(z->window.resident_spans);
    free(z->window.read_tickets);
    free(z->window.staging_off);
    free(z->window.is_read);
}

size_t zero_window_reads_until(const struct zero *z, size_t visit)
{
    const struct fetch_schedule *s = &z->window.schedule;
    size_t begin = s->op_begin[visit], end = s->op_begin[visit + 1];
    bool is_ahead = z->window.is_split && z->options.swap.params && begin < end && end < s->n_ops;
    return is_ahead ? end + 1 : end;
}

size_t zero_window_fed_nbytes(const struct zero *z)
{
    const struct fetch_schedule *s = &z->window.schedule;
    size_t n_done = z->late.n_at_once, op = 0, sum = 0;
    if (!z->window.is_used || !z->options.swap.params) return 0;
    for (size_t v = 0; v < z->options.n_units; v++) {
        for (; op < zero_window_reads_until(z, v); op++) {
            for (size_t k = s->ops[op].first; k < s->ops[op].first + s->ops[op].n; k++)
                if (zero_late_feeds(z, s->stays[k].param_idx, n_done))
                    sum += run_mine(z, s->stays[k].param_idx).nbytes;
            if (z->late.due_op[op] > n_done) n_done = z->late.due_op[op];
        }
        if (z->late.due[v] > n_done) n_done = z->late.due[v];
    }
    return sum;
}

static const void *window_at(const struct zero *z, size_t off)
{
    return z->mem.blocks[ZERO_WINDOW] + off * dtype_size(z->options.dtype);
}

void zero_window_bind(struct zero *z)
{
    for (size_t i = 0; i < z->options.table->n_params; i++) {
        const struct zero_param *p = &z->own.params[i];
        z->pointers.params[i] = p->resident ? window_at(z, p->resident_off) : NULL;
    }
}

/* ---- a pass: reads --------------------------------------------------------------------------- */

/* An evaluation stops after the forward visits: what only a backward needs is left out. */
static bool is_wanted(const struct zero *z, const struct fetch_op *op)
{
    if (z->turn.pass != ZERO_PASS_EVAL) return true;
    for (size_t k = op->first; k < op->first + op->n; k++)
        if (z->window.schedule.stays[k].first_visit < z->options.n_units) return true;
    return false;
}

/* Where this rank's blocks of a stay's parameter go. */
static unsigned char *read_to(const struct zero *z, size_t op, size_t stay)
{
    const struct zero_window *w = &z->window;
    size_t off = w->off + w->schedule.stays[stay].off;
    return w->is_split ? z->mem.blocks[ZERO_STAGING] + staging_at(z, op, stay)
                       : z->mem.blocks[ZERO_WINDOW] + off * dtype_size(z->options.dtype);
}

/* A read of what an update may just have written. */
static cz_status read_stay(struct zero *z, size_t op, size_t stay, const struct run *run)
{
    const struct zero_param *p = &z->own.params[z->window.schedule.stays[stay].param_idx];
    if (p->group != z->options.n_groups) TRY(zero_late_written(z));
    return swap_read_begin(z->mem.swap, read_to(z, op, stay), run->off, run->nbytes,
                           &z->window.read_tickets[stay]);
}

/* What this rank keeps of an op's parameters begins to come: from the tiles that make it now, else
 * from the file. */
static cz_status read_begin(struct zero *z, size_t op)
{
    struct zero_window *w = &z->window;
    const struct fetch_op *o = &w->schedule.ops[op];
    size_t n_to_read = 0;
    bool wanted = is_wanted(z, o);
    for (size_t k = o->first; k < o->first + o->n; k++) {
        size_t param_idx = w->schedule.stays[k].param_idx;
        const struct run run = run_mine(z, param_idx);
        bool is_fed = z->late.is_pending && zero_late_feeds(z, param_idx, z->late.n_done);
        if (is_fed) zero_late_open(z, param_idx, read_to(z, op, k) + run.lead);
        w->read_tickets[k] = 0;
        w->is_read[k] = wanted && run.nbytes > 0 && !is_fed;
        n_to_read += w->is_read[k];
    }
    if (z->late.on) TRY(zero_late_op(z, op));
    for (size_t k = o->first; n_to_read > 0 && k < o->first + o->n; k++) {
        const struct run run = run_mine(z, w->schedule.stays[k].param_idx);
        if (w->is_read[k]) TRY(read_stay(z, op, k, &run));
    }
    return CZ_OK;
}

static cz_status read_wait(struct zero *z, size_t op)
{
    const struct fetch_op *o = &z->window.schedule.ops[op];
    for (size_t k = o->first; k < o->first + o->n; k++)
        TRY(swap_wait(z->mem.swap, z->window.read_tickets[k]));
    return CZ_OK;
}

/* The end of a pass holds up the GPU alone: what it sent last may still be leaving staging. */
static cz_status empty_staging(struct zero *z)
{
    const struct comm_ticket last = z->window.last;
    z->window.last.id = 0;
    return z->options.on_gpu && last.id > 0 ? zero_move_wait_host(z, last) : CZ_OK;
}

/* Chunks are read one op ahead; their slot was another op's, which has been sent by then. */
static cz_status read_chunks(struct zero *z, size_t op)
{
    struct zero_window *w = &z->window;
    for (; w->n_reads_begun <= op + 1 && w->n_reads_begun < w->schedule.n_ops; w->n_reads_begun++) {
        size_t next = w->n_reads_begun;
        if (next == 0) TRY(empty_staging(z));
        if (next >= ZERO_FETCH_SLOTS)
            TRY(zero_move_wait_host(z, w->tickets[next - ZERO_FETCH_SLOTS]));
        TRY(read_begin(z, next));
    }
    return read_wait(z, op);
}

/* ---- a pass: visits -------------------------------------------------------------------------- */

/* Parameters may be looked up from here on, but are there only after the visit's wait. */
static cz_status op_begin(struct zero *z, size_t op)
{
    struct zero_window *w = &z->window;
    const struct fetch_op *o = &w->schedule.ops[op];
    w->tickets[op].id = 0;
    w->n_begun = op + 1;
    if (!is_wanted(z, o)) return CZ_OK;
    for (size_t k = o->first; k < o->first + o->n; k++) {
        const struct fetch_stay *stay = &w->schedule.stays[k];
        size_t lead = lead_of(z, stay->param_idx) / dtype_size(z->options.dtype);
        z->pointers.params[stay->param_idx] = window_at(z, w->off + stay->off + lead);
    }
    if (is_direct(z)) return read_begin(z, op);
    if (z->options.swap.params)
        TRY(read_chunks(z, op));
    else if (z->late.on)
        TRY(zero_late_op(z, op));
    const struct comm_move args =
        into_window(z, w->spans + w->first_span[op], w->first_span[op + 1] - w->first_span[op]);
    return zero_move_begin(z, &args, &w->tickets[op]);
}

cz_status zero_window_acquire(struct zero *z)
{
    struct zero_window *w = &z->window;
    const struct fetch_schedule *s = &w->schedule;
    size_t visit = z->turn.visit, needed = s->ops_needed[visit];
    for (size_t i = s->op_begin[visit]; i < s->op_begin[visit + 1]; i++) TRY(op_begin(z, i));
    for (; is_direct(z) && w->n_reads_ended < needed; w->n_reads_ended++)
        TRY(read_wait(z, w->n_reads_ended));
    return needed > 0 ? zero_move_wait(z, w->tickets[needed - 1]) : CZ_OK;
}

void zero_window_release(struct zero *z)
{
    const struct fetch_schedule *s = &z->window.schedule;
    size_t visit = z->turn.visit;
    for (size_t k = s->drop_begin[visit]; k < s->drop_begin[visit + 1]; k++)
        z->pointers.params[s->stays[s->drops[k]].param_idx] = NULL;
}

/* The end of a pass, also of one that was given up. The last gather's ticket is kept: its chunks
 * may still be leaving staging. */
cz_status zero_window_finish(struct zero *z)
{
    struct zero_window *w = &z->window;
    size_t n = w->n_begun;
    cz_status read = CZ_OK;
    w->n_begun = 0;
    if (w->read_tickets) { /* none where memory ended while the window was made */
        for (size_t k = 0; k < w->schedule.n_stays; k++) {
            cz_status st = w->read_tickets[k] ? swap_wait(z->mem.swap, w->read_tickets[k]) : CZ_OK;
            if (read == CZ_OK) read = st;
            w->read_tickets[k] = 0;
        }
        w->n_reads_begun = w->n_reads_ended = 0;
    }
    while (n > 0 && w->tickets[n - 1].id == 0) n--;
    if (n > 0) w->last = w->tickets[n - 1];
    cz_status moved = n > 0 ? zero_move_wait(z, w->tickets[n - 1]) : CZ_OK;
    return read != CZ_OK ? read : moved;
}

/* ---- parameters that stay -------------------------------------------------------------------- */

static bool is_due(const struct zero *z, size_t param_idx, bool trained_only)
{
    return z->own.params[param_idx].resident &&
           (!trained_only || z->options.table->params[param_idx].trainable);
}

/* Straight into the window. */
static cz_status read_residents(struct zero *z, bool trained_only)
{
    size_t size = dtype_size(z->options.dtype);
    uint64_t ticket;
    for (size_t i = 0; i < z->options.table->n_params; i++) {
        if (!is_due(z, i, trained_only)) continue;
        const struct run run = run_mine(z, i);
        size_t at = z->own.params[i].resident_off * size - run.lead;
        if (run.nbytes > 0)
            TRY(swap_read_begin(z->mem.swap, z->mem.blocks[ZERO_WINDOW] + at, run.off, run.nbytes,
                                &ticket));
    }
    return swap_drain(z->mem.swap);
}

/* Those whose chunks are in staging, put together. */
static cz_status move_batch(struct zero *z, size_t n_spans)
{
    const struct comm_move args = into_window(z, z->window.resident_spans, n_spans);
    struct comm_ticket ticket;
    TRY(swap_drain(z->mem.swap));
    if (n_spans == 0) return CZ_OK;
    TRY(zero_move_begin(z, &args, &ticket));
    return zero_move_wait_host(z, ticket); /* staging is read into again */
}

/* Chunks, as many at a time as staging holds. */
static cz_status read_and_gather_residents(struct zero *z, bool trained_only)
{
    struct zero_window *w = &z->window;
    size_t size = dtype_size(z->options.dtype), used = 0, n_spans = 0;
    uint64_t ticket;
    TRY(empty_staging(z));
    for (size_t i = 0; i < z->options.table->n_params; i++) {
        const struct run run = run_mine(z, i);
        size_t takes = chunk_nbytes(z, i);
        if (!is_due(z, i, trained_only)) continue;
        if (used + takes > ZERO_FETCH_SLOTS * w->staging_slot_nbytes) {
            TRY(move_batch(z, n_spans));
            used = n_spans = 0;
        }
        if (run.nbytes > 0)
            TRY(swap_read_begin(z->mem.swap, z->mem.blocks[ZERO_STAGING] + used, run.off,
                                run.nbytes, &ticket));
        n_spans = span_chunks(z, w->resident_spans, n_spans, i, used / size,
                              z->own.params[i].resident_off);
        used += takes;
    }
    return move_batch(z, n_spans);
}

cz_status zero_window_residents(struct zero *z, bool trained_only)
{
    const struct zero_window *w = &z->window;
    if (is_direct(z)) return read_residents(z, trained_only);
    if (z->options.swap.params) return read_and_gather_residents(z, trained_only);
    size_t n = trained_only ? w->n_resident_spans_trained : w->n_resident_spans;
    const struct comm_move args = into_window(z, w->resident_spans, n);
    return n == 0 ? CZ_OK : zero_move(z, &args);
}

/* Parameters come for the visits that use them (layout/fetch.h), or for good: put together from all
 * ranks at stage 3, read from the swap file (gather_swap.c), or both. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>

/* First element of a parameter's chunk in ZERO_PARAMS: the same place on every rank. */
static size_t chunk_off(const struct zero *z, size_t param_idx)
{
    const struct zero_place *place = &z->places[param_idx];
    size_t size = dtype_size(z->options.dtype);
    if (place->group == z->options.n_groups) return place->frozen_off / size;
    return z->groups[place->group].param_off / size + place->off;
}

size_t zero_chunk_spans(const struct zero *z, struct comm_span *spans, size_t at, size_t param_idx,
                        size_t src, size_t dst)
{
    for (int r = 0; r < z->options.comm->world_size; r++) {
        struct zero_piece piece = zero_piece_of(z, param_idx, r);
        if (piece.numel > 0)
            spans[at++] = (struct comm_span){.src_off = src,
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

/* ---- parameters that stay -------------------------------------------------------------------- */

/* Swapped: of the others the first that fit into what memory may hold. */
static void keep_more(const struct zero *z, bool *resident)
{
    const struct param_table *table = z->options.table;
    size_t left = z->options.swap.params ? z->options.swap.params_in_memory : 0;
    for (size_t i = 0; i < table->n_params; i++) {
        if (resident[i] || table->params[i].numel > left) continue;
        left -= table->params[i].numel;
        resident[i] = true;
    }
}

/* Room in the window; what is read straight into it comes in whole blocks. */
static cz_status window_take(struct zero *z, size_t numel, size_t *off)
{
    size_t block = zero_swap_slack(z);
    if (block > 0) numel = size_round_up(numel, block);
    return zero_block_take(z, ZERO_WINDOW, numel, z->options.dtype, off);
}

static cz_status place_resident(struct zero *z, size_t i)
{
    size_t size = dtype_size(z->options.dtype), lead = zero_swap_lead(z, i), off;
    TRY(window_take(z, z->options.table->params[i].numel + zero_swap_slack(z), &off));
    z->places[i].resident_off = (off + lead) / size;
    return CZ_OK;
}

static cz_status place_residents(struct zero *z, bool *resident)
{
    const struct zero_options *o = &z->options;
    shard_persistent(o->table, o->stage3.param_persistence_threshold,
                     o->stage3.model_persistence_threshold, resident);
    keep_more(z, resident);
    for (size_t i = 0; i < o->table->n_params; i++) {
        z->places[i].resident = resident[i];
        if (!resident[i]) continue;
        z->figures.resident_numel += o->table->params[i].numel;
        TRY(place_resident(z, i));
    }
    return CZ_OK;
}

static cz_status span_residents(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t n = o->table->n_params * (size_t)o->comm->world_size, at = 0;
    z->resident_spans = calloc(n + 1, sizeof *z->resident_spans);
    if (!z->resident_spans) return err_set(CZ_NOMEM, 0, "no memory for %zu spans", n);
    for (int frozen = 0; frozen < 2; frozen++) {
        for (size_t i = 0; i < o->table->n_params; i++)
            if (z->places[i].resident && o->table->params[i].trainable == !frozen)
                at = zero_chunk_spans(z, z->resident_spans, at, i, chunk_off(z, i),
                                      z->places[i].resident_off);
        if (!frozen) z->n_resident_spans_trained = at;
    }
    z->n_resident_spans = at;
    return CZ_OK;
}

cz_status zero_gather_resident(struct zero *z, bool trained_only)
{
    if (z->options.swap.params) return zero_swap_residents(z, trained_only);
    const struct comm_move args = {.src = z->blocks[ZERO_PARAMS],
                                   .dst = z->blocks[ZERO_WINDOW],
                                   .elem_nbytes = dtype_size(z->options.dtype),
                                   .spans = z->resident_spans,
                                   .n_spans = trained_only ? z->n_resident_spans_trained
                                                           : z->n_resident_spans};
    return args.n_spans == 0 ? CZ_OK : zero_move(z, &args);
}

/* ---- parameters that come and go ------------------------------------------------------------- */

static cz_status schedule(struct zero *z, const bool *resident)
{
    const struct zero_options *o = &z->options;
    size_t n_params = o->table->n_params;
    size_t align = zero_swap_slack(z) > 0 ? SWAP_ALIGN : ZERO_ALIGN;
    size_t *numel = calloc(n_params + 1, sizeof *numel);
    struct fetch_visit *visits = calloc(o->n_visits + 1, sizeof *visits);
    cz_status st = CZ_OK;
    if (!numel || !visits) {
        st = err_set(CZ_NOMEM, 0, "no memory for the schedule of %zu visits", o->n_visits);
    } else {
        for (size_t i = 0; i < n_params; i++)
            numel[i] = o->table->params[i].numel + zero_swap_slack(z);
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
        st = fetch_schedule_init(&z->fetch, &options);
    }
    free(numel);
    free(visits);
    return st;
}

static cz_status span_fetches(struct zero *z)
{
    const struct fetch_schedule *s = &z->fetch;
    size_t n = s->n_stays * (size_t)z->options.comm->world_size, at = 0;
    z->fetch_spans = calloc(n + 1, sizeof *z->fetch_spans);
    z->fetch_first_span = calloc(s->n_ops + 1, sizeof *z->fetch_first_span);
    if (!z->fetch_spans || !z->fetch_first_span)
        return err_set(CZ_NOMEM, 0, "no memory for %zu gathers", s->n_ops);
    for (size_t i = 0; i < s->n_ops; i++) {
        z->fetch_first_span[i] = at;
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++)
            at = zero_chunk_spans(z, z->fetch_spans, at, s->stays[k].param_idx,
                                  chunk_off(z, s->stays[k].param_idx),
                                  z->window_off + s->stays[k].off);
    }
    z->fetch_first_span[s->n_ops] = at;
    z->figures.fetch_nbytes = sent_nbytes(z, z->fetch_spans, at);
    return CZ_OK;
}

static cz_status init_window(struct zero *z, bool *resident)
{
    size_t off;
    TRY(place_residents(z, resident));
    TRY(schedule(z, resident));
    z->figures.window_numel = z->fetch.window_numel;
    z->figures.live_max = z->fetch.live_max;
    z->figures.fetched_numel = z->fetch.fetched_numel;
    z->figures.n_gathers = z->split_params ? z->fetch.n_ops : 0;
    TRY(window_take(z, z->fetch.window_numel, &off));
    z->window_off = off / dtype_size(z->options.dtype);
    z->fetch_tickets = calloc(z->fetch.n_ops + 1, sizeof *z->fetch_tickets);
    if (!z->fetch_tickets) return err_set(CZ_NOMEM, 0, "no memory for %zu gathers", z->fetch.n_ops);
    if (z->split_params) {
        TRY(span_residents(z));
        TRY(span_fetches(z));
        z->figures.update_nbytes = sent_nbytes(z, z->resident_spans, z->n_resident_spans_trained);
        z->figures.n_updates = z->n_resident_spans_trained > 0;
    }
    return z->options.swap.params ? zero_swap_fetch_init(z) : CZ_OK;
}

/* Stages 1 and 2 gather whole groups after an update. */
static void count_update(struct zero *z)
{
    const struct zero_options *o = &z->options;
    size_t others = (size_t)o->comm->world_size - 1;
    if (others == 0 || (o->stage != 1 && o->stage != 2)) return;
    z->figures.update_nbytes = z->figures.numel_own * others * dtype_size(o->dtype);
    z->figures.n_updates = o->n_groups;
}

cz_status zero_gather_init(struct zero *z)
{
    count_update(z);
    if (!z->windowed) return CZ_OK;
    bool *resident = calloc(z->options.table->n_params + 1, sizeof *resident);
    if (!resident) return err_set(CZ_NOMEM, 0, "no memory for the parameters that stay gathered");
    cz_status st = init_window(z, resident);
    free(resident);
    return st;
}

void zero_gather_free(struct zero *z)
{
    fetch_schedule_free(&z->fetch);
    free(z->fetch_spans);
    free(z->fetch_first_span);
    free(z->fetch_tickets);
    free(z->resident_spans);
    zero_swap_fetch_free(z);
}

static const void *window_at(const struct zero *z, size_t off)
{
    return z->blocks[ZERO_WINDOW] + off * dtype_size(z->options.dtype);
}

void zero_gather_bind(struct zero *z)
{
    for (size_t i = 0; i < z->options.table->n_params; i++)
        z->params[i] = z->places[i].resident ? window_at(z, z->places[i].resident_off) : NULL;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* An evaluation stops after the forward visits: what only a backward needs is left out. */
bool zero_fetch_is_wanted(const struct zero *z, const struct fetch_op *op)
{
    if (z->pass != ZERO_PASS_EVAL) return true;
    for (size_t k = op->first; k < op->first + op->n; k++)
        if (z->fetch.stays[k].first_visit < z->options.n_units) return true;
    return false;
}

static cz_status fetch_begin(struct zero *z, size_t i)
{
    const struct fetch_op *op = &z->fetch.ops[i];
    z->fetch_tickets[i].id = 0;
    z->n_fetches_begun = i + 1;
    if (!zero_fetch_is_wanted(z, op)) return CZ_OK;
    size_t lead = 0;
    for (size_t k = op->first; k < op->first + op->n; k++) {
        const struct fetch_stay *stay = &z->fetch.stays[k];
        lead = zero_swap_lead(z, stay->param_idx) / dtype_size(z->options.dtype);
        z->params[stay->param_idx] = window_at(z, z->window_off + stay->off + lead);
    }
    if (z->options.swap.params) return zero_swap_fetch_begin(z, i);
    const struct comm_move args = {.src = z->blocks[ZERO_PARAMS],
                                   .dst = z->blocks[ZERO_WINDOW],
                                   .elem_nbytes = dtype_size(z->options.dtype),
                                   .spans = z->fetch_spans + z->fetch_first_span[i],
                                   .n_spans = z->fetch_first_span[i + 1] - z->fetch_first_span[i]};
    return zero_move_begin(z, &args, &z->fetch_tickets[i]);
}

cz_status zero_fetch_visit(struct zero *z)
{
    const struct fetch_schedule *s = &z->fetch;
    size_t needed = s->ops_needed[z->visit];
    for (size_t i = s->op_begin[z->visit]; i < s->op_begin[z->visit + 1]; i++)
        TRY(fetch_begin(z, i));
    if (z->options.swap.params) TRY(zero_swap_fetch_wait(z, needed));
    return needed > 0 ? zero_move_wait(z, z->fetch_tickets[needed - 1]) : CZ_OK;
}

void zero_fetch_drop(struct zero *z)
{
    const struct fetch_schedule *s = &z->fetch;
    for (size_t k = s->drop_begin[z->visit]; k < s->drop_begin[z->visit + 1]; k++)
        z->params[s->stays[s->drops[k]].param_idx] = NULL;
}

cz_status zero_fetch_finish(struct zero *z)
{
    size_t n = z->n_fetches_begun;
    z->n_fetches_begun = 0;
    cz_status read = z->options.swap.params ? zero_swap_fetch_finish(z) : CZ_OK;
    while (n > 0 && z->fetch_tickets[n - 1].id == 0) n--;
    if (n > 0) z->last_fetch = z->fetch_tickets[n - 1];
    cz_status moved = n > 0 ? zero_move_wait(z, z->fetch_tickets[n - 1]) : CZ_OK;
    return read != CZ_OK ? read : moved;
}

/* Parameters that rest in the swap file: read into the window for the visits that use them, or,
 * when they are split over ranks, chunk by chunk into staging, from where the gather takes them. */
#include "zero/zero_impl.h"

#include "base/size.h"

#include <stdlib.h>

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
    return run_of(z, param_idx, z->split_params ? zero_piece_mine(z, param_idx).numel : numel);
}

/* The room for a chunk in staging: the same on every rank. */
static size_t chunk_room(const struct zero *z, size_t param_idx)
{
    size_t numel = z->options.table->params[param_idx].numel;
    return run_of(z, param_idx, shard_chunk(numel, z->options.comm->world_size)).nbytes;
}

size_t zero_swap_lead(const struct zero *z, size_t param_idx)
{
    bool is_direct = z->options.swap.params && !z->split_params;
    return is_direct ? zero_param_placement(z, param_idx).swap_off % SWAP_ALIGN : 0;
}

size_t zero_swap_slack(const struct zero *z)
{
    bool is_direct = z->options.swap.params && !z->split_params;
    return is_direct ? SWAP_ALIGN / dtype_size(z->options.dtype) : 0;
}

/* ---- layout -----------------------------------------------------------------------------------
 */

/* A slot of staging holds any op's chunks, and any resident parameter's. */
static cz_status place_chunks(struct zero *z)
{
    const struct fetch_schedule *s = &z->fetch;
    size_t most = 0, off;
    for (size_t i = 0; i < s->n_ops; i++) {
        size_t used = 0;
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++) {
            z->staging_off[k] = used;
            used += chunk_room(z, s->stays[k].param_idx);
        }
        if (used > most) most = used;
    }
    for (size_t i = 0; i < z->options.table->n_params; i++)
        if (z->places[i].resident && chunk_room(z, i) > most) most = chunk_room(z, i);
    z->staging_slot_nbytes = most;
    return zero_block_take(z, ZERO_STAGING, ZERO_FETCH_SLOTS * most + SWAP_ALIGN, DTYPE_U8, &off);
}

/* Bytes into staging of a stay's chunk. */
static size_t staging_at(const struct zero *z, size_t op, size_t stay)
{
    return op % ZERO_FETCH_SLOTS * z->staging_slot_nbytes + z->staging_off[stay];
}

/* The gathers take from staging what they would have taken from ZERO_PARAMS. */
static void redirect_spans(struct zero *z)
{
    const struct fetch_schedule *s = &z->fetch;
    size_t size = dtype_size(z->options.dtype);
    for (size_t i = 0; i < s->n_ops; i++) {
        size_t at = z->fetch_first_span[i];
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++) {
            size_t param_idx = s->stays[k].param_idx;
            size_t src = staging_at(z, i, k) + run_mine(z, param_idx).lead;
            at = zero_chunk_spans(z, z->fetch_spans, at, param_idx, src / size,
                                  z->window_off + s->stays[k].off);
        }
    }
}

static void count_traffic(struct zero *z)
{
    const struct zero_options *o = &z->options;
    struct zero_figures *f = &z->figures;
    for (size_t k = 0; k < z->fetch.n_stays; k++)
        f->pass_read_nbytes += run_mine(z, z->fetch.stays[k].param_idx).nbytes;
    for (size_t i = 0; i < o->table->n_params; i++)
        if (z->places[i].resident && o->table->params[i].trainable)
            f->update_read_nbytes += run_mine(z, i).nbytes;
    if (o->stage == 0 || z->split_params || o->comm->world_size == 1) return;
    size_t own_nbytes = f->numel_own * dtype_size(o->dtype);
    f->update_read_nbytes += own_nbytes;
    f->update_written_nbytes += own_nbytes * (size_t)(o->comm->world_size - 1);
}

cz_status zero_swap_fetch_init(struct zero *z)
{
    size_t n = z->fetch.n_stays + 1, off;
    z->read_tickets = calloc(n, sizeof *z->read_tickets);
    z->staging_off = calloc(n, sizeof *z->staging_off);
    if (!z->read_tickets || !z->staging_off)
        return err_set(CZ_NOMEM, 0, "no memory for %zu reads of parameters", n - 1);
    count_traffic(z);
    if (!z->split_params) /* the window's begin moves up to a block */
        return zero_block_take(z, ZERO_WINDOW, SWAP_ALIGN, DTYPE_U8, &off);
    TRY(place_chunks(z));
    redirect_spans(z);
    return CZ_OK;
}

void zero_swap_fetch_free(struct zero *z)
{
    free(z->read_tickets);
    free(z->staging_off);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Begin to read what this rank keeps of an op's parameters. */
static cz_status read_op(struct zero *z, size_t op)
{
    const struct fetch_op *o = &z->fetch.ops[op];
    size_t size = dtype_size(z->options.dtype);
    bool is_wanted = zero_fetch_is_wanted(z, o);
    for (size_t k = o->first; k < o->first + o->n; k++) {
        const struct fetch_stay *stay = &z->fetch.stays[k];
        const struct run run = run_mine(z, stay->param_idx);
        unsigned char *dst = z->split_params
                                 ? z->blocks[ZERO_STAGING] + staging_at(z, op, k)
                                 : z->blocks[ZERO_WINDOW] + (z->window_off + stay->off) * size;
        z->read_tickets[k] = 0;
        if (is_wanted && run.nbytes > 0)
            TRY(swap_read_begin(z->swap, dst, run.off, run.nbytes, &z->read_tickets[k]));
    }
    return CZ_OK;
}

static cz_status wait_op(struct zero *z, size_t op)
{
    const struct fetch_op *o = &z->fetch.ops[op];
    for (size_t k = o->first; k < o->first + o->n; k++) TRY(swap_wait(z->swap, z->read_tickets[k]));
    return CZ_OK;
}

/* The end of a pass holds up the GPU alone: what it sent last may still be leaving staging. */
static cz_status empty_staging(struct zero *z)
{
    const struct comm_ticket last = z->last_fetch;
    z->last_fetch.id = 0;
    return z->options.on_gpu && last.id > 0 ? zero_move_wait_host(z, last) : CZ_OK;
}

/* Chunks are read one op ahead; their slot was another op's, which has been sent by then. */
static cz_status read_chunks(struct zero *z, size_t op)
{
    for (; z->n_reads_begun <= op + 1 && z->n_reads_begun < z->fetch.n_ops; z->n_reads_begun++) {
        size_t next = z->n_reads_begun;
        if (next == 0) TRY(empty_staging(z));
        if (next >= ZERO_FETCH_SLOTS)
            TRY(zero_move_wait_host(z, z->fetch_tickets[next - ZERO_FETCH_SLOTS]));
        TRY(read_op(z, next));
    }
    return wait_op(z, op);
}

cz_status zero_swap_fetch_begin(struct zero *z, size_t op)
{
    if (!z->split_params) return read_op(z, op);
    TRY(read_chunks(z, op));
    const struct comm_move args = {.src = z->blocks[ZERO_STAGING],
                                   .dst = z->blocks[ZERO_WINDOW],
                                   .elem_nbytes = dtype_size(z->options.dtype),
                                   .spans = z->fetch_spans + z->fetch_first_span[op],
                                   .n_spans =
                                       z->fetch_first_span[op + 1] - z->fetch_first_span[op]};
    return zero_move_begin(z, &args, &z->fetch_tickets[op]);
}

cz_status zero_swap_fetch_wait(struct zero *z, size_t n_ops)
{
    for (; !z->split_params && z->n_reads_ended < n_ops; z->n_reads_ended++)
        TRY(wait_op(z, z->n_reads_ended));
    return CZ_OK;
}

cz_status zero_swap_fetch_finish(struct zero *z)
{
    z->n_reads_begun = z->n_reads_ended = 0;
    for (size_t k = 0; k < z->fetch.n_stays; k++) z->read_tickets[k] = 0;
    return z->swap ? swap_drain(z->swap) : CZ_OK;
}

/* ---- parameters that stay, and those that ranks keep whole ------------------------------------
 */

static bool is_due(const struct zero *z, size_t param_idx, bool trained_only)
{
    return z->places[param_idx].resident &&
           (!trained_only || z->options.table->params[param_idx].trainable);
}

static cz_status read_residents(struct zero *z, bool trained_only)
{
    size_t size = dtype_size(z->options.dtype);
    uint64_t ticket;
    for (size_t i = 0; i < z->options.table->n_params; i++) {
        const struct run run = run_mine(z, i);
        unsigned char *dst = z->blocks[ZERO_WINDOW] + z->places[i].resident_off * size;
        if (is_due(z, i, trained_only) && run.nbytes > 0)
            TRY(swap_read_begin(z->swap, dst - run.lead, run.off, run.nbytes, &ticket));
    }
    return swap_drain(z->swap);
}

/* Those whose chunks are in staging, put together. */
static cz_status move_batch(struct zero *z, size_t n_spans)
{
    const struct comm_move args = {.src = z->blocks[ZERO_STAGING],
                                   .dst = z->blocks[ZERO_WINDOW],
                                   .elem_nbytes = dtype_size(z->options.dtype),
                                   .spans = z->resident_spans,
                                   .n_spans = n_spans};
    struct comm_ticket ticket;
    TRY(swap_drain(z->swap));
    if (n_spans == 0) return CZ_OK;
    TRY(zero_move_begin(z, &args, &ticket));
    return zero_move_wait_host(z, ticket); /* staging is read into again */
}

static cz_status gather_residents(struct zero *z, bool trained_only)
{
    size_t size = dtype_size(z->options.dtype), used = 0, n_spans = 0;
    uint64_t ticket;
    TRY(empty_staging(z));
    for (size_t i = 0; i < z->options.table->n_params; i++) {
        const struct run run = run_mine(z, i);
        size_t room = chunk_room(z, i);
        if (!is_due(z, i, trained_only)) continue;
        if (used + room > ZERO_FETCH_SLOTS * z->staging_slot_nbytes) {
            TRY(move_batch(z, n_spans));
            used = n_spans = 0;
        }
        if (run.nbytes > 0)
            TRY(swap_read_begin(z->swap, z->blocks[ZERO_STAGING] + used, run.off, run.nbytes,
                                &ticket));
        n_spans = zero_chunk_spans(z, z->resident_spans, n_spans, i, (used + run.lead) / size,
                                   z->places[i].resident_off);
        used += room;
    }
    return move_batch(z, n_spans);
}

cz_status zero_swap_residents(struct zero *z, bool trained_only)
{
    return z->split_params ? gather_residents(z, trained_only) : read_residents(z, trained_only);
}

/* Each rank's run [off, off + nbytes) of its partition, in `all` in rank order, except our own. */
static cz_status write_others(struct zero *z, size_t g, size_t off, size_t nbytes,
                              const unsigned char *all)
{
    const struct comm *comm = z->options.comm;
    size_t partition = z->groups[g].own_numel * dtype_size(z->options.dtype);
    for (int r = 0; r < comm->world_size; r++) {
        const struct zero_range range = {
            .off = z->groups[g].param_swap + (size_t)r * partition + off, .nbytes = nbytes};
        if (r == comm->rank) continue;
        TRY(zero_claim(z, &range));
        TRY(swap_write(z->swap, range.off, nbytes, all + (size_t)r * nbytes));
    }
    return CZ_OK;
}

/* Through the ring's memory, which is free between sweeps. */
cz_status zero_swap_gather_group(struct zero *z, size_t g)
{
    const struct comm *comm = z->options.comm;
    size_t size = dtype_size(z->options.dtype), w = (size_t)comm->world_size;
    size_t partition = z->groups[g].own_numel * size;
    size_t most = RING_SLOTS * z->ring_slot_nbytes / w / size * size;
    unsigned char *all = z->blocks[ZERO_RING], *mine;
    uint64_t own = z->groups[g].param_swap + (size_t)comm->rank * partition;
    for (size_t off = 0, n; off < partition; off += n) {
        n = partition - off < most ? partition - off : most;
        mine = all + (size_t)comm->rank * n;
        TRY(comm_agree(z->options.comm, swap_read(z->swap, own + off, n, mine)));
        TRY(comm_all_gather(z->options.comm, mine, all, n));
        TRY(comm_agree(z->options.comm, write_others(z, g, off, n, all)));
    }
    return CZ_OK;
}

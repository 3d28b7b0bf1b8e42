/* The front of every communicator: collectives are checked and counted here, and the composed ones
 * are made of two primitives, reduce and move, which each kind of communicator implements. A new
 * kind therefore needs two calls, and all kinds give the same results. */
#include "comm/comm_impl.h"

#include "base/hash.h"
#include "base/host/entry.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* spans and notes are scratch of the composed calls; one composed call is under way at a time. */
cz_status comm_init(struct comm *comm, const struct comm_ops *ops, int rank, int world_size)
{
    comm->ops = ops;
    comm->rank = rank;
    comm->world_size = world_size;
    comm->generation = entry_generation();
    comm->spans = calloc((size_t)world_size, sizeof *comm->spans);
    comm->notes = calloc((size_t)world_size, sizeof *comm->notes);
    if (!comm->spans || !comm->notes)
        return err_set(CZ_NOMEM, 0, "no memory for a communicator of %d ranks", world_size);
    return CZ_OK;
}

void comm_fini(struct comm *comm)
{
    free(comm->spans);
    free(comm->notes);
}

void comm_destroy(struct comm *comm)
{
    /* In a forked child the segment, its peers' view of it and MPI are the parent's. */
    if (comm && comm->generation == entry_generation()) comm->ops->destroy(comm);
}

/* ---- the two primitives ---------------------------------------------------------------------- */

static bool is_float(enum cz_dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

/* A span that names a rank outside of the world would be read as an offset by the transports. */
static cz_status check_owner(const struct comm *comm, const struct comm_span *s, int to)
{
    if (s->owner >= 0 && s->owner < comm->world_size && to >= COMM_ALL && to < comm->world_size)
        return CZ_OK;
    return err_set(CZ_INVALID, 0, "a span goes from rank %d to rank %d in a world of %d", s->owner,
                   to, comm->world_size);
}

/* Reducing in place is allowed only with equal dtypes: with others, elements that are not read yet
 * would be overwritten. Traffic counts what this rank sends. */
cz_status comm_reduce_begin(struct comm *comm, const struct comm_reduce *args,
                            struct comm_ticket *ticket)
{
    size_t sent = 0, w = (size_t)comm->world_size;
    ticket->id = 0;
    if (!is_float(args->src_dtype) || !is_float(args->dst_dtype) || !is_float(args->wire))
        return err_set(CZ_INVALID, 0, "reductions take fp32, bf16 and fp16, not %s over %s into %s",
                       dtype_name(args->src_dtype), dtype_name(args->wire),
                       dtype_name(args->dst_dtype));
    if (args->src == args->dst && args->src_dtype != args->dst_dtype && args->n_spans > 0)
        return err_set(CZ_INVALID, 0, "a reduction of %s cannot put %s over its own source",
                       dtype_name(args->src_dtype), dtype_name(args->dst_dtype));
    for (size_t i = 0; i < args->n_spans; i++) {
        const struct comm_span *s = &args->spans[i];
        TRY(check_owner(comm, s, COMM_ALL));
        if (s->owner != comm->rank) sent += s->numel;
        if (s->owner == comm->rank && args->all) sent += s->numel * (w - 1);
    }
    comm->traffic.n_reduce++;
    comm->traffic.reduce_sent_nbytes += sent * dtype_size(args->wire);
    return comm->ops->reduce(comm, args, ticket);
}

/* A span to all leaves this rank once per other rank. */
cz_status comm_move_begin(struct comm *comm, const struct comm_move *args,
                          struct comm_ticket *ticket)
{
    size_t sent = 0, w = (size_t)comm->world_size;
    ticket->id = 0;
    for (size_t i = 0; i < args->n_spans; i++) {
        const struct comm_span *s = &args->spans[i];
        TRY(check_owner(comm, s, s->to));
        if (s->owner != comm->rank || s->to == comm->rank) continue;
        sent += s->numel * (s->to == COMM_ALL ? w - 1 : 1);
    }
    comm->traffic.n_move++;
    comm->traffic.move_sent_nbytes += sent * args->elem_nbytes;
    return comm->ops->move(comm, args, ticket);
}

/* Ticket 0 means that the call was complete when it began. */
cz_status comm_wait(struct comm *comm, struct comm_ticket ticket)
{
    return ticket.id == 0 ? CZ_OK : comm->ops->wait(comm, ticket);
}

/* For kinds whose transport moves data only while it is called (MPI without a thread). */
cz_status comm_progress(struct comm *comm)
{
    return comm->ops->progress ? comm->ops->progress(comm) : CZ_OK;
}

cz_status comm_reduce(struct comm *comm, const struct comm_reduce *args)
{
    struct comm_ticket t;
    TRY(comm_reduce_begin(comm, args, &t));
    return comm_wait(comm, t);
}

cz_status comm_move(struct comm *comm, const struct comm_move *args)
{
    struct comm_ticket t;
    TRY(comm_move_begin(comm, args, &t));
    return comm_wait(comm, t);
}

/* ---- composed of them ------------------------------------------------------------------------ */

/* Every rank owns a piece of nearly equal size, so each sums a W-th and sends it to all. Sums are
 * made in the order of the ranks by the owner of each piece, so every rank gets the same bits. */
cz_status comm_all_reduce(struct comm *comm, const void *src, void *dst, size_t numel,
                          enum cz_dtype dtype, enum cz_dtype wire, float scale)
{
    size_t w = (size_t)comm->world_size;
    for (size_t r = 0, off = 0; r < w; r++) {
        size_t n = numel / w + (r < numel % w);
        comm->spans[r] =
            (struct comm_span){.src_off = off, .dst_off = off, .numel = n, .owner = (int)r};
        off += n;
    }
    const struct comm_reduce args = {.src = src,
                                     .dst = dst,
                                     .src_dtype = dtype,
                                     .dst_dtype = dtype,
                                     .wire = wire,
                                     .scale = scale,
                                     .all = true,
                                     .spans = comm->spans,
                                     .n_spans = w};
    return comm_reduce(comm, &args);
}

/* Gathers every rank's `nbytes`, side by side, at `to`. */
static cz_status collect(struct comm *comm, const void *src, void *dst, size_t nbytes, int to)
{
    const char *mine = dst ? (const char *)dst + (size_t)comm->rank * nbytes : NULL;
    bool in_place = src == mine; /* then offsets count from dst on both sides */
    for (int r = 0; r < comm->world_size; r++)
        comm->spans[r] = (struct comm_span){.src_off = in_place ? (size_t)r * nbytes : 0,
                                            .dst_off = (size_t)r * nbytes,
                                            .numel = nbytes,
                                            .owner = r,
                                            .to = to};
    const struct comm_move args = {.src = in_place ? dst : src,
                                   .dst = dst,
                                   .elem_nbytes = 1,
                                   .spans = comm->spans,
                                   .n_spans = (size_t)comm->world_size};
    return comm_move(comm, &args);
}

cz_status comm_all_gather(struct comm *comm, const void *src, void *dst, size_t nbytes)
{
    return collect(comm, src, dst, nbytes, COMM_ALL);
}

cz_status comm_gather(struct comm *comm, const void *src, void *dst, size_t nbytes, int root)
{
    return collect(comm, src, dst, nbytes, root);
}

/* One span of one owner; on the owner source and destination are the same bytes. */
cz_status comm_broadcast(struct comm *comm, void *buffer, size_t nbytes, int root)
{
    const struct comm_span span = {.numel = nbytes, .owner = root, .to = COMM_ALL};
    const struct comm_move args = {
        .src = buffer, .dst = buffer, .elem_nbytes = 1, .spans = &span, .n_spans = 1};
    return comm_move(comm, &args);
}

/* In W moves: in the k-th, rank r sends to rank r + k, so that every rank sends and receives once
 * per move. */
cz_status comm_all_to_all(struct comm *comm, const void *src, void *dst, size_t nbytes)
{
    int w = comm->world_size;
    for (int k = 0; k < w; k++) {
        for (int r = 0; r < w; r++)
            comm->spans[r] = (struct comm_span){.src_off = (size_t)((r + k) % w) * nbytes,
                                                .dst_off = (size_t)r * nbytes,
                                                .numel = nbytes,
                                                .owner = r,
                                                .to = (r + k) % w};
        const struct comm_move args = {
            .src = src, .dst = dst, .elem_nbytes = 1, .spans = comm->spans, .n_spans = (size_t)w};
        TRY(comm_move(comm, &args));
    }
    return CZ_OK;
}

cz_status comm_barrier(struct comm *comm)
{
    return comm_agree(comm, CZ_OK);
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* Gathers every rank's note. `mine` also fills the places of ranks that a test only pretends. */
static cz_status exchange_notes(struct comm *comm, const struct comm_note *mine)
{
    for (int r = 0; r < comm->world_size; r++) comm->notes[r] = *mine;
    return comm_all_gather(comm, &comm->notes[comm->rank], comm->notes, sizeof *mine);
}

/* Every rank learns whether all got through. A rank that failed keeps its own error; the others get
 * CZ_PEER with its sentence, so that a user reads the cause on every rank. */
cz_status comm_agree(struct comm *comm, cz_status mine)
{
    struct comm_note note = {.value = (uint64_t)(int64_t)mine};
    struct err reason;
    err_capture(&reason);
    if (mine != CZ_OK) utf8_copy(note.text, sizeof note.text, cz_last_error());
    cz_status st = exchange_notes(comm, &note);
    if (mine != CZ_OK) {
        err_restore(&reason);
        return mine;
    }
    TRY(st);
    for (int r = 0; r < comm->world_size; r++)
        if (comm->notes[r].value != (uint64_t)CZ_OK) { /* its sentence may have several lines */
            utf8_copy(reason.text, sizeof reason.text, comm->notes[r].text);
            reason.status = CZ_PEER;
            err_restore(&reason);
            return err_prefix("rank %d of %d failed", r, comm->world_size);
        }
    return CZ_OK;
}

/* The first line that differs, as "mine where rank 0 has theirs". Only the first: one wrong setting
 * often changes many lines. */
static void describe_difference(const char *zero, const char *mine, struct comm_note *note)
{
    while (*zero || *mine) {
        size_t n = strcspn(zero, "\n"), m = strcspn(mine, "\n");
        if (n != m || memcmp(zero, mine, n) != 0) {
            note->value = 1;
            snprintf(note->text, sizeof note->text, "\"%.*s\" where rank 0 has \"%.*s\"",
                     m < 110 ? (int)m : 110, mine, n < 110 ? (int)n : 110, zero);
            return;
        }
        zero += n + (zero[n] == '\n');
        mine += m + (mine[m] == '\n');
    }
}

/* Only when hashes differ: rank 0's text is sent to all, compared line by line, and the differences
 * are gathered, so that every rank reports the same list. */
static cz_status explain_difference(struct comm *comm, const char *what, const char *text)
{
    uint64_t nbytes = strlen(text) + 1;
    TRY(comm_broadcast(comm, &nbytes, sizeof nbytes, 0));
    char *zero = malloc(nbytes);
    struct comm_note note = {0};
    cz_status st = zero ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for rank 0's %s", what);
    TRY_GOTO(comm_agree(comm, st), done);
    if (comm->rank == 0) memcpy(zero, text, nbytes);
    TRY_GOTO(comm_broadcast(comm, zero, nbytes, 0), done);
    describe_difference(zero, text, &note);
    TRY_GOTO(exchange_notes(comm, &note), done);
    char list[1024] = "";
    size_t at = 0;
    for (int r = 0; r < comm->world_size && at < sizeof list; r++)
        if (comm->notes[r].value != 0)
            at += (size_t)snprintf(list + at, sizeof list - at, "; rank %d has %s", r,
                                   comm->notes[r].text);
    st = err_set(CZ_INVALID, 0, "ranks differ in %s%s", what, list);
done:
    free(zero);
    return st;
}

/* A hash first: in the usual case nothing else is sent. */
cz_status comm_same(struct comm *comm, const char *what, const char *text)
{
    /* A collision would hide a difference; with 64 bits that is not a case to plan for. */
    const struct comm_note note = {.value = hash_fixed_text(text)};
    TRY(exchange_notes(comm, &note));
    for (int r = 1; r < comm->world_size; r++)
        if (comm->notes[r].value != comm->notes[0].value)
            return explain_difference(comm, what, text);
    return CZ_OK;
}

void comm_set_phase(struct comm *comm, int64_t step, const char *phase)
{
    if (comm->ops->set_phase) comm->ops->set_phase(comm, step, phase);
}

void comm_leave(struct comm *comm, const char *reason)
{
    if (comm->generation != entry_generation()) return; /* the peers still have the parent */
    if (comm->ops->leave) comm->ops->leave(comm, reason);
}

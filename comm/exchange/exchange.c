/* The communicator over a transport: a queue of collectives, worked off in rounds.
 *
 * Two positions move along the same sequence of rounds: what is to be posted next (ex->post) and
 * what is to be taken next (ex->take), at most two rounds behind. A share round of an all-reduction
 * is not packed: it is posted by the taking of its scatter round, which sums right into the slot.
 *
 * Every slot begins with a head that says which collective and round it belongs to. Ranks that call
 * different collectives are found out at the first round, with a sentence that names each rank's
 * call; without it they would wait for each other forever. */
#include "comm/exchange/exchange_impl.h"

#include "base/clock.h"
#include "base/cpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define N_JOBS         64 /* collectives under way */
#define LEAVE_NS_LIMIT INT64_C(1000000000)

struct exchange {
    struct comm comm;
    struct comm_ops ops; /* named as the transport */
    struct transport *transport;
    struct sum_way way;
    struct job jobs[N_JOBS];
    uint64_t n_begun; /* done: take.ticket */
    struct walk post, take;
    uint64_t next_post, next_take;  /* rounds */
    bool is_open;                   /* the latter's heads agree; its streams and payloads are set */
    const void **payloads;          /* (W) of the round that is taken */
    const struct slot_head **heads; /* (W) */
    uint32_t *due;                  /* (W) bytes that ranks should send in it */
    uint64_t *scratch;              /* (W,W) */
    int64_t step;
    char phase[COMM_PHASE_NBYTES];
    struct err broken; /* status CZ_OK: not */
};

/* The job that a walk is at. Jobs stay until they are taken, so both walks may use them. */
static struct job *job_at(struct exchange *ex, const struct walk *walk)
{
    return &ex->jobs[walk->ticket % N_JOBS];
}

static bool is_idle(const struct exchange *ex)
{
    return ex->take.ticket == ex->n_begun;
}

/* The streams of the round that `walk` is at. Opened at the first round of each kind. */
static struct stream *streams_at(struct exchange *ex, struct walk *walk, bool sends)
{
    const struct job *job = job_at(ex, walk);
    if (job_opens_streams(job, walk->k))
        job_open_streams(job, job_round_kind(job, walk->k), ex->comm.rank, ex->comm.world_size,
                         sends, walk->streams);
    return walk->streams;
}

/* To the next round, of this job or the next. */
static void walk_on(struct exchange *ex, struct walk *walk)
{
    if (++walk->k < job_at(ex, walk)->n_rounds) return;
    walk->k = 0;
    walk->ticket++;
}

/* ---- posting --------------------------------------------------------------------------------- */

static void head_sign(const struct exchange *ex, uint64_t round, struct slot_head *head)
{
    head->round = round;
    head->step = ex->step;
    memcpy(head->phase, ex->phase, sizeof head->phase);
}

/* Opens a slot to `peer` with its head in place; n_units will follow. Returns its payload. */
static void *slot_open(struct exchange *ex, int peer, enum round_kind kind, size_t n_units)
{
    struct slot_head *head = ex->transport->ops->slot_out(ex->transport, ex->next_post, peer);
    head_of_job(job_at(ex, &ex->post), ex->post.ticket + 1, kind, n_units, head);
    head_sign(ex, ex->next_post, head);
    return head + 1;
}

static void pack_reduce(struct exchange *ex, const struct job *job, struct stream *stream,
                        char *payload, size_t n)
{
    const struct comm_reduce *a = &job->reduce;
    size_t size = dtype_size(a->src_dtype);
    struct run run;
    for (; n > 0 && stream_next(stream, job, n, &run); n -= run.n) {
        sum_send(&ex->way, payload, a->wire, (const char *)a->src + run.src_off * size,
                 a->src_dtype, run.n);
        payload += run.n * job->unit_nbytes;
    }
}

static void copy(struct exchange *ex, void *dst, const void *src, size_t nbytes)
{
    if (dst != src) sum_put(&ex->way, dst, DTYPE_U8, src, DTYPE_U8, false, nbytes);
}

/* Spans to all are copied for this rank as well, here where the source is at hand. */
static void pack_move(struct exchange *ex, const struct job *job, struct stream *stream,
                      char *payload, size_t n, bool to_all)
{
    const struct comm_move *a = &job->move;
    struct run run;
    for (; n > 0 && stream_next(stream, job, n, &run); n -= run.n) {
        const char *src = (const char *)a->src + run.src_off;
        sum_send(&ex->way, payload, DTYPE_U8, src, DTYPE_U8, run.n);
        if (to_all) copy(ex, (char *)a->dst + run.dst_off, src, run.n);
        payload += run.n;
    }
}

static void fill_slot(struct exchange *ex, int peer, enum round_kind kind, struct stream *stream)
{
    const struct job *job = job_at(ex, &ex->post);
    size_t n = stream_piece(stream, job);
    char *payload = slot_open(ex, peer, kind, n);
    if (job->is_reduce)
        pack_reduce(ex, job, stream, payload, n);
    else
        pack_move(ex, job, stream, payload, n, kind == ROUND_ALL);
}

/* Sums may have been written past the caches; they must be visible before the peers read. */
static cz_status post_round(struct exchange *ex, bool to_all)
{
    walk_on(ex, &ex->post);
    if (ex->way.past_caches) ex->way.row->send_end();
    return ex->transport->ops->post(ex->transport, ex->next_post++, to_all);
}

static bool may_fill(struct exchange *ex)
{
    return ex->transport->ops->may_fill(ex->transport, ex->next_post);
}

/* A share round is posted by take_next(). */
static bool may_post(struct exchange *ex)
{
    if (ex->post.ticket == ex->n_begun || ex->next_post - ex->next_take == 2) return false;
    return job_round_kind(job_at(ex, &ex->post), ex->post.k) != ROUND_SHARE && may_fill(ex);
}

/* Peers in turn, beginning with the next rank: otherwise all ranks would write to rank 0 first. */
static cz_status post_next(struct exchange *ex)
{
    const struct job *job = job_at(ex, &ex->post);
    enum round_kind kind = job_round_kind(job, ex->post.k);
    struct stream *streams = streams_at(ex, &ex->post, true);
    int rank = ex->comm.rank;
    if (ex->post.k == 0 && !job->is_reduce) {
        /* Spans from this rank to itself. */
        for (size_t i = 0; i < job->move.n_spans; i++) {
            const struct comm_span *s = &job->move.spans[i];
            if (s->owner != ex->comm.rank || s->to != s->owner) continue;
            copy(ex, (char *)job->move.dst + s->dst_off * job->move.elem_nbytes,
                 (const char *)job->move.src + s->src_off * job->move.elem_nbytes,
                 s->numel * job->move.elem_nbytes);
        }
    }
    if (kind == ROUND_ALL)
        fill_slot(ex, COMM_ALL, kind, &streams[rank]);
    else
        for (int i = 1; i < ex->comm.world_size; i++) {
            int peer = (rank + i) % ex->comm.world_size;
            fill_slot(ex, peer, kind, &streams[peer]);
        }
    return post_round(ex, kind == ROUND_ALL);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Reads heads and payloads of a round that has arrived. CZ_PEER: a rank has left; CZ_COMM: one is
 * in another collective. */
static cz_status open_round(struct exchange *ex)
{
    const struct job *job = job_at(ex, &ex->take);
    enum round_kind kind = job_round_kind(job, ex->take.k);
    const struct stream *streams = streams_at(ex, &ex->take, false);
    int rank = ex->comm.rank, w = ex->comm.world_size;
    struct slot_head mine;
    head_of_job(job, ex->take.ticket + 1, kind, 0, &mine);
    head_sign(ex, ex->next_take, &mine);
    bool agreed = true;
    for (int r = 0; r < w; r++) {
        const struct stream *due = &streams[kind == ROUND_SCATTER ? rank : r];
        mine.nbytes = ex->due[r] = (uint32_t)(stream_piece(due, job) * job->unit_nbytes);
        ex->heads[r] =
            r == rank ? &mine : ex->transport->ops->slot_in(ex->transport, ex->next_take, r);
        ex->payloads[r] = r == rank ? NULL : ex->heads[r] + 1;
        if (ex->heads[r]->kind == SLOT_LEAVE) return head_error_left(r, ex->heads[r]);
        agreed = agreed && head_agrees(&mine, ex->heads[r]);
    }
    if (!agreed) return head_error_disagree(ex->heads, ex->due, rank, w);
    ex->is_open = true;
    return CZ_OK;
}

/* Sums what all ranks sent of this rank's stream, in rank order, so that the result does not depend
 * on which rank came first; `shared` (may be NULL) gets it in the wire's dtype. */
static void take_scatter(struct exchange *ex, const struct job *job, struct stream *stream,
                         char *shared)
{
    const struct comm_reduce *a = &job->reduce;
    struct sum_sources from = {.wire = ex->payloads,
                               .own_dtype = a->src_dtype,
                               .dtype = a->wire,
                               .n_ranks = ex->comm.world_size,
                               .own_rank = ex->comm.rank,
                               .scale = a->scale};
    struct sum_target to = {.dst_dtype = a->dst_dtype, .accumulate = a->accumulate};
    struct run run;
    for (size_t n = stream_piece(stream, job); n > 0; n -= run.n) {
        if (!stream_next(stream, job, n, &run)) break;
        from.own = (const char *)a->src + run.src_off * dtype_size(a->src_dtype);
        to.dst = (char *)a->dst + run.dst_off * dtype_size(a->dst_dtype);
        to.shared = shared;
        sum_ranks(&ex->way, &from, &to, run.n);
        size_t nbytes = run.n * job->unit_nbytes;
        if (shared) shared += nbytes;
        for (int r = 0; r < from.n_ranks; r++)
            if (r != from.own_rank) ex->payloads[r] = (const char *)ex->payloads[r] + nbytes;
    }
}

static bool has_arrived(struct exchange *ex)
{
    return ex->next_take < ex->next_post &&
           ex->transport->ops->has_arrived(ex->transport, ex->next_take);
}

/* Whether sums go right into the slot of the next round, which must be free then. */
static bool is_shared(struct exchange *ex)
{
    const struct job *job = job_at(ex, &ex->take);
    return job->is_reduce && job->reduce.all && job_round_kind(job, ex->take.k) == ROUND_SCATTER;
}

static bool may_take(struct exchange *ex)
{
    return has_arrived(ex) && (!is_shared(ex) || may_fill(ex));
}

/* Released only after the payload has been read: the peer may fill the slot then. */
static cz_status take_next(struct exchange *ex)
{
    const struct job *job = job_at(ex, &ex->take);
    struct stream *streams = ex->take.streams, *mine = &streams[ex->comm.rank];
    char *shared = NULL;
    if (is_shared(ex)) shared = slot_open(ex, COMM_ALL, ROUND_SHARE, stream_piece(mine, job));
    if (job_round_kind(job, ex->take.k) == ROUND_SCATTER)
        take_scatter(ex, job, mine, shared);
    else
        for (int i = 1; i < ex->comm.world_size; i++) {
            int peer = (ex->comm.rank + i) % ex->comm.world_size;
            const char *payload = ex->payloads[peer];
            const struct comm_reduce *a = &job->reduce;
            struct run run;
            for (size_t n = stream_piece(&streams[peer], job); n > 0; n -= run.n) {
                if (!stream_next(&streams[peer], job, n, &run)) break;
                if (job->is_reduce)
                    sum_put(&ex->way, (char *)a->dst + run.dst_off * dtype_size(a->dst_dtype),
                            a->dst_dtype, payload, a->wire, a->accumulate, run.n);
                else
                    copy(ex, (char *)job->move.dst + run.dst_off, payload, run.n);
                payload += run.n * job->unit_nbytes;
            }
        }
    walk_on(ex, &ex->take);
    ex->is_open = false;
    TRY(ex->transport->ops->release(ex->transport, ex->next_take++));
    return shared ? post_round(ex, true) : CZ_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static cz_status broken(const struct exchange *ex)
{
    return err_restore(&ex->broken);
}

/* An error stays: rounds of the ranks no longer match after it. */
static cz_status fail(struct exchange *ex)
{
    err_capture(&ex->broken);
    return ex->broken.status;
}

/* All that can be done without waiting. Posting comes first: others wait for it. Heads are looked
 * at as soon as they are there: after a disagreement a slot may never become free again. */
static cz_status advance(struct exchange *ex)
{
    for (bool moved = true; moved;) {
        moved = may_post(ex);
        if (moved && post_next(ex) != CZ_OK) return fail(ex);
        if (!ex->is_open && has_arrived(ex) && open_round(ex) != CZ_OK) return fail(ex);
        if (!ex->is_open || !may_take(ex)) continue;
        moved = true;
        if (take_next(ex) != CZ_OK) return fail(ex);
    }
    return CZ_OK;
}

/* Until something may have changed. A rank that ended after its last collective must not look like
 * one that is missing, so this waits for the next slots, unless a free slot is what is needed. */
static cz_status sleep_once(struct exchange *ex)
{
    struct transport *t = ex->transport;
    if (ex->next_take < ex->next_post && !ex->is_open)
        return has_arrived(ex) ? CZ_OK : t->ops->sleep(t, ex->next_take);
    return may_take(ex) || may_post(ex) ? CZ_OK : t->ops->sleep(t, ex->next_post);
}

static cz_status wait_until_done(struct exchange *ex, uint64_t ticket)
{
    while (ex->take.ticket < ticket) {
        TRY(advance(ex));
        if (ex->take.ticket < ticket && sleep_once(ex) != CZ_OK) return fail(ex);
    }
    return CZ_OK;
}

/* A full queue waits for its oldest job. */
static cz_status begin(struct exchange *ex, const struct job *job, struct comm_ticket *ticket)
{
    if (ex->broken.status != CZ_OK) return broken(ex);
    if (ex->n_begun - ex->take.ticket == N_JOBS) TRY(wait_until_done(ex, ex->take.ticket + 1));
    struct job *slot = &ex->jobs[ex->n_begun % N_JOBS];
    *slot = *job;
    job_plan(slot, ex->transport->slot_nbytes, ex->comm.world_size, ex->scratch);
    ex->n_begun++;
    TRY(advance(ex));
    ticket->id = ex->n_begun;
    return CZ_OK;
}

/* ---- the vtable ------------------------------------------------------------------------------ */

static cz_status exchange_reduce(struct comm *comm, const struct comm_reduce *args,
                                 struct comm_ticket *ticket)
{
    const struct job job = {.is_reduce = true, .reduce = *args};
    return begin((struct exchange *)comm, &job, ticket);
}

static cz_status exchange_move(struct comm *comm, const struct comm_move *args,
                               struct comm_ticket *ticket)
{
    const struct job job = {.move = *args};
    return begin((struct exchange *)comm, &job, ticket);
}

static cz_status exchange_progress(struct comm *comm)
{
    struct exchange *ex = (struct exchange *)comm;
    if (ex->broken.status != CZ_OK) return broken(ex);
    return is_idle(ex) ? CZ_OK : advance(ex);
}

static cz_status exchange_wait(struct comm *comm, struct comm_ticket ticket)
{
    struct exchange *ex = (struct exchange *)comm;
    if (ex->broken.status != CZ_OK) return broken(ex);
    return wait_until_done(ex, ticket.id);
}

static bool exchange_is_done(const struct comm *comm, struct comm_ticket ticket)
{
    const struct exchange *ex = (const struct exchange *)comm;
    return ex->broken.status != CZ_OK || ex->take.ticket >= ticket.id;
}

static void exchange_set_phase(struct comm *comm, int64_t step, const char *phase)
{
    struct exchange *ex = (struct exchange *)comm;
    ex->step = step;
    memset(ex->phase, 0, sizeof ex->phase);
    snprintf(ex->phase, sizeof ex->phase, "%s", phase);
    if (ex->broken.status == CZ_OK) ex->transport->ops->set_phase(ex->transport, step, ex->phase);
}

/* Peers read the farewell in the slot of this rank's next round. That slot is free once this rank
 * is done with the round two before, whose content no longer matters here. The time is limited: the
 * peers may be gone. */
static void say_farewell(struct exchange *ex, const char *reason)
{
    struct transport *t = ex->transport;
    int64_t deadline = clock_now_ns() + LEAVE_NS_LIMIT;
    while (clock_now_ns() < deadline) {
        bool is_full = ex->next_post - ex->next_take == 2;
        if (is_full && has_arrived(ex)) {
            if (t->ops->release(t, ex->next_take++) != CZ_OK) return;
            is_full = false;
        }
        if (!is_full && may_fill(ex)) {
            struct slot_head *head = t->ops->slot_out(t, ex->next_post, COMM_ALL);
            *head = (struct slot_head){.ticket = ex->post.ticket + 1,
                                       .kind = SLOT_LEAVE,
                                       .nbytes = (uint32_t)strlen(reason)};
            head_sign(ex, ex->next_post, head);
            memcpy(head + 1, reason, head->nbytes);
            /* Best effort: this rank leaves in any case. */
            (void)t->ops->post(t, ex->next_post, true);
            return;
        }
        if (t->ops->sleep(t, is_full ? ex->next_take : ex->next_post) != CZ_OK) return;
    }
}

static void exchange_leave(struct comm *comm, const char *reason)
{
    struct exchange *ex = (struct exchange *)comm;
    if (ex->broken.status != CZ_OK) return;
    struct err current; /* stays the caller's last error, of which `reason` may be a part */
    err_capture(&current);
    char text[COMM_REASON_NBYTES];
    snprintf(text, sizeof text, "%s", reason);
    say_farewell(ex, text);
    err_set(CZ_COMM, 0, "this rank has left the run: %s", text);
    fail(ex);
    err_restore(&current);
}

/* Ending with collectives under way leaves the peers waiting, so they are told. */
static void exchange_destroy(struct comm *comm)
{
    struct exchange *ex = (struct exchange *)comm;
    if (ex->broken.status == CZ_OK && !is_idle(ex))
        exchange_leave(comm, "it ended with collectives under way");
    ex->transport->ops->destroy(ex->transport);
    comm_fini(comm);
    free(ex->post.streams);
    free(ex->take.streams);
    free(ex->payloads);
    free(ex->heads);
    free(ex->due);
    free(ex->scratch);
    free(ex);
}

static const struct comm_ops exchange_ops = {
    .reduce = exchange_reduce,
    .move = exchange_move,
    .progress = exchange_progress,
    .wait = exchange_wait,
    .is_done = exchange_is_done,
    .set_phase = exchange_set_phase,
    .leave = exchange_leave,
    .destroy = exchange_destroy,
};

static cz_status allocate(struct exchange *ex, size_t w)
{
    ex->post.streams = calloc(w, sizeof *ex->post.streams);
    ex->take.streams = calloc(w, sizeof *ex->take.streams);
    ex->payloads = calloc(w, sizeof *ex->payloads);
    ex->heads = calloc(w, sizeof *ex->heads);
    ex->due = calloc(w, sizeof *ex->due);
    ex->scratch = calloc(w * w, sizeof *ex->scratch);
    if (ex->post.streams && ex->take.streams && ex->payloads && ex->heads && ex->due && ex->scratch)
        return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory for a communicator of %zu ranks", w);
}

cz_status comm_over_transport(struct transport *transport, struct comm **out)
{
    *out = NULL;
    struct exchange *ex = calloc(1, sizeof *ex);
    if (!ex) {
        transport->ops->destroy(transport);
        return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    }
    ex->transport = transport;
    ex->way = (struct sum_way){sum_row_pick(cpu_features()), transport->shares_slots};
    ex->ops = exchange_ops;
    ex->ops.name = transport->ops->name;
    ex->comm.rank_host = transport->rank_host;
    ex->comm.n_ranks_host = transport->n_ranks_host;
    cz_status st = comm_init(&ex->comm, &ex->ops, transport->rank, transport->world_size);
    if (st == CZ_OK) st = allocate(ex, (size_t)transport->world_size);
    if (st != CZ_OK) {
        exchange_destroy(&ex->comm);
        return st;
    }
    *out = &ex->comm;
    return CZ_OK;
}

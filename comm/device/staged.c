/* Collectives of device memory by way of the host: a piece is copied down, exchanged by the host's
 * communicator, and copied up, while the pieces before and after it are in the other stages. It
 * works between any devices, and needs nothing but copies. */
#include "base/arena.h"
#include "base/size.h"
#include "comm/device/device_plane_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum slot_state { SLOT_FREE, SLOT_COMING, SLOT_EXCHANGED };

/* A collective that was begun. */
struct job {
    bool is_reduce;
    struct comm_reduce reduce; /* one of the two */
    struct comm_move move;
    struct plane_sides sides;
    size_t slot_numel;       /* elements of an owner's slot */
    struct dev_event *ready; /* work of the stream at begin */
    struct dev_event *done;  /* its last copy to the device */
};

/* A piece on its way. */
struct slot {
    enum slot_state state;
    uint64_t job;
    bool is_last; /* of its job */
    char *out, *in;
    struct piece_run *runs;
    struct comm_span *spans; /* of the host's collective */
    size_t n_runs;
    struct comm_ticket ticket;
    struct dev_event *came, *gone; /* copies into the slot, and away from it */
};

struct staged {
    struct device_plane base;
    struct comm *host;
    struct device *device;
    struct dev_stream *stream, *down, *up; /* the caller's; from the device, to it */
    struct job jobs[PLANE_TICKETS];
    uint64_t n_begun, n_cut, n_done; /* jobs: begun, all pieces in slots, over */
    bool is_open;                    /* job n_cut + 1 is being cut */
    struct pieces cut;
    size_t *numels; /* (world_size) */
    struct slot slots[STAGED_SLOTS];
    uint64_t next_in, next_begin, next_out; /* pieces: to come, to be exchanged, to go */
    size_t slot_nbytes;                     /* of an owner */
    size_t memory_nbytes;
    char *memory;
    bool registered;
};

static struct staged *self(struct device_plane *plane)
{
    return (struct staged *)plane;
}

static struct job *job_at(struct staged *s, uint64_t id)
{
    return &s->jobs[id % PLANE_TICKETS];
}

static struct slot *slot_at(struct staged *s, uint64_t piece)
{
    return &s->slots[piece % STAGED_SLOTS];
}

/* A run's offset in a slot, in elements. */
static size_t packed(const struct job *job, const struct piece_run *run)
{
    return (size_t)run->span.owner * job->slot_numel + run->at;
}

static char *at(const void *p, size_t i, size_t elem_nbytes)
{
    return (char *)(uintptr_t)p + i * elem_nbytes;
}

static cz_status copy(struct staged *s, struct dev_stream *stream, void *dst, const void *src,
                      size_t nbytes)
{
    return s->device->ops->copy(s->device, stream, dst, src, nbytes);
}

/* ---- a piece comes --------------------------------------------------------------------------- */

/* This rank gets the results of a run. */
static bool takes(const struct staged *s, const struct job *job, const struct comm_span *span)
{
    int rank = s->host->rank;
    if (job->is_reduce) return job->reduce.all || span->owner == rank;
    return span->to == rank || span->to == COMM_ALL;
}

/* A move from device memory here to device memory here: the host is not needed. */
static bool stays(const struct staged *s, const struct job *job, const struct comm_span *span)
{
    return !job->is_reduce && span->owner == s->host->rank && job->sides.src && job->sides.dst;
}

/* What this rank brings to a reduction, and what is there to be added to. */
static cz_status bring_sums(struct staged *s, const struct job *job, struct slot *slot)
{
    const struct comm_reduce *a = &job->reduce;
    size_t src_nbytes = dtype_size(a->src_dtype), dst_nbytes = dtype_size(a->dst_dtype);
    for (size_t i = 0; i < slot->n_runs; i++) {
        const struct comm_span *span = &slot->runs[i].span;
        size_t p = packed(job, &slot->runs[i]);
        if (job->sides.src)
            TRY(copy(s, s->down, at(slot->out, p, src_nbytes),
                     at(a->src, span->src_off, src_nbytes), span->numel * src_nbytes));
        if (job->sides.dst && a->accumulate && takes(s, job, span))
            TRY(copy(s, s->down, at(slot->in, p, dst_nbytes), at(a->dst, span->dst_off, dst_nbytes),
                     span->numel * dst_nbytes));
    }
    return CZ_OK;
}

/* What this rank sends; what it keeps goes there by itself. */
static cz_status bring_moved(struct staged *s, const struct job *job, struct slot *slot)
{
    const struct comm_move *a = &job->move;
    size_t size = a->elem_nbytes;
    for (size_t i = 0; i < slot->n_runs && job->sides.src; i++) {
        const struct comm_span *span = &slot->runs[i].span;
        const char *src = at(a->src, span->src_off, size);
        bool kept = stays(s, job, span);
        if (span->owner != s->host->rank) continue;
        if (kept && takes(s, job, span))
            TRY(copy(s, s->up, at(a->dst, span->dst_off, size), src, span->numel * size));
        if (kept && span->to == s->host->rank) continue;
        TRY(copy(s, s->down, at(slot->out, packed(job, &slot->runs[i]), size), src,
                 span->numel * size));
    }
    return CZ_OK;
}

static cz_status open_job(struct staged *s)
{
    struct job *job = job_at(s, s->n_cut + 1);
    struct pieces *cut = &s->cut;
    size_t size = job->is_reduce ? sizeof(float) : job->move.elem_nbytes;
    cut->spans = job->is_reduce ? job->reduce.spans : job->move.spans;
    cut->n_spans = job->is_reduce ? job->reduce.n_spans : job->move.n_spans;
    cut->moves = !job->is_reduce;
    cut->slot_numel = job->slot_numel = s->slot_nbytes / (size > 0 ? size : 1);
    if (cut->slot_numel == 0)
        return err_set(CZ_INVALID, 0, "elements of %zu bytes do not fit in a piece of %zu", size,
                       s->slot_nbytes);
    pieces_begin(cut);
    TRY(s->device->ops->stream_wait(s->device, s->down, job->ready));
    TRY(s->device->ops->stream_wait(s->device, s->up, job->ready));
    s->is_open = true;
    return CZ_OK;
}

static cz_status bring(struct staged *s)
{
    if (!s->is_open) TRY(open_job(s));
    struct slot *slot = slot_at(s, s->next_in);
    struct job *job = job_at(s, s->n_cut + 1);
    slot->n_runs = pieces_next(&s->cut, slot->runs, s->numels);
    slot->is_last = slot->n_runs == 0; /* it carries nothing but the end */
    slot->job = s->n_cut + 1;
    TRY(s->device->ops->stream_wait(s->device, s->down, slot->gone));
    TRY(job->is_reduce ? bring_sums(s, job, slot) : bring_moved(s, job, slot));
    TRY(s->device->ops->event_record(s->device, slot->came, s->down));
    slot->state = SLOT_COMING;
    s->next_in++;
    if (!slot->is_last) return CZ_OK;
    s->n_cut++;
    s->is_open = false;
    return CZ_OK;
}

/* ---- it is exchanged ------------------------------------------------------------------------- */

static cz_status exchange_sums(struct staged *s, const struct job *job, struct slot *slot)
{
    struct comm_reduce args = job->reduce;
    if (job->sides.src) args.src = slot->out;
    if (job->sides.dst) args.dst = slot->in;
    args.spans = slot->spans;
    args.n_spans = slot->n_runs;
    return comm_reduce_begin(s->host, &args, &slot->ticket);
}

/* With both sides staged a span begins and ends in the same place, so that the host communicator
 * makes no copy for its owner. */
static cz_status exchange_moved(struct staged *s, const struct job *job, struct slot *slot)
{
    struct comm_move args = job->move;
    bool both = job->sides.src && job->sides.dst;
    if (job->sides.src) args.src = slot->out;
    if (job->sides.dst) args.dst = both ? slot->out : slot->in;
    args.spans = slot->spans;
    args.n_spans = slot->n_runs;
    return comm_move_begin(s->host, &args, &slot->ticket);
}

static cz_status exchange(struct staged *s)
{
    struct slot *slot = slot_at(s, s->next_begin);
    struct job *job = job_at(s, slot->job);
    slot->ticket.id = 0;
    /* Offsets count from the slot where that is staged, else from where the caller's memory begins.
     * */
    for (size_t i = 0; i < slot->n_runs; i++) {
        struct comm_span *span = &slot->spans[i];
        *span = slot->runs[i].span;
        if (job->sides.src) span->src_off = packed(job, &slot->runs[i]);
        if (job->sides.dst) span->dst_off = packed(job, &slot->runs[i]);
    }
    if (slot->n_runs > 0)
        TRY(job->is_reduce ? exchange_sums(s, job, slot) : exchange_moved(s, job, slot));
    slot->state = SLOT_EXCHANGED;
    s->next_begin++;
    return CZ_OK;
}

/* ---- it goes --------------------------------------------------------------------------------- */

static cz_status finish(struct staged *s)
{
    struct slot *slot = slot_at(s, s->next_out);
    struct job *job = job_at(s, slot->job);
    TRY(comm_wait(s->host, slot->ticket));
    if (job->sides.dst) {
        bool both = job->sides.src && job->sides.dst;
        const char *in = job->is_reduce || !both ? slot->in : slot->out;
        size_t size = job->is_reduce ? dtype_size(job->reduce.dst_dtype) : job->move.elem_nbytes;
        void *dst = job->is_reduce ? job->reduce.dst : job->move.dst;
        for (size_t i = 0; i < slot->n_runs; i++) {
            const struct comm_span *span = &slot->runs[i].span;
            if (!takes(s, job, span) || stays(s, job, span)) continue;
            TRY(copy(s, s->up, at(dst, span->dst_off, size),
                     at(in, packed(job, &slot->runs[i]), size), span->numel * size));
        }
    }
    TRY(s->device->ops->event_record(s->device, slot->gone, s->up));
    if (slot->is_last) {
        TRY(s->device->ops->event_record(s->device, job->done, s->up));
        s->n_done++;
    }
    slot->state = SLOT_FREE;
    s->next_out++;
    return CZ_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool may_bring(const struct staged *s)
{
    return s->n_cut < s->n_begun && s->next_in - s->next_out < STAGED_SLOTS;
}

static bool may_finish(struct staged *s)
{
    const struct comm_ops *ops = s->host->ops;
    if (s->next_out == s->next_begin) return false;
    struct comm_ticket ticket = slot_at(s, s->next_out)->ticket;
    return ticket.id == 0 || (ops->is_done && ops->is_done(s->host, ticket));
}

/* Whether the next piece to be exchanged has come. */
static cz_status has_come(struct staged *s, bool *come)
{
    *come = false;
    if (s->next_begin == s->next_in) return CZ_OK;
    return s->device->ops->event_query(s->device, slot_at(s, s->next_begin)->came, come);
}

/* All that can be done without waiting. */
static cz_status advance(struct staged *s)
{
    for (bool moved = true; moved;) {
        bool come;
        moved = false;
        while (may_bring(s)) TRY(bring(s));
        TRY(has_come(s, &come));
        if (come) {
            TRY(exchange(s));
            moved = true;
        }
        if (may_finish(s)) {
            TRY(finish(s));
            moved = true;
        }
    }
    return comm_progress(s->host);
}

/* One step towards the end, waiting for what is oldest. */
static cz_status step(struct staged *s)
{
    if (may_bring(s)) return bring(s);
    if (s->next_begin < s->next_in) {
        struct slot *slot = slot_at(s, s->next_begin);
        TRY(s->device->ops->event_wait_host(s->device, slot->came));
        return exchange(s);
    }
    return s->next_out < s->next_begin ? finish(s) : CZ_OK;
}

static cz_status wait_until_done(struct staged *s, uint64_t id)
{
    while (s->n_done < id) {
        TRY(advance(s));
        if (s->n_done < id) TRY(step(s));
    }
    return CZ_OK;
}

/* ---- the vtable ------------------------------------------------------------------------------ */

static cz_status begin(struct staged *s, const struct job *args)
{
    if (s->n_begun - s->n_done == PLANE_TICKETS) TRY(wait_until_done(s, s->n_done + 1));
    struct job *job = job_at(s, s->n_begun + 1);
    struct dev_event *ready = job->ready, *done = job->done;
    *job = *args;
    job->ready = ready;
    job->done = done;
    TRY(s->device->ops->event_record(s->device, job->ready, s->stream));
    s->n_begun++;
    return advance(s);
}

static cz_status staged_reduce(struct device_plane *plane, const struct comm_reduce *args,
                               struct plane_sides sides, uint64_t id)
{
    const struct job job = {.is_reduce = true, .reduce = *args, .sides = sides};
    (void)id; /* ours count the same way */
    return begin(self(plane), &job);
}

static cz_status staged_move(struct device_plane *plane, const struct comm_move *args,
                             struct plane_sides sides, uint64_t id)
{
    const struct job job = {.move = *args, .sides = sides};
    (void)id;
    return begin(self(plane), &job);
}

static cz_status staged_progress(struct device_plane *plane)
{
    struct staged *s = self(plane);
    return s->n_done == s->n_begun ? CZ_OK : advance(s);
}

static cz_status staged_drain(struct device_plane *plane)
{
    struct staged *s = self(plane);
    while (s->n_cut < s->n_begun || s->next_begin < s->next_in) TRY(step(s));
    return CZ_OK;
}

static cz_status staged_wait(struct device_plane *plane, uint64_t id)
{
    struct staged *s = self(plane);
    struct job *job = job_at(s, id);
    TRY(wait_until_done(s, id));
    return s->device->ops->stream_wait(s->device, s->stream, job->done);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_events(struct staged *s)
{
    const struct device_ops *ops = s->device->ops;
    for (size_t i = 0; i < PLANE_TICKETS; i++) {
        ops->event_destroy(s->device, s->jobs[i].ready);
        ops->event_destroy(s->device, s->jobs[i].done);
    }
    for (size_t i = 0; i < STAGED_SLOTS; i++) {
        ops->event_destroy(s->device, s->slots[i].came);
        ops->event_destroy(s->device, s->slots[i].gone);
    }
}

/* Copies under way end before their memory goes. */
static void staged_destroy(struct device_plane *plane)
{
    struct staged *s = self(plane);
    const struct device_ops *ops = s->device->ops;
    if (s->down) ops->stream_sync(s->device, s->down);
    if (s->up) ops->stream_sync(s->device, s->up);
    free_events(s);
    ops->stream_destroy(s->device, s->down);
    ops->stream_destroy(s->device, s->up);
    if (s->registered) ops->host_unregister(s->device, s->memory, s->memory_nbytes);
    if (s->memory) munmap(s->memory, s->memory_nbytes);
    for (size_t i = 0; i < STAGED_SLOTS; i++) {
        free(s->slots[i].runs);
        free(s->slots[i].spans);
    }
    free(s->cut.at);
    free(s->numels);
    free(s);
}

static const struct device_plane_ops staged_ops = {
    .name = "staged",
    .reduce = staged_reduce,
    .move = staged_move,
    .wait = staged_wait,
    .progress = staged_progress,
    .drain = staged_drain,
    .destroy = staged_destroy,
};

static cz_status make_events(struct staged *s)
{
    const struct device_ops *ops = s->device->ops;
    for (size_t i = 0; i < PLANE_TICKETS; i++) {
        TRY(ops->event_create(s->device, &s->jobs[i].ready));
        TRY(ops->event_create(s->device, &s->jobs[i].done));
    }
    for (size_t i = 0; i < STAGED_SLOTS; i++) {
        TRY(ops->event_create(s->device, &s->slots[i].came));
        TRY(ops->event_create(s->device, &s->slots[i].gone));
    }
    TRY(ops->stream_create(s->device, &s->down));
    return ops->stream_create(s->device, &s->up);
}

static cz_status make_memory(struct staged *s, size_t piece_nbytes)
{
    size_t w = (size_t)s->host->world_size, n_runs = w * PIECE_RUNS_PER_OWNER;
    s->slot_nbytes = plane_slot_nbytes(piece_nbytes, s->host->world_size);
    s->memory_nbytes =
        comm_device_staging_nbytes(DEVICE_COMM_STAGED, s->host->world_size, piece_nbytes).host;
    void *memory = mmap(NULL, s->memory_nbytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return err_set(CZ_NOMEM, 0, "no memory for %zu bytes of staging", s->memory_nbytes);
    s->memory = memory;
    TRY(s->device->ops->host_register(s->device, memory, s->memory_nbytes));
    s->registered = true;
    s->cut.world_size = s->host->world_size;
    s->cut.at = calloc(w, sizeof *s->cut.at);
    s->numels = calloc(w, sizeof *s->numels);
    bool ok = s->cut.at && s->numels;
    for (size_t i = 0; i < STAGED_SLOTS; i++) {
        struct slot *slot = &s->slots[i];
        slot->out = s->memory + 2 * i * w * s->slot_nbytes;
        slot->in = slot->out + w * s->slot_nbytes;
        slot->runs = calloc(n_runs, sizeof *slot->runs);
        slot->spans = calloc(n_runs, sizeof *slot->spans);
        ok = ok && slot->runs && slot->spans;
    }
    return ok ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for the tables of a communicator");
}

cz_status staged_create(const struct plane_args *args, struct device_plane **out)
{
    struct staged *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    s->base.ops = &staged_ops;
    s->host = args->host;
    s->device = args->device;
    s->stream = args->stream;
    cz_status st = make_memory(s, args->piece_nbytes);
    if (st == CZ_OK) st = make_events(s);
    if (st != CZ_OK) {
        staged_destroy(&s->base);
        return st;
    }
    *out = &s->base;
    return CZ_OK;
}

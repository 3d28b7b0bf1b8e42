/* The planes of the CUDA plug-in: collectives between buffers of devices and hosts.
 *
 * A collective is cut into pieces that fit the slots; each piece is queued on the plane's own
 * stream, which runs after the caller's. Sums: every rank sends owners what they will sum, on the
 * wire; owners sum in rank order, and with `all` send their sums to all ranks. Moves: broadcasts of
 * spans for all, sends and receives of those for one, from device memory to device memory without a
 * detour; a side on the host goes through the owners' slots. */
#include "comm/nccl/plane_impl.h"

#include "comm/nccl/sum_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static struct plane *self(struct device_plane *plane)
{
    return (struct plane *)plane;
}

static cz_status plane_copy(struct plane *p, void *dst, const void *src, size_t nbytes)
{
    return p->device->ops->copy(p->device, p->work, dst, src, nbytes);
}

/* Begin to cut a table into pieces of slot_numel elements per owner. */
static void plane_cut(struct plane *p, const struct comm_span *spans, size_t n_spans, bool moves,
                      size_t slot_numel)
{
    p->cut.spans = spans;
    p->cut.n_spans = n_spans;
    p->cut.moves = moves;
    p->cut.slot_numel = slot_numel;
    pieces_begin(&p->cut);
}

/* The next piece: its runs, and elements per owner in p->numels. 0 at the end. */
static size_t plane_next(struct plane *p)
{
    return pieces_next(&p->cut, p->runs, p->numels);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A reduction that is being queued, piece by piece. */
struct reduction {
    struct plane *p;
    const struct comm_reduce *a;
    struct plane_sides sides;
    size_t src_nbytes, dst_nbytes, wire_nbytes; /* of an element */
    size_t n_runs;                              /* of the piece */
};

static char *slot_of(const struct reduction *r, char *region, int owner)
{
    return region + (size_t)owner * r->p->slot_nbytes;
}

/* What this rank contributes to a run: its place on the device. */
static const void *source_of(const struct reduction *r, const struct piece_run *run)
{
    if (r->sides.src) return plane_at(r->a->src, run->span.src_off, r->src_nbytes);
    return plane_at(slot_of(r, r->p->host, run->span.owner), run->at, r->src_nbytes);
}

/* This rank puts the result of a run somewhere. */
static bool sums(const struct reduction *r, const struct piece_run *run)
{
    return run->span.owner == r->p->rank || (r->p->pretends && r->a->all);
}

static bool takes(const struct reduction *r, const struct piece_run *run)
{
    return run->span.owner == r->p->rank || r->a->all;
}

/* Where a run's result is put on the device: where the caller wants it, or in the slot from which
 * it is copied to the host. */
static void *target_of(const struct reduction *r, const struct piece_run *run)
{
    if (r->sides.dst) return plane_at(r->a->dst, run->span.dst_off, r->dst_nbytes);
    return plane_at(slot_of(r, r->p->host, run->span.owner), run->at, r->dst_nbytes);
}

/* Copies from the host what is summed, or what results are added to. */
static cz_status fetch_host(struct reduction *r)
{
    const struct comm_reduce *a = r->a;
    if (r->sides.src && (r->sides.dst || !a->accumulate)) return CZ_OK;
    for (size_t i = 0; i < r->n_runs; i++) {
        const struct piece_run *run = &r->p->runs[i];
        const struct comm_span *s = &run->span;
        if (!r->sides.src)
            TRY(plane_copy(r->p, (void *)(uintptr_t)source_of(r, run),
                           plane_at(a->src, s->src_off, r->src_nbytes), s->numel * r->src_nbytes));
        else if (takes(r, run))
            TRY(plane_copy(r->p, target_of(r, run), plane_at(a->dst, s->dst_off, r->dst_nbytes),
                           s->numel * r->dst_nbytes));
    }
    return CZ_OK;
}

/* The run that is all of an owner's part and is on the device in the wire's dtype: it needs no
 * packing. NULL: none. */
static const struct piece_run *sent_as_it_is(const struct reduction *r, int owner)
{
    const struct plane *p = r->p;
    if (!r->sides.src || r->a->src_dtype != r->a->wire) return NULL;
    for (size_t i = 0; i < r->n_runs; i++)
        if (p->runs[i].span.owner == owner)
            return p->runs[i].span.numel == p->numels[owner] ? &p->runs[i] : NULL;
    return NULL;
}

/* Every rank sends owners their parts, and receives the parts of its own. Peers in a rotated order,
 * so that no rank is the first of all others. */
static cz_status scatter_calls(struct reduction *r)
{
    struct plane *p = r->p;
    size_t mine = p->numels[p->rank] * r->wire_nbytes;
    for (int i = 1; i < p->world_size; i++) {
        int to = (p->rank + i) % p->world_size;
        int from = (p->rank + p->world_size - i) % p->world_size;
        size_t theirs = p->numels[to] * r->wire_nbytes;
        const struct piece_run *run = sent_as_it_is(r, to);
        const void *src = run ? source_of(r, run) : slot_of(r, p->out, to);
        if (theirs > 0) TRY(nccl_send(&p->link, src, theirs, to, p->work));
        if (mine > 0) TRY(nccl_receive(&p->link, slot_of(r, p->in, from), mine, from, p->work));
    }
    return CZ_OK;
}

/* Owners send their sums to all. */
static cz_status share_calls(struct reduction *r)
{
    struct plane *p = r->p;
    size_t mine = p->numels[p->rank] * r->wire_nbytes;
    for (int i = 1; i < p->world_size; i++) {
        int to = (p->rank + i) % p->world_size;
        int from = (p->rank + p->world_size - i) % p->world_size;
        size_t theirs = p->numels[from] * r->wire_nbytes;
        if (mine > 0) TRY(nccl_send(&p->link, slot_of(r, p->out, p->rank), mine, to, p->work));
        if (theirs > 0) TRY(nccl_receive(&p->link, slot_of(r, p->in, from), theirs, from, p->work));
    }
    return CZ_OK;
}

static bool has_others(const struct plane *p)
{
    return p->link.calls && p->world_size > 1;
}

/* Sends and receives of a group start together; one after the other they would wait for each
 * other. */
static cz_status exchange(struct reduction *r, cz_status (*calls)(struct reduction *))
{
    if (!has_others(r->p)) return CZ_OK;
    TRY(nccl_group_begin(&r->p->link));
    return nccl_group_end(&r->p->link, calls(r));
}

/* Sums in rank order, as the host's communicator does, so that both give the same bits. */
static cz_status sum(struct reduction *r)
{
    struct plane *p = r->p;
    bool shares = r->a->all && has_others(p);
    struct cuda_sum s = {.in_stride = p->slot_nbytes,
                         .own_dtype = r->a->src_dtype,
                         .wire = r->a->wire,
                         .n_ranks = p->world_size,
                         .own_rank = p->rank,
                         .all_own = p->pretends,
                         .scale = r->a->scale,
                         .dst_dtype = r->a->dst_dtype,
                         .accumulate = r->a->accumulate};
    for (size_t i = 0; i < r->n_runs; i++) {
        const struct piece_run *run = &p->runs[i];
        if (!sums(r, run)) continue;
        s.own = source_of(r, run);
        s.in = plane_at(p->in, run->at, r->wire_nbytes);
        s.dst = target_of(r, run);
        if (shares) s.shared = plane_at(slot_of(r, p->out, p->rank), run->at, r->wire_nbytes);
        s.numel = run->span.numel;
        TRY(cuda_sum(p->work, &s));
    }
    return CZ_OK;
}

/* All of a piece is queued on one stream, so its steps follow each other without the host. */
static cz_status queue_piece(struct reduction *r)
{
    TRY(fetch_host(r));
    if (has_others(r->p)) {
        /* What goes to other owners, on the wire, side by side in their slots. */
        for (size_t i = 0; i < r->n_runs; i++) {
            const struct piece_run *run = &r->p->runs[i];
            if (run->span.owner == r->p->rank || sent_as_it_is(r, run->span.owner)) continue;
            TRY(cuda_put(r->p->work,
                         plane_at(slot_of(r, r->p->out, run->span.owner), run->at, r->wire_nbytes),
                         r->a->wire, source_of(r, run), r->a->src_dtype, false, run->span.numel));
        }
    }
    TRY(exchange(r, scatter_calls));
    TRY(sum(r));
    if (r->a->all && has_others(r->p)) {
        TRY(exchange(r, share_calls));
        /* Others' sums. */
        for (size_t i = 0; i < r->n_runs; i++) {
            const struct piece_run *run = &r->p->runs[i];
            if (run->span.owner == r->p->rank) continue;
            TRY(cuda_put(r->p->work, target_of(r, run), r->a->dst_dtype,
                         plane_at(slot_of(r, r->p->in, run->span.owner), run->at, r->wire_nbytes),
                         r->a->wire, r->a->accumulate, run->span.numel));
        }
    }
    for (size_t i = 0; i < r->n_runs && !r->sides.dst; i++) {
        const struct piece_run *run = &r->p->runs[i];
        if (!takes(r, run)) continue;
        TRY(plane_copy(r->p, plane_at(r->a->dst, run->span.dst_off, r->dst_nbytes),
                       target_of(r, run), run->span.numel * r->dst_nbytes));
    }
    return CZ_OK;
}

/* The mean of one rank's values, in a dtype that can hold them, is the values themselves. */
static bool is_identity(const struct plane *p, const struct comm_reduce *a)
{
    return p->world_size == 1 && a->scale == 1.0f && !a->accumulate &&
           a->src_dtype == a->dst_dtype && (a->wire == a->src_dtype || a->wire == DTYPE_F32);
}

static cz_status plane_queue_reduce(struct plane *p, const struct comm_reduce *a,
                                    struct plane_sides sides)
{
    struct reduction r = {.p = p,
                          .a = a,
                          .sides = sides,
                          .src_nbytes = dtype_size(a->src_dtype),
                          .dst_nbytes = dtype_size(a->dst_dtype),
                          .wire_nbytes = dtype_size(a->wire)};
    if (is_identity(p, a)) {
        size_t size = dtype_size(a->dst_dtype), n;
        plane_cut(p, a->spans, a->n_spans, false, SIZE_MAX);
        while ((n = plane_next(p)) > 0)
            for (size_t i = 0; i < n; i++) {
                const struct comm_span *s = &p->runs[i].span;
                TRY(plane_copy(p, plane_at(a->dst, s->dst_off, size),
                               plane_at(a->src, s->src_off, size), s->numel * size));
            }
        return CZ_OK;
    }
    plane_cut(p, a->spans, a->n_spans, false, p->slot_nbytes / sizeof(float));
    while ((r.n_runs = plane_next(p)) > 0) TRY(queue_piece(&r));
    return CZ_OK;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* A move that is being queued, piece by piece. */
struct movement {
    struct plane *p;
    const struct comm_move *a;
    struct plane_sides sides;
    bool is_staged; /* a side is the host's */
    size_t n_runs;  /* of the piece */
};

static char *moved_from(const struct movement *m, const struct piece_run *run)
{
    return plane_at(m->a->src, run->span.src_off, m->a->elem_nbytes);
}

static char *moved_to(const struct movement *m, const struct piece_run *run)
{
    return plane_at(m->a->dst, run->span.dst_off, m->a->elem_nbytes);
}

static size_t nbytes_of(const struct movement *m, const struct piece_run *run)
{
    return run->span.numel * m->a->elem_nbytes;
}

/* A run's place in its owner's slot, the same on all ranks. */
static char *staged_at(const struct movement *m, const struct piece_run *run)
{
    const struct plane *p = m->p;
    return plane_at(p->out + (size_t)run->span.owner * p->slot_nbytes, run->at, m->a->elem_nbytes);
}

static bool is_own(const struct movement *m, const struct piece_run *run)
{
    return run->span.owner == m->p->rank;
}

static bool is_for_me(const struct movement *m, const struct piece_run *run)
{
    return run->span.to == m->p->rank || run->span.to == COMM_ALL;
}

/* Whether NCCL carries this run: not between other ranks alone, nor from a rank to itself. */
static bool is_call(const struct movement *m, const struct piece_run *run, bool to_all)
{
    if (to_all) return run->span.to == COMM_ALL;
    return run->span.to != COMM_ALL && run->span.to != run->span.owner &&
           (is_own(m, run) || is_for_me(m, run));
}

static cz_status queue_call(struct movement *m, const struct piece_run *run)
{
    struct plane *p = m->p;
    size_t nbytes = nbytes_of(m, run);
    char *src = m->is_staged ? staged_at(m, run) : moved_from(m, run);
    char *dst = m->is_staged ? staged_at(m, run) : moved_to(m, run);
    if (run->span.to == COMM_ALL)
        return nccl_broadcast(&p->link, is_own(m, run) ? src : dst, dst, nbytes, run->span.owner,
                              p->work);
    if (is_own(m, run)) return nccl_send(&p->link, src, nbytes, run->span.to, p->work);
    return nccl_receive(&p->link, dst, nbytes, run->span.owner, p->work);
}

static cz_status queue_calls(struct movement *m, bool to_all)
{
    for (size_t i = 0; i < m->n_runs; i++)
        if (is_call(m, &m->p->runs[i], to_all)) TRY(queue_call(m, &m->p->runs[i]));
    return CZ_OK;
}

/* Broadcasts are every rank's call, so they go before sends and receives, in a group of their
 * own. */
static cz_status exchange_moves(struct movement *m, bool to_all)
{
    bool any = false;
    if (!m->p->link.calls) return CZ_OK;
    for (size_t i = 0; i < m->n_runs; i++) any = any || is_call(m, &m->p->runs[i], to_all);
    if (!any) return CZ_OK;
    TRY(nccl_group_begin(&m->p->link));
    return nccl_group_end(&m->p->link, queue_calls(m, to_all));
}

static cz_status plane_queue_move(struct plane *p, const struct comm_move *a,
                                  struct plane_sides sides)
{
    struct movement m = {.p = p, .a = a, .sides = sides, .is_staged = !sides.src || !sides.dst};
    size_t numel = SIZE_MAX;
    if (m.is_staged && p->link.calls) numel = p->slot_nbytes / a->elem_nbytes;
    if (numel == 0)
        return err_set(CZ_INVALID, 0, "elements of %zu bytes do not fit in a piece of %zu",
                       a->elem_nbytes, p->slot_nbytes);
    plane_cut(p, a->spans, a->n_spans, true, numel);
    while ((m.n_runs = plane_next(p)) > 0) {
        /* What this rank keeps by copying, and what it sends through its slot. */
        for (size_t i = 0; i < m.n_runs; i++) {
            const struct piece_run *run = &m.p->runs[i];
            if (!is_own(&m, run)) continue;
            bool broadcasts = run->span.to == COMM_ALL && m.p->link.calls && !m.is_staged;
            if (is_for_me(&m, run) && !broadcasts)
                TRY(plane_copy(m.p, moved_to(&m, run), moved_from(&m, run), nbytes_of(&m, run)));
            if (m.is_staged && m.p->link.calls && run->span.to != m.p->rank)
                TRY(plane_copy(m.p, staged_at(&m, run), moved_from(&m, run), nbytes_of(&m, run)));
        }
        TRY(exchange_moves(&m, true));
        TRY(exchange_moves(&m, false));
        for (size_t i = 0; i < m.n_runs && m.is_staged && m.p->link.calls; i++) {
            const struct piece_run *run = &m.p->runs[i];
            if (!is_own(&m, run) && is_for_me(&m, run))
                TRY(plane_copy(m.p, moved_to(&m, run), staged_at(&m, run), nbytes_of(&m, run)));
        }
    }
    return CZ_OK;
}

/* ---- a collective ---------------------------------------------------------------------------- */

/* The plane's stream continues after what the caller's stream holds now. */
static cz_status begin(struct plane *p)
{
    const struct device_ops *ops = p->device->ops;
    p->n_begun++;
    atomic_store(&p->link.n_begun, ++p->n_queued);
    TRY(ops->event_record(p->device, p->ready, p->stream));
    return ops->stream_wait(p->device, p->work, p->ready);
}

static cz_status end(struct plane *p, struct plane_sides sides)
{
    if (!sides.dst) p->to_host = p->n_begun;
    if (p->link.calls) {
        /* Say on the host how far the device has come. */
        TRY(cuda_note(p->work, (uint64_t *)(void *)p->word, p->n_queued));
        TRY(plane_copy(p, p->n_done, p->word, sizeof *p->n_done));
    }
    return p->device->ops->event_record(p->device, p->done[p->n_begun % PLANE_TICKETS], p->work);
}

static cz_status plane_reduce(struct device_plane *plane, const struct comm_reduce *args,
                              struct plane_sides sides, uint64_t id)
{
    struct plane *p = self(plane);
    (void)id; /* ours count the same way */
    TRY(begin(p));
    TRY(plane_queue_reduce(p, args, sides));
    return end(p, sides);
}

static cz_status plane_move(struct device_plane *plane, const struct comm_move *args,
                            struct plane_sides sides, uint64_t id)
{
    struct plane *p = self(plane);
    (void)id;
    TRY(begin(p));
    TRY(plane_queue_move(p, args, sides));
    return end(p, sides);
}

/* A destination on the host is waited for by polling, so that an error of the link ends the
 * wait. */
static cz_status wait_host(struct plane *p, struct dev_event *event)
{
    const struct timespec nap = {.tv_nsec = 20000};
    for (int looks = 0;; looks++) {
        bool is_past;
        TRY(p->device->ops->event_query(p->device, event, &is_past));
        TRY(nccl_link_check(&p->link));
        if (is_past) return CZ_OK;
        if (looks > 100) nanosleep(&nap, NULL);
    }
}

/* Destinations on the device only need an order between streams; the host waits where one is its
 * own. */
static cz_status plane_wait(struct device_plane *plane, uint64_t id)
{
    struct plane *p = self(plane);
    struct dev_event *event = p->done[id % PLANE_TICKETS];
    TRY(p->device->ops->stream_wait(p->device, p->stream, event));
    if (p->to_host <= p->to_host_done) return CZ_OK;
    TRY(wait_host(p, event));
    p->to_host_done = id < p->to_host ? id : p->to_host;
    return CZ_OK;
}

static cz_status plane_check(struct device_plane *plane)
{
    return nccl_link_check(&self(plane)->link);
}

static void plane_abort(struct device_plane *plane)
{
    nccl_link_abort(&self(plane)->link);
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t memory_nbytes(const struct plane *p)
{
    return PLANE_REGIONS * p->slot_nbytes * (size_t)p->world_size + PLANE_WORD_NBYTES;
}

/* What is under way ends before its memory is freed, after an abort as after anything else. */
static void plane_destroy(struct device_plane *plane)
{
    struct plane *p = self(plane);
    const struct device_ops *ops = p->device->ops;
    if (p->work) ops->stream_sync(p->device, p->work);
    nccl_link_close(&p->link);
    for (size_t i = 0; i < PLANE_TICKETS; i++) ops->event_destroy(p->device, p->done[i]);
    ops->event_destroy(p->device, p->ready);
    ops->stream_destroy(p->device, p->work);
    if (p->memory) ops->mem_free(p->device, p->memory, memory_nbytes(p));
    if (p->n_done_registered) ops->host_unregister(p->device, p->n_done, STAGED_PAGE_NBYTES);
    if (p->n_done) munmap(p->n_done, STAGED_PAGE_NBYTES);
    free(p->runs);
    free(p->numels);
    free(p->cut.at);
    free(p);
}

static cz_status make_memory(struct plane *p, size_t piece_nbytes)
{
    size_t w = (size_t)p->world_size;
    void *memory;
    p->slot_nbytes = plane_slot_nbytes(piece_nbytes, p->world_size);
    TRY(p->device->ops->mem_alloc(p->device, memory_nbytes(p), "pieces of collectives", &memory));
    p->memory = memory;
    p->out = p->memory;
    p->in = p->out + w * p->slot_nbytes;
    p->host = p->in + w * p->slot_nbytes;
    p->word = p->host + w * p->slot_nbytes;
    p->cut.world_size = p->world_size;
    p->cut.at = calloc(w, sizeof *p->cut.at);
    p->runs = calloc(w * PIECE_RUNS_PER_OWNER, sizeof *p->runs);
    p->numels = calloc(w, sizeof *p->numels);
    if (p->cut.at && p->runs && p->numels) return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory for the tables of a communicator");
}

static cz_status make_events(struct plane *p)
{
    const struct device_ops *ops = p->device->ops;
    for (size_t i = 0; i < PLANE_TICKETS; i++) TRY(ops->event_create(p->device, &p->done[i]));
    TRY(ops->event_create(p->device, &p->ready));
    return ops->stream_create(p->device, &p->work);
}

static const struct device_plane_ops self_ops = {
    .name = "self",
    .reduce = plane_reduce,
    .move = plane_move,
    .wait = plane_wait,
    .destroy = plane_destroy,
};

static const struct device_plane_ops nccl_ops = {
    .name = "nccl",
    .reduce = plane_reduce,
    .move = plane_move,
    .wait = plane_wait,
    .abort = plane_abort,
    .check = plane_check,
    .destroy = plane_destroy,
};

static cz_status make(const struct plane_args *args, const struct device_plane_ops *ops,
                      struct plane **out)
{
    struct plane *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    p->base.ops = ops;
    p->device = args->device;
    p->stream = args->stream;
    p->rank = args->host->rank;
    p->world_size = args->host->world_size;
    p->pretends = ops == &self_ops;
    cz_status st = make_memory(p, args->piece_nbytes);
    if (st == CZ_OK) st = make_events(p);
    if (st == CZ_OK) {
        *out = p;
        return CZ_OK;
    }
    plane_destroy(&p->base);
    return st;
}

static cz_status self_create(const struct plane_args *args, struct device_plane **out)
{
    struct plane *p;
    *out = NULL;
    TRY(make(args, &self_ops, &p));
    *out = &p->base;
    return CZ_OK;
}

static cz_status start_link(struct plane *p, const struct nccl_args *args)
{
    struct nccl_link *l = &p->link;
    TRY(nccl_load(&l->calls));
    pthread_mutex_init(&l->lock, NULL);
    memcpy(l->id.internal, args->id, sizeof args->id);
    l->rank = p->rank;
    l->world_size = p->world_size;
    /* Where the device says how far it has come: a thread can look there without asking CUDA. */
    void *page = mmap(NULL, STAGED_PAGE_NBYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (page == MAP_FAILED) return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    p->n_done = page;
    TRY(p->device->ops->host_register(p->device, page, STAGED_PAGE_NBYTES));
    p->n_done_registered = true;
    p->link.n_done = p->n_done;
    return nccl_watch_start(l, args->pids);
}

static cz_status nccl_create(const struct plane_args *args, const struct nccl_args *nccl,
                             struct device_plane **out)
{
    struct plane *p;
    *out = NULL;
    TRY(make(args, &nccl_ops, &p));
    cz_status st = start_link(p, nccl);
    if (st != CZ_OK) {
        plane_destroy(&p->base);
        return st;
    }
    *out = &p->base;
    return CZ_OK;
}

/* The first sends between ranks open connections, which block the rank that queues them: better now
 * than in a step. */
static cz_status meet(struct plane *p)
{
    struct nccl_link *l = &p->link;
    cz_status st = CZ_OK;
    TRY(begin(p));
    TRY(nccl_group_begin(l));
    for (int i = 0; i < p->world_size && st == CZ_OK; i++) {
        int to = (p->rank + i) % p->world_size;
        int from = (p->rank + p->world_size - i) % p->world_size;
        st = nccl_send(l, p->out, 4, to, p->work);
        if (st == CZ_OK)
            st = nccl_receive(l, p->in + (size_t)from * p->slot_nbytes, 4, from, p->work);
    }
    TRY(nccl_group_end(l, st));
    TRY(end(p, (struct plane_sides){.src = true, .dst = true}));
    return wait_host(p, p->done[p->n_begun % PLANE_TICKETS]);
}

static cz_status nccl_connect(struct device_plane *plane)
{
    struct plane *p = self(plane);
    TRY(nccl_link_connect(&p->link));
    cz_status st = meet(p);
    p->n_begun = 0; /* the communicator's tickets begin at 1 */
    return st;
}

static cz_status nccl_open(void)
{
    const struct nccl_calls *calls;
    return nccl_load(&calls);
}

static cz_status nccl_make_id(unsigned char id[NCCL_ID_NBYTES])
{
    const struct nccl_calls *calls;
    struct nccl_id made;
    TRY(nccl_load(&calls));
    int result = calls->GetUniqueId(&made);
    if (result != NCCL_SUCCESS)
        return err_set(CZ_COMM, 0, "NCCL gives no id for its ranks to meet by: %s",
                       calls->GetErrorString(result));
    memcpy(id, made.internal, NCCL_ID_NBYTES);
    return CZ_OK;
}

CZ_API const struct device_planes czero_nccl_planes = {
    .version = DEVICE_PLANES_VERSION,
    .args_nbytes = sizeof(struct plane_args),
    .comm_nbytes = sizeof(struct comm),
    .self_create = self_create,
    .nccl_open = nccl_open,
    .nccl_id = nccl_make_id,
    .nccl_create = nccl_create,
    .nccl_connect = nccl_connect,
};

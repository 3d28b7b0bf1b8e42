/* The planes' life: order with the caller's stream, ends, waiting. */
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

cz_status plane_copy(struct plane *p, void *dst, const void *src, size_t nbytes)
{
    return p->device->ops->copy(p->device, p->work, dst, src, nbytes);
}

void plane_cut(struct plane *p, const struct comm_span *spans, size_t n_spans, bool moves,
               size_t slot_numel)
{
    p->cut.spans = spans;
    p->cut.n_spans = n_spans;
    p->cut.moves = moves;
    p->cut.slot_numel = slot_numel;
    pieces_begin(&p->cut);
}

size_t plane_next(struct plane *p)
{
    return pieces_next(&p->cut, p->runs, p->numels);
}

/* ---- a collective -----------------------------------------------------------------------------
 */

/* After what the caller's stream holds now. */
static cz_status begin(struct plane *p)
{
    const struct device_ops *ops = p->device->ops;
    p->n_begun++;
    atomic_store(&p->link.n_begun, ++p->n_queued);
    TRY(ops->event_record(p->device, p->ready, p->stream));
    return ops->stream_wait(p->device, p->work, p->ready);
}

/* Say on the host how far the device has come. */
static cz_status note(struct plane *p)
{
    TRY(cuda_note(p->work, (uint64_t *)(void *)p->word, p->n_queued));
    return plane_copy(p, p->n_done, p->word, sizeof *p->n_done);
}

static cz_status end(struct plane *p, struct plane_sides sides)
{
    if (!sides.dst) p->to_host = p->n_begun;
    if (p->link.calls) TRY(note(p));
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

/* A destination on the host is waited for by looking, so that an end of the link is heard of. */
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

/* ---- life -------------------------------------------------------------------------------------
 */

static size_t memory_nbytes(const struct plane *p)
{
    return PLANE_REGIONS * p->slot_nbytes * (size_t)p->world_size + PLANE_WORD_NBYTES;
}

/* What is under way ends before its memory goes; after an abort as after anything else. */
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

/* Where the device says how far it has come: a thread can look there without asking CUDA. */
static cz_status make_note(struct plane *p)
{
    void *page = mmap(NULL, STAGED_PAGE_NBYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (page == MAP_FAILED) return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    p->n_done = page;
    TRY(p->device->ops->host_register(p->device, page, STAGED_PAGE_NBYTES));
    p->n_done_registered = true;
    p->link.n_done = p->n_done;
    return CZ_OK;
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
    TRY(make_note(p));
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

/* Ranks' first sends make connections, which delay the rank that queues them: better now. */
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

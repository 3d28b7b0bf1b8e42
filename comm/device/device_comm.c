/* The front of the device communicator: it decides by the pointers whether the device's plane or
 * the host's communicator carries a collective, gives out tickets, and makes errors stay. */
#include "comm/comm_impl.h"
#include "comm/device/device_pick_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PHASE_NBYTES 48

struct mark {
    uint64_t plane_id;
    struct comm_ticket host;
};

struct device_comm {
    struct comm comm;
    struct comm_ops ops; /* named as the kind */
    struct comm *host;
    struct device *device;
    struct device_plane *plane;
    uint64_t n_begun;
    struct mark newest, marks[PLANE_TICKETS];
    int64_t step;
    char phase[PHASE_NBYTES];
    struct err broken; /* status CZ_OK: not */
};

static struct device_comm *self(struct comm *comm)
{
    return (struct device_comm *)comm;
}

/* ---- errors that stay ------------------------------------------------------------------------ */

static cz_status broken(const struct device_comm *dc)
{
    return err_restore(&dc->broken);
}

/* The last error is the reason; what the device still waits for is ended. */
static cz_status fail(struct device_comm *dc)
{
    err_capture(&dc->broken);
    if (dc->plane && dc->plane->ops->abort) dc->plane->ops->abort(dc->plane);
    return broken(dc);
}

/* The same for an error of the plane. NCCL does not know the ranks' steps, so the sentence gets
 * this rank's. */
static cz_status fail_plane(struct device_comm *dc, cz_status st)
{
    char text[512];
    if (!dc->plane->ops->check) return fail(dc);
    if (dc->plane->ops->abort) dc->plane->ops->abort(dc->plane);
    if (st == CZ_PEER) {
        /* What the host communicator says of a rank that has died or left, which it knows more
         * about. The others ask as well, once they have noticed: the dead rank's part is what is
         * missing. */
        struct err mine;
        err_capture(&mine);
        if (comm_agree(dc->host, CZ_OK) != CZ_PEER) err_restore(&mine);
    }
    if (st == CZ_COMM && dc->phase[0]) {
        snprintf(text, sizeof text, "%s", cz_last_error());
        err_set(st, 0, "%s; rank %d stood at step %" PRId64 " (%s)", text, dc->comm.rank, dc->step,
                dc->phase);
    }
    return fail(dc);
}

#define PLANE_TRY(dc, call)                                                                        \
    do {                                                                                           \
        cz_status plane_st_ = (call);                                                              \
        if (plane_st_ != CZ_OK) return fail_plane(dc, plane_st_);                                  \
    } while (0)

/* What went wrong by itself since the last call. */
static cz_status check(struct device_comm *dc)
{
    if (dc->broken.status != CZ_OK) return broken(dc);
    if (dc->plane->ops->check) PLANE_TRY(dc, dc->plane->ops->check(dc->plane));
    return CZ_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static struct plane_sides sides_of(const struct device_comm *dc, const void *src, const void *dst)
{
    struct device *d = dc->device;
    struct plane_sides sides = {.src = d->ops->is_device_memory(d, src),
                                .dst = d->ops->is_device_memory(d, dst)};
    if (!src) sides.src = sides.dst;
    if (!dst) sides.dst = sides.src;
    return sides;
}

/* What was begun up to a ticket on either side: its wait is for both. Tickets beyond the ring use
 * the mark of a later one, which waits longer than needed and never less. */
static void mark(struct device_comm *dc, struct comm_ticket *ticket)
{
    ticket->id = ++dc->n_begun;
    dc->marks[dc->n_begun % PLANE_TICKETS] = dc->newest;
}

/* Collectives must be in the same order on every rank; so what the plane has begun comes first on
 * the host's communicator. */
static cz_status before_host(struct device_comm *dc)
{
    TRY(check(dc));
    if (dc->plane->ops->drain) PLANE_TRY(dc, dc->plane->ops->drain(dc->plane));
    return CZ_OK;
}

static cz_status device_reduce(struct comm *comm, const struct comm_reduce *args,
                               struct comm_ticket *ticket)
{
    struct device_comm *dc = self(comm);
    struct plane_sides sides = sides_of(dc, args->src, args->dst);
    if (sides.src || sides.dst) {
        TRY(check(dc));
        PLANE_TRY(dc, dc->plane->ops->reduce(dc->plane, args, sides, ++dc->newest.plane_id));
    } else {
        TRY(before_host(dc));
        if (comm_reduce_begin(dc->host, args, &dc->newest.host) != CZ_OK) return fail(dc);
    }
    mark(dc, ticket);
    return CZ_OK;
}

static cz_status device_move(struct comm *comm, const struct comm_move *args,
                             struct comm_ticket *ticket)
{
    struct device_comm *dc = self(comm);
    struct plane_sides sides = sides_of(dc, args->src, args->dst);
    if (sides.src || sides.dst) {
        TRY(check(dc));
        PLANE_TRY(dc, dc->plane->ops->move(dc->plane, args, sides, ++dc->newest.plane_id));
    } else {
        TRY(before_host(dc));
        if (comm_move_begin(dc->host, args, &dc->newest.host) != CZ_OK) return fail(dc);
    }
    mark(dc, ticket);
    return CZ_OK;
}

static cz_status device_wait(struct comm *comm, struct comm_ticket ticket)
{
    struct device_comm *dc = self(comm);
    /* Of a ticket whose mark was taken by a later one, that one. */
    uint64_t id = ticket.id;
    if (dc->n_begun >= PLANE_TICKETS && id <= dc->n_begun - PLANE_TICKETS)
        id = dc->n_begun - PLANE_TICKETS + 1;
    struct mark m = dc->marks[id % PLANE_TICKETS];
    TRY(check(dc));
    if (m.plane_id > 0) PLANE_TRY(dc, dc->plane->ops->wait(dc->plane, m.plane_id));
    if (comm_wait(dc->host, m.host) != CZ_OK) return fail(dc);
    return CZ_OK;
}

static cz_status device_progress(struct comm *comm)
{
    struct device_comm *dc = self(comm);
    TRY(check(dc));
    if (dc->plane->ops->progress) PLANE_TRY(dc, dc->plane->ops->progress(dc->plane));
    return comm_progress(dc->host) == CZ_OK ? CZ_OK : fail(dc);
}

static void device_set_phase(struct comm *comm, int64_t step, const char *phase)
{
    struct device_comm *dc = self(comm);
    dc->step = step;
    snprintf(dc->phase, sizeof dc->phase, "%s", phase);
    comm_set_phase(dc->host, step, phase);
}

static void device_leave(struct comm *comm, const char *reason)
{
    struct device_comm *dc = self(comm);
    struct err current;
    err_capture(&current);
    char text[512];
    snprintf(text, sizeof text, "%s", reason);
    comm_leave(dc->host, text);
    if (dc->broken.status == CZ_OK) {
        err_set(CZ_COMM, 0, "this rank has left the run: %s", text);
        fail(dc);
    }
    if (current.status != CZ_OK) err_restore(&current);
}

/* Collectives that were never waited for are waited for here, because they use the caller's
 * memory. */
static void device_destroy(struct comm *comm)
{
    struct device_comm *dc = self(comm);
    if (dc->plane) {
        struct err current;
        err_capture(&current);
        if (dc->broken.status == CZ_OK && dc->n_begun > 0) {
            const struct comm_ticket last = {.id = dc->n_begun};
            device_wait(comm, last); /* what fails here was never waited for */
        }
        dc->plane->ops->destroy(dc->plane);
        if (current.status != CZ_OK) err_restore(&current);
    }
    comm_fini(comm);
    free(dc);
}

static const struct comm_ops device_ops = {
    .reduce = device_reduce,
    .move = device_move,
    .progress = device_progress,
    .wait = device_wait,
    .set_phase = device_set_phase,
    .leave = device_leave,
    .destroy = device_destroy,
};

/* ---- creation -------------------------------------------------------------------------------- */

static cz_status share_pids(struct comm *host, int *pids)
{
    struct device_seat *seats = calloc((size_t)host->world_size, sizeof *seats);
    cz_status st = seats ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for ranks");
    TRY_GOTO(comm_agree(host, st), done);
    seats[host->rank] = device_seat_here();
    TRY_GOTO(comm_all_gather(host, &seats[host->rank], seats, sizeof *seats), done);
    for (int r = 0; r < host->world_size; r++)
        pids[r] = seats[r].host == seats[host->rank].host ? seats[r].pid : 0;
done:
    free(seats);
    return st;
}

/* Ranks that wait in NCCL cannot hear this one on the host's plane, so its link must end; then they
 * learn the reason there. */
static cz_status connect_nccl(const struct device_planes *planes, struct comm *host,
                              struct device_plane *plane)
{
    cz_status st = planes->nccl_connect(plane), told = CZ_OK;
    struct err mine;
    if (st == CZ_OK) return CZ_OK;
    err_capture(&mine);
    if (st == CZ_PEER) told = comm_agree(host, CZ_OK);
    if (told != CZ_OK) return told;
    comm_leave(host, mine.text);
    return err_restore(&mine);
}

/* Every step is agreed on: a rank that failed alone would leave the others waiting in NCCL. */
static cz_status create_nccl(const struct device_planes *planes, const struct plane_args *args,
                             struct device_plane **out)
{
    struct comm *host = args->host;
    struct nccl_args nccl = {0};
    int *pids = calloc((size_t)host->world_size, sizeof *pids);
    nccl.pids = pids;
    cz_status st = pids ? planes->nccl_open() : err_set(CZ_NOMEM, 0, "no memory for ranks");
    TRY_GOTO(comm_agree(host, st), done);
    if (host->rank == 0) st = planes->nccl_id(nccl.id);
    TRY_GOTO(comm_agree(host, st), done);
    TRY_GOTO(comm_broadcast(host, nccl.id, sizeof nccl.id, 0), done);
    TRY_GOTO(share_pids(host, pids), done);
    st = planes->nccl_create(args, &nccl, out);
    TRY_GOTO(comm_agree(host, st), done);
    st = connect_nccl(planes, host, *out);
done:
    free(pids);
    return st;
}

static cz_status create_self(const struct device_planes *planes, const struct plane_args *args,
                             struct device_plane **out)
{
    if (args->host->world_size > 1 && strcmp(args->host->ops->name, "self") != 0)
        return err_set(CZ_INVALID, 0, "the device communicator of one rank among %d ranks",
                       args->host->world_size);
    return planes->self_create(args, out);
}

/* What each rank does by itself, or NCCL among them. */
static cz_status create_plane(enum device_comm_kind kind, const struct plane_args *args,
                              struct device_plane **out)
{
    const struct device_planes *planes;
    if (kind == DEVICE_COMM_STAGED) return staged_create(args, out);
    cz_status st = device_planes_find(&planes);
    if (kind == DEVICE_COMM_SELF) return st == CZ_OK ? create_self(planes, args, out) : st;
    TRY(comm_agree(args->host, st));
    return create_nccl(planes, args, out);
}

static cz_status create(const struct device_comm_options *o, enum device_comm_kind kind,
                        struct device_comm *dc)
{
    struct comm *host = o->host;
    const struct plane_args args = {.host = host,
                                    .device = o->device,
                                    .stream = o->stream,
                                    .piece_nbytes = device_piece_nbytes(kind, o->piece_nbytes)};
    dc->host = host;
    dc->device = o->device;
    dc->ops = device_ops;
    dc->ops.name = comm_device_kind_name(kind);
    dc->comm.n_ranks_host = host->n_ranks_host;
    dc->comm.rank_host = host->rank_host;
    cz_status st = comm_init(&dc->comm, &dc->ops, host->rank, host->world_size);
    TRY(comm_agree(host, st));
    st = create_plane(kind, &args, &dc->plane);
    return comm_agree(host, st);
}

/* A failed rank takes part in all agreements, and the object is freed only after them. */
cz_status comm_device_create(const struct device_comm_options *options, struct comm **out)
{
    enum device_comm_kind kind = options->kind;
    *out = NULL;
    if (kind == DEVICE_COMM_AUTO) TRY(comm_device_pick(options->host, options->device, &kind));
    struct device_comm *dc = calloc(1, sizeof *dc);
    cz_status st = dc ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a communicator");
    if (!dc) return comm_agree(options->host, st);
    st = create(options, kind, dc);
    if (st != CZ_OK) {
        struct err why;
        err_capture(&why);
        dc->n_begun = 0;
        device_destroy(&dc->comm);
        return err_restore(&why);
    }
    *out = &dc->comm;
    return CZ_OK;
}

/* Slots over MPI point-to-point messages: one message per peer and round, no arithmetic.
 *
 * Receives for two rounds from every peer lie open from creation on, so messages land in their slot
 * without a copy; release() opens the one for two rounds later. All messages of a pair carry one
 * tag: MPI keeps their order, and receives are opened in it. MPI moves data only inside its calls,
 * so whoever waits keeps testing. */
#include "comm/mpi/mpi_transport_impl.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_SLOT = 1, TAG_OBITUARY = 3 }; /* 2: mpi_meet.c */

static struct mpi_transport *self(struct transport *base)
{
    return (struct mpi_transport *)base;
}

/* Index of a request, and of its slot. */
static size_t place(const struct mpi_transport *t, enum direction dir, uint64_t round, int peer)
{
    return ((size_t)dir * 2 + (round & 1)) * (size_t)t->base.world_size + (size_t)peer;
}

static char *slot_at(const struct mpi_transport *t, enum direction dir, uint64_t round, int peer)
{
    return t->slots + place(t, dir, round, peer) * t->stride;
}

/* ---- requests ---------------------------------------------------------------------------------
 */

static cz_status open_receives(struct mpi_transport *t, uint64_t round)
{
    for (int r = 0; r < t->base.world_size; r++) {
        if (r == t->base.rank) continue;
        MPI_TRY(MPI_Irecv, slot_at(t, DIR_IN, round, r), (int)t->stride, MPI_BYTE, r, TAG_SLOT,
                t->comm, &t->requests[place(t, DIR_IN, round, r)]);
        t->n_open[DIR_IN][round & 1]++;
    }
    t->next_receive = round + 1;
    return CZ_OK;
}

static MPI_Request *obituary_to(const struct mpi_transport *t, int peer)
{
    return &t->requests[4 * (size_t)t->base.world_size + (size_t)peer];
}

static cz_status open_obituary(struct mpi_transport *t)
{
    MPI_TRY(MPI_Irecv, &t->inbox, (int)sizeof t->inbox, MPI_BYTE, MPI_ANY_SOURCE, TAG_OBITUARY,
            t->comm, obituary_to(t, t->base.rank));
    return CZ_OK;
}

/* A failure to receive more of them costs a name in a sentence. */
static void note_obituary(struct mpi_transport *t, int from)
{
    t->peers[from].gave_up = true;
    if (t->heard.dead < 0) t->heard = t->inbox;
    (void)open_obituary(t);
}

void mpi_transport_tell(struct mpi_transport *t, int dead)
{
    if (t->has_told) return;
    t->has_told = true;
    t->told.dead = dead;
    if (dead >= 0) t->told.last_heard = t->peers[dead].last_heard;
    for (int r = 0; r < t->base.world_size; r++)
        if (r != t->base.rank && !t->peers[r].is_gone)
            MPI_Isend(&t->told, (int)sizeof t->told, MPI_BYTE, r, TAG_OBITUARY, t->comm,
                      obituary_to(t, r)); /* it may fail: then that peer finds out by itself */
}

static void note_arrival(struct mpi_transport *t, size_t idx)
{
    const struct slot_head *head = (const void *)(t->slots + idx * t->stride);
    struct mpi_peer *peer = &t->peers[idx % (size_t)t->base.world_size];
    peer->n_heard++;
    peer->last_heard.step = head->step;
    memcpy(peer->last_heard.phase, head->phase, sizeof head->phase);
    peer->last_heard.phase[sizeof head->phase - 1] = 0;
    if (head->kind == SLOT_LEAVE) t->somebody_left = true;
}

void mpi_transport_progress(struct mpi_transport *t)
{
    int n = 0;
    int rc = MPI_Testsome(t->n_requests, t->requests, &n, t->completed, t->statuses);
    if (rc != MPI_SUCCESS) {
        for (int i = 0; rc == MPI_ERR_IN_STATUS && i < n; i++)
            if (t->statuses[i].MPI_ERROR != MPI_SUCCESS) rc = t->statuses[i].MPI_ERROR;
        if (t->failed_rc == MPI_SUCCESS) t->failed_rc = rc;
        return;
    }
    for (int i = 0; i < n && n != MPI_UNDEFINED; i++) {
        size_t idx = (size_t)t->completed[i], row = idx / (size_t)t->base.world_size;
        t->n_completed++;
        if (row == 4) {
            if ((int)(idx % (size_t)t->base.world_size) == t->base.rank)
                note_obituary(t, t->statuses[i].MPI_SOURCE);
            continue;
        }
        t->n_open[row / 2][row % 2]--;
        if (row / 2 == DIR_IN) note_arrival(t, idx);
    }
}

bool mpi_transport_has_posted(const struct mpi_transport *t, uint64_t round, int peer)
{
    return round < t->next_receive &&
           t->requests[place(t, DIR_IN, round, peer)] == MPI_REQUEST_NULL;
}

bool mpi_transport_is_sending(const struct mpi_transport *t, int peer)
{
    return t->requests[place(t, DIR_OUT, 0, peer)] != MPI_REQUEST_NULL ||
           t->requests[place(t, DIR_OUT, 1, peer)] != MPI_REQUEST_NULL ||
           *obituary_to(t, peer) != MPI_REQUEST_NULL;
}

/* ---- the vtable -------------------------------------------------------------------------------
 */

/* Sends of two rounds ago are through. That they were read shows in what the peer sends: it posts
 * this round, which is waited for before the next but one, only after it has released that one. */
static bool mpi_may_fill(struct transport *base, uint64_t round)
{
    struct mpi_transport *t = self(base);
    if (t->n_open[DIR_OUT][round & 1]) mpi_transport_progress(t);
    return t->n_open[DIR_OUT][round & 1] == 0;
}

static void *mpi_slot_out(struct transport *base, uint64_t round, int peer)
{
    return slot_at(self(base), DIR_OUT, round, peer == COMM_ALL ? base->rank : peer);
}

static cz_status mpi_post(struct transport *base, uint64_t round, bool to_all)
{
    struct mpi_transport *t = self(base);
    for (int i = 1; i < base->world_size; i++) {
        int peer = (base->rank + i) % base->world_size; /* not everyone to rank 0 first */
        char *slot = slot_at(t, DIR_OUT, round, to_all ? base->rank : peer);
        const struct slot_head *head = (const void *)slot;
        MPI_TRY(MPI_Isend, slot, (int)(sizeof *head + head->nbytes), MPI_BYTE, peer, TAG_SLOT,
                t->comm, &t->requests[place(t, DIR_OUT, round, peer)]);
        t->n_open[DIR_OUT][round & 1]++;
        if (head->kind == SLOT_LEAVE) t->somebody_left = true;
    }
    return CZ_OK;
}

static bool mpi_has_arrived(struct transport *base, uint64_t round)
{
    struct mpi_transport *t = self(base);
    if (round >= t->next_receive) return false;
    if (t->n_open[DIR_IN][round & 1]) mpi_transport_progress(t);
    return t->n_open[DIR_IN][round & 1] == 0;
}

static const void *mpi_slot_in(struct transport *base, uint64_t round, int peer)
{
    return slot_at(self(base), DIR_IN, round, peer);
}

static cz_status mpi_release(struct transport *base, uint64_t round)
{
    return open_receives(self(base), round + 2);
}

static void mpi_set_phase(struct transport *base, int64_t step, const char *phase)
{
    struct where *here = &self(base)->here;
    here->step = step;
    snprintf(here->phase, sizeof here->phase, "%s", phase);
}

static void mpi_destroy(struct transport *base)
{
    struct mpi_transport *t = self(base);
    bool is_healthy = mpi_transport_part(t);
    for (int i = 0; is_healthy && i < t->n_requests; i++) {
        if (t->requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&t->requests[i]); /* a receive that nothing comes for */
        MPI_Wait(&t->requests[i], MPI_STATUS_IGNORE);
    }
    if (t->comm != MPI_COMM_NULL) mpi_world_release(t->comm, is_healthy);
    peer_watch_free(&t->watch);
    if (!is_healthy && t->comm != MPI_COMM_NULL)
        return; /* MPI may still write into slots and requests: they stay until the process ends */
    free(t->slots);
    free(t->requests);
    free(t->completed);
    free(t->statuses);
    free(t->peers);
    free(t);
}

static const struct transport_ops mpi_ops = {
    .name = "mpi",
    .may_fill = mpi_may_fill,
    .slot_out = mpi_slot_out,
    .post = mpi_post,
    .has_arrived = mpi_has_arrived,
    .slot_in = mpi_slot_in,
    .release = mpi_release,
    .sleep = mpi_transport_sleep,
    .set_phase = mpi_set_phase,
    .destroy = mpi_destroy,
};

/* ---- creation ---------------------------------------------------------------------------------
 */

/* 4 · W slots in about 32 MiB, but none larger than what stays in a core's cache. */
static size_t choose_slot_nbytes(int world_size)
{
    size_t nbytes = ((size_t)8 << 20) / (size_t)world_size / 4096 * 4096;
    const size_t least = 16 << 10, most = 256 << 10;
    return nbytes < least ? least : nbytes > most ? most : nbytes;
}

static cz_status allocate(struct mpi_transport *t)
{
    size_t w = (size_t)t->base.world_size, n = 5 * w, n_slots = 4 * w;
    t->base.slot_nbytes = choose_slot_nbytes(t->base.world_size);
    t->stride = sizeof(struct slot_head) + t->base.slot_nbytes;
    t->n_requests = (int)n;
    t->slots = aligned_alloc(64, n_slots * t->stride);
    t->requests = malloc(n * sizeof(MPI_Request));
    t->completed = calloc(n, sizeof *t->completed);
    t->statuses = calloc(n, sizeof *t->statuses);
    t->peers = calloc(w, sizeof *t->peers);
    for (size_t i = 0; t->requests && i < n; i++) t->requests[i] = MPI_REQUEST_NULL;
    if (!t->slots || !t->requests || !t->completed || !t->statuses || !t->peers)
        return err_set(CZ_NOMEM, 0, "no memory for %zu MPI slots of %zu bytes", n_slots, t->stride);
    memset(t->slots, 0, n_slots * t->stride); /* touched now, not in the first step */
    return CZ_OK;
}

static cz_status create(struct mpi_transport *t)
{
    TRY(mpi_world_acquire(&t->comm));
    MPI_TRY(MPI_Comm_rank, t->comm, &t->base.rank);
    MPI_TRY(MPI_Comm_size, t->comm, &t->base.world_size);
    cz_status mine = allocate(t); /* not returned before the others have been told */
    TRY(mpi_transport_meet(t, mine));
    t->heard.dead = -1;
    TRY(open_obituary(t));
    for (uint64_t round = 0; round < 2; round++) TRY(open_receives(t, round));
    return CZ_OK;
}

static cz_status mpi_transport_create(const struct mpi_plugin_host *host, struct transport **out)
{
    mpi_host = *host;
    *out = NULL;
    struct mpi_transport *t = calloc(1, sizeof *t);
    if (!t) return err_set(CZ_NOMEM, 0, "no memory for the MPI transport");
    t->base.ops = &mpi_ops;
    t->comm = MPI_COMM_NULL;
    mpi_set_phase(&t->base, 0, "starting");
    cz_status st = create(t);
    if (st != CZ_OK) {
        t->somebody_left = true; /* no barrier: the others may not have got as far */
        mpi_destroy(&t->base);
        return st;
    }
    *out = &t->base;
    return CZ_OK;
}

CZ_API extern const struct mpi_plugin czero_mpi_plugin;
const struct mpi_plugin czero_mpi_plugin = {
    .version = MPI_PLUGIN_VERSION,
    .head_nbytes = sizeof(struct slot_head),
    .transport_nbytes = sizeof(struct transport),
    .host_nbytes = sizeof(struct mpi_plugin_host),
    .create = mpi_transport_create,
};

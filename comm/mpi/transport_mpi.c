/* Slots over MPI point-to-point messages: one message per peer and round, no arithmetic.
 *
 * Receives for two rounds from every peer are open from creation on, so messages arrive in their
 * slot without a copy; release() opens the one for two rounds later. All messages of a pair carry
 * one tag: MPI keeps their order, and receives are opened in it. MPI moves data only inside its
 * calls, so a waiting rank keeps testing. It spins first, then yields, then sleeps on the process
 * descriptors of this host's ranks, so that it leaves the cores to the ranks it waits for and
 * notices one that has died. */
#include "comm/mpi/mpi_transport_impl.h"

#include "base/clock.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_SLOT = 1, TAG_OBITUARY = 3 }; /* 2: mpi_meet.c */

static struct mpi_transport *self(struct transport *base)
{
    return (struct mpi_transport *)base;
}

/* Index of a request, and of its slot: four rows of world_size, by direction and parity of the
 * round. */
static size_t place(const struct mpi_transport *t, enum direction dir, uint64_t round, int peer)
{
    return ((size_t)dir * 2 + (round & 1)) * (size_t)t->base.world_size + (size_t)peer;
}

static char *slot_at(const struct mpi_transport *t, enum direction dir, uint64_t round, int peer)
{
    return t->slots + place(t, dir, round, peer) * t->stride;
}

/* ---- requests -------------------------------------------------------------------------------- */

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

/* Tells all others, once, that this rank gives up because of `dead`, −1: of a rank on another host.
 * A send may fail: that peer then finds out by itself. */
static void tell(struct mpi_transport *t, int dead)
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

/* Lets MPI move data; notes what has completed. An error is kept for the next sleep, which can
 * report it. */
static void progress(struct mpi_transport *t)
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
            if ((int)(idx % (size_t)t->base.world_size) == t->base.rank) {
                /* A failure to receive more of them costs a name in a sentence. */
                t->peers[t->statuses[i].MPI_SOURCE].gave_up = true;
                if (t->heard.dead < 0) t->heard = t->inbox;
                (void)open_obituary(t);
            }
            continue;
        }
        t->n_open[row / 2][row % 2]--;
        if (row / 2 == DIR_IN) {
            const struct slot_head *head = (const void *)(t->slots + idx * t->stride);
            struct mpi_peer *peer = &t->peers[idx % (size_t)t->base.world_size];
            peer->n_heard++;
            peer->last_heard.step = head->step;
            memcpy(peer->last_heard.phase, head->phase, sizeof head->phase);
            peer->last_heard.phase[sizeof head->phase - 1] = 0;
            if (head->kind == SLOT_LEAVE) t->somebody_left = true;
        }
    }
}

/* Whether peer's slot of this round is here. */
static bool has_posted(const struct mpi_transport *t, uint64_t round, int peer)
{
    return round < t->next_receive &&
           t->requests[place(t, DIR_IN, round, peer)] == MPI_REQUEST_NULL;
}

/* Whether something is under way to this peer. */
static bool is_sending(const struct mpi_transport *t, int peer)
{
    return t->requests[place(t, DIR_OUT, 0, peer)] != MPI_REQUEST_NULL ||
           t->requests[place(t, DIR_OUT, 1, peer)] != MPI_REQUEST_NULL ||
           *obituary_to(t, peer) != MPI_REQUEST_NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

#define US INT64_C(1000)
#define MS INT64_C(1000000)

#define SPIN_NS      (200 * US) /* where every thread has a core */
#define YIELD_NS     (1 * MS)
#define PAUSE_MIN_NS (50 * US)
#define PAUSE_MAX_NS (1 * MS)
#define SLEEP_MAX_NS (50 * MS)
#define LINK_LOST_NS (300 * MS) /* what a peer may take to answer when a connection broke */
#define FLUSH_MIN_NS (50 * MS)  /* TCP may hold on to what MPI calls sent */
#define FLUSH_MAX_NS (1000 * MS)

/* Sleeps until a watched rank has died, at most ns; notes all that have. */
static bool look(struct mpi_transport *t, int64_t ns)
{
    bool is_news = false;
    for (int r; (r = peer_watch_wait(&t->watch, is_news ? 0 : ns)) >= 0; is_news = true) {
        t->peers[r].is_gone = true;
        peer_watch_forget(&t->watch, r);
    }
    return is_news;
}

/* One pause, longer the longer nothing has happened. Spinning is fastest where every thread has a
 * core of its own, and takes the core from the very rank that is waited for where not. True when a
 * watched rank has died. */
static bool pause_and_look(struct mpi_transport *t, int64_t idle_ns)
{
    if (idle_ns < SPIN_NS && t->base.n_ranks_host * mpi_host.n_threads() <= t->n_cores) {
        CZ_CPU_RELAX();
        return false;
    }
    if (idle_ns < YIELD_NS) {
        sched_yield();
        return false;
    }
    int64_t ns = idle_ns / 8;
    if (ns < PAUSE_MIN_NS) ns = PAUSE_MIN_NS;
    if (ns > PAUSE_MAX_NS) ns = PAUSE_MAX_NS;
    return look(t, ns);
}

/* OpenMPI looks at TCP in one of eight calls only. */
static void progress_well(struct mpi_transport *t)
{
    uint64_t before = t->n_completed;
    for (int i = 0; i < 8 && t->n_completed == before; i++) progress(t);
}

/* ---- which rank is missing ------------------------------------------------------------------- */

/* The dead rank that this round lacks; of several the one that got least far: others may have ended
 * because of it. −1: none. */
static int find_culprit(const struct mpi_transport *t, uint64_t round)
{
    int found = -1;
    for (int r = 0; r < t->base.world_size; r++) {
        if (!t->peers[r].is_gone || has_posted(t, round, r)) continue;
        if (found < 0 || t->peers[r].n_heard < t->peers[found].n_heard) found = r;
    }
    return found;
}

/* Ranks of this host are watched, and may take their time. */
static bool waits_for_other_host(const struct mpi_transport *t, uint64_t round)
{
    for (int r = 0; r < t->base.world_size; r++)
        if (r != t->base.rank && !has_posted(t, round, r) && !peer_watch_has(&t->watch, r))
            return true;
    return false;
}

/* Whether nothing has come since a connection broke or the launcher sent its signal. */
static bool is_cut_off(const struct mpi_transport *t, int64_t now)
{
    int64_t since = mpi_link_lost_ns() ? mpi_link_lost_ns() : mpi_host.interrupted_ns();
    if (since == 0) return false;
    if (since < t->idle_since_ns) since = t->idle_since_ns;
    return now - since > (mpi_link_lost_ns() ? LINK_LOST_NS : mpi_host.patience_ns);
}

/* The peers are told before this rank fails: they would take it for the one that died. */
static cz_status check(struct mpi_transport *t, uint64_t round, int64_t now)
{
    if (t->failed_rc != MPI_SUCCESS) return mpi_failed(t->failed_rc, "MPI_Testsome");
    int culprit = t->heard.dead >= 0 ? t->heard.dead : find_culprit(t, round);
    if (culprit >= 0) {
        tell(t, culprit);
        const struct mpi_peer *peer = &t->peers[culprit];
        const struct where *last = peer->n_heard ? &peer->last_heard : &t->heard.last_heard;
        char heard[COMM_PHASE_NBYTES + 64] = "before its first message";
        if (last->phase[0])
            snprintf(heard, sizeof heard, "last seen at step %" PRId64 " (%s)", last->step,
                     last->phase);
        return err_set(
            CZ_PEER, 0,
            "rank %d (pid %d on %s) died, %s, while rank %d waited at step %" PRId64 " (%s)",
            culprit, peer->pid, peer->host, heard, t->base.rank, t->here.step, t->here.phase);
    }
    if (!is_cut_off(t, now) || !waits_for_other_host(t, round)) return CZ_OK;
    tell(t, -1);
    /* Neither dead nor alive as far as we know: ranks of other hosts. */
    char list[512] = "";
    size_t at = 0;
    for (int r = 0; r < t->base.world_size && at < sizeof list; r++)
        if (r != t->base.rank && !has_posted(t, round, r))
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d (on %s)", at ? ", rank " : "",
                                   r, t->peers[r].host);
    return err_set(CZ_PEER, 0, "%s while rank %d waited for rank %s at step %" PRId64 " (%s)",
                   mpi_link_lost_ns() ? "lost a connection to another host"
                                      : "stopped by the launcher",
                   t->base.rank, list, t->here.step, t->here.phase);
}

/* ---- the slots ------------------------------------------------------------------------------- */

/* The vtable's sleep. It returns every SLEEP_MAX_NS, so that the caller's own state is looked at,
 * too. */
static cz_status mpi_sleep(struct transport *base, uint64_t round)
{
    struct mpi_transport *t = (struct mpi_transport *)base;
    int64_t begin = clock_now_ns(), now = begin;
    if (t->idle_round != round || t->idle_n_completed != t->n_completed || !t->idle_since_ns) {
        t->idle_round = round;
        t->idle_n_completed = t->n_completed;
        t->idle_since_ns = begin;
    }
    while (t->n_completed == t->idle_n_completed && now - begin < SLEEP_MAX_NS) {
        bool is_news = pause_and_look(t, now - t->idle_since_ns);
        progress_well(t);
        if (is_news) break; /* what the dead had sent has been taken in */
        now = clock_now_ns();
    }
    cz_status st = check(t, round, now);
    t->gave_up = st != CZ_OK;
    return st;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Whether a live rank still needs this one: has yet to receive what was posted, or, where this rank
 * has given up, to do the same. Ranks of other hosts count as dead then. */
static bool is_needed(const struct mpi_transport *t)
{
    for (int r = 0; r < t->base.world_size; r++) {
        const struct mpi_peer *peer = &t->peers[r];
        if (r == t->base.rank || peer->is_gone || (t->gave_up && !peer_watch_has(&t->watch, r)))
            continue;
        if (is_sending(t, r) || (t->gave_up && !peer->gave_up)) return true;
    }
    return false;
}

/* A barrier that ends when a rank will never come to it. */
static bool all_come(struct mpi_transport *t)
{
    MPI_Request barrier;
    int is_done = 0;
    if (MPI_Ibarrier(t->comm, &barrier) != MPI_SUCCESS) return false;
    t->idle_since_ns = clock_now_ns();
    for (int64_t now = t->idle_since_ns;; now = clock_now_ns()) {
        bool is_news = pause_and_look(t, now - t->idle_since_ns);
        progress(t); /* hears a peer that leaves */
        for (int i = 0; i < 8 && !is_done; i++)
            if (MPI_Test(&barrier, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
        if (is_done) return true;
        t->gave_up = is_news || t->failed_rc != MPI_SUCCESS ||
                     (is_cut_off(t, now) && t->watch.n < t->base.world_size - 1);
        if (t->gave_up || t->somebody_left) return false;
    }
}

/* The end: true when all ranks have come to it, so that MPI can be finalized; otherwise what this
 * rank has posted is on its way. */
static bool part(struct mpi_transport *t)
{
    bool is_broken = t->somebody_left || t->gave_up || mpi_link_lost_ns();
    if (t->comm == MPI_COMM_NULL || !t->peers) return false;
    if (!is_broken && all_come(t)) return true;
    /* What was posted goes out: a peer that lacked it would take this rank for the one that died.
     * And the first rank to end makes the launcher kill the others, which have something to say,
     * too. */
    int64_t begin = clock_now_ns(), waited = 0;
    while (t->failed_rc == MPI_SUCCESS &&
           (waited < FLUSH_MIN_NS || (waited < FLUSH_MAX_NS && is_needed(t)))) {
        progress_well(t);
        look(t, 100 * US);
        waited = clock_now_ns() - begin;
    }
    return false;
}

/* ---- the vtable ------------------------------------------------------------------------------ */

/* Sends of two rounds ago are through. That they were read shows in what the peer sends: it posts
 * this round, which is waited for before the next but one, only after it has released that one. */
static bool mpi_may_fill(struct transport *base, uint64_t round)
{
    struct mpi_transport *t = self(base);
    if (t->n_open[DIR_OUT][round & 1]) progress(t);
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
        int peer = (base->rank + i) % base->world_size; /* not all ranks to rank 0 first */
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
    if (t->n_open[DIR_IN][round & 1]) progress(t);
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

/* After a failure slots and requests are leaked on purpose: MPI may still write into them until the
 * process ends. */
static void mpi_destroy(struct transport *base)
{
    struct mpi_transport *t = self(base);
    bool is_healthy = part(t);
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
    .sleep = mpi_sleep,
    .set_phase = mpi_set_phase,
    .destroy = mpi_destroy,
};

/* ---- creation -------------------------------------------------------------------------------- */

/* Slots are touched now, not in the first step. */
static cz_status allocate(struct mpi_transport *t)
{
    size_t w = (size_t)t->base.world_size, n = 5 * w, n_slots = 4 * w;
    /* 4 · W slots in about 32 MiB, but none larger than what stays in a core's cache. */
    size_t nbytes = ((size_t)8 << 20) / (size_t)t->base.world_size / 4096 * 4096;
    const size_t least = 16 << 10, most = 256 << 10;
    t->base.slot_nbytes = nbytes < least ? least : nbytes > most ? most : nbytes;
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

/* A rank that has no memory still takes part in the meeting, which tells the others. */
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

/* A failed rank takes no part in the final barrier: the others may not have got as far. */
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

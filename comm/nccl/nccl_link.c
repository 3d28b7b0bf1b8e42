/* The link between ranks: NCCL's calls, and a thread that watches them.
 *
 * A communicator does not block: what is in progress is polled for, so that the death of a rank
 * ends the wait. The host thread may itself be stopped in a wait for its device; so a thread of its
 * own looks for errors that NCCL met by itself, and for ranks of this host that have died while
 * collectives are under way. Either ends the link, and with it what the device waits for. */
#include "comm/nccl/plane_impl.h"

#include "base/clock.h"
#include "base/host/thread.h"
#include "device/cuda/runtime.h"

#include <string.h>
#include <time.h>

#define CONNECT_NS_LIMIT  (INT64_C(60) * 1000000000)
#define FINALIZE_NS_LIMIT (INT64_C(5) * 1000000000)

/* An error's sentence; lock held. */
static cz_status refuse(struct nccl_link *l, int result, const char *what)
{
    const char *last = l->calls->GetLastError(l->comm); /* the thread's: NULL will do */
    return err_set(CZ_COMM, 0, "rank %d of %d: NCCL failed while %s: %s%s%s", l->rank,
                   l->world_size, what, l->calls->GetErrorString(result), last && *last ? ", " : "",
                   last ? last : "");
}

/* ---- ending it ------------------------------------------------------------------------------- */

cz_status nccl_link_check(struct nccl_link *l)
{
    if (!l->calls || atomic_load_explicit(&l->failed, memory_order_acquire) == 0) return CZ_OK;
    return err_restore(&l->why);
}

/* Any thread may call this, also while another is inside NCCL: ncclCommAbort is what ends a wait of
 * the device. The first reason stays. */
void nccl_link_abort(struct nccl_link *l)
{
    if (!l->calls) return;
    pthread_mutex_lock(&l->lock);
    if (!l->is_over) {
        l->is_over = true;
        err_capture(&l->why);
        if (l->why.status == CZ_OK) l->why.status = CZ_COMM;
        if (l->comm) l->calls->CommAbort(l->comm);
        l->comm = NULL;
        atomic_store_explicit(&l->failed, 1, memory_order_release);
    }
    pthread_mutex_unlock(&l->lock);
}

/* The last error ends the link; if the link had ended already, its first reason is returned. */
static cz_status fail(struct nccl_link *l)
{
    nccl_link_abort(l);
    return nccl_link_check(l);
}

/* Takes the lock for a call; not taken on error. */
static cz_status enter(struct nccl_link *l)
{
    pthread_mutex_lock(&l->lock);
    if (!l->is_over) return CZ_OK;
    pthread_mutex_unlock(&l->lock);
    return nccl_link_check(l);
}

/* NCCL_IN_PROGRESS is the usual answer of a communicator that does not block. */
static cz_status leave(struct nccl_link *l, int result, const char *what)
{
    bool good = result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
    cz_status st = good ? CZ_OK : refuse(l, result, what);
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* Polls until nothing is in progress; limit_ns 0: as long as all ranks live. */
static cz_status settle(struct nccl_link *l, const char *what, int64_t limit_ns)
{
    int64_t begun = clock_now_ns();
    for (;;) {
        int state = NCCL_SUCCESS;
        TRY(enter(l));
        int result = l->comm ? l->calls->CommGetAsyncError(l->comm, &state) : NCCL_SUCCESS;
        TRY(leave(l, result != NCCL_SUCCESS ? result : state, what));
        if (state != NCCL_IN_PROGRESS) return CZ_OK;
        if (limit_ns > 0 && clock_now_ns() - begun > limit_ns)
            return err_set(CZ_COMM, 0, "rank %d of %d: NCCL was still %s after %d s", l->rank,
                           l->world_size, what, (int)(limit_ns / 1000000000));
        const struct timespec t = {.tv_nsec = 20000};
        nanosleep(&t, NULL);
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* From here to the end of the group the lock is held: the watcher's abort must not meet a group
 * that is half described. */
cz_status nccl_group_begin(struct nccl_link *l)
{
    TRY(enter(l));
    int result = l->calls->GroupStart();
    if (result == NCCL_SUCCESS) return CZ_OK;
    TRY(leave(l, result, "beginning a group"));
    return CZ_OK;
}

static cz_status described(struct nccl_link *l, int result, const char *what)
{
    bool good = result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
    return good ? CZ_OK : refuse(l, result, what);
}

cz_status nccl_send(struct nccl_link *l, const void *src, size_t nbytes, int peer,
                    struct dev_stream *s)
{
    return described(l, l->calls->Send(src, nbytes, NCCL_TYPE_UINT8, peer, l->comm, cuda_stream(s)),
                     "sending");
}

cz_status nccl_receive(struct nccl_link *l, void *dst, size_t nbytes, int peer,
                       struct dev_stream *s)
{
    return described(l, l->calls->Recv(dst, nbytes, NCCL_TYPE_UINT8, peer, l->comm, cuda_stream(s)),
                     "receiving");
}

cz_status nccl_broadcast(struct nccl_link *l, const void *src, void *dst, size_t nbytes, int root,
                         struct dev_stream *s)
{
    return described(
        l, l->calls->Broadcast(src, dst, nbytes, NCCL_TYPE_UINT8, root, l->comm, cuda_stream(s)),
        "broadcasting");
}

/* Ends the group even after an error in it, as NCCL demands; the earlier error is the one that
 * counts. */
cz_status nccl_group_end(struct nccl_link *l, cz_status so_far)
{
    struct err first;
    if (so_far != CZ_OK) err_capture(&first);
    cz_status st = leave(l, l->calls->GroupEnd(), "queueing a group");
    if (so_far != CZ_OK) st = err_restore(&first);
    if (st == CZ_OK) st = settle(l, "queueing a group", 0);
    return st == CZ_OK ? CZ_OK : fail(l);
}

/* ---- the watch ------------------------------------------------------------------------------- */

#define LOOK_NS  (INT64_C(50) * 1000000)
#define GRACE_NS (INT64_C(500) * 1000000) /* what needed the dead rank no more ends by itself */

/* Whether this rank waits for others: for their connection, or data. n_done is written by the
 * device. */
static bool is_under_way(struct nccl_link *l)
{
    uint64_t done = *(volatile const uint64_t *)l->n_done;
    return atomic_load(&l->is_connecting) || done < atomic_load(&l->n_begun);
}

static int pid_of(const struct nccl_link *l, int rank)
{
    for (int i = 0; i < l->watch.n; i++)
        if (l->watch.ranks[i] == rank) return (int)l->watch.pids[i];
    return 0;
}

/* A dead rank ends the link only if something is still under way after GRACE_NS: what did not need
 * it completes by itself. */
static void *watch(void *arg)
{
    struct nccl_link *l = arg;
    int dead = -1, pid = 0;
    int64_t since = 0;
    while (!atomic_load(&l->stop)) {
        int state = NCCL_SUCCESS, result = NCCL_SUCCESS;
        pthread_mutex_lock(&l->lock);
        bool asks = !l->is_over && l->comm;
        if (asks) result = l->calls->CommGetAsyncError(l->comm, &state);
        if (result == NCCL_SUCCESS) result = state;
        if (asks && result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
            err_set(CZ_COMM, 0, "rank %d of %d: NCCL failed while data moved: %s", l->rank,
                    l->world_size, l->calls->GetErrorString(result));
        else
            asks = false;
        pthread_mutex_unlock(&l->lock);
        if (asks) nccl_link_abort(l);
        int r = peer_watch_wait(&l->watch, LOOK_NS);
        if (r >= 0) {
            if (dead < 0) pid = pid_of(l, r);
            if (dead < 0) dead = r;
            peer_watch_forget(&l->watch, r);
        }
        int64_t now = clock_now_ns();
        if (dead < 0 || !is_under_way(l)) since = now;
        if (now - since <= GRACE_NS) continue;
        err_set(CZ_PEER, 0, "rank %d (pid %d) died while rank %d waited for its data over NCCL",
                dead, pid, l->rank);
        nccl_link_abort(l);
        break;
    }
    return NULL;
}

cz_status nccl_watch_start(struct nccl_link *l, const int *pids)
{
    TRY(peer_watch_init(&l->watch, l->world_size));
    for (int r = 0; r < l->world_size; r++)
        if (r != l->rank && pids[r] > 0) TRY(peer_watch_add(&l->watch, r, (pid_t)pids[r]));
    int failed = thread_start(&l->watcher, NULL, watch, l);
    if (failed) return err_set(CZ_NOMEM, failed, "no thread to watch NCCL with");
    l->is_watched = true;
    return CZ_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

cz_status nccl_link_connect(struct nccl_link *l)
{
    struct nccl_config config = {.size = sizeof config,
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_CONFIG_VERSION,
                                 .blocking = 0,
                                 .cga_cluster_size = NCCL_CONFIG_UNSET,
                                 .min_ctas = NCCL_CONFIG_UNSET,
                                 .max_ctas = NCCL_CONFIG_UNSET,
                                 .split_share = NCCL_CONFIG_UNSET};
    TRY(enter(l));
    atomic_store(&l->is_connecting, true);
    int result = l->calls->CommInitRankConfig(&l->comm, l->world_size, l->id, l->rank, &config);
    cz_status st = leave(l, result, "starting");
    if (st == CZ_OK) st = settle(l, "starting", CONNECT_NS_LIMIT);
    atomic_store(&l->is_connecting, false);
    return st == CZ_OK ? CZ_OK : fail(l);
}

/* Finalizing is collective; after an error the communicator is aborted instead. */
void nccl_link_close(struct nccl_link *l)
{
    if (!l->calls) return;
    if (nccl_link_check(l) == CZ_OK && l->comm) {
        pthread_mutex_lock(&l->lock);
        int result = l->comm ? l->calls->CommFinalize(l->comm) : NCCL_SUCCESS;
        cz_status st = leave(l, result, "ending");
        if (st == CZ_OK) st = settle(l, "ending", FINALIZE_NS_LIMIT);
        if (st != CZ_OK) nccl_link_abort(l);
    }
    atomic_store(&l->stop, true);
    if (l->is_watched) pthread_join(l->watcher, NULL);
    l->is_watched = false;
    peer_watch_free(&l->watch);
    if (l->comm) l->calls->CommDestroy(l->comm);
    l->comm = NULL;
    pthread_mutex_destroy(&l->lock);
}

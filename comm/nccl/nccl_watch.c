/* A thread that looks after a link, because a rank may be stopped in a wait for its device: it
 * looks for errors that NCCL met by itself, and for ranks of this host that have died while
 * collectives are under way. Either ends the link, and with it what the device waits for. */
#include "comm/nccl/plane_impl.h"

#include "base/clock.h"

#include <signal.h>

#define LOOK_NS  (INT64_C(50) * 1000000)
#define GRACE_NS (INT64_C(500) * 1000000) /* what needed the dead rank no more ends by itself */

static void look_for_errors(struct nccl_link *l)
{
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
}

/* Whether this rank waits for others: for their meeting, or data. */
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

static void *watch(void *arg)
{
    struct nccl_link *l = arg;
    int dead = -1, pid = 0;
    int64_t since = 0;
    while (!atomic_load(&l->stop)) {
        look_for_errors(l);
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
    sigset_t all, old;
    TRY(peer_watch_init(&l->watch, l->world_size));
    for (int r = 0; r < l->world_size; r++)
        if (r != l->rank && pids[r] > 0) TRY(peer_watch_add(&l->watch, r, (pid_t)pids[r]));
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_BLOCK, &all, &old);
    int failed = pthread_create(&l->watcher, NULL, watch, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) return err_set(CZ_NOMEM, failed, "no thread to watch NCCL with");
    l->is_watched = true;
    return CZ_OK;
}

void nccl_watch_stop(struct nccl_link *l)
{
    atomic_store(&l->stop, true);
    if (l->is_watched) pthread_join(l->watcher, NULL);
    l->is_watched = false;
    peer_watch_free(&l->watch);
}

/* Waiting without taking the cores of those waited for, noticing who will never come, and the end.
 */
#include "comm/mpi/mpi_transport_impl.h"

#include "base/clock.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

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

/* One pause, longer the longer nothing has happened. True when a watched rank has died. */
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
    int dead = peer_watch_wait(&t->watch, ns);
    if (dead < 0) return false;
    t->peers[dead].is_gone = true;
    peer_watch_forget(&t->watch, dead);
    return true;
}

/* TCP is looked at in one of eight calls only. */
static void progress_well(struct mpi_transport *t)
{
    uint64_t before = t->n_completed;
    for (int i = 0; i < 8 && t->n_completed == before; i++) mpi_transport_progress(t);
}

/* ---- who is missing ---------------------------------------------------------------------------
 */

static cz_status fail_dead(const struct mpi_transport *t, int rank)
{
    const struct mpi_peer *peer = &t->peers[rank];
    const struct where *last = &peer->last_heard;
    char heard[COMM_PHASE_NBYTES + 64] = "before it was first heard of";
    if (last->phase[0])
        snprintf(heard, sizeof heard, "last heard of at step %" PRId64 " (%s)", last->step,
                 last->phase);
    return err_set(CZ_PEER, 0,
                   "rank %d (pid %d on %s) died, %s, while rank %d waited at step %" PRId64 " (%s)",
                   rank, peer->pid, peer->host, heard, t->base.rank, t->here.step, t->here.phase);
}

/* Neither dead nor alive as far as we know: ranks of other hosts. */
static cz_status fail_cut_off(const struct mpi_transport *t, uint64_t round)
{
    char list[512] = "";
    size_t at = 0;
    for (int r = 0; r < t->base.world_size && at < sizeof list; r++)
        if (r != t->base.rank && !mpi_transport_has_posted(t, round, r))
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d (on %s)", at ? ", rank " : "",
                                   r, t->peers[r].host);
    return err_set(CZ_PEER, 0, "%s while rank %d waited for rank %s at step %" PRId64 " (%s)",
                   mpi_link_lost_ns() ? "lost a connection to another host"
                                      : "stopped by the launcher",
                   t->base.rank, list, t->here.step, t->here.phase);
}

/* Ranks of this host are watched, and may take their time. */
static bool waits_for_other_host(const struct mpi_transport *t, uint64_t round)
{
    for (int r = 0; r < t->base.world_size; r++)
        if (r != t->base.rank && !mpi_transport_has_posted(t, round, r) &&
            !peer_watch_has(&t->watch, r))
            return true;
    return false;
}

/* Whether we have waited in vain since a connection broke or the launcher sent its signal. */
static bool is_cut_off(const struct mpi_transport *t, int64_t now)
{
    int64_t since = mpi_link_lost_ns() ? mpi_link_lost_ns() : mpi_host.interrupted_ns();
    if (since == 0) return false;
    if (since < t->idle_since_ns) since = t->idle_since_ns;
    return now - since > (mpi_link_lost_ns() ? LINK_LOST_NS : mpi_host.patience_ns);
}

static cz_status check(struct mpi_transport *t, uint64_t round, int64_t now)
{
    if (t->failed_rc != MPI_SUCCESS) return mpi_failed(t->failed_rc, "MPI_Testsome");
    for (int r = 0; r < t->base.world_size; r++)
        if (t->peers[r].is_gone && !mpi_transport_has_posted(t, round, r)) return fail_dead(t, r);
    if (is_cut_off(t, now) && waits_for_other_host(t, round)) return fail_cut_off(t, round);
    return CZ_OK;
}

/* ---- the slots --------------------------------------------------------------------------------
 */

cz_status mpi_transport_sleep(struct transport *base, uint64_t round)
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
    return check(t, round, now);
}

/* ---- the end ----------------------------------------------------------------------------------
 */

/* What was posted goes out, unless to the dead. */
static void flush(struct mpi_transport *t, bool somebody_died)
{
    int64_t begin = clock_now_ns(), waited = 0;
    int64_t most = somebody_died ? FLUSH_MIN_NS : FLUSH_MAX_NS;
    while (waited < FLUSH_MIN_NS ||
           (t->n_open[DIR_OUT][0] + t->n_open[DIR_OUT][1] > 0 && waited < most)) {
        progress_well(t);
        if (t->failed_rc != MPI_SUCCESS) return;
        peer_watch_wait(&t->watch, 100 * US);
        waited = clock_now_ns() - begin;
    }
}

/* A barrier that ends when somebody will never come to it. */
static bool all_come(struct mpi_transport *t)
{
    MPI_Request barrier;
    int is_done = 0;
    if (MPI_Ibarrier(t->comm, &barrier) != MPI_SUCCESS) return false;
    t->idle_since_ns = clock_now_ns();
    for (int64_t now = t->idle_since_ns;; now = clock_now_ns()) {
        bool is_news = pause_and_look(t, now - t->idle_since_ns);
        mpi_transport_progress(t); /* hears a peer that leaves */
        for (int i = 0; i < 8 && !is_done; i++)
            if (MPI_Test(&barrier, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
        if (is_done) return true;
        if (is_news || t->somebody_left || t->failed_rc != MPI_SUCCESS) return false;
        if (is_cut_off(t, now) && t->watch.n < t->base.world_size - 1) return false;
    }
}

bool mpi_transport_part(struct mpi_transport *t)
{
    bool is_broken = t->somebody_left || t->failed_rc != MPI_SUCCESS, somebody_died = false;
    if (t->comm == MPI_COMM_NULL) return false;
    for (int r = 0; t->peers && r < t->base.world_size; r++) somebody_died |= t->peers[r].is_gone;
    if (!is_broken && !somebody_died && !mpi_link_lost_ns() && all_come(t)) return true;
    if (!mpi_link_lost_ns()) flush(t, somebody_died); /* a lost link takes no more */
    return false;
}

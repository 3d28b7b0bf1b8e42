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

/* Sleep until a watched rank has died, at most ns; note all that have. */
static bool look(struct mpi_transport *t, int64_t ns)
{
    bool is_news = false;
    for (int r; (r = peer_watch_wait(&t->watch, is_news ? 0 : ns)) >= 0; is_news = true) {
        t->peers[r].is_gone = true;
        peer_watch_forget(&t->watch, r);
    }
    return is_news;
}

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
    return look(t, ns);
}

/* TCP is looked at in one of eight calls only. */
static void progress_well(struct mpi_transport *t)
{
    uint64_t before = t->n_completed;
    for (int i = 0; i < 8 && t->n_completed == before; i++) mpi_transport_progress(t);
}

/* ---- who is missing ---------------------------------------------------------------------------
 */

/* The dead rank that this round lacks; of several the one that came least far: others may have
 * ended because of it. −1: none. */
static int find_culprit(const struct mpi_transport *t, uint64_t round)
{
    int found = -1;
    for (int r = 0; r < t->base.world_size; r++) {
        if (!t->peers[r].is_gone || mpi_transport_has_posted(t, round, r)) continue;
        if (found < 0 || t->peers[r].n_heard < t->peers[found].n_heard) found = r;
    }
    return found;
}

static cz_status fail_dead(const struct mpi_transport *t, int rank)
{
    const struct mpi_peer *peer = &t->peers[rank];
    const struct where *last = peer->n_heard ? &peer->last_heard : &t->heard.last_heard;
    char heard[COMM_PHASE_NBYTES + 64] = "before its first message";
    if (last->phase[0])
        snprintf(heard, sizeof heard, "last seen at step %" PRId64 " (%s)", last->step,
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
    int culprit = t->heard.dead >= 0 ? t->heard.dead : find_culprit(t, round);
    if (culprit >= 0) {
        mpi_transport_tell(t, culprit);
        return fail_dead(t, culprit);
    }
    if (!is_cut_off(t, now) || !waits_for_other_host(t, round)) return CZ_OK;
    mpi_transport_tell(t, -1);
    return fail_cut_off(t, round);
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
    cz_status st = check(t, round, now);
    t->gave_up = st != CZ_OK;
    return st;
}

/* ---- the end ----------------------------------------------------------------------------------
 */

/* Whether somebody alive needs us: has yet to fetch what we posted, or, where this rank has given
 * up, to do the same. Those of other hosts count as dead then. */
static bool is_needed(const struct mpi_transport *t)
{
    for (int r = 0; r < t->base.world_size; r++) {
        const struct mpi_peer *peer = &t->peers[r];
        if (r == t->base.rank || peer->is_gone || (t->gave_up && !peer_watch_has(&t->watch, r)))
            continue;
        if (mpi_transport_is_sending(t, r) || (t->gave_up && !peer->gave_up)) return true;
    }
    return false;
}

/* What was posted goes out: a peer that lacked it would take this rank for the one that died. And
 * the first rank to end makes the launcher kill the others, which have something to say, too. */
static void flush(struct mpi_transport *t)
{
    int64_t begin = clock_now_ns(), waited = 0;
    while (t->failed_rc == MPI_SUCCESS &&
           (waited < FLUSH_MIN_NS || (waited < FLUSH_MAX_NS && is_needed(t)))) {
        progress_well(t);
        look(t, 100 * US);
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
        t->gave_up = is_news || t->failed_rc != MPI_SUCCESS ||
                     (is_cut_off(t, now) && t->watch.n < t->base.world_size - 1);
        if (t->gave_up || t->somebody_left) return false;
    }
}

bool mpi_transport_part(struct mpi_transport *t)
{
    bool is_broken = t->somebody_left || t->gave_up || mpi_link_lost_ns();
    if (t->comm == MPI_COMM_NULL || !t->peers) return false;
    if (!is_broken && all_come(t)) return true;
    flush(t);
    return false;
}

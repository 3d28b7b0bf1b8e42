/* Slots in shared memory: filled in place by one rank, read in place by others. `posted` and
 * `released` count rounds; release stores after the payload and acquire loads before it are all the
 * synchronisation there is. */
#include "base/clock.h"
#include "base/threads.h"
#include "comm/comm_impl.h"
#include "comm/shm/transport_shm_impl.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define NAP_NS  ((int64_t)50 * 1000 * 1000) /* between two looks for dead ranks */
#define SPIN_NS ((int64_t)50 * 1000)        /* about what two wake-ups cost */

static struct shm_transport *self(struct transport *t)
{
    return (struct shm_transport *)t;
}

static struct shm_rank *mine(struct transport *t)
{
    return &self(t)->seg.ranks[t->rank];
}

static bool has_posted(const struct shm_rank *peer, uint64_t round)
{
    return atomic_load_explicit(&peer->posted, memory_order_acquire) > round;
}

/* Whether the peer has read what was in the slot of `round` before. A rank that has left reads no
 * more. */
static bool has_freed(const struct shm_rank *peer, uint64_t round)
{
    return round < 2 || atomic_load_explicit(&peer->released, memory_order_acquire) + 2 > round ||
           shm_state_of(peer) != SHM_JOINED;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static bool shm_may_fill(struct transport *t, uint64_t round)
{
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank && !has_freed(&self(t)->seg.ranks[r], round)) return false;
    return true;
}

static void *shm_slot_out(struct transport *t, uint64_t round, int peer)
{
    assert(peer != t->rank);
    return shm_slot(&self(t)->seg, round, t->rank, peer);
}

static cz_status shm_post(struct transport *t, uint64_t round, bool to_all)
{
    struct shm_rank *me = mine(t);
    assert(atomic_load_explicit(&me->posted, memory_order_relaxed) == round);
    me->to_all[round & 1] = to_all;
    atomic_store_explicit(&me->posted, round + 1, memory_order_release);
    shm_ring(me);
    return CZ_OK;
}

static bool shm_has_arrived(struct transport *t, uint64_t round)
{
    struct shm_transport *s = self(t);
    if (round < s->n_arrived) return true;
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank && !has_posted(&s->seg.ranks[r], round)) return false;
    s->n_arrived = round + 1;
    return true;
}

static const void *shm_slot_in(struct transport *t, uint64_t round, int peer)
{
    const struct shm_segment *seg = &self(t)->seg;
    bool to_all = seg->ranks[peer].to_all[round & 1] != 0;
    return shm_slot(seg, round, peer, to_all ? COMM_ALL : t->rank);
}

static cz_status shm_release(struct transport *t, uint64_t round)
{
    struct shm_rank *me = mine(t);
    assert(atomic_load_explicit(&me->released, memory_order_relaxed) == round);
    atomic_store_explicit(&me->released, round + 1, memory_order_release);
    shm_ring(me);
    return CZ_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Whether `peer` holds up this round: has not freed its place, or not sent its slot. */
static bool holds_up(const struct shm_rank *peer, uint64_t round)
{
    return !has_freed(peer, round) || !has_posted(peer, round);
}

/* The rank to wait for: first one whose slots are needed before this round can be filled, then one
 * that has not sent; −1 when there is none. */
static int find_holdup(struct transport *t, uint64_t round)
{
    const struct shm_rank *ranks = self(t)->seg.ranks;
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank && !has_freed(&ranks[r], round)) return r;
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank && !has_posted(&ranks[r], round)) return r;
    return -1;
}

/* About as long as two wake-ups cost; longer spinning would lose more than it saves. */
static bool spin(struct shm_rank *peer, uint32_t seen)
{
    int64_t until = clock_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&peer->events, memory_order_relaxed) != seen) return true;
            CZ_CPU_RELAX();
        }
    } while (clock_now_ns() < until);
    return false;
}

/* The rank that was lost first: one that ended because of another's loss has said which. */
static int find_culprit(const struct shm_transport *s, int rank)
{
    for (int i = 0; i < s->base.world_size; i++) {
        const struct shm_rank *lost = &s->seg.ranks[rank];
        const int blamed = (int)atomic_load_explicit(&lost->blames, memory_order_acquire) - 1;
        if (blamed < 0 || blamed >= s->base.world_size || blamed == s->base.rank) break;
        rank = blamed;
    }
    return rank;
}

/* The peers are told before this rank fails: they would take it for the one that was lost. */
cz_status transport_shm_lost(struct shm_transport *s, int rank)
{
    const int culprit = find_culprit(s, rank);
    struct shm_rank *me = &s->seg.ranks[s->base.rank];
    const struct shm_rank *lost = &s->seg.ranks[culprit];
    atomic_store_explicit(&me->blames, (uint32_t)culprit + 1, memory_order_release);
    return err_set(CZ_PEER, 0, "rank %d (pid %d) %s%s while rank %d waited%s", culprit,
                   shm_pid(lost), shm_state_of(lost) == SHM_JOINED ? "died" : "finished",
                   shm_where_is(lost, " at ").text, s->base.rank, shm_where_is(me, " at ").text);
}

/* Asks which peers have died. A dead one is an error only if its slot is missing: one that ended
 * after its last round is fine. */
cz_status transport_shm_look(struct shm_transport *s, uint64_t round)
{
    const struct shm_rank *ranks = s->seg.ranks;
    s->looked_ns = clock_now_ns();
    /* This rank was asked to stop and waits: perhaps for a peer that is stopped (SIGSTOP). */
    if (comm_interrupted_ns() != 0) peer_watch_signal(&s->watch, SIGCONT);
    for (int r; (r = peer_watch_wait(&s->watch, 0)) >= 0; peer_watch_forget(&s->watch, r))
        s->dead[r] = true;
    for (int r = 0; r < s->base.world_size; r++)
        if (s->dead[r] && shm_state_of(&ranks[r]) == SHM_JOINED && !has_posted(&ranks[r], round))
            return transport_shm_lost(s, r);
    return CZ_OK;
}

/* The events counter is read before the state, and the state again after it, so a change in between
 * is not missed. */
static cz_status shm_sleep(struct transport *t, uint64_t round)
{
    struct shm_transport *s = self(t);
    int holdup = find_holdup(t, round);
    if (holdup < 0) return CZ_OK;
    struct shm_rank *peer = &s->seg.ranks[holdup];
    uint32_t seen = atomic_load_explicit(&peer->events, memory_order_acquire);
    bool has_left = shm_state_of(peer) != SHM_JOINED; /* set after the last of the counters */
    if (!holds_up(peer, round)) return CZ_OK;
    if (has_left) {
        /* The peer has left, perhaps because another rank died: that one is reported first. */
        TRY(transport_shm_look(s, round));
        return transport_shm_lost(s, holdup);
    }
    /* With a core for every thread of every rank, spinning takes no time from any of them. */
    if ((int64_t)s->base.n_ranks_host * threads_count() <= s->n_cores && spin(peer, seen))
        return CZ_OK;
    shm_listen(peer, seen, NAP_NS);
    return clock_now_ns() - s->looked_ns < NAP_NS ? CZ_OK : transport_shm_look(s, round);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void shm_set_phase(struct transport *t, int64_t step, const char *phase)
{
    shm_place_set(mine(t), step, phase);
}

/* The state tells the peers whether this rank left in order. */
void transport_shm_free(struct shm_transport *s, enum shm_state state)
{
    struct shm_rank *me = &s->seg.ranks[s->base.rank];
    if (s->joined) {
        atomic_store_explicit(&me->state, state, memory_order_release);
        shm_ring(me);
    }
    peer_watch_free(&s->watch);
    if (s->owns_seg) shm_segment_unmap(&s->seg);
    free(s->dead);
    free(s);
}

static void shm_destroy(struct transport *t)
{
    transport_shm_free(self(t), SHM_LEFT);
}

const struct transport_ops transport_shm_ops = {
    .name = "shm",
    .may_fill = shm_may_fill,
    .slot_out = shm_slot_out,
    .post = shm_post,
    .has_arrived = shm_has_arrived,
    .slot_in = shm_slot_in,
    .release = shm_release,
    .sleep = shm_sleep,
    .set_phase = shm_set_phase,
    .destroy = shm_destroy,
};

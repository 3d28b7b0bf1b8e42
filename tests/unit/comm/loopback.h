/* A transport between threads of one process, for tests of the exchange core: the plainest reading
 * of comm/exchange/transport_impl.h, which also watches that the core keeps its side of it. A lock
 * orders everything; has_arrived() and may_fill() say "not yet" now and then without reason, so
 * that every order of steps comes up. */
#ifndef CZ_TESTS_LOOPBACK_H
#define CZ_TESTS_LOOPBACK_H

#include "base/rng.h"
#include "comm/exchange/transport_impl.h"
#include "tests/support/check_main.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define LOOPBACK_GUARD 64
#define LOOPBACK_BYTE  0x5A

/* ck_assert counts in files and is slow; threads only need the failing half. */
#define loop_assert(ok, ...)                                                                       \
    do {                                                                                           \
        if (!(ok)) ck_abort_msg(__VA_ARGS__);                                                      \
    } while (0)

struct loopback_world;

struct loopback {
    struct transport transport;
    struct loopback_world *world;
    uint64_t n_posted, n_released, n_calls;
    uint64_t sent_nbytes; /* payload to other ranks */
    uint64_t dice;
    uint64_t n_fillable, n_arrived; /* rounds that were reported to be: that stays true */
    unsigned char *slots;           /* (2, W + 1) the last one is for all */
    bool to_all[2];
    bool is_gone; /* destroyed, or dead */
    int blames;   /* 1 + the rank whose end this one noticed; 0: none */
    int64_t step;
    char phase[COMM_PHASE_NBYTES];
};

struct loopback_world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world_size;
    size_t slot_nbytes;
    struct loopback *ranks;
    bool whims; /* "not yet" without reason */
};

static inline struct loopback *loopback_lock(struct transport *t)
{
    struct loopback *me = (struct loopback *)t;
    pthread_mutex_lock(&me->world->lock);
    me->n_calls++;
    return me;
}

static inline void loopback_unlock(struct loopback *me)
{
    pthread_mutex_unlock(&me->world->lock);
}

static inline bool loopback_whim(struct loopback *me)
{
    return me->world->whims && rng_mix64(++me->dice) % 4 == 0;
}

static inline bool loopback_has_room(const struct loopback *me, uint64_t round)
{
    for (int r = 0; r < me->transport.world_size; r++)
        if (round >= 2 && me->world->ranks[r].n_released < round - 1) return false;
    return true;
}

static inline bool loopback_may_fill(struct transport *t, uint64_t round)
{
    struct loopback *me = loopback_lock(t);
    bool others = true;
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank && round >= 2 && me->world->ranks[r].n_released < round - 1)
            others = false;
    bool yes = others && (round < me->n_fillable || !loopback_whim(me));
    if (yes && round >= me->n_fillable) me->n_fillable = round + 1;
    loopback_unlock(me);
    return yes;
}

static inline size_t loopback_stride(const struct loopback *me)
{
    return sizeof(struct slot_head) + me->transport.slot_nbytes + LOOPBACK_GUARD;
}

static inline unsigned char *loopback_slot(const struct loopback *me, uint64_t round, int peer)
{
    size_t w = (size_t)me->transport.world_size, idx = peer == COMM_ALL ? w : (size_t)peer;
    return me->slots + ((round & 1) * (w + 1) + idx) * loopback_stride(me);
}

static inline void *loopback_slot_out(struct transport *t, uint64_t round, int peer)
{
    struct loopback *me = loopback_lock(t);
    loop_assert(peer != t->rank, "rank %d fills a slot to itself", t->rank);
    loop_assert(round == me->n_posted, "round %d filled out of order", (int)round);
    loop_assert(loopback_has_room(me, round), "round %d filled too early", (int)round);
    unsigned char *slot = loopback_slot(me, round, peer);
    loopback_unlock(me);
    memset(slot, LOOPBACK_BYTE, loopback_stride(me));
    return slot;
}

/* Nothing behind the payload was written. Returns the payload's size. */
static inline size_t loopback_check(struct loopback *me, uint64_t round, int peer)
{
    const unsigned char *slot = loopback_slot(me, round, peer);
    const struct slot_head *head = (const void *)slot;
    loop_assert(head->round == round, "head of round %d says %d", (int)round, (int)head->round);
    loop_assert(head->nbytes <= me->transport.slot_nbytes, "a payload of %u bytes", head->nbytes);
    for (size_t i = sizeof *head + head->nbytes; i < loopback_stride(me); i++)
        loop_assert(slot[i] == LOOPBACK_BYTE, "byte %d past the payload was written", (int)i);
    return head->nbytes;
}

static inline cz_status loopback_post(struct transport *t, uint64_t round, bool to_all)
{
    struct loopback *me = (struct loopback *)t;
    size_t sent = 0, w = (size_t)t->world_size;
    if (to_all) sent = (w - 1) * loopback_check(me, round, COMM_ALL);
    for (int r = 0; r < t->world_size; r++)
        if (!to_all && r != t->rank) sent += loopback_check(me, round, r);
    loopback_lock(t);
    loop_assert(round == me->n_posted, "round %d posted out of order", (int)round);
    me->to_all[round & 1] = to_all;
    me->sent_nbytes += sent;
    me->n_posted++;
    pthread_cond_broadcast(&me->world->changed);
    loopback_unlock(me);
    return CZ_OK;
}

static inline bool loopback_has_arrived(struct transport *t, uint64_t round)
{
    struct loopback *me = loopback_lock(t);
    bool yes = true;
    for (int r = 0; r < t->world_size; r++)
        if (me->world->ranks[r].n_posted <= round) yes = false;
    yes = yes && (round < me->n_arrived || !loopback_whim(me));
    if (yes && round >= me->n_arrived) me->n_arrived = round + 1;
    loopback_unlock(me);
    return yes;
}

static inline const void *loopback_slot_in(struct transport *t, uint64_t round, int peer)
{
    struct loopback *me = loopback_lock(t);
    const struct loopback *from = &me->world->ranks[peer];
    loop_assert(from->n_posted > round, "round %d read before it was there", (int)round);
    loop_assert(me->n_released == round, "round %d read out of order", (int)round);
    const void *slot = loopback_slot(from, round, from->to_all[round & 1] ? COMM_ALL : t->rank);
    loopback_unlock(me);
    return slot;
}

static inline cz_status loopback_release(struct transport *t, uint64_t round)
{
    struct loopback *me = loopback_lock(t);
    loop_assert(me->n_released == round, "round %d released out of order", (int)round);
    me->n_released++;
    pthread_cond_broadcast(&me->world->changed);
    loopback_unlock(me);
    return CZ_OK;
}

static inline cz_status loopback_sleep(struct transport *t, uint64_t round)
{
    struct loopback *me = loopback_lock(t);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&me->world->changed, &me->world->lock, &until);
    cz_status st = CZ_OK;
    for (int r = 0; r < t->world_size && st == CZ_OK; r++) {
        const struct loopback *peer = &me->world->ranks[r];
        if (r == t->rank || !peer->is_gone || peer->n_posted > round) continue;
        while (peer->blames > 0) peer = &me->world->ranks[peer->blames - 1];
        me->blames = 1 + peer->transport.rank;
        st = err_set(CZ_PEER, 0, "rank %d died at step %d (%s)", peer->transport.rank,
                     (int)peer->step, peer->phase);
    }
    loopback_unlock(me);
    return st;
}

static inline void loopback_set_phase(struct transport *t, int64_t step, const char *phase)
{
    struct loopback *me = loopback_lock(t);
    me->step = step;
    snprintf(me->phase, sizeof me->phase, "%s", phase);
    loopback_unlock(me);
}

/* The rank is gone; its slots stay for the others. */
static inline void loopback_destroy(struct transport *t)
{
    struct loopback *me = loopback_lock(t);
    me->is_gone = true;
    pthread_cond_broadcast(&me->world->changed);
    loopback_unlock(me);
}

static const struct transport_ops loopback_ops = {
    .name = "loopback",
    .may_fill = loopback_may_fill,
    .slot_out = loopback_slot_out,
    .post = loopback_post,
    .has_arrived = loopback_has_arrived,
    .slot_in = loopback_slot_in,
    .release = loopback_release,
    .sleep = loopback_sleep,
    .set_phase = loopback_set_phase,
    .destroy = loopback_destroy,
};

/* ---- a test on W ranks ------------------------------------------------------------------------
 */

/* What a rank does; it may destroy nothing. `test` is the same for all. */
typedef void loopback_fn(struct comm *comm, void *test);

struct loopback_thread {
    pthread_t thread;
    struct loopback *rank;
    loopback_fn *fn;
    void *test;
};

static inline void *loopback_main(void *arg)
{
    struct loopback_thread *me = arg;
    struct comm *comm;
    ck_ok(comm_over_transport(&me->rank->transport, &comm));
    me->fn(comm, me->test);
    comm_destroy(comm);
    return NULL;
}

static inline void loopback_world_init(struct loopback_world *world, int w, size_t slot_nbytes,
                                       uint64_t seed)
{
    *world = (struct loopback_world){.world_size = w, .slot_nbytes = slot_nbytes, .whims = true};
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->changed, NULL);
    world->ranks = calloc((size_t)w, sizeof *world->ranks);
    for (int r = 0; r < w; r++) {
        struct loopback *rank = &world->ranks[r];
        rank->transport = (struct transport){.ops = &loopback_ops,
                                             .rank = r,
                                             .world_size = w,
                                             .rank_host = r,
                                             .n_ranks_host = w,
                                             .slot_nbytes = slot_nbytes,
                                             .shares_slots = seed % 2 == 0};
        rank->world = world;
        rank->dice = seed * 1000 + (uint64_t)r * 100000000;
        rank->slots = aligned_alloc(64, 2 * (size_t)(w + 1) * loopback_stride(rank));
        ck_assert_ptr_nonnull(rank->slots);
    }
}

static inline void loopback_world_free(struct loopback_world *world)
{
    for (int r = 0; r < world->world_size; r++) free(world->ranks[r].slots);
    free(world->ranks);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
}

/* fn on W ranks, each in its thread, until all have returned. */
static inline void loopback_run(struct loopback_world *world, loopback_fn *fn, void *test)
{
    struct loopback_thread threads[16];
    ck_assert_int_le(world->world_size, 16);
    for (int r = 0; r < world->world_size; r++) {
        threads[r] = (struct loopback_thread){.rank = &world->ranks[r], .fn = fn, .test = test};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, loopback_main, &threads[r]), 0);
    }
    for (int r = 0; r < world->world_size; r++) pthread_join(threads[r].thread, NULL);
}

#endif

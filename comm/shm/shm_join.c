/* Joining the ranks of a host: map the segment, report presence, wait for the others with a limit,
 * and notice one that died before it came. */
#include "base/clock.h"
#include "base/threads.h"
#include "comm/shm/transport_shm_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NAP_NS ((int64_t)50 * 1000 * 1000)

/* Watch the ranks that have joined; *missing: the first rank that has not, −1 when all have. */
static cz_status find_missing(struct shm_transport *s, bool *seen, int *missing)
{
    *missing = -1;
    for (int r = 0; r < s->base.world_size; r++) {
        if (seen[r]) continue;
        seen[r] = shm_state_of(&s->seg.ranks[r]) != SHM_ABSENT;
        if (!seen[r] && *missing < 0) *missing = r;
        if (!seen[r] || shm_pid(&s->seg.ranks[r]) == getpid()) continue; /* a thread of ours */
        TRY(peer_watch_add(&s->watch, r, shm_pid(&s->seg.ranks[r])));
    }
    return CZ_OK;
}

/* A rank that could not wait any longer takes the others with it; if it stopped because another
 * one died, that one is named. */
static cz_status check_joined(struct shm_transport *s)
{
    for (int r = 0; r < s->base.world_size; r++)
        if (shm_state_of(&s->seg.ranks[r]) == SHM_GAVE_UP)
            return atomic_load(&s->seg.ranks[r].blames)
                       ? transport_shm_lost(s, r)
                       : err_set(CZ_PEER, 0,
                                 "rank %d (pid %d) gave up while the ranks came together", r,
                                 shm_pid(&s->seg.ranks[r]));
    return CZ_OK;
}

static cz_status wait_for_all(struct shm_transport *s, bool *seen, double timeout_s)
{
    int64_t until = clock_now_ns() + (int64_t)(timeout_s * 1e9);
    for (;;) {
        int missing;
        TRY(find_missing(s, seen, &missing));
        if (missing < 0) return CZ_OK;
        struct shm_rank *peer = &s->seg.ranks[missing];
        uint32_t events = atomic_load_explicit(&peer->events, memory_order_acquire);
        if (shm_state_of(peer) == SHM_ABSENT) shm_listen(peer, events, NAP_NS);
        TRY(transport_shm_look(s, 0));
        TRY(check_joined(s));
        if (clock_now_ns() > until) {
            char list[256] = "";
            size_t at = 0;
            for (int r = 0; r < s->base.world_size && at < sizeof list; r++)
                if (!seen[r])
                    at +=
                        (size_t)snprintf(list + at, sizeof list - at, "%s%d", *list ? ", " : "", r);
            return err_set(CZ_COMM, 0, "of %d ranks these have not started within %g s: %s",
                           s->base.world_size, timeout_s, list);
        }
    }
}

static cz_status come_together(struct shm_transport *s, double timeout_s)
{
    size_t w = (size_t)s->base.world_size;
    TRY(peer_watch_init(&s->watch, s->base.world_size));
    s->dead = calloc(2 * w, sizeof *s->dead);
    if (!s->dead) return err_set(CZ_NOMEM, 0, "no memory to join %zu ranks", w);
    struct shm_rank *me = &s->seg.ranks[s->base.rank];
    int32_t unset = 0;
    if (!atomic_compare_exchange_strong(&me->pid, &unset, (int32_t)getpid()))
        return err_set(CZ_COMM, 0, "rank %d has joined before, as process %d", s->base.rank,
                       shm_pid(me));
    s->joined = true;
    /* The cores this rank may use, for the count of all ranks' cores. */
    size_t nbytes = CPU_ALLOC_SIZE(64 * SHM_CPU_WORDS);
    cpu_set_t *set = CPU_ALLOC(64 * SHM_CPU_WORDS);
    if (set && sched_getaffinity(0, nbytes, set) == 0)
        for (size_t i = 0; i < 64 * SHM_CPU_WORDS; i++)
            if (CPU_ISSET_S(i, nbytes, set))
                atomic_fetch_or_explicit(&me->cpus[i / 64], (uint64_t)1 << i % 64,
                                         memory_order_relaxed);
    if (set) CPU_FREE(set);
    atomic_store_explicit(&me->state, SHM_JOINED, memory_order_release);
    shm_ring(me);
    TRY(wait_for_all(s, s->dead + w, timeout_s));
    TRY(check_joined(s));
    /* Cores that all ranks together may use: bound to different ones, or all to the same. */
    const struct shm_segment *seg = &s->seg;
    int n_cores = 0, quota = threads_quota_cores(NULL);
    for (int i = 0; i < SHM_CPU_WORDS; i++) {
        uint64_t any = 0;
        for (int r = 0; r < seg->world_size; r++)
            any |= atomic_load_explicit(&seg->ranks[r].cpus[i], memory_order_relaxed);
        n_cores += __builtin_popcountll(any);
    }
    s->n_cores = quota > 0 && quota < n_cores ? quota : n_cores;
    return CZ_OK;
}

cz_status transport_shm_join(const struct shm_segment *seg, bool owns_seg, int rank,
                             double timeout_s, struct transport **out)
{
    struct shm_segment mapped = *seg;
    struct shm_transport *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) {
        if (owns_seg) shm_segment_unmap(&mapped);
        return err_set(CZ_NOMEM, 0, "no memory for a communicator");
    }
    s->base = (struct transport){.ops = &transport_shm_ops,
                                 .rank = rank,
                                 .world_size = seg->world_size,
                                 .rank_host = rank,
                                 .n_ranks_host = seg->world_size,
                                 .slot_nbytes = seg->slot_nbytes,
                                 .shares_slots = true};
    s->seg = mapped;
    s->owns_seg = owns_seg;
    cz_status st = come_together(s, timeout_s);
    if (st != CZ_OK) {
        transport_shm_free(s, SHM_GAVE_UP);
        return st;
    }
    *out = &s->base;
    return CZ_OK;
}

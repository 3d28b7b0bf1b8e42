/* The layout of the shared segment, and which rank writes which part.
 *
 *   head | rank 0 … rank W−1 | slots of rank 0: round even, round odd | slots of rank 1 …
 *
 * A rank writes its own counters, its own slots and nothing else (n_sleepers aside). Per round it
 * has W−1 slots, in the order of peers; the slot for all peers is the first of them, since a round
 * uses either. Everything starts as zero, and no page exists before it is written. */
#ifndef CZ_COMM_SHM_SHM_SEGMENT_IMPL_H
#define CZ_COMM_SHM_SHM_SEGMENT_IMPL_H

#include "comm/exchange/transport_impl.h"
#include "comm/shm/shm.h"

#include <stdatomic.h>

#define SHM_CPU_WORDS   16 /* affinity of a rank: 1024 cores, more are left out */
#define SHM_PHASE_WORDS (COMM_PHASE_NBYTES / 8)
#define SHM_LINE_NBYTES 128 /* two cache lines: they are fetched in pairs */

enum shm_state { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_GAVE_UP /* during join */ };

/* A rank's progress. Words, since others may look while it is being written. */
struct shm_place {
    _Atomic int64_t step;
    _Atomic uint64_t phase[SHM_PHASE_WORDS];
};

struct shm_rank {
    /* Rounds 0 … posted−1 can be read, 0 … released−1 have been read. Written by the owner. */
    _Alignas(SHM_LINE_NBYTES) _Atomic uint64_t posted;
    _Atomic uint64_t released;
    _Atomic uint32_t events; /* futex: changes with each of the above and with the state */
    uint32_t to_all[2];      /* of rounds even and odd; published by `posted` */

    /* Ranks asleep on events: written by them. */
    _Alignas(SHM_LINE_NBYTES) _Atomic uint32_t n_sleepers;

    /* Seldom written, by the owner. */
    _Alignas(SHM_LINE_NBYTES) _Atomic int32_t pid; /* 0: no process yet */
    _Atomic uint32_t state;                        /* enum shm_state */
    _Atomic uint32_t place_idx;
    _Atomic uint32_t blames;    /* 1 + the rank whose loss ended this one; 0: none */
    struct shm_place places[2]; /* the other one is written, then place_idx turned */
    _Atomic uint64_t cpus[SHM_CPU_WORDS];
};

struct shm_head {
    uint64_t magic;
    uint32_t version, world_size;
    uint64_t slot_nbytes, nbytes; /* payload of a slot; of the whole segment */
};

/* A mapped segment. */
struct shm_segment {
    char *base;
    size_t nbytes;
    int world_size;
    size_t slot_nbytes, stride_nbytes; /* payload of a slot; from one slot to the next */
    size_t n_slots;                    /* of a rank in one round */
    size_t slots_off, rank_nbytes;     /* of rank 0's slots; from one rank's slots to the next */
    struct shm_rank *ranks;            /* (world_size) */
};

/* Check and map the segment behind fd. Errors as comm_shm_join(). */
cz_status shm_segment_map(int fd, int world_size, struct shm_segment *seg);
void shm_segment_unmap(struct shm_segment *seg); /* accepts zeroed */

/* Head of the slot that `from` fills for `to` (COMM_ALL: all) in `round`. */
void *shm_slot(const struct shm_segment *seg, uint64_t round, int from, int to);

/* Wake the ranks that sleep on `rank`: it has changed. */
void shm_ring(struct shm_rank *rank);

/* Sleep until the rank has changed since `seen` was read from its events, at most timeout_ns. */
void shm_listen(struct shm_rank *rank, uint32_t seen, int64_t timeout_ns);

/* Write the place of a rank (owner only), and read it (any rank). phase has COMM_PHASE_NBYTES. */
void shm_place_set(struct shm_rank *rank, int64_t step, const char *phase);
/* "step 3 (agreement)"; "" when the rank has said nothing. */
struct shm_where {
    char text[COMM_PHASE_NBYTES + 64];
};
struct shm_where shm_where_is(const struct shm_rank *rank, const char *before);

static inline int shm_pid(const struct shm_rank *rank)
{
    return (int)atomic_load_explicit(&rank->pid, memory_order_relaxed);
}

static inline enum shm_state shm_state_of(const struct shm_rank *rank)
{
    return (enum shm_state)atomic_load_explicit(&rank->state, memory_order_acquire);
}

#endif

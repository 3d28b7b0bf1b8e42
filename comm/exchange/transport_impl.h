/* What the exchange core (exchange.c) asks of shared memory or MPI: to carry slots.
 *
 * Collectives are cut into rounds, numbered from 0 over the life of a communicator and the same on
 * every rank. In a round every rank fills at most one slot per peer (or one slot that all peers
 * read) and reads one slot from every peer. The core packs, checks, sums in rank order and unpacks:
 * all arithmetic is there, so transports cannot differ in a bit. Two rounds are in flight at most:
 * round k may be filled once round k − 2 has been released by all.
 *
 *   may_fill() until true → slot_out() … → post() → has_arrived() until true → slot_in() … →
 *   release()
 *
 * A rank posts rounds in order, releases them in order, and posts round k only after it has itself
 * released round k − 2. A rank that destroys its transport has released all it posted or has left;
 * what it posted must still reach the others: a transport whose slots live in its own process
 * completes its sends in destroy() (for about a second at most), and a peer that ends afterwards is
 * not an error of sleep() where all of it that is waited for is there. */
#ifndef CZ_COMM_EXCHANGE_TRANSPORT_IMPL_H
#define CZ_COMM_EXCHANGE_TRANSPORT_IMPL_H

#include "comm/comm.h"

#define COMM_PHASE_NBYTES  48
#define COMM_REASON_NBYTES 320

enum slot_kind { SLOT_REDUCE = 1, SLOT_MOVE, SLOT_LEAVE };

/* slot_head.flags: what ranks must agree on besides sizes. */
#define SLOT_ALL         1u /* an all-reduction */
#define SLOT_ACCUMULATE  2u
#define SLOT_SHARE       4u /* its results, rather than what is to be summed */
#define SLOT_DTYPE_SHIFT 8  /* reductions: enum cz_dtype of the wire */

/* At the head of every slot: what the sender is doing, so that ranks that disagree find out. The
 * payload begins right behind it, on a cache line when the slot does. */
struct slot_head {
    uint64_t round;
    uint64_t ticket;      /* number of the collective */
    uint64_t total_numel; /* of all its spans */
    uint32_t kind;        /* enum slot_kind */
    uint32_t elem_nbytes; /* on the wire */
    uint32_t nbytes;      /* payload behind the head: carry no more than this */
    uint32_t flags;       /* SLOT_… */
    int64_t step;
    char phase[COMM_PHASE_NBYTES];
    char reserved[32];
};

struct transport;

struct transport_ops {
    const char *name; /* "shm", "mpi" */
    /* Whether round `round` may be filled: peers have released round − 2. */
    bool (*may_fill)(struct transport *, uint64_t round);
    /* Space for a head and slot_nbytes of payload to `peer`, or to all of them (COMM_ALL), on a
     * multiple of 64 bytes. */
    void *(*slot_out)(struct transport *, uint64_t round, int peer);
    /* Send what slot_out() returned for this round: to_all: the one slot; else one per peer. Ranks
     * that agree use the same in a round; one that leaves, or disagrees, may differ: readers take
     * it from the sender. */
    cz_status (*post)(struct transport *, uint64_t round, bool to_all);
    /* Whether every peer's slot of this round has arrived. */
    bool (*has_arrived)(struct transport *, uint64_t round);
    const void *(*slot_in)(struct transport *, uint64_t round, int peer); /* head and payload */
    cz_status (*release)(struct transport *, uint64_t round); /* this round's slots were read */
    /* Sleep (after a short spin when cores are not shared) until something may have changed, at
     * most ~50 ms. CZ_PEER when a peer has died that has not posted `round`, naming it, its step
     * and phase, and not a peer that ended because of it: this rank waits to see round `round`, or
     * for space to post it. */
    cz_status (*sleep)(struct transport *, uint64_t round);
    void (*set_phase)(struct transport *, int64_t step, const char *phase);
    void (*destroy)(struct transport *);
};

/* The first member of every transport. */
struct transport {
    const struct transport_ops *ops;
    int rank, world_size, rank_host, n_ranks_host;
    size_t slot_nbytes; /* payload of one slot: a multiple of 4096, equal on all ranks */
    bool shares_slots;  /* other cores read them where they were filled: write past the caches */
};

/* A communicator over a transport, which it owns from then on (also on failure). */
cz_status comm_over_transport(struct transport *transport, struct comm **out);

#endif

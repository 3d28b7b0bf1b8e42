/* The host communicator: collectives between ranks, behind one vtable.
 *
 * `self` (one rank; here), later `shm` (ranks of one host) and `mpi`. Buffers are in host memory.
 *
 * Life cycle: comm_self_create() → collectives → comm_destroy(). Every collective is a begin that
 * returns a ticket and a comm_wait() on it: buffers are lent from begin to wait. All ranks call the
 * same collectives in the same order. Threads: one caller per communicator.
 *
 * Canonical reduction, the same bits for every transport and bucket size: with c(·) rounding to the
 * wire dtype, result = c(scale · Σ_{r=0}^{W−1} c(x_r)), the sum in fp32 in rank order. */
#ifndef CZ_COMM_COMM_H
#define CZ_COMM_COMM_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct comm;

/* A started collective; plain data, valid until waited for. */
struct comm_ticket {
    uint64_t id; /* 0: nothing to wait for */
};

/* A reduction over ranks of floating-point data. */
struct comm_reduce {
    const void *src; /* all_reduce: numel elements; reduce_scatter: world_size · numel elements */
    void *dst;       /* numel elements; may equal src (all_reduce) or this rank's piece of it */
    size_t numel;
    enum dtype dtype; /* of src and dst: F32, BF16 or F16 */
    enum dtype wire;  /* what is sent, and what the result is rounded to */
    float scale;      /* 1/W for a mean, with any predivide factor folded in; 1 for a sum */
};

/* Bytes moved as they are. */
struct comm_move {
    const void *src;
    void *dst;
    size_t nbytes; /* per rank: all_gather and gather: dst holds world_size · nbytes in rank order;
                      all_to_all: src and dst both do */
    int root;      /* broadcast, gather (dst is used there alone) */
};

/* Mandatory slots all. */
struct comm_ops {
    const char *name; /* "self", "shm", "mpi" */
    cz_status (*all_reduce)(struct comm *, const struct comm_reduce *, struct comm_ticket *);
    cz_status (*reduce_scatter)(struct comm *, const struct comm_reduce *, struct comm_ticket *);
    cz_status (*all_gather)(struct comm *, const struct comm_move *, struct comm_ticket *);
    cz_status (*all_to_all)(struct comm *, const struct comm_move *, struct comm_ticket *);
    cz_status (*broadcast)(struct comm *, const struct comm_move *, struct comm_ticket *);
    cz_status (*gather)(struct comm *, const struct comm_move *, struct comm_ticket *);
    cz_status (*wait)(struct comm *, struct comm_ticket);
    cz_status (*barrier)(struct comm *);
    /* Worst (smallest) status over ranks, and the rank it comes from. */
    cz_status (*agree)(struct comm *, cz_status mine, cz_status *worst, int *rank);
    void (*destroy)(struct comm *);
};

/* The first member of every communicator. */
struct comm {
    const struct comm_ops *ops;
    int rank, world_size;
    int n_ranks_host; /* ranks that share this host's cores */
};

/* One rank alone, or pretending to be `rank` of `world_size` for planning and tests of partitions:
 * then every other rank is taken to send what this one sends, and an all_gather leaves the others'
 * pieces of dst as they are.
 * Errors: CZ_INVALID (rank outside 0…world_size−1), CZ_NOMEM. */
CZ_API cz_status comm_self_create(int rank, int world_size, struct comm **out);

/* Accepts NULL. */
CZ_API void comm_destroy(struct comm *comm);

/* Begin and wait in one. */
CZ_API cz_status comm_all_reduce(struct comm *comm, const struct comm_reduce *args);
CZ_API cz_status comm_reduce_scatter(struct comm *comm, const struct comm_reduce *args);
CZ_API cz_status comm_all_gather(struct comm *comm, const struct comm_move *args);
CZ_API cz_status comm_broadcast(struct comm *comm, void *buffer, size_t nbytes, int root);

/* Turn a local result into everyone's: CZ_OK when all ranks pass CZ_OK; otherwise a rank that
 * failed gets its own error back and the others CZ_PEER with the rank's number. Collective. */
CZ_API cz_status comm_agree(struct comm *comm, cz_status mine);

CZ_EXTERN_C_END
#endif

/* The host communicator: collectives between ranks, behind one vtable.
 *
 * `self` (one rank; also pretends to be rank r of W), `shm` (the ranks of one host) and `mpi`
 * (several hosts). Buffers are in host memory and lent from begin to wait.
 *
 * Life cycle: comm_self_create() | comm_create_world() → collectives → comm_destroy(). All ranks
 * call the same collectives, with equal sizes, in the same order; a rank that does not gets
 * CZ_COMM, which names each rank's collective, instead of hanging. A begin returns a ticket;
 * comm_progress() between may move data without waiting; comm_wait() completes it and all tickets
 * begun before it. Threads: one caller per communicator.
 *
 * Errors of every collective: CZ_PEER (another rank failed, left or died: the sentence names it,
 * its step and phase), CZ_COMM (ranks disagree, or the transport failed). After one of these the
 * communicator is broken: every later call returns the same error at once. Nothing is allocated
 * after the communicator has been created.
 *
 * Canonical reduction, the same bits for every transport and bucket size: with c(·) rounding to the
 * wire dtype, result = c(scale · Σ_{r=0}^{W−1} c(x_r)), the sum in fp32 in rank order, starting
 * from 0. */
#ifndef CZ_COMM_COMM_H
#define CZ_COMM_COMM_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct comm;

/* A started collective; plain data, valid until waited for. */
struct comm_ticket {
    uint64_t id; /* 0: nothing to wait for; otherwise rising in the order of begins */
};

/* Contiguous elements that move from one place to another. Tables of spans are equal on all ranks
 * and lent from begin to wait; empty spans are allowed. */
struct comm_span {
    size_t src_off, dst_off; /* elements */
    size_t numel;
    int owner; /* reduction: the rank that gets the mean; move: the rank that has the data */
    int to;    /* move: the rank that gets it, COMM_ALL for every rank; reduction: ignored */
};
#define COMM_ALL (-1)

/* A reduction over ranks of floating-point data: every rank contributes src at src_off; the span's
 * owner writes the result to dst_off (with `all`: every rank does). */
struct comm_reduce {
    const void *src;
    void *dst; /* may be src, if both are of one dtype: a span's result may overwrite that span's
                  own source, no other */
    enum cz_dtype src_dtype, dst_dtype; /* F32, BF16 or F16 */
    enum cz_dtype wire;                 /* type of messages, to which the result is rounded */
    float scale;                        /* 1/W for a mean; 1 for a sum */
    bool accumulate; /* dst = round(dst + result), in fp32, instead of dst = result */
    bool all;
    const struct comm_span *spans;
    size_t n_spans;
};

/* Elements moved without change. An owner named in `to` (or COMM_ALL) gets a copy as well,
 * unless src + src_off and dst + dst_off are the same place. */
struct comm_move {
    const void *src;
    void *dst; /* may be src when no span's destination is another span's source */
    size_t elem_nbytes;
    const struct comm_span *spans;
    size_t n_spans;
};

/* The traffic of a rank, for tests and plans: deterministic, the same for every transport. */
struct comm_traffic {
    uint64_t n_reduce, n_move;                     /* collectives begun */
    uint64_t reduce_sent_nbytes, move_sent_nbytes; /* payload to other ranks */
};

/* All slots are mandatory unless marked optional. */
struct comm_ops {
    const char *name; /* "self", "shm", "mpi" */
    cz_status (*reduce)(struct comm *, const struct comm_reduce *, struct comm_ticket *);
    cz_status (*move)(struct comm *, const struct comm_move *, struct comm_ticket *);
    cz_status (*progress)(struct comm *); /* optional; NULL: no progress between begin and wait */
    cz_status (*wait)(struct comm *, struct comm_ticket);
    /* optional: whether wait() would return at once; NULL: not known */
    bool (*is_done)(const struct comm *, struct comm_ticket);
    void (*set_phase)(struct comm *, int64_t step, const char *phase); /* optional */
    void (*leave)(struct comm *, const char *reason); /* optional; see comm_leave */
    void (*destroy)(struct comm *);
};

/* The first member of every communicator. */
struct comm {
    const struct comm_ops *ops;
    int rank, world_size;
    int rank_host, n_ranks_host; /* among the ranks that share this host */
    unsigned generation;          /* of the process that made it (base/host/entry.h) */
    struct comm_traffic traffic;
    struct comm_span *spans; /* (world_size) of the composed collectives */
    struct comm_note *notes; /* (world_size) of comm_agree() and comm_same() */
};

/* A single rank, or a simulated `rank` of `world_size` for planning and tests of partitions:
 * it assumes that every other rank sends the same data as this one, and a move does not change
 * elements that other ranks own.
 * Errors: CZ_INVALID (rank outside 0…world_size−1), CZ_NOMEM. */
cz_status comm_self_create(int rank, int world_size, struct comm **out);

/* The communicator this process was launched with: a rank of `czero launch` (shm), of mpirun or
 * srun with more than one task (mpi, from the plug-in libczero_mpi.so), otherwise self. MPI is
 * initialised for several ranks only. Collective over the launched ranks.
 * Errors: CZ_COMM (the message says what is missing or did not start), CZ_NOMEM. */
cz_status comm_create_world(struct comm **out);

/* Accepts NULL; does nothing in a forked child. After a failure it notifies the peers (comm_leave).
 */
void comm_destroy(struct comm *comm);

cz_status comm_reduce_begin(struct comm *comm, const struct comm_reduce *args,
                            struct comm_ticket *ticket);
cz_status comm_move_begin(struct comm *comm, const struct comm_move *args,
                          struct comm_ticket *ticket);
cz_status comm_wait(struct comm *comm, struct comm_ticket ticket);

/* Make progress on started tickets without waiting. Cheap if there is nothing to do. */
cz_status comm_progress(struct comm *comm);

/* Begin and wait in one. */
cz_status comm_reduce(struct comm *comm, const struct comm_reduce *args);
cz_status comm_move(struct comm *comm, const struct comm_move *args);

/* numel elements, all ranks get the result; src may be dst. */
cz_status comm_all_reduce(struct comm *comm, const void *src, void *dst, size_t numel,
                          enum cz_dtype dtype, enum cz_dtype wire, float scale);

/* dst: world_size · nbytes in rank order. src may be this rank's piece of dst. */
cz_status comm_all_gather(struct comm *comm, const void *src, void *dst, size_t nbytes);

/* The same, but only `root` uses dst (elsewhere it may be NULL). */
cz_status comm_gather(struct comm *comm, const void *src, void *dst, size_t nbytes, int root);

cz_status comm_broadcast(struct comm *comm, void *buffer, size_t nbytes, int root);

/* src and dst: world_size pieces of nbytes; piece r of src goes to rank r. src ≠ dst. */
cz_status comm_all_to_all(struct comm *comm, const void *src, void *dst, size_t nbytes);

cz_status comm_barrier(struct comm *comm);

/* Turn local results into one result of all ranks: CZ_OK if all ranks pass CZ_OK; otherwise a rank
 * that failed gets its own error back and the others CZ_PEER with the number and the sentence of
 * the lowest rank that failed. Collective; the communicator stays usable. */
cz_status comm_agree(struct comm *comm, cz_status mine);

/* All ranks must pass the same text (lines of a config, a model's shapes). Otherwise CZ_INVALID on
 * every rank: the message names `what`, each rank that differs from rank 0, and its first differing
 * line and rank 0's. Collective. */
cz_status comm_same(struct comm *comm, const char *what, const char *text);

/* Sets the step and phase of this rank, for other ranks' messages if it dies. phase: a short text,
 * copied. */
void comm_set_phase(struct comm *comm, int64_t step, const char *phase);

/* This rank gives up: peers that wait for it, or will, get CZ_PEER with `reason`. */
void comm_leave(struct comm *comm, const char *reason);

/* For a program's handler of SIGTERM, which launchers send when another rank has died: a rank that
 * then waits without success for one of another host gets CZ_PEER early enough to report it before
 * it is killed (under mpirun after 0.3 s, otherwise 20 s). Ranks that get an answer continue, so
 * that the current step can be finished. May be called from signal handlers, also without a
 * communicator. */
void comm_interrupt(void);

/* The signal requested an orderly stop, and all ranks have answered since: waits have their normal
 * time limits again, however long a save takes. */
void comm_interrupt_over(void);

CZ_EXTERN_C_END
#endif

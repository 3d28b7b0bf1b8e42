/* What members of the vtable share. */
#ifndef CZ_COMM_COMM_IMPL_H
#define CZ_COMM_COMM_IMPL_H

#include "comm/comm.h"

/* What ranks tell each other in comm_agree() and comm_same(). */
struct comm_note {
    uint64_t value;
    char text[248];
};

/* Fill the common part of a zeroed communicator; n_ranks_host and rank_host are the caller's.
 * CZ_NOMEM. */
cz_status comm_init(struct comm *comm, const struct comm_ops *ops, int rank, int world_size);

/* Release what comm_init() took; accepts half-built. */
void comm_fini(struct comm *comm);

/* When comm_interrupt() was first called (clock_now_ns), 0: never, or that is over. */
int64_t comm_interrupted_ns(void);

struct transport;

/* Between the ranks that mpirun or srun started, over MPI. Opens the plug-in and starts MPI;
 * collective. Errors: CZ_COMM, CZ_NOMEM, CZ_PEER (one of them failed while joining). */
cz_status comm_mpi_transport_create(struct transport **out);

#endif

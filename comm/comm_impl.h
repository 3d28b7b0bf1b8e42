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

#endif

/* The shared-memory transport: its state, and its life between join (shm_join.c) and the rounds
 * (transport_shm.c). */
#ifndef CZ_COMM_SHM_TRANSPORT_SHM_IMPL_H
#define CZ_COMM_SHM_TRANSPORT_SHM_IMPL_H

#include "comm/peer_watch_impl.h"
#include "comm/shm/shm_segment_impl.h"

struct shm_transport {
    struct transport base;
    struct shm_segment seg;
    bool owns_seg; /* unmapped with the transport */
    bool joined;   /* others know of us */
    struct peer_watch watch;
    bool *dead;         /* (world_size) seen to have ended */
    int64_t looked_ns;  /* when it was */
    uint64_t n_arrived; /* rounds known to have arrived from all */
    int n_cores;        /* that all ranks together may use */
};

extern const struct transport_ops transport_shm_ops;

/* Join a mapped segment as `rank` (inside its world): collective, errors as comm_shm_join().
 * owns_seg: the segment is unmapped with the transport, on failure as well. */
cz_status transport_shm_join(const struct shm_segment *seg, bool owns_seg, int rank,
                             double timeout_s, struct transport **out);

/* CZ_PEER when a peer's process has ended without saying so and without its slots of `round`. */
cz_status transport_shm_look(struct shm_transport *s, uint64_t round);

/* CZ_PEER: `rank` was lost, or ended because of another one, which is named then. The peers are
 * told which it is. */
cz_status transport_shm_lost(struct shm_transport *s, int rank);

/* Say to the others how we went, and release everything. */
void transport_shm_free(struct shm_transport *s, enum shm_state state);

#endif

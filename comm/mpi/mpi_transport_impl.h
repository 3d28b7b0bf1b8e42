/* The parts of the MPI transport: slots (transport_mpi.c), the host of each rank (mpi_meet.c),
 * waiting and parting (mpi_wait.c). */
#ifndef CZ_COMM_MPI_TRANSPORT_IMPL_H
#define CZ_COMM_MPI_TRANSPORT_IMPL_H

#include "comm/mpi/mpi_world_impl.h"
#include "comm/peer_watch_impl.h"

enum direction { DIR_IN, DIR_OUT };

struct where {
    int64_t step;
    char phase[COMM_PHASE_NBYTES];
};

struct mpi_peer {
    int pid;
    char host[32];
    struct where last_heard; /* phase "": not heard of since it joined */
    uint64_t n_heard;        /* slots that have arrived from it */
    bool is_gone;            /* found dead; what it had sent may still be read */
    bool gave_up;            /* it has told us so */
};

/* What a rank that gives up tells the others, or they would take it for the one that died. */
struct obituary {
    int32_t dead; /* −1: a rank on another host */
    struct where last_heard;
};

/* Requests and slots are in four rows of world_size: in of even and odd rounds, out of even and odd
 * rounds. This rank's own place holds no request; among the slots out it is the one that all
 * read. A fifth row sends an obituary, where this rank's own place receives one. */
struct mpi_transport {
    struct transport base;
    MPI_Comm comm;
    size_t stride; /* of a slot: head and payload */
    char *slots;
    MPI_Request *requests; /* MPI_REQUEST_NULL: complete, or not used */
    int n_requests;        /* 5 · W */
    int *completed;        /* of MPI_Testsome */
    MPI_Status *statuses;  /* the same */
    int n_open[2][2];      /* requests under way by direction and parity of the round */
    uint64_t next_receive; /* the first round whose receives have not been opened */
    uint64_t n_completed;
    struct obituary inbox, heard, told; /* heard: the first that names a rank */
    bool has_told;

    struct mpi_peer *peers;  /* (W) */
    struct peer_watch watch; /* those of this host */
    struct where here;
    int n_cores;        /* that the ranks of this host have together */
    bool somebody_left; /* a peer, or this rank */
    bool gave_up;       /* waiting for one that will not come */
    int failed_rc;      /* of a test; reported by the next sleep */

    int64_t idle_since_ns; /* when the present wait last saw something happen */
    uint64_t idle_round, idle_n_completed;
};

/* Fill in the ranks that share this host and its cores, watch them, and learn how every rank's part
 * of creation went: `mine` or the others' failure. Collective; connects every pair. */
cz_status mpi_transport_meet(struct mpi_transport *t, cz_status mine);

#endif

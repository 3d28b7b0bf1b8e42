/* The planes of the CUDA plug-in: collectives as kernels and copies on a stream of their own, and
 * NCCL's calls between ranks where there are several.
 *
 * plane.c has the collectives; nccl_link.c calls NCCL, and notices dead ranks and asynchronous
 * errors. */
#ifndef CZ_COMM_NCCL_PLANE_IMPL_H
#define CZ_COMM_NCCL_PLANE_IMPL_H

#include "comm/nccl/nccl_api.h"
#include "comm/peer_watch_impl.h"

#include <pthread.h>
#include <stdatomic.h>

/* What is between ranks; nothing (calls NULL) for one. */
struct nccl_link {
    const struct nccl_calls *calls;
    struct nccl_comm *comm;
    struct nccl_id id;
    int rank, world_size;
    pthread_mutex_t lock; /* around comm's use, the watcher may end it */
    bool is_over;         /* under the lock: comm was aborted */
    struct err why;       /* under the lock: status CZ_OK, or why it was ended */
    atomic_int failed;    /* nonzero: look at why */
    struct peer_watch watch;
    pthread_t watcher;
    bool is_watched;
    atomic_bool stop, is_connecting;
    atomic_ullong n_begun;  /* collectives queued */
    const uint64_t *n_done; /* page-locked: how many the device has ended */
};

struct plane {
    struct device_plane base;
    struct device *device;
    struct dev_stream *stream, *work; /* the caller's; ours */
    int rank, world_size;
    bool pretends;
    struct nccl_link link;
    struct dev_event *ready, *done[PLANE_TICKETS];
    uint64_t n_begun, n_queued; /* tickets; those and the first meeting */
    uint64_t to_host;           /* the newest collective whose destination is the host's, 0: none */
    uint64_t to_host_done;      /* and the newest that has been waited for */
    struct pieces cut;
    struct piece_run *runs;
    size_t *numels;
    size_t slot_nbytes;
    char *memory; /* PLANE_REGIONS pieces and a word */
    char *out, *in, *host, *word;
    uint64_t *n_done; /* a page, page-locked */
    bool n_done_registered;
};

static inline char *plane_at(const void *p, size_t i, size_t elem_nbytes)
{
    return (char *)(uintptr_t)p + i * elem_nbytes;
}

/* ---- between ranks (nccl_link.c) ------------------------------------------------------------- */

/* Between these, sends and receives of a group; it is queued by the end of nccl_group_end(). After
 * an error of one in between nccl_group_end() is still called. */
cz_status nccl_group_begin(struct nccl_link *l);
cz_status nccl_send(struct nccl_link *l, const void *src, size_t nbytes, int peer,
                    struct dev_stream *s);
cz_status nccl_receive(struct nccl_link *l, void *dst, size_t nbytes, int peer,
                       struct dev_stream *s);
cz_status nccl_broadcast(struct nccl_link *l, const void *src, void *dst, size_t nbytes, int root,
                         struct dev_stream *s);
cz_status nccl_group_end(struct nccl_link *l, cz_status so_far);

/* Collective: CZ_COMM, CZ_PEER. */
cz_status nccl_link_connect(struct nccl_link *l);

/* CZ_OK, or why the link was ended. */
cz_status nccl_link_check(struct nccl_link *l);

/* End it because of the last error. Any thread; the first reason stays. */
void nccl_link_abort(struct nccl_link *l);

/* Nothing is under way. */
void nccl_link_close(struct nccl_link *l);

/* pids: (world_size). A link is watched until it is closed. CZ_NOMEM. */
cz_status nccl_watch_start(struct nccl_link *l, const int *pids);

#endif

/* The planes of the CUDA plug-in: collectives as kernels and copies on a stream of their own, and
 * NCCL's calls between ranks where there are several.
 *
 * plane.c begins, ends and waits; plane_reduce.c and plane_move.c say what is in a collective;
 * nccl_group.c calls NCCL; nccl_watch.c notices dead ranks and asynchronous errors. */
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

/* ---- what collectives are made of (plane.c) ---- */

cz_status plane_copy(struct plane *p, void *dst, const void *src, size_t nbytes);

/* Begin to cut a table into pieces of slot_numel elements per owner. */
void plane_cut(struct plane *p, const struct comm_span *spans, size_t n_spans, bool moves,
               size_t slot_numel);

/* The next piece: its runs, and elements per owner in p->numels. 0 at the end. */
size_t plane_next(struct plane *p);

static inline char *plane_at(const void *p, size_t i, size_t elem_nbytes)
{
    return (char *)(uintptr_t)p + i * elem_nbytes;
}

/* ---- the two collectives ---- */

cz_status plane_queue_reduce(struct plane *p, const struct comm_reduce *a,
                             struct plane_sides sides);
cz_status plane_queue_move(struct plane *p, const struct comm_move *a, struct plane_sides sides);

/* ---- between ranks (nccl_group.c) ---- */

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

/* ---- its watcher (nccl_watch.c) ---- */

/* pids: (world_size). A link is watched until nccl_watch_stop(). CZ_NOMEM. */
cz_status nccl_watch_start(struct nccl_link *l, const int *pids);
void nccl_watch_stop(struct nccl_link *l);

#endif

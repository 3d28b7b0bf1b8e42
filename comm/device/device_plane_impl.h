/* What the device communicator (device_comm.c) asks of its kinds: staged (staged.c), and self and
 * nccl, which live in the CUDA plug-in. */
#ifndef CZ_COMM_DEVICE_DEVICE_PLANE_IMPL_H
#define CZ_COMM_DEVICE_DEVICE_PLANE_IMPL_H

#include "comm/device/device_comm.h"
#include "comm/exchange/pieces_impl.h"

struct device_plane;

/* Which memory is the device's. At least one is. */
struct plane_sides {
    bool src, dst;
};

/* Collectives are numbered from 1 in the order of begins; args' spans are lent until waited for. */
struct device_plane_ops {
    const char *name;
    cz_status (*reduce)(struct device_plane *, const struct comm_reduce *, struct plane_sides,
                        uint64_t id);
    cz_status (*move)(struct device_plane *, const struct comm_move *, struct plane_sides,
                      uint64_t id);
    /* Until `id` is over: host memory may be read, and the stream's later work comes after it. */
    cz_status (*wait)(struct device_plane *, uint64_t id);
    cz_status (*progress)(struct device_plane *); /* optional */
    /* optional: all collectives that this needs of the host communicator have been begun */
    cz_status (*drain)(struct device_plane *);
    /* optional: end what is under way, it will not be completed; may be called again */
    void (*abort)(struct device_plane *);
    /* optional: CZ_OK, or what went wrong since, without waiting */
    cz_status (*check)(struct device_plane *);
    void (*destroy)(struct device_plane *);
};

/* The first member of every plane. */
struct device_plane {
    const struct device_plane_ops *ops;
};

struct plane_args {
    struct comm *host; /* of the plug-in's planes: only its numbers are read */
    struct device *device;
    struct dev_stream *stream;
    size_t piece_nbytes;
};

#define PLANE_TICKETS       64 /* collectives under way whose ends are told apart */
#define STAGED_SLOTS        3  /* pieces: one comes, one is exchanged, one goes */
#define STAGED_PIECE_NBYTES ((size_t)4 << 20)
#define PLANE_PIECE_NBYTES  ((size_t)8 << 20)
#define STAGED_PAGE_NBYTES  ((size_t)4096)
#define PLANE_REGIONS       3 /* pieces of device memory: out, in, host's */
#define PLANE_WORD_NBYTES   ((size_t)256)

cz_status staged_create(const struct plane_args *args, struct device_plane **out);

/* ---- from the plug-in ------------------------------------------------------------------------ */

#define DEVICE_PLANES_SYMBOL  "czero_nccl_planes"
#define DEVICE_PLANES_VERSION 1
#define NCCL_ID_NBYTES        128

struct nccl_args {
    unsigned char id[NCCL_ID_NBYTES];
    const int *pids; /* (world_size) processes of ranks on this host; 0: elsewhere */
};

struct device_planes {
    uint32_t version, args_nbytes, comm_nbytes; /* sizes: a second check */
    /* One rank, or one that pretends: comm_self's definition. */
    cz_status (*self_create)(const struct plane_args *, struct device_plane **);
    /* Open libnccl. CZ_UNSUPPORTED: it is missing, or too old. Kept open. */
    cz_status (*nccl_open)(void);
    cz_status (*nccl_id)(unsigned char id[NCCL_ID_NBYTES]); /* on one rank, for all */
    /* What a rank does alone; then, when all have: meet the others. CZ_NOMEM, CZ_CUDA; CZ_COMM,
     * CZ_PEER. */
    cz_status (*nccl_create)(const struct plane_args *, const struct nccl_args *,
                             struct device_plane **);
    cz_status (*nccl_connect)(struct device_plane *);
};

#endif

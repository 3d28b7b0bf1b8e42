/* The part of NCCL's interface that czero calls, declared here so that building needs no copy of
 * NCCL: its ABI has been stable since 2.14, in which communicators learnt not to block. Where
 * nccl.h is at hand, nccl_loader.c checks these against it. Source: NCCL's documentation, 2.28. */
#ifndef CZ_COMM_NCCL_NCCL_API_H
#define CZ_COMM_NCCL_NCCL_API_H

#include "comm/device/device_plane_impl.h"

CZ_EXTERN_C_BEGIN

#define NCCL_LIBRARY_FILE "libnccl.so.2"
#define NCCL_LIBRARY_ENV  "CZERO_NCCL_LIBRARY" /* another file to open in its place */
#define NCCL_LIBRARY_MIN  21800                /* 2.18.0 */

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7,
};

#define NCCL_TYPE_UINT8 1 /* everything is sent as bytes */

struct nccl_comm;   /* ncclComm */
struct CUstream_st; /* what cudaStream_t points to; CUDA's headers are not needed here */

struct nccl_id {
    char internal[NCCL_ID_NBYTES];
};

/* ncclConfig_t as of 2.17; later versions append, and read as much as `size` says. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};
#define NCCL_CONFIG_MAGIC   0xcafebeefu
#define NCCL_CONFIG_VERSION 21700u
#define NCCL_CONFIG_UNSET   ((int)0x80000000)

/* Slots named as the functions, without "nccl". Results: enum nccl_result, or another error. */
struct nccl_calls {
    int (*GetVersion)(int *version);
    int (*GetUniqueId)(struct nccl_id *id);
    int (*CommInitRankConfig)(struct nccl_comm **comm, int n_ranks, struct nccl_id id, int rank,
                              struct nccl_config *config);
    int (*CommFinalize)(struct nccl_comm *comm);
    int (*CommDestroy)(struct nccl_comm *comm);
    int (*CommAbort)(struct nccl_comm *comm);
    int (*CommGetAsyncError)(struct nccl_comm *comm, int *result);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*Send)(const void *src, size_t n, int type, int peer, struct nccl_comm *comm,
                struct CUstream_st *stream);
    int (*Recv)(void *dst, size_t n, int type, int peer, struct nccl_comm *comm,
                struct CUstream_st *stream);
    int (*Broadcast)(const void *src, void *dst, size_t n, int type, int root,
                     struct nccl_comm *comm, struct CUstream_st *stream);
    const char *(*GetErrorString)(int result);
    const char *(*GetLastError)(struct nccl_comm *comm);
};

/* The library's functions, opened when first asked for and kept. CZ_UNSUPPORTED: it is missing, or
 * too old. */
cz_status nccl_load(const struct nccl_calls **out);

CZ_EXTERN_C_END
#endif

/* What libczero and its MPI plug-in, libczero_mpi.so, give each other.
 *
 * The plug-in is the only thing linked against MPI, and is opened only if there are several ranks.
 * It alone links against MPI: whichever copy of libczero opens it (the shared library, or a program
 * linked with libczero.a) hands it the calls it needs. */
#ifndef CZ_COMM_MPI_PLUGIN_IMPL_H
#define CZ_COMM_MPI_PLUGIN_IMPL_H

#include "comm/exchange/transport_impl.h"

#define MPI_PLUGIN_FILE    "libczero_mpi.so"
#define MPI_PLUGIN_SYMBOL  "czero_mpi_plugin"
#define MPI_PLUGIN_VERSION 1 /* rises with any change here or in transport_impl.h */

struct mpi_plugin_host {
    cz_status (*err_set)(cz_status status, int sys_errno, const char *fmt, ...) CZ_PRINTF(3, 4);
    cz_status (*err_trace)(cz_status status, const char *func, int line);
    void (*warn)(const char *text);  /* into the log */
    int64_t (*interrupted_ns)(void); /* comm_interrupted_ns() */
    int64_t patience_ns;             /* how long the launcher lets ranks live after SIGTERM */
    int (*n_threads)(void);          /* threads_count() */
    int allowed_cores, quota_cores;  /* threads_allowed_cores(), threads_quota_cores() */
    int world_size;                  /* as the launcher's environment says; 0: it does not */
};

struct mpi_plugin {
    uint32_t version;
    uint32_t head_nbytes, transport_nbytes, host_nbytes; /* sizes of structs: a second check */
    /* Start MPI unless it runs already, and connect all ranks of MPI_COMM_WORLD. Collective.
     * Errors: CZ_COMM, CZ_NOMEM, CZ_PEER. `host` is copied. */
    cz_status (*create)(const struct mpi_plugin_host *host, struct transport **out);
};

#endif

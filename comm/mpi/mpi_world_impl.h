/* The plug-in's own: MPI's life in this process, and its errors. */
#ifndef CZ_COMM_MPI_WORLD_IMPL_H
#define CZ_COMM_MPI_WORLD_IMPL_H

#include "comm/mpi_plugin_impl.h"

#include <mpi.h>

/* Set before anything else here is called. */
extern struct mpi_plugin_host mpi_host;

/* CZ_COMM with MPI's own text for `rc`, what a call named `call` returned. */
cz_status mpi_failed(int rc, const char *call);

#define MPI_TRY(call, ...)                                                                         \
    do {                                                                                           \
        int rc_ = call(__VA_ARGS__);                                                               \
        if (rc_ != MPI_SUCCESS) return mpi_failed(rc_, #call);                                     \
    } while (0)

/* A communicator over all ranks, with errors returned. MPI is started when it does not run yet, and
 * then ended when the process exits, if every communicator has been released as healthy by then:
 * MPI_Finalize waits for all ranks, dead ones too. */
cz_status mpi_world_acquire(MPI_Comm *out);
void mpi_world_release(MPI_Comm comm, bool is_healthy);

/* Before MPI is started: MPI's own waits hand cores over where ranks share them. */
void mpi_yield_when_cores_are_shared(void);

/* OpenMPI writes to connections that may be broken: SIGPIPE is ignored from now on, unless the
 * program handles it. */
void mpi_survive_lost_links(void);

/* Once MPI runs: have its explanations come here. */
void mpi_take_help(void);

/* When the connection to another host was first lost (clock_now_ns), 0: never. */
int64_t mpi_link_lost_ns(void);

#endif

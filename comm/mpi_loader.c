/* The MPI plug-in: found, checked and opened on demand, so that neither libczero nor its users
 * depend on an MPI library. */
#include "base/host/launchers.h"
#include "base/log.h"
#include "base/threads.h"
#include "comm/comm_impl.h"
#include "comm/mpi_plugin_impl.h"

#include <dlfcn.h>
#include <stdlib.h>

static bool is_ours(const struct mpi_plugin *p)
{
    return p->version == MPI_PLUGIN_VERSION && p->head_nbytes == sizeof(struct slot_head) &&
           p->transport_nbytes == sizeof(struct transport) &&
           p->host_nbytes == sizeof(struct mpi_plugin_host);
}

/* Global, because OpenMPI opens components that expect its symbols; kept, because MPI does not
 * survive being unmapped. */
static cz_status plugin_open(const struct mpi_plugin **out)
{
    const char *path = getenv("CZERO_MPI_PLUGIN");
    if (!path || !*path) path = MPI_PLUGIN_FILE;
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!handle) {
        const char *reason = dlerror();
        return err_set(CZ_COMM, 0,
                       "several MPI ranks, but the MPI plug-in cannot be loaded (%s): build czero "
                       "where MPI is installed, or name the file in CZERO_MPI_PLUGIN",
                       reason ? reason : path);
    }
    const struct mpi_plugin *plugin = dlsym(handle, MPI_PLUGIN_SYMBOL);
    if (!plugin || !is_ours(plugin))
        return err_set(CZ_COMM, 0, "%s belongs to another version of czero", path);
    *out = plugin;
    return CZ_OK;
}

/* How long a rank may still wait for others once the launcher has sent SIGTERM. OpenMPI's mpirun
 * kills ranks a second later, Slurm after its KillWait, 30 s by default; the rest is needed to
 * report the error. */
static int64_t patience_ns(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    return size && atoi(size) > 0 ? INT64_C(300000000) : INT64_C(20000000000);
}

static void warn(const char *text)
{
    LOGV(LOG_WARN, SUB_COMM, "%s", text);
}

cz_status comm_mpi_transport_create(struct transport **out)
{
    const struct mpi_plugin *plugin = NULL;
    const struct mpi_plugin_host host = {
        .err_set = err_set,
        .err_trace = err_trace,
        .warn = warn,
        .interrupted_ns = comm_interrupted_ns,
        .patience_ns = patience_ns(),
        .n_threads = threads_count,
        .allowed_cores = threads_allowed_cores(NULL),
        .quota_cores = threads_quota_cores(NULL),
        .world_size = launchers_mpi_size(),
    };
    *out = NULL;
    TRY(plugin_open(&plugin));
    return plugin->create(&host, out);
}

/* MPI's own begin and end in this process: started once, duplicated for every communicator,
 * finalized at exit, unless a rank was lost: MPI_Finalize would wait for it. */
#include "comm/mpi/mpi_world_impl.h"

#include <stdlib.h>
#include <unistd.h>

static struct {
    bool is_ours;   /* we started MPI, so we end it */
    bool is_broken; /* a peer is gone: MPI_Finalize would wait for it */
    int n_open;
    pid_t pid; /* that started it: a forked child does not end it */
} world;

cz_status mpi_failed(int rc, const char *call)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;
    MPI_Error_string(rc, text, &n);
    return err_set(CZ_COMM, 0, "%s failed: %s", call, n > 0 ? text : "unknown MPI error");
}

static void finalize_at_exit(void)
{
    int is_done = 0;
    if (world.is_broken || world.n_open > 0 || world.pid != getpid()) return;
    if (MPI_Finalized(&is_done) == MPI_SUCCESS && !is_done) MPI_Finalize();
}

/* A program may have started MPI itself; then it also ends it. */
static cz_status start(void)
{
    int is_up = 0, is_done = 0, level;
    MPI_TRY(MPI_Finalized, &is_done);
    if (is_done) return err_set(CZ_COMM, 0, "MPI has been ended already in this process");
    MPI_TRY(MPI_Initialized, &is_up);
    if (is_up) return CZ_OK;
    mpi_yield_when_cores_are_shared();
    mpi_survive_lost_links();
    MPI_TRY(MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &level);
    world.is_ours = true;
    world.pid = getpid();
    if (atexit(finalize_at_exit) != 0)
        return err_set(CZ_NOMEM, 0, "no memory to have MPI ended at exit");
    return CZ_OK;
}

/* srun without PMI starts every rank as a world of its own. */
static cz_status check_size(MPI_Comm comm)
{
    int n;
    MPI_TRY(MPI_Comm_size, comm, &n);
    if (mpi_host.world_size <= 1 || n == mpi_host.world_size) return CZ_OK;
    return err_set(CZ_COMM, 0,
                   "MPI has %d rank%s, but the launcher started %d: use the mpirun of the MPI "
                   "that czero was built with, or under Slurm srun --mpi=pmix",
                   n, n == 1 ? "" : "s", mpi_host.world_size);
}

cz_status mpi_world_acquire(MPI_Comm *out)
{
    TRY(start());
    MPI_TRY(MPI_Comm_set_errhandler, MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check_size(MPI_COMM_WORLD));
    mpi_take_help();
    MPI_TRY(MPI_Comm_dup, MPI_COMM_WORLD, out); /* inherits the handler */
    world.n_open++;
    return CZ_OK;
}

void mpi_world_release(MPI_Comm comm, bool is_healthy)
{
    world.n_open--;
    if (is_healthy)
        MPI_Comm_free(&comm); /* it has no traffic left; a failure would show in the next one */
    else
        world.is_broken = true;
}

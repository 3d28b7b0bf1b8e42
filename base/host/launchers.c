/* The launchers of ranks, by their variables. czero joins the ranks of `czero launch`, mpirun
 * and srun. Other launchers set variables of their own: without a look at them each of their
 * processes would train alone on the same rows, and write the same files. */
#include "base/host/launchers.h"

#include "base/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const struct launcher {
    const char *size, *rank; /* variables */
    const char *name;        /* NULL: one of torch's, see torch_launcher() */
    bool joins;              /* czero joins its ranks by MPI; a rank without a size is one, too */
    bool names_rank;         /* the size alone may be of a batch job that started no ranks */
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun", true}, /* also in a Slurm job */
    {"PMI_SIZE", "PMI_RANK", "mpirun", true},                         /* MPICH's; srun --mpi=pmi2 */
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun", true, true},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MVAPICH's mpirun", false},
    {"HOROVOD_SIZE", "HOROVOD_RANK", "horovodrun", false},
    {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "jsrun", false},
    {"FLUX_JOB_SIZE", "FLUX_TASK_RANK", "flux run", false},
    {"WORLD_SIZE", "RANK", NULL, false},
    {"WORLD_SIZE", "LOCAL_RANK", NULL, false},
};

/* A whole number from 0 on; −1: not set, or something else. */
static int number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    const long n = text && *text ? strtol(text, &end, 10) : -1;
    return n < 0 || n > INT_MAX || *end != '\0' ? -1 : (int)n;
}

static bool is_own(void)
{
    return getenv(COMM_ENV_RANK) || getenv(COMM_ENV_WORLD_SIZE) || getenv(COMM_ENV_SHM_FD);
}

int launchers_rank(void)
{
    if (is_own()) return number(COMM_ENV_RANK) > 0 ? number(COMM_ENV_RANK) : 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(launchers); i++) {
        const struct launcher *l = &launchers[i];
        const int rank = number(l->rank);
        if (rank >= 0 && (l->joins || number(l->size) > 1)) return rank;
    }
    return 0;
}

int launchers_mpi_size(void)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(launchers); i++) {
        const struct launcher *l = &launchers[i];
        if (l->joins && number(l->size) > 0 && (!l->names_rank || getenv(l->rank)))
            return number(l->size);
    }
    return 0;
}

static const char *torch_launcher(void)
{
    if (getenv("ACCELERATE_MIXED_PRECISION")) return "accelerate launch";
    if (getenv("TORCHELASTIC_RUN_ID")) return "torchrun";
    if (getenv("CROSS_SIZE") || getenv("LOCAL_SIZE")) return "deepspeed's launcher";
    return "torchrun, or a launcher like it";
}

/* Launchers whose ranks czero does not join. */
static cz_status check_foreign(void)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(launchers); i++) {
        const struct launcher *l = &launchers[i];
        const int size = number(l->size), rank = number(l->rank);
        if (l->joins || size <= 1 || rank < 0) continue;
        return err_set(CZ_INVALID, 0,
                       "started by %s as rank %d of %d (%s, %s): use czero launch -n %d instead, "
                       "or set " COMM_ENV_RANK "=0 and " COMM_ENV_WORLD_SIZE "=1 to let every "
                       "process run alone",
                       l->name ? l->name : torch_launcher(), rank, size, l->rank, l->size, size);
    }
    return CZ_OK;
}

cz_status launchers_check_world(void)
{
    if (is_own()) return CZ_OK;
    TRY(check_foreign());
    const int size = number("WORLD_SIZE");
    if (size > 1)
        LOGV(LOG_WARN, SUB_COMM,
             "WORLD_SIZE is %d, but this run has 1 rank: czero launch -n %d starts %d", size, size,
             size);
    const char *tf = getenv("TF_CONFIG"), *workers = tf ? strstr(tf, "\"worker\"") : NULL;
    const char *comma = workers ? strchr(workers + strlen("\"worker\""), ',') : NULL;
    const char *end = workers ? strchr(workers, ']') : NULL;
    if (comma && end && comma < end)
        LOGV(LOG_WARN, SUB_COMM,
             "TF_CONFIG names several workers, but this run has 1 rank: czero launch starts more");
    return CZ_OK;
}

cz_status launchers_check_only(void)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(launchers); i++) {
        const struct launcher *l = &launchers[i];
        if (l->joins && number(l->size) > 1 && number(l->rank) >= 0)
            return err_set(CZ_INVALID, 0,
                           "czero launch was started %d times by %s (%s): start it once, or leave "
                           "it out and let %s start the ranks",
                           number(l->size), l->name, l->size, l->name);
    }
    return is_own() ? CZ_OK : check_foreign();
}

cz_status launchers_check_alone(void)
{
    if (!is_own()) {
        for (size_t i = 0; i < CZ_ARRAY_LEN(launchers); i++)
            if (launchers[i].joins && number(launchers[i].size) > 1 &&
                number(launchers[i].rank) >= 0)
                return err_set(CZ_INVALID, 0,
                               "this is rank %d of %d (%s), but the engine has no world: give it "
                               "engine_world_create()'s",
                               number(launchers[i].rank), number(launchers[i].size),
                               launchers[i].size);
        return launchers_check_world();
    }
    if (number(COMM_ENV_WORLD_SIZE) <= 1) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "this is rank %d of %d (" COMM_ENV_WORLD_SIZE
                   "), but the engine has no world: give it engine_world_create()'s",
                   number(COMM_ENV_RANK), number(COMM_ENV_WORLD_SIZE));
}

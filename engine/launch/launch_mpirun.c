/* Several hosts: mpirun starts the ranks, with the environment that they need. The launcher becomes
 * mpirun (exec): nothing here could watch processes of other hosts better. */
#include "engine/launch/launch_impl.h"

#include "comm/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Variables that mean something to czero and the libraries under it; mpirun hands on only its own
 * by itself. */
static bool is_needed(const char *variable)
{
    static const char *const own[] = {COMM_ENV_SHM_FD "=", COMM_ENV_RANK "=",
                                      COMM_ENV_WORLD_SIZE "="};
    static const char *const prefixes[] = {"CZERO_",  "OMP_",  "GOMP_",
                                           "ONEDNN_", "DNNL_", "LD_LIBRARY_PATH="};
    for (size_t i = 0; i < CZ_ARRAY_LEN(own); i++)
        if (strncmp(variable, own[i], strlen(own[i])) == 0) return false;
    for (size_t i = 0; i < CZ_ARRAY_LEN(prefixes); i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0) return true;
    return false;
}

static size_t count(char *const *list)
{
    size_t n = 0;
    while (list[n]) n++;
    return n;
}

/* Space for the names of all variables. */
static size_t names_nbytes(char *const *environment)
{
    size_t nbytes = 0;
    for (size_t i = 0; environment[i]; i++) nbytes += strcspn(environment[i], "=") + 1;
    return nbytes;
}

/* One allocation for all words, so that freeing the list frees them. */
char **launch_mpirun_argv(const struct launch_options *o, const char *program, bool is_root,
                          char *const *environment, char n_ranks_text[16])
{
    const size_t n_fixed = 10;
    size_t n = 0, n_words = n_fixed + 2 * count(environment) + count(o->argv) + 1;
    const char **words = calloc(1, n_words * sizeof *words + names_nbytes(environment));
    if (!words) return NULL;
    char *name = (char *)(words + n_words);
    snprintf(n_ranks_text, 16, "%d", o->n_ranks);
    words[n++] = "mpirun";
    words[n++] = "-n";
    words[n++] = n_ranks_text;
    words[n++] = "--hostfile";
    words[n++] = o->hostfile;
    if (is_root) words[n++] = "--allow-run-as-root";
    /* mpirun would give one core to each of two ranks, whatever there is: ranks divide the cores
     * of their host themselves. */
    words[n++] = "--bind-to";
    words[n++] = "none";
    for (size_t i = 0; environment[i]; i++) {
        if (!is_needed(environment[i])) continue;
        size_t len = strcspn(environment[i], "=");
        memcpy(name, environment[i], len); /* zeroed memory: it ends */
        words[n++] = "-x";
        words[n++] = name;
        name += len + 1;
    }
    words[n++] = program;
    for (size_t i = 1; o->argv[i]; i++) words[n++] = o->argv[i];
    return (char **)(uintptr_t)words;
}

/* Returns only on failure. */
cz_status launch_mpirun(const struct launch_options *o)
{
    char mpirun[4096], program[4096], n_ranks_text[16];
    if (access(o->hostfile, R_OK) != 0)
        return err_set(CZ_NOTFOUND, errno, "--hostfile: cannot read %s", o->hostfile);
    TRY(launch_find(o->program, program, sizeof program));
    if (launch_find("mpirun", mpirun, sizeof mpirun) != CZ_OK)
        return err_set(CZ_NOTFOUND, 0,
                       "--hostfile needs mpirun (OpenMPI), which is not on PATH; without a "
                       "hostfile the ranks of this host need no MPI");
    if (setenv("CZERO_BIND", o->bind == LAUNCH_BIND_CORES ? "cores" : "none", 1) != 0)
        return err_set(CZ_NOMEM, errno, "no memory for the environment of ranks");
    char **argv = launch_mpirun_argv(o, program, geteuid() == 0, environ, n_ranks_text);
    if (!argv) return err_set(CZ_NOMEM, 0, "no memory for the words of mpirun");
    execv(mpirun, argv);
    int error = errno;
    free(argv);
    return err_set(CZ_IO, error, "cannot run %s", mpirun);
}

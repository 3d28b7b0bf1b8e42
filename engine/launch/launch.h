/* Starting the ranks of a world: on this host over shared memory, or on several through mpirun.
 *
 * launch_local() is meant for a program that does nothing else meanwhile: it takes signals for the
 * ranks and becomes the reaper of what they leave behind. It ends and waits for those processes alone,
 * no other child of the program. The ranks join the world with engine_world_create(). */
#ifndef CZ_ENGINE_LAUNCH_LAUNCH_H
#define CZ_ENGINE_LAUNCH_LAUNCH_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

enum launch_bind {
    LAUNCH_BIND_CORES = 0, /* every rank has its own cores, near one memory where possible */
    LAUNCH_BIND_NONE
};

/* What ranks other than 0 print: one or more whole lines ("[rank 2] " is in front of those on
 * stderr that do not name their rank). Rank 0 prints to the launcher's own streams. */
typedef void (*launch_write)(bool to_stderr, const char *text, size_t nbytes, void *user);

struct launch_options {
    int n_ranks;
    enum launch_bind bind;
    const char *program; /* a path, or a name that is looked up on PATH */
    char *const *argv;   /* of every rank, NULL-terminated; argv[0] is the name it sees */
    launch_write write;
    void *write_user;
    const char *hostfile; /* launch_mpirun() only: "host slots=n" lines */
};

/* Start the ranks on this host and wait for all of them. Every rank finds CZERO_RANK,
 * CZERO_WORLD_SIZE and CZERO_SHM_FD in its environment, and OMP_NUM_THREADS = its share of the
 * cores unless the user has set it. Signals that ask a program to stop are passed on to all ranks;
 * a second one ends them at once. When a rank fails, the others have a moment to stop by
 * themselves; then they are ended. No rank outlives the caller, even when it is killed.
 *
 * *exit_code: 0 when all ranks ended with 0; otherwise the code of the rank that failed first,
 * codes other than 1 before those (a rank that only learned of another's failure ends with 1); 1
 * when a signal killed a rank; 128 + signal when that was the signal asked for.
 * CZ_OK when that is 0. Errors: CZ_PEER (a rank failed: the sentence names it and how it ended);
 * with *exit_code −1: CZ_NOTFOUND (no such program), CZ_INVALID, CZ_IO, CZ_NOMEM. */
cz_status launch_local(const struct launch_options *options, int *exit_code);

/* Become `mpirun -n N --hostfile F … program`. Returns only when that failed: CZ_NOTFOUND (no
 * mpirun, no hostfile, no program), CZ_IO, CZ_NOMEM. */
cz_status launch_mpirun(const struct launch_options *options);

/* Where `program` is: itself when it contains a slash, else the first executable file of that name
 * on PATH. CZ_NOTFOUND: there is none, or it cannot be run. */
cz_status launch_find(const char *program, char *path, size_t path_nbytes);

CZ_EXTERN_C_END
#endif

/* Ranks of one host over a shared segment: what a launcher and its ranks agree on.
 *
 * The launcher makes the segment (an anonymous memfd: nothing in /dev/shm, nothing left behind),
 * hands the descriptor down to every rank it starts, and tells each who it is by the environment.
 */
#ifndef CZ_COMM_SHM_H
#define CZ_COMM_SHM_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct comm;

#define COMM_ENV_SHM_FD     "CZERO_SHM_FD" /* descriptor of the segment, inherited */
#define COMM_ENV_RANK       "CZERO_RANK"   /* 0 … world size − 1 */
#define COMM_ENV_WORLD_SIZE "CZERO_WORLD_SIZE"

/* A segment for `world_size` ranks; *fd is the caller's to close (ranks inherit it: no CLOEXEC).
 * Errors: CZ_INVALID, CZ_NOMEM, CZ_IO. */
CZ_API cz_status comm_shm_segment_create(int world_size, int *fd);

/* Join the segment as `rank`; collective: returns when all ranks have joined, or CZ_PEER when one
 * has died or CZ_COMM when one has not come within timeout_s. The descriptor stays the caller's.
 * Every process joins once per segment. */
CZ_API cz_status comm_shm_join(int fd, int rank, int world_size, double timeout_s,
                               struct comm **out);

CZ_EXTERN_C_END
#endif

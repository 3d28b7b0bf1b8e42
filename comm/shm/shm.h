/* Ranks of one host over a shared segment: what a launcher and its ranks agree on.
 *
 * The launcher makes the segment (an anonymous memfd: nothing in /dev/shm, nothing left behind),
 * hands the descriptor down to every rank it starts, and passes each its rank in the environment.
 */
#ifndef CZ_COMM_SHM_SHM_H
#define CZ_COMM_SHM_SHM_H

#include "base/host/launchers.h" /* COMM_ENV_… */
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct comm;

#define COMM_SHM_WORLD_MAX 1024

/* A segment for `world_size` ranks (1 … COMM_SHM_WORLD_MAX); *fd is the caller's to close (ranks
 * inherit it: no CLOEXEC). Errors: CZ_INVALID, CZ_NOMEM, CZ_IO. */
cz_status comm_shm_segment_create(int world_size, int *fd);

/* Bytes of that segment, and of its pages that one rank reads or writes: what the rank's resident
 * memory grows by. Pages are taken when first used, so a rank that exchanges little stays below. */
size_t comm_shm_segment_nbytes(int world_size);
size_t comm_shm_rank_nbytes(int world_size);

/* Join the segment as `rank`; collective: returns when all ranks have joined, or CZ_PEER when one
 * has died or CZ_COMM when one has not come within timeout_s. The descriptor stays the caller's.
 * A rank joins a segment once. Ranks may be threads of one process: then a rank that ends without
 * comm_destroy() is not noticed.
 * Errors: CZ_INVALID (no such rank or world), CZ_COMM (fd is not a segment of this version and
 * world size, the rank has joined before, a rank is missing), CZ_PEER, CZ_NOMEM. */
cz_status comm_shm_join(int fd, int rank, int world_size, double timeout_s, struct comm **out);

/* Where a rank of the segment stood last, also one that has died: "step 3 (backward)"; "" when it
 * has said nothing yet. Errors: CZ_INVALID, CZ_COMM (see comm_shm_join), CZ_NOMEM. */
cz_status comm_shm_where(int fd, int world_size, int rank, char *text, size_t text_nbytes);

CZ_EXTERN_C_END
#endif

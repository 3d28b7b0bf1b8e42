/* Detects from the environment which launcher started this process, and as which rank. */
#ifndef CZ_BASE_HOST_LAUNCHERS_H
#define CZ_BASE_HOST_LAUNCHERS_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* Set by czero launch. */
#define COMM_ENV_SHM_FD     "CZERO_SHM_FD" /* descriptor of the segment, inherited */
#define COMM_ENV_RANK       "CZERO_RANK"   /* 0 … world size − 1 */
#define COMM_ENV_WORLD_SIZE "CZERO_WORLD_SIZE"

/* The rank of this process, of czero's launcher or another; 0: none. */
int launchers_rank(void);

/* How many ranks the launcher started whose ranks czero joins by MPI; 0: none started this one. */
int launchers_mpi_size(void);

/* CZ_INVALID where a launcher whose ranks czero does not join (torchrun, horovodrun, …) started
 * this process as one of several. Logs a warning if only a number of ranks is set (WORLD_SIZE
 * without a rank). */
cz_status launchers_check_world(void);

/* CZ_INVALID where any launcher started this process as one of several: for czero launch, whose
 * copies would start all ranks each. */
cz_status launchers_check_only(void);

/* CZ_INVALID in the same case: for an engine without a world. Each process would train alone. */
cz_status launchers_check_alone(void);

CZ_EXTERN_C_END
#endif

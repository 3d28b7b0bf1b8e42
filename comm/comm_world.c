/* Which communicator a process was launched with: the environment tells (docs/ranks.md). */
#include "comm/comm_impl.h"
#include "comm/shm/transport_shm_impl.h"

#include "base/host/launchers.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define JOIN_TIMEOUT_S 60.0 /* ranks of a host start within seconds, even many on few cores */

static cz_status join_mapped(const struct shm_segment *seg, int rank, double timeout_s,
                             struct comm **out)
{
    struct transport *transport;
    TRY(transport_shm_join(seg, true, rank, timeout_s, &transport));
    return comm_over_transport(transport, out);
}

cz_status comm_shm_join(int fd, int rank, int world_size, double timeout_s, struct comm **out)
{
    struct shm_segment seg;
    *out = NULL;
    if (world_size >= 1 && (rank < 0 || rank >= world_size))
        return err_set(CZ_INVALID, 0, "there is no rank %d in a world of %d", rank, world_size);
    TRY(shm_segment_map(fd, world_size, &seg));
    return join_mapped(&seg, rank, timeout_s, out);
}

/* An integer from the environment, `missing` without the variable. */
static cz_status env_int(const char *name, int missing, int *value)
{
    const char *text = getenv(name);
    char *end;
    *value = missing;
    if (!text) return CZ_OK;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || n < 0 || n > INT_MAX)
        return err_set(CZ_COMM, 0, "%s is \"%s\", not a number: czero launch sets it", name, text);
    *value = (int)n;
    return CZ_OK;
}

struct launched {
    int fd, rank, world_size; /* −1: not in the environment */
};

static cz_status read_launched(struct launched *l)
{
    TRY(env_int(COMM_ENV_SHM_FD, -1, &l->fd));
    TRY(env_int(COMM_ENV_RANK, -1, &l->rank));
    TRY(env_int(COMM_ENV_WORLD_SIZE, -1, &l->world_size));
    if (l->fd < 0 && l->rank < 0 && l->world_size < 0) return CZ_OK;
    if (l->rank < 0 || l->world_size < 0 || (l->fd < 0 && l->world_size != 1))
        return err_set(CZ_COMM, 0,
                       "%s, %s and %s go together, one is not set: start ranks with czero launch",
                       COMM_ENV_SHM_FD, COMM_ENV_RANK, COMM_ENV_WORLD_SIZE);
    if (l->rank >= l->world_size)
        return err_set(CZ_COMM, 0, "%s is %d, but %s is %d: ranks are counted from 0",
                       COMM_ENV_RANK, l->rank, COMM_ENV_WORLD_SIZE, l->world_size);
    return CZ_OK;
}

cz_status comm_create_world(struct comm **out)
{
    struct launched l = {-1, -1, -1};
    struct transport *transport;
    *out = NULL;
    TRY(read_launched(&l));
    if (l.world_size > 1) {
        struct shm_segment seg;
        if (shm_segment_map(l.fd, l.world_size, &seg) != CZ_OK)
            return err_prefix("%s=%d", COMM_ENV_SHM_FD, l.fd);
        close(l.fd); /* mapped: programs that we start shall not inherit it */
        return join_mapped(&seg, l.rank, JOIN_TIMEOUT_S, out);
    }
    if (l.world_size < 0 && launchers_mpi_size() > 1) {
        TRY(comm_mpi_transport_create(&transport));
        return comm_over_transport(transport, out);
    }
    TRY(launchers_check_world());
    return comm_self_create(0, 1, out);
}

#include "comm/comm.h"

void comm_destroy(struct comm *comm)
{
    if (comm) comm->ops->destroy(comm);
}

cz_status comm_all_reduce(struct comm *comm, const struct comm_reduce *args)
{
    struct comm_ticket t;
    TRY(comm->ops->all_reduce(comm, args, &t));
    return comm->ops->wait(comm, t);
}

cz_status comm_reduce_scatter(struct comm *comm, const struct comm_reduce *args)
{
    struct comm_ticket t;
    TRY(comm->ops->reduce_scatter(comm, args, &t));
    return comm->ops->wait(comm, t);
}

cz_status comm_all_gather(struct comm *comm, const struct comm_move *args)
{
    struct comm_ticket t;
    TRY(comm->ops->all_gather(comm, args, &t));
    return comm->ops->wait(comm, t);
}

cz_status comm_broadcast(struct comm *comm, void *buffer, size_t nbytes, int root)
{
    const struct comm_move args = {.src = buffer, .dst = buffer, .nbytes = nbytes, .root = root};
    struct comm_ticket t;
    TRY(comm->ops->broadcast(comm, &args, &t));
    return comm->ops->wait(comm, t);
}

cz_status comm_agree(struct comm *comm, cz_status mine)
{
    cz_status worst;
    int rank;
    TRY(comm->ops->agree(comm, mine, &worst, &rank));
    if (worst == CZ_OK) return CZ_OK;
    if (mine != CZ_OK) return mine;
    return err_set(CZ_PEER, 0, "rank %d of %d failed with %s", rank, comm->world_size,
                   cz_status_name(worst));
}

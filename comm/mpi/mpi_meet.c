/* Which ranks share this host, and with it cores, and processes that can be watched. Every pair
 * exchanges a card at the start; that also makes MPI open all connections now, and not in a
 * step. */
#include "comm/mpi/mpi_transport_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAG_CARD = 2 };

/* What every rank tells every other at the start. */
struct card {
    int32_t status; /* of its part of creation */
    int32_t host;   /* the lowest rank on its host */
    int32_t pid;
    int32_t quota_cores;
    uint64_t pid_space; /* pids mean the same processes where this is equal */
    uint64_t slot_nbytes;
    cpu_set_t affinity;
    char host_name[32];
};

/* The lowest rank of the host, as MPI sees it: names may be equal on different hosts. */
static cz_status find_host(const struct mpi_transport *t, int *host)
{
    MPI_Comm node;
    MPI_TRY(MPI_Comm_split_type, t->comm, MPI_COMM_TYPE_SHARED, t->base.rank, MPI_INFO_NULL, &node);
    *host = t->base.rank;
    MPI_TRY(MPI_Bcast, host, 1, MPI_INT, 0, node);
    MPI_TRY(MPI_Comm_free, &node);
    return CZ_OK;
}

static cz_status write_card(const struct mpi_transport *t, cz_status mine, struct card *card)
{
    struct stat st;
    int host;
    TRY(find_host(t, &host));
    CPU_ZERO(&card->affinity);
    (void)sched_getaffinity(0, sizeof card->affinity, &card->affinity); /* more than 1024: empty */
    card->status = (int32_t)mine;
    card->host = host;
    card->pid = (int32_t)getpid();
    card->quota_cores = mpi_host.quota_cores;
    card->pid_space = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
    card->slot_nbytes = t->base.slot_nbytes;
    (void)gethostname(card->host_name, sizeof card->host_name - 1); /* cut off when too long */
    return CZ_OK;
}

/* Directly between each pair, not by MPI_Allgather: connections are made now, not in a step. */
static cz_status exchange_cards(const struct mpi_transport *t, struct card *cards,
                                MPI_Request *requests)
{
    const int w = t->base.world_size, me = t->base.rank, n = (int)sizeof *cards;
    int n_requests = 0;
    for (int r = 0; r < w; r++)
        if (r != me)
            MPI_TRY(MPI_Irecv, &cards[r], n, MPI_BYTE, r, TAG_CARD, t->comm,
                    &requests[n_requests++]);
    for (int r = 0; r < w; r++)
        if (r != me)
            MPI_TRY(MPI_Isend, &cards[me], n, MPI_BYTE, r, TAG_CARD, t->comm,
                    &requests[n_requests++]);
    MPI_TRY(MPI_Waitall, n_requests, requests, MPI_STATUSES_IGNORE);
    return CZ_OK;
}

static cz_status check_cards(const struct mpi_transport *t, const struct card *cards)
{
    for (int r = 0; r < t->base.world_size; r++) {
        if (cards[r].status != CZ_OK)
            return err_set(CZ_PEER, 0, "rank %d of %d could not join: %s", r, t->base.world_size,
                           cards[r].status == CZ_NOMEM ? "no memory" : "its communicator failed");
        if (cards[r].slot_nbytes != t->base.slot_nbytes)
            return err_set(CZ_COMM, 0, "rank %d runs another version of czero than rank %d", r,
                           t->base.rank);
    }
    return CZ_OK;
}

/* Only ranks in the same space of process numbers can be watched: containers of one host have their
 * own. */
static cz_status read_host(struct mpi_transport *t, const struct card *cards)
{
    const struct card *mine = &cards[t->base.rank];
    cpu_set_t all;
    CPU_ZERO(&all);
    TRY(peer_watch_init(&t->watch, t->base.world_size - 1));
    for (int r = 0; r < t->base.world_size; r++) {
        t->peers[r].pid = cards[r].pid;
        snprintf(t->peers[r].host, sizeof t->peers[r].host, "%s", cards[r].host_name);
        if (cards[r].host != mine->host) continue;
        if (r < t->base.rank) t->base.rank_host++;
        t->base.n_ranks_host++;
        CPU_OR(&all, &all, &cards[r].affinity);
        if (r != t->base.rank && cards[r].pid_space == mine->pid_space && mine->pid_space != 0)
            TRY(peer_watch_add(&t->watch, r, (pid_t)cards[r].pid));
    }
    t->n_cores = CPU_COUNT(&all);
    if (mine->quota_cores > 0 && mine->quota_cores < t->n_cores) t->n_cores = mine->quota_cores;
    return CZ_OK;
}

cz_status mpi_transport_meet(struct mpi_transport *t, cz_status mine)
{
    size_t w = (size_t)t->base.world_size;
    struct card *cards = calloc(w, sizeof *cards);
    MPI_Request *requests = calloc(2 * w, sizeof(MPI_Request));
    cz_status st = CZ_OK;
    if (!cards || !requests) {
        st = err_set(CZ_NOMEM, 0, "no memory to meet %zu ranks", w);
        goto done;
    }
    TRY_GOTO(write_card(t, mine, &cards[t->base.rank]), done);
    TRY_GOTO(exchange_cards(t, cards, requests), done);
    st = mine; /* its sentence is still the last one */
    if (st != CZ_OK) goto done;
    TRY_GOTO(check_cards(t, cards), done);
    TRY_GOTO(read_host(t, cards), done);
done:
    free(cards);
    free(requests);
    return st;
}

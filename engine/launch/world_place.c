/* Which cores and which memory each rank of a host gets. Ranks exchange their masks and GPUs first:
 * only together can they tell a share of their own from one that all of them have, and be placed
 * near their GPUs without taking the same cores. */
#include "engine/launch/world_impl.h"

#include "base/log.h"
#include "base/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As a list: "0-3,8". */
static char *list_of(const struct processors *p)
{
    char *text = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return NULL;
    for (int cpu = 0, last; cpu < PROCESSORS_MAX; cpu = last + 1) {
        last = cpu;
        if (!processors_has(p, cpu)) continue;
        while (last + 1 < PROCESSORS_MAX && processors_has(p, last + 1)) last++;
        fprintf(f, ftell(f) > 0 ? ",%d-%d" : "%d-%d", cpu, last);
    }
    fclose(f);
    return text;
}

#define PCI_ID_NBYTES 16 /* as device_info has it */

/* The ranks of this machine, in order, and which of them is ours. */
struct neighbours {
    struct affinity_rank *v;
    int n, ours;
};

static void neighbours_free(struct neighbours *n)
{
    for (int r = 0; n->v && r < n->n; r++) free((char *)(uintptr_t)n->v[r].allowed);
    free(n->v);
}

/* By machine, not by host name: see seat_here(). */
static cz_status find_neighbours(const struct world_seat *seats, char (*gpus)[PCI_ID_NBYTES],
                                 int n_ranks, int rank, struct neighbours *out)
{
    out->v = calloc((size_t)n_ranks, sizeof *out->v);
    if (!out->v) return err_set(CZ_NOMEM, 0, "no memory for %d ranks", n_ranks);
    for (int r = 0; r < n_ranks; r++) {
        if (strcmp(seats[r].host, seats[rank].host) != 0) continue;
        if (r == rank) out->ours = out->n;
        out->v[out->n].pci_bus_id = gpus[r][0] ? gpus[r] : NULL;
        out->v[out->n++].allowed = list_of(&seats[r].cpus);
        if (!out->v[out->n - 1].allowed) return err_set(CZ_NOMEM, 0, "no memory for ranks");
    }
    return CZ_OK;
}

/* A machine that hwloc cannot describe is not an error: threads and pages go where they go. */
static cz_status create(const struct affinity_options *options, struct affinity **out)
{
    cz_status st = affinity_create(options, out);
    if (st == CZ_OK || st == CZ_NOMEM) return st;
    LOGV(LOG_INFO, SUB_ENGINE, "the system places threads and memory: %s", cz_last_error());
    err_clear();
    return CZ_OK;
}

/* The GPUs of all ranks. Collective. */
static cz_status gather_gpus(struct comm *comm, const char *mine, char (**out)[PCI_ID_NBYTES])
{
    char id[PCI_ID_NBYTES] = "";
    char(*ids)[PCI_ID_NBYTES] = calloc((size_t)comm->world_size, sizeof *ids);
    TRY(comm_agree(comm, ids ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for ranks")));
    snprintf(id, sizeof id, "%s", mine);
    *out = ids;
    return comm_all_gather(comm, id, ids, sizeof id);
}

/* Every rank computes the same division from the same data, without communication. */
static cz_status place_among(const struct world_seat *seats, struct comm *comm,
                             const char *pci_bus_id, struct affinity **out)
{
    struct neighbours n = {.v = NULL};
    char(*gpus)[PCI_ID_NBYTES] = NULL;
    cz_status st = gather_gpus(comm, pci_bus_id, &gpus);
    if (st == CZ_OK) st = find_neighbours(seats, gpus, comm->world_size, comm->rank, &n);
    if (st == CZ_OK) {
        const struct affinity_options options = {
            .rank_host = n.ours, .n_ranks_host = n.n, .n_threads = threads_count(), .ranks = n.v};
        st = create(&options, out);
    }
    free(gpus);
    neighbours_free(&n);
    return st;
}

/* A single rank takes what it may use. The log line is below the default level: it explains
 * timings, not results. */
cz_status world_place(struct comm *comm, const char *pci_bus_id, struct affinity **out)
{
    const struct affinity_options alone = {.n_ranks_host = 1,
                                           .n_threads = threads_count(),
                                           .pci_bus_id = *pci_bus_id ? pci_bus_id : NULL};
    struct world_seat *seats = NULL;
    *out = NULL;
    cz_status st = CZ_OK;
    if (comm->n_ranks_host == 1 && strcmp(comm->ops->name, "self") == 0) /* whatever it pretends */
        st = create(&alone, out);
    else if ((st = world_seats(comm, CZ_OK, 0, &seats)) == CZ_OK)
        st = place_among(seats, comm, pci_bus_id, out);
    free(seats);
    if (st != CZ_OK || !*out) return st;
    affinity_bind_threads(*out);
    LOGV(LOG_STEP, SUB_ENGINE, "%s", affinity_describe(*out));
    return CZ_OK;
}

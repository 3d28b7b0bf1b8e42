/* Figures of all ranks added up: losses and counts of an evaluation whose rows were split among
 * ranks. Sums are taken in rank order on every rank, so all of them get the same bits and decide
 * alike (early stopping). */
#include "base/host/entry.h"
#include "engine/engine_impl.h"

#include <string.h>

static cz_status gather_chunk(struct cz_engine *e, const double *mine, size_t n, double *sums)
{
    /* A communicator that pretends to be one of many moves nothing: all are like this one then. */
    for (int r = 0; r < e->desc.comm->world_size; r++)
        memcpy(e->mem.metrics + (size_t)r * n, mine, n * sizeof *mine);
    TRY(comm_all_gather(e->desc.comm, e->mem.metrics + (size_t)e->desc.comm->rank * n,
                        e->mem.metrics, n * sizeof *mine));
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < e->desc.comm->world_size; r++) sum += e->mem.metrics[(size_t)r * n + i];
        sums[i] = sum;
    }
    return CZ_OK;
}

/* In chunks of a buffer made at creation: a step allocates nothing. */
cz_status engine_gather_metrics(struct cz_engine *e, const double *mine, size_t n, double *sums)
{
    ENGINE_ENTRY(e);
    NEED(mine || n == 0, "mine");
    NEED(sums || n == 0, "sums");
    for (size_t at = 0; at < n; at += METRICS_CHUNK) {
        size_t n_chunk = n - at < METRICS_CHUNK ? n - at : METRICS_CHUNK;
        TRY(gather_chunk(e, mine + at, n_chunk, sums + at));
    }
    return CZ_OK;
}

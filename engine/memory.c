/* An engine's memory: allocated once, by the plan's rows, and released together. The step neither
 * moves rows nor asks where they are. */
#include "engine/memory.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/plan/tiers.h"

#include <stdio.h>
#include <stdlib.h>

/* Bytes of all rows at one place. */
static size_t place_nbytes(const struct cz_plan *p, enum plan_place place)
{
    size_t nbytes = 0;
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (p->rows[b].place == place) nbytes += p->rows[b].nbytes;
    return nbytes;
}

/* Cut a place's memory into its rows. */
static void cut(struct memory *m, const struct cz_plan *p, enum plan_place place, unsigned char *at)
{
    for (int b = 0; b < ENGINE_N_BLOCKS; b++) {
        size_t nbytes = p->rows[b].nbytes;
        if (p->rows[b].place != place || nbytes == 0) continue;
        m->blocks[b] = at;
        at += nbytes;
    }
}

/* Rank 0 for all: limits are the same on every rank of a host. */
static void say_unpinned(const struct description *d, const char *reason)
{
    if (d->comm->rank == 0)
        LOGV(LOG_INFO, SUB_ENGINE, "pin_memory: pageable memory is used: %s", reason);
}

/* First touch decides on which node a page is. */
static void touch_array(void *user, const struct zero_array *array)
{
    const struct memory *m = user;
    unsigned char *block = m->blocks[array->block];
    if (block) host_memory_touch(block + array->off, array->nbytes, array->tile_nbytes);
}

/* Memory that all threads use is spread over the rank's nodes, one huge page on each in turn. With
 * one half on each node, all threads would read from a single node's memory at a time. */
static size_t shared_tile(const struct memory *m)
{
    size_t n_nodes = m->affinity ? affinity_nodes(m->affinity, NULL, 0) : 1;
    return n_nodes > 1 ? n_nodes * ARENA_PAGE_BYTES : 0;
}

static cz_status map(struct memory *m, const struct cz_plan *p, enum plan_place place,
                     const char *name, struct host_memory *out)
{
    TRY(host_memory_map(m->affinity, name, place_nbytes(p, place), out));
    cut(m, p, place, out->base);
    return CZ_OK;
}

/* One piece of the GPU's memory for all rows there; what it copies from and to is page-locked for
 * it (the driver does that: RLIMIT_MEMLOCK does not count). */
static cz_status allocate_on_device(struct memory *m, const struct description *d)
{
    struct device *device = d->device;
    const size_t nbytes = place_nbytes(&d->plan, PLAN_DEVICE);
    TRY(device->ops->mem_alloc(device, nbytes, "the run's GPU memory", &m->gpu_memory));
    m->gpu_nbytes = nbytes;
    cut(m, &d->plan, PLAN_DEVICE, m->gpu_memory);
    TRY(device->ops->host_register(device, m->pinned.base, m->pinned.nbytes));
    m->pinned_registered = true;
    return CZ_OK;
}

static cz_status open_swap(struct memory *m, const struct description *d)
{
    const struct swap_options options = tiers_swap_options(d);
    const char *path;
    char warning[SWAP_WARNING_NBYTES];
    if (options.nbytes == 0) return CZ_OK;
    TRY(swap_open(&options, &m->swap));
    if (d->comm->rank_host == 0 && *swap_warn_of_memory(&options, warning))
        log_line(LOG_WARN, "nvme_path: %s", warning);
    for (size_t i = 0; d->comm->rank == 0 && (path = swap_path_at(m->swap, i)) != NULL; i++)
        LOGV(LOG_INFO, SUB_ENGINE, "swap file %s: %s", path, swap_describe(m->swap));
    return CZ_OK;
}

cz_status memory_allocate(struct memory *m, const struct description *d)
{
    const struct cz_plan *p = &d->plan;
    const size_t world_size = (size_t)d->comm->world_size;
    /* Told before allocating: page-locking is a speed-up, not a condition. */
    char want[24], have[24], reason[160];
    if (p->unpinned_nbytes != 0) {
        snprintf(reason, sizeof reason,
                 "%s would have to be page-locked, RLIMIT_MEMLOCK allows %s (ulimit -l)",
                 size_human(p->unpinned_nbytes, want, sizeof want),
                 size_human(host_memory_lockable(), have, sizeof have));
        say_unpinned(d, reason);
    }
    m->stages = calloc(d->n_stages, sizeof *m->stages);
    m->runs = calloc(d->n_stages, sizeof *m->runs);
    m->losses = calloc(world_size, sizeof *m->losses);
    m->metrics = calloc(world_size * METRICS_CHUNK, sizeof *m->metrics);
    if (!m->stages || !m->runs || !m->losses || !m->metrics)
        return err_set(CZ_NOMEM, 0, "no memory for micro-batches");
    TRY(map(m, p, PLAN_HOST, "the run", &m->pageable));
    TRY(map(m, p, PLAN_PINNED, "the offloaded state", &m->pinned));
    /* First what the sweep cuts into tiles, each page by the thread that will work on it; then the
     * rest. */
    zero_each_array(d->zero, touch_array, m);
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (m->blocks[b] && p->rows[b].place != PLAN_DEVICE)
            host_memory_touch(m->blocks[b], p->rows[b].nbytes, shared_tile(m));
    if (d->device->ops->kind != DEVICE_HOST) TRY(allocate_on_device(m, d));
    /* Locked after it was touched: mlock() would otherwise fault all pages in from one thread, on
     * one node. */
    if (!p->on_cuda && host_memory_lock(&m->pinned) != CZ_OK) say_unpinned(d, cz_last_error());
    return open_swap(m, d);
}

/* The difference to the last boundary: a swap file counts since it was opened. */
void memory_count_step(struct memory *m)
{
    if (!m->swap) return;
    int64_t now_ns = clock_now_ns();
    const struct swap_counts now = swap_counts(m->swap), *before = &m->swap_before;
    m->swap_traffic = (struct cz_swap_traffic){
        .read_nbytes = (double)(now.read_nbytes - before->read_nbytes),
        .written_nbytes = (double)(now.written_nbytes - before->written_nbytes),
        .waited_s = (double)(now.waited_ns - before->waited_ns) * 1e-9,
        .step_s = (double)(now_ns - m->swap_before_ns) * 1e-9};
    m->swap_before = now;
    m->swap_before_ns = now_ns;
}

/* The swap file first: its queue may still write into the blocks below. */
void memory_free(struct memory *m, const struct description *d)
{
    struct device *device = d->device;
    for (size_t k = 0; k < d->n_stages && m->stages; k++) batch_stage_free(&m->stages[k]);
    swap_close(m->swap);
    if (m->gpu_memory) device->ops->mem_free(device, m->gpu_memory, m->gpu_nbytes);
    if (m->pinned_registered)
        device->ops->host_unregister(device, m->pinned.base, m->pinned.nbytes);
    host_memory_unmap(&m->pageable);
    host_memory_unmap(&m->pinned);
    affinity_destroy(m->affinity);
    free(m->stages);
    free(m->runs);
    free(m->losses);
    free(m->metrics);
}

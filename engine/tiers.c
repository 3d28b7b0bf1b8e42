/* Where arrays are placed: the config's offload sections become places of the plan's rows, a swap
 * file, and page-locked memory (tiers_impl.h says what each call is for). Placement is decided
 * once, before allocation: the step neither moves rows nor asks where they are. */
#include "base/options.h"
#include "engine/plan/plan_impl.h"
#include "engine/tiers_impl.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFETCH_NUMEL_DEEPSPEED ((size_t)50000000)

/* ---- what the config asks for --------------------------------------------------------------- */

static bool optimizer_is(const struct ds_config *c, enum config_offload_device device)
{
    return c->zero.offload_optimizer.device == device;
}

static bool params_are(const struct ds_config *c, enum config_offload_device device)
{
    return c->zero.offload_param.device == device;
}

/* Of a model with an adapter, which no checkpoint holds and no caller sets. The swap knows the
 * files by their numbers. */
cz_status tiers_find_in_place(struct cz_engine *e)
{
    const struct param_table *table = model_params(e->model);
    const size_t n = model_n_files(e->model);
    if (!params_are(e->config, CONFIG_OFFLOAD_NVME) || !e->config->czero.frozen_in_place ||
        !cz_model_has_adapter(e->model) || n == 0 || n > SWAP_SOURCES_MAX)
        return CZ_OK;
    e->frozen_at = calloc(table->n_params + 1, sizeof *e->frozen_at);
    e->sources = calloc(n, sizeof *e->sources);
    if (!e->frozen_at || !e->sources)
        return err_set(CZ_NOMEM, 0, "no memory for a list of %zu parameters", table->n_params);
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_file f = model_file(e->model, i);
        e->sources[e->n_sources++] = (struct swap_source){
            .fd = f.fd, .path = f.path, .nbytes = f.stamp.nbytes, .mtime = f.stamp.mtime};
    }
    for (size_t i = 0; i < table->n_params; i++) {
        size_t file_idx;
        uint64_t off;
        if (!table->params[i].trainable &&
            model_find_in_files(e->model, i, e->dtype, &file_idx, &off))
            e->frozen_at[i] = swap_source_off(file_idx, off);
    }
    return CZ_OK;
}

/* ratio is the share that is offloaded: what stays in memory is the rest. On a GPU gradients leave
 * for the host, never for the file. */
struct zero_swap tiers_swap(const struct cz_engine *e)
{
    const struct ds_config *c = e->config;
    const struct config_offload_optimizer *o = &c->zero.offload_optimizer;
    return (struct zero_swap){.optimizer = optimizer_is(c, CONFIG_OFFLOAD_NVME),
                              .params = params_are(c, CONFIG_OFFLOAD_NVME),
                              .grads = c->czero.offload_gradients && !e->plan.on_cuda,
                              .frozen_at = e->frozen_at,
                              .memory_share = 1 - o->ratio,
                              .params_in_memory = (size_t)c->zero.offload_param.max_in_cpu,
                              .read_ahead = o->pipeline_read,
                              .write_behind = o->pipeline_write};
}

/* device_share: at stage 3 DeepSpeed's ratio leaves that part of the update on the GPU. */
struct zero_offload tiers_offload(const struct cz_engine *e)
{
    const struct ds_config *c = e->config;
    bool optimizer = c->zero.stage > 0 && optimizer_is(c, CONFIG_OFFLOAD_CPU);
    if (!e->plan.on_cuda) return (struct zero_offload){0};
    return (struct zero_offload){.optimizer = optimizer,
                                 .params = c->zero.stage == 3 && params_are(c, CONFIG_OFFLOAD_CPU),
                                 .device_share =
                                     optimizer ? 1 - c->zero.offload_optimizer.ratio : 0};
}

static int by_size(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Parameters on NVMe, and a file that does not say: two layers of the usual size are read ahead
 * while the largest one is at work. */
static void window_of_model(const struct cz_engine *e, struct zero_stage3 *w)
{
    size_t n = model_n_layers(e->model), *sizes = calloc(n, sizeof *sizes);
    const struct param_table *table = model_params(e->model);
    for (size_t u = 0; sizes && u < n; u++)
        for (size_t k = 0; k < e->units[u].n; k++)
            sizes[u] += table->params[e->units[u].param_idx[k]].numel;
    if (sizes) qsort(sizes, n, sizeof *sizes, by_size);
    size_t usual = sizes ? sizes[n / 2] : 0, largest = sizes ? sizes[n - 1] : 0;
    if (e->config->zero.prefetch_bucket_size < 0) w->prefetch_numel = 2 * usual;
    if (e->config->zero.max_live_parameters < 0) w->max_live = largest + 2 * usual;
    free(sizes);
}

/* Negative figures stand for "not given": DeepSpeed's defaults would gather a whole small model at
 * once, which defeats the purpose when parameters come from NVMe, or are updated when they are
 * gathered. On a GPU they are updated before. */
struct zero_stage3 tiers_window(const struct cz_engine *e)
{
    const struct config_zero *z = &e->config->zero;
    struct zero_stage3 w = {.prefetch_numel = (size_t)z->prefetch_bucket_size,
                            .param_persistence_threshold = (size_t)z->param_persistence_threshold,
                            .model_persistence_threshold = (size_t)z->model_persistence_threshold,
                            .max_live = (size_t)z->max_live_parameters,
                            .max_reuse = (size_t)z->max_reuse_distance, /* negative: any */
                            .sub_group_numel = (size_t)z->sub_group_size};
    /* A parameter that stays takes the place of one that is read ahead: by layer there is more time
     * to read; otherwise it stays only when the next visit uses it. */
    if (z->max_reuse_distance < 0 && e->plan.order == PLAN_BY_MICRO_BATCH) w.max_reuse = 1;
    if (z->prefetch_bucket_size < 0 || z->max_live_parameters < 0) window_of_model(e, &w);
    if (z->prefetch_bucket_size < 0 && e->plan.on_cuda &&
        !params_are(e->config, CONFIG_OFFLOAD_NVME))
        w.prefetch_numel = PREFETCH_NUMEL_DEEPSPEED;
    return w;
}

size_t tiers_activations_nbytes(const struct cz_engine *e, uint64_t *off)
{
    *off = size_round_up(zero_swap_nbytes(e->zero), SWAP_ALIGN);
    return chain_sizes(e->chain).file;
}

/* One file for both: the optimizer's folder wins, and config_support.c tells when two were
 * named. Or one striped over several folders. */
struct swap_options tiers_swap_options(const struct cz_engine *e)
{
    const struct ds_config *c = e->config;
    const int64_t n_threads = c->aio.intra_op_parallelism;
    const char *dir = NULL;
    uint64_t off;
    const size_t activations = tiers_activations_nbytes(e, &off);
    if (params_are(c, CONFIG_OFFLOAD_NVME)) dir = c->zero.offload_param.nvme_path;
    if (optimizer_is(c, CONFIG_OFFLOAD_NVME)) dir = c->zero.offload_optimizer.nvme_path;
    if (c->czero.n_nvme_paths > 0) dir = c->czero.nvme_paths[0];
    return (struct swap_options){
        .dir = dir,
        .more_dirs = c->czero.nvme_paths + 1,
        .n_more_dirs = c->czero.n_nvme_paths > 0 ? c->czero.n_nvme_paths - 1 : 0,
        .rates = c->czero.n_nvme_rates > 0 ? c->czero.nvme_rates : NULL,
        .rank = e->comm->rank,
        .nbytes = activations > 0 ? (size_t)off + activations : zero_swap_nbytes(e->zero),
        .block_nbytes = (size_t)c->aio.block_size,
        .queue_depth = (int)c->aio.queue_depth,
        .n_threads = n_threads < INT_MAX ? (int)n_threads : INT_MAX,
        .single_submit = c->aio.single_submit,
        .checksums = c->czero.offload_checksums,
        .sources = e->sources,
        .n_sources = e->n_sources};
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Rows that pin_memory applies to: what is offloaded to the host, and what passes to and from the
 * swap file. */
static bool wants_pin(const struct cz_engine *e, int block)
{
    const struct ds_config *c = e->config;
    bool optimizer = c->zero.offload_optimizer.pin_memory,
         params = c->zero.offload_param.pin_memory;
    if (e->plan.on_cuda && (block == ZERO_UPDATE_HOST || block >= BLOCK_BATCH_HOST))
        return true; /* made for copies */
    if (e->plan.on_cuda && block == ZERO_GRADS)
        return optimizer && !optimizer_is(c, CONFIG_OFFLOAD_NONE);
    switch (block) {
    case ZERO_MASTERS:
    case ZERO_STATE_0:
    case ZERO_STATE_1:
    case ZERO_STATE_2: return optimizer && !optimizer_is(c, CONFIG_OFFLOAD_NONE);
    case ZERO_PARAMS: return params && params_are(c, CONFIG_OFFLOAD_CPU);
    case ZERO_WINDOW:
    case ZERO_STAGING: return params && params_are(c, CONFIG_OFFLOAD_NVME);
    case ZERO_BUCKETS: return optimizer && zero_figures(e->zero).grad_swapped_nbytes > 0;
    case ZERO_RING:
        return (optimizer && optimizer_is(c, CONFIG_OFFLOAD_NVME)) ||
               (params && params_are(c, CONFIG_OFFLOAD_NVME));
    default: return false;
    }
}

/* Each place's memory is mapped in whole pages; its last row owns the rest. */
static void round_up(struct cz_plan *p, enum plan_place place)
{
    size_t total = 0;
    struct plan_row *last = NULL;
    for (int b = 0; b < ENGINE_N_BLOCKS; b++) {
        if (p->rows[b].place != place || p->rows[b].nbytes == 0) continue;
        total += p->rows[b].nbytes;
        last = &p->rows[b];
    }
    if (last) last->nbytes += size_round_up(total, ARENA_PAGE_BYTES) - total;
}

static void add_row(struct cz_plan *p, const char *name, enum plan_place place, size_t nbytes,
                    const char *how)
{
    if (nbytes == 0 || p->n_rows == PLAN_ROWS_MAX) return;
    struct plan_row *r = &p->rows[p->n_rows++];
    *r = (struct plan_row){.name = name, .place = place, .nbytes = nbytes};
    snprintf(r->how, sizeof r->how, "%s", how);
}

/* What the file holds, and what it takes to know about it. */
static void swap_rows(struct cz_engine *e)
{
    static const char how[] = "in the swap file";
    struct cz_plan *p = &e->plan;
    const struct zero_figures f = zero_figures(e->zero);
    const struct swap_options options = tiers_swap_options(e);
    size_t rest =
        options.nbytes - f.master_swapped_nbytes - f.param_swapped_nbytes - f.grad_swapped_nbytes;
    if (options.nbytes == 0) return;
    add_row(p, p->rows[ZERO_MASTERS].name, PLAN_NVME, f.master_swapped_nbytes, how);
    for (int s = 0; s < OPTIM_STATES_MAX; s++) {
        add_row(p, p->rows[ZERO_STATE_0 + s].name, PLAN_NVME, f.swapped_nbytes[s], how);
        rest -= f.swapped_nbytes[s];
    }
    add_row(p, p->rows[ZERO_PARAMS].name, PLAN_NVME, f.param_swapped_nbytes, how);
    add_row(p, p->rows[ZERO_GRADS].name, PLAN_NVME, f.grad_swapped_nbytes, how);
    uint64_t off;
    const size_t activations = tiers_activations_nbytes(e, &off);
    add_row(p, p->rows[BLOCK_KEPT].name, PLAN_NVME, activations, how);
    rest -= activations;
    add_row(p, "rounding to blocks", PLAN_NVME, rest, how);
    add_row(p, "swap bookkeeping", PLAN_HOST, swap_memory_nbytes(&options),
            options.checksums ? "queue, bounce buffers, checksums" : "queue, bounce buffers");
}

void tiers_place_rows(struct cz_engine *e)
{
    for (int b = 0; e->plan.on_cuda && b < ENGINE_N_BLOCKS; b++)
        e->plan.rows[b].place = plan_device_place(e, b);
    /* All or nothing: a run that is half page-locked is as slow as the rest, and hides why. */
    struct cz_plan *p = &e->plan;
    size_t wanted = 0;
    size_t lockable = p->on_cuda ? SIZE_MAX : host_memory_lockable(); /* CUDA asks the driver */
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (p->rows[b].place == PLAN_HOST && wants_pin(e, b)) wanted += p->rows[b].nbytes;
    wanted = size_round_up(wanted, ARENA_PAGE_BYTES);
    p->unpinned_nbytes = wanted <= lockable ? 0 : wanted;
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (wanted <= lockable && p->rows[b].place == PLAN_HOST && wants_pin(e, b))
            p->rows[b].place = PLAN_PINNED;
    round_up(&e->plan, PLAN_HOST);
    round_up(&e->plan, PLAN_PINNED);
    round_up(&e->plan, PLAN_DEVICE);
    swap_rows(e);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Bytes of all rows at one place. */
static size_t place_nbytes(const struct cz_plan *p, enum plan_place place)
{
    size_t nbytes = 0;
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (p->rows[b].place == place) nbytes += p->rows[b].nbytes;
    return nbytes;
}

/* Cut a place's memory into its rows. */
static void cut(struct cz_engine *e, enum plan_place place, unsigned char *at)
{
    for (int b = 0; b < ENGINE_N_BLOCKS; b++) {
        size_t nbytes = e->plan.rows[b].nbytes;
        if (e->plan.rows[b].place != place || nbytes == 0) continue;
        e->blocks[b] = at;
        at += nbytes;
    }
}

/* Rank 0 for all: limits are the same on every rank of a host. */
static void say_unpinned(const struct cz_engine *e, const char *reason)
{
    if (e->comm->rank == 0)
        LOGV(LOG_INFO, SUB_ENGINE, "pin_memory: pageable memory is used: %s", reason);
}

/* First touch decides on which node a page is. */
static void touch_array(void *user, const struct zero_array *array)
{
    const struct cz_engine *e = user;
    unsigned char *block = e->blocks[array->block];
    if (block) host_memory_touch(block + array->off, array->nbytes, array->tile_nbytes);
}

/* What all threads use in ways of many kinds goes round the rank's nodes, huge page by huge page:
 * half of it after the other would have all of them at one node's memory at a time. */
static size_t shared_tile(const struct cz_engine *e)
{
    size_t n_nodes = e->affinity ? affinity_nodes(e->affinity, NULL, 0) : 1;
    return n_nodes > 1 ? n_nodes * ARENA_PAGE_BYTES : 0;
}

static cz_status map(struct cz_engine *e, enum plan_place place, const char *name,
                     struct host_memory *out)
{
    TRY(host_memory_map(e->affinity, name, place_nbytes(&e->plan, place), out));
    cut(e, place, out->base);
    return CZ_OK;
}

cz_status tiers_allocate(struct cz_engine *e)
{
    const struct swap_options options = tiers_swap_options(e);
    /* Told before allocating: page-locking is a speed-up, not a condition. */
    char want[24], have[24], reason[160];
    if (e->plan.unpinned_nbytes != 0) {
        snprintf(reason, sizeof reason,
                 "%s would have to be page-locked, RLIMIT_MEMLOCK allows %s (ulimit -l)",
                 size_human(e->plan.unpinned_nbytes, want, sizeof want),
                 size_human(host_memory_lockable(), have, sizeof have));
        say_unpinned(e, reason);
    }
    TRY(map(e, PLAN_HOST, "the run", &e->pageable));
    TRY(map(e, PLAN_PINNED, "the offloaded state", &e->pinned));
    /* First what the sweep cuts into tiles, each page by the thread that will work on it; then the
     * rest.
     */
    zero_each_array(e->zero, touch_array, e);
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (e->blocks[b] && e->plan.rows[b].place != PLAN_DEVICE)
            host_memory_touch(e->blocks[b], e->plan.rows[b].nbytes, shared_tile(e));
    /* One piece of the GPU's memory for all rows there; what it copies from and to is page-locked
     * for it (the driver does that: RLIMIT_MEMLOCK does not count). */
    struct device *d = e->device;
    size_t nbytes = place_nbytes(&e->plan, PLAN_DEVICE);
    if (d->ops->kind != DEVICE_HOST) {
        TRY(d->ops->mem_alloc(d, nbytes, "the run's GPU memory", &e->gpu_memory));
        e->gpu_nbytes = nbytes;
        cut(e, PLAN_DEVICE, e->gpu_memory);
        TRY(d->ops->host_register(d, e->pinned.base, e->pinned.nbytes));
        e->pinned_registered = true;
    }
    /* Locked after it was touched: mlock() would otherwise fault all pages in from one thread, on
     * one node. */
    if (!e->plan.on_cuda && host_memory_lock(&e->pinned) != CZ_OK) say_unpinned(e, cz_last_error());
    if (options.nbytes == 0) return CZ_OK;
    TRY(swap_open(&options, &e->swap));
    const char *path;
    char warning[SWAP_WARNING_NBYTES];
    if (e->comm->rank_host == 0 && *swap_warn_of_memory(&options, warning))
        log_line(LOG_WARN, "nvme_path: %s", warning);
    for (size_t i = 0; e->comm->rank == 0 && (path = swap_path_at(e->swap, i)) != NULL; i++)
        LOGV(LOG_INFO, SUB_ENGINE, "swap file %s: %s", path, swap_describe(e->swap));
    return CZ_OK;
}

/* The difference to the last boundary: a swap file counts since it was opened. */
void tiers_count_step(struct cz_engine *e)
{
    if (!e->swap) return;
    int64_t now_ns = clock_now_ns();
    const struct swap_counts now = swap_counts(e->swap), *before = &e->swap_before;
    e->swap_traffic = (struct cz_swap_traffic){
        .read_nbytes = (double)(now.read_nbytes - before->read_nbytes),
        .written_nbytes = (double)(now.written_nbytes - before->written_nbytes),
        .waited_s = (double)(now.waited_ns - before->waited_ns) * 1e-9,
        .step_s = (double)(now_ns - e->swap_before_ns) * 1e-9};
    e->swap_before = now;
    e->swap_before_ns = now_ns;
}

void engine_remove_swap_files(void)
{
    swap_remove_files();
}

cz_status engine_get_swap_traffic(const struct cz_engine *e, struct cz_swap_traffic *out)
{
    return OPTIONS_GIVE(cz_swap_traffic, out, &e->swap_traffic);
}

/* The swap file first: its queue may still write into the blocks below. */
void tiers_free(struct cz_engine *e)
{
    struct device *d = e->device;
    swap_close(e->swap);
    if (e->gpu_memory) d->ops->mem_free(d, e->gpu_memory, e->gpu_nbytes);
    if (e->pinned_registered) d->ops->host_unregister(d, e->pinned.base, e->pinned.nbytes);
    host_memory_unmap(&e->pageable);
    host_memory_unmap(&e->pinned);
    affinity_destroy(e->affinity);
}

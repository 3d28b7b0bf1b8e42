/* Where arrays are placed: the config's offload sections become places of the plan's rows, a swap
 * file, and page-locked memory (tiers.h says what each call is for). Placement is decided
 * once, before allocation: the step neither moves rows nor asks where they are. */
#include "engine/plan/tiers.h"

#include "base/arena.h"
#include "base/size.h"
#include "offload/host_memory.h"

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
cz_status tiers_find_in_place(struct description *d)
{
    const struct param_table *table = model_params(d->model);
    const size_t n = model_n_files(d->model);
    if (!params_are(d->config, CONFIG_OFFLOAD_NVME) || !d->config->czero.frozen_in_place ||
        !cz_model_has_adapter(d->model) || n == 0 || n > SWAP_SOURCES_MAX)
        return CZ_OK;
    d->frozen_at = calloc(table->n_params + 1, sizeof *d->frozen_at);
    d->sources = calloc(n, sizeof *d->sources);
    if (!d->frozen_at || !d->sources)
        return err_set(CZ_NOMEM, 0, "no memory for a list of %zu parameters", table->n_params);
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_file f = model_file(d->model, i);
        d->sources[d->n_sources++] = (struct swap_source){
            .fd = f.fd, .path = f.path, .nbytes = f.stamp.nbytes, .mtime = f.stamp.mtime};
    }
    for (size_t i = 0; i < table->n_params; i++) {
        size_t file_idx;
        uint64_t off;
        if (!table->params[i].trainable &&
            model_find_in_files(d->model, i, d->dtype, &file_idx, &off))
            d->frozen_at[i] = swap_source_off(file_idx, off);
    }
    return CZ_OK;
}

/* ratio is the share that is offloaded: what stays in memory is the rest. On a GPU gradients leave
 * for the host, never for the file. */
struct zero_swap tiers_swap(const struct description *d)
{
    const struct ds_config *c = d->config;
    const struct config_offload_optimizer *o = &c->zero.offload_optimizer;
    return (struct zero_swap){.optimizer = optimizer_is(c, CONFIG_OFFLOAD_NVME),
                              .params = params_are(c, CONFIG_OFFLOAD_NVME),
                              .grads = c->czero.offload_gradients && !d->plan.on_cuda,
                              .frozen_at = d->frozen_at,
                              .memory_share = 1 - o->ratio,
                              .params_in_memory = (size_t)c->zero.offload_param.max_in_cpu,
                              .read_ahead = o->pipeline_read,
                              .write_behind = o->pipeline_write};
}

/* device_share: at stage 3 DeepSpeed's ratio leaves that part of the update on the GPU. */
struct zero_offload tiers_offload(const struct description *d)
{
    const struct ds_config *c = d->config;
    bool optimizer = c->zero.stage > 0 && optimizer_is(c, CONFIG_OFFLOAD_CPU);
    if (!d->plan.on_cuda) return (struct zero_offload){0};
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
static void window_of_model(const struct description *d, struct zero_stage3 *w)
{
    size_t n = model_n_layers(d->model), *sizes = calloc(n, sizeof *sizes);
    const struct param_table *table = model_params(d->model);
    for (size_t u = 0; sizes && u < n; u++)
        for (size_t k = 0; k < d->units[u].n; k++)
            sizes[u] += table->params[d->units[u].param_idx[k]].numel;
    if (sizes) qsort(sizes, n, sizeof *sizes, by_size);
    size_t usual = sizes ? sizes[n / 2] : 0, largest = sizes ? sizes[n - 1] : 0;
    if (d->config->zero.prefetch_bucket_size < 0) w->prefetch_numel = 2 * usual;
    if (d->config->zero.max_live_parameters < 0) w->max_live = largest + 2 * usual;
    free(sizes);
}

/* Negative figures stand for "not given": DeepSpeed's defaults would gather a whole small model at
 * once, which defeats the purpose when parameters come from NVMe, or are updated when they are
 * gathered. On a GPU they are updated before. */
struct zero_stage3 tiers_window(const struct description *d)
{
    const struct config_zero *z = &d->config->zero;
    struct zero_stage3 w = {.prefetch_numel = (size_t)z->prefetch_bucket_size,
                            .param_persistence_threshold = (size_t)z->param_persistence_threshold,
                            .model_persistence_threshold = (size_t)z->model_persistence_threshold,
                            .max_live = (size_t)z->max_live_parameters,
                            .max_reuse = (size_t)z->max_reuse_distance, /* negative: any */
                            .sub_group_numel = (size_t)z->sub_group_size};
    /* A parameter that stays takes the place of one that is read ahead: by layer there is more time
     * to read; otherwise it stays only when the next visit uses it. */
    if (z->max_reuse_distance < 0 && d->plan.order == PLAN_BY_MICRO_BATCH) w.max_reuse = 1;
    if (z->prefetch_bucket_size < 0 || z->max_live_parameters < 0) window_of_model(d, &w);
    if (z->prefetch_bucket_size < 0 && d->plan.on_cuda &&
        !params_are(d->config, CONFIG_OFFLOAD_NVME))
        w.prefetch_numel = PREFETCH_NUMEL_DEEPSPEED;
    return w;
}

size_t tiers_activations_nbytes(const struct description *d, uint64_t *off)
{
    *off = size_round_up(zero_swap_nbytes(d->zero), SWAP_ALIGN);
    return chain_sizes(d->chain).file;
}

/* One file for both: the optimizer's folder wins, and config_support.c tells when two were
 * named. Or one striped over several folders. */
struct swap_options tiers_swap_options(const struct description *d)
{
    const struct ds_config *c = d->config;
    const int64_t n_threads = c->aio.intra_op_parallelism;
    const char *dir = NULL;
    uint64_t off;
    const size_t activations = tiers_activations_nbytes(d, &off);
    if (params_are(c, CONFIG_OFFLOAD_NVME)) dir = c->zero.offload_param.nvme_path;
    if (optimizer_is(c, CONFIG_OFFLOAD_NVME)) dir = c->zero.offload_optimizer.nvme_path;
    if (c->czero.n_nvme_paths > 0) dir = c->czero.nvme_paths[0];
    return (struct swap_options){
        .dir = dir,
        .more_dirs = c->czero.nvme_paths + 1,
        .n_more_dirs = c->czero.n_nvme_paths > 0 ? c->czero.n_nvme_paths - 1 : 0,
        .rates = c->czero.n_nvme_rates > 0 ? c->czero.nvme_rates : NULL,
        .rank = d->comm->rank,
        .nbytes = activations > 0 ? (size_t)off + activations : zero_swap_nbytes(d->zero),
        .block_nbytes = (size_t)c->aio.block_size,
        .queue_depth = (int)c->aio.queue_depth,
        .n_threads = n_threads < INT_MAX ? (int)n_threads : INT_MAX,
        .single_submit = c->aio.single_submit,
        .checksums = c->czero.offload_checksums,
        .sources = d->sources,
        .n_sources = d->n_sources};
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Rows that pin_memory applies to: what is offloaded to the host, and what passes to and from the
 * swap file. */
static bool wants_pin(const struct description *d, int block)
{
    const struct ds_config *c = d->config;
    bool optimizer = c->zero.offload_optimizer.pin_memory,
         params = c->zero.offload_param.pin_memory;
    if (d->plan.on_cuda && (block == ZERO_UPDATE_HOST || block >= BLOCK_BATCH_HOST))
        return true; /* made for copies */
    if (d->plan.on_cuda && block == ZERO_GRADS)
        return optimizer && !optimizer_is(c, CONFIG_OFFLOAD_NONE);
    switch (block) {
    case ZERO_MASTERS:
    case ZERO_STATE_0:
    case ZERO_STATE_1:
    case ZERO_STATE_2: return optimizer && !optimizer_is(c, CONFIG_OFFLOAD_NONE);
    case ZERO_PARAMS: return params && params_are(c, CONFIG_OFFLOAD_CPU);
    case ZERO_WINDOW:
    case ZERO_STAGING: return params && params_are(c, CONFIG_OFFLOAD_NVME);
    case ZERO_BUCKETS: return optimizer && zero_figures(d->zero).grad_swapped_nbytes > 0;
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
static void swap_rows(struct description *d)
{
    static const char how[] = "in the swap file";
    struct cz_plan *p = &d->plan;
    const struct zero_figures f = zero_figures(d->zero);
    const struct swap_options options = tiers_swap_options(d);
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
    const size_t activations = tiers_activations_nbytes(d, &off);
    add_row(p, p->rows[BLOCK_KEPT].name, PLAN_NVME, activations, how);
    rest -= activations;
    add_row(p, "rounding to blocks", PLAN_NVME, rest, how);
    add_row(p, "swap bookkeeping", PLAN_HOST, swap_memory_nbytes(&options),
            options.checksums ? "queue, bounce buffers, checksums" : "queue, bounce buffers");
}

/* zero knows its blocks' places; of the engine's, only what waits for a copy is in the host. */
enum plan_place tiers_device_place(const struct description *d, int block)
{
    if (block < ZERO_N_BLOCKS)
        return zero_block_memory(d->zero, (enum zero_block)block) == ZERO_GPU_MEMORY ? PLAN_DEVICE
                                                                                     : PLAN_HOST;
    bool waits = block == BLOCK_BATCH_HOST || block == BLOCK_KEPT || block == BLOCK_SAVE;
    return waits ? PLAN_HOST : PLAN_DEVICE;
}

void tiers_place_rows(struct description *d)
{
    for (int b = 0; d->plan.on_cuda && b < ENGINE_N_BLOCKS; b++)
        d->plan.rows[b].place = tiers_device_place(d, b);
    /* All or nothing: a run that is half page-locked is as slow as the rest, and hides why. */
    struct cz_plan *p = &d->plan;
    size_t wanted = 0;
    size_t lockable = p->on_cuda ? SIZE_MAX : host_memory_lockable(); /* CUDA asks the driver */
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (p->rows[b].place == PLAN_HOST && wants_pin(d, b)) wanted += p->rows[b].nbytes;
    wanted = size_round_up(wanted, ARENA_PAGE_BYTES);
    p->unpinned_nbytes = wanted <= lockable ? 0 : wanted;
    for (int b = 0; b < ENGINE_N_BLOCKS; b++)
        if (wanted <= lockable && p->rows[b].place == PLAN_HOST && wants_pin(d, b))
            p->rows[b].place = PLAN_PINNED;
    round_up(&d->plan, PLAN_HOST);
    round_up(&d->plan, PLAN_PINNED);
    round_up(&d->plan, PLAN_DEVICE);
    swap_rows(d);
}

/* The plan of a run on a GPU, made from the rows of the same run on the CPU.
 *
 * What layers work in takes the CPU kernels' sizes as a stand-in, and what the driver and its
 * libraries take is a constant: both are marked "assumed". */
#include "base/arena.h"
#include "base/size.h"
#include "engine/plan_impl.h"
#include "engine/tiers_impl.h"
#include "layout/fetch.h"
#include "layout/flat.h"
#include "layout/shard.h"
#include "offload/ring.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_CONTEXT_NBYTES   ((size_t)512 << 20) /* of a driver and cuBLAS, on the GPU */
#define CUDA_LIBRARIES_NBYTES ((size_t)384 << 20) /* the same in host memory */

/* ---- the placement rule ------------------------------------------------------------------------
 *
 *                        nothing offloaded   offload_optimizer      offload_param
 *                                            cpu      nvme          cpu      nvme
 * parameters             device              device   device        host     NVMe, through a window
 *                                                                            on the device
 * masters, states        device              host     NVMe, through buffers in the host
 * gradients              device              host: they leave bucket by bucket, at stages 2 and 3
 *                                            and on one rank; device otherwise
 * ratio < 1                                  the first 1 − ratio of masters, states and gradients
 *                                            stay on the device
 * max_in_cpu                                                                     that many in the
 *                                                                                host
 * kept activations       device; host with cpu_checkpointing, through two places on the device
 * all else               device
 *
 * "Host" is pinned where the section says pin_memory. A CUDA engine allocates exactly these rows.
 */
struct placement {
    enum plan_place params, states, grads, kept;
    bool grads_leave;
};

static enum plan_place host_place(bool pinned)
{
    return pinned ? PLAN_PINNED : PLAN_HOST;
}

static enum plan_place offloaded(enum config_offload_device device, bool pinned)
{
    if (device == CONFIG_OFFLOAD_NONE) return PLAN_DEVICE;
    return device == CONFIG_OFFLOAD_NVME ? PLAN_NVME : host_place(pinned);
}

static struct placement place_parts(const struct engine *e)
{
    const struct config_zero *z = &e->config->zero;
    const struct config_activation_checkpointing *a = &e->config->activation_checkpointing;
    struct placement p = {PLAN_DEVICE, PLAN_DEVICE, PLAN_DEVICE, PLAN_DEVICE, false};
    if (z->stage > 0 || z->offload_optimizer.device == CONFIG_OFFLOAD_NVME)
        p.states = offloaded(z->offload_optimizer.device, z->offload_optimizer.pin_memory);
    if (z->stage == 3 || z->offload_param.device == CONFIG_OFFLOAD_NVME)
        p.params = offloaded(z->offload_param.device, z->offload_param.pin_memory);
    p.grads_leave = p.states != PLAN_DEVICE && (z->stage >= 2 || e->comm->world_size == 1);
    if (p.grads_leave) p.grads = host_place(z->offload_optimizer.pin_memory);
    if (a->cpu_checkpointing && e->plan.checkpoint_every > 0) p.kept = PLAN_PINNED;
    return p;
}

double plan_device_share(const struct engine *e)
{
    const struct config_zero *z = &e->config->zero;
    if (!e->plan.on_cuda) return 0;
    if (place_parts(e).states == PLAN_DEVICE) return 1;
    return 1 - z->offload_optimizer.ratio;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct plan_row *find(struct plan *p, const char *name)
{
    for (size_t i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].name, name) == 0) return &p->rows[i];
    return NULL;
}

static struct plan_row *find_in(struct plan *p, const char *name, enum plan_place place)
{
    for (size_t i = 0; i < p->n_rows; i++)
        if (p->rows[i].place == place && strcmp(p->rows[i].name, name) == 0) return &p->rows[i];
    return NULL;
}

static void set(struct plan *p, const char *name, enum plan_place place, size_t nbytes,
                const char *fmt, ...) CZ_PRINTF(5, 6);

/* Change a row, or add it. */
static void set(struct plan *p, const char *name, enum plan_place place, size_t nbytes,
                const char *fmt, ...)
{
    struct plan_row *r = find(p, name);
    if (!r && p->n_rows == PLAN_ROWS_MAX) return; /* a test counts them */
    if (!r) r = &p->rows[p->n_rows++];
    r->name = name;
    r->place = place;
    r->nbytes = nbytes > 0 ? arena_piece(nbytes) : 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->how, sizeof r->how, fmt, ap);
    va_end(ap);
}

static void append(struct plan_row *r, const char *text)
{
    size_t n = r ? strlen(r->how) : 0;
    if (r) snprintf(r->how + n, sizeof r->how - n, "%s", text);
}

static void move(struct plan *p, const char *name, enum plan_place place)
{
    struct plan_row *r = find(p, name);
    if (r) r->place = place;
}

/* ---- the window of parameters that wait elsewhere ----------------------------------------------
 */

struct plan_window {
    size_t resident_numel; /* always there */
    size_t window_numel;
    size_t fetched_numel; /* over a training pass, forward and backward */
};

static cz_status window_schedule(const struct engine *e, const bool *resident, size_t *numel,
                                 struct fetch_visit *visits, struct plan_window *out)
{
    const struct zero_stage3 w = tiers_window(e);
    const struct param_table *table = model_params(e->model);
    size_t n_visits = chain_n_visits(e->chain);
    for (size_t i = 0; i < table->n_params; i++) numel[i] = table->params[i].numel;
    for (size_t v = 0; v < n_visits; v++) {
        const struct zero_unit *unit = &e->units[e->visits[v].unit_idx];
        visits[v] = (struct fetch_visit){.param_idx = unit->param_idx, .n = unit->n};
    }
    const struct fetch_options options = {.numel = numel,
                                          .resident = resident,
                                          .n_params = table->n_params,
                                          .visits = visits,
                                          .n_visits = n_visits,
                                          .max_live = w.max_live,
                                          .prefetch_numel = w.prefetch_numel,
                                          .max_reuse = w.max_reuse,
                                          .align = 256 / dtype_size(e->dtype)};
    struct fetch_schedule s;
    TRY(fetch_schedule_init(&s, &options));
    out->window_numel = s.window_numel;
    out->fetched_numel = s.fetched_numel;
    fetch_schedule_free(&s);
    return CZ_OK;
}

static cz_status plan_window(const struct engine *e, struct plan_window *out)
{
    const struct config_zero *z = &e->config->zero;
    const struct param_table *table = model_params(e->model);
    memset(out, 0, sizeof *out);
    if (z->offload_param.device == CONFIG_OFFLOAD_NONE) return CZ_OK;
    bool *resident = calloc(table->n_params + 1, sizeof *resident);
    size_t *numel = calloc(table->n_params + 1, sizeof *numel);
    struct fetch_visit *visits = calloc(chain_n_visits(e->chain) + 1, sizeof *visits);
    cz_status st = resident && numel && visits
                       ? CZ_OK
                       : err_set(CZ_NOMEM, 0, "no memory for the plan of a window");
    if (st == CZ_OK) {
        out->resident_numel = shard_persistent(table, (size_t)z->param_persistence_threshold,
                                               (size_t)z->model_persistence_threshold, resident);
        st = window_schedule(e, resident, numel, visits, out);
    }
    free(resident);
    free(numel);
    free(visits);
    return st;
}

/* What max_in_cpu keeps out of the swap file, and where what comes from there passes through. */
static void set_swapped_params(struct engine *e, enum plan_place host)
{
    struct plan *p = &e->plan;
    size_t kept = (size_t)e->config->zero.offload_param.max_in_cpu * dtype_size(e->dtype);
    size_t ahead = tiers_window(e).prefetch_numel * dtype_size(e->dtype);
    struct plan_row *file = find_in(p, "parameters", PLAN_NVME);
    if (!file) return;
    if (kept > file->nbytes) kept = file->nbytes;
    if (ahead > file->nbytes - kept) ahead = file->nbytes - kept;
    file->nbytes -= kept;
    set(p, "parameters", host, kept, "kept out of the swap file (max_in_cpu)");
    set(p, "fetch staging", host, 2 * ahead, "parameters on their way from NVMe to the device");
}

static cz_status set_params(struct engine *e, const struct placement *place)
{
    struct plan *p = &e->plan;
    struct plan_window w;
    enum plan_place host = host_place(e->config->zero.offload_param.pin_memory);
    bool swaps = place->params == PLAN_NVME, alone = e->comm->world_size == 1;
    TRY(plan_window(e, &w));
    p->fetched_numel = w.fetched_numel / (size_t)e->comm->world_size;
    if (!swaps) move(p, "parameters", place->params);
    if (swaps) set_swapped_params(e, host);
    move(p, "chunk staging", host);
    if (place->params == PLAN_DEVICE || !alone) return CZ_OK; /* gathered there, or all there */
    set(p, swaps ? "gathered parameters" : "parameter window", PLAN_DEVICE,
        (w.resident_numel + w.window_numel) * dtype_size(e->dtype),
        "(%zu that stay + %zu in turn) × %s", w.resident_numel, w.window_numel,
        dtype_name(e->dtype));
    return CZ_OK;
}

/* ---- gradients and optimizer --------------------------------------------------------------------
 */

/* One rank reduces nothing, and needs buckets all the same when its gradients leave: as several
 * ranks would have them, but no larger than what a copy is quick with. */
#define LEAVING_NUMEL_MAX ((size_t)1 << 26)

static void set_buckets(struct engine *e)
{
    const struct param_table *table = model_params(e->model);
    size_t all = param_table_numel(table, true), largest = 0, tied = 0;
    bool *seen = calloc(table->n_params + 1, sizeof *seen);
    size_t *uses = calloc(table->n_params + 1, sizeof *uses);
    for (size_t u = 0; seen && uses && u < model_n_layers(e->model); u++)
        for (size_t k = 0; k < e->units[u].n; k++) uses[e->units[u].param_idx[k]]++;
    for (size_t u = 0; seen && uses && u < model_n_layers(e->model); u++) {
        size_t numel = 0;
        for (size_t k = 0; k < e->units[u].n; k++) {
            const struct param_info *info = &table->params[e->units[u].param_idx[k]];
            size_t i = e->units[u].param_idx[k];
            if (!info->trainable || seen[i]) continue;
            seen[i] = true;
            *(uses[i] > 1 ? &tied : &numel) += info->numel;
        }
        if (numel > largest) largest = numel;
    }
    free(seen);
    free(uses);
    const struct config_zero *z = &e->config->zero;
    size_t bucket = (size_t)z->reduce_bucket_size;
    if (bucket > LEAVING_NUMEL_MAX) bucket = LEAVING_NUMEL_MAX;
    if (bucket > all - tied) bucket = all - tied;
    if (bucket < largest) bucket = largest;
    int n = z->overlap_comm && bucket < all - tied ? 2 : 1;
    set(&e->plan, "gradient buckets", PLAN_DEVICE,
        ((size_t)n * bucket + tied) * dtype_size(e->grad_dtype),
        "(%d × %zu + %zu of tied ones) × %s", n, bucket, tied, dtype_name(e->grad_dtype));
}

/* What ratio keeps on the device is taken from the rows that leave it. Masters and states of a swap
 * file have been divided already: what is not in there is the device's. */
static void set_share(struct engine *e, const struct placement *place)
{
    struct plan *p = &e->plan;
    double share = plan_device_share(e);
    size_t states = 0, grads = 0;
    if (place->states == PLAN_DEVICE || share <= 0) return;
    for (size_t i = 0; i < p->n_rows; i++) {
        struct plan_row *r = &p->rows[i];
        bool is_grad = strcmp(r->name, "gradients") == 0 && place->grads_leave;
        bool is_state = plan_row_is_state(r) && r->place == place->states && r->place != PLAN_NVME;
        if (!is_grad && !is_state) continue;
        size_t part = arena_piece((size_t)(share * (double)r->nbytes));
        if (part > r->nbytes) part = r->nbytes;
        *(is_grad ? &grads : &states) += part;
        r->nbytes -= part;
    }
    int percent = (int)(share * 100 + 0.5);
    set(p, "device's states", PLAN_DEVICE, states, "ratio: %d %% of masters and states", percent);
    set(p, "device's gradients", PLAN_DEVICE, grads, "ratio: %d %% of the gradients", percent);
}

/* Parameters are their own masters only where both lie together. */
static void set_masters(struct engine *e, const struct placement *place)
{
    struct plan *p = &e->plan;
    const struct zero_figures f = zero_figures(e->zero);
    bool own = zero_block_nbytes(e->zero, ZERO_MASTERS) + f.master_swapped_nbytes > 0;
    if (own || place->states == place->params) return;
    enum dtype dtype = e->config->master_dtype;
    set(p, "master weights", place->states, f.numel_own * dtype_size(dtype), "%zu × %s",
        f.numel_own, dtype_name(dtype));
    struct plan_row *params = find(p, "parameters"), *ring = find(p, "swap buffers");
    char *text = strstr(params->how, ", their own masters");
    if (text) *text = '\0';
    if (place->states == PLAN_NVME)
        ring->nbytes += arena_piece(RING_SLOTS * f.tile_numel * dtype_size(dtype));
}

static void set_optimizer(struct engine *e, const struct placement *place)
{
    struct plan *p = &e->plan;
    const struct zero_figures f = zero_figures(e->zero);
    const struct optim_class *optim = e->groups[0].hyper.cls;
    enum plan_place resting = place->states == PLAN_NVME ? PLAN_DEVICE : place->states;
    enum plan_place host = host_place(e->config->zero.offload_optimizer.pin_memory);
    move(p, "master weights", resting);
    for (size_t s = 0; s < OPTIM_STATES_MAX && optim->state_names[s]; s++)
        move(p, optim->state_names[s], resting);
    set_masters(e, place);
    move(p, "swap buffers", host);
    move(p, "gradients", place->grads);
    if (place->grads_leave && e->comm->world_size == 1) set_buckets(e);
    set_share(e, place);
    if (place->states == PLAN_DEVICE) return;
    size_t tile = f.numel_own < TILE_NUMEL_MAX ? f.numel_own : TILE_NUMEL_MAX;
    set(p, "update staging", host, 2 * tile * dtype_size(e->dtype),
        "2 × %zu × %s on their way to the device", tile, dtype_name(e->dtype));
}

/* ---- activations ------------------------------------------------------------------------------
 */

/* The inputs of checkpointed segments wait in the host; two of them are on the device at a time. */
static void set_kept(struct engine *e, const struct placement *place)
{
    struct plan *p = &e->plan;
    size_t kept = 0, largest = 0, n = 0, every = (size_t)p->checkpoint_every;
    size_t last = chain_n_layers(e->chain) - 1;
    if (place->kept == PLAN_DEVICE) return;
    for (size_t i = every - 1; i + 1 < last; i += every, n++) {
        size_t nbytes = size_round_up(chain_layer_sizes(e->chain, i).out_nbytes, CHAIN_ALIGN);
        kept += nbytes;
        if (nbytes > largest) largest = nbytes;
    }
    struct plan_row *r = find(p, "activations");
    if (n <= 2 || r->nbytes < kept) return; /* nothing would be saved */
    r->nbytes = arena_piece(r->nbytes - kept + 2 * largest);
    append(r, ", two at a time");
    set(p, "kept activations", place->kept, kept, "%zu inputs of recomputed layers", n);
}

/* ---- all of it ----------------------------------------------------------------------------------
 */

static void set_the_rest(struct plan *p)
{
    static const char *const work[] = {
        "gathered parameters",  "reduction buckets", "step scalars", "activations",
        "activation gradients", "workspace",         "micro-batch"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(work); i++) move(p, work[i], PLAN_DEVICE);
    append(find(p, "workspace"), "; assumed: as the CPU's kernels");
    set(p, "CUDA context", PLAN_DEVICE, CUDA_CONTEXT_NBYTES, "assumed");
    set(p, "CUDA libraries", PLAN_HOST, CUDA_LIBRARIES_NBYTES, "assumed");
}

cz_status plan_place_on_device(struct engine *e)
{
    struct placement place = place_parts(e);
    TRY(set_params(e, &place));
    set_optimizer(e, &place);
    set_kept(e, &place);
    set_the_rest(&e->plan);
    return CZ_OK;
}

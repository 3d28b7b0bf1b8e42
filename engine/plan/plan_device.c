/* The rows of a run on a GPU: which are in its memory, and what only such a run has.
 *
 * zero's blocks are laid out for a GPU whether there is one or not (zero_block_memory()), so their
 * rows are exact. Where a plan is made without one, what layers work in takes the CPU kernels'
 * sizes as a stand-in, and what the driver and its libraries take is a constant: both are marked
 * "assumed". */
#include "base/arena.h"
#include "comm/device/device_comm.h"
#include "engine/plan/plan_impl.h"
#include "engine/plan/tiers.h"

#include <stdarg.h>
#include <string.h>

#define CUDA_CONTEXT_NBYTES   ((size_t)512 << 20) /* of a driver and cuBLAS, on the GPU */
#define CUDA_LIBRARIES_NBYTES ((size_t)384 << 20) /* the same in host memory */

/* Kernels' code is loaded when they first run, ours and cuBLASLt's, and what spills of their
 * registers takes a place per thread that the GPU can hold. Neither is there when a run's plan asks
 * what is in use. */
#define CUDA_KERNELS_NBYTES ((size_t)24 << 20)

/* NCCL buffers each channel to each peer: some 10 MB, by its defaults. */
#define NCCL_NBYTES ((size_t)256 << 20)

/* The share of the optimizer's elements that a GPU updates. */
double plan_device_share(const struct description *d)
{
    const struct zero_offload offload = tiers_offload(d);
    const struct zero_swap swap = tiers_swap(d);
    if (!d->plan.on_cuda) return 0;
    if (swap.optimizer) return swap.memory_share;
    return offload.optimizer ? offload.device_share : 1;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows by name: some exist on a GPU only. */
static struct plan_row *find(struct cz_plan *p, const char *name)
{
    for (size_t i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].name, name) == 0) return &p->rows[i];
    return NULL;
}

static void set(struct cz_plan *p, const char *name, enum plan_place place, size_t nbytes,
                const char *fmt, ...) CZ_PRINTF(5, 6);

/* Change a row, or add it. */
static void set(struct cz_plan *p, const char *name, enum plan_place place, size_t nbytes,
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

/* Rows whose meaning is another on a GPU. */
static void name_rows(struct description *d)
{
    struct cz_plan *p = &d->plan;
    const struct zero_offload offload = tiers_offload(d);
    const struct zero_swap swap = tiers_swap(d);
    if (d->comm->world_size > 1) return; /* gathered and reduced, as on the CPU */
    if (offload.params) p->rows[ZERO_WINDOW].name = "parameter window";
    if (offload.optimizer || swap.optimizer) p->rows[ZERO_BUCKETS].name = "gradient buckets";
    if (!swap.params) return;
    struct plan_row *staging = &p->rows[ZERO_STAGING];
    staging->name = "fetch staging";
    snprintf(staging->how, sizeof staging->how, "parameters on their way from NVMe to the device");
}

/* Not known before ranks meet: planned for, and dropped by plan_meet_on_device() if it is not
 * used. */
static void set_nccl(struct description *d)
{
    if (d->comm->world_size > 1)
        set(&d->plan, "NCCL's buffers", PLAN_DEVICE, NCCL_NBYTES,
            "assumed; none if data goes through the host");
}

/* ---- what CUDA itself takes ----------------------------------------------------------------- */

#define IN_USE "in use before the run: driver, libraries, other programs"

/* Memory in use by others is not the run's, but it is missing all the same. */
static cz_status set_context(struct description *d)
{
    struct cz_plan *p = &d->plan;
    size_t free_nbytes, total_nbytes;
    int n_gpus = 1, n_ranks = d->comm->n_ranks_host;
    p->device_free_nbytes = SIZE_MAX;
    set(p, "CUDA kernels", PLAN_DEVICE, CUDA_KERNELS_NBYTES, "assumed: loaded when they first run");
    if (d->device->ops->kind == DEVICE_HOST) { /* planned without one */
        struct plan_row *r = &p->rows[BLOCK_WORKSPACE];
        size_t n = r ? strlen(r->how) : 0;
        if (r) snprintf(r->how + n, sizeof r->how - n, "%s", "; assumed: as the CPU's kernels");
        set(p, "CUDA context", PLAN_DEVICE, CUDA_CONTEXT_NBYTES, "assumed");
        set(p, "CUDA libraries", PLAN_HOST, CUDA_LIBRARIES_NBYTES, "assumed");
        set_nccl(d);
        if (p->gpu_given_nbytes > 0) /* the context is in use already, as on a GPU that is here */
            p->device_free_nbytes = p->gpu_given_nbytes > CUDA_CONTEXT_NBYTES
                                        ? p->gpu_given_nbytes - CUDA_CONTEXT_NBYTES
                                        : 0;
        return CZ_OK;
    }
    TRY(d->device->ops->mem_info(d->device, &free_nbytes, &total_nbytes));
    TRY(device_count("cuda", &n_gpus));
    int n_sharing = n_ranks > n_gpus ? (n_ranks + n_gpus - 1) / n_gpus : 1;
    p->device_free_nbytes = free_nbytes / (size_t)n_sharing; /* none has allocated yet */
    if (n_sharing == 1) set_nccl(d);                         /* which takes no two ranks on a GPU */
    set(p, "CUDA context", PLAN_DEVICE, total_nbytes - free_nbytes, IN_USE);
    return CZ_OK;
}

/* Ranks may each see one GPU and call it number 0 (CUDA_VISIBLE_DEVICES): only together do they
 * know which ranks share one. No rank has allocated yet. */
cz_status plan_meet_on_device(struct description *d, enum device_comm_kind kind)
{
    struct cz_plan *p = &d->plan;
    size_t free_nbytes = 0, total_nbytes = 0;
    int n_sharing;
    TRY(comm_agree(d->comm, d->device->ops->mem_info(d->device, &free_nbytes, &total_nbytes)));
    TRY(comm_device_sharing(d->comm, d->device, &n_sharing));
    p->device_free_nbytes = free_nbytes / (size_t)n_sharing;
    set(p, "CUDA context", PLAN_DEVICE, total_nbytes - free_nbytes, IN_USE);
    set(p, "NCCL's buffers", PLAN_DEVICE, kind == DEVICE_COMM_NCCL ? NCCL_NBYTES : 0, "assumed");
    plan_add_up(p);
    return CZ_OK;
}

/* Rows change place by what the config offloads; then what only GPUs need is added. */
cz_status plan_place_on_device(struct description *d)
{
    const struct zero_offload offload = tiers_offload(d);
    const struct zero_swap swap = tiers_swap(d);
    name_rows(d);
    /* Which kind of communicator it will be, ranks find out together, later: the larger of the two.
     */
    int w = d->comm->world_size;
    if (w != 1) {
        struct device_comm_nbytes staged = comm_device_staging_nbytes(DEVICE_COMM_STAGED, w, 0);
        struct device_comm_nbytes nccl = comm_device_staging_nbytes(DEVICE_COMM_NCCL, w, 0);
        set(&d->plan, "communicator", PLAN_PINNED,
            staged.host > nccl.host ? staged.host : nccl.host, "pieces between %d GPUs", w);
        set(&d->plan, "communicator's pieces", PLAN_DEVICE,
            staged.device > nccl.device ? staged.device : nccl.device, "pieces between %d GPUs", w);
    }
    d->plan.optimizer_away = offload.optimizer || swap.optimizer;
    d->plan.params_away = offload.params || swap.params;
    if (d->plan.params_away)
        d->plan.fetched_numel = zero_figures(d->zero).fetched_numel / (size_t)d->comm->world_size;
    return set_context(d);
}

/* The plan: bytes of every block that a run allocates, what the machine has for them, and whether
 * it fits. The engine allocates exactly these rows, so the estimate and the allocation cannot
 * differ. A plan is a function of a description (description.h). */
#include "engine/plan/plan.h"

#include "base/arena.h"
#include "base/host/entry.h"
#include "base/size.h"
#include "base/threads.h"
#include "checkpoint/write/ds_write.h"
#include "comm/shm/shm.h"
#include "engine/batch_stage.h"
#include "engine/plan/plan_impl.h"
#include "engine/plan/tiers.h"
#include "offload/ring.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- what this process and machine have ------------------------------------------------------ */

struct statm {
    size_t size, resident, data; /* bytes */
};

/* Bytes, from the kernel's pages. */
static struct statm read_statm(void)
{
    struct statm s = {0};
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return s;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (fscanf(f, "%zu %zu %*s %*s %*s %zu", &s.size, &s.resident, &s.data) == 3) {
        s.size *= page;
        s.resident *= page;
        s.data *= page;
    }
    fclose(f);
    return s;
}

/* Start the pool's threads, so that their stacks are in the baseline. */
static void wake_pool(void)
{
    int n = 0;
#pragma omp parallel reduction(+ : n) if (threads_count() > 1)
    n++;
    (void)n;
}

/* What oneDNN allocates in the first steps (7 MiB were seen) and the rounding of what is mapped: a
 * limit that leaves less would end the process there. */
#define FIRST_STEP_NBYTES (((size_t)16 << 20) + ARENA_PAGE_BYTES)

/* The tightest limit is remembered by name: a refusal must say which one to raise. */
static void take_limit(struct cz_plan *p, size_t left, const char *what)
{
    if (left >= p->host_free_nbytes) return;
    p->host_free_nbytes = left;
    p->host_limit = what;
}

/* Limits of address space and data count what this process uses already. */
static void take_rlimit(struct cz_plan *p, int resource, size_t used, const char *what)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return;
    take_limit(p, limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0, what);
}

/* "/mnt/a 12.0 GiB, /mnt/b 6.0 GiB", as far as they fit. */
static void fill_stripes(struct cz_plan *p, const struct swap_options *options)
{
    size_t at = 0;
    char size[24];
    p->nvme_stripes[0] = '\0';
    for (size_t i = 0; options->n_more_dirs > 0 && i <= options->n_more_dirs; i++) {
        const char *dir = i == 0 ? options->dir : options->more_dirs[i - 1];
        size_t left = sizeof p->nvme_stripes - at;
        int n = snprintf(p->nvme_stripes + at, left, "%s%s %s", i ? ", " : "", dir,
                         size_human((size_t)swap_path_nbytes(options, i), size, sizeof size));
        if (n < 0 || (size_t)n >= left) return;
        at += (size_t)n;
    }
}

/* Ranks of a host share the disk, as they do memory. */
static cz_status measure_disk(struct description *d)
{
    const struct swap_options options = tiers_swap_options(d);
    if (options.nbytes == 0) return CZ_OK;
    if (snprintf(d->plan.nvme_path, sizeof d->plan.nvme_path, "%s", options.dir) >= PATH_MAX)
        return err_set(CZ_INVALID, ENAMETOOLONG, "nvme_path \"%.60s…\"", options.dir);
    TRY(swap_free_nbytes(&options, &d->plan.nvme_free_nbytes));
    fill_stripes(&d->plan, &options);
    swap_warn_of_memory(&options, d->plan.nvme_warning);
    d->plan.nvme_free_nbytes /= (size_t)d->comm->n_ranks_host;
    return CZ_OK;
}

/* The baseline is what the process holds before the run's own memory. A request for another machine
 * brings its figures along. */
static cz_status measure_host(struct description *d)
{
    struct cz_plan *p = &d->plan;
    size_t available, total;
    p->comm_nbytes = comm_shm_rank_nbytes(d->comm->world_size);
    p->host_free_nbytes = SIZE_MAX;
    p->host_limit = "nothing known";
    p->nvme_free_nbytes = SIZE_MAX;
    if (d->request) {
        p->baseline_nbytes = d->request->baseline_nbytes;
        p->gpu_given_nbytes = d->request->gpu_nbytes;
        p->host_given_nbytes = d->request->host_nbytes;
    }
    struct statm now = {0};
    if (p->baseline_nbytes == 0) {
        wake_pool();
        now = read_statm();
        p->baseline_nbytes = now.resident;
    }
    if (p->host_given_nbytes > 0) { /* a machine elsewhere: the program has to fit as well */
        size_t share = p->host_given_nbytes / (size_t)d->comm->world_size;
        take_limit(p, share > p->baseline_nbytes ? share - p->baseline_nbytes : 0,
                   "host memory that was given, without the program");
        return CZ_OK;
    }
    if (d->request && d->request->baseline_nbytes > 0) return CZ_OK;
    TRY(device_host_ops.mem_info(NULL, &available, &total));
    /* Ranks of a host look before any of them allocates. */
    size_t n_ranks = (size_t)d->comm->n_ranks_host;
    take_limit(p, available / n_ranks,
               n_ranks > 1 ? "memory that is available, divided by the ranks of this host,"
                           : "memory that is available");
    take_rlimit(p, RLIMIT_AS, now.size + FIRST_STEP_NBYTES, "address space (ulimit -v)");
    take_rlimit(p, RLIMIT_DATA, now.data + FIRST_STEP_NBYTES, "data size (ulimit -d)");
    return measure_disk(d);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void row(struct cz_plan *p, int block, const char *name, size_t nbytes, const char *fmt, ...)
    CZ_PRINTF(5, 6);

/* Rows are rounded as arenas cut them, so that their sum is what is mapped. */
static void row(struct cz_plan *p, int block, const char *name, size_t nbytes, const char *fmt, ...)
{
    struct plan_row *r = &p->rows[block];
    r->name = name;
    r->place = PLAN_HOST;
    r->nbytes = nbytes > 0 ? arena_piece(nbytes) : 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->how, sizeof r->how, fmt, ap);
    va_end(ap);
}

/* Whether the 1-bit family keeps state s (-1: the masters) whole where stage 1 splits others'. */
static bool stays_whole(const struct description *d, int s)
{
    const struct optim_hyper *hyper = onebit_of(d->groups, d->n_groups);
    if (!hyper || d->config->zero.stage == 0 || d->comm->world_size == 1) return false;
    return s == 0 || optim_moves_alone(hyper);
}

/* Of state s, which groups share a block for: the groups' optimizers may call it differently. */
static const char *state_name(const struct description *d, int s)
{
    const char *name = NULL;
    for (size_t g = 0; g < d->n_groups; g++) {
        const char *of_group = d->groups[g].hyper.cls->state_names[s];
        if (!of_group) continue;
        if (name && strcmp(name, of_group) != 0) return PLAN_STATES_NAME;
        name = of_group;
    }
    return name ? name : PLAN_STATES_NAME;
}

/* Model state by block of zero; "how" repeats the arithmetic, so that a user can check a row by
 * hand. */
static void state_rows(struct description *d)
{
    struct cz_plan *p = &d->plan;
    const struct zero *z = d->zero;
    const struct zero_figures f = zero_figures(z);
    size_t own = f.numel_own, size = dtype_size(d->dtype);
    size_t masters = zero_block_nbytes(z, ZERO_MASTERS) + f.master_swapped_nbytes;
    const char *grad = dtype_name(d->grad_dtype);
    row(p, ZERO_PARAMS, "parameters", zero_block_nbytes(z, ZERO_PARAMS), "%zu × %s%s",
        zero_block_nbytes(z, ZERO_PARAMS) / size, dtype_name(d->dtype),
        masters > 0 ? "" : ", their own masters");
    row(p, ZERO_WINDOW, "gathered parameters", zero_block_nbytes(z, ZERO_WINDOW),
        "(%zu that stay + %zu in turn) × %s", f.resident_numel, f.window_numel,
        dtype_name(d->dtype));
    row(p, ZERO_MASTERS, "master weights", zero_block_nbytes(z, ZERO_MASTERS), "%zu × %s%s", own,
        dtype_name(d->config->master_dtype), stays_whole(d, -1) ? ", whole on every rank" : "");
    row(p, ZERO_GRADS, "gradients", zero_block_nbytes(z, ZERO_GRADS), "%zu × %s%s",
        f.n_buckets > 0 ? own : f.numel_padded, grad,
        f.grad_swapped_nbytes > 0 ? ", the blocks that parameters share" : "");
    row(p, ZERO_BUCKETS, "reduction buckets", zero_block_nbytes(z, ZERO_BUCKETS),
        "(%d × %zu + %zu of tied ones) × %s", f.n_buckets, f.bucket_numel, f.tied_numel, grad);
    for (int s = 0; s < OPTIM_STATES_MAX; s++) {
        const char *name = state_name(d, s);
        enum zero_block block = (enum zero_block)(ZERO_STATE_0 + s);
        bool whole = stays_whole(d, s);
        row(p, (int)block, name, zero_block_nbytes(z, block), "%zu × %s%s",
            whole ? f.numel_padded : own, dtype_name(d->config->state_dtype),
            whole ? ", whole on every rank" : "");
    }
    row(p, ZERO_SMALL, "step scalars", zero_block_nbytes(z, ZERO_SMALL), "%zu group%s", d->n_groups,
        d->n_groups == 1 ? "" : "s");
    row(p, ZERO_RING, "swap buffers", zero_block_nbytes(z, ZERO_RING),
        "tiles of up to %zu elements on their way, %zu at a time%s", f.tile_numel, f.ring_slots,
        zero_updates_late(z) ? "; gradients stay until the next forward" : "");
    row(p, ZERO_STAGING, "chunk staging", zero_block_nbytes(z, ZERO_STAGING),
        "chunks of parameters on their way into a gather");
    row(p, ZERO_ERRORS, "error feedback", zero_block_nbytes(z, ZERO_ERRORS),
        "fp32: each rank's own error for all parameters, and for the chunks that it averages");
    row(p, ZERO_SIGNS, "compressed messages", zero_block_nbytes(z, ZERO_SIGNS),
        "a bit per element to send, to receive and to mask; partial sums");
    row(p, ZERO_SHARE, "device's states", zero_block_nbytes(z, ZERO_SHARE),
        "ratio: the part of masters and states that stays");
    row(p, ZERO_STEP, "device's scalars", zero_block_nbytes(z, ZERO_STEP),
        "a copy of the step's, and memory for operands of products that are not aligned");
    row(p, ZERO_UPDATE_GPU, "update staging", zero_block_nbytes(z, ZERO_UPDATE_GPU),
        "tiles on their way to and from the host, two at a time");
    row(p, ZERO_UPDATE_HOST, "host staging", zero_block_nbytes(z, ZERO_UPDATE_HOST),
        "tiles on their way to and from the device, two at a time");
    bool rounds = description_rounds_masters(d);
    bool passes = rounds || zero_swap_nbytes(z) > 0 || p->on_cuda;
    row(p, BLOCK_SAVE, "save buffer", passes ? CKPT_JOB_NUMEL * sizeof(float) : 0,
        rounds       ? "16-bit weights of the masters on their way into a checkpoint"
        : p->on_cuda ? "what passes from the device, or a swap file, into a checkpoint"
                     : "what passes from the swap file into a checkpoint");
}

/* Activations belong to the chain. The workspace is shared by all layers and as large as the
 * largest need: the row names that layer. */
static void chain_rows(struct description *d)
{
    struct cz_plan *p = &d->plan;
    struct chain_sizes sizes = chain_sizes(d->chain);
    size_t hungriest = 0;
    for (size_t i = 0; i < chain_n_layers(d->chain); i++)
        if (chain_layer_sizes(d->chain, i).workspace_nbytes >
            chain_layer_sizes(d->chain, hungriest).workspace_nbytes)
            hungriest = i;
    char every[64] = "kept for backward";
    if (p->checkpoint_every > 0)
        snprintf(every, sizeof every, "every %lld%s recomputed from its input",
                 (long long)p->checkpoint_every, p->checkpoint_every == 1 ? " layer" : " layers");
    if (d->n_stages == 1) {
        row(p, BLOCK_ACTIVATIONS, "activations", sizes.activations,
            "%zu layer%s, %lld × %lld × %s, %s", chain_n_layers(d->chain),
            plural(chain_n_layers(d->chain)), (long long)p->B, (long long)p->T,
            dtype_name(d->dtype), every);
        row(p, BLOCK_GRADIENTS, "activation gradients", sizes.gradients, "two in turn");
    } else {
        row(p, BLOCK_ACTIVATIONS, "activations", sizes.activations,
            "%zu × %lld × %lld × %s, %zu of %zu layers recomputed", d->n_stages, (long long)p->B,
            (long long)p->T, dtype_name(d->dtype), p->saved[CHAIN_SAVED_NOWHERE].n_layers,
            chain_n_layers(d->chain));
        row(p, BLOCK_GRADIENTS, "activation gradients", sizes.gradients,
            "of the last layers, for %zu micro-batches", d->n_stages);
    }
    row(p, BLOCK_WORKSPACE, "workspace", sizes.workspace, "shared; the most by layer %zu (%s)",
        hungriest, chain_layer(d->chain, hungriest)->cls->name);
    const enum device_kind kind = p->on_cuda ? DEVICE_CUDA : d->device->ops->kind;
    row(p, BLOCK_BATCH, "micro-batch", d->n_stages * batch_stage_nbytes(kind, d->model, p->B, p->T),
        "%zu × %lld × %lld tokens; and rounding to 2 MiB", d->n_stages, (long long)p->B,
        (long long)p->T);
    row(p, BLOCK_BATCH_HOST, "batch staging",
        d->n_stages * batch_stage_host_nbytes(kind, d->model, p->B, p->T),
        "two micro-batches on their way to the device, and losses");
    row(p, BLOCK_KEPT, "kept activations", sizes.kept,
        d->n_stages > 1 ? "inputs of layers" : "inputs of recomputed layers");
}

/* Gradients, parameters fetched for the layers, parameters after the update. */
static void count_traffic(struct description *d)
{
    struct cz_plan *p = &d->plan;
    const struct zero_figures f = zero_figures(d->zero);
    size_t n_passes = plan_n_passes(p), n_reduces = p->stage >= 2 ? n_passes : 1;
    p->in_place_nbytes = f.in_place_nbytes;
    p->live_numel_max = f.resident_numel + f.live_max;
    if (p->world_size == 1) return;
    p->sent_nbytes_per_step =
        n_reduces * f.reduce_nbytes + n_passes * f.fetch_nbytes + f.update_nbytes + f.sums_nbytes;
    if (f.signs_nbytes > 0)
        p->sent_nbytes_frozen = f.signs_nbytes + f.update_nbytes + f.sums_nbytes;
    p->n_collectives_per_step =
        n_reduces * f.n_reduces + n_passes * f.n_gathers + f.n_updates + f.n_sums;
}

void plan_describe(struct description *d)
{
    struct cz_plan *p = &d->plan;
    const struct param_table *table = model_params(d->model);
    snprintf(p->model_name, sizeof p->model_name, "%s", cz_model_name(d->model));
    p->numel = param_table_numel(table, false);
    p->numel_trainable = param_table_numel(table, true);
    p->stage = d->config->zero.stage;
    p->dtype = d->dtype;
    p->world_size = d->comm->world_size;
    p->B = d->config->train_micro_batch_size_per_gpu;
    p->T = p->t_limit = cz_model_t_max(d->model);
    p->accumulation = d->config->gradient_accumulation_steps;
}

/* Rows first, then places, sums and times: each step reads the one before. */
cz_status plan_fill(struct description *d)
{
    struct cz_plan *p = &d->plan;
    p->n_rows = ENGINE_N_BLOCKS;
    state_rows(d);
    chain_rows(d);
    TRY(measure_host(d));
    if (p->on_cuda) {
        TRY(plan_place_on_device(d));
        plan_estimate_deepspeed(d->model, p->stage, p->optimizer_away, p->params_away,
                                p->world_size, &p->deepspeed);
    }
    tiers_place_rows(d);
    plan_add_up(p);
    count_traffic(d);
    plan_fill_phases(d);
    plan_fill_times(d, d->request && d->request->profile ? d->request->profile : d->profile);
    return CZ_OK;
}

void cz_plan_destroy(struct cz_plan *plan)
{
    free(plan);
}

/* ---- does it fit ----------------------------------------------------------------------------- */

/* The CUDA context is in use before the run: it has left the free memory already. */
size_t plan_device_need(const struct cz_plan *p)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < p->n_rows; i++)
        if (p->rows[i].place == PLAN_DEVICE && strcmp(p->rows[i].name, "CUDA context") != 0)
            nbytes += p->rows[i].nbytes;
    return nbytes;
}

/* Against what is free now; the baseline is in use already. */
bool cz_plan_fits(const struct cz_plan *p)
{
    NEED_OR(p, false);
    return p->host_peak_nbytes - p->baseline_nbytes <= p->host_free_nbytes &&
           p->nvme_nbytes <= p->nvme_free_nbytes && plan_device_need(p) <= p->device_free_nbytes;
}

/* What would make a run need less of the GPU, of what it does not do yet. */
static const char *relief(const struct cz_plan *p, char *text, size_t text_nbytes)
{
    const char *const all[] = {p->optimizer_away ? NULL : "offload_optimizer",
                               p->params_away ? NULL : "offload_param",
                               p->checkpoint_every > 0 ? NULL : "activation checkpointing",
                               p->B > 1 ? "a smaller micro-batch" : NULL};
    const char *names[CZ_ARRAY_LEN(all)];
    size_t n = 0, used = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(all); i++)
        if (all[i]) names[n++] = all[i];
    if (n == 0) return "shorter sequences";
    text[0] = '\0';
    for (size_t i = 0; i < n && used < text_nbytes; i++)
        used += (size_t)snprintf(text + used, text_nbytes - used, "%s%s",
                                 i == 0       ? ""
                                 : i == n - 1 ? " or "
                                              : ", ",
                                 names[i]);
    return text;
}

/* The table goes into the error: the next question is which row is so large. */
cz_status cz_plan_check(const struct cz_plan *p)
{
    API_ENTRY;
    NEED(p, "plan");
    size_t need = p->host_peak_nbytes - p->baseline_nbytes;
    char *table = NULL, want[24], have[24], less[128];
    if (cz_plan_fits(p)) return CZ_OK;
    TRY(cz_plan_table(p, &table));
    if (p->nvme_nbytes > p->nvme_free_nbytes)
        err_set(CZ_NOMEM, 0, "the swap file needs %s, but %s has %s free for it.",
                size_human(p->nvme_nbytes, want, sizeof want), p->nvme_path,
                size_human(p->nvme_free_nbytes, have, sizeof have));
    else if (plan_device_need(p) > p->device_free_nbytes)
        err_set(CZ_NOMEM, 0,
                "the run needs %s of GPU memory, but the GPU has %s free; %s would make it less.",
                size_human(plan_device_need(p), want, sizeof want),
                size_human(p->device_free_nbytes, have, sizeof have), relief(p, less, sizeof less));
    else
        err_set(CZ_NOMEM, 0, "the run needs %s more memory, but the %s allows %s.",
                size_human(need, want, sizeof want), p->host_limit,
                size_human(p->host_free_nbytes, have, sizeof have));
    for (const char *line = table; *line; line += strcspn(line, "\n"), line += *line == '\n')
        err_add_line("%.*s", (int)strcspn(line, "\n"), line);
    free(table);
    return CZ_NOMEM;
}

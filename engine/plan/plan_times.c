/* How long the phases take on a machine whose rates were measured (docs/memory.md).
 *
 * All ranks are taken to share one host: a CPU rank has its share of the cores' rates, and every
 * rank its share of the host's memory and NVMe. A GPU is its rank's own. */
#include "engine/machine/machine.h"
#include "engine/plan/plan_impl.h"

#include <math.h>
#include <string.h>

/* Amount / rate; NAN when the rate is needed and was not measured. */
static double take(struct cz_plan *p, double amount, double rate, const char *what)
{
    if (amount == 0) return 0;
    if (rate > 0) return amount / rate;
    if (!p->missing_rate) p->missing_rate = what;
    return NAN;
}

/* The larger; NAN when either is: fmax() would hide an unknown time. */
static double longer(double a, double b)
{
    if (isnan(a) || isnan(b)) return NAN;
    return a > b ? a : b;
}

/* A rank's part of the host's cores, memory and disks. */
static double share_of(const struct cz_plan *p)
{
    return 1.0 / (double)p->world_size;
}

/* Rates differ by type more than by shape. */
static double gemm_rate(const struct cz_plan *p, const struct machine_profile *m)
{
    bool gpu = p->on_cuda;
    if (p->dtype == DTYPE_BF16) return gpu ? m->device_gemm_bf16 : m->gemm_bf16;
    if (p->dtype == DTYPE_F16) return gpu ? m->device_gemm_f16 : m->gemm_f16;
    return gpu ? m->device_gemm_f32 : m->gemm_f32;
}

/* How real layers compare with the profile's large products and plain copies: fitted to GPT-2 124M
 * on one machine (docs/performance.md). CPU kernels compute in fp32 whatever they read, so what
 * counts there is elements. */
#define GEMM_EFFICIENCY   0.95
#define CPU_ELEMENT_BYTES 22.0

/* Matrix products, which wait for weights when there are few rows; then everything else. */
double plan_work_seconds(struct description *d, const struct machine_profile *m,
                         const struct plan_products *c)
{
    struct cz_plan *p = &d->plan;
    double share = share_of(p);
    double memory = p->on_cuda ? m->device_copy : m->triad * share;
    double gemm = gemm_rate(p, m) * (p->on_cuda ? 1 : share) * GEMM_EFFICIENCY;
    double moved = (double)c->moved_nbytes;
    const char *products_of = p->on_cuda ? "a GPU's matrix products" : "matrix products";
    const char *memory_of = p->on_cuda ? "a GPU's memory" : "the memory";
    if (!p->on_cuda) moved *= CPU_ELEMENT_BYTES / (double)dtype_size(p->dtype);
    double products = longer(take(p, c->flops, gemm, products_of),
                             take(p, (double)c->weights_nbytes, memory, memory_of));
    return products + take(p, moved, memory, memory_of);
}

/* Whether the host updates beside a GPU's next forward. */
static bool is_beside_forward(const struct description *d)
{
    return d->plan.on_cuda && zero_updates_late(d->zero);
}

/* The host's update, at Adam's measured rate for as many bytes as this optimizer moves. */
static double update_seconds(struct description *d, const struct machine_profile *m)
{
    struct cz_plan *p = &d->plan;
    double adam = p->dtype == DTYPE_F32 ? m->adam_f32 : m->adam_bf16;
    double nbytes = (1 - plan_device_share(d)) * (double)plan_update_nbytes(d);
    return take(p, nbytes / 28, adam * share_of(p), "the optimizer's step");
}

/* The host looks at its gradients and updates; a GPU updates its share at the same time. */
static double step_seconds(struct description *d, const struct machine_profile *m)
{
    struct cz_plan *p = &d->plan;
    double on_device = plan_device_share(d), all = (double)p->phases[PLAN_STEP].moved_nbytes;
    double looks = (1 - on_device) * (all - (double)plan_update_nbytes(d));
    double host = take(p, looks, m->triad * share_of(p), "the memory");
    if (!is_beside_forward(d)) host += update_seconds(d, m);
    return longer(host, take(p, on_device * all, m->device_copy, "a GPU's memory"));
}

/* The profile has one folder's rates. Blocks of a striped file are divided by czero.nvme_rates, so
 * that all disks end together: each is as much faster than the measured one (the first, where that
 * is none of them) as its rate says. */
struct plan_rates plan_nvme_rates(const struct description *d, const struct machine_profile *m)
{
    const struct config_czero *z = &d->config->czero;
    double disks = z->n_nvme_paths > 0 ? (double)z->n_nvme_paths : 1;
    if (z->n_nvme_rates == z->n_nvme_paths && z->n_nvme_paths > 0) {
        double sum = 0, measured = z->nvme_rates[0];
        for (size_t i = 0; i < z->n_nvme_paths; i++) {
            sum += z->nvme_rates[i];
            if (strcmp(z->nvme_paths[i], m->nvme_path) == 0) measured = z->nvme_rates[i];
        }
        disks = sum / measured;
    }
    disks *= share_of(&d->plan);
    return (struct plan_rates){m->nvme_read * disks, m->nvme_write * disks, m->nvme_both * disks};
}

/* Mixed traffic has a measured rate of its own: drives slow down when reads and writes
 * alternate. */
double plan_nvme_seconds(struct description *d, const struct machine_profile *m,
                         const struct plan_cost *c)
{
    struct cz_plan *p = &d->plan;
    const struct plan_rates rates = plan_nvme_rates(d, m);
    double read = (double)c->nvme_read_nbytes, written = (double)c->nvme_written_nbytes;
    double alone = take(p, read, rates.read, "reading from NVMe") +
                   take(p, written, rates.write, "writing to NVMe");
    if (read == 0 || written == 0 || rates.both <= 0) return alone;
    return (read + written) / rates.both; /* requests of both kinds are in flight */
}

/* Both directions at once. */
static double link_seconds(struct cz_plan *p, const struct plan_cost *c,
                           const struct machine_profile *m)
{
    double up = take(p, (double)c->to_device_nbytes, m->host_to_device, "copies to the GPU");
    return longer(up, take(p, (double)c->to_host_nbytes, m->device_to_host, "copies from the GPU"));
}

/* What runs beside what: the disk beside everything, where its requests are issued ahead; copies to
 * and from the GPU beside its kernels; other ranks beside a GPU's kernels only, because on the CPU
 * it is the same cores that copy. */
static double together(const struct description *d, enum plan_phase phase,
                       const struct plan_cost *c)
{
    const struct config_zero *z = &d->config->zero;
    bool gpu = d->plan.on_cuda;
    double busy = gpu ? longer(c->compute_s, c->link_s) : c->compute_s + c->link_s;
    bool overlaps = gpu && phase != PLAN_STEP && z->overlap_comm;
    busy = overlaps ? longer(busy, c->comm_s) : busy + c->comm_s;
    const struct config_offload_optimizer *o = &z->offload_optimizer;
    bool is_update = phase == PLAN_STEP || (phase == PLAN_FORWARD && c->nvme_written_nbytes > 0 &&
                                            zero_updates_late(d->zero));
    bool reads = is_update ? o->pipeline_read : z->prefetch_bucket_size != 0;
    bool writes = is_update ? o->pipeline_write : reads;
    if (phase == PLAN_SAVE) reads = writes = true;
    double beside = c->nvme_s * (reads + writes) / 2; /* reading and writing move as much */
    return longer(busy, beside) + c->nvme_s - beside;
}

/* On one rank the host updates gradients as they leave the GPU, when nothing has to be known of all
 * of them (zero_step): beside the backward of the last micro-batch. */
static double beside_backward(const struct description *d)
{
    const struct cz_plan *p = &d->plan;
    bool leaves = p->on_cuda && plan_device_share(d) < 1;
    double last = p->phases[PLAN_BACKWARD].total_s / (double)p->accumulation;
    double step = p->phases[PLAN_STEP].total_s;
    if (!leaves || p->world_size > 1 || !description_updates_first(d)) return 0;
    return last < step ? last : step;
}

/* One of a step's forward passes; the first one has the update of the step before. */
static double forward_seconds(struct description *d, const struct machine_profile *m, bool updates)
{
    struct cz_plan *p = &d->plan;
    const struct plan_cost late = plan_late_update(d);
    const struct plan_cost mine = updates ? late : (struct plan_cost){0};
    size_t n = plan_n_passes(p), fed = zero_figures(d->zero).pass_fed_nbytes;
    struct plan_cost c = p->phases[PLAN_FORWARD];
    c.compute_s /= (double)n;
    c.comm_s /= (double)n;
    c.nvme_read_nbytes = (c.nvme_read_nbytes + fed - late.nvme_read_nbytes) / n +
                         mine.nvme_read_nbytes - (updates ? fed : 0);
    c.nvme_written_nbytes =
        (c.nvme_written_nbytes - late.nvme_written_nbytes) / n + mine.nvme_written_nbytes;
    c.to_device_nbytes = (c.to_device_nbytes - late.to_device_nbytes) / n + mine.to_device_nbytes;
    c.to_host_nbytes = (c.to_host_nbytes - late.to_host_nbytes) / n + mine.to_host_nbytes;
    c.nvme_s = plan_nvme_seconds(d, m, &c);
    c.link_s = link_seconds(p, &c, m);
    double total = together(d, PLAN_FORWARD, &c);
    return updates && is_beside_forward(d) ? longer(total, update_seconds(d, m)) : total;
}

/* Without a profile all times are unknown (NAN): no figure is better than a guess. */
void plan_fill_times(struct description *d, const struct machine_profile *m)
{
    struct cz_plan *p = &d->plan;
    p->step_s = 0;
    p->missing_rate = NULL;
    if (m && m->is_assumed)
        snprintf(p->assumed, sizeof p->assumed, "%s%s%s", m->device, *m->device ? " in " : "",
                 m->cpu);
    for (int f = 0; f < PLAN_N_PHASES; f++) {
        struct plan_cost *c = &p->phases[f];
        c->compute_s = c->nvme_s = c->link_s = c->comm_s = c->total_s = NAN;
        if (!m) continue;
        const struct plan_products work = {c->flops, c->moved_nbytes, c->weights_nbytes};
        c->compute_s = f == PLAN_STEP   ? step_seconds(d, m)
                       : f == PLAN_SAVE ? 0
                                        : plan_work_seconds(d, m, &work);
        c->nvme_s = plan_nvme_seconds(d, m, c);
        c->link_s = link_seconds(p, c, m);
        c->comm_s = take(p, (double)c->sent_nbytes, m->comm, "copies between ranks");
        c->total_s = together(d, (enum plan_phase)f, c);
    }
    if (m && zero_updates_late(d->zero))
        p->phases[PLAN_FORWARD].total_s =
            forward_seconds(d, m, true) +
            (double)(plan_n_passes(p) - 1) * forward_seconds(d, m, false);
    for (int f = 0; f < PLAN_SAVE; f++) p->step_s += p->phases[f].total_s;
    p->beside_s = isnan(p->step_s) ? 0 : beside_backward(d);
    p->step_s -= p->beside_s;
}

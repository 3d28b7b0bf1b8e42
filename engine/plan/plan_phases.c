/* What the phases of a step touch and move: read off the plan's rows, so that a row that changes
 * its place changes the traffic as well. */
#include "engine/plan/plan_impl.h"

#include <string.h>

enum { F = 1 << PLAN_FORWARD, B = 1 << PLAN_BACKWARD, S = 1 << PLAN_STEP, C = 1 << PLAN_SAVE };

/* Rows by name; masters and optimizer states are known by their names. The loss layer makes its
 * gradients in the forward. A row that is not here counts as touched in every phase (a test knows
 * them all). */
static const struct row_use {
    const char *name;
    unsigned phases;
} uses[] = {
    {"parameters", F | B | S | C},
    {"gathered parameters", F | B},
    {"parameter window", F | B},
    {"gradients", F | B | S},
    {"reduction buckets", F | B},
    {"step scalars", S},
    {"activations", F | B},
    {"kept activations", F | B},
    {"gradient buckets", F | B},
    {"update staging", S},
    {"device's states", S | C},
    {"device's scalars", S},
    {"host staging", S},
    {"batch staging", F},
    {"communicator", F | B | S},
    {"communicator's pieces", F | B | S},
    {"CUDA context", F | B | S | C},
    {"CUDA kernels", F | B | S | C},
    {"CUDA libraries", F | B | S | C},
    {"NCCL's buffers", F | B | S | C},
    {"activation gradients", B},
    {"workspace", F | B},
    {"micro-batch", F | B},
    {"swap buffers", S},
    {"chunk staging", F | B},
    {"error feedback", S | C},
    {"compressed messages", S},
    {"fetch staging", F | B},
    {"save buffer", C},
    {"rounding to blocks", 0},
    {"swap bookkeeping", F | B | S | C},
};

/* By name, because a swapped state has a second row at another place. */
bool plan_row_is_state(const struct plan_row *row)
{
    size_t n;
    const struct optim_type *types = optim_types(&n);
    if (strcmp(row->name, "master weights") == 0) return true;
    for (size_t t = 0; t < n; t++)
        for (size_t s = 0; types[t].cls && s < OPTIM_STATES_MAX && types[t].cls->state_names[s];
             s++)
            if (strcmp(types[t].cls->state_names[s], row->name) == 0) return true;
    return strcmp(row->name, PLAN_STATES_NAME) == 0 || strcmp(row->name, "device's states") == 0;
}

static const struct row_use *find_use(const struct plan_row *row)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(uses); i++)
        if (strcmp(uses[i].name, row->name) == 0) return &uses[i];
    return NULL;
}

bool plan_row_is_known(const struct plan_row *row)
{
    return find_use(row) || plan_row_is_state(row) || row->nbytes == 0;
}

bool plan_row_in_phase(const struct plan_row *row, enum plan_phase phase)
{
    const struct row_use *use = find_use(row);
    unsigned phases = plan_row_is_state(row) ? S | C : F | B | S | C;
    return (use ? use->phases : phases) >> phase & 1;
}

const char *plan_order_name(enum plan_order order)
{
    return order == PLAN_BY_LAYER ? "layers" : "micro_batches";
}

const char *plan_phase_name(enum plan_phase phase)
{
    static const char *const names[PLAN_N_PHASES] = {"forward", "backward", "step", "save"};
    return names[phase];
}

/* The baseline and the communicator are there in every phase. A late update touches in the forward
 * what an update touches. */
static void count_in_use(struct cz_plan *p, bool is_late)
{
    for (int f = 0; f < PLAN_N_PHASES; f++) {
        size_t *in_use = p->phases[f].in_use_nbytes;
        in_use[PLAN_HOST] += p->baseline_nbytes + p->comm_nbytes;
        for (size_t i = 0; i < p->n_rows; i++)
            if (plan_row_in_phase(&p->rows[i], (enum plan_phase)f) ||
                (is_late && f == PLAN_FORWARD && plan_row_in_phase(&p->rows[i], PLAN_STEP)))
                in_use[p->rows[i].place] += p->rows[i].nbytes;
    }
}

/* ---- where the parts of the model state are ------------------------------------------------- */

/* Bytes that a phase moves follow from where a part is placed. */
static size_t part_in(const struct cz_plan *p, bool states, enum plan_place place)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < p->n_rows; i++) {
        const struct plan_row *r = &p->rows[i];
        bool is_part = states ? plan_row_is_state(r) : strcmp(r->name, "parameters") == 0;
        if (is_part && r->place == place) nbytes += r->nbytes;
    }
    return nbytes;
}

/* Parameters that a checkpoint takes from there: of an adapter only those that it trains (save.c),
 * at stage 3 this rank's; its frozen model stays in the model's files. Rows do not tell in which of
 * two places those are: the first has them. */
static size_t saved_params_in(const struct description *d, enum plan_place place)
{
    const struct cz_plan *p = &d->plan;
    size_t all = part_in(p, false, place);
    if (!cz_model_has_adapter(d->model)) return all;
    size_t left = (p->stage == 3 ? zero_figures(d->zero).numel_own
                                 : param_table_numel(model_params(d->model), true)) *
                  dtype_size(d->dtype);
    for (int before = 0; before < (int)place; before++) {
        const size_t there = part_in(p, false, (enum plan_place)before);
        left -= there < left ? there : left;
    }
    return all < left ? all : left;
}

static bool grads_on_device(const struct cz_plan *p)
{
    for (size_t i = 0; i < p->n_rows; i++)
        if (strcmp(p->rows[i].name, "gradients") == 0) return p->rows[i].place == PLAN_DEVICE;
    return false;
}

/* ---- forward and backward ------------------------------------------------------------------- */

/* Elements of a layer's parameters. */
struct layer_numel {
    size_t all, trained, own, own_trained; /* own: without those of an adapter */
};

static struct layer_numel layer_numel(const struct description *d, size_t layer_idx)
{
    const struct param_table *table = model_params(d->model);
    const struct model_layer *layer = chain_layer(d->chain, layer_idx);
    struct layer_numel n = {0};
    for (size_t k = 0; k < layer->n_params; k++) {
        const struct param_info *info = &table->params[layer->param_idx[k]];
        n.all += info->numel;
        if (info->trainable) n.trained += info->numel;
        if (!info->is_adapter) n.own += info->numel;
        if (!info->is_adapter && info->trainable) n.own_trained += info->numel;
    }
    return n;
}

/* Products of a layer's branches, which model/parts/branch_impl.h lists: u and y in the forward; in
 * the backward u again, dA, dB, dx, and e for two of these. */
static void count_branches(const struct description *d, const struct model_layer *layer,
                           double *forward, double *backward)
{
    const struct param_info *params = model_params(d->model)->params;
    const double N = (double)(d->config->train_micro_batch_size_per_gpu * cz_model_t_max(d->model));
    *forward = *backward = 0;
    for (size_t k = 0; k < layer->n_branches; k++) {
        const struct layer_branch *b = &layer->branches[k];
        const double map = (double)params[layer->param_idx[b->w]].numel, R = (double)b->rank;
        const double pair = (double)params[layer->param_idx[b->a]].numel +
                            (double)params[layer->param_idx[b->b]].numel;
        if (!b->is_dora) {
            *forward += 2 * N * pair;
            *backward += 6 * N * pair;
            continue;
        }
        /* W' in each pass and V in the backward; x·Vᵀ; with dropout W' − w and its products */
        const double apart = b->dropout_p > 0 ? 2 * N * map : 0;
        *forward += 2 * R * map + apart;
        *backward += 4 * N * pair + 4 * R * map + 2 * N * map + apart;
    }
}

/* A layer writes its output and what it keeps, and the next kernel reads them; its backward reads
 * both and makes gradients of the same size, which are read in turn. The gradient of the input and,
 * for what is trained, of the weights cost a forward each; attention has two inputs to each of its
 * products, and no weight. A loss layer does all of it in the forward, a recomputed layer a second
 * forward in the backward. */
struct plan_work plan_layer_work(const struct description *d, size_t i)
{
    const struct model_layer *layer = chain_layer(d->chain, i);
    struct layer_sizes sizes = chain_layer_sizes(d->chain, i);
    const struct layer_numel n = layer_numel(d, i);
    size_t results = sizes.out_nbytes + sizes.saved_nbytes, size = dtype_size(d->dtype);
    double share = n.own > 0 ? (double)n.own_trained / (double)n.own : 1;
    double branches_forward, branches_backward;
    count_branches(d, layer, &branches_forward, &branches_backward);
    double forward = sizes.flops_forward + branches_forward;
    double backward = (sizes.flops_forward - sizes.flops_attention) * (1 + share) +
                      2 * sizes.flops_attention + branches_backward;
    size_t weights = n.all * size, made = weights + n.trained * dtype_size(d->grad_dtype);
    bool is_loss = layer->cls->flags & LAYER_LOSS;
    struct plan_work w = {.forward = {forward + (is_loss ? backward : 0),
                                      (is_loss ? 5 : 2) * results, weights + (is_loss ? made : 0)},
                          .redo = {forward, 2 * results, weights}};
    if (!is_loss) w.backward = (struct plan_products){backward, 3 * results, made};
    /* And what the loss layer puts off: its forward again, if nothing of it was kept. */
    if (i == chain_tied_layer(d->chain) && !chain_keeps_put_off(d->chain)) {
        size_t last = chain_n_layers(d->chain) - 1;
        struct layer_sizes loss = chain_layer_sizes(d->chain, last);
        w.backward.flops += loss.flops_forward;
        w.backward.moved_nbytes += 2 * (loss.out_nbytes + loss.saved_nbytes);
        w.backward.weights_nbytes += layer_numel(d, last).all * size;
    }
    return w;
}

static void add_work(struct plan_cost *phase, const struct plan_products *work, size_t n)
{
    phase->flops += work->flops * (double)n;
    phase->moved_nbytes += work->moved_nbytes * n;
    phase->weights_nbytes += work->weights_nbytes * n;
}

/* Parameters that wait elsewhere come for their layers' turns; to a GPU about half of what a pass
 * fetches forward, the rest backward. Gradients that follow the optimizer go; every micro-batch but
 * a step's first adds to what is there. */
static void fill_fetches(const struct description *d, struct cz_plan *p)
{
    size_t n = plan_n_passes(p);
    const struct zero_figures f = zero_figures(d->zero);
    size_t read = f.pass_read_nbytes * n, forward = f.forward_read_nbytes * n;
    size_t grads = f.grad_swapped_nbytes;
    size_t up = p->fetched_numel * dtype_size(d->dtype) * n;
    p->phases[PLAN_FORWARD].nvme_read_nbytes = forward - f.pass_fed_nbytes;
    p->phases[PLAN_BACKWARD].nvme_read_nbytes = read - forward + grads * (n - 1);
    p->phases[PLAN_BACKWARD].nvme_written_nbytes = grads * n;
    const size_t activations = chain_sizes(d->chain).file;
    p->phases[PLAN_FORWARD].nvme_written_nbytes += activations;
    p->phases[PLAN_BACKWARD].nvme_read_nbytes += activations;
    p->phases[PLAN_FORWARD].to_device_nbytes = up / 2;
    p->phases[PLAN_BACKWARD].to_device_nbytes = up - up / 2;
}

/* Work once per micro-batch, of which a step has `accumulation`; what comes and goes with a layer
 * once per pass. */
static void fill_passes(const struct description *d, struct cz_plan *p)
{
    struct plan_cost *forward = &p->phases[PLAN_FORWARD], *backward = &p->phases[PLAN_BACKWARD];
    size_t n = (size_t)p->accumulation;
    for (size_t i = 0; i < chain_n_layers(d->chain); i++) {
        const struct plan_work w = plan_layer_work(d, i);
        add_work(forward, &w.forward, n);
        add_work(backward, &w.backward, n);
        if (chain_is_recomputed(d->chain, i)) add_work(backward, &w.redo, n);
    }
    fill_fetches(d, p);
}

/* Elements of this rank's that the host updates while layers are on a GPU. */
static size_t host_numel(const struct description *d)
{
    return (size_t)((1 - plan_device_share(d)) * (double)zero_figures(d->zero).numel_own);
}

/* What the host's update copies from a GPU and to it. */
static struct plan_cost update_copies(const struct description *d)
{
    const struct cz_plan *p = &d->plan;
    struct plan_cost c = {0};
    if (!p->on_cuda) return c;
    if (grads_on_device(p)) c.to_host_nbytes = host_numel(d) * dtype_size(d->grad_dtype);
    /* parameters that rest in the host, or in the file: those that stay in the window all the same
     */
    size_t numel =
        part_in(p, false, PLAN_DEVICE) > 0 ? host_numel(d) : zero_figures(d->zero).resident_numel;
    c.to_device_nbytes = numel * dtype_size(d->dtype);
    return c;
}

struct plan_cost plan_late_update(const struct description *d)
{
    const struct zero_figures f = zero_figures(d->zero);
    struct plan_cost c = {0};
    if (!zero_updates_late(d->zero)) return c;
    c = update_copies(d);
    c.nvme_read_nbytes = f.update_read_nbytes - f.update_early_read_nbytes;
    c.nvme_written_nbytes = f.update_written_nbytes - f.update_early_written_nbytes;
    return c;
}

/* Every micro-batch moves what its layers wrote (stages 2 and 3, one rank); a boundary the own part
 * (0, 1). Checkpointed activations that wait in host memory go there and come back. */
static void fill_device_traffic(const struct description *d, struct cz_plan *p)
{
    const struct zero_figures f = zero_figures(d->zero);
    const struct plan_cost update = update_copies(d);
    size_t own = f.numel_own, n = plan_n_passes(p), grads = own * dtype_size(d->grad_dtype);
    struct plan_cost *at = &p->phases[zero_updates_late(d->zero) ? PLAN_FORWARD : PLAN_STEP];
    if (!grads_on_device(p)) {
        p->phases[PLAN_BACKWARD].to_host_nbytes = grads * n;
        p->phases[PLAN_STEP].to_device_nbytes = (own - host_numel(d)) * dtype_size(d->grad_dtype);
        if (p->world_size == 1) /* what layers add to comes back first */
            p->phases[PLAN_BACKWARD].to_device_nbytes += grads * (n - 1);
    }
    at->to_host_nbytes += update.to_host_nbytes;
    at->to_device_nbytes += update.to_device_nbytes;
    p->phases[PLAN_SAVE].to_host_nbytes =
        part_in(p, true, PLAN_DEVICE) + saved_params_in(d, PLAN_DEVICE);
    for (size_t i = 0; i < p->n_rows; i++) {
        const struct plan_row *r = &p->rows[i];
        if (strcmp(r->name, "kept activations") != 0 || r->place == PLAN_DEVICE) continue;
        p->phases[PLAN_FORWARD].to_host_nbytes += r->nbytes * (size_t)p->accumulation;
        p->phases[PLAN_BACKWARD].to_device_nbytes += r->nbytes * (size_t)p->accumulation;
    }
}

/* ---- step and save --------------------------------------------------------------------------- */

/* Masters and states are read and written, gradients read, 16-bit parameters written. */
size_t plan_update_nbytes(const struct description *d)
{
    const struct ds_config *c = d->config;
    size_t each = 2 * dtype_size(c->master_dtype) + dtype_size(d->grad_dtype), total = 0;
    if (c->master_dtype != d->dtype) each += dtype_size(d->dtype); /* the rounded parameter */
    for (size_t g = 0; g < d->n_groups; g++) {
        struct zero_layout group = zero_group_layout(d->zero, g);
        total += (each + 2 * dtype_size(c->state_dtype) * group.n_states) * group.held_numel;
    }
    return total;
}

/* DeepSpeed's files: at stage 3 masters stand for the trained parameters; at stages 1 and 2
 * parameters that are their own masters are in both files. */
static size_t saved_nbytes(const struct description *d, struct cz_plan *p)
{
    const size_t own = zero_figures(d->zero).numel_own;
    size_t params = 0, states = 0;
    for (int place = 0; place < PLAN_N_PLACES; place++) {
        params += saved_params_in(d, (enum plan_place)place);
        states += part_in(p, true, (enum plan_place)place);
    }
    const bool has_masters = d->dtype != d->config->master_dtype;
    const size_t trained = own * dtype_size(d->dtype);
    if (p->stage == 3 && has_masters) params -= params < trained ? params : trained;
    if ((p->stage == 1 || p->stage == 2) && !has_masters) states += trained;
    return states + params;
}

/* A save reads what is in the swap file; what is in memory it writes from there. */
static void fill_step(const struct description *d, struct cz_plan *p)
{
    struct plan_cost *step = &p->phases[PLAN_STEP], *save = &p->phases[PLAN_SAVE];
    const struct zero_figures f = zero_figures(d->zero);
    size_t own = f.numel_own;
    size_t states = part_in(p, true, PLAN_NVME), params = saved_params_in(d, PLAN_NVME);
    const struct plan_cost late = plan_late_update(d); /* the next step's forward has it */
    step->nvme_read_nbytes = f.update_early_read_nbytes;
    step->nvme_written_nbytes = f.update_early_written_nbytes;
    p->phases[PLAN_FORWARD].nvme_read_nbytes += late.nvme_read_nbytes;
    p->phases[PLAN_FORWARD].nvme_written_nbytes += late.nvme_written_nbytes;
    /* once to look for overflows, once to sum squares, once to update */
    step->moved_nbytes = plan_update_nbytes(d) + 2 * own * dtype_size(d->grad_dtype);
    save->nvme_read_nbytes = states + params;
    save->saved_nbytes = saved_nbytes(d, p);
}

/* What each rank sends in a step, by phase: stages 0 and 1 reduce at the boundary only. */
static void fill_sent(const struct description *d, struct cz_plan *p)
{
    const struct zero_figures f = zero_figures(d->zero);
    size_t n = plan_n_passes(p);
    if (p->world_size == 1) return;
    /* The schedule of stage 3 is one for both directions; a backward fetches what a forward does.
     */
    p->phases[PLAN_FORWARD].sent_nbytes = n * f.fetch_nbytes / 2;
    p->phases[PLAN_BACKWARD].sent_nbytes = n * f.fetch_nbytes - n * f.fetch_nbytes / 2;
    p->phases[p->stage >= 2 ? PLAN_BACKWARD : PLAN_STEP].sent_nbytes +=
        (p->stage >= 2 ? n : 1) * f.reduce_nbytes;
    p->phases[PLAN_STEP].sent_nbytes += f.sums_nbytes;
    p->phases[zero_updates_late(d->zero) ? PLAN_FORWARD : PLAN_STEP].sent_nbytes += f.update_nbytes;
}

static void add_up_traffic(struct cz_plan *p)
{
    struct plan_traffic *t = &p->traffic[p->order];
    *t = (struct plan_traffic){.is_known = true};
    for (int phase = 0; phase < PLAN_SAVE; phase++) {
        const struct plan_cost *c = &p->phases[phase];
        t->nvme_read_nbytes += c->nvme_read_nbytes;
        t->nvme_written_nbytes += c->nvme_written_nbytes;
        t->to_device_nbytes += c->to_device_nbytes;
        t->to_host_nbytes += c->to_host_nbytes;
        t->sent_nbytes += c->sent_nbytes;
    }
}

/* Figures, not times: plan_times.c divides them by a machine's rates. */
void plan_fill_phases(struct description *d)
{
    struct cz_plan *p = &d->plan;
    memset(p->phases, 0, sizeof p->phases);
    count_in_use(p, zero_updates_late(d->zero));
    fill_passes(d, p);
    fill_step(d, p);
    if (p->on_cuda) fill_device_traffic(d, p);
    fill_sent(d, p);
    add_up_traffic(p);
}

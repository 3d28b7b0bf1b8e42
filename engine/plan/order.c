/* The order in which the micro-batches of a step go through the model: one after the other, or all
 * of them through a layer before the next one begins. The sums are the same to the bit
 * (chain_walk.c), so this is about traffic, memory and time: together, what comes and goes with a
 * layer does so once a step instead of once a micro-batch, and activations are kept for all
 * micro-batches. Decided from the config and the model alone, so that ranks agree; only what
 * becomes of what layers save depends on the memory of the moment and the machine profile. */
#include "engine/plan/order.h"
#include "engine/plan/plan_impl.h"
#include "engine/plan/tiers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void why(struct description *d, const char *fmt, ...) CZ_PRINTF(2, 3);

static void why(struct description *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->plan.order_why, sizeof d->plan.order_why, fmt, ap);
    va_end(ap);
}

/* What would come or go once per micro-batch, in words; NULL: nothing. */
static const char *what_moves(const struct description *d)
{
    const struct zero_swap swap = tiers_swap(d);
    const struct zero_offload offload = tiers_offload(d);
    const bool has_ranks = d->comm->world_size > 1;
    if (swap.params) return "parameters come from NVMe";
    if (offload.params) return "parameters come from the host";
    if (has_ranks && d->config->zero.stage == 3) return "parameters are gathered";
    if (has_ranks && d->config->zero.stage == 2) return "gradients are reduced";
    if (swap.grads && swap.optimizer) return "gradients go to NVMe";
    if (d->plan.on_cuda && (swap.optimizer || offload.optimizer)) return "gradients go to the host";
    return NULL;
}

/* Whether the disk's work for states that are updated at first use (zero_updates_late(), of one
 * rank) would be beside the forward of all micro-batches instead of the first one's. */
static bool hides_update(const struct description *d)
{
    return tiers_swap(d).optimizer && d->config->czero.late_update && !d->plan.on_cuda &&
           d->comm->world_size == 1;
}

/* Memory of this host for one rank: in all, and free now; SIZE_MAX: unknown. */
static cz_status host_memory_of_rank(const struct description *d, size_t *total, size_t *available)
{
    const size_t n_ranks = (size_t)d->comm->n_ranks_host;
    *total = *available = SIZE_MAX;
    if (d->request && d->request->host_nbytes > 0) {
        *total = *available = d->request->host_nbytes / (size_t)d->comm->world_size;
        return CZ_OK;
    }
    if (d->request && d->request->order_host_nbytes > 0)
        *total = *available = d->request->order_host_nbytes / (size_t)d->comm->world_size;
    if (d->request && d->request->baseline_nbytes + d->request->order_host_nbytes > 0) return CZ_OK;
    TRY(device_host_ops.mem_info(NULL, available, total));
    *total /= n_ranks;
    *available /= n_ranks;
    return CZ_OK;
}

/* What layers from the `first` on save stays in memory, the others are recomputed; and so for what
 * the loss layer puts off. */
static cz_status keep_from(struct chain *chain, size_t first)
{
    const size_t n = chain_n_layers(chain);
    enum chain_saved *where = calloc(n, sizeof *where);
    if (!where) return err_set(CZ_NOMEM, 0, "no memory to plan %zu layers", n);
    for (size_t i = first; i < n; i++) where[i] = CHAIN_SAVED_IN_MEMORY;
    cz_status st = chain_place_saved(chain, where);
    free(where);
    return st;
}

/* Whether inputs of all layers for all micro-batches may be kept without being asked for: no more
 * than what one micro-batch keeps in the other order, or a quarter of the memory. Where nothing
 * moves less for it, this counts for all that layers save: recomputing costs more than it gains. */
static cz_status inputs_fit(const struct description *d, struct chain *together, bool *fit)
{
    size_t total, available, least;
    TRY(host_memory_of_rank(d, &total, &available));
    const size_t now = chain_sizes(d->chain).activations;
    TRY(keep_from(together, what_moves(d) ? chain_n_layers(together) : 0));
    least = chain_sizes(together).activations + chain_sizes(together).gradients;
    TRY(keep_from(together, 0));
    *fit = least <= now || (!d->plan.on_cuda && least <= total / 4);
    return CZ_OK;
}

/* Whether they go together, with the reason. */
static cz_status goes_together(struct description *d, const struct cz_engine_options *options,
                               bool *yes, bool *is_wanted)
{
    const enum config_accumulation_order order = d->config->czero.accumulation_order;
    const char *moves = what_moves(d), *obstacle = chain_together_obstacle(d->model);
    char where[256];
    *yes = *is_wanted = false;
    if (d->config->gradient_accumulation_steps == 1) return CZ_OK;
    if (d->order ? *d->order == PLAN_BY_MICRO_BATCH : order == CONFIG_ORDER_MICRO_BATCHES) {
        why(d, "czero.accumulation_order");
        return CZ_OK;
    }
    *is_wanted = d->order || order == CONFIG_ORDER_LAYERS;
    if (*is_wanted && obstacle)
        return err_set(CZ_UNSUPPORTED, 0, "%s: \"layers\" would change sums: %s",
                       config_where(d->config, "czero.accumulation_order", where, sizeof where),
                       obstacle);
    const bool gains = moves || hides_update(d);
    *yes = *is_wanted || (options->trains_batches && gains && !obstacle);
    if (*is_wanted)
        why(d, "czero.accumulation_order");
    else if (!gains)
        why(d, "nothing moves once per micro-batch");
    else if (obstacle)
        why(d, "%s", obstacle);
    else if (!options->trains_batches)
        why(d, "the program does not say that it trains with engine_train_batch()");
    else if (moves)
        why(d, "%s once a step instead of once a micro-batch", moves);
    else
        why(d, "the disk works beside the forward of all of them instead of the first");
    return CZ_OK;
}

/* Whether there is a swap file that inputs of layers may wait in. */
static bool has_file(const struct description *d)
{
    const struct zero_swap swap = tiers_swap(d);
    return (swap.params || swap.optimizer) && !d->plan.on_cuda;
}

/* A chain for all micro-batches, if its inputs fit; with a file, if they do not fit into memory. */
static cz_status make_together(struct description *d, const struct chain_options *chain,
                               bool is_wanted, struct chain **out)
{
    struct chain_options options = *chain;
    bool fit = false;
    options.n_together = d->config->gradient_accumulation_steps;
    options.keep_in_file = d->config->czero.offload_activations;
    for (;; options.keep_in_file = true) {
        TRY(chain_create(d->model, &options, out));
        cz_status st = inputs_fit(d, *out, &fit);
        bool is_last = options.keep_in_file || !has_file(d) || !what_moves(d);
        if (st == CZ_OK && (fit || (is_wanted && is_last))) {
            d->plan.activations_away = options.keep_in_file;
            return CZ_OK;
        }
        chain_destroy(*out);
        *out = NULL;
        if (st != CZ_OK || is_last) return st;
    }
}

cz_status order_choose(struct description *d, const struct cz_engine_options *options,
                       const struct chain_options *chain)
{
    const bool in_file = d->config->czero.offload_activations;
    struct chain *together = NULL;
    bool yes, is_wanted;
    char where[256];
    d->plan.order = PLAN_BY_MICRO_BATCH;
    TRY(chain_create(d->model, chain, &d->chain));
    TRY(goes_together(d, options, &yes, &is_wanted));
    if (in_file && !d->order && (!yes || !has_file(d)))
        return err_set(
            CZ_INVALID, 0,
            "%s: inputs of layers wait on NVMe where there is a swap file, on the CPU, and "
            "micro-batches go through each layer together (czero.accumulation_order)",
            config_where(d->config, "czero.offload_activations", where, sizeof where));
    if (!yes) return CZ_OK;
    TRY(make_together(d, chain, is_wanted || in_file, &together));
    if (!together) {
        why(d, "the %s of all layers for %lld micro-batches would take too much memory",
            what_moves(d) ? "inputs" : "activations",
            (long long)d->config->gradient_accumulation_steps);
        return CZ_OK;
    }
    chain_destroy(d->chain);
    d->chain = together;
    d->plan.order = PLAN_BY_LAYER;
    return CZ_OK;
}

/* Without a profile: the last layers keep theirs, since they are needed first, the others are
 * recomputed. */
static cz_status keep_the_last(struct description *d, size_t left)
{
    for (size_t first = 0; first <= chain_n_layers(d->chain); first++) {
        TRY(keep_from(d->chain, first));
        if (chain_sizes(d->chain).activations <= left) break;
    }
    return CZ_OK;
}

/* Packed weights take at most one part in so many of the memory for activations. */
#define PACKED_SHARE 4

/* Half of what the model's state leaves of the free memory is for activations, unless the config
 * says how much. On a GPU the config says whether layers are recomputed. */
cz_status order_fit(struct description *d)
{
    struct cz_plan *p = &d->plan;
    size_t total, available, state = 0;
    bool by_times = false;
    if (p->order != PLAN_BY_LAYER) return CZ_OK;
    TRY(host_memory_of_rank(d, &total, &available));
    for (int block = 0; block < ZERO_N_BLOCKS; block++)
        state += zero_block_nbytes(d->zero, (enum zero_block)block);
    const size_t given = (size_t)d->config->czero.activation_memory;
    const size_t left = given > 0               ? given
                        : available == SIZE_MAX ? SIZE_MAX
                        : available > state     ? (available - state) / 2
                                                : 0;
    p->packed_nbytes = chain_packed_nbytes(d->chain);
    TRY(chain_keep_packed(d->chain, p->packed_nbytes <= left / PACKED_SHARE));
    p->keeps_packed = chain_keeps_packed(d->chain);
    const bool is_asked = p->checkpoint_every > 0;
    if (!p->on_cuda && !is_asked && d->profile)
        TRY(plan_choose_saved(d, d->profile, has_file(d), left, &by_times));
    if (!p->on_cuda && !is_asked && !by_times) TRY(keep_the_last(d, left));
    for (size_t i = 0; i + 1 < chain_n_layers(d->chain); i++)
        p->saved[chain_saved_at(d->chain, i)].n_layers++;
    p->put_off_nbytes = chain_put_off_nbytes(d->chain);
    p->keeps_put_off = chain_keeps_put_off(d->chain);
    snprintf(p->saved_why, sizeof p->saved_why, "%s",
             is_asked      ? "activation checkpointing"
             : p->on_cuda  ? "on a GPU the config says what is recomputed"
             : by_times    ? "by the machine profile"
             : !d->profile ? "without czero.machine_profile as many of the last layers as fit keep "
                             "theirs in memory"
                           : "the machine profile lacks figures: as many of the last layers as "
                             "fit keep theirs in memory");
    return CZ_OK;
}

/* What becomes of what layers save beside their inputs, where micro-batches go through each layer
 * together: it is kept in memory, waits in the swap file, or is recomputed. With the rates of the
 * machine each layer takes what costs it the least time; what is saved most per byte stays in
 * memory. The loss layer's share is the gradients of logits that it puts off (chain.h), in memory
 * or not. The same figures give the same choice on every machine. */
#include "engine/machine/machine.h"
#include "engine/plan/description.h"
#include "engine/plan/plan_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct layer_cost {
    size_t layer_idx;
    double forward_s, backward_s; /* computing, of all micro-batches */
    double redo_s;                /* its forward once more */
    double swap_s;                /* by what its transfers are longer than they are hidden */
    double per_byte;              /* what keeping it in memory saves */
};

/* Seconds of a transfer that is hidden behind the layer's own work, less the share of that time in
 * which the disk is at work for parameters, gradients and states. */
static double beyond(double transfer_s, double work_s, double others_s, double phase_s)
{
    const double idle = others_s < phase_s ? 1 - others_s / phase_s : 0;
    return fmax(0, transfer_s - work_s * idle);
}

/* False: a rate is missing. */
static bool measure(struct description *d, const struct machine_profile *m, bool has_file,
                    struct layer_cost *costs)
{
    struct cz_plan *p = &d->plan;
    const size_t n = chain_n_layers(d->chain), n_sets = d->n_stages;
    const struct plan_cost *phases = p->phases;
    struct plan_rates rates = plan_nvme_rates(d, m);
    double forward_s = 0, backward_s = 0;
    for (size_t i = 0; i < n; i++) {
        const struct plan_work w = plan_layer_work(d, i);
        costs[i] =
            (struct layer_cost){.layer_idx = i,
                                .forward_s = (double)n_sets * plan_work_seconds(d, m, &w.forward),
                                .backward_s = (double)n_sets * plan_work_seconds(d, m, &w.backward),
                                .redo_s = (double)n_sets * plan_work_seconds(d, m, &w.redo)};
        forward_s += costs[i].forward_s;
        backward_s += costs[i].backward_s;
    }
    if (isnan(forward_s + backward_s)) return false;
    const bool can_swap = has_file && rates.read > 0 && rates.write > 0;
    const double others_forward_s = can_swap ? plan_nvme_seconds(d, m, &phases[PLAN_FORWARD]) : 0;
    const double others_backward_s = can_swap ? plan_nvme_seconds(d, m, &phases[PLAN_BACKWARD]) : 0;
    for (size_t i = 0; i < n; i++) {
        struct layer_cost *c = &costs[i];
        const bool is_loss = i + 1 == n;
        const double nbytes =
            (double)(is_loss ? chain_put_off_nbytes(d->chain)
                             : n_sets * chain_layer_sizes(d->chain, i).saved_nbytes);
        c->swap_s = INFINITY;
        if (can_swap && !is_loss)
            c->swap_s = beyond(nbytes / rates.write, c->forward_s, others_forward_s, forward_s) +
                        beyond(nbytes / rates.read, c->backward_s, others_backward_s, backward_s);
        c->per_byte = nbytes > 0 ? fmin(c->redo_s, c->swap_s) / nbytes : INFINITY;
    }
    return true;
}

/* Most per byte first; of equal ones the last layer, which is needed first. */
static int by_what_is_saved(const void *a, const void *b)
{
    const struct layer_cost *x = a, *y = b;
    if (x->per_byte != y->per_byte) return x->per_byte < y->per_byte ? 1 : -1;
    return (x->layer_idx < y->layer_idx) - (x->layer_idx > y->layer_idx);
}

/* The first n in this order stay in memory, the others take what costs them less. */
static cz_status place(struct description *d, const struct layer_cost *costs, size_t n,
                       enum chain_saved *where)
{
    for (size_t k = 0; k < chain_n_layers(d->chain); k++) {
        const struct layer_cost *c = &costs[k];
        const bool stays = k < n || isinf(c->per_byte); /* it has nothing to save */
        where[c->layer_idx] = stays                   ? CHAIN_SAVED_IN_MEMORY
                              : c->swap_s < c->redo_s ? CHAIN_SAVED_IN_FILE
                                                      : CHAIN_SAVED_NOWHERE;
    }
    return chain_place_saved(d->chain, where);
}

/* As many as fit: each that stays takes more memory than it takes elsewhere. */
static cz_status keep_what_fits(struct description *d, struct layer_cost *costs, size_t left,
                                enum chain_saved *where)
{
    size_t least = 0, most = chain_n_layers(d->chain);
    qsort(costs, most, sizeof *costs, by_what_is_saved);
    while (least < most) {
        const size_t n = most - (most - least) / 2;
        TRY(place(d, costs, n, where));
        if (chain_sizes(d->chain).activations <= left)
            least = n;
        else
            most = n - 1;
    }
    return place(d, costs, least, where);
}

cz_status plan_choose_saved(struct description *d, const struct machine_profile *m, bool has_file,
                            size_t left, bool *is_chosen)
{
    const size_t n = chain_n_layers(d->chain);
    struct layer_cost *costs = calloc(n, sizeof *costs);
    enum chain_saved *where = calloc(n, sizeof *where);
    cz_status st = CZ_OK;
    *is_chosen = false;
    if (!costs || !where) {
        st = err_set(CZ_NOMEM, 0, "no memory to plan %zu layers", n);
        goto done;
    }
    TRY_GOTO(chain_place_saved(d->chain, where), done); /* the disk's work without any of them */
    plan_fill_phases(d);
    if (!measure(d, m, has_file, costs)) goto done;
    TRY_GOTO(keep_what_fits(d, costs, left, where), done);
    for (size_t k = 0; k < n; k++) {
        if (costs[k].layer_idx + 1 == n) continue;
        struct plan_saved *s = &d->plan.saved[chain_saved_at(d->chain, costs[k].layer_idx)];
        s->redo_s += costs[k].redo_s;
        s->swap_s += costs[k].swap_s;
    }
    *is_chosen = true;
done:
    free(costs);
    free(where);
    return st;
}

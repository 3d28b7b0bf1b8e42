/* A pass over the layers, one visit after the other in the order that was given at creation. Before
 * a visit its parameters have come and its gradients' bucket is free; after it both continue their
 * way. Each call gives the communicator a chance to continue with what is under way. */
#include "zero/zero_impl.h"

/* What a pass that is given up began would still write to the blocks. */
cz_status zero_pass_drain(struct zero *z)
{
    cz_status shared = zero_late_drain(z), fetched = zero_window_finish(z);
    cz_status reduced = zero_bucket_finish(z);
    if (shared != CZ_OK) return shared;
    return fetched != CZ_OK ? fetched : reduced;
}

cz_status zero_pass_begin(struct zero *z, enum zero_pass pass)
{
    if (pass == ZERO_PASS_EVAL) TRY(zero_update_end(z));
    /* Of a pass that was given up nothing may continue, nor beside a training pass, unless it is
     * what the last micro-batch left to the device's streams. */
    bool goes_on = !z->turn.in_pass && (pass == ZERO_PASS_EVAL || z->buckets.sink->in_stream_order);
    if (!goes_on) TRY(zero_pass_drain(z));
    z->turn.pass = pass;
    z->turn.visit = 0;
    z->turn.in_pass = true;
    z->buckets.n_restored = 0;
    if (pass != ZERO_PASS_EVAL) z->buckets.found = (struct zero_found){.finite = true};
    for (size_t f = 0; f < z->buckets.n_flushes && pass != ZERO_PASS_EVAL; f++)
        z->buckets.flushes[f].begun = false;
    return CZ_OK;
}

static cz_status check_turn(const struct zero *z, size_t unit_idx)
{
    size_t n = z->turn.pass == ZERO_PASS_EVAL ? z->options.n_units : z->options.n_visits;
    if (z->turn.in_pass && z->turn.visit < n &&
        z->options.visits[z->turn.visit].unit_idx == unit_idx)
        return CZ_OK;
    return err_set(CZ_INVALID, 0, "it is not the turn of unit %zu at visit %zu of %zu", unit_idx,
                   z->turn.visit, n);
}

cz_status zero_unit_acquire(struct zero *z, size_t unit_idx)
{
    TRY(check_turn(z, unit_idx));
    TRY(comm_progress(z->options.comm));
    if (z->window.is_used) TRY(zero_window_acquire(z));
    if (z->late.on) TRY(zero_late_acquire(z));
    bool writes = z->turn.pass != ZERO_PASS_EVAL && z->options.visits[z->turn.visit].writes_grads;
    return writes ? zero_bucket_acquire(z, unit_idx) : CZ_OK;
}

cz_status zero_grads_ready(struct zero *z, size_t unit_idx)
{
    TRY(check_turn(z, unit_idx));
    if (z->turn.pass == ZERO_PASS_EVAL || !z->options.visits[z->turn.visit].is_backward)
        return err_set(CZ_INVALID, 0, "visit %zu is not a backward pass", z->turn.visit);
    return zero_bucket_ready(z, unit_idx);
}

cz_status zero_unit_release(struct zero *z, size_t unit_idx)
{
    TRY(check_turn(z, unit_idx));
    if (z->window.is_used) zero_window_release(z);
    z->turn.visit++;
    return comm_progress(z->options.comm);
}

cz_status zero_pass_end(struct zero *z)
{
    TRY(zero_window_finish(z));
    if (z->turn.pass != ZERO_PASS_EVAL) {
        if (z->turn.visit != z->options.n_visits)
            return err_set(CZ_INVALID, 0, "the pass ended after %zu of %zu visits", z->turn.visit,
                           z->options.n_visits);
        /* Buckets are empty when a pass ends; what is reduced in place may take until the boundary.
         */
        bool goes_on = z->buckets.sink->in_stream_order || !z->buckets.is_bucketed;
        if (!goes_on) TRY(zero_bucket_finish(z));
        z->buckets.n_passes++;
    }
    z->turn.in_pass = false;
    return CZ_OK;
}

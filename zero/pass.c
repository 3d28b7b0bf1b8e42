/* A pass over the layers: what each visit needs has come, what it leaves goes on its way. */
#include "zero/zero_impl.h"

/* What a pass that is given up began still writes to the blocks. */
cz_status zero_pass_drain(struct zero *z)
{
    cz_status fetched = zero_fetch_finish(z), reduced = zero_bucket_finish(z);
    return fetched != CZ_OK ? fetched : reduced;
}

cz_status zero_pass_begin(struct zero *z, enum zero_pass pass)
{
    /* Of a pass that was given up nothing may go on, nor beside a training pass, unless it is what
     * the last micro-batch left to the device's streams. */
    bool goes_on = !z->in_pass && (pass == ZERO_PASS_EVAL || z->buckets.sink->in_stream_order);
    if (!goes_on) TRY(zero_pass_drain(z));
    z->pass = pass;
    z->visit = 0;
    z->in_pass = true;
    z->buckets.n_restored = 0;
    for (size_t f = 0; f < z->buckets.n_flushes && pass != ZERO_PASS_EVAL; f++)
        z->buckets.flushes[f].begun = false;
    return CZ_OK;
}

static cz_status check_turn(const struct zero *z, size_t unit_idx)
{
    size_t n = z->pass == ZERO_PASS_EVAL ? z->options.n_units : z->options.n_visits;
    if (z->in_pass && z->visit < n && z->options.visits[z->visit].unit_idx == unit_idx)
        return CZ_OK;
    return err_set(CZ_INVALID, 0, "it is not the turn of unit %zu at visit %zu of %zu", unit_idx,
                   z->visit, n);
}

cz_status zero_unit_acquire(struct zero *z, size_t unit_idx)
{
    TRY(check_turn(z, unit_idx));
    TRY(comm_progress(z->options.comm));
    if (z->windowed) TRY(zero_fetch_visit(z));
    bool writes = z->pass != ZERO_PASS_EVAL && z->options.visits[z->visit].writes_grads;
    return writes ? zero_bucket_acquire(z, unit_idx) : CZ_OK;
}

cz_status zero_grads_ready(struct zero *z, size_t unit_idx)
{
    TRY(check_turn(z, unit_idx));
    if (z->pass == ZERO_PASS_EVAL || !z->options.visits[z->visit].is_backward)
        return err_set(CZ_INVALID, 0, "visit %zu is no backward", z->visit);
    return zero_bucket_ready(z, unit_idx);
}

cz_status zero_unit_release(struct zero *z, size_t unit_idx)
{
    TRY(check_turn(z, unit_idx));
    if (z->windowed) zero_fetch_drop(z);
    z->visit++;
    return comm_progress(z->options.comm);
}

cz_status zero_pass_end(struct zero *z)
{
    TRY(zero_fetch_finish(z));
    if (z->pass != ZERO_PASS_EVAL) {
        if (z->visit != z->options.n_visits)
            return err_set(CZ_INVALID, 0, "the pass ended after %zu of %zu visits", z->visit,
                           z->options.n_visits);
        /* Buckets are empty when a pass ends; what is reduced in place may take until the boundary.
         */
        bool goes_on = z->buckets.sink->in_stream_order || !z->buckets.is_bucketed;
        if (!goes_on) TRY(zero_bucket_finish(z));
        z->buckets.n_passes++;
    }
    z->in_pass = false;
    return CZ_OK;
}

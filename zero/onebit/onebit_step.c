/* The 1-bit family: what each update does (optim/onebit.h has the schedule). Arrays that an
 * exchange needs whole (momentum, worker errors, masks) are whole on every rank; masters and
 * variance are split at stage 1 as for any optimizer. */
#include "zero/onebit/onebit_impl.h"

/* With one rank there is nothing to exchange: its gradient is the mean. */
static cz_status momentum_run(struct zero *z, const struct onebit_segment *s,
                              const struct onebit_run *run)
{
    struct ops *ops = z->options.ops;
    const struct onebit_momentum_args args = {
        .numel = run->numel,
        .g = onebit_run_grads(z, run),
        .g_dtype = z->options.grad_dtype,
        .scalars = zero_device_scalars(z, run->group),
        .mask = onebit_mask_of(z, s, run),
        .m = onebit_momentum(z, run->group) + run->flat_off,
        .fresh = onebit_is_lamb(z) ? onebit_state(z, run->group, 2) + run->flat_off : NULL};
    TRY(onebit_claim(z, run, 0));
    if (args.fresh) TRY(onebit_claim(z, run, 2));
    return ops_onebit_momentum(ops, z->options.stream, &args);
}

/* The momentum of all ranks, by an exchange, and weights from it. */
static cz_status update_momentum(struct zero *z, enum onebit_payload payload)
{
    if (z->onebit->masks_stale) TRY(onebit_make_masks(z));
    TRY(onebit_world(z) == 1 ? onebit_each_run(z, momentum_run) : onebit_exchange(z, payload));
    if (onebit_is_lamb(z)) TRY(onebit_lamb_ratios(z));
    for (size_t g = 0; g < z->options.n_groups; g++)
        TRY(zero_sweep_apply(z, g, &z->onebit->constants->one));
    return CZ_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Once, when the variance freezes: from then on exchanges keep the momentum whole. */
cz_status onebit_gather_momentum(struct zero *z)
{
    if (z->options.stage == 0 || onebit_world(z) == 1) return CZ_OK;
    for (size_t g = 0; g < z->options.n_groups; g++) {
        const struct zero_group *group = &z->own.groups[g];
        float *m = onebit_momentum(z, g);
        if (group->own_numel == 0) continue;
        TRY(onebit_claim_floats(z, m, group->flat.numel_padded));
        TRY(comm_all_gather(z->options.comm, m + group->own_begin, m,
                            group->own_numel * sizeof *m));
    }
    return CZ_OK;
}

/* The variance stays as it is from here on. */
static cz_status freeze(struct zero *z)
{
    if (z->own.local_steps) { /* errors of gradients say nothing about moves */
        const struct zero_range errors = {.memory = z->mem.blocks[ZERO_ERRORS],
                                          .nbytes = z->mem.nbytes[ZERO_ERRORS]};
        TRY(zero_claim(z, &errors));
        return onebit_fill_zero(z, z->mem.blocks[ZERO_ERRORS], errors.nbytes);
    }
    TRY(onebit_gather_momentum(z));
    return onebit_is_lamb(z) ? onebit_lamb_freeze(z) : CZ_OK;
}

static cz_status act(struct zero *z, enum onebit_act what)
{
    switch (what) {
    case ONEBIT_INIT: return CZ_OK;
    case ONEBIT_FULL: /* as Adam or Lamb, from averaged gradients */
        for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_sweep_group(z, g));
        if (onebit_is_lamb(z)) onebit_lamb_warmed(z);
        z->onebit->masks_stale = true;
        return CZ_OK;
    case ONEBIT_MOMENTUM: return update_momentum(z, PAYLOAD_MOMENTUM);
    case ONEBIT_GRADIENT: return update_momentum(z, PAYLOAD_GRADIENT);
    case ONEBIT_LOCAL: return onebit_move(z);
    case ONEBIT_SETTLE: TRY(onebit_move(z)); return onebit_settle(z);
    }
    return CZ_OK;
}

cz_status zero_onebit_step(struct zero *z)
{
    struct onebit_clock *clock = &z->onebit->clock;
    enum onebit_act what = onebit_next(onebit_hyper(z), clock);
    TRY(act(z, what));
    z->sweep.params_changed = what != ONEBIT_INIT;
    if (onebit_advance(onebit_hyper(z), clock)) TRY(freeze(z));
    return zero_gpu_settle(z);
}

/* A settling step divides by the sum of lr since the last one, this step's included. */
void zero_onebit_scalars(struct zero *z)
{
    const struct zero_onebit_core *ob = z->onebit;
    if (onebit_next(onebit_hyper(z), &ob->clock) != ONEBIT_SETTLE) return;
    for (size_t g = 0; g < z->options.n_groups; g++)
        z->mem.scalars[g].step_size = (float)(ob->lrs[g] + z->options.groups[g].lr);
}

bool zero_averages(const struct zero *z)
{
    return !z->onebit || onebit_averages(onebit_next(onebit_hyper(z), &z->onebit->clock));
}

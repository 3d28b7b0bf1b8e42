/* What 1-bit Lamb adds (Li et al. 2021; docs/deepspeed-behaviour.md, "OneBitLamb"): trust
 * ratios learnt in the warm-up and scaled afterwards, and one scale for all tensors' momenta. */
#include "zero/onebit/onebit_impl.h"

#include <math.h>
#include <string.h>

void onebit_lamb_warmed(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    for (size_t r = 0; r < ob->n_runs; r++) {
        const struct onebit_run *run = &ob->runs[r];
        const struct optim_hyper *hyper = &z->options.groups[run->group].hyper;
        onebit_lamb_warm(hyper, zero_group_ratios(z, run->group)[run->pos],
                         &ob->tensors[run->param_idx]);
    }
}

static uint64_t *squares_of(const struct zero *z, const struct onebit_run *run)
{
    return z->onebit->squares + (size_t)(run - z->onebit->runs) * SQUARES_DIGITS;
}

static cz_status scan_momentum(struct zero *z, const struct onebit_segment *s,
                               const struct onebit_run *run)
{
    uint64_t *squares = squares_of(z, run);
    (void)s;
    *onebit_found(z, run) = (struct scan_result){0};
    memset(squares, 0, SQUARES_DIGITS * sizeof *squares);
    return onebit_scan(z, run, onebit_momentum(z, run->group) + run->flat_off, run->numel, squares);
}

/* ‖m‖ of all tensors, the same on every rank: momenta are whole. */
static cz_status momentum_norms(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    TRY(onebit_each_run(z, scan_momentum));
    TRY(zero_sync(z));
    for (size_t r = 0; r < ob->n_runs; r++) {
        const struct scan_result *found = &ob->found[r];
        double square = ops_squares_value(squares_of(z, &ob->runs[r]));
        ob->norms[r] = found->finite ? sqrt(square) : NAN;
    }
    return CZ_OK;
}

cz_status onebit_lamb_freeze(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    /* The variance as it freezes is where the fresh one starts. */
    for (size_t g = 0; g < z->options.n_groups; g++) {
        const struct zero_placement frozen = zero_state_placement(z, g, 1),
                                    fresh = zero_state_placement(z, g, 2);
        size_t numel = z->own.groups[g].own_numel;
        TRY(onebit_claim_floats(z, (const float *)(void *)fresh.memory, numel));
        if (numel > 0)
            TRY(zero_copy(z, z->options.stream, fresh.memory, frozen.memory,
                          numel * sizeof(float)));
    }
    TRY(momentum_norms(z));
    for (size_t r = 0; r < ob->n_runs; r++) ob->numels[r] = ob->runs[r].numel;
    onebit_lamb_scale(ob->norms, ob->numels, ob->n_runs, ob->scaled);
    for (size_t r = 0; r < ob->n_runs; r++)
        ob->tensors[ob->runs[r].param_idx].scaling_coeff = ob->scaled[r].scaling_coeff;
    return CZ_OK;
}

/* Norms and the largest factor over this rank's part of a tensor. */
static cz_status look_at_run(struct zero *z, const struct onebit_segment *s,
                             const struct onebit_run *run)
{
    struct ops *ops = z->options.ops;
    const struct optim_hyper *hyper = &z->options.groups[run->group].hyper;
    size_t begin, end;
    if (!onebit_own_part(z, run, &begin, &end)) return CZ_OK;
    const struct zero_placement v = zero_state_placement(z, run->group, 1),
                                fresh = zero_state_placement(z, run->group, 2),
                                p = zero_master_placement(z, run->group);
    size_t own = run->flat_off + begin - z->own.groups[run->group].own_begin;
    const struct lamb_segment all = {.end = end - begin};
    struct onebit_lamb_norms_args args = {.numel = end - begin,
                                          .m = onebit_momentum(z, run->group) + run->flat_off +
                                               begin,
                                          .v = (const float *)(void *)v.memory + own,
                                          .fresh = (const float *)(void *)fresh.memory + own,
                                          .p = (const float *)(void *)p.memory + own,
                                          .eps = (float)hyper->eps,
                                          .weight_decay = (float)hyper->weight_decay,
                                          .mask = onebit_mask_of(z, s, run),
                                          .segments = &all,
                                          .n_segments = 1,
                                          .sums = &zero_device_sums(z, run->group)[run->pos],
                                          .factors = &z->onebit->factors[run - z->onebit->runs]};
    args.mask.first += begin;
    return ops_onebit_lamb_norms(ops, z->options.stream, &args);
}

/* Norms over this rank's parts become those of whole tensors, and so do the largest factors; then
 * each rank computes the same ratio of each tensor on the host, where the coefficients are. */
cz_status onebit_lamb_ratios(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    const size_t factors_nbytes = ob->n_runs * sizeof *ob->factors;
    TRY(onebit_fill_zero(z, ob->factors, factors_nbytes));
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_sums_clear(z, g));
    TRY(onebit_each_run(z, look_at_run));
    TRY(zero_copy(z, z->options.stream, onebit_max_of(z, ob->runs), ob->factors, factors_nbytes));
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_sums_join(z, g));
    TRY(zero_sync(z));
    TRY(onebit_max_over_ranks(z));
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_tensor_sums_add(z, g));
    for (size_t r = 0; r < ob->n_runs; r++) {
        const struct onebit_run *run = &ob->runs[r];
        const struct optim_hyper *hyper = &z->options.groups[run->group].hyper;
        zero_group_ratios(z, run->group)[run->pos] =
            onebit_lamb_ratio(hyper, &zero_group_sums(z, run->group)[run->pos],
                              *onebit_max_of(z, run), &ob->tensors[run->param_idx]);
    }
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_ratios_send(z, g));
    return CZ_OK;
}

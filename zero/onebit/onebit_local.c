/* ZeroOneAdam once its variance is frozen: ranks take local steps, each with its own gradients, and
 * exchange what they have moved from time to time (Lu et al. 2022, algorithm 1). Between exchanges
 * masters are those that all ranks share; a rank's parameters are masters plus its moves. */
#include "zero/onebit/onebit_impl.h"

#include "ops/elementwise/elementwise.h"

/* All three kernels (local step, gather, settle) take the same arrays of a parameter. */
static struct zero_one_args local_args(const struct zero *z, const struct onebit_segment *s,
                                       const struct onebit_run *run)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *g = &z->own.groups[run->group];
    const struct optim_hyper *hyper = &o->groups[run->group].hyper;
    float *masters = (float *)(void *)(z->mem.blocks[ZERO_MASTERS] + g->master_off);
    unsigned char *params = zero_group_params(z, run->group);
    return (struct zero_one_args){.numel = run->numel,
                                  .g = onebit_run_grads(z, run),
                                  .g_dtype = o->grad_dtype,
                                  .scalars = zero_device_scalars(z, run->group),
                                  .eps = (float)hyper->eps,
                                  .weight_decay = (float)hyper->weight_decay,
                                  .mask = onebit_mask_of(z, s, run),
                                  .m = onebit_momentum(z, run->group) + run->flat_off,
                                  .moved = onebit_moved(z, run->group) + run->flat_off,
                                  .v = onebit_state(z, run->group, 1) + run->flat_off,
                                  .p = masters + run->flat_off,
                                  .out = params + run->flat_off * dtype_size(o->dtype),
                                  .out_dtype = o->dtype};
}

static cz_status local_run(struct zero *z, const struct onebit_segment *s,
                           const struct onebit_run *run)
{
    const struct zero_one_args args = local_args(z, s, run);
    const struct zero_range params = {.memory = args.out,
                                      .nbytes = args.numel * dtype_size(args.out_dtype)};
    TRY(onebit_claim(z, run, 0));
    TRY(onebit_claim(z, run, 2));
    TRY(zero_claim(z, &params));
    return ops_zero_one_local(z->options.ops, z->options.stream, &args);
}

static cz_status gather_run(struct zero *z, const struct onebit_segment *s,
                            const struct onebit_run *run)
{
    const struct zero_one_args args = local_args(z, s, run);
    return ops_zero_one_gather(z->options.ops, z->options.stream, &args);
}

static cz_status settle_run(struct zero *z, const struct onebit_segment *s,
                            const struct onebit_run *run)
{
    const struct zero_one_args args = local_args(z, s, run);
    TRY(onebit_claim_floats(z, args.p, args.numel));
    return ops_zero_one_settle(z->options.ops, z->options.stream, &args);
}

cz_status onebit_move(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    if (ob->masks_stale) TRY(onebit_make_masks(z));
    for (size_t g = 0; g < z->options.n_groups; g++) {
        ob->lrs[g] += z->options.groups[g].lr;
        ob->apart[g] = true;
    }
    return onebit_each_run(z, local_run);
}

cz_status onebit_settle(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    TRY(onebit_each_run(z, gather_run));
    if (onebit_world(z) > 1) TRY(onebit_exchange(z, PAYLOAD_MOVES));
    for (size_t g = 0; g < z->options.n_groups; g++) {
        ob->apart[g] = z->mem.scalars[g].step_size == 0; /* then momenta stay as they are */
        ob->lrs[g] = 0;
    }
    return onebit_each_run(z, settle_run);
}

/* After a load: parameters as this rank has moved them since the last exchange. */
static cz_status place_run(struct zero *z, const struct onebit_segment *s,
                           const struct onebit_run *run)
{
    const struct zero_one_args args = local_args(z, s, run);
    struct ops *ops = z->options.ops;
    float *sum = (float *)(void *)z->onebit->partials;
    for (size_t at = 0, n; at < run->numel; at += n) {
        n = run->numel - at < ONEBIT_BLOCK ? run->numel - at : ONEBIT_BLOCK;
        const struct add_args add = {
            .dtype = DTYPE_F32, .numel = n, .a = args.p + at, .b = args.moved + at, .y = sum};
        TRY(ops_add(ops, z->options.stream, &add));
        const struct cast_scale_args round = {.x_dtype = DTYPE_F32,
                                              .y_dtype = args.out_dtype,
                                              .numel = n,
                                              .alpha = 1,
                                              .x = sum,
                                              .y = (unsigned char *)args.out +
                                                   at * dtype_size(args.out_dtype)};
        TRY(ops_cast_scale(ops, z->options.stream, &round));
    }
    return CZ_OK;
}

cz_status onebit_place_moved(struct zero *z)
{
    return onebit_each_run(z, place_run);
}

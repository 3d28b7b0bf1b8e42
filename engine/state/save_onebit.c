/* What the 1-bit optimizers add to a save: their counters, and where each rank's errors are. Errors
 * are part of the state: without them a resumed run would lose what compression still owes. */
#include "engine/state/save_impl.h"

#include "optim/onebit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Before the variance is frozen OneBitAdam and OneBitLamb compress nothing: their errors are 0. */
static bool has_errors(const struct cz_engine *e, const struct zero_onebit *ob)
{
    bool compresses =
        ob->clock->frozen || ob->lrs; /* lrs: ZeroOneAdam, which does from the start */
    return compresses && ob->clock->step > 1 && zero_n_segments(e->desc.zero) > 0;
}

/* Counters and coefficients are equal on all ranks; errors are not, and go into a file per rank. */
cz_status save_take_onebit(const struct cz_engine *e, struct run_state *s)
{
    const struct param_table *table = model_params(e->desc.model);
    const struct zero_onebit ob = zero_onebit(e->desc.zero);
    struct run_onebit *run = &s->onebit;
    if (!ob.clock) return CZ_OK;
    run->present = true;
    snprintf(run->optimizer, sizeof run->optimizer, "%s",
             onebit_of(e->desc.groups, e->desc.n_groups)->cls->name);
    run->clock = *ob.clock;
    run->has_files = has_errors(e, &ob);
    run->has_lrs = ob.lrs != NULL;
    if (ob.lrs) memcpy(run->lrs, ob.lrs, e->desc.n_groups * sizeof *ob.lrs);
    for (size_t i = 0; ob.tensors && i < table->n_params; i++)
        if (table->params[i].trainable)
            TRY(run_onebit_add(run, table->params[i].name, &ob.tensors[i]));
    return CZ_OK;
}

/* DeepSpeed has no such file; the segments name their parameters, so that any world size can read
 * it. */
static cz_status describe_segments(const struct cz_engine *e, struct save_description *d)
{
    size_t n = zero_n_segments(e->desc.zero);
    d->segments = calloc(n, sizeof *d->segments);
    if (!d->segments) return err_set(CZ_NOMEM, 0, "no memory to describe %zu segments", n);
    for (size_t i = 0; i < n; i++) {
        const struct zero_segment s = zero_segment(e->desc.zero, i);
        d->segments[i] = (struct ckpt_segment){.param_idx = s.param_idx,
                                               .n_params = s.n_params,
                                               .numel = s.numel,
                                               .numel_padded = s.numel_padded};
    }
    d->onebit.segments = d->segments;
    d->onebit.n_segments = n;
    return CZ_OK;
}

/* OneBitLamb only. */
static cz_status describe_tensors(const struct cz_engine *e, const struct onebit_tensor *tensors,
                                  struct save_description *d)
{
    size_t n = model_params(e->desc.model)->n_params;
    d->tensors = calloc(n + 1, sizeof *d->tensors);
    if (!d->tensors) return err_set(CZ_NOMEM, 0, "no memory to describe %zu parameters", n);
    for (size_t i = 0; i < n; i++)
        d->tensors[i] =
            (struct ckpt_onebit_tensor){.lamb_coeff_freeze = tensors[i].lamb_coeff_freeze,
                                        .last_factor = tensors[i].last_factor,
                                        .scaling_coeff = tensors[i].scaling_coeff};
    d->onebit.tensors = d->tensors;
    return CZ_OK;
}

/* The intervals are ZeroOneAdam's. */
cz_status save_describe_onebit(const struct cz_engine *e, struct save_description *d)
{
    const struct zero_onebit ob = zero_onebit(e->desc.zero);
    if (!ob.clock) return CZ_OK;
    const struct onebit_clock *clock = ob.clock;
    d->onebit =
        (struct ckpt_onebit){.optimizer = onebit_of(e->desc.groups, e->desc.n_groups)->cls->name,
                             .has_intervals = ob.lrs != NULL,
                             .var_interval = (int64_t)clock->var_interval,
                             .var_counter = (int64_t)clock->var_counter,
                             .local_step_interval = (int64_t)clock->local_step_interval,
                             .local_step_counter = (int64_t)clock->local_step_counter,
                             .lrs = ob.lrs,
                             .scaled = clock->frozen,
                             .moves_alone = ob.lrs && clock->frozen};
    for (size_t g = 0; g < e->desc.n_groups; g++) d->groups[g].step = (int64_t)clock->step;
    if (ob.tensors) TRY(describe_tensors(e, ob.tensors, d));
    return has_errors(e, &ob) ? describe_segments(e, d) : CZ_OK;
}

/* From the writer's job to the memory that holds it. */
size_t save_find_onebit(const struct cz_engine *e, const struct ckpt_job *job,
                        struct zero_range *out)
{
    static const enum zero_onebit_what whats[] = {[CKPT_FROM_WORKER_ERROR] = ZERO_WORKER_ERROR,
                                                  [CKPT_FROM_SERVER_ERROR] = ZERO_SERVER_ERROR,
                                                  [CKPT_FROM_MOMENTUM] = ZERO_LOCAL_MOMENTUM,
                                                  [CKPT_FROM_MOVES] = ZERO_LOCAL_MOVES};
    bool is_error = job->source < CKPT_FROM_MOMENTUM;
    *out = zero_onebit_range(e->desc.zero, whats[job->source],
                             is_error ? job->segment_idx : job->param_idx);
    out->memory += job->off * sizeof(float);
    out->nbytes = job->numel * sizeof(float);
    return 1;
}

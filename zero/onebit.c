/* The 1-bit family: what each update does (optim/onebit.h has the calendar), what is compressed
 * together, which elements are masked, and what a checkpoint sees.
 *
 * Arrays that an exchange needs whole (momentum, worker errors, masks) are whole on every rank;
 * masters and variance are split at stage 1 as for any optimizer. */
#include "zero/onebit_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

static const struct optim_hyper *hyper_of(const struct zero *z)
{
    return &z->options.groups[0].hyper;
}

static int world(const struct zero *z)
{
    return z->options.comm->world_size;
}

static bool is_zero_one(const struct zero *z)
{
    return z->moves_alone;
}

/* ---- where things lie ------------------------------------------------------------------------ */

static float *whole_state(const struct zero *z, size_t group, size_t state_idx)
{
    const struct zero_group *g = &z->groups[group];
    unsigned char *own = z->blocks[ZERO_STATE_0 + state_idx] + g->state_off[state_idx];
    return (float *)(void *)own - g->own_begin;
}

static struct zero_range floats_at(const float *x, size_t numel)
{
    return (struct zero_range){.memory = (const unsigned char *)x, .nbytes = numel * sizeof *x};
}

float *onebit_momentum(const struct zero *z, size_t group)
{
    return whole_state(z, group, 0);
}

float *onebit_moved(const struct zero *z, size_t group)
{
    return whole_state(z, group, 2);
}

const void *onebit_grads(const struct zero *z, size_t group)
{
    return z->blocks[ZERO_GRADS] + z->groups[group].grad_off;
}

bool onebit_own_part(const struct zero *z, const struct onebit_run *run, size_t *begin, size_t *end)
{
    size_t lo = z->groups[run->group].own_begin, hi = lo + z->groups[run->group].own_numel;
    size_t first = run->flat_off, last = first + run->numel;
    if (lo < first) lo = first;
    if (hi > last) hi = last;
    if (lo >= hi) return false;
    *begin = lo - first;
    *end = hi - first;
    return true;
}

struct onebit_mask onebit_mask_of(const struct zero *z, const struct onebit_segment *s,
                                  const struct onebit_run *run)
{
    return (struct onebit_mask){.bits = z->onebit->masks, .first = s->mask_bit + run->seg_off};
}

/* ---- segments -------------------------------------------------------------------------------- */

cz_status zero_onebit_check(const struct zero_options *o)
{
    const struct optim_hyper *first = &o->groups[0].hyper;
    if (o->n_groups == 0 || !optim_is_onebit(first)) return CZ_OK;
    if (o->stage > 1)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s exchanges whole momenta: it works at ZeRO stages 0 and 1, not at %d",
                       first->cls->name, o->stage);
    if (o->swap.optimizer || o->swap.params)
        return err_set(CZ_UNSUPPORTED, 0, "%s keeps its state in memory: it works without offload",
                       first->cls->name);
    if (o->state_dtype != DTYPE_F32)
        return err_set(CZ_UNSUPPORTED, 0, "%s keeps its states in fp32, not in %s",
                       first->cls->name, dtype_name(o->state_dtype));
    if (o->reduce_sum)
        return err_set(CZ_UNSUPPORTED, 0, "%s averages over ranks; it cannot add up",
                       first->cls->name);
    for (size_t g = 1; g < o->n_groups; g++)
        if (o->groups[g].hyper.cls != first->cls)
            return err_set(CZ_INVALID, 0, "%s shares its calendar: no other optimizer beside it",
                           first->cls->name);
    return CZ_OK;
}

/* Whether a new segment begins with this parameter. */
static bool begins_segment(const struct zero *z, size_t group, size_t pos)
{
    if (onebit_is_lamb(z)) return z->onebit->n_segments == 0;
    return z->options.dtype == DTYPE_F32 || pos == 0 ||
           group != z->onebit->runs[z->onebit->n_runs - 1].group;
}

static void add_run(struct zero *z, size_t group, size_t pos)
{
    struct zero_onebit_core *ob = z->onebit;
    const struct flat_param *p = &z->groups[group].flat.params[pos];
    if (p->numel == 0) return;
    if (begins_segment(z, group, pos))
        ob->segments[ob->n_segments++] = (struct onebit_segment){.first_run = ob->n_runs};
    struct onebit_segment *s = &ob->segments[ob->n_segments - 1];
    ob->runs[ob->n_runs] = (struct onebit_run){.param_idx = p->param_idx,
                                               .group = group,
                                               .pos = pos,
                                               .flat_off = p->off,
                                               .seg_off = s->numel,
                                               .numel = p->numel};
    ob->run_params[ob->n_runs] = p->param_idx;
    ob->run_of[p->param_idx] = ob->n_runs++;
    s->n_runs++;
    s->numel += p->numel;
}

static size_t gcd(size_t a, size_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* W·lcm(W, 8): then each of W chunks is a multiple of 8 elements (and what DeepSpeed pads to). */
static size_t padding_unit(size_t w)
{
    return w * (w / gcd(w, 8) * 8);
}

static size_t segment_partials(const struct zero_onebit_core *ob, const struct onebit_segment *s,
                               size_t w)
{
    size_t n = onebit_n_partials(s->numel_padded - s->numel), chunk = s->numel_padded / w;
    for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++)
        n += onebit_n_partials(ob->runs[r].numel);
    return n > onebit_n_partials(chunk) ? n : onebit_n_partials(chunk);
}

static void place_segments(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    size_t w = (size_t)world(z), unit = w > 1 ? padding_unit(w) : 1;
    for (size_t i = 0; i < ob->n_segments; i++) {
        struct onebit_segment *s = &ob->segments[i];
        s->numel_padded = size_round_up(s->numel, unit);
        s->mask_bit = ob->mask_nbytes * 8;
        ob->mask_nbytes += (s->numel + 7) / 8;
        if (w == 1) continue;
        s->error_off = ob->worker_numel;
        s->server_off = ob->server_numel;
        s->bits_off = ob->piece_nbytes;
        ob->worker_numel += s->numel_padded;
        ob->server_numel += s->numel_padded / w;
        ob->piece_nbytes += s->numel_padded / w / 8;
        size_t n = segment_partials(ob, s, w);
        if (n > ob->n_partials) ob->n_partials = n;
    }
}

static cz_status take_blocks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    size_t w = (size_t)world(z), off;
    TRY(zero_block_take(z, ZERO_SIGNS, ob->mask_nbytes, DTYPE_U8, &ob->masks_off));
    TRY(zero_block_take(z, ZERO_SIGNS, sizeof *ob->constants, DTYPE_U8, &ob->constants_off));
    /* Also where moved weights are put together after a load. */
    if (ob->n_partials < ONEBIT_BLOCK) ob->n_partials = ONEBIT_BLOCK;
    TRY(zero_block_take(z, ZERO_SIGNS, ob->n_partials * sizeof(double), DTYPE_U8,
                        &ob->partials_off));
    if (w == 1) return CZ_OK;
    TRY(zero_block_take(z, ZERO_ERRORS, ob->worker_numel + ob->server_numel, DTYPE_F32, &off));
    TRY(zero_block_take(z, ZERO_SIGNS, w * ob->piece_nbytes, DTYPE_U8, &ob->out_off));
    TRY(zero_block_take(z, ZERO_SIGNS, w * ob->piece_nbytes, DTYPE_U8, &ob->in_off));
    return zero_block_take(z, ZERO_SIGNS, 2 * w * ob->n_segments, DTYPE_F32, &ob->scales_off);
}

static cz_status alloc_core(struct zero *z)
{
    size_t n = z->options.table->n_params + 1, w = (size_t)world(z);
    struct zero_onebit_core *ob = calloc(1, sizeof *ob);
    z->onebit = ob;
    if (!ob) return err_set(CZ_NOMEM, 0, "no memory for the 1-bit exchange");
    ob->lrs = calloc(z->options.n_groups + 1, sizeof *ob->lrs);
    ob->tensors = calloc(n, sizeof *ob->tensors);
    ob->runs = calloc(n, sizeof *ob->runs);
    ob->run_params = calloc(n, sizeof *ob->run_params);
    ob->run_of = calloc(n, sizeof *ob->run_of);
    ob->segments = calloc(n, sizeof *ob->segments);
    ob->maxima = calloc(n * w, sizeof *ob->maxima);
    ob->norms = calloc(n, sizeof *ob->norms);
    ob->numels = calloc(n, sizeof *ob->numels);
    ob->scaled = calloc(n, sizeof *ob->scaled);
    if (!ob->norms || !ob->numels || !ob->scaled || !ob->lrs || !ob->tensors || !ob->runs ||
        !ob->run_params || !ob->run_of || !ob->segments || !ob->maxima)
        return err_set(CZ_NOMEM, 0, "no memory for the 1-bit exchange of %zu parameters", n - 1);
    return CZ_OK;
}

/* Signs to the servers and back, and a scale per segment each way. */
static void count_signs(struct zero *z)
{
    const struct zero_onebit_core *ob = z->onebit;
    size_t others = (size_t)world(z) - 1;
    if (others == 0) return;
    z->figures.signs_nbytes = 2 * others * (ob->piece_nbytes + ob->n_segments * sizeof(float));
    z->figures.n_signs = 4;
    if (!onebit_is_lamb(z) || z->options.stage == 0) return;
    z->figures.signs_nbytes += others * ob->n_runs * sizeof *ob->maxima; /* factors of tensors */
    z->figures.n_signs++;
}

cz_status zero_onebit_init(struct zero *z)
{
    if (z->options.n_groups == 0 || !optim_is_onebit(hyper_of(z))) return CZ_OK;
    TRY(alloc_core(z));
    for (size_t g = 0; g < z->options.n_groups; g++)
        for (size_t p = 0; p < z->groups[g].flat.n_params; p++) add_run(z, g, p);
    place_segments(z);
    for (size_t i = 0; i < z->options.table->n_params; i++) {
        z->onebit->tensors[i].last_factor = 1;
        z->onebit->tensors[i].scaling_coeff = 1;
    }
    z->onebit->clock = onebit_clock_start(z->options.dtype != DTYPE_F32);
    z->onebit->masks_stale = true;
    count_signs(z);
    return take_blocks(z);
}

void zero_onebit_free(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    if (!ob) return;
    free(ob->lrs);
    free(ob->tensors);
    free(ob->runs);
    free(ob->run_params);
    free(ob->run_of);
    free(ob->segments);
    free(ob->maxima);
    free(ob->norms);
    free(ob->numels);
    free(ob->scaled);
    free(ob);
}

void zero_onebit_bind(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    unsigned char *signs = z->blocks[ZERO_SIGNS];
    if (!ob) return;
    ob->masks = signs + ob->masks_off;
    ob->partials = (double *)(void *)(signs + ob->partials_off);
    ob->constants = (struct onebit_constants *)(void *)(signs + ob->constants_off);
    *ob->constants = (struct onebit_constants){.unit = {.grad_scale = 1}, .one = 1};
    ob->out = signs + ob->out_off;
    ob->in = signs + ob->in_off;
    ob->worker_scales = (float *)(void *)(signs + ob->scales_off);
    ob->server_scales = ob->worker_scales + (size_t)world(z) * ob->n_segments;
    ob->worker_errors = (float *)(void *)z->blocks[ZERO_ERRORS];
    ob->server_errors = ob->worker_errors + ob->worker_numel;
}

/* ---- masks ----------------------------------------------------------------------------------- */

cz_status onebit_max_over_ranks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    size_t n = ob->n_runs, w = (size_t)world(z);
    float *mine = ob->maxima + (size_t)z->options.comm->rank * n;
    if (z->options.stage == 0 || w == 1) return CZ_OK;
    TRY(comm_all_gather(z->options.comm, mine, ob->maxima, n * sizeof *mine));
    for (size_t i = 0; i < n; i++) {
        float most = 0;
        for (size_t r = 0; r < w; r++)
            if (ob->maxima[r * n + i] > most) most = ob->maxima[r * n + i];
        mine[i] = most;
    }
    return CZ_OK;
}

static cz_status largest_variance(struct zero *z, const struct onebit_run *run, float *out)
{
    struct ops *ops = z->options.ops;
    struct scan_result found = {0};
    size_t begin, end;
    *out = 0;
    if (!onebit_own_part(z, run, &begin, &end)) return CZ_OK;
    const struct scan_args args = {.dtype = DTYPE_F32,
                                   .numel = end - begin,
                                   .x = whole_state(z, run->group, 1) + run->flat_off + begin,
                                   .result = &found};
    TRY(ops->scan(ops, z->options.stream, &args));
    TRY(ops->device->ops->stream_sync(ops->device, z->options.stream));
    *out = found.max_abs;
    return CZ_OK;
}

static cz_status mask_run(struct zero *z, const struct onebit_segment *s,
                          const struct onebit_run *run, float floor)
{
    struct ops *ops = z->options.ops;
    size_t begin, end;
    if (!onebit_own_part(z, run, &begin, &end)) return CZ_OK;
    const struct onebit_mask_make_args args = {.numel = end - begin,
                                               .v = whole_state(z, run->group, 1) + run->flat_off +
                                                    begin,
                                               .floor = floor,
                                               .first = s->mask_bit + run->seg_off + begin,
                                               .bits = z->onebit->masks};
    return ops->onebit_mask_make(ops, z->options.stream, &args);
}

/* From the variance as it is now. Pure: a resumed run makes the same masks. */
static cz_status make_masks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    float *mine = ob->maxima + (size_t)z->options.comm->rank * ob->n_runs;
    for (size_t r = 0; r < ob->n_runs; r++) TRY(largest_variance(z, &ob->runs[r], &mine[r]));
    TRY(onebit_max_over_ranks(z));
    memset(ob->masks, 0, ob->mask_nbytes);
    for (size_t i = 0; i < ob->n_segments; i++) {
        const struct onebit_segment *s = &ob->segments[i];
        for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++)
            TRY(mask_run(z, s, &ob->runs[r], mine[r] * ONEBIT_MASK_RATIO));
    }
    if (z->options.stage > 0 && world(z) > 1) TRY(onebit_masks_join(z));
    ob->masks_stale = false;
    return CZ_OK;
}

/* ---- the updates ----------------------------------------------------------------------------- */

typedef cz_status (*run_fn)(struct zero *z, const struct onebit_segment *s,
                            const struct onebit_run *run);

static cz_status each_run(struct zero *z, run_fn fn)
{
    struct zero_onebit_core *ob = z->onebit;
    for (size_t i = 0; i < ob->n_segments; i++) {
        const struct onebit_segment *s = &ob->segments[i];
        for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++)
            TRY(fn(z, s, &ob->runs[r]));
    }
    return CZ_OK;
}

static const void *run_grads(const struct zero *z, const struct onebit_run *run)
{
    return (const unsigned char *)onebit_grads(z, run->group) +
           run->flat_off * dtype_size(z->options.grad_dtype);
}

static cz_status claim_state(struct zero *z, const struct onebit_run *run, size_t state_idx)
{
    const float *x = whole_state(z, run->group, state_idx) + run->flat_off;
    const struct zero_range range = {.memory = (const unsigned char *)x,
                                     .nbytes = run->numel * sizeof *x};
    return zero_claim(z, &range);
}

/* One rank alone: its gradient is everyone's. */
static cz_status momentum_run(struct zero *z, const struct onebit_segment *s,
                              const struct onebit_run *run)
{
    struct ops *ops = z->options.ops;
    const struct onebit_momentum_args args = {
        .numel = run->numel,
        .g = run_grads(z, run),
        .g_dtype = z->options.grad_dtype,
        .scalars = &z->scalars[run->group],
        .mask = onebit_mask_of(z, s, run),
        .m = onebit_momentum(z, run->group) + run->flat_off,
        .fresh = onebit_is_lamb(z) ? whole_state(z, run->group, 2) + run->flat_off : NULL};
    TRY(claim_state(z, run, 0));
    if (args.fresh) TRY(claim_state(z, run, 2));
    return ops->onebit_momentum(ops, z->options.stream, &args);
}

static cz_status update_momentum(struct zero *z, enum onebit_payload payload)
{
    if (z->onebit->masks_stale) TRY(make_masks(z));
    TRY(world(z) == 1 ? each_run(z, momentum_run) : onebit_exchange(z, payload));
    if (onebit_is_lamb(z)) TRY(onebit_lamb_ratios(z));
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_sweep_apply(z, g));
    return CZ_OK;
}

static cz_status update_full(struct zero *z)
{
    for (size_t g = 0; g < z->options.n_groups; g++) TRY(zero_sweep_group(z, g));
    if (onebit_is_lamb(z)) onebit_lamb_warmed(z);
    z->onebit->masks_stale = true;
    return CZ_OK;
}

/* ---- ZeroOneAdam on its own ------------------------------------------------------------------ */

static struct zero_one_args zero_one_args(const struct zero *z, const struct onebit_segment *s,
                                          const struct onebit_run *run)
{
    const struct zero_options *o = &z->options;
    const struct zero_group *g = &z->groups[run->group];
    const struct optim_hyper *hyper = &o->groups[run->group].hyper;
    float *masters = (float *)(void *)(z->blocks[ZERO_MASTERS] + g->master_off);
    unsigned char *params = zero_group_params(z, run->group);
    return (struct zero_one_args){.numel = run->numel,
                                  .g = run_grads(z, run),
                                  .g_dtype = o->grad_dtype,
                                  .scalars = &z->scalars[run->group],
                                  .eps = (float)hyper->eps,
                                  .weight_decay = (float)hyper->weight_decay,
                                  .mask = onebit_mask_of(z, s, run),
                                  .m = onebit_momentum(z, run->group) + run->flat_off,
                                  .moved = onebit_moved(z, run->group) + run->flat_off,
                                  .v = whole_state(z, run->group, 1) + run->flat_off,
                                  .p = masters + run->flat_off,
                                  .out = params + run->flat_off * dtype_size(o->dtype),
                                  .out_dtype = o->dtype};
}

static cz_status claim_params(struct zero *z, const struct zero_one_args *args)
{
    const struct zero_range range = {.memory = args->out,
                                     .nbytes = args->numel * dtype_size(args->out_dtype)};
    return zero_claim(z, &range);
}

static cz_status local_run(struct zero *z, const struct onebit_segment *s,
                           const struct onebit_run *run)
{
    const struct zero_one_args args = zero_one_args(z, s, run);
    TRY(claim_state(z, run, 0));
    TRY(claim_state(z, run, 2));
    TRY(claim_params(z, &args));
    return z->options.ops->zero_one_local(z->options.ops, z->options.stream, &args);
}

static cz_status gather_run(struct zero *z, const struct onebit_segment *s,
                            const struct onebit_run *run)
{
    const struct zero_one_args args = zero_one_args(z, s, run);
    return z->options.ops->zero_one_gather(z->options.ops, z->options.stream, &args);
}

static cz_status settle_run(struct zero *z, const struct onebit_segment *s,
                            const struct onebit_run *run)
{
    const struct zero_one_args args = zero_one_args(z, s, run);
    const struct zero_range masters = {.memory = (const unsigned char *)args.p,
                                       .nbytes = args.numel * sizeof *args.p};
    TRY(zero_claim(z, &masters));
    return z->options.ops->zero_one_settle(z->options.ops, z->options.stream, &args);
}

static cz_status update_alone(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    if (ob->masks_stale) TRY(make_masks(z));
    for (size_t g = 0; g < z->options.n_groups; g++) ob->lrs[g] += z->options.groups[g].lr;
    return each_run(z, local_run);
}

static cz_status settle(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    TRY(each_run(z, gather_run));
    if (world(z) > 1) TRY(onebit_exchange(z, PAYLOAD_MOVES));
    for (size_t g = 0; g < z->options.n_groups; g++) {
        z->scalars[g].step_size = (float)ob->lrs[g];
        ob->lrs[g] = 0;
    }
    return each_run(z, settle_run);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Stage 1: everyone's part of the momentum to everyone, as exchanges need it. */
static cz_status gather_momentum(struct zero *z)
{
    if (z->options.stage == 0 || world(z) == 1) return CZ_OK;
    for (size_t g = 0; g < z->options.n_groups; g++) {
        const struct zero_group *group = &z->groups[g];
        float *m = onebit_momentum(z, g);
        const struct zero_range range = {.memory = (const unsigned char *)m,
                                         .nbytes = group->flat.numel_padded * sizeof *m};
        if (range.nbytes == 0) continue;
        TRY(zero_claim(z, &range));
        TRY(comm_all_gather(z->options.comm, m + group->own_begin, m,
                            group->own_numel * sizeof *m));
    }
    return CZ_OK;
}

/* The variance stays as it is from here on. */
static cz_status freeze(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    if (is_zero_one(z)) { /* errors of gradients say nothing about moves */
        const struct zero_range errors =
            floats_at(ob->worker_errors, z->nbytes[ZERO_ERRORS] / sizeof(float));
        if (errors.nbytes == 0) return CZ_OK;
        TRY(zero_claim(z, &errors));
        memset(ob->worker_errors, 0, errors.nbytes);
        return CZ_OK;
    }
    TRY(gather_momentum(z));
    return onebit_is_lamb(z) ? onebit_lamb_freeze(z) : CZ_OK;
}

static cz_status act(struct zero *z, enum onebit_act what)
{
    switch (what) {
    case ONEBIT_INIT: return CZ_OK;
    case ONEBIT_FULL: return update_full(z);
    case ONEBIT_MOMENTUM: return update_momentum(z, PAYLOAD_MOMENTUM);
    case ONEBIT_GRADIENT: return update_momentum(z, PAYLOAD_GRADIENT);
    case ONEBIT_LOCAL: return update_alone(z);
    case ONEBIT_SETTLE: TRY(update_alone(z)); return settle(z);
    }
    return CZ_OK;
}

cz_status zero_onebit_step(struct zero *z)
{
    struct onebit_clock *clock = &z->onebit->clock;
    enum onebit_act what = onebit_next(hyper_of(z), clock);
    TRY(act(z, what));
    z->params_changed = what != ONEBIT_INIT;
    return onebit_advance(hyper_of(z), clock) ? freeze(z) : CZ_OK;
}

const float *zero_onebit_one(const struct zero *z)
{
    return &z->onebit->constants->one;
}

bool zero_averages(const struct zero *z)
{
    return !z->onebit || onebit_averages(onebit_next(hyper_of(z), &z->onebit->clock));
}

/* ---- for checkpoints ------------------------------------------------------------------------- */

size_t zero_n_segments(const struct zero *z)
{
    return z->onebit && world(z) > 1 ? z->onebit->n_segments : 0;
}

struct zero_segment zero_segment(const struct zero *z, size_t segment)
{
    const struct onebit_segment *s = &z->onebit->segments[segment];
    return (struct zero_segment){.param_idx = z->onebit->run_params + s->first_run,
                                 .n_params = s->n_runs,
                                 .numel = s->numel,
                                 .numel_padded = s->numel_padded};
}

struct zero_onebit zero_onebit(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    if (!ob) return (struct zero_onebit){0};
    return (struct zero_onebit){.clock = &ob->clock,
                                .lrs = is_zero_one(z) ? ob->lrs : NULL,
                                .tensors = onebit_is_lamb(z) ? ob->tensors : NULL};
}

static struct zero_range errors_of(const struct zero *z, enum zero_onebit_what what, size_t idx)
{
    const struct zero_onebit_core *ob = z->onebit;
    const struct onebit_segment *s = &ob->segments[idx];
    if (what == ZERO_WORKER_ERROR)
        return floats_at(ob->worker_errors + s->error_off, s->numel_padded);
    return floats_at(ob->server_errors + s->server_off, s->numel_padded / (size_t)world(z));
}

struct zero_range zero_onebit_range(const struct zero *z, enum zero_onebit_what what, size_t idx)
{
    const struct zero_onebit_core *ob = z->onebit;
    if (!ob) return (struct zero_range){0};
    if (what == ZERO_WORKER_ERROR || what == ZERO_SERVER_ERROR)
        return world(z) == 1 ? (struct zero_range){0} : errors_of(z, what, idx);
    if (!is_zero_one(z)) return (struct zero_range){0};
    const struct onebit_run *run = &ob->runs[ob->run_of[idx]];
    const float *x =
        what == ZERO_LOCAL_MOMENTUM ? onebit_momentum(z, run->group) : onebit_moved(z, run->group);
    return floats_at(x + run->flat_off, run->numel);
}

bool zero_onebit_is_apart(const struct zero *z, size_t group)
{
    return z->moves_alone && z->onebit->lrs[group] != 0;
}

void zero_onebit_wrote(struct zero *z, size_t state_idx, size_t param_idx, size_t off, size_t numel,
                       const float *src)
{
    const struct onebit_run *run = &z->onebit->runs[z->onebit->run_of[param_idx]];
    if (state_idx == 0)
        memcpy(onebit_momentum(z, run->group) + run->flat_off + off, src, numel * sizeof *src);
    if (state_idx == 1) z->onebit->masks_stale = true;
}

/* Parameters as this rank has moved them since the last exchange. */
static cz_status place_run(struct zero *z, const struct onebit_segment *s,
                           const struct onebit_run *run)
{
    const struct zero_one_args args = zero_one_args(z, s, run);
    struct ops *ops = z->options.ops;
    float *sum = (float *)(void *)z->onebit->partials;
    for (size_t at = 0, n; at < run->numel; at += n) {
        n = run->numel - at < ONEBIT_BLOCK ? run->numel - at : ONEBIT_BLOCK;
        const struct add_args add = {
            .dtype = DTYPE_F32, .numel = n, .a = args.p + at, .b = args.moved + at, .y = sum};
        TRY(ops->add(ops, z->options.stream, &add));
        TRY(zero_cast(z, DTYPE_F32, sum, args.out_dtype,
                      (unsigned char *)args.out + at * dtype_size(args.out_dtype), n));
    }
    return CZ_OK;
}

cz_status zero_onebit_restored(struct zero *z)
{
    if (!z->onebit) return CZ_OK;
    z->onebit->masks_stale = true;
    if (!z->onebit->clock.frozen) return CZ_OK;
    return is_zero_one(z) ? each_run(z, place_run) : gather_momentum(z);
}

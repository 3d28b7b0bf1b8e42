/* What the 1-bit family compresses together (segments), and where its arrays are. */
#include "zero/onebit/onebit_impl.h"

#include "base/size.h"

#include <stdlib.h>

float *onebit_state(const struct zero *z, size_t group, size_t state_idx)
{
    const struct zero_group *g = &z->own.groups[group];
    unsigned char *own = z->mem.blocks[ZERO_STATE_0 + state_idx] + g->state_off[state_idx];
    return (float *)(void *)own - g->own_begin;
}

float *onebit_momentum(const struct zero *z, size_t group)
{
    return onebit_state(z, group, 0);
}

float *onebit_moved(const struct zero *z, size_t group)
{
    return onebit_state(z, group, 2);
}

const void *onebit_grads(const struct zero *z, size_t group)
{
    return z->mem.blocks[ZERO_GRADS] + z->own.groups[group].grad_off;
}

bool onebit_own_part(const struct zero *z, const struct onebit_run *run, size_t *begin, size_t *end)
{
    size_t lo = z->own.groups[run->group].own_begin, hi = lo + z->own.groups[run->group].own_numel;
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

const void *onebit_run_grads(const struct zero *z, const struct onebit_run *run)
{
    return (const unsigned char *)onebit_grads(z, run->group) +
           run->flat_off * dtype_size(z->options.grad_dtype);
}

cz_status onebit_claim(struct zero *z, const struct onebit_run *run, size_t state_idx)
{
    return onebit_claim_floats(z, onebit_state(z, run->group, state_idx) + run->flat_off,
                               run->numel);
}

cz_status onebit_each_run(struct zero *z, onebit_run_fn fn)
{
    struct zero_onebit_core *ob = z->onebit;
    for (size_t i = 0; i < ob->n_segments; i++) {
        const struct onebit_segment *s = &ob->segments[i];
        for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++)
            TRY(fn(z, s, &ob->runs[r]));
    }
    return CZ_OK;
}

/* ---- segments -------------------------------------------------------------------------------- */

cz_status zero_onebit_check(const struct zero_options *o)
{
    const struct optim_hyper *onebit = onebit_of(o->groups, o->n_groups);
    for (size_t g = 0; onebit && g < o->n_groups; g++)
        if (o->groups[g].hyper.cls != onebit->cls)
            return err_set(CZ_INVALID, 0, "%s cannot be combined with another optimizer",
                           onebit->cls->name);
    return CZ_OK;
}

/* Whether a new segment begins with a parameter of this group: in fp32 each parameter is one, in 16
 * bits each group, for OneBitLamb everything (as in DeepSpeed 0.16.9). */
static bool begins_segment(const struct zero *z, size_t group)
{
    const struct zero_onebit_core *ob = z->onebit;
    if (ob->n_runs == 0) return true;
    if (onebit_is_lamb(z)) return false;
    return z->options.dtype == DTYPE_F32 || group != ob->runs[ob->n_runs - 1].group;
}

/* Parameters in table order within their group: a segment is compressed in that order, padding
 * last. */
static void add_run(struct zero *z, size_t group, size_t pos)
{
    struct zero_onebit_core *ob = z->onebit;
    const struct flat_param *p = &z->own.groups[group].flat.params[pos];
    if (p->numel == 0) return;
    if (begins_segment(z, group))
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

static void place_segments(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    /* A multiple of W·lcm(W, 8): each of W chunks is then whole bytes of signs (DeepSpeed's too).
     */
    size_t w = onebit_world(z), unit = w > 1 ? w * (w / gcd(w, 8) * 8) : 1;
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
        /* Partial sums: on the way to the servers one series per run and the padding's, there one
         * of the chunk. */
        size_t n = onebit_n_partials(s->numel_padded - s->numel);
        size_t n_served = onebit_n_partials(s->numel_padded / w);
        for (size_t r = s->first_run; r < s->first_run + s->n_runs; r++)
            n += onebit_n_partials(ob->runs[r].numel);
        if (n < n_served) n = n_served;
        if (n > ob->n_partials) ob->n_partials = n;
    }
}

static cz_status take_blocks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    size_t w = onebit_world(z), off;
    TRY(zero_block_take(z, ZERO_SIGNS, ob->mask_nbytes, DTYPE_U8, &ob->masks_off));
    TRY(zero_block_take(z, ZERO_SIGNS, sizeof *ob->constants, DTYPE_U8, &ob->constants_off));
    TRY(zero_block_take(z, ZERO_SIGNS, onebit_is_lamb(z) ? ob->n_runs : 0, DTYPE_F32,
                        &ob->factors_off));
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
    size_t n = z->options.table->n_params + 1, w = onebit_world(z);
    struct zero_onebit_core *ob = calloc(1, sizeof *ob);
    z->onebit = ob;
    if (!ob) return err_set(CZ_NOMEM, 0, "no memory for the 1-bit exchange");
    ob->lrs = calloc(z->options.n_groups + 1, sizeof *ob->lrs);
    ob->apart = calloc(z->options.n_groups + 1, sizeof *ob->apart);
    ob->tensors = calloc(n, sizeof *ob->tensors);
    ob->runs = calloc(n, sizeof *ob->runs);
    ob->run_params = calloc(n, sizeof *ob->run_params);
    ob->run_of = calloc(n, sizeof *ob->run_of);
    ob->segments = calloc(n, sizeof *ob->segments);
    ob->maxima = calloc(n * w, sizeof *ob->maxima);
    ob->found = calloc(n, sizeof *ob->found);
    ob->squares = calloc(n, SQUARES_DIGITS * sizeof *ob->squares);
    ob->norms = calloc(n, sizeof *ob->norms);
    ob->numels = calloc(n, sizeof *ob->numels);
    ob->scaled = calloc(n, sizeof *ob->scaled);
    if (!ob->found || !ob->squares || !ob->norms || !ob->numels || !ob->scaled || !ob->lrs ||
        !ob->apart || !ob->tensors || !ob->runs || !ob->run_params || !ob->run_of ||
        !ob->segments || !ob->maxima)
        return err_set(CZ_NOMEM, 0, "no memory for the 1-bit exchange of %zu parameters", n - 1);
    return CZ_OK;
}

/* Signs to the servers and back, and a scale per segment each way. */
static void count_signs(struct zero *z)
{
    const struct zero_onebit_core *ob = z->onebit;
    size_t others = onebit_world(z) - 1;
    if (others == 0) return;
    z->figures.signs_nbytes = 2 * others * (ob->piece_nbytes + ob->n_segments * sizeof(float));
    if (!onebit_is_lamb(z) || z->options.stage == 0) return;
    z->figures.signs_nbytes += others * ob->n_runs * sizeof *ob->maxima; /* factors of tensors */
}

cz_status zero_onebit_init(struct zero *z)
{
    if (!onebit_hyper(z)) return CZ_OK;
    TRY(alloc_core(z));
    for (size_t g = 0; g < z->options.n_groups; g++)
        for (size_t p = 0; p < z->own.groups[g].flat.n_params; p++) add_run(z, g, p);
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
    free(ob->apart);
    free(ob->tensors);
    free(ob->runs);
    free(ob->run_params);
    free(ob->run_of);
    free(ob->segments);
    free(ob->maxima);
    free(ob->found);
    free(ob->squares);
    free(ob->norms);
    free(ob->numels);
    free(ob->scaled);
    free(ob);
}

cz_status zero_onebit_bind(struct zero *z)
{
    static const struct onebit_constants constants = {.unit = {.grad_scale = 1}, .one = 1};
    struct zero_onebit_core *ob = z->onebit;
    unsigned char *signs = z->mem.blocks[ZERO_SIGNS];
    if (!ob) return CZ_OK;
    ob->masks = signs + ob->masks_off;
    ob->partials = (double *)(void *)(signs + ob->partials_off);
    ob->constants = (struct onebit_constants *)(void *)(signs + ob->constants_off);
    ob->factors = (float *)(void *)(signs + ob->factors_off);
    ob->out = signs + ob->out_off;
    ob->in = signs + ob->in_off;
    ob->worker_scales = (float *)(void *)(signs + ob->scales_off);
    ob->server_scales = ob->worker_scales + onebit_world(z) * ob->n_segments;
    ob->worker_errors = (float *)(void *)z->mem.blocks[ZERO_ERRORS];
    ob->server_errors = ob->worker_errors + ob->worker_numel;
    return zero_copy(z, z->options.stream, ob->constants, &constants, sizeof constants);
}

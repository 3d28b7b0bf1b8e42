/* Which elements of the 1-bit family are masked (see ONEBIT_MASK_RATIO): those whose variance is
 * nothing beside their tensor's largest would be moved far by a sign. At stage 1 each rank sees its
 * part of the variance; maxima and masks are made whole by collectives. */
#include "zero/onebit/onebit_impl.h"

float *onebit_max_of(const struct zero *z, const struct onebit_run *run)
{
    const struct zero_onebit_core *ob = z->onebit;
    return ob->maxima + (size_t)z->options.comm->rank * ob->n_runs + (run - ob->runs);
}

/* At stage 1 a tensor's variance is on several ranks. */
cz_status onebit_max_over_ranks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    size_t n = ob->n_runs, w = onebit_world(z);
    float *mine = onebit_max_of(z, ob->runs);
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

struct scan_result *onebit_found(const struct zero *z, const struct onebit_run *run)
{
    return &z->onebit->found[run - z->onebit->runs];
}

cz_status onebit_scan(struct zero *z, const struct onebit_run *run, const float *x, size_t numel,
                      uint64_t *squares)
{
    struct ops *ops = z->options.ops;
    const struct scan_args args = {.dtype = DTYPE_F32,
                                   .numel = numel,
                                   .x = x,
                                   .result = onebit_found(z, run),
                                   .squares = squares};
    return ops_scan(ops, z->options.stream, &args);
}

static cz_status scan_variance(struct zero *z, const struct onebit_segment *s,
                               const struct onebit_run *run)
{
    size_t begin, end;
    (void)s;
    *onebit_found(z, run) = (struct scan_result){0};
    if (!onebit_own_part(z, run, &begin, &end)) return CZ_OK;
    const float *v = onebit_state(z, run->group, 1) + run->flat_off + begin;
    return onebit_scan(z, run, v, end - begin, NULL);
}

/* The bits of this rank's part of a parameter: whose variance is not tiny beside the tensor's. */
static cz_status mask_run(struct zero *z, const struct onebit_segment *s,
                          const struct onebit_run *run)
{
    struct ops *ops = z->options.ops;
    size_t begin, end;
    if (!onebit_own_part(z, run, &begin, &end)) return CZ_OK;
    const struct onebit_mask_make_args args = {.numel = end - begin,
                                               .v = onebit_state(z, run->group, 1) + run->flat_off +
                                                    begin,
                                               .floor = *onebit_max_of(z, run) * ONEBIT_MASK_RATIO,
                                               .first = s->mask_bit + run->seg_off + begin,
                                               .bits = z->onebit->masks};
    return ops_onebit_mask_make(ops, z->options.stream, &args);
}

/* Bits of what others own are zero here: joined, each rank has all of them. */
cz_status onebit_make_masks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    TRY(onebit_each_run(z, scan_variance));
    TRY(zero_sync(z));
    for (size_t r = 0; r < ob->n_runs; r++) *onebit_max_of(z, &ob->runs[r]) = ob->found[r].max_abs;
    TRY(onebit_max_over_ranks(z));
    TRY(onebit_fill_zero(z, ob->masks, ob->mask_nbytes));
    TRY(onebit_each_run(z, mask_run));
    if (z->options.stage > 0 && onebit_world(z) > 1) TRY(onebit_masks_join(z));
    ob->masks_stale = false;
    return CZ_OK;
}

/* Which elements of the 1-bit family are masked: see ONEBIT_MASK_RATIO. */
#include "zero/onebit_impl.h"

#include <string.h>

cz_status onebit_max_over_ranks(struct zero *z)
{
    struct zero_onebit_core *ob = z->onebit;
    size_t n = ob->n_runs, w = (size_t)onebit_world(z);
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
                                   .x = onebit_state(z, run->group, 1) + run->flat_off + begin,
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
                                               .v = onebit_state(z, run->group, 1) + run->flat_off +
                                                    begin,
                                               .floor = floor,
                                               .first = s->mask_bit + run->seg_off + begin,
                                               .bits = z->onebit->masks};
    return ops->onebit_mask_make(ops, z->options.stream, &args);
}

cz_status onebit_make_masks(struct zero *z)
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
    if (z->options.stage > 0 && onebit_world(z) > 1) TRY(onebit_masks_join(z));
    ob->masks_stale = false;
    return CZ_OK;
}

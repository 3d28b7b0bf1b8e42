/* What checkpoints and writers of single tensors see of the 1-bit family. */
#include "zero/onebit/onebit_impl.h"

size_t zero_n_segments(const struct zero *z)
{
    return z->onebit && onebit_world(z) > 1 ? z->onebit->n_segments : 0;
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
                                .lrs = z->own.local_steps ? ob->lrs : NULL,
                                .tensors = onebit_is_lamb(z) ? ob->tensors : NULL};
}

struct zero_range zero_onebit_range(const struct zero *z, enum zero_onebit_what what, size_t idx)
{
    const struct zero_onebit_core *ob = z->onebit;
    if (!ob) return (struct zero_range){0};
    if (what == ZERO_WORKER_ERROR || what == ZERO_SERVER_ERROR) {
        const struct onebit_segment *s = &ob->segments[idx];
        size_t w = onebit_world(z);
        if (w == 1) return (struct zero_range){0};
        return what == ZERO_WORKER_ERROR
                   ? onebit_floats(z, ob->worker_errors + s->error_off, s->numel_padded)
                   : onebit_floats(z, ob->server_errors + s->server_off, s->numel_padded / w);
    }
    if (!z->own.local_steps) return (struct zero_range){0};
    const struct onebit_run *run = &ob->runs[ob->run_of[idx]];
    const float *x =
        what == ZERO_LOCAL_MOMENTUM ? onebit_momentum(z, run->group) : onebit_moved(z, run->group);
    return onebit_floats(z, x + run->flat_off, run->numel);
}

/* All of a range, as zero_placement_get() and zero_placement_put() reach it. */
static struct zero_placement placement_of(const struct zero_range *range)
{
    return (struct zero_placement){.dtype = DTYPE_F32,
                                   .on_gpu = range->on_gpu,
                                   .memory =
                                       (unsigned char *)(uintptr_t)range->memory, /* our block */
                                   .resident = SIZE_MAX};
}

cz_status zero_onebit_read(struct zero *z, enum zero_onebit_what what, size_t idx, size_t off,
                           size_t numel, float *dst)
{
    const struct zero_range range = zero_onebit_range(z, what, idx);
    const struct zero_placement where = placement_of(&range);
    return zero_placement_get(z, &where, off, numel, dst);
}

cz_status zero_onebit_write(struct zero *z, enum zero_onebit_what what, size_t idx, size_t off,
                            size_t numel, const float *src)
{
    const struct zero_range range = zero_onebit_range(z, what, idx);
    const struct zero_placement where = placement_of(&range);
    return zero_placement_put(z, &where, off, numel, src);
}

cz_status zero_onebit_clear(struct zero *z, enum zero_onebit_what what, size_t idx)
{
    const struct zero_range range = zero_onebit_range(z, what, idx);
    return onebit_fill_zero(z, (void *)(uintptr_t)range.memory, range.nbytes);
}

/* Local steps have changed this rank's momentum; the others' differ. */
bool zero_onebit_is_apart(const struct zero *z, size_t group)
{
    return z->own.local_steps && z->onebit->apart[group];
}

cz_status zero_onebit_wrote_weight(struct zero *z, size_t param_idx, size_t off, size_t numel)
{
    const struct onebit_run *run = &z->onebit->runs[z->onebit->run_of[param_idx]];
    if (!z->own.local_steps || z->own.params[param_idx].group == z->options.n_groups) return CZ_OK;
    return onebit_fill_zero(z, onebit_moved(z, run->group) + run->flat_off + off,
                            numel * sizeof(float));
}

cz_status zero_onebit_wrote(struct zero *z, size_t state_idx, size_t param_idx, size_t off,
                            size_t numel, const float *src)
{
    const struct onebit_run *run = &z->onebit->runs[z->onebit->run_of[param_idx]];
    if (state_idx == 1) z->onebit->masks_stale = true;
    if (state_idx != 0) return CZ_OK;
    const struct zero_range whole =
        onebit_floats(z, onebit_momentum(z, run->group) + run->flat_off, run->numel);
    const struct zero_placement where = placement_of(&whole);
    return zero_placement_put(z, &where, off, numel, src);
}

cz_status zero_onebit_restored(struct zero *z)
{
    if (!z->onebit) return CZ_OK;
    for (size_t g = 0; g < z->options.n_groups; g++) z->onebit->apart[g] = z->onebit->lrs[g] != 0;
    z->onebit->masks_stale = true;
    if (z->onebit->clock.frozen)
        TRY(z->own.local_steps ? onebit_place_moved(z) : onebit_gather_momentum(z));
    return zero_gpu_settle(z);
}

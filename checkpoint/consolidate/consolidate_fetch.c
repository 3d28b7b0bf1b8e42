/* Elements of a tensor out of the shards: as they lie there, or converted on the way. */
#include "checkpoint/consolidate/consolidate_impl.h"

enum { CHUNK_NUMEL = 4096 };

static void convert(enum cz_dtype dtype, void *dst, size_t at, const float *src, size_t n)
{
    uint16_t *out = (uint16_t *)dst + at;
    if (dtype == DTYPE_BF16)
        for (size_t i = 0; i < n; i++) out[i] = f32_to_bf16(src[i]);
    else
        for (size_t i = 0; i < n; i++) out[i] = f32_to_f16(src[i]);
}

/* Through fp32: what widens does so without loss. */
static cz_status fetch_converted(const struct cons_plan *plan, const struct cons_tensor *t,
                                 uint64_t elem_off, size_t numel, void *dst)
{
    float chunk[CHUNK_NUMEL];
    if (t->dtype->base == DTYPE_F32)
        return ckpt_read(plan->ck, t->idx, CKPT_MASTER, elem_off, numel, dst);
    for (size_t done = 0; done < numel; done += CHUNK_NUMEL) {
        size_t n = numel - done < CHUNK_NUMEL ? numel - done : CHUNK_NUMEL;
        TRY(ckpt_read(plan->ck, t->idx, CKPT_MASTER, elem_off + done, n, chunk));
        convert(t->dtype->base, dst, done, chunk, n);
    }
    return CZ_OK;
}

cz_status cons_fetch(const struct cons_plan *plan, const struct cons_tensor *t, uint64_t elem_off,
                     size_t numel, void *dst)
{
    if (t->dtype == ckpt_dtype(plan->ck, t->idx, CKPT_MASTER))
        return ckpt_read_raw(plan->ck, t->idx, CKPT_MASTER, elem_off, numel, dst);
    return fetch_converted(plan, t, elem_off, numel, dst);
}

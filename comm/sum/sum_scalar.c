/* Row 0: the definition, in plain loops. */
#include "comm/sum/sum_impl.h"

/* sum + x, but a NaN in the sum stays: of two NaNs, compilers may pick either. */
static float plus(float sum, float x)
{
    return sum != sum ? sum : sum + x;
}

static void convert(void *dst, enum cz_dtype dst_dtype, const void *src, enum cz_dtype src_dtype,
                    size_t numel)
{
    if (dst_dtype == src_dtype) {
        if (numel > 0) memmove(dst, src, numel * dtype_size(dst_dtype));
        return;
    }
    for (size_t i = 0; i < numel; i++) dtype_put(dst, i, dst_dtype, dtype_get(src, i, src_dtype));
}

static void add(void *dst, enum cz_dtype dst_dtype, const void *src, enum cz_dtype src_dtype,
                size_t numel)
{
    for (size_t i = 0; i < numel; i++)
        dtype_put(dst, i, dst_dtype,
                  plus(dtype_get(src, i, src_dtype), dtype_get(dst, i, dst_dtype)));
}

static void sum(const struct sum_sources *s, const void *own, size_t begin, size_t numel, void *out)
{
    for (size_t i = 0; i < numel; i++) {
        float total = 0;
        for (int r = 0; r < s->n_ranks; r++)
            total = plus(total, r == s->own_rank ? dtype_get(own, i, s->dtype)
                                                 : dtype_get(s->wire[r], begin + i, s->dtype));
        dtype_put(out, i, s->dtype, total * s->scale);
    }
}

static void send(void *slot, const void *src, size_t nbytes)
{
    if (nbytes > 0) memcpy(slot, src, nbytes);
}

static void send_end(void) {}

const struct sum_row sum_scalar = {"scalar", 0, convert, add, sum, send, send_end};

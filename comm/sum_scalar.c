/* Row 0: the definition, in plain loops. */
#include "comm/sum_impl.h"

static float load(const void *p, size_t i, enum dtype dtype)
{
    if (dtype == DTYPE_BF16) return bf16_to_f32(((const uint16_t *)p)[i]);
    if (dtype == DTYPE_F16) return f16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

static void store(void *p, size_t i, enum dtype dtype, float x)
{
    if (dtype == DTYPE_BF16)
        ((uint16_t *)p)[i] = f32_to_bf16(x);
    else if (dtype == DTYPE_F16)
        ((uint16_t *)p)[i] = f32_to_f16(x);
    else
        ((float *)p)[i] = x;
}

/* sum + x, but a NaN in the sum stays: of two NaNs, compilers may pick either. */
static float plus(float sum, float x)
{
    return sum != sum ? sum : sum + x;
}

static void convert(void *dst, enum dtype dst_dtype, const void *src, enum dtype src_dtype,
                    size_t numel)
{
    if (dst_dtype == src_dtype) {
        if (numel > 0) memmove(dst, src, numel * dtype_size(dst_dtype));
        return;
    }
    for (size_t i = 0; i < numel; i++) store(dst, i, dst_dtype, load(src, i, src_dtype));
}

static void add(void *dst, enum dtype dst_dtype, const void *src, enum dtype src_dtype,
                size_t numel)
{
    for (size_t i = 0; i < numel; i++)
        store(dst, i, dst_dtype, plus(load(src, i, src_dtype), load(dst, i, dst_dtype)));
}

static void sum(const struct sum_sources *s, const void *own, size_t begin, size_t numel, void *out)
{
    for (size_t i = 0; i < numel; i++) {
        float total = 0;
        for (int r = 0; r < s->n_ranks; r++)
            total = plus(total, r == s->own_rank ? load(own, i, s->dtype)
                                                 : load(s->wire[r], begin + i, s->dtype));
        store(out, i, s->dtype, total * s->scale);
    }
}

static void send(void *slot, const void *src, size_t nbytes)
{
    if (nbytes > 0) memcpy(slot, src, nbytes);
}

static void send_end(void) {}

const struct sum_row sum_scalar = {"scalar", 0, convert, add, sum, send, send_end};

/* The vector rows' bodies, compiled once per instruction set. Before it, the including file defines
 * for vectors `vec` of VEC_N floats:
 *   vec_set1, vec_plus (as in row 0: a NaN in the first stays), vec_mul,
 *   vec_load, vec_store (VEC_N elements of a dtype), vec_load_n, vec_store_n (the first n of them,
 *   0 for the others, nothing else touched),
 *   stream_line (LINE_NBYTES past the caches, to a multiple of that),
 *   half_even, half_odd, half_join: 2·VEC_N bf16 elements as two vectors by their place, which
 *   costs less than putting them in order. */
#ifndef CZ_COMM_SUM_SUM_VEC_IMPL_H
#define CZ_COMM_SUM_SUM_VEC_IMPL_H

#include "comm/sum/sum_impl.h"

#define LINE_NBYTES 64

typedef struct pair { /* 2·VEC_N elements; in which order depends on the dtype alone */
    vec a, b;
} pair;

VEC_FN pair pair_load(const void *p, enum cz_dtype dtype, size_t n)
{
    if (n < 2 * VEC_N) {
        if (n <= VEC_N) return (pair){vec_load_n(p, 0, dtype, n), vec_set1(0)};
        return (pair){vec_load(p, 0, dtype), vec_load_n(p, VEC_N, dtype, n - VEC_N)};
    }
    if (dtype == DTYPE_BF16) return (pair){half_even(p), half_odd(p)};
    return (pair){vec_load(p, 0, dtype), vec_load(p, VEC_N, dtype)};
}

VEC_FN void pair_store(void *p, enum cz_dtype dtype, pair x, size_t n)
{
    if (n < VEC_N) {
        vec_store_n(p, 0, dtype, x.a, n);
    } else if (n < 2 * VEC_N) {
        vec_store(p, 0, dtype, x.a);
        vec_store_n(p, VEC_N, dtype, x.b, n - VEC_N);
    } else if (dtype == DTYPE_BF16) {
        half_join(p, x.a, x.b);
    } else {
        vec_store(p, 0, dtype, x.a);
        vec_store(p, VEC_N, dtype, x.b);
    }
}

VEC_FN pair pair_plus(pair x, pair y)
{
    return (pair){vec_plus(x.a, y.a), vec_plus(x.b, y.b)};
}

VEC_FN pair pair_scale(pair x, vec scale)
{
    return (pair){vec_mul(x.a, scale), vec_mul(x.b, scale)};
}

/* Elements [begin + i …] of rank r. */
VEC_FN const char *source(const struct sum_sources *s, const void *own, int r, size_t begin,
                          size_t i, size_t size)
{
    return r == s->own_rank ? (const char *)own + i * size
                            : (const char *)s->wire[r] + (begin + i) * size;
}

VEC_FN void sum_pair(enum cz_dtype dtype, const struct sum_sources *s, const void *own,
                     size_t begin, size_t i, size_t n, void *out)
{
    size_t size = dtype == DTYPE_F32 ? 4 : 2;
    pair total = {vec_set1(0), vec_set1(0)};
    for (int r = 0; r < s->n_ranks; r++)
        total = pair_plus(total, pair_load(source(s, own, r, begin, i, size), dtype, n));
    pair_store((char *)out + i * size, dtype, pair_scale(total, vec_set1(s->scale)), n);
}

/* Two pairs at a time: additions of one hide the wait for those of the other. */
VEC_FN void sum_loop(enum cz_dtype dtype, const struct sum_sources *s, const void *own,
                     size_t begin, size_t numel, void *out)
{
    const size_t size = dtype == DTYPE_F32 ? 4 : 2, step = 2 * VEC_N;
    const vec scale = vec_set1(s->scale);
    size_t i = 0;
    for (; i + 2 * step <= numel; i += 2 * step) {
        pair x = {vec_set1(0), vec_set1(0)}, y = x;
        for (int r = 0; r < s->n_ranks; r++) {
            const char *p = source(s, own, r, begin, i, size);
            x = pair_plus(x, pair_load(p, dtype, step));
            y = pair_plus(y, pair_load(p + step * size, dtype, step));
        }
        pair_store((char *)out + i * size, dtype, pair_scale(x, scale), step);
        pair_store((char *)out + (i + step) * size, dtype, pair_scale(y, scale), step);
    }
    for (; i + step <= numel; i += step) sum_pair(dtype, s, own, begin, i, step, out);
    if (i < numel) sum_pair(dtype, s, own, begin, i, numel - i, out);
}

VEC_FN void convert_loop(enum cz_dtype to, enum cz_dtype from, void *dst, const void *src,
                         size_t numel)
{
    size_t i = 0;
    for (; i + VEC_N <= numel; i += VEC_N) vec_store(dst, i, to, vec_load(src, i, from));
    if (i < numel) vec_store_n(dst, i, to, vec_load_n(src, i, from, numel - i), numel - i);
}

VEC_FN void add_loop(enum cz_dtype to, enum cz_dtype from, void *dst, const void *src, size_t numel)
{
    size_t i = 0;
    for (; i + VEC_N <= numel; i += VEC_N)
        vec_store(dst, i, to, vec_plus(vec_load(src, i, from), vec_load(dst, i, to)));
    if (i == numel) return;
    size_t n = numel - i;
    vec sum = vec_plus(vec_load_n(src, i, from, n), vec_load_n(dst, i, to, n));
    vec_store_n(dst, i, to, sum, n);
}

VEC_FN void convert_to(enum cz_dtype to, enum cz_dtype from, void *dst, const void *src,
                       size_t numel)
{
    if (from == DTYPE_BF16)
        convert_loop(to, DTYPE_BF16, dst, src, numel);
    else if (from == DTYPE_F16)
        convert_loop(to, DTYPE_F16, dst, src, numel);
    else
        convert_loop(to, DTYPE_F32, dst, src, numel);
}

VEC_FN void add_to(enum cz_dtype to, enum cz_dtype from, void *dst, const void *src, size_t numel)
{
    if (from == DTYPE_BF16)
        add_loop(to, DTYPE_BF16, dst, src, numel);
    else if (from == DTYPE_F16)
        add_loop(to, DTYPE_F16, dst, src, numel);
    else
        add_loop(to, DTYPE_F32, dst, src, numel);
}

static void convert(void *dst, enum cz_dtype dst_dtype, const void *src, enum cz_dtype src_dtype,
                    size_t numel)
{
    if (dst_dtype != src_dtype)
        DTYPE_CALL(convert_to, dst_dtype, src_dtype, dst, src, numel);
    else if (dst != src && numel > 0)
        memmove(dst, src, numel * dtype_size(dst_dtype));
}

static void add(void *dst, enum cz_dtype dst_dtype, const void *src, enum cz_dtype src_dtype,
                size_t numel)
{
    DTYPE_CALL(add_to, dst_dtype, src_dtype, dst, src, numel);
}

static void sum(const struct sum_sources *s, const void *own, size_t begin, size_t numel, void *out)
{
    DTYPE_CALL(sum_loop, s->dtype, s, own, begin, numel, out);
}

/* Whole lines past the caches; what is before and behind them in the usual way. */
static void send(void *slot, const void *src, size_t nbytes)
{
    char *to = slot;
    const char *from = src;
    size_t lead = -(uintptr_t)to % LINE_NBYTES;
    if (nbytes < lead + LINE_NBYTES) lead = nbytes;
    memcpy(to, from, lead);
    size_t i = lead;
    for (; i + LINE_NBYTES <= nbytes; i += LINE_NBYTES) stream_line(to + i, from + i);
    memcpy(to + i, from + i, nbytes - i);
}

static void send_end(void)
{
    _mm_sfence();
}

#endif

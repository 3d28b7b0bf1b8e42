/* Choice of row, blocks that stay in the first cache level, and threads. */
#include "comm/sum_impl.h"

#include "base/threads.h"

/* Elements of a block: with two buffers of fp32, half of the smallest first-level cache. */
#define BLOCK_NUMEL ((size_t)2048)

/* Bytes of work per thread below which waking another one does not pay. */
#define GRAIN_NUMEL ((size_t)32768)

static const struct sum_row *const rows[] = {
    &sum_scalar,
    &sum_avx2,
    &sum_avx512,
};

const struct sum_row *const *sum_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

const struct sum_row *sum_row_pick(uint32_t features)
{
    size_t pick = 0;
    for (size_t i = 1; i < CZ_ARRAY_LEN(rows); i++)
        if ((rows[i]->features & ~features) == 0) pick = i;
    return rows[pick];
}

static int n_parts_of(size_t numel)
{
    if (numel < 2 * GRAIN_NUMEL) return 1;
    size_t useful = numel / GRAIN_NUMEL, n_threads = (size_t)threads_count();
    return (int)(useful < n_threads ? useful : n_threads);
}

static void *at(void *p, size_t i, enum dtype dtype)
{
    return (char *)p + i * dtype_size(dtype);
}

static const void *at_const(const void *p, size_t i, enum dtype dtype)
{
    return (const char *)p + i * dtype_size(dtype);
}

void sum_put(const struct sum_row *row, void *dst, enum dtype dst_dtype, const void *src,
             enum dtype src_dtype, bool accumulate, size_t numel)
{
    int n_parts = n_parts_of(numel);
#pragma omp parallel for schedule(static, 1) num_threads(n_parts) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(numel, BLOCK_NUMEL, n_parts, part, &begin, &end);
        (accumulate ? row->add : row->convert)(at(dst, begin, dst_dtype), dst_dtype,
                                               at_const(src, begin, src_dtype), src_dtype,
                                               end - begin);
    }
}

/* At most BLOCK_NUMEL elements: own part on the wire, sum, and from there to dst. */
static void sum_block(const struct sum_row *row, const struct sum_sources *s,
                      const struct sum_target *t, size_t begin, size_t n)
{
    float own_wire[BLOCK_NUMEL], sums[BLOCK_NUMEL]; /* room for either dtype */
    const void *own = at_const(s->own, begin, s->own_dtype);
    if (s->own_dtype != s->dtype) {
        row->convert(own_wire, s->dtype, own, s->own_dtype, n);
        own = own_wire;
    }
    void *dst = at(t->dst, begin, t->dst_dtype);
    bool direct = !t->shared && !t->accumulate && t->dst_dtype == s->dtype;
    void *out = t->shared ? at(t->shared, begin, s->dtype) : direct ? dst : sums;
    row->sum(s, own, begin, n, out);
    if (!direct) (t->accumulate ? row->add : row->convert)(dst, t->dst_dtype, out, s->dtype, n);
}

void sum_ranks(const struct sum_row *row, const struct sum_sources *s, const struct sum_target *t,
               size_t numel)
{
    int n_parts = n_parts_of(numel);
#pragma omp parallel for schedule(static, 1) num_threads(n_parts) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(numel, BLOCK_NUMEL, n_parts, part, &begin, &end);
        for (; begin < end; begin += BLOCK_NUMEL) {
            size_t n = end - begin < BLOCK_NUMEL ? end - begin : BLOCK_NUMEL;
            sum_block(row, s, t, begin, n);
        }
    }
}

/* Sums of what ranks sent, in rank order and in fp32: the arithmetic of every reduction on the
 * host. Rows for instruction sets must agree to the bit with the scalar one, because ranks may run
 * on different CPUs. */
#include "comm/sum/sum_impl.h"

#include "base/threads.h"

/* Elements of a block: two of fp32 fit in half of the smallest first-level cache. */
#define BLOCK_NUMEL ((size_t)2048)

/* Bytes per thread below which waking another one does not pay: about 20 us of work. */
#define GRAIN_NBYTES ((size_t)256 << 10)

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

static int n_parts_of(size_t numel, enum cz_dtype dtype)
{
    size_t useful = numel * dtype_size(dtype) / GRAIN_NBYTES;
    if (useful < 2) return 1;
    size_t n_threads = (size_t)threads_count();
    return (int)(useful < n_threads ? useful : n_threads);
}

static void *at(void *p, size_t i, enum cz_dtype dtype)
{
    return (char *)p + i * dtype_size(dtype);
}

static const void *at_const(const void *p, size_t i, enum cz_dtype dtype)
{
    return (const char *)p + i * dtype_size(dtype);
}

void sum_put(const struct sum_way *way, void *dst, enum cz_dtype dst_dtype, const void *src,
             enum cz_dtype src_dtype, bool accumulate, size_t numel)
{
    int n_parts = n_parts_of(numel, src_dtype);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(numel, BLOCK_NUMEL, n_parts, part, &begin, &end);
        (accumulate ? way->row->add : way->row->convert)(at(dst, begin, dst_dtype), dst_dtype,
                                                         at_const(src, begin, src_dtype), src_dtype,
                                                         end - begin);
    }
}

/* At most BLOCK_NUMEL elements of the same dtype, which the caches have, or of another one. */
static void send_block(const struct sum_way *way, void *slot, enum cz_dtype wire, const void *src,
                       enum cz_dtype src_dtype, size_t n)
{
    float on_wire[BLOCK_NUMEL]; /* of any wire dtype */
    if (!way->past_caches) {
        way->row->convert(slot, wire, src, src_dtype, n);
        return;
    }
    if (wire != src_dtype) {
        way->row->convert(on_wire, wire, src, src_dtype, n);
        src = on_wire;
    }
    way->row->send(slot, src, n * dtype_size(wire));
}

void sum_send(const struct sum_way *way, void *slot, enum cz_dtype wire, const void *src,
              enum cz_dtype src_dtype, size_t numel)
{
    int n_parts = n_parts_of(numel, src_dtype);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(numel, BLOCK_NUMEL, n_parts, part, &begin, &end);
        for (; begin < end; begin += BLOCK_NUMEL) {
            size_t n = end - begin < BLOCK_NUMEL ? end - begin : BLOCK_NUMEL;
            send_block(way, at(slot, begin, wire), wire, at_const(src, begin, src_dtype), src_dtype,
                       n);
        }
        if (way->past_caches && n_parts > 1) way->row->send_end(); /* of this thread */
    }
}

void sum_ranks(const struct sum_way *way, const struct sum_sources *s, const struct sum_target *t,
               size_t numel)
{
    int n_parts = n_parts_of(numel, s->own_dtype);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(numel, BLOCK_NUMEL, n_parts, part, &begin, &end);
        for (; begin < end; begin += BLOCK_NUMEL) {
            size_t n = end - begin < BLOCK_NUMEL ? end - begin : BLOCK_NUMEL;
            /* At most BLOCK_NUMEL elements: own part on the wire, sum, and from there to slot and
             * dst. */
            const struct sum_row *row = way->row;
            float own_wire[BLOCK_NUMEL], sums[BLOCK_NUMEL]; /* of any wire dtype */
            const void *own = at_const(s->own, begin, s->own_dtype);
            if (s->own_dtype != s->dtype) {
                row->convert(own_wire, s->dtype, own, s->own_dtype, n);
                own = own_wire;
            }
            void *dst = at(t->dst, begin, t->dst_dtype);
            bool direct = !t->accumulate && t->dst_dtype == s->dtype;
            void *out = direct ? dst : sums;
            row->sum(s, own, begin, n, out);
            if (t->shared)
                send_block(way, at(t->shared, begin, s->dtype), s->dtype, out, s->dtype, n);
            if (!direct)
                (t->accumulate ? row->add : row->convert)(dst, t->dst_dtype, out, s->dtype, n);
        }
        if (t->shared && way->past_caches && n_parts > 1) way->row->send_end();
    }
}

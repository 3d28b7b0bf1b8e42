/* Embedding on the host: a gather forward; backward, tokens are grouped by id, so that each row of
 * the table is summed by one thread, in the order of the tokens: no atomics, and the same bits for
 * any number of threads. */
#include "ops/embedding/embedding_impl.h"
#include "ops/table_impl.h"

#include <string.h>

static const struct embedding_row *const rows[] = {
    &embedding_scalar,
    &embedding_avx2,
    &embedding_avx512,
};

const struct embedding_row *const *embedding_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* On the host, ids can be looked at. */
static cz_status check_ids(const struct embedding_args *a, const char *op)
{
    for (int64_t n = 0; n < a->N; n++)
        if (a->ids[n] < 0 || a->ids[n] >= a->V)
            return err_set(CZ_INVALID, 0, "%s: id %d of token %lld is outside [0, %lld)", op,
                           a->ids[n], (long long)n, (long long)a->V);
    return CZ_OK;
}

static cz_status forward(struct ops *ops, struct dev_stream *stream, const struct embedding_args *a)
{
    (void)stream;
    TRY(embedding_forward_check(a));
    TRY(check_ids(a, "embedding_forward"));
    int n_parts = ops_n_parts((size_t)(a->N * a->C), OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split((size_t)a->N, 1, n_parts, part, &begin, &end);
        const size_t C = (size_t)a->C, row_nbytes = C * dtype_size(a->dtype);
        for (size_t n = begin; n < end; n++) {
            const char *from = (const char *)a->table + (size_t)a->ids[n] * row_nbytes;
            char *y = (char *)a->y + n * row_nbytes;
            if (a->accumulate)
                ops->embedding_row->add(a->dtype, y, from, C);
            else
                memcpy(y, from, row_nbytes);
        }
    }
    return CZ_OK;
}

static size_t host_embedding_workspace(const struct ops *ops, const struct embedding_args *a)
{
    (void)ops;
    return token_segments_nbytes((size_t)a->N);
}

/* The first segment at or past a position in `keys` (by_id false), or with an id of at least
 * `value`. */
static size_t segment_from(const struct token_segments *s, bool by_id, size_t value)
{
    size_t lo = 0, hi = s->n_segments;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        size_t at = by_id ? token_segments_id(s, mid) : s->starts[mid];
        if (at < value)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void zero_unnamed(const struct token_segments *s, const struct embedding_args *a)
{
    int n_parts = ops_n_parts((size_t)(a->V * a->C), OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split((size_t)a->V, 1, n_parts, part, &begin, &end);
        /* Zero those of the table's rows [begin, end) that no token names. */
        const size_t row_nbytes = (size_t)a->C * dtype_size(a->grad_dtype);
        size_t segment = segment_from(s, true, begin);
        for (size_t id = begin; id < end; segment++) {
            size_t named = segment < s->n_segments ? token_segments_id(s, segment) : end;
            size_t stop = named < end ? named : end;
            memset((char *)a->dtable + id * row_nbytes, 0, (stop - id) * row_nbytes);
            id = stop + 1;
        }
    }
}

/* Threads share the columns as far as cache lines allow, then the tokens: a common id costs no more
 * than others. Each element is summed by one thread, in token order. */
static void sum_segments(struct ops *ops, const struct token_segments *s,
                         const struct embedding_args *a)
{
    const size_t N = (size_t)a->N, C = (size_t)a->C;
    int n_threads = ops_n_parts(N * C, OPS_GRAIN);
    int n_cuts = ops_n_parts(C, 2 * OPS_PART_UNIT); /* of the columns */
    if (n_cuts > n_threads) n_cuts = n_threads;
    int n_parts = n_threads / n_cuts * n_cuts;
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end, first, last;
        threads_split(C, OPS_PART_UNIT, n_cuts, part % n_cuts, &begin, &end);
        threads_split(N, 1, n_parts / n_cuts, part / n_cuts, &first, &last);
        for (size_t i = segment_from(s, false, first); i < s->n_segments && s->starts[i] < last;
             i++) {
            const size_t id = token_segments_id(s, i);
            if (a->has_padding && id == (size_t)a->padding_id) continue;
            ops->embedding_row->sum_tokens(a, s->keys + s->starts[i],
                                           s->starts[i + 1] - s->starts[i], id, begin, end);
        }
    }
}

static cz_status backward(struct ops *ops, struct dev_stream *stream,
                          const struct embedding_args *a)
{
    (void)stream;
    TRY(embedding_backward_check(a, host_embedding_workspace(NULL, a)));
    TRY(check_ids(a, "embedding_backward"));
    if (a->C == 0) return CZ_OK;
    struct token_segments segments;
    token_segments_build(&segments, a->ids, (size_t)a->N, (size_t)a->V, a->workspace);
    if (!a->dtable_accumulate) zero_unnamed(&segments, a);
    if (!a->dtable_accumulate && a->has_padding) {
        const size_t row_nbytes = (size_t)a->C * dtype_size(a->grad_dtype);
        memset((char *)a->dtable + ((size_t)a->padding_id) * row_nbytes, 0, row_nbytes);
    }
    sum_segments(ops, &segments, a);
    return CZ_OK;
}

size_t ops_embedding_workspace(const struct ops *ops, const struct embedding_args *a)
{
    return ops->embedding_workspace ? ops->embedding_workspace(ops, a) : 0;
}

cz_status embedding_wire(struct ops *ops, uint32_t features)
{
    ops->embedding_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->embedding_forward = forward;
    ops->embedding_backward = backward;
    ops->embedding_workspace = host_embedding_workspace;
    return CZ_OK;
}

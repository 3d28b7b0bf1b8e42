/* LAMB on the host: checks, threads, choice of row; and what happens between its two passes, the
 * ratios of norms. Sums of squares are exact (fixed-point grids), so they are the same however
 * tensors are cut over threads and ranks. */
#include "ops/lamb/lamb_impl.h"
#include "ops/table_impl.h"

#include <math.h>

static const struct lamb_row *const rows[] = {&lamb_scalar, &lamb_avx2, &lamb_avx512};

const struct lamb_row *const *lamb_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

void lamb_sums_add(struct lamb_sums *to, const struct lamb_sums *from)
{
    for (int j = 0; j < LAMB_GRIDS; j++) {
        to->p[j] += from->p[j];
        to->u[j] += from->u[j];
    }
}

void lamb_segment_split(const struct lamb_segment *segment, int n_parts, int part, size_t *begin,
                        size_t *end)
{
    threads_split(segment->end - segment->begin, OPS_PART_UNIT, n_parts, part, begin, end);
    *begin += segment->begin;
    *end += segment->begin;
}

static cz_status lamb_moments(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a)
{
    (void)stream;
    TRY(lamb_check("lamb_moments", a, "sums", a->sums));
    for (size_t i = 0; i < a->n_segments; i++) {
        const struct lamb_segment *segment = &a->segments[i];
        int n_parts = ops_n_parts(segment->end - segment->begin, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
        for (int part = 0; part < n_parts; part++) {
            size_t begin, end;
            struct lamb_sums sums = {{0}, {0}};
            lamb_segment_split(segment, n_parts, part, &begin, &end);
            ops->lamb_row->moments(a, begin, end, &sums);
#pragma omp critical(lamb_sums) /* in any order: the additions are exact */
            lamb_sums_add(&a->sums[segment->tensor], &sums);
        }
    }
    return CZ_OK;
}

static cz_status lamb_apply(struct ops *ops, struct dev_stream *stream, const struct lamb_args *a)
{
    (void)stream;
    TRY(lamb_check("lamb_apply", a, "ratios", a->ratios));
    for (size_t i = 0; i < a->n_segments; i++) {
        const struct lamb_segment *segment = &a->segments[i];
        float step = a->scalars->step_size * a->ratios[segment->tensor];
        int n_parts = ops_n_parts(segment->end - segment->begin, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
        for (int part = 0; part < n_parts; part++) {
            size_t begin, end;
            lamb_segment_split(segment, n_parts, part, &begin, &end);
            ops->lamb_row->apply(a, step, begin, end);
        }
    }
    return CZ_OK;
}

/* A block whose largest square is smaller fills lower grids, so only the LAMB_TOP highest grids in
 * use are complete for every block; they hold the sum to 2^-60 of its largest square. */
double lamb_sum(const double grids[LAMB_GRIDS])
{
    int top = LAMB_GRIDS - 1;
    while (top > 0 && grids[top] == 0) top--;
    double sum = 0;
    for (int j = top; j >= 0 && j > top - LAMB_TOP; j--) sum += grids[j];
    return sum;
}

float lamb_ratio(const struct lamb_sums *sums, double min_coeff, double max_coeff)
{
    double norm_p = sqrt(lamb_sum(sums->p)), norm_u = sqrt(lamb_sum(sums->u));
    if (norm_p == 0 || norm_u == 0) return 1;
    double ratio = norm_p / norm_u;
    if (ratio > max_coeff) ratio = max_coeff;
    if (ratio < min_coeff) ratio = min_coeff;
    return (float)ratio;
}

cz_status lamb_wire(struct ops *ops, uint32_t features)
{
    ops->lamb_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->lamb_moments = lamb_moments;
    ops->lamb_apply = lamb_apply;
    return CZ_OK;
}

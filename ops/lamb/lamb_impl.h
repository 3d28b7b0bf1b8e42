/* What a row of lamb provides, and the order-free sums its rows share. */
#ifndef CZ_OPS_LAMB_LAMB_IMPL_H
#define CZ_OPS_LAMB_LAMB_IMPL_H

#include "ops/lamb/lamb.h"
#include "ops/step/step_impl.h"

#include <math.h>

struct lamb_row {
    struct ops_row row;
    /* Pass 0 on elements [begin, end) of one tensor; its squares are added to *sums. */
    void (*moments)(const struct lamb_args *a, size_t begin, size_t end, struct lamb_sums *sums);
    /* Pass 1: p' = fma(-step, u, p). */
    void (*apply)(const struct lamb_args *a, float step, size_t begin, size_t end);
};

extern const struct lamb_row lamb_scalar, lamb_avx2, lamb_avx512;

/* The table, slowest first. */
const struct lamb_row *const *lamb_rows(size_t *n);

CZ_EXTERN_C_BEGIN

/* CZ_INVALID or CZ_UNSUPPORTED unless everything is there and fits; `sums`: what the pass has of
 * each tensor, `name` what it is called. */
cz_status lamb_check(const char *op, const struct lamb_args *a, const char *name, const void *sums);

/* CZ_INVALID unless segments are in order within numel elements. */
cz_status lamb_check_segments(const char *op, const struct lamb_segment *segments,
                              size_t n_segments, size_t numel);

CZ_EXTERN_C_END

/* Piece `part` of a segment. */
void lamb_segment_split(const struct lamb_segment *segment, int n_parts, int part, size_t *begin,
                        size_t *end);

#define LAMB_GRID_BITS 20
#define LAMB_GRID_LOW  (-300) /* grid 0 holds multiples of 2^LAMB_GRID_LOW, below any square */
#define LAMB_TOP       4      /* grids that a block fills, and that lamb_sum() reads */
#define LAMB_BLOCK     512    /* elements summed at a time */

/* The unit of grid j. */
static CZ_KERNEL_FN double lamb_unit(int j)
{
    uint64_t bits = (uint64_t)(1023 + LAMB_GRID_LOW + LAMB_GRID_BITS * j) << 52;
    double unit;
    memcpy(&unit, &bits, sizeof unit);
    return unit;
}

/* The highest grid that a square can touch: the lowest j with square ≤ unit(j + 1)/2, so that on
 * the grids above it rounds to 0. Squares are finite. */
static CZ_KERNEL_FN int lamb_top_grid(double square)
{
    int j = 0;
    while (square > lamb_unit(j + 1) / 2) j++;
    return j;
}

/* Add a square to its grids: rounded to the top one, what is left to the next, …: LAMB_TOP of them.
 * x + c − c with c = 1.5·2^52 units rounds x to whole units, to nearest. */
static CZ_KERNEL_FN void lamb_deposit(double grids[LAMB_GRIDS], int top, double square)
{
    for (int j = top; j >= 0 && j > top - LAMB_TOP; j--) {
        double c = 0x1.8p52 * lamb_unit(j);
        double whole = square + c - c;
        grids[j] += whole;
        square -= whole;
    }
}

static CZ_KERNEL_FN void lamb_square_add(double grids[LAMB_GRIDS], float x)
{
    double square = (double)x * (double)x; /* exact */
    if (isfinite(square))
        lamb_deposit(grids, lamb_top_grid(square), square);
    else
        grids[LAMB_GRIDS - 1] += square;
}

#endif

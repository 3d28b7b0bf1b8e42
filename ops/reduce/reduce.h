/* Reductions over a gradient buffer whose results do not depend on order or on shard edges.
 *
 * scan:  max|x| and the first element that is not finite.
 * sumsq: Σ x² as an exact sum of pre-rounded terms. Each square (exact in double) is split against
 *        two grids derived from `max_abs` and `numel_total` alone: the parts on one grid add
 * without rounding in any order, so a sum over shards equals the sum over the whole buffer, to the
 *        bit. What both grids drop is below 2^-40 of the result. */
#ifndef CZ_OPS_REDUCE_REDUCE_H
#define CZ_OPS_REDUCE_REDUCE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct scan_result {
    float max_abs;            /* over finite elements; 0 for an empty buffer */
    bool finite;              /* no NaN, no infinity */
    uint64_t first_nonfinite; /* index, valid when !finite */
};

struct scan_args {
    enum dtype dtype;
    size_t numel;
    const void *x;
    struct scan_result *result; /* host memory; on a device valid after stream_sync */
};

struct sumsq_args {
    enum dtype dtype;
    size_t numel;
    const void *x;
    float max_abs;        /* agreed over all shards (all finite) */
    uint64_t numel_total; /* elements over all shards */
    double *parts;        /* [2] += partial sums on the coarse and the fine grid; the caller zeroes
                             them, adds shards' parts in any order, and reads parts[0] + parts[1] */
};

CZ_EXTERN_C_END
#endif

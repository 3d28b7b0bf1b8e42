/* Reductions over a gradient buffer whose results do not depend on order or on shard edges.
 *
 * scan:  max|x| and the first element that is not finite.
 * sumsq: Σ x² as an exact integer sum. Each square (exact in double) is rounded to a multiple of
 *        u = 2⁻⁸¹·P, P the power of four above max_abs²; the multiples add up in 128 bits, so a sum
 * over shards equals the sum over the whole buffer to the bit, whatever the cut, the order, the
 *        threads or the row. Rounding loses at most numel·2⁻⁸² of P: below 2⁻⁴⁰ of the result for
 * 2⁴⁰ elements. */
#ifndef CZ_OPS_REDUCE_REDUCE_H
#define CZ_OPS_REDUCE_REDUCE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct scan_result {
    float max_abs;            /* over finite elements; 0 for an empty buffer */
    bool finite;              /* no NaN, no infinity */
    uint64_t first_nonfinite; /* index, valid when !finite */
};

struct scan_args {
    enum cz_dtype dtype;
    size_t numel;
    const void *x;
    struct scan_result *result; /* host memory. On a device it is written once the stream gets
                                   there: valid after stream_sync, and must last until then */
};

/* The sum of squares in units u, as limbs of 32 bits: value = Σ parts[i]·2^(32·i)·u. Every limb
 * stays an exact integer through the first 2²⁰ additions, so parts of shards are added element by
 * element, in any order, in plain double arithmetic. */
#define SUMSQ_PARTS 4

struct sumsq_args {
    enum cz_dtype dtype;
    size_t numel;
    const void *x; /* all finite (see scan) */
    float max_abs; /* finite, ≥ every |x|; the same for all shards that are added up */
    double *parts; /* [SUMSQ_PARTS] += this buffer's; the caller zeroes them first. Host memory,
                      on a device as scan's result, and used by one stream at a time */
};

/* Σ x² from the parts added up over all shards, for the max_abs given to each of them. */
double ops_sumsq_value(const double parts[SUMSQ_PARTS], float max_abs);

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a);
cz_status ops_sumsq(struct ops *ops, struct dev_stream *stream, const struct sumsq_args *a);

CZ_EXTERN_C_END
#endif

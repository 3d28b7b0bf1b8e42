/* A look at a gradient buffer: max|x|, the first element that is not finite, and Σ x². None of them
 * depends on the order of elements or on shard edges.
 *
 * The sum is exact. The square of a float is a multiple of 2⁻²⁹⁸ below 2²⁵⁶, so a sum of squares is
 * an integer of some 600 bits, and nothing is rounded before ops_squares_value(). Shards add up to
 * the whole buffer, whatever the cut, the order, the threads or the row, and one can be summed
 * before anything is known of the others. */
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

/* A sum of squares in units of 2⁻²⁹⁸, in digits of 48 bits, the lowest first: Σ digits[i]·2^(48·i).
 * Digits of up to 2¹⁶ shards are added element by element, in any order, as plain integers: they
 * have that much space above their 48 bits. */
#define SQUARES_DIGITS 13

struct scan_args {
    enum cz_dtype dtype;
    size_t numel; /* < 2⁶² */
    const void *x;
    struct scan_result *result; /* host memory. On a device it is written once the stream gets
                                   there: valid after stream_sync, and must last until then */
    uint64_t *squares;          /* NULL: not wanted. [SQUARES_DIGITS] += the sum over this buffer,
                                   each below 2⁴⁸ afterwards; the caller zeroes them first.
                                   Meaningless if an element is not finite. Memory as of result,
                                   used by one stream at a time */
};

/* The value of digits added up over all shards; ∞ if it is too large for a double. */
double ops_squares_value(const uint64_t digits[SQUARES_DIGITS]);

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a);

CZ_EXTERN_C_END
#endif

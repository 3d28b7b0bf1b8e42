/* Rotary position embedding, half-split form: for d < R/2, with angle a = position·freq[d],
 *   y[d] = x[d]·cos a − x[d+R/2]·sin a,   y[d+R/2] = x[d+R/2]·cos a + x[d]·sin a
 * where R is the head width D, or less: the rest of each head then stays as it is;
 * in fp32 without fused multiply-adds, so that rows agree to the bit. A negative position is
 * CZ_INVALID; on a GPU, where positions are not looked at before the call, its token stays as it
 * is. Source: Su et al., arXiv 2104.09864; the pairing of d with d+R/2 is Hugging Face's. */
#ifndef CZ_OPS_ROPE_ROPE_H
#define CZ_OPS_ROPE_ROPE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct rope_args {
    int64_t N, H, D; /* tokens, heads, head width */
    int64_t rotary;  /* of each head, the first so many are rotated (even); 0: D */
    enum cz_dtype dtype;
    int64_t stride;           /* elements between tokens of x; heads are dense */
    const int32_t *positions; /* (N), or NULL: token n is at position n mod T */
    int64_t T;
    const float *cos, *sin; /* (max position + 1, R/2) tables, fp32 */
    void *x;                /* rotated in place */
    bool inverse;           /* rotate back: the gradient */
};

/* Tables of N rows: cos and sin of position·freq[d], times `scale`. The angle is one fp32 product,
 * as PyTorch takes it. */
struct rope_table_args {
    int64_t N, half;          /* rows, frequencies: R/2 */
    const int32_t *positions; /* (N), or NULL: row n is position first + n */
    int64_t first;
    const float *freq; /* (half) radians per position, in host memory */
    float scale;
    float *cos, *sin; /* (N, half) */
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_rope(struct ops *ops, struct dev_stream *stream, const struct rope_args *a);
cz_status ops_rope_table(struct ops *ops, struct dev_stream *stream,
                         const struct rope_table_args *a);

CZ_EXTERN_C_END
#endif

/* Dropout: y = keep(i) ? x·s : 0 with s = 1/(1−p) rounded to fp32, keep(i) iff rng_uniform(rng, i)
 * ≥ p. The backward pass is the same call on dy. y may alias x. The mask depends on the key and i
 * alone, so a tensor may be cut anywhere; rows agree to the bit, on a GPU too. */
#ifndef CZ_OPS_DROPOUT_DROPOUT_H
#define CZ_OPS_DROPOUT_DROPOUT_H

#include "base/dtype.h"
#include "base/rng.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct dropout_args {
    enum cz_dtype dtype;
    size_t numel;
    float p; /* in [0,1) */
    struct rng_key rng;
    uint64_t first_idx; /* index of x[0] in the draw */
    const void *x;
    void *y;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_dropout(struct ops *ops, struct dev_stream *stream, const struct dropout_args *a);

CZ_EXTERN_C_END
#endif

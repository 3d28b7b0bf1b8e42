/* What a layer's struct cz_ops is: kernels and the stream that they run on. */
#ifndef CZ_API_OPS_API_IMPL_H
#define CZ_API_OPS_API_IMPL_H

#include "base/rng.h"
#include "ops/ops.h"

#include <czero/ops.h>

struct cz_ops {
    struct ops *ops;
    struct dev_stream *stream; /* NULL where no op runs: a layer's sizes */
};

/* Both keys have the same members. */
static inline struct cz_rng_key rng_key_out(struct rng_key key)
{
    const struct cz_rng_key out = {
        .seed = key.seed, .site = key.site, .step = key.step, .sample = key.sample};
    return out;
}

static inline struct rng_key rng_key_in(struct cz_rng_key key)
{
    const struct rng_key in = {
        .seed = key.seed, .site = key.site, .step = key.step, .sample = key.sample};
    return in;
}

#endif

/* Which rows a share of the data takes: a function of the seed, without a list. */
#include "data/source/split.h"

#include "base/rng.h"

#include <math.h>

#define SPLIT_EPOCH UINT64_C(0x73706C6974) /* no epoch of training draws the same order */

uint64_t split_count(double share, uint64_t n)
{
    const double wanted = floor(share * (double)n + 0.5);
    return n == 0 ? 0 : wanted >= (double)n ? n - 1 : (uint64_t)wanted;
}

bool split_takes(double share, uint64_t seed, uint64_t stratum, uint64_t n, uint64_t i)
{
    return rng_permute(seed, SPLIT_EPOCH + stratum, n, i) < split_count(share, n);
}

/* Which rows of a data set are a random share for evaluation. */
#ifndef CZ_DATA_SOURCE_SPLIT_H
#define CZ_DATA_SOURCE_SPLIT_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* How many of n rows a share (0 … 1) takes: rounded, and never all. */
uint64_t split_count(double share, uint64_t n);

/* Whether row i of the n of a stratum (a class, or 0) is in the share. */
bool split_takes(double share, uint64_t seed, uint64_t stratum, uint64_t n, uint64_t i);

CZ_EXTERN_C_END
#endif

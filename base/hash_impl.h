/* SipHash with its key and rounds as arguments, for the published test vectors. */
#ifndef CZ_BASE_HASH_IMPL_H
#define CZ_BASE_HASH_IMPL_H

#include "base/hash.h"

/* SipHash-c-d. */
uint64_t hash_sip(int c, int d, uint64_t k0, uint64_t k1, const void *bytes, size_t nbytes);

#endif

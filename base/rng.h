/* Counter-based random numbers: Philox4x32-10.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 * A draw is a pure function of (key, counter): the same key repeats it in a recompute, after a
 * resume, in any order and under any partition. Nothing here keeps state. */
#ifndef CZ_BASE_RNG_H
#define CZ_BASE_RNG_H

#include "base/compiler.h"

CZ_EXTERN_C_BEGIN

/* What a draw depends on, besides the element's index. Engine and layers fill it:
 *   seed   the run's seed
 *   site   layer index · RNG_SITES_PER_LAYER + a number the layer gives to each of its draws
 *   step   accumulation boundary (global step) that the micro-batch belongs to
 *   sample global sample index of the first row of this rank's micro-batch */
struct rng_key {
    uint64_t seed;
    uint32_t site;
    uint32_t step;
    uint64_t sample;
};
#define RNG_SITES_PER_LAYER 16u

/* out[0..3] = Philox4x32-10 of `counter` under `key`. */
static CZ_KERNEL_FN void rng_philox4x32(const uint32_t counter[4], const uint32_t key[2],
                                        uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Mix a 64-bit value (splitmix64's finaliser): for deriving keys and for shuffles. */
static inline uint64_t rng_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The 64-bit Philox key and the high counter half of an rng_key; element e of the draw is word
 * e mod 4 of the Philox block with counter (e/4 low, e/4 high, hi[0], hi[1]). */
void rng_key_expand(const struct rng_key *key, uint32_t philox_key[2], uint32_t hi[2]);

/* 32 random bits of element `idx`. */
uint32_t rng_u32(const struct rng_key *key, uint64_t idx);

/* Uniform in [0, 1) with 24 bits. */
float rng_uniform(const struct rng_key *key, uint64_t idx);

/* Standard normal (Box-Muller on elements 2·idx and 2·idx+1, the first of the pair). */
float rng_normal(const struct rng_key *key, uint64_t idx);

/* A pseudo-random permutation of [0, n) evaluated at one point, without a table: a 4-round Feistel
 * network over the next even power of two, walked until it lands inside (cycle walking). */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t idx);

CZ_EXTERN_C_END
#endif

/* Random numbers as functions of a key and an index (Philox 4x32): no state, so dropout, initial
 * values and the order of data are the same for every number of threads and ranks, and after a
 * resume. */
#include "base/rng.h"

#include <math.h>

/* Seed, step and site make the Philox key; the sample and the element make the counter. So two
 * sites or steps never share a stream. */
void rng_key_expand(const struct rng_key *key, uint32_t philox_key[2], uint32_t hi[2])
{
    uint64_t k = rng_mix64(key->seed + 0x9E3779B97F4A7C15u);
    k = rng_mix64(k ^ ((uint64_t)key->step << 32 | key->site));
    philox_key[0] = (uint32_t)k;
    philox_key[1] = (uint32_t)(k >> 32);
    hi[0] = (uint32_t)key->sample;
    hi[1] = (uint32_t)(key->sample >> 32);
}

/* The block that holds element idx. */
static void block_of(const struct rng_key *key, uint64_t idx, uint32_t block[4])
{
    uint32_t philox_key[2], counter[4];
    rng_key_expand(key, philox_key, counter + 2);
    counter[0] = (uint32_t)(idx >> 2);
    counter[1] = (uint32_t)(idx >> 34);
    rng_philox4x32(counter, philox_key, block);
}

uint32_t rng_u32(const struct rng_key *key, uint64_t idx)
{
    uint32_t block[4];
    block_of(key, idx, block);
    return block[idx & 3];
}

/* 24 bits, the precision of fp32: [0, 1). */
float rng_uniform(const struct rng_key *key, uint64_t idx)
{
    return (float)(rng_u32(key, idx) >> 8) * 0x1p-24f;
}

/* Box-Muller. Both uniforms of an element are in the same block. */
float rng_normal(const struct rng_key *key, uint64_t idx)
{
    uint32_t block[4], *pair = block + (2 * idx & 3); /* both elements are in one block */
    block_of(key, 2 * idx, block);
    double u = ((double)pair[0] + 1.0) * 0x1p-32; /* (0, 1] */
    double v = (double)pair[1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

/* A Feistel network over the smallest even number of bits that holds n, walked until the result is
 * in range: a permutation of [0, n) without memory, in four rounds. */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t idx)
{
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << (2 * half)) < n) half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    const uint64_t key = rng_mix64(seed ^ rng_mix64(epoch + 0x632BE59BD9B4E019u));
    do {
        uint64_t left = idx >> half, right = idx & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t next = left ^ (rng_mix64(key + (round << 56) + right) & mask);
            left = right;
            right = next;
        }
        idx = left << half | right;
    } while (idx >= n);
    return idx;
}

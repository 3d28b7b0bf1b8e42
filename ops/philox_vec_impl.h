/* Philox4x32-10 over vectors: the words of base/rng.h, 4·VF_N elements at a time. Include a
 * vec_*_impl.h first.
 *
 * A lane computes one block of four words. With G = VF_N/4 groups of 128 bits, lane j of group g
 * takes block j·G + g, so that transposing 4 by 4 inside the groups puts all words in order. */
#ifndef CZ_OPS_PHILOX_VEC_IMPL_H
#define CZ_OPS_PHILOX_VEC_IMPL_H

#include "base/rng.h"

struct philox_vec {
    uint32_t key[2], hi[2]; /* from rng_key_expand() */
};

VEC_FN struct philox_vec philox_vec_init(const struct rng_key *key)
{
    struct philox_vec p;
    rng_key_expand(key, p.key, p.hi);
    return p;
}

/* bits[0..4): the words of elements [4·block, 4·block + 4·VF_N), VF_N per vector, in order. */
VEC_FN void philox_vec(const struct philox_vec *p, uint64_t block, vi bits[4])
{
    vi c0 = vi_add(vi_set1((uint32_t)block), vi_philox_lanes());
    vi carry = vi_below(c0, vi_set1((uint32_t)block)); /* −1 where the low half wrapped */
    vi c1 = vi_sub(vi_set1((uint32_t)(block >> 32)), carry);
    vi c2 = vi_set1(p->hi[0]), c3 = vi_set1(p->hi[1]);
    uint32_t k0 = p->key[0], k1 = p->key[1];
    for (int round = 0; round < 10; round++) {
        vi high0, low0, high1, low1;
        vi_mul_wide(c0, 0xD2511F53u, &high0, &low0);
        vi_mul_wide(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = vi_xor3(high1, c1, vi_set1(k0));
        c2 = vi_xor3(high0, c3, vi_set1(k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    vi_transpose4(c0, c1, c2, c3, bits);
}

/* Dropout at rate p keeps an element iff (bits >> 8)·2⁻²⁴ ≥ p, as integers: bits ≥ ⌈p·2²⁴⌉·2⁸ (p <
 * 1, so it fits). */
VEC_FN vi philox_keep_threshold(float p)
{
    double scaled = (double)p * 0x1p24;
    uint32_t whole = (uint32_t)scaled;
    if ((double)whole < scaled) whole++;
    return vi_set1(whole << 8);
}

#endif

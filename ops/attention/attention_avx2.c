/* The vector body on 8 lanes, tiles of 4 × 16. */
#include "ops/vec_avx2_impl.h"

#define VECS_MAX 2

/* 8 by 8. */
VEC_FN void vf_transpose(vf m[VF_N])
{
    vf pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        m[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        m[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

#include "ops/attention/attention_vec_impl.h"

#include "base/cpu.h"

const struct attention_row attention_avx2 = {{"avx2", CPU_AVX2}, scratch_numel, forward,
                                             backward_q,         backward_k,    backward_whole};

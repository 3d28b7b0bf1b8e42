/* The vector body on 16 lanes, tiles of 4 × 64. */
#include "ops/vec_avx512_impl.h"

#define VECS_MAX 4

/* 16 by 16: 4 by 4 inside the 128-bit groups, then the groups themselves. */
VEC_FN void vf_transpose(vf m[VF_N])
{
    vf pairs[16], fours[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* fours[i + c]: columns c, c+4, c+8, c+12 of rows i..i+3 */
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm512_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            fours[i + 2 * j + 1] = _mm512_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
        }
    for (int c = 0; c < 4; c++) {
        vf low02 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
        vf low13 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xdd);
        vf high02 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
        vf high13 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xdd);
        m[c] = _mm512_shuffle_f32x4(low02, high02, 0x88);
        m[c + 4] = _mm512_shuffle_f32x4(low13, high13, 0x88);
        m[c + 8] = _mm512_shuffle_f32x4(low02, high02, 0xdd);
        m[c + 12] = _mm512_shuffle_f32x4(low13, high13, 0xdd);
    }
}

#include "ops/attention/attention_vec_impl.h"

#include "base/cpu.h"

const struct attention_row attention_avx512 = {
    {"avx512", CPU_AVX512}, scratch_numel, forward, backward_q, backward_k, backward_whole};

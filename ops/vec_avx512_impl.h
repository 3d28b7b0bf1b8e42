/* Vectors of 16 floats, for *_avx512.c. The same names as vec_avx2_impl.h, so that a kernel body
 * (<op>_vec_impl.h) is written once and compiled for both.
 *
 * vf 16 floats, vi 16 int32, vm 16 flags; the operators + − · / of the compiler work on vf.
 * Loads widen bf16 and fp16 to fp32, stores round as base/dtype.h does, to the bit. */
#ifndef CZ_OPS_VEC_AVX512_IMPL_H
#define CZ_OPS_VEC_AVX512_IMPL_H

#include "base/dtype.h"

#include <immintrin.h>

#define VF_N   16
#define VEC_FN static inline __attribute__((always_inline, unused))

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

/* clang-format off: one line each, read as a table */
VEC_FN vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
VEC_FN vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
} /* a·b + c */
VEC_FN vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
} /* c − a·b */
VEC_FN vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
} /* b when either is NaN */
VEC_FN vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
} /* b when either is NaN */
VEC_FN vf vf_abs(vf x)
{
    return _mm512_abs_ps(x);
}
VEC_FN vf vf_neg(vf x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}
VEC_FN vf vf_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}

/* |magnitude| with the sign of `sign`; magnitude ≥ 0. */
VEC_FN vf vf_copysign(vf magnitude, vf sign)
{
    return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}

VEC_FN vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VEC_FN vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
VEC_FN vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
} /* m ? a : b */

/* To the nearest integer, ties to even. */
VEC_FN vf vf_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x·2^n for integral n in [−252, 254], with one rounding: denormals and infinity come out right. */
VEC_FN vf vf_scale2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

/* Flags of the first n lanes, n ≤ 16. */
VEC_FN vm vm_first(size_t n)
{
    return (vm)((1u << n) - 1u);
}

/* x in the first n lanes, 0 behind them. */
VEC_FN vf vf_first(vf x, size_t n)
{
    return _mm512_maskz_mov_ps(vm_first(n), x);
}

/* Sums and maxima over the lanes, in a fixed order. */
VEC_FN float vf_hsum(vf x)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

VEC_FN float vf_hmax(vf x)
{
    return _mm512_reduce_max_ps(x);
}

/* Bits of bf16 in the upper half of each 32-bit lane: rounded to nearest even, NaN made quiet. The
 * lower half is rubbish. */
VEC_FN vi vi_round_bf16(vf x)
{
    vi u = _mm512_castps_si512(x);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    vi sum = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(sum, nan, u, _mm512_set1_epi32(0x400000));
}

VEC_FN __m256i vh_pack(vf x, enum cz_dtype dtype)
{
    if (dtype == DTYPE_BF16) return _mm512_cvtepi32_epi16(_mm512_srli_epi32(vi_round_bf16(x), 16));
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

VEC_FN vf vh_unpack(__m256i h, enum cz_dtype dtype)
{
    if (dtype == DTYPE_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    return _mm512_cvtph_ps(h);
}

/* Elements [i, i + 16) of p. */
VEC_FN vf vf_load(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm512_loadu_ps((const float *)p + i);
    return vh_unpack(_mm256_loadu_si256((const void *)((const uint16_t *)p + i)), dtype);
}

VEC_FN void vf_store(void *p, size_t i, enum cz_dtype dtype, vf x)
{
    if (dtype == DTYPE_F32)
        _mm512_storeu_ps((float *)p + i, x);
    else
        _mm256_storeu_si256((void *)((uint16_t *)p + i), vh_pack(x, dtype));
}

/* Elements [i, i + n) of p, n ≤ 16: nothing else is touched; lanes from n on load as 0. */
VEC_FN vf vf_load_n(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    if (dtype == DTYPE_F32) return _mm512_maskz_loadu_ps(vm_first(n), (const float *)p + i);
    return vh_unpack(_mm256_maskz_loadu_epi16(vm_first(n), (const uint16_t *)p + i), dtype);
}

VEC_FN void vf_store_n(void *p, size_t i, enum cz_dtype dtype, vf x, size_t n)
{
    if (dtype == DTYPE_F32)
        _mm512_mask_storeu_ps((float *)p + i, vm_first(n), x);
    else
        _mm256_mask_storeu_epi16((uint16_t *)p + i, vm_first(n), vh_pack(x, dtype));
}

/* Two vectors from 2·VF_N neighbours, the unit of loops over 16-bit tensors. bf16 elements come
 * apart by their place (even ones in a, odd ones in b), which costs one operation per vector; fp16
 * and fp32 stay in order. vf2_store stores in the order in which vf2_load of the same dtype loaded.
 */
typedef struct vf2 {
    vf a, b;
} vf2;

VEC_FN vf2 vf2_load(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype != DTYPE_BF16) return (vf2){vf_load(p, i, dtype), vf_load(p, i + VF_N, dtype)};
    vi u = _mm512_loadu_si512((const uint16_t *)p + i);
    vi odd = _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u));
    return (vf2){_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)), _mm512_castsi512_ps(odd)};
}

VEC_FN void vf2_store(void *p, size_t i, enum cz_dtype dtype, vf2 x)
{
    if (dtype != DTYPE_BF16) {
        vf_store(p, i, dtype, x.a);
        vf_store(p, i + VF_N, dtype, x.b);
        return;
    }
    vi even = _mm512_srli_epi32(vi_round_bf16(x.a), 16);
    vi both = _mm512_mask_blend_epi16(0xAAAAAAAAu, even, vi_round_bf16(x.b));
    _mm512_storeu_si512((uint16_t *)p + i, both);
}

/* a and b as they were loaded apart from bf16, back in order. */
VEC_FN vf2 vf2_interleave(vf2 x)
{
    vi low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    vi high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    return (vf2){_mm512_permutex2var_ps(x.a, low, x.b), _mm512_permutex2var_ps(x.a, high, x.b)};
}

/* Integers: 32-bit lanes, unsigned where it matters. */
VEC_FN vi vi_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
VEC_FN vi vi_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
VEC_FN void vi_store(uint32_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
VEC_FN vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
VEC_FN vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
VEC_FN vi vi_xor3(vi a, vi b, vi c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
VEC_FN vm vi_at_least(vi a, vi b)
{
    return _mm512_cmpge_epu32_mask(a, b);
}

/* −1 where a < b, else 0. */
VEC_FN vi vi_below(vi a, vi b)
{
    return _mm512_movm_epi32(_mm512_cmplt_epu32_mask(a, b));
}

/* The halves of the 64-bit products a·m. */
VEC_FN void vi_mul_wide(vi a, uint32_t m, vi *high, vi *low)
{
    vi even = _mm512_mul_epu32(a, vi_set1(m));
    vi odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), vi_set1(m));
    *low = _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
    *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}

/* Lane j of 128-bit group g holds j·4 + g: see philox_vec_impl.h. */
VEC_FN vi vi_philox_lanes(void)
{
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

/* out[j] holds, in each 128-bit group, lane j of a, b, c and d. */
VEC_FN void vi_transpose4(vi a, vi b, vi c, vi d, vi out[4])
{
    vi ab_lo = _mm512_unpacklo_epi32(a, b), ab_hi = _mm512_unpackhi_epi32(a, b);
    vi cd_lo = _mm512_unpacklo_epi32(c, d), cd_hi = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab_lo, cd_lo);
    out[1] = _mm512_unpackhi_epi64(ab_lo, cd_lo);
    out[2] = _mm512_unpacklo_epi64(ab_hi, cd_hi);
    out[3] = _mm512_unpackhi_epi64(ab_hi, cd_hi);
}

/* Magnitude bits of elements [i, i + n): one per 32-bit lane (wide) or two; 0 behind them. */
VEC_FN vi vi_load_magnitudes(const void *p, size_t i, bool wide, size_t n)
{
    if (wide) {
        vi x = _mm512_maskz_loadu_epi32(vm_first(n), (const uint32_t *)p + i);
        return _mm512_and_si512(x, vi_set1(0x7fffffffu));
    }
    __mmask32 lanes = (__mmask32)((UINT64_C(1) << n) - 1);
    vi x = _mm512_maskz_loadu_epi16(lanes, (const uint16_t *)p + i);
    return _mm512_and_si512(x, vi_set1(0x7fff7fffu));
}

/* Unsigned maximum per lane of 32 (wide) or 16 bits. */
VEC_FN vi vi_max_lanes(vi a, vi b, bool wide)
{
    return wide ? _mm512_max_epu32(a, b) : _mm512_max_epu16(a, b);
}

/* −x modulo 2³² or 2¹⁶ per lane. */
VEC_FN vi vi_negate_lanes(vi x, bool wide)
{
    const vi zero = vi_set1(0);
    return wide ? _mm512_sub_epi32(zero, x) : _mm512_sub_epi16(zero, x);
}

/* x where it is below `limit`, else 0. */
VEC_FN vi vi_zero_from(vi x, uint32_t limit, bool wide)
{
    if (wide) return _mm512_maskz_mov_epi32(_mm512_cmplt_epu32_mask(x, vi_set1(limit)), x);
    __mmask32 below = _mm512_cmplt_epu16_mask(x, _mm512_set1_epi16((short)limit));
    return _mm512_maskz_mov_epi16(below, x);
}

VEC_FN uint32_t vi_hmax_lanes(vi x, bool wide)
{
    if (!wide) x = _mm512_max_epu32(_mm512_and_si512(x, vi_set1(0xffff)), _mm512_srli_epi32(x, 16));
    return _mm512_reduce_max_epu32(x);
}

/* Flags from VF_N bits, lane 0 the highest. */
VEC_FN vm vm_from_bits(uint32_t bits)
{
    vi lane = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_test_epi32_mask(vi_set1(bits), _mm512_sllv_epi32(vi_set1(1), lane));
}

/* The same for vector k of four bytes' 32 elements, the first element of a byte its highest bit;
 * `word` has the bytes in every lane. For vf_select() alone: AVX2 leaves the lanes' other bits. */
VEC_FN vm vm_from_word(vi word, size_t k)
{
    vi bit = _mm512_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
    vi shift = _mm512_add_epi32(bit, _mm512_set1_epi32((int)(16 * k)));
    return _mm512_test_epi32_mask(word, _mm512_sllv_epi32(vi_set1(1), shift));
}

/* VF_N bits, lane 0 the highest: whether x ≥ 0, which either zero is and NaN is not. */
VEC_FN uint32_t vf_sign_bits(vf x)
{
    vi lane = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_cmp_ps_mask(_mm512_permutexvar_ps(lane, x), vf_zero(), _CMP_GE_OQ);
}

/* vd: doubles, half as many as a vf has floats; vl: int64. */
typedef __m512d vd;
typedef __m512i vl;

VEC_FN vd vd_set1(double x)
{
    return _mm512_set1_pd(x);
}
VEC_FN vd vd_fma(vd a, vd b, vd c)
{
    return _mm512_fmadd_pd(a, b, c);
}
VEC_FN vd vd_low(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}
VEC_FN vd vd_high(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}
VEC_FN double vd_hsum(vd x)
{
    return _mm512_reduce_add_pd(x);
}
VEC_FN vl vd_bits(vd x)
{
    return _mm512_castpd_si512(x);
}
VEC_FN vl vl_zero(void)
{
    return _mm512_setzero_si512();
}
VEC_FN vl vl_add(vl a, vl b)
{
    return _mm512_add_epi64(a, b);
}

/* Sum modulo 2⁶⁴ (the compiler's reduce_add is a signed one). */
VEC_FN uint64_t vl_hsum(vl x)
{
    uint64_t lanes[8], sum = 0;
    _mm512_storeu_si512(lanes, x);
    for (int i = 0; i < 8; i++) sum += lanes[i];
    return sum;
}

#include "ops/vec_common_impl.h"

#endif

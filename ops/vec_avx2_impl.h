/* Vectors of 8 floats, for *_avx2.c. The same names as vec_avx512_impl.h, which explains them. */
#ifndef CZ_OPS_VEC_AVX2_IMPL_H
#define CZ_OPS_VEC_AVX2_IMPL_H

#include "base/dtype.h"

#include <immintrin.h>
#include <string.h>

#define VF_N   8
#define VEC_FN static inline __attribute__((always_inline, unused))

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm; /* all bits of a lane set or clear */

/* clang-format off: one line each, read as a table */
VEC_FN vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
VEC_FN vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
} /* a·b + c */
VEC_FN vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
} /* c − a·b */
VEC_FN vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
} /* b when either is NaN */
VEC_FN vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
} /* b when either is NaN */
VEC_FN vf vf_abs(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
VEC_FN vf vf_neg(vf x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}
VEC_FN vf vf_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}

VEC_FN vf vf_copysign(vf magnitude, vf sign)
{
    return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}

VEC_FN vm vf_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VEC_FN vm vf_le(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
VEC_FN vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
} /* m ? a : b */

VEC_FN vf vf_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* In two exact halves, so that only the second product rounds. */
VEC_FN vf vf_scale2(vf x, vf n)
{
    vi whole = _mm256_cvtps_epi32(n);
    vi half = _mm256_srai_epi32(whole, 1);
    vi bias = _mm256_set1_epi32(127);
    vi lo = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    vi hi = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return x * _mm256_castsi256_ps(lo) * _mm256_castsi256_ps(hi);
}

VEC_FN vi vi_first(size_t n)
{
    vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

VEC_FN vm vm_first(size_t n)
{
    return _mm256_castsi256_ps(vi_first(n));
}
VEC_FN vf vf_first(vf x, size_t n)
{
    return _mm256_and_ps(x, vm_first(n));
}

VEC_FN float vf_hsum(vf x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

VEC_FN float vf_hmax(vf x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

VEC_FN vi vi_round_bf16(vf x)
{
    vi u = _mm256_castps_si256(x);
    vi odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    vi sum = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    vi quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    vi nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(sum, quiet, nan);
}

VEC_FN __m128i vh_pack(vf x, enum cz_dtype dtype)
{
    if (dtype != DTYPE_BF16)
        return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vi h = _mm256_srli_epi32(vi_round_bf16(x), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

VEC_FN vf vh_unpack(__m128i h, enum cz_dtype dtype)
{
    if (dtype == DTYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    return _mm256_cvtph_ps(h);
}

VEC_FN vf vf_load(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    return vh_unpack(_mm_loadu_si128((const void *)((const uint16_t *)p + i)), dtype);
}

VEC_FN void vf_store(void *p, size_t i, enum cz_dtype dtype, vf x)
{
    if (dtype == DTYPE_F32)
        _mm256_storeu_ps((float *)p + i, x);
    else
        _mm_storeu_si128((void *)((uint16_t *)p + i), vh_pack(x, dtype));
}

VEC_FN vf vf_load_n(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    if (dtype == DTYPE_F32) return _mm256_maskload_ps((const float *)p + i, vi_first(n));
    uint16_t lanes[VF_N] = {0}; /* AVX2 has no masked 16-bit load */
    memcpy(lanes, (const uint16_t *)p + i, n * sizeof *lanes);
    return vf_load(lanes, 0, dtype);
}

VEC_FN void vf_store_n(void *p, size_t i, enum cz_dtype dtype, vf x, size_t n)
{
    if (dtype == DTYPE_F32) {
        _mm256_maskstore_ps((float *)p + i, vi_first(n), x);
        return;
    }
    uint16_t lanes[VF_N];
    vf_store(lanes, 0, dtype, x);
    memcpy((uint16_t *)p + i, lanes, n * sizeof *lanes);
}

typedef struct vf2 {
    vf a, b;
} vf2;

VEC_FN vf2 vf2_load(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype != DTYPE_BF16) return (vf2){vf_load(p, i, dtype), vf_load(p, i + VF_N, dtype)};
    vi u = _mm256_loadu_si256((const void *)((const uint16_t *)p + i));
    vi odd = _mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000u));
    return (vf2){_mm256_castsi256_ps(_mm256_slli_epi32(u, 16)), _mm256_castsi256_ps(odd)};
}

VEC_FN void vf2_store(void *p, size_t i, enum cz_dtype dtype, vf2 x)
{
    if (dtype != DTYPE_BF16) {
        vf_store(p, i, dtype, x.a);
        vf_store(p, i + VF_N, dtype, x.b);
        return;
    }
    vi even = _mm256_srli_epi32(vi_round_bf16(x.a), 16);
    vi both = _mm256_blend_epi16(even, vi_round_bf16(x.b), 0xAA);
    _mm256_storeu_si256((void *)((uint16_t *)p + i), both);
}

VEC_FN vf2 vf2_interleave(vf2 x)
{
    vf low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
    return (vf2){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

VEC_FN vi vi_set1(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
VEC_FN vi vi_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}
VEC_FN void vi_store(uint32_t *p, vi x)
{
    _mm256_storeu_si256((void *)p, x);
}
VEC_FN vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
VEC_FN vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
VEC_FN vi vi_xor3(vi a, vi b, vi c)
{
    return _mm256_xor_si256(a, _mm256_xor_si256(b, c));
}

VEC_FN vm vi_at_least(vi a, vi b)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a));
}

VEC_FN vi vi_below(vi a, vi b)
{
    return _mm256_xor_si256(_mm256_castps_si256(vi_at_least(a, b)), _mm256_set1_epi32(-1));
}

VEC_FN void vi_mul_wide(vi a, uint32_t m, vi *high, vi *low)
{
    vi even = _mm256_mul_epu32(a, vi_set1(m));
    vi odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), vi_set1(m));
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

/* Lane j of 128-bit group g holds j·2 + g: see philox_vec_impl.h. */
VEC_FN vi vi_philox_lanes(void)
{
    return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
}

VEC_FN void vi_transpose4(vi a, vi b, vi c, vi d, vi out[4])
{
    vi ab_lo = _mm256_unpacklo_epi32(a, b), ab_hi = _mm256_unpackhi_epi32(a, b);
    vi cd_lo = _mm256_unpacklo_epi32(c, d), cd_hi = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab_lo, cd_lo);
    out[1] = _mm256_unpackhi_epi64(ab_lo, cd_lo);
    out[2] = _mm256_unpacklo_epi64(ab_hi, cd_hi);
    out[3] = _mm256_unpackhi_epi64(ab_hi, cd_hi);
}

VEC_FN vi vi_load_magnitudes(const void *p, size_t i, bool wide, size_t n)
{
    if (wide) {
        vi x = n == VF_N ? vi_load((const uint32_t *)p + i)
                         : _mm256_maskload_epi32((const int *)p + i, vi_first(n));
        return _mm256_and_si256(x, vi_set1(0x7fffffffu));
    }
    uint16_t tail[2 * VF_N] = {0};
    const uint16_t *from = (const uint16_t *)p + i;
    if (n < 2 * VF_N) from = memcpy(tail, from, n * sizeof *tail);
    return _mm256_and_si256(_mm256_loadu_si256((const void *)from), vi_set1(0x7fff7fffu));
}

VEC_FN vi vi_max_lanes(vi a, vi b, bool wide)
{
    return wide ? _mm256_max_epu32(a, b) : _mm256_max_epu16(a, b);
}

VEC_FN vi vi_negate_lanes(vi x, bool wide)
{
    const vi zero = vi_set1(0);
    return wide ? _mm256_sub_epi32(zero, x) : _mm256_sub_epi16(zero, x);
}

/* Magnitudes have their top bit clear, so that signed comparisons order them. */
VEC_FN vi vi_zero_from(vi x, uint32_t limit, bool wide)
{
    vi below = wide ? _mm256_cmpgt_epi32(vi_set1(limit), x)
                    : _mm256_cmpgt_epi16(_mm256_set1_epi16((short)limit), x);
    return _mm256_and_si256(below, x);
}

VEC_FN uint32_t vi_hmax_lanes(vi x, bool wide)
{
    if (!wide) x = _mm256_max_epu32(_mm256_and_si256(x, vi_set1(0xffff)), _mm256_srli_epi32(x, 16));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_epi64(two, 32)));
}

VEC_FN vm vm_from_bits(uint32_t bits)
{
    vi lanes = _mm256_setr_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(vi_set1(bits), lanes), lanes));
}

VEC_FN vm vm_from_word(vi word, size_t k)
{
    vi shift = _mm256_setr_epi32(24, 25, 26, 27, 28, 29, 30, 31);
    vi to_top = _mm256_sub_epi32(shift, _mm256_set1_epi32((int)(8 * k)));
    return _mm256_castsi256_ps(_mm256_sllv_epi32(word, to_top));
}

VEC_FN uint32_t vf_sign_bits(vf x)
{
    vf reversed = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(reversed, vf_zero(), _CMP_GE_OQ));
}

typedef __m256d vd;
typedef __m256i vl;

VEC_FN vd vd_set1(double x)
{
    return _mm256_set1_pd(x);
}
VEC_FN vd vd_fma(vd a, vd b, vd c)
{
    return _mm256_fmadd_pd(a, b, c);
}
VEC_FN vd vd_low(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}
VEC_FN vd vd_high(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}
VEC_FN double vd_hsum(vd x)
{
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
VEC_FN vl vd_bits(vd x)
{
    return _mm256_castpd_si256(x);
}
VEC_FN vl vl_zero(void)
{
    return _mm256_setzero_si256();
}
VEC_FN vl vl_add(vl a, vl b)
{
    return _mm256_add_epi64(a, b);
}

VEC_FN uint64_t vl_hsum(vl x)
{
    __m128i two = _mm_add_epi64(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return (uint64_t)_mm_cvtsi128_si64(two) + (uint64_t)_mm_extract_epi64(two, 1);
}

#include "ops/vec_common_impl.h"

#endif

/* Vectors of 16 floats. */
#include "base/cpu.h"
#include "base/dtype.h"

#include <immintrin.h>

#define VEC_N  16
#define VEC_FN static inline __attribute__((always_inline, unused))

typedef __m512 vec;

VEC_FN vec vec_set1(float x)
{
    return _mm512_set1_ps(x);
}

VEC_FN vec vec_mul(vec x, vec y)
{
    return _mm512_mul_ps(x, y);
}

VEC_FN vec vec_plus(vec sum, vec x)
{
    return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(sum, sum, _CMP_ORD_Q), sum, x);
}

/* The rounded bf16 in the upper half of each lane, nearest even, NaN quiet; below it rubbish. */
VEC_FN __m512i bf16_bits(vec x)
{
    __m512i u = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(up, nan, u, _mm512_set1_epi32(0x400000));
}

VEC_FN vec widen(__m256i h, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

VEC_FN __m256i narrow(vec x, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F16)
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(x), 16));
}

VEC_FN vec vec_load(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm512_loadu_ps((const float *)p + i);
    return widen(_mm256_loadu_si256((const void *)((const uint16_t *)p + i)), dtype);
}

VEC_FN void vec_store(void *p, size_t i, enum cz_dtype dtype, vec x)
{
    if (dtype == DTYPE_F32)
        _mm512_storeu_ps((float *)p + i, x);
    else
        _mm256_storeu_si256((void *)((uint16_t *)p + i), narrow(x, dtype));
}

VEC_FN __mmask16 first(size_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

VEC_FN vec vec_load_n(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    if (dtype == DTYPE_F32) return _mm512_maskz_loadu_ps(first(n), (const float *)p + i);
    return widen(_mm256_maskz_loadu_epi16(first(n), (const uint16_t *)p + i), dtype);
}

VEC_FN void vec_store_n(void *p, size_t i, enum cz_dtype dtype, vec x, size_t n)
{
    if (dtype == DTYPE_F32)
        _mm512_mask_storeu_ps((float *)p + i, first(n), x);
    else
        _mm256_mask_storeu_epi16((uint16_t *)p + i, first(n), narrow(x, dtype));
}

VEC_FN vec half_even(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

VEC_FN vec half_odd(const void *p)
{
    __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
}

VEC_FN void half_join(void *p, vec even, vec odd)
{
    __m512i low = _mm512_srli_epi32(bf16_bits(even), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xAAAAAAAAu, low, bf16_bits(odd)));
}

VEC_FN void stream_line(void *line, const void *src)
{
    _mm512_stream_si512(line, _mm512_loadu_si512(src));
}

#include "comm/sum/sum_vec_impl.h"

const struct sum_row sum_avx512 = {"avx512", CPU_AVX2 | CPU_AVX512, convert, add, sum, send,
                                   send_end};

/* Vectors of 8 floats. */
#include "base/cpu.h"
#include "base/dtype.h"

#include <immintrin.h>
#include <string.h>

#define VEC_N  8
#define VEC_FN static inline __attribute__((always_inline, unused))

typedef __m256 vec;

VEC_FN vec vec_set1(float x)
{
    return _mm256_set1_ps(x);
}

VEC_FN vec vec_mul(vec x, vec y)
{
    return _mm256_mul_ps(x, y);
}

VEC_FN vec vec_plus(vec sum, vec x)
{
    return _mm256_blendv_ps(_mm256_add_ps(sum, x), sum, _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
}

/* The rounded bf16 in the upper half of each lane, nearest even, NaN quiet; below it rubbish. */
VEC_FN __m256i bf16_bits(vec x)
{
    __m256i u = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, quiet, nan);
}

VEC_FN vec widen(__m128i h, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

VEC_FN __m128i narrow(vec x, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F16)
        return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i h = _mm256_srli_epi32(bf16_bits(x), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

VEC_FN vec vec_load(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    return widen(_mm_loadu_si128((const void *)((const uint16_t *)p + i)), dtype);
}

VEC_FN void vec_store(void *p, size_t i, enum cz_dtype dtype, vec x)
{
    if (dtype == DTYPE_F32)
        _mm256_storeu_ps((float *)p + i, x);
    else
        _mm_storeu_si128((void *)((uint16_t *)p + i), narrow(x, dtype));
}

/* AVX2 has no masks for 16 bits: ends pass through memory. */
VEC_FN vec vec_load_n(const void *p, size_t i, enum cz_dtype dtype, size_t n)
{
    float lanes[VEC_N] = {0};
    size_t size = dtype == DTYPE_F32 ? 4 : 2;
    memcpy(lanes, (const char *)p + i * size, n * size);
    return vec_load(lanes, 0, dtype);
}

VEC_FN void vec_store_n(void *p, size_t i, enum cz_dtype dtype, vec x, size_t n)
{
    float lanes[VEC_N];
    size_t size = dtype == DTYPE_F32 ? 4 : 2;
    vec_store(lanes, 0, dtype, x);
    memcpy((char *)p + i * size, lanes, n * size);
}

VEC_FN vec half_even(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p), 16));
}

VEC_FN vec half_odd(const void *p)
{
    __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p), upper));
}

VEC_FN void half_join(void *p, vec even, vec odd)
{
    __m256i low = _mm256_srli_epi32(bf16_bits(even), 16);
    _mm256_storeu_si256(p, _mm256_blend_epi16(low, bf16_bits(odd), 0xAA));
}

VEC_FN void stream_line(void *line, const void *src)
{
    __m256i *to = line;
    const __m256i *from = src;
    __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
}

#include "comm/sum/sum_vec_impl.h"

const struct sum_row sum_avx2 = {"avx2", CPU_AVX2, convert, add, sum, send, send_end};

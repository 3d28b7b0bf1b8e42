/* What packing bf16 operands for our own product takes on 16 lanes: reading pieces of lines. */
#ifndef CZ_OPS_MATMUL_MATMUL_PACK_AVX512_IMPL_H
#define CZ_OPS_MATMUL_MATMUL_PACK_AVX512_IMPL_H

#include "ops/matmul/matmul_panels_impl.h"
#include "ops/vec_avx512_impl.h"

#define LANES 16
#define AHEAD 8 /* units that prefetches along the rows are ahead */

/* Operands come from memory or the last-level cache, and rows are far apart: the next ones are
 * asked for early. An address past the matrix does no harm. */
VEC_FN void prefetch(const struct panel_source *s, size_t idx)
{
    _mm_prefetch((const char *)((const uint16_t *)s->x + idx), _MM_HINT_T0);
}

/* Of a line along k: elements from index `idx` on, at most 32 of `left`; zeros behind them. */
VEC_FN __m512i load_line(const struct panel_source *s, size_t idx, size_t left)
{
    const uint64_t n = left < 2 * LANES ? left : 2 * LANES;
    return _mm512_maskz_loadu_epi16((__mmask32)(((uint64_t)1 << n) - 1),
                                    (const uint16_t *)s->x + idx);
}

/* Of lines along the rows: unit u of the n ≤ 16 lines from `line` on; zeros behind them. */
VEC_FN __m512i load_lines(const struct panel_source *s, size_t u, size_t line, size_t n)
{
    if (u * 2 >= s->k) return _mm512_setzero_si512();
    const __mmask16 there = (__mmask16)((1u << n) - 1);
    const uint16_t *p = (const uint16_t *)s->x + u * 2 * s->ld + line;
    __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, p));
    if (u * 2 + 1 == s->k) return x;
    __m256i next = _mm256_maskz_loadu_epi16(there, p + s->ld);
    return _mm512_or_si512(x, _mm512_slli_epi32(_mm512_cvtepu16_epi32(next), 16));
}

#endif

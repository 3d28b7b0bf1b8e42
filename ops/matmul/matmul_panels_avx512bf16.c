/* bf16 panels on 16 lanes: one instruction multiplies two neighbours along k and adds them to a
 * sum.
 *
 * Limit of a tile: that instruction, twice a cycle on Zen 5 and once on Zen 4; 24 sums hide its
 * latency. Per unit a tile makes 24 of them from 11 loads: 3 of B, from the second-level cache at
 * 16 bytes a cycle, and 8 of A, from the first. Seen on Zen 5: 94 % of the peak of a loop of
 * registers alone; a whole product, packing and writing included, 82 to 88 % (bench/bench_matmul).
 */
#include "ops/matmul/matmul_pack_avx512_impl.h"

#define ROWS     8
#define COLS     48
#define COL_VECS (COLS / LANES)
#define CHUNK    384 /* a panel of B is 72 KiB, one of A 12 */
#define SOON     4
#define AT_ONCE  8 /* units between two fetches */

/* ---- lines stored along k -------------------------------------------------------------------- */

/* Half j of out[i] becomes unit 2·i + j of 8 lines. A unit is two neighbours along k, the pair that
 * one instruction takes. */
VEC_FN void transpose_8x16(const __m512i x[8], __m512i out[8])
{
    __m512i y[8], z[8];
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* z[i + u]: unit 4·g + u of 4 lines in 128-bit group g */
        z[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        z[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        z[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        z[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int g = 0; g < 4; g++) {
        const __m512i low = _mm512_setr_epi64(2 * g, 2 * g + 1, 8 + 2 * g, 9 + 2 * g, 0, 0, 0, 0);
        const __m512i high = _mm512_setr_epi64(0, 0, 0, 0, 2 * g, 2 * g + 1, 8 + 2 * g, 9 + 2 * g);
        for (int u = 0; u < 4; u += 2) {
            __m512i first = _mm512_permutex2var_epi64(z[u], low, z[4 + u]);
            __m512i second = _mm512_permutex2var_epi64(z[u + 1], high, z[5 + u]);
            out[2 * g + u / 2] = _mm512_mask_blend_epi64(0xF0, first, second);
        }
    }
}

/* Lines are along k in memory: 8 of them are read at once and transposed. */
VEC_FN void pack_along_k(const struct panel_source *s, const size_t width, uint32_t *dst,
                         size_t stride)
{
    const size_t n_padded = (s->n_lines + width - 1) / width * width;
    for (size_t line = 0; line < n_padded; line += 8) {
        uint32_t *to = dst + line / width * stride + line % width;
        for (size_t u = 0; u < s->n_units; u += LANES) {
            __m512i x[8], y[8];
            for (size_t i = 0; i < 8; i++) {
                const size_t idx = (line + i) * s->ld + u * 2;
                x[i] = line + i < s->n_lines ? load_line(s, idx, s->k - u * 2)
                                             : _mm512_setzero_si512();
                prefetch(s, idx + 8 * s->ld);
            }
            transpose_8x16(x, y);
            for (size_t i = 0; i < LANES && u + i < s->n_units; i++)
                _mm256_storeu_si256((void *)(to + (u + i) * width),
                                    i % 2 ? _mm512_extracti64x4_epi64(y[i / 2], 1)
                                          : _mm512_castsi512_si256(y[i / 2]));
        }
    }
}

/* ---- lines stored along the rows ------------------------------------------------------------- */

/* k is the outer direction in memory: two rows are interleaved. */
VEC_FN void pack_along_rows(const struct panel_source *s, const size_t width, uint32_t *dst,
                            size_t stride)
{
    const size_t n_padded = (s->n_lines + width - 1) / width * width;
    for (size_t u = 0; u < s->n_units; u++)
        for (size_t line = 0; line < n_padded; line += LANES) {
            const size_t n = line < s->n_lines ? s->n_lines - line : 0;
            __m512i x = load_lines(s, u, line, n < LANES ? n : LANES);
            prefetch(s, (u + AHEAD) * 2 * s->ld + line);
            prefetch(s, ((u + AHEAD) * 2 + 1) * s->ld + line);
            uint32_t *to = dst + line / width * stride + u * width + line % width;
            if (width % LANES == 0) {
                _mm512_storeu_si512(to, x);
                continue;
            }
            _mm256_storeu_si256((void *)to, _mm512_castsi512_si256(x));
            if (line + 8 < n_padded)
                _mm256_storeu_si256((void *)(to + stride), _mm512_extracti64x4_epi64(x, 1));
        }
}

/* ---- what the table names -------------------------------------------------------------------- */

VEC_FN void pack(const struct panel_source *s, const size_t width, uint32_t *dst, size_t stride)
{
    if (s->lines_along_rows)
        pack_along_rows(s, width, dst, stride);
    else
        pack_along_k(s, width, dst, stride);
}

static void pack_rows(const struct panel_source *s, uint32_t *dst, size_t stride)
{
    pack(s, ROWS, dst, stride);
}

static void pack_cols(const struct panel_source *s, uint32_t *dst, size_t stride)
{
    pack(s, COLS, dst, stride);
}

/* The sums of units [0, n_units) continue in `sum`. */
VEC_FN void add_units(size_t n_units, const uint32_t *a, const uint32_t *b, vf sum[ROWS][COL_VECS])
{
    for (size_t u = 0; u < n_units; u++, a += ROWS, b += COLS) {
        __m512i y[COL_VECS];
        for (int j = 0; j < COL_VECS; j++) y[j] = _mm512_loadu_si512(b + LANES * j);
        for (int i = 0; i < ROWS; i++) {
            const __m512i x = _mm512_set1_epi32((int)a[i]);
            for (int j = 0; j < COL_VECS; j++)
                sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)x, (__m512bh)y[j]);
        }
    }
}

/* Fetching the next panel of B early is worth 4 to 9 % of a product. */
static void tile(size_t n_units, const uint32_t *a, const uint32_t *b, float *c, size_t ldc,
                 bool add, const uint32_t *soon)
{
    vf sum[ROWS][COL_VECS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COL_VECS; j++) {
            sum[i][j] = vf_zero();
            _mm_prefetch((const char *)(c + (size_t)i * ldc + LANES * j), _MM_HINT_T0);
        }
    for (size_t u = 0; u < n_units; u += AT_ONCE) {
        const size_t n = n_units - u < AT_ONCE ? n_units - u : AT_ONCE;
        for (size_t i = 0; i < AT_ONCE * SOON; i += LANES, soon += LANES)
            _mm_prefetch((const char *)soon, _MM_HINT_T1);
        add_units(n, a + u * ROWS, b + u * COLS, sum);
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COL_VECS; j++) {
            float *at = c + (size_t)i * ldc + LANES * j;
            _mm512_storeu_ps(at, add ? _mm512_add_ps(_mm512_loadu_ps(at), sum[i][j]) : sum[i][j]);
        }
}

const struct matmul_panels matmul_panels_avx512bf16 = {.rows = ROWS,
                                                       .cols = COLS,
                                                       .step = 1,
                                                       .chunk = CHUNK,
                                                       .block_rows = 144,
                                                       .block_cols = 768,
                                                       .pack_rows = pack_rows,
                                                       .pack_cols = pack_cols,
                                                       .tile = tile,
                                                       .soon_each = SOON};

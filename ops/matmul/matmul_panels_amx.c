/* bf16 panels on AMX's tile registers: one instruction multiplies 16 rows by 16 columns over 32
 * elements of k, and adds to 16 × 16 sums in fp32.
 *
 * A tile of C is 2 × 2 registers, so each register of A and B that is loaded is used twice: 2 KiB
 * of either for 4 instructions of 16 cycles. Limit: those instructions; seen on an Emerald Rapids
 * core of a virtual machine: 2.85 TFLOP/s from registers, 2.7 with B's panel in the first-level
 * cache and A's in the second (bench/bench_matmul gives whole products). */
#include "ops/matmul/matmul_pack_avx512_impl.h"

#include <string.h>

#define SIDE      16 /* rows, units and columns of a register */
#define ROWS      (2 * SIDE)
#define COLS      (2 * SIDE)
#define ROW_BYTES (SIDE * sizeof(uint32_t))
#define SOON      4

/* ---- packing --------------------------------------------------------------------------------- */

/* y[j] lane i = x[i] lane j. */
VEC_FN void transpose_16x16(__m512i x[SIDE])
{
    __m512i y[SIDE];
    for (int i = 0; i < SIDE; i += 2) { /* pairs of lanes, inside groups of 128 bits */
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) { /* x[i + j] group g: lane 4·g + j of the 4 from i on */
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int j = 0; j < 4; j++) { /* groups are transposed: 4 × 4 of 128 bits */
        const __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x44);
        const __m512i b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xEE);
        const __m512i c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x44);
        const __m512i d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xEE);
        y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        y[4 + j] = _mm512_shuffle_i32x4(a, c, 0xDD);
        y[8 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
    memcpy(x, y, sizeof y);
}

/* 16 lines by 16 units: x[i] is unit u + i of the lines, or line `line` + i, as they are stored. */
VEC_FN void load_block(const struct panel_source *s, size_t line, size_t u, __m512i x[SIDE])
{
    const size_t n = s->n_lines < line ? 0 : s->n_lines - line;
    for (size_t i = 0; i < SIDE; i++)
        if (s->lines_along_rows) {
            x[i] = load_lines(s, u + i, line, n < LANES ? n : LANES);
            prefetch(s, (u + i + SIDE) * 2 * s->ld + line);
            prefetch(s, ((u + i + SIDE) * 2 + 1) * s->ld + line);
        } else {
            const size_t idx = (line + i) * s->ld + u * 2;
            x[i] = i < n && u * 2 < s->k ? load_line(s, idx, s->k - u * 2) : _mm512_setzero_si512();
            prefetch(s, idx + SIDE * s->ld);
        }
}

/* A register of A is (16 rows, 16 units), one of B (16 units, 16 columns). A panel is its registers
 * one after the other: the two halves of its lines, then along k. */
VEC_FN void pack(const struct panel_source *s, bool lines_first, uint32_t *dst, size_t stride)
{
    for (size_t line = 0; line < s->n_lines; line += 2 * SIDE, dst += stride)
        for (size_t u = 0; u < s->n_units; u += SIDE)
            for (size_t half = 0; half < 2; half++) {
                __m512i x[SIDE];
                load_block(s, line + half * SIDE, u, x);
                if (s->lines_along_rows == lines_first) transpose_16x16(x);
                uint32_t *to = dst + (2 * u + half * SIDE) * SIDE;
                for (size_t i = 0; i < SIDE; i++) _mm512_storeu_si512(to + i * SIDE, x[i]);
            }
}

static void pack_rows(const struct panel_source *s, uint32_t *dst, size_t stride)
{
    pack(s, true, dst, stride);
}

static void pack_cols(const struct panel_source *s, uint32_t *dst, size_t stride)
{
    pack(s, false, dst, stride);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Registers 0 to 3 are C's tile (row half · 2 + column half), 4 and 5 A's, 6 and 7 B's. */
static void tiles_begin(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = ROW_BYTES;
        config.rows[i] = SIDE;
    }
    _tile_loadconfig(&config);
}

static void tiles_end(void)
{
    _tile_release();
}

static void tile(size_t n_units, const uint32_t *a, const uint32_t *b, float *c, size_t ldc,
                 bool add, const uint32_t *soon)
{
    const size_t c_stride = ldc * sizeof(float);
    float *below = c + SIDE * ldc;
    if (add) {
        _tile_loadd(0, c, c_stride);
        _tile_loadd(1, c + SIDE, c_stride);
        _tile_loadd(2, below, c_stride);
        _tile_loadd(3, below + SIDE, c_stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t u = 0; u < n_units; u += SIDE, a += ROWS * SIDE, b += COLS * SIDE) {
        _tile_loadd(4, a, ROW_BYTES);
        _tile_loadd(6, b, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + SIDE * SIDE, ROW_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + SIDE * SIDE, ROW_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        for (size_t i = 0; i < SIDE * SOON; i += LANES, soon += LANES)
            _mm_prefetch((const char *)soon, _MM_HINT_T1);
    }
    _tile_stored(0, c, c_stride);
    _tile_stored(1, c + SIDE, c_stride);
    _tile_stored(2, below, c_stride);
    _tile_stored(3, below + SIDE, c_stride);
}

const struct matmul_panels matmul_panels_amx = {.rows = ROWS,
                                                .cols = COLS,
                                                .step = SIDE,
                                                .chunk = 192, /* panels of 24 KiB */
                                                .block_rows = 256,
                                                .block_cols = 768,
                                                .pack_rows = pack_rows,
                                                .pack_cols = pack_cols,
                                                .tile = tile,
                                                .soon_each = SOON,
                                                .tiles_begin = tiles_begin,
                                                .tiles_end = tiles_end};

/* Our own bf16 product: panels of A and B are packed into the workspace and multiplied tile by
 * tile.
 *
 * A unit is two elements that are neighbours along k, in 32 bits (an odd k gets a zero). A panel is
 * `width` lines (rows of A, columns of B), stored unit by unit along k: (units, width). A tile of C
 * is PANEL_ROWS × PANEL_COLS sums in registers. */
#ifndef CZ_OPS_MATMUL_MATMUL_PANELS_IMPL_H
#define CZ_OPS_MATMUL_MATMUL_PANELS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PANEL_ROWS 8
#define PANEL_COLS 48

#define TILE_SOON_UNITS 8
#define TILE_SOON       32

/* A piece of A or B as stored: element (line, k) is x[line·ld + k], or x[k·ld + line] if lines are
 * rows. */
struct panel_source {
    const void *x; /* element (0, 0) of the piece */
    size_t ld;
    bool lines_along_rows;
    size_t n_lines, k; /* elements */
};

/* What an instruction set provides. */
struct matmul_panels {
    /* Panel p of a piece of A (rows) or B (cols) goes to dst + p·stride units; lines past n_lines
     * are zeros. */
    void (*pack_rows)(const struct panel_source *s, uint32_t *dst, size_t stride);
    void (*pack_cols)(const struct panel_source *s, uint32_t *dst, size_t stride);
    /* c (PANEL_ROWS, PANEL_COLS), rows ldc apart, = [c +] Σ over n_units units of a·b. Meanwhile
     * TILE_SOON units from `soon` on are fetched for every TILE_SOON_UNITS units multiplied; they
     * may be past the end of what there is. */
    void (*tile)(size_t n_units, const uint32_t *a, const uint32_t *b, float *c, size_t ldc,
                 bool add, const uint32_t *soon);
};

extern const struct matmul_panels matmul_panels_avx512bf16;

#endif

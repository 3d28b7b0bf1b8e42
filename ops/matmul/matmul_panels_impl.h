/* Our own bf16 product: panels of A and B are packed into the workspace and multiplied tile by
 * tile.
 *
 * A unit is two elements that are neighbours along k, in 32 bits; behind the last one are zeros. A
 * panel is `rows` lines of A or `cols` lines of B over a chunk of units, in the order that the
 * instruction set's tile reads. */
#ifndef CZ_OPS_MATMUL_MATMUL_PANELS_IMPL_H
#define CZ_OPS_MATMUL_MATMUL_PANELS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of A or B as stored: element (line, k) is x[line·ld + k], or x[k·ld + line] if lines are
 * rows. */
struct panel_source {
    const void *x; /* element (0, 0) of the piece */
    size_t ld;
    bool lines_along_rows;
    size_t n_lines, k; /* elements */
    size_t n_units;    /* of a panel, at least (k + 1)/2 and a multiple of `step` */
};

/* What an instruction set provides. */
struct matmul_panels {
    size_t rows, cols;             /* of a tile of C */
    size_t step;                   /* units along k are filled up with zeros to a multiple of it */
    size_t chunk;                  /* units of a panel at most */
    size_t block_rows, block_cols; /* of C at most, summed up by one thread */
    /* Panel p of a piece of A (rows) or B (cols) goes to dst + p·stride units; lines past n_lines
     * are zeros. */
    void (*pack_rows)(const struct panel_source *s, uint32_t *dst, size_t stride);
    void (*pack_cols)(const struct panel_source *s, uint32_t *dst, size_t stride);
    /* c (rows, cols), rows ldc apart, = [c +] Σ over n_units units of a·b. Meanwhile soon_each
     * units from `soon` on are fetched for every unit multiplied; they may be past the end of what
     * there is. */
    void (*tile)(size_t n_units, const uint32_t *a, const uint32_t *b, float *c, size_t ldc,
                 bool add, const uint32_t *soon);
    size_t soon_each;
    /* A thread calls these before and after its tiles; NULL: nothing to do. */
    void (*tiles_begin)(void);
    void (*tiles_end)(void);
};

extern const struct matmul_panels matmul_panels_avx512bf16, matmul_panels_amx;

#endif

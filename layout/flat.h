/* Flat order and partitions of stages 0-2 (docs/deepspeed-behaviour.md, "Flat buffers"): pure
 * arithmetic.
 *
 * A group's trainable parameters stand in group order (or dealt round-robin), row-major, one after
 * the other; the end is padded to a multiple of 2·W; rank r owns the r-th of W equal partitions, so
 * a parameter may be across ranks. All counts are elements.
 *
 * Life cycle: flat_group_init() → read → flat_group_free(). */
#ifndef CZ_LAYOUT_FLAT_H
#define CZ_LAYOUT_FLAT_H

#include "layout/param_table.h"

CZ_EXTERN_C_BEGIN

#define FLAT_ALIGN_FACTOR 2 /* DeepSpeed's nccl_start_alignment_factor */

struct flat_options {
    int world_size;     /* W ≥ 1 */
    bool round_robin;   /* parameter k goes to bin k mod W; the order is bin 0's, bin 1's, … */
    size_t param_align; /* every parameter but the first starts at a multiple of this many
                           elements; 0 or 1: none (zero_optimization.parameter_alignment: 16
                           bytes) */
};

struct flat_param {
    size_t param_idx; /* into the parameter table */
    size_t off, numel;
};

struct flat_group {
    struct flat_param *params; /* in flat order, by rising offset */
    size_t n_params;
    size_t *order;       /* flat position → position in the group as given (round-robin's map) */
    size_t numel;        /* up to the end of the last parameter */
    size_t numel_padded; /* a multiple of 2·W */
    size_t partition;    /* numel_padded / W */
    int world_size;
};

/* Lay out `n` parameters of `table`. Errors: CZ_INVALID (W < 1, overflow), CZ_NOMEM. An empty group
 * is fine. */
cz_status flat_group_init(struct flat_group *g, const struct param_table *table,
                          const size_t *param_idx, size_t n, const struct flat_options *options);
void flat_group_free(struct flat_group *g); /* accepts zeroed; idempotent */

/* Elements of padding at the end of rank's partition (groups_padding of a checkpoint): the whole
 * partition when it is past the last parameter. */
size_t flat_group_padding(const struct flat_group *g, int rank);

/* Position in g->params of the parameter that holds element `off` of the flat buffer; n_params when
 * it is padding. */
size_t flat_group_find(const struct flat_group *g, size_t off);

/* What part of a flat range belongs to one parameter. */
struct flat_piece {
    size_t pos;       /* in g->params */
    size_t param_off; /* first element inside the parameter */
    size_t range_off; /* where that is, from the start of the range */
    size_t numel;
};

/* Walk the parameters inside [begin, end): start with *pos = 0; false when there is no further one.
 * Padding is skipped. */
bool flat_group_next(const struct flat_group *g, size_t begin, size_t end, size_t *pos,
                     struct flat_piece *out);

/* ---- tiles: what the optimizer sweep takes at a time ----------------------------------------- */

#define TILE_NUMEL_MAX ((size_t)8 << 20)

/* Number of tiles of at most `tile` elements in a partition of `numel`. */
static inline size_t tile_count(size_t numel, size_t tile)
{
    return (numel + tile - 1) / tile;
}

/* Elements of tile `idx`, which starts at idx·tile. */
static inline size_t tile_numel(size_t numel, size_t tile, size_t idx)
{
    size_t begin = idx * tile;
    return numel - begin < tile ? numel - begin : tile;
}

CZ_EXTERN_C_END
#endif

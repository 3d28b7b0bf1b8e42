/* A table of spans, cut into pieces for staging memory.
 *
 * Every owner has a slot in a piece, and fills it with the next elements of its spans in the order
 * of the table, so that all owners have work in every piece. Spans that continue each other on both
 * sides go together as one run. The same on all ranks, as tables are. */
#ifndef CZ_COMM_EXCHANGE_PIECES_IMPL_H
#define CZ_COMM_EXCHANGE_PIECES_IMPL_H

#include "comm/comm.h"

#define PIECE_RUNS_PER_OWNER 32 /* at most, so that a piece's table is bounded */

/* Elements next to each other on both sides. */
struct piece_run {
    struct comm_span span;
    size_t at; /* elements: its place in the owner's slot */
};

struct pieces {
    const struct comm_span *spans;
    size_t n_spans, slot_numel; /* slot_numel: elements that a slot holds, at least 1 */
    bool moves;                 /* `to` counts */
    int world_size;
    struct piece_cursor *at; /* (world_size) */
};

/* The position of an owner's stream. */
struct piece_cursor {
    size_t span_idx, span_off;
};

/* Bytes of an owner's slot in a piece: a multiple of 256, never below a page. */
static inline size_t plane_slot_nbytes(size_t piece_nbytes, int world_size)
{
    size_t share = piece_nbytes / (size_t)world_size / 256 * 256;
    return share > 4096 ? share : 4096;
}

/* Begin at the head of the table. `at` is the caller's. */
void pieces_begin(struct pieces *p);

/* The next piece: runs: (world_size · PIECE_RUNS_PER_OWNER), by owner; numels: (world_size)
 * elements in each owner's slot. Returns the number of runs, 0 at the end. */
size_t pieces_next(struct pieces *p, struct piece_run *runs, size_t *numels);

#endif

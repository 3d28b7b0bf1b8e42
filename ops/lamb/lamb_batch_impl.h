/* How the segments of a tile are dealt out to blocks: plain arithmetic, tested without a GPU. */
#ifndef CZ_OPS_LAMB_LAMB_BATCH_IMPL_H
#define CZ_OPS_LAMB_LAMB_BATCH_IMPL_H

#include "ops/lamb/lamb.h"
#include "ops/step/step_grid_impl.h"

#define LAMB_BATCH  64    /* segments of one launch: they travel with its arguments */
#define LAMB_BLOCKS 16384 /* and its blocks, LAMB_BATCH more where segments are ragged */

struct lamb_batch {
    size_t begin[LAMB_BATCH], end[LAMB_BATCH]; /* none is empty */
    size_t tensor[LAMB_BATCH];                 /* all different */
    unsigned first_block[LAMB_BATCH + 1];      /* segment s: [first_block[s], first_block[s + 1]) */
    unsigned n;                                /* segments; 0: nothing to launch */
    size_t span;                               /* elements of a block */
};

static inline bool lamb_batch_has(const struct lamb_batch *b, size_t tensor)
{
    for (unsigned s = 0; s < b->n; s++)
        if (b->tensor[s] == tensor) return true;
    return false;
}

/* Blocks of a batch whose segments are known: about what the device has a use for. */
static inline void lamb_batch_cut(struct lamb_batch *b, int n_multiprocessors)
{
    const size_t unit = (size_t)STEP_BLOCK * STEP_LANES;
    size_t total = 0;
    for (unsigned s = 0; s < b->n; s++) total += b->end[s] - b->begin[s];
    const size_t most = step_blocks(LAMB_BLOCKS, 1, n_multiprocessors);
    b->span = (total / most / unit + 1) * unit;
    b->first_block[0] = 0;
    for (unsigned s = 0; s < b->n; s++) {
        size_t blocks = (b->end[s] - b->begin[s] + b->span - 1) / b->span;
        b->first_block[s + 1] = b->first_block[s] + (unsigned)blocks;
    }
}

/* Take segments in order, up to LAMB_BATCH of different tensors. Returns how many of the n there
 * are behind; empty ones are passed over. */
static inline size_t lamb_batch_take(struct lamb_batch *b, const struct lamb_segment *segments,
                                     size_t n, int n_multiprocessors)
{
    size_t i = 0;
    b->n = 0;
    for (; i < n && b->n < LAMB_BATCH && !lamb_batch_has(b, segments[i].tensor); i++) {
        if (segments[i].begin == segments[i].end) continue;
        b->begin[b->n] = segments[i].begin;
        b->end[b->n] = segments[i].end;
        b->tensor[b->n++] = segments[i].tensor;
    }
    lamb_batch_cut(b, n_multiprocessors);
    return i;
}

#endif

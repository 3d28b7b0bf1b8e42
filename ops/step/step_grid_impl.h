/* How many blocks the optimizers' CUDA kernels start: plain arithmetic, tested without a GPU. */
#ifndef CZ_OPS_STEP_STEP_GRID_IMPL_H
#define CZ_OPS_STEP_STEP_GRID_IMPL_H

#include "base/compiler.h"

#define STEP_BLOCK 256 /* threads */
#define STEP_LANES 4   /* elements a thread reads at once: 16 bytes of fp32 */
#define STEP_PACKS 2   /* such reads per array under way in a thread */

/* Blocks that run on a multiprocessor at once: 64 registers a thread, half of its threads. */
#define STEP_BLOCKS_RESIDENT 4

/* Blocks per multiprocessor that a launch has at most: more than run at once, so that the last ones
 * to end find work, few enough that starting them costs nothing. They loop over what is left. */
#define STEP_BLOCKS_PER_MP 32

/* Blocks for n items of `per_block` each: at least 1, never more than the device has a use for, so
 * below a grid's limit of 2^31 − 1 for any n. */
static inline unsigned step_blocks(size_t n, size_t per_block, int n_multiprocessors)
{
    size_t most = (size_t)(n_multiprocessors > 0 ? n_multiprocessors : 1) * STEP_BLOCKS_PER_MP;
    size_t blocks = n / per_block + (n % per_block != 0);
    if (blocks > most) blocks = most;
    return (unsigned)(blocks > 0 ? blocks : 1);
}

#endif

/* What kernels' accesses ask of memory, counted while their PTX runs: the part of their speed that
 * follows from addresses alone, and is the same on every GPU.
 *
 * Global memory moves in sectors of 32 bytes: an access of a warp takes those that its lanes touch;
 * the fewest would hold the bytes that they want. Shared memory has 32 banks of 4 bytes: an access
 * takes as many turns as the busiest bank has words to give; accesses of 8 bytes are those of two
 * halves of a warp, accesses of 16 (of ldmatrix: its matrices) those of four quarters. Source: CUDA
 * C++ Programming Guide, "Device Memory Accesses", and "Shared Memory" of compute capability 5.x
 * and newer. What wgmma reads is not seen. */
#ifndef CZ_TESTS_PTX_TRAFFIC_H
#define CZ_TESTS_PTX_TRAFFIC_H

#include "ptx_run.h"
#include "sim_settings.h"

extern bool ptx_traffic_asked; /* by sim_traffic_begin() */

/* Whether counts are wanted. */
inline bool ptx_traffic_counts(void)
{
    return sim_settings.count || ptx_traffic_asked;
}

/* A launch begins, has ended. */
void ptx_traffic_begin(const ptx_function *f);
void ptx_traffic_end(void);

/* By an instruction, lanes of a mask touch n bytes each, all in one space (generic: told by their
 * addresses). */
void ptx_traffic_note(const ptx_op &o, enum ptx_space space, uint32_t mask, const uint64_t *address,
                      uint32_t n);

/* On stderr a line per kernel, and one for each of its lines of source that asks for more than
 * would do: for a hundredth of all that the kernel asks for, or more. */
void ptx_traffic_report(void);

#endif

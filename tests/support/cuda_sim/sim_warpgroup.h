/* Products of a warpgroup: wgmma of compute capability 9.0 (PTX ISA, "Asynchronous warpgroup level
 * matrix instructions"), and the fence that shows them what was written to shared memory.
 *
 * What the ISA leaves open is done as late as it allows: a product reads its operands and writes
 * its result when a wait asks for it (in random order sometimes as soon as all 128 threads began
 * it). From the beginning to the wait the registers of D hold NaNs. A kernel is abandoned with a
 * sentence when
 *   - threads of a warpgroup begin different products, or not the same number before a wait;
 *   - D, or A in registers, was written before the wait;
 *   - no wgmma.fence came between the last wait and a product that takes registers which no product
 *     under way has;
 *   - an operand in shared memory was written by cp.async, and the thread that copied has not
 * called fence.proxy.async since (ordinary stores are not seen: they are not tracked);
 *   - a descriptor has a field that is not understood here (other swizzles than 128 bytes, base
 *     offsets), or reaches beyond dynamic shared memory;
 *   - a block ends with products that were never waited for.
 * Products of 16-bit elements are exact, sums in fp32 by rising k. */
#ifndef CZ_TESTS_SIM_WARPGROUP_H
#define CZ_TESTS_SIM_WARPGROUP_H

#include "sim_collective.h"

#include <stdint.h>

/* d (64×n) = a·b, or += with adds. d: the thread's n/2 registers; a_registers: its 4 of A, or NULL:
 * A is described by a. All of these must stay where they are until a wait. */
void sim_wgmma(float *d, int n, bool is_bf16, const uint32_t *a_registers, uint64_t a, uint64_t b,
               bool b_by_columns, bool adds, bool a_by_columns, SIM_SITE);
void sim_wgmma_fence(void);
void sim_wgmma_commit(void);
/* Until at most n_newest_left of the thread's committed groups are under way. */
void sim_wgmma_wait(int n_newest_left, SIM_SITE);
void sim_fence_proxy_async(void);

/* For sim_exec.cc: a block begins; it has ended (NULL, or what is wrong); cp.async has written to
 * shared memory. */
void sim_warpgroup_begin_block(int n_threads);
const char *sim_warpgroup_end_block(void);
void sim_warpgroup_copied(const void *shared, int nbytes, int thread);

#endif

/* Copies by tensor maps (cp.async.bulk.tensor) and the mbarriers that count their bytes: PTX ISA,
 * "mbarrier", "cp.async.bulk.tensor"; and the driver's cuTensorMapEncodeTiled, of which maps come.
 *
 * A copy is done as late as it may be, when a thread asks for its barrier's phase (in random order
 * sometimes at once). A kernel is abandoned with a sentence when a barrier is used before it was
 * made, gets more arrivals or bytes than its phase has, when nothing ever ends a phase, or when a
 * block ends with copies that no thread waited for. Maps are of four dimensions of 16-bit elements,
 * with a swizzle of 128 bytes. */
#ifndef CZ_TESTS_SIM_TENSOR_COPY_H
#define CZ_TESTS_SIM_TENSOR_COPY_H

#include "sim_collective.h"

#include <stddef.h>
#include <stdint.h>

/* What a map holds here, of its 128 bytes. */
struct sim_tensor_map {
    uint64_t magic, base;
    uint64_t strides[3]; /* bytes, of dimensions 1 to 3 */
    uint32_t sizes[4], box[4];
};
#define SIM_TENSOR_MAGIC 0x74656e736f726d61u
#define SIM_TENSOR_LINE  128 /* bytes of a row of a box */

/* The bytes of box row r, NULL past the tensor's end; where they go in shared memory: chunk c of 16
 * bytes at sim_tensor_chunk(). */
const char *sim_tensor_row(const struct sim_tensor_map *map, const int at[4], uint32_t r);
static inline uintptr_t sim_tensor_chunk(uintptr_t to, uint32_t r, uint32_t c)
{
    const uintptr_t line = to + r * SIM_TENSOR_LINE;
    return line + ((c ^ (line >> 7 & 7)) << 4);
}
/* NULL, or what is wrong with a copy. */
const char *sim_tensor_refuses(const struct sim_tensor_map *map, const int at[4], uintptr_t to);

void sim_mbarrier_init(uintptr_t at, int n, SIM_SITE);
void sim_mbarrier_arrive(uintptr_t at, int nbytes, SIM_SITE);
/* Yields to other threads where the answer is no. */
bool sim_mbarrier_test(uintptr_t at, unsigned parity, SIM_SITE);
void sim_copy_tensor(uintptr_t to, const uint64_t *map, const int at[4], uintptr_t barrier,
                     SIM_SITE);
void sim_warpgroups_sync(int number, int n_threads, SIM_SITE);

/* For sim_exec.cc, as sim_warpgroup.h's. */
void sim_tensor_copy_begin_block(void);
const char *sim_tensor_copy_end_block(void);

#endif

/* Kernels as nvcc compiled them: from the host function that a launch names to the PTX in
 * build/cuda_ptx, and its run. */
#ifndef CZ_TESTS_PTX_KERNELS_H
#define CZ_TESTS_PTX_KERNELS_H

#include "sim_launch.h"

#include <string>
#include <vector>

struct ptx_function;

/* What a launch keeps until it runs. */
struct ptx_kernel {
    const ptx_function *function; /* NULL: found by the host function's name */
    std::vector<sim_param> params;
    int device; /* whose memory it may touch */
};

/* Run the grid; params: their bytes, as request.params has them. False: a sentence in *error. */
bool ptx_kernel_run(const ptx_kernel &k, const struct sim_launch_request &r, std::string *error);

/* Device memory that is no longer there. */
void ptx_memory_freed(uint64_t at, size_t nbytes);
void ptx_memory_forget(void); /* what is remembered of where allocations are (ptx_memory.cc) */

#endif

/* What a .cu file sees instead of <cuda_runtime.h> when it is compiled for the simulated device.
 *
 * The types, enums and prototypes are the toolkit's own (cuda_runtime_api.h, vector_types.h); this
 * file gives the words that only nvcc knows a meaning in plain C++: qualifiers, thread indices,
 * barriers, warp collectives, atomics, intrinsics, and a launch that checks what the driver checks.
 *
 *     sim_launch("adam_step", adam_step_kernel, grid, block, shared_nbytes, stream, p, g, numel);
 *
 * A kernel's threads are fibers (sim_exec.cc) which run one after another, in an order that
 * CZERO_CUDA_SIM_ORDER chooses; they change places only at barriers and collectives. */
#ifndef CZ_TESTS_SIM_KERNEL_H
#define CZ_TESTS_SIM_KERNEL_H

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __constant__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __constant__ static
#define __grid_constant__

#define __shared__ static /* one block runs at a time */

#include "sim_collective.h"
#include "sim_intrinsics.h"
#include "sim_launch.h"
#include "sim_tensor.h"
#include "sim_warpgroup.h"

#endif

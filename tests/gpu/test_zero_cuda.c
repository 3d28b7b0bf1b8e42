/* The claims of tests/support/gpu/zero_gpu.h on a CUDA device: nothing is read before what makes it is
 * done. */
#define ZERO_GPU_DEVICE "cuda"
#include "tests/support/gpu/zero_gpu.h"

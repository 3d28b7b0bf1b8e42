/* The claims of tests/support/gpu/zero_gpu.h, with the CPU in a GPU's place. */
#define ZERO_GPU_DEVICE "cpu"
#include "tests/support/gpu/zero_gpu.h"

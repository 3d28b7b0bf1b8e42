/* The claims of tests/support/zero_gpu.h, with the CPU in a GPU's place. */
#define ZERO_GPU_DEVICE "cpu"
#include "tests/support/zero_gpu.h"

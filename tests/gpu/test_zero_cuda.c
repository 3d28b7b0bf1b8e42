/* The claims of tests/support/zero_gpu.h on a CUDA device: nothing is read before what makes it is
 * done. */
#define ZERO_GPU_DEVICE "cuda"
#include "tests/support/zero_gpu.h"

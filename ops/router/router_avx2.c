/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/router/router_vec_impl.h"

#include "base/cpu.h"

const struct router_row router_avx2 = {{"avx2", CPU_AVX2}, add, weigh};

/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/router/router_vec_impl.h"

#include "base/cpu.h"

const struct router_row router_avx512 = {{"avx512", CPU_AVX512}, add, weigh};

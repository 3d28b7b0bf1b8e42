/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/rope/rope_vec_impl.h"

#include "base/cpu.h"

const struct rope_row rope_avx2 = {{"avx2", CPU_AVX2}, rotate};

/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/lamb/lamb_vec_impl.h"

#include "base/cpu.h"

const struct lamb_row lamb_avx2 = {{"avx2", CPU_AVX2}, moments, apply};

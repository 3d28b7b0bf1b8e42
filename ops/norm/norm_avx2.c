/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/norm/norm_vec_impl.h"

#include "base/cpu.h"

const struct norm_row norm_avx2 = {{"avx2", CPU_AVX2}, forward, backward};

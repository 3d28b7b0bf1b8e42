/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/elementwise/elementwise_vec_impl.h"

#include "base/cpu.h"

const struct elementwise_row elementwise_avx2 = {{"avx2", CPU_AVX2}, add, cast_scale, column_sums};

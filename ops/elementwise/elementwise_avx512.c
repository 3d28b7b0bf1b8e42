/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/elementwise/elementwise_vec_impl.h"

#include "base/cpu.h"

const struct elementwise_row elementwise_avx512 = {
    {"avx512", CPU_AVX512}, add, cast_scale, column_sums};

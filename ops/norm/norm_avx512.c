/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/norm/norm_vec_impl.h"

#include "base/cpu.h"

const struct norm_row norm_avx512 = {{"avx512", CPU_AVX512}, forward, backward};

/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/rope/rope_vec_impl.h"

#include "base/cpu.h"

const struct rope_row rope_avx512 = {{"avx512", CPU_AVX512}, rotate};

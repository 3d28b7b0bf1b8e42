/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/lamb/lamb_vec_impl.h"

#include "base/cpu.h"

const struct lamb_row lamb_avx512 = {{"avx512", CPU_AVX512}, moments, apply};

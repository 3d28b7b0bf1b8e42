/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/reduce/reduce_vec_impl.h"

#include "base/cpu.h"

const struct reduce_row reduce_avx512 = {{"avx512", CPU_AVX512}, scan, squares};

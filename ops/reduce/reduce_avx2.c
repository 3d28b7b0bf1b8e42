/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/reduce/reduce_vec_impl.h"

#include "base/cpu.h"

const struct reduce_row reduce_avx2 = {{"avx2", CPU_AVX2}, scan, squares};

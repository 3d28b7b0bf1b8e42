/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/sgd/sgd_vec_impl.h"

#include "base/cpu.h"

const struct sgd_row sgd_avx2 = {{"avx2", CPU_AVX2}, step};

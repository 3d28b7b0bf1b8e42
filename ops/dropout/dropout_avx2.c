/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/dropout/dropout_vec_impl.h"

#include "base/cpu.h"

const struct dropout_row dropout_avx2 = {{"avx2", CPU_AVX2}, dropout};

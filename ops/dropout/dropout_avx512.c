/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/dropout/dropout_vec_impl.h"

#include "base/cpu.h"

const struct dropout_row dropout_avx512 = {{"avx512", CPU_AVX512}, dropout};

/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/adagrad/adagrad_vec_impl.h"

#include "base/cpu.h"

const struct adagrad_row adagrad_avx512 = {{"avx512", CPU_AVX512}, step};

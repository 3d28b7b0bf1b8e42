/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/adagrad/adagrad_vec_impl.h"

#include "base/cpu.h"

const struct adagrad_row adagrad_avx2 = {{"avx2", CPU_AVX2}, step};

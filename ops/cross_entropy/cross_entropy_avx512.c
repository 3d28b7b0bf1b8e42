/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/cross_entropy/cross_entropy_vec_impl.h"

#include "base/cpu.h"

const struct cross_entropy_row cross_entropy_avx512 = {
    {"avx512", CPU_AVX512}, log_sum_exp, softmax_grad, cap};

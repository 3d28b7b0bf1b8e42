/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/cross_entropy/cross_entropy_vec_impl.h"

#include "base/cpu.h"

const struct cross_entropy_row cross_entropy_avx2 = {
    {"avx2", CPU_AVX2}, log_sum_exp, softmax_grad, cap};

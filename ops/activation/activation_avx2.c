/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/activation/activation_vec_impl.h"

#include "base/cpu.h"

const struct activation_row activation_avx2 = {
    {"avx2", CPU_AVX2}, forward, backward, swiglu_forward, swiglu_backward};

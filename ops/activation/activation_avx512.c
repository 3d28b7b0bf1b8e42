/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/activation/activation_vec_impl.h"

#include "base/cpu.h"

const struct activation_row activation_avx512 = {
    {"avx512", CPU_AVX512}, forward, backward, swiglu_forward, swiglu_backward};

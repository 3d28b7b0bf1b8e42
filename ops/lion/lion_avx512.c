/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/lion/lion_vec_impl.h"

#include "base/cpu.h"

const struct lion_row lion_avx512 = {{"avx512", CPU_AVX512}, step};

/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/adam/adam_vec_impl.h"

#include "base/cpu.h"

const struct adam_row adam_avx2 = {{"avx2", CPU_AVX2}, step};

/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/step/step_rows_impl.h"

#include "base/cpu.h"

const struct step_row step_avx512 = {{"avx512", CPU_AVX512}, {STEP_OPS(STEP_ENTRY)}};

/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/step/step_rows_impl.h"

#include "base/cpu.h"

const struct step_row step_avx2 = {{"avx2", CPU_AVX2}, {STEP_OPS(STEP_ENTRY)}};

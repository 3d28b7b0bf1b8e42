/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/onebit/onebit_vec_impl.h"

#include "base/cpu.h"

const struct onebit_row onebit_avx2 = {{"avx2", CPU_AVX2}, feed,       pack,  serve,  unpack,
                                       momentum,           lamb_norms, local, gather, settle};

/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/onebit/onebit_vec_impl.h"

#include "base/cpu.h"

const struct onebit_row onebit_avx512 = {
    {"avx512", CPU_AVX512}, feed, pack, serve, unpack, momentum, lamb_norms, local, gather, settle};

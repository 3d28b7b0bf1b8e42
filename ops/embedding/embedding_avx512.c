/* The vector body on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/embedding/embedding_vec_impl.h"

#include "base/cpu.h"

const struct embedding_row embedding_avx512 = {{"avx512", CPU_AVX512}, add, sum_tokens};

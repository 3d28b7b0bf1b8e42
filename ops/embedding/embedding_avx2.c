/* The vector body on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/embedding/embedding_vec_impl.h"

#include "base/cpu.h"

const struct embedding_row embedding_avx2 = {{"avx2", CPU_AVX2}, add, sum_tokens};

/* The loops on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/matmul/matmul_vec_impl.h"

const struct matmul_vec matmul_vec_avx512 = {widen, write_out, few_rows};

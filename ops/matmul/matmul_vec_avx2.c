/* The loops on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/matmul/matmul_vec_impl.h"

const struct matmul_vec matmul_vec_avx2 = {widen, write_out, few_rows};

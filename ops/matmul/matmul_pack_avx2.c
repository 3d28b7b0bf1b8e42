/* The pack loops on 8 lanes. */
#include "ops/vec_avx2_impl.h"

#include "ops/matmul/matmul_pack_vec_impl.h"

const struct matmul_pack matmul_pack_avx2 = {widen, write_out};

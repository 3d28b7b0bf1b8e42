/* The pack loops on 16 lanes. */
#include "ops/vec_avx512_impl.h"

#include "ops/matmul/matmul_pack_vec_impl.h"

const struct matmul_pack matmul_pack_avx512 = {widen, write_out};

/* Inside the CUDA twin of matmul.
 *
 * matmul_cuda.cu      entry point, the product for what cuBLASLt refuses
 * matmul_lt_cuda.cu   products of cuBLASLt, each shape's choice made once */
#ifndef CZ_OPS_MATMUL_MATMUL_CUDA_IMPL_H
#define CZ_OPS_MATMUL_MATMUL_CUDA_IMPL_H

#include "ops/cuda_impl.h"
#include "ops/matmul/matmul_common_impl.h"

CZ_EXTERN_C_BEGIN

#define MATMUL_LT_ALIGN ((size_t)256) /* of the workspace */

struct matmul_lt;

/* Handle and an empty table for the device that is current. Errors: CZ_NOMEM, CZ_CUDA. */
cz_status matmul_lt_create(struct ops *ops, struct matmul_lt **out);
void matmul_lt_destroy(struct matmul_lt *lt); /* accepts NULL */

/* Bytes of workspace that products may use, whatever their shape. */
size_t matmul_lt_workspace(const struct matmul_lt *lt);

/* Queue the product as it is given, with all that comes along. *taken false: cuBLASLt does not do
 * that (in one call), and nothing was queued; where that was not foreseen, the log and
 * ops->products tell. `workspace` is aligned to MATMUL_LT_ALIGN. */
cz_status matmul_lt_run(struct matmul_lt *lt, struct dev_stream *stream,
                        const struct matmul_args *a, void *workspace, bool *taken);

CZ_EXTERN_C_END
#endif

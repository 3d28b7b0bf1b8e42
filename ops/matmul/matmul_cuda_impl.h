/* Inside the CUDA twin of matmul.
 *
 * matmul_cuda.cu           entry point, the product for what cuBLASLt refuses
 * matmul_lt_cuda.cu        products of cuBLASLt, each shape's choice made once
 * matmul_choices_cuda.cu   which algorithm that is, where it was measured */
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

/* Whether a residual is to come along (CZERO_CUDA_EPILOGUES). */
bool matmul_lt_adds_residual(const struct matmul_lt *lt);

/* Bytes of workspace that products may use, whatever their shape. */
size_t matmul_lt_workspace(const struct matmul_lt *lt);

/* Queue the product as it is given, with all that comes along. *taken false: cuBLASLt does not do
 * that (in one call), and nothing was queued; where that was not foreseen, the log and
 * ops->products tell. `workspace` is aligned to MATMUL_LT_ALIGN. */
cz_status matmul_lt_run(struct matmul_lt *lt, struct dev_stream *stream,
                        const struct matmul_args *a, void *workspace, bool *taken);

/* ---- which algorithm ----
 *
 * CZERO_CUDA_ALGORITHMS unset: the first of those that cuBLASLt's heuristics name, so a run
 * repeats. measure:FILE: each new product is timed with up to MATMUL_N_ALGORITHMS of them, the run
 * takes the quickest, and FILE, which begins anew, says which it was. FILE: runs take what it says,
 * and repeat. A table is for one version of cuBLASLt and one kind of GPU; for another it is
 * CZ_INVALID. */

#define MATMUL_N_FACTS      18 /* what a choice depends on (plan_key, matmul_lt_cuda.cu) */
#define MATMUL_N_ALGORITHMS 8

struct matmul_choices;

/* *out NULL: nothing is asked for. The caller closes *out, also after an error. */
cz_status matmul_choices_open(const struct ops *ops, struct matmul_choices **out);
void matmul_choices_close(struct matmul_choices *c);
bool matmul_choices_measure(const struct matmul_choices *c);

/* The place of the algorithm among those that the heuristics name; 0 where the table has none. */
int matmul_choices_find(const struct matmul_choices *c, const int64_t facts[MATMUL_N_FACTS]);
cz_status matmul_choices_add(struct matmul_choices *c, const int64_t facts[MATMUL_N_FACTS],
                             int which, double seconds, double first);

CZ_EXTERN_C_END
#endif

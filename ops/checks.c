/* Checks that the entries of all ops make; the CUDA plug-in has a copy of them. */
#include "ops/ops_impl.h"

cz_status ops_check_dtype(const char *op, enum cz_dtype dtype)
{
    if (dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: dtype %s: kernels take fp32, bf16 or fp16", op,
                   dtype_name(dtype));
}

cz_status ops_check_workspace(const char *op, const void *workspace, size_t have, size_t need)
{
    if (need == 0 || (workspace && have >= need)) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s: workspace of %zu bytes given, %zu needed", op,
                   workspace ? have : 0, need);
}

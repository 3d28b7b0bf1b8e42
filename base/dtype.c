/* Names and sizes of element types. The enum's values travel between ranks in the heads of
 * slots. */
#include "base/dtype.h"

static const struct {
    const char *name;
    size_t nbytes;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"fp32", 4},  [DTYPE_BF16] = {"bf16", 2}, [DTYPE_F16] = {"fp16", 2},
    [DTYPE_F64] = {"fp64", 8},  [DTYPE_I64] = {"int64", 8}, [DTYPE_I32] = {"int32", 4},
    [DTYPE_I16] = {"int16", 2}, [DTYPE_I8] = {"int8", 1},   [DTYPE_U8] = {"uint8", 1},
    [DTYPE_BOOL] = {"bool", 1},
};

size_t dtype_size(enum cz_dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].nbytes : 0;
}

const char *dtype_name(enum cz_dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

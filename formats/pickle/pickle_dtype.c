/* Element types: torch's names, its storage classes, and base's enum. A type without a base can be
 * carried and copied, but is not converted to numbers. */
#include "formats/pickle/pickle_impl.h"

/* In base's order first. Types that torch keeps in untyped storages only have no class of their
 * own. */
static const struct {
    struct pickle_dtype dtype;
    const char *storage; /* NULL: UntypedStorage */
} types[] = {
    {{"float32", 4, true, DTYPE_F32}, "FloatStorage"},
    {{"bfloat16", 2, true, DTYPE_BF16}, "BFloat16Storage"},
    {{"float16", 2, true, DTYPE_F16}, "HalfStorage"},
    {{"float64", 8, true, DTYPE_F64}, "DoubleStorage"},
    {{"int64", 8, true, DTYPE_I64}, "LongStorage"},
    {{"int32", 4, true, DTYPE_I32}, "IntStorage"},
    {{"int16", 2, true, DTYPE_I16}, "ShortStorage"},
    {{"int8", 1, true, DTYPE_I8}, "CharStorage"},
    {{"uint8", 1, true, DTYPE_U8}, "ByteStorage"},
    {{"bool", 1, true, DTYPE_BOOL}, "BoolStorage"},
    {{"complex64", 8, false, 0}, "ComplexFloatStorage"},
    {{"complex128", 16, false, 0}, "ComplexDoubleStorage"},
    {{"qint8", 1, false, 0}, "QInt8Storage"},
    {{"quint8", 1, false, 0}, "QUInt8Storage"},
    {{"qint32", 4, false, 0}, "QInt32Storage"},
    {{"complex32", 4, false, 0}, NULL},
    {{"uint16", 2, false, 0}, NULL},
    {{"uint32", 4, false, 0}, NULL},
    {{"uint64", 8, false, 0}, NULL},
    {{"float8_e4m3fn", 1, false, 0}, NULL},
    {{"float8_e5m2", 1, false, 0}, NULL},
    {{"float8_e4m3fnuz", 1, false, 0}, NULL},
    {{"float8_e5m2fnuz", 1, false, 0}, NULL},
    {{"float8_e8m0fnu", 1, false, 0}, NULL},
    {{"float4_e2m1fn_x2", 1, false, 0}, NULL},
};

_Static_assert(DTYPE_F32 == 0 && DTYPE_BOOL == 9 && DTYPE_COUNT == 10, "the table's first rows");

const struct pickle_dtype *pickle_dtype_find(const char *torch_name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++)
        if (strcmp(types[i].dtype.torch_name, torch_name) == 0) return &types[i].dtype;
    return NULL;
}

const struct pickle_dtype *pickle_dtype_of(enum cz_dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? &types[dtype].dtype : NULL;
}

const struct pickle_dtype *pickle_dtype_of_storage(const char *name)
{
    if (strcmp(name, "UntypedStorage") == 0) return pickle_dtype_of(DTYPE_U8);
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++)
        if (types[i].storage && strcmp(types[i].storage, name) == 0) return &types[i].dtype;
    return NULL;
}

const char *pickle_storage_of_dtype(const struct pickle_dtype *dtype)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++)
        if (&types[i].dtype == dtype) return types[i].storage;
    return NULL;
}

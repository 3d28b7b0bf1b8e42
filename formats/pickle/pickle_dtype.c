/* Element types: torch's names, its storage classes, and base's enum. A type without a base can be
 * carried and copied, but is not converted to numbers. */
#include "formats/pickle/pickle_impl.h"

#include <math.h>

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

/* ---- float8 ---------------------------------------------------------------------------------- */

/* One sign bit, then exponent and mantissa, but for e8m0fnu, which is an exponent alone. What has
 * no number: under fn the largest mantissa of the largest exponent; under fnuz minus zero; with
 * infinities the largest exponent, as in IEEE 754. */
static const struct float8 {
    const char *torch_name;
    int n_mantissa, bias;
    bool has_infinities, zero_is_unsigned;
} float8s[] = {
    {"float8_e4m3fn", 3, 7, false, false},    {"float8_e5m2", 2, 15, true, false},
    {"float8_e4m3fnuz", 3, 8, false, true},   {"float8_e5m2fnuz", 2, 16, false, true},
    {"float8_e8m0fnu", 0, 127, false, false},
};

static const struct float8 *float8_of(const struct pickle_dtype *dtype)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(float8s); i++)
        if (strcmp(float8s[i].torch_name, dtype->torch_name) == 0) return &float8s[i];
    return NULL;
}

bool pickle_is_float8(const struct pickle_dtype *dtype)
{
    return float8_of(dtype) != NULL;
}

static float float8_value(const struct float8 *f, unsigned char bits)
{
    if (f->n_mantissa == 0) return bits == 0xff ? NAN : ldexpf(1, bits - f->bias);
    const int magnitude = bits & 0x7f, fraction = magnitude & ((1 << f->n_mantissa) - 1);
    const int exponent = magnitude >> f->n_mantissa;
    float value;
    if (f->zero_is_unsigned && bits == 0x80) return NAN;
    if (f->has_infinities && magnitude >> f->n_mantissa == 0x7f >> f->n_mantissa)
        value = fraction ? NAN : INFINITY;
    else if (!f->has_infinities && !f->zero_is_unsigned && magnitude == 0x7f)
        value = NAN;
    else if (exponent == 0)
        value = ldexpf((float)fraction, 1 - f->bias - f->n_mantissa);
    else
        value =
            ldexpf((float)(fraction + (1 << f->n_mantissa)), exponent - f->bias - f->n_mantissa);
    return bits & 0x80 ? -value : value;
}

void pickle_float8_widen(const struct pickle_dtype *dtype, const void *src, size_t n, float *dst)
{
    const struct float8 *f = float8_of(dtype);
    const unsigned char *bits = src;
    for (size_t i = 0; f && i < n; i++) dst[i] = float8_value(f, bits[i]);
}

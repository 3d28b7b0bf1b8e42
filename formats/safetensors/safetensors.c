/* Names and sizes of the format's dtypes; reading and writing have their own files. */
#include "formats/safetensors/safetensors_impl.h"

static const struct {
    const char *name;
    unsigned bits;
} dtypes[SAFETENSORS_DTYPE_COUNT] = {
    [SAFETENSORS_BOOL] = {"BOOL", 8},
    [SAFETENSORS_F4] = {"F4", 4},
    [SAFETENSORS_F6_E2M3] = {"F6_E2M3", 6},
    [SAFETENSORS_F6_E3M2] = {"F6_E3M2", 6},
    [SAFETENSORS_U8] = {"U8", 8},
    [SAFETENSORS_I8] = {"I8", 8},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 8},
    [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 8},
    [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 8},
    [SAFETENSORS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [SAFETENSORS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [SAFETENSORS_I16] = {"I16", 16},
    [SAFETENSORS_U16] = {"U16", 16},
    [SAFETENSORS_F16] = {"F16", 16},
    [SAFETENSORS_BF16] = {"BF16", 16},
    [SAFETENSORS_I32] = {"I32", 32},
    [SAFETENSORS_U32] = {"U32", 32},
    [SAFETENSORS_F32] = {"F32", 32},
    [SAFETENSORS_C64] = {"C64", 64},
    [SAFETENSORS_F64] = {"F64", 64},
    [SAFETENSORS_I64] = {"I64", 64},
    [SAFETENSORS_U64] = {"U64", 64},
};

static const enum safetensors_dtype from_base[DTYPE_COUNT] = {
    [DTYPE_F32] = SAFETENSORS_F32,   [DTYPE_BF16] = SAFETENSORS_BF16, [DTYPE_F16] = SAFETENSORS_F16,
    [DTYPE_F64] = SAFETENSORS_F64,   [DTYPE_I64] = SAFETENSORS_I64,   [DTYPE_I32] = SAFETENSORS_I32,
    [DTYPE_I16] = SAFETENSORS_I16,   [DTYPE_I8] = SAFETENSORS_I8,     [DTYPE_U8] = SAFETENSORS_U8,
    [DTYPE_BOOL] = SAFETENSORS_BOOL,
};

static bool is_dtype(enum safetensors_dtype dtype)
{
    return (unsigned)dtype < SAFETENSORS_DTYPE_COUNT;
}

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

unsigned safetensors_dtype_bits(enum safetensors_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bits : 0;
}

bool safetensors_dtype_to_base(enum safetensors_dtype dtype, enum cz_dtype *out)
{
    for (int base = 0; base < DTYPE_COUNT; base++) {
        if (from_base[base] != dtype) continue;
        *out = (enum cz_dtype)base;
        return true;
    }
    return false;
}

enum safetensors_dtype safetensors_dtype_from_base(enum cz_dtype dtype)
{
    return from_base[dtype];
}

/* Overflow is checked at every step: shapes come from a file. Dtypes of 4 and 6 bits may end inside
 * a byte, which the format forbids. */
enum extent safetensors_extent(enum safetensors_dtype dtype, const int64_t *shape, size_t ndim,
                               uint64_t *numel, uint64_t *nbytes)
{
    uint64_t n = 1, n_bits;
    for (size_t d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(n, (uint64_t)shape[d], &n)) return EXTENT_TOO_LARGE;
    if (n > INT64_MAX || __builtin_mul_overflow(n, safetensors_dtype_bits(dtype), &n_bits))
        return EXTENT_TOO_LARGE;
    if (n_bits % 8 != 0) return EXTENT_NOT_BYTES;
    *numel = n;
    *nbytes = n_bits / 8;
    return EXTENT_OK;
}

/* The bytes of a run of elements; runs of sub-byte dtypes must begin and end at whole bytes. */
cz_status safetensors_piece(const char *path, const char *name, enum safetensors_dtype dtype,
                            uint64_t tensor_numel, uint64_t elem_off, uint64_t numel,
                            uint64_t *byte_off, size_t *nbytes)
{
    uint64_t bits = safetensors_dtype_bits(dtype);
    if (elem_off > tensor_numel || numel > tensor_numel - elem_off)
        return err_set(CZ_INVALID, 0, "%s: tensor %s has %llu elements, not %llu from %llu on",
                       path, name, (unsigned long long)tensor_numel, (unsigned long long)numel,
                       (unsigned long long)elem_off);
    if (elem_off * bits % 8 != 0 || numel * bits % 8 != 0)
        return err_set(CZ_INVALID, 0, "%s: tensor %s of %s can only be split at whole bytes", path,
                       name, safetensors_dtype_name(dtype));
    *byte_off = elem_off * bits / 8;
    *nbytes = (size_t)(numel * bits / 8);
    return CZ_OK;
}

/* Element types and the bit-level conversions between them.
 *
 * Conversions here are the scalar definition (round to nearest even, NaN stays NaN and quiet,
 * denormals kept); the vector rows of ops/cast must agree with them to the bit. */
#ifndef CZ_BASE_DTYPE_H
#define CZ_BASE_DTYPE_H

#include "base/compiler.h"

#include <string.h>

CZ_EXTERN_C_BEGIN

/* Short names for the library's own code. */
#define DTYPE_F32   CZ_DTYPE_F32
#define DTYPE_BF16  CZ_DTYPE_BF16
#define DTYPE_F16   CZ_DTYPE_F16
#define DTYPE_F64   CZ_DTYPE_F64
#define DTYPE_I64   CZ_DTYPE_I64
#define DTYPE_I32   CZ_DTYPE_I32
#define DTYPE_I16   CZ_DTYPE_I16
#define DTYPE_I8    CZ_DTYPE_I8
#define DTYPE_U8    CZ_DTYPE_U8
#define DTYPE_BOOL  CZ_DTYPE_BOOL
#define DTYPE_COUNT 10

/* cz_dtype_size() and cz_dtype_name(), for code that plug-ins have a copy of. */
size_t dtype_size(enum cz_dtype dtype);
const char *dtype_name(enum cz_dtype dtype);

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1fu;
    uint32_t man = h & 0x3ffu;
    if (exp == 0x1fu) { /* infinity, or a NaN made quiet as the F16C instruction does */
        uint32_t quiet = man != 0 ? 0x400000u : 0u;
        return f32_from_bits(sign | 0x7f800000u | (man << 13) | quiet);
    }
    if (exp != 0) return f32_from_bits(sign | ((exp + 112u) << 23) | (man << 13));
    float magnitude = (float)man * 0x1p-24f; /* zero and denormals are exact in fp32 */
    return f32_from_bits(sign | f32_bits(magnitude));
}

static inline uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to at least 65536 */
    if (mag >= 0x38800000u) {                                  /* normal in fp16 */
        uint32_t r = mag + 0xfffu + ((mag >> 13) & 1u);
        return (uint16_t)(sign | ((r >> 13) - (112u << 10)));
    }
    /* Denormal: adding 0.5 places the unit of the sum at 2^-24, and the adder rounds to even. */
    float aligned = f32_from_bits(mag) + 0.5f;
    return (uint16_t)(sign | (f32_bits(aligned) - 0x3f000000u));
}

/* ---- arrays whose dtype is known at run time ---------------------------------------------------
 */

/* Call fn(<constant dtype>, …): kernels are inlined once per dtype, so their loops hold no switch.
 */
#define DTYPE_CALL(fn, dtype, ...)                                                                 \
    do {                                                                                           \
        if ((dtype) == DTYPE_BF16)                                                                 \
            fn(DTYPE_BF16, __VA_ARGS__);                                                           \
        else if ((dtype) == DTYPE_F16)                                                             \
            fn(DTYPE_F16, __VA_ARGS__);                                                            \
        else                                                                                       \
            fn(DTYPE_F32, __VA_ARGS__);                                                            \
    } while (0)

/* Element i of an array of floating-point elements, for code that need not be fast. */
static inline float dtype_get(const void *p, size_t i, enum cz_dtype dtype)
{
    if (dtype == DTYPE_BF16) return bf16_to_f32(((const uint16_t *)p)[i]);
    if (dtype == DTYPE_F16) return f16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

static inline void dtype_put(void *p, size_t i, enum cz_dtype dtype, float x)
{
    if (dtype == DTYPE_BF16)
        ((uint16_t *)p)[i] = f32_to_bf16(x);
    else if (dtype == DTYPE_F16)
        ((uint16_t *)p)[i] = f32_to_f16(x);
    else
        ((float *)p)[i] = x;
}

/* The largest number of fp16 or bf16. */
static inline double dtype_largest(enum cz_dtype dtype)
{
    return dtype == DTYPE_F16 ? 65504 : 0x1.fep127;
}

/* How a number that is not finite is written. */
static inline const char *dtype_nonfinite_name(double x)
{
    return x != x ? "nan" : x > 0 ? "inf" : "-inf";
}

/* Index of the first element that is NaN or infinite; n: none. */
static inline size_t dtype_first_nonfinite(const void *p, size_t n, enum cz_dtype dtype)
{
    size_t i = 0;
    while (i < n) {
        const float x = dtype_get(p, i, dtype);
        if (!(x - x == 0)) break;
        i++;
    }
    return i;
}

CZ_EXTERN_C_END
#endif

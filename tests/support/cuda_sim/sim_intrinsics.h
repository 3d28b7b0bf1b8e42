/* Device intrinsics in plain C++: bits, rounding, conversions, cache hints, integer atomics.
 *
 * Approximate functions (__expf, rsqrtf, …) are the exact ones here: code must not depend on their
 * error. Floating-point atomics are missing on purpose: their sums depend on timing. */
#ifndef CZ_TESTS_SIM_INTRINSICS_H
#define CZ_TESTS_SIM_INTRINSICS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector_types.h>

template <class To, class From> inline To sim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* ---- bits ---- */

inline unsigned __float_as_uint(float x)
{
    return sim_bits<unsigned>(x);
}
inline int __float_as_int(float x)
{
    return sim_bits<int>(x);
}
inline float __uint_as_float(unsigned x)
{
    return sim_bits<float>(x);
}
inline float __int_as_float(int x)
{
    return sim_bits<float>(x);
}
inline long long __double_as_longlong(double x)
{
    return sim_bits<long long>(x);
}
inline double __longlong_as_double(long long x)
{
    return sim_bits<double>(x);
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x)
{
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
/* Byte i of the result is byte (selector nibble i & 7) of y:x; nibble bit 3 repeats its sign. */
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = selector >> 4 * i, byte = (unsigned)(both >> 8 * (s & 7)) & 0xff;
        if (s & 8) byte = byte & 0x80 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by)
{
    return (unsigned)((((uint64_t)hi << 32 | lo) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (by & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
inline int __mulhi(int a, int b)
{
    return (int)((int64_t)a * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- floats: compiled with -ffp-contract=off, so each of these rounds once ---- */

inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
inline float __frsqrt_rn(float a)
{
    return (float)(1.0 / sqrt((double)a));
}
inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dsub_rn(double a, double b)
{
    return a - b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline double __ddiv_rn(double a, double b)
{
    return a / b;
}
inline double __dsqrt_rn(double a)
{
    return sqrt(a);
}
inline float rsqrtf(float a)
{
    return (float)(1.0 / sqrt((double)a));
}
inline double rsqrt(double a)
{
    return 1.0 / sqrt(a);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __exp10f(float x)
{
    return powf(10.0f, x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __log2f(float x)
{
    return log2f(x);
}
inline float __sinf(float x)
{
    return sinf(x);
}
inline float __cosf(float x)
{
    return cosf(x);
}
inline float __tanhf(float x)
{
    return tanhf(x);
}
inline float __powf(float x, float y)
{
    return powf(x, y);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

/* ---- conversions ---- */

inline float __int2float_rn(int x)
{
    return (float)x;
}
inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
inline float __ll2float_rn(long long x)
{
    return (float)x;
}
inline float __double2float_rn(double x)
{
    return (float)x;
}
inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
inline int __float2int_rz(float x)
{
    return (int)x;
}
inline int __float2int_rd(float x)
{
    return (int)floorf(x);
}
inline unsigned __float2uint_rn(float x)
{
    return (unsigned)rintf(x);
}
inline unsigned __float2uint_rz(float x)
{
    return (unsigned)x;
}
inline long long __float2ll_rn(float x)
{
    return llrintf(x);
}

/* ---- min and max as nvcc offers them, in the global namespace ---- */

#define SIM_MIN_MAX(type)                                                                          \
    inline type min(type a, type b)                                                                \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    inline type max(type a, type b)                                                                \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
SIM_MIN_MAX(int)
SIM_MIN_MAX(unsigned)
SIM_MIN_MAX(long)
SIM_MIN_MAX(unsigned long)
SIM_MIN_MAX(long long)
SIM_MIN_MAX(unsigned long long)
#undef SIM_MIN_MAX
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
}

/* ---- memory: one CPU thread runs a block, so fences order the compiler only ---- */

inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

template <class T> inline T sim_load(const T *p)
{
    if ((uintptr_t)p % sizeof(T) != 0) __builtin_trap(); /* misaligned: a fault on hardware */
    return *p;
}
template <class T> inline T __ldg(const T *p)
{
    return sim_load(p);
}
template <class T> inline T __ldca(const T *p)
{
    return sim_load(p);
}
template <class T> inline T __ldcg(const T *p)
{
    return sim_load(p);
}
template <class T> inline T __ldcs(const T *p)
{
    return sim_load(p);
}
template <class T> inline T __ldlu(const T *p)
{
    return sim_load(p);
}
template <class T> inline T __ldcv(const T *p)
{
    return sim_load(p);
}
template <class T> inline void __stwb(T *p, T v)
{
    *p = v;
}
template <class T> inline void __stcg(T *p, T v)
{
    *p = v;
}
template <class T> inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> inline void __stwt(T *p, T v)
{
    *p = v;
}

/* ---- atomics: each returns what was there before ---- */

#define SIM_ATOMIC(type)                                                                           \
    inline type atomicAdd(type *p, type v)                                                         \
    {                                                                                              \
        return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    inline type atomicExch(type *p, type v)                                                        \
    {                                                                                              \
        return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);                                        \
    }                                                                                              \
    inline type atomicOr(type *p, type v)                                                          \
    {                                                                                              \
        return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);                                          \
    }                                                                                              \
    inline type atomicAnd(type *p, type v)                                                         \
    {                                                                                              \
        return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    inline type atomicXor(type *p, type v)                                                         \
    {                                                                                              \
        return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    inline type atomicCAS(type *p, type want, type v)                                              \
    {                                                                                              \
        __atomic_compare_exchange_n(p, &want, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);       \
        return want;                                                                               \
    }                                                                                              \
    inline type atomicMax(type *p, type v)                                                         \
    {                                                                                              \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                           \
        while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED,        \
                                                       __ATOMIC_RELAXED)) {                        \
        }                                                                                          \
        return old;                                                                                \
    }                                                                                              \
    inline type atomicMin(type *p, type v)                                                         \
    {                                                                                              \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                           \
        while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED,        \
                                                       __ATOMIC_RELAXED)) {                        \
        }                                                                                          \
        return old;                                                                                \
    }
SIM_ATOMIC(int)
SIM_ATOMIC(unsigned)
SIM_ATOMIC(unsigned long long)
#undef SIM_ATOMIC
inline int atomicSub(int *p, int v)
{
    return atomicAdd(p, -v);
}
inline unsigned atomicSub(unsigned *p, unsigned v)
{
    return atomicAdd(p, 0u - v);
}
/* ((old >= top) ? 0 : old + 1) */
inline unsigned atomicInc(unsigned *p, unsigned top)
{
    unsigned old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, old >= top ? 0 : old + 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return old;
}

#endif

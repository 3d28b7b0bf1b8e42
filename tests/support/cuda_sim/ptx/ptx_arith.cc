/* Arithmetic of lanes: integers, bits, floating-point numbers. */
#include "ptx_lanes.h"

#include <cfenv>
#include <cmath>
#include <math.h>
#include <tuple>
#include <unordered_map>

uint64_t ptx_approx_seed;

float ptx_approximate(float y, uint32_t input, float relative)
{
    if (ptx_approx_seed == 0 || !(fabsf(y) < INFINITY) || y == 0) return y;
    uint64_t h = (ptx_approx_seed * 0x9E3779B97F4A7C15u) ^ input;
    h ^= h >> 31;
    h *= 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
    const double off = ((double)(uint32_t)(h >> 16) / 2147483648.0 - 1.0) * relative;
    return (float)((double)y * (1.0 + off));
}

namespace {

/* ---- integers; signed overflow wraps ---- */

template <class T> T add(T a, T b)
{
    typedef std::make_unsigned_t<T> U;
    return (T)(U)((U)a + (U)b);
}
template <class T> T sub(T a, T b)
{
    typedef std::make_unsigned_t<T> U;
    return (T)(U)((U)a - (U)b);
}
template <class T> T mul_lo(T a, T b)
{
    return (T)((uint64_t)a * (uint64_t)b);
}
template <class T> struct twice;
template <> struct twice<uint16_t> {
    typedef uint32_t type;
};
template <> struct twice<int16_t> {
    typedef int32_t type;
};
template <> struct twice<uint32_t> {
    typedef uint64_t type;
};
template <> struct twice<int32_t> {
    typedef int64_t type;
};
template <> struct twice<uint64_t> {
    typedef unsigned __int128 type;
};
template <> struct twice<int64_t> {
    typedef __int128 type;
};
template <class T> T mul_hi(T a, T b)
{
    typedef typename twice<T>::type W;
    return (T)(((W)a * (W)b) >> (8 * sizeof(T)));
}
template <class T> typename twice<T>::type mul_wide(T a, T b)
{
    typedef typename twice<T>::type W;
    return (W)a * (W)b;
}
template <class T> T mad_lo(T a, T b, T c)
{
    return add(mul_lo(a, b), c);
}
template <class T> T mad_hi(T a, T b, T c)
{
    return add(mul_hi(a, b), c);
}
template <class T> typename twice<T>::type mad_wide(T a, T b, typename twice<T>::type c)
{
    return add(mul_wide(a, b), c);
}
/* By zero: hardware gives all ones, and the dividend as the rest. */
template <class T> T div(T a, T b)
{
    if (b == 0) return (T) ~(T)0;
    if (std::is_signed_v<T> && b == (T)-1) return sub((T)0, a);
    return (T)(a / b);
}
template <class T> T rem(T a, T b)
{
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == (T)-1) return 0;
    return (T)(a % b);
}
template <class T> T least(T a, T b)
{
    return a < b ? a : b;
}
template <class T> T most(T a, T b)
{
    return a > b ? a : b;
}
template <class T> T negate(T a)
{
    return sub((T)0, a);
}
template <class T> T absolute(T a)
{
    return a < 0 ? negate(a) : a;
}

/* ---- bits ---- */

template <class T> T move(T a)
{
    return a;
}
template <class T> T bit_and(T a, T b)
{
    return (T)(a & b);
}
template <class T> T bit_or(T a, T b)
{
    return (T)(a | b);
}
template <class T> T bit_xor(T a, T b)
{
    return (T)(a ^ b);
}
template <class T> T bit_not(T a)
{
    return (T)~a;
}
/* Shifts by the width or more give zeros, or the sign. */
template <class T> T shift_left(T a, uint32_t n)
{
    return n < 8 * sizeof(T) ? (T)(a << n) : (T)0;
}
template <class T> T shift_right(T a, uint32_t n)
{
    const uint32_t most_bits = 8 * sizeof(T) - 1;
    if (!std::is_signed_v<T>) return n <= most_bits ? (T)(a >> n) : (T)0;
    return (T)(a >> (n < most_bits ? n : most_bits));
}
uint32_t reverse32(uint32_t a)
{
    a = (a >> 1 & 0x55555555u) | (a & 0x55555555u) << 1;
    a = (a >> 2 & 0x33333333u) | (a & 0x33333333u) << 2;
    a = (a >> 4 & 0x0f0f0f0fu) | (a & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(a);
}
uint64_t reverse64(uint64_t a)
{
    return (uint64_t)reverse32((uint32_t)a) << 32 | reverse32((uint32_t)(a >> 32));
}
uint32_t popc32(uint32_t a)
{
    return (uint32_t)__builtin_popcount(a);
}
uint32_t popc64(uint64_t a)
{
    return (uint32_t)__builtin_popcountll(a);
}
uint32_t clz32(uint32_t a)
{
    return a ? (uint32_t)__builtin_clz(a) : 32;
}
uint32_t clz64(uint64_t a)
{
    return a ? (uint32_t)__builtin_clzll(a) : 64;
}
uint32_t bfind_u32(uint32_t a)
{
    return a ? 31 - (uint32_t)__builtin_clz(a) : 0xffffffffu;
}
uint32_t bfind_s32(int32_t a)
{
    return bfind_u32((uint32_t)(a < 0 ? ~a : a));
}
uint32_t bfind_u64(uint64_t a)
{
    return a ? 63 - (uint32_t)__builtin_clzll(a) : 0xffffffffu;
}
uint32_t bfind_shift_u32(uint32_t a)
{
    return a ? (uint32_t)__builtin_clz(a) : 0xffffffffu;
}
uint32_t bfind_shift_u64(uint64_t a)
{
    return a ? (uint32_t)__builtin_clzll(a) : 0xffffffffu;
}
/* The low c bits of a over b, from bit `at` on. */
template <class T> T bit_insert(T a, T b, uint32_t at, uint32_t n)
{
    const uint32_t width = 8 * sizeof(T);
    at &= 255;
    n &= 255;
    if (at >= width || n == 0) return b;
    T mask = n >= width ? (T) ~(T)0 : (T)(((T)1 << n) - 1);
    mask = (T)(mask << at);
    return (T)((b & ~mask) | (T)((T)(a << at) & mask));
}
template <class T> T bit_extract(T a, uint32_t at, uint32_t n)
{
    typedef std::make_unsigned_t<T> U;
    const uint32_t width = 8 * sizeof(T);
    at &= 255;
    n &= 255;
    if (n == 0) return 0;
    const uint32_t sign_at = least(at + n - 1, width - 1);
    const bool sign = std::is_signed_v<T> && ((U)a >> sign_at & 1);
    U x = at < width ? (U)((U)a >> at) : (U)0;
    const uint32_t n_real = at < width ? least(n, width - at) : 0;
    const U mask = n_real >= width ? (U) ~(U)0 : (U)(((U)1 << n_real) - 1);
    x &= mask;
    return (T)(sign ? (U)(x | (U)~mask) : x);
}
uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = selector >> (4 * i) & 15;
        uint32_t byte = (uint32_t)(bytes >> (8 * (s & 7))) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        d |= byte << (8 * i);
    }
    return d;
}
uint32_t lookup3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t d = 0;
    if (table & 0x01) d |= ~a & ~b & ~c;
    if (table & 0x02) d |= ~a & ~b & c;
    if (table & 0x04) d |= ~a & b & ~c;
    if (table & 0x08) d |= ~a & b & c;
    if (table & 0x10) d |= a & ~b & ~c;
    if (table & 0x20) d |= a & ~b & c;
    if (table & 0x40) d |= a & b & ~c;
    if (table & 0x80) d |= a & b & c;
    return d;
}
uint32_t funnel_left_wrap(uint32_t a, uint32_t b, uint32_t c)
{
    return (uint32_t)(((uint64_t)b << 32 | a) << (c & 31) >> 32);
}
uint32_t funnel_right_wrap(uint32_t a, uint32_t b, uint32_t c)
{
    return (uint32_t)(((uint64_t)b << 32 | a) >> (c & 31));
}
uint32_t funnel_left_clamp(uint32_t a, uint32_t b, uint32_t c)
{
    return c >= 32 ? a : funnel_left_wrap(a, b, c);
}
uint32_t funnel_right_clamp(uint32_t a, uint32_t b, uint32_t c)
{
    return c >= 32 ? b : funnel_right_wrap(a, b, c);
}

/* ---- float and double; NaN becomes the one NaN that hardware gives ---- */

float nan_is_one(float x)
{
    return ptx_nan_is_one(x);
}
double nan_is_one(double x)
{
    const uint64_t bits = 0x7fffffffffffffffu;
    double nan;
    __builtin_memcpy(&nan, &bits, 8);
    return x != x ? nan : x;
}
template <class T> T real_add(T a, T b)
{
    return nan_is_one(a + b);
}
template <class T> T real_sub(T a, T b)
{
    return nan_is_one(a - b);
}
template <class T> T real_mul(T a, T b)
{
    return nan_is_one(a * b);
}
template <class T> T real_fma(T a, T b, T c)
{
    return nan_is_one(std::fma(a, b, c));
}
template <class T> T real_div(T a, T b)
{
    return nan_is_one(a / b);
}
template <class T> T real_rcp(T a)
{
    return nan_is_one((T)1 / a);
}
template <class T> T real_sqrt(T a)
{
    return nan_is_one(std::sqrt(a));
}
float fneg(float a)
{
    return ptx_float(ptx_bits(a) ^ 0x80000000u);
}
float fabs_(float a)
{
    return ptx_float(ptx_bits(a) & 0x7fffffffu);
}
/* A number wins over NaN; −0 is less than +0. */
float fmin_(float a, float b)
{
    if (a != a) return ptx_nan_is_one(b);
    if (b != b) return a;
    if (a == b) return ptx_float(ptx_bits(a) | ptx_bits(b));
    return a < b ? a : b;
}
float fmax_(float a, float b)
{
    if (a != a) return ptx_nan_is_one(b);
    if (b != b) return a;
    if (a == b) return ptx_float(ptx_bits(a) & ptx_bits(b));
    return a > b ? a : b;
}
float fmin_nan(float a, float b)
{
    return a != a || b != b ? ptx_float(0x7fffffffu) : fmin_(a, b);
}
float fmax_nan(float a, float b)
{
    return a != a || b != b ? ptx_float(0x7fffffffu) : fmax_(a, b);
}
float fcopysign(float a, float b)
{
    return ptx_float((ptx_bits(a) & 0x80000000u) | (ptx_bits(b) & 0x7fffffffu));
}

template <float (*F)(float)> float ftz1(float a)
{
    return ptx_flush(F(ptx_flush(a)));
}
template <float (*F)(float, float)> float ftz2(float a, float b)
{
    return ptx_flush(F(ptx_flush(a), ptx_flush(b)));
}
template <float (*F)(float, float, float)> float ftz3(float a, float b, float c)
{
    return ptx_flush(F(ptx_flush(a), ptx_flush(b), ptx_flush(c)));
}

/* ---- approximations, with the errors that the PTX ISA allows ---- */

/* 2^x in double precision: a Taylor sum around the nearest integer, right to 1e-16. */
inline double exp2_exact(double x)
{
    x = x < -200 ? -200 : x > 200 ? 200 : x;
    const double n = __builtin_rint(x), t = (x - n) * 0.69314718055994530942;
    double s = 1.0 / 6227020800.0;
    s = s * t + 1.0 / 479001600.0;
    s = s * t + 1.0 / 39916800.0;
    s = s * t + 1.0 / 3628800.0;
    s = s * t + 1.0 / 362880.0;
    s = s * t + 1.0 / 40320.0;
    s = s * t + 1.0 / 5040.0;
    s = s * t + 1.0 / 720.0;
    s = s * t + 1.0 / 120.0;
    s = s * t + 1.0 / 24.0;
    s = s * t + 1.0 / 6.0;
    s = s * t + 0.5;
    s = s * t + 1.0;
    s = s * t + 1.0;
    const uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    __builtin_memcpy(&scale, &bits, 8);
    return s * scale;
}
float ex2_of(float x)
{
    const double y = exp2_exact((double)x);
    return x != x ? ptx_float(0x7fffffffu) : (float)y;
}
void run_ex2(ptx_warp &w, const ptx_op &o)
{
    float *d = w.to<float>(o.s[0]);
    const float *a = w.from<float>(o.s[1]);
    const bool flush = o.form & 1;
    float x[PTX_WARP], y[PTX_WARP];
    for (int l = 0; l < PTX_WARP; l++) x[l] = flush ? ptx_flush(a[l]) : a[l];
    for (int l = 0; l < PTX_WARP; l++) y[l] = ex2_of(x[l]);
    if (ptx_approx_seed != 0)
        for (int l = 0; l < PTX_WARP; l++) /* of zeros it is exact */
            y[l] = x[l] == 0 ? 1.0f : ptx_approximate(y[l], ptx_bits(x[l]), 0x1p-22f);
    ptx_lanes(w.mask, [=](int l) { d[l] = flush ? ptx_flush(y[l]) : y[l]; });
}
float lg2_approx(float a)
{
    return ptx_approximate(ptx_nan_is_one((float)log2((double)a)), ptx_bits(a), 0x1p-22f);
}
float rcp_approx(float a)
{
    return ptx_approximate(real_rcp<float>(a), ptx_bits(a), 0x1p-23f);
}
float sqrt_approx(float a)
{
    return ptx_approximate(real_sqrt<float>(a), ptx_bits(a), 0x1p-23f);
}
float rsqrt_approx(float a)
{
    return ptx_approximate(ptx_nan_is_one((float)(1.0 / sqrt((double)a))), ptx_bits(a), 0x1p-22f);
}
float sin_approx(float a)
{
    return ptx_approximate(ptx_nan_is_one((float)sin((double)a)), ptx_bits(a), 0x1p-20f);
}
float cos_approx(float a)
{
    return ptx_approximate(ptx_nan_is_one((float)cos((double)a)), ptx_bits(a), 0x1p-20f);
}
float tanh_approx(float a)
{
    return ptx_approximate(ptx_nan_is_one((float)tanh((double)a)), ptx_bits(a), 0x1p-11f);
}
/* Two units of the last place. */
float div_full(float a, float b)
{
    return ptx_approximate(real_div<float>(a, b), ptx_bits(a) * 31 + ptx_bits(b), 0x1p-22f);
}
/* The same; 0 for divisors beyond 2^126, where the reciprocal vanishes. */
float div_approx(float a, float b)
{
    const float size = fabs_(b);
    if (size > 0x1p126f && size < INFINITY) return fabs_(a) < INFINITY ? a * 0.0f : a * b * 0.0f;
    return div_full(a, b);
}

/* ---- double ---- */

double dneg(double a)
{
    return -a;
}
double dabs(double a)
{
    return __builtin_fabs(a);
}
double dmin(double a, double b)
{
    return a != a ? b : b != b ? a : a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
double dmax(double a, double b)
{
    return a != a ? b : b != b ? a : a > b || (a == b && !__builtin_signbit(a)) ? a : b;
}
double dcopysign(double a, double b)
{
    return __builtin_copysign(b, a);
}

/* ---- rounding other than to nearest: the processor's own modes ---- */

/* The compiler must move no arithmetic across. */
inline void rounding(int mode)
{
    asm volatile("" ::: "memory");
    fesetround(mode);
    asm volatile("" ::: "memory");
}
template <auto F, int MODE> void run_rounded(ptx_warp &w, const ptx_op &o)
{
    rounding(MODE);
    ptx_lane_function<F>::run(w, o);
    rounding(FE_TONEAREST);
}
template <auto F, int MODE> constexpr ptx_plain rounded()
{
    ptx_plain p = ptx_lane_function<F>::plain;
    p.run = run_rounded<F, MODE>;
    return p;
}

/* ---- 128-bit sums by parts: a carry per lane ---- */

template <class T, bool SUBTRACT, bool IN, bool OUT> void run_carry(ptx_warp &w, const ptx_op &o)
{
    T *d = w.to<T>(o.s[0]);
    const T *a = w.from<T>(o.s[1]), *b = w.from<T>(o.s[2]);
    uint32_t carry = w.carry;
    ptx_lanes(w.mask, [&](int l) {
        const T in = IN ? (T)(carry >> l & 1) : (T)0, x = a[l], y = b[l];
        T sum = SUBTRACT ? (T)(x - y) : (T)(x + y);
        bool over = SUBTRACT ? x < y : sum < x;
        const T before = sum;
        sum = SUBTRACT ? (T)(sum - in) : (T)(sum + in);
        over = over || (SUBTRACT ? before < in : sum < before);
        if (OUT) carry = (carry & ~(1u << l)) | (uint32_t)over << l;
        d[l] = sum;
    });
    w.carry = carry;
}
template <class T, bool SUBTRACT, bool IN, bool OUT> constexpr ptx_plain carry()
{
    return {run_carry<T, SUBTRACT, IN, OUT>, {sizeof(T), sizeof(T), sizeof(T)}, 3};
}
/* A part of a product, and a sum with the carry. */
template <class T, T (*PART)(T, T), bool IN, bool OUT>
void run_mad_carry(ptx_warp &w, const ptx_op &o)
{
    typedef std::make_unsigned_t<T> U;
    T *d = w.to<T>(o.s[0]);
    const T *a = w.from<T>(o.s[1]), *b = w.from<T>(o.s[2]), *c = w.from<T>(o.s[3]);
    uint32_t carry = w.carry;
    ptx_lanes(w.mask, [&](int l) {
        const unsigned __int128 sum =
            (unsigned __int128)(U)PART(a[l], b[l]) + (U)c[l] + (IN ? carry >> l & 1 : 0);
        if (OUT) carry = (carry & ~(1u << l)) | (uint32_t)(sum >> (8 * sizeof(T)) != 0) << l;
        d[l] = (T)sum;
    });
    w.carry = carry;
}
template <class T, T (*PART)(T, T), bool IN, bool OUT> constexpr ptx_plain mad_carry()
{
    return {run_mad_carry<T, PART, IN, OUT>, {sizeof(T), sizeof(T), sizeof(T), sizeof(T)}, 4};
}

constexpr ptx_plain ex2_plain = {run_ex2, {4, 4}, 2};
void run_ex2_ftz(ptx_warp &w, const ptx_op &o)
{
    ptx_op flushed = o;
    flushed.form |= 1;
    run_ex2(w, flushed);
}
constexpr ptx_plain ex2_ftz_plain = {run_ex2_ftz, {4, 4}, 2};

/* ---- the table ---- */

#define INTEGERS(letter, bits, T)                                                                  \
    PTX_PLAIN("add." letter bits, add<T>)                                                          \
    PTX_PLAIN("sub." letter bits, sub<T>)                                                          \
    PTX_PLAIN("mul.lo." letter bits, mul_lo<T>)                                                    \
    PTX_PLAIN("mul.hi." letter bits, mul_hi<T>)                                                    \
    PTX_PLAIN("mad.lo." letter bits, mad_lo<T>)                                                    \
    PTX_PLAIN("mad.hi." letter bits, mad_hi<T>)                                                    \
    PTX_PLAIN("div." letter bits, div<T>)                                                          \
    PTX_PLAIN("rem." letter bits, rem<T>)                                                          \
    PTX_PLAIN("min." letter bits, least<T>)                                                        \
    PTX_PLAIN("max." letter bits, most<T>)                                                         \
    PTX_PLAIN("shr." letter bits, shift_right<T>)                                                  \
    PTX_PLAIN("mov." letter bits, move<T>)
#define WIDE(letter, bits, T)                                                                      \
    PTX_PLAIN("mul.wide." letter bits, mul_wide<T>)                                                \
    PTX_PLAIN("mad.wide." letter bits, mad_wide<T>)
#define SIGNED(bits, T)                                                                            \
    PTX_PLAIN("neg.s" bits, negate<T>)                                                             \
    PTX_PLAIN("abs.s" bits, absolute<T>)
#define BITS(bits, T)                                                                              \
    PTX_PLAIN("and.b" bits, bit_and<T>)                                                            \
    PTX_PLAIN("or.b" bits, bit_or<T>)                                                              \
    PTX_PLAIN("xor.b" bits, bit_xor<T>)                                                            \
    PTX_PLAIN("not.b" bits, bit_not<T>)                                                            \
    PTX_PLAIN("shl.b" bits, shift_left<T>)                                                         \
    PTX_PLAIN("shr.b" bits, shift_right<T>)
#define CARRIES(letter, bits, T)                                                                   \
    {"add.cc." letter bits, carry<T, false, false, true>()},                                       \
        {"addc." letter bits, carry<T, false, true, false>()},                                     \
        {"addc.cc." letter bits, carry<T, false, true, true>()},                                   \
        {"sub.cc." letter bits, carry<T, true, false, true>()},                                    \
        {"subc." letter bits, carry<T, true, true, false>()},                                      \
        {"subc.cc." letter bits, carry<T, true, true, true>()},
#define MAD_CARRIES(letter, bits, T)                                                               \
    {"mad.lo.cc." letter bits, mad_carry<T, mul_lo<T>, false, true>()},                            \
        {"mad.hi.cc." letter bits, mad_carry<T, mul_hi<T>, false, true>()},                        \
        {"madc.lo." letter bits, mad_carry<T, mul_lo<T>, true, false>()},                          \
        {"madc.hi." letter bits, mad_carry<T, mul_hi<T>, true, false>()},                          \
        {"madc.lo.cc." letter bits, mad_carry<T, mul_lo<T>, true, true>()},                        \
        {"madc.hi.cc." letter bits, mad_carry<T, mul_hi<T>, true, true>()},
/* Every rounding, with and without flushing; none written means to nearest. */
#define ROUNDED(op, type, F)                                                                       \
    PTX_PLAIN(op "." type, F)                                                                      \
    PTX_PLAIN(op ".rn." type, F){op ".rz." type, rounded<F, FE_TOWARDZERO>()},                     \
        {op ".rm." type, rounded<F, FE_DOWNWARD>()}, {op ".rp." type, rounded<F, FE_UPWARD>()},
/* Of both sizes; W: what flushes F's operands and its result. */
#define REAL(op, F, W)                                                                             \
    ROUNDED(op, "f32", F<float>)                                                                   \
    ROUNDED(op, "ftz.f32", W<F<float>>) ROUNDED(op, "f64", F<double>)

const std::unordered_map<std::string, ptx_plain> &plains()
{
    /* clang-format off */
    static const std::unordered_map<std::string, ptx_plain> table = {
        INTEGERS("u", "16", uint16_t) INTEGERS("s", "16", int16_t)
        INTEGERS( "u", "32", uint32_t) INTEGERS("s", "32", int32_t)
        INTEGERS("u", "64", uint64_t) INTEGERS("s", "64", int64_t) WIDE("u", "16", uint16_t)
        WIDE("s", "16", int16_t) WIDE( "u", "32", uint32_t) WIDE("s", "32", int32_t)
        SIGNED("16", int16_t) SIGNED("32", int32_t) SIGNED("64", int64_t) BITS("16", uint16_t)
        BITS("32", uint32_t) BITS( "64", uint64_t) CARRIES("u", "32", uint32_t)
        CARRIES("s", "32", uint32_t) CARRIES("u", "64", uint64_t) CARRIES("s", "64", uint64_t)
        MAD_CARRIES("u", "32", uint32_t) MAD_CARRIES("s", "32", int32_t)
        MAD_CARRIES("u", "64", uint64_t) MAD_CARRIES("s", "64", int64_t)
        PTX_PLAIN("mov.f32", move<float>)
        PTX_PLAIN( "mov.f64", move< double>)
        PTX_PLAIN("brev.b32", reverse32)
        PTX_PLAIN("brev.b64", reverse64)
        PTX_PLAIN("popc.b32", popc32)
        PTX_PLAIN("popc.b64", popc64)
        PTX_PLAIN("clz.b32", clz32)
        PTX_PLAIN( "clz.b64", clz64)
        PTX_PLAIN("bfind.u32", bfind_u32)
        PTX_PLAIN("bfind.s32", bfind_s32)
        PTX_PLAIN("bfind.u64", bfind_u64)
        PTX_PLAIN( "bfind.shiftamt.u32", bfind_shift_u32)
        PTX_PLAIN("bfind.shiftamt.u64", bfind_shift_u64)
        PTX_PLAIN("bfi.b32", bit_insert<uint32_t>)
        PTX_PLAIN( "bfi.b64", bit_insert< uint64_t>)
        PTX_PLAIN("bfe.u32", bit_extract<uint32_t>)
        PTX_PLAIN("bfe.s32", bit_extract<int32_t>)
        PTX_PLAIN( "bfe.u64", bit_extract< uint64_t>)
        PTX_PLAIN("bfe.s64", bit_extract<int64_t>)
        PTX_PLAIN("prmt.b32", permute)
        PTX_PLAIN("lop3.b32", lookup3)
        PTX_PLAIN( "shf.l.wrap.b32", funnel_left_wrap)
        PTX_PLAIN("shf.r.wrap.b32", funnel_right_wrap)
        PTX_PLAIN("shf.l.clamp.b32", funnel_left_clamp)
        PTX_PLAIN("shf.r.clamp.b32", funnel_right_clamp)
        REAL("add", real_add, ftz2) REAL("sub", real_sub, ftz2) REAL("mul", real_mul, ftz2)
        REAL("fma", real_fma, ftz3) REAL("div", real_div, ftz2) REAL("rcp", real_rcp, ftz1)
        REAL("sqrt", real_sqrt, ftz1)
        PTX_PLAIN("neg.f32", fneg)
        PTX_PLAIN("neg.ftz.f32", ftz1<fneg>)
        PTX_PLAIN( "abs.f32", fabs_)
        PTX_PLAIN("abs." "ftz." "f32", ftz1< fabs_>)
        PTX_PLAIN( "min.f32", fmin_)
        PTX_PLAIN("m" "a" "x" "." "f" "3" "2", fmax_)
        PTX_PLAIN("min.ftz." "f32", ftz2< fmin_>)
        PTX_PLAIN( "max.ftz." "f32", ftz2<fmax_>)
        PTX_PLAIN("min.NaN.f32", fmin_nan)
        PTX_PLAIN("max.NaN.f32", fmax_nan)
        PTX_PLAIN( "copysi" "gn." "f32", fcopysign)
        PTX_PLAIN("neg.f64", dneg)
        PTX_PLAIN( "ab" "s." "f6" "4", dabs)
        PTX_PLAIN( "min.f64", dmin)
        PTX_PLAIN( "max.f64", dmax)
        PTX_PLAIN( "copysign.f64", dcopysign)
        { "ex2.approx.f32", ex2_plain}, {"ex2.approx.ftz.f32", ex2_ftz_plain},
        PTX_PLAIN("lg2.approx.f32", lg2_approx)
        PTX_PLAIN("lg2.approx.ftz.f32", ftz1<lg2_approx>)
        PTX_PLAIN("rcp.approx.f32", rcp_approx)
        PTX_PLAIN( "rcp.approx.ftz.f32", ftz1<rcp_approx>)
        PTX_PLAIN("sqrt.approx.f32", sqrt_approx)
        PTX_PLAIN("sqrt.approx.ftz.f32", ftz1<sqrt_approx>)
        PTX_PLAIN("rsqrt.approx.f32", rsqrt_approx)
        PTX_PLAIN("rsqrt.approx.ftz.f32", ftz1<rsqrt_approx>)
        PTX_PLAIN("sin.approx.f32", sin_approx)
        PTX_PLAIN("sin.approx.ftz.f32", ftz1<sin_approx>)
        PTX_PLAIN("cos.approx.f32", cos_approx)
        PTX_PLAIN("cos.approx.ftz.f32", ftz1<cos_approx>)
        PTX_PLAIN("tanh.approx.f32", tanh_approx)
        PTX_PLAIN("div.approx.f32", div_approx)
        PTX_PLAIN("div.approx.ftz.f32", ftz2<div_approx>)
        PTX_PLAIN("div.full.f32", div_full)
        PTX_PLAIN("div.full.ftz.f32", ftz2<div_full>)
    };
    /* clang-format on */
    return table;
}

} // namespace

const ptx_plain *ptx_find_plain(const std::string &opcode)
{
    auto at = plains().find(opcode);
    return at == plains().end() ? nullptr : &at->second;
}

/* cvt and mov: registers of one type into registers of another. Integers may be in registers that
 * are wider than their type. */
#include "ptx_lanes.h"
#include "ptx_text.h"

#include <immintrin.h>
#include <limits>
#include <math.h>
#include <string.h>

void ptx_decode_mov_pred(ptx_builder &b, const ptx_instruction &i);

namespace {

/* ---- 16-bit floats ---- */

inline float f16_value(uint16_t h)
{
    return ptx_nan_is_one(_cvtsh_ss(h));
}
inline float bf16_value(uint16_t h)
{
    return ptx_float((uint32_t)h << 16);
}
inline uint16_t to_f16(float x)
{
    return x != x ? (uint16_t)0x7fff : (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
inline uint16_t to_f16_rz(float x)
{
    return x != x ? (uint16_t)0x7fff : (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_ZERO);
}
inline uint16_t to_bf16(float x)
{
    const uint32_t b = ptx_bits(x);
    return x != x ? (uint16_t)0x7fff : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
inline uint16_t to_bf16_rz(float x)
{
    return x != x ? (uint16_t)0x7fff : (uint16_t)(ptx_bits(x) >> 16);
}
template <uint16_t (*F)(float)> uint32_t pack(float high, float low)
{
    return (uint32_t)F(high) << 16 | F(low);
}
template <uint16_t (*F)(float)> uint32_t pack_relu(float high, float low)
{
    return pack<F>(high > 0 || high != high ? high : 0, low > 0 || low != low ? low : 0);
}

/* ---- whole numbers from floats: clamped, NaN is 0 (of 64 bits: the sign bit) ---- */

enum round_mode { RN = 0, RZ, RM, RP };

template <class F, int MODE> F to_whole(F x)
{
    if (MODE == RN) return (F)__builtin_rint((double)x);
    if (MODE == RZ) return (F)__builtin_trunc((double)x);
    if (MODE == RM) return (F)__builtin_floor((double)x);
    return (F)__builtin_ceil((double)x);
}
template <class F, class I, int MODE> I to_integer(F x)
{
    typedef std::numeric_limits<I> limits;
    if (x != x) {
        if (sizeof(I) < 8 && sizeof(F) < 8) return 0;
        return (I)((uint64_t)1 << (8 * sizeof(I) - 1));
    }
    const F whole = to_whole<F, MODE>(x);
    const F end = ldexp((F)1, limits::digits); /* one more than the greatest */
    if (whole >= end) return limits::max();
    if (whole < (limits::is_signed ? -end : (F)0)) return limits::min();
    return (I)whole;
}
template <auto F> auto flushed(float x)
{
    return F(ptx_flush(x));
}
template <class I> uint16_t integer_to_f16(I x)
{
    return to_f16((float)x); /* rounded twice: exact up to 2^24, beyond f16 from 65520 on */
}

/* ---- floats ---- */

float same(float x)
{
    return x;
}
float saturated(float x)
{
    return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; /* NaN: 0 */
}
template <class A, class D> D plain_cast(A x)
{
    return (D)x;
}
float from_double(double x)
{
    return ptx_nan_is_one((float)x);
}
double from_float(float x)
{
    return (double)x;
}
uint32_t to_tf32(float x)
{
    if (x != x) return 0x7fffffffu;
    const uint32_t b = ptx_bits(x);
    if ((b & 0x7f800000u) == 0x7f800000u) return b;
    return (b + 0x1000) & 0xffffe000u; /* ties away from zero */
}

struct conversion {
    const char *opcode;
    ptx_plain plain;
};

#define TO_INTEGERS(type, F)                                                                       \
    TO_INTEGER("s32", int32_t, type, F)                                                            \
    TO_INTEGER("u32", uint32_t, type, F)                                                           \
    TO_INTEGER("s64", int64_t, type, F)                                                            \
    TO_INTEGER("u64", uint64_t, type, F)                                                           \
    TO_INTEGER("s16", int16_t, type, F) TO_INTEGER("u16", uint16_t, type, F)
#define TO_INTEGER_FTZ(name, I)                                                                    \
    {"cvt.rni.ftz." name ".f32", ptx_lane_function<flushed<to_integer<float, I, RN>>>::plain},     \
        {"cvt.rzi.ftz." name ".f32", ptx_lane_function<flushed<to_integer<float, I, RZ>>>::plain}, \
        {"cvt.rmi.ftz." name ".f32", ptx_lane_function<flushed<to_integer<float, I, RM>>>::plain}, \
        {"cvt.rpi.ftz." name ".f32", ptx_lane_function<flushed<to_integer<float, I, RP>>>::plain},
#define TO_INTEGER(name, I, type, F)                                                               \
    {"cvt.rni." name "." type, ptx_lane_function<to_integer<F, I, RN>>::plain},                    \
        {"cvt.rzi." name "." type, ptx_lane_function<to_integer<F, I, RZ>>::plain},                \
        {"cvt.rmi." name "." type, ptx_lane_function<to_integer<F, I, RM>>::plain},                \
        {"cvt.rpi." name "." type, ptx_lane_function<to_integer<F, I, RP>>::plain},
#define FROM_INTEGER(name, I)                                                                      \
    {"cvt.rn.f32." name, ptx_lane_function<plain_cast<I, float>>::plain},                          \
        {"cvt.rn.f64." name, ptx_lane_function<plain_cast<I, double>>::plain},                     \
        {"cvt.rn.f16." name, ptx_lane_function<integer_to_f16<I>>::plain},

/* clang-format off */
const conversion conversions[] = {
        TO_INTEGERS("f32", float) TO_INTEGERS("f64", double) FROM_INTEGER("s16", int16_t)
        FROM_INTEGER("u16", uint16_t) FROM_INTEGER("s32", int32_t) FROM_INTEGER("u32", uint32_t)
        FROM_INTEGER("s64", int64_t) FROM_INTEGER("u64", uint64_t)
        TO_INTEGER_FTZ("s32", int32_t) TO_INTEGER_FTZ("u32", uint32_t)
        TO_INTEGER_FTZ("s64", int64_t) TO_INTEGER_FTZ("u64", uint64_t)
        {"cvt.f32.f16", ptx_lane_function<f16_value>::plain},
        {"cvt.f32.bf16", ptx_lane_function<bf16_value>::plain},
        {"cvt.rn.f16.f32", ptx_lane_function<to_f16>::plain},
        {"cvt.rz.f16.f32", ptx_lane_function<to_f16_rz>::plain},
        {"cvt.rn.bf16.f32", ptx_lane_function<to_bf16>::plain},
        {"cvt.rz.bf16.f32", ptx_lane_function<to_bf16_rz>::plain},
        {"cvt.rn.f16x2.f32", ptx_lane_function<pack<to_f16>>::plain},
        {"cvt.rn.bf16x2.f32", ptx_lane_function<pack<to_bf16>>::plain},
        {"cvt.rn.relu.f16x2.f32", ptx_lane_function<pack_relu<to_f16>>::plain},
        {"cvt.rn.relu.bf16x2.f32", ptx_lane_function<pack_relu<to_bf16>>::plain},
        {"cvt.f64.f32", ptx_lane_function<from_float>::plain},
        {"cvt.rn.f32.f64", ptx_lane_function<from_double>::plain},
        {"cvt.sat.f32.f32", ptx_lane_function<saturated>::plain},
        {"cvt.f32.f32", ptx_lane_function<same>::plain},
        {"cvt.ftz.f32.f32", ptx_lane_function<ptx_flush>::plain},
        {"cvt.rni.f32.f32", ptx_lane_function<to_whole<float, RN>>::plain},
        {"cvt.rzi.f32.f32", ptx_lane_function<to_whole<float, RZ>>::plain},
        {"cvt.rmi.f32.f32", ptx_lane_function<to_whole<float, RM>>::plain},
        {"cvt.rpi.f32.f32", ptx_lane_function<to_whole<float, RP>>::plain},
        {"cvt.rni.ftz.f32.f32", ptx_lane_function<flushed<to_whole<float, RN>>>::plain},
        {"cvt.rzi.ftz.f32.f32", ptx_lane_function<flushed<to_whole<float, RZ>>>::plain},
        {"cvt.rmi.ftz.f32.f32", ptx_lane_function<flushed<to_whole<float, RM>>>::plain},
        {"cvt.rpi.ftz.f32.f32", ptx_lane_function<flushed<to_whole<float, RP>>>::plain},
        {"cvt.rni.f64.f64", ptx_lane_function<to_whole<double, RN>>::plain},
        {"cvt.rmi.f64.f64", ptx_lane_function<to_whole<double, RM>>::plain},
        {"cvt.rna.tf32.f32", ptx_lane_function<to_tf32>::plain},
};
/* clang-format on */

/* ---- integers ---- */

struct integer {
    int nbytes;
    bool is_signed;
};

integer integer_of(const std::string &type, const ptx_instruction &i)
{
    if (type[0] != 'u' && type[0] != 's') ptx_refuse(i, "this conversion is not known");
    return {(int)ptx_type_nbytes(type), type[0] == 's'};
}

inline int64_t extend(uint64_t x, integer t)
{
    const int unused = 64 - 8 * t.nbytes;
    return t.is_signed ? (int64_t)(x << unused) >> unused : (int64_t)(x << unused >> unused);
}

/* The value of an integer of type `a` as type d would hold it, by wrapping or clamping. */
int64_t clamp(int64_t x, integer a, integer d)
{
    const bool huge = !a.is_signed && a.nbytes == 8 && x < 0; /* 2^63 or more */
    const int digits = 8 * d.nbytes - d.is_signed;
    const int64_t most = digits >= 63 ? INT64_MAX : ((int64_t)1 << digits) - 1;
    if (!d.is_signed && digits == 64) return x < 0 && !huge ? 0 : x;
    if (huge || x > most) return most;
    const int64_t least = d.is_signed ? -most - 1 : 0;
    return x < least ? least : x;
}

template <class R> void read_lanes(ptx_warp &w, int32_t slot, integer t, int64_t out[PTX_WARP])
{
    const R *a = w.from<R>(slot);
    for (int l = 0; l < PTX_WARP; l++) out[l] = extend((uint64_t)a[l], t);
}

template <class R> void write_lanes(ptx_warp &w, int32_t slot, const int64_t x[PTX_WARP])
{
    R *d = w.to<R>(slot);
    ptx_lanes(w.mask, [=](int l) { d[l] = (R)x[l]; });
}

/* form: saturate; space: bytes of the registers, 16·result + source; nbytes stays 0 (no memory is
 * touched); imm: the types. */
void run_integers(ptx_warp &w, const ptx_op &o)
{
    const integer a = {(int)(o.imm & 15), (o.imm & 16) != 0};
    const integer d = {(int)(o.imm >> 8 & 15), (o.imm >> 8 & 16) != 0};
    int64_t x[PTX_WARP];
    switch (o.space & 15) {
    case 2: read_lanes<uint16_t>(w, o.s[1], a, x); break;
    case 4: read_lanes<uint32_t>(w, o.s[1], a, x); break;
    default: read_lanes<uint64_t>(w, o.s[1], a, x);
    }
    for (int l = 0; l < PTX_WARP; l++)
        x[l] = o.form ? clamp(x[l], a, d) : extend((uint64_t)x[l], d);
    switch (o.space >> 4) {
    case 2: write_lanes<uint16_t>(w, o.s[0], x); break;
    case 4: write_lanes<uint32_t>(w, o.s[0], x); break;
    default: write_lanes<uint64_t>(w, o.s[0], x);
    }
}

template <class A, class D> void run_cast(ptx_warp &w, const ptx_op &o)
{
    ptx_lane_function<plain_cast<A, D>>::run(w, o);
}

/* The common ones without a detour; NULL: others. */
ptx_run find_cast(integer d, integer a, int d_register, int a_register)
{
    if (d.nbytes != d_register || a.nbytes != a_register) return nullptr;
    if (d.nbytes == 4 && a.nbytes == 8) return run_cast<uint64_t, uint32_t>;
    if (d.nbytes == 4 && a.nbytes == 2)
        return a.is_signed ? run_cast<int16_t, uint32_t> : run_cast<uint16_t, uint32_t>;
    if (d.nbytes == 2 && a.nbytes == 4) return run_cast<uint32_t, uint16_t>;
    if (d.nbytes == 8 && a.nbytes == 4)
        return a.is_signed ? run_cast<int32_t, uint64_t> : run_cast<uint32_t, uint64_t>;
    return nullptr;
}

void decode_cvt(ptx_builder &b, const ptx_instruction &i)
{
    for (const conversion &c : conversions) {
        if (i.opcode != c.opcode) continue;
        b.op.run = c.plain.run;
        b.write(0, i.operand(0), c.plain.sizes[0]);
        for (int k = 1; k < c.plain.n; k++) b.read(k, i.operand((size_t)k), c.plain.sizes[k]);
        return;
    }
    const integer a = integer_of(i.type(), i), d = integer_of(i.parts[i.parts.size() - 2], i);
    const int to = b.write(0, i.operand(0), PTX_ANY_SIZE);
    const int from = b.read(1, i.operand(1), PTX_ANY_SIZE);
    if (to < d.nbytes || from < a.nbytes) ptx_refuse(i, "a register is too small for the type");
    b.op.form = i.has("sat");
    b.op.space = (uint8_t)(to << 4 | from);
    b.op.imm = (d.nbytes | d.is_signed << 4) << 8 | (a.nbytes | a.is_signed << 4);
    b.op.run = run_integers;
    ptx_run cast = find_cast(d, a, to, from);
    if (cast && !b.op.form) b.op.run = cast;
}

/* ---- mov ---- */

/* imm: bytes of a part. One register into parts, or parts into one. */
template <bool APART> void run_parts(ptx_warp &w, const ptx_op &o)
{
    const int32_t *more = w.more(o);
    const size_t part = (size_t)o.imm, whole = part * o.n_more;
    char *one =
        APART ? (char *)const_cast<void *>((const void *)w.from<char>(o.s[1])) : w.to<char>(o.s[0]);
    for (int k = 0; k < o.n_more; k++) {
        char *lanes = APART ? w.to<char>(more[k])
                            : (char *)const_cast<void *>((const void *)w.from<char>(more[k]));
        for (uint32_t m = w.mask; m; m &= m - 1) {
            const size_t l = (size_t)__builtin_ctz(m);
            char *p = one + l * whole + (size_t)k * part, *q = lanes + l * part;
            APART ? memcpy(q, p, part) : memcpy(p, q, part);
        }
    }
}

template <class W, class P> void run_two_parts(ptx_warp &w, const ptx_op &o)
{
    const int32_t *more = w.more(o);
    W *d = w.to<W>(o.s[0]);
    const P *low = w.from<P>(more[0]), *high = w.from<P>(more[1]);
    ptx_lanes(w.mask, [=](int l) { d[l] = (W)((W)high[l] << (8 * sizeof(P)) | low[l]); });
}

template <class W, class P> void run_apart(ptx_warp &w, const ptx_op &o)
{
    const int32_t *more = w.more(o);
    const W *a = w.from<W>(o.s[1]);
    P *low = w.to<P>(more[0]), *high = w.to<P>(more[1]);
    ptx_lanes(w.mask, [=](int l) {
        const W x = a[l];
        low[l] = (P)x;
        high[l] = (P)(x >> (8 * sizeof(P)));
    });
}

void decode_mov(ptx_builder &b, const ptx_instruction &i)
{
    if (i.type() == "pred") return ptx_decode_mov_pred(b, i);
    const int size = (int)ptx_type_nbytes(i.type());
    const ptx_operand &d = i.operand(0), &a = i.operand(1);
    if (size < 2) ptx_refuse(i, "this type is not known");
    if (d.kind != ptx_operand::LIST && a.kind != ptx_operand::LIST) {
        b.op.run = size == 2   ? run_cast<uint16_t, uint16_t>
                   : size == 4 ? run_cast<uint32_t, uint32_t>
                               : run_cast<uint64_t, uint64_t>;
        b.write(0, d, size);
        b.read(1, a, size);
        return;
    }
    const bool apart = d.kind == ptx_operand::LIST;
    const std::vector<ptx_operand> &parts = apart ? d.parts : a.parts;
    const int part = size / (int)parts.size();
    if (part < 2) ptx_refuse(i, "parts of a byte are not known");
    b.op.imm = part;
    b.op.run = apart ? run_parts<true> : run_parts<false>;
    if (parts.size() == 2 && part == 2)
        b.op.run = apart ? run_apart<uint32_t, uint16_t> : run_two_parts<uint32_t, uint16_t>;
    if (parts.size() == 2 && part == 4)
        b.op.run = apart ? run_apart<uint64_t, uint32_t> : run_two_parts<uint64_t, uint32_t>;
    if (apart)
        b.read(1, a, size);
    else
        b.write(0, d, size);
    for (const ptx_operand &x : parts) {
        if (apart)
            b.write_more(x, part);
        else
            b.read_more(x, part);
    }
}

} // namespace

ptx_family ptx_find_convert(const std::string &base)
{
    if (base == "cvt") return decode_cvt;
    if (base == "mov") return decode_mov;
    return nullptr;
}

/* Predicates: setp, selp, and logic on them. */
#include "ptx_lanes.h"

#include <unordered_map>

namespace {

/* ---- setp ---- */

template <class T> bool eq(T a, T b)
{
    return a == b;
}
template <class T> bool ne(T a, T b)
{
    return a < b || a > b;
}
template <class T> bool lt(T a, T b)
{
    return a < b;
}
template <class T> bool le(T a, T b)
{
    return a <= b;
}
template <class T> bool gt(T a, T b)
{
    return a > b;
}
template <class T> bool ge(T a, T b)
{
    return a >= b;
}
template <class T> bool num(T a, T b)
{
    return a == a && b == b;
}
template <class T> bool nan(T a, T b)
{
    return !num(a, b);
}
template <class T> bool equ(T a, T b)
{
    return !ne(a, b);
}
template <class T> bool neu(T a, T b)
{
    return !(a == b);
}
template <class T> bool ltu(T a, T b)
{
    return !(a >= b);
}
template <class T> bool leu(T a, T b)
{
    return !(a > b);
}
template <class T> bool gtu(T a, T b)
{
    return !(a <= b);
}
template <class T> bool geu(T a, T b)
{
    return !(a < b);
}

enum combine { SETP_ALONE = 0, SETP_AND, SETP_OR, SETP_XOR };

/* s: p, q or none, a, b, the predicate to combine with; form: combine, bit 2: that one negated,
 * bit 3: inputs are flushed. */
template <class T, bool (*F)(T, T)> void run_setp(ptx_warp &w, const ptx_op &o)
{
    const T *a = w.from<T>(o.s[2]), *b = w.from<T>(o.s[3]);
    uint8_t is[PTX_WARP];
    if (std::is_same_v<T, float> && (o.form & 8)) {
        for (int l = 0; l < PTX_WARP; l++)
            is[l] = F((T)ptx_flush((float)a[l]), (T)ptx_flush((float)b[l]));
    } else {
        for (int l = 0; l < PTX_WARP; l++) is[l] = F(a[l], b[l]);
    }
    uint32_t bits = 0;
    for (int l = 0; l < PTX_WARP; l++) bits |= (uint32_t)is[l] << l;
    uint32_t not_bits = ~bits;
    if (o.form & 3) {
        uint32_t c = *w.from<uint32_t>(o.s[4]);
        if (o.form & 4) c = ~c;
        const int how = o.form & 3;
        bits = how == SETP_AND ? bits & c : how == SETP_OR ? bits | c : bits ^ c;
        not_bits = how == SETP_AND ? not_bits & c : how == SETP_OR ? not_bits | c : not_bits ^ c;
    }
    uint32_t *p = w.to<uint32_t>(o.s[0]);
    *p = (*p & ~w.mask) | (bits & w.mask);
    if (o.s[1] == PTX_NO_SLOT) return;
    uint32_t *q = w.to<uint32_t>(o.s[1]);
    *q = (*q & ~w.mask) | (not_bits & w.mask);
}

struct comparison {
    ptx_run run;
    int size;
};

#define COMPARE(name, letter, bits, T, F) {name "." letter bits, {run_setp<T, F<T>>, sizeof(T)}},
/* What integers and floats have in common; of NaN these are false. */
#define COMPARE_ALL(letter, bits, T)                                                               \
    COMPARE("eq", letter, bits, T, eq)                                                             \
    COMPARE("lt", letter, bits, T, lt)                                                             \
    COMPARE("le", letter, bits, T, le)                                                             \
    COMPARE("gt", letter, bits, T, gt) COMPARE("ge", letter, bits, T, ge)
#define COMPARE_INTEGERS(letter, bits, T)                                                          \
    COMPARE_ALL(letter, bits, T) COMPARE("ne", letter, bits, T, neu)
#define COMPARE_UNSIGNED(bits, T)                                                                  \
    COMPARE_INTEGERS("u", bits, T)                                                                 \
    COMPARE("eq", "b", bits, T, eq)                                                                \
    COMPARE("ne", "b", bits, T, neu)                                                               \
    COMPARE("lo", "u", bits, T, lt)                                                                \
    COMPARE("ls", "u", bits, T, le) COMPARE("hi", "u", bits, T, gt) COMPARE("hs", "u", bits, T, ge)
#define COMPARE_SIGNED(bits, T) COMPARE_INTEGERS("s", bits, T)
#define COMPARE_FLOAT(bits, T)                                                                     \
    COMPARE_ALL("f", bits, T)                                                                      \
    COMPARE("ne", "f", bits, T, ne)                                                                \
    COMPARE("equ", "f", bits, T, equ)                                                              \
    COMPARE("neu", "f", bits, T, neu)                                                              \
    COMPARE("ltu", "f", bits, T, ltu)                                                              \
    COMPARE("leu", "f", bits, T, leu)                                                              \
    COMPARE("gtu", "f", bits, T, gtu)                                                              \
    COMPARE("geu", "f", bits, T, geu)                                                              \
    COMPARE("num", "f", bits, T, num) COMPARE("nan", "f", bits, T, nan)

const comparison *find_comparison(const std::string &name)
{
    /* clang-format off */
    static const std::unordered_map<std::string, comparison> table = {
        COMPARE_UNSIGNED("16", uint16_t) COMPARE_UNSIGNED("32", uint32_t)
        COMPARE_UNSIGNED("64", uint64_t) COMPARE_SIGNED("16", int16_t)
        COMPARE_SIGNED("32", int32_t) COMPARE_SIGNED("64", int64_t) COMPARE_FLOAT("32", float)
        COMPARE_FLOAT("64", double)
    };
    /* clang-format on */
    auto at = table.find(name);
    return at == table.end() ? nullptr : &at->second;
}

/* setp.cmp{.and|.or|.xor}{.ftz}.type p{|q}, a, b{, c} */
void decode_setp(ptx_builder &b, const ptx_instruction &i)
{
    const comparison *c = find_comparison(i.parts.at(1) + "." + i.type());
    if (!c) ptx_refuse(i, "this comparison is not known");
    b.op.run = c->run;
    b.read(2, i.operand(1), c->size);
    b.read(3, i.operand(2), c->size);
    const int how = i.has("and") ? SETP_AND : i.has("or") ? SETP_OR : i.has("xor") ? SETP_XOR : 0;
    if (how != SETP_ALONE) {
        b.read(4, i.operand(3), PTX_PREDICATE);
        if (i.operand(3).negated) b.op.form |= 4;
    }
    b.op.form |= (uint8_t)how;
    if (i.has("ftz")) b.op.form |= 8;
    b.write(0, i.operand(0), PTX_PREDICATE);
    if (!i.operand(0).parts.empty()) b.write(1, i.operand(0).parts[0], PTX_PREDICATE);
}

/* ---- selp ---- */

template <class T> void run_selp(ptx_warp &w, const ptx_op &o)
{
    T *d = w.to<T>(o.s[0]);
    const T *a = w.from<T>(o.s[1]), *b = w.from<T>(o.s[2]);
    const uint32_t p = *w.from<uint32_t>(o.s[3]);
    ptx_lanes(w.mask, [=](int l) {
        const T x = a[l], y = b[l]; /* both are read, so that the compiler can blend */
        d[l] = p & (1u << l) ? x : y;
    });
}

void decode_selp(ptx_builder &b, const ptx_instruction &i)
{
    const char digit = i.type().back(); /* of 16, 32, 64 */
    const int size = digit == '6' ? 2 : digit == '2' ? 4 : 8;
    b.op.run = size == 2 ? run_selp<uint16_t> : size == 4 ? run_selp<uint32_t> : run_selp<uint64_t>;
    b.write(0, i.operand(0), size);
    b.read(1, i.operand(1), size);
    b.read(2, i.operand(2), size);
    b.read(3, i.operand(3), PTX_PREDICATE);
}

/* ---- logic ---- */

template <int HOW> void run_logic(ptx_warp &w, const ptx_op &o)
{
    uint32_t a = *w.from<uint32_t>(o.s[1]);
    if (o.form & 1) a = ~a;
    uint32_t r = a;
    if (HOW != SETP_ALONE) {
        uint32_t b = *w.from<uint32_t>(o.s[2]);
        if (o.form & 2) b = ~b;
        r = HOW == SETP_AND ? a & b : HOW == SETP_OR ? a | b : a ^ b;
    }
    uint32_t *d = w.to<uint32_t>(o.s[0]);
    *d = (*d & ~w.mask) | (r & w.mask);
}

void decode_logic(ptx_builder &b, const ptx_instruction &i)
{
    if (i.type() != "pred") ptx_refuse(i, "this type is not known");
    const std::string &op = i.parts[0];
    b.op.run = op == "and"   ? run_logic<SETP_AND>
               : op == "or"  ? run_logic<SETP_OR>
               : op == "xor" ? run_logic<SETP_XOR>
                             : run_logic<SETP_ALONE>;
    b.write(0, i.operand(0), PTX_PREDICATE);
    b.read(1, i.operand(1), PTX_PREDICATE);
    if (i.operand(1).negated) b.op.form |= 1;
    if (op == "not") b.op.form ^= 1;
    if (op == "not" || op == "mov") return;
    b.read(2, i.operand(2), PTX_PREDICATE);
    if (i.operand(2).negated) b.op.form |= 2;
}

} // namespace

ptx_family ptx_find_compare(const std::string &base)
{
    if (base == "setp") return decode_setp;
    if (base == "selp") return decode_selp;
    if (base == "and" || base == "or" || base == "xor" || base == "not") return decode_logic;
    return nullptr;
}

void ptx_decode_mov_pred(ptx_builder &b, const ptx_instruction &i)
{
    decode_logic(b, i);
}

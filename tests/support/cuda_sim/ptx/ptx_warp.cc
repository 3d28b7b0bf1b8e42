/* Collectives of a warp: shuffles, votes, reductions, matches, and the barrier of its lanes. */
#include "ptx_decode.h"
#include "ptx_run.h"

#include <algorithm>
#include <string.h>

uint32_t ptx_lanes_named(ptx_warp &w, const uint32_t *members)
{
    uint32_t named = 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        if (!(members[l] >> l & 1))
            ptx_fail(w, l, "mask 0x%08x does not name the calling lane %d", members[l], l);
        named |= members[l];
    }
    return named;
}

namespace {

/* Whether all lanes that the running lanes' masks name are here; they then do it together. One that
 * has left the kernel ends the launch. */
bool all_here(ptx_warp &w, const uint32_t *members)
{
    return ptx_together(w, ptx_lanes_named(w, members) & w.present);
}

/* ---- shfl ---- */

enum shuffle { UP = 0, DOWN, BFLY, IDX };

/* The lane that lane l reads from, and whether that is in its segment. */
int source_lane(int how, int l, uint32_t b, uint32_t c, bool *inside)
{
    const int bval = (int)(b & 31), cval = (int)(c & 31), segment = (int)(c >> 8 & 31);
    const int most = (l & segment) | (cval & ~segment), least = l & segment;
    int j = l;
    switch (how) {
    case UP: j = l - bval; break;
    case DOWN: j = l + bval; break;
    case BFLY: j = l ^ bval; break;
    default: j = least | (bval & ~segment);
    }
    *inside = how == UP ? j >= most : j <= most;
    return *inside ? j : l;
}

/* s: d, a, b, c, members; more[0], if there is one: whether the source was in the segment. */
void run_shfl(ptx_warp &w, const ptx_op &o)
{
    const uint32_t *members = w.from<uint32_t>(o.s[4]);
    if (!all_here(w, members)) return;
    const uint32_t *a = w.from<uint32_t>(o.s[1]), *b = w.from<uint32_t>(o.s[2]);
    const uint32_t *c = w.from<uint32_t>(o.s[3]);
    uint32_t values[PTX_WARP], inside = 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        bool is_inside;
        const int j = source_lane(o.form, l, b[l], c[l], &is_inside);
        inside |= (uint32_t)is_inside << l;
        if (!(w.mask >> j & 1) || !(members[l] >> j & 1))
            ptx_fail(w, l, "reads from lane %d, which takes no part", j);
        values[l] = a[j];
    }
    uint32_t *d = w.to<uint32_t>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) d[__builtin_ctz(m)] = values[__builtin_ctz(m)];
    if (o.n_more == 0) return;
    uint32_t *p = w.to<uint32_t>(w.more(o)[0]);
    *p = (*p & ~w.mask) | inside;
}

void decode_shfl(ptx_builder &b, const ptx_instruction &i)
{
    if (!i.has("sync") || i.type() != "b32") ptx_refuse(i, "this shuffle is not known");
    b.op.run = run_shfl;
    b.op.form = i.has("up") ? UP : i.has("down") ? DOWN : i.has("bfly") ? BFLY : IDX;
    for (int k = 1; k < 5; k++) b.read(k, i.operand((size_t)k), 4);
    b.write(0, i.operand(0), 4);
    if (!i.operand(0).parts.empty()) b.write_more(i.operand(0).parts[0], PTX_PREDICATE);
}

/* ---- vote ---- */

enum vote { ALL = 0, ANY, UNI, BALLOT };

/* s: d, predicate, members. form: vote, bit 2: negated. */
void run_vote(ptx_warp &w, const ptx_op &o)
{
    const uint32_t *members = w.from<uint32_t>(o.s[2]);
    if (!all_here(w, members)) return;
    uint32_t p = *w.from<uint32_t>(o.s[1]);
    if (o.form & 4) p = ~p;
    uint32_t result[PTX_WARP], bits = 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        const uint32_t mine = members[l], yes = p & mine;
        result[l] = yes;
        const bool is = (o.form & 3) == ALL   ? yes == mine
                        : (o.form & 3) == ANY ? yes != 0
                                              : yes == mine || yes == 0;
        bits |= (uint32_t)is << l;
    }
    uint32_t *d = w.to<uint32_t>(o.s[0]);
    if ((o.form & 3) == BALLOT) {
        for (uint32_t m = w.mask; m; m &= m - 1) d[__builtin_ctz(m)] = result[__builtin_ctz(m)];
    } else {
        *d = (*d & ~w.mask) | bits;
    }
}

void decode_vote(ptx_builder &b, const ptx_instruction &i)
{
    if (!i.has("sync")) ptx_refuse(i, "this vote is not known");
    b.op.run = run_vote;
    b.op.form = i.has("all") ? ALL : i.has("any") ? ANY : i.has("uni") ? UNI : BALLOT;
    b.read(1, i.operand(1), PTX_PREDICATE);
    if (i.operand(1).negated) b.op.form |= 4;
    b.read(2, i.operand(2), 4);
    b.write(0, i.operand(0), b.op.form % 4 == BALLOT ? 4 : PTX_PREDICATE);
}

/* ---- match.any, redux, activemask, elect ---- */

template <class T> void run_match(ptx_warp &w, const ptx_op &o)
{
    const uint32_t *members = w.from<uint32_t>(o.s[2]);
    if (!all_here(w, members)) return;
    const T *a = w.from<T>(o.s[1]);
    uint32_t same[PTX_WARP] = {};
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        for (int k = 0; k < PTX_WARP; k++)
            if ((members[l] >> k & 1) && a[k] == a[l]) same[l] |= 1u << k;
    }
    uint32_t *d = w.to<uint32_t>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) d[__builtin_ctz(m)] = same[__builtin_ctz(m)];
}

void decode_match(ptx_builder &b, const ptx_instruction &i)
{
    if (!i.has("any") || !i.has("sync")) ptx_refuse(i, "this match is not known");
    const bool is_long = i.type() == "b64";
    b.op.run = is_long ? run_match<uint64_t> : run_match<uint32_t>;
    b.read(1, i.operand(1), is_long ? 8 : 4);
    b.read(2, i.operand(2), 4);
    b.write(0, i.operand(0), 4);
}

template <class T> struct reductions {
    static T add(T a, T b) { return (T)((uint32_t)a + (uint32_t)b); }
    static T least(T a, T b) { return std::min(a, b); }
    static T most(T a, T b) { return std::max(a, b); }
    static T all(T a, T b) { return a & b; }
    static T any(T a, T b) { return a | b; }
    static T odd(T a, T b) { return a ^ b; }
};

template <class T, T (*F)(T, T)> void run_redux(ptx_warp &w, const ptx_op &o)
{
    const uint32_t *members = w.from<uint32_t>(o.s[2]);
    if (!all_here(w, members)) return;
    const T *a = w.from<T>(o.s[1]);
    T result[PTX_WARP];
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        uint32_t left = members[l];
        T sum = a[__builtin_ctz(left)];
        for (left &= left - 1; left; left &= left - 1) sum = F(sum, a[__builtin_ctz(left)]);
        result[l] = sum;
    }
    T *d = w.to<T>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) d[__builtin_ctz(m)] = result[__builtin_ctz(m)];
}

template <class T> ptx_run find_redux(const ptx_instruction &i)
{
    typedef reductions<T> R;
    if (i.has("add")) return run_redux<T, R::add>;
    if (i.has("min")) return run_redux<T, R::least>;
    if (i.has("max")) return run_redux<T, R::most>;
    if (i.has("and")) return run_redux<T, R::all>;
    if (i.has("or")) return run_redux<T, R::any>;
    if (i.has("xor")) return run_redux<T, R::odd>;
    ptx_refuse(i, "this reduction is not known");
}

void decode_redux(ptx_builder &b, const ptx_instruction &i)
{
    b.op.run = i.type() == "s32" ? find_redux<int32_t>(i) : find_redux<uint32_t>(i);
    b.read(1, i.operand(1), 4);
    b.read(2, i.operand(2), 4);
    b.write(0, i.operand(0), 4);
}

void run_activemask(ptx_warp &w, const ptx_op &o)
{
    uint32_t *d = w.to<uint32_t>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) d[__builtin_ctz(m)] = w.mask;
}

void decode_activemask(ptx_builder &b, const ptx_instruction &i)
{
    b.op.run = run_activemask;
    b.write(0, i.operand(0), 4);
}

/* The lowest lane of the mask. s: d or none, members; more[0]: whether it is me. */
void run_elect(ptx_warp &w, const ptx_op &o)
{
    const uint32_t *members = w.from<uint32_t>(o.s[1]);
    if (!all_here(w, members)) return;
    uint32_t elected = 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m), leader = __builtin_ctz(members[l]);
        elected |= (uint32_t)(leader == l) << l;
        if (o.s[0] != PTX_NO_SLOT) w.to<uint32_t>(o.s[0])[l] = (uint32_t)leader;
    }
    uint32_t *p = w.to<uint32_t>(w.more(o)[0]);
    *p = (*p & ~w.mask) | elected;
}

void decode_elect(ptx_builder &b, const ptx_instruction &i)
{
    b.op.run = run_elect;
    const ptx_operand &d = i.operand(0);
    b.read(1, i.operand(1), 4);
    if (d.kind == ptx_operand::REGISTER) b.write(0, d, 4);
    if (d.parts.empty()) ptx_refuse(i, "the predicate is missing");
    b.write_more(d.parts[0], PTX_PREDICATE);
}

} // namespace

ptx_family ptx_find_warp(const std::string &base)
{
    if (base == "shfl") return decode_shfl;
    if (base == "vote") return decode_vote;
    if (base == "match") return decode_match;
    if (base == "redux") return decode_redux;
    if (base == "activemask") return decode_activemask;
    if (base == "elect") return decode_elect;
    return nullptr;
}

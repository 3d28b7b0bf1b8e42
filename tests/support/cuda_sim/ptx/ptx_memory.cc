/* Loads, stores, atomics, and addresses from one space to another. */
#include "ptx_access.h"
#include "ptx_lanes.h"
#include "ptx_text.h"
#include "ptx_traffic.h"
#include "sim_runtime.h"
#include "sim_settings.h"

#include <algorithm>
#include <immintrin.h>
#include <string.h>

/* ---- checked accesses ---- */

void ptx_addresses(ptx_warp &w, const ptx_op &o, int slot, uint64_t out[PTX_WARP])
{
    const uint64_t more = (uint64_t)o.imm;
    if (o.s[slot] == PTX_NO_SLOT) {
        for (int l = 0; l < PTX_WARP; l++) out[l] = more;
    } else if (o.form & 1) {
        const uint64_t *base = w.from<uint64_t>(o.s[slot]);
        for (int l = 0; l < PTX_WARP; l++) out[l] = base[l] + more;
    } else {
        const uint32_t *base = w.from<uint32_t>(o.s[slot]);
        for (int l = 0; l < PTX_WARP; l++) out[l] = (uint32_t)(base[l] + (uint32_t)more);
    }
}

namespace {

/* The allocation that was touched last: most accesses are to it again. */
struct known_range {
    uint64_t begin, end;
} known;

bool find_range(const ptx_warp &w, uint64_t at, uint32_t n)
{
    for (const auto &v : w.block->function->module->variables) {
        const uint64_t begin = (uint64_t)(uintptr_t)v.second.at;
        if (v.second.at && at >= begin && at + n <= begin + v.second.nbytes) return true;
    }
    uintptr_t begin;
    size_t nbytes;
    if (!sim_memory_range((void *)at, &begin, &nbytes)) return false;
    if (at + n > begin + nbytes) return false;
    if (sim_is_foreign((void *)at, w.block->launch->device)) return false;
    sim_memory_touch((void *)at);
    known = {begin, begin + nbytes};
    return true;
}

[[noreturn]] void refuse_global(const ptx_warp &w, int lane, uint64_t at, uint32_t n)
{
    if (sim_is_foreign((void *)at, w.block->launch->device))
        ptx_fail(w, lane, "touches %u bytes at %p, which is memory of another device", n,
                 (void *)at);
    const std::string place = sim_memory_describe((void *)at);
    ptx_fail(w, lane, "touches %u bytes at %p: %s", n, (void *)at, place.c_str());
}

void check_aligned(const ptx_warp &w, int lane, uint64_t at, uint32_t n)
{
    if (at % n != 0)
        ptx_fail(w, lane, "touches %u bytes at %#llx: not aligned to their size", n,
                 (unsigned long long)at);
}

} // namespace

void ptx_memory_forget(void)
{
    known = {0, 0};
}

char *ptx_global_at(ptx_warp &w, int lane, uint64_t at, uint32_t n, ptx_touch touch)
{
    check_aligned(w, lane, at, n);
    if ((at < known.begin || at + n > known.end) && !find_range(w, at, n))
        refuse_global(w, lane, at, n);
    w.block->watch->global(w, lane, at, n, touch);
    return (char *)at;
}

char *ptx_shared_at(ptx_warp &w, int lane, uint64_t at, uint32_t n)
{
    const ptx_block *b = w.block;
    check_aligned(w, lane, at, n);
    const size_t fixed = b->function->static_shared;
    const size_t end = at < b->function->dynamic_at ? fixed : b->shared_nbytes;
    if (at + n > end || at > end)
        ptx_fail(w, lane,
                 "touches %u bytes at %llu of shared memory: it has %zu static and %zu "
                 "dynamic from %zu on",
                 n, (unsigned long long)at, fixed, b->launch->shared_nbytes,
                 b->function->dynamic_at);
    return b->shared + at;
}

bool ptx_is_echo(ptx_warp &w, int lane, uint64_t at, const void *bits, uint32_t n)
{
    if (!sim_settings.echo) return false;
    const char *there = ptx_shared_at(w, lane, at, n);
    return w.block->watch->was_written((uint32_t)at, n) && memcmp(there, bits, n) == 0;
}

namespace {

char *local_at(ptx_warp &w, int lane, uint64_t at, uint32_t n)
{
    const size_t has = w.block->function->local_nbytes;
    check_aligned(w, lane, at, n);
    if (at > has || at + n > has)
        ptx_fail(w, lane, "touches %u bytes at %llu of %zu bytes of local memory", n,
                 (unsigned long long)at, has);
    return w.local + (size_t)lane * has + at;
}

char *param_at(ptx_warp &w, int lane, uint64_t at, uint32_t n)
{
    const size_t has = w.block->function->params_nbytes;
    if (at > has || at + n > has)
        ptx_fail(w, lane, "touches %u bytes at %llu of %zu bytes of parameters", n,
                 (unsigned long long)at, has);
    return const_cast<char *>(w.block->launch->params) + at;
}

char *shared_at(ptx_warp &w, int lane, uint64_t at, uint32_t n, ptx_touch touch)
{
    char *p = ptx_shared_at(w, lane, at, n);
    w.block->watch->shared(w, lane, (uint32_t)at, n, touch);
    return p;
}

} // namespace

char *ptx_generic_at(ptx_warp &w, int lane, uint64_t at, uint32_t n, ptx_touch touch)
{
    if (at - PTX_SHARED_WINDOW < PTX_WINDOW_NBYTES)
        return shared_at(w, lane, at - PTX_SHARED_WINDOW, n, touch);
    if (at - PTX_LOCAL_WINDOW < PTX_WINDOW_NBYTES)
        return local_at(w, lane, at - PTX_LOCAL_WINDOW, n);
    if (at - PTX_PARAM_WINDOW < PTX_WINDOW_NBYTES)
        return param_at(w, lane, at - PTX_PARAM_WINDOW, n);
    return ptx_global_at(w, lane, at, n, touch);
}

void ptx_access_lanes(ptx_warp &w, const ptx_op &o, int slot, ptx_touch touch, ptx_access *a)
{
    ptx_addresses(w, o, slot, a->address);
    const uint32_t n = o.nbytes;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        const uint64_t at = a->address[l];
        switch (o.space) {
        case PTX_GLOBAL: a->at[l] = ptx_global_at(w, l, at, n, touch); break;
        case PTX_SHARED: a->at[l] = shared_at(w, l, at, n, touch); break;
        case PTX_LOCAL: a->at[l] = local_at(w, l, at, n); break;
        case PTX_PARAM: a->at[l] = param_at(w, l, at, n); break;
        case PTX_CONST: a->at[l] = ptx_global_at(w, l, at, n, touch); break;
        default: a->at[l] = ptx_generic_at(w, l, at, n, touch);
        }
    }
    if (ptx_traffic_counts()) ptx_traffic_note(o, (enum ptx_space)o.space, w.mask, a->address, n);
}

namespace {

/* ---- ld, st ---- */

/* T in memory, R in the register: as wide or wider. imm2 of vectors: n_more elements. */
template <class T, class R> void run_ld(ptx_warp &w, const ptx_op &o)
{
    ptx_access a;
    ptx_access_lanes(w, o, 1, PTX_READ, &a);
    const int32_t *more = w.more(o);
    const int n = o.n_more ? o.n_more : 1;
    for (int k = 0; k < n; k++) {
        R *d = w.to<R>(o.n_more ? more[k] : o.s[0]);
        for (uint32_t m = w.mask; m; m &= m - 1) {
            const int l = __builtin_ctz(m);
            T x;
            memcpy(&x, a.at[l] + (size_t)k * sizeof(T), sizeof x);
            d[l] = (R)x;
        }
    }
}

/* Parameters at an address that all lanes share. */
template <class T, class R> void run_ld_param(ptx_warp &w, const ptx_op &o)
{
    const int32_t *more = w.more(o);
    const int n = o.n_more ? o.n_more : 1;
    const char *p = param_at(w, __builtin_ctz(w.mask), (uint64_t)o.imm, o.nbytes);
    for (int k = 0; k < n; k++) {
        R *d = w.to<R>(o.n_more ? more[k] : o.s[0]);
        T x;
        memcpy(&x, p + (size_t)k * sizeof(T), sizeof x);
        ptx_lanes(w.mask, [=](int l) { d[l] = (R)x; });
    }
}

/* A lane's bits as they would be in memory. */
template <class T, class R> void image(const ptx_warp &w, const ptx_op &o, int lane, T out[4])
{
    const int32_t *more = w.more(o);
    if (o.n_more == 0) out[0] = (T)w.from<R>(o.s[0])[lane];
    for (int k = 0; k < o.n_more; k++) out[k] = (T)w.from<R>(more[k])[lane];
}

/* Each lane's place is beyond those before: most stores are so. */
bool are_rising(const uint64_t address[PTX_WARP], uint32_t mask)
{
    uint64_t end = 0;
    for (; mask; mask &= mask - 1) {
        const int l = __builtin_ctz(mask);
        if (address[l] < end) return false;
        end = address[l] + 1;
    }
    return true;
}

/* Lanes that store in shared memory what a lane before them stores at the same place: hardware does
 * one of an instruction's stores to a place, so these are no race. And echoes of other warps. */
template <class T, class R> uint32_t echoes(ptx_warp &w, const ptx_op &o)
{
    uint64_t address[PTX_WARP];
    T bits[PTX_WARP][4];
    uint32_t found = 0;
    ptx_addresses(w, o, 1, address);
    if (!sim_settings.echo && are_rising(address, w.mask)) return 0;
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        image<T, R>(w, o, l, bits[l]);
        bool echo = ptx_is_echo(w, l, address[l], bits[l], o.nbytes);
        uint32_t before = w.mask & ((1u << l) - 1);
        for (; before && !echo; before &= before - 1) {
            const int k = __builtin_ctz(before);
            echo = address[k] == address[l] && memcmp(bits[k], bits[l], o.nbytes) == 0;
        }
        found |= (uint32_t)echo << l;
    }
    return found;
}

template <class T, class R> void run_st(ptx_warp &w, const ptx_op &o)
{
    ptx_access a;
    const uint32_t all = w.mask;
    if (o.space == PTX_SHARED) w.mask &= ~echoes<T, R>(w, o);
    ptx_access_lanes(w, o, 1, PTX_WRITE, &a);
    const int32_t *more = w.more(o);
    const int n = o.n_more ? o.n_more : 1;
    for (int k = 0; k < n; k++) {
        const R *s = w.from<R>(o.n_more ? more[k] : o.s[0]);
        for (uint32_t m = w.mask; m; m &= m - 1) {
            const int l = __builtin_ctz(m);
            const T x = (T)s[l];
            memcpy(a.at[l] + (size_t)k * sizeof(T), &x, sizeof x);
        }
    }
    w.mask = all;
}

enum which { LD = 0, LD_PARAM, ST };

template <class T, class R> ptx_run run_of(which what)
{
    return what == LD ? run_ld<T, R> : what == LD_PARAM ? run_ld_param<T, R> : run_st<T, R>;
}

template <class T> ptx_run by_register(which what, int nbytes)
{
    if (nbytes == 2 && sizeof(T) <= 2) return run_of<T, uint16_t>(what);
    if (nbytes == 4 && sizeof(T) <= 4) return run_of<T, uint32_t>(what);
    if (nbytes == 8) return run_of<T, uint64_t>(what);
    return nullptr;
}

/* Signed types fill a wider register with their sign. */
ptx_run find_run(which what, const std::string &type, int in_register)
{
    const bool is_signed = type[0] == 's';
    switch (ptx_type_nbytes(type)) {
    case 1:
        return is_signed ? by_register<int8_t>(what, in_register)
                         : by_register<uint8_t>(what, in_register);
    case 2:
        return is_signed ? by_register<int16_t>(what, in_register)
                         : by_register<uint16_t>(what, in_register);
    case 4:
        return is_signed ? by_register<int32_t>(what, in_register)
                         : by_register<uint32_t>(what, in_register);
    case 8: return by_register<uint64_t>(what, in_register);
    default: return nullptr;
    }
}

ptx_space space_of(const ptx_instruction &i)
{
    if (i.has("global")) return PTX_GLOBAL;
    if (i.has("shared") || i.has("shared::cta")) return PTX_SHARED;
    if (i.has("local")) return PTX_LOCAL;
    if (i.has("param") || i.has("param::entry")) return PTX_PARAM;
    if (i.has("const")) return PTX_CONST;
    return PTX_GENERIC;
}

/* ld.acquire.…u32 d, [a];  st.release.…u32 [a], s: between blocks, of one word. */
void run_acquire(ptx_warp &w, const ptx_op &o)
{
    ptx_access a;
    ptx_access_lanes(w, o, 1, PTX_ATOMIC, &a);
    uint32_t *d = w.to<uint32_t>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        w.block->watch->acquire(a.address[l]);
        memcpy(&d[l], a.at[l], sizeof d[l]);
    }
}

void run_release(ptx_warp &w, const ptx_op &o)
{
    ptx_access a;
    ptx_access_lanes(w, o, 1, PTX_ATOMIC, &a);
    const uint32_t *s = w.from<uint32_t>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        w.block->watch->release(a.address[l]);
        memcpy(a.at[l], &s[l], sizeof s[l]);
    }
}

void decode_turn(ptx_builder &b, const ptx_instruction &i)
{
    const bool is_load = i.parts[0] == "ld";
    if (i.type() != "u32" || space_of(i) != PTX_GLOBAL)
        ptx_refuse(i, "acquire and release are known of words in global memory");
    b.op.space = PTX_GLOBAL, b.op.nbytes = 4;
    b.address(1, i.operand(is_load ? 1 : 0));
    if (is_load)
        b.write(0, i.operand(0), 4);
    else
        b.read(0, i.operand(1), 4);
    b.op.run = is_load ? run_acquire : run_release;
}

/* ld{.space}{.v2|.v4}.type d, [a];  st{…}.type [a], s. How caches are used does not matter here,
 * and all that is weaker than sequential is: blocks run one after another. */
void decode_access(ptx_builder &b, const ptx_instruction &i)
{
    if (i.has("acquire") || i.has("release")) return decode_turn(b, i);
    const bool is_load = i.parts[0] == "ld" || i.parts[0] == "ldu";
    const ptx_operand &value = i.operand(is_load ? 0 : 1);
    const int size = (int)ptx_type_nbytes(i.type());
    b.op.space = (uint8_t)space_of(i);
    b.address(1, i.operand(is_load ? 1 : 0));
    int in_register = 0, n = 1;
    if (value.kind == ptx_operand::LIST) {
        n = (int)value.parts.size();
        for (const ptx_operand &x : value.parts) {
            if (is_load)
                in_register = b.write_more(x, PTX_ANY_SIZE);
            else if (x.kind == ptx_operand::REGISTER)
                in_register = b.read_more(x, PTX_ANY_SIZE);
            else
                in_register = b.read_more(x, size < 2 ? 2 : size);
        }
    } else if (is_load) {
        in_register = b.write(0, value, PTX_ANY_SIZE);
    } else if (value.kind == ptx_operand::REGISTER) {
        in_register = b.read(0, value, PTX_ANY_SIZE);
    } else {
        in_register = b.read(0, value, size < 2 ? 2 : size);
    }
    if (n > 4) ptx_refuse(i, "vectors of more than four are not known");
    b.op.nbytes = (uint8_t)(size * n);
    const bool flat = b.op.space == PTX_PARAM && b.op.s[1] == PTX_NO_SLOT;
    b.op.run = find_run(!is_load ? ST : flat ? LD_PARAM : LD, i.type(), in_register);
    if (!b.op.run) ptx_refuse(i, "the register does not fit the type");
}

/* ---- atom, red ---- */

enum atom { ADD, MIN, MAX, AND, OR, XOR, EXCH, CAS, INC, DEC };

template <class T> T atomic(atom what, T old, T x, T y)
{
    switch (what) {
    case ADD: return (T)(old + x);
    case MIN: return std::min(old, x);
    case MAX: return std::max(old, x);
    case AND: return (T)((uint64_t)old & (uint64_t)x);
    case OR: return (T)((uint64_t)old | (uint64_t)x);
    case XOR: return (T)((uint64_t)old ^ (uint64_t)x);
    case EXCH: return x;
    case CAS: return old == x ? y : old;
    case INC: return old >= x ? (T)0 : (T)(old + 1);
    default: return old == 0 || old > x ? x : (T)(old - 1);
    }
}

/* Two 16-bit floats, or one: T is the type that contains them. */
template <class T, bool BF16> struct halves {
    T bits;
    static float value(uint16_t h) { return BF16 ? ptx_float((uint32_t)h << 16) : _cvtsh_ss(h); }
    static uint16_t rounded(float x)
    {
        if (x != x) return 0x7fff;
        if (!BF16) return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
        const uint32_t b = ptx_bits(x);
        return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
    halves operator+(halves other) const
    {
        T sum = 0;
        for (unsigned at = 0; at < 8 * sizeof(T); at += 16)
            sum |=
                (T)((T)rounded(value((uint16_t)(bits >> at)) + value((uint16_t)(other.bits >> at)))
                    << at);
        return {sum};
    }
};

template <class T> T atomic_add(atom, T old, T x, T)
{
    return old + x;
}

#define ACQUIRES 32
#define RELEASES 64

/* s: old value or none, address, x, y; more: values side by side. form: bits 1–4 what, and what it
 * orders. */
template <class T, T (*F)(atom, T, T, T)> void run_atom(ptx_warp &w, const ptx_op &o)
{
    ptx_access a;
    ptx_access_lanes(w, o, 1, PTX_ATOMIC, &a);
    T *d = o.s[0] == PTX_NO_SLOT ? nullptr : w.to<T>(o.s[0]);
    for (uint32_t m = w.mask; m; m &= m - 1) {
        const int l = __builtin_ctz(m);
        if (o.form & ACQUIRES) w.block->watch->acquire(a.address[l]);
        if (o.form & RELEASES) w.block->watch->release(a.address[l]);
        for (int k = 0; k < (o.n_more ? o.n_more : 1); k++) {
            const T *x = w.from<T>(o.n_more ? w.more(o)[k] : o.s[2]);
            const T *y = o.s[3] == PTX_NO_SLOT ? x : w.from<T>(o.s[3]);
            T old;
            memcpy(&old, a.at[l] + (size_t)k * sizeof old, sizeof old);
            const T fresh = F((atom)(o.form >> 1 & 15), old, x[l], y[l]);
            memcpy(a.at[l] + (size_t)k * sizeof fresh, &fresh, sizeof fresh);
            if (d) d[l] = old;
        }
    }
}

/* NULL: none of this type. */
ptx_run find_atom(const std::string &type, atom what)
{
    if (what == ADD && type == "f32") return run_atom<float, atomic_add>;
    if (what == ADD && type == "f64") return run_atom<double, atomic_add>;
    if (what == ADD && type == "f16") return run_atom<halves<uint16_t, false>, atomic_add>;
    if (what == ADD && type == "bf16") return run_atom<halves<uint16_t, true>, atomic_add>;
    if (what == ADD && type == "f16x2") return run_atom<halves<uint32_t, false>, atomic_add>;
    if (what == ADD && type == "bf16x2") return run_atom<halves<uint32_t, true>, atomic_add>;
    if (type == "s32") return run_atom<int32_t, atomic>;
    if (type == "u32" || type == "b32") return run_atom<uint32_t, atomic>;
    if (type == "s64") return run_atom<int64_t, atomic>;
    if (type == "u64" || type == "b64") return run_atom<uint64_t, atomic>;
    return nullptr;
}

void decode_atom(ptx_builder &b, const ptx_instruction &i)
{
    static const char *const names[] = {"add", "min",  "max", "and", "or",
                                        "xor", "exch", "cas", "inc", "dec"};
    int what = -1;
    for (int k = 0; k < 10; k++)
        if (i.has(names[k])) what = k;
    const int size = (int)ptx_type_nbytes(i.type());
    const bool is_red = i.parts[0] == "red";
    b.op.run = what < 0 ? nullptr : find_atom(i.type(), (atom)what);
    if (!b.op.run) ptx_refuse(i, "this atomic is not known");
    const size_t first = is_red ? 0 : 1;
    const ptx_operand &value = i.operand(first + 1);
    const size_t n = value.kind == ptx_operand::LIST ? value.parts.size() : 1;
    if (n > 1 && !is_red) ptx_refuse(i, "atomics of several values are known without a result");
    b.op.space = (uint8_t)space_of(i);
    b.op.nbytes = (uint8_t)(size * (int)n);
    b.op.form = (uint8_t)(what << 1);
    if (i.has("acquire") || i.has("acq_rel")) b.op.form |= ACQUIRES;
    if (i.has("release") || i.has("acq_rel")) b.op.form |= RELEASES;
    b.address(1, i.operand(first));
    if (n == 1 && value.kind != ptx_operand::LIST) b.read(2, value, size);
    for (const ptx_operand &x : value.parts) b.read_more(x, size);
    if (what == CAS) b.read(3, i.operand(first + 2), size);
    if (!is_red) b.write(0, i.operand(0), size);
}

/* ---- cvta: from a space's address to a generic one and back ---- */

template <class A, class D> void run_cvta(ptx_warp &w, const ptx_op &o)
{
    D *d = w.to<D>(o.s[0]);
    const A *a = w.from<A>(o.s[1]);
    const uint64_t more = (uint64_t)o.imm;
    ptx_lanes(w.mask, [=](int l) { d[l] = (D)(a[l] + more); });
}

void decode_cvta(ptx_builder &b, const ptx_instruction &i)
{
    const ptx_space space = space_of(i);
    uint64_t window = space == PTX_SHARED  ? PTX_SHARED_WINDOW
                      : space == PTX_LOCAL ? PTX_LOCAL_WINDOW
                      : space == PTX_PARAM ? PTX_PARAM_WINDOW
                                           : 0;
    if (space == PTX_SHARED && !i.has("to")) b.f->shares_generic = true;
    if (i.has("to")) window = 0 - window;
    b.op.imm = (int64_t)window;
    b.op.run = run_cvta<uint64_t, uint64_t>;
    if (i.type() != "u64") ptx_refuse(i, "addresses have 64 bits");
    b.write(0, i.operand(0), 8);
    b.read(1, i.operand(1), 8);
}

void decode_nothing(ptx_builder &b, const ptx_instruction &)
{
    b.op.run = nullptr;
}

} // namespace

ptx_family ptx_find_memory(const std::string &base)
{
    if (base == "ld" || base == "st" || base == "ldu") return decode_access;
    if (base == "atom" || base == "red") return decode_atom;
    if (base == "cvta") return decode_cvta;
    if (base == "prefetch" || base == "prefetchu" || base == "applypriority" || base == "discard")
        return decode_nothing;
    return nullptr;
}

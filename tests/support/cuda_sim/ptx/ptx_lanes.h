/* Instructions that work on lanes one by one, from functions of a lane's values:
 *
 *     static float add(float a, float b) { return a + b; }
 *     PTX_PLAIN("add.rn.f32", add)
 *
 * The function's types say how large registers are. */
#ifndef CZ_TESTS_PTX_LANES_H
#define CZ_TESTS_PTX_LANES_H

#include "ptx_decode.h"
#include "ptx_run.h"

#include <utility>

template <auto F> struct ptx_lane_function;

template <class D, class... S, D (*F)(S...)> struct ptx_lane_function<F> {
    template <size_t... I>
    static void run_with(ptx_warp &w, const ptx_op &o, std::index_sequence<I...>)
    {
        D *d = w.to<D>(o.s[0]);
        std::tuple<const S *...> s{w.from<S>(o.s[I + 1])...};
        ptx_lanes(w.mask, [=](int l) { d[l] = F(std::get<I>(s)[l]...); });
    }
    static void run(ptx_warp &w, const ptx_op &o)
    {
        run_with(w, o, std::index_sequence_for<S...>{});
    }
    static constexpr ptx_plain plain = {run, {(int)sizeof(D), (int)sizeof(S)...}, 1 + sizeof...(S)};
};

#define PTX_PLAIN(opcode, function) {opcode, ptx_lane_function<function>::plain},

/* Bits of floats. */
inline uint32_t ptx_bits(float x)
{
    uint32_t b;
    __builtin_memcpy(&b, &x, 4);
    return b;
}

inline float ptx_float(uint32_t b)
{
    float x;
    __builtin_memcpy(&x, &b, 4);
    return x;
}

/* What arithmetic gives for NaN. */
inline float ptx_nan_is_one(float x)
{
    return x != x ? ptx_float(0x7fffffffu) : x;
}

inline float ptx_flush(float x)
{
    const uint32_t b = ptx_bits(x);
    return ptx_float((b & 0x7f800000u) == 0 ? b & 0x80000000u : b);
}

/* The exact result y of an approximate instruction, or, when the settings ask for it, one that is
 * off by up to `relative` of it; the same for the same input. */
float ptx_approximate(float y, uint32_t input, float relative);
extern uint64_t ptx_approx_seed; /* 0: exact */

#endif

/* Body of the vector rows. Limit: memory (4 bytes per fp32 element). */
#include "ops/reduce/reduce_impl.h"

#include <math.h>

/* Vectors per check for a value that is not finite. */
#define SCAN_BATCH 32

/* Index of the first element of [begin, end) whose magnitude bits reach `infinite`. */
static size_t first_nonfinite(const void *x, bool wide, uint32_t infinite, size_t begin, size_t end)
{
    size_t i = begin;
    for (; i < end; i++) {
        uint32_t bits =
            wide ? ((const uint32_t *)x)[i] & 0x7fffffffu : ((const uint16_t *)x)[i] & 0x7fffu;
        if (bits >= infinite) break;
    }
    return i;
}

VEC_FN vi magnitudes(const void *x, bool wide, size_t j, size_t end)
{
    const size_t lanes = wide ? VF_N : 2 * VF_N;
    return vi_load_magnitudes(x, j, wide, end - j < lanes ? end - j : lanes);
}

/* The largest magnitude of [begin, end) below `infinite`. */
VEC_FN vi largest_finite(bool wide, uint32_t infinite, const void *x, size_t begin, size_t end)
{
    vi largest = vi_set1(0);
    for (size_t j = begin; j < end; j += wide ? VF_N : 2 * VF_N)
        largest =
            vi_max_lanes(largest, vi_zero_from(magnitudes(x, wide, j, end), infinite, wide), wide);
    return largest;
}

/* Magnitudes compare as integers, 32 or 16 bits wide. Returns the largest below `infinite`. */
VEC_FN uint32_t scan_loop(bool wide, uint32_t infinite, const void *x, size_t begin, size_t end,
                          struct scan_result *out)
{
    const size_t batch = SCAN_BATCH * (wide ? VF_N : 2 * VF_N);
    vi largest = vi_set1(0);
    for (size_t i = begin; i < end;) {
        size_t batch_end = end - i < batch ? end : i + batch;
        vi seen = vi_set1(0); /* infinity and NaN included */
        for (size_t j = i; j < batch_end; j += wide ? VF_N : 2 * VF_N)
            seen = vi_max_lanes(seen, magnitudes(x, wide, j, batch_end), wide);
        if (vi_hmax_lanes(seen, wide) >= infinite) {
            if (out->finite)
                out->first_nonfinite = first_nonfinite(x, wide, infinite, i, batch_end);
            out->finite = false;
            seen = largest_finite(wide, infinite, x, i, batch_end);
        }
        largest = vi_max_lanes(largest, seen, wide);
        i = batch_end;
    }
    return vi_hmax_lanes(largest, wide);
}

/* A magnitude's bits as those of a float. */
static uint32_t float_bits(enum cz_dtype dtype, uint32_t bits)
{
    if (dtype == DTYPE_BF16) return f32_bits(bf16_to_f32((uint16_t)bits));
    return dtype == DTYPE_F16 ? f32_bits(f16_to_f32((uint16_t)bits)) : bits;
}

static void scan(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out)
{
    uint32_t largest;
    if (a->dtype == DTYPE_F32)
        largest = scan_loop(true, 0x7f800000u, a->x, begin, end, out);
    else
        largest =
            scan_loop(false, a->dtype == DTYPE_BF16 ? 0x7f80u : 0x7c00u, a->x, begin, end, out);
    out->max_abs = fmaxf(out->max_abs, f32_from_bits(float_bits(a->dtype, largest)));
}

/* Elements whose squares are counted together: they stay in the first cache between the look at
 * their magnitudes and the counting. */
#define SQUARES_BATCH ((size_t)2048)

/* Squares are counted in units of 2^-50 of what the largest is below, their rests in units 2^50
 * times smaller: each count is at most 2⁵⁰, those of a batch 2⁶¹. That leaves no bit of a magnitude
 * down to 2⁻²⁶ of the largest (2⁻⁴² in bf16). */
#define SQUARES_COUNT_BITS 50

/* Adding 1.5·2⁵²·unit rounds a double to a multiple of the unit (ties to even) and leaves the count
 * in the low bits of the sum: those are added as integers, and the constant's own bits taken off
 * later. */
struct squares_vectors {
    vd round[2]; /* coarse, fine */
    vl sums[2];
};

VEC_FN void count_squares(vd x, struct squares_vectors *v)
{
    vd coarse = vd_fma(x, x, v->round[0]);
    vd rest = vd_fma(x, x, v->round[0] - coarse); /* x² − a multiple of the unit: exact */
    v->sums[0] = vl_add(v->sums[0], vd_bits(coarse));
    v->sums[1] = vl_add(v->sums[1], vd_bits(rest + v->round[1]));
}

VEC_FN void count_step(enum cz_dtype dtype, const void *x, struct squares_vectors *v, size_t i,
                       size_t n)
{
    vf2 pair = vf2_get(x, i, dtype, n);
    count_squares(vd_low(pair.a), v);
    count_squares(vd_high(pair.a), v);
    count_squares(vd_low(pair.b), v);
    count_squares(vd_high(pair.b), v);
}

VEC_FN void count_loop(enum cz_dtype dtype, const void *x, struct squares_vectors *sums,
                       size_t begin, size_t end)
{
    struct squares_vectors v = *sums;
    size_t i = begin;
    for (; i + 2 * VF_N <= end; i += 2 * VF_N) count_step(dtype, x, &v, i, 2 * VF_N);
    if (i < end) count_step(dtype, x, &v, i, end - i);
    *sums = v;
}

/* Bits of a float's mantissa that are zero if it was converted from the type. */
static int zero_bits(enum cz_dtype dtype)
{
    return dtype == DTYPE_BF16 ? 16 : dtype == DTYPE_F16 ? 13 : 0;
}

/* Magnitudes of a batch, zeros left out. */
struct extremes {
    uint32_t largest, smallest;
};

VEC_FN struct extremes find_extremes(bool wide, const void *x, size_t begin, size_t end)
{
    vi most = vi_set1(0), least = vi_set1(0); /* negated, as unsigned: zero stays the lowest */
    for (size_t j = begin; j < end; j += wide ? VF_N : 2 * VF_N) {
        const vi x_j = magnitudes(x, wide, j, end);
        most = vi_max_lanes(most, x_j, wide);
        least = vi_max_lanes(least, vi_negate_lanes(x_j, wide), wide);
    }
    return (struct extremes){vi_hmax_lanes(most, wide), 0u - vi_hmax_lanes(least, wide)};
}

/* A batch of finite elements of these magnitudes. false: they are so far apart that bits would be
 * lost. */
static bool count_batch(const struct scan_args *a, struct extremes x, size_t begin, size_t end,
                        struct squares_sum *sum)
{
    const struct float_square largest = float_square(float_bits(a->dtype, x.largest)),
                              smallest = float_square(float_bits(a->dtype, x.smallest));
    const int below = largest.shift + 48; /* all squares are, as a power of two */
    int shift[2] = {below - SQUARES_COUNT_BITS, below - 2 * SQUARES_COUNT_BITS};
    struct squares_vectors v = {.sums = {vl_zero(), vl_zero()}};
    double round[2];
    if (smallest.shift + 2 * zero_bits(a->dtype) < shift[1]) return false;
    for (int i = 0; i < 2; i++) {
        if (shift[i] < 0) shift[i] = 0; /* nothing is smaller than a unit of 2⁻²⁹⁸ */
        round[i] = ldexp(0x1.8p52, shift[i] - 298);
        v.round[i] = vd_set1(round[i]);
    }
    DTYPE_CALL(count_loop, a->dtype, a->x, &v, begin, end);
    /* Lanes past the tail hold zeros: they counted 0 on top of the constants, as the others. */
    const uint64_t n = (end - begin + 2 * VF_N - 1) / (2 * VF_N) * (2 * VF_N);
    for (int i = 0; i < 2; i++) {
        uint64_t bits;
        memcpy(&bits, &round[i], sizeof bits);
        squares_add(sum, (int64_t)(vl_hsum(v.sums[i]) - n * bits), shift[i]);
    }
    return true;
}

/* What a batch of vectors cannot do is left to others: elements that are not finite to the scan,
 * magnitudes far apart to the scalar row. */
static void squares(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out,
                    struct squares_sum *sum)
{
    const uint32_t infinite = 0x7f800000u;
    for (size_t batch_end; begin < end; begin = batch_end) {
        batch_end = end - begin < SQUARES_BATCH ? end : begin + SQUARES_BATCH;
        const struct extremes x = a->dtype == DTYPE_F32
                                      ? find_extremes(true, a->x, begin, batch_end)
                                      : find_extremes(false, a->x, begin, batch_end);
        const uint32_t largest = float_bits(a->dtype, x.largest);
        if (largest >= infinite) {
            scan(a, begin, batch_end, out);
        } else if (largest > 0) {
            out->max_abs = fmaxf(out->max_abs, f32_from_bits(largest));
            if (!count_batch(a, x, begin, batch_end, sum))
                reduce_scalar.squares(a, begin, batch_end, out, sum);
        }
    }
}

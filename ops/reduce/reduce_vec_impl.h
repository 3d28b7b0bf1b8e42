/* Body of the vector rows. Limit: memory (4 bytes per fp32 element). */
#include "ops/reduce/reduce_impl.h"

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

static void scan(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out)
{
    if (a->dtype == DTYPE_F32)
        out->max_abs = f32_from_bits(scan_loop(true, 0x7f800000u, a->x, begin, end, out));
    else if (a->dtype == DTYPE_BF16)
        out->max_abs = bf16_to_f32((uint16_t)scan_loop(false, 0x7f80u, a->x, begin, end, out));
    else
        out->max_abs = f16_to_f32((uint16_t)scan_loop(false, 0x7c00u, a->x, begin, end, out));
}

/* Vectors whose counts add up in int64 lanes: 2¹⁶·2⁴⁰ per lane, 2⁵⁹ over the lanes. */
#define SUMSQ_BATCH ((size_t)1 << 15)

/* Adding 1.5·2⁵²·grid rounds a double to a multiple of the grid (ties to even) and leaves the count
 * in the low bits of the sum: those are added as integers, and the constant's own bits taken off
 * later. */
struct rounding {
    vd coarse, fine;
};

/* One vector of doubles: its counts go to sums[0] (coarse) and sums[1] (fine). */
VEC_FN void count_squares(vd x, const struct rounding *r, vl sums[2])
{
    vd coarse = vd_fma(x, x, r->coarse);
    vd rest = vd_fma(x, x, r->coarse - coarse); /* x² − multiple of the grid: exact */
    sums[0] = vl_add(sums[0], vd_bits(coarse));
    sums[1] = vl_add(sums[1], vd_bits(rest + r->fine));
}

VEC_FN void count_step(enum cz_dtype dtype, const void *x, const struct rounding *r, vl sums[2],
                       size_t i, size_t n)
{
    vf2 v = vf2_get(x, i, dtype, n);
    count_squares(vd_low(v.a), r, sums);
    count_squares(vd_high(v.a), r, sums);
    count_squares(vd_low(v.b), r, sums);
    count_squares(vd_high(v.b), r, sums);
}

VEC_FN void count_loop(enum cz_dtype dtype, const void *x, const struct rounding *r, size_t begin,
                       size_t end, vl sums[2])
{
    size_t i = begin;
    for (; i + 2 * VF_N <= end; i += 2 * VF_N) count_step(dtype, x, r, sums, i, 2 * VF_N);
    if (i < end) count_step(dtype, x, r, sums, i, end - i);
}

static __int128 sumsq(const struct sumsq_args *a, const struct sumsq_grid *grid, size_t begin,
                      size_t end)
{
    const double coarse = 0x1.8p52 * grid->coarse, fine = 0x1.8p52 * grid->fine;
    const struct rounding r = {vd_set1(coarse), vd_set1(fine)};
    int64_t coarse_bits, fine_bits;
    memcpy(&coarse_bits, &coarse, sizeof coarse);
    memcpy(&fine_bits, &fine, sizeof fine);
    __int128 total = 0;
    while (begin < end) {
        size_t batch_end = end - begin < SUMSQ_BATCH * VF_N ? end : begin + SUMSQ_BATCH * VF_N;
        vl sums[2] = {vl_zero(), vl_zero()};
        DTYPE_CALL(count_loop, a->dtype, a->x, &r, begin, batch_end, sums);
        /* Lanes past the tail hold zeros: they counted 0 on top of the constants, as the others. */
        uint64_t n = (batch_end - begin + 2 * VF_N - 1) / (2 * VF_N) * (2 * VF_N);
        int64_t n_coarse = (int64_t)(vl_hsum(sums[0]) - n * (uint64_t)coarse_bits);
        int64_t n_fine = (int64_t)(vl_hsum(sums[1]) - n * (uint64_t)fine_bits);
        total += ((__int128)n_coarse << SUMSQ_COARSE_BITS) + n_fine;
        begin = batch_end;
    }
    return total;
}

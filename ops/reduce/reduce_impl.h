/* What a row of the reductions provides. */
#ifndef CZ_OPS_REDUCE_REDUCE_IMPL_H
#define CZ_OPS_REDUCE_REDUCE_IMPL_H

#include "ops/ops_impl.h"
#include "ops/reduce/reduce.h"

#define SQUARES_DIGIT_BITS 48
#define SQUARES_DIGIT_MASK (((uint64_t)1 << SQUARES_DIGIT_BITS) - 1)

/* A float's magnitude is m·2^(e − 149) with m < 2²⁴ and 0 ≤ e < 254: its square is m² units of
 * 2⁻²⁹⁸, shifted by 2·e. */
struct float_square {
    uint64_t mantissa; /* m² < 2⁴⁸ */
    int shift;         /* 2·e */
};

static CZ_KERNEL_FN struct float_square float_square(uint32_t bits)
{
    const uint32_t exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffffu;
    const uint64_t m = exponent > 0 ? fraction | 1u << 23 : fraction;
    const struct float_square square = {m * m, exponent > 0 ? 2 * (int)(exponent - 1) : 0};
    return square;
}

/* Signed counts of what each digit stands for: Σ counts[i]·2^(48·i) units. */
struct squares_sum {
    __int128 counts[SQUARES_DIGITS];
};

/* sum += n·2^shift units, |n| < 2⁶³. */
static inline void squares_add(struct squares_sum *sum, int64_t n, int shift)
{
    const int digit = shift / SQUARES_DIGIT_BITS;
    const __int128 shifted = n * ((__int128)1 << shift % SQUARES_DIGIT_BITS);
    sum->counts[digit] += shifted & SQUARES_DIGIT_MASK;
    sum->counts[digit + 1] += shifted >> SQUARES_DIGIT_BITS; /* rounds down */
}

CZ_EXTERN_C_BEGIN

cz_status reduce_check_scan(const struct scan_args *a);

/* digits += sum, carried: below 2⁴⁸ each afterwards. */
void squares_carry(uint64_t digits[SQUARES_DIGITS], const struct squares_sum *sum);

CZ_EXTERN_C_END

struct reduce_row {
    struct ops_row row;
    /* Over [begin, end); first_nonfinite is an index into x. */
    void (*scan)(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out);
    /* The same, and adds the squares. */
    void (*squares)(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out,
                    struct squares_sum *sum);
};

extern const struct reduce_row reduce_scalar, reduce_avx2, reduce_avx512;

/* The table, slowest first. */
const struct reduce_row *const *reduce_rows(size_t *n);

#endif

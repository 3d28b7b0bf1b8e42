/* Argument checks of the reductions, and the number that squares add up to, for all devices. */
#include "ops/reduce/reduce_impl.h"

#include <math.h>

cz_status reduce_check_scan(const struct scan_args *a)
{
    TRY(ops_check_dtype("scan", a->dtype));
    if (!a->result || (a->numel > 0 && !a->x))
        return err_set(CZ_INVALID, 0, "scan: x and result are needed for %zu elements", a->numel);
    return CZ_OK;
}

void squares_carry(uint64_t digits[SQUARES_DIGITS], const struct squares_sum *sum)
{
    __int128 carry = 0;
    for (int i = 0; i < SQUARES_DIGITS; i++) {
        carry += sum->counts[i] + digits[i];
        digits[i] = (uint64_t)carry & SQUARES_DIGIT_MASK;
        carry >>= SQUARES_DIGIT_BITS; /* of a negative one, too: rounds down */
    }
}

double ops_squares_value(const uint64_t digits[SQUARES_DIGITS])
{
    /* Carry first: the digits of a sum are unique, however it was put together. */
    uint64_t carried[SQUARES_DIGITS] = {0};
    struct squares_sum sum;
    double value = 0;
    for (int i = 0; i < SQUARES_DIGITS; i++) sum.counts[i] = digits[i];
    squares_carry(carried, &sum);
    for (int i = 0; i < SQUARES_DIGITS; i++) /* smallest first */
        value += ldexp((double)carried[i], SQUARES_DIGIT_BITS * i - 298);
    return value;
}

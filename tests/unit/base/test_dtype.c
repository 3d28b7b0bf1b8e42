/* Claims: 16-bit conversions round to nearest even, keep NaN and infinity, and every 16-bit value
 * survives the trip to fp32 and back. */
#include "base/dtype.h"
#include "tests/support/check_main.h"

#include <math.h>

START_TEST(every_bf16_survives_the_round_trip)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = bf16_to_f32((uint16_t)h);
        uint16_t back = f32_to_bf16(f);
        if (isnan(f))
            ck_assert(isnan(bf16_to_f32(back)));
        else
            ck_assert_uint_eq(back, h);
    }
}
END_TEST

START_TEST(every_f16_survives_the_round_trip)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_f32((uint16_t)h);
        uint16_t back = f32_to_f16(f);
        if (isnan(f))
            ck_assert(isnan(f16_to_f32(back)));
        else
            ck_assert_uint_eq(back, h);
    }
}
END_TEST

START_TEST(f16_agrees_with_the_compiler)
{
    /* _Float16 is converted by gcc's own routines (or F16C): an independent oracle. */
    for (uint64_t u = 0; u < UINT64_C(0x100000000); u += 4099) {
        float f = f32_from_bits((uint32_t)u);
        if (isnan(f)) continue;
        _Float16 want = (_Float16)f;
        uint16_t want_bits;
        memcpy(&want_bits, &want, sizeof want_bits);
        ck_assert_uint_eq(f32_to_f16(f), want_bits);
    }
}
END_TEST

START_TEST(ties_round_to_even)
{
    ck_assert_uint_eq(f32_to_bf16(f32_from_bits(0x3f808000)), 0x3f80);
    ck_assert_uint_eq(f32_to_bf16(f32_from_bits(0x3f818000)), 0x3f82);
    ck_assert_uint_eq(f32_to_f16(65519.0f), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(0x1p-25f), 0);
    ck_assert_uint_eq(f32_to_f16(0x1.8p-25f), 1);
}
END_TEST

TEST_MAIN("base/dtype", every_bf16_survives_the_round_trip, every_f16_survives_the_round_trip,
          f16_agrees_with_the_compiler, ties_round_to_even)

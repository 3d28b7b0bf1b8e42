/* Claims: Philox matches the published known answers; draws depend on the key alone; the
 * permutation is one; normals have the right moments. */
#include "base/rng.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

START_TEST(philox_matches_known_answers)
{
    /* Random123's kat_vectors for philox4x32-10. */
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    const uint32_t want_zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t want_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    uint32_t out[4];
    rng_philox4x32(zero, zero, out);
    ck_assert_mem_eq(out, want_zero, sizeof out);
    rng_philox4x32(ones, ones, out);
    ck_assert_mem_eq(out, want_ones, sizeof out);
}
END_TEST

START_TEST(draws_depend_on_every_part_of_the_key)
{
    struct rng_key key = {.seed = 1, .site = 2, .step = 3, .sample = 4};
    uint32_t base = rng_u32(&key, 5);
    ck_assert_uint_eq(rng_u32(&key, 5), base);
    ck_assert_uint_ne(rng_u32(&key, 6), base);
    struct rng_key other = key;
    other.seed = 9;
    ck_assert_uint_ne(rng_u32(&other, 5), base);
    other = key, other.site = 9;
    ck_assert_uint_ne(rng_u32(&other, 5), base);
    other = key, other.step = 9;
    ck_assert_uint_ne(rng_u32(&other, 5), base);
    other = key, other.sample = 9;
    ck_assert_uint_ne(rng_u32(&other, 5), base);
}
END_TEST

START_TEST(permutation_visits_each_index_once)
{
    const uint64_t sizes[] = {1, 2, 3, 17, 64, 1000, 4097};
    for (size_t s = 0; s < CZ_ARRAY_LEN(sizes); s++) {
        unsigned char seen[4097] = {0};
        for (uint64_t i = 0; i < sizes[s]; i++) {
            uint64_t p = rng_permute(7, 1, sizes[s], i);
            ck_assert_uint_lt(p, sizes[s]);
            ck_assert_int_eq(seen[p]++, 0);
        }
    }
}
END_TEST

START_TEST(normals_have_unit_variance)
{
    struct rng_key key = {.seed = 42};
    double sum = 0, sum_sq = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
        double x = rng_normal(&key, (uint64_t)i);
        sum += x;
        sum_sq += x * x;
    }
    ck_assert_double_lt(fabs(sum / n), 0.01);
    ck_assert_double_lt(fabs(sum_sq / n - 1.0), 0.02);
}
END_TEST

TEST_MAIN("base/rng", philox_matches_known_answers, draws_depend_on_every_part_of_the_key,
          permutation_visits_each_index_once, normals_have_unit_variance)

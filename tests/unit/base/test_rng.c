/* Claims: Philox matches the published known answers; draws depend on the key alone, and are
 * those of all versions; the permutation is one; normals are the formula of two draws, with the
 * right moments. */
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

/* All of 64 bits of a sample and an index count, and each word of a block has its own place. */
START_TEST(draws_are_words_of_the_blocks_that_the_header_names)
{
    const struct rng_key keys[] = {{1, 2, 3, 4}, {1, 2, 3, 4ull << 32}, {~0ull, ~0u, ~0u, ~0ull}};
    const uint64_t at[] = {0, 1, 2, 3, 4, 7, 1ull << 34, (5ull << 34) + 6, ~0ull};
    for (size_t k = 0; k < CZ_ARRAY_LEN(keys); k++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(at); i++) {
            uint32_t philox_key[2], counter[4], block[4];
            uint64_t mixed = rng_mix64(keys[k].seed + 0x9E3779B97F4A7C15u);
            mixed = rng_mix64(mixed ^ ((uint64_t)keys[k].step << 32 | keys[k].site));
            memcpy(philox_key, &mixed, sizeof mixed);
            memcpy(counter, &(uint64_t){at[i] / 4}, 8);
            memcpy(counter + 2, &keys[k].sample, 8);
            rng_philox4x32(counter, philox_key, block);
            ck_assert_uint_eq(rng_u32(&keys[k], at[i]), block[at[i] % 4]);
            ck_assert(rng_uniform(&keys[k], at[i]) == ldexpf((float)(block[at[i] % 4] >> 8), -24));
        }
}
END_TEST

/* No version may draw others: a run may be resumed by another one. */
START_TEST(a_seed_keeps_its_numbers)
{
    const struct rng_key key = {.seed = 1234, .site = 5, .step = 6, .sample = 7};
    const uint32_t want[4] = {0x2df2c949, 0x8fe8bbfa, 0xe56818c3, 0x6e3993c8};
    for (uint64_t i = 0; i < 4; i++) ck_assert_uint_eq(rng_u32(&key, i), want[i]);
    const struct {
        uint64_t n, idx, place;
    } cases[] = {{1u, 0u, 0u},
                 {2u, 1u, 0u},
                 {5u, 4u, 2u},
                 {1000u, 0u, 32u},
                 {1000u, 999u, 475u},
                 {4096u, 1u, 1283u},
                 {4097u, 4096u, 2147u},
                 {4294967296u, 12345u, 1466648057u},
                 {4611686018427387905u, 2305843009213693952u, 3399590728377587287u},
                 {18446744073709551615u, 18446744073709551614u, 13841879632052497049u}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++)
        ck_assert_uint_eq(rng_permute(11, 3, cases[i].n, cases[i].idx), cases[i].place);
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

START_TEST(normals_are_the_formula_of_their_two_draws)
{
    struct rng_key key = {.seed = 7, .step = 3};
    for (uint64_t i = 0; i < 20000; i++) {
        double u = ((double)rng_u32(&key, 2 * i) + 1) / 4294967296.0;
        double v = (double)rng_u32(&key, 2 * i + 1) / 4294967296.0;
        ck_assert(rng_normal(&key, i) == (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v)));
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
          draws_are_words_of_the_blocks_that_the_header_names, a_seed_keeps_its_numbers,
          permutation_visits_each_index_once, normals_are_the_formula_of_their_two_draws,
          normals_have_unit_variance)

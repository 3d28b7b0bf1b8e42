/* Claim: CRC-32 is the zip container's; the CRC of a whole comes out of its pieces, in whatever
 * order they arrive, and missing or repeated bytes are noticed. */
#include "tests/support/check_main.h"

#include "formats/crc32.h"

#include <string.h>

/* The definition, bit by bit. */
static uint32_t by_definition(const unsigned char *bytes, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static void fill(unsigned char *bytes, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(seed >> 24);
    }
}

START_TEST(known_values)
{
    ck_assert_uint_eq(crc32_update(0, "123456789", 9), 0xCBF43926u);
    ck_assert_uint_eq(crc32_update(0, "little", 6), 0x19e33d85u);
    ck_assert_uint_eq(crc32_update(0, "3\n", 2), 0x55679ed1u);
    ck_assert_uint_eq(crc32_update(0, "1", 1), 0x83dcefb7u);
    ck_assert_uint_eq(crc32_update(0, "64", 2), 0xe971773fu);
    ck_assert_uint_eq(crc32_update(0, NULL, 0), 0);
    ck_assert_uint_eq(crc32_update(7, NULL, 0), 7);
}
END_TEST

START_TEST(agrees_with_the_definition_and_continues)
{
    unsigned char bytes[700];
    fill(bytes, sizeof bytes, 1);
    for (size_t n = 0; n <= sizeof bytes; n += 7) {
        uint32_t want = by_definition(bytes, n);
        ck_assert_uint_eq(crc32_update(0, bytes, n), want);
        uint32_t begin = crc32_update(0, bytes, n / 3);
        ck_assert_uint_eq(crc32_update(begin, bytes + n / 3, n - n / 3), want);
    }
}
END_TEST

START_TEST(concatenates)
{
    unsigned char bytes[1000];
    fill(bytes, sizeof bytes, 2);
    uint32_t whole = by_definition(bytes, sizeof bytes);
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        uint32_t a = crc32_update(0, bytes, cut);
        uint32_t b = crc32_update(0, bytes + cut, sizeof bytes - cut);
        ck_assert_uint_eq(crc32_concat(a, b, sizeof bytes - cut), whole);
    }
}
END_TEST

/* CRC of n zeros by doubling. */
static uint32_t zeros(uint64_t n)
{
    if (n == 0) return 0;
    uint32_t half = zeros(n / 2), both = crc32_concat(half, half, n / 2);
    return n % 2 == 0 ? both : crc32_update(both, "", 1);
}

START_TEST(concatenates_lengths_beyond_32_bits)
{
    static unsigned char block[1 << 20];
    uint32_t by_blocks = 0, one = crc32_update(0, block, sizeof block);
    for (int i = 0; i < 4097; i++) by_blocks = crc32_concat(by_blocks, one, sizeof block);
    uint32_t begin = crc32_update(0, block, 12345);
    uint64_t rest = (uint64_t)4097 * sizeof block - 12345;
    uint32_t tail = 0;
    for (uint64_t left = rest; left > 0;) { /* the same zeros, other cuts */
        uint64_t n = left < (uint64_t)3 << 30 ? left : (uint64_t)3 << 30;
        tail = crc32_concat(tail, zeros(n), n);
        left -= n;
    }
    ck_assert_uint_eq(crc32_concat(begin, tail, rest), by_blocks);
}
END_TEST

START_TEST(pieces_in_any_order)
{
    unsigned char bytes[5000];
    fill(bytes, sizeof bytes, 3);
    uint32_t whole = by_definition(bytes, sizeof bytes), seed = 9;
    for (int trial = 0; trial < 200; trial++) {
        size_t cuts[40] = {0}, order[40], n = 1;
        for (size_t at = 0; at < sizeof bytes && n < 40; n++) {
            seed = seed * 1664525u + 1013904223u;
            at += 1 + (seed >> 16) % 300;
            cuts[n] = at < sizeof bytes && n < 39 ? at : sizeof bytes;
            if (cuts[n] == sizeof bytes) at = sizeof bytes;
        }
        for (size_t i = 0; i + 1 < n; i++) order[i] = i;
        for (size_t i = n - 1; i-- > 1;) {
            seed = seed * 1664525u + 1013904223u;
            size_t j = (seed >> 8) % (i + 1), kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
        struct crc32_pieces p = {0};
        uint32_t crc;
        for (size_t i = 0; i + 1 < n; i++) {
            size_t off = cuts[order[i]], nbytes = cuts[order[i] + 1] - off;
            ck_fails(crc32_pieces_total(&p, sizeof bytes, &crc), CZ_INVALID);
            ck_ok(crc32_pieces_add(&p, off, nbytes, crc32_update(0, bytes + off, nbytes)));
        }
        ck_ok(crc32_pieces_total(&p, sizeof bytes, &crc));
        ck_assert_uint_eq(crc, whole);
        ck_assert_uint_eq(p.n, 1);
        crc32_pieces_free(&p);
    }
}
END_TEST

START_TEST(repeated_and_missing_bytes_are_refused)
{
    struct crc32_pieces p = {0};
    uint32_t crc;
    ck_ok(crc32_pieces_total(&p, 0, &crc));
    ck_assert_uint_eq(crc, 0);
    ck_ok(crc32_pieces_add(&p, 10, 10, 1));
    ck_ok(crc32_pieces_add(&p, 30, 10, 1));
    ck_fails(crc32_pieces_add(&p, 10, 10, 1), CZ_INVALID);
    ck_fails(crc32_pieces_add(&p, 5, 6, 1), CZ_INVALID);
    ck_fails(crc32_pieces_add(&p, 19, 1, 1), CZ_INVALID);
    ck_fails(crc32_pieces_add(&p, 25, 10, 1), CZ_INVALID);
    ck_fails(crc32_pieces_add(&p, 0, 100, 1), CZ_INVALID);
    ck_fails(crc32_pieces_add(&p, UINT64_MAX, 2, 1), CZ_INVALID);
    ck_ok(crc32_pieces_add(&p, 20, 10, 1));
    ck_ok(crc32_pieces_add(&p, 15, 0, 1)); /* nothing is nothing */
    ck_fails(crc32_pieces_total(&p, 40, &crc), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "byte 0 of 40"));
    ck_ok(crc32_pieces_add(&p, 0, 10, 1));
    ck_ok(crc32_pieces_total(&p, 40, &crc));
    ck_fails(crc32_pieces_total(&p, 39, &crc), CZ_INVALID);
    ck_fails(crc32_pieces_total(&p, 41, &crc), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "byte 40 of 41"));
    crc32_pieces_free(&p);
}
END_TEST

TEST_MAIN("formats/crc32", known_values, agrees_with_the_definition_and_continues, concatenates,
          concatenates_lengths_beyond_32_bits, pieces_in_any_order,
          repeated_and_missing_bytes_are_refused)

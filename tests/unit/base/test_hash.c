/* Claims: the hash is SipHash (published vectors) under a key that differs from process to process,
 * and the fixed one FNV-1a;
 * the table finds every item that was added and no other, whatever their number, also when all
 * hashes are equal. */
#include "base/hash.h"
#include "tests/support/check_main.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define K0 0x0706050403020100u
#define K1 0x0F0E0D0C0B0A0908u

/* Appendix A of the paper, and the first of the vectors of its reference implementation. */
START_TEST(siphash_gives_the_published_values)
{
    unsigned char bytes[15];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)i;
    ck_assert_uint_eq(hash_sip(2, 4, K0, K1, bytes, 15), 0xA129CA6149BE45E5u);
    ck_assert_uint_eq(hash_sip(2, 4, K0, K1, bytes, 0), 0x726FDB47DD0E0E31u);
    ck_assert_uint_eq(hash_sip(2, 4, K0, K1, bytes, 1), 0x74F839C593DC67FDu);
    ck_assert_uint_eq(hash_sip(1, 3, K0, K1, bytes, 0), 0xABAC0158050FC4DCu);
}
END_TEST

/* The key is made at the first call, so two children that fork before it have different ones. */
START_TEST(two_processes_hash_differently)
{
    uint64_t got[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        int ends[2];
        ck_assert_int_eq(pipe(ends), 0);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            uint64_t h = hash_text("weight");
            _exit(write(ends[1], &h, sizeof h) == sizeof h ? 0 : 1);
        }
        ck_assert_int_eq(read(ends[0], &got[i], sizeof got[i]), sizeof got[i]);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        close(ends[0]);
        close(ends[1]);
    }
    ck_assert_uint_ne(got[0], got[1]);
    ck_assert_uint_eq(hash_text("weight"), hash_bytes("weight", 6));
    ck_assert_uint_eq(hash_key().b & 1, 1);
}
END_TEST

/* The authors' vectors: the values are in files, so no version may have others. */
START_TEST(fnv_1a_gives_the_published_values)
{
    ck_assert_uint_eq(hash_fixed_text(""), 0xCBF29CE484222325u);
    ck_assert_uint_eq(hash_fixed_text("a"), 0xAF63DC4C8601EC8Cu);
    ck_assert_uint_eq(hash_fixed_text("foobar"), 0x85944171F73967E8u);
    ck_assert_uint_eq(hash_fixed(hash_fixed_text("foo"), "bar", 3), 0x85944171F73967E8u);
    ck_assert_uint_eq(hash_fixed_text_32(""), 0x811C9DC5u);
    ck_assert_uint_eq(hash_fixed_text_32("a"), 0xE40C292Cu);
    ck_assert_uint_eq(hash_fixed_text_32("foobar"), 0xBF9CF968u);
}
END_TEST

struct key {
    const int *numbers;
    int wanted;
};

static bool is_number(const void *key, size_t item)
{
    const struct key *k = key;
    return k->numbers[item] == k->wanted;
}

START_TEST(items_are_found_and_others_are_not)
{
    enum { N = 5000 };
    static int numbers[N];
    struct hash_index x = {0};
    for (int constant = 0; constant < 2; constant++) {
        const int n = constant ? 300 : N;
        for (int i = 0; i < n; i++) {
            numbers[i] = 3 * i;
            struct key key = {numbers, numbers[i]};
            uint64_t h = constant ? 7 : hash_bytes(&numbers[i], sizeof numbers[i]);
            ck_assert_uint_eq(hash_index_find(&x, h, is_number, &key), HASH_NONE);
            ck_ok(hash_index_add(&x, h, (size_t)i));
        }
        ck_assert_uint_eq(x.n, (size_t)n);
        for (int wanted = 0; wanted < 3 * n; wanted++) {
            struct key key = {numbers, wanted};
            uint64_t h = constant ? 7 : hash_bytes(&wanted, sizeof wanted);
            size_t expected = wanted % 3 == 0 ? (size_t)wanted / 3 : HASH_NONE;
            ck_assert_uint_eq(hash_index_find(&x, h, is_number, &key), expected);
        }
        hash_index_free(&x);
        hash_index_free(&x);
    }
    ck_assert_uint_eq(hash_index_find(&x, 0, is_number, NULL), HASH_NONE);
}
END_TEST

START_TEST(a_table_has_a_limit_and_grows_at_once)
{
    struct hash_index x = {0};
    ck_fails(hash_index_reserve(&x, ((size_t)1 << 31) + 1), CZ_NOMEM);
    ck_assert_str_eq(cz_last_error(), "a table of 2147483649 names");
    ck_assert_uint_eq(x.n_slots, 0);
    /* never more than half full */
    const size_t want[][2] = {{0, 16}, {8, 16}, {9, 32}, {16, 32}, {17, 64}, {1, 64}, {33, 128}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(want); i++) {
        ck_ok(hash_index_reserve(&x, want[i][0]));
        ck_assert_uint_eq(x.n_slots, want[i][1]);
    }
    hash_index_free(&x);
    for (size_t i = 0; i < 9; i++) {
        ck_ok(hash_index_add(&x, i, i));
        ck_assert_uint_eq(x.n_slots, i < 8 ? 16 : 32);
    }
    hash_index_free(&x);
}
END_TEST

TEST_MAIN("base/hash", siphash_gives_the_published_values, fnv_1a_gives_the_published_values,
          two_processes_hash_differently, items_are_found_and_others_are_not,
          a_table_has_a_limit_and_grows_at_once)

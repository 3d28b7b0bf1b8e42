/* Claims: the hash is SipHash (published vectors) under a key that differs from process to process,
 * and the fixed one FNV-1a;
 * the table finds every item that was added and no other, whatever their number, also when all
 * hashes are equal. */
#include "base/hash.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

/* Whether this process's calls of that number fail from now on. */
static bool refuse_call(unsigned call)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {.len = CZ_ARRAY_LEN(rules), .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

struct drawn {
    uint64_t hash;
    struct hash_key key;
};

/* What a child has that makes its key now; without getrandom() if so wanted. */
static struct drawn drawn_by_a_child(bool refused)
{
    struct drawn d = {0};
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (refused && !refuse_call(SYS_getrandom)) _exit(TEST_SKIPPED);
        d = (struct drawn){hash_text("weight"), hash_key()};
        _exit(write(ends[1], &d, sizeof d) == sizeof d ? 0 : 1);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], &d, sizeof d);
    ck_assert(n == sizeof d || (refused && n == 0));
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    close(ends[0]);
    return d;
}

/* The key is made at the first call, so children that fork before it have different ones. */
START_TEST(processes_hash_differently)
{
    enum { N = 6 };
    struct drawn d[N];
    for (int i = 0; i < N; i++) {
        d[i] = drawn_by_a_child(false);
        ck_assert_uint_eq(d[i].key.b & 1, 1);
        ck_assert_uint_gt(d[i].key.b, UINT32_MAX); /* one bit is set, the others stay as drawn */
        for (int k = 0; k < i; k++) {
            ck_assert_uint_ne(d[i].hash, d[k].hash);
            ck_assert_uint_ne(d[i].key.a, d[k].key.a);
            ck_assert_uint_ne(d[i].key.b, d[k].key.b);
        }
    }
    ck_assert_uint_eq(hash_text("weight"), hash_bytes("weight", 6));
}
END_TEST

/* A sandbox may forbid getrandom(): then it is the 16 bytes that the kernel gave the process. */
START_TEST(without_getrandom_the_process_has_a_key_as_well)
{
    uint64_t random[2], two = 2, three = 3;
    const struct drawn d = drawn_by_a_child(true);
    if (!d.key.b) return; /* no filters here */
    memcpy(random, (const void *)getauxval(AT_RANDOM), sizeof random);
    ck_assert_uint_eq(d.hash, hash_sip(1, 3, random[0], random[1], "weight", 6));
    ck_assert_uint_eq(d.key.a, hash_sip(2, 4, random[0], random[1], &two, sizeof two));
    ck_assert_uint_eq(d.key.b, hash_sip(2, 4, random[0], random[1], &three, sizeof three) | 1);
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
    ck_ok(hash_index_add(&x, 5, 0));
    x.n = (size_t)1 << 31; /* as if it were full */
    ck_fails(hash_index_add(&x, 6, 1), CZ_NOMEM);
    ck_assert_uint_eq(x.n, (size_t)1 << 31);
    hash_index_free(&x);
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
          processes_hash_differently, without_getrandom_the_process_has_a_key_as_well,
          items_are_found_and_others_are_not, a_table_has_a_limit_and_grows_at_once)

/* Claims: an option struct of an older program is taken with zeros for what it lacks; one of a
 * newer program is taken as long as it asks for nothing new; a size that was not set is named; a
 * struct that a call fills is written as far as the caller knows it, and not a byte further. */
#include "base/options.h"
#include "tests/support/check_main.h"

#include <string.h>

struct cz_sample { /* the library's */
    size_t size;
    int32_t a, b;
    int64_t c;
};

struct older {
    size_t size;
    int32_t a, b;
};

struct newer {
    struct cz_sample known;
    int64_t d;
};

START_TEST(an_older_struct_is_completed_with_zeros)
{
    const struct older theirs = {sizeof theirs, 1, 2};
    struct cz_sample ours;
    memset(&ours, 0xff, sizeof ours);
    ck_ok(OPTIONS_TAKE(cz_sample, &ours, &theirs));
    ck_assert_uint_eq(ours.size, sizeof ours);
    ck_assert_int_eq(ours.a, 1);
    ck_assert_int_eq(ours.b, 2);
    ck_assert_int_eq(ours.c, 0);
}
END_TEST

START_TEST(no_struct_means_all_defaults)
{
    struct cz_sample ours;
    memset(&ours, 0xff, sizeof ours);
    ck_ok(OPTIONS_TAKE(cz_sample, &ours, NULL));
    ck_assert_uint_eq(ours.size, sizeof ours);
    ck_assert_int_eq(ours.a, 0);
    ck_assert_int_eq(ours.c, 0);
}
END_TEST

START_TEST(a_newer_struct_may_ask_for_nothing_new)
{
    struct newer theirs = {{sizeof theirs, 1, 2, 3}, 0};
    struct cz_sample ours;
    ck_ok(OPTIONS_TAKE(cz_sample, &ours, &theirs));
    ck_assert_int_eq(ours.c, 3);
    ck_assert_uint_eq(ours.size, sizeof ours);
    theirs.d = 1;
    ck_fails(OPTIONS_TAKE(cz_sample, &ours, &theirs), CZ_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "cz_sample"));
}
END_TEST

START_TEST(a_size_that_was_not_set_is_named)
{
    const size_t bad[] = {
        0, 1, sizeof(size_t) - 1, (size_t)-1, (size_t)1 << 40, ((size_t)1 << 16) + 1};
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++) {
        struct cz_sample theirs = {.size = bad[i]}, ours;
        ck_fails(OPTIONS_TAKE(cz_sample, &ours, &theirs), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "cz_sample.size"));
        ck_fails(OPTIONS_GIVE(cz_sample, &theirs, &ours), CZ_INVALID);
    }
}
END_TEST

/* The smallest struct has a size and nothing else, the largest 64 KiB. */
START_TEST(sizes_at_both_ends_are_taken)
{
    static union {
        struct cz_sample known;
        unsigned char bytes[(1 << 16) + 1];
    } theirs;
    const struct cz_sample full = {0, 1, 2, 3};
    struct cz_sample ours;
    memset(&ours, 0xff, sizeof ours);
    theirs.known = (struct cz_sample){sizeof(size_t), 1, 2, 3};
    ck_ok(OPTIONS_TAKE(cz_sample, &ours, &theirs.known));
    ck_assert_int_eq(ours.a, 0);
    ck_assert_int_eq(ours.c, 0);
    theirs.known.a = 9;
    ck_ok(OPTIONS_GIVE(cz_sample, &theirs.known, &full));
    ck_assert_int_eq(theirs.known.a, 9);
    theirs.known.size = 1 << 16;
    ck_ok(OPTIONS_TAKE(cz_sample, &ours, &theirs.known));
    ck_assert_int_eq(ours.c, 3);
    ck_ok(OPTIONS_GIVE(cz_sample, &theirs.known, &full));
    ck_assert_int_eq(theirs.known.a, 1);
    theirs.bytes[1 << 16] = 1; /* beyond the struct: not looked at */
    ck_ok(OPTIONS_TAKE(cz_sample, &ours, &theirs.known));
    theirs.bytes[(1 << 16) - 1] = 1;
    ck_fails(OPTIONS_TAKE(cz_sample, &ours, &theirs.known), CZ_UNSUPPORTED);
    ck_assert_str_eq(cz_last_error(),
                     "struct cz_sample has 65536 bytes, and this version of czero knows 24: the "
                     "program was compiled for a newer one");
}
END_TEST

START_TEST(results_are_written_as_far_as_the_caller_knows_them)
{
    const struct cz_sample ours = {0, 1, 2, 3};
    struct {
        struct older theirs;
        unsigned char guard[8];
    } small;
    memset(&small, 0xee, sizeof small);
    small.theirs.size = sizeof small.theirs;
    ck_ok(OPTIONS_GIVE(cz_sample, &small.theirs, &ours));
    ck_assert_int_eq(small.theirs.a, 1);
    ck_assert_int_eq(small.theirs.b, 2);
    ck_assert_uint_eq(small.theirs.size, sizeof small.theirs);
    for (size_t i = 0; i < sizeof small.guard; i++) ck_assert_uint_eq(small.guard[i], 0xee);

    struct newer large = {.known = {.size = sizeof large}, .d = 7};
    ck_ok(OPTIONS_GIVE(cz_sample, &large, &ours));
    ck_assert_int_eq(large.known.c, 3);
    ck_assert_uint_eq(large.known.size, sizeof large);
    ck_assert_int_eq(large.d, 7); /* the caller's default stays */
}
END_TEST

TEST_MAIN("base/options", an_older_struct_is_completed_with_zeros, no_struct_means_all_defaults,
          a_newer_struct_may_ask_for_nothing_new, a_size_that_was_not_set_is_named,
          sizes_at_both_ends_are_taken, results_are_written_as_far_as_the_caller_knows_them)

/* What every Check program here shares: main(), fixtures, temporary folders.
 *
 * Use: define test cases with START_TEST, then
 *     TEST_MAIN("module/thing", case_a, case_b, …)
 * or, where a case takes more than about seven seconds, TEST_MAIN_SECONDS(limit, "module/thing",
 * …): a case that has not ended after that, by default 60 s, has failed (cmake/CzeroTargets.cmake).
 * A case that leaves more descriptors open than it found has failed.
 * A test that lacks something it needs prints what and returns TEST_SKIPPED from its main. */
#ifndef CZ_TESTS_CHECK_MAIN_H
#define CZ_TESTS_CHECK_MAIN_H

#include "base/status.h"
#include "tests/support/descriptors.h"

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEST_SKIPPED 77

/* Check writes the place of every assertion that holds into a file, for what it says of a case that
 * crashes: a system call each, of which some tests made a million. Here a place is written when it
 * is passed for the first, second, fourth, eighth … time. */
static bool test_is_marking; /* Check allocates then */
static inline void test_mark(const char *file, int line)
{
    static uint32_t n_passed[4096];
    uint32_t n = ++n_passed[((uintptr_t)file + (unsigned)line) % 4096];
    if ((n & (n - 1)) != 0) return;
    test_is_marking = true;
    _mark_point(file, line);
    test_is_marking = false;
}
#define _mark_point(file, line) test_mark(file, line)

/* Fail with czero's own sentence when an expression does not return CZ_OK. */
#define ck_ok(expr)                                                                                \
    do {                                                                                           \
        cz_status ck_st_ = (expr);                                                                 \
        ck_assert_msg(ck_st_ == CZ_OK, "%s: %s (%s)", #expr, cz_last_error(), cz_last_trace());    \
    } while (0)

/* The expression must fail with `want`. */
#define ck_fails(expr, want)                                                                       \
    do {                                                                                           \
        cz_status ck_st_ = (expr);                                                                 \
        ck_assert_msg(ck_st_ == (want), "%s: %s instead of %s (%s)", #expr,                        \
                      cz_status_name(ck_st_), cz_status_name(want), cz_last_error());              \
    } while (0)

/* The build folder: that of this build, or the one that the programs were moved to
 * (scripts/gpu_check.sh runs programs that were built on another machine). */
static inline const char *test_build(void)
{
    const char *moved_to = getenv("CZERO_TEST_BUILD");
    return moved_to ? moved_to : CZ_BINARY_DIR;
}

/* Path of a file or folder of the fixtures (tests/fixtures/README.md), which the build unpacks. The
 * text lasts for three more calls: four buffers take turns. */
static inline const char *test_fixture(const char *relative)
{
    static char paths[4][1024];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/fixtures/%s", test_build(), relative);
    return path;
}

/* A fresh temporary folder; the caller removes what it puts there (test_tmp_remove). */
static inline const char *test_tmp_make(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/czero-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
    return path;
}

/* The same in memory where the system has such a file system: for many files that are synced. */
static inline const char *test_tmp_make_fast(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/dev/shm/czero-test-XXXXXX");
    return access("/dev/shm", W_OK) == 0 && mkdtemp(path) ? path : test_tmp_make();
}

static inline void test_tmp_remove(const char *dir)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

/* Each case can be run alone: CK_RUN_CASE=its_name. seconds 0: the default limit. */
static inline int test_run_within(int seconds, const char *name, const TTest *const *cases,
                                  int n_cases)
{
    Suite *suite = suite_create(name);
    for (int i = 0; i < n_cases; i++) {
        TCase *tcase = tcase_create(cases[i]->name);
        tcase_add_test(tcase, cases[i]);
        tcase_add_checked_fixture(tcase, descriptors_begin, descriptors_end);
        if (seconds > 0) tcase_set_timeout(tcase, seconds);
        suite_add_tcase(suite, tcase);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static inline int test_run(const char *name, const TTest *const *cases, int n_cases)
{
    return test_run_within(0, name, cases, n_cases);
}

#define TEST_MAIN(name, ...) TEST_MAIN_SECONDS(0, name, __VA_ARGS__)

#define TEST_MAIN_SECONDS(seconds, name, ...)                                                      \
    int main(void)                                                                                 \
    {                                                                                              \
        const TTest *const cases[] = {__VA_ARGS__};                                                \
        return test_run_within(seconds, name, cases, (int)(sizeof cases / sizeof cases[0]));       \
    }

#endif

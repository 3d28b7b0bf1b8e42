/* Claim: whatever call fails, or whenever the process is killed, a durable file is either wholly
 * new or wholly old under its name; a failure is reported with the path and the reason, and leaves
 * nothing behind; short writes are continued. */
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include "tests/support/faults.h"

#include <dirent.h>
#include <string.h>
#include <sys/wait.h>

enum { N = 300000 };

static unsigned char content[N];

static cz_status save(const char *path)
{
    struct file_durable f;
    TRY(file_durable_create(&f, path, N));
    cz_status st = file_durable_pwrite(&f, content, N / 2, 0);
    if (st == CZ_OK) st = file_durable_pwrite(&f, content + N / 2, N - N / 2, N / 2);
    if (st == CZ_OK) return file_durable_commit(&f);
    file_durable_abort(&f);
    return st;
}

static bool holds(const char *path, const void *want, size_t nbytes)
{
    char *got;
    size_t n;
    ck_ok(file_load(path, (size_t)1 << 30, &got, &n));
    bool same = n == nbytes && memcmp(got, want, nbytes) == 0;
    free(got);
    return same;
}

static int n_entries(const char *dir)
{
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    int n = -2; /* "." and ".." */
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static char *start(const char *dir)
{
    char *path = file_join(dir, "file");
    for (size_t i = 0; i < N; i++) content[i] = (unsigned char)(i * 2654435761u >> 13);
    faults_clear();
    ck_ok(file_save(path, "old", 3));
    return path;
}

START_TEST(every_failing_call_is_survived)
{
    const char *dir = test_tmp_make();
    char *path = start(dir);
    faults_clear();
    ck_ok(save(path));
    long n_moments = faults_count(FAULT_ANY);
    ck_assert_int_ge(n_moments, 6);
    for (long moment = 0; moment < n_moments; moment++) {
        faults_clear();
        ck_ok(file_save(path, "old", 3));
        faults_clear();
        faults_plan(FAULT_ANY, moment, moment % 2 ? EIO : ENOSPC);
        cz_status st = save(path);
        faults_clear();
        if (st == CZ_OK)
            ck_assert(holds(path, content, N)); /* a stray unlink that was not needed */
        else {
            ck_assert_int_eq(st, CZ_IO);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), dir));
            ck_assert_ptr_nonnull(strstr(cz_last_error(), strerror(moment % 2 ? EIO : ENOSPC)));
            ck_assert(holds(path, "old", 3) || holds(path, content, N));
        }
        ck_assert_int_eq(n_entries(dir), 1);
    }
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(every_moment_of_a_kill_is_survived)
{
    const char *dir = test_tmp_make();
    char *path = start(dir);
    faults_clear();
    ck_ok(save(path));
    long n_moments = faults_count(FAULT_ANY);
    for (long moment = 0; moment < n_moments; moment++) {
        int status;
        faults_clear();
        ck_ok(file_save(path, "old", 3));
        pid_t child = fork();
        if (child == 0) {
            faults_plan(FAULT_ANY, moment, FAULT_KILL);
            _exit(save(path) == CZ_OK ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status));
        ck_assert(holds(path, "old", 3) || holds(path, content, N));
    }
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(short_writes_are_continued)
{
    const char *dir = test_tmp_make();
    char *path = start(dir);
    for (uint32_t seed = 0; seed < 20; seed++) {
        faults_clear();
        ck_ok(file_save(path, "old", 3));
        faults_short_writes(seed * 77);
        ck_ok(save(path));
        ck_assert(holds(path, content, N));
    }
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_disk_that_fills_up_is_reported)
{
    const char *dir = test_tmp_make();
    char *path = start(dir);
    for (long long room = 0; room < N; room += 9973) {
        faults_clear();
        faults_disk_full(room);
        ck_fails(save(path), CZ_IO);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), strerror(ENOSPC)));
        ck_assert(holds(path, "old", 3));
        ck_assert_int_eq(n_entries(dir), 1);
    }
    free(path);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/file_faults", every_failing_call_is_survived, every_moment_of_a_kill_is_survived,
          short_writes_are_continued, a_disk_that_fills_up_is_reported)

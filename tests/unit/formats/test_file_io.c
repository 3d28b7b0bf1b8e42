/* Claim: a durable file has the bytes that were written whatever their size, place and memory
 * alignment; it appears under its name only by the commit; an abort, and a killed process, leave
 * the folder as it was. */
#include "base/host/process_mark.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_NBYTES = 3 << 20 };

static int n_entries(const char *dir)
{
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    int n = -2; /* "." and ".." */
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void fill(unsigned char *bytes, size_t nbytes, unsigned seed)
{
    for (size_t i = 0; i < nbytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(seed >> 24);
    }
}

static void expect_content(const char *path, const unsigned char *want, size_t nbytes)
{
    char *got;
    size_t n;
    ck_ok(file_load(path, (size_t)1 << 30, &got, &n));
    ck_assert_uint_eq(n, nbytes);
    ck_assert_int_eq(memcmp(got, want, nbytes), 0);
    free(got);
}

/* The whole file as pieces of `piece` bytes, last first, from memory at `skew` bytes after an
 * aligned address for the first one. */
static void write_in_pieces(const char *dir, size_t piece, size_t skew)
{
    struct file_durable f;
    void *memory;
    ck_assert_int_eq(posix_memalign(&memory, FILE_DIRECT_ALIGN, FILE_NBYTES + FILE_DIRECT_ALIGN),
                     0);
    unsigned char *bytes = (unsigned char *)memory + skew;
    char *path = file_join(dir, "pieces");
    fill(bytes, FILE_NBYTES, (unsigned)(piece + skew));
    ck_ok(file_durable_create(&f, path, FILE_NBYTES));
    for (size_t i = (FILE_NBYTES + piece - 1) / piece; i-- > 0;) {
        size_t off = i * piece, n = FILE_NBYTES - off < piece ? FILE_NBYTES - off : piece;
        ck_ok(file_durable_pwrite(&f, bytes + off, n, off));
    }
    ck_ok(file_durable_commit(&f));
    expect_content(path, bytes, FILE_NBYTES);
    free(path);
    free(memory);
}

static void write_once(void *user)
{
    for (int end = 0; end < 2; end++) {
        struct file_durable f;
        ck_ok(file_durable_create(&f, user, 10));
        ck_ok(file_durable_pwrite(&f, "0123456789", 10, 0));
        if (end == 0) ck_ok(file_durable_commit(&f));
        if (end == 1) file_durable_abort(&f);
    }
}

START_TEST(no_descriptor_stays_open)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    descriptors_stay(write_once, path);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(pieces_of_any_size_and_alignment_are_written)
{
    static const size_t pieces[] = {FILE_NBYTES, 1 << 20, 65536, 65535, 100000, 70001, 4096 * 20};
    static const size_t skews[] = {0, 1, 64, 4095};
    const char *dir = test_tmp_make();
    for (size_t p = 0; p < CZ_ARRAY_LEN(pieces); p++)
        for (size_t s = 0; s < CZ_ARRAY_LEN(skews); s++) write_in_pieces(dir, pieces[p], skews[s]);
    ck_assert_int_eq(n_entries(dir), 1);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(old_content_stays_until_the_commit)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    struct file_durable f;
    unsigned char *bytes = malloc(FILE_NBYTES);
    ck_assert_ptr_nonnull(bytes);
    fill(bytes, FILE_NBYTES, 3);
    ck_ok(file_save(path, "old", 3));
    ck_ok(file_durable_create(&f, path, FILE_NBYTES));
    ck_ok(file_durable_pwrite(&f, bytes, FILE_NBYTES, 0));
    ck_ok(file_durable_sync(&f));
    expect_content(path, (const unsigned char *)"old", 3);
    ck_ok(file_durable_rename(&f));
    expect_content(path, bytes, FILE_NBYTES);
    file_durable_abort(&f);
    expect_content(path, bytes, FILE_NBYTES);
    ck_ok(file_durable_create(&f, path, FILE_NBYTES));
    file_durable_abort(&f);
    file_durable_abort(&f);
    expect_content(path, bytes, FILE_NBYTES);
    ck_assert_int_eq(n_entries(dir), 1);
    free(bytes);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_killed_process_leaves_nothing)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    struct file_durable f;
    ck_ok(file_durable_create(&f, path, 4096));
    const bool unnamed = f.unnamed;
    file_durable_abort(&f);
    pid_t child = fork();
    if (child == 0) {
        if (file_durable_create(&f, path, 1 << 20) == CZ_OK) kill(getpid(), SIGKILL);
        _exit(1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    if (unnamed) ck_assert_int_eq(n_entries(dir), 0);
    ck_assert(!file_exists(path));
    free(path);
    test_tmp_remove(dir);
}
END_TEST

static bool is_there(const char *dir, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return file_exists(path);
}

/* Killed between a name and the rename, as config.json.tmpMARK; also by a relative path. A process
 * that runs, and other files, are let be. */
START_TEST(leftovers_of_killed_processes_go_with_the_next_file)
{
    const char *dir = test_tmp_make();
    char mark[PROCESS_MARK_NBYTES], names[5][128], path[512];
    int pipe_fds[2];
    ck_assert_int_eq(pipe(pipe_fds), 0);
    const pid_t child = fork();
    if (child == 0) {
        process_mark(mark);
        if (write(pipe_fds[1], mark, sizeof mark) < 0) _exit(1);
        pause();
    }
    ck_assert_int_eq(read(pipe_fds[0], mark, sizeof mark), sizeof mark);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    (void)snprintf(names[0], sizeof names[0], "config.json.tmp%s", mark);
    char *last = mark + strlen(mark) - 1; /* another start of that process */
    *last = *last == '0' ? '1' : '0';
    (void)snprintf(names[1], sizeof names[1], "config.json.tmp%s", mark);
    (void)snprintf(names[2], sizeof names[2], "config.jso.tmp%s", mark);
    (void)snprintf(names[3], sizeof names[3], "my-config.json.tmp%s", mark);
    (void)snprintf(names[4], sizeof names[4], "config.json.tmpx");
    ck_assert_int_eq(chdir(dir), 0);
    for (int is_relative = 0; is_relative < 2; is_relative++) {
        for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
            FILE *f = fopen(names[i], "w");
            ck_assert_ptr_nonnull(f);
            fclose(f);
        }
        (void)snprintf(path, sizeof path, "%s%sconfig.json", is_relative ? "" : dir,
                       is_relative ? "" : "/");
        ck_ok(file_save(path, "{}", 2));
        ck_assert(is_there(dir, "config.json"));
        for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
            ck_assert_msg(is_there(dir, names[i]) == (i != 1), "%s", names[i]);
    }
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error)
{
    struct file_durable f;
    ck_fails(file_durable_create(&f, "/nonexistent-czero/file", 10), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "/nonexistent-czero/file"));
    file_durable_abort(&f);
}
END_TEST

TEST_MAIN("formats/file_io", no_descriptor_stays_open, pieces_of_any_size_and_alignment_are_written,
          old_content_stays_until_the_commit, a_killed_process_leaves_nothing,
          leftovers_of_killed_processes_go_with_the_next_file,
          a_folder_that_is_not_there_is_an_error)

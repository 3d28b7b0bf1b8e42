/* Claims: one process at a time has a folder, the other one is told which; the lock ends with its
 * process and leaves nothing, neither its file nor a folder that it made; text that others wrote
 * into the file decides nothing where the kernel's lock is free. */
#include "tests/support/check_main.h"

#include "base/host/process_mark.h"
#include "formats/file_io.h"
#include "formats/folder_lock.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char dir[64], inner[128], file[256];

static void setup(void)
{
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    snprintf(inner, sizeof inner, "%s/new", dir);
    snprintf(file, sizeof file, "%s/" FOLDER_LOCK_NAME, inner);
}

/* What another process gets; with `words` in its sentence. */
static cz_status take_elsewhere(const char *words)
{
    const pid_t pid = fork();
    if (pid == 0) {
        struct folder_lock lock;
        const cz_status st = folder_lock_take(&lock, inner);
        const bool said = st == CZ_OK || strstr(cz_last_error(), words);
        _exit(said ? -(int)st : 99); /* without a release, as a killed process */
    }
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return (cz_status)-WEXITSTATUS(status);
}

START_TEST(what_is_no_file_is_no_lock)
{
    struct folder_lock lock;
    setup();
    ck_assert_int_eq(mkdir(inner, 0777), 0);
    ck_assert_int_eq(mkfifo(file, 0600), 0);
    ck_fails(folder_lock_take(&lock, inner), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), FOLDER_LOCK_NAME ": is not a file"));
    folder_lock_release(&lock);
    ck_assert_int_eq(unlink(file), 0);
    ck_ok(folder_lock_take(&lock, inner));
    folder_lock_release(&lock);
    test_tmp_remove(dir);
}
END_TEST

/* A path that cannot be made absolute is the folder's fault, not memory's. */
START_TEST(a_working_folder_that_is_gone_is_told)
{
    struct folder_lock lock;
    char old[PATH_MAX], *path;
    setup();
    ck_assert_ptr_nonnull(getcwd(old, sizeof old));
    ck_assert_int_eq(mkdir(inner, 0777), 0);
    ck_assert_int_eq(chdir(inner), 0);
    ck_assert_int_eq(rmdir(inner), 0);
    ck_fails(file_absolute("run", &path), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "run: the working folder cannot be found"));
    ck_assert_ptr_null(path);
    ck_fails(folder_lock_take(&lock, "."), CZ_IO);
    folder_lock_release(&lock);
    ck_ok(file_absolute("/run", &path));
    ck_assert_str_eq(path, "/run");
    free(path);
    ck_assert_int_eq(chdir(dir), 0);
    ck_ok(file_absolute("run", &path));
    ck_assert_int_eq(strncmp(path, dir, strlen(dir)), 0);
    ck_assert_str_eq(path + strlen(dir), "/run");
    free(path);
    ck_assert_int_eq(chdir(old), 0);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(one_process_has_a_folder)
{
    struct folder_lock lock, again;
    char words[64];
    setup();
    snprintf(words, sizeof words, "is in use by process %d on ", (int)getpid());
    ck_ok(folder_lock_take(&lock, inner));
    ck_assert_int_eq(take_elsewhere(words), CZ_BUSY);
    ck_fails(folder_lock_take(&again, inner), CZ_BUSY);
    folder_lock_release(&again);
    ck_assert_int_eq(access(file, F_OK), 0);
    folder_lock_release(&lock);
    folder_lock_release(&lock);
    ck_assert_int_ne(access(inner, F_OK), 0); /* it made the folder, and nothing is in it */
    ck_assert_int_eq(take_elsewhere(""), CZ_OK);
    ck_assert_int_eq(access(file, F_OK), 0);
    ck_ok(folder_lock_take(&lock, inner)); /* that process is gone */
    ck_assert_int_eq(take_elsewhere(words), CZ_BUSY);
    folder_lock_release(&lock);
    ck_assert_int_eq(access(inner, F_OK), 0); /* it was there */
    ck_assert_int_ne(access(file, F_OK), 0);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(text_alone_is_no_lock)
{
    static const char *const texts[] = {"", "x", "no mark\n", "no mark\nprocess 1 on x\n",
                                        "0000000100000002deadbeef-1-2\nprocess 1 on elsewhere\n"};
    struct folder_lock lock;
    char text[256];
    setup();
    ck_assert_int_eq(mkdir(inner, 0700), 0);
    for (size_t i = 0; i <= sizeof texts / sizeof *texts; i++) {
        process_mark(text);
        snprintf(text + strlen(text), 64, "\nprocess %d on here\n", (int)getpid());
        if (i < sizeof texts / sizeof *texts) snprintf(text, sizeof text, "%s", texts[i]);
        ck_ok(file_save(file, text, strlen(text)));
        ck_assert_int_eq(take_elsewhere(""), CZ_OK);
        ck_ok(folder_lock_take(&lock, inner));
        folder_lock_release(&lock);
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_cannot_be_taken_is_an_error)
{
    struct folder_lock lock;
    setup();
    ck_ok(file_save(inner, "x", 1));
    ck_fails(folder_lock_take(&lock, inner), CZ_IO);
    folder_lock_release(&lock);
    ck_assert_int_eq(unlink(inner), 0);
    ck_assert_int_eq(mkdir(inner, 0700), 0);
    ck_assert_int_eq(symlink("/dev/null", file), 0);
    ck_fails(folder_lock_take(&lock, inner), CZ_INVALID);
    ck_assert_int_eq(unlink(file), 0);
    test_tmp_remove(dir);
}
END_TEST

/* A relative path stays the same folder when the process goes elsewhere. */
START_TEST(the_folder_is_that_of_the_call)
{
    struct folder_lock lock;
    setup();
    ck_assert_int_eq(chdir(dir), 0);
    ck_ok(folder_lock_take(&lock, "new"));
    ck_assert_int_eq(chdir("/"), 0);
    folder_lock_release(&lock);
    ck_assert_int_ne(access(inner, F_OK), 0);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/folder_lock", what_is_no_file_is_no_lock, a_working_folder_that_is_gone_is_told,
          one_process_has_a_folder, text_alone_is_no_lock, what_cannot_be_taken_is_an_error,
          the_folder_is_that_of_the_call)

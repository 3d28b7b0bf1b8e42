/* Claims: one process at a time has a folder, the other one is told which; the lock ends with its
 * process and leaves nothing, neither its file nor a folder that it made; text that others wrote
 * into the file decides nothing where the kernel's lock is free. */
#include "tests/support/check_main.h"

#include "base/host/process_mark.h"
#include "formats/file_io.h"
#include "formats/folder_lock.h"

#include <limits.h>
#include <string.h>
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
    ck_fails(folder_lock_take(&lock, inner), CZ_IO);
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

TEST_MAIN("formats/folder_lock", one_process_has_a_folder, text_alone_is_no_lock,
          what_cannot_be_taken_is_an_error, the_folder_is_that_of_the_call)

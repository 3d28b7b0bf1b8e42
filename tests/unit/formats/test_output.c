/* Claim: nothing is written outside of the folder that the user named: below it no link is
 * followed, at whatever place of the way and also when it is put there meanwhile; a link where a
 * file is written is replaced. */
#include "base/host/process_mark.h"
#include "formats/file_io.h"
#include "formats/output.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

/* tmp/run is the user's folder, tmp/victim another one, with "file" in it. */
static const char *tmp;
static struct out_folder run;

static const char *in(const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ & 3];
    ck_assert_int_lt(snprintf(path, sizeof paths[0], "%s/%s", tmp, name), (int)sizeof paths[0]);
    return path;
}

static void begin(void)
{
    tmp = test_tmp_make();
    ck_assert_int_eq(mkdir(in("victim"), 0777), 0);
    ck_ok(file_save(in("victim/file"), "mine", 4));
    ck_ok(out_folder_open(in("run"), &run));
}

static void end(void)
{
    out_folder_close(&run);
    test_tmp_remove(tmp);
}

static size_t n_entries(const char *dir)
{
    size_t n = 0;
    DIR *list = opendir(dir);
    ck_assert_ptr_nonnull(list);
    while (readdir(list)) n++;
    closedir(list);
    return n - 2;
}

static void check_text(const char *path, const char *text)
{
    char *found;
    ck_ok(file_load(path, 100, &found, NULL));
    ck_assert_str_eq(found, text);
    free(found);
}

static void check_victim(void)
{
    ck_assert_uint_eq(n_entries(in("victim")), 1);
    check_text(in("victim/file"), "mine");
}

static bool is_link(const char *path)
{
    struct stat info;
    ck_assert_int_eq(lstat(path, &info), 0);
    return S_ISLNK(info.st_mode);
}

START_TEST(the_users_path_may_go_through_links)
{
    struct out_folder f;
    begin();
    ck_assert_int_eq(symlink("run", in("link")), 0);
    ck_ok(out_folder_open(in("link/new/folder//"), &f));
    ck_ok(file_save_in(&f, "x", "1", 1));
    check_text(in("run/new/folder/x"), "1");
    ck_assert(f.is_made);
    out_folder_close(&f);
    ck_ok(out_folder_open(in("link"), &f));
    ck_assert(!f.is_made);
    out_folder_close(&f);
    out_folder_close(&f); /* a closed one */
    ck_assert_int_eq(symlink("nowhere", in("dangling")), 0);
    ck_fails(out_folder_open(in("dangling"), &f), CZ_IO);
    ck_fails(out_folder_open(in("victim/file"), &f), CZ_IO);
    ck_assert_ptr_null(f.path);
    ck_assert_int_eq(chdir(in("run")), 0);
    ck_ok(out_folder_open("", &f));
    ck_ok(file_save_in(&f, "here", "2", 1));
    check_text(in("run/here"), "2");
    out_folder_close(&f);
    end();
}
END_TEST

START_TEST(folders_below_are_made_or_opened)
{
    struct out_folder f, again;
    begin();
    ck_fails(out_folder_below(&run, "a", false, &f), CZ_NOTFOUND);
    ck_assert_ptr_null(f.path);
    ck_ok(out_folder_below(&run, "a//b/c/", true, &f));
    ck_assert(f.is_made);
    ck_assert_str_eq(f.path, in("run/a/b/c"));
    ck_ok(file_save_in(&f, "x", "1", 1));
    check_text(in("run/a/b/c/x"), "1");
    ck_ok(out_folder_below(&run, "a/b/c", false, &again));
    ck_assert(!again.is_made);
    ck_ok(out_folder_sync(&again));
    out_folder_close(&again);
    ck_ok(out_folder_below(&run, "a/b", true, &again));
    ck_assert(!again.is_made);
    out_folder_close(&again);
    ck_fails(out_folder_below(&f, "y/z", false, &again), CZ_NOTFOUND);
    out_folder_close(&f);
    end();
}
END_TEST

START_TEST(names_of_255_bytes_are_the_longest)
{
    struct out_folder f;
    char name[300];
    begin();
    memset(name, 'n', sizeof name);
    name[255] = '\0';
    ck_ok(out_folder_below(&run, name, true, &f));
    out_folder_close(&f);
    name[255] = 'n';
    name[256] = '\0';
    ck_fails(out_folder_below(&run, name, true, &f), CZ_INVALID);
    ck_assert_ptr_null(f.path);
    end();
}
END_TEST

START_TEST(links_and_other_things_are_no_folders)
{
    static const char *const targets[] = {"../victim", "/", "elsewhere", "inside", "."};
    struct out_folder f;
    begin();
    ck_assert_int_eq(mkdir(in("run/inside"), 0777), 0);
    for (size_t i = 0; i < CZ_ARRAY_LEN(targets); i++) {
        ck_assert_int_eq(symlink(targets[i], in("run/model")), 0);
        for (int make = 0; make < 2; make++) {
            ck_fails(out_folder_below(&run, "model", make, &f), CZ_INVALID);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), "run/model: is a link"));
            ck_fails(out_folder_below(&run, "model/deeper", make, &f), CZ_INVALID);
            ck_fails(out_folder_below(&run, "inside/../model", make, &f), CZ_INVALID);
        }
        ck_assert_int_eq(unlink(in("run/model")), 0);
    }
    ck_assert_int_eq(symlink("../../victim", in("run/inside/model")), 0);
    ck_fails(out_folder_below(&run, "inside/model", true, &f), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "run/inside/model: is a link"));
    ck_ok(file_save(in("run/model"), "", 0));
    ck_fails(out_folder_below(&run, "model", true, &f), CZ_INVALID);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "is not a folder"));
    ck_assert_int_eq(unlink(in("run/model")), 0);
    ck_assert_int_eq(mkfifo(in("run/model"), 0666), 0);
    ck_fails(out_folder_below(&run, "model", true, &f), CZ_INVALID);
    ck_assert_ptr_null(f.path);
    check_victim();
    ck_assert_int_ne(access(in("run/elsewhere"), F_OK), 0);
    end();
}
END_TEST

START_TEST(names_that_lead_out_are_refused)
{
    static const char *const names[] = {"",  "..",  "../victim", "a/..", "a/../../victim",
                                        "/", "/tmp"};
    struct out_folder f;
    begin();
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        ck_fails(out_folder_below(&run, names[i], true, &f), CZ_INVALID);
        ck_assert_ptr_null(f.path);
    }
    check_victim();
    end();
}
END_TEST

START_TEST(a_file_replaces_what_has_its_name)
{
    static const char *const targets[] = {"../victim/file", "../victim/new", "/nowhere/x", "."};
    begin();
    for (size_t i = 0; i < CZ_ARRAY_LEN(targets); i++) {
        ck_assert_int_eq(symlink(targets[i], in("run/x")), 0);
        ck_ok(file_save_in(&run, "x", "1", 1));
        ck_assert(!is_link(in("run/x")));
        check_text(in("run/x"), "1");
        ck_assert_int_eq(unlink(in("run/x")), 0);
        ck_assert_int_eq(symlink(targets[i], in("run/x")), 0);
        ck_ok(file_save(in("run/x"), "2", 1)); /* by its path */
        ck_assert(!is_link(in("run/x")));
        ck_assert_int_eq(unlink(in("run/x")), 0);
    }
    ck_assert_int_eq(mkfifo(in("run/x"), 0666), 0);
    ck_ok(file_save_in(&run, "x", "3", 1));
    check_text(in("run/x"), "3");
    ck_assert_int_eq(unlink(in("run/x")), 0);
    ck_assert_int_eq(mkdir(in("run/x"), 0777), 0);
    ck_fails(file_save_in(&run, "x", "4", 1), CZ_IO);
    ck_assert_uint_eq(n_entries(in("run")), 1); /* no temporary file */
    check_victim();
    end();
}
END_TEST

START_TEST(a_link_at_the_temporary_name_is_not_followed)
{
    struct file_durable f;
    char temp[300];
    begin();
    ck_ok(file_durable_create_in(&f, &run, "x", 0));
    snprintf(temp, sizeof temp, "run/%s", f.temp);
    unlink(in(temp));
    ck_assert_int_eq(symlink("../victim/file", in(temp)), 0);
    if (f.unnamed) ck_ok(file_durable_commit(&f));
    file_durable_abort(&f);
    check_victim();
    end();
}
END_TEST

START_TEST(what_is_opened_is_written_whatever_has_its_name)
{
    struct out_folder f;
    struct file_durable file;
    begin();
    ck_ok(out_folder_below(&run, "model", true, &f));
    ck_ok(file_durable_create_in(&file, &f, "file", 0));
    ck_ok(file_pwrite(file.fd, file.path, "new", 3, 0));
    ck_assert_int_eq(rename(in("run/model"), in("run/moved")), 0);
    ck_assert_int_eq(symlink("../victim", in("run/model")), 0);
    ck_ok(file_durable_commit(&file));
    ck_ok(file_save_in(&f, "second", "2", 1));
    check_text(in("run/moved/file"), "new");
    check_text(in("run/moved/second"), "2");
    ck_ok(out_remove(&f, "file"));
    out_folder_close(&f);
    check_victim();
    end();
}
END_TEST

static atomic_bool swap_on;

static void *swap_all_the_time(void *dir)
{
    char model[512], kept[512];
    snprintf(model, sizeof model, "%s/run/model", (const char *)dir);
    snprintf(kept, sizeof kept, "%s/run/kept", (const char *)dir);
    while (atomic_load(&swap_on)) {
        rename(model, kept);
        if (symlink("../victim", model) == 0) unlink(model);
        rename(kept, model);
    }
    return NULL;
}

START_TEST(a_link_that_comes_and_goes_is_never_followed)
{
    pthread_t thread;
    struct out_folder f;
    int n_written = 0;
    begin();
    ck_assert_int_eq(mkdir(in("run/model"), 0777), 0);
    atomic_store(&swap_on, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, swap_all_the_time, (void *)tmp), 0);
    for (int i = 0; i < 2000; i++) {
        if (out_folder_below(&run, "model", false, &f) == CZ_OK) {
            int fd;
            n_written += file_save_in(&f, "file", "theirs", 6) == CZ_OK;
            if (out_open(&f, "more", O_WRONLY, &fd) == CZ_OK) close(fd);
            out_folder_close(&f);
        }
        err_clear();
    }
    atomic_store(&swap_on, false);
    pthread_join(thread, NULL);
    ck_assert_int_gt(n_written, 0);
    check_victim();
    end();
}
END_TEST

START_TEST(a_continued_file_is_no_link)
{
    static const char *const targets[] = {"../victim/file", "../victim/new", "inner"};
    int fd;
    begin();
    ck_ok(out_open(&run, "x", O_WRONLY, &fd));
    ck_ok(file_pwrite(fd, "x", "abc", 3, 0));
    close(fd);
    ck_ok(out_open(&run, "x", O_RDWR, &fd));
    ck_ok(file_pwrite(fd, "x", "d", 1, 3));
    close(fd);
    check_text(in("run/x"), "abcd");
    ck_fails(out_open(&run, "x", O_WRONLY | O_EXCL, &fd), CZ_IO);
    ck_assert_int_eq(fd, -1);
    for (size_t i = 0; i < CZ_ARRAY_LEN(targets); i++) {
        ck_assert_int_eq(symlink(targets[i], in("run/y")), 0);
        ck_fails(out_open(&run, "y", O_WRONLY, &fd), CZ_INVALID);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "run/y: is a link"));
        ck_ok(out_remove(&run, "y"));
    }
    ck_assert_int_eq(mkfifo(in("run/y"), 0666), 0);
    ck_fails(out_open(&run, "y", O_WRONLY, &fd), CZ_INVALID); /* without waiting for a reader */
    ck_fails(out_open(&run, "y", O_RDWR, &fd), CZ_INVALID);
    ck_ok(out_remove(&run, "y"));
    ck_assert_int_eq(mkdir(in("run/y"), 0777), 0);
    ck_fails(out_open(&run, "y", O_WRONLY, &fd), CZ_INVALID);
    ck_assert_int_eq(fd, -1);
    check_victim();
    end();
}
END_TEST

START_TEST(removing_takes_the_link_and_not_its_target)
{
    begin();
    ck_assert_int_eq(symlink("../victim/file", in("run/x")), 0);
    ck_assert(out_is_there(&run, "x"));
    ck_ok(out_remove(&run, "x"));
    ck_assert(!out_is_there(&run, "x"));
    ck_ok(out_remove(&run, "x"));
    ck_assert_int_eq(symlink("nowhere", in("run/x")), 0);
    ck_assert(out_is_there(&run, "x"));
    ck_assert_int_eq(mkdir(in("run/y"), 0777), 0);
    ck_fails(out_remove(&run, "y"), CZ_IO);
    check_victim();
    end();
}
END_TEST

START_TEST(an_abandoned_folder_goes_if_it_was_made_and_is_empty)
{
    struct out_folder f;
    begin();
    ck_ok(out_folder_open(in("new"), &f));
    out_folder_abandon(&f);
    ck_assert_int_ne(access(in("new"), F_OK), 0);
    ck_ok(out_folder_open(in("new"), &f));
    ck_ok(file_save_in(&f, "x", "", 0));
    out_folder_abandon(&f);
    ck_assert_int_eq(access(in("new/x"), F_OK), 0);
    ck_ok(out_folder_below(&run, "below", true, &f));
    out_folder_abandon(&f);
    ck_assert_int_ne(access(in("run/below"), F_OK), 0);
    ck_assert_int_eq(mkdir(in("run/old"), 0777), 0);
    ck_ok(out_folder_below(&run, "old", true, &f));
    out_folder_abandon(&f);
    ck_ok(out_folder_open(in("run/old"), &f));
    out_folder_abandon(&f);
    ck_assert_int_eq(access(in("run/old"), F_OK), 0);
    end();
}
END_TEST

/* The mark of a process that has ended: this host was started anew since. */
static void ended_mark(char mark[PROCESS_MARK_NBYTES])
{
    process_mark(mark);
    mark[0] = mark[0] == '5' ? '6' : '5';
}

START_TEST(temporaries_of_ended_processes_are_removed)
{
    char mark[PROCESS_MARK_NBYTES], own[PROCESS_MARK_NBYTES], name[200];
    begin();
    ended_mark(mark);
    process_mark(own);
    static const char *const names[] = {"config.json", "config.jso", "aconfig.json"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        snprintf(name, sizeof name, "%s.tmp%s", names[i], mark);
        ck_ok(file_save_in(&run, name, "", 0));
    }
    snprintf(name, sizeof name, "x.tmp%s", own); /* of a process that runs */
    ck_ok(file_save_in(&run, name, "", 0));
    out_remove_left(&run, "x");
    ck_assert(out_is_there(&run, name));
    ck_ok(file_save_in(&run, "y", "", 0));
    ck_ok(file_save_in(&run, "config.json", "", 0));
    snprintf(name, sizeof name, "config.json.tmp%s", mark);
    ck_assert(!out_is_there(&run, name));
    ck_assert_uint_eq(n_entries(in("run")), 5);
    end();
}
END_TEST

START_TEST(a_committed_file_is_taken_back)
{
    struct file_durable f;
    begin();
    ck_ok(file_durable_create_in(&f, &run, "x", 0));
    file_durable_take_back(&f); /* nothing before the rename */
    ck_ok(file_save_in(&run, "x", "old", 3));
    file_durable_take_back(&f);
    check_text(in("run/x"), "old");
    ck_ok(file_durable_rename(&f));
    ck_ok(file_durable_sync_folder(&f));
    check_text(in("run/x"), "");
    file_durable_take_back(&f);
    file_durable_abort(&f);
    ck_assert(!out_is_there(&run, "x"));
    end();
}
END_TEST

TEST_MAIN("formats/output", the_users_path_may_go_through_links, folders_below_are_made_or_opened,
          names_of_255_bytes_are_the_longest, links_and_other_things_are_no_folders,
          names_that_lead_out_are_refused, a_file_replaces_what_has_its_name,
          a_link_at_the_temporary_name_is_not_followed,
          what_is_opened_is_written_whatever_has_its_name,
          a_link_that_comes_and_goes_is_never_followed, a_continued_file_is_no_link,
          removing_takes_the_link_and_not_its_target,
          an_abandoned_folder_goes_if_it_was_made_and_is_empty, a_committed_file_is_taken_back,
          temporaries_of_ended_processes_are_removed)

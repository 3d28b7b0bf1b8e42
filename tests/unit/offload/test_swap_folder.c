/* Claim: nothing that czero made stays in nvme_path: no file, no folder; what a killed run left is
 * recognised and removed by the next run, and no file of a live run ever is. Impossible
 * folders end in one clear sentence with nothing left behind. */
#include "tests/unit/offload/swap_rig.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const struct swap_way way = {SWAP_ENGINE_AUTO, false};
static const char *base;

static const char *below(const char *name)
{
    static char paths[4][PATH_MAX];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", base, name);
    return path;
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static struct swap *open_in(const char *dir)
{
    return swap_rig_open(dir, &way, 64 << 10, 0, 0);
}

/* A run that opens a swap file in `dir` and is then killed, with transfers under way. */
static void killed_run(const char *dir)
{
    int to_parent[2];
    char c;
    ck_assert_int_eq(pipe(to_parent), 0);
    pid_t child = fork();
    if (child == 0) {
        struct swap *s = open_in(dir);
        unsigned char *buf = swap_rig_memory(64 << 10);
        uint64_t ticket;
        for (int i = 0; i < 30; i++) (void)swap_write_begin(s, buf, 0, 64 << 10, &ticket);
        c = 1;
        if (write(to_parent[1], &c, 1) == 1) pause();
        _exit(1);
    }
    close(to_parent[1]);
    ck_assert_int_eq(read(to_parent[0], &c, 1), 1);
    close(to_parent[0]);
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

/* ---- files ------------------------------------------------------------------------------------
 */

START_TEST(leftovers_of_a_killed_run_are_reclaimed)
{
    base = test_tmp_make();
    size_t with, without;
    for (int i = 0; i < 5; i++) {
        killed_run(base);
        ck_assert_int_eq(swap_rig_entries(base), 1);
        ck_ok(swap_dir_free(base, &with));
        ck_assert_int_eq(swap_rig_entries(base), 1);
        struct swap *s = open_in(base);
        ck_assert_int_eq(swap_rig_entries(base), 1);
        ck_ok(swap_dir_free(base, &without));
        swap_close(s);
        ck_assert_int_eq(swap_rig_entries(base), 0);
    }
    ck_assert_uint_gt(with, 0);
    test_tmp_remove(base);
}
END_TEST

START_TEST(live_files_and_other_peoples_files_stay)
{
    static const char *const others[] = {"czero-swap-notes.txt", "czero-swap-rank0-abc",
                                         "czero-swap-rank-0123456789abcdef",
                                         "czero-swap-rank0-0123456789abcdef.gz", "mine"};
    base = test_tmp_make();
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++)
        close(open(below(others[i]), O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(mkdir(below("czero-swap-rank0-00000000000000aa"), 0700), 0);
    ck_assert_int_eq(symlink(below("mine"), below("czero-swap-rank0-00000000000000bb")), 0);
    int n = (int)CZ_ARRAY_LEN(others) + 2;
    struct swap *a = open_in(base), *b = open_in(base);
    ck_assert(exists(swap_path(a)) && exists(swap_path(b)));
    ck_assert_int_eq(swap_rig_entries(base), n + 2);
    ck_ok(swap_write(a, 5, 1, "x"));
    swap_close(a);
    ck_assert_int_eq(swap_rig_entries(base), n + 1);
    swap_close(b);
    ck_assert_int_eq(swap_rig_entries(base), n);
    test_tmp_remove(base);
}
END_TEST

/* Several processes at the same instant, again and again, one of them killed each time. */
static void race(const char *dir, int n_ranks)
{
    int start[2];
    pid_t ranks[8];
    ck_assert_int_eq(pipe(start), 0);
    for (int r = 0; r < n_ranks; r++) {
        ranks[r] = fork();
        if (ranks[r] != 0) continue;
        char c;
        close(start[1]);
        if (read(start[0], &c, 1) != 0) _exit(2); /* until the parent closes its end */
        struct swap *s;
        struct swap_options o = {.dir = dir, .rank = r, .nbytes = 32 << 10};
        if (swap_open(&o, &s) != CZ_OK) _exit(3);
        for (int i = 0; i < 10; i++) {
            if (!exists(swap_path(s))) _exit(4);
            if (swap_write(s, (uint64_t)i * 100, 6, "1234567") != CZ_OK) _exit(5);
        }
        if (r == 0) raise(SIGKILL);
        swap_close(s);
        _exit(0);
    }
    close(start[0]);
    close(start[1]);
    for (int r = 0; r < n_ranks; r++) {
        int status;
        ck_assert_int_eq(waitpid(ranks[r], &status, 0), ranks[r]);
        if (r == 0)
            ck_assert(WIFSIGNALED(status));
        else
            ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: %d", r,
                          WEXITSTATUS(status));
    }
}

START_TEST(ranks_that_start_together_leave_each_other_alone)
{
    base = test_tmp_make_fast();
    for (int i = 0; i < 15; i++) race(below("made/for it"), 2 + i % 4);
    /* The last one killed may have been the last of all: then its folder waits for the next. */
    swap_close(open_in(below("made/for it")));
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

/* Look-alikes that another user put there, or gave a second name, are not this user's leftovers. */
START_TEST(only_this_user_s_files_are_leftovers)
{
    static const char theirs[] = "czero-swap-rank0-0123456701234567";
    static const char linked[] = "czero-swap-rank1-0123456701234567";
    base = test_tmp_make();
    close(open(below(linked), O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(link(below(linked), below("mine")), 0);
    close(open(below(theirs), O_CREAT | O_WRONLY, 0600));
    const bool is_root = geteuid() == 0;
    if (is_root) ck_assert_int_eq(chown(below(theirs), 65534, 65534), 0);
    swap_close(open_in(base));
    ck_assert(exists(below(linked)) && exists(below("mine")));
    ck_assert_int_eq(exists(below(theirs)), is_root);
    test_tmp_remove(base);
}
END_TEST

/* ---- locks ------------------------------------------------------------------------------------
 */

/* Another process, of another user where this is root, that locks `dir` until it is killed. */
static pid_t locked_by_another(const char *dir)
{
    int ready[2];
    char c = 0;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0)) _exit(1);
        int fd = open(dir, O_RDONLY | O_DIRECTORY);
        if (fd < 0 || flock(fd, LOCK_EX) != 0) _exit(1);
        if (write(ready[1], "y", 1) == 1) pause();
        _exit(1);
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &c, 1), 1);
    close(ready[0]);
    return child;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Any user with read access to the folder can lock it; runs wait a moment, once, and then do
 * without. */
START_TEST(a_lock_that_another_user_keeps_stops_no_run)
{
    size_t nbytes;
    base = test_tmp_make();
    ck_assert_int_eq(chmod(base, 0755), 0);
    killed_run(below("made"));
    ck_assert_int_eq(chmod(below("made"), 0755), 0);
    ck_assert_int_eq(swap_rig_entries(below("made")), 2);
    pid_t keeper = locked_by_another(below("made"));
    const double since = seconds();
    ck_ok(swap_dir_free(below("made"), &nbytes));
    struct swap *a = open_in(below("made")), *b = open_in(below("made"));
    struct swap *c = open_in(below("made"));
    ck_assert_int_eq(swap_rig_entries(below("made")), 5); /* the leftover stays */
    ck_ok(swap_write(a, 5, 1, "x"));
    swap_close(a);
    ck_assert_int_eq(swap_rig_entries(below("made")), 4);
    swap_remove_files();
    swap_close(b);
    swap_close(c);
    ck_assert_double_lt(seconds() - since, 2);
    ck_assert_int_eq(swap_rig_entries(below("made")), 2);
    kill(keeper, SIGKILL);
    ck_assert_int_eq(waitpid(keeper, NULL, 0), keeper);
    swap_close(open_in(below("made")));
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

/* ---- folders ----------------------------------------------------------------------------------
 */

/* A mark that is a link, or another user's, says nothing of the folder: it is not czero's. */
START_TEST(folders_with_a_planted_mark_stay)
{
    base = test_tmp_make();
    mkdir(below("x"), 0700);
    mkdir(below("y"), 0700);
    close(open(below("mine"), O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(symlink("../mine", below("x/" SWAP_MARK)), 0);
    close(open(below("y/" SWAP_MARK), O_CREAT | O_WRONLY, 0600));
    const bool is_root = geteuid() == 0;
    if (is_root) ck_assert_int_eq(chown(below("y/" SWAP_MARK), 65534, 65534), 0);
    swap_close(open_in(below("x")));
    swap_close(open_in(below("y")));
    ck_assert(exists(below("x/" SWAP_MARK)) && exists(below("mine")));
    ck_assert_int_eq(exists(below("y/" SWAP_MARK)), is_root);
    test_tmp_remove(base);
}
END_TEST

START_TEST(folders_that_were_made_go)
{
    base = test_tmp_make();
    struct swap *s = open_in(below("a/b//c/"));
    ck_assert(exists(below("a/b/c")));
    swap_close(s);
    ck_assert(!exists(below("a")));
    s = open_in(below("q/../a/./w/"));
    ck_assert(exists(below("a/w")) && !exists(below("q")));
    swap_close(s);
    ck_assert_int_eq(swap_rig_entries(base), 0);
    mkdir(below("a"), 0700);
    s = open_in(below("a/b"));
    swap_close(s);
    ck_assert(exists(below("a")) && !exists(below("a/b")));
    s = open_in(below("a"));
    swap_close(s);
    ck_assert(exists(below("a")));
    test_tmp_remove(base);
}
END_TEST

START_TEST(links_to_folders_are_followed)
{
    base = test_tmp_make();
    mkdir(below("real"), 0700);
    mkdir(below("real/deep"), 0700);
    ck_assert_int_eq(symlink(below("real/deep"), below("link")), 0);
    struct swap *s = open_in(below("link/new"));
    ck_assert(exists(below("real/deep/new")));
    swap_close(s);
    s = open_in(below("link/../new"));
    ck_assert(exists(below("real/new")));
    swap_close(s);
    ck_assert_int_eq(swap_rig_entries(below("real")), 1);
    ck_assert_int_eq(swap_rig_entries(below("real/deep")), 0);
    ck_assert_int_eq(symlink(below("nowhere"), below("dangling")), 0);
    ck_fails(swap_open(&(struct swap_options){.dir = below("dangling"), .nbytes = 1}, &s), CZ_IO);
    test_tmp_remove(base);
}
END_TEST

START_TEST(the_last_one_removes_the_folder_whoever_made_it)
{
    base = test_tmp_make();
    struct swap *a = open_in(below("x/y")), *b = open_in(below("x/y")), *c = open_in(below("x/z"));
    swap_close(a);
    ck_assert(exists(below("x/y")));
    swap_close(b);
    ck_assert(exists(below("x")) && !exists(below("x/y")));
    swap_close(c);
    ck_assert(!exists(below("x")));
    killed_run(below("x/y"));
    ck_assert(exists(below("x/y")));
    swap_close(open_in(below("x/y"))); /* took over the duty */
    ck_assert(!exists(below("x")));
    test_tmp_remove(base);
}
END_TEST

START_TEST(folders_with_somebodys_files_stay_without_ours)
{
    base = test_tmp_make();
    struct swap *s = open_in(below("x/y"));
    close(open(below("x/mine"), O_CREAT | O_WRONLY, 0600));
    swap_close(s);
    ck_assert_int_eq(swap_rig_entries(below("x")), 1);
    ck_assert(exists(below("x/mine")));
    test_tmp_remove(base);
}
END_TEST

START_TEST(a_folder_removed_under_way_is_no_error)
{
    char command[PATH_MAX + 16];
    base = test_tmp_make();
    struct swap *s = open_in(below("x/y"));
    snprintf(command, sizeof command, "rm -rf '%s'", below("x"));
    ck_assert_int_eq(system(command), 0);
    ck_ok(swap_write(s, 5, 1, "x"));
    swap_close(s);
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

/* As a program does that a signal ends: transfers continue until then. */
START_TEST(all_open_files_can_be_removed_at_once)
{
    base = test_tmp_make();
    swap_remove_files(); /* there is none */
    killed_run(below("k"));
    struct swap *a = open_in(below("x/y")), *b = open_in(below("z"));
    swap_remove_files();
    ck_assert(!exists(below("x")) && !exists(below("z")));
    ck_assert(exists(below("k"))); /* of another run, and that folder is not ours to look at */
    swap_remove_files();
    char c = 0;
    ck_ok(swap_write(a, 5, 1, "x"));
    ck_ok(swap_read(a, 5, 1, &c));
    ck_assert_int_eq(c, 'x');
    swap_close(b);
    swap_close(a);
    struct swap *d = open_in(below("z"));
    ck_assert_int_eq(swap_rig_entries(below("z")), 2);
    swap_close(d);
    ck_assert(!exists(below("z")));
    swap_close(open_in(below("k")));
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

/* Another program removes the swap file and creates a file of that name. */
START_TEST(another_file_of_that_name_stays)
{
    char path[PATH_MAX];
    base = test_tmp_make();
    for (int at_once = 0; at_once < 2; at_once++) {
        struct swap *s = open_in(below("x"));
        snprintf(path, sizeof path, "%s", swap_path(s));
        ck_assert_int_eq(unlink(path), 0);
        close(open(path, O_CREAT | O_EXCL | O_WRONLY, 0600));
        if (at_once) {
            swap_remove_files();
            ck_assert(exists(path));
        }
        swap_close(s);
        ck_assert(exists(path));
        ck_assert_int_eq(unlink(path), 0);
        s = open_in(below("x"));
        snprintf(path, sizeof path, "%s", swap_path(s));
        ck_assert_int_eq(unlink(path), 0);
        ck_assert_int_eq(symlink(below("x"), path), 0);
        swap_close(s);
        ck_assert(exists(path));
        ck_assert_int_eq(unlink(path), 0);
    }
    test_tmp_remove(base);
}
END_TEST

START_TEST(the_current_folder_may_change)
{
    char cwd[PATH_MAX];
    ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
    base = test_tmp_make();
    ck_assert_int_eq(chdir(base), 0);
    struct swap *s = open_in("here/it is");
    ck_assert_int_eq(swap_path(s)[0], '/');
    ck_assert_int_eq(chdir(cwd), 0);
    swap_close(s);
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

/* ---- impossible ones --------------------------------------------------------------------------
 */

static void refused(const char *dir, cz_status want, const char *words)
{
    struct swap *s;
    ck_fails(swap_open(&(struct swap_options){.dir = dir, .nbytes = 100}, &s), want);
    ck_assert_ptr_null(s);
    ck_assert_msg(strstr(cz_last_error(), words) != NULL, "%s", cz_last_error());
}

START_TEST(impossible_folders_end_in_a_sentence)
{
    char long_name[300], long_path[PATH_MAX + 100] = "";
    base = test_tmp_make();
    close(open(below("file"), O_CREAT | O_WRONLY, 0600));
    refused(below("file"), CZ_INVALID, "is a file, not a folder");
    refused(below("file/x"), CZ_INVALID, "is a file, not a folder");
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    refused(below(long_name), CZ_INVALID, "longer than the system allows");
    ck_assert_int_eq(swap_rig_entries(base), 1);
    snprintf(long_path, sizeof long_path, "%s/made/too/%s", base, long_name);
    refused(long_path, CZ_INVALID, "longer than the system allows");
    ck_assert_int_eq(swap_rig_entries(base), 1);
    snprintf(long_path, sizeof long_path, "%s", base);
    while (strlen(long_path) < PATH_MAX + 50) strcat(long_path, "/0123456789");
    refused(long_path, CZ_INVALID, "longer than the system allows");
    ck_assert_int_eq(swap_rig_entries(base), 1);
    refused("/proc/czero/x", CZ_IO, "/proc/czero");
    test_tmp_remove(base);
}
END_TEST

/* As a user without the right to write there. */
START_TEST(a_folder_that_may_not_be_written_ends_in_a_sentence)
{
    base = test_tmp_make();
    ck_assert_int_eq(chmod(base, 0755), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0)) _exit(0);
        if (access("/root", W_OK) == 0 && geteuid() == 0) _exit(0);
        if (getuid() != 0 && chmod(base, 0555) != 0) _exit(1);
        refused(base, CZ_IO, "Permission denied");
        refused(below("x/y"), CZ_IO, "Permission denied");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_int_eq(swap_rig_entries(base), 0);
    chmod(base, 0755);
    test_tmp_remove(base);
}
END_TEST

START_TEST(free_space_is_known_for_folders_to_come)
{
    size_t here, there;
    base = test_tmp_make();
    ck_ok(swap_dir_free(base, &here));
    ck_ok(swap_dir_free(below("not/yet"), &there));
    ck_assert_uint_gt(here, 0);
    ck_assert_uint_gt(there, here / 2);
    ck_ok(swap_dir_free("/czero-not-here", &there));
    ck_assert_uint_gt(there, 0);
    ck_assert_int_eq(swap_rig_entries(base), 0);
    ck_fails(swap_dir_free("", &there), CZ_INVALID);
    test_tmp_remove(base);
}
END_TEST

START_TEST(a_disk_that_is_too_small_is_refused)
{
    struct swap *s;
    base = test_tmp_make();
    struct swap_options o = {.dir = below("x/y"), .nbytes = (size_t)1 << 47};
    ck_fails(swap_open(&o, &s), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "140737488355328 bytes) does not fit"));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "are free there"));
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

/* Locks of network file systems may not reach other hosts: their live files look left over. */
START_TEST(names_say_which_host_they_are_of)
{
    char name[SWAP_NAME_NBYTES], other[SWAP_NAME_NBYTES];
    swap_name_make(name, 1234567);
    swap_name_make(other, 1234567);
    ck_assert_str_ne(name, other);
    ck_assert(swap_name_is_ours(name) && swap_name_is_of_this_host(name));
    char *host = strrchr(name, '-') + 1;
    host[0] = host[0] == '0' ? '1' : '0';
    ck_assert(swap_name_is_ours(name) && !swap_name_is_of_this_host(name));
    ck_assert(!swap_name_is_of_this_host("mine") && !swap_name_is_ours("czero-swap-rank"));
    int local = open("/dev/shm", O_RDONLY | O_DIRECTORY), unknown = open("/proc", O_RDONLY);
    ck_assert(local < 0 || swap_folder_is_local(local));
    ck_assert(!swap_folder_is_local(unknown) && !swap_folder_is_local(-1));
    close(local);
    close(unknown);
}
END_TEST

/* On a local one the lock tells, whatever the host was called then: containers change names. */
START_TEST(leftovers_of_another_host_name_go_on_a_local_disk)
{
    base = test_tmp_make();
    close(open(below("czero-swap-rank3-0123456701234567"), O_CREAT | O_WRONLY, 0600));
    swap_close(open_in(base));
    ck_assert_int_eq(swap_rig_entries(base), 0);
    test_tmp_remove(base);
}
END_TEST

START_TEST(a_limit_on_file_sizes_is_named)
{
    struct swap *s;
    base = test_tmp_make();
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 1 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct swap_options o = {.dir = below("x"), .nbytes = 3 << 20};
    ck_fails(swap_open(&o, &s), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "of 3.00 MiB is larger than the 1.00 MiB"));
    ck_assert_int_eq(swap_rig_entries(base), 0);
    swap_close(swap_rig_open(base, &way, 1 << 20, 0, 0));
    test_tmp_remove(base);
}
END_TEST

START_TEST(a_folder_that_cannot_be_listed_has_no_leftovers)
{
    ck_assert_uint_eq(swap_folder_leftovers(-1), 0);
}
END_TEST

/* An entry and two results of 16 bytes per place of a ring; places are a power of two, and one more
 * than blocks are under way. */
START_TEST(the_memory_of_a_ring_doubles_with_its_places)
{
    size_t (*const memory)(int, int) = swap_backend_uring.memory_nbytes;
    ck_assert_uint_eq(memory(1, 1), memory(63, 1));
    for (int places = 64; places <= 1024; places *= 2) {
        ck_assert_uint_eq(memory(places, 1) - memory(places - 1, 1), (size_t)places * (64 + 32));
        ck_assert_uint_eq(memory(places, 1), memory(2 * places - 1, 4));
    }
}
END_TEST

TEST_MAIN("offload/swap_folder", leftovers_of_a_killed_run_are_reclaimed,
          live_files_and_other_peoples_files_stay, only_this_user_s_files_are_leftovers,
          a_lock_that_another_user_keeps_stops_no_run, folders_with_a_planted_mark_stay,
          ranks_that_start_together_leave_each_other_alone, folders_that_were_made_go,
          links_to_folders_are_followed, the_last_one_removes_the_folder_whoever_made_it,
          folders_with_somebodys_files_stay_without_ours, a_folder_removed_under_way_is_no_error,
          all_open_files_can_be_removed_at_once, another_file_of_that_name_stays,
          the_current_folder_may_change, impossible_folders_end_in_a_sentence,
          a_folder_that_may_not_be_written_ends_in_a_sentence, names_say_which_host_they_are_of,
          leftovers_of_another_host_name_go_on_a_local_disk, a_limit_on_file_sizes_is_named,
          free_space_is_known_for_folders_to_come, a_disk_that_is_too_small_is_refused,
          a_folder_that_cannot_be_listed_has_no_leftovers,
          the_memory_of_a_ring_doubles_with_its_places)

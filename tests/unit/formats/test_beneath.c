/* Claim: a name opened below a folder never leads out of it, by "..", as an absolute path, or by a
 * link at any place of the way; links inside work, and in a Hugging Face cache those to its blobs.
 * The kernel's way and the walk for kernels and sandboxes without openat2() give the same. */
#include "formats/beneath.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { TEXT_NBYTES_MAX = 4096 };

static void deny_openat2(int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = CZ_ARRAY_LEN(code), .filter = code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    ck_assert_int_eq((int)syscall(SYS_openat2, AT_FDCWD, ".", NULL, 0), -1);
    ck_assert_int_eq(errno, error);
}

static const char *in(const char *dir, const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ & 3];
    ck_assert_int_lt(snprintf(path, sizeof paths[0], "%s/%s", dir, name), (int)sizeof paths[0]);
    return path;
}

static void put(const char *dir, const char *name, const char *text)
{
    FILE *f = fopen(in(dir, name), "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void make(const char *dir, const char *name)
{
    ck_assert_int_eq(mkdir(in(dir, name), 0777), 0);
}

static void make_link(const char *target, const char *dir, const char *name)
{
    ck_assert_int_eq(symlink(target, in(dir, name)), 0);
}

struct trial {
    const char *name;
    const char *text; /* NULL: refused */
    cz_status status;
};

static void expect(const char *dir, const struct trial *t)
{
    char *text;
    size_t n;
    struct stat info;
    cz_status st = beneath_load(dir, t->name, TEXT_NBYTES_MAX, &text, &n);
    ck_assert_msg(st == t->status, "%s: %s instead of %s (%s)", t->name, cz_status_name(st),
                  cz_status_name(t->status), cz_last_error());
    if (t->text) {
        ck_assert_str_eq(text, t->text);
        ck_assert_uint_eq(n, strlen(t->text));
        ck_ok(beneath_stat(dir, t->name, &info));
        ck_assert_int_eq((int)info.st_size, (int)n);
    }
    if (st == CZ_CORRUPT) ck_fails(beneath_stat(dir, t->name, &info), CZ_CORRUPT);
    ck_assert_int_eq(beneath_is_there(dir, t->name), st != CZ_NOTFOUND);
    free(text);
}

/* What the calls under test leave open would show here. */
static int n_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void try_names(void)
{
    char long_name[5000], dir[512];
    const char *top = test_tmp_make();
    put(top, "secret", "secret");
    make(top, "outside");
    put(top, "outside/secret", "secret");
    make(top, "folder");
    snprintf(dir, sizeof dir, "%s", in(top, "folder"));
    put(dir, "plain", "plain");
    make(dir, "sub");
    make(dir, "sub/deep");
    put(dir, "sub/deep/file", "deep");
    make_link("plain", dir, "to_plain");
    make_link("to_plain", dir, "to_to_plain");
    make_link("sub/deep", dir, "to_deep");
    make_link("../../plain", dir, "sub/deep/up");
    make_link("./sub/./deep/../deep/file", dir, "winding");
    make_link("../secret", dir, "out");
    make_link("../../../secret", dir, "sub/deep/out");
    make_link("sub/../../folder/plain", dir, "out_and_in"); /* leaves on the way */
    make_link("../outside", dir, "to_outside");
    make_link(in(top, "secret"), dir, "absolute");
    make_link(in(dir, "plain"), dir, "absolute_inside");
    make_link("/proc/self/cwd", dir, "magic");
    make_link("round", dir, "round");
    make_link("missing", dir, "dangling");
    make_link("../missing", dir, "dangling_out");
    make_link("to_deep/", dir, "with_slash");
    ck_assert_int_eq(mkfifo(in(dir, "pipe"), 0666), 0);
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    char *padded = long_name + 2500; /* fits a path: nothing may be cut off */
    for (size_t i = 0; i < 2494; i += 2) memcpy(padded + i, "./", 2);
    strcpy(padded + 2494, "plai");
    char *very_long = strdup(long_name);
    memset(very_long, 'x', 2500);
    long_name[300] = '\0'; /* longer than a name may be */
    const struct trial trials[] = {
        {"plain", "plain", CZ_OK},
        {"./plain", "plain", CZ_OK},
        {".//.//plain", "plain", CZ_OK},
        {"sub/deep/file", "deep", CZ_OK},
        {"sub//deep/./file", "deep", CZ_OK},
        {"to_plain", "plain", CZ_OK},
        {"to_to_plain", "plain", CZ_OK},
        {"to_deep/file", "deep", CZ_OK},
        {"with_slash/file", "deep", CZ_OK},
        {"sub/deep/up", "plain", CZ_OK},
        {"to_deep/up", "plain", CZ_OK},
        {"winding", "deep", CZ_OK},
        {"", NULL, CZ_CORRUPT},
        {"..", NULL, CZ_CORRUPT},
        {"../secret", NULL, CZ_CORRUPT},
        {"../folder/plain", NULL, CZ_CORRUPT},
        {"sub/../plain", NULL, CZ_CORRUPT}, /* a link could make it lead anywhere */
        {"sub/deep/../../../secret", NULL, CZ_CORRUPT},
        {"/etc/passwd", NULL, CZ_CORRUPT},
        {"/", NULL, CZ_CORRUPT},
        {"out", NULL, CZ_CORRUPT},
        {"sub/deep/out", NULL, CZ_CORRUPT},
        {"to_deep/out", NULL, CZ_CORRUPT},
        {"out_and_in", NULL, CZ_CORRUPT},
        {"to_outside/secret", NULL, CZ_CORRUPT},
        {"absolute", NULL, CZ_CORRUPT},
        {"absolute_inside", NULL, CZ_CORRUPT},
        {"magic/secret", NULL, CZ_CORRUPT},
        {"dangling_out", NULL, CZ_CORRUPT}, /* whatever is there: it does not tell */
        {"dangling", NULL, CZ_NOTFOUND},
        {"missing", NULL, CZ_NOTFOUND},
        {"missing/file", NULL, CZ_NOTFOUND},
        {padded, NULL, CZ_NOTFOUND},
    };
    const struct trial refused[] = {
        {"..x", NULL, CZ_NOTFOUND}, {"x..", NULL, CZ_NOTFOUND}, {"...", NULL, CZ_NOTFOUND},
        {"sub", NULL, CZ_IO},       {"sub/", NULL, CZ_IO},      {"pipe", NULL, CZ_IO},
        {"plain/", NULL, CZ_IO},    {"plain/x", NULL, CZ_IO},   {"to_plain/", NULL, CZ_IO},
        {"round", NULL, CZ_IO},     {long_name, NULL, CZ_IO},   {very_long, NULL, CZ_IO},
    };
    const int n_open = n_descriptors();
    for (size_t i = 0; i < CZ_ARRAY_LEN(trials); i++) expect(dir, &trials[i]);
    for (size_t i = 0; i < CZ_ARRAY_LEN(refused); i++) {
        char *text;
        size_t n;
        cz_status st = beneath_load(dir, refused[i].name, TEXT_NBYTES_MAX, &text, &n);
        ck_assert_msg(st == refused[i].status, "%.40s: %s (%s)", refused[i].name,
                      cz_status_name(st), cz_last_error());
    }
    ck_assert(beneath_is_folder(dir, "sub"));
    ck_assert(beneath_is_folder(dir, "to_deep"));
    ck_assert(beneath_is_folder(dir, "."));
    ck_assert(!beneath_is_folder(dir, "plain"));
    ck_assert(!beneath_is_folder(dir, "to_outside"));
    ck_assert(!beneath_is_folder(dir, ".."));
    ck_assert(!beneath_is_folder(dir, "missing"));
    int fd;
    ck_ok(beneath_open_folder(dir, "to_deep", &fd));
    close(fd);
    ck_fails(beneath_open_folder(dir, "to_outside", &fd), CZ_CORRUPT);
    ck_assert_int_eq(fd, -1);
    ck_fails(beneath_open_folder(dir, "plain", &fd), CZ_IO);
    ck_assert_int_eq(n_descriptors(), n_open);

    /* What the user names is the user's: links in that path are followed, dots allowed. */
    make_link("folder", top, "to_folder");
    make_link(dir, top, "to_folder_absolute");
    expect(in(top, "to_folder"), &(struct trial){"sub/deep/file", "deep", CZ_OK});
    expect(in(top, "to_folder_absolute"), &(struct trial){"plain", "plain", CZ_OK});
    expect(in(dir, "sub/.."), &(struct trial){"plain", "plain", CZ_OK});
    expect(in(dir, "sub/deep"), &(struct trial){"up", NULL, CZ_CORRUPT});
    expect(NULL, &(struct trial){in(dir, "absolute"), "secret", CZ_OK});
    ck_assert_int_eq(chdir(dir), 0);
    expect(".", &(struct trial){"plain", "plain", CZ_OK});
    expect("", &(struct trial){"plain", "plain", CZ_OK});
    expect("", &(struct trial){"out", NULL, CZ_CORRUPT});
    ck_assert_int_eq(chdir("/"), 0);
    free(very_long);
    test_tmp_remove(top);
}

/* models--ORG--NAME/{blobs/SHA, snapshots/REVISION/FILE -> ../../blobs/SHA} */
static void try_cache(const char *repository)
{
    char cache[512], snapshot[512];
    const char *top = test_tmp_make();
    put(top, "secret", "secret");
    make(top, repository);
    snprintf(cache, sizeof cache, "%s", in(top, repository));
    make(cache, "blobs");
    put(cache, "blobs/0123", "weights");
    make(cache, "snapshots");
    make(cache, "snapshots/rev");
    make(cache, "snapshots/rev/onnx");
    snprintf(snapshot, sizeof snapshot, "%s", in(cache, "snapshots/rev"));
    make_link("../../blobs/0123", snapshot, "config.json");
    make_link("../../../blobs/0123", snapshot, "onnx/config.json");
    make_link("../../../secret", snapshot, "out");
    make_link("../../blobs/9999", snapshot, "gone");
    make_link(in(cache, "blobs/0123"), snapshot, "absolute");
    const struct trial trials[] = {
        {"config.json", "weights", CZ_OK},
        {"onnx/config.json", "weights", CZ_OK},
        {"out", NULL, CZ_CORRUPT},
        {"gone", NULL, CZ_NOTFOUND},
        {"absolute", NULL, CZ_CORRUPT},
        {"../../blobs/0123", NULL, CZ_CORRUPT}, /* names have no "..", in a cache either */
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(trials); i++) expect(snapshot, &trials[i]);
    expect(in(snapshot, "onnx"), &(struct trial){"config.json", "weights", CZ_OK});
    make_link(snapshot, top, "my_model"); /* the user's link to the snapshot */
    expect(in(top, "my_model"), &(struct trial){"config.json", "weights", CZ_OK});
    ck_assert_int_eq(chdir(snapshot), 0);
    expect(".", &(struct trial){"config.json", "weights", CZ_OK});
    ck_assert_int_eq(chdir("/"), 0);

    /* Folders that only resemble a cache. */
    static const char *const others[] = {"models/snapshots",       "models--/snapshots",
                                         "datasets--/snapshots",   "xmodels--a--b/snapshots",
                                         "spaces--a--b/snapshots", "models--a--b/other"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++) {
        char command[1024];
        snprintf(command, sizeof command,
                 "mkdir -p %s/x/%s/rev && cd %s/x/%s && echo -n b >../b && ln -s ../../b rev/file",
                 top, others[i], top, others[i]);
        ck_assert_int_eq(system(command), 0);
        snprintf(command, sizeof command, "x/%s/rev", others[i]);
        expect(in(top, command), &(struct trial){"file", NULL, CZ_CORRUPT});
    }
    test_tmp_remove(top);
}

START_TEST(names_do_not_lead_out)
{
    try_names();
}
END_TEST

START_TEST(names_do_not_lead_out_in_kernels_without_openat2)
{
    deny_openat2(ENOSYS);
    try_names();
}
END_TEST

START_TEST(names_do_not_lead_out_in_sandboxes)
{
    deny_openat2(EPERM);
    try_names();
}
END_TEST

START_TEST(links_of_a_hub_cache_lead_to_its_blobs)
{
    try_cache("models--a--b");
    try_cache("datasets--a--b");
}
END_TEST

START_TEST(links_of_a_hub_cache_work_without_openat2)
{
    deny_openat2(ENOSYS);
    try_cache("models--a--b");
    try_cache("datasets--a--b");
}
END_TEST

/* The walk holds 63 folders open, and refuses more. */
START_TEST(the_walk_has_a_depth)
{
    char dir[512], name[300] = "", *text;
    size_t n;
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    for (int i = 1; i <= 66; i++) {
        strcat(name, i > 1 ? "/d" : "d");
        make(dir, name);
    }
    deny_openat2(ENOSYS);
    name[0] = '\0';
    for (int i = 1; i <= 66; i++) {
        strcat(name, "d/");
        const size_t end = strlen(name);
        strcpy(name + end, "file");
        put(dir, name, "text");
        const cz_status st = beneath_load(dir, name, TEXT_NBYTES_MAX, &text, &n);
        ck_assert_msg((st == CZ_OK) == (i <= 63), "%d folders: %s", i, cz_last_error());
        if (st == CZ_OK) free(text);
        name[end] = '\0';
    }
    test_tmp_remove(dir);
}
END_TEST

/* A folder on the way becomes a link, again and again: what is opened is inside, or nothing. */
START_TEST(a_link_that_appears_meanwhile_is_not_followed)
{
    char dir[512], text[16];
    const char *top = test_tmp_make();
    int n_read = 0, n_refused = 0;
    if (_i == 1) deny_openat2(ENOSYS);
    make(top, "outside");
    put(top, "outside/file", "secret");
    make(top, "folder");
    snprintf(dir, sizeof dir, "%s", in(top, "folder"));
    make(dir, "a");
    put(dir, "a/file", "inside");
    make_link("../outside", dir, "b");
    pid_t child = fork();
    if (child == 0) {
        char a[600], b[600];
        snprintf(a, sizeof a, "%s/a", dir);
        snprintf(b, sizeof b, "%s/b", dir);
        for (;;) syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2); /* RENAME_EXCHANGE */
    }
    for (int i = 0; i < 100000 && (i < 3000 || n_read == 0 || n_refused == 0); i++) {
        int fd;
        uint64_t nbytes;
        cz_status st = beneath_open(dir, "a/file", &fd, &nbytes);
        if (st != CZ_OK) {
            n_refused++;
            continue;
        }
        memset(text, 0, sizeof text);
        ck_assert_int_eq((int)read(fd, text, 6), 6);
        ck_assert_str_eq(text, "inside");
        close(fd);
        n_read++;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ck_assert_int_gt(n_read, 0);
    ck_assert_int_gt(n_refused, 0);
    test_tmp_remove(top);
}
END_TEST

START_TEST(a_sentence_says_what_to_do)
{
    int fd;
    const char *top = test_tmp_make();
    make(top, "m");
    make_link("/etc/hostname", in(top, "m"), "config.json");
    ck_fails(beneath_open(in(top, "m"), "config.json", &fd, NULL), CZ_CORRUPT);
    ck_assert_int_eq(fd, -1);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "/m/config.json: a link leads out of "));
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "replace it with a copy of its target"));
    ck_fails(beneath_open(in(top, "m"), "../x", &fd, NULL), CZ_CORRUPT);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "\"../x\" of a file in it is refused: it leads"));
    test_tmp_remove(top);
}
END_TEST

/* Only what is certainly absent: anything else is opened, which says why that fails. */
START_TEST(what_cannot_be_looked_at_may_be_there)
{
    char dir[64], longest[300];
    snprintf(dir, sizeof dir, "%s", test_tmp_make());
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    put(dir, "file", "text");
    make_link("loop", dir, "loop");
    make_link("nothing", dir, "dangling");
    ck_assert(beneath_is_there(dir, "file"));
    ck_assert(beneath_is_there(dir, "loop"));
    ck_assert(beneath_is_there(dir, ".."));
    ck_assert(beneath_is_there(NULL, in(dir, "loop")));
    ck_assert(!beneath_is_there(dir, "nothing"));
    ck_assert(!beneath_is_there(dir, "dangling"));
    ck_assert(!beneath_is_there(dir, "file/below"));
    ck_assert(!beneath_is_there(dir, longest));
    ck_assert(!beneath_is_there(in(dir, "nothing"), "file"));
    ck_assert(!beneath_is_there(in(dir, "file"), "file"));
    test_tmp_remove(dir);
}
END_TEST

int main(void)
{
    const TTest *const cases[] = {names_do_not_lead_out,
                                  what_cannot_be_looked_at_may_be_there,
                                  names_do_not_lead_out_in_kernels_without_openat2,
                                  names_do_not_lead_out_in_sandboxes,
                                  the_walk_has_a_depth,
                                  links_of_a_hub_cache_lead_to_its_blobs,
                                  links_of_a_hub_cache_work_without_openat2,
                                  a_sentence_says_what_to_do};
    Suite *suite = suite_create("formats/beneath");
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        TCase *tcase = tcase_create(cases[i]->name);
        tcase_add_test(tcase, cases[i]);
        suite_add_tcase(suite, tcase);
    }
    TCase *races = tcase_create("races");
    tcase_add_loop_test(races, a_link_that_appears_meanwhile_is_not_followed, 0, 2);
    tcase_set_timeout(races, 60);
    suite_add_tcase(suite, races);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

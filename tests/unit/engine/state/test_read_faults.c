/* Claims: a disk that fails while a checkpoint, its `latest` or a config is found or read is CZ_IO,
 * wherever it fails: neither damage (CZ_CORRUPT) nor "no checkpoint" (CZ_NOTFOUND), which would
 * begin a run anew. */
#include "checkpoint/read/names.h"
#include "engine/config/config.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"
#include <czero/engine.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *failing_dir; /* part of the path of what fails; NULL: all works */
static atomic_long n_reads, fails_at;

static bool fails(int fd)
{
    char link[64], path[4096];
    if (!failing_dir) return false;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return false;
    path[n] = '\0';
    if (!strstr(path, failing_dir) || atomic_fetch_add(&n_reads, 1) != fails_at) return false;
    errno = EIO;
    return true;
}

/* In place of the C library's. */
ssize_t read(int fd, void *dst, size_t n)
{
    return fails(fd) ? -1 : syscall(SYS_read, fd, dst, n);
}

ssize_t pread(int fd, void *dst, size_t n, off_t off)
{
    return fails(fd) ? -1 : syscall(SYS_pread64, fd, dst, n, off);
}

ssize_t __read_chk(int fd, void *dst, size_t n, size_t room);
ssize_t __read_chk(int fd, void *dst, size_t n, size_t room)
{
    (void)room;
    return read(fd, dst, n);
}

ssize_t __pread64_chk(int fd, void *dst, size_t n, off_t off, size_t room);
ssize_t __pread64_chk(int fd, void *dst, size_t n, off_t off, size_t room)
{
    (void)room;
    return pread(fd, dst, n, off);
}

struct dirent *readdir(DIR *dir)
{
    static struct dirent *(*real)(DIR *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "readdir64");
    return fails(dirfd(dir)) ? NULL : real(dir);
}

static void plan(const char *dir, long nth)
{
    failing_dir = dir;
    n_reads = 0;
    fails_at = nth;
}

/* How many reads there were; whether one failed. */
static bool has_failed(void)
{
    return n_reads > fails_at;
}

static struct cz_engine *open_engine(void)
{
    const struct cz_engine_options options = {
        .size = sizeof options,
        .config_json = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": "
                       "\"AdamW\", \"params\": {\"lr\": 0.001}}}"};
    struct cz_model *model = cz_model_open("gpt2-tiny");
    ck_assert_ptr_nonnull(model);
    ck_ok(cz_model_set_shape(model, 8));
    ck_ok(cz_model_init_from(model, NULL, 1));
    struct cz_engine *e = engine_initialize_ex(&options, model);
    ck_assert_msg(e != NULL, "%s", cz_last_error());
    return e;
}

START_TEST(reading_that_fails_is_no_damage)
{
    const char *dir = test_tmp_make();
    struct cz_engine *e = open_engine();
    struct cz_saved_run run = {.size = sizeof run};
    long n_failed = 0, nth;
    ck_ok(engine_save_checkpoint_ex(e, dir, NULL));
    for (nth = 0;; nth += 1 + nth / 12) {
        plan(dir, nth);
        const cz_status st = engine_load_checkpoint_ex(e, dir, NULL, NULL);
        if (!has_failed()) break;
        ck_assert_msg(st == CZ_IO, "read %ld: %s, %s", nth, cz_status_name(st), cz_last_error());
        n_failed++;
    }
    ck_assert_int_gt(n_failed, 20);
    for (nth = 0;; nth++) {
        plan(dir, nth);
        const cz_status st = cz_saved_run_read(dir, NULL, &run);
        if (!has_failed()) break;
        ck_assert_msg(st == CZ_IO, "read %ld: %s, %s", nth, cz_status_name(st), cz_last_error());
    }
    ck_assert_int_ge(nth, 2);
    plan(NULL, 0);
    ck_ok(engine_load_checkpoint_ex(e, dir, NULL, NULL));
    engine_destroy(e);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(finding_that_fails_is_no_empty_folder)
{
    const char *dir = test_tmp_make();
    char path[512], *tag_dir, *tag;
    (void)snprintf(path, sizeof path, "%s/t1", dir);
    ck_ok(file_make_dirs(path));
    (void)snprintf(path, sizeof path, "%s/t1/mp_rank_00_model_states.pt", dir);
    ck_ok(file_save(path, "", 0));
    for (int with_latest = 0; with_latest < 2; with_latest++) {
        (void)snprintf(path, sizeof path, "%s%s", dir, with_latest ? "" : "/t1");
        long nth = 0;
        for (;; nth++) {
            plan(dir, nth);
            const cz_status st = ckpt_locate(path, NULL, &tag_dir, &tag);
            if (!has_failed()) {
                ck_ok(st);
                free(tag_dir);
                free(tag);
                break;
            }
            ck_assert_msg(st == CZ_IO, "read %ld: %s, %s", nth, cz_status_name(st),
                          cz_last_error());
        }
        ck_assert_int_ge(nth, 1);
        plan(NULL, 0);
        (void)snprintf(path, sizeof path, "%s/latest", dir);
        ck_ok(file_save(path, "t1", 2));
    }
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_config_that_cannot_be_read_is_no_wrong_path)
{
    const char *dir = test_tmp_make();
    struct ds_config *config;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/ds.json", dir);
    ck_ok(file_save(path, "{}", 2));
    plan(dir, 0);
    ck_fails(config_load(path, NULL, &config), CZ_IO);
    plan(NULL, 0);
    ck_fails(config_load(dir, NULL, &config), CZ_NOTFOUND);
    (void)snprintf(path, sizeof path, "%s/none.json", dir);
    ck_fails(config_load(path, NULL, &config), CZ_NOTFOUND);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("engine/read_faults", reading_that_fails_is_no_damage,
          finding_that_fails_is_no_empty_folder, a_config_that_cannot_be_read_is_no_wrong_path)

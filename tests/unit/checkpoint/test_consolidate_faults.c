/* Claim: whichever call to the disk fails, or whichever moment the process is killed at, the output
 * folder holds the old set or the new one, whole, or no set at all; a failure is reported, and
 * leaves no file of its own. */
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"
#include "tests/support/faults.h"
#include <czero/checkpoint.h>

#include <dirent.h>
#include <string.h>
#include <sys/wait.h>

#define OLD_RUN "s1-fp32-dp3"
#define NEW_RUN "s3-fp32-adamw"

static const char *ckpt_of(const char *run_name)
{
    char relative[256];
    snprintf(relative, sizeof relative, "runs/%s/ckpt", run_name);
    return test_fixture(relative);
}

static const struct cz_consolidate_options old_set = {
    .size = sizeof old_set, .format = CZ_CONSOLIDATE_SAFETENSORS, .shard_nbytes_max = 200000};

static cz_status consolidate(const char *run_name, const char *out,
                             enum cz_consolidate_format format)
{
    struct cz_consolidate_result result = {.size = sizeof result};
    struct cz_consolidate_options o = old_set;
    o.dir = ckpt_of(run_name);
    o.out_dir = out;
    o.format = format;
    return cz_consolidate(&o, &result);
}

/* One element tells the sets apart. */
static float mark_of_safetensors(const char *out)
{
    struct safetensors *st;
    float first = 0, last = 0;
    ck_ok(safetensors_dir_open(out, &st)); /* checks that index and shards agree */
    ck_ok(safetensors_read_f32(st, safetensors_find(st, "transformer.wte.weight"), 5, 1, &first));
    ck_ok(safetensors_read_f32(st, safetensors_find(st, "transformer.ln_f.weight"), 5, 1, &last));
    safetensors_close(st);
    return first + 1000 * last;
}

static float mark_of_bin(const char *out)
{
    float first = 0, last = 0;
    DIR *d = opendir(out);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) {
        struct pt *pt;
        const size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".bin") != 0) continue;
        char *path = file_join(out, e->d_name);
        ck_ok(pt_open(path, &pt));
        ck_ok(pt_verify(pt, NULL, NULL));
        const struct pickle_node *a = pickle_get(pt_root(pt), "transformer.wte.weight");
        const struct pickle_node *b = pickle_get(pt_root(pt), "transformer.ln_f.weight");
        if (a) ck_ok(pt_read_f32(pt, a->tensor, 5, 1, &first));
        if (b) ck_ok(pt_read_f32(pt, b->tensor, 5, 1, &last));
        pt_close(pt);
        free(path);
    }
    closedir(d);
    return first + 1000 * last;
}

/* 0: the folder says nothing (it has no index). */
static float mark_of(const char *out, enum cz_consolidate_format format)
{
    char *index = file_join(out, format == CZ_CONSOLIDATE_BIN ? "pytorch_model.bin.index.json"
                                                              : "model.safetensors.index.json");
    bool there = file_exists(index);
    free(index);
    if (!there) return 0;
    return format == CZ_CONSOLIDATE_BIN ? mark_of_bin(out) : mark_of_safetensors(out);
}

static int count_temporaries(const char *out)
{
    int n = 0;
    DIR *d = opendir(out);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) n += strstr(e->d_name, ".tmp") != NULL;
    closedir(d);
    return n;
}

/* The new set's turn, with trouble planned; gives its exit code, -1 when it was killed. */
static int in_child(const char *out, enum cz_consolidate_format format, long nth, int error)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        faults_clear();
        faults_plan(FAULT_ANY, nth, error);
        _exit(consolidate(NEW_RUN, out, format) == CZ_OK ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -1 : WEXITSTATUS(status);
}

static void at_every_moment(enum cz_consolidate_format format, int error)
{
    const char *out = test_tmp_make_fast();
    faults_clear();
    ck_ok(consolidate(NEW_RUN, out, format));
    const long n_calls = faults_count(FAULT_ANY);
    const float new_mark = mark_of(out, format);
    ck_ok(consolidate(OLD_RUN, out, format));
    const float old_mark = mark_of(out, format);
    ck_assert(n_calls > 50 && old_mark != 0 && new_mark != 0 && old_mark != new_mark);
    int n_old = 0, n_none = 0, n_new = 0;
    for (long nth = 0; nth < n_calls; nth++) {
        int code = in_child(out, format, nth, error);
        float mark = mark_of(out, format);
        ck_assert_msg(mark == old_mark || mark == new_mark || mark == 0,
                      "call %ld: a mixture of two sets", nth);
        ck_assert_msg(code != 0 || mark == new_mark, "call %ld: success without a result", nth);
        if (code == 1) ck_assert_msg(count_temporaries(out) == 0, "call %ld: left-overs", nth);
        *(mark == old_mark ? &n_old : mark == new_mark ? &n_new : &n_none) += 1;
        if (mark != old_mark) ck_ok(consolidate(OLD_RUN, out, format));
    }
    printf("%ld moments: the old set stays in %d, the new one is there in %d, neither in %d\n",
           n_calls, n_old, n_new, n_none);
    ck_assert_int_gt(n_old, 0);
    test_tmp_remove(out);
}

START_TEST(any_call_fails_bin)
{
    at_every_moment(CZ_CONSOLIDATE_BIN, EIO);
}
END_TEST

START_TEST(any_call_fails_safetensors)
{
    at_every_moment(CZ_CONSOLIDATE_SAFETENSORS, EIO);
}
END_TEST

START_TEST(killed_at_any_moment_bin)
{
    at_every_moment(CZ_CONSOLIDATE_BIN, FAULT_KILL);
}
END_TEST

START_TEST(killed_at_any_moment_safetensors)
{
    at_every_moment(CZ_CONSOLIDATE_SAFETENSORS, FAULT_KILL);
}
END_TEST

START_TEST(short_writes_are_continued)
{
    const char *out = test_tmp_make_fast();
    for (int format = 0; format < 2; format++) {
        faults_clear();
        ck_ok(consolidate(NEW_RUN, out, (enum cz_consolidate_format)format));
        float mark = mark_of(out, (enum cz_consolidate_format)format);
        faults_short_writes(7);
        ck_ok(consolidate(NEW_RUN, out, (enum cz_consolidate_format)format));
        faults_clear();
        ck_assert(mark_of(out, (enum cz_consolidate_format)format) == mark);
    }
    test_tmp_remove(out);
}
END_TEST

START_TEST(a_full_disk_is_reported)
{
    const char *out = test_tmp_make_fast();
    for (int format = 0; format < 2; format++) {
        faults_clear();
        faults_disk_full(300000);
        ck_fails(consolidate(NEW_RUN, out, (enum cz_consolidate_format)format), CZ_IO);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "No space left"));
        faults_clear();
        ck_assert(mark_of(out, (enum cz_consolidate_format)format) == 0);
        ck_assert_int_eq(count_temporaries(out), 0);
    }
    test_tmp_remove(out);
}
END_TEST

TEST_MAIN("checkpoint/consolidate_faults", any_call_fails_bin, any_call_fails_safetensors,
          killed_at_any_moment_bin, killed_at_any_moment_safetensors, short_writes_are_continued,
          a_full_disk_is_reported)

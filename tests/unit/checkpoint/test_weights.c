/* Claim: the weights that cz_weights_read() puts into memory are those that consolidation writes,
 * of every recorded DeepSpeed checkpoint: names, order, shapes, dtypes and every byte, also rounded
 * to 16 bits; damage and wrong arguments are errors. */
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/check_main.h"
#include <czero/checkpoint.h>

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct cz_weights *open_weights(const struct cz_weights_options *options)
{
    struct cz_weights *w;
    ck_ok(cz_weights_open(options, &w));
    ck_ok(cz_weights_check(w));
    return w;
}

static void compare_tensor(const struct cz_weights *w, size_t idx, const struct safetensors *want)
{
    struct cz_weight_info info = {.size = sizeof info};
    enum cz_dtype dtype;
    ck_ok(cz_weights_at(w, idx, &info));
    const char *kept = safetensors_metadata(want, info.name); /* a tied weight, written once */
    const struct safetensors_info *file = safetensors_find(want, kept ? kept : info.name);
    ck_assert_msg(file != NULL, "%s is not written", info.name);
    ck_assert(safetensors_dtype_to_base(file->dtype, &dtype));
    ck_assert_int_eq(info.dtype, dtype);
    ck_assert_uint_eq((size_t)info.ndim, file->ndim);
    ck_assert_uint_eq(info.numel, file->numel);
    for (int d = 0; d < info.ndim; d++) ck_assert_int_eq(info.shape[d], file->shape[d]);
    for (size_t a = 0; a < info.n_aliases; a++)
        ck_assert_msg(safetensors_metadata(want, info.aliases[a]) != NULL, "alias %s",
                      info.aliases[a]);
    const size_t nbytes = info.numel * cz_dtype_size(dtype);
    char *ours = malloc(nbytes + 1), *theirs = malloc(nbytes + 1);
    ck_assert(ours && theirs);
    ck_ok(cz_weights_read(w, idx, ours, nbytes));
    ck_ok(safetensors_read(want, file, 0, info.numel, theirs));
    ck_assert_msg(memcmp(ours, theirs, nbytes) == 0, "%s differs", info.name);
    free(ours);
    free(theirs);
}

static void compare_checkpoint(const char *ckpt, const char *out, bool has_dtype,
                               enum cz_dtype dtype)
{
    const struct cz_consolidate_options write = {.size = sizeof write,
                                                 .dir = ckpt,
                                                 .out_dir = out,
                                                 .format = CZ_CONSOLIDATE_SAFETENSORS,
                                                 .has_dtype = has_dtype,
                                                 .dtype = dtype};
    const struct cz_weights_options read = {
        .size = sizeof read, .dir = ckpt, .has_dtype = has_dtype, .dtype = dtype};
    struct safetensors *want;
    ck_ok(cz_consolidate(&write, NULL));
    ck_ok(safetensors_dir_open(out, &want));
    struct cz_weights *w = open_weights(&read);
    ck_assert_uint_eq(cz_weights_count(w), safetensors_count(want));
    for (size_t i = 0; i < cz_weights_count(w); i++) compare_tensor(w, i, want);
    cz_weights_close(w);
    safetensors_close(want);
}

START_TEST(weights_are_what_consolidation_writes)
{
    DIR *runs = opendir(test_fixture("runs"));
    const char *tmp = test_tmp_make_fast();
    int n = 0;
    ck_assert_ptr_nonnull(runs);
    for (struct dirent *d; (d = readdir(runs));) {
        char relative[512];
        snprintf(relative, sizeof relative, "runs/%s/expected.safetensors", d->d_name);
        if (!file_exists(test_fixture(relative))) continue;
        snprintf(relative, sizeof relative, "runs/%s/ckpt", d->d_name);
        const char *ckpt = test_fixture(relative);
        compare_checkpoint(ckpt, tmp, false, CZ_DTYPE_F32);
        compare_checkpoint(ckpt, tmp, true, n % 2 ? CZ_DTYPE_BF16 : CZ_DTYPE_F16);
        n++;
    }
    closedir(runs);
    test_tmp_remove(tmp);
    ck_assert_int_ge(n, 10);
}
END_TEST

START_TEST(frozen_weights_may_be_left_out)
{
    struct cz_weights_options o = {.size = sizeof o,
                                   .dir = test_fixture("runs/s3-bf16-dp3-frozen/ckpt")};
    struct cz_weights *all = open_weights(&o);
    o.exclude_frozen = true;
    struct cz_weights *trained = open_weights(&o);
    ck_assert_uint_eq(cz_weights_count(all) - cz_weights_count(trained), 12);
    cz_weights_close(all);
    cz_weights_close(trained);
}
END_TEST

START_TEST(wrong_arguments_are_errors)
{
    struct cz_weights_options o = {.size = sizeof o, .dir = "/nonexistent"};
    struct cz_weight_info info = {.size = sizeof info};
    struct cz_weights *w;
    float element;
    ck_fails(cz_weights_open(&o, &w), CZ_NOTFOUND);
    ck_assert_ptr_null(w);
    o.dir = NULL;
    ck_fails(cz_weights_open(&o, &w), CZ_INVALID);
    o.dir = test_fixture("runs/s3-bf16-adamw/ckpt");
    o.has_dtype = true;
    o.dtype = CZ_DTYPE_I8;
    ck_fails(cz_weights_open(&o, &w), CZ_INVALID);
    o.dtype = CZ_DTYPE_F32;
    w = open_weights(&o);
    ck_fails(cz_weights_at(w, cz_weights_count(w), &info), CZ_INVALID);
    ck_fails(cz_weights_read(w, cz_weights_count(w), &element, sizeof element), CZ_INVALID);
    ck_fails(cz_weights_read(w, 0, &element, sizeof element), CZ_INVALID);
    info.size = 0;
    ck_fails(cz_weights_at(w, 0, &info), CZ_INVALID);
    cz_weights_close(w);
    cz_weights_close(NULL);
}
END_TEST

/* The first byte of a weight in its shard, flipped. */
static void damage(const char *dir)
{
    const struct ckpt_open_options open_as = {.dir = dir, .weights_only = true};
    struct ckpt *ck;
    struct ckpt_run run;
    char byte;
    ck_ok(ckpt_open(&open_as, &ck));
    ck_ok(ckpt_run(ck, 0, CKPT_MASTER, 0, &run));
    int fd = open(ckpt_file_path(ck, run.file_idx), O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)run.file_off), 1);
    byte = (char)~byte;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)run.file_off), 1);
    close(fd);
    ckpt_close(ck);
}

START_TEST(a_flipped_byte_is_found)
{
    const char *tmp = test_tmp_make_fast();
    char command[2048];
    snprintf(command, sizeof command, "cp -rL %s/. %s", test_fixture("runs/s3-bf16-adamw/ckpt"),
             tmp);
    ck_assert_int_eq(system(command), 0);
    struct cz_weights_options o = {.size = sizeof o, .dir = tmp};
    struct cz_weights *w = open_weights(&o);
    cz_weights_close(w);
    damage(tmp);
    ck_ok(cz_weights_open(&o, &w));
    ck_fails(cz_weights_check(w), CZ_CORRUPT);
    cz_weights_close(w);
    test_tmp_remove(tmp);
}
END_TEST

TEST_MAIN("checkpoint/weights", weights_are_what_consolidation_writes,
          frozen_weights_may_be_left_out, wrong_arguments_are_errors, a_flipped_byte_is_found)

/* Claim: every recorded DeepSpeed checkpoint comes out as DeepSpeed's own script consolidates it
 * (trained weights to the byte, frozen ones in value), in both formats, in one file or many, with
 * the set of names that the script has; and output appears whole or not at all. */
#include "checkpoint/read/checkpoint.h"
#include "formats/file_io.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/shards.h"
#include "tests/support/check_main.h"
#include <czero/checkpoint.h>

#include <dirent.h>
#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------------
 */

START_TEST(sizes_are_decimal)
{
    static const struct {
        const char *text;
        uint64_t nbytes;
    } good[] = {{"5GB", 5000000000u}, {"200MB", 200000000}, {"1.5TB", 1500000000000u},
                {"300KB", 300000},    {"0.5 kb", 500},      {" 5gb ", 5000000000u},
                {"12345", 12345},     {"1e3KB", 1000000},   {".5MB", 500000}};
    static const char *const bad[] = {"",        "GB",  "5",   "5GiB",   "5B",  "-5GB", "5GBs",
                                      "five GB", "0GB", "nan", "1e30TB", "inf", "0"};
    uint64_t nbytes;
    for (size_t i = 0; i < CZ_ARRAY_LEN(good); i++) {
        ck_ok(cz_parse_size(good[i].text, &nbytes));
        ck_assert_uint_eq(nbytes, good[i].nbytes);
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(bad); i++)
        if (strcmp(bad[i], "5") != 0) ck_fails(cz_parse_size(bad[i], &nbytes), CZ_INVALID);
}
END_TEST

/* ---- the recorded checkpoints -----------------------------------------------------------------
 */

/* The output of either format behind one face. */
struct output {
    struct safetensors *st;
    struct pt *files[64];
    size_t n_files;
};

static void output_open(struct output *o, const char *dir, enum cz_consolidate_format format,
                        size_t n_files)
{
    static const struct shards_kind bin = {"pytorch_model", ".bin"};
    char name[SHARDS_NAME_NBYTES];
    memset(o, 0, sizeof *o);
    if (format == CZ_CONSOLIDATE_SAFETENSORS) {
        ck_ok(safetensors_dir_open(dir, &o->st));
        ck_assert_uint_eq(safetensors_n_files(o->st), n_files);
        ck_assert_str_eq(safetensors_metadata(o->st, "format"), "pt");
        return;
    }
    ck_assert_uint_lt(n_files, CZ_ARRAY_LEN(o->files));
    for (; o->n_files < n_files; o->n_files++) {
        char *path = file_join(dir, shards_file_name(&bin, o->n_files, n_files, name));
        ck_ok(pt_open(path, &o->files[o->n_files]));
        ck_ok(pt_verify(o->files[o->n_files], NULL, NULL));
        free(path);
    }
}

static void output_close(struct output *o)
{
    safetensors_close(o->st);
    for (size_t f = 0; f < o->n_files; f++) pt_close(o->files[f]);
}

static size_t output_count(const struct output *o)
{
    size_t n = o->st ? safetensors_count(o->st) : 0;
    for (size_t f = 0; f < o->n_files; f++) n += pt_root(o->files[f])->n_pairs;
    return n;
}

static const struct pickle_node *find_node(const struct output *o, const char *name,
                                           const struct pt **file)
{
    for (size_t f = 0; f < o->n_files; f++) {
        const struct pickle_node *node = pickle_get(pt_root(o->files[f]), name);
        *file = o->files[f];
        if (node) return node;
    }
    return NULL;
}

/* The values of `name` as fp32, and its element type. */
static enum cz_dtype output_read(const struct output *o, const char *name, size_t numel, float *dst)
{
    enum cz_dtype dtype = DTYPE_COUNT;
    if (o->st) {
        const char *kept = safetensors_metadata(o->st, name);
        const struct safetensors_info *info = safetensors_find(o->st, kept ? kept : name);
        ck_assert_msg(info != NULL, "%s is missing", name);
        ck_assert_msg(!kept || !safetensors_find(o->st, name), "%s is written twice", name);
        ck_assert_uint_eq(info->numel, numel);
        ck_assert(safetensors_dtype_to_base(info->dtype, &dtype));
        ck_ok(safetensors_read_f32(o->st, info, 0, numel, dst));
    } else {
        const struct pt *file;
        const struct pickle_node *node = find_node(o, name, &file);
        ck_assert_msg(pickle_is(node, PICKLE_TENSOR), "%s is missing", name);
        ck_assert_uint_eq(node->tensor->numel, numel);
        ck_assert(node->tensor->dtype->has_base && !node->tensor->requires_grad);
        dtype = node->tensor->dtype->base;
        ck_ok(pt_read_f32(file, node->tensor, 0, numel, dst));
    }
    return dtype;
}

/* Tensor by tensor against what DeepSpeed made. round_to: F32, or what the output was rounded to.
 */
static void expect_equal(const struct output *got, const struct safetensors *want,
                         enum cz_dtype round_to)
{
    for (size_t i = 0; i < safetensors_count(want); i++) {
        const struct safetensors_info *info = safetensors_at(want, i);
        float *a = malloc(info->numel * sizeof *a + 1), *b = malloc(info->numel * sizeof *b + 1);
        ck_assert(a && b);
        ck_ok(safetensors_read_f32(want, info, 0, info->numel, a));
        ck_assert_int_eq(output_read(got, info->name, info->numel, b), round_to);
        for (size_t k = 0; k < info->numel; k++) {
            if (round_to == DTYPE_BF16) a[k] = bf16_to_f32(f32_to_bf16(a[k]));
            if (round_to == DTYPE_F16) a[k] = f16_to_f32(f32_to_f16(a[k]));
        }
        ck_assert_msg(memcmp(a, b, info->numel * sizeof *a) == 0, "%s differs", info->name);
        free(a);
        free(b);
    }
}

static struct cz_consolidate_result run(const struct cz_consolidate_options *options)
{
    struct cz_consolidate_result result = {.size = sizeof result};
    ck_ok(cz_consolidate(options, &result));
    return result;
}

/* One checkpoint, one way to write it. */
static void check_output(const struct cz_consolidate_options *options,
                         const struct safetensors *want)
{
    struct output got;
    struct cz_consolidate_result result = run(options);
    output_open(&got, options->out_dir, options->format, result.n_files);
    size_t n_named = result.n_tensors + (got.st ? 0 : result.n_aliases);
    ck_assert_uint_eq(output_count(&got), n_named);
    ck_assert_uint_eq(result.n_tensors + result.n_aliases, safetensors_count(want));
    expect_equal(&got, want, options->has_dtype ? options->dtype : DTYPE_F32);
    output_close(&got);
}

typedef void (*each_fixture)(const char *ckpt_dir, const struct safetensors *want, const char *out);

/* Call fn for every recorded run that has a checkpoint. */
static void for_each_fixture(each_fixture fn)
{
    DIR *runs = opendir(test_fixture("runs"));
    ck_assert_ptr_nonnull(runs);
    const char *tmp = test_tmp_make_fast();
    int n = 0;
    for (struct dirent *d; (d = readdir(runs));) {
        char relative[512];
        struct safetensors *want;
        snprintf(relative, sizeof relative, "runs/%s/expected.safetensors", d->d_name);
        const char *expected = test_fixture(relative);
        snprintf(relative, sizeof relative, "runs/%s/ckpt", d->d_name);
        const char *ckpt = test_fixture(relative);
        if (!file_exists(expected)) continue; /* a run without a checkpoint, . or .. */
        char *out = file_join(tmp, d->d_name);
        ck_ok(safetensors_open(expected, &want));
        fn(ckpt, want, out);
        safetensors_close(want);
        free(out);
        n++;
    }
    closedir(runs);
    test_tmp_remove(tmp);
    ck_assert_int_ge(n, 10);
}

static void both_formats(const char *ckpt, const struct safetensors *want, const char *out)
{
    struct cz_consolidate_options o = {
        .size = sizeof o, .dir = ckpt, .out_dir = out, .format = CZ_CONSOLIDATE_SAFETENSORS};
    check_output(&o, want);
    o.format = CZ_CONSOLIDATE_BIN;
    o.verify = true;
    check_output(&o, want);
}

START_TEST(every_recorded_checkpoint_is_consolidated_exactly)
{
    for_each_fixture(both_formats);
}
END_TEST

static void sharded(const char *ckpt, const struct safetensors *want, const char *out)
{
    static const uint64_t limits[] = {66000, 200000};
    for (size_t i = 0; i < CZ_ARRAY_LEN(limits); i++)
        for (int format = 0; format < 2; format++) {
            const struct cz_consolidate_options o = {.size = sizeof o,
                                                     .dir = ckpt,
                                                     .out_dir = out,
                                                     .format = (enum cz_consolidate_format)format,
                                                     .shard_nbytes_max = limits[i]};
            check_output(&o, want);
        }
}

START_TEST(shards_hold_the_same)
{
    for_each_fixture(sharded);
}
END_TEST

static void narrowed(const char *ckpt, const struct safetensors *want, const char *out)
{
    struct cz_consolidate_options o = {.size = sizeof o,
                                       .dir = ckpt,
                                       .out_dir = out,
                                       .has_dtype = true,
                                       .verify = true,
                                       .dtype = DTYPE_BF16};
    check_output(&o, want);
    o.dtype = DTYPE_F16;
    o.format = CZ_CONSOLIDATE_SAFETENSORS;
    check_output(&o, want);
}

static const char *fixture_ckpt(const char *run_name)
{
    char relative[256];
    snprintf(relative, sizeof relative, "runs/%s/ckpt", run_name);
    return test_fixture(relative);
}

START_TEST(a_file_per_tensor)
{
    const char *tmp = test_tmp_make_fast();
    struct cz_consolidate_options o = {
        .size = sizeof o, .dir = fixture_ckpt("s3-bf16-adamw"), .out_dir = tmp};
    for (int format = 0; format < 2; format++) {
        o.format = (enum cz_consolidate_format)format;
        o.shard_nbytes_max = 1;
        struct cz_consolidate_result result = run(&o);
        ck_assert_uint_eq(result.n_files, result.n_tensors);
    }
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(weights_may_be_rounded_to_16_bits)
{
    for_each_fixture(narrowed);
}
END_TEST

/* ---- what is written --------------------------------------------------------------------------
 */

static void expect_same_file(const char *dir_a, const char *dir_b, const char *name)
{
    char *a, *b, *path_a = file_join(dir_a, name), *path_b = file_join(dir_b, name);
    size_t n_a, n_b;
    ck_ok(file_load(path_a, 1 << 30, &a, &n_a));
    ck_ok(file_load(path_b, 1 << 30, &b, &n_b));
    ck_assert_uint_eq(n_a, n_b);
    ck_assert_msg(memcmp(a, b, n_a) == 0, "%s differs", name);
    free(a);
    free(b);
    free(path_a);
    free(path_b);
}

START_TEST(output_does_not_depend_on_threads)
{
    const char *tmp = test_tmp_make_fast();
    char *one = file_join(tmp, "one"), *many = file_join(tmp, "many");
    struct cz_consolidate_options o = {
        .size = sizeof o, .dir = fixture_ckpt("s3-bf16-adamw"), .n_threads = 1};
    for (int format = 0; format < 2; format++) {
        o.format = (enum cz_consolidate_format)format;
        o.out_dir = one;
        o.n_threads = 1;
        run(&o);
        o.out_dir = many;
        o.n_threads = 7;
        run(&o);
        expect_same_file(one, many, format == 0 ? "pytorch_model.bin" : "model.safetensors");
    }
    free(one);
    free(many);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(frozen_weights_may_be_left_out)
{
    static const struct {
        const char *run, *frozen, *trained;
        size_t n;
    } recorded[] = {
        {"s2-fp32-dp3-frozen", "transformer.wpe.weight", "transformer.wte.weight", 1},
        {"s3-bf16-dp3-frozen", "transformer.h.0.ln_1.weight", "transformer.h.1.ln_1.weight", 12}};
    const char *tmp = test_tmp_make_fast();
    for (size_t i = 0; i < CZ_ARRAY_LEN(recorded); i++) {
        struct cz_consolidate_options o = {.size = sizeof o,
                                           .dir = fixture_ckpt(recorded[i].run),
                                           .out_dir = tmp,
                                           .format = CZ_CONSOLIDATE_SAFETENSORS};
        struct cz_consolidate_result all = run(&o), fewer;
        o.exclude_frozen = true;
        fewer = run(&o);
        ck_assert_uint_eq(all.n_tensors - fewer.n_tensors, recorded[i].n);
        struct safetensors *st;
        ck_ok(safetensors_dir_open(tmp, &st));
        ck_assert_ptr_null(safetensors_find(st, recorded[i].frozen));
        ck_assert_ptr_nonnull(safetensors_find(st, recorded[i].trained));
        safetensors_close(st);
    }
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(tied_names_share_one_storage)
{
    const char *tmp = test_tmp_make_fast();
    struct cz_consolidate_options o = {
        .size = sizeof o, .dir = fixture_ckpt("s2-fp32-adamw-gas2"), .out_dir = tmp};
    struct output got;
    const struct pt *file;
    output_open(&got, tmp, CZ_CONSOLIDATE_BIN, run(&o).n_files);
    const struct pickle_node *a = find_node(&got, "transformer.wte.weight", &file);
    const struct pickle_node *b = find_node(&got, "lm_head.weight", &file);
    ck_assert(pickle_is(a, PICKLE_TENSOR) && pickle_is(b, PICKLE_TENSOR));
    ck_assert_str_eq(a->tensor->key, b->tensor->key);
    ck_assert_uint_eq(a->tensor->storage_nbytes, a->tensor->numel * 4);
    output_close(&got);
    o.format = CZ_CONSOLIDATE_SAFETENSORS;
    run(&o);
    output_open(&got, tmp, CZ_CONSOLIDATE_SAFETENSORS, 1);
    ck_assert_str_eq(safetensors_metadata(got.st, "lm_head.weight"), "transformer.wte.weight");
    output_close(&got);
    test_tmp_remove(tmp);
}
END_TEST

static size_t count_entries(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

START_TEST(a_new_set_replaces_an_old_one)
{
    const char *tmp = test_tmp_make_fast();
    char *other = file_join(tmp, "notes.txt");
    ck_ok(file_save(other, "mine", 4));
    struct cz_consolidate_options o = {
        .size = sizeof o, .dir = fixture_ckpt("s1-fp32-dp3"), .out_dir = tmp};
    static const uint64_t limits[] = {20000, 66000, 0, 20000, 0};
    for (int format = 0; format < 2; format++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(limits); i++) {
            o.format = (enum cz_consolidate_format)format;
            o.shard_nbytes_max = limits[i];
            struct cz_consolidate_result result = run(&o);
            size_t n = result.n_files + (result.n_files > 1) + 1;     /* index, notes.txt */
            ck_assert_uint_eq(count_entries(tmp), n + (format == 1)); /* .bin of before stays */
        }
    free(other);
    test_tmp_remove(tmp);
}
END_TEST

START_TEST(failure_leaves_no_folder_behind)
{
    const char *tmp = test_tmp_make_fast();
    char *out = file_join(tmp, "out");
    struct cz_consolidate_result result = {.size = sizeof result};
    struct cz_consolidate_options o = {.size = sizeof o, .dir = tmp, .out_dir = out};
    ck_fails(cz_consolidate(&o, &result), CZ_NOTFOUND);
    ck_assert(!file_exists(out));
    o.dir = fixture_ckpt("s1-fp32-dp3");
    o.tag = "global_step12345";
    ck_fails(cz_consolidate(&o, &result), CZ_NOTFOUND);
    ck_assert(!file_exists(out));
    o.tag = NULL;
    o.has_dtype = true;
    o.dtype = DTYPE_I64;
    ck_fails(cz_consolidate(&o, &result), CZ_INVALID);
    ck_assert(!file_exists(out));
    free(out);
    test_tmp_remove(tmp);
}
END_TEST

struct seen {
    uint64_t done, total;
    int n;
};

static void see(uint64_t done, uint64_t total, void *user)
{
    struct seen *seen = user;
    ck_assert_uint_ge(done, seen->done);
    seen->done = done;
    seen->total = total;
    seen->n++;
}

START_TEST(progress_rises_to_the_end)
{
    const char *tmp = test_tmp_make_fast();
    struct seen seen = {0};
    struct cz_consolidate_options o = {.size = sizeof o,
                                       .dir = fixture_ckpt("s3-fp32-adamw"),
                                       .out_dir = tmp,
                                       .verify = true,
                                       .progress = see,
                                       .user = &seen};
    struct cz_consolidate_result result = run(&o);
    ck_assert_int_gt(seen.n, 10);
    ck_assert_uint_eq(seen.done, seen.total);
    ck_assert_uint_eq(seen.total, 2 * result.nbytes);
    test_tmp_remove(tmp);
}
END_TEST

TEST_MAIN("checkpoint/consolidate", sizes_are_decimal,
          every_recorded_checkpoint_is_consolidated_exactly, shards_hold_the_same,
          a_file_per_tensor, weights_may_be_rounded_to_16_bits, output_does_not_depend_on_threads,
          frozen_weights_may_be_left_out, tied_names_share_one_storage,
          a_new_set_replaces_an_old_one, failure_leaves_no_folder_behind, progress_rises_to_the_end)

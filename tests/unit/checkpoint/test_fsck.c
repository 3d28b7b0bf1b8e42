/* Claims: of 10,000 random flipped bits in checkpoints that we wrote, fsck finds all, and names the
 * file and, in a tensor, the tensor and its place; elsewhere in a .pt, mostly the very byte. In
 * DeepSpeed's own, flips in what is stored are found by the records' CRCs. Cut, missing, stale and
 * foreign files, and a `latest` that leads nowhere, are findings too; what is whole has none. */
#include "base/rng.h"
#include "checkpoint/fsck/fsck.h"
#include "checkpoint/store/store_impl.h"
#include "formats/pt/pt.h"
#include "tests/support/checkpoint/sparse_ckpt.h"
#include "tests/support/checkpoint/tags.h"
#include "tests/unit/checkpoint/ds_write_rig.h"

#include <sys/syscall.h>

/* ---- tags of real files ---------------------------------------------------------------------- */

static const char *fast_tmp(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/dev/shm/czero-test-XXXXXX");
    if (mkdtemp(path)) return path;
    return test_tmp_make();
}

/* A whole save of a small model, as the engine does it. */
static void save_model(const char *dir, const char *tag, int stage, int world_size,
                       enum cz_dtype dtype)
{
    struct rig r;
    struct manifest m;
    const struct rig_case c = {.stage = stage,
                               .world_size = world_size,
                               .dtype = dtype,
                               .tied = true,
                               .frozen = stage != 0,
                               .step = 12};
    const struct store_extra extra = {CKPT_STATE, "{\"global_steps\": 12}\n", 21};
    rig_init(&r, &c);
    manifest_init(&m);
    m.stage = stage;
    m.world_size = world_size;
    ck_ok(store_stage(dir, tag));
    char *staging = store_staging_path(dir, tag);
    rig_write(&r, staging, &m);
    ck_ok(store_publish(dir, tag, &m, &extra, 1, true));
    free(staging);
    manifest_free(&m);
    rig_free(&r);
}

/* ---- what was found -------------------------------------------------------------------------- */

struct seen {
    int n;
    bool whole_file; /* a finding about no place in particular */
    char path[1024], tensor[1024], sentence[2048];
    uint64_t off, nbytes; /* of the first */
    uint64_t n_progress, done, total;
};

static void see(const struct cz_fsck_finding *f, void *user)
{
    struct seen *seen = user;
    if (seen->n++ > 0) return;
    snprintf(seen->path, sizeof seen->path, "%s", f->path);
    snprintf(seen->tensor, sizeof seen->tensor, "%s", f->tensor);
    snprintf(seen->sentence, sizeof seen->sentence, "%s", f->sentence);
    seen->off = f->off;
    seen->nbytes = f->nbytes;
    ck_assert_msg(strncmp(f->sentence, f->path, strlen(f->path)) == 0 ||
                      strstr(f->sentence, ": ") != NULL,
                  "%s", f->sentence);
}

static void see_progress(uint64_t done, uint64_t total, void *user)
{
    struct seen *seen = user;
    if (total == seen->total) ck_assert_uint_ge(done, seen->done); /* otherwise: the next tag */
    ck_assert_uint_le(done, total);
    seen->done = done;
    seen->total = total;
    seen->n_progress++;
}

static cz_status check_with(const char *dir, const char *tag, bool all, struct seen *seen,
                            struct cz_fsck_report *report)
{
    memset(seen, 0, sizeof *seen);
    const struct cz_fsck_options o = {.size = sizeof o,
                                      .dir = dir,
                                      .tag = tag,
                                      .all_tags = all,
                                      .finding = see,
                                      .progress = see_progress,
                                      .user = seen};
    cz_status st = cz_fsck(&o, report);
    ck_assert_uint_eq(report->n_findings, (size_t)seen->n);
    return st;
}

static int check_dir(const char *dir, struct seen *seen)
{
    struct cz_fsck_report report = {.size = sizeof report};
    ck_ok(check_with(dir, NULL, false, seen, &report));
    cz_fsck_report_free(&report);
    return seen->n;
}

static void expect_clean(const char *dir)
{
    struct seen seen;
    ck_assert_msg(check_dir(dir, &seen) == 0, "%s", seen.sentence);
}

static void expect_sentence(const char *dir, const char *part)
{
    struct seen seen;
    ck_assert_msg(check_dir(dir, &seen) >= 1, "nothing was found in %s", dir);
    ck_assert_msg(strstr(seen.sentence, part) != NULL, "\"%s\" is not in: %s", part, seen.sentence);
}

/* ---- flips ----------------------------------------------------------------------------------- */

static void flip(const char *path, uint64_t bit)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (unsigned char)(1 << bit % 8);
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    close(fd);
}

static const struct manifest_tensor *tensor_at(const struct manifest_file *file, uint64_t byte)
{
    for (size_t i = 0; i < file->n_tensors; i++)
        if (byte >= file->tensors[i].off && byte - file->tensors[i].off < file->tensors[i].nbytes)
            return &file->tensors[i];
    return NULL;
}

/* *n_exact: flips outside tensors whose very byte was named. */
static void flip_one(const char *dir, const char *tag_dir, const struct manifest_file *file,
                     uint64_t bit, int *n_exact)
{
    struct seen seen;
    const char *path = tags_path(tag_dir, file->name);
    char kept[1024];
    snprintf(kept, sizeof kept, "%s", path);
    flip(kept, bit);
    check_dir(dir, &seen);
    flip(kept, bit);
    ck_assert_msg(seen.n >= 1, "bit %llu of %s was not found", (unsigned long long)bit, kept);
    ck_assert_str_eq(seen.path, kept);
    const struct manifest_tensor *t = tensor_at(file, bit / 8);
    if (t) {
        char name[512];
        snprintf(name, sizeof name, "%s, %s", t->name, t->what);
        ck_assert_str_eq(seen.tensor, name);
        ck_assert_uint_eq(seen.off, t->off);
        ck_assert_uint_eq(seen.nbytes, t->nbytes);
        ck_assert_ptr_nonnull(strstr(seen.sentence, name));
        ck_assert_int_eq(seen.n, 1);
    } else if (strcmp(seen.tensor, "zip headers and padding") == 0) {
        ck_assert_uint_eq(seen.off, bit / 8);
        ++*n_exact;
    }
}

static const struct {
    int stage, world_size;
    enum cz_dtype dtype;
} models[] = {{0, 1, DTYPE_F32}, {0, 2, DTYPE_F16},  {1, 2, DTYPE_BF16},
              {2, 3, DTYPE_F32}, {3, 2, DTYPE_BF16}, {3, 3, DTYPE_F32}};

static uint64_t random_below(struct rng_key *key, uint64_t *n_drawn, uint64_t n)
{
    uint64_t high = rng_u32(key, 2 * *n_drawn), low = rng_u32(key, 2 * *n_drawn + 1);
    ++*n_drawn;
    return (high << 32 | low) % n;
}

START_TEST(every_random_flip_in_what_we_wrote_is_found)
{
    struct rng_key key = {.seed = 5};
    uint64_t n_drawn = 0;
    int n_flips = 0, n_exact = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(models); i++) {
        char dir[64], tag_dir[128];
        struct manifest m;
        snprintf(dir, sizeof dir, "%s", fast_tmp());
        snprintf(tag_dir, sizeof tag_dir, "%s/global_step12", dir);
        save_model(dir, "global_step12", models[i].stage, models[i].world_size, models[i].dtype);
        expect_clean(dir);
        ck_ok(manifest_load(tag_dir, &m));
        for (int k = 0; k < 1700; k++, n_flips++) {
            const struct manifest_file *file = &m.files[random_below(&key, &n_drawn, m.n_files)];
            flip_one(dir, tag_dir, file, random_below(&key, &n_drawn, file->nbytes * 8), &n_exact);
        }
        expect_clean(dir);
        manifest_free(&m);
        ck_ok(store_remove_tree(dir));
    }
    ck_assert_int_ge(n_flips, 10000);
    ck_assert_int_gt(n_exact, 500);
}
END_TEST

/* Byte by byte: headers, padding, pickle, descriptors, directory, end. */
START_TEST(every_byte_outside_tensors_is_found)
{
    char dir[64], tag_dir[128];
    struct manifest m;
    int n_exact = 0;
    snprintf(dir, sizeof dir, "%s", fast_tmp());
    snprintf(tag_dir, sizeof tag_dir, "%s/t", dir);
    save_model(dir, "t", 2, 1, DTYPE_BF16);
    ck_ok(manifest_load(tag_dir, &m));
    for (size_t i = 0; i < m.n_files; i++)
        for (uint64_t byte = 0; byte < m.files[i].nbytes; byte++)
            if (!tensor_at(&m.files[i], byte))
                flip_one(dir, tag_dir, &m.files[i], byte * 8 + byte % 8, &n_exact);
    ck_assert_int_gt(n_exact, 300);
    manifest_free(&m);
    char *text;
    size_t n;
    ck_ok(file_load(tags_path(tag_dir, CKPT_MANIFEST), 1 << 20, &text, &n));
    free(text);
    char manifest[256];
    snprintf(manifest, sizeof manifest, "%s/" CKPT_MANIFEST, tag_dir);
    for (uint64_t byte = 0; byte < n; byte += 7) { /* all of them: test_manifest */
        struct seen seen;
        flip(manifest, byte * 8 + byte % 8);
        ck_assert_int_ge(check_dir(dir, &seen), 1);
        ck_assert_str_eq(seen.path, manifest);
        flip(manifest, byte * 8 + byte % 8);
    }
    expect_clean(dir);
    ck_ok(store_remove_tree(dir));
}
END_TEST

/* ---- sizes and names ------------------------------------------------------------------------- */

START_TEST(cut_and_grown_files_are_found)
{
    char dir[64], path[256];
    char *bytes;
    size_t n;
    snprintf(dir, sizeof dir, "%s", fast_tmp());
    save_model(dir, "t", 3, 2, DTYPE_F32);
    snprintf(path, sizeof path, "%s/t/zero_pp_rank_1_mp_rank_00_optim_states.pt", dir);
    ck_ok(file_load(path, 1 << 24, &bytes, &n));
    for (size_t cut = 0; cut < n; cut += 1 + n / 150) {
        struct seen seen;
        ck_assert_int_eq(truncate(path, (off_t)cut), 0);
        ck_assert_int_ge(check_dir(dir, &seen), 1);
        ck_assert_str_eq(seen.path, path);
        ck_assert_ptr_nonnull(strstr(seen.sentence, "cut off"));
        ck_ok(file_save(path, bytes, n));
    }
    expect_clean(dir);
    bytes = realloc(bytes, n + 1);
    bytes[n] = 0;
    ck_ok(file_save(path, bytes, n + 1));
    expect_sentence(dir, "1 bytes too long");
    ck_ok(file_save(path, bytes, n));
    free(bytes);
    expect_clean(dir);
    ck_ok(store_remove_tree(dir));
}
END_TEST

START_TEST(missing_and_stale_files_are_found)
{
    char dir[64], shard[256], stale[256];
    struct seen seen;
    struct cz_fsck_report report = {.size = sizeof report};
    snprintf(dir, sizeof dir, "%s", fast_tmp());
    save_model(dir, "t1", 2, 2, DTYPE_BF16);
    save_model(dir, "t2", 2, 2, DTYPE_BF16);
    snprintf(shard, sizeof shard, "%s/t2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", dir);
    snprintf(stale, sizeof stale, "%s/t2/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", dir);
    ck_assert_int_eq(link(shard, stale), 0);
    expect_sentence(dir, "stale");
    ck_ok(file_remove(stale));
    ck_ok(file_save(tags_path(dir, "t2/README"), "mine", 4)); /* it is not taken for a shard */
    expect_clean(dir);
    ck_ok(file_remove(shard));
    expect_sentence(dir, "missing");

    ck_ok(check_with(dir, "t1", false, &seen, &report));
    ck_assert_int_eq(seen.n, 0);
    ck_assert(report.has_manifest);
    ck_assert_uint_eq(report.n_files, 4);
    ck_assert_uint_gt(report.n_tensors, 20);
    ck_assert_uint_gt(report.nbytes, 10000);
    ck_assert_uint_eq(seen.done, seen.total);
    ck_assert_uint_eq(seen.done, report.nbytes);
    cz_fsck_report_free(&report);
    ck_ok(check_with(dir, NULL, true, &seen, &report));
    ck_assert_int_eq(seen.n, 1);
    cz_fsck_report_free(&report);
    ck_fails(check_with(dir, "t3", false, &seen, &report), CZ_NOTFOUND);
    cz_fsck_report_free(&report);

    ck_ok(file_save(tags_path(dir, "latest"), "t3", 2));
    expect_sentence(dir, "t3");
    ck_ok(file_save(tags_path(dir, "latest"), "", 0));
    expect_sentence(dir, "does not name a tag");
    ck_ok(store_remove_tree(dir));
}
END_TEST

/* ---- one file, weights, and what is none ----------------------------------------------------- */

START_TEST(single_files_and_folders_of_weights)
{
    char dir[64], path[256];
    struct seen seen;
    struct cz_fsck_report report = {.size = sizeof report};
    snprintf(dir, sizeof dir, "%s", fast_tmp());
    save_model(dir, "t", 1, 1, DTYPE_F32);
    snprintf(path, sizeof path, "%s/t/mp_rank_00_model_states.pt", dir);
    ck_ok(check_with(path, NULL, false, &seen, &report));
    ck_assert(seen.n == 0 && report.has_manifest && report.n_files == 1);
    cz_fsck_report_free(&report);
    flip(path, 8 * 40);
    ck_assert_int_eq(check_dir(path, &seen), 1);
    ck_assert_int_eq(mkdir(tags_path(dir, "w"), 0777), 0);
    ck_assert_int_eq(rename(path, tags_path(dir, "w/pytorch_model.bin")), 0);
    snprintf(path, sizeof path, "%s/w", dir);
    flip(tags_path(dir, "w/pytorch_model.bin"), 8 * 40);
    expect_clean(path);
    flip(tags_path(dir, "w/pytorch_model.bin"), 8 * 128); /* the first byte of the pickle */
    expect_sentence(path, "data.pkl");
    flip(tags_path(dir, "w/pytorch_model.bin"), 8 * 128);
    const char *index = "{\"weight_map\": {\"a\": \"pytorch_model.bin\", \"b\": \"gone.bin\"}}";
    ck_ok(file_save(tags_path(path, "pytorch_model.bin.index.json"), index, strlen(index)));
    expect_sentence(path, "gone.bin: missing");
    ck_ok(check_with(tags_path(dir, "t/" CKPT_MANIFEST), NULL, false, &seen, &report));
    ck_assert(seen.n == 0 && report.has_manifest);
    cz_fsck_report_free(&report);
    ck_ok(file_save(tags_path(dir, "x.pt"), "not a zip", 9));
    expect_sentence(tags_path(dir, "x.pt"), "x.pt");
    const unsigned char legacy[] = {0x80, 0x02, 0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46,
                                    0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19, 0x2E};
    ck_ok(file_save(tags_path(dir, "x.pt"), legacy, sizeof legacy));
    ck_fails(check_with(tags_path(dir, "x.pt"), NULL, false, &seen, &report), CZ_UNSUPPORTED);
    cz_fsck_report_free(&report);
    ck_fails(check_with(tags_path(dir, "none"), NULL, false, &seen, &report), CZ_NOTFOUND);
    cz_fsck_report_free(&report);
    ck_assert_int_eq(mkdir(tags_path(dir, "empty"), 0777), 0);
    ck_fails(check_with(tags_path(dir, "empty"), NULL, false, &seen, &report), CZ_NOTFOUND);
    cz_fsck_report_free(&report);
    ck_ok(store_remove_tree(dir));
}
END_TEST

START_TEST(safetensors_have_their_structure_checked)
{
    const char *small = test_fixture("models/gpt2-tiny/model.safetensors");
    struct seen seen;
    struct cz_fsck_report report = {.size = sizeof report};
    ck_ok(check_with(small, NULL, false, &seen, &report));
    ck_assert_int_eq(seen.n, 0);
    ck_assert_uint_eq(report.n_unchecked, report.n_tensors);
    ck_assert_uint_gt(report.n_tensors, 10);
    cz_fsck_report_free(&report);
    char dir[64], path[128], *bytes;
    size_t n;
    snprintf(dir, sizeof dir, "%s", fast_tmp());
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_ok(file_load(small, 1 << 26, &bytes, &n));
    ck_ok(file_save(path, bytes, n - 1));
    free(bytes);
    expect_sentence(dir, "model.safetensors");
    ck_ok(store_remove_tree(dir));
}
END_TEST

/* ---- several at a time ----------------------------------------------------------------------- */

#define N_LARGE 5

/* A .pt with one storage of 8 MiB. */
static void write_large(const char *path, int number)
{
    const uint64_t nbytes = (uint64_t)8 << 20;
    const int64_t shape[1] = {(int64_t)(nbytes / 4)};
    struct pickle_writer *w = pickle_writer_create();
    unsigned char *bytes;
    size_t n;
    struct pt_writer *pt;
    struct pt_written written;
    pickle_dict_begin(w);
    pickle_put_string(w, "large");
    const struct pickle_tensor_desc t = {
        .dtype = DTYPE_F32, .storage_numel = nbytes / 4, .ndim = 1, .shape = shape};
    pickle_put_tensor(w, &t);
    pickle_dict_end(w);
    ck_ok(pickle_writer_take(w, &bytes, &n));
    pickle_writer_destroy(w);
    const struct pt_create_options o = {.path = path,
                                        .pickle = bytes,
                                        .pickle_nbytes = n,
                                        .storage_nbytes = &nbytes,
                                        .n_storages = 1};
    char *values = malloc(nbytes);
    memset(values, number, nbytes);
    ck_ok(pt_create(&o, &pt));
    ck_ok(pt_write(pt, 0, 0, nbytes, values, NULL));
    ck_ok(pt_finish(pt, true, &written));
    pt_writer_destroy(pt);
    free(values);
    free(bytes);
}

struct order {
    int n;
    char paths[8][256];
    uint64_t done;
};

static void note_order(const struct cz_fsck_finding *f, void *user)
{
    struct order *order = user;
    snprintf(order->paths[order->n++], sizeof order->paths[0], "%s", f->path);
    ck_assert_str_eq(f->tensor, "data/0 (large)");
}

static void note_done(uint64_t done, uint64_t total, void *user)
{
    struct order *order = user;
    ck_assert(done >= order->done && done <= total);
    order->done = done;
}

START_TEST(findings_of_many_files_come_in_their_order)
{
    char dir[64], path[256];
    struct order order = {0};
    struct cz_fsck_report report = {.size = sizeof report};
    snprintf(dir, sizeof dir, "%s", fast_tmp());
    for (int i = 0; i < N_LARGE; i++) {
        snprintf(path, sizeof path, "%s/part%d.bin", dir, i);
        write_large(path, i);
        if (i != 2) flip(path, (((uint64_t)i << 20) + 5000) * 8);
    }
    const struct cz_fsck_options o = {
        .size = sizeof o, .dir = dir, .finding = note_order, .progress = note_done, .user = &order};
    ck_ok(cz_fsck(&o, &report));
    ck_assert_int_eq(order.n, N_LARGE - 1);
    ck_assert_uint_gt(order.done, (uint64_t)N_LARGE << 23);
    for (int i = 1; i < order.n; i++) ck_assert(strcmp(order.paths[i - 1], order.paths[i]) < 0);
    ck_assert_uint_eq(report.n_files, N_LARGE);
    ck_assert_uint_eq(report.n_tensors, N_LARGE);
    cz_fsck_report_free(&report);
    ck_ok(store_remove_tree(dir));
}
END_TEST

/* ---- sectors that cannot be read --------------------------------------------------------------
 */

static off_t bad_sector = -1; /* reads of this byte of any file fail */

ssize_t pread(int fd, void *dst, size_t n, off_t off)
{
    if (bad_sector >= off && bad_sector < off + (off_t)n) {
        errno = EIO;
        return -1;
    }
    return (ssize_t)syscall(SYS_pread64, fd, dst, n, off);
}

/* A .pt with a storage of a MiB and no checksums. */
static void write_without_sums(const char *dir)
{
    const int64_t shape[1] = {1 << 18};
    struct sparse_zip zip;
    struct pickle_writer *w = pickle_writer_create();
    pickle_dict_begin(w);
    pickle_put_string(w, "large");
    pickle_put_tensor(w,
                      &(struct pickle_tensor_desc){
                          .dtype = DTYPE_F32, .storage_numel = 1 << 18, .ndim = 1, .shape = shape});
    pickle_dict_end(w);
    sparse_start(&zip, dir, "sparse.bin", w);
    sparse_record(&zip, "data/0", NULL, 1 << 20);
    sparse_finish(&zip);
}

/* Records without a checksum are counted as unchecked, but they have been read. */
START_TEST(a_record_that_cannot_be_read_is_a_finding)
{
    const char *dir = fast_tmp();
    struct seen seen;
    struct cz_fsck_report report = {.size = sizeof report};
    write_without_sums(dir);
    ck_ok(check_with(dir, NULL, false, &seen, &report));
    ck_assert_uint_eq(report.n_findings, 0);
    ck_assert_uint_eq(report.n_unchecked, 3); /* data.pkl, version, data/0 */
    cz_fsck_report_free(&report);
    bad_sector = 1 << 19;
    expect_sentence(dir, "Input/output error");
    bad_sector = -1;
    write_large(tags_path(dir, "sparse.bin"), 1);
    expect_clean(dir);
    bad_sector = 1 << 22;
    expect_sentence(dir, "Input/output error");
    bad_sector = -1;
    ck_ok(store_remove_tree(dir));
}
END_TEST

/* ---- DeepSpeed's ----------------------------------------------------------------------------- */

/* Copy a fixture's folder of tags. */
static void copy_fixture(const char *name, const char *to)
{
    char command[2300];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", test_fixture(name), to);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(flips_in_deepspeeds_records_are_found)
{
    const char *const fixtures[] = {"runs/s2-bf16-adamw/ckpt", "runs/s3-bf16-dp3-frozen/ckpt"};
    struct rng_key key = {.seed = 6};
    uint64_t n_drawn = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(fixtures); i++) {
        char tmp[64], dir[128], path[512], *tag_dir, *tag;
        snprintf(tmp, sizeof tmp, "%s", fast_tmp());
        snprintf(dir, sizeof dir, "%s/ckpt", tmp);
        copy_fixture(fixtures[i], dir);
        expect_clean(dir);
        ck_ok(ckpt_locate(dir, NULL, &tag_dir, &tag));
        struct ckpt_list list;
        ck_ok(ckpt_list_files(tag_dir, ".pt", &list));
        for (int k = 0; k < 200; k++) {
            struct pt *pt;
            struct seen seen;
            snprintf(path, sizeof path, "%s/%s", tag_dir,
                     list.names[random_below(&key, &n_drawn, list.n)]);
            ck_ok(pt_open(path, &pt));
            const struct pt_record *r =
                pt_record_at(pt, random_below(&key, &n_drawn, pt_n_records(pt)));
            const uint64_t n = r->nbytes, off = r->off;
            pt_close(pt);
            if (n == 0) continue;
            const uint64_t bit = off * 8 + random_below(&key, &n_drawn, n * 8);
            flip(path, bit);
            ck_assert_int_ge(check_dir(dir, &seen), 1);
            flip(path, bit);
            ck_assert_str_eq(seen.path, path);
            if (seen.nbytes > 0) ck_assert(seen.off <= bit / 8 && bit / 8 < seen.off + seen.nbytes);
        }
        ckpt_list_free(&list);
        free(tag_dir);
        free(tag);
        ck_ok(store_remove_tree(tmp));
    }
}
END_TEST

/* A universal tag has no manifest and a file per tensor: what is missing shows when it is opened.
 */
START_TEST(a_universal_tag_that_misses_a_file_is_damaged)
{
    char tmp[64], dir[128], path[256];
    snprintf(tmp, sizeof tmp, "%s", fast_tmp());
    snprintf(dir, sizeof dir, "%s/u", tmp);
    copy_fixture("checkpoints/expected/u3", dir);
    expect_clean(dir);
    snprintf(path, sizeof path, "%s/t3/zero/l2.weight/fp32.pt", dir);
    ck_ok(file_remove(path));
    expect_sentence(dir, path);
    ck_ok(store_remove_tree(tmp));
}
END_TEST

/* The file of one parameter's state, taken away, is the only finding: it names the parameter and
 * the state. */
static void expect_missing_state(const char *dir, const char *param, const char *state)
{
    char path[256], hidden[280], tensor[64];
    struct seen seen;
    snprintf(path, sizeof path, "%s/t3/zero/%s/%s.pt", dir, param, state);
    snprintf(hidden, sizeof hidden, "%s.away", path);
    snprintf(tensor, sizeof tensor, "%s, %s", param, state);
    ck_assert_int_eq(rename(path, hidden), 0);
    ck_assert_msg(check_dir(dir, &seen) == 1, "%s: %d findings", path, seen.n);
    ck_assert_str_eq(seen.path, path);
    ck_assert_str_eq(seen.tensor, tensor);
    ck_assert_msg(strstr(seen.sentence, "missing: the optimizer's state") != NULL, "%s",
                  seen.sentence);
    ck_assert_int_eq(rename(hidden, path), 0);
}

/* Nothing else lists the states of a universal tag: that the other parameters have one tells. */
START_TEST(a_universal_tag_that_misses_a_state_is_damaged)
{
    static const char *const families[] = {"u2", "u3"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(families); i++) {
        char tmp[64], dir[128], from[64], zero[160], path[256];
        struct ckpt_list params;
        snprintf(tmp, sizeof tmp, "%s", fast_tmp());
        snprintf(dir, sizeof dir, "%s/u", tmp);
        snprintf(from, sizeof from, "checkpoints/expected/%s", families[i]);
        copy_fixture(from, dir);
        snprintf(zero, sizeof zero, "%s/t3/zero", dir);
        ck_ok(ckpt_list_files(zero, "", &params));
        int n = 0;
        for (size_t p = 0; p < params.n; p++) {
            snprintf(path, sizeof path, "%s/%s/exp_avg.pt", zero, params.names[p]);
            if (access(path, F_OK) != 0) continue; /* of no trained parameter */
            expect_missing_state(dir, params.names[p], "exp_avg");
            expect_missing_state(dir, params.names[p], "exp_avg_sq");
            n++;
        }
        ck_assert_int_ge(n, 2);
        expect_clean(dir);
        ckpt_list_free(&params);
        ck_ok(store_remove_tree(tmp));
    }
}
END_TEST

START_TEST(folders_are_synced_and_files_are_none)
{
    const char *tmp = test_tmp_make();
    char path[128];
    snprintf(path, sizeof path, "%s/file", tmp);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_ok(store_sync_dir(tmp));
    ck_fails(store_sync_dir(path), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "file: cannot be synced to disk: Not a dir"));
    test_tmp_remove(tmp);
}
END_TEST

TEST_MAIN_SECONDS(180, "checkpoint/fsck", every_random_flip_in_what_we_wrote_is_found,
                  every_byte_outside_tensors_is_found, cut_and_grown_files_are_found,
                  missing_and_stale_files_are_found, single_files_and_folders_of_weights,
                  safetensors_have_their_structure_checked,
                  findings_of_many_files_come_in_their_order,
                  a_record_that_cannot_be_read_is_a_finding, flips_in_deepspeeds_records_are_found,
                  a_universal_tag_that_misses_a_file_is_damaged,
                  a_universal_tag_that_misses_a_state_is_damaged,
                  folders_are_synced_and_files_are_none)

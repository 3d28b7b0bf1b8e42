/* Claim: every .pt of the recorded DeepSpeed runs opens and verifies, and our writer, given its
 * pickle and its storages, makes the same file byte by byte, but for the 40 digits of its id and
 * their checksum. */
#include "formats/file_io.h"
#include "formats/pt/pt_impl.h"
#include "tests/support/check_main.h"

#include <ftw.h>
#include <string.h>

static char paths[400][512];
static size_t n_paths;

static int keep_pt(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)at;
    size_t n = strlen(path);
    if (type != FTW_F || n < 3 || strcmp(path + n - 3, ".pt") != 0) return 0;
    ck_assert_uint_lt(n_paths, CZ_ARRAY_LEN(paths));
    snprintf(paths[n_paths++], sizeof paths[0], "%s", path);
    return 0;
}

/* Of the recorded runs, and some of our own making. */
static void find_paths(void)
{
    static const char *const ours[] = {"simple", "many", "strides", "dtypes", "numbers"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(ours); i++) {
        char relative[64];
        snprintf(relative, sizeof relative, "formats/pt/%s.pt", ours[i]);
        snprintf(paths[n_paths++], sizeof paths[0], "%s", test_fixture(relative));
    }
    ck_assert_int_eq(nftw(test_fixture("runs"), keep_pt, 20, FTW_PHYS), 0);
    ck_assert_uint_gt(n_paths, 40);
}

START_TEST(all_open_and_verify)
{
    find_paths();
    for (size_t i = 0; i < n_paths; i++) {
        struct pt *pt;
        size_t n_unchecked = 1;
        ck_ok(pt_open(paths[i], &pt));
        ck_ok(pt_verify(pt, NULL, &n_unchecked));
        ck_assert_uint_eq(n_unchecked, 0);
        ck_assert_msg(pickle_is(pt_root(pt), PICKLE_DICT), "%s", paths[i]);
        pt_close(pt);
    }
}
END_TEST

static char *load(const char *path, size_t *n)
{
    char *bytes;
    ck_ok(file_load(path, (size_t)1 << 28, &bytes, n));
    return bytes;
}

enum { N_STORAGES_MAX = 1000 };

/* The same content under `path`, by our writer. */
static void rewrite(const struct pt *pt, const char *bytes, const char *archive, const char *path)
{
    const struct pt_record *pickle = pt_record_find(pt, "data.pkl");
    const struct pt_record *storages[N_STORAGES_MAX];
    uint64_t sizes[N_STORAGES_MAX];
    struct pt_writer *w;
    size_t n = 0;
    for (; n < N_STORAGES_MAX; n++) {
        char name[32];
        snprintf(name, sizeof name, "data/%zu", n);
        if (!(storages[n] = pt_record_find(pt, name))) break;
        sizes[n] = storages[n]->nbytes;
    }
    ck_assert_uint_eq(n + 6, pt_n_records(pt));
    ck_ok(pt_create(&(struct pt_create_options){.path = path,
                                                .archive = archive,
                                                .pickle = bytes + pickle->off,
                                                .pickle_nbytes = (size_t)pickle->nbytes,
                                                .storage_nbytes = sizes,
                                                .n_storages = n},
                    &w));
    for (size_t i = n; i-- > 0;)
        ck_ok(pt_write(w, i, 0, (size_t)sizes[i], bytes + storages[i]->off, NULL));
    ck_ok(pt_finish(w, true, NULL));
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_eq(pt_storage_crc(w, i), storages[i]->crc);
        ck_assert_uint_eq(pt_storage_off(w, i), storages[i]->off);
    }
    pt_writer_destroy(w);
}

/* The id is the last record: its payload, the CRC behind it, and the CRC in its entry. */
static void blank_id(char *bytes, size_t nbytes, const struct pt_record *id)
{
    uint64_t end = nbytes - ZIP64_END_NBYTES - ZIP64_LOCATOR_NBYTES - ZIP_END_NBYTES;
    uint64_t entry = end;
    while (memcmp(bytes + entry, "PK\1\2", 4) != 0) entry--;
    memset(bytes + id->off, '0', (size_t)id->nbytes);
    memset(bytes + id->off + id->nbytes + 4, 0, 4);
    memset(bytes + entry + 16, 0, 4);
}

static void expect_identical(const char *path, const char *mine)
{
    char archive[256];
    const char *base = strrchr(path, '/') + 1;
    snprintf(archive, sizeof archive, "%.*s", (int)(strlen(base) - 3), base);
    struct pt *pt;
    size_t n_want, n_got;
    char *want = load(path, &n_want);
    ck_ok(pt_open(path, &pt));
    rewrite(pt, want, archive, mine);
    char *got = load(mine, &n_got);
    ck_assert_uint_eq(n_got, n_want);
    const struct pt_record *id = pt_record_find(pt, ".data/serialization_id");
    ck_assert_ptr_eq(id, pt_record_at(pt, pt_n_records(pt) - 1));
    blank_id(want, n_want, id);
    blank_id(got, n_got, id);
    ck_assert_msg(memcmp(got, want, n_want) == 0, "%s", path);
    free(want);
    free(got);
    pt_close(pt);
    ck_ok(pt_open(mine, &pt));
    ck_ok(pt_verify(pt, NULL, NULL));
    pt_close(pt);
}

START_TEST(rewritten_they_are_the_same_bytes)
{
    const char *dir = test_tmp_make();
    char *mine = file_join(dir, "mine.pt");
    find_paths();
    for (size_t i = 0; i < n_paths; i++) expect_identical(paths[i], mine);
    free(mine);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/pt_fixtures", all_open_and_verify, rewritten_they_are_the_same_bytes)

/* Claim: files and storages beyond 4 GiB are written and read back (zip64). Their sums are checked
 * in test_pt_large_slow. */
#include "formats/file_io.h"
#include "tests/support/checkpoint/pt_large.h"

#include <string.h>

static struct pt *open_large(const char *path)
{
    struct pt *pt;
    struct pt_written written = large_make(path);
    ck_ok(pt_open(path, &pt));
    ck_assert_uint_eq(pt_nbytes(pt), written.nbytes);
    ck_assert_uint_gt(pt_nbytes(pt), LARGE_NBYTES);
    return pt;
}

START_TEST(elements_beyond_4_gib)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "large.pt");
    struct pt *pt = open_large(path);
    const struct pickle_tensor *large = pickle_get(pt_root(pt), "large")->tensor;
    float x[5];
    ck_assert_uint_eq(large->numel, LARGE_NUMEL);
    ck_ok(pt_read(pt, large, LARGE_NUMEL - 5, 5, x));
    ck_assert(x[0] == 0 && x[1] == 0 && memcmp(x + 2, large_tail, sizeof large_tail) == 0);
    ck_ok(pt_read_f32(pt, large, 0, 5, x));
    ck_assert(x[0] == 0 && x[4] == 0);
    const struct pickle_tensor *after = pickle_get(pt_root(pt), "after")->tensor;
    ck_assert_uint_gt(pt_storage(pt, after)->header_off, 0xFFFFFFFFu);
    ck_ok(pt_read(pt, after, 0, 4, x));
    ck_assert_int_eq(memcmp(x, large_after, sizeof large_after), 0);
    ck_assert_uint_eq(pt_storage(pt, after)->crc, crc32_update(0, x, sizeof large_after));
    ck_assert_uint_eq(pickle_get(pt_root(pt), "empty")->tensor->numel, 0);
    pt_close(pt);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_large_file_that_lost_its_end_is_refused)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "large.pt");
    struct pt *pt = open_large(path);
    uint64_t nbytes = pt_nbytes(pt);
    pt_close(pt);
    ck_assert_int_eq(truncate(path, (off_t)nbytes - 1), 0);
    ck_fails(pt_open(path, &pt), CZ_CORRUPT);
    ck_assert_int_eq(truncate(path, (off_t)nbytes / 2), 0);
    ck_fails(pt_open(path, &pt), CZ_CORRUPT);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/pt_large", elements_beyond_4_gib, a_large_file_that_lost_its_end_is_refused)

/* Claim: the checksums of a file beyond 4 GiB, put together from pieces and holes, are those of its
 * bytes: of each record, and of the whole file. (Reads 10 GiB of holes.) */
#include "formats/file_io.h"
#include "tests/support/checkpoint/pt_large.h"

static uint32_t crc_of_file(const char *path)
{
    static unsigned char block[1 << 20];
    uint64_t nbytes;
    uint32_t crc = 0;
    int fd;
    ck_ok(file_open_read(path, &fd, &nbytes));
    for (uint64_t at = 0; at < nbytes;) {
        size_t n = nbytes - at < sizeof block ? (size_t)(nbytes - at) : sizeof block;
        ck_ok(file_pread(fd, path, block, n, at));
        crc = crc32_update(crc, block, n);
        at += n;
    }
    close(fd);
    return crc;
}

START_TEST(sums_of_a_large_file)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "large.pt");
    struct pt_written written = large_make(path);
    struct pt *pt;
    ck_ok(pt_open(path, &pt));
    ck_ok(pt_verify(pt, NULL, NULL));
    pt_close(pt);
    ck_assert_uint_eq(crc_of_file(path), written.crc);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/pt_large_slow", sums_of_a_large_file)

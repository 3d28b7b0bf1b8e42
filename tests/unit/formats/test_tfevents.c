/* Claims: records carry lengths and masked CRCs as TensorBoard wants them, and hold the protocol
 * buffers that PyTorch's writer produces; flushing leaves only whole records in the file. */
#include "formats/file_io.h"
#include "formats/tfevents.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

START_TEST(crc_matches_known_answers)
{
    /* RFC 3720, B.4, and the usual check value. */
    unsigned char block[32] = {0};
    ck_assert_uint_eq(tfevents_crc32c("123456789", 9), 0xE3069283u);
    ck_assert_uint_eq(tfevents_crc32c(block, 32), 0x8A9136AAu);
    memset(block, 0xff, 32);
    ck_assert_uint_eq(tfevents_crc32c(block, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++) block[i] = (unsigned char)i;
    ck_assert_uint_eq(tfevents_crc32c(block, 32), 0x46DD794Eu);
    ck_assert_uint_eq(tfevents_crc32c("", 0), 0);
}
END_TEST

static cz_status open_in(const char *dir, struct tfevents **w)
{
    struct out_folder folder;
    *w = NULL;
    TRY(out_folder_open(dir, &folder));
    cz_status st = tfevents_open(&folder, w);
    out_folder_close(&folder);
    return st;
}

static uint32_t masked(const void *data, size_t n)
{
    uint32_t crc = tfevents_crc32c(data, n);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* The data of the record at *at, its framing checked; *at moves behind it. */
static const char *next_record(const char *file, size_t nbytes, size_t *at, size_t *n)
{
    uint64_t length;
    uint32_t crc;
    ck_assert_uint_le(*at + 16, nbytes);
    memcpy(&length, file + *at, 8);
    memcpy(&crc, file + *at + 8, 4);
    ck_assert_uint_eq(crc, masked(file + *at, 8));
    ck_assert_uint_le(*at + 16 + length, nbytes);
    const char *data = file + *at + 12;
    memcpy(&crc, data + length, 4);
    ck_assert_uint_eq(crc, masked(data, length));
    *at += 16 + length;
    *n = length;
    return data;
}

/* What torch.utils.tensorboard wrote for add_scalar("Train/Samples/lr", 0.001, 8), from behind the
 * time stamp on. */
static const unsigned char torch_scalar[] = {
    0x10, 0x08, 0x2a, 0x19, 0x0a, 0x17, 0x0a, 0x10, 'T', 'r',  'a',  'i',  'n',  '/', 'S',
    'a',  'm',  'p',  'l',  'e',  's',  '/',  'l',  'r', 0x15, 0x6f, 0x12, 0x83, 0x3a};

START_TEST(records_hold_what_pytorch_writes)
{
    const char *dir = test_tmp_make();
    struct tfevents *w;
    char *file;
    size_t nbytes, at = 0, n;
    double when, now = (double)time(NULL);
    ck_ok(open_in(dir, &w));
    char path[512];
    snprintf(path, sizeof path, "%s", tfevents_path(w));
    ck_assert_ptr_nonnull(strstr(path, "/events.out.tfevents."));
    ck_ok(tfevents_scalar(w, "Train/Samples/lr", 0.001, 8));
    ck_ok(tfevents_scalar(w, "big", INFINITY, (int64_t)1 << 40));
    ck_ok(tfevents_restart(w, 5));
    ck_ok(tfevents_flush(w));
    ck_ok(file_load(path, 1 << 20, &file, &nbytes));
    ck_ok(tfevents_close(w));
    const char *data = next_record(file, nbytes, &at, &n);
    ck_assert_int_eq(data[0], 0x09);
    memcpy(&when, data + 1, 8);
    ck_assert_double_lt(fabs(when - now), 100);
    ck_assert_mem_eq(data + 9,
                     "\x1a\x0d"
                     "brain.Event:2\x52\x07\x0a\x05"
                     "czero",
                     24);
    ck_assert_uint_eq(n, 33);
    data = next_record(file, nbytes, &at, &n);
    ck_assert_uint_eq(n, 9 + sizeof torch_scalar);
    ck_assert_int_eq(data[0], 0x09);
    ck_assert_mem_eq(data + 9, torch_scalar, sizeof torch_scalar);
    data = next_record(file, nbytes, &at, &n);
    ck_assert_mem_eq(data + 9, "\x10\x80\x80\x80\x80\x80\x20\x2a\x0c", 9);
    ck_assert_mem_eq(data + n - 4, "\x00\x00\x80\x7f", 4);
    data = next_record(file, nbytes, &at, &n);
    ck_assert_uint_eq(n, 15);
    ck_assert_mem_eq(data + 9, "\x10\x05\x3a\x02\x08\x01", 6); /* as SummaryWriter's purge_step */
    ck_assert_uint_eq(at, nbytes);
    free(file);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(many_points_survive_the_buffer)
{
    const char *dir = test_tmp_make();
    struct tfevents *w;
    char *file, path[512];
    size_t nbytes, at = 0, n, n_records = 0;
    ck_ok(open_in(dir, &w));
    snprintf(path, sizeof path, "%s", tfevents_path(w));
    for (int i = 0; i < 2000; i++) ck_ok(tfevents_scalar(w, "curve", i, i));
    ck_ok(tfevents_close(w));
    ck_ok(file_load(path, 1 << 20, &file, &nbytes));
    for (; at < nbytes; n_records++) next_record(file, nbytes, &at, &n);
    ck_assert_uint_eq(n_records, 2001);
    free(file);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(writers_of_one_second_get_files_of_their_own)
{
    const char *dir = test_tmp_make();
    struct tfevents *a, *b;
    ck_ok(open_in(dir, &a));
    ck_ok(open_in(dir, &b));
    ck_assert_str_ne(tfevents_path(a), tfevents_path(b));
    ck_ok(tfevents_close(a));
    ck_ok(tfevents_close(b));
    ck_ok(tfevents_close(NULL));
    test_tmp_remove(dir);
}
END_TEST

START_TEST(failures_name_the_file_and_leave_whole_records)
{
    const char *dir = test_tmp_make();
    struct tfevents *w;
    char *file, path[512], folder[128], tag[TFEVENTS_TAG_NBYTES_MAX + 2];
    size_t nbytes, at = 0, n;
    snprintf(path, sizeof path, "%s/file", dir);
    ck_ok(file_save(path, "x", 1));
    snprintf(folder, sizeof folder, "%s/file/sub", dir);
    ck_fails(open_in(folder, &w), CZ_IO);
    ck_assert_ptr_null(w);
    ck_ok(open_in(dir, &w));
    snprintf(path, sizeof path, "%s", tfevents_path(w));
    memset(tag, 'a', sizeof tag - 1);
    tag[sizeof tag - 1] = '\0';
    ck_fails(tfevents_scalar(w, tag, 1, 1), CZ_INVALID);
    ck_fails(tfevents_scalar(w, "\xff", 1, 1), CZ_INVALID);
    ck_ok(tfevents_scalar(w, "kept", 1, 1));
    ck_ok(tfevents_flush(w));
    struct rlimit limit = {150, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 5; i++) ck_ok(tfevents_scalar(w, "lost", i, i));
    ck_fails(tfevents_flush(w), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), path));
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_ok(tfevents_scalar(w, "kept", 2, 2));
    ck_ok(tfevents_close(w));
    ck_ok(file_load(path, 1 << 20, &file, &nbytes));
    int n_records = 0;
    for (; at < nbytes; n_records++) next_record(file, nbytes, &at, &n);
    ck_assert_int_eq(n_records, 3);
    free(file);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/tfevents", crc_matches_known_answers, records_hold_what_pytorch_writes,
          many_points_survive_the_buffer, writers_of_one_second_get_files_of_their_own,
          failures_name_the_file_and_leave_whole_records)

/* Claim: what is put into a file's queue, in whatever pieces and order and by however many threads,
 * is in the file after the drain; a write that fails is reported, by the drain at the latest; it
 * works where no thread can be started. */
#include "formats/crc32.h"
#include "formats/file_queue.h"
#include "tests/support/check_main.h"
#include "tests/support/faults.h"

#include <pthread.h>
#include <string.h>

enum { N = 13 * (1 << 20) + 12345, N_THREADS = 4, PIECES_MAX = 40000 };

struct piece {
    size_t off, nbytes;
};

static unsigned char content[N];
static struct piece pieces[PIECES_MAX];
static size_t n_pieces;
static uint32_t seed = 3;

static uint32_t next_random(void)
{
    return (seed = seed * 1664525u + 1013904223u) >> 8;
}

static void make_content(void)
{
    for (size_t i = 0; i < N; i++) content[i] = (unsigned char)next_random();
    faults_clear();
}

/* Cut the file into pieces of up to `max` bytes; shuffled or in order. */
static void cut(size_t max, bool shuffled)
{
    n_pieces = 0;
    for (size_t at = 0; at < N; n_pieces++) {
        size_t n = 1 + next_random() % max;
        if (n > N - at) n = N - at;
        ck_assert_uint_lt(n_pieces, PIECES_MAX);
        pieces[n_pieces] = (struct piece){at, n};
        at += n;
    }
    for (size_t i = n_pieces; shuffled && i-- > 1;) {
        size_t j = next_random() % (i + 1);
        struct piece kept = pieces[i];
        pieces[i] = pieces[j];
        pieces[j] = kept;
    }
}

struct shared {
    struct file_queue *q;
    atomic_size_t next;
};

static void *put_pieces(void *arg)
{
    struct shared *s = arg;
    for (size_t i; (i = atomic_fetch_add(&s->next, 1)) < n_pieces;) {
        const struct piece *p = &pieces[i];
        uint32_t crc = 0;
        if (file_queue_put(s->q, content + p->off, p->nbytes, p->off, &crc) != CZ_OK) return s;
        if (crc != crc32_update(0, content + p->off, p->nbytes)) return s;
    }
    return NULL;
}

/* A thread's stack has to fit the address space. */
static void refuse_threads(void)
{
    pthread_t thread;
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, (size_t)1 << 50);
    ck_assert_int_eq(pthread_setattr_default_np(&huge), 0);
    ck_assert_int_ne(pthread_create(&thread, NULL, put_pieces, NULL), 0);
}

static bool is_cached; /* as on file systems without O_DIRECT */

static cz_status save(const char *path, int n_threads)
{
    struct file_durable f;
    struct shared s = {0};
    pthread_t threads[N_THREADS];
    TRY(file_durable_create(&f, path, N));
    if (is_cached && f.direct_fd >= 0) {
        close(f.direct_fd);
        f.direct_fd = -1;
    }
    ck_ok(file_queue_create(&f, &s.q));
    for (int t = 0; t < n_threads; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, put_pieces, &s), 0);
    bool failed = n_threads == 0 && put_pieces(&s);
    for (int t = 0; t < n_threads; t++) {
        void *result;
        pthread_join(threads[t], &result);
        failed |= result != NULL;
    }
    cz_status st = file_queue_drain(s.q);
    ck_assert(!failed || st != CZ_OK);
    file_queue_destroy(s.q);
    if (st == CZ_OK) return file_durable_commit(&f);
    file_durable_abort(&f);
    return st;
}

static void expect_content(const char *path)
{
    char *got;
    size_t n;
    ck_ok(file_load(path, N + 1, &got, &n));
    ck_assert_uint_eq(n, N);
    ck_assert_int_eq(memcmp(got, content, N), 0);
    free(got);
}

START_TEST(pieces_of_all_sizes)
{
    static const size_t sizes[] = {900, 70000, 5 << 20};
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    make_content();
    for (size_t i = 0; i < CZ_ARRAY_LEN(sizes); i++)
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            cut(sizes[i], shuffled);
            ck_ok(save(path, 0));
            expect_content(path);
            ck_ok(save(path, N_THREADS));
            expect_content(path);
        }
    free(path);
    test_tmp_remove(dir);
}
END_TEST

/* Whole windows reach the disk as they are: one write each, however small the puts were. */
START_TEST(puts_that_continue_each_other_are_joined)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    make_content();
    cut(5000, false);
    faults_clear();
    ck_ok(save(path, 0));
    ck_assert_int_le(faults_count(FAULT_PWRITE), N / (1 << 20) + 4);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(failing_writes_are_reported)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    make_content();
    for (int n_threads = 0; n_threads <= N_THREADS; n_threads += N_THREADS)
        for (long nth = 0; nth < 12; nth++) {
            cut(300000, true);
            faults_clear();
            faults_plan(FAULT_PWRITE, nth, nth % 2 ? EIO : ENOSPC);
            ck_fails(save(path, n_threads), CZ_IO);
            ck_assert_ptr_nonnull(strstr(cz_last_error(), path));
            ck_assert_ptr_nonnull(strstr(cz_last_error(), strerror(nth % 2 ? EIO : ENOSPC)));
            ck_assert(!file_exists(path));
        }
    faults_clear();
    faults_disk_full(5000000);
    ck_fails(save(path, N_THREADS), CZ_IO);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), strerror(ENOSPC)));
    faults_clear();
    faults_short_writes(99);
    ck_ok(save(path, N_THREADS));
    expect_content(path);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(through_the_cache)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    make_content();
    is_cached = true;
    cut(300000, true);
    ck_ok(save(path, N_THREADS));
    expect_content(path);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(without_threads_puts_write)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    make_content();
    cut(300000, true);
    refuse_threads();
    ck_ok(save(path, 0));
    expect_content(path);
    faults_clear();
    faults_plan(FAULT_PWRITE, 3, EIO);
    ck_fails(save(path, 0), CZ_IO);
    free(path);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_queue_that_is_not_drained_can_go)
{
    const char *dir = test_tmp_make();
    char *path = file_join(dir, "file");
    struct file_durable f;
    struct file_queue *q;
    uint32_t crc = 0;
    make_content();
    ck_ok(file_durable_create(&f, path, N));
    ck_ok(file_queue_create(&f, &q));
    ck_ok(file_queue_put(q, content, N / 2, 100, &crc));
    file_queue_destroy(q);
    file_queue_destroy(NULL);
    file_durable_abort(&f);
    ck_assert(!file_exists(path));
    free(path);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("formats/file_queue", pieces_of_all_sizes, puts_that_continue_each_other_are_joined,
          failing_writes_are_reported, through_the_cache, without_threads_puts_write,
          a_queue_that_is_not_drained_can_go)

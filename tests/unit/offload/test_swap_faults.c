/* Claim: transfers that are short, interrupted or put off are completed; what fails ends in one
 * sentence that names file, offset and cause, for every waiting thread and within a second; never
 * are wrong bytes handed out. Through io_uring and through threads. */
#include "base/clock.h"
#include "tests/unit/offload/swap_moods.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define BLOCK  ((size_t)8 << 10)
#define NBYTES (16 * BLOCK)

static struct swap *open_moody(const char *dir, const struct swap_way *way, struct moods *m)
{
    struct swap *s = swap_rig_open(dir, way, NBYTES, BLOCK, 3);
    swap_set_fault(s, &(struct swap_fault){moods_ask, moods_result, m});
    return s;
}

static const char *dir;

static bool is_here(const struct swap_way *way)
{
    static int has_uring = -1;
    if (has_uring < 0) has_uring = swap_has_uring(dir);
    return way->engine != SWAP_ENGINE_URING || has_uring;
}

#define EACH_WAY(way)                                                                              \
    for (const struct swap_way *way = swap_ways; way < swap_ways + CZ_ARRAY_LEN(swap_ways); way++) \
        if (is_here(way))

static void setup(void)
{
    dir = test_tmp_make();
}

static void teardown(void)
{
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    test_tmp_remove(dir);
}

/* ---- completed --------------------------------------------------------------------------------
 */

static void round_trips(struct swap *s)
{
    unsigned char *src = swap_rig_memory(NBYTES), *dst = swap_rig_memory(NBYTES);
    uint64_t ticket;
    swap_rig_fill(src, NBYTES, 3);
    ck_ok(swap_write_begin(s, src, 0, NBYTES, &ticket));
    ck_ok(swap_drain(s));
    ck_ok(swap_read_begin(s, dst, 0, NBYTES, &ticket));
    ck_ok(swap_wait(s, ticket));
    ck_assert_mem_eq(dst, src, NBYTES);
    ck_ok(swap_write(s, 12345, 54321, src));
    ck_ok(swap_read(s, 12345, 54321, dst));
    ck_assert_mem_eq(dst, src, 54321);
    ck_ok(swap_drain(s));
    free(src);
    free(dst);
}

START_TEST(moods_that_pass_are_waited_out)
{
    static const struct moods passing[] = {{.nth = -1, .error = EINTR},
                                           {.nth = -1, .error = EAGAIN},
                                           {.nth = 0, .is_short = true},
                                           {.nth = 0, .is_short_odd = true},
                                           {.nth = -1, .error = EAGAIN, .is_short = true},
                                           {.nth = 0, .error = EINVAL}, /* O_DIRECT, said late */
                                           {.nth = 3, .error = EINVAL, .is_short = true}};
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(passing); i++) {
        EACH_WAY(way)
        {
            struct moods m = passing[i];
            struct swap *s = open_moody(dir, way, &m);
            bool was_direct = strstr(swap_describe(s), "O_DIRECT") != NULL;
            round_trips(s);
            if (m.error == EINVAL)
                ck_assert_ptr_nonnull(strstr(swap_describe(s), "page cache"));
            else /* the rest of a short transfer is asked for in whole sectors */
                ck_assert_int_eq(strstr(swap_describe(s), "O_DIRECT") != NULL, was_direct);
            ck_assert_int_gt(atomic_load(&m.n), (int)(2 * NBYTES / BLOCK));
            swap_close(s);
        }
    }
    teardown();
}
END_TEST

/* ---- failed -----------------------------------------------------------------------------------
 */

/* Every later call has the same failure. */
static void check_stays(struct swap *s, const char *words)
{
    unsigned char *buf = swap_rig_memory(SWAP_ALIGN);
    uint64_t t;
    char first[512];
    ck_fails(swap_drain(s), CZ_IO);
    snprintf(first, sizeof first, "%s", cz_last_error());
    ck_assert_msg(strstr(first, words) && strstr(first, swap_path(s)), "%s", first);
    ck_fails(swap_wait(s, 0), CZ_IO);
    ck_fails(swap_read_begin(s, buf, 0, SWAP_ALIGN, &t), CZ_IO);
    ck_fails(swap_write_begin(s, buf, 0, SWAP_ALIGN, &t), CZ_IO);
    ck_fails(swap_read(s, 1, 2, buf), CZ_IO);
    ck_fails(swap_write(s, 1, 2, buf), CZ_IO);
    ck_assert_str_eq(cz_last_error(), first);
    free(buf);
}

START_TEST(a_failing_block_fails_everything_once)
{
    setup();
    EACH_WAY(way)
    for (int nth = 0; nth < 20; nth += way->checksums ? 7 : 1) {
        struct moods m = {.nth = nth, .error = nth % 2 ? EIO : ENOSPC};
        struct swap *s = open_moody(dir, way, &m);
        unsigned char *buf = swap_rig_memory(20 * BLOCK);
        uint64_t tickets[10];
        int64_t since = clock_now_ns();
        cz_status st = CZ_OK;
        int begun = 0;
        for (; begun < 10 && st == CZ_OK; begun++) {
            unsigned char *own = buf + (size_t)begun * 2 * BLOCK;
            uint64_t off = (uint64_t)begun / 2 * 2 * BLOCK;
            st = begun % 2 ? swap_read_begin(s, own, NBYTES - 2 * BLOCK, 2 * BLOCK, &tickets[begun])
                           : swap_write_begin(s, own, off, 2 * BLOCK, &tickets[begun]);
        }
        if (st != CZ_OK) begun--;
        for (int i = begun - 1; i >= 0; i--) st = swap_wait(s, tickets[i]);
        ck_assert_int_eq(st, CZ_IO); /* the first request's wait comes after all others */
        check_stays(s, nth % 2 ? "Input/output error" : "No space left on device");
        ck_assert_int_lt(clock_now_ns() - since, 1000000000);
        ck_assert_ptr_nonnull(strstr(cz_last_error(), "8.00 KiB at offset "));
        swap_close(s);
        free(buf);
    }
    teardown();
}
END_TEST

START_TEST(unaligned_calls_fail_the_same_way)
{
    setup();
    EACH_WAY(way)
    for (int nth = 0; nth < 9; nth++) {
        struct moods m = {.nth = nth, .error = EIO};
        struct swap *s = open_moody(dir, way, &m);
        static unsigned char bytes[5 * BLOCK];
        cz_status st = swap_write(s, 100, sizeof bytes, bytes); /* two edges, six pieces */
        if (st == CZ_OK) st = swap_read(s, 100, sizeof bytes, bytes);
        ck_assert_int_eq(st, CZ_IO);
        check_stays(s, "Input/output error");
        swap_close(s);
    }
    teardown();
}
END_TEST

START_TEST(a_mood_that_does_not_pass_is_an_error_within_a_second)
{
    static const int errors[] = {EAGAIN, EINTR};
    setup();
    EACH_WAY(way)
    for (size_t i = 0; i < CZ_ARRAY_LEN(errors) && !way->checksums; i++) {
        struct moods m = {.nth = 1, .error = errors[i], .is_for_ever = true};
        struct swap *s = open_moody(dir, way, &m);
        unsigned char *buf = swap_rig_memory(NBYTES);
        int64_t since = clock_now_ns();
        uint64_t ticket;
        ck_ok(swap_write_begin(s, buf, 0, NBYTES, &ticket));
        ck_fails(swap_wait(s, ticket), CZ_IO);
        ck_assert_int_lt(clock_now_ns() - since, 1000000000);
        check_stays(s, strerror(errors[i]));
        swap_close(s);
        free(buf);
    }
    teardown();
}
END_TEST

struct waiter {
    struct swap *s;
    cz_status st;
    char text[512];
};

static void *wait_in_thread(void *arg)
{
    struct waiter *w = arg;
    static unsigned char bytes[8][100];
    static atomic_int n;
    while (w->st == CZ_OK) w->st = swap_read(w->s, 7, 100, bytes[atomic_fetch_add(&n, 1) % 8]);
    snprintf(w->text, sizeof w->text, "%s", cz_last_error());
    return NULL;
}

START_TEST(all_threads_that_wait_get_the_sentence)
{
    setup();
    EACH_WAY(way)
    {
        struct moods m = {.nth = 200, .error = EIO};
        struct swap *s = open_moody(dir, way, &m);
        struct waiter waiters[3] = {{.s = s}, {.s = s}, {.s = s}};
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, wait_in_thread, &waiters[i]), 0);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(waiters[i].st, CZ_IO);
            ck_assert_str_eq(waiters[i].text, waiters[0].text);
        }
        swap_close(s);
    }
    teardown();
}
END_TEST

/* ---- stopped and continued --------------------------------------------------------------------
 */

/* Ctrl-Z, a debugger: what the ring waits in returns without a result. */
static void swap_and_exit(const struct swap_way *way)
{
    struct swap *s;
    unsigned char *buf = swap_rig_memory(NBYTES);
    uint64_t ticket;
    cz_status st = swap_open(&(struct swap_options){.dir = dir,
                                                    .nbytes = NBYTES,
                                                    .block_nbytes = BLOCK,
                                                    .queue_depth = 3,
                                                    .engine = way->engine},
                             &s);
    if (st != CZ_OK) _exit(2);
    int64_t until = clock_now_ns() + 500000000;
    for (int i = 0; st == CZ_OK && clock_now_ns() < until; i++) {
        st = i % 2 ? swap_read_begin(s, buf, 0, NBYTES, &ticket)
                   : swap_write_begin(s, buf, 0, NBYTES, &ticket);
        if (st == CZ_OK) st = swap_wait(s, ticket);
        usleep(2000);
    }
    if (st != CZ_OK) printf("%s\n", cz_last_error());
    swap_close(s);
    fflush(stdout);
    _exit(st == CZ_OK ? 0 : 1);
}

START_TEST(a_stopped_process_goes_on)
{
    setup();
    EACH_WAY(way)
    {
        int status;
        if (way->checksums) continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) swap_and_exit(way);
        for (int i = 0; i < 40; i++) {
            usleep(7000);
            kill(child, SIGSTOP);
            usleep(3000);
            kill(child, SIGCONT);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "engine %d", way->engine);
    }
    teardown();
}
END_TEST

/* ---- a file that others touch -----------------------------------------------------------------
 */

START_TEST(a_file_deleted_under_way_goes_on_working)
{
    setup();
    EACH_WAY(way)
    {
        struct moods m = {.nth = 1 << 30};
        struct swap *s = open_moody(dir, way, &m);
        ck_assert_int_eq(unlink(swap_path(s)), 0);
        round_trips(s);
        swap_close(s);
    }
    teardown();
}
END_TEST

START_TEST(a_file_made_shorter_is_an_error)
{
    setup();
    EACH_WAY(way)
    {
        struct moods m = {.nth = 1 << 30};
        struct swap *s = open_moody(dir, way, &m);
        unsigned char *buf = swap_rig_memory(NBYTES);
        uint64_t ticket;
        ck_assert_int_eq(truncate(swap_path(s), (off_t)(NBYTES / 2)), 0);
        ck_ok(swap_read_begin(s, buf, 0, NBYTES, &ticket));
        ck_fails(swap_wait(s, ticket), CZ_IO);
        check_stays(s, "has become shorter");
        swap_close(s);
        free(buf);
    }
    teardown();
}
END_TEST

START_TEST(checksums_notice_a_changed_byte)
{
    setup();
    EACH_WAY(way)
    for (size_t at = 0; at < NBYTES && way->checksums; at += 3 * BLOCK + 1001) {
        struct moods m = {.nth = 1 << 30};
        struct swap *s = open_moody(dir, way, &m);
        unsigned char *buf = swap_rig_memory(NBYTES), byte = 0x55;
        char where[64];
        uint64_t ticket;
        swap_rig_fill(buf, NBYTES / 2, 9); /* the other half was never written */
        ck_ok(swap_write_begin(s, buf, 0, NBYTES / 2, &ticket));
        ck_ok(swap_drain(s));
        int fd = open(swap_path(s), O_RDWR);
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
        fdatasync(fd);
        close(fd);
        ck_ok(swap_read_begin(s, buf, 0, NBYTES, &ticket));
        ck_fails(swap_wait(s, ticket), CZ_CORRUPT);
        snprintf(where, sizeof where, " at offset %zu ", at / SWAP_ALIGN * SWAP_ALIGN);
        ck_assert_msg(strstr(cz_last_error(), where) != NULL, "%s", cz_last_error());
        ck_fails(swap_drain(s), CZ_CORRUPT);
        swap_close(s);
        free(buf);
    }
    teardown();
}
END_TEST

TEST_MAIN("offload/swap_faults", moods_that_pass_are_waited_out,
          a_failing_block_fails_everything_once, unaligned_calls_fail_the_same_way,
          a_mood_that_does_not_pass_is_an_error_within_a_second,
          all_threads_that_wait_get_the_sentence, a_stopped_process_goes_on,
          a_file_deleted_under_way_goes_on_working, a_file_made_shorter_is_an_error,
          checksums_notice_a_changed_byte)

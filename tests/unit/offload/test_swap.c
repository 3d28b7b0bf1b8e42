/* Claim: what is written into a swap file is what is read, at any size and place, aligned and not,
 * through every engine, with and without checksums, past the page cache and through it (tmpfs). */
#include "tests/unit/offload/swap_model.h"

#include <pthread.h>

#define BLOCK ((size_t)16 << 10)

static bool has_uring;

/* `run` with every engine, with and without checksums, in a folder of /tmp and of tmpfs. */
static void each_way(void (*run)(const char *dir, const struct swap_way *way))
{
    for (int fast = 0; fast < 2; fast++) {
        const char *dir = fast ? test_tmp_make_fast() : test_tmp_make();
        has_uring = swap_has_uring(dir);
        for (size_t i = 0; i < CZ_ARRAY_LEN(swap_ways); i++)
            if (swap_ways[i].engine != SWAP_ENGINE_URING || has_uring) run(dir, &swap_ways[i]);
        ck_assert_int_eq(swap_rig_entries(dir), 0);
        test_tmp_remove(dir);
    }
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

START_TEST(unaligned_sizes_round_trip)
{
    each_way(swap_rig_unaligned);
}
END_TEST

START_TEST(aligned_sizes_round_trip)
{
    each_way(swap_rig_aligned);
}
END_TEST

static void random_calls(const char *dir, const struct swap_way *way)
{
    struct swap *s = swap_rig_open(dir, way, SWAP_MODEL_NBYTES, 3 * SWAP_ALIGN, 4);
    ck_ok(swap_model_run(s, 600, 7 + (uint64_t)way->engine));
    swap_close(s);
}

START_TEST(random_calls_agree_with_memory)
{
    each_way(random_calls);
}
END_TEST

/* ---- the rest of the contract -----------------------------------------------------------------
 */

static void fresh_file(const char *dir, const struct swap_way *way)
{
    size_t n = 3 * BLOCK;
    unsigned char *buf = swap_rig_memory(n);
    struct swap *s = swap_rig_open(dir, way, n - 5, BLOCK, 0); /* rounded up */
    uint64_t ticket;
    memset(buf, 1, n);
    ck_ok(swap_read_begin(s, buf, 0, n, &ticket));
    ck_ok(swap_wait(s, ticket));
    ck_assert(swap_rig_is_all(buf, n, 0));
    memset(buf, 1, n);
    ck_ok(swap_read(s, 77, n - 77, buf));
    ck_assert(swap_rig_is_all(buf, n - 77, 0));
    swap_close(s);
    free(buf);
}

START_TEST(never_written_bytes_read_as_zero)
{
    each_way(fresh_file);
}
END_TEST

/* More requests than the queue has space for, in one go; then a read that overtakes most of them.
 */
static void many_requests(const char *dir, const struct swap_way *way)
{
    size_t n = 2 * SWAP_REQUESTS;
    unsigned char *buf = swap_rig_memory(SWAP_ALIGN * 4), *back = swap_rig_memory(SWAP_ALIGN);
    struct swap *s = swap_rig_open(dir, way, (n + 1) * SWAP_ALIGN, 0, 5);
    uint64_t ticket = 0, first;
    swap_rig_fill(buf, SWAP_ALIGN * 4, 1);
    ck_ok(swap_write_begin(s, buf, n * SWAP_ALIGN, SWAP_ALIGN, &first));
    ck_ok(swap_wait(s, first));
    for (size_t i = 0; i < n; i++)
        ck_ok(swap_write_begin(s, buf + i % 4 * SWAP_ALIGN, i * SWAP_ALIGN, SWAP_ALIGN, &ticket));
    ck_ok(swap_read(s, n * SWAP_ALIGN, SWAP_ALIGN, back));
    ck_assert_mem_eq(back, buf, SWAP_ALIGN);
    ck_ok(swap_drain(s));
    ck_ok(swap_wait(s, first)); /* its slot is long another's */
    for (size_t i = 0; i < n; i += 37) {
        ck_ok(swap_read(s, i * SWAP_ALIGN, SWAP_ALIGN, back));
        ck_assert_mem_eq(back, buf + i % 4 * SWAP_ALIGN, SWAP_ALIGN);
    }
    struct swap_counts c = swap_counts(s);
    ck_assert_uint_eq(c.written_nbytes, (n + 1) * SWAP_ALIGN);
    ck_assert_uint_eq(c.read_nbytes, (1 + (n + 36) / 37) * SWAP_ALIGN);
    ck_assert_int_gt(c.busy_ns, 0);
    swap_close(s);
    free(buf);
    free(back);
}

START_TEST(more_requests_than_the_queue_holds)
{
    each_way(many_requests);
}
END_TEST

/* Buffers that are known to the kernel in part: transfers inside, at both edges and across them. */
static void partly_registered(const char *dir, const struct swap_way *way)
{
    /* so large that each is a mapping of its own, above that of the swap's buffer, which comes
     * later */
    size_t n = 8 * SWAP_ALIGN, large = (size_t)1 << 20;
    unsigned char *src = swap_rig_memory(large), *dst = swap_rig_memory(large);
    struct swap *s = swap_rig_open(dir, way, n, BLOCK, 2);
    swap_rig_fill(src, n, 4);
    ck_ok(swap_register(s, src + 2 * SWAP_ALIGN, 4 * SWAP_ALIGN));
    ck_ok(swap_register(s, dst + 2 * SWAP_ALIGN, 4 * SWAP_ALIGN));
    for (size_t from = 0; from < 8; from++)
        for (size_t pages = 1; from + pages <= 8; pages++) {
            size_t at = from * SWAP_ALIGN, nbytes = pages * SWAP_ALIGN;
            uint64_t ticket;
            memset(dst, 0, n);
            ck_ok(swap_write_begin(s, src + at, at, nbytes, &ticket));
            ck_ok(swap_wait(s, ticket));
            ck_ok(swap_read_begin(s, dst + at, at, nbytes, &ticket));
            ck_ok(swap_wait(s, ticket));
            ck_assert_mem_eq(dst + at, src + at, nbytes);
            ck_assert(swap_rig_is_all(dst, at, 0));
            ck_assert(swap_rig_is_all(dst + at + nbytes, n - at - nbytes, 0));
        }
    swap_close(s);
    free(src);
    free(dst);
}

START_TEST(transfers_may_cross_the_edges_of_registered_buffers)
{
    each_way(partly_registered);
}
END_TEST

/* ---- the order of blocks ---------------------------------------------------------------------
 */

static void no_wake(struct swap *s)
{
    (void)s;
}

/* A queue without a file: blocks are taken and finished manually. */
static void order(bool long_is_write, char *kinds, int n_kinds)
{
    static const struct swap_backend by_hand = {.wake = no_wake};
    struct swap s = {.block_nbytes = BLOCK, .backend = &by_hand};
    uint64_t ticket;
    swap_queue_init(&s.queue);
    ck_ok(swap_queue_allocate(&s.queue, 2));
    ck_ok(swap_queue_begin(&s, NULL, 0, 64 * BLOCK, long_is_write, &ticket));
    struct swap_block *first = swap_queue_take(&s), *second = swap_queue_take(&s);
    ck_assert_ptr_null(swap_queue_take(&s)); /* two in flight */
    ck_ok(swap_queue_begin(&s, NULL, 64 * BLOCK, 6 * BLOCK, !long_is_write, &ticket));
    swap_queue_finish(&s.queue, first);
    for (int i = 0; i < n_kinds; i++) {
        struct swap_block *b = swap_queue_take(&s);
        kinds[i] = b->is_write ? 'w' : 'r';
        swap_queue_finish(&s.queue, b);
    }
    swap_queue_finish(&s.queue, second);
    swap_queue_free(&s.queue);
}

START_TEST(a_late_read_overtakes_a_long_write_which_goes_on)
{
    char kinds[13] = "";
    order(true, kinds, 12);
    ck_assert_str_eq(kinds, "rrrwrrrwwwww");
}
END_TEST

START_TEST(a_late_write_gets_its_turn_in_a_long_read)
{
    char kinds[29] = "";
    order(false, kinds, 28);
    ck_assert_str_eq(kinds, "rwrrrwrrrwrrrwrrrwrrrwrrrrrr");
}
END_TEST

/* Both lines full: of eight blocks in flight two are writes, whichever kind ends; neither waits for
 * the other. */
START_TEST(reads_and_writes_divide_the_queue)
{
    static const struct swap_backend by_hand = {.wake = no_wake};
    struct swap s = {.block_nbytes = BLOCK, .backend = &by_hand, .queue_depth = 8};
    struct swap_block *flying[8];
    uint64_t ticket;
    swap_queue_init(&s.queue);
    ck_ok(swap_queue_allocate(&s.queue, 8));
    ck_ok(swap_queue_begin(&s, NULL, 0, 64 * BLOCK, false, &ticket));
    ck_ok(swap_queue_begin(&s, NULL, 64 * BLOCK, 64 * BLOCK, true, &ticket));
    for (int i = 0; i < 8; i++) flying[i] = swap_queue_take(&s);
    for (int turn = 0; turn < 60; turn++) {
        int n_writes = 0, at = turn % 3; /* only some end, so that others stand still */
        for (int i = 0; i < 8; i++) n_writes += flying[i]->is_write;
        ck_assert_int_eq(n_writes, 2);
        bool is_write = flying[at]->is_write;
        swap_queue_finish(&s.queue, flying[at]);
        flying[at] = swap_queue_take(&s);
        ck_assert(flying[at]->is_write == is_write);
    }
    for (int i = 0; i < 8; i++) swap_queue_finish(&s.queue, flying[i]);
    swap_queue_free(&s.queue);
}
END_TEST

/* A read that waits for a write holds up nothing else, and follows as soon as that one is done;
 * also when it is begun afterwards. */
START_TEST(a_read_comes_after_the_request_it_names)
{
    static const struct swap_backend by_hand = {.wake = no_wake};
    struct swap s = {.block_nbytes = BLOCK, .backend = &by_hand, .queue_depth = 4};
    uint64_t write, read, other, late;
    swap_queue_init(&s.queue);
    ck_ok(swap_queue_allocate(&s.queue, 4));
    ck_ok(swap_queue_begin(&s, NULL, 0, 2 * BLOCK, true, &write));
    ck_ok(swap_queue_begin_after(&s, NULL, 8 * BLOCK, BLOCK, false, write, &read));
    ck_ok(swap_queue_begin(&s, NULL, 4 * BLOCK, BLOCK, false, &other));
    struct swap_block *b[3];
    for (int i = 0; i < 3; i++) b[i] = swap_queue_take(&s);
    ck_assert_ptr_null(swap_queue_take(&s)); /* a block is free, but nothing may begin */
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_ne(b[i]->off, 8 * BLOCK);
        swap_queue_finish(&s.queue, b[i]);
    }
    b[0] = swap_queue_take(&s);
    ck_assert_uint_eq(b[0]->off, 8 * BLOCK);
    swap_queue_finish(&s.queue, b[0]);
    ck_assert_ptr_null(swap_queue_take(&s));
    ck_ok(swap_queue_begin_after(&s, NULL, 9 * BLOCK, BLOCK, false, write, &late));
    b[0] = swap_queue_take(&s);
    ck_assert_uint_eq(b[0]->off, 9 * BLOCK);
    swap_queue_finish(&s.queue, b[0]);
    swap_queue_free(&s.queue);
}
END_TEST

struct drain {
    struct swap_queue *q;
    atomic_bool is_done;
};

static void *drain_in_thread(void *arg)
{
    struct drain *d = arg;
    (void)swap_queue_drain(d->q);
    atomic_store(&d->is_done, true);
    return NULL;
}

/* As many requests as there are slots; the one at `late` of them is the last to be done. */
static void drain_waits_for(int n, int late)
{
    static const struct swap_backend by_hand = {.wake = no_wake};
    struct swap s = {.block_nbytes = BLOCK, .backend = &by_hand};
    struct drain d = {.q = &s.queue};
    struct swap_block *held = NULL;
    uint64_t ticket;
    pthread_t thread;
    swap_queue_init(&s.queue);
    ck_ok(swap_queue_allocate(&s.queue, 2));
    for (int i = 0; i < n; i++) ck_ok(swap_queue_begin(&s, NULL, 0, BLOCK, false, &ticket));
    for (int i = 0; i < n; i++) {
        struct swap_block *b = swap_queue_take(&s);
        if (i == late)
            held = b;
        else
            swap_queue_finish(&s.queue, b);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, drain_in_thread, &d), 0);
    usleep(50000);
    ck_assert_msg(!atomic_load(&d.is_done), "request %d of %d was not waited for", late, n);
    pthread_mutex_lock(&s.queue.lock);
    swap_queue_finish(&s.queue, held);
    pthread_mutex_unlock(&s.queue.lock);
    swap_queue_announce(&s.queue);
    pthread_join(thread, NULL);
    swap_queue_free(&s.queue);
}

START_TEST(a_drain_waits_for_the_oldest_and_the_newest)
{
    drain_waits_for(1, 0);
    drain_waits_for(SWAP_REQUESTS - 1, 0);
    drain_waits_for(SWAP_REQUESTS, 0);
    drain_waits_for(SWAP_REQUESTS, 1);
    drain_waits_for(SWAP_REQUESTS, SWAP_REQUESTS - 1);
}
END_TEST

/* Requests under way when the swap closes are ended before it returns. */
static void close_under_way(const char *dir, const struct swap_way *way)
{
    size_t n = (size_t)4 << 20;
    unsigned char *buf = swap_rig_memory(n);
    for (int i = 0; i < 5; i++) {
        struct swap *s = swap_rig_open(dir, way, n, 64 << 10, 2);
        uint64_t w, r;
        ck_ok(swap_write_begin(s, buf, 0, n / 2, &w));
        ck_ok(swap_read_begin(s, buf + n / 2, n / 2, n / 2, &r));
        swap_close(s);
        memset(buf, 0xEE, n);
    }
    ck_assert(swap_rig_is_all(buf, n, 0xEE));
    free(buf);
}

START_TEST(closing_ends_what_is_under_way)
{
    each_way(close_under_way);
}
END_TEST

START_TEST(single_submit_and_odd_options_work)
{
    const char *dir = test_tmp_make();
    unsigned char *buf = swap_rig_memory(1 << 20);
    static const struct swap_options odd[] = {
        {.nbytes = 1 << 20, .single_submit = true, .block_nbytes = 5000, .queue_depth = 3},
        {.nbytes = 1 << 20, .queue_depth = 1, .n_threads = 7, .block_nbytes = 1},
        {.nbytes = 1 << 20, .queue_depth = 500, .n_threads = 100, .block_nbytes = 64 << 20},
        {.nbytes = 1 << 20, .engine = SWAP_ENGINE_THREADS, .n_threads = 3, .queue_depth = 128}};
    for (size_t i = 0; i < CZ_ARRAY_LEN(odd); i++) {
        struct swap_options o = odd[i];
        struct swap *s;
        uint64_t ticket;
        o.dir = dir;
        o.rank = 12;
        ck_ok(swap_open(&o, &s));
        ck_assert_ptr_nonnull(strstr(swap_path(s), "/czero-swap-rank12-"));
        swap_rig_fill(buf, 1 << 20, i);
        ck_ok(swap_write_begin(s, buf, 0, 1 << 20, &ticket));
        ck_ok(swap_drain(s));
        memset(buf, 0, 1 << 20);
        ck_ok(swap_read_begin(s, buf, 0, 1 << 20, &ticket));
        ck_ok(swap_wait(s, ticket));
        static unsigned char want[1 << 20];
        swap_rig_fill(want, 1 << 20, i);
        ck_assert_mem_eq(buf, want, 1 << 20);
        swap_close(s);
    }
    free(buf);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(wrong_calls_are_refused_and_do_no_harm)
{
    const char *dir = test_tmp_make();
    unsigned char *buf = swap_rig_memory(4 * SWAP_ALIGN);
    struct swap *s = swap_rig_open(dir, &swap_ways[0], 2 * SWAP_ALIGN, 0, 0);
    uint64_t t = 1;
    ck_fails(swap_read_begin(s, buf + 1, 0, SWAP_ALIGN, &t), CZ_INVALID);
    ck_assert_uint_eq(t, 0);
    ck_fails(swap_read_begin(s, buf, 512, SWAP_ALIGN, &t), CZ_INVALID);
    ck_fails(swap_write_begin(s, buf, 0, 100, &t), CZ_INVALID);
    ck_fails(swap_write_begin(s, buf, 0, 3 * SWAP_ALIGN, &t), CZ_INVALID);
    ck_fails(swap_write_begin(s, buf, UINT64_MAX - SWAP_ALIGN + 1, SWAP_ALIGN, &t), CZ_INVALID);
    ck_fails(swap_read(s, 2 * SWAP_ALIGN, 1, buf), CZ_INVALID);
    ck_fails(swap_write(s, UINT64_MAX, 1, buf), CZ_INVALID);
    ck_fails(swap_wait(s, 1000), CZ_INVALID);
    ck_fails(swap_register(s, buf + 8, SWAP_ALIGN), CZ_INVALID);
    ck_ok(swap_read(s, 2 * SWAP_ALIGN, 0, buf));
    ck_ok(swap_write_begin(s, buf, 2 * SWAP_ALIGN, 0, &t));
    ck_assert_uint_eq(t, 0);
    for (int i = 0; i < SWAP_BUFFERS_MAX; i++) ck_ok(swap_register(s, buf, SWAP_ALIGN));
    ck_fails(swap_register(s, buf, SWAP_ALIGN), CZ_INVALID);
    ck_ok(swap_write_begin(s, buf, 0, 2 * SWAP_ALIGN, &t));
    ck_ok(swap_wait(s, t));
    ck_ok(swap_wait(s, 0));
    swap_close(s);
    swap_close(NULL);
    ck_fails(swap_open(&(struct swap_options){.dir = dir, .queue_depth = -1}, &s), CZ_INVALID);
    ck_fails(swap_open(&(struct swap_options){.dir = dir, .queue_depth = 1 << 20}, &s), CZ_INVALID);
    ck_fails(swap_open(&(struct swap_options){.dir = dir, .block_nbytes = SIZE_MAX}, &s),
             CZ_INVALID);
    ck_fails(swap_open(&(struct swap_options){.dir = dir, .nbytes = SIZE_MAX}, &s), CZ_INVALID);
    ck_fails(swap_open(&(struct swap_options){.dir = "", .nbytes = 1}, &s), CZ_INVALID);
    ck_fails(swap_open(&(struct swap_options){.nbytes = 1}, &s), CZ_INVALID);
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    free(buf);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(a_file_of_no_bytes_is_fine)
{
    const char *dir = test_tmp_make();
    struct swap *s = swap_rig_open(dir, &swap_ways[1], 0, 0, 0);
    ck_ok(swap_drain(s));
    swap_close(s);
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("offload/swap", unaligned_sizes_round_trip, aligned_sizes_round_trip,
          random_calls_agree_with_memory, never_written_bytes_read_as_zero,
          more_requests_than_the_queue_holds, transfers_may_cross_the_edges_of_registered_buffers,
          a_late_read_overtakes_a_long_write_which_goes_on,
          a_late_write_gets_its_turn_in_a_long_read, reads_and_writes_divide_the_queue,
          a_read_comes_after_the_request_it_names, a_drain_waits_for_the_oldest_and_the_newest,
          closing_ends_what_is_under_way, single_submit_and_odd_options_work,
          wrong_calls_are_refused_and_do_no_harm, a_file_of_no_bytes_is_fine)

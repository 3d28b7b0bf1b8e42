/* Claims: the shared-memory transport carries every slot of every round to its receiver,
 * between processes, with more ranks than cores too; a rank that dies, leaves or does not come is
 * named to the others within two seconds, one that is stopped is waited for; a wrong descriptor is
 * one sentence; nothing is left behind. */
#include "base/rng.h"
#include "base/threads.h"
#include "comm/shm/transport_shm_impl.h"
#include "tests/support/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/stat.h>

#define JOIN_S 20.0

static cz_status join(struct ranks *ranks, int rank, struct transport **out)
{
    struct shm_segment seg;
    TRY(shm_segment_map(ranks->fd, ranks->n, &seg));
    return transport_shm_join(&seg, true, rank, JOIN_S, out);
}

static unsigned pattern(uint64_t round, int from, int to)
{
    return (unsigned)(round * 2654435761u + (unsigned)from * 40503u + (unsigned)to * 97u);
}

static void fill(struct transport *t, uint64_t round, int to, size_t numel)
{
    struct slot_head *head = t->ops->slot_out(t, round, to);
    *head = (struct slot_head){.round = round, .nbytes = (uint32_t)(numel * sizeof(unsigned))};
    unsigned *payload = (unsigned *)(head + 1);
    for (size_t i = 0; i < numel; i++) payload[i] = pattern(round, t->rank, to) + (unsigned)i;
}

static cz_status check(struct transport *t, uint64_t round, int from, bool to_all, size_t numel)
{
    const struct slot_head *head = t->ops->slot_in(t, round, from);
    const unsigned *payload = (const unsigned *)(head + 1);
    rank_check(head->round == round);
    rank_check(head->nbytes == numel * sizeof(unsigned));
    for (size_t i = 0; i < numel; i++)
        rank_check(payload[i] == pattern(round, from, to_all ? COMM_ALL : t->rank) + i);
    return CZ_OK;
}

/* Every third round one slot for all, else one per peer, in turn full and nearly empty. */
static cz_status one_round(struct transport *t, uint64_t round)
{
    bool to_all = round % 3 == 0;
    size_t numel = round % 16 == 5 ? t->slot_nbytes / sizeof(unsigned) : 1 + round % 50;
    while (!t->ops->may_fill(t, round)) TRY(t->ops->sleep(t, round));
    if (to_all) fill(t, round, COMM_ALL, numel);
    for (int r = 0; r < t->world_size && !to_all; r++)
        if (r != t->rank) fill(t, round, r, numel);
    TRY(t->ops->post(t, round, to_all));
    while (!t->ops->has_arrived(t, round)) TRY(t->ops->sleep(t, round));
    for (int r = 0; r < t->world_size; r++)
        if (r != t->rank) TRY(check(t, round, r, to_all, numel));
    return t->ops->release(t, round);
}

static cz_status many_rounds(struct transport *t, uint64_t n_rounds)
{
    for (uint64_t k = 0; k < n_rounds; k++) TRY(one_round(t, k));
    return CZ_OK;
}

/* ---- slots ------------------------------------------------------------------------------------
 */

static cz_status exchange_rounds(struct ranks *ranks, int rank, void *arg)
{
    struct transport *t;
    TRY(join(ranks, rank, &t));
    rank_check(t->slot_nbytes % 4096 == 0);
    rank_check(t->rank_host == rank && t->n_ranks_host == ranks->n);
    cz_status st = many_rounds(t, *(uint64_t *)arg);
    t->ops->destroy(t);
    return st;
}

START_TEST(slots_arrive_at_whom_they_were_sent_to)
{
    uint64_t n_rounds = 300;
    for (int w = 1; w <= 5; w++) {
        struct ranks ranks;
        ranks_start(&ranks, w, exchange_rounds, &n_rounds);
        ranks_expect_ok(&ranks, 30);
    }
}
END_TEST

START_TEST(more_ranks_than_cores_do_not_starve_each_other)
{
    uint64_t n_rounds = 500;
    struct ranks ranks;
    ranks_start(&ranks, 8, exchange_rounds, &n_rounds);
    ranks_expect_ok(&ranks, 10);
}
END_TEST

/* One mapping for all, so that ThreadSanitizer sees both sides of every slot. */
struct thread_rank {
    const struct shm_segment *seg;
    int rank;
    uint64_t n_rounds;
    cz_status status;
    char text[256];
};

static void *run_thread(void *arg)
{
    struct thread_rank *r = arg;
    struct transport *t;
    r->status = transport_shm_join(r->seg, false, r->rank, JOIN_S, &t);
    if (r->status == CZ_OK) {
        t->ops->set_phase(t, 1, "rounds");
        r->status = many_rounds(t, r->n_rounds);
        t->ops->destroy(t);
    }
    snprintf(r->text, sizeof r->text, "%s", cz_last_error());
    return NULL;
}

static void run_threads(int n, uint64_t n_rounds)
{
    static struct thread_rank ranks[512];
    static pthread_t threads[512];
    struct shm_segment seg;
    int fd;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)256 << 10);
    ck_ok(comm_shm_segment_create(n, &fd));
    ck_ok(shm_segment_map(fd, n, &seg));
    close(fd);
    for (int r = 0; r < n; r++) {
        ranks[r] = (struct thread_rank){.seg = &seg, .rank = r, .n_rounds = n_rounds};
        ck_assert_int_eq(pthread_create(&threads[r], &attr, run_thread, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < n; r++)
        ck_assert_msg(ranks[r].status == CZ_OK, "rank %d: %s", r, ranks[r].text);
    pthread_attr_destroy(&attr);
    shm_segment_unmap(&seg);
}

START_TEST(ranks_may_be_threads)
{
    run_threads(2, 2000);
    run_threads(5, 300);
}
END_TEST

START_TEST(hundreds_of_ranks_work)
{
    run_threads(96, 3);
    run_threads(512, 1); /* more would take a gigabyte */
}
END_TEST

START_TEST(every_slot_is_inside_the_segment)
{
    for (int w = 1; w <= 5; w++) {
        struct shm_segment seg;
        int fd;
        ck_ok(comm_shm_segment_create(w, &fd));
        ck_ok(shm_segment_map(fd, w, &seg));
        for (uint64_t round = 0; round < 2; round++)
            for (int from = 0; from < w; from++)
                for (int to = -1; to < w; to++) {
                    if (to == from) continue;
                    const char *slot = shm_slot(&seg, round, from, to);
                    ck_assert(slot >= seg.base + seg.slots_off);
                    ck_assert(slot + seg.stride_nbytes <= seg.base + seg.nbytes);
                }
        shm_segment_unmap(&seg);
        close(fd);
    }
}
END_TEST

START_TEST(the_segment_is_bounded_and_made_of_touched_pages_only)
{
    size_t before = 0;
    for (int w = 2; w <= 64; w++) {
        ck_assert_uint_le(comm_shm_segment_nbytes(w), (size_t)64 << 20);
        ck_assert_uint_gt(comm_shm_rank_nbytes(w), before / 2);
        ck_assert_uint_le(comm_shm_rank_nbytes(w), comm_shm_segment_nbytes(w));
        before = comm_shm_rank_nbytes(w);
    }
    ck_assert_uint_eq(comm_shm_rank_nbytes(1), 0);
    ck_assert_uint_eq(comm_shm_rank_nbytes(2), comm_shm_segment_nbytes(2)); /* all of it */
    ck_assert_uint_eq(comm_shm_segment_nbytes(0), 0);
    int fd;
    struct stat status;
    ck_ok(comm_shm_segment_create(64, &fd));
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_uint_eq((size_t)status.st_size, comm_shm_segment_nbytes(64));
    ck_assert_int_le(status.st_blocks, 8); /* of 512 bytes: one page */
    close(fd);
    ck_ok(comm_shm_segment_create(COMM_SHM_WORLD_MAX, &fd)); /* of which nothing is touched */
    close(fd);
    ck_fails(comm_shm_segment_create(0, &fd), CZ_INVALID);
    ck_fails(comm_shm_segment_create(COMM_SHM_WORLD_MAX + 1, &fd), CZ_INVALID);
    ck_assert_int_eq(fd, -1);
}
END_TEST

/* A rank fills its own part and reads one slot of each peer's in both rounds. */
START_TEST(a_rank_s_pages_are_its_own_and_a_slot_of_each_peer_s)
{
    static const int worlds[] = {4, 8, 16, 64};
    for (size_t i = 0; i < CZ_ARRAY_LEN(worlds); i++) {
        struct shm_segment seg;
        int fd;
        ck_ok(comm_shm_segment_create(worlds[i], &fd));
        ck_ok(shm_segment_map(fd, worlds[i], &seg));
        size_t pages = (seg.stride_nbytes + 2 * 4096 - 2) / 4096; /* begins inside one */
        ck_assert_uint_eq(comm_shm_rank_nbytes(worlds[i]),
                          seg.slots_off + seg.rank_nbytes +
                              2 * (size_t)(worlds[i] - 1) * pages * 4096);
        ck_assert_uint_eq(seg.n_slots, (size_t)worlds[i] - 1);
        shm_segment_unmap(&seg);
        ck_assert_ptr_null(seg.base);
        shm_segment_unmap(&seg); /* nothing any more */
        close(fd);
    }
}
END_TEST

/* Cores that the ranks may use, whether they share them or are bound to different ones. */
static cz_status count_cores(struct ranks *ranks, int rank, void *arg)
{
    cpu_set_t all, one;
    int n = 0, n_used = 0, quota = threads_quota_cores(NULL);
    struct transport *t;
    rank_check(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (size_t c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && n++ % ranks->n == rank) CPU_SET(c, &one);
    if (arg && CPU_COUNT(&one) > 0) rank_check(sched_setaffinity(0, sizeof one, &one) == 0);
    n_used = quota > 0 && quota < n ? quota : n;
    TRY(join(ranks, rank, &t));
    rank_check(((struct shm_transport *)t)->n_cores == n_used);
    t->ops->destroy(t);
    return CZ_OK;
}

START_TEST(cores_of_all_ranks_are_counted_once)
{
    for (int bound = 0; bound < 2; bound++) {
        struct ranks ranks;
        ranks_start(&ranks, 2, count_cores, bound ? &ranks : NULL);
        ranks_expect_ok(&ranks, 20);
    }
}
END_TEST

/* ---- ranks that are lost ----------------------------------------------------------------------
 */

struct loss {
    int rank, step;
    uint64_t at_round;
    int signal; /* 0: leaves cleanly */
};

static cz_status lose_one(struct ranks *ranks, int rank, void *arg)
{
    const struct loss *loss = arg;
    struct transport *t;
    cz_status st = CZ_OK;
    TRY(join(ranks, rank, &t));
    t->ops->set_phase(t, loss->step, "warming up");
    t->ops->set_phase(t, loss->step, rank == loss->rank ? "reducing gradients" : "agreement");
    for (uint64_t k = 0; st == CZ_OK && k < 100000; k++) {
        if (rank == loss->rank && k == loss->at_round) {
            ranks->reports[rank].ended_ns = clock_now_ns();
            if (loss->signal == 0) break;
            raise(loss->signal);
        }
        st = one_round(t, k);
    }
    t->ops->destroy(t);
    return st;
}

static void expect_loss(int w, struct loss loss, const char *verb)
{
    struct ranks ranks;
    char part[128];
    ranks_start(&ranks, w, lose_one, &loss);
    int pid = ranks.pids[loss.rank];
    ck_assert(ranks_wait(&ranks, 10));
    for (int r = 0; r < w; r++) {
        if (r == loss.rank) continue;
        snprintf(part, sizeof part,
                 "rank %d (pid %d) %s at step %d (reducing gradients) while rank %d waited at step "
                 "%d (agreement)",
                 loss.rank, pid, verb, loss.step, r, loss.step);
        rank_expect(&ranks, r, CZ_PEER, part);
        ck_assert_int_lt(ranks.reports[r].ended_ns - ranks.reports[loss.rank].ended_ns,
                         (int64_t)2000000000);
    }
    ranks_close(&ranks);
}

START_TEST(a_killed_rank_is_named_within_two_seconds)
{
    expect_loss(2, (struct loss){.rank = 1, .step = 3, .at_round = 37, .signal = SIGKILL}, "died");
    expect_loss(4, (struct loss){.rank = 0, .step = 12, .at_round = 1, .signal = SIGKILL}, "died");
    expect_loss(5, (struct loss){.rank = 3, .step = 1, .at_round = 101, .signal = SIGKILL}, "died");
}
END_TEST

START_TEST(a_rank_that_finished_early_is_named)
{
    expect_loss(2, (struct loss){.rank = 1, .step = 3, .at_round = 10}, "finished");
    expect_loss(3, (struct loss){.rank = 2, .step = 4, .at_round = 1}, "finished");
}
END_TEST

/* Rank 2 dies; rank 0 notices, and its process ends without a word; rank 1 looks only then. */
static cz_status notice_late(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct transport *t;
    TRY(join(ranks, rank, &t));
    for (uint64_t k = 0; k < 2; k++) {
        fill(t, k, COMM_ALL, 9);
        TRY(t->ops->post(t, k, true));
        if (rank == 2) raise(SIGKILL);
    }
    /* Round 2 needs the places of round 0, which rank 2 never frees: no rank can post it. */
    for (int64_t until = clock_now_ns() + 5000000000;
         rank == 1 && ranks->reports[0].ended_ns == 0 && clock_now_ns() < until;)
        usleep(1000);
    if (rank == 1) usleep(100000); /* now it has ended, too */
    rank_check(!t->ops->may_fill(t, 2));
    cz_status st = CZ_OK;
    for (int i = 0; st == CZ_OK && i < 100; i++) st = t->ops->sleep(t, 2);
    if (rank == 1) t->ops->destroy(t);
    return st;
}

START_TEST(a_rank_that_noticed_first_is_not_blamed)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, notice_late, NULL);
    ck_assert(ranks_wait(&ranks, 10));
    for (int r = 0; r < 2; r++) rank_expect(&ranks, r, CZ_PEER, "rank 2 (pid ");
    for (int r = 0; r < 2; r++) rank_expect(&ranks, r, CZ_PEER, ") died");
    ranks_close(&ranks);
}
END_TEST

/* Rank 1 blames a rank that is none, itself or the one that asks, and dies: it is named itself. */
static cz_status blame_wrongly(struct ranks *ranks, int rank, void *arg)
{
    struct transport *t;
    TRY(join(ranks, rank, &t));
    if (rank == 1) {
        const struct shm_segment *seg = &((struct shm_transport *)t)->seg;
        atomic_store(&seg->ranks[1].blames, *(uint32_t *)arg);
        raise(SIGKILL);
    }
    cz_status st = CZ_OK;
    for (int i = 0; st == CZ_OK && i < 100; i++) st = t->ops->sleep(t, 0);
    return st;
}

START_TEST(a_blamed_rank_that_is_none_is_not_named)
{
    uint32_t blamed[] = {0, 1, 2, 3, 4, UINT32_MAX}; /* rank + 1 */
    for (size_t i = 0; i < CZ_ARRAY_LEN(blamed); i++) {
        struct ranks ranks;
        ranks_start(&ranks, 2, blame_wrongly, &blamed[i]);
        ck_assert(ranks_wait(&ranks, 10));
        rank_expect(&ranks, 0, CZ_PEER, "rank 1 (pid ");
        ranks_close(&ranks);
    }
}
END_TEST

/* Rank 0 reads late what rank 1 sent before it left, or died. */
static cz_status read_late(struct ranks *ranks, int rank, void *arg)
{
    struct transport *t;
    TRY(join(ranks, rank, &t));
    TRY(many_rounds(t, 4));
    fill(t, 4, COMM_ALL, 9);
    TRY(t->ops->post(t, 4, true));
    if (rank == 1 && arg) raise(SIGKILL);
    if (rank == 0) {
        usleep(150000);
        for (int i = 0; i < 3; i++) TRY(t->ops->sleep(t, 4));
        rank_check(t->ops->may_fill(t, 4) && t->ops->has_arrived(t, 4));
        TRY(check(t, 4, 1, true, 9));
        TRY(t->ops->release(t, 4));
        rank_check(t->ops->may_fill(t, 5) && !t->ops->has_arrived(t, 5));
        rank_check(t->ops->sleep(t, 5) == CZ_PEER || t->ops->sleep(t, 5) == CZ_PEER);
    }
    t->ops->destroy(t);
    return CZ_OK;
}

START_TEST(what_was_sent_before_the_end_is_read)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, read_late, NULL);
    ranks_expect_ok(&ranks, 10);
    ranks_start(&ranks, 2, read_late, &ranks);
    ck_assert(ranks_wait(&ranks, 10));
    rank_expect(&ranks, 0, CZ_OK, "died");
    ranks_close(&ranks);
}
END_TEST

static cz_status endless(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct transport *t;
    TRY(join(ranks, rank, &t));
    cz_status st = CZ_OK;
    for (uint64_t k = 0; st == CZ_OK; k++) {
        st = one_round(t, k);
        ranks->reports[rank].mark = (int)k;
    }
    t->ops->destroy(t);
    return st;
}

static void wait_for_mark(const struct ranks *ranks, int rank, int mark)
{
    int64_t until = clock_now_ns() + (int64_t)10000000000;
    while (ranks->reports[rank].mark < mark && clock_now_ns() < until) usleep(1000);
    ck_assert_int_ge(ranks->reports[rank].mark, mark);
}

START_TEST(a_stopped_rank_is_waited_for_and_a_killed_one_is_not)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, endless, NULL);
    wait_for_mark(&ranks, 0, 20);
    kill(ranks.pids[2], SIGSTOP);
    usleep(400000);
    int stopped_at = ranks.reports[0].mark;
    usleep(100000);
    ck_assert_int_eq(ranks.reports[0].mark, stopped_at);
    kill(ranks.pids[2], SIGCONT);
    wait_for_mark(&ranks, 0, stopped_at + 20);
    int64_t killed_ns = clock_now_ns();
    kill(ranks.pids[2], SIGKILL);
    ck_assert(ranks_wait(&ranks, 5));
    for (int r = 0; r < 2; r++) {
        rank_expect(&ranks, r, CZ_PEER, "rank 2 (pid");
        rank_expect(&ranks, r, CZ_PEER, ") died while rank"); /* it never said where it stood */
        ck_assert_int_lt(ranks.reports[r].ended_ns - killed_ns, (int64_t)2000000000);
    }
    ranks_close(&ranks);
}
END_TEST

/* ---- coming together --------------------------------------------------------------------------
 */

static cz_status join_and_mark(struct ranks *ranks, int rank, void *arg)
{
    struct shm_segment seg;
    struct transport *t;
    TRY(shm_segment_map(ranks->fd, ranks->n, &seg));
    ranks->reports[rank].mark = 1;
    TRY(transport_shm_join(&seg, true, rank, *(double *)arg, &t));
    t->ops->destroy(t);
    return CZ_OK;
}

START_TEST(a_rank_that_does_not_come_is_named)
{
    double timeout_s = 0.2;
    struct ranks ranks;
    ranks_open(&ranks, 4);
    ranks_start_one(&ranks, 1, join_and_mark, &timeout_s);
    ck_assert(ranks_wait(&ranks, 5));
    rank_expect(&ranks, 1, CZ_COMM, "of 4 ranks these have not started within 0.2 s: 0, 2, 3");
    ranks_start_one(&ranks, 0, join_and_mark, &timeout_s);
    ck_assert(ranks_wait(&ranks, 5));
    rank_expect(&ranks, 0, CZ_PEER, "rank 1 (pid");
    ranks_close(&ranks);
}
END_TEST

START_TEST(a_rank_killed_while_they_come_together_is_named)
{
    double timeout_s = 20;
    struct ranks ranks;
    ranks_open(&ranks, 3);
    ranks_start_one(&ranks, 0, join_and_mark, &timeout_s);
    ranks_start_one(&ranks, 1, join_and_mark, &timeout_s);
    wait_for_mark(&ranks, 1, 1);
    usleep(100000);
    kill(ranks.pids[1], SIGKILL);
    int64_t killed_ns = clock_now_ns();
    ck_assert(ranks_wait(&ranks, 5));
    rank_expect(&ranks, 0, CZ_PEER, "rank 1 (pid");
    ck_assert_int_lt(ranks.reports[0].ended_ns - killed_ns, (int64_t)2000000000);
    ranks_close(&ranks);
}
END_TEST

static void expect_no_segment(int fd, const char *part)
{
    struct shm_segment seg;
    ck_fails(shm_segment_map(fd, 2, &seg), CZ_COMM);
    ck_assert_msg(strstr(cz_last_error(), part), "%s", cz_last_error());
    ck_assert_ptr_null(seg.base);
}

START_TEST(a_wrong_descriptor_is_refused)
{
    struct shm_segment seg;
    struct transport *t, *again;
    int fd;
    ck_ok(comm_shm_segment_create(3, &fd));
    expect_no_segment(fd, "for 3 ranks, not for 2");
    close(fd);
    expect_no_segment(fd, "is not open");
    expect_no_segment(-1, "is not open");
    /* of another build: each number of its head */
    for (size_t i = 0; i < 5; i++) {
        static const size_t offs[] = {
            offsetof(struct shm_head, magic), offsetof(struct shm_head, version),
            offsetof(struct shm_head, world_size), offsetof(struct shm_head, slot_nbytes),
            offsetof(struct shm_head, nbytes)};
        static const char *const says[] = {"is not a segment", "has version", "ranks, not for 2",
                                           "has slots of", "has slots of"};
        unsigned char byte;
        ck_ok(comm_shm_segment_create(2, &fd));
        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)offs[i]), 1);
        byte ^= 8;
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)offs[i]), 1);
        expect_no_segment(fd, says[i]);
        close(fd);
    }
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    expect_no_segment(fd, "is not a segment");
    close(fd);
    fd = memfd_create("other", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    expect_no_segment(fd, "is not a segment");
    ck_assert_int_eq(ftruncate(fd, 1 << 20), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_no_segment(fd, "is not a segment");
    close(fd);
    ck_ok(comm_shm_segment_create(1, &fd));
    ck_ok(shm_segment_map(fd, 1, &seg));
    ck_ok(transport_shm_join(&seg, false, 0, 1, &t));
    ck_fails(transport_shm_join(&seg, false, 0, 1, &again), CZ_COMM);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "rank 0 has joined before"));
    t->ops->destroy(t);
    shm_segment_unmap(&seg);
    close(fd);
}
END_TEST

/* A reader may look at the place before: it stays whole while the next one is written. */
START_TEST(places_are_written_in_turn)
{
    static struct shm_rank rank;
    for (int64_t step = 1; step < 6; step++) {
        uint32_t before = rank.place_idx;
        shm_place_set(&rank, step, "forward");
        ck_assert_uint_ne(rank.place_idx, before);
        ck_assert_int_eq(rank.places[before].step, step - 1);
        ck_assert_int_eq(rank.places[rank.place_idx].step, step);
    }
}
END_TEST

static int count_entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir) return -1;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

/* Names of ours in /dev/shm, but for the folders of tests that run beside this one. */
static int count_segment_names(void)
{
    static const char *const others[] = {"czero-test-", "czero-fuzz-", "czero-sim-"};
    int n = 0;
    DIR *dir = opendir("/dev/shm");
    if (!dir) return -1;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        bool ours = strncmp(e->d_name, "czero", 5) == 0;
        for (size_t i = 0; i < CZ_ARRAY_LEN(others); i++)
            ours = ours && strncmp(e->d_name, others[i], strlen(others[i])) != 0;
        n += ours;
    }
    closedir(dir);
    return n;
}

static cz_status leave_nothing(struct ranks *ranks, int rank, void *arg)
{
    int n_fds = count_entries("/proc/self/fd"), n_maps = 0, n_maps_after = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, f)) n_maps += strstr(line, "czero-ranks") != NULL;
    fclose(f);
    TRY(exchange_rounds(ranks, rank, arg));
    f = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, f)) n_maps_after += strstr(line, "czero-ranks") != NULL;
    fclose(f);
    rank_check(count_entries("/proc/self/fd") == n_fds);
    rank_check(n_maps == 0 && n_maps_after == 0);
    return CZ_OK;
}

START_TEST(nothing_is_left_behind)
{
    uint64_t n_rounds = 20;
    int n_names = count_segment_names();
    struct ranks ranks;
    ranks_start(&ranks, 3, leave_nothing, &n_rounds);
    ranks_expect_ok(&ranks, 10);
    ck_assert_int_eq(count_segment_names(), n_names);
}
END_TEST

TEST_MAIN("comm/shm", slots_arrive_at_whom_they_were_sent_to,
          more_ranks_than_cores_do_not_starve_each_other, ranks_may_be_threads,
          hundreds_of_ranks_work, every_slot_is_inside_the_segment,
          the_segment_is_bounded_and_made_of_touched_pages_only,
          a_killed_rank_is_named_within_two_seconds, a_rank_that_finished_early_is_named,
          a_rank_that_noticed_first_is_not_blamed, a_blamed_rank_that_is_none_is_not_named,
          cores_of_all_ranks_are_counted_once, a_rank_s_pages_are_its_own_and_a_slot_of_each_peer_s,
          what_was_sent_before_the_end_is_read,
          a_stopped_rank_is_waited_for_and_a_killed_one_is_not, a_rank_that_does_not_come_is_named,
          a_rank_killed_while_they_come_together_is_named, places_are_written_in_turn,
          a_wrong_descriptor_is_refused, nothing_is_left_behind)

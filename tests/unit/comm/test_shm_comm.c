/* Claims: collectives between processes of one host give the definition of comm.h to the bit;
 * agreements, differences and goodbyes reach every rank; a rank killed inside a large collective
 * is named within two seconds; comm_create_world() joins what the environment says, or says what
 * is wrong with it. */
#include "base/rng.h"
#include "base/utf8.h"
#include "comm/comm_impl.h"
#include "comm/shm/transport_shm_impl.h"
#include "tests/support/ranks.h"

#include <fcntl.h>
#include <pthread.h>

#define JOIN_S 20.0

/* ---- the definition ---------------------------------------------------------------------------
 */

static float rounded(float x, enum cz_dtype dtype)
{
    float y;
    dtype_put(&y, 0, dtype, x);
    return dtype_get(&y, 0, dtype);
}

/* What rank `rank` has at element i: no two ranks the same, sums round in every dtype. */
static float value(uint64_t seed, int rank, size_t i)
{
    uint64_t bits = rng_mix64(seed << 40 ^ (uint64_t)rank << 32 ^ i);
    return (float)(int)(bits >> 40) * 0x1p-22f - 2.0f;
}

static float mean(const struct comm_reduce *a, uint64_t seed, int w, size_t i)
{
    float sum = 0;
    for (int r = 0; r < w; r++) sum += rounded(rounded(value(seed, r, i), a->src_dtype), a->wire);
    return rounded(sum * a->scale, a->wire);
}

/* ---- reductions -------------------------------------------------------------------------------
 */

/* Five spans over `numel` elements, unequal, one empty, owners in no order, destinations reversed.
 */
static size_t cut(struct comm_span *spans, size_t numel, int w)
{
    static const size_t sixteenths[] = {0, 1, 1, 7, 15, 16};
    for (size_t i = 0; i < 5; i++) {
        size_t begin = numel * sixteenths[i] / 16, end = numel * sixteenths[i + 1] / 16;
        spans[i] = (struct comm_span){.src_off = begin,
                                      .dst_off = numel - end,
                                      .numel = end - begin,
                                      .owner = (int)(i * 3 + 1) % w,
                                      .to = (int)(i * 5) % w};
    }
    return 5;
}

static cz_status check_reduced(const struct comm *comm, const struct comm_reduce *a, uint64_t seed,
                               const void *dst)
{
    for (size_t k = 0; k < a->n_spans; k++) {
        const struct comm_span *s = &a->spans[k];
        for (size_t i = 0; i < s->numel; i++) {
            bool got = a->all || s->owner == comm->rank;
            float want = -7; /* untouched */
            if (got) want = mean(a, seed, comm->world_size, s->src_off + i);
            if (got && a->accumulate) want -= 7;
            want = rounded(want, a->dst_dtype);
            float found = dtype_get(dst, s->dst_off + i, a->dst_dtype);
            rank_check(memcmp(&found, &want, sizeof want) == 0);
        }
    }
    return CZ_OK;
}

static cz_status reduce_one(struct comm *comm, struct comm_reduce *a, uint64_t seed, size_t numel)
{
    struct comm_span spans[5];
    char *src = malloc(numel * sizeof(float) + 1), *dst = malloc(numel * sizeof(float) + 1);
    for (size_t i = 0; i < numel; i++) {
        dtype_put(src, i, a->src_dtype, value(seed, comm->rank, i));
        dtype_put(dst, i, a->dst_dtype, -7);
    }
    a->src = src;
    a->dst = dst;
    a->scale = 1.0f / (float)comm->world_size;
    a->spans = spans;
    a->n_spans = cut(spans, numel, comm->world_size);
    cz_status st = comm_reduce(comm, a);
    if (st == CZ_OK) st = check_reduced(comm, a, seed, dst);
    free(src);
    free(dst);
    return st;
}

static cz_status reduce_many(struct comm *comm)
{
    static const size_t numels[] = {0, 1, 5, 1000, 65535, 65536 * 3 + 17};
    static const enum cz_dtype dtypes[][3] = {{DTYPE_F32, DTYPE_F32, DTYPE_F32},
                                              {DTYPE_BF16, DTYPE_F32, DTYPE_BF16},
                                              {DTYPE_F32, DTYPE_F32, DTYPE_F16},
                                              {DTYPE_F16, DTYPE_BF16, DTYPE_F32}};
    for (size_t k = 0; k < CZ_ARRAY_LEN(numels) * CZ_ARRAY_LEN(dtypes); k++) {
        const enum cz_dtype *d = dtypes[k % CZ_ARRAY_LEN(dtypes)];
        struct comm_reduce a = {.src_dtype = d[0],
                                .dst_dtype = d[1],
                                .wire = d[2],
                                .accumulate = k % 3 == 0,
                                .all = k % 2 == 0};
        TRY(reduce_one(comm, &a, k, numels[k / CZ_ARRAY_LEN(dtypes)]));
    }
    return CZ_OK;
}

/* All ranks bring the same, as comm_self takes it of a rank that it only pretends. */
static cz_status reduce_as_self_says(struct comm *comm)
{
    enum { NUMEL = 70001 };
    static float src[NUMEL], dst[NUMEL], want[NUMEL];
    struct comm *self;
    struct comm_span spans[5];
    for (size_t i = 0; i < NUMEL; i++) src[i] = value(99, 0, i);
    struct comm_reduce a = {.src = src,
                            .src_dtype = DTYPE_F32,
                            .dst_dtype = DTYPE_F32,
                            .wire = DTYPE_BF16,
                            .scale = 0.3f,
                            .spans = spans,
                            .n_spans = cut(spans, NUMEL, comm->world_size)};
    TRY(comm_self_create(comm->rank, comm->world_size, &self));
    a.dst = want;
    TRY(comm_reduce(self, &a));
    a.dst = dst;
    TRY(comm_reduce(comm, &a));
    rank_check(memcmp(dst, want, sizeof dst) == 0);
    rank_check(comm->traffic.n_reduce > 0);
    comm_destroy(self);
    return CZ_OK;
}

/* ---- moves ------------------------------------------------------------------------------------
 */

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)rng_mix64((uint64_t)rank << 32 ^ i);
}

static cz_status move_one(struct comm *comm, size_t nbytes)
{
    size_t w = (size_t)comm->world_size, me = (size_t)comm->rank;
    unsigned char *src = malloc(w * nbytes + 1), *dst = malloc(w * nbytes + 1);
    for (size_t i = 0; i < w * nbytes; i++) src[i] = byte_of(comm->rank, i);
    TRY(comm_all_gather(comm, src, dst, nbytes));
    for (size_t r = 0; r < w; r++)
        for (size_t i = 0; i < nbytes; i++) rank_check(dst[r * nbytes + i] == byte_of((int)r, i));
    TRY(comm_all_to_all(comm, src, dst, nbytes));
    for (size_t r = 0; r < w; r++)
        for (size_t i = 0; i < nbytes; i++)
            rank_check(dst[r * nbytes + i] == byte_of((int)r, me * nbytes + i));
    memset(dst, 0, w * nbytes);
    TRY(comm_gather(comm, src, me == w - 1 ? dst : NULL, nbytes, (int)w - 1));
    for (size_t i = 0; me == w - 1 && i < w * nbytes; i++)
        rank_check(dst[i] == byte_of((int)(i / nbytes), i % nbytes));
    TRY(comm_broadcast(comm, src, nbytes, (int)w / 2));
    for (size_t i = 0; i < nbytes; i++) rank_check(src[i] == byte_of((int)w / 2, i));
    free(src);
    free(dst);
    return CZ_OK;
}

static cz_status all_collectives(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, JOIN_S, &comm));
    rank_check(strcmp(comm->ops->name, "shm") == 0);
    rank_check(comm->rank == rank && comm->world_size == ranks->n);
    rank_check(comm->rank_host == rank && comm->n_ranks_host == ranks->n);
    TRY(reduce_many(comm));
    TRY(reduce_as_self_says(comm));
    static const size_t nbytes[] = {0, 1, 100, 262144, 262145, 600000};
    for (size_t i = 0; i < CZ_ARRAY_LEN(nbytes); i++) TRY(move_one(comm, nbytes[i]));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(collectives_are_the_definition)
{
    for (int w = 1; w <= 5; w++) {
        struct ranks ranks;
        ranks_start(&ranks, w, all_collectives, NULL);
        ranks_expect_ok(&ranks, 60);
    }
}
END_TEST

static cz_status all_reduce_often(struct comm *comm)
{
    float x[50];
    int w = comm->world_size;
    for (int k = 0; k < 300; k++) {
        for (int i = 0; i < 50; i++) x[i] = (float)(comm->rank + k + i);
        TRY(comm_all_reduce(comm, x, x, 50, DTYPE_F32, DTYPE_F32, 1));
        for (int i = 0; i < 50; i++) rank_check(x[i] == (float)(w * (k + i) + w * (w - 1) / 2));
    }
    return CZ_OK;
}

static cz_status small_collectives(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, JOIN_S, &comm));
    TRY(all_reduce_often(comm));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(more_ranks_than_cores_get_on)
{
    struct ranks ranks;
    ranks_start(&ranks, 8, small_collectives, NULL);
    ranks_expect_ok(&ranks, 15);
}
END_TEST

/* One mapping for all, so that ThreadSanitizer sees which thread reads what another has written. */
struct thread_rank {
    const struct shm_segment *seg;
    int rank;
    struct err end;
};

static cz_status collectives_of_a_thread(struct thread_rank *r)
{
    struct transport *transport;
    struct comm *comm;
    TRY(transport_shm_join(r->seg, false, r->rank, JOIN_S, &transport));
    TRY(comm_over_transport(transport, &comm));
    TRY(all_reduce_often(comm));
    TRY(reduce_many(comm));
    TRY(move_one(comm, 300000));
    comm_destroy(comm);
    return CZ_OK;
}

static void *run_thread(void *arg)
{
    struct thread_rank *r = arg;
    if (collectives_of_a_thread(r) != CZ_OK) err_capture(&r->end);
    return NULL;
}

START_TEST(ranks_may_be_threads)
{
    struct shm_segment seg;
    struct thread_rank ranks[3];
    pthread_t threads[3];
    int fd;
    ck_ok(comm_shm_segment_create(3, &fd));
    ck_ok(shm_segment_map(fd, 3, &seg));
    close(fd);
    for (int r = 0; r < 3; r++) {
        ranks[r] = (struct thread_rank){.seg = &seg, .rank = r};
        ck_assert_int_eq(pthread_create(&threads[r], NULL, run_thread, &ranks[r]), 0);
    }
    for (int r = 0; r < 3; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < 3; r++)
        ck_assert_msg(ranks[r].end.status == CZ_OK, "rank %d: %s", r, ranks[r].end.text);
    shm_segment_unmap(&seg);
}
END_TEST

/* ---- what ranks tell each other ---------------------------------------------------------------
 */

static cz_status agreements(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct comm *comm;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, JOIN_S, &comm));
    TRY(comm_agree(comm, CZ_OK));
    cz_status mine = rank == 1 ? err_set(CZ_IO, 0, "the disk is full") : CZ_OK;
    rank_check(comm_agree(comm, mine) == (rank == 1 ? CZ_IO : CZ_PEER));
    rank_check(strstr(cz_last_error(), "the disk is full"));
    if (rank != 1) rank_check(strstr(cz_last_error(), "rank 1 of 3 failed"));
    TRY(comm_barrier(comm)); /* still usable */
    /* Several lines stay lines; what does not fit is cut between characters. */
    if (rank == 1) {
        mine = err_set(CZ_INVALID, 0, "a.json: lr");
        err_add_line("a.json: eps");
        for (int i = 0; i < 100; i++) err_add_line("€€€");
    }
    rank_check(comm_agree(comm, mine) == (rank == 1 ? CZ_INVALID : CZ_PEER));
    rank_check(strstr(cz_last_error(), "a.json: lr\na.json: eps\n€€€\n"));
    rank_check(utf8_is_valid(cz_last_error(), strlen(cz_last_error())));
    TRY(comm_same(comm, "the config", "stage: 1\nlr: 2\n"));
    const char *text = rank == 2 ? "stage: 1\nlr: 3\n" : "stage: 1\nlr: 2\n";
    rank_check(comm_same(comm, "the config", text) == CZ_INVALID);
    rank_check(strstr(cz_last_error(), "rank 2 has \"lr: 3\" where rank 0 has \"lr: 2\""));
    TRY(comm_barrier(comm));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(ranks_agree_and_hear_of_differences)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, agreements, NULL);
    ranks_expect_ok(&ranks, 10);
}
END_TEST

static cz_status one_leaves(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct comm *comm;
    float x = 1;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, JOIN_S, &comm));
    comm_set_phase(comm, 5, "saving");
    TRY(comm_barrier(comm));
    if (rank == 2) {
        comm_leave(comm, "no space left for the checkpoint");
        comm_destroy(comm);
        return CZ_OK;
    }
    cz_status st = CZ_OK;
    for (int k = 0; k < 3 && st == CZ_OK; k++)
        st = comm_all_reduce(comm, &x, &x, 1, DTYPE_F32, DTYPE_F32, 1);
    comm_destroy(comm);
    return st;
}

START_TEST(a_rank_that_leaves_says_why)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, one_leaves, NULL);
    ck_assert(ranks_wait(&ranks, 10));
    for (int r = 0; r < 2; r++) rank_expect(&ranks, r, CZ_PEER, "no space left for the checkpoint");
    rank_expect(&ranks, 2, CZ_OK, "");
    ranks_close(&ranks);
}
END_TEST

static cz_status disagree(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct comm *comm;
    float x[8] = {0};
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, JOIN_S, &comm));
    cz_status st = rank == 1 ? comm_broadcast(comm, x, sizeof x, 0)
                             : comm_all_reduce(comm, x, x, 8, DTYPE_F32, DTYPE_F32, 1);
    comm_destroy(comm);
    return st;
}

START_TEST(ranks_in_different_collectives_are_told)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, disagree, NULL);
    ck_assert(ranks_wait(&ranks, 10));
    for (int r = 0; r < 3; r++) rank_expect(&ranks, r, CZ_COMM, "rank 1");
    ranks_close(&ranks);
}
END_TEST

/* ---- a rank is lost ---------------------------------------------------------------------------
 */

static cz_status large_collectives(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    enum { NUMEL = 4 << 20 };
    struct comm *comm;
    float *x = calloc(NUMEL, sizeof *x);
    cz_status st = CZ_OK;
    TRY(comm_shm_join(ranks->fd, rank, ranks->n, JOIN_S, &comm));
    comm_set_phase(comm, 7, "reducing gradients");
    for (int k = 1; st == CZ_OK; k++) {
        st = comm_all_reduce(comm, x, x, NUMEL, DTYPE_F32, DTYPE_F32, 1);
        ranks->reports[rank].mark = k;
    }
    comm_destroy(comm);
    free(x);
    return st;
}

static void wait_for_mark(const struct ranks *ranks, int rank, int mark)
{
    int64_t until = clock_now_ns() + (int64_t)20000000000;
    while (ranks->reports[rank].mark < mark && clock_now_ns() < until) usleep(1000);
    ck_assert_int_ge(ranks->reports[rank].mark, mark);
}

START_TEST(a_rank_killed_in_a_large_collective_is_named)
{
    for (int w = 2; w <= 4; w++) {
        struct ranks ranks;
        char part[128];
        ranks_start(&ranks, w, large_collectives, NULL);
        wait_for_mark(&ranks, 0, 3);
        usleep((useconds_t)(w * 777));
        int pid = ranks.pids[1];
        int64_t killed_ns = clock_now_ns();
        kill(pid, SIGKILL);
        ck_assert(ranks_wait(&ranks, 10));
        snprintf(part, sizeof part, "rank 1 (pid %d) died at step 7 (reducing gradients)", pid);
        for (int r = 0; r < w; r++) {
            if (r == 1) continue;
            rank_expect(&ranks, r, CZ_PEER, part);
            ck_assert_int_lt(ranks.reports[r].ended_ns - killed_ns, (int64_t)2000000000);
        }
        ranks_close(&ranks);
    }
}
END_TEST

START_TEST(a_stopped_rank_is_waited_for)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, large_collectives, NULL);
    wait_for_mark(&ranks, 0, 1);
    kill(ranks.pids[1], SIGSTOP);
    usleep(300000);
    int mark = ranks.reports[0].mark;
    kill(ranks.pids[1], SIGCONT);
    wait_for_mark(&ranks, 0, mark + 2);
    kill(ranks.pids[1], SIGKILL);
    ck_assert(ranks_wait(&ranks, 5));
    rank_expect(&ranks, 0, CZ_PEER, "rank 1");
    ranks_close(&ranks);
}
END_TEST

/* ---- by the environment -----------------------------------------------------------------------
 */

static void launch_env(int fd, int rank, int world_size)
{
    char text[32];
    snprintf(text, sizeof text, "%d", fd);
    setenv(COMM_ENV_SHM_FD, text, 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv(COMM_ENV_RANK, text, 1);
    snprintf(text, sizeof text, "%d", world_size);
    setenv(COMM_ENV_WORLD_SIZE, text, 1);
}

static cz_status join_world(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    struct comm *comm;
    int fd = dup(ranks->fd);
    launch_env(fd, rank, ranks->n);
    setenv("OMPI_COMM_WORLD_SIZE", "7", 1); /* czero launch under mpirun: ours is nearer */
    TRY(comm_create_world(&comm));
    rank_check(comm->rank == rank && comm->world_size == ranks->n);
    rank_check(strcmp(comm->ops->name, ranks->n > 1 ? "shm" : "self") == 0);
    if (ranks->n > 1) rank_check(fcntl(fd, F_GET_SEALS) < 0); /* closed */
    TRY(comm_barrier(comm));
    comm_destroy(comm);
    return CZ_OK;
}

START_TEST(launched_ranks_find_each_other)
{
    for (int w = 1; w <= 3; w++) {
        struct ranks ranks;
        ranks_start(&ranks, w, join_world, NULL);
        ranks_expect_ok(&ranks, 10);
    }
}
END_TEST

static void expect_world_error(const char *part)
{
    struct comm *comm;
    ck_fails(comm_create_world(&comm), CZ_COMM);
    ck_assert_ptr_null(comm);
    ck_assert_msg(strstr(cz_last_error(), part), "%s", cz_last_error());
}

START_TEST(a_wrong_environment_is_one_sentence)
{
    struct comm *comm;
    int fd;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMI_SIZE");
    ck_ok(comm_create_world(&comm)); /* started manually */
    ck_assert_int_eq(comm->world_size, 1);
    ck_assert_str_eq(comm->ops->name, "self");
    comm_destroy(comm);
    ck_ok(comm_shm_segment_create(2, &fd));
    launch_env(fd, 2, 2);
    expect_world_error("CZERO_RANK is 2, but CZERO_WORLD_SIZE is 2");
    launch_env(fd, 0, 3);
    expect_world_error("for 2 ranks, not for 3");
    close(fd);
    launch_env(fd, 0, 2);
    expect_world_error("CZERO_SHM_FD");
    expect_world_error("is not open");
    setenv(COMM_ENV_SHM_FD, "seven", 1);
    expect_world_error("CZERO_SHM_FD is \"seven\"");
    unsetenv(COMM_ENV_SHM_FD);
    expect_world_error("go together");
    launch_env(fd, 0, 2);
    unsetenv(COMM_ENV_RANK);
    expect_world_error("go together");
}
END_TEST

/* Some of the three variables, whatever their values. */
START_TEST(a_part_of_the_environment_is_no_environment)
{
    static const char *const names[] = {COMM_ENV_SHM_FD, COMM_ENV_RANK, COMM_ENV_WORLD_SIZE};
    for (int value = 0; value < 2; value++)
        for (int mask = 1; mask < 7; mask++) {
            for (int i = 0; i < 3; i++)
                if (mask >> i & 1)
                    setenv(names[i], value ? "1" : "0", 1);
                else
                    unsetenv(names[i]);
            bool alone = mask == 6 && value == 1; /* one rank needs no segment */
            expect_world_error(alone ? "CZERO_RANK is 1, but CZERO_WORLD_SIZE is 1"
                                     : "go together");
        }
}
END_TEST

TEST_MAIN("comm/shm_comm", collectives_are_the_definition, more_ranks_than_cores_get_on,
          ranks_may_be_threads, ranks_agree_and_hear_of_differences, a_rank_that_leaves_says_why,
          ranks_in_different_collectives_are_told, a_rank_killed_in_a_large_collective_is_named,
          a_stopped_rank_is_waited_for, launched_ranks_find_each_other,
          a_wrong_environment_is_one_sentence, a_part_of_the_environment_is_no_environment)

/* Claims: collectives on device memory give the definition of comm.h to the bit, staged and over
 * NCCL, between two and three ranks and for one, whichever side is the device's, ordered with a
 * stream by events alone; agreements and scalars pass to the host communicator in every rank's
 * order; data move beside the caller's later work, and a begin over NCCL waits for no other rank;
 * memory is as planned; a rank killed in the middle, an error that NCCL meets, and a libnccl that
 * is missing or too old are one sentence within seconds. */
#include "tests/support/cuda_sim/sim_trace.h"
#include "tests/support/gpu/device_trial.h"

#define PIECE_NBYTES ((size_t)24 << 10)
#define N_TRIALS     30

struct plan {
    enum device_comm_kind kind;
    uint64_t seed;
    int n_together; /* collectives begun before the first is waited for */
};

/* ---- the definition ---------------------------------------------------------------------------
 */

/* Small ones through the host communicator, while others are under way. */
static cz_status host_collectives(struct comm *comm)
{
    int all[RANKS_MAX] = {0}, mine = 100 + comm->rank;
    double x[3] = {comm->rank, 1, 2};
    TRY(comm_all_gather(comm, &mine, all, sizeof mine));
    for (int r = 0; r < comm->world_size; r++) rank_check(all[r] == 100 + r);
    TRY(comm_broadcast(comm, x, sizeof x, comm->world_size - 1));
    rank_check(x[0] == comm->world_size - 1);
    return comm_agree(comm, CZ_OK);
}

static cz_status trials(const struct device_rank *d, const struct plan *plan)
{
    static struct device_trial t[8];
    for (uint64_t i = 0; i < N_TRIALS; i += (uint64_t)plan->n_together) {
        int n = plan->n_together;
        for (int k = 0; k < n; k++)
            TRY(device_trial_begin(d, &t[k], plan->seed + i + (uint64_t)k, PIECE_NBYTES));
        if (i % 2 == 0) TRY(comm_progress(d->comm));
        TRY(host_collectives(d->comm));
        for (int k = 0; k < n; k++) {
            if (k != n - 2) TRY(comm_wait(d->comm, t[k].trial.ticket)); /* the next waits for it */
            if (k == n - 2) TRY(comm_wait(d->comm, t[k + 1].trial.ticket));
            TRY(device_trial_finish(d, &t[k]));
        }
    }
    return CZ_OK;
}

/* Only the simulated NCCL can be asked to fail, and lets ranks share a GPU. */
static bool is_simulated(void)
{
    const char *plugin = getenv("CZERO_CUDA_PLUGIN");
    return plugin && strstr(plugin, "cuda_sim");
}

/* GPUs for this many ranks over NCCL; asked in a process of its own, since a context does not
 * survive a fork. */
static cz_status count_gpus(struct ranks *ranks, int rank, void *arg)
{
    (void)arg;
    int n;
    TRY(device_count("cuda", &n));
    ranks->reports[rank].mark = n;
    return CZ_OK;
}

static bool has_gpus(int n)
{
    struct ranks ranks;
    if (is_simulated()) return true;
    ranks_start(&ranks, 1, count_gpus, NULL);
    ranks_wait(&ranks, 60);
    bool enough = ranks.reports[0].mark >= n;
    ranks_close(&ranks);
    if (!enough) printf("left out: NCCL between %d ranks needs as many GPUs\n", n);
    return enough;
}

static cz_status run_trials(struct ranks *ranks, int rank, void *arg)
{
    const struct plan *plan = arg;
    struct device_rank d;
    TRY(device_rank_start(&d, ranks, rank));
    TRY(device_rank_connect(&d, plan->kind, PIECE_NBYTES));
    rank_check(strcmp(d.comm->ops->name, comm_device_kind_name(plan->kind)) == 0);
    TRY(trials(&d, plan));
    TRY(comm_agree(d.comm, CZ_OK));
    device_rank_end(&d);
    return CZ_OK;
}

static void expect_trials(enum device_comm_kind kind, int w, int n_together)
{
    struct ranks ranks;
    struct plan plan = {kind, (uint64_t)(1000 * w + n_together), n_together};
    ranks_start(&ranks, w, run_trials, &plan);
    ranks_expect_ok(&ranks, 60);
}

START_TEST(staged_collectives_are_the_definition)
{
    expect_trials(DEVICE_COMM_STAGED, 2, 1);
    expect_trials(DEVICE_COMM_STAGED, 3, 5);
}
END_TEST

START_TEST(nccl_collectives_are_the_definition)
{
    if (has_gpus(2)) expect_trials(DEVICE_COMM_NCCL, 2, 1);
    if (has_gpus(3)) expect_trials(DEVICE_COMM_NCCL, 3, 5);
}
END_TEST

static cz_status alone(struct ranks *ranks, int rank, void *arg)
{
    struct plan *plan = arg;
    struct device_rank d;
    (void)ranks;
    TRY(device_rank_start(&d, NULL, rank));
    cz_status st = device_rank_connect(&d, plan->kind, PIECE_NBYTES);
    if (st == CZ_UNSUPPORTED && plan->kind == DEVICE_COMM_NCCL && !is_simulated()) {
        printf("left out: %s\n", cz_last_error());
        return CZ_OK;
    }
    TRY(st);
    TRY(trials(&d, plan));
    device_rank_end(&d);
    return CZ_OK;
}

START_TEST(one_rank_makes_the_calls_too)
{
    static const enum device_comm_kind kinds[] = {DEVICE_COMM_SELF, DEVICE_COMM_STAGED,
                                                  DEVICE_COMM_NCCL};
    for (size_t k = 0; k < CZ_ARRAY_LEN(kinds); k++) {
        struct ranks ranks;
        struct plan plan = {kinds[k], 77, 3};
        ranks_start(&ranks, 1, alone, &plan);
        ranks_expect_ok(&ranks, 60);
    }
}
END_TEST

/* A rank that pretends: others send what it sends, and what they own stays as it is. */
static cz_status pretends(struct ranks *ranks, int rank, void *arg)
{
    static struct device_trial t;
    struct device_rank d;
    (void)ranks;
    (void)arg;
    (void)rank;
    TRY(device_rank_start(&d, NULL, 0));
    comm_destroy(d.host);
    TRY(comm_self_create(1, 3, &d.host));
    TRY(device_rank_connect(&d, DEVICE_COMM_AUTO, PIECE_NBYTES));
    rank_check(strcmp(d.comm->ops->name, "self") == 0 && d.comm->world_size == 3);
    for (uint64_t i = 0; i < 40; i++) {
        TRY(device_trial_begin(&d, &t, 300 + i, PIECE_NBYTES));
        TRY(comm_wait(d.comm, t.trial.ticket));
        TRY(device_trial_finish(&d, &t));
    }
    device_rank_end(&d);
    return CZ_OK;
}

START_TEST(a_rank_that_pretends_does_as_on_the_host)
{
    struct ranks ranks;
    ranks_start(&ranks, 1, pretends, NULL);
    ranks_expect_ok(&ranks, 60);
}
END_TEST

/* ---- what ranks are told ------------------------------------------------------------------------
 */

static cz_status ordinals_and_kinds(struct ranks *ranks, int rank, void *arg)
{
    struct device_rank d;
    enum device_comm_kind kind;
    int n;
    (void)arg;
    TRY(device_rank_start(&d, ranks, rank));
    TRY(device_count("cuda", &n));
    rank_check(n == 2 && d.dev->ordinal == rank % 2);
    TRY(comm_device_pick(d.host, d.dev, &kind));
    rank_check(kind == (ranks->n > 2 ? DEVICE_COMM_STAGED : DEVICE_COMM_NCCL));
    setenv(DEVICE_COMM_ENV, "staged", 1);
    TRY(comm_device_pick(d.host, d.dev, &kind));
    rank_check(kind == DEVICE_COMM_STAGED);
    setenv(DEVICE_COMM_ENV, "nccl", 1);
    TRY(comm_device_pick(d.host, d.dev, &kind));
    rank_check(kind == DEVICE_COMM_NCCL);
    setenv(DEVICE_COMM_ENV, rank == 0 ? "nccl" : "staged", 1);
    rank_check(comm_device_pick(d.host, d.dev, &kind) == CZ_INVALID);
    rank_check(strstr(cz_last_error(), "differs between rank 0 and rank 1"));
    setenv(DEVICE_COMM_ENV, "gloo", 1);
    rank_check(comm_device_pick(d.host, d.dev, &kind) != CZ_OK);
    rank_check(strstr(cz_last_error(), "CZERO_DEVICE_COMM is \"gloo\": use nccl or staged"));
    device_rank_end(&d);
    return CZ_OK;
}

START_TEST(ranks_with_gpus_of_their_own_get_nccl_those_that_share_one_staged)
{
    if (!is_simulated()) return; /* which GPUs there are decides */
    setenv("CZERO_CUDA_SIM_DEVICES", "2", 1);
    for (int w = 2; w <= 3; w++) {
        struct ranks ranks;
        ranks_start(&ranks, w, ordinals_and_kinds, NULL);
        ranks_expect_ok(&ranks, 30);
    }
}
END_TEST

/* As a scheduler starts ranks: each sees one GPU, which it calls number 0. */
static cz_status one_visible(struct ranks *ranks, int rank, void *arg)
{
    struct device_rank d;
    enum device_comm_kind kind;
    char visible[8];
    int n, n_sharing;
    (void)arg;
    snprintf(visible, sizeof visible, "%d", rank % 2);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    TRY(device_rank_start(&d, ranks, rank));
    TRY(device_count("cuda", &n));
    rank_check(n == 1 && d.dev->ordinal == 0);
    TRY(comm_device_sharing(d.host, d.dev, &n_sharing));
    rank_check(n_sharing == (ranks->n > 2 && rank != 1 ? 2 : 1));
    TRY(comm_device_pick(d.host, d.dev, &kind));
    rank_check(kind == (ranks->n > 2 ? DEVICE_COMM_STAGED : DEVICE_COMM_NCCL));
    device_rank_end(&d);
    return CZ_OK;
}

START_TEST(ranks_that_see_one_gpu_each_know_who_shares_it)
{
    if (!is_simulated()) return;
    setenv("CZERO_CUDA_SIM_DEVICES", "2", 1);
    for (int w = 2; w <= 3; w++) {
        struct ranks ranks;
        ranks_start(&ranks, w, one_visible, NULL);
        ranks_expect_ok(&ranks, 30);
    }
}
END_TEST

/* Rank 1 has no libnccl. */
static cz_status without_library(struct ranks *ranks, int rank, void *arg)
{
    struct device_rank d;
    enum device_comm_kind kind;
    const char *library = arg;
    if (rank == 1) setenv("CZERO_NCCL_LIBRARY", library, 1);
    TRY(device_rank_start(&d, ranks, rank));
    TRY(comm_device_pick(d.host, d.dev, &kind));
    rank_check(kind == DEVICE_COMM_STAGED);
    cz_status st = device_rank_connect(&d, DEVICE_COMM_NCCL, 0);
    char text[512];
    snprintf(text, sizeof text, "%s", cz_last_error());
    device_rank_end(&d);
    return st == CZ_OK ? CZ_OK : err_set(st, 0, "%s", text);
}

START_TEST(without_a_usable_libnccl_ranks_fall_back_or_say_so)
{
    struct ranks ranks;
    if (!has_gpus(2)) return;
    setenv("CZERO_CUDA_SIM_DEVICES", "2", 1);
    ranks_start(&ranks, 2, without_library, "/nowhere/libnccl.so.2");
    ck_assert(ranks_wait(&ranks, 30));
    rank_expect(&ranks, 0, CZ_PEER, "rank 1 of 2 failed: NCCL cannot be loaded");
    rank_expect(&ranks, 1, CZ_UNSUPPORTED, "name it in CZERO_NCCL_LIBRARY");
    ranks_close(&ranks);
    ranks_start(&ranks, 2, without_library, "libm.so.6");
    ck_assert(ranks_wait(&ranks, 30));
    rank_expect(&ranks, 1, CZ_UNSUPPORTED, "libm.so.6 has no ncclGetVersion: NCCL 2.18 or newer");
    ranks_close(&ranks);
}
END_TEST

static cz_status with_fault(struct ranks *ranks, int rank, void *arg)
{
    struct device_rank d;
    if (rank == 1) setenv("CZERO_CUDA_SIM_NCCL_FAULT", arg, 1);
    TRY(device_rank_start(&d, ranks, rank));
    return device_rank_connect(&d, DEVICE_COMM_NCCL, 0);
}

START_TEST(an_nccl_that_does_not_start_is_one_sentence)
{
    struct ranks ranks;
    if (!is_simulated()) return;
    ranks_start(&ranks, 2, with_fault, "old");
    ck_assert(ranks_wait(&ranks, 30));
    rank_expect(&ranks, 1, CZ_UNSUPPORTED, "is NCCL 2.12.0: 2.18 or newer is needed");
    ranks_close(&ranks);
    ranks_start(&ranks, 2, with_fault, "init-error");
    ck_assert(ranks_wait(&ranks, 30));
    rank_expect(&ranks, 1, CZ_COMM, "rank 1 of 2: NCCL failed while starting: unhandled system");
    rank_expect(&ranks, 0, CZ_PEER, "rank 1 of 2: NCCL failed while starting");
    ranks_close(&ranks);
}
END_TEST

/* ---- what the host does not wait for ----------------------------------------------------------
 */

#define NUMEL ((size_t)20000)

/* All-reductions of the device's memory, each with spans for every rank. */
struct loop {
    struct device_rank d;
    float *x;
    struct comm_span spans[3];
};

static cz_status loop_start(struct loop *l, struct ranks *ranks, int rank,
                            enum device_comm_kind kind)
{
    void *x;
    TRY(device_rank_start(&l->d, ranks, rank));
    TRY(device_rank_connect(&l->d, kind, PIECE_NBYTES));
    TRY(l->d.dev->ops->mem_alloc(l->d.dev, NUMEL * sizeof(float), "x", &x));
    l->x = x;
    for (size_t r = 0; r < (size_t)ranks->n; r++)
        l->spans[r] = (struct comm_span){
            .src_off = r * 5000, .dst_off = r * 5000, .numel = 5000, .owner = (int)r};
    return CZ_OK;
}

static cz_status loop_begin(struct loop *l, struct comm_ticket *ticket)
{
    const struct comm_reduce args = {.src = l->x,
                                     .dst = l->x,
                                     .scale = 1,
                                     .all = true,
                                     .spans = l->spans,
                                     .n_spans = (size_t)l->d.comm->world_size};
    return comm_reduce_begin(l->d.comm, &args, ticket);
}

static void loop_end(struct loop *l)
{
    l->d.dev->ops->mem_free(l->d.dev, l->x, NUMEL * sizeof(float));
    device_rank_end(&l->d);
}

/* Rank 0 has begun and waited for four collectives before rank 1 begins the first. */
static cz_status one_after_the_other(struct ranks *ranks, int rank, void *arg)
{
    struct loop l;
    struct comm_ticket ticket;
    (void)arg;
    TRY(loop_start(&l, ranks, rank, DEVICE_COMM_NCCL));
    if (rank == 1)
        while (!ranks->reports[0].mark) usleep(1000);
    for (int k = 0; k < 4; k++) {
        TRY(loop_begin(&l, &ticket));
        TRY(comm_wait(l.d.comm, ticket));
    }
    ranks->reports[rank].mark = 1;
    TRY(l.d.dev->ops->stream_sync(l.d.dev, l.d.stream));
    TRY(comm_agree(l.d.comm, CZ_OK));
    loop_end(&l);
    return CZ_OK;
}

START_TEST(neither_begin_nor_wait_over_nccl_holds_up_the_host)
{
    struct ranks ranks;
    if (!has_gpus(2)) return;
    ranks_start(&ranks, 2, one_after_the_other, NULL);
    ranks_expect_ok(&ranks, 20);
}
END_TEST

/* What the simulated device recorded. */
struct trace {
    void (*begin)(void);
    void (*end)(void);
    size_t (*count)(void);
    struct sim_trace_entry (*at)(size_t i);
    bool (*ordered)(size_t i, size_t j);
};

static cz_status trace_find(struct trace *t)
{
    void *symbols[5];
    static const char *const names[] = {"sim_trace_begin", "sim_trace_end", "sim_trace_count",
                                        "sim_trace_at", "sim_trace_ordered"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        TRY(device_plugin_symbol(names[i], &symbols[i]));
    memcpy(t, symbols, sizeof *t);
    return CZ_OK;
}

/* Three pieces of work on the caller's stream: before begin, before wait, and after it. */
enum { BEFORE = 1001, BESIDE = 1002, AFTER = 1003 };

static cz_status work(const struct loop *l, void *memory, size_t nbytes)
{
    return l->d.dev->ops->fill_zero(l->d.dev, l->d.stream, memory, nbytes);
}

/* Everything that carries data comes after BEFORE and ahead of AFTER, and most of it beside BESIDE:
 * neither has to wait for the other. */
static cz_status check_trace(const struct trace *t)
{
    size_t n = t->count(), mark[3] = {0}, n_carriers = 0, n_beside = 0;
    for (size_t i = 0; i < n; i++) {
        struct sim_trace_entry e = t->at(i);
        if (e.kind == SIM_MEMSET && e.nbytes >= BEFORE && e.nbytes <= AFTER)
            mark[e.nbytes - BEFORE] = i;
    }
    for (size_t i = 0; i < n; i++) {
        enum sim_kind kind = t->at(i).kind;
        if (kind != SIM_LIBRARY && kind != SIM_COPY_D2H && kind != SIM_COPY_H2D) continue;
        n_carriers++;
        rank_check(t->ordered(mark[0], i) && t->ordered(i, mark[2]));
        n_beside += !t->ordered(mark[1], i) && !t->ordered(i, mark[1]);
    }
    rank_check(n_carriers > 3 && n_beside > 0);
    return CZ_OK;
}

static cz_status traced(struct ranks *ranks, int rank, void *arg)
{
    const struct plan *plan = arg;
    struct loop l;
    struct trace t = {0};
    struct comm_ticket ticket;
    void *memory;
    TRY(loop_start(&l, ranks, rank, plan->kind));
    TRY(trace_find(&t));
    TRY(l.d.dev->ops->mem_alloc(l.d.dev, AFTER, "memory", &memory));
    t.begin();
    TRY(work(&l, memory, BEFORE));
    TRY(loop_begin(&l, &ticket));
    TRY(work(&l, memory, BESIDE));
    TRY(comm_wait(l.d.comm, ticket));
    TRY(work(&l, memory, AFTER));
    t.end();
    TRY(check_trace(&t));
    TRY(comm_agree(l.d.comm, CZ_OK));
    l.d.dev->ops->mem_free(l.d.dev, memory, AFTER);
    loop_end(&l);
    return CZ_OK;
}

START_TEST(data_move_beside_the_callers_work)
{
    static const enum device_comm_kind kinds[] = {DEVICE_COMM_STAGED, DEVICE_COMM_NCCL};
    if (!is_simulated()) return;
    for (size_t k = 0; k < CZ_ARRAY_LEN(kinds); k++) {
        struct ranks ranks;
        struct plan plan = {.kind = kinds[k]};
        ranks_start(&ranks, 2, traced, &plan);
        ranks_expect_ok(&ranks, 20);
    }
}
END_TEST

/* ---- ranks that die ---------------------------------------------------------------------------
 */

static cz_status reduce_for_ever(struct ranks *ranks, int rank, void *arg)
{
    struct loop l;
    struct comm_ticket ticket;
    const struct plan *plan = arg;
    TRY(loop_start(&l, ranks, rank, plan->kind));
    comm_set_phase(l.d.comm, 7, "reducing gradients");
    for (int k = 1;; k++) {
        TRY(loop_begin(&l, &ticket));
        TRY(comm_wait(l.d.comm, ticket));
        TRY(l.d.dev->ops->stream_sync(l.d.dev, l.d.stream));
        ranks->reports[rank].mark = k;
    }
}

/* Rank 1 ends in the middle; the others must do so within seconds, and name it. */
static void expect_death(enum device_comm_kind kind, int w)
{
    struct ranks ranks;
    struct plan plan = {.kind = kind};
    char part[128];
    ranks_start(&ranks, w, reduce_for_ever, &plan);
    int64_t until = clock_now_ns() + INT64_C(20000000000);
    while (ranks.reports[0].mark < 3 && clock_now_ns() < until) usleep(1000);
    int pid = ranks.pids[1];
    int64_t killed_ns = clock_now_ns();
    kill(pid, SIGKILL);
    ck_assert(ranks_wait(&ranks, 15));
    snprintf(part, sizeof part, "rank 1 (pid %d) died at step 7 (reducing gradients)", pid);
    for (int r = 0; r < w; r++) {
        if (r == 1) continue;
        rank_expect(&ranks, r, CZ_PEER, part);
        ck_assert_int_lt(ranks.reports[r].ended_ns - killed_ns, INT64_C(5000000000));
    }
    ranks_close(&ranks);
}

START_TEST(a_rank_that_is_killed_ends_the_others)
{
    expect_death(DEVICE_COMM_STAGED, 2);
    if (has_gpus(2)) expect_death(DEVICE_COMM_NCCL, 2);
    if (has_gpus(3)) expect_death(DEVICE_COMM_NCCL, 3);
}
END_TEST

/* Rank 1 never begins, and dies a little later. */
static cz_status never_comes(struct ranks *ranks, int rank, void *arg)
{
    struct loop l;
    struct comm_ticket ticket;
    (void)arg;
    TRY(loop_start(&l, ranks, rank, DEVICE_COMM_NCCL));
    if (rank == 1) {
        usleep(300000);
        kill(getpid(), SIGKILL);
    }
    TRY(loop_begin(&l, &ticket));
    TRY(comm_wait(l.d.comm, ticket));
    TRY(l.d.dev->ops->stream_sync(l.d.dev, l.d.stream));
    return comm_agree(l.d.comm, CZ_OK);
}

START_TEST(a_rank_that_never_comes_is_not_waited_for_after_its_death)
{
    struct ranks ranks;
    if (!has_gpus(2)) return;
    ranks_start(&ranks, 2, never_comes, NULL);
    ck_assert(ranks_wait(&ranks, 10));
    rank_expect(&ranks, 0, CZ_PEER, "rank 1 (pid");
    ranks_close(&ranks);
}
END_TEST

/* Rank 1 says why it gives up, and ends. */
static cz_status gives_up(struct ranks *ranks, int rank, void *arg)
{
    struct loop l;
    struct comm_ticket ticket;
    (void)arg;
    TRY(loop_start(&l, ranks, rank, DEVICE_COMM_NCCL));
    if (rank == 1) {
        usleep(100000);
        comm_leave(l.d.comm, "the disk is full");
        rank_check(loop_begin(&l, &ticket) == CZ_COMM);
        return CZ_OK;
    }
    TRY(loop_begin(&l, &ticket));
    TRY(comm_wait(l.d.comm, ticket));
    TRY(l.d.dev->ops->stream_sync(l.d.dev, l.d.stream));
    return comm_agree(l.d.comm, CZ_OK);
}

START_TEST(a_rank_that_gives_up_says_why)
{
    struct ranks ranks;
    if (!has_gpus(2)) return;
    ranks_start(&ranks, 2, gives_up, NULL);
    ck_assert(ranks_wait(&ranks, 10));
    rank_expect(&ranks, 0, CZ_PEER, "the disk is full");
    rank_expect(&ranks, 1, CZ_OK, "");
    ranks_close(&ranks);
}
END_TEST

/* An error that NCCL meets on rank 0 while it waits for rank 1. */
static cz_status async_error(struct ranks *ranks, int rank, void *arg)
{
    struct loop l;
    struct comm_ticket ticket;
    (void)arg;
    if (rank == 0) setenv("CZERO_CUDA_SIM_NCCL_FAULT", "async-error-at:2", 1);
    TRY(loop_start(&l, ranks, rank, DEVICE_COMM_NCCL));
    comm_set_phase(l.d.comm, 3, "reducing gradients");
    TRY(loop_begin(&l, &ticket));
    TRY(comm_wait(l.d.comm, ticket));
    TRY(l.d.dev->ops->stream_sync(l.d.dev, l.d.stream));
    return comm_agree(l.d.comm, CZ_OK);
}

START_TEST(an_error_of_nccls_ends_every_rank)
{
    struct ranks ranks;
    if (!is_simulated()) return;
    ranks_start(&ranks, 2, async_error, NULL);
    ck_assert(ranks_wait(&ranks, 10));
    rank_expect(&ranks, 0, CZ_COMM, "rank 0 of 2: NCCL failed while");
    rank_expect(&ranks, 0, CZ_COMM, "unhandled system error");
    rank_expect(&ranks, 0, CZ_COMM, "step 3 (reducing gradients)");
    rank_expect(&ranks, 1, CZ_PEER, "rank 0 (pid");
    ranks_close(&ranks);
}
END_TEST

/* ---- memory -----------------------------------------------------------------------------------
 */

START_TEST(plans_know_what_is_allocated)
{
    struct device_comm_nbytes n = comm_device_staging_nbytes(DEVICE_COMM_STAGED, 2, 0);
    ck_assert_uint_eq(n.device, 0);
    ck_assert_uint_eq(n.host, (size_t)3 * 2 * (4 << 20));
    n = comm_device_staging_nbytes(DEVICE_COMM_NCCL, 3, (size_t)3 << 20);
    ck_assert_uint_eq(n.device, (size_t)3 * (3 << 20) + 256);
    ck_assert_uint_eq(n.host, 4096);
}
END_TEST

TEST_MAIN("cuda/device_comm", staged_collectives_are_the_definition,
          nccl_collectives_are_the_definition, one_rank_makes_the_calls_too,
          a_rank_that_pretends_does_as_on_the_host,
          ranks_with_gpus_of_their_own_get_nccl_those_that_share_one_staged,
          ranks_that_see_one_gpu_each_know_who_shares_it,
          without_a_usable_libnccl_ranks_fall_back_or_say_so,
          an_nccl_that_does_not_start_is_one_sentence,
          neither_begin_nor_wait_over_nccl_holds_up_the_host, data_move_beside_the_callers_work,
          a_rank_that_is_killed_ends_the_others,
          a_rank_that_never_comes_is_not_waited_for_after_its_death, a_rank_that_gives_up_says_why,
          an_error_of_nccls_ends_every_rank, plans_know_what_is_allocated)

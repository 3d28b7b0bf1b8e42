/* Claims: collectives over slots give the canonical reduction and move bytes exactly, for every
 * table of spans, dtype and order of begins, progress and waits; ranks that disagree, leave or end
 * are told about rank by rank; counted traffic is what slots carried. */
#include "comm/comm.h"
#include "tests/unit/comm/loopback.h"
#include "tests/unit/comm/trial.h"

#define SLOT_NBYTES 4096

/* ---- right results ----------------------------------------------------------------------------
 */

struct plan {
    struct loopback_world world;
    uint64_t seed;
    int n_trials;
};

static void check_traffic(struct plan *plan, struct comm *comm)
{
    const struct comm_traffic *t = &comm->traffic;
    loop_assert(t->reduce_sent_nbytes + t->move_sent_nbytes ==
                    plan->world.ranks[comm->rank].sent_nbytes,
                "rank %d counts other bytes than its slots carried", comm->rank);
    loop_assert(t->n_reduce + t->n_move == (uint64_t)plan->n_trials, "collectives are counted");
}

static void finish(struct trial *t, struct comm *comm)
{
    loop_assert(trial_finish(t, comm) == CZ_OK, "%s", cz_last_error());
}

static void one_by_one(struct comm *comm, void *test)
{
    struct plan *plan = test;
    for (int i = 0; i < plan->n_trials; i++) {
        struct trial t;
        trial_make(&t, plan->seed + (uint64_t)i, comm->rank, comm->world_size, SLOT_NBYTES);
        ck_ok(trial_begin(&t, comm));
        ck_ok(comm_wait(comm, t.ticket));
        finish(&t, comm);
    }
    check_traffic(plan, comm);
}

static void run_plan(loopback_fn *fn, int w, int n_trials, uint64_t seed)
{
    struct plan plan = {.seed = seed, .n_trials = n_trials};
    loopback_world_init(&plan.world, w, SLOT_NBYTES, seed);
    loopback_run(&plan.world, fn, &plan);
    loopback_world_free(&plan.world);
}

START_TEST(random_collectives_equal_the_definition)
{
    for (int w = 1; w <= 5; w++) run_plan(one_by_one, w, 120, 1000 * (uint64_t)w);
}
END_TEST

/* More begins than the queue holds, progress at each rank's own whim, waits out of order. */
static void many_at_once(struct comm *comm, void *test)
{
    struct plan *plan = test;
    struct dice dice = {(uint64_t)comm->rank << 40};
    struct trial *trials = calloc((size_t)plan->n_trials, sizeof *trials);
    ck_assert_ptr_nonnull(trials);
    for (int i = 0; i < plan->n_trials; i++) {
        trial_make(&trials[i], plan->seed + (uint64_t)i, comm->rank, comm->world_size, SLOT_NBYTES);
        ck_ok(trial_begin(&trials[i], comm));
        loop_assert(trials[i].ticket.id == (uint64_t)i + 1, "tickets rise");
        while (roll(&dice, 3) == 0) ck_ok(comm_progress(comm));
        if (roll(&dice, 16) == 0)
            ck_ok(comm_wait(comm, trials[roll(&dice, (uint64_t)i + 1)].ticket));
    }
    for (int i = 0; i < plan->n_trials; i++) {
        ck_ok(comm_wait(comm, trials[i ^ 1].ticket.id ? trials[i ^ 1].ticket : trials[i].ticket));
        ck_ok(comm_wait(comm, trials[i].ticket));
        finish(&trials[i], comm);
    }
    check_traffic(plan, comm);
    free(trials);
}

START_TEST(begins_progress_and_waits_may_interleave)
{
    for (int w = 1; w <= 4; w++) run_plan(many_at_once, w, 150, 100000 * (uint64_t)w);
}
END_TEST

/* All ranks sending the same is what the communicator of one rank pretends. */
static void like_self(struct comm *comm, void *test)
{
    (void)test;
    const struct comm_span spans[] = {{0, 3, 1500, 1, 0}, {1501, 1503, 2100, 0, 0}};
    int w = comm->world_size;
    struct comm *self;
    ck_ok(comm_self_create(comm->rank, w, &self));
    for (int i = 0; i < 3 * 3 * 3 * 4; i++) {
        struct comm_reduce a = {.src_dtype = floats[i % 3],
                                .dst_dtype = floats[i / 3 % 3],
                                .wire = floats[i / 9 % 3],
                                .accumulate = i / 27 % 2,
                                .all = i / 54,
                                .scale = 1.0f / (float)w,
                                .spans = spans,
                                .n_spans = 2};
        void *x = floats_roll(7 + (uint64_t)i, a.src_dtype, 3601);
        void *y = malloc(3603 * 4), *want = malloc(3603 * 4);
        for (size_t e = 0; e < 3603; e++) dtype_put(y, e, a.dst_dtype, (float)e);
        memcpy(want, y, 3603 * dtype_size(a.dst_dtype));
        a.src = x;
        a.dst = y;
        ck_ok(comm_reduce(comm, &a));
        a.dst = want;
        ck_ok(comm_reduce(self, &a));
        loop_assert(memcmp(y, want, 3603 * dtype_size(a.dst_dtype)) == 0, "case %d differs", i);
        free(x);
        free(y);
        free(want);
    }
    comm_destroy(self);
}

START_TEST(equal_sources_give_what_self_gives)
{
    for (int w = 2; w <= 5; w++) run_plan(like_self, w, 0, 1);
}
END_TEST

static void composed(struct comm *comm, void *test)
{
    (void)test;
    int w = comm->world_size, rank = comm->rank;
    float x[7], all[5], sum = 0;
    for (int i = 0; i < 7; i++) x[i] = (float)(rank + i);
    for (int r = 0; r < w; r++) sum += (float)r;
    ck_ok(comm_all_reduce(comm, x, x, 7, DTYPE_F32, DTYPE_F32, 1));
    for (int i = 0; i < 7; i++) loop_assert(x[i] == sum + (float)(i * w), "all_reduce");
    x[0] = (float)rank;
    ck_ok(comm_all_gather(comm, x, all, sizeof *x));
    for (int r = 0; r < w; r++) loop_assert(all[r] == (float)r, "all_gather");
    ck_ok(comm_gather(comm, x, rank == w - 1 ? all : NULL, sizeof *x, w - 1));
    x[1] = 100.0f + (float)rank;
    ck_ok(comm_broadcast(comm, &x[1], sizeof *x, w - 1));
    loop_assert(x[1] == 99.0f + (float)w, "broadcast");
    float to[5], from[5];
    for (int r = 0; r < w; r++) to[r] = (float)(10 * rank + r);
    ck_ok(comm_all_to_all(comm, to, from, sizeof *to));
    for (int r = 0; r < w; r++) loop_assert(from[r] == (float)(10 * r + rank), "all_to_all");
    ck_ok(comm_barrier(comm));
    cz_status mine = rank == w - 1 ? err_set(CZ_IO, 0, "disk %d", rank) : CZ_OK;
    ck_fails(comm_agree(comm, mine), rank == w - 1 ? CZ_IO : CZ_PEER);
    ck_assert_ptr_nonnull(strstr(cz_last_error(), "disk"));
    ck_ok(comm_same(comm, "the config", "a\nb"));
    ck_fails(comm_same(comm, "the config", rank == 1 ? "a\nc" : "a\nb"), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(),
                     "ranks differ in the config; rank 1 has \"c\" where rank 0 has \"b\"");
    ck_ok(comm_barrier(comm));
}

START_TEST(composed_collectives_work_over_slots)
{
    for (int w = 2; w <= 5; w++) run_plan(composed, w, 0, 3);
}
END_TEST

/* ---- wrong calls ------------------------------------------------------------------------------
 */

struct wrong {
    struct loopback_world world;
    const char *want; /* the sentence on every rank */
    cz_status status;
    struct comm_reduce reduce[3]; /* what ranks do: the reduction, or with no wire the move */
    struct comm_move move[3];
    bool moves[3];
};

/* The same error at once from then on, without a call of the transport. */
static void check_broken(struct comm *comm, const struct loopback *rank, cz_status status,
                         const char *sentence)
{
    struct comm_ticket ticket = {1};
    const struct comm_move nothing = {.elem_nbytes = 1};
    uint64_t n_calls = rank->n_calls;
    char text[1024];
    snprintf(text, sizeof text, "%s", sentence);
    err_clear();
    ck_fails(comm_wait(comm, ticket), status);
    ck_assert_str_eq(cz_last_error(), text);
    ck_fails(comm_move(comm, &nothing), status);
    ck_fails(comm_progress(comm), status);
    comm_leave(comm, "anyway");
    ck_fails(comm_progress(comm), status);
    ck_assert_str_eq(cz_last_error(), text);
    loop_assert(rank->n_calls == n_calls, "a broken communicator leaves the transport alone");
}

static void do_wrong(struct comm *comm, void *test)
{
    struct wrong *t = test;
    static float x[3][4096];
    int rank = comm->rank;
    comm_set_phase(comm, 3, rank == 1 ? "agreement" : "backward");
    ck_ok(comm_barrier(comm));
    struct comm_reduce reduce = t->reduce[rank];
    struct comm_move move = t->move[rank];
    reduce.src = move.src = reduce.dst = move.dst = x[rank];
    ck_fails(t->moves[rank] ? comm_move(comm, &move) : comm_reduce(comm, &reduce), t->status);
    ck_assert_str_eq(cz_last_error(), t->want);
    check_broken(comm, &t->world.ranks[rank], t->status, t->want);
}

static void run_wrong(struct wrong *t, int w)
{
    loopback_world_init(&t->world, w, SLOT_NBYTES, 5);
    loopback_run(&t->world, do_wrong, t);
    loopback_world_free(&t->world);
}

static const struct comm_span two_halves[] = {{0, 0, 512, 0, 0}, {512, 512, 512, 1, 0}};
static const struct comm_span other_halves[] = {{0, 0, 1000, 0, 0}, {1000, 1000, 24, 1, 0}};
static const struct comm_span short_span[] = {{0, 0, 64, 0, COMM_ALL}};

static const struct comm_reduce bf16_mean = {.src_dtype = DTYPE_F32,
                                             .dst_dtype = DTYPE_F32,
                                             .wire = DTYPE_BF16,
                                             .scale = 0.5f,
                                             .spans = two_halves,
                                             .n_spans = 2};

START_TEST(a_reduction_against_a_move)
{
    struct wrong t = {.status = CZ_COMM,
                      .want = "ranks disagree on collective 2: rank 0 reduces 1024 × bf16 (step 3, "
                              "backward); rank 1 moves 64 × 1 byte (step 3, agreement)"};
    t.reduce[0] = bf16_mean;
    t.move[1] = (struct comm_move){.elem_nbytes = 1, .spans = short_span, .n_spans = 1};
    t.moves[1] = true;
    run_wrong(&t, 2);
}
END_TEST

START_TEST(one_of_three_has_another_dtype)
{
    struct wrong t = {.status = CZ_COMM,
                      .want = "ranks disagree on collective 2: rank 0 reduces 1024 × bf16 (step 3, "
                              "backward); rank 1 reduces 1024 × fp16 (step 3, agreement); rank 2 "
                              "reduces 1024 × bf16 (step 3, backward)"};
    t.reduce[0] = t.reduce[1] = t.reduce[2] = bf16_mean;
    t.reduce[1].wire = DTYPE_F16;
    run_wrong(&t, 3);
}
END_TEST

START_TEST(one_of_two_accumulates)
{
    struct wrong t = {.status = CZ_COMM,
                      .want = "ranks disagree on collective 2: rank 0 reduces 1024 × bf16 (step 3, "
                              "backward); rank 1 reduces 1024 × bf16, accumulating (step 3, "
                              "agreement)"};
    t.reduce[0] = t.reduce[1] = bf16_mean;
    t.reduce[1].accumulate = true;
    run_wrong(&t, 2);
}
END_TEST

START_TEST(nothing_to_move_still_meets)
{
    struct wrong t = {.status = CZ_COMM,
                      .want = "ranks disagree on collective 2: rank 0 moves 0 × 4 bytes (step 3, "
                              "backward); rank 1 all-reduces 0 × fp32 (step 3, agreement)"};
    t.move[0] = (struct comm_move){.elem_nbytes = 4};
    t.moves[0] = true;
    t.reduce[1] = (struct comm_reduce){.all = true};
    run_wrong(&t, 2);
}
END_TEST

static void divide_differently(struct comm *comm, void *test)
{
    struct wrong *t = test;
    float x[1024] = {0};
    struct comm_reduce a = bf16_mean;
    if (comm->rank == 1) a.spans = other_halves;
    a.src = a.dst = x;
    ck_fails(comm_reduce(comm, &a), CZ_COMM);
    ck_assert_str_eq(
        cz_last_error(),
        comm->rank == 0
            ? "ranks disagree on collective 1: rank 0 reduces 1024 × bf16 (step 0); "
              "rank 1 reduces 1024 × bf16, of which it sends 2000 bytes instead of 1024 (step 0)"
            : "ranks disagree on collective 1: rank 0 reduces 1024 × bf16, of which "
              "it sends 1024 bytes instead of 48 (step 0); rank 1 reduces 1024 × "
              "bf16 (step 0)");
    check_broken(comm, &t->world.ranks[comm->rank], CZ_COMM, cz_last_error());
}

START_TEST(a_table_divided_differently)
{
    struct wrong t = {.status = CZ_COMM};
    loopback_world_init(&t.world, 2, SLOT_NBYTES, 6);
    loopback_run(&t.world, divide_differently, &t);
    loopback_world_free(&t.world);
}
END_TEST

/* ---- leaving ----------------------------------------------------------------------------------
 */

enum parting_kind { ALL_REDUCE = 0, REDUCE, MOVE };

struct parting {
    struct loopback_world world;
    enum parting_kind kind; /* of the collectives; without share rounds two may be posted ahead */
    int n_before;           /* collectives that all take part in */
    int n_begun;            /* collectives that rank 1 begins and never waits for */
    bool is_sudden;         /* without a farewell */
};

static cz_status begin_parting(struct comm *comm, const struct parting *t,
                               struct comm_ticket *ticket)
{
    static float x[5][20000];
    static const struct comm_span shares[] = {{0, 0, 8000, 0, 0}, {8000, 8000, 12000, 1, 0}};
    static const struct comm_span from_all[] = {{0, 0, 8000, 0, COMM_ALL},
                                                {8000, 8000, 12000, 1, COMM_ALL}};
    if (t->kind == MOVE)
        return comm_move_begin(comm,
                               &(struct comm_move){.src = x[comm->rank],
                                                   .dst = x[comm->rank],
                                                   .elem_nbytes = sizeof(float),
                                                   .spans = from_all,
                                                   .n_spans = 2},
                               ticket);
    return comm_reduce_begin(comm,
                             &(struct comm_reduce){.src = x[comm->rank],
                                                   .dst = x[comm->rank],
                                                   .all = t->kind == ALL_REDUCE,
                                                   .scale = 1,
                                                   .spans = shares,
                                                   .n_spans = 2},
                             ticket);
}

static cz_status collective(struct comm *comm, const struct parting *t)
{
    struct comm_ticket ticket;
    TRY(begin_parting(comm, t, &ticket));
    return comm_wait(comm, ticket);
}

static void part(struct comm *comm, void *test)
{
    struct parting *t = test;
    struct comm_ticket ticket = {0};
    comm_set_phase(comm, 3, "forward");
    for (int i = 0; i < t->n_before; i++) ck_ok(collective(comm, t));
    if (comm->rank == 1) {
        for (int i = 0; i < t->n_begun; i++) ck_ok(begin_parting(comm, t, &ticket));
        if (t->is_sudden) return;
        err_set(CZ_IO, 0, "the disk of rank 1 is full");
        comm_leave(comm, cz_last_error());
        ck_assert_str_eq(cz_last_error(), "the disk of rank 1 is full");
        ck_fails(comm_barrier(comm), CZ_COMM);
        ck_assert_str_eq(cz_last_error(), "this rank has left the run: the disk of rank 1 is full");
        return;
    }
    cz_status st = CZ_OK;
    for (int i = 0; st == CZ_OK; i++) {
        loop_assert(i < t->n_begun + 1, "a collective without rank 1 went through");
        st = collective(comm, t);
    }
    const char *sentence = "rank 1 left at step 3 (forward): the disk of rank 1 is full";
    if (t->is_sudden)
        sentence = t->n_begun > 0 ? "rank 1 left at step 3 (forward): it ended with collectives "
                                    "under way"
                                  : "rank 1 died at step 3 (forward)";
    ck_assert_int_eq(st, CZ_PEER);
    ck_assert_str_eq(cz_last_error(), sentence);
    check_broken(comm, &t->world.ranks[comm->rank], CZ_PEER, cz_last_error());
}

START_TEST(a_rank_that_leaves_is_named)
{
    for (int i = 0; i < 72; i++) {
        struct parting t = {.kind = (enum parting_kind)(i / 24),
                            .n_before = i % 2,
                            .n_begun = i / 2 % 3,
                            .is_sudden = i / 6 % 2};
        loopback_world_init(&t.world, 2 + i % 4, SLOT_NBYTES, 10 + (uint64_t)i);
        loopback_run(&t.world, part, &t);
        loopback_world_free(&t.world);
    }
}
END_TEST

/* A rank is done and gone while others still take its last words. */
static void end_early(struct comm *comm, void *test)
{
    (void)test;
    float x[3000] = {1};
    struct comm_ticket ticket;
    const struct comm_span span = {0, 0, 3000, 0, 0};
    const struct comm_reduce a = {
        .src = x, .dst = x, .all = true, .scale = 1, .spans = &span, .n_spans = 1};
    ck_ok(comm_reduce_begin(comm, &a, &ticket));
    if (comm->rank > 0) usleep(2000 * (unsigned)comm->rank);
    ck_ok(comm_wait(comm, ticket));
    loop_assert(x[0] == (float)comm->world_size, "the sum is there");
}

START_TEST(ending_does_not_disturb_the_last_wait_of_others)
{
    for (int i = 0; i < 20; i++) run_plan(end_early, 2 + i % 4, 0, 20 + (uint64_t)i);
}
END_TEST

TEST_MAIN("comm/exchange", random_collectives_equal_the_definition,
          begins_progress_and_waits_may_interleave, equal_sources_give_what_self_gives,
          composed_collectives_work_over_slots, a_reduction_against_a_move,
          one_of_three_has_another_dtype, one_of_two_accumulates, nothing_to_move_still_meets,
          a_table_divided_differently, a_rank_that_leaves_is_named,
          ending_does_not_disturb_the_last_wait_of_others)

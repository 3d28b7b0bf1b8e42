/* Claims: collectives over slots give the canonical reduction and move bytes exactly, for every
 * table of spans, dtype and order of begins, progress and waits; ranks that disagree, leave or end
 * are told about rank by rank; counted traffic is what slots carried. */
#include "comm/comm.h"
#include "tests/comm/loopback.h"

#include <math.h>

#define SLOT_NBYTES 4096
#define N_SPANS_MAX 24

static const enum dtype floats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* ---- random collectives, the same on every rank for the same seed -----------------------------
 */

struct dice {
    uint64_t state;
};

static uint64_t roll(struct dice *dice, uint64_t n)
{
    return rng_mix64(++dice->state) % n;
}

/* Sizes around none, one element, and the edges of slots of `piece` elements. */
static size_t roll_numel(struct dice *dice, size_t piece)
{
    switch (roll(dice, 8)) {
    case 0: return 0;
    case 1: return 1 + roll(dice, 3);
    case 2: return piece - 1 + roll(dice, 3);
    case 3: return 2 * piece - 1 + roll(dice, 3);
    case 4: return 1 + roll(dice, 2 * piece);
    default: return 1 + roll(dice, 40);
    }
}

struct table {
    struct comm_span spans[N_SPANS_MAX];
    size_t n, src_numel, dst_numel;
};

/* Sources in the order of the table, destinations shuffled, gaps between both. */
static void table_roll(struct table *t, struct dice *dice, int w, size_t piece, bool in_place)
{
    size_t order[N_SPANS_MAX];
    t->n = roll(dice, N_SPANS_MAX + 1);
    t->src_numel = t->dst_numel = 0;
    for (size_t i = 0; i < t->n; i++) {
        struct comm_span *s = &t->spans[i];
        *s = (struct comm_span){.numel = roll_numel(dice, piece),
                                .owner = (int)roll(dice, (uint64_t)w),
                                .to = (int)roll(dice, (uint64_t)w + 1) - 1};
        t->src_numel += roll(dice, 4);
        s->src_off = t->src_numel;
        t->src_numel += s->numel;
        size_t at = roll(dice, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (size_t i = 0; i < t->n; i++) {
        struct comm_span *s = &t->spans[order[i]];
        t->dst_numel += roll(dice, 4);
        s->dst_off = in_place ? s->src_off : t->dst_numel;
        t->dst_numel += s->numel;
    }
    if (in_place) t->dst_numel = t->src_numel;
}

static float load(const void *p, size_t i, enum dtype dtype)
{
    if (dtype == DTYPE_BF16) return bf16_to_f32(((const uint16_t *)p)[i]);
    if (dtype == DTYPE_F16) return f16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

static void store(void *p, size_t i, enum dtype dtype, float x)
{
    if (dtype == DTYPE_BF16)
        ((uint16_t *)p)[i] = f32_to_bf16(x);
    else if (dtype == DTYPE_F16)
        ((uint16_t *)p)[i] = f32_to_f16(x);
    else
        ((float *)p)[i] = x;
}

/* One element in eight is special: any bits of the dtype, infinity, NaN and denormals among them.
 */
static void *floats_roll(uint64_t seed, enum dtype dtype, size_t numel)
{
    struct dice dice = {seed << 32};
    unsigned char *p = malloc(numel * dtype_size(dtype) + 1);
    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < numel; i++) {
        uint64_t bits = roll(&dice, UINT64_MAX);
        store(p, i, dtype, ((float)(bits >> 40) * 0x1p-23f - 1.0f) * 3.0f);
        if (bits % 8 != 0) continue;
        uint32_t any = (uint32_t)(bits >> 8);
        if (bits % 16 == 0) any = any % 4 == 0 ? 0x7f800000u : any & 0x807fffffu;
        if (dtype != DTYPE_F32) any >>= bits % 32 == 0 ? 16 : 0;
        memcpy(p + i * dtype_size(dtype), &any, dtype_size(dtype));
    }
    return p;
}

static float rounded(float x, enum dtype dtype)
{
    float y;
    store(&y, 0, dtype, x);
    return load(&y, 0, dtype);
}

/* Of two NaNs the first stays. */
static float plus(float sum, float x)
{
    return isnan(sum) ? sum : sum + x;
}

/* The definition at the head of comm.h. sources: (w) */
static void reduce_naive(const struct comm_reduce *a, void *const *sources, int w, int rank,
                         void *dst)
{
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        if (s->owner != rank && !a->all) continue;
        for (size_t e = 0; e < s->numel; e++) {
            float sum = 0;
            for (int r = 0; r < w; r++)
                sum = plus(sum, rounded(load(sources[r], s->src_off + e, a->src_dtype), a->wire));
            float y = rounded(sum * a->scale, a->wire);
            if (a->accumulate) y = plus(y, load(dst, s->dst_off + e, a->dst_dtype));
            store(dst, s->dst_off + e, a->dst_dtype, y);
        }
    }
}

static void move_naive(const struct comm_move *a, void *const *sources, int rank, char *dst)
{
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        if (s->to != rank && s->to != COMM_ALL) continue;
        const char *src = sources[s->owner];
        memcpy(dst + s->dst_off * a->elem_nbytes, src + s->src_off * a->elem_nbytes,
               s->numel * a->elem_nbytes);
    }
}

/* A collective under way, and what should come of it. */
struct trial {
    struct table table;
    struct comm_reduce reduce;
    struct comm_move move;
    struct comm_ticket ticket;
    void *sources[8], *dst, *want; /* dst may be sources[rank] */
    size_t dst_nbytes;
    bool is_reduce, in_place;
};

static void trial_roll_reduce(struct trial *t, struct dice *dice, int w)
{
    struct comm_reduce *a = &t->reduce;
    a->src_dtype = floats[roll(dice, 3)];
    a->dst_dtype = t->in_place ? a->src_dtype : floats[roll(dice, 3)];
    a->wire = floats[roll(dice, 3)];
    a->scale = roll(dice, 2) ? 1.0f / (float)w : 1.0f;
    a->accumulate = roll(dice, 3) == 0;
    a->all = roll(dice, 3) == 0;
    table_roll(&t->table, dice, w, SLOT_NBYTES / dtype_size(a->wire), t->in_place);
    a->spans = t->table.spans;
    a->n_spans = t->table.n;
}

static void trial_roll_move(struct trial *t, struct dice *dice, int w)
{
    static const size_t sizes[] = {1, 2, 3, 4, 8, 136};
    size_t elem_nbytes = sizes[roll(dice, CZ_ARRAY_LEN(sizes))];
    table_roll(&t->table, dice, w, SLOT_NBYTES / elem_nbytes + 1, t->in_place);
    t->move = (struct comm_move){
        .elem_nbytes = elem_nbytes, .spans = t->table.spans, .n_spans = t->table.n};
}

static void trial_make(struct trial *t, uint64_t seed, int rank, int w)
{
    struct dice dice = {seed << 32};
    *t = (struct trial){.is_reduce = roll(&dice, 2), .in_place = roll(&dice, 4) == 0};
    if (t->is_reduce)
        trial_roll_reduce(t, &dice, w);
    else
        trial_roll_move(t, &dice, w);
    enum dtype src = t->is_reduce ? t->reduce.src_dtype : DTYPE_BF16;
    enum dtype dst = t->is_reduce ? t->reduce.dst_dtype : DTYPE_BF16;
    size_t per = t->is_reduce ? 1 : (t->move.elem_nbytes + 1) / 2; /* of our 16-bit floats */
    for (int r = 0; r < w; r++)
        t->sources[r] = floats_roll(seed * 16 + (uint64_t)r, src, t->table.src_numel * per);
    t->dst_nbytes = t->table.dst_numel * per * dtype_size(dst);
    t->dst =
        t->in_place ? t->sources[rank] : floats_roll(seed * 16 + 15, dst, t->table.dst_numel * per);
    t->want = malloc(t->dst_nbytes + 1);
    ck_assert_ptr_nonnull(t->want);
    memcpy(t->want, t->dst, t->dst_nbytes);
    t->reduce.src = t->move.src = t->sources[rank];
    t->reduce.dst = t->move.dst = t->dst;
    if (t->is_reduce)
        reduce_naive(&t->reduce, t->sources, w, rank, t->want);
    else
        move_naive(&t->move, t->sources, rank, t->want);
}

static void trial_begin(struct trial *t, struct comm *comm)
{
    if (t->is_reduce)
        ck_ok(comm_reduce_begin(comm, &t->reduce, &t->ticket));
    else
        ck_ok(comm_move_begin(comm, &t->move, &t->ticket));
}

static void trial_check(struct trial *t, struct comm *comm, uint64_t seed)
{
    const unsigned char *got = t->dst, *want = t->want;
    for (size_t i = 0; i < t->dst_nbytes; i++)
        loop_assert(
            got[i] == want[i],
            "rank %d of %d, seed %d (%s%s, %s over %s into %s%s): byte %d is %02x, not %02x",
            comm->rank, comm->world_size, (int)seed, t->is_reduce ? "reduce" : "move",
            t->in_place ? " in place" : "", dtype_name(t->reduce.src_dtype),
            dtype_name(t->reduce.wire), dtype_name(t->reduce.dst_dtype),
            t->reduce.accumulate ? " accumulating" : "", (int)i, got[i], want[i]);
    for (int r = 0; r < comm->world_size; r++) free(t->sources[r]);
    if (!t->in_place) free(t->dst);
    free(t->want);
}

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

static void one_by_one(struct comm *comm, void *test)
{
    struct plan *plan = test;
    for (int i = 0; i < plan->n_trials; i++) {
        struct trial t;
        trial_make(&t, plan->seed + (uint64_t)i, comm->rank, comm->world_size);
        trial_begin(&t, comm);
        ck_ok(comm_wait(comm, t.ticket));
        trial_check(&t, comm, plan->seed + (uint64_t)i);
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
        trial_make(&trials[i], plan->seed + (uint64_t)i, comm->rank, comm->world_size);
        trial_begin(&trials[i], comm);
        loop_assert(trials[i].ticket.id == (uint64_t)i + 1, "tickets rise");
        while (roll(&dice, 3) == 0) ck_ok(comm_progress(comm));
        if (roll(&dice, 16) == 0)
            ck_ok(comm_wait(comm, trials[roll(&dice, (uint64_t)i + 1)].ticket));
    }
    for (int i = 0; i < plan->n_trials; i++) {
        ck_ok(comm_wait(comm, trials[i ^ 1].ticket.id ? trials[i ^ 1].ticket : trials[i].ticket));
        ck_ok(comm_wait(comm, trials[i].ticket));
        trial_check(&trials[i], comm, plan->seed + (uint64_t)i);
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
        for (size_t e = 0; e < 3603; e++) store(y, e, a.dst_dtype, (float)e);
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
    ck_assert_str_eq(cz_last_error(),
                     comm->rank == 0
                         ? "ranks disagree on collective 1: rank 0 reduces 1024 × bf16 (step 0); "
                           "rank 1 reduces 1024 × bf16, of which it sends 2000 bytes where 1024 "
                           "are due (step 0)"
                         : "ranks disagree on collective 1: rank 0 reduces 1024 × bf16, of which "
                           "it sends 1024 bytes where 48 are due (step 0); rank 1 reduces 1024 × "
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

struct parting {
    struct loopback_world world;
    int n_before;   /* collectives that all take part in */
    int n_begun;    /* collectives that rank 1 begins and never waits for */
    bool is_sudden; /* without a farewell */
};

static void part(struct comm *comm, void *test)
{
    struct parting *t = test;
    static float x[5][20000];
    struct comm_ticket ticket = {0};
    const struct comm_span spans[] = {{0, 0, 8000, 0, 0}, {8000, 8000, 12000, 1, 0}};
    struct comm_reduce a = {.src = x[comm->rank],
                            .dst = x[comm->rank],
                            .all = true,
                            .scale = 1,
                            .spans = spans,
                            .n_spans = 2};
    comm_set_phase(comm, 3, "forward");
    for (int i = 0; i < t->n_before; i++) ck_ok(comm_reduce(comm, &a));
    if (comm->rank == 1) {
        for (int i = 0; i < t->n_begun; i++) ck_ok(comm_reduce_begin(comm, &a, &ticket));
        if (t->is_sudden) return;
        err_set(CZ_IO, 0, "the disk of rank 1 is full");
        comm_leave(comm, cz_last_error());
        ck_assert_str_eq(cz_last_error(), "the disk of rank 1 is full");
        ck_fails(comm_barrier(comm), CZ_COMM);
        ck_assert_str_eq(cz_last_error(),
                         "this rank has left the others: the disk of rank 1 is full");
        return;
    }
    cz_status st = CZ_OK;
    for (int i = 0; st == CZ_OK; i++) {
        loop_assert(i < t->n_begun + 1, "a collective without rank 1 went through");
        st = comm_reduce(comm, &a);
    }
    const char *sentence = "rank 1 left at step 3 (forward): the disk of rank 1 is full";
    if (t->is_sudden)
        sentence = t->n_begun > 0 ? "rank 1 left at step 3 (forward): it ended with collectives "
                                    "under way"
                                  : "rank 1 died at step 3 (forward)";
    ck_assert_int_eq(st, CZ_PEER);
    ck_assert_str_eq(cz_last_error(), sentence);
    check_broken(comm, &t->world.ranks[comm->rank], CZ_PEER, sentence);
}

START_TEST(a_rank_that_leaves_is_named)
{
    for (int i = 0; i < 24; i++) {
        struct parting t = {.n_before = i % 2, .n_begun = i / 2 % 3, .is_sudden = i / 6 % 2};
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
          one_of_three_has_another_dtype, nothing_to_move_still_meets, a_table_divided_differently,
          a_rank_that_leaves_is_named, ending_does_not_disturb_the_last_wait_of_others)

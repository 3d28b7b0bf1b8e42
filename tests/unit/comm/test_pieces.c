/* Claims: a table of spans that is cut into pieces loses no element and doubles none: every owner's
 * come in the order of the table, in slots that are never overfull, in a bounded number of runs;
 * spans that continue each other on both sides are one run; every piece but an owner's last is full
 * of elements or of runs. */
#include "comm/exchange/exchange_impl.h"
#include "comm/exchange/pieces_impl.h"
#include "tests/support/check_main.h"
#include "tests/unit/comm/trial.h"

enum { W_MAX = 5, N_MAX = 300 };

/* An element's way: each is met once. */
struct seen {
    unsigned char times[1 << 16];
    size_t last[W_MAX]; /* place in the table of an owner's last element, from 1 */
};

static size_t place_of(const struct pieces *p, const struct comm_span *s, size_t i)
{
    size_t place = 1;
    for (size_t k = 0; k < p->n_spans; k++) {
        const struct comm_span *t = &p->spans[k];
        size_t src = s->src_off + i, dst = s->dst_off + i;
        if (t->owner == s->owner && src >= t->src_off && src < t->src_off + t->numel &&
            dst - t->dst_off == src - t->src_off && t->to == s->to)
            return place + (src - t->src_off);
        place += t->numel;
    }
    return 0;
}

static void check_runs(const struct pieces *p, const struct piece_run *runs, size_t n,
                       const size_t *numels, struct seen *seen)
{
    size_t filled[W_MAX] = {0}, n_runs[W_MAX] = {0};
    for (size_t i = 0; i < n; i++) {
        const struct comm_span *s = &runs[i].span;
        ck_assert_uint_eq(runs[i].at, filled[s->owner]);
        ck_assert_uint_gt(s->numel, 0);
        ck_assert_uint_le(++n_runs[s->owner], PIECE_RUNS_PER_OWNER);
        filled[s->owner] += s->numel;
        for (size_t k = 0; k < s->numel; k++) {
            size_t place = place_of(p, s, k);
            ck_assert_uint_gt(place, seen->last[s->owner]);
            seen->last[s->owner] = place;
            ck_assert_uint_eq(seen->times[place]++, 0);
        }
    }
    for (int r = 0; r < p->world_size; r++) {
        ck_assert_uint_eq(filled[r], numels[r]);
        ck_assert_uint_le(filled[r], p->slot_numel);
    }
}

/* Short spans, one in two continuing where the one before ended. */
static size_t roll_spans(struct dice *dice, struct comm_span *spans, int w)
{
    size_t n = roll(dice, N_MAX), src = 0, dst = 0;
    for (size_t i = 0; i < n; i++) {
        bool goes_on = roll(dice, 2);
        if (!goes_on) src += 1 + roll(dice, 3);
        if (!goes_on) dst += 1 + roll(dice, 3);
        spans[i] = (struct comm_span){.src_off = src,
                                      .dst_off = dst,
                                      .numel = roll(dice, 40),
                                      .owner = (int)roll(dice, (uint64_t)w),
                                      .to = COMM_ALL};
        if (goes_on && i > 0) spans[i].owner = spans[i - 1].owner;
        src += spans[i].numel;
        dst += spans[i].numel;
    }
    return n;
}

START_TEST(no_element_is_lost_or_doubled)
{
    static struct comm_span spans[N_MAX];
    static struct piece_run runs[W_MAX * PIECE_RUNS_PER_OWNER];
    static struct seen seen;
    struct piece_cursor at[W_MAX];
    size_t numels[W_MAX], n;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct dice dice = {seed << 32};
        int w = 1 + (int)roll(&dice, W_MAX);
        struct pieces p = {.spans = spans,
                           .n_spans = roll_spans(&dice, spans, w),
                           .slot_numel = seed % 3 ? 1 + roll(&dice, 200) : SIZE_MAX,
                           .moves = seed % 2,
                           .world_size = w,
                           .at = at};
        size_t total = 0, met = 0;
        for (size_t i = 0; i < p.n_spans; i++) total += spans[i].numel;
        memset(&seen, 0, sizeof seen);
        pieces_begin(&p);
        while ((n = pieces_next(&p, runs, numels)) > 0) {
            check_runs(&p, runs, n, numels, &seen);
            for (int r = 0; r < w; r++) met += numels[r];
        }
        ck_assert_uint_eq(met, total);
        ck_assert_uint_eq(pieces_next(&p, runs, numels), 0);
    }
}
END_TEST

START_TEST(spans_that_continue_each_other_are_one_run)
{
    const struct comm_span spans[] = {
        {.src_off = 10, .dst_off = 0, .numel = 5, .owner = 1, .to = COMM_ALL},
        {.src_off = 90, .dst_off = 90, .numel = 2, .owner = 0, .to = COMM_ALL},
        {.src_off = 15, .dst_off = 5, .numel = 7, .owner = 1, .to = COMM_ALL},
        {.src_off = 22, .dst_off = 13, .numel = 1, .owner = 1, .to = COMM_ALL}, /* a gap */
        {.src_off = 23, .dst_off = 14, .numel = 1, .owner = 1, .to = 0},        /* to another */
    };
    struct piece_run runs[2 * PIECE_RUNS_PER_OWNER];
    struct piece_cursor at[2];
    size_t numels[2];
    struct pieces p = {.spans = spans,
                       .n_spans = CZ_ARRAY_LEN(spans),
                       .slot_numel = 100,
                       .moves = true,
                       .world_size = 2,
                       .at = at};
    pieces_begin(&p);
    ck_assert_uint_eq(pieces_next(&p, runs, numels), 4);
    ck_assert_int_eq(runs[0].span.owner, 0);
    ck_assert_uint_eq(runs[1].span.src_off, 10);
    ck_assert_uint_eq(runs[1].span.numel, 12);
    ck_assert_uint_eq(runs[2].at, 12);
    ck_assert_uint_eq(numels[1], 14);
    p.moves = false; /* a reduction has no `to` */
    pieces_begin(&p);
    ck_assert_uint_eq(pieces_next(&p, runs, numels), 3);
}
END_TEST

/* A collective takes as many rounds as its longest stream has slots: those to all, then those to
 * single ranks; twice as many where all get a reduction's result; at least one. */
START_TEST(rounds_are_those_of_the_longest_streams)
{
    const struct comm_span pairs[] = {
        {.numel = 10, .owner = 0, .to = 2},       {.numel = 10, .owner = 2, .to = 0},
        {.numel = 9, .owner = 1, .to = 0},        {.numel = 3, .owner = 0, .to = 2},
        {.numel = 100, .owner = 1, .to = 1}, /* nothing is sent */
        {.numel = 7, .owner = 2, .to = COMM_ALL}, {.numel = 8, .owner = 1, .to = COMM_ALL},
        {.numel = 2, .owner = 2, .to = COMM_ALL}};
    uint64_t scratch[3 * 3];
    struct job job = {.move = {.elem_nbytes = 2, .spans = pairs, .n_spans = 5}};
    job_plan(&job, 8, 3, scratch);
    ck_assert_uint_eq(job.n_all, 0);
    ck_assert_uint_eq(job.n_rounds, 4); /* 26 bytes from 0 to 2 */
    ck_assert_uint_eq(job.total_numel, 132);
    job.move.n_spans = CZ_ARRAY_LEN(pairs);
    job_plan(&job, 8, 3, scratch);
    ck_assert_uint_eq(job.n_all, 3); /* 18 bytes from 2 */
    ck_assert_uint_eq(job.n_rounds, 7);
    for (int all = 0; all < 2; all++) {
        struct job sums = {
            .is_reduce = true,
            .reduce = {.wire = DTYPE_BF16, .all = all, .spans = pairs + 5, .n_spans = 3}};
        job_plan(&sums, 8, 3, scratch);
        ck_assert_uint_eq(sums.piece, 4);
        ck_assert_uint_eq(sums.n_rounds, all ? 6 : 3);
        sums.reduce.n_spans = 0;
        job_plan(&sums, 8, 3, scratch);
        ck_assert_uint_eq(sums.n_rounds, all ? 2 : 1);
    }
}
END_TEST

TEST_MAIN("comm/pieces", no_element_is_lost_or_doubled, spans_that_continue_each_other_are_one_run,
          rounds_are_those_of_the_longest_streams)

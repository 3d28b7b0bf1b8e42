/* Random collectives with random tables of spans, the same on every rank for the same seed, and
 * what should come of them: the definitions at the head of comm.h, written in plain loops. For
 * tests of any communicator; Check is not needed. */
#ifndef CZ_TESTS_TRIAL_H
#define CZ_TESTS_TRIAL_H

#include "base/rng.h"
#include "comm/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_SPANS_MAX 24

static const enum cz_dtype floats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static inline void *trial_alloc(size_t nbytes)
{
    void *p = malloc(nbytes + 1);
    if (!p) abort();
    return p;
}

struct dice {
    uint64_t state;
};

static inline uint64_t roll(struct dice *dice, uint64_t n)
{
    return rng_mix64(++dice->state) % n;
}

/* Sizes around none, one element, and the edges of slots of `piece` elements. */
static inline size_t roll_numel(struct dice *dice, size_t piece)
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
static inline void table_roll(struct table *t, struct dice *dice, int w, size_t piece,
                              bool in_place)
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

/* One element in eight is special: any bits of the dtype, infinity, NaN and denormals among them.
 */
static inline void *floats_roll(uint64_t seed, enum cz_dtype dtype, size_t numel)
{
    struct dice dice = {seed << 32};
    unsigned char *p = trial_alloc(numel * dtype_size(dtype));
    for (size_t i = 0; i < numel; i++) {
        uint64_t bits = roll(&dice, UINT64_MAX);
        dtype_put(p, i, dtype, ((float)(bits >> 40) * 0x1p-23f - 1.0f) * 3.0f);
        if (bits % 8 != 0) continue;
        uint32_t any = (uint32_t)(bits >> 8);
        if (bits % 16 == 0) any = any % 4 == 0 ? 0x7f800000u : any & 0x807fffffu;
        if (dtype != DTYPE_F32) any >>= bits % 32 == 0 ? 16 : 0;
        memcpy(p + i * dtype_size(dtype), &any, dtype_size(dtype));
    }
    return p;
}

static inline float rounded(float x, enum cz_dtype dtype)
{
    float y;
    dtype_put(&y, 0, dtype, x);
    return dtype_get(&y, 0, dtype);
}

/* Of two NaNs the first stays. */
static inline float plus(float sum, float x)
{
    return isnan(sum) ? sum : sum + x;
}

/* The definition at the head of comm.h. sources: (w) */
static inline void reduce_naive(const struct comm_reduce *a, void *const *sources, int w, int rank,
                                void *dst)
{
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct comm_span *s = &a->spans[i];
        if (s->owner != rank && !a->all) continue;
        for (size_t e = 0; e < s->numel; e++) {
            float sum = 0;
            for (int r = 0; r < w; r++)
                sum = plus(sum,
                           rounded(dtype_get(sources[r], s->src_off + e, a->src_dtype), a->wire));
            float y = rounded(sum * a->scale, a->wire);
            if (a->accumulate) y = plus(y, dtype_get(dst, s->dst_off + e, a->dst_dtype));
            dtype_put(dst, s->dst_off + e, a->dst_dtype, y);
        }
    }
}

static inline void move_naive(const struct comm_move *a, void *const *sources, int rank, char *dst)
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
    uint64_t seed;
};

static inline void trial_roll_reduce(struct trial *t, struct dice *dice, int w, size_t slot_nbytes)
{
    struct comm_reduce *a = &t->reduce;
    a->src_dtype = floats[roll(dice, 3)];
    a->dst_dtype = t->in_place ? a->src_dtype : floats[roll(dice, 3)];
    a->wire = floats[roll(dice, 3)];
    a->scale = roll(dice, 2) ? 1.0f / (float)w : 1.0f;
    a->accumulate = roll(dice, 3) == 0;
    a->all = roll(dice, 3) == 0;
    table_roll(&t->table, dice, w, slot_nbytes / dtype_size(a->wire), t->in_place);
    a->spans = t->table.spans;
    a->n_spans = t->table.n;
}

static inline void trial_roll_move(struct trial *t, struct dice *dice, int w, size_t slot_nbytes)
{
    static const size_t sizes[] = {1, 2, 3, 4, 8, 136};
    size_t elem_nbytes = sizes[roll(dice, CZ_ARRAY_LEN(sizes))];
    table_roll(&t->table, dice, w, slot_nbytes / elem_nbytes + 1, t->in_place);
    t->move = (struct comm_move){
        .elem_nbytes = elem_nbytes, .spans = t->table.spans, .n_spans = t->table.n};
}

static inline void trial_make(struct trial *t, uint64_t seed, int rank, int w, size_t slot_nbytes)
{
    struct dice dice = {seed << 32};
    *t = (struct trial){.seed = seed, .is_reduce = roll(&dice, 2), .in_place = roll(&dice, 4) == 0};
    if (t->is_reduce)
        trial_roll_reduce(t, &dice, w, slot_nbytes);
    else
        trial_roll_move(t, &dice, w, slot_nbytes);
    enum cz_dtype src = t->is_reduce ? t->reduce.src_dtype : DTYPE_BF16;
    enum cz_dtype dst = t->is_reduce ? t->reduce.dst_dtype : DTYPE_BF16;
    size_t per = t->is_reduce ? 1 : (t->move.elem_nbytes + 1) / 2; /* of our 16-bit floats */
    for (int r = 0; r < w; r++)
        t->sources[r] = floats_roll(seed * 16 + (uint64_t)r, src, t->table.src_numel * per);
    t->dst_nbytes = t->table.dst_numel * per * dtype_size(dst);
    t->dst =
        t->in_place ? t->sources[rank] : floats_roll(seed * 16 + 15, dst, t->table.dst_numel * per);
    t->want = trial_alloc(t->dst_nbytes);
    memcpy(t->want, t->dst, t->dst_nbytes);
    t->reduce.src = t->move.src = t->sources[rank];
    t->reduce.dst = t->move.dst = t->dst;
    if (t->is_reduce)
        reduce_naive(&t->reduce, t->sources, w, rank, t->want);
    else
        move_naive(&t->move, t->sources, rank, t->want);
}

static inline cz_status trial_begin(struct trial *t, struct comm *comm)
{
    return t->is_reduce ? comm_reduce_begin(comm, &t->reduce, &t->ticket)
                        : comm_move_begin(comm, &t->move, &t->ticket);
}

static inline cz_status trial_compare(const struct trial *t, const struct comm *comm)
{
    const unsigned char *got = t->dst, *want = t->want;
    for (size_t i = 0; i < t->dst_nbytes; i++)
        if (got[i] != want[i])
            return err_set(CZ_CORRUPT, 0,
                           "rank %d of %d, seed %d (%s%s, %s over %s into %s%s): byte %d is %02x, "
                           "not %02x",
                           comm->rank, comm->world_size, (int)t->seed,
                           t->is_reduce ? "reduce" : "move", t->in_place ? " in place" : "",
                           dtype_name(t->reduce.src_dtype), dtype_name(t->reduce.wire),
                           dtype_name(t->reduce.dst_dtype),
                           t->reduce.accumulate ? " accumulating" : "", (int)i, got[i], want[i]);
    return CZ_OK;
}

/* Call once it has been waited for. CZ_CORRUPT names the first byte that is not as defined. */
static inline cz_status trial_finish(struct trial *t, const struct comm *comm)
{
    cz_status st = trial_compare(t, comm);
    for (int r = 0; r < comm->world_size; r++) free(t->sources[r]);
    if (!t->in_place) free(t->dst);
    free(t->want);
    return st;
}

#endif

/* Claims: a fetch schedule keeps every promise of layout/fetch.h. A replay written apart from it
 * checks hand-made and random passes: what a visit needs has arrived, nothing is dropped while in
 * use, stays never share a place, prefetch, keep and max_live go exactly as far as they may; and
 * three small chains are fetched as worked out manually. */
#include "base/rng.h"
#include "layout/fetch.h"
#include "tests/support/check_main.h"

#include <string.h>
#include <time.h>

#define MAX_VISITS    96
#define MAX_PARAMS    512
#define MAX_PER_VISIT 16

/* A pass that owns its arrays. */
struct pass {
    size_t numel[MAX_PARAMS];
    bool resident[MAX_PARAMS];
    size_t lists[MAX_VISITS][MAX_PER_VISIT];
    struct fetch_visit visits[MAX_VISITS];
    struct fetch_options o;
};

static void pass_init(struct pass *p)
{
    memset(p, 0, sizeof *p);
    p->o = (struct fetch_options){
        .numel = p->numel, .resident = p->resident, .visits = p->visits, .align = 1};
}

static size_t pass_param(struct pass *p, size_t numel)
{
    ck_assert_uint_lt(p->o.n_params, MAX_PARAMS);
    p->numel[p->o.n_params] = numel;
    return p->o.n_params++;
}

static void pass_visit(struct pass *p, const size_t *params, size_t n)
{
    ck_assert_uint_lt(p->o.n_visits, MAX_VISITS);
    ck_assert_uint_le(n, MAX_PER_VISIT);
    size_t v = p->o.n_visits++;
    if (n > 0) memcpy(p->lists[v], params, n * sizeof *params);
    p->visits[v] = (struct fetch_visit){p->lists[v], n};
}

/* Visits [0, n) once more, from the last to the first. */
static void pass_return(struct pass *p)
{
    for (size_t v = p->o.n_visits; v-- > 0;) pass_visit(p, p->lists[v], p->visits[v].n);
}

static void limits(struct pass *p, size_t max_live, size_t prefetch_numel, size_t max_reuse)
{
    p->o.max_live = max_live;
    p->o.prefetch_numel = prefetch_numel;
    p->o.max_reuse = max_reuse;
}

/* ---- the replay ----------------------------------------------------------------------------- */

/* An assertion that tells Check nothing while it holds: millions of them run here. */
#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) ck_abort_msg("%s", #condition);                                          \
    } while (0)

static bool uses(const struct fetch_options *o, size_t v, size_t param)
{
    for (size_t i = 0; i < o->visits[v].n; i++)
        if (o->visits[v].param_idx[i] == param) return true;
    return false;
}

/* Is entry i of visit v a parameter to fetch, seen there for the first time? */
static bool counts(const struct fetch_options *o, size_t v, size_t i)
{
    const size_t *list = o->visits[v].param_idx;
    for (size_t k = 0; k < i; k++)
        if (list[k] == list[i]) return false;
    return !o->resident[list[i]];
}

/* First visit from v on that uses the parameter; n_visits: none. */
static size_t next_use(const struct fetch_options *o, size_t v, size_t param)
{
    while (v < o->n_visits && !uses(o, v, param)) v++;
    return v;
}

static size_t distinct_numel(const struct fetch_options *o, size_t v, bool with_resident)
{
    bool seen[MAX_PARAMS] = {false};
    size_t sum = 0;
    for (size_t i = 0; i < o->visits[v].n; i++) {
        size_t param = o->visits[v].param_idx[i];
        if (!seen[param] && (with_resident || !o->resident[param])) sum += o->numel[param];
        seen[param] = true;
    }
    return sum;
}

struct replay {
    const struct fetch_options *o;
    const struct fetch_schedule *s;
    size_t *owner;              /* (window) 1 + the stay that is there */
    size_t begin[4096];         /* visit at which a stay's op begins */
    size_t op_of[4096];         /* a stay's op */
    size_t stay_of[MAX_PARAMS]; /* 1 + the live stay of a parameter; 0: not live */
    size_t needs[MAX_VISITS];
    size_t live, live_max, fetched;
};

static void check_stay_begins(struct replay *r, const struct fetch_op *op, size_t idx)
{
    const struct fetch_stay *stay = &r->s->stays[idx];
    size_t numel = r->o->numel[stay->param_idx];
    must(!r->o->resident[stay->param_idx]);
    must(r->stay_of[stay->param_idx] == 0);
    must(stay->first_visit == next_use(r->o, op->visit, stay->param_idx));
    if (op->demand)
        must(stay->first_visit == op->visit);
    else
        must(stay->first_visit > op->visit);
    must(uses(r->o, stay->last_visit, stay->param_idx));
    must(stay->last_visit >= stay->first_visit);
    must(stay->off % r->o->align == 0);
    must(stay->off + numel <= r->s->window_numel);
    for (size_t i = 0; i < numel; i++) {
        if (r->owner[stay->off + i] != 0) ck_abort_msg("stay %zu overlaps another", idx);
        r->owner[stay->off + i] = idx + 1;
    }
    r->stay_of[stay->param_idx] = idx + 1;
    r->live += numel;
}

static void check_op_begins(struct replay *r, size_t op_idx)
{
    const struct fetch_op *op = &r->s->ops[op_idx];
    size_t numel = 0, before_last = 0, last_use = 0;
    must(op->n > 0);
    for (size_t i = op->first; i < op->first + op->n; i++) {
        before_last = numel;
        numel += r->o->numel[r->s->stays[i].param_idx];
        must(r->s->stays[i].first_visit >= last_use);
        last_use = r->s->stays[i].first_visit;
        check_stay_begins(r, op, i);
    }
    must(op->numel == numel);
    r->fetched += numel;
    if (op->demand) return;
    must(before_last < r->o->prefetch_numel);
    if (numel > 0) must(r->live <= r->o->max_live);
}

/* Elements live at each visit if nothing more is prefetched after visit `now`. */
static void profile(const struct replay *r, size_t now, size_t *live)
{
    memset(live, 0, MAX_VISITS * sizeof *live);
    for (size_t i = 0; i < r->s->n_stays; i++) {
        const struct fetch_stay *stay = &r->s->stays[i];
        size_t from = r->begin[i] <= now ? r->begin[i] : stay->first_visit;
        for (size_t v = from; v <= stay->last_visit; v++) live[v] += r->o->numel[stay->param_idx];
    }
}

/* What a round of prefetch leaves out it had to leave out. */
static void check_prefetch_goes_on(const struct replay *r, size_t v)
{
    const struct fetch_op *last =
        r->s->op_begin[v + 1] > 0 ? &r->s->ops[r->s->op_begin[v + 1] - 1] : NULL;
    size_t chosen = last && last->visit == v && !last->demand ? last->numel : 0;
    if (chosen >= r->o->prefetch_numel) return;
    for (size_t u = v + 1; u < r->o->n_visits; u++)
        for (size_t i = 0; i < r->o->visits[u].n; i++) {
            size_t param = r->o->visits[u].param_idx[i], live[MAX_VISITS];
            if (r->o->resident[param] || r->stay_of[param] != 0) continue;
            profile(r, v, live);
            for (size_t w = v; w < u; w++)
                if (live[w] + r->o->numel[param] > r->o->max_live) return;
            ck_abort_msg("visit %zu could have prefetched parameter %zu for %zu", v, param, u);
        }
}

static void check_visit_runs(struct replay *r, size_t v)
{
    size_t needed = v > 0 ? r->s->ops_needed[v - 1] : 0;
    for (size_t i = 0; i < r->o->visits[v].n; i++) {
        size_t param = r->o->visits[v].param_idx[i];
        if (r->o->resident[param]) continue;
        must(r->stay_of[param] != 0);
        size_t op = r->op_of[r->stay_of[param] - 1];
        if (op + 1 > needed) needed = op + 1;
    }
    must(r->s->ops_needed[v] == needed);
    if (r->live > r->live_max) r->live_max = r->live;
    must(r->live <= (r->needs[v] > r->o->max_live ? r->needs[v] : r->o->max_live));
}

static void check_drops(struct replay *r, size_t v)
{
    for (size_t i = r->s->drop_begin[v]; i < r->s->drop_begin[v + 1]; i++) {
        const struct fetch_stay *stay = &r->s->stays[r->s->drops[i]];
        must(stay->last_visit == v);
        must(r->stay_of[stay->param_idx] == r->s->drops[i] + 1);
        r->stay_of[stay->param_idx] = 0;
        size_t numel = r->o->numel[stay->param_idx];
        memset(r->owner + stay->off, 0, numel * sizeof *r->owner);
        r->live -= numel;
    }
}

/* Between visits v and u, which use the parameter and none in between does: kept if and only if
 * short enough and, with all that is kept, within max_live. */
static void check_gap(const struct replay *r, size_t param, size_t v, size_t u, const size_t *kept)
{
    bool is_kept = false, fits = true;
    for (size_t i = 0; i < r->s->n_stays; i++)
        is_kept |= r->s->stays[i].param_idx == param && r->s->stays[i].first_visit <= v &&
                   r->s->stays[i].last_visit >= u;
    size_t distance = 0;
    for (size_t w = v + 1; w < u; w++) {
        distance += distinct_numel(r->o, w, true);
        fits &= kept[w] + (is_kept ? 0 : r->o->numel[param]) <= r->o->max_live;
    }
    if (is_kept != (distance < r->o->max_reuse && fits))
        ck_abort_msg("parameter %zu from visit %zu to %zu: kept %d, distance %zu, fits %d", param,
                     v, u, is_kept, distance, fits);
}

static void check_keeps(const struct replay *r)
{
    size_t kept[MAX_VISITS] = {0}; /* live at a visit without prefetch */
    for (size_t i = 0; i < r->s->n_stays; i++)
        for (size_t v = r->s->stays[i].first_visit; v <= r->s->stays[i].last_visit; v++)
            kept[v] += r->o->numel[r->s->stays[i].param_idx];
    for (size_t v = 0; v < r->o->n_visits; v++)
        for (size_t i = 0; i < r->o->visits[v].n; i++) {
            if (!counts(r->o, v, i)) continue;
            size_t param = r->o->visits[v].param_idx[i];
            size_t u = next_use(r->o, v + 1, param);
            if (u < r->o->n_visits) check_gap(r, param, v, u, kept);
        }
}

/* Ops are in the order of begins, at most a demand and a prefetch per visit, and hold every stay.
 */
static void check_order(struct replay *r)
{
    const struct fetch_schedule *s = r->s;
    size_t n_stays = 0;
    must(s->n_visits == r->o->n_visits);
    must(s->op_begin[0] == 0);
    must(s->drop_begin[0] == 0);
    must(s->op_begin[s->n_visits] == s->n_ops);
    must(s->drop_begin[s->n_visits] == s->n_stays);
    for (size_t v = 0; v < s->n_visits; v++) {
        r->needs[v] = distinct_numel(r->o, v, false);
        must(s->drop_begin[v] <= s->drop_begin[v + 1]);
        must(s->op_begin[v + 1] - s->op_begin[v] <= 2);
        for (size_t op = s->op_begin[v]; op < s->op_begin[v + 1]; op++) {
            must(s->ops[op].visit == v);
            must(op == s->op_begin[v] || (s->ops[op - 1].demand && !s->ops[op].demand));
            must(s->ops[op].first == n_stays);
            for (size_t i = 0; i < s->ops[op].n; i++, n_stays++) {
                r->begin[n_stays] = v;
                r->op_of[n_stays] = op;
            }
        }
    }
    must(n_stays == s->n_stays);
}

static void check_replay(const struct fetch_options *o, const struct fetch_schedule *s)
{
    static struct replay r;
    memset(&r, 0, sizeof r);
    r.o = o;
    r.s = s;
    r.owner = calloc(s->window_numel + 1, sizeof *r.owner);
    ck_assert_ptr_nonnull(r.owner);
    must(s->n_stays <= 4096);
    check_order(&r);
    for (size_t v = 0; v < o->n_visits; v++) {
        for (size_t op = s->op_begin[v]; op < s->op_begin[v + 1]; op++) check_op_begins(&r, op);
        check_prefetch_goes_on(&r, v);
        check_visit_runs(&r, v);
        check_drops(&r, v);
    }
    check_keeps(&r);
    must(r.live == 0);
    must(r.live_max == s->live_max);
    must(r.fetched == s->fetched_numel);
    must(s->window_numel >= s->live_max);
    free(r.owner);
}

static void schedule(struct fetch_schedule *s, const struct pass *p)
{
    ck_ok(fetch_schedule_init(s, &p->o));
    check_replay(&p->o, s);
}

/* ---- chains worked out manually -------------------------------------------------------------- */

enum { WTE, WPE, W0, B0, W1, B1, W2, B2, LNF };

/* Embedding, three blocks of 10, a head that shares the embedding's table; there and back. */
static void gpt2_make(struct pass *p)
{
    const size_t numel[] = {20, 5, 8, 2, 8, 2, 8, 2, 1};
    pass_init(p);
    for (size_t i = 0; i < 9; i++) pass_param(p, numel[i]);
    pass_visit(p, (size_t[]){WTE, WPE}, 2);
    pass_visit(p, (size_t[]){W0, B0}, 2);
    pass_visit(p, (size_t[]){W1, B1}, 2);
    pass_visit(p, (size_t[]){W2, B2}, 2);
    pass_visit(p, (size_t[]){LNF, WTE}, 2);
    pass_return(p);
}

START_TEST(without_limits_left_everything_is_demanded)
{
    static struct pass p;
    struct fetch_schedule s;
    gpt2_make(&p);
    limits(&p, 0, 0, 0);
    schedule(&s, &p);
    ck_assert_uint_eq(s.n_ops, 10);
    for (size_t v = 0; v < 10; v++) {
        ck_assert(s.ops[v].demand);
        ck_assert_uint_eq(s.ops[v].visit, v);
        ck_assert_uint_eq(s.ops_needed[v], v + 1);
        ck_assert_uint_eq(s.drop_begin[v + 1] - s.drop_begin[v], 2);
    }
    ck_assert_uint_eq(s.live_max, 25); /* the largest unit */
    ck_assert_uint_eq(s.window_numel, 25);
    ck_assert_uint_eq(s.fetched_numel, 152);
    fetch_schedule_free(&s);
    fetch_schedule_free(&s);
}
END_TEST

START_TEST(under_the_defaults_a_small_model_is_fetched_once)
{
    static struct pass p;
    struct fetch_schedule s;
    gpt2_make(&p);
    limits(&p, 1000000000, 50000000, 1000000000);
    schedule(&s, &p);
    ck_assert_uint_eq(s.n_ops, 2);
    ck_assert(s.ops[0].demand && !s.ops[1].demand);
    ck_assert_uint_eq(s.ops[0].numel, 25);
    ck_assert_uint_eq(s.ops[1].numel, 31);
    ck_assert_uint_eq(s.ops[1].visit, 0);
    ck_assert_uint_eq(s.ops_needed[0], 1);
    ck_assert_uint_eq(s.ops_needed[1], 2);
    const size_t n_dropped[10] = {0, 0, 0, 0, 0, 1, 2, 2, 2, 2};
    for (size_t v = 0; v < 10; v++)
        ck_assert_uint_eq(s.drop_begin[v + 1] - s.drop_begin[v], n_dropped[v]);
    ck_assert_uint_eq(s.live_max, 56);
    ck_assert_uint_eq(s.window_numel, 56);
    ck_assert_uint_eq(s.fetched_numel, 56);
    fetch_schedule_free(&s);
}
END_TEST

/* Units {a 4, b 4, c 2}, three of them, there and back; at most 15 live. The turn (unit 2) is kept
 * for nothing, and of unit 1 what fits beside unit 2: its a. */
START_TEST(one_unit_and_a_half)
{
    static struct pass p;
    struct fetch_schedule s;
    pass_init(&p);
    for (size_t u = 0; u < 3; u++) {
        const size_t list[3] = {pass_param(&p, 4), pass_param(&p, 4), pass_param(&p, 2)};
        pass_visit(&p, list, 3);
    }
    pass_return(&p);
    limits(&p, 15, 1000, 1000);
    schedule(&s, &p);
    /* visit, demand, stays, elements */
    const size_t want[8][4] = {{0, 1, 3, 10}, {0, 0, 1, 4}, {1, 1, 2, 6}, {1, 0, 1, 4},
                               {2, 1, 2, 6},  {4, 1, 2, 6}, {4, 0, 1, 4}, {5, 1, 2, 6}};
    ck_assert_uint_eq(s.n_ops, 8);
    for (size_t i = 0; i < 8; i++) {
        ck_assert_uint_eq(s.ops[i].visit, want[i][0]);
        ck_assert_uint_eq(s.ops[i].demand, want[i][1]);
        ck_assert_uint_eq(s.ops[i].n, want[i][2]);
        ck_assert_uint_eq(s.ops[i].numel, want[i][3]);
    }
    const size_t needed[6] = {1, 3, 5, 5, 6, 8};
    for (size_t v = 0; v < 6; v++) ck_assert_uint_eq(s.ops_needed[v], needed[v]);
    ck_assert_uint_eq(s.live_max, 14);
    ck_assert_uint_eq(s.fetched_numel, 46);
    ck_assert_uint_eq(s.window_numel, 14);
    /* The fours first: a0 b0 | a1 | b1 | a2 | b2 | b1 | a0 | b0; then the twos above, or in a gap.
     */
    const size_t off[14] = {0, 4, 12, 8, 0, 12, 4, 0, 12, 0, 12, 4, 0, 8};
    ck_assert_uint_eq(s.n_stays, 14);
    for (size_t i = 0; i < 14; i++) ck_assert_uint_eq(s.stays[i].off, off[i]);
    fetch_schedule_free(&s);
}
END_TEST

START_TEST(stays_begin_at_multiples_of_align)
{
    static struct pass p;
    struct fetch_schedule s;
    gpt2_make(&p);
    limits(&p, 1000, 1000, 1000);
    p.o.align = 16;
    schedule(&s, &p);
    ck_assert_uint_eq(s.live_max, 56);
    ck_assert_uint_eq(s.stays[0].off, 0);
    ck_assert_uint_eq(s.stays[1].off, 80); /* behind the three larger ones */
    ck_assert_uint_eq(s.stays[2].off, 32);
    ck_assert_uint_eq(s.window_numel, 32 + 7 * 16 + 1);
    fetch_schedule_free(&s);
}
END_TEST

START_TEST(prefetch_ends_with_the_parameter_that_fills_the_bucket)
{
    static struct pass p;
    struct fetch_schedule s;
    gpt2_make(&p);
    limits(&p, 1000, 9, 1000);
    schedule(&s, &p);
    ck_assert_uint_eq(s.ops[1].n, 2); /* W0, B0: 8 < 9, so one more */
    ck_assert_uint_eq(s.ops[2].visit, 1);
    ck_assert_uint_eq(s.ops[2].n, 2);
    fetch_schedule_free(&s);
}
END_TEST

START_TEST(resident_parameters_are_never_fetched)
{
    static struct pass p;
    struct fetch_schedule s;
    gpt2_make(&p);
    limits(&p, 1000, 1000, 1000);
    memset(p.resident, 1, sizeof p.resident);
    schedule(&s, &p);
    ck_assert_uint_eq(s.n_ops, 0);
    ck_assert_uint_eq(s.n_stays, 0);
    ck_assert_uint_eq(s.window_numel, 0);
    ck_assert_uint_eq(s.live_max, 0);
    ck_assert_uint_eq(s.ops_needed[9], 0);
    fetch_schedule_free(&s);
    p.resident[WTE] = false;
    schedule(&s, &p);
    ck_assert_uint_eq(s.fetched_numel, 20);
    fetch_schedule_free(&s);
}
END_TEST

/* The distance counts resident parameters too: 10 elements pass between the two visits of W1. */
START_TEST(a_parameter_is_kept_over_fewer_than_max_reuse_elements)
{
    static struct pass p;
    struct fetch_schedule s;
    for (size_t max_reuse = 9; max_reuse <= 11; max_reuse++) {
        gpt2_make(&p);
        p.o.n_visits = 0;
        p.resident[W2] = p.resident[B2] = true;
        pass_visit(&p, (size_t[]){W1}, 1);
        pass_visit(&p, (size_t[]){W2, B2, B2}, 3);
        pass_visit(&p, (size_t[]){W1}, 1);
        limits(&p, 1000, 0, max_reuse);
        schedule(&s, &p);
        ck_assert_uint_eq(s.n_stays, max_reuse > 10 ? 1 : 2);
        fetch_schedule_free(&s);
    }
}
END_TEST

START_TEST(empty_passes_and_empty_visits)
{
    static struct pass p;
    struct fetch_schedule s;
    pass_init(&p);
    schedule(&s, &p);
    ck_assert_uint_eq(s.n_ops, 0);
    fetch_schedule_free(&s);
    size_t a = pass_param(&p, 0), b = pass_param(&p, 3);
    pass_visit(&p, NULL, 0);
    pass_visit(&p, (size_t[]){a, b}, 2);
    pass_visit(&p, NULL, 0);
    schedule(&s, &p);
    ck_assert_uint_eq(s.window_numel, 3);
    ck_assert_uint_eq(s.ops_needed[0], 0);
    ck_assert_uint_eq(s.ops_needed[2], 1);
    fetch_schedule_free(&s);
}
END_TEST

START_TEST(what_makes_no_sense_is_refused)
{
    static struct pass p;
    struct fetch_schedule s;
    gpt2_make(&p);
    p.lists[3][1] = 9;
    ck_fails(fetch_schedule_init(&s, &p.o), CZ_INVALID);
    ck_assert_str_eq(cz_last_error(), "visit 3 uses parameter 9 of 9");
    ck_assert_ptr_null(s.ops);
    fetch_schedule_free(&s);
    gpt2_make(&p);
    p.o.align = 0;
    ck_fails(fetch_schedule_init(&s, &p.o), CZ_INVALID);
    gpt2_make(&p);
    p.numel[W0] = SIZE_MAX / 2 + 1;
    ck_fails(fetch_schedule_init(&s, &p.o), CZ_INVALID);
    gpt2_make(&p);
    p.o.align = SIZE_MAX;
    ck_fails(fetch_schedule_init(&s, &p.o), CZ_INVALID);
    pass_init(&p);
    pass_visit(&p, (size_t[]){pass_param(&p, SIZE_MAX)}, 1);
    p.o.align = 2; /* one that cannot be rounded up */
    ck_fails(fetch_schedule_init(&s, &p.o), CZ_INVALID);
}
END_TEST

/* ---- random passes -------------------------------------------------------------------------- */

static size_t draw(uint64_t *x, size_t n)
{
    *x = rng_mix64(*x + 0x9E3779B97F4A7C15u);
    return (size_t)(*x % n);
}

/* Up to 40 units of up to 12 parameters; ties near and far, the same parameter twice in a unit. */
static void units_make(struct pass *p, uint64_t *x)
{
    size_t n_units = 1 + draw(x, draw(x, 4) == 0 ? 40 : 8), per_unit = 1 + draw(x, 12);
    size_t numel_max = 1 + draw(x, 60);
    for (size_t u = 0; u < n_units; u++) {
        size_t list[MAX_PER_VISIT], n = draw(x, per_unit + 1);
        for (size_t i = 0; i < n; i++) {
            bool is_tied = p->o.n_params > 0 && draw(x, 12) == 0;
            list[i] = is_tied ? draw(x, p->o.n_params) : pass_param(p, draw(x, numel_max + 1));
        }
        if (u > 0 && u == n_units - 1 && p->visits[0].n > 0) list[n++] = p->lists[0][0];
        pass_visit(p, list, n);
    }
}

/* Back with what is recomputed: segments of `every` units run forward again before their backward.
 */
static void backward_make(struct pass *p, size_t every)
{
    size_t n_units = p->o.n_visits;
    for (size_t end = n_units; end > 0;) {
        size_t begin = every < end ? end - every : 0;
        if (n_units <= MAX_VISITS / 3)
            for (size_t u = begin; u < end; u++) pass_visit(p, p->lists[u], p->visits[u].n);
        for (; end > begin; end--) pass_visit(p, p->lists[end - 1], p->visits[end - 1].n);
    }
}

static size_t limit_draw(uint64_t *x, size_t total)
{
    switch (draw(x, 6)) {
    case 0: return 0;
    case 1: return 1000000000;
    case 2: return SIZE_MAX;
    default: return draw(x, total + 2) / (1 + draw(x, 8));
    }
}

/* A mixture's experts: 240 layers of 600 tensors, there and back, fetched in twelfths of a layer.
 */
START_TEST(thousands_of_equal_stays_take_little_time)
{
    enum { LAYERS = 240, EXPERTS = 600, N = LAYERS * EXPERTS };
    static size_t numel[N], params[N];
    static bool resident[N];
    struct fetch_visit visits[2 * LAYERS];
    for (size_t i = 0; i < N; i++) numel[i] = 96 + i % 3, params[i] = i;
    for (size_t v = 0; v < 2 * LAYERS; v++) {
        const size_t layer = v < LAYERS ? v : 2 * LAYERS - 1 - v;
        visits[v] = (struct fetch_visit){.param_idx = params + layer * EXPERTS, .n = EXPERTS};
    }
    const struct fetch_options options = {.numel = numel,
                                          .resident = resident,
                                          .n_params = N,
                                          .visits = visits,
                                          .n_visits = 2 * LAYERS,
                                          .max_live = 2 * EXPERTS * 96,
                                          .max_reuse = N * 96,
                                          .prefetch_numel = EXPERTS * 96 / 12,
                                          .align = 64};
    struct fetch_schedule s;
    const clock_t begin = clock();
    ck_ok(fetch_schedule_init(&s, &options));
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ck_assert_uint_gt(s.n_stays, N);
    ck_assert_uint_le(s.window_numel, 3 * EXPERTS * 128);
    ck_assert_msg(seconds < 1.5, "%g s", seconds); /* all against all: 6 s */
    fetch_schedule_free(&s);
}
END_TEST

START_TEST(random_passes_keep_every_promise)
{
    static struct pass p;
    uint64_t x = 20;
    for (int round = 0; round < 4000; round++) {
        pass_init(&p);
        units_make(&p, &x);
        if (draw(&x, 8) != 0) backward_make(&p, 1 + draw(&x, 4));
        size_t total = 0, n_resident = draw(&x, 4) == 0 ? draw(&x, 9) : 0;
        for (size_t i = 0; i < p.o.n_params; i++) {
            total += p.numel[i];
            p.resident[i] = draw(&x, 8) < n_resident;
        }
        limits(&p, limit_draw(&x, total), limit_draw(&x, total), limit_draw(&x, 2 * total));
        p.o.align = (size_t[]){1, 1, 7, 16, 64}[draw(&x, 5)];
        struct fetch_schedule s, again;
        schedule(&s, &p);
        ck_ok(fetch_schedule_init(&again, &p.o));
        ck_assert_uint_eq(s.n_stays, again.n_stays);
        if (s.n_stays > 0) ck_assert_mem_eq(s.stays, again.stays, s.n_stays * sizeof *s.stays);
        if (s.n_ops > 0) ck_assert_uint_eq(s.ops[s.n_ops - 1].numel, again.ops[s.n_ops - 1].numel);
        fetch_schedule_free(&again);
        fetch_schedule_free(&s);
    }
}
END_TEST

TEST_MAIN("layout/fetch", without_limits_left_everything_is_demanded,
          under_the_defaults_a_small_model_is_fetched_once, one_unit_and_a_half,
          stays_begin_at_multiples_of_align, prefetch_ends_with_the_parameter_that_fills_the_bucket,
          resident_parameters_are_never_fetched,
          a_parameter_is_kept_over_fewer_than_max_reuse_elements, empty_passes_and_empty_visits,
          what_makes_no_sense_is_refused, random_passes_keep_every_promise,
          thousands_of_equal_stays_take_little_time)

/* The schedule by which a stage-3 pass fetches parameters (docs/deepspeed-behaviour.md,
 * "Fetching"): made once from the order of the layers, so every rank has the same one without
 * asking.
 *
 * A stay is the time a parameter is in the window, from fetch to drop. Uses that are close together
 * become one stay; then a walk over the visits fetches what is needed (demand) and what will be
 * needed soon (prefetch), as long as no more than max_live elements are live; last, each stay gets
 * its place in the window. All three steps are greedy and deterministic. */
#include "layout/fetch_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

#define NONE SIZE_MAX

/* A parameter at a visit that needs it; in order of use. */
struct use {
    size_t visit, param_idx;
    size_t next; /* the parameter's next use, or NONE */
    bool kept;   /* until then */
};

/* The time between two uses of a parameter. */
struct gap {
    size_t use;
    size_t distance; /* elements that pass meanwhile */
};

/* A stay that no op has fetched yet. */
struct pending {
    struct fetch_stay stay;
    size_t free_from; /* first visit at which the parameter's stay before this one is over */
    bool begun;
};

/* What is only needed while the schedule is made. */
struct fetch_plan {
    const struct fetch_options *o;
    struct use *uses;
    size_t n_uses;
    size_t *passed;    /* (n_visits + 1) elements of visits [0, v), resident ones included */
    size_t *live;      /* (n_visits) elements decided so far to be live at v */
    size_t *per_param; /* (n_params) scratch */
    struct gap *gaps;
    struct pending *pending; /* in order of first use */
    size_t n_pending, first_pending;
};

/* ---- uses ------------------------------------------------------------------------------------ */

/* Elements of the whole pass, each parameter rounded up to align: if this sum fits, so does every
 * sum below. */
static cz_status pass_check(const struct fetch_options *o)
{
    size_t total = 0;
    for (size_t v = 0; v < o->n_visits; v++)
        for (size_t i = 0; i < o->visits[v].n; i++) {
            size_t p = o->visits[v].param_idx[i], rounded;
            if (p >= o->n_params)
                return err_set(CZ_INVALID, 0, "visit %zu uses parameter %zu of %zu", v, p,
                               o->n_params);
            TRY(size_add(o->numel[p], o->align - 1, &rounded));
            TRY(size_add(total, rounded, &total));
        }
    return CZ_OK;
}

/* A parameter that a visit names twice is used once. per_param: 1 + the last visit that was seen to
 * need the parameter. */
static void uses_collect(struct fetch_plan *p)
{
    const struct fetch_options *o = p->o;
    for (size_t v = 0; v < o->n_visits; v++) {
        p->passed[v + 1] = p->passed[v];
        for (size_t i = 0; i < o->visits[v].n; i++) {
            size_t param = o->visits[v].param_idx[i];
            if (p->per_param[param] == v + 1) continue;
            p->per_param[param] = v + 1;
            p->passed[v + 1] += o->numel[param];
            if (o->resident[param]) continue;
            p->live[v] += o->numel[param];
            p->uses[p->n_uses++] = (struct use){.visit = v, .param_idx = param, .next = NONE};
        }
    }
}

/* ---- keep ------------------------------------------------------------------------------------ */

static int by_distance(const void *a, const void *b)
{
    const struct gap *x = a, *y = b;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    return x->use < y->use ? -1 : 1;
}

/* May numel more elements be live during visits [begin, end)? A parameter larger than the limit is
 * live only where it is needed. */
static bool live_fits(const struct fetch_plan *p, size_t begin, size_t end, size_t numel)
{
    if (numel > p->o->max_live) return begin == end;
    for (size_t v = begin; v < end; v++)
        if (p->live[v] > p->o->max_live - numel) return false;
    return true;
}

static void live_add(struct fetch_plan *p, size_t begin, size_t end, size_t numel)
{
    for (size_t v = begin; v < end; v++) p->live[v] += numel;
}

/* Uses joined by a kept gap are one stay. per_param: first visit after the parameter's last stay.
 */
static void stays_list(struct fetch_plan *p)
{
    memset(p->per_param, 0, p->o->n_params * sizeof *p->per_param);
    for (size_t i = 0; i < p->n_uses; i++) {
        const struct use *u = &p->uses[i];
        size_t *free_from = &p->per_param[u->param_idx];
        if (*free_from > u->visit) continue; /* inside a stay */
        const struct use *last = u;
        while (last->kept) last = &p->uses[last->next];
        p->pending[p->n_pending++] = (struct pending){
            .stay = {.param_idx = u->param_idx, .first_visit = u->visit, .last_visit = last->visit},
            .free_from = *free_from};
        *free_from = last->visit + 1;
    }
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Fetch a stay with the op that is being made, which is the schedule's last. */
static void stay_begin(struct fetch_plan *p, struct fetch_schedule *s, struct pending *pending)
{
    struct fetch_op *op = &s->ops[s->n_ops];
    pending->begun = true;
    s->stays[s->n_stays++] = pending->stay;
    op->n++;
    op->numel += p->o->numel[pending->stay.param_idx];
}

static void op_open(struct fetch_schedule *s, size_t visit, bool is_demand)
{
    s->ops[s->n_ops] = (struct fetch_op){.visit = visit, .first = s->n_stays, .demand = is_demand};
}

static void op_close(struct fetch_schedule *s)
{
    const struct fetch_op *op = &s->ops[s->n_ops];
    if (op->n == 0) return;
    s->fetched_numel += op->numel;
    s->n_ops++;
}

/* What the visit needs and no op has fetched: fetched now, whatever the limit says, since the pass
 * cannot continue without it. */
static void demand(struct fetch_plan *p, struct fetch_schedule *s, size_t visit)
{
    op_open(s, visit, true);
    for (size_t i = p->first_pending; i < p->n_pending; i++) {
        if (p->pending[i].stay.first_visit > visit) break;
        if (!p->pending[i].begun) stay_begin(p, s, &p->pending[i]);
    }
    op_close(s);
}

/* 1 + the last op that brings something for this visit, or what was needed before: ops complete in
 * order, so waiting for that one is enough. */
static size_t ops_needed(struct fetch_plan *p, const struct fetch_schedule *s, size_t visit,
                         size_t *use_idx, size_t needed)
{
    for (size_t op = s->op_begin[visit]; op < s->n_ops; op++)
        for (size_t i = 0; i < s->ops[op].n; i++)
            p->per_param[s->stays[s->ops[op].first + i].param_idx] = op;
    for (; *use_idx < p->n_uses && p->uses[*use_idx].visit == visit; ++*use_idx) {
        size_t op = p->per_param[p->uses[*use_idx].param_idx];
        if (op + 1 > needed) needed = op + 1;
    }
    return needed;
}

static void walk(struct fetch_plan *p, struct fetch_schedule *s)
{
    size_t use_idx = 0, needed = 0;
    for (size_t v = 0; v < s->n_visits; v++) {
        s->op_begin[v] = s->n_ops;
        demand(p, s, v);
        /* In order of use, until one does not fit: passing it over would let later ones take its
         * space. What the visits until its use need is counted as live already, so if it fits now
         * it fits until then. */
        op_open(s, v, false);
        for (size_t i = p->first_pending; i < p->n_pending; i++) {
            struct pending *next = &p->pending[i];
            if (s->ops[s->n_ops].numel >= p->o->prefetch_numel) break;
            if (next->begun || next->free_from > v) continue;
            size_t numel = p->o->numel[next->stay.param_idx];
            if (!live_fits(p, v, v + 1, numel)) break;
            live_add(p, v, next->stay.first_visit, numel);
            stay_begin(p, s, next);
        }
        op_close(s);
        while (p->first_pending < p->n_pending && p->pending[p->first_pending].begun)
            p->first_pending++;
        s->ops_needed[v] = needed = ops_needed(p, s, v, &use_idx, needed);
        if (p->live[v] > s->live_max) s->live_max = p->live[v];
    }
    s->op_begin[s->n_visits] = s->n_ops;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static cz_status plan_alloc(struct fetch_plan *p, size_t n_uses)
{
    size_t n_visits = p->o->n_visits;
    p->uses = calloc(n_uses + 1, sizeof *p->uses);
    p->passed = calloc(n_visits + 1, sizeof *p->passed);
    p->live = calloc(n_visits + 1, sizeof *p->live);
    p->per_param = calloc(p->o->n_params + 1, sizeof *p->per_param);
    p->gaps = calloc(n_uses + 1, sizeof *p->gaps);
    p->pending = calloc(n_uses + 1, sizeof *p->pending);
    if (p->uses && p->passed && p->live && p->per_param && p->gaps && p->pending) return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory for a fetch schedule of %zu visits", n_visits);
}

static cz_status schedule_alloc(struct fetch_schedule *s, size_t n_visits, size_t n_uses)
{
    s->n_visits = n_visits;
    s->stays = calloc(n_uses + 1, sizeof *s->stays);
    s->ops = calloc(2 * n_visits + 1, sizeof *s->ops);
    s->op_begin = calloc(n_visits + 1, sizeof *s->op_begin);
    s->ops_needed = calloc(n_visits + 1, sizeof *s->ops_needed);
    s->drop_begin = calloc(n_visits + 2, sizeof *s->drop_begin);
    s->drops = calloc(n_uses + 1, sizeof *s->drops);
    if (s->stays && s->ops && s->op_begin && s->ops_needed && s->drop_begin && s->drops)
        return CZ_OK;
    return err_set(CZ_NOMEM, 0, "no memory for a fetch schedule of %zu visits", n_visits);
}

/* On an error *s is empty. */
cz_status fetch_schedule_init(struct fetch_schedule *s, const struct fetch_options *options)
{
    memset(s, 0, sizeof *s);
    struct fetch_plan p = {.o = options};
    size_t n_uses = 0;
    if (options->align == 0) return err_set(CZ_INVALID, 0, "an alignment of 0 elements");
    TRY(pass_check(options));
    for (size_t v = 0; v < options->n_visits; v++) n_uses += options->visits[v].n;
    cz_status st;
    TRY_GOTO(plan_alloc(&p, n_uses), done);
    TRY_GOTO(schedule_alloc(s, options->n_visits, n_uses), done);
    uses_collect(&p);
    for (size_t i = 0; i < p.o->n_params; i++) p.per_param[i] = NONE;
    for (size_t i = p.n_uses; i-- > 0;) {
        size_t *next = &p.per_param[p.uses[i].param_idx];
        p.uses[i].next = *next;
        *next = i;
    }
    /* Keep parameters between uses, the shortest gaps first: each saves one fetch, and a short one
     * occupies the window for less time. */
    size_t n_gaps = 0;
    for (size_t i = 0; i < p.n_uses; i++) {
        const struct use *u = &p.uses[i];
        if (u->next == NONE) continue;
        size_t distance = p.passed[p.uses[u->next].visit] - p.passed[u->visit + 1];
        if (distance < p.o->max_reuse) p.gaps[n_gaps++] = (struct gap){i, distance};
    }
    qsort(p.gaps, n_gaps, sizeof *p.gaps, by_distance);
    for (size_t i = 0; i < n_gaps; i++) {
        struct use *u = &p.uses[p.gaps[i].use];
        size_t end = p.uses[u->next].visit, numel = p.o->numel[u->param_idx];
        u->kept = live_fits(&p, u->visit + 1, end, numel);
        if (u->kept) live_add(&p, u->visit + 1, end, numel);
    }
    stays_list(&p);
    walk(&p, s);
    TRY_GOTO(fetch_place(options, s), done);
    /* Drops: the stays by their last visit, as a counting sort. */
    for (size_t i = 0; i < s->n_stays; i++) s->drop_begin[s->stays[i].last_visit + 1]++;
    for (size_t v = 0; v < s->n_visits; v++) s->drop_begin[v + 1] += s->drop_begin[v];
    for (size_t i = 0; i < s->n_stays; i++) s->drops[s->drop_begin[s->stays[i].last_visit]++] = i;
    memmove(&s->drop_begin[1], s->drop_begin, s->n_visits * sizeof *s->drop_begin);
    s->drop_begin[0] = 0;
done:
    free(p.uses);
    free(p.passed);
    free(p.live);
    free(p.per_param);
    free(p.gaps);
    free(p.pending);
    if (st != CZ_OK) fetch_schedule_free(s);
    return st;
}

void fetch_schedule_free(struct fetch_schedule *s)
{
    free(s->stays);
    free(s->ops);
    free(s->op_begin);
    free(s->ops_needed);
    free(s->drop_begin);
    free(s->drops);
    memset(s, 0, sizeof *s);
}

/* Places in the window. Large stays first, then small ones into the gaps between them: in the order
 * of begins, a large one would find a place only above all that is scattered below.
 *
 * Visits are in groups, and each group lists the stays that are there at any time of it, by place.
 * A stay is compared with those of its groups only, each of them once: thousands of experts come
 * and go a layer at a time, and never meet those of other layers. */
#include "layout/fetch_impl.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

#define LISTED_MAX_PER_STAY 8 /* groups of a stay, on average: what decides how many there are */

/* A stay that is to be placed, or was. */
struct spot {
    size_t stay, begin, last; /* visits of its op and of its last use */
    size_t numel;
};

/* The spots of a group of visits, by place. */
struct group {
    size_t *spots;
    size_t n, cap;
    size_t at; /* those before it are below the place that is being looked for */
};

struct place {
    const struct fetch_options *o;
    struct fetch_schedule *s;
    struct spot *spots;
    struct group *groups;
    size_t n_groups;
};

static int by_size(const void *a, const void *b)
{
    const struct spot *x = a, *y = b;
    if (x->numel != y->numel) return x->numel > y->numel ? -1 : 1;
    return x->stay < y->stay ? -1 : 1;
}

static size_t group_of(const struct place *p, size_t visit)
{
    return visit * p->n_groups / p->o->n_visits;
}

static size_t off_of(const struct place *p, size_t spot)
{
    return p->s->stays[p->spots[spot].stay].off;
}

/* Raises *off above the spots of a group that are in the way. */
static bool raise(struct place *p, struct group *g, const struct spot *spot, size_t *off)
{
    const size_t before = *off;
    for (; g->at < g->n && off_of(p, g->spots[g->at]) < *off + spot->numel; g->at++) {
        const struct spot *there = &p->spots[g->spots[g->at]];
        if (there->begin > spot->last || there->last < spot->begin) continue;
        const size_t end = size_round_up(off_of(p, g->spots[g->at]) + there->numel, p->o->align);
        if (end > *off) *off = end;
    }
    return *off > before;
}

/* The first spot of a group whose place is at `off` or above. */
static size_t first_from(const struct place *p, const struct group *g, size_t off)
{
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (off_of(p, g->spots[mid]) >= off)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static cz_status insert(const struct place *p, struct group *g, size_t spot)
{
    if (g->n == g->cap) {
        const size_t cap = 2 * g->cap + 8;
        size_t *spots = realloc(g->spots, cap * sizeof *spots);
        if (!spots) return err_set(CZ_NOMEM, 0, "no memory for a fetch schedule's window");
        g->spots = spots, g->cap = cap;
    }
    const size_t at = first_from(p, g, off_of(p, spot));
    memmove(&g->spots[at + 1], &g->spots[at], (g->n++ - at) * sizeof *g->spots);
    g->spots[at] = spot;
    return CZ_OK;
}

/* The lowest place that is free during the whole stay. A stay of the same size and time as the one
 * before it finds nothing free below that one's end, `from`; else that is 0. */
static cz_status place(struct place *p, size_t idx, size_t from)
{
    const struct spot *spot = &p->spots[idx];
    const size_t first = group_of(p, spot->begin), last = group_of(p, spot->last);
    size_t off = from;
    for (size_t g = first; g <= last; g++)
        p->groups[g].at = from > 0 ? first_from(p, &p->groups[g], from) : 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t g = first; g <= last; g++) moved |= raise(p, &p->groups[g], spot, &off);
    }
    p->s->stays[spot->stay].off = off;
    if (off + spot->numel > p->s->window_numel) p->s->window_numel = off + spot->numel;
    for (size_t g = first; g <= last; g++) TRY(insert(p, &p->groups[g], idx));
    return CZ_OK;
}

static void list_spots(struct place *p)
{
    const struct fetch_schedule *s = p->s;
    for (size_t i = 0; i < s->n_ops; i++)
        for (size_t k = s->ops[i].first; k < s->ops[i].first + s->ops[i].n; k++)
            p->spots[k] = (struct spot){k, s->ops[i].visit, s->stays[k].last_visit,
                                        p->o->numel[s->stays[k].param_idx]};
    qsort(p->spots, s->n_stays, sizeof *p->spots, by_size);
}

/* As many groups as visits, or fewer where stays are long. */
static void count_groups(struct place *p)
{
    for (p->n_groups = p->o->n_visits; p->n_groups > 1; p->n_groups /= 2) {
        size_t n = 0;
        for (size_t i = 0; i < p->s->n_stays; i++)
            n += group_of(p, p->spots[i].last) - group_of(p, p->spots[i].begin) + 1;
        if (n <= LISTED_MAX_PER_STAY * p->s->n_stays) return;
    }
}

static cz_status place_all(struct place *p)
{
    for (size_t i = 0; i < p->s->n_stays; i++) {
        const struct spot *spot = &p->spots[i], *twin = i > 0 ? spot - 1 : spot;
        const bool is_twin = i > 0 && twin->numel == spot->numel && twin->begin == spot->begin &&
                             twin->last == spot->last;
        const size_t below = is_twin ? off_of(p, i - 1) + spot->numel : 0;
        TRY(place(p, i, size_round_up(below, p->o->align)));
    }
    return CZ_OK;
}

cz_status fetch_place(const struct fetch_options *options, struct fetch_schedule *s)
{
    struct place p = {.o = options, .s = s};
    cz_status st = CZ_OK;
    if (s->n_stays == 0) return CZ_OK;
    p.spots = calloc(s->n_stays, sizeof *p.spots);
    if (!p.spots) return err_set(CZ_NOMEM, 0, "no memory for a fetch schedule's window");
    list_spots(&p);
    count_groups(&p);
    p.groups = calloc(p.n_groups, sizeof *p.groups);
    if (!p.groups) TRY_GOTO(err_set(CZ_NOMEM, 0, "no memory for a fetch schedule's window"), done);
    TRY_GOTO(place_all(&p), done);
done:
    for (size_t g = 0; p.groups && g < p.n_groups; g++) free(p.groups[g].spots);
    free(p.groups);
    free(p.spots);
    return st;
}

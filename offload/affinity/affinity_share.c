/* Whose cores are whose: what this rank gets among those of its host. */
#include "offload/affinity/affinity_impl.h"

#include <stdlib.h>

/* What a rank brings to the deal. */
struct bidder {
    hwloc_bitmap_t allowed; /* within the topology */
    int wants;              /* the node of its GPU; −1: none */
};

/* How the ranks of a host stand to this one. */
struct deal {
    struct bidder *v; /* (n_ranks) */
    int n_ranks;
    int *same;        /* ranks with our mask, in order */
    int n_same, ours; /* which of those we are */
    bool is_muddled;  /* another mask overlaps ours in part */
};

/* list NULL: what this process may use, or all there is. */
static cz_status read_mask(struct affinity *p, const char *list, hwloc_bitmap_t out)
{
    hwloc_const_cpuset_t all = hwloc_topology_get_topology_cpuset(p->topology);
    if (list) {
        if (hwloc_bitmap_list_sscanf(out, list) != 0)
            return err_set(CZ_INVALID, 0, "\"%s\" is not a list of processors such as \"0-3,8\"",
                           list);
    } else if (p->is_here) {
        TRY(affinity_allowed_here(out));
    } else if (hwloc_bitmap_copy(out, all) != 0) {
        return affinity_no_memory();
    }
    if (hwloc_bitmap_and(out, out, all) != 0) return affinity_no_memory();
    if (hwloc_bitmap_iszero(out))
        return err_set(CZ_INVALID, 0, "none of the processors %s exists", list ? list : "allowed");
    return CZ_OK;
}

/* Masks of all ranks, and how each stands to ours: the same (ranks that divide it), apart (no
 * matter), or overlapping in part. In the last case no order of dealing is fair without messages,
 * and nothing is bound. */
static cz_status deal_read(struct affinity *p, const struct affinity_options *o, struct deal *d)
{
    const struct affinity_rank mine = {.allowed = o->allowed, .pci_bus_id = o->pci_bus_id};
    d->n_ranks = o->n_ranks_host;
    d->v = calloc((size_t)d->n_ranks, sizeof *d->v);
    d->same = calloc((size_t)d->n_ranks, sizeof *d->same);
    if (!d->v || !d->same) return affinity_no_memory();
    for (int r = 0; r < d->n_ranks; r++) {
        const struct affinity_rank *rank = o->ranks ? &o->ranks[r] : &mine;
        d->v[r].allowed = hwloc_bitmap_alloc();
        if (!d->v[r].allowed) return affinity_no_memory();
        TRY(read_mask(p, rank->allowed, d->v[r].allowed));
        d->v[r].wants = affinity_gpu_node(p->topology, rank->pci_bus_id);
    }
    for (int r = 0; r < d->n_ranks; r++) {
        hwloc_const_bitmap_t ours = d->v[o->rank_host].allowed, other = d->v[r].allowed;
        bool is_same = hwloc_bitmap_isequal(ours, other);
        if (is_same && r == o->rank_host) d->ours = d->n_same;
        if (is_same) d->same[d->n_same++] = r;
        d->is_muddled |= !is_same && hwloc_bitmap_intersects(ours, other);
    }
    return CZ_OK;
}

/* More ranks than cores take turns. */
static cz_status choose_run(const struct affinity_cores *c, const struct deal *d,
                            struct affinity_run *out)
{
    int n = d->n_same;
    if (n > c->n) {
        out->begin = d->ours % c->n;
        out->end = out->begin + 1;
        return CZ_OK;
    }
    int *cuts = calloc(3 * (size_t)n + 1, sizeof *cuts), *wants = cuts + n + 1, *runs = wants + n;
    if (!cuts) return affinity_no_memory();
    for (int i = 0; i < n; i++) wants[i] = d->v[d->same[i]].wants;
    affinity_deal(c, n, cuts);
    affinity_match(c, cuts, wants, n, runs);
    out->begin = cuts[runs[d->ours]];
    out->end = cuts[runs[d->ours] + 1];
    free(cuts);
    return CZ_OK;
}

cz_status affinity_share_choose(struct affinity *p, const struct affinity_options *o,
                                struct affinity_cores *c, struct affinity_run *out)
{
    struct deal d = {.v = NULL};
    cz_status st;
    TRY_GOTO(deal_read(p, o, &d), end);
    TRY_GOTO(affinity_cores_list(p->topology, d.v[o->rank_host].allowed, c), end);
    *out = (struct affinity_run){.end = c->n,
                                 .n_same = d.n_same,
                                 .wants = d.v[o->rank_host].wants,
                                 .is_certain = !d.is_muddled && d.n_same <= c->n};
    if (!d.is_muddled) st = choose_run(c, &d, out);
end:
    for (int r = 0; d.v && r < d.n_ranks; r++) hwloc_bitmap_free(d.v[r].allowed);
    free(d.v);
    free(d.same);
    return st;
}

/* Reductions: every rank sends owners what they will sum, on the wire; owners sum in rank order,
 * and with `all` send their sums to all ranks. */
#include "comm/nccl/plane_impl.h"
#include "comm/nccl/sum_cuda.h"

/* A reduction that is being queued, piece by piece. */
struct reduction {
    struct plane *p;
    const struct comm_reduce *a;
    struct plane_sides sides;
    size_t src_nbytes, dst_nbytes, wire_nbytes; /* of an element */
    size_t n_runs;                              /* of the piece */
};

static char *slot_of(const struct reduction *r, char *region, int owner)
{
    return region + (size_t)owner * r->p->slot_nbytes;
}

/* What this rank brings of a run: where it is on the device. */
static const void *source_of(const struct reduction *r, const struct piece_run *run)
{
    if (r->sides.src) return plane_at(r->a->src, run->span.src_off, r->src_nbytes);
    return plane_at(slot_of(r, r->p->host, run->span.owner), run->at, r->src_nbytes);
}

/* This rank puts the result of a run somewhere. */
static bool sums(const struct reduction *r, const struct piece_run *run)
{
    return run->span.owner == r->p->rank || (r->p->pretends && r->a->all);
}

static bool takes(const struct reduction *r, const struct piece_run *run)
{
    return run->span.owner == r->p->rank || r->a->all;
}

/* Where a run's result is put on the device: where the caller wants it, or where it leaves for the
 * host from. */
static void *target_of(const struct reduction *r, const struct piece_run *run)
{
    if (r->sides.dst) return plane_at(r->a->dst, run->span.dst_off, r->dst_nbytes);
    return plane_at(slot_of(r, r->p->host, run->span.owner), run->at, r->dst_nbytes);
}

/* From the host: what is summed; or what results are added to. */
static cz_status fetch_host(struct reduction *r)
{
    const struct comm_reduce *a = r->a;
    if (r->sides.src && (r->sides.dst || !a->accumulate)) return CZ_OK;
    for (size_t i = 0; i < r->n_runs; i++) {
        const struct piece_run *run = &r->p->runs[i];
        const struct comm_span *s = &run->span;
        if (!r->sides.src)
            TRY(plane_copy(r->p, (void *)(uintptr_t)source_of(r, run),
                           plane_at(a->src, s->src_off, r->src_nbytes), s->numel * r->src_nbytes));
        else if (takes(r, run))
            TRY(plane_copy(r->p, target_of(r, run), plane_at(a->dst, s->dst_off, r->dst_nbytes),
                           s->numel * r->dst_nbytes));
    }
    return CZ_OK;
}

/* The run that is all of an owner's part and is on the device as it is sent; NULL: none. */
static const struct piece_run *sent_as_it_is(const struct reduction *r, int owner)
{
    const struct plane *p = r->p;
    if (!r->sides.src || r->a->src_dtype != r->a->wire) return NULL;
    for (size_t i = 0; i < r->n_runs; i++)
        if (p->runs[i].span.owner == owner)
            return p->runs[i].span.numel == p->numels[owner] ? &p->runs[i] : NULL;
    return NULL;
}

/* What goes to other owners, on the wire, side by side in their slots. */
static cz_status pack(struct reduction *r)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const struct piece_run *run = &r->p->runs[i];
        if (run->span.owner == r->p->rank || sent_as_it_is(r, run->span.owner)) continue;
        TRY(cuda_put(r->p->work,
                     plane_at(slot_of(r, r->p->out, run->span.owner), run->at, r->wire_nbytes),
                     r->a->wire, source_of(r, run), r->a->src_dtype, false, run->span.numel));
    }
    return CZ_OK;
}

static cz_status scatter_calls(struct reduction *r)
{
    struct plane *p = r->p;
    size_t mine = p->numels[p->rank] * r->wire_nbytes;
    for (int i = 1; i < p->world_size; i++) {
        int to = (p->rank + i) % p->world_size;
        int from = (p->rank + p->world_size - i) % p->world_size;
        size_t theirs = p->numels[to] * r->wire_nbytes;
        const struct piece_run *run = sent_as_it_is(r, to);
        const void *src = run ? source_of(r, run) : slot_of(r, p->out, to);
        if (theirs > 0) TRY(nccl_send(&p->link, src, theirs, to, p->work));
        if (mine > 0) TRY(nccl_receive(&p->link, slot_of(r, p->in, from), mine, from, p->work));
    }
    return CZ_OK;
}

static cz_status share_calls(struct reduction *r)
{
    struct plane *p = r->p;
    size_t mine = p->numels[p->rank] * r->wire_nbytes;
    for (int i = 1; i < p->world_size; i++) {
        int to = (p->rank + i) % p->world_size;
        int from = (p->rank + p->world_size - i) % p->world_size;
        size_t theirs = p->numels[from] * r->wire_nbytes;
        if (mine > 0) TRY(nccl_send(&p->link, slot_of(r, p->out, p->rank), mine, to, p->work));
        if (theirs > 0) TRY(nccl_receive(&p->link, slot_of(r, p->in, from), theirs, from, p->work));
    }
    return CZ_OK;
}

static bool has_others(const struct plane *p)
{
    return p->link.calls && p->world_size > 1;
}

static cz_status exchange(struct reduction *r, cz_status (*calls)(struct reduction *))
{
    if (!has_others(r->p)) return CZ_OK;
    TRY(nccl_group_begin(&r->p->link));
    return nccl_group_end(&r->p->link, calls(r));
}

static cz_status sum(struct reduction *r)
{
    struct plane *p = r->p;
    bool shares = r->a->all && has_others(p);
    struct cuda_sum s = {.in_stride = p->slot_nbytes,
                         .own_dtype = r->a->src_dtype,
                         .wire = r->a->wire,
                         .n_ranks = p->world_size,
                         .own_rank = p->rank,
                         .all_own = p->pretends,
                         .scale = r->a->scale,
                         .dst_dtype = r->a->dst_dtype,
                         .accumulate = r->a->accumulate};
    for (size_t i = 0; i < r->n_runs; i++) {
        const struct piece_run *run = &p->runs[i];
        if (!sums(r, run)) continue;
        s.own = source_of(r, run);
        s.in = plane_at(p->in, run->at, r->wire_nbytes);
        s.dst = target_of(r, run);
        if (shares) s.shared = plane_at(slot_of(r, p->out, p->rank), run->at, r->wire_nbytes);
        s.numel = run->span.numel;
        TRY(cuda_sum(p->work, &s));
    }
    return CZ_OK;
}

/* Others' sums. */
static cz_status unpack(struct reduction *r)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        const struct piece_run *run = &r->p->runs[i];
        if (run->span.owner == r->p->rank) continue;
        TRY(cuda_put(r->p->work, target_of(r, run), r->a->dst_dtype,
                     plane_at(slot_of(r, r->p->in, run->span.owner), run->at, r->wire_nbytes),
                     r->a->wire, r->a->accumulate, run->span.numel));
    }
    return CZ_OK;
}

static cz_status leave_for_host(struct reduction *r)
{
    for (size_t i = 0; i < r->n_runs && !r->sides.dst; i++) {
        const struct piece_run *run = &r->p->runs[i];
        if (!takes(r, run)) continue;
        TRY(plane_copy(r->p, plane_at(r->a->dst, run->span.dst_off, r->dst_nbytes),
                       target_of(r, run), run->span.numel * r->dst_nbytes));
    }
    return CZ_OK;
}

static cz_status queue_piece(struct reduction *r)
{
    TRY(fetch_host(r));
    if (has_others(r->p)) TRY(pack(r));
    TRY(exchange(r, scatter_calls));
    TRY(sum(r));
    if (r->a->all && has_others(r->p)) {
        TRY(exchange(r, share_calls));
        TRY(unpack(r));
    }
    return leave_for_host(r);
}

/* One rank's mean of what its own dtype can hold is what it was. */
static bool is_identity(const struct plane *p, const struct comm_reduce *a)
{
    return p->world_size == 1 && a->scale == 1.0f && !a->accumulate &&
           a->src_dtype == a->dst_dtype && (a->wire == a->src_dtype || a->wire == DTYPE_F32);
}

static cz_status queue_copies(struct plane *p, const struct comm_reduce *a)
{
    size_t size = dtype_size(a->dst_dtype), n;
    plane_cut(p, a->spans, a->n_spans, false, SIZE_MAX);
    while ((n = plane_next(p)) > 0)
        for (size_t i = 0; i < n; i++) {
            const struct comm_span *s = &p->runs[i].span;
            TRY(plane_copy(p, plane_at(a->dst, s->dst_off, size),
                           plane_at(a->src, s->src_off, size), s->numel * size));
        }
    return CZ_OK;
}

cz_status plane_queue_reduce(struct plane *p, const struct comm_reduce *a, struct plane_sides sides)
{
    struct reduction r = {.p = p,
                          .a = a,
                          .sides = sides,
                          .src_nbytes = dtype_size(a->src_dtype),
                          .dst_nbytes = dtype_size(a->dst_dtype),
                          .wire_nbytes = dtype_size(a->wire)};
    if (is_identity(p, a)) return queue_copies(p, a);
    plane_cut(p, a->spans, a->n_spans, false, p->slot_nbytes / sizeof(float));
    while ((r.n_runs = plane_next(p)) > 0) TRY(queue_piece(&r));
    return CZ_OK;
}

/* Moves: broadcasts of spans for all, sends and receives of those for one. From device memory to
 * device memory without a detour; a side on the host goes through the owners' slots. */
#include "comm/nccl/plane_impl.h"

struct movement {
    struct plane *p;
    const struct comm_move *a;
    struct plane_sides sides;
    bool is_staged; /* a side is the host's */
    size_t n_runs;  /* of the piece */
};

static char *source_of(const struct movement *m, const struct piece_run *run)
{
    return plane_at(m->a->src, run->span.src_off, m->a->elem_nbytes);
}

static char *target_of(const struct movement *m, const struct piece_run *run)
{
    return plane_at(m->a->dst, run->span.dst_off, m->a->elem_nbytes);
}

static size_t nbytes_of(const struct movement *m, const struct piece_run *run)
{
    return run->span.numel * m->a->elem_nbytes;
}

/* A run's place in its owner's slot, the same on all ranks. */
static char *staged_at(const struct movement *m, const struct piece_run *run)
{
    const struct plane *p = m->p;
    return plane_at(p->out + (size_t)run->span.owner * p->slot_nbytes, run->at, m->a->elem_nbytes);
}

static bool is_own(const struct movement *m, const struct piece_run *run)
{
    return run->span.owner == m->p->rank;
}

static bool takes(const struct movement *m, const struct piece_run *run)
{
    return run->span.to == m->p->rank || run->span.to == COMM_ALL;
}

/* Between other ranks alone, or from a rank to itself. */
static bool is_call(const struct movement *m, const struct piece_run *run, bool to_all)
{
    if (to_all) return run->span.to == COMM_ALL;
    return run->span.to != COMM_ALL && run->span.to != run->span.owner &&
           (is_own(m, run) || takes(m, run));
}

/* What this rank keeps by copying, and what it sends through its slot. */
static cz_status bring(struct movement *m)
{
    for (size_t i = 0; i < m->n_runs; i++) {
        const struct piece_run *run = &m->p->runs[i];
        if (!is_own(m, run)) continue;
        bool broadcasts = run->span.to == COMM_ALL && m->p->link.calls && !m->is_staged;
        if (takes(m, run) && !broadcasts)
            TRY(plane_copy(m->p, target_of(m, run), source_of(m, run), nbytes_of(m, run)));
        if (m->is_staged && m->p->link.calls && run->span.to != m->p->rank)
            TRY(plane_copy(m->p, staged_at(m, run), source_of(m, run), nbytes_of(m, run)));
    }
    return CZ_OK;
}

static cz_status call(struct movement *m, const struct piece_run *run)
{
    struct plane *p = m->p;
    size_t nbytes = nbytes_of(m, run);
    char *src = m->is_staged ? staged_at(m, run) : source_of(m, run);
    char *dst = m->is_staged ? staged_at(m, run) : target_of(m, run);
    if (run->span.to == COMM_ALL)
        return nccl_broadcast(&p->link, is_own(m, run) ? src : dst, dst, nbytes, run->span.owner,
                              p->work);
    if (is_own(m, run)) return nccl_send(&p->link, src, nbytes, run->span.to, p->work);
    return nccl_receive(&p->link, dst, nbytes, run->span.owner, p->work);
}

static cz_status calls(struct movement *m, bool to_all)
{
    for (size_t i = 0; i < m->n_runs; i++)
        if (is_call(m, &m->p->runs[i], to_all)) TRY(call(m, &m->p->runs[i]));
    return CZ_OK;
}

/* Broadcasts are every rank's, so they go before sends and receives in a group of their own. */
static cz_status exchange(struct movement *m, bool to_all)
{
    bool any = false;
    if (!m->p->link.calls) return CZ_OK;
    for (size_t i = 0; i < m->n_runs; i++) any = any || is_call(m, &m->p->runs[i], to_all);
    if (!any) return CZ_OK;
    TRY(nccl_group_begin(&m->p->link));
    return nccl_group_end(&m->p->link, calls(m, to_all));
}

static cz_status carry_away(struct movement *m)
{
    for (size_t i = 0; i < m->n_runs && m->is_staged && m->p->link.calls; i++) {
        const struct piece_run *run = &m->p->runs[i];
        if (!is_own(m, run) && takes(m, run))
            TRY(plane_copy(m->p, target_of(m, run), staged_at(m, run), nbytes_of(m, run)));
    }
    return CZ_OK;
}

cz_status plane_queue_move(struct plane *p, const struct comm_move *a, struct plane_sides sides)
{
    struct movement m = {.p = p, .a = a, .sides = sides, .is_staged = !sides.src || !sides.dst};
    size_t numel = SIZE_MAX;
    if (m.is_staged && p->link.calls) numel = p->slot_nbytes / a->elem_nbytes;
    if (numel == 0)
        return err_set(CZ_INVALID, 0, "elements of %zu bytes do not fit in a piece of %zu",
                       a->elem_nbytes, p->slot_nbytes);
    plane_cut(p, a->spans, a->n_spans, true, numel);
    while ((m.n_runs = plane_next(p)) > 0) {
        TRY(bring(&m));
        TRY(exchange(&m, true));
        TRY(exchange(&m, false));
        TRY(carry_away(&m));
    }
    return CZ_OK;
}

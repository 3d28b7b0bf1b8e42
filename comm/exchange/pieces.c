/* Cutting a table of spans into pieces that fit a slot per owner, for communicators that stage
 * through buffers. Neighbouring spans are joined, and the number of runs is limited, so tables of
 * fixed size are enough. */
#include "comm/exchange/pieces_impl.h"

#include <string.h>

void pieces_begin(struct pieces *p)
{
    memset(p->at, 0, (size_t)p->world_size * sizeof *p->at);
}

/* The owner's next elements, at most numel_max, inside one span; false at the end. */
static bool next_elements(const struct pieces *p, int owner, struct piece_cursor *at,
                          size_t numel_max, struct comm_span *out)
{
    while (at->span_idx < p->n_spans && (p->spans[at->span_idx].owner != owner ||
                                         at->span_off == p->spans[at->span_idx].numel)) {
        at->span_idx++;
        at->span_off = 0;
    }
    if (at->span_idx == p->n_spans) return false;
    const struct comm_span *s = &p->spans[at->span_idx];
    *out = *s;
    out->src_off += at->span_off;
    out->dst_off += at->span_off;
    out->numel -= at->span_off;
    if (out->numel > numel_max) out->numel = numel_max;
    at->span_off += out->numel;
    return true;
}

static bool continues(const struct pieces *p, const struct comm_span *a, const struct comm_span *b)
{
    return a->src_off + a->numel == b->src_off && a->dst_off + a->numel == b->dst_off &&
           (!p->moves || a->to == b->to);
}

/* Fills the owner's slot. Returns its runs. */
static size_t fill_slot(struct pieces *p, int owner, struct piece_run *runs, size_t *numel)
{
    size_t n = 0, filled = 0;
    struct comm_span span;
    while (filled < p->slot_numel) {
        struct piece_cursor ahead = p->at[owner];
        if (!next_elements(p, owner, &ahead, p->slot_numel - filled, &span)) break;
        if (n > 0 && continues(p, &runs[n - 1].span, &span))
            runs[n - 1].span.numel += span.numel;
        else if (n < PIECE_RUNS_PER_OWNER)
            runs[n++] = (struct piece_run){span, filled};
        else
            break;
        p->at[owner] = ahead;
        filled += span.numel;
    }
    *numel = filled;
    return n;
}

size_t pieces_next(struct pieces *p, struct piece_run *runs, size_t *numels)
{
    size_t n = 0;
    for (int owner = 0; owner < p->world_size; owner++)
        n += fill_slot(p, owner, runs + n, &numels[owner]);
    return n;
}

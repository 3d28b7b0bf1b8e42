/* The head of every slot: what ranks compare in each round, and the sentences when they disagree. A
 * wrong call order is a mistake in a program or config; the message lists every rank's collective,
 * since the rank that reports it may not be the one at fault. */
#include "comm/exchange/exchange_impl.h"

#include <inttypes.h>
#include <stdio.h>

_Static_assert(sizeof(struct slot_head) == 128, "payloads begin on a cache line");

void head_of_job(const struct job *job, uint64_t ticket, enum round_kind kind, size_t n_units,
                 struct slot_head *head)
{
    *head = (struct slot_head){.ticket = ticket,
                               .total_numel = job->total_numel,
                               .nbytes = (uint32_t)(n_units * job->unit_nbytes)};
    if (!job->is_reduce) {
        head->kind = SLOT_MOVE;
        head->elem_nbytes = (uint32_t)job->move.elem_nbytes;
        return;
    }
    head->kind = SLOT_REDUCE;
    head->elem_nbytes = (uint32_t)job->unit_nbytes;
    head->flags = (uint32_t)job->reduce.wire << SLOT_DTYPE_SHIFT;
    if (job->reduce.all) head->flags |= SLOT_ALL;
    if (job->reduce.accumulate) head->flags |= SLOT_ACCUMULATE;
    if (kind == ROUND_SHARE) head->flags |= SLOT_SHARE;
}

static bool is_same_job(const struct slot_head *a, const struct slot_head *b)
{
    return a->ticket == b->ticket && a->kind == b->kind && a->total_numel == b->total_numel &&
           a->elem_nbytes == b->elem_nbytes && (a->flags | SLOT_SHARE) == (b->flags | SLOT_SHARE);
}

/* Also the number of bytes: a rank with another table of spans sends a piece of another size. */
bool head_agrees(const struct slot_head *mine, const struct slot_head *theirs)
{
    return is_same_job(mine, theirs) && mine->round == theirs->round &&
           mine->nbytes == theirs->nbytes && mine->flags == theirs->flags;
}

cz_status head_error_left(int rank, const struct slot_head *head)
{
    char phase[COMM_PHASE_NBYTES + 4] = "";
    if (head->phase[0])
        snprintf(phase, sizeof phase, " (%.*s)", COMM_PHASE_NBYTES - 1, head->phase);
    return err_set(CZ_PEER, 0, "rank %d left at step %" PRId64 "%s: %.*s", rank, head->step, phase,
                   (int)(head->nbytes < COMM_REASON_NBYTES ? head->nbytes : COMM_REASON_NBYTES),
                   (const char *)(head + 1));
}

/* "reduces 1024 × bf16" or "moves 64 × 1 byte" */
static void describe_work(const struct slot_head *h, char *out, size_t n)
{
    if (h->kind == SLOT_MOVE) {
        snprintf(out, n, "moves %" PRIu64 " × %u byte%s", h->total_numel, h->elem_nbytes,
                 h->elem_nbytes == 1 ? "" : "s");
        return;
    }
    snprintf(out, n, "%s %" PRIu64 " × %s%s", h->flags & SLOT_ALL ? "all-reduces" : "reduces",
             h->total_numel, dtype_name((enum cz_dtype)(h->flags >> SLOT_DTYPE_SHIFT)),
             h->flags & SLOT_ACCUMULATE ? ", accumulating" : "");
}

cz_status head_error_disagree(const struct slot_head *const *heads, const uint32_t *due, int rank,
                              int world_size)
{
    char text[3072];
    size_t at = 0;
    for (int r = 0; r < world_size && at < sizeof text; r++) {
        if (r > 0) at += (size_t)snprintf(text + at, sizeof text - at, "; ");
        if (at < sizeof text) {
            /* "rank 1 moves 64 × 1 byte (step 3, agreement)", and the difference if that shows
             * none. */
            char work[96], place[COMM_PHASE_NBYTES + 32], more[96] = "", ticket[48] = "";
            describe_work(heads[r], work, sizeof work);
            /* "step 3, backward" */
            snprintf(place, sizeof place,
                     heads[r]->phase[0] ? "step %" PRId64 ", %.*s" : "step %" PRId64,
                     heads[r]->step, COMM_PHASE_NBYTES, heads[r]->phase);
            if (heads[r]->ticket != heads[rank]->ticket)
                snprintf(ticket, sizeof ticket, "in collective %" PRIu64 " ", heads[r]->ticket);
            else if (is_same_job(heads[rank], heads[r]) && heads[r]->nbytes != due[r])
                snprintf(more, sizeof more, ", of which it sends %u bytes instead of %u",
                         heads[r]->nbytes, due[r]);
            else if (is_same_job(heads[rank], heads[r]) && heads[r]->flags != heads[rank]->flags)
                snprintf(more, sizeof more, ", but is in another of its rounds");
            at += (size_t)snprintf(text + at, sizeof text - at, "rank %d %s%s%s (%s)", r, ticket,
                                   work, more, place);
        }
    }
    return err_set(CZ_COMM, 0, "ranks disagree on collective %" PRIu64 ": %s", heads[rank]->ticket,
                   text);
}

/* What is in a round: pure functions of the table of spans and the size of a slot, so all ranks get
 * the same answer without asking. A stream is what one rank sends to another, or to all; a round
 * carries one piece of each. Offsets are not looked at: they may differ between ranks. */
#include "comm/exchange/exchange_impl.h"

static uint64_t n_pieces(uint64_t n_units, size_t piece)
{
    return (n_units + piece - 1) / piece;
}

/* The longest of the streams that begin at `owner`: to each rank, or (COMM_ALL) to all. It decides
 * the number of rounds. */
static uint64_t longest_stream(const struct job *job, bool pairs, int world_size, uint64_t *numel)
{
    size_t w = (size_t)world_size;
    uint64_t longest = 0;
    for (int pass = 0; pass < 2; pass++) /* clear what the second adds up; W² may be large */
        for (size_t i = 0; i < job->n_spans; i++) {
            const struct comm_span *s = &job->spans[i];
            bool is_pair = !job->is_reduce && s->to != COMM_ALL;
            if (is_pair != pairs || (is_pair && s->to == s->owner)) continue;
            uint64_t *n = &numel[(size_t)s->owner * (pairs ? w : 1) + (pairs ? (size_t)s->to : 0)];
            *n = pass == 0 ? 0 : *n + s->numel;
            if (*n > longest) longest = *n;
        }
    return longest;
}

/* An empty table still takes one round, which is what makes a collective of nothing a meeting of
 * all ranks. */
void job_plan(struct job *job, size_t slot_nbytes, int world_size, uint64_t *scratch)
{
    job->spans = job->is_reduce ? job->reduce.spans : job->move.spans;
    job->n_spans = job->is_reduce ? job->reduce.n_spans : job->move.n_spans;
    job->unit = job->is_reduce ? 1 : job->move.elem_nbytes;
    job->unit_nbytes = job->is_reduce ? dtype_size(job->reduce.wire) : 1;
    job->piece = slot_nbytes / job->unit_nbytes;
    job->total_numel = 0;
    for (size_t i = 0; i < job->n_spans; i++) job->total_numel += job->spans[i].numel;
    uint64_t all = longest_stream(job, false, world_size, scratch) * job->unit;
    uint64_t pairs = longest_stream(job, true, world_size, scratch) * job->unit;
    job->n_all = n_pieces(all, job->piece);
    job->n_rounds = job->n_all + n_pieces(pairs, job->piece);
    if (job->n_rounds == 0) job->n_all = job->n_rounds = 1; /* nothing to send: still a meeting */
    if (job->is_reduce && job->reduce.all) job->n_rounds *= 2;
}

enum round_kind job_round_kind(const struct job *job, uint64_t k)
{
    if (job->is_reduce) return job->reduce.all && k % 2 == 1 ? ROUND_SHARE : ROUND_SCATTER;
    return k < job->n_all ? ROUND_ALL : ROUND_PAIRS;
}

bool job_opens_streams(const struct job *job, uint64_t k)
{
    return k == 0 || (!job->is_reduce && k == job->n_all);
}

/* The stream that a span belongs to; −1: none in rounds of this kind. */
static int stream_of(const struct comm_span *s, enum round_kind kind, int rank, bool sends)
{
    switch (kind) {
    case ROUND_SCATTER:
    case ROUND_SHARE: return s->owner;
    case ROUND_ALL: return s->to == COMM_ALL ? s->owner : -1;
    case ROUND_PAIRS: break;
    }
    if (s->to == COMM_ALL || s->to == s->owner) return -1;
    if (sends) return s->owner == rank ? s->to : -1;
    return s->to == rank ? s->owner : -1;
}

void job_open_streams(const struct job *job, enum round_kind kind, int rank, int world_size,
                      bool sends, struct stream *streams)
{
    for (int r = 0; r < world_size; r++) streams[r] = (struct stream){.span_idx = job->n_spans};
    for (size_t i = 0; i < job->n_spans; i++) {
        const struct comm_span *s = &job->spans[i];
        int r = stream_of(s, kind, rank, sends);
        if (r < 0 || s->numel == 0) continue;
        if (streams[r].left == 0)
            streams[r] = (struct stream){.owner = s->owner, .to = s->to, .span_idx = i};
        streams[r].left += s->numel * job->unit;
    }
}

size_t stream_piece(const struct stream *stream, const struct job *job)
{
    return stream->left < job->piece ? stream->left : job->piece;
}

static bool is_of_stream(const struct comm_span *s, const struct stream *stream,
                         const struct job *job)
{
    return s->owner == stream->owner && (job->is_reduce || s->to == stream->to);
}

/* The next run of a stream, inside one span. */
bool stream_next(struct stream *stream, const struct job *job, size_t max, struct run *run)
{
    if (stream->left == 0) return false;
    const struct comm_span *s = &job->spans[stream->span_idx];
    while (!is_of_stream(s, stream, job) || stream->span_off == s->numel * job->unit) {
        s = &job->spans[++stream->span_idx];
        stream->span_off = 0;
    }
    size_t rest = s->numel * job->unit - stream->span_off;
    run->n = rest < max ? rest : max;
    run->src_off = s->src_off * job->unit + stream->span_off;
    run->dst_off = s->dst_off * job->unit + stream->span_off;
    stream->span_off += run->n;
    stream->left -= run->n;
    return true;
}

/* Collectives as rounds: shared by exchange.c (states), exchange_rounds.c (what is in a round) and
 * exchange_head.c (what ranks tell each other about it).
 *
 * The spans that one rank has for another (or for all) are a stream of units; round k carries piece
 * k of all streams at once, so that slots are full and all ranks sum at the same time. A unit is an
 * element of a reduction, a byte of a move. */
#ifndef CZ_COMM_EXCHANGE_EXCHANGE_IMPL_H
#define CZ_COMM_EXCHANGE_EXCHANGE_IMPL_H

#include "comm/comm_impl.h"
#include "comm/exchange/transport_impl.h"
#include "comm/sum/sum_impl.h"

enum round_kind {
    ROUND_SCATTER, /* reduction: every rank sends owners what they will sum */
    ROUND_SHARE,   /* all-reduction, after each scatter: owners send all ranks their sums */
    ROUND_ALL,     /* move: owners send all ranks spans of COMM_ALL */
    ROUND_PAIRS,   /* move, after those: owners send single ranks theirs */
};

/* A collective that was begun. */
struct job {
    bool is_reduce;
    struct comm_reduce reduce; /* one of the two */
    struct comm_move move;
    const struct comm_span *spans;
    size_t n_spans;
    size_t unit;        /* units per element of a span */
    size_t unit_nbytes; /* bytes of a unit on the wire */
    size_t piece;       /* units that fit in a slot */
    uint64_t n_all;     /* rounds of kind ROUND_ALL */
    uint64_t n_rounds;  /* at least 1 */
    uint64_t total_numel;
};

/* A stream's position in its spans. */
struct stream {
    int owner, to;   /* to: for moves */
    size_t span_idx; /* the next span to look at */
    size_t span_off; /* units of it that are done */
    size_t left;     /* units still to come */
};

/* Units next to each other, inside one span. */
struct run {
    size_t src_off, dst_off, n;
};

/* One of the two places in the sequence of rounds: what is to be posted next, or taken next. */
struct walk {
    uint64_t ticket;        /* collectives finished */
    uint64_t k;             /* rounds of the current one finished */
    struct stream *streams; /* (world_size) of this round's kind, see job_open_streams() */
};

/* Sizes and number of rounds, the same on all ranks. The first five members are set.
 * scratch: world_size² numbers. */
void job_plan(struct job *job, size_t slot_nbytes, int world_size, uint64_t *scratch);

enum round_kind job_round_kind(const struct job *job, uint64_t k);

/* Whether streams must be opened before round k. */
bool job_opens_streams(const struct job *job, uint64_t k);

/* Point streams to their first units. streams[r] is: of a reduction, what rank r owns; of
 * ROUND_ALL, what rank r sends to all; of ROUND_PAIRS what `rank` sends to r (`sends`), or gets
 * from r. */
void job_open_streams(const struct job *job, enum round_kind kind, int rank, int world_size,
                      bool sends, struct stream *streams);

/* Units of the stream in its next round. */
size_t stream_piece(const struct stream *stream, const struct job *job);

/* Take the next units, at most `max` ≥ 1, that are in one span; false at the end. */
bool stream_next(struct stream *stream, const struct job *job, size_t max, struct run *run);

/* What this rank does, for a slot of n_units. round, step and phase are the caller's. */
void head_of_job(const struct job *job, uint64_t ticket, enum round_kind kind, size_t n_units,
                 struct slot_head *head);

/* Whether both do the same. */
bool head_agrees(const struct slot_head *mine, const struct slot_head *theirs);

/* CZ_PEER: the rank that sent this head has left; its reason is the payload. */
cz_status head_error_left(int rank, const struct slot_head *head);

/* CZ_COMM: what each rank is doing. heads: (world_size); mine is heads[rank], with nbytes as
 * expected from rank r in due[r]. */
cz_status head_error_disagree(const struct slot_head *const *heads, const uint32_t *due, int rank,
                              int world_size);

#endif

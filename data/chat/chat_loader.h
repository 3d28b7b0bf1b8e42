/* Instruction data as micro-batches: rows of bins, targets shifted and CZ_IGNORE_LABEL where
 * nothing is trained, documents and positions for packed rows.
 *
 * An epoch visits every bin once, in an order drawn from (seed, epoch). Every micro-batch of a step
 * carries the same loss_divisor, the step's trained tokens over its micro-batches: the loss is one
 * mean over all trained tokens of a step, over accumulation and ranks. A batch is as wide as its
 * longest row, rounded up to 8 tokens and at most max_len. */
#ifndef CZ_DATA_CHAT_CHAT_LOADER_H
#define CZ_DATA_CHAT_CHAT_LOADER_H

#include "data/chat/chat_set.h"

struct chat_loader;

struct chat_loader_options {
    const struct chat_set *set; /* lent until close */
    int64_t max_len, micro_batch, accumulation, rank, world_size;
    int32_t pad_id;
    uint64_t seed;
    bool shuffle;
    bool is_packed; /* rows hold several examples, apart by documents and positions */
    bool drop_last; /* leave out the epoch's last step when it is not full */
    bool once;      /* one epoch */
};

/* Errors: CZ_INVALID (fewer rows than a step where incomplete ones are dropped), CZ_NOMEM. */
cz_status chat_loader_open(const struct chat_loader_options *options, struct chat_loader **out);
void chat_loader_close(struct chat_loader *l); /* accepts NULL */

/* The next micro-batch of this rank; its arrays are the loader's until the next call. A rank
 * without a row gets one of padding without labels. With `once`, B is 0 behind the last. */
void chat_loader_next(struct chat_loader *l, struct cz_batch *batch);
bool chat_loader_is_done(const struct chat_loader *l);
uint64_t chat_loader_steps_per_epoch(const struct chat_loader *l);
uint64_t chat_loader_rows_per_epoch(const struct chat_loader *l); /* fewer with drop_last */

/* The place, in steps; a step that was begun counts as taken. seek: CZ_INVALID, saved for other
 * data, seed or order. */
void chat_loader_tell(const struct chat_loader *l, struct cz_data_cursor *out);
cz_status chat_loader_seek(struct chat_loader *l, const struct cz_data_cursor *cursor);

#endif

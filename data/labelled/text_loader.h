/* From labelled texts to padded micro-batches, in an order that can be repeated.
 *
 * Life cycle: cz_text_loader_open() → cz_text_loader_next() per micro-batch →
 * cz_text_loader_close(). cz_text_loader_tell() and cz_text_loader_seek() save and restore the
 * place.
 *
 * An epoch visits every example exactly once. A *step* is accumulation · world_size · micro_batch
 * examples, one optimizer step; an epoch has ceil(examples / step) of them. What is left for the
 * last one is dealt out evenly over its accumulation · world_size micro-batches, so that each has
 * floor or ceil of the mean; batch.loss_divisor is that mean, so that every example of a step
 * weighs the same in its gradient and its loss (examples without a label do not count; a step
 * without any has the mean of its rows). A rank without an example gets one row whose label is
 * CZ_IGNORE_LABEL, as have rows of examples without one.
 *
 * With `bucket`, the (shuffled) epoch is cut into windows of TEXT_LOADER_WINDOW steps; inside a
 * window examples are sorted by length, cut into steps, and the steps are shuffled; so rows of one
 * micro-batch have like lengths. Ranks get neighbours in length. A batch is as wide as its longest
 * row, rounded up to TEXT_LOADER_ROUND tokens and at most max_len; positions behind a row hold the
 * tokenizer's pad id (without one, its end id, or 0), type 0 and key_mask 0. A row without tokens
 * holds one pad token, key_mask 1. Lengths are estimated from the texts
 * (data/labelled/text_order.c).
 *
 * Order and content depend on (data, options, seed, epoch) alone, not on threads or on what was
 * read before. A thread of the loader's own tokenizes ahead of use, so that the caller waits for
 * the first micro-batch only. After cz_text_loader_open() nothing is allocated by the caller's
 * thread.
 */
#ifndef CZ_DATA_LABELLED_TEXT_LOADER_H
#define CZ_DATA_LABELLED_TEXT_LOADER_H

#include "base/batch.h"
#include "data/data.h"
#include "data/labelled/texts.h"

CZ_EXTERN_C_BEGIN

#define TEXT_LOADER_WINDOW 64
#define TEXT_LOADER_ROUND  8

struct cz_text_loader; /* opaque */

struct cz_text_loader_options {
    size_t size; /* sizeof(struct cz_text_loader_options) */
    const struct cz_texts *texts;         /* borrowed until close */
    const struct cz_tokenizer *tokenizer; /* borrowed until close */
    int64_t max_len;                      /* longest row in tokens; texts are cut */
    int64_t micro_batch, accumulation;
    int64_t rank, world_size; /* world_size 0 means 1 */
    bool shuffle;
    uint64_t seed;
    bool bucket;
    bool drop_last; /* leave out the epoch's last step when it is not full */
    bool once;      /* stop after one epoch (evaluation); accumulation is then 1 */
};

/* Errors: CZ_INVALID (options; tokens that max_len cannot hold), CZ_NOMEM. */
CZ_API cz_status cz_text_loader_open(const struct cz_text_loader_options *options,
                                     struct cz_text_loader **out);
CZ_API void cz_text_loader_close(struct cz_text_loader *l); /* accepts NULL */

/* The next micro-batch of this rank: ids, types, key_mask, labels (B), loss_divisor, sample. Its
 * arrays belong to the loader until the next call. With `once` and after the end, B is 0 and arrays
 * are NULL on every rank at the same call. Errors: what tokenizing gives. */
CZ_API cz_status cz_text_loader_next(struct cz_text_loader *l, struct batch *batch);

/* Which examples the rows of the last batch are: (B) indices into texts, SIZE_MAX for a row that
 * only keeps the others company. */
CZ_API const size_t *cz_text_loader_rows(const struct cz_text_loader *l);

CZ_API bool cz_text_loader_is_done(const struct cz_text_loader *l); /* `once`: all has been given */

CZ_API uint64_t cz_text_loader_steps_per_epoch(const struct cz_text_loader *l);
CZ_API uint64_t cz_text_loader_n_examples(const struct cz_text_loader *l);

/* Texts of this rank that were cut to max_len so far. */
CZ_API uint64_t cz_text_loader_n_cut(const struct cz_text_loader *l);

/* Seconds that cz_text_loader_next() has waited for the tokenizer, the first batch left out. */
CZ_API double cz_text_loader_waited_s(const struct cz_text_loader *l);

/* The place, counted in steps (a step under way counts as taken): cursor.sample is the first
 * example's running number in its epoch, cursor.n_rows the number of examples. Saved with one batch
 * size and world, it can be gone on from with another: seek goes to the step that holds cursor.
 * sample, and says so in the log when that begins earlier; with `bucket`, examples of the window
 * under way may then come twice or not at all in this epoch. An error of the thread is forgotten.
 * CZ_INVALID: saved for other data, seed or order; nothing changes then. */
CZ_API void cz_text_loader_tell(const struct cz_text_loader *l, struct cz_data_cursor *out);
CZ_API cz_status cz_text_loader_seek(struct cz_text_loader *l, const struct cz_data_cursor *cursor);

CZ_EXTERN_C_END
#endif

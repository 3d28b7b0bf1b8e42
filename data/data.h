/* The data room: text and token files become micro-batches, in an order that can be repeated.
 *
 * Life cycle: cz_data_open() → cz_data_check_vocab() → cz_data_next() per micro-batch →
 * cz_data_close(). cz_data_tell() and cz_data_seek() save and restore the place for a resumed run.
 *
 * All tokens of all paths, joined in order, are one stream; row k is its tokens [k·T, k·T + T],
 * T inputs whose targets are shifted by one, so there are floor((tokens - 1) / T) rows. Rows are
 * handed out as one running sequence over the epochs: micro-batch m (counted from 0 over all steps
 * and accumulation) gives rank r the samples (m·world + r)·B + i, i < B. Sample q is row q mod N of
 * epoch q / N, N rows being an epoch; with shuffling, that row's image under a permutation drawn
 * from (seed, epoch). Nothing depends on what was read before, so any sample can be reached at
 * once.
 *
 * With masking (masked language models), row k is the tokens [k·C, k·C + C) between [CLS] and
 * [SEP], C = T - 2 (T where the tokenizer has no such tokens), and there are floor(tokens / C)
 * rows. Some tokens are chosen; labels are these tokens, CZ_IGNORE_LABEL elsewhere, without a
 * shift.
 *
 * Files are mapped, not loaded; pages are given back as reading goes on, so the memory held stays
 * small whatever the size of the data. After cz_data_open() nothing is allocated. */
#ifndef CZ_DATA_DATA_H
#define CZ_DATA_DATA_H

#include "base/batch.h"
#include "base/status.h"
#include "data/tokenizer/tokenizer.h"

CZ_EXTERN_C_BEGIN

struct cz_data_loader; /* opaque */

/* Masked language modelling as in BERT (Devlin et al. 2018, 3.1): each token is chosen with
 * `probability`; of the chosen, 80 % become [MASK], 10 % any id below vocab_size, 10 % stay.
 * Special tokens are never chosen; a row that has others has at least one chosen. Choices are drawn
 * from (seed, sample, position): they differ from epoch to epoch and repeat after a resume. */
struct cz_masking {
    float probability; /* 0: off, rows are for next-token models */
    int32_t mask_id;
    int32_t first_id, last_id; /* around a row: both, or −1 */
    int64_t vocab_size;        /* of random replacements */
    int32_t special_ids[CZ_SPECIAL_COUNT];
    size_t n_special_ids;
};

/* Masking with a tokenizer's special tokens. CZ_INVALID: the tokenizer has no mask token;
 * probability outside (0, 1). */
CZ_API cz_status cz_masking_init(struct cz_masking *masking, const struct cz_tokenizer *tok,
                                 float probability);

struct cz_data_options {
    size_t size; /* sizeof(struct cz_data_options) */
    /* At least one path. What a file is shows in it:
     *   NAME.bin with NAME.idx beside it, NAME.idx, or NAME alone   Megatron's indexed tokens
     *   the header of llm.c's .bin (magic 20240520 or 20240801)     16- or 32-bit tokens
     *   u16:FILE, u32:FILE                                          plain tokens without a header
     *   any other file                                              text, for the tokenizer */
    const char *const *paths;
    size_t n_paths;
    const struct cz_tokenizer *tokenizer; /* for text, borrowed during cz_data_open; NULL: bytes */
    int64_t seq_len;                      /* T */
    int64_t micro_batch;                  /* B */
    int64_t rank, world_size;             /* world_size 0 means 1 */
    bool shuffle;
    uint64_t seed; /* of the shuffle and the masking */
    struct cz_masking masking;
    /* dataloader_drop_last: leave out the rows at an epoch's end that do not fill a micro-batch on
     * every rank. Otherwise such a micro-batch goes on with the next epoch's first rows. */
    bool drop_last;
    bool once; /* stop after one epoch (evaluation) instead of going on with the next */
};

/* Open all files, check their formats and sizes. *out is released by cz_data_close(); NULL on
 * error. Errors: CZ_INVALID (an option, an empty file, too few tokens for one row), CZ_NOTFOUND,
 * CZ_IO, CZ_CORRUPT (bad magic, truncated, index and tokens disagree), CZ_VERSION, CZ_UNSUPPORTED,
 * CZ_NOMEM. Each sentence names the file. */
CZ_API cz_status cz_data_open(const struct cz_data_options *options, struct cz_data_loader **out);

/* Accepts NULL. */
CZ_API void cz_data_close(struct cz_data_loader *loader);

/* Refuse tokens outside 0 … vocab_size - 1 (vocab_size ≥ 1), here and in every later
 * cz_data_next(). Types that cannot exceed the vocabulary are not searched; else up to 256 Mi
 * tokens are, at once. CZ_INVALID: "token 300 at position 17 of FILE is outside the model's
 * vocabulary of 256". */
CZ_API cz_status cz_data_check_vocab(struct cz_data_loader *loader, int64_t vocab_size);

/* The next micro-batch of this rank. Its arrays belong to the loader and stay unchanged until the
 * next call. batch->sample is the running number of the first row. With `once`, B is smaller in the
 * epoch's last micro-batch and 0 after it (an outcome, not an error); then the arrays are NULL.
 * Errors: CZ_INVALID (token outside the vocabulary), CZ_IO (a file became shorter). */
CZ_API cz_status cz_data_next(struct cz_data_loader *loader, struct batch *batch);

/* With `once`: every rank has been given its last row. Always false otherwise. */
CZ_API bool cz_data_is_done(const struct cz_data_loader *loader);

/* Where the run stands, the same on all ranks: `sample` rows of epoch `epoch` have been taken.
 * n_rows, seed and shuffle say what the place refers to. */
struct cz_data_cursor {
    uint64_t epoch, sample;
    uint64_t n_rows, seed;
    bool shuffle;
};
CZ_API void cz_data_tell(const struct cz_data_loader *loader, struct cz_data_cursor *out);

/* Go on from a saved place; batch size and world size may have changed since. {0} is the start of
 * any data. CZ_INVALID: saved for other data, seed or order (the sentence says which). */
CZ_API cz_status cz_data_seek(struct cz_data_loader *loader, const struct cz_data_cursor *cursor);

CZ_API uint64_t cz_data_n_tokens(const struct cz_data_loader *loader);
CZ_API uint64_t cz_data_n_rows(const struct cz_data_loader *loader);

/* Micro-batches that each rank takes in an epoch; rounded up unless drop_last. */
CZ_API uint64_t cz_data_n_batches(const struct cz_data_loader *loader);

CZ_EXTERN_C_END
#endif

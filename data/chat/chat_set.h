/* Instruction data as tokens: all rows of all files, each with what is trained of it, and the bins
 * that rows of a batch are made of.
 *
 * Life cycle: chat_set_open(); chat_set_close(). Immutable: threads may share it. A bin is one
 * example, or with packing as many as fit, chosen as TRL chooses them (best fit, longest first). */
#ifndef CZ_DATA_CHAT_CHAT_SET_H
#define CZ_DATA_CHAT_CHAT_SET_H

#include "data/chat/chat_encode.h"

#define CHAT_TRAINED INT32_MIN /* set in a token that the loss counts */

struct chat_set_options {
    const char *const *paths; /* files, or folders of .jsonl, .ndjson and .json; "-" */
    size_t n_paths;
    struct chat_encoder encoder;
    const char *encoding; /* of the files, iconv's name, borrowed; NULL: UTF-8 */
    int64_t max_len;      /* longer examples are cut at their end */
    bool packs;
    double split_share; /* for evaluation, as in cz_texts_options: 0 is no split */
    uint64_t split_seed;
    struct chat_set **held; /* with split_share: that part, a set of its own; not with keeps_all */
    const char *cache_dir;  /* where tokens are kept for later runs (chat_cache.h); NULL: nowhere */
    /* For a look at the data: keep examples that nothing is trained of and what is cut of others,
     * note every row that is left out, and refuse no number of them. Bins are those of training. */
    bool keeps_all;
    const char *look; /* the command that shows these rows, for a sentence; NULL: none */
};

struct chat_example {
    size_t begin, n;  /* in chat_set.tokens */
    size_t n_full;    /* tokens before it was cut; with keeps_all all of them are there */
    size_t n_trained; /* targets that count */
    bool has_empty;   /* an answer that is trained says nothing */
    uint32_t file;    /* in chat_set.files */
    uint64_t line;    /* from 1 */
};

struct chat_bin {
    size_t begin, n; /* in chat_set.order */
    size_t n_tokens, n_trained;
};

struct chat_left_out {
    enum chat_fault fault;
    uint32_t file;
    uint64_t line;
    size_t example; /* in chat_set.examples; SIZE_MAX with a sentence */
    char *sentence; /* of the fault, with file and line; NULL: chat_fault_text() */
};

struct chat_set {
    int32_t *tokens; /* ids, with CHAT_TRAINED */
    size_t n_tokens, tokens_cap;
    struct chat_example *examples;
    size_t n_examples, examples_cap;
    uint32_t *order; /* examples, bin after bin */
    struct chat_bin *bins;
    size_t n_bins;
    char **files;
    size_t n_files;
    uint64_t n_kept; /* rows whose tokens were found in cache_dir */
    uint64_t n_rows, n_cut, n_trained, n_faults[CHAT_N_FAULTS];
    uint64_t n_without_end; /* examples whose answers do not train the token that ends them */
    uint64_t n_empty;       /* examples with an answer that says nothing */
    uint64_t n_excluded;    /* of n_faults[CHAT_UNTRAINED]: by their own flags */
    /* Rows whose answer was compared with the generation prompt, those that begin otherwise, and
     * of the first of these both texts (chat_tokens.start). */
    uint64_t n_starts, n_other_starts;
    struct text_buf start;
    int64_t max_len;
    struct chat_left_out *left_out; /* keeps_all, in the order of the rows */
    size_t n_left_out, left_out_cap;
};

/* Read and encode everything, on all processors of the process. Rows with a fault are left out; the
 * first are named in warnings. Members of rows that nothing uses are named once for each file.
 * *out, and *held if a share is held out, are released by chat_set_close(); NULL on error. Errors:
 * CZ_INVALID (a row of no known form; more than half of the rows would be left out, not counting
 * those that their own flags exclude; nothing is left; members that nothing uses, where the process
 * is strict), CZ_CORRUPT (no JSON), CZ_UNSUPPORTED (a template), the files', CZ_NOMEM. */
cz_status chat_set_open(const struct chat_set_options *options, struct chat_set **out);
void chat_set_close(struct chat_set *s); /* accepts NULL */

/* A number of the examples, their tokens and what is trained of them. */
uint64_t chat_set_hash(const struct chat_set *s);

/* Why a row is left out, as the end of "ROW is left out: …". Returns buf. */
enum { CHAT_FAULT_NBYTES = 160 };
const char *chat_fault_text(const struct chat_set *s, enum chat_fault fault, char *buf);

/* How many rows are left out; for one reason or all of them the number and why: "1 has nothing to
 * train, 35 have …". Return buf. */
enum { CHAT_REASONS_NBYTES = 640 };
uint64_t chat_set_n_left_out(const struct chat_set *s);
const char *chat_set_reason(const struct chat_set *s, enum chat_fault fault, char *buf);
const char *chat_set_reasons(const struct chat_set *s, char *buf);

/* That generate will not begin answers as they are trained; NULL: nothing says so. Returns buf. */
enum { CHAT_START_NBYTES = 640 };
const char *chat_set_start(const struct chat_set *s, char *buf);

/* Whether too many rows are left out for a run: more than half, not counting those that their own
 * flags exclude, or all. */
bool chat_set_is_refused(const struct chat_set *s);

/* Fill order and bins, of examples with something to train. */
cz_status chat_set_pack(struct chat_set *s, int64_t max_len, bool packs);

#endif

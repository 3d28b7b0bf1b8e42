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
    const char *cache_dir; /* where tokens are kept for later runs (chat_cache.h); NULL: nowhere */
    /* For a look at the data: keep examples that nothing is trained of and what is cut of others,
     * note every row that is left out, and refuse no number of them. Bins are those of training. */
    bool keeps_all;
};

struct chat_example {
    size_t begin, n;  /* in chat_set.tokens */
    size_t n_full;    /* tokens before it was cut; with keeps_all all of them are there */
    size_t n_trained; /* targets that count */
    uint32_t file;    /* in chat_set.files */
    uint64_t line;    /* from 1 */
};

struct chat_bin {
    size_t begin, n; /* in chat_set.order */
    size_t n_tokens, n_trained;
};

/* Rows that are left out, by their reason. */
enum chat_fault { CHAT_REFUSED, CHAT_UNTRAINED, CHAT_CUT_AWAY, CHAT_N_FAULTS };

/* "the template refuses it", … */
const char *chat_fault_text(enum chat_fault fault);

struct chat_left_out {
    enum chat_fault fault;
    uint32_t file;
    uint64_t line;
    size_t example; /* in chat_set.examples; CHAT_REFUSED: SIZE_MAX */
    char *sentence; /* CHAT_REFUSED: with file and line; otherwise NULL */
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
    struct chat_left_out *left_out; /* keeps_all, in the order of the rows */
    size_t n_left_out, left_out_cap;
};

/* Read and encode everything, on all processors of the process. Rows that a template refuses, that
 * have no trained token, or lost all of them by the cut are left out; the first are named in
 * warnings. *out is released by chat_set_close(); NULL on error. Errors: CZ_INVALID (a row of no
 * known form; more than half of the rows would be left out; nothing is left), CZ_CORRUPT (no JSON),
 * CZ_UNSUPPORTED (a template), the files', CZ_NOMEM. */
cz_status chat_set_open(const struct chat_set_options *options, struct chat_set **out);
void chat_set_close(struct chat_set *s); /* accepts NULL */

/* A number of the examples, their tokens and what is trained of them. */
uint64_t chat_set_hash(const struct chat_set *s);

/* Fill order and bins, of examples with something to train. */
cz_status chat_set_pack(struct chat_set *s, int64_t max_len, bool packs);

#endif

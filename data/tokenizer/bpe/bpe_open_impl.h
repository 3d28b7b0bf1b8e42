/* Opening a byte-level BPE tokenizer: parts that both kinds of files share.
 *
 * bpe_open.c   tokens, merges and bytes; tokenizer.json
 * bpe_steps.c  normalizer, pre_tokenizer, decoder of tokenizer.json
 * bpe_files.c  vocab.json + merges.txt and the files beside them */
#ifndef CZ_DATA_TOKENIZER_BPE_BPE_OPEN_IMPL_H
#define CZ_DATA_TOKENIZER_BPE_BPE_OPEN_IMPL_H

#include "data/tokenizer/bpe/bpe_impl.h"
#include "data/tokenizer/tokenizer_json_impl.h"

struct bpe_added {
    const struct json_node *node; /* its place in the JSON */
    const char *content;
    struct added_token token;
    bool is_repeat; /* the content was there before */
};

/* The files' content while they are read; JSON documents own the strings. */
struct bpe_source {
    const struct json_node *vocab; /* object: token → id */
    struct bpe_added *added;
    size_t n_added, cap_added;
    struct added_tokens index; /* by content; the first of repeated ones */
};

/* CZ_NOMEM. Sets is_repeat. */
cz_status bpe_source_add(struct bpe_source *src, const struct bpe_added *added);
void bpe_source_free(struct bpe_source *src);

/* The id of a token of the vocabulary, or of an added one; −1. `user` is a bpe_source. */
int64_t bpe_find_token(const void *user, const char *content);

/* An empty tokenizer of this kind; cz_tokenizer_close() releases it. */
cz_status bpe_create(struct bpe **out);

/* The largest id of all tokens, −1: there are none. CZ_CORRUPT: ids outside the range. */
cz_status bpe_largest_id(const struct bpe_source *src, int64_t *max);

/* Tokens, added tokens and what bytes begin as; b's flags (nfc, ignore_merges, unk_id …) are set
 * already. CZ_CORRUPT: no object, ids outside the range or twice. */
cz_status bpe_read_vocab(struct bpe *b, const struct bpe_source *src, bool byte_fallback);

/* A merge's place, for messages. */
struct bpe_place {
    const struct json_node *node; /* NULL: a line of a file */
    const char *path;
    size_t line;
};

/* One merge, its rank being their number so far. CZ_CORRUPT: a token that there is not. */
cz_status bpe_add_merge(struct bpe *b, const struct bpe_source *src, uint32_t rank,
                        const char *left, size_t n_left, const char *right, size_t n_right,
                        const struct bpe_place *place);

/* "a b" → both parts. CZ_CORRUPT: not two parts with a space between. */
cz_status bpe_split_merge(const char *text, size_t n, size_t *n_left,
                          const struct bpe_place *place);

/* Append a step. CZ_UNSUPPORTED: too many. */
cz_status bpe_add_step(struct bpe *b, const struct bpe_split *split, bool add_prefix_space);

/* normalizer, pre_tokenizer and decoder. CZ_UNSUPPORTED with what is known. */
cz_status bpe_read_steps(struct bpe *b, const struct json_node *root);

/* From special to pieces: what is done last. */
cz_status bpe_finish(struct bpe *b, const struct bpe_source *src, const char *dir);

extern const struct tokenizer_class bpe_class;

#endif

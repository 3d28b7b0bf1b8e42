/* What a kind of tokenizer provides, and what all of them share.
 *
 * tokenizer.c        specials, encoding one or two texts, decoding as a stream; "bytes"
 * tokenizer_folder.c opening by name: which kind a folder holds; writing its files elsewhere
 * wordpiece*.c       BERT's: vocab.txt, or tokenizer.json of type WordPiece
 * bpe*.c             byte-level BPE: tokenizer.json, or vocab.json + merges.txt
 * pipe*.c            any other tokenizer.json, and SentencePiece's tokenizer.model */
#ifndef CZ_DATA_TOKENIZER_TOKENIZER_IMPL_H
#define CZ_DATA_TOKENIZER_TOKENIZER_IMPL_H

#include "base/status.h"
#include <czero/data.h>

/* A list of ids that grows. */
struct id_list {
    int32_t *ids;
    size_t n, cap;
};

/* Space for n more. CZ_NOMEM. */
cz_status id_list_grow(struct id_list *l, size_t n);
static inline cz_status id_list_reserve(struct id_list *l, size_t n)
{
    return n <= l->cap - l->n ? CZ_OK : id_list_grow(l, n);
}
static inline cz_status id_list_add(struct id_list *l, int32_t id)
{
    if (l->n == l->cap) TRY(id_list_reserve(l, 1));
    l->ids[l->n++] = id;
    return CZ_OK;
}

struct tokenizer_class {
    const char *name;
    /* Append the ids of a text, without special tokens. May be called by several threads at once.
     */
    cz_status (*encode)(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                        struct id_list *out);
    /* As encode; ends gets, of each token, where it ends in the text: one that ends inside of a
     * character at that character's end. *are_known false: `ends` is of no use, because the tokens
     * one after the other are not the text. Both lists have as many members before the call. NULL:
     * no such knowledge. */
    cz_status (*encode_ends)(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                             struct id_list *out, struct id_list *ends, bool *are_known);
    /* As encode, of a part of a text behind a place where `cut` allowed it: what is done at a
     * text's beginning is not done. NULL: encode does as well. */
    cz_status (*encode_rest)(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                             struct id_list *out);
    /* A place in [from, nbytes) where a text can be cut: the ids of both parts, one after the
     * other, are those of the whole. nbytes: none was found. NULL: nothing is known. */
    size_t (*cut)(const struct cz_tokenizer *tok, const char *text, size_t nbytes, size_t from);
    /* The bytes that id (in the vocabulary) stands for, into piece_nbytes_max bytes; `first`:
     * nothing stands before it in the text (WordPiece puts a space in front of whole words). Pieces
     * are bytes, not characters: the decoder joins them. */
    size_t (*piece)(const struct cz_tokenizer *tok, int64_t id, bool first, char *dst);
    /* Whether a token is one of those that are cut out of a text before all else, as <|im_end|>
     * is. NULL: there are none. */
    bool (*is_added)(const struct cz_tokenizer *tok, int64_t id);
    /* Instead of piece, where what a token stands for depends on others: a text's state, one id
     * (−1: the end, after which another text may begin) to valid UTF-8, owned by the state until
     * the next call. NULL: pieces are joined. */
    cz_status (*decode_create)(const struct cz_tokenizer *tok, void **state);
    void (*decode_destroy)(void *state); /* accepts NULL */
    cz_status (*decode)(const struct cz_tokenizer *tok, void *state, int64_t id, const char **text,
                        size_t *nbytes);
    void (*close)(struct cz_tokenizer *tok); /* releases what the kind added, and tok itself */
};

#define TOKENIZER_FRAME_MAX 8

/* Special tokens around one text, or around two: ids, and TOKENIZER_FIRST / TOKENIZER_SECOND where
 * the texts go. n 0: just the text(s). */
enum { TOKENIZER_FIRST = -1, TOKENIZER_SECOND = -2 };
struct tokenizer_frame {
    int32_t items[TOKENIZER_FRAME_MAX];
    int32_t types[TOKENIZER_FRAME_MAX]; /* segment of each item */
    size_t n;
};

/* Places that `cut` looks at before it gives up: each may need a look at all added tokens near it.
 */
#define TOKENIZER_CUTS_TRIED 1000

/* The head of every kind's own struct, which begins with it. */
struct cz_tokenizer {
    const struct tokenizer_class *cls;
    int64_t vocab_size;                /* largest id + 1 */
    int64_t special[CZ_SPECIAL_COUNT]; /* ids, −1: none */
    size_t piece_nbytes_max;
    bool keeps_spaces; /* a word is other tokens behind a space; cz_tokenizer_open() sets it */
    struct tokenizer_frame one, two;
    char *dir; /* where its files are, for cz_tokenizer_export(); tokenizer_folder_open() sets it */
    const char *const *files; /* those that make the tokenizer, NULL at the end */
    /* vocab.txt or merges.txt as it was understood, for cz_tokenizer_export(); NULL: neither. */
    char *lines;
    size_t lines_nbytes;
};

/* Set cls, no specials, frames that add nothing. */
void tokenizer_init(struct cz_tokenizer *tok, const struct tokenizer_class *cls);

cz_status tokenizer_bytes_open(struct cz_tokenizer **out);
/* A folder, or a file in one. Errors: as cz_tokenizer_open(). */
cz_status tokenizer_folder_open(const char *name, struct cz_tokenizer **out);

/* The kinds. `dir` holds the named files; *out is released by cz_tokenizer_close(). Errors: CZ_IO,
 * CZ_CORRUPT (file, place and what is wrong), CZ_UNSUPPORTED (a model, normalizer or splitting that
 * we do not know), CZ_NOMEM. */
struct json_node;
cz_status wordpiece_open_vocab(const char *dir, struct cz_tokenizer **out);
cz_status wordpiece_open_json(const char *dir, const struct json_node *root,
                              struct cz_tokenizer **out);
cz_status bpe_open_vocab(const char *dir, struct cz_tokenizer **out); /* vocab.json + merges.txt */
/* Whether bpe_open_json() reads it: byte-level, with splitting that it knows. */
cz_status bpe_is_byte_level(const struct json_node *root, bool *is_it); /* CZ_NOMEM */
/* Whether wordpiece_open_json() reads it: with BERT's normalizer or none, its splitting
 * and its decoder. */
bool wordpiece_is_bert(const struct json_node *root);
/* Any chain of steps that is known. */
cz_status pipe_open_json(const char *dir, const struct json_node *root, struct cz_tokenizer **out);
cz_status pipe_open_pieces(const char *dir, struct cz_tokenizer **out);  /* tokenizer.model */
cz_status pipe_open_deberta(const char *dir, struct cz_tokenizer **out); /* spm.model */
cz_status bpe_open_json(const char *dir, const struct json_node *root, struct cz_tokenizer **out);

#endif

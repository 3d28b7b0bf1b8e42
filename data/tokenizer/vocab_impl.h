/* Building a vocabulary: its parts.
 *
 * vocab.c         counting words, characters, what is covered
 * vocab_save.c    the files
 * vocab_strings.c strings with running numbers and counts
 * vocab_train.c   pieces from pairs */
#ifndef CZ_DATA_TOKENIZER_VOCAB_IMPL_H
#define CZ_DATA_TOKENIZER_VOCAB_IMPL_H

#include "data/tokenizer/vocab.h"
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

/* ---- strings --------------------------------------------------------------------------------- */

struct string_row {
    uint64_t off; /* in `bytes` */
    uint32_t nbytes, hash;
    uint64_t count;
};

struct strings {
    char *bytes;
    size_t n_bytes, cap_bytes;
    struct string_row *rows;
    uint32_t n, cap;
    uint32_t *slots; /* index + 1, 0: empty */
    size_t n_slots;
};

/* The index of a string, added with count 0 when it is new. CZ_NOMEM. */
cz_status strings_need(struct strings *s, const char *text, size_t nbytes, uint32_t *idx);
void strings_free(struct strings *s); /* accepts a zeroed one */

static inline const char *strings_text(const struct strings *s, uint32_t idx)
{
    return s->bytes + s->rows[idx].off;
}

/* Indices by falling count, equal ones in the order of their bytes, as a block to free().
 * CZ_NOMEM. */
cz_status strings_order(const struct strings *s, uint32_t **order);

/* ---- the vocabulary -------------------------------------------------------------------------- */

struct vocab_merge {
    uint32_t left, right; /* tokens */
};

struct vocab {
    struct vocab_options options;
    const struct wp_chars *chars;
    struct wp_word word;
    char word_text[4 * WP_N_CHARS_DEFAULT];
    struct strings words;       /* of at most WP_N_CHARS_DEFAULT characters */
    struct strings symbols;     /* characters as tokens: "a" begins a word, "##a" does not */
    struct strings tokens;      /* the result, in order of ids */
    struct vocab_merge *merges; /* BPE: in order */
    size_t n_merges, cap_merges;
    struct vocab_report report;
};

extern const char *const vocab_specials[VOCAB_N_SPECIALS];

static inline bool vocab_is_bpe(const struct vocab *v)
{
    return v->options.kind == VOCAB_BPE;
}

/* Characters [0, n_symbols) of v->tokens behind the special ones are there: add pieces until there
 * are options.size. CZ_NOMEM. */
cz_status vocab_train(struct vocab *v);

#define VOCAB_END_OF_TEXT   "<|endoftext|>"
#define VOCAB_PREFIX        "##"
#define VOCAB_PREFIX_NBYTES 2
#define VOCAB_SYMBOL_NBYTES (VOCAB_PREFIX_NBYTES + 4)

/* The character at word[at] as a token, into dst; *len: its bytes in the word. */
size_t vocab_symbol(const char *word, size_t nbytes, size_t at, char *dst, size_t *len);

/* The index of a string that must be there already, or −1. */
int64_t strings_find(const struct strings *s, const char *text, size_t nbytes);

#endif

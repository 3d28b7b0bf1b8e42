/* Splitting a text into the pieces that byte pairs are merged in: the patterns of GPT-2 and its
 * successors, each written out as a scanner that finds the next piece. */
#ifndef CZ_DATA_TOKENIZER_BPE_BPE_SPLIT_IMPL_H
#define CZ_DATA_TOKENIZER_BPE_BPE_SPLIT_IMPL_H

#include "base/compiler.h"

/* Where a text can be cut in two whose pieces, one after the other, are those of the whole. All of
 * these hold whatever text is further away: no piece reaches over such a place, and no lookahead of
 * a piece before it changes when the text ends there. */
enum bpe_cuts {
    BPE_CUTS_NONE = 0,         /* nothing is known */
    BPE_CUTS_ANY = 1,          /* its pieces stay what they are wherever a later step can be cut */
    BPE_CUTS_BEFORE_SPACE = 2, /* between any character that is no white space, and white space */
    BPE_CUTS_AFTER_WORD = 4,   /* between a letter or digit, and white space */
    BPE_CUTS_LINES = 8         /* between \n, and a letter or digit */
};

struct bpe_split {
    const char *name;
    const char *pattern; /* the text in tokenizer.json; NULL: has another spelling there */
    /* Bytes of the first piece of s[0 … n), n > 0, valid UTF-8, as if nothing stood before. */
    size_t (*next)(const char *s, size_t n);
    unsigned cuts;
};

/* The splitter of a pattern's text, NULL: none that we know. */
const struct bpe_split *bpe_split_find(const char *pattern);

/* "GPT-2, LLaMA 3, …" */
const char *bpe_split_names(void);

extern const struct bpe_split bpe_split_gpt2;
extern const struct bpe_split bpe_split_qwen2;
extern const struct bpe_split bpe_split_digits;     /* each digit alone */
extern const struct bpe_split bpe_split_digit_runs; /* runs of digits */
extern const struct bpe_split bpe_split_whole;      /* one piece */

#endif

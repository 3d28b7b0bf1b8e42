/* Builds a vocabulary from texts, for models without a tokenizer: WordPiece, or byte-level BPE.
 *
 * Life cycle: vocab_create() → vocab_add() per text → vocab_build() once → vocab_save() →
 * vocab_destroy(). Texts are cleaned and split as BERT does it, or for BPE only split, by GPT-2's
 * pattern; only their different words are kept. The result depends on the texts and options alone,
 * not on their order. One thread. */
#ifndef CZ_DATA_TOKENIZER_VOCAB_H
#define CZ_DATA_TOKENIZER_VOCAB_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct vocab; /* opaque */

enum vocab_kind {
    /* Characters, then pieces: the two neighbours in a word that occur together most often become a
     * piece, again and again. */
    VOCAB_WORDPIECE = 0,
    VOCAB_CHAR = 1, /* characters alone */
    /* The 256 bytes, then pieces as above, over bytes: Sennrich et al., arXiv 1508.07909, as GPT-2
     * has it. The same merges in the same order as the trainer of the tokenizers library. */
    VOCAB_BPE = 2
};

#define VOCAB_N_SPECIALS                                                                           \
    5 /* [PAD] [UNK] [CLS] [SEP] [MASK], ids 0 … 4; BPE: only <|endoftext|>                      \
       */
#define VOCAB_BPE_LEAST 257  /* <|endoftext|>, id 0, and the bytes */
#define VOCAB_WORD_MAX  1000 /* bytes of a word that BPE learns from; longer ones are data */

struct vocab_options {
    enum vocab_kind kind;
    int64_t size; /* tokens at most, special ones included; more than VOCAB_N_SPECIALS, for
                     BPE at least VOCAB_BPE_LEAST */
    uint64_t
        min_count;  /* characters and pieces that occur less often are left out; bytes are not */
    bool lowercase; /* small letters without accents, as BERT's "uncased"; not for BPE */
};

struct vocab_report {
    int64_t n_specials, n_tokens;
    int64_t n_characters, n_pieces; /* characters: beginning a word, or inside it; BPE: bytes */
    uint64_t n_words, n_different_words;
    uint64_t n_chars, n_chars_unknown; /* of the texts without white space; in words that are [UNK]
                                        */
    uint64_t n_bytes,
        n_pieces_used; /* BPE: of the words that were learned from, and their tokens */
};

/* Errors: CZ_INVALID (options), CZ_NOMEM. */
cz_status vocab_create(const struct vocab_options *options, struct vocab **out);
void vocab_destroy(struct vocab *v); /* accepts NULL */

/* Count the words of a text, valid UTF-8. Errors: CZ_INVALID (BPE: it is not), CZ_NOMEM. */
cz_status vocab_add(struct vocab *v, const char *text, size_t nbytes);

/* Choose the tokens. Errors: CZ_INVALID (no text had a word), CZ_NOMEM. */
cz_status vocab_build(struct vocab *v, struct vocab_report *report);

/* Write vocab.txt (BPE: tokenizer.json) and tokenizer_config.json into a folder, made if it is not
 * there: what cz_tokenizer_open() and transformers' AutoTokenizer read to the same ids.
 * Errors: CZ_IO, CZ_NOMEM. */
cz_status vocab_save(const struct vocab *v, const char *dir);

CZ_EXTERN_C_END
#endif

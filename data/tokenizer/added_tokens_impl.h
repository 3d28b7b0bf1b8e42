/* Added tokens: contents that are tokens of their own wherever they stand in a text, found before
 * anything is split ("<|endoftext|>", "[MASK]").
 *
 * Life cycle: added_tokens_init() → added_tokens_add() per token → added_tokens_next() over a text
 * → added_tokens_free(). After the last add it is immutable: threads may share it. */
#ifndef CZ_DATA_TOKENIZER_ADDED_TOKENS_IMPL_H
#define CZ_DATA_TOKENIZER_ADDED_TOKENS_IMPL_H

#include "base/status.h"

struct added_token {
    int32_t id;
    bool special;        /* left out of decoded text if the caller asks for that */
    bool lstrip, rstrip; /* white space on that side belongs to the token */
    bool single_word;    /* only where no letter or digit touches it */
    bool normalized;     /* searched in the normalized text (the owner keeps two sets) */
};

struct added_node { /* of a tree over bytes; children are siblings in a list */
    uint32_t child, sibling;
    int32_t token; /* index that ends here, −1: none */
    unsigned char byte;
};

struct added_tokens {
    struct added_token *tokens;
    size_t n;
    struct added_node *nodes; /* [0] is the root */
    size_t n_nodes, cap_nodes;
    uint32_t first[256];      /* the root's children by byte, 0: none */
    size_t n_first;           /* how many there are */
    unsigned char last_first; /* the byte of the one added last */
    size_t nbytes_max;        /* of the longest content */
};

void added_tokens_init(struct added_tokens *set);
void added_tokens_free(struct added_tokens *set); /* accepts a zeroed set */

/* Contents are walked along at every place of a text where one may begin, so they must be short;
 * those of Hugging Face's models have up to 93 bytes (31 times U+2581). */
#define ADDED_TOKEN_NBYTES_MAX 256

/* A content given twice takes the later token. Errors: CZ_INVALID (empty), CZ_UNSUPPORTED (too
 * long), CZ_NOMEM. */
cz_status added_tokens_add(struct added_tokens *set, const char *content, size_t nbytes,
                           const struct added_token *token);

/* Whether it has a token with this id. */
bool added_tokens_have(const struct added_tokens *set, int64_t id);

/* The token with this content, NULL: none. */
const struct added_token *added_tokens_find(const struct added_tokens *set, const char *content,
                                            size_t nbytes);

/* Whether the text begins with some content; *nbytes: of the longest. Flags do not count. */
const struct added_token *added_tokens_at(const struct added_tokens *set, const char *text,
                                          size_t n, size_t *nbytes);

/* The next token in text[from … nbytes): of those that begin leftmost, the longest; [*start, *end)
 * includes the white space that it takes. `done`: end of the token before (from, at first), which
 * *start is never before. false: none is left. Hugging Face's rules, with one of its habits: a
 * token passed over for single_word hides the shorter ones inside it. */
bool added_tokens_next(const struct added_tokens *set, const char *text, size_t nbytes, size_t done,
                       size_t *from, size_t *start, size_t *end, struct added_token *token);

/* Whether some content found in the text reaches over `at`, begins there or ends there. */
bool added_tokens_touch(const struct added_tokens *set, const char *text, size_t nbytes, size_t at);

#endif

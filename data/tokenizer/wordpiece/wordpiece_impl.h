/* WordPiece: its parts.
 *
 * wordpiece.c        encoding a text, pieces
 * wordpiece_words.c  a text's words: cleaning, splitting, accents, case, one character at a time
 * wordpiece_chars.c  what a character becomes
 * wordpiece_tables.c Unicode's categories as Hugging Face's tokenizers know them (generated)
 * wordpiece_trie.c   the longest token at a place
 * wordpiece_build.c  a tokenizer from what its files say
 * wordpiece_vocab.c  from vocab.txt and tokenizer_config.json
 * wordpiece_json.c   from tokenizer.json */
#ifndef CZ_DATA_TOKENIZER_WORDPIECE_WORDPIECE_IMPL_H
#define CZ_DATA_TOKENIZER_WORDPIECE_WORDPIECE_IMPL_H

#include "data/tokenizer/added_tokens_impl.h"
#include "data/tokenizer/tokenizer_impl.h"

/* ---- characters ------------------------------------------------------------------------------ */

struct wp_range {
    uint32_t first, last;
};
struct wp_mark {
    uint32_t first, last;
    uint8_t combining_class;
};

extern const struct wp_range wp_dropped[], wp_spaces[], wp_punctuation[], wp_accents[];
extern const size_t wp_n_dropped, wp_n_spaces, wp_n_punctuation, wp_n_accents;
extern const struct wp_mark wp_marks[];
extern const size_t wp_n_marks;

/* BERT's normalizer, in the order in which it works. */
struct wp_rules {
    bool clean;         /* drop control characters, make every white space a space */
    bool split_chinese; /* a space on both sides of CJK ideographs */
    bool strip_accents; /* canonical decomposition, marks dropped */
    bool lowercase;
};

/* What a character does to the words around it. */
enum wp_action {
    WP_LETTER = 0, /* part of a word, as it is */
    WP_DROP,
    WP_SPACE,  /* ends a word */
    WP_ALONE,  /* ends a word, and is one, as it is */
    WP_CHANGE, /* see wp_change() */
    WP_N_ACTIONS
};

/* Characters below this have their action in a table. */
#define WP_TABLE_N 0x20000u

struct wp_chars {
    struct wp_rules rules;
    uint8_t actions[WP_TABLE_N]; /* enum wp_action */
    char letters[256];           /* bytes that are letters, as they go into words; 0: others */
};

/* The table of these rules; NULL: no memory. It is made once, at the first use, and shared by all
 * tokenizers until the program ends: making it takes longer than reading a small vocabulary. Any
 * thread. */
const struct wp_chars *wp_chars_of(const struct wp_rules *rules);

static inline enum wp_action wp_action_of(const struct wp_chars *chars, uint32_t c)
{
    return c < WP_TABLE_N ? (enum wp_action)chars->actions[c] : WP_CHANGE;
}

/* What c becomes, at most WP_CHANGE_MAX characters; returns their number. WP_BREAK among them
 * stands for a mark that was dropped and over which others are not put in order. */
#define WP_CHANGE_MAX 16
#define WP_BREAK      UINT32_MAX
size_t wp_change(const struct wp_rules *rules, uint32_t c, uint32_t *out);

/* The action of a character that wp_change() gave: WP_LETTER, WP_SPACE or WP_ALONE. */
enum wp_action wp_split(uint32_t c);

/* The small letter or letters of c, c itself where it has none; returns their number. */
size_t wp_lower(uint32_t c, uint32_t out[2]);

/* Whether BERT's splitting makes c a word by itself. */
bool wp_is_punctuation(uint32_t c);
bool wp_is_chinese(uint32_t c); /* a CJK ideograph, by BERT's list */

/* Combining class of a mark that stays; 0 for anything else. */
uint8_t wp_combining_class(uint32_t c);

/* ---- words ----------------------------------------------------------------------------------- */

/* The word under way, or a text. n_chars continues counting where `text` takes no more. */
struct wp_word {
    char *text; /* space for n_chars_max characters of 4 bytes */
    size_t nbytes;
    size_t n_chars, n_chars_max;
    size_t fence; /* marks are not put in order over what precedes this byte */
};

/* Takes each word, in order; n_chars may be more than the word's n_chars_max, and then `word` is
 * only its beginning. */
typedef cz_status (*wp_take)(void *user, const char *word, size_t nbytes, size_t n_chars);

/* Split a text into words as the rules and BERT's punctuation say. `word` is empty, and is again
 * afterwards. Bytes that are not UTF-8 count as U+FFFD. Errors: what `take` gives. */
cz_status wp_words(const struct wp_chars *chars, const char *text, size_t nbytes,
                   struct wp_word *word, wp_take take, void *user);

/* The text as the rules leave it, with its spaces, into `dst` of wp_normalized_nbytes_max() bytes;
 * returns its length. */
size_t wp_normalize(const struct wp_chars *chars, const char *text, size_t nbytes, char *dst);
static inline size_t wp_normalized_nbytes_max(size_t nbytes)
{
    return 4 * nbytes + 4;
}

/* ---- the longest token ----------------------------------------------------------------------- */

struct wp_token { /* bytes with an id */
    const char *text;
    size_t nbytes;
    int32_t id;
};

struct wp_node { /* a node's child by byte b is nodes[base + b] if that one's parent is the node */
    int32_t base, parent;
    int32_t id; /* of the token that ends here, −1: none */
};

struct wp_trie {
    struct wp_node *nodes;
    size_t n, cap;
};

/* Tokens are sorted in place; of equal ones the last id counts. CZ_NOMEM. */
cz_status wp_trie_build(struct wp_trie *trie, struct wp_token *tokens, size_t n_tokens);
void wp_trie_free(struct wp_trie *trie); /* accepts a zeroed one */

/* From `node` (0: the root) along nbytes of text: the node there, or −1. */
int32_t wp_trie_walk(const struct wp_trie *trie, int32_t node, const char *text, size_t nbytes);

/* The longest token that text[0 … nbytes) begins with: its id, or −1. */
static inline int32_t wp_trie_longest(const struct wp_trie *trie, int32_t node, const char *text,
                                      size_t nbytes, size_t *len)
{
    const struct wp_node *nodes = trie->nodes;
    int32_t id = -1;
    for (size_t i = 0; i < nbytes; i++) {
        int32_t next = nodes[node].base + (unsigned char)text[i];
        if (nodes[next].parent != node) break;
        node = next;
        if (nodes[node].id < 0) continue;
        id = nodes[node].id;
        *len = i + 1;
    }
    return id;
}

/* ---- the tokenizer --------------------------------------------------------------------------- */

struct wordpiece {
    struct cz_tokenizer tok;
    char *text; /* all tokens */
    uint64_t
        *offs; /* token id is text[offs[id] … offs[id] + lens[id]), empty where there is none */
    uint32_t *lens;
    struct wp_trie trie;
    char *prefix; /* of tokens that continue a word: "##" */
    size_t prefix_nbytes;
    int32_t inside; /* the node behind the prefix, −1: no token continues a word */
    int32_t unk;
    size_t n_chars_max; /* longer words are unknown */
    const struct wp_chars *chars;
    struct added_tokens added;            /* found in the text as it is */
    struct added_tokens added_normalized; /* found in what the rules leave of it */
    const struct wp_chars *plain;         /* without rules, for that; NULL when there are none */
};

extern const struct tokenizer_class wordpiece_class;

/* What the readers of files gather. */
struct wp_added {
    const char *content;
    struct added_token token; /* id: the vocabulary's when it is there, else this one where it is
                                 behind the vocabulary, else the next one behind it */
    bool optional;            /* left out when the vocabulary does not have it */
};
struct wp_source {
    const char *path;        /* in sentences */
    struct wp_token *tokens; /* their ids may have holes; put in order by wordpiece_build() */
    size_t n_tokens, cap_tokens;
    struct wp_added *added;
    size_t n_added, cap_added;
    struct wp_rules rules;
    const char *unk, *prefix;
    int64_t n_chars_max;
};

#define WP_ID_MAX          ((1 << 22) - 1)
#define WP_TOKEN_MAX       4096 /* bytes of a token */
#define WP_N_CHARS_DEFAULT 100
#define WP_N_CHARS_MAX     (1 << 16)

cz_status wp_source_add_token(struct wp_source *src, const char *text, size_t nbytes, int64_t id);
cz_status wp_source_add_added(struct wp_source *src, const struct wp_added *added);
void wp_source_free(struct wp_source *src);

/* A tokenizer without frames, and of the special tokens with the unknown one. Texts are copied.
 * Errors: CZ_CORRUPT (no tokens, no unknown token, more than WP_ID_MAX), CZ_NOMEM. */
cz_status wordpiece_build(struct wp_source *src, struct wordpiece **out);

/* The id of a token, added ones included; −1: none. `user` is the struct wordpiece. */
int64_t wordpiece_find(const void *user, const char *content);

/* What BERT calls a special token: "[PAD]"; NULL where it has none. */
const char *wordpiece_usual_name(enum cz_special which);

#endif

/* Tokenizers that are a chain of steps, as tokenizer.json and SentencePiece's tokenizer.model
 * describe them: what is neither BERT's WordPiece nor byte-level BPE, which have faster code.
 *
 *   text → added tokens cut out → normalizer steps → pre-tokenizer steps → model → ids
 *   ids → tokens → decoder steps → text
 *
 * pipe.c            a text's ids, where a text can be cut
 * pipe_open.c       from tokenizer.json: vocabulary, added tokens, the order of things
 * pipe_norm.c       normalizer steps, one row of a table each
 * pipe_forms.c      Unicode's normalization forms, case and accents
 * pipe_charsmap.c   SentencePiece's precompiled character maps
 * pipe_pre.c        pre-tokenizer steps, one row of a table each
 * pipe_pattern.c    the patterns of Split and Replace
 * pipe_model.c      BPE of characters, Unigram, WordPiece, WordLevel: a word's ids
 * pipe_decode.c     decoder steps, one row of a table each
 * pipe_pieces*.c    from tokenizer.model
 *
 * Everything is decided when a file is opened: what is not known is refused there by its name. */
#ifndef CZ_DATA_TOKENIZER_PIPE_PIPE_IMPL_H
#define CZ_DATA_TOKENIZER_PIPE_PIPE_IMPL_H

#include "data/tokenizer/bpe/bpe_open_impl.h"
#include "data/tokenizer/tokenizer_json_impl.h"
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

/* ---- text ------------------------------------------------------------------------------------ */

struct pipe_text { /* grows */
    char *s;
    size_t n, cap;
    size_t limit; /* of n; 0: none */
};

/* Limit on the output of the steps for a text, or of the decoders for a token: PIPE_GROWTH_MAX
 * times the input's bytes plus, once for the whole text, PIPE_GROWTH_FREE. The most that Unicode's
 * forms do is 11, and a byte written as characters is 2. */
#define PIPE_GROWTH_MAX  64
#define PIPE_GROWTH_FREE ((size_t)64 << 10)

/* Space for n more bytes. CZ_NOMEM; CZ_INVALID beyond the limit. */
cz_status pipe_text_reserve(struct pipe_text *t, size_t n);
static inline cz_status pipe_text_add(struct pipe_text *t, const char *s, size_t n)
{
    if (n > t->cap - t->n) TRY(pipe_text_reserve(t, n));
    if (n > 0) memcpy(t->s + t->n, s, n);
    t->n += n;
    return CZ_OK;
}
cz_status pipe_text_add_char(struct pipe_text *t, uint32_t c);

/* A run of text on its way. */
struct pipe_piece {
    const char *s;
    size_t n;
    bool is_first; /* its first character is the first of the whole text */
    bool is_rest;  /* the text was cut here: what is done at its beginning was done elsewhere */
    size_t n_more; /* bytes behind it that can be read, too: at least these */
};

/* ---- patterns -------------------------------------------------------------------------------- */

/* A string, or a regular expression that has a scanner. */
struct pipe_pattern {
    char *text;
    size_t n;
    size_t (*match)(const char *s, size_t n); /* bytes that match at s, 0: none; NULL: a string */
    bool begins[256]; /* by byte: whether a match may begin so; the rest is passed over */
};

/* {"String": …} or {"Regex": …}. CZ_UNSUPPORTED: an expression without a scanner; an empty one. */
cz_status pipe_pattern_read(const struct json_node *owner, struct pipe_pattern *out);
/* The leftmost match in s[from … n). */
bool pipe_pattern_find(const struct pipe_pattern *p, const char *s, size_t n, size_t from,
                       size_t *start, size_t *end);

/* ---- normalizer steps ------------------------------------------------------------------------ */

enum { PIPE_NFC, PIPE_NFD, PIPE_NFKC, PIPE_NFKD };

struct charsmap { /* a double array of keys to places among terminated texts */
    uint32_t *units;
    size_t n_units;
    char *texts;
    size_t n_texts;
};

/* `blob` as files hold it. CZ_CORRUPT: sizes that do not fit, a place outside. */
cz_status charsmap_init(struct charsmap *m, const char *blob, size_t nbytes);
void charsmap_free(struct charsmap *m);
/* The text of a key that s begins with: the shortest one, or the longest; NULL: none. Keys have up
 * to CHARSMAP_KEY_MAX bytes: an array that leads back to itself would have endless ones. */
#define CHARSMAP_KEY_MAX 256
const char *charsmap_find(const struct charsmap *m, const char *s, size_t n, bool longest,
                          size_t *n_key);

struct pipe_norm {
    const struct pipe_norm_class *cls;
    struct pipe_pattern pattern;
    struct pipe_text content; /* of Prepend and Replace */
    const struct wp_chars *chars;
    struct charsmap map;
    int form;
    bool left, right;                        /* Strip */
    bool squeeze, prefix, escape, as_suffix; /* SentencePiece's */
    struct added_tokens *kept;               /* lent; SentencePiece's: left as they are */
};

struct pipe_norm_class {
    const char *name; /* "type" in tokenizer.json; NULL: in no file */
    cz_status (*read)(const struct json_node *node, struct pipe_norm *out); /* NULL: no options */
    /* Append what the step makes of piece->s to dst; piece's flags are updated. */
    cz_status (*run)(const struct pipe_norm *step, struct pipe_piece *piece, struct pipe_text *dst);
};

extern const struct pipe_norm_class pipe_norm_pieces; /* SentencePiece's */

cz_status pipe_norm_form(const struct pipe_norm *step, struct pipe_piece *piece,
                         struct pipe_text *dst);
cz_status pipe_norm_strip_accents(const struct pipe_norm *step, struct pipe_piece *piece,
                                  struct pipe_text *dst);
cz_status pipe_norm_lowercase(const struct pipe_norm *step, struct pipe_piece *piece,
                              struct pipe_text *dst);
cz_status pipe_norm_precompiled(const struct pipe_norm *step, struct pipe_piece *piece,
                                struct pipe_text *dst);
void pipe_norm_free(struct pipe_norm *step);

/* ---- pre-tokenizer steps --------------------------------------------------------------------- */

enum pipe_behavior { PIPE_REMOVED, PIPE_ISOLATED, PIPE_WITH_PREVIOUS, PIPE_WITH_NEXT, PIPE_RUNS };
enum pipe_scheme { PIPE_ALWAYS, PIPE_FIRST, PIPE_NEVER };

struct pipe_pre {
    const struct pipe_pre_class *cls;
    struct pipe_pattern pattern;
    const struct bpe_split *split; /* of byte-level patterns */
    enum pipe_behavior behavior;
    bool invert;
    enum pipe_scheme scheme; /* Metaspace */
    char mark[5];            /* Metaspace's replacement, CharDelimiterSplit's delimiter */
    size_t n_mark, length;
    bool is_split, add_prefix_space, use_regex;
};

struct pipe_pre_class {
    const char *name;
    cz_status (*read)(const struct json_node *node, struct pipe_pre *out); /* NULL: no options */
    /* Change the text as a whole before it is split, unless dst stays empty; NULL: not at all. */
    cz_status (*change)(const struct pipe_pre *step, struct pipe_piece *piece,
                        struct pipe_text *dst);
    /* Bytes of the first segment of s, and whether it is a match; NULL: all is one segment. */
    size_t (*next)(const struct pipe_pre *step, const char *s, size_t n, bool *is_match);
    /* Change each piece after the split; NULL: not at all. */
    cz_status (*finish)(const struct pipe_pre *step, struct pipe_piece *piece,
                        struct pipe_text *dst);
};

/* add_prefix_space and prepend_scheme of Metaspace, which is a decoder, too. */
cz_status pipe_scheme_read(const struct json_node *node, enum pipe_scheme *out);
void pipe_pre_free(struct pipe_pre *step);

/* ---- models ---------------------------------------------------------------------------------- */

struct pipe;
struct pipe_work;

struct pipe_model_class {
    const char *name;
    cz_status (*read)(struct pipe *p, const struct json_node *model);
    /* One word's ids, appended. n_more bytes behind the word can be read. */
    cz_status (*word)(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                      size_t n_more, struct id_list *out);
};

struct unigram_node { /* the best way to a place */
    double score;
    uint32_t start;
    int32_t id; /* −1: none yet */
};

struct unigram {
    double *scores; /* by id */
    double unk_score;
    bool byte_fallback;
    bool is_single; /* SentencePiece's own: sums are rounded to single precision */
};

/* ---- decoder steps --------------------------------------------------------------------------- */

struct pipe_decoder {
    const struct pipe_decoder_class *cls;
    struct pipe_pattern pattern;
    struct pipe_text content;
    size_t start, stop; /* Strip */
    bool cleanup, squeeze, prefix;
    enum pipe_scheme scheme;
};

void pipe_decoder_free(struct pipe_decoder *step);
cz_status pipe_decoders_read(struct pipe *p, const struct json_node *node, int depth);
cz_status pipe_decoder_add(struct pipe *p, const char *name, struct pipe_decoder **out);

/* The class's calls: see tokenizer_impl.h. */
cz_status pipe_decode_create(const struct cz_tokenizer *tok, void **state);
void pipe_decode_destroy(void *state);
cz_status pipe_decode(const struct cz_tokenizer *tok, void *state, int64_t id, const char **text,
                      size_t *nbytes);

/* ---- the tokenizer --------------------------------------------------------------------------- */

#define PIPE_STEPS_MAX         16
#define PIPE_DECODER_TOKEN_MAX 256 /* bytes of what a decoder step searches for */

struct pipe_work {
    struct pipe_work *next; /* among those not in use */
    struct bpe_work *bpe;
    struct pipe_text norms[2];
    struct pipe_text pres[2 * PIPE_STEPS_MAX];
    struct unigram_node *nodes;
    size_t cap_nodes;
    size_t growth_free; /* what is left of PIPE_GROWTH_FREE for this text */
};

struct pipe {
    struct cz_tokenizer base;
    struct pipe_norm norms[PIPE_STEPS_MAX];
    struct pipe_pre pres[PIPE_STEPS_MAX];
    struct pipe_decoder decoders[PIPE_STEPS_MAX];
    size_t n_norms, n_pres, n_decoders;
    bool has_decoder; /* false: tokens are joined by spaces */
    const struct pipe_model_class *model;
    struct bpe_vocab texts; /* of all ids, as they are decoded */
    struct bpe_model bpe;   /* its vocab: the model's tokens, for every model */
    struct bpe_chars chars;
    /* BPE behind ByteLevel: the model takes bytes as they are, not the characters that they are
     * written as, which are twice as long and more to look up. */
    bool takes_bytes;
    struct bpe_byte lasts[256]; /* bpe.lasts, then: with the suffix */
    uint64_t *joints; /* bits of pairs of characters that some merge joins; NULL: not known */
    unsigned joint_bits;
    struct wp_trie trie; /* Unigram and WordPiece */
    struct unigram unigram;
    bool ignore_merges;
    int32_t inside; /* the node behind WordPiece's prefix, −1: no token continues a word */
    size_t n_chars_max;
    struct added_tokens raw, normalized; /* searched before and after the normalizer */
    struct added_tokens kept;            /* SentencePiece's user-defined symbols */
    int32_t n_pieces;  /* of SentencePiece's BPE; ids behind them are characters */
    bool has_crossing; /* an added token may reach over such a place */
    bool can_cut[128]; /* between this character and a space */
    pthread_mutex_t lock;
    struct pipe_work *idle;
};

extern const struct tokenizer_class pipe_class;
extern const struct pipe_norm_class pipe_norm_classes[];
extern const struct pipe_pre_class pipe_pre_classes[];
extern const struct pipe_model_class pipe_model_pieces, pipe_model_bpe, pipe_model_unigram,
    pipe_model_wordpiece, pipe_model_wordlevel;

cz_status pipe_create(struct pipe **out); /* released by cz_tokenizer_close() */

/* The normalizer steps on a piece; buffers are w's, and its growth_free pays for what is beyond
 * PIPE_GROWTH_MAX times. CZ_INVALID: they make it too long. */
cz_status pipe_normalize(const struct pipe *p, struct pipe_work *w, struct pipe_piece *piece);
cz_status pipe_norms_read(struct pipe *p, const struct json_node *node, int depth);
cz_status pipe_pres_read(struct pipe *p, const struct json_node *node, int depth);

/* The pre-tokenizer steps from `step` on, then the model. */
cz_status pipe_pre_tokenize(const struct pipe *p, struct pipe_work *w, size_t step,
                            const struct pipe_piece *piece, struct id_list *out);

/* After vocabulary and steps: chars and bytes of BPE, joints, where texts can be cut, pieces. */
cz_status pipe_finish_bpe(struct pipe *p, const char *prefix, const char *suffix);
cz_status pipe_finish(struct pipe *p);
cz_status pipe_joints_init(struct pipe *p, size_t n_merges);
void pipe_joints_add(struct pipe *p, const char *left, size_t n_left, const char *right,
                     size_t n_right);
bool pipe_bpe_parts(const struct pipe *p, int32_t left, int32_t right);

struct pipe_work *pipe_work_create(void);
void pipe_work_destroy(struct pipe_work *w);

#endif

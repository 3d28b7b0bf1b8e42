/* Byte-level BPE: its parts.
 *
 * bpe.c         encoding a text, pieces, where a text can be cut
 * bpe_open.c    from tokenizer.json, or vocab.json and merges.txt
 * bpe_vocab.c   tokens by their bytes, and the alphabet that files write bytes in
 * bpe_merge.c   a word's ids: cache, then pairs merged by rank
 * bpe_chars.c   what the characters of a word begin as
 * bpe_split.c   splitting patterns
 * bpe_text.c    repair of UTF-8, NFC */
#ifndef CZ_DATA_TOKENIZER_BPE_BPE_IMPL_H
#define CZ_DATA_TOKENIZER_BPE_BPE_IMPL_H

#include "base/hash.h"
#include "data/tokenizer/added_tokens_impl.h"
#include "data/tokenizer/bpe/bpe_split_impl.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "formats/eight.h"

#include <pthread.h>
#include <string.h>

struct json_node;

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* Ids may have holes; those are shown as nothing. */
#define BPE_ID_MAX ((1 << 22) - 1)

struct bpe_vocab {
    int64_t size;   /* largest id + 1 */
    uint64_t *offs; /* bytes of id: [offs[id], offs[id] + lens[id]) of `bytes` */
    uint32_t *lens;
    char *bytes;
    size_t n_bytes, cap_bytes;
    uint32_t nbytes_max;
    uint32_t *slots; /* whole words by their bytes: id + 1, 0: empty; NULL unless asked for */
    size_t n_slots;
};

/* Tokens 0 … size − 1, all holes. CZ_NOMEM. */
cz_status bpe_vocab_init(struct bpe_vocab *v, int64_t size);
void bpe_vocab_free(struct bpe_vocab *v);

/* Token id is exactly these bytes. Replaces what id had. CZ_NOMEM. */
cz_status bpe_vocab_set_bytes(struct bpe_vocab *v, int64_t id, const char *bytes, size_t n);

/* Token id as it is written in files: each byte a character of GPT-2's alphabet; a text with other
 * characters stands for itself. Replaces what id had. CZ_NOMEM. */
cz_status bpe_vocab_set(struct bpe_vocab *v, int64_t id, const char *written, size_t n);

/* Make bpe_vocab_find() possible. CZ_NOMEM. */
cz_status bpe_vocab_index(struct bpe_vocab *v);
int32_t bpe_vocab_find(const struct bpe_vocab *v, const char *s, size_t n); /* −1: no such token */

/* The byte that a character of the alphabet stands for, −1: it is not of the alphabet. */
int bpe_alphabet_byte(int32_t c);

/* The character that stands for a byte, as UTF-8 (1 or 2 bytes and a terminator). */
void bpe_alphabet_char(unsigned char byte, char dst[3]);

/* ---- merging --------------------------------------------------------------------------------- */

struct bpe_pair {
    uint64_t key; /* left id << 32 | right id, BPE_NO_PAIR: empty slot */
    uint32_t rank;
    int32_t id; /* of both together */
};
#define BPE_NO_PAIR UINT64_MAX
#define BPE_NO_RANK UINT32_MAX

struct bpe_merges {
    struct bpe_pair *pairs; /* open addressing */
    uint64_t *filter;       /* a bit that is not set: no such pair */
    size_t n_slots, n;
    struct hash_key key; /* of the slots: a file cannot choose pairs that share one */
};

/* Space for n merges. CZ_NOMEM. */
cz_status bpe_merges_init(struct bpe_merges *m, size_t n);
void bpe_merges_free(struct bpe_merges *m);
/* A pair given twice takes the later rank. */
void bpe_merges_add(struct bpe_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* NULL: the two are not merged. */
const struct bpe_pair *bpe_merges_find(const struct bpe_merges *m, int32_t left, int32_t right);

/* What a byte is before anything is merged: its own token; or, where the vocabulary has none, the
 * tokens <0xC4><0xA0> of its character (byte_fallback), the unknown token, or nothing. */
struct bpe_byte {
    int32_t ids[2];
    uint8_t n;
    bool is_known; /* false: n ids of byte_fallback, or (n 0) unknown */
};

/* Of BPE that is not byte-level: what characters begin as. A word's characters but the first have
 * the prefix in front ("##"), its last has the suffix behind it ("</w>"). */
#define BPE_CHARS     0x10000
#define BPE_AFFIX_MAX 32
struct bpe_chars {
    int32_t *ids; /* of the characters below BPE_CHARS, −1: no token */
    char prefix[BPE_AFFIX_MAX], suffix[BPE_AFFIX_MAX];
    size_t n_prefix, n_suffix;
    bool byte_fallback;
};

/* What the bytes of a character, below BPE_CHARS, become by the merges inside of it. A word may
 * begin with these ids where `rank` is below `after` of the character in front and `before` of the
 * one behind: then no merge that reaches across comes first (bpe_chars.c). */
struct bpe_start {
    _Alignas(32) int32_t ids[3]; /* aligned: in one line of a processor's cache */
    uint32_t n;
    uint32_t rank;  /* the highest of these merges; BPE_NO_RANK: a word never begins with them */
    uint32_t after; /* the lowest of merges of this end of a text with a part of a next character */
    uint32_t before; /* the lowest of merges of a part of a character with what begins with this */
};
#define BPE_STARTS_NBYTES (BPE_CHARS * sizeof(struct bpe_start))

/* What turns a word into ids. Symbols are bytes, or the characters of BPE that is not byte-level.
 */
struct bpe_model {
    struct bpe_vocab vocab;
    struct bpe_merges merges;
    struct bpe_byte bytes[256];   /* of characters: what a byte of an unknown one falls back to */
    const struct bpe_byte *lasts; /* of a word's last byte; NULL: as others */
    struct bpe_start *starts;     /* NULL: words begin as bytes */
    int32_t unk_id;               /* −1: what is unknown is left out */
    bool fuse_unk, ignore_merges;
    size_t growth;                 /* ids that a byte can begin as */
    const struct bpe_chars *chars; /* NULL: symbols are bytes */
};

/* b->starts, after all merges; none where a byte is unknown. `spelled` has the bytes of all tokens
 * that merges can make. CZ_NOMEM. */
cz_status bpe_starts_init(struct bpe_model *b, const struct bpe_vocab *spelled);
void bpe_starts_free(struct bpe_model *b);

/* A word that was merged before. Words of up to BPE_CACHED_NBYTES in up to BPE_CACHED_IDS. */
#define BPE_CACHED_NBYTES 22
#define BPE_CACHED_IDS    8
#define BPE_CACHE_SLOTS   ((size_t)1 << 16)
struct bpe_cached {
    char key[BPE_CACHED_NBYTES]; /* zeros behind the word */
    uint8_t nbytes, n_ids;
    int32_t ids[BPE_CACHED_IDS];
    uint8_t lens[BPE_CACHED_IDS]; /* bytes of each, together the word; the first 0: not looked up */
};

/* A word as the cache has it, its places there (bpe_slot_of()), and how long it is. */
struct bpe_slot {
    uint64_t key[3]; /* bytes 0 to 7, 8 to 15, 14 to 21 */
    size_t nbytes;
    struct bpe_cached *pair; /* two: the second holds what the first held before; NULL: too long */
};

/* What one call of encode works with; lent by the tokenizer, whose caches so stay warm. */
struct bpe_work {
    struct bpe_work *next; /* among those not in use */
    struct bpe_cached *cache;
    int32_t *ids; /* of a long word, with links to both sides and a heap of pairs */
    uint32_t *left, *right;
    uint64_t *heap;
    size_t cap;    /* symbols that fit */
    char *text[3]; /* repaired; normalized; with a space in front */
    size_t text_cap[3];
    /* bpe_encode_ends(): where the text begins that ends are counted in, and the ends; NULL: not
     * wanted, or what is encoded is no longer that text. */
    const char *begin, *end;
    struct id_list *ends;
};

/* ---- the tokenizer --------------------------------------------------------------------------- */

#define BPE_STEPS_MAX 4

struct bpe_step {
    const struct bpe_split *split;
    bool add_prefix_space; /* to what it is given, unless that begins with one */
};

struct bpe {
    struct cz_tokenizer base;
    struct bpe_model model;
    struct bpe_step steps[BPE_STEPS_MAX];
    size_t n_steps;
    unsigned cuts;
    bool nfc;
    /* Without a decoder tokens are shown as files write them, with spaces between: `written` has
     * them then. */
    bool is_spaced;
    struct bpe_vocab written;
    struct added_tokens raw, normalized; /* searched before and after NFC */
    pthread_mutex_t lock;                /* of `idle` */
    struct bpe_work *idle;
};

/* Zeroed memory for tables that are looked up all over: on huge pages where there are some, since
 * such a look-up otherwise waits for the page's address too. NULL: no memory. */
void *bpe_table_create(size_t nbytes);
void bpe_table_destroy(void *table, size_t nbytes); /* accepts NULL */

/* What calls work with: created, kept among the idle ones between calls, destroyed. */
struct bpe_work *bpe_work_create(void);    /* NULL: no memory */
void bpe_work_destroy(struct bpe_work *w); /* accepts NULL */

/* The word of n bytes at s, where n_there bytes can be read. No branch depends on its length. */
static inline struct bpe_slot bpe_slot_of(const struct bpe_work *w, const char *s, size_t n,
                                          size_t n_there)
{
    static const char masks[2 * BPE_CACHED_NBYTES] =
        "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF";
    char copy[BPE_CACHED_NBYTES];
    struct bpe_slot p = {.nbytes = n};
    if (n > BPE_CACHED_NBYTES) return p;
    if (n_there < BPE_CACHED_NBYTES) {
        memset(copy, 0, sizeof copy);
        memcpy(copy, s, n);
        s = copy;
    }
    const char *mask = masks + BPE_CACHED_NBYTES - n;
    uint64_t h = n * 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 3; i++) {
        const size_t at = i < 2 ? 8 * (size_t)i : BPE_CACHED_NBYTES - 8;
        p.key[i] = eight_at(s + at) & eight_at(mask + at);
        h = (h ^ p.key[i]) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    p.pair = w->cache + (h & (BPE_CACHE_SLOTS / 2 - 1)) * 2;
    return p;
}

static inline struct bpe_cached *bpe_cache_find(const struct bpe_slot *p)
{
    for (int i = 0; i < 2; i++) {
        const char *key = p->pair[i].key;
        if (p->pair[i].nbytes == p->nbytes && eight_at(key) == p->key[0] &&
            eight_at(key + 8) == p->key[1] && eight_at(key + BPE_CACHED_NBYTES - 8) == p->key[2])
            return &p->pair[i];
    }
    return NULL;
}

/* Its ids, appended. CZ_NOMEM. */
static inline cz_status bpe_cached_take(const struct bpe_cached *hit, struct id_list *out)
{
    TRY(id_list_reserve(out, BPE_CACHED_IDS));
    memcpy(out->ids + out->n, hit->ids, sizeof hit->ids);
    out->n += hit->n_ids;
    return CZ_OK;
}

/* Words of more than BPE_CACHED_IDS ids are not kept. */
void bpe_cache_put(const struct bpe_slot *p, const int32_t *ids, size_t n_ids);

/* One word's ids, appended; n_there ≥ n bytes can be read at s. `new`: that the cache has not,
 * which has it then. CZ_NOMEM. */
cz_status bpe_word(const struct bpe_model *b, struct bpe_work *w, const char *s, size_t n,
                   size_t n_there, struct id_list *out);
cz_status bpe_word_new(const struct bpe_model *b, struct bpe_work *w, const struct bpe_slot *place,
                       const char *s, struct id_list *out);

/* ---- text ------------------------------------------------------------------------------------ */

enum { BPE_TEXT_REPAIRED = 0, BPE_TEXT_NORMALIZED, BPE_TEXT_PREFIXED };

/* Space for n bytes in w->text[which]. CZ_NOMEM. */
cz_status bpe_work_reserve(struct bpe_work *w, int which, size_t n);

/* Valid UTF-8: the text itself, or a copy in w with U+FFFD for what is none. */
cz_status bpe_repair(struct bpe_work *w, const char **text, size_t *nbytes);

/* NFC of valid UTF-8: the text itself, or a copy in w. */
cz_status bpe_normalize(struct bpe_work *w, const char **text, size_t *nbytes);

/* Bytes from the beginning that NFC leaves alone, up to the last plain character in front of one
 * that it may not. The last plain character is not in the prefix, because a mark after it may
 * combine with it. */
size_t bpe_plain_prefix(const char *s, size_t n);

/* Whether NFC leaves the character alone whatever its neighbours are. */
bool bpe_is_plain(int32_t c);

#endif

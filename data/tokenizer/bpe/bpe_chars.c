/* What characters become before anything joins two of them. Merging begins with bytes, and in text
 * outside ASCII most merges only put the bytes of a character together. These are done here, once
 * for every character, when a tokenizer is opened.
 *
 * The lowest rank is merged first. While a character is not finished, its next merge inside has at
 * most the highest rank of these; so if whatever can join a part of it (some of its bytes, from one
 * end) with its neighbour has a higher rank, that happens later, and the word may begin with the
 * character finished. Which merges these are depends on the neighbour: a Chinese character often
 * has one with the space in front of it. Where it does not hold, a character begins as bytes. */
#include "data/tokenizer/bpe/bpe_impl.h"

#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>

/* ---- the ends of tokens ---------------------------------------------------------------------- */

static inline bool is_inner(char byte) /* of a character, not its first byte */
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* What a token begins or ends with. A character's part is told by the bits of the character that
 * it has: from the front all but the low 6 or 12, from the back the low 6 or 12. */
enum end_kind { END_OTHER, END_CHAR, END_PART_6, END_PART_12 };
struct token_end {
    enum end_kind kind;
    uint32_t bits;
};

/* The token's last character, or the inner bytes that it consists of. OTHER: characters beyond
 * BPE_CHARS, which begin as bytes, and what UTF-8 has nowhere. */
static struct token_end last_of(const char *s, size_t n)
{
    size_t n_inner = 0, len;
    while (n_inner < n && n_inner < 3 && is_inner(s[n - 1 - n_inner])) n_inner++;
    if (n_inner == n) {
        if (n == 1) return (struct token_end){END_PART_6, s[0] & 0x3Fu};
        if (n == 2) return (struct token_end){END_PART_12, (s[0] & 0x3Fu) << 6 | (s[1] & 0x3Fu)};
        return (struct token_end){END_OTHER, 0};
    }
    const char *begin = s + n - n_inner - 1;
    if (n_inner == 3 || utf8_length(begin, n_inner + 1) != (int)n_inner + 1)
        return (struct token_end){END_OTHER, 0};
    return (struct token_end){END_CHAR, (uint32_t)chars_at(begin, n_inner + 1, &len)};
}

/* The token's first character, or the part of one that it is. */
static struct token_end first_of(const char *s, size_t n)
{
    const unsigned char lead = (unsigned char)s[0];
    const int whole = utf8_length(s, n);
    size_t len;
    if (whole > 0 && whole < 4)
        return (struct token_end){END_CHAR, (uint32_t)chars_at(s, (size_t)whole, &len)};
    if (whole != -1 || lead >= 0xF0) return (struct token_end){END_OTHER, 0};
    if (lead < 0xE0) return (struct token_end){END_PART_6, lead & 0x1Fu};
    if (n == 1) return (struct token_end){END_PART_12, lead & 0x0Fu};
    return (struct token_end){END_PART_6, (lead & 0x0Fu) << 6 | (s[1] & 0x3Fu)};
}

/* ---- merges across the ends of characters ---------------------------------------------------- */

/* Lowest ranks by a token's end. */
struct end_ranks {
    uint32_t chars[BPE_CHARS], parts_6[1 << 10], parts_12[1 << 12];
};

/* Of merges that reach from one character into another. */
struct crossings {
    struct end_ranks after;  /* into a part of the second, by the end of what is in front */
    struct end_ranks before; /* from a part of the first, by the beginning of what follows */
    uint32_t tokens[];       /* of any merge that the token is a side of, by id */
};

static uint32_t *rank_by(struct end_ranks *ranks, struct token_end end)
{
    if (end.kind == END_CHAR) return &ranks->chars[end.bits];
    return end.kind == END_PART_6 ? &ranks->parts_6[end.bits] : &ranks->parts_12[end.bits];
}

static inline void lower(uint32_t *rank, uint32_t to)
{
    if (to < *rank) *rank = to;
}

static void add_crossing(struct crossings *x, const struct bpe_vocab *spelled,
                         const struct bpe_pair *pair)
{
    const size_t left = pair->key >> 32, right = (uint32_t)pair->key;
    lower(&x->tokens[left], pair->rank);
    lower(&x->tokens[right], pair->rank);
    if (spelled->lens[left] == 0 || spelled->lens[right] == 0) return;
    const struct token_end last =
        last_of(spelled->bytes + spelled->offs[left], spelled->lens[left]);
    const struct token_end first =
        first_of(spelled->bytes + spelled->offs[right], spelled->lens[right]);
    if (last.kind == END_OTHER || first.kind == END_OTHER) return;
    if (first.kind != END_CHAR) lower(rank_by(&x->after, last), pair->rank);
    if (last.kind != END_CHAR) lower(rank_by(&x->before, first), pair->rank);
}

/* Of a character or of the parts of it at one end. */
static uint32_t rank_of_char(const struct end_ranks *ranks, uint32_t c, uint32_t part_6,
                             uint32_t part_12)
{
    uint32_t rank = ranks->chars[c];
    if (c >= 0x80) lower(&rank, ranks->parts_6[part_6]);
    if (c >= 0x800) lower(&rank, ranks->parts_12[part_12]);
    return rank;
}

/* ---- one character --------------------------------------------------------------------------- */

/* Its ids after all merges inside of it, and the highest rank of these. */
static void merge_inside(const struct bpe_model *b, uint32_t c, struct bpe_start *start)
{
    char s[4];
    size_t n = utf8_encode(c, s);
    start->rank = 0;
    for (size_t i = 0; i < n; i++) start->ids[i] = b->bytes[(unsigned char)s[i]].ids[0];
    for (;;) {
        const struct bpe_pair *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct bpe_pair *pair =
                bpe_merges_find(&b->merges, start->ids[i], start->ids[i + 1]);
            if (!pair || (best && pair->rank >= best->rank)) continue;
            best = pair;
            at = i;
        }
        if (!best) break;
        if (best->rank > start->rank) start->rank = best->rank;
        start->ids[at] = best->id;
        for (size_t i = at + 1; i + 1 < n; i++) start->ids[i] = start->ids[i + 1];
        n--;
    }
    start->n = (uint32_t)n;
}

static bool all_bytes_are_known(const struct bpe_model *b)
{
    for (int byte = 0; byte <= 0xF4; byte++) /* no UTF-8 has a byte beyond, nor C0 and C1 */
        if (!b->bytes[byte].is_known && byte != 0xC0 && byte != 0xC1) return false;
    return true;
}

cz_status bpe_starts_init(struct bpe_model *b, const struct bpe_vocab *spelled)
{
    if (!all_bytes_are_known(b)) return CZ_OK;
    const size_t x_nbytes = sizeof(struct crossings) + (size_t)spelled->size * sizeof(uint32_t);
    struct crossings *x = malloc(x_nbytes);
    b->starts = bpe_table_create(BPE_STARTS_NBYTES);
    if (!x || !b->starts) {
        free(x);
        return err_set(CZ_NOMEM, 0, "no memory for the characters of a vocabulary");
    }
    memset(x, 0xFF, x_nbytes); /* BPE_NO_RANK everywhere */
    for (size_t i = 0; i < b->merges.n_slots; i++)
        if (b->merges.pairs[i].key != BPE_NO_PAIR) add_crossing(x, spelled, &b->merges.pairs[i]);
    for (uint32_t c = 0; c < BPE_CHARS; c++) {
        struct bpe_start *start = &b->starts[c];
        merge_inside(b, c, start);
        start->after = rank_of_char(&x->after, c, c & 0x3F, c & 0xFFF);
        start->before = rank_of_char(&x->before, c, c >> 6, c >> 12);
        /* In odd files the whole character is merged with something before it is made. */
        if (start->n == 1 && x->tokens[start->ids[0]] < start->rank) start->rank = BPE_NO_RANK;
    }
    free(x);
    return CZ_OK;
}

void bpe_starts_free(struct bpe_model *b)
{
    bpe_table_destroy(b->starts, BPE_STARTS_NBYTES);
    b->starts = NULL;
}

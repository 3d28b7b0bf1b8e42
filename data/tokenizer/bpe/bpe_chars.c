/* What characters become before anything joins two of them. Merging begins with bytes, and for text
 * outside ASCII most merges only put the bytes of a character together; these are looked up here
 * instead, made when a tokenizer is opened.
 *
 * A character may be taken as its ids alone where all merges inside of it come before any that
 * reaches across its two ends. Merges go by rank, so that is a comparison: the last merge inside a
 * character against the first that can join a part of it (some of its bytes, from one end) with
 * what stands beside it. Characters for which this does not hold begin as bytes, as all did. */
#include "data/tokenizer/bpe/bpe_impl.h"

#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>

/* ---- the ends of tokens ---------------------------------------------------------------------- */

static inline bool is_inner(char byte) /* of a character, not its first byte */
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
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

/* The lowest ranks of merges that reach from one character into another. */
struct crossings {
    uint32_t last_6[1 << 6], last_12[1 << 12];                   /* from a part of the first */
    uint32_t first_6[BPE_CHARS >> 6], first_12[BPE_CHARS >> 12]; /* into a part of the second */
    uint32_t *tokens; /* by id: of any that joins this token with another */
};

static void add_crossing(const struct bpe_vocab *spelled, const struct bpe_pair *pair,
                         struct bpe_start *starts, struct crossings *x)
{
    const uint32_t ids[2] = {(uint32_t)(pair->key >> 32), (uint32_t)pair->key};
    const char *left = spelled->bytes + spelled->offs[ids[0]];
    const char *right = spelled->bytes + spelled->offs[ids[1]];
    const size_t n_left = spelled->lens[ids[0]], n_right = spelled->lens[ids[1]];
    if (n_left == 0 || n_right == 0) return;
    for (int i = 0; i < 2; i++) x->tokens[ids[i]] = least(x->tokens[ids[i]], pair->rank);
    const struct token_end last = last_of(left, n_left), first = first_of(right, n_right);
    if (last.kind == END_OTHER || first.kind == END_OTHER) return;
    uint32_t *of_last[] = {[END_CHAR] = &starts[last.bits].after,
                           [END_PART_6] = &x->last_6[last.bits & 0x3F],
                           [END_PART_12] = &x->last_12[last.bits & 0xFFF]};
    uint32_t *of_first[] = {[END_CHAR] = &starts[first.bits].before,
                            [END_PART_6] = &x->first_6[first.bits & 0x3FF],
                            [END_PART_12] = &x->first_12[first.bits & 0xF]};
    uint32_t *const after = of_last[last.kind], *const before = of_first[first.kind];
    if (first.kind != END_CHAR) *after = least(*after, pair->rank);
    if (last.kind != END_CHAR) *before = least(*before, pair->rank);
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
    struct crossings *x = malloc(sizeof *x);
    uint32_t *tokens = malloc((size_t)spelled->size * sizeof *tokens);
    struct bpe_start *starts = bpe_table_create(BPE_STARTS_NBYTES);
    b->starts = starts;
    if (!x || !tokens || !starts) {
        free(x);
        free(tokens);
        return err_set(CZ_NOMEM, 0, "no memory for the characters of a vocabulary");
    }
    memset(x, 0xFF, sizeof *x); /* BPE_NO_RANK everywhere */
    memset(tokens, 0xFF, (size_t)spelled->size * sizeof *tokens);
    x->tokens = tokens;
    for (uint32_t c = 0; c < BPE_CHARS; c++)
        starts[c] = (struct bpe_start){.after = BPE_NO_RANK, .before = BPE_NO_RANK};
    for (size_t i = 0; i < b->merges.n_slots; i++)
        if (b->merges.pairs[i].key != BPE_NO_PAIR)
            add_crossing(spelled, &b->merges.pairs[i], starts, x);
    for (uint32_t c = 0; c < BPE_CHARS; c++) {
        struct bpe_start *start = &starts[c];
        merge_inside(b, c, start);
        /* A merge of the whole character that comes before the character: only odd files have it.
         */
        if (start->n == 1 && tokens[start->ids[0]] < start->rank) start->rank = BPE_NO_RANK;
        if (c < 0x80) continue;
        start->after = least(start->after, x->last_6[c & 0x3F]);
        start->before = least(start->before, x->first_6[c >> 6]);
        if (c < 0x800) continue;
        start->after = least(start->after, x->last_12[c & 0xFFF]);
        start->before = least(start->before, x->first_12[c >> 12]);
    }
    free(x);
    free(tokens);
    return CZ_OK;
}

void bpe_starts_free(struct bpe_model *b)
{
    bpe_table_destroy(b->starts, BPE_STARTS_NBYTES);
    b->starts = NULL;
}

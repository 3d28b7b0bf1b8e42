/* Scanners for the splitting patterns. Each pattern matches every text from its beginning on, so
 * that the first piece is the first match; alternatives are tried in the pattern's order. */
#include "data/tokenizer/bpe/bpe_split_impl.h"

#include "data/tokenizer/chars_impl.h"
#include "formats/eight.h"

#include <string.h>

/* ---- runs ------------------------------------------------------------------------------------ */

/* Bytes at s of characters whose class is among `classes`. Words end at any length, which no
 * processor foresees: letters are counted eight at a time. */
static inline size_t run_of(const char *s, size_t n, unsigned classes)
{
    size_t at = 0, len;
    while ((classes & CHAR_L) == CHAR_L && n - at >= 8) {
        const uint64_t others = eight_letters(eight_at(s + at)) ^ EIGHT_HIGHS;
        at += others ? eight_first(others) : 8;
        if (others) break;
    }
    for (;;) {
        while (at < n && (signed char)s[at] >= 0 && (chars_ascii[(size_t)s[at]] & classes)) at++;
        if (at == n || (signed char)s[at] >= 0) return at;
        if (!(chars_class(s + at, n - at, &len) & classes)) return at;
        at += len;
    }
}

/* [\r\n]* */
static size_t newlines(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n && (s[at] == '\r' || s[at] == '\n')) at++;
    return at;
}

/* \s+(?!\S)|\s+ : white space up to the last one in front of something else. */
static size_t spaces(const char *s, size_t n)
{
    size_t at = 0, last = 0, len;
    while (at < n && (chars_class(s + at, n - at, &len) & CHAR_S)) {
        at += len;
        last = len;
    }
    return at == n || at == last ? at : at - last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : white space up to its last line end goes first. */
static size_t spaces_by_lines(const char *s, size_t n)
{
    size_t at = 0, line_end = 0, last = 0, len;
    unsigned class;
    while (at < n && ((class = chars_class(s + at, n - at, &len)) & CHAR_S)) {
        at += len;
        last = len;
        if (class == CHAR_NEWLINE) line_end = at;
    }
    if (line_end > 0) return line_end;
    return at == n || at == last ? at : at - last;
}

/* \p{N}{1,max} */
static size_t numbers(const char *s, size_t n, int max)
{
    size_t at = 0, len;
    while (max-- > 0 && at < n && (chars_class(s + at, n - at, &len) & CHAR_NUMBER)) at += len;
    return at;
}

/* 's|'t|'re|'ve|'m|'ll|'d at an apostrophe. */
static size_t contraction(const char *s, size_t n)
{
    if (n < 2) return 0;
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
    if (n < 3) return 0;
    if (s[2] == 'e' && (s[1] == 'r' || s[1] == 'v')) return 3;
    return s[1] == 'l' && s[2] == 'l' ? 3 : 0;
}

/* The same in any case: the long s (U+017F) is another s then. 0 also for no apostrophe. */
static size_t contraction_any_case(const char *s, size_t n)
{
    if (n < 2 || s[0] != '\'') return 0;
    if (n >= 3 && s[1] == '\xC5' && s[2] == '\xBF') return 3;
    char lower[3] = {'\'', (char)(s[1] | 0x20), n > 2 ? (char)(s[2] | 0x20) : '\0'};
    return contraction(lower, n < 3 ? n : 3);
}

/* ---- GPT-2 ----------------------------------------------------------------------------------- */

static size_t gpt2_next(const char *s, size_t n)
{
    size_t len, lead = s[0] == ' ' && n > 1 ? 1 : 0;
    if (s[0] == '\'') {
        size_t k = contraction(s, n);
        if (k > 0) return k;
    }
    unsigned class = chars_class(s + lead, n - lead, &len);
    if (class & CHAR_S) return spaces(s, n);
    if (class & CHAR_L)
        class = CHAR_L;
    else if (class != CHAR_NUMBER)
        class = CHAR_OTHER | CHAR_MARK;
    size_t at = lead + len;
    return at + run_of(s + at, n - at, class);
}

/* ---- LLaMA 3, Qwen2 and the like ------------------------------------------------------------- */

/* What these patterns differ in. */
struct lines_pattern {
    int digits;     /* at most this many together */
    unsigned word;  /* classes of a word's characters */
    unsigned other; /* [^\s\p{L}\p{N}] */
};

static inline size_t lines_next(const char *s, size_t n, struct lines_pattern p)
{
    size_t len, len2;
    unsigned class = chars_class(s, n, &len), follower = 0;
    if (class & p.word) return len + run_of(s + len, n - len, p.word);
    if (s[0] == '\'') {
        size_t k = contraction_any_case(s, n);
        if (k > 0) return k;
    }
    if (n > len) follower = chars_class(s + len, n - len, &len2);
    if (class == CHAR_NUMBER) return len + numbers(s + len, n - len, p.digits - 1);
    if (class != CHAR_NEWLINE && (follower & p.word)) return len + run_of(s + len, n - len, p.word);
    size_t at = s[0] == ' ' && (follower & p.other) ? 1 : 0;
    if (at == 0 && !(class & p.other)) return spaces_by_lines(s, n);
    at += run_of(s + at, n - at, p.other);
    return at + newlines(s + at, n - at);
}

static size_t llama3_next(const char *s, size_t n)
{
    return lines_next(s, n, (struct lines_pattern){3, CHAR_L, CHAR_OTHER | CHAR_MARK});
}

static size_t qwen2_next(const char *s, size_t n)
{
    return lines_next(s, n, (struct lines_pattern){1, CHAR_L, CHAR_OTHER | CHAR_MARK});
}

/* Marks are parts of words. */
static size_t qwen3_5_next(const char *s, size_t n)
{
    return lines_next(s, n, (struct lines_pattern){1, CHAR_L | CHAR_MARK, CHAR_OTHER});
}

/* ---- o200k ----------------------------------------------------------------------------------- */

#define CAPITALS (CHAR_UPPER | CHAR_LETTER | CHAR_MARK) /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
#define SMALLS   (CHAR_LOWER | CHAR_LETTER | CHAR_MARK) /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */

/* CAPITALS* SMALLS+ */
static size_t capitals_and_smalls(const char *s, size_t n)
{
    size_t at = run_of(s, n, CAPITALS), len;
    size_t small = run_of(s + at, n - at, SMALLS);
    if (small > 0) return at + small;
    while (at > 0) { /* the run gives characters back until one can be a small one */
        (void)chars_before(s, at, &len);
        at -= len;
        small = run_of(s + at, n - at, SMALLS);
        if (small > 0) return at + small;
    }
    return 0;
}

/* CAPITALS+ SMALLS* */
static size_t capitals(const char *s, size_t n)
{
    size_t at = run_of(s, n, CAPITALS);
    return at > 0 ? at + run_of(s + at, n - at, SMALLS) : 0;
}

/* A word with its contraction, `skip` bytes of another character in front; 0: none. */
static size_t o200k_word(const char *s, size_t n, size_t skip,
                         size_t (*word)(const char *s, size_t n))
{
    size_t k = skip < n ? word(s + skip, n - skip) : 0;
    if (k == 0) return 0;
    k += skip;
    return k + contraction_any_case(s + k, n - k);
}

static size_t o200k_next(const char *s, size_t n)
{
    static size_t (*const words[])(const char *, size_t) = {capitals_and_smalls, capitals};
    size_t len, len2;
    unsigned class = chars_class(s, n, &len), follower = 0;
    if (n > len) follower = chars_class(s + len, n - len, &len2);
    bool may_lead = !(class & (CHAR_NEWLINE | CHAR_L | CHAR_NUMBER));
    for (int i = 0; i < 2; i++) {
        size_t k = may_lead ? o200k_word(s, n, len, words[i]) : 0;
        if (k == 0 && (class & (CHAR_L | CHAR_MARK))) k = o200k_word(s, n, 0, words[i]);
        if (k > 0) return k;
    }
    if (class == CHAR_NUMBER) return numbers(s, n, 3);
    size_t at = s[0] == ' ' && (follower & (CHAR_OTHER | CHAR_MARK)) ? 1 : 0;
    if (at == 0 && !(class & (CHAR_OTHER | CHAR_MARK))) return spaces_by_lines(s, n);
    at += run_of(s + at, n - at, CHAR_OTHER | CHAR_MARK);
    while (at < n && (s[at] == '\r' || s[at] == '\n' || s[at] == '/')) at++;
    return at;
}

/* ---- other steps ----------------------------------------------------------------------------- */

static size_t digits_next(const char *s, size_t n)
{
    size_t len;
    if (chars_class(s, n, &len) == CHAR_NUMBER) return len;
    return len + run_of(s + len, n - len, ~(unsigned)CHAR_NUMBER);
}

static size_t digit_runs_next(const char *s, size_t n)
{
    size_t len;
    bool is_number = chars_class(s, n, &len) == CHAR_NUMBER;
    unsigned classes = is_number ? CHAR_NUMBER : ~(unsigned)CHAR_NUMBER;
    return len + run_of(s + len, n - len, classes);
}

static size_t whole_next(const char *s, size_t n)
{
    (void)s;
    return n;
}

/* ---- which are known ------------------------------------------------------------------------- */

#define CASELESS   "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LINES_CUTS (BPE_CUTS_AFTER_WORD | BPE_CUTS_LINES)

const struct bpe_split bpe_split_gpt2 = {
    .name = "GPT-2",
    .pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    .next = gpt2_next,
    .cuts = BPE_CUTS_BEFORE_SPACE | BPE_CUTS_AFTER_WORD};

static const struct bpe_split llama3 = {
    .name = "LLaMA 3",
    .pattern = CASELESS
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
    .next = llama3_next,
    .cuts = LINES_CUTS};

const struct bpe_split bpe_split_qwen2 = {
    .name = "Qwen2",
    .pattern =
        CASELESS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
    .next = qwen2_next,
    .cuts = LINES_CUTS};

static const struct bpe_split qwen3_5 = {
    .name = "Qwen3.5",
    .pattern = CASELESS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"
                        "[\\r\\n]*|" SPACES,
    .next = qwen3_5_next,
    .cuts = LINES_CUTS};

#define O200K_LEAD     "[^\\r\\n\\p{L}\\p{N}]?"
#define O200K_CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_SMALLS   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
static const struct bpe_split o200k = {.name = "o200k",
                                       .pattern = O200K_LEAD O200K_CAPITALS
                                       "*" O200K_SMALLS "+" CASELESS "?|" O200K_LEAD O200K_CAPITALS
                                       "+" O200K_SMALLS "*" CASELESS "?|"
                                       "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
                                       .next = o200k_next,
                                       .cuts = LINES_CUTS};

const struct bpe_split bpe_split_digits = {
    .name = "Digits", .next = digits_next, .cuts = BPE_CUTS_ANY};
const struct bpe_split bpe_split_digit_runs = {
    .name = "Digits", .next = digit_runs_next, .cuts = BPE_CUTS_ANY};
const struct bpe_split bpe_split_whole = {
    .name = "whole", .next = whole_next, .cuts = BPE_CUTS_ANY};

static const struct bpe_split *const known[] = {&bpe_split_gpt2, &llama3, &bpe_split_qwen2,
                                                &qwen3_5, &o200k};

const struct bpe_split *bpe_split_find(const char *pattern)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(known); i++)
        if (strcmp(known[i]->pattern, pattern) == 0) return known[i];
    return NULL;
}

const char *bpe_split_names(void)
{
    return "GPT-2, LLaMA 3 (also cl100k), Qwen2, Qwen3.5, o200k";
}

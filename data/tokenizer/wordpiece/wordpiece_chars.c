/* What a character becomes under BERT's normalizer, and how it splits words. */
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define N_TABLE(name) wp_##name, wp_n_##name

static bool is_in(uint32_t c, const struct wp_range *ranges, size_t n)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (c > ranges[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= ranges[lo].first;
}

/* BERT's own list of ideographs: what it calls Chinese. */
static const struct wp_range chinese[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
    {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
};

/* Characters that Unicode gave a canonical decomposition after the version that Hugging Face's
 * tokenizers decompose by, and that therefore stay whole. */
static const struct wp_range whole[] = {
    {0x105C9, 0x105C9}, {0x105E4, 0x105E4}, {0x11383, 0x11383}, {0x11385, 0x11385},
    {0x1138E, 0x1138E}, {0x11391, 0x11391}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8},
    {0x11938, 0x11938}, {0x16121, 0x16128}, {0x16D68, 0x16D6A},
};

/* Small letters that they know and utf8proc may not: first, last, small letter of the first, step.
 */
static const struct {
    uint32_t first, last, small, step;
} smalls[] = {
    {0x1C89, 0x1C89, 0x1C8A, 1},    {0xA7CB, 0xA7CB, 0x264, 1},     {0xA7CC, 0xA7CE, 0xA7CD, 2},
    {0xA7D2, 0xA7D4, 0xA7D3, 2},    {0xA7DA, 0xA7DA, 0xA7DB, 1},    {0xA7DC, 0xA7DC, 0x19B, 1},
    {0x10D50, 0x10D65, 0x10D70, 1}, {0x16EA0, 0x16EB8, 0x16EBB, 1},
};

#define CAPITAL_I_DOT 0x130u /* the one capital whose small form is two characters */
#define DOT_ABOVE     0x307u
#define FIRST_MARK    0x8D4u

/* ---- one character --------------------------------------------------------------------------- */

static bool has_small(uint32_t c, uint32_t *small)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(smalls); i++) {
        if (c < smalls[i].first || c > smalls[i].last) continue;
        if ((c - smalls[i].first) % smalls[i].step != 0) break;
        *small = smalls[i].small + (c - smalls[i].first);
        return true;
    }
    *small = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return *small != c;
}

size_t wp_lower(uint32_t c, uint32_t out[2])
{
    if (c == CAPITAL_I_DOT) {
        out[0] = 'i';
        out[1] = DOT_ABOVE;
        return 2;
    }
    has_small(c, &out[0]);
    return 1;
}

#define PARTS_MAX 4 /* no canonical decomposition has more */

static size_t decompose(uint32_t c, uint32_t *parts)
{
    utf8proc_int32_t buf[PARTS_MAX];
    int last_boundclass = UTF8PROC_BOUNDCLASS_START;
    parts[0] = c;
    if (is_in(c, whole, CZ_ARRAY_LEN(whole))) return 1;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, buf, PARTS_MAX,
                                UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_boundclass);
    if (n < 1 || n > PARTS_MAX) return 1;
    for (utf8proc_ssize_t i = 0; i < n; i++) parts[i] = (uint32_t)buf[i];
    return (size_t)n;
}

static bool is_starter(uint32_t c)
{
    return utf8proc_get_property((utf8proc_int32_t)c)->combining_class == 0;
}

size_t wp_change(const struct wp_rules *rules, uint32_t c, uint32_t *out)
{
    uint32_t parts[PARTS_MAX] = {c};
    size_t n = 0, n_parts = 1;
    if (rules->clean) {
        if (is_in(c, N_TABLE(dropped))) return 0;
        if (is_in(c, N_TABLE(spaces))) {
            out[0] = ' ';
            return 1;
        }
    }
    bool apart = rules->split_chinese && wp_is_chinese(c);
    if (apart) out[n++] = ' ';
    if (rules->strip_accents) n_parts = decompose(c, parts);
    for (size_t i = 0; i < n_parts; i++) {
        if (rules->strip_accents && is_in(parts[i], N_TABLE(accents))) {
            if (is_starter(parts[i])) out[n++] = WP_BREAK;
            continue;
        }
        out[n] = parts[i];
        n += rules->lowercase ? wp_lower(parts[i], out + n) : 1;
    }
    if (apart) out[n++] = ' ';
    return n;
}

enum wp_action wp_split(uint32_t c)
{
    if (is_in(c, N_TABLE(spaces))) return WP_SPACE;
    return is_in(c, N_TABLE(punctuation)) ? WP_ALONE : WP_LETTER;
}

bool wp_is_punctuation(uint32_t c)
{
    return is_in(c, N_TABLE(punctuation));
}

bool wp_is_chinese(uint32_t c)
{
    return is_in(c, chinese, CZ_ARRAY_LEN(chinese));
}

uint8_t wp_combining_class(uint32_t c)
{
    if (c < FIRST_MARK) return 0;
    for (size_t i = 0; i < wp_n_marks; i++)
        if (c <= wp_marks[i].last) return c >= wp_marks[i].first ? wp_marks[i].combining_class : 0;
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void set_ranges(struct wp_chars *chars, const struct wp_range *ranges, size_t n,
                       enum wp_action action)
{
    for (size_t i = 0; i < n && ranges[i].first < WP_TABLE_N; i++) {
        size_t last = ranges[i].last < WP_TABLE_N ? ranges[i].last : WP_TABLE_N - 1;
        memset(chars->actions + ranges[i].first, action, last + 1 - ranges[i].first);
    }
}

static bool may_decompose(uint32_t c)
{
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    bool is_hangul = c >= 0xAC00 && c <= 0xD7A3; /* composed by arithmetic, not by a table */
    return is_hangul || p->decomp_seqindex != UINT16_MAX;
}

/* Characters that other ones take the place of, or that are put in order. */
static void set_changes(struct wp_chars *chars)
{
    const struct wp_rules *rules = &chars->rules;
    for (uint32_t c = 0x80; c < WP_TABLE_N; c++) {
        uint32_t small;
        bool changes = (rules->lowercase && (has_small(c, &small) || c == CAPITAL_I_DOT)) ||
                       (rules->strip_accents && may_decompose(c));
        bool is_break = chars->actions[c] == WP_DROP && is_starter(c);
        if (changes || is_break) chars->actions[c] = WP_CHANGE;
    }
    for (size_t i = 0; rules->strip_accents && i < wp_n_marks; i++)
        memset(chars->actions + wp_marks[i].first, WP_CHANGE,
               wp_marks[i].last + 1 - wp_marks[i].first);
}

/* chars is zero. */
static void fill(struct wp_chars *chars, const struct wp_rules *rules)
{
    chars->rules = *rules;
    set_ranges(chars, N_TABLE(punctuation), WP_ALONE);
    if (rules->split_chinese) set_ranges(chars, chinese, CZ_ARRAY_LEN(chinese), WP_ALONE);
    if (rules->strip_accents) set_ranges(chars, N_TABLE(accents), WP_DROP);
    set_changes(chars);
    set_ranges(chars, N_TABLE(spaces), WP_SPACE);
    if (rules->clean) set_ranges(chars, N_TABLE(dropped), WP_DROP);
    for (int c = 1; c < 128; c++) {
        bool is_capital = c >= 'A' && c <= 'Z';
        if (chars->actions[c] != WP_LETTER) continue;
        chars->letters[c] = (char)(rules->lowercase && is_capital ? c + ('a' - 'A') : c);
    }
}

const struct wp_chars *wp_chars_of(const struct wp_rules *rules)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct wp_chars *made[1 << 4]; /* by the four rules */
    const size_t which = (rules->clean ? 1u : 0u) + (rules->split_chinese ? 2u : 0u) +
                         (rules->strip_accents ? 4u : 0u) + (rules->lowercase ? 8u : 0u);
    pthread_mutex_lock(&lock);
    if (!made[which]) {
        made[which] = calloc(1, sizeof *made[which]);
        if (made[which]) fill(made[which], rules);
    }
    const struct wp_chars *chars = made[which];
    pthread_mutex_unlock(&lock);
    return chars;
}

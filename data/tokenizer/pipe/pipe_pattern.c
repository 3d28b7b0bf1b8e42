/* The patterns of Split and Replace: strings, and regular expressions of known text, each with a
 * scanner written out. */
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

static size_t spaces_from(const char *s, size_t n, size_t at_least)
{
    size_t at = 0;
    while (at < n && s[at] == ' ') at++;
    return at >= at_least ? at : 0;
}

/* " {2,}" */
static size_t two_spaces(const char *s, size_t n)
{
    return spaces_from(s, n, 2);
}

/* " +" */
static size_t some_spaces(const char *s, size_t n)
{
    return spaces_from(s, n, 1);
}

static size_t white(const char *s, size_t n, size_t *n_chars)
{
    size_t at = 0, len;
    *n_chars = 0;
    while (at < n && chars_is_space(chars_at(s + at, n - at, &len))) {
        at += len;
        ++*n_chars;
    }
    return at;
}

/* \s+ */
static size_t white_space(const char *s, size_t n)
{
    size_t n_chars;
    return white(s, n, &n_chars);
}

/* [\n\r\t] */
static size_t line_or_tab(const char *s, size_t n)
{
    (void)n;
    return s[0] == '\n' || s[0] == '\r' || s[0] == '\t';
}

/* \s{2,}|[\n\r\t] */
static size_t white_or_line(const char *s, size_t n)
{
    size_t n_chars, len = white(s, n, &n_chars);
    return n_chars >= 2 ? len : line_or_tab(s, n);
}

/* \n */
static size_t line_end(const char *s, size_t n)
{
    (void)n;
    return s[0] == '\n';
}

/* \s */
static size_t one_white(const char *s, size_t n)
{
    size_t len;
    return chars_is_space(chars_at(s, n, &len)) ? len : 0;
}

static size_t class_run(const char *s, size_t n, unsigned classes, size_t n_max)
{
    size_t at = 0, len;
    while (n_max-- > 0 && at < n && (chars_class(s + at, n - at, &len) & classes)) at += len;
    return at;
}

/* \p{N}, \p{N}{1,3} */
static size_t one_number(const char *s, size_t n)
{
    return class_run(s, n, CHAR_NUMBER, 1);
}

static size_t three_numbers(const char *s, size_t n)
{
    return class_run(s, n, CHAR_NUMBER, 3);
}

/* [一-龥぀-ゟ゠-ヿ]+ : DeepSeek's */
static size_t east_asian(const char *s, size_t n)
{
    size_t at = 0, len;
    while (at < n) {
        const int32_t c = chars_at(s + at, n - at, &len);
        if (!(c >= 0x4E00 && c <= 0x9FA5) && !(c >= 0x3040 && c <= 0x30FF)) break;
        at += len;
    }
    return at;
}

/* CLIP: 's|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+ */
static size_t clip(const char *s, size_t n)
{
    static const char *const ends[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    size_t len;
    for (size_t i = 0; s[0] == '\'' && i < CZ_ARRAY_LEN(ends); i++)
        if (n >= strlen(ends[i]) && memcmp(s, ends[i], strlen(ends[i])) == 0)
            return strlen(ends[i]);
    const unsigned class = chars_class(s, n, &len);
    if (class & CHAR_S) return 0;
    if (class & CHAR_L) return class_run(s, n, CHAR_L, SIZE_MAX);
    if (class == CHAR_NUMBER) return len;
    return class_run(s, n, CHAR_OTHER | CHAR_MARK, SIZE_MAX);
}

#define DEEPSEEK(CRLF)                                                                             \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^" CRLF                                \
    "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[" CRLF "]*|\\s*[" CRLF                  \
    "]+|\\s+(?!\\S)|\\s+"

static size_t run_of_letters(const char *s, size_t n)
{
    return class_run(s, n, CHAR_L | CHAR_MARK, SIZE_MAX);
}

static size_t run_of_signs(const char *s, size_t n)
{
    size_t at = 0, len;
    while (at < n && chars_is_sign(chars_at(s + at, n - at, &len))) at += len;
    return at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t white_by_lines(const char *s, size_t n)
{
    size_t n_chars, last;
    const size_t run = white(s, n, &n_chars);
    for (size_t at = run; at > 0; at--)
        if (s[at - 1] == '\n' || s[at - 1] == '\r') return at;
    if (run == n || n_chars < 2) return run;
    (void)chars_before(s, run, &last);
    return run - last;
}

/* DeepSeek's third: its alternatives in order. */
static size_t deepseek(const char *s, size_t n)
{
    size_t len, run = 0;
    const int32_t c = chars_at(s, n, &len);
    const bool is_sign = chars_is_sign(c);
    if (c < 0x80 && is_sign)
        while (1 + run < n && ((s[1 + run] | 0x20) >= 'a' && (s[1 + run] | 0x20) <= 'z')) run++;
    if (run > 0) return 1 + run;
    const unsigned class = chars_class(s, n, &len);
    if (class & (CHAR_L | CHAR_MARK)) return run_of_letters(s, n);
    if (!is_sign && class != CHAR_NEWLINE) run = run_of_letters(s + len, n - len);
    if (run > 0) return len + run;
    size_t at = s[0] == ' ' ? 1 : 0;
    run = run_of_signs(s + at, n - at);
    for (at += run; run > 0 && at < n && (s[at] == '\r' || s[at] == '\n');) at++;
    return run > 0 ? at : white_by_lines(s, n);
}

/* First bytes of what a pattern may match. All of \s outside ASCII begins with C2, E1, E2 or E3. */
static bool may_be_white(unsigned char u)
{
    return u < 0x80 ? (chars_ascii[u] & CHAR_S) != 0 : u == 0xC2 || (u >= 0xE1 && u <= 0xE3);
}

static bool may_be_number(unsigned char u)
{
    return u < 0x80 ? chars_ascii[u] == CHAR_NUMBER : u >= 0xC2;
}

static bool may_be_east_asian(unsigned char u)
{
    return u >= 0xE3 && u <= 0xE9;
}

static bool may_be_any(unsigned char u)
{
    (void)u;
    return true;
}

static const struct {
    const char *regex;
    size_t (*match)(const char *s, size_t n);
    bool (*may_begin)(unsigned char u);
} known[] = {
    {" {2,}", two_spaces, may_be_white},
    {" +", some_spaces, may_be_white},
    {"\\s+", white_space, may_be_white},
    {"\\s", one_white, may_be_white},
    {"\\s{2,}|[\\n\\r\\t]", white_or_line, may_be_white},
    {"[\\n\\r\\t]", line_or_tab, may_be_white},
    {"\\n", line_end, may_be_white},
    {"\\p{N}", one_number, may_be_number},
    {"\\p{N}{1,3}", three_numbers, may_be_number},
    {"[一-龥぀-ゟ゠-ヿ]+", east_asian, may_be_east_asian},
    {DEEPSEEK("\r\n"), deepseek, may_be_any},
    {DEEPSEEK("\\r\\n"), deepseek, may_be_any},
    {"'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+", clip, may_be_any},
};

cz_status pipe_pattern_read(const struct json_node *owner, struct pipe_pattern *out)
{
    const struct json_node *pattern;
    const char *text, *regex;
    char where[512];
    TRY(json_need(owner, "pattern", JSON_OBJECT, &pattern));
    TRY(json_opt_string(pattern, "String", NULL, &text));
    TRY(json_opt_string(pattern, "Regex", NULL, &regex));
    if (regex && !text) {
        for (size_t i = 0; !out->match && i < CZ_ARRAY_LEN(known); i++) {
            if (strcmp(known[i].regex, regex) != 0) continue;
            out->match = known[i].match;
            for (int u = 0; u < 256; u++) out->begins[u] = known[i].may_begin((unsigned char)u);
        }
        if (!out->match)
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: the expression \"%.200s\" is not known; those of %s are, and what "
                           "docs/tokenizers.md lists",
                           json_where(pattern, where, sizeof where), regex, bpe_split_names());
        text = regex;
    }
    if (!text || !*text)
        return err_set(CZ_UNSUPPORTED, 0, "%s: an empty pattern",
                       json_where(pattern, where, sizeof where));
    out->n = strlen(text);
    out->text = strdup(text);
    return out->text ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a pattern");
}

bool pipe_pattern_find(const struct pipe_pattern *p, const char *s, size_t n, size_t from,
                       size_t *start, size_t *end)
{
    if (!p->match) {
        const char *at = from < n ? memmem(s + from, n - from, p->text, p->n) : NULL;
        if (!at) return false;
        *start = (size_t)(at - s);
        *end = *start + p->n;
        return true;
    }
    for (size_t len;; from += len) {
        while (from < n && !p->begins[(unsigned char)s[from]]) from++;
        if (from >= n) return false;
        const size_t found = p->match(s + from, n - from);
        if (found > 0) {
            *start = from;
            *end = from + found;
            return true;
        }
        (void)chars_at(s + from, n - from, &len);
    }
}

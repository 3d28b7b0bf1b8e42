/* Strings as Python sees them: counted in characters, with Unicode's cases and white space, repr()
 * and json.dumps(). All are valid UTF-8. */
#include "data/jinja/jinja_impl.h"

#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"

#include <stdio.h>
#include <stdlib.h>

size_t str_length(const char *s, size_t n)
{
    size_t n_chars = 0;
    for (size_t i = 0; i < n; i++) n_chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n_chars;
}

size_t str_offset(const char *s, size_t n, size_t n_chars)
{
    size_t at = 0;
    for (; at < n && n_chars > 0; n_chars--) {
        at++;
        while (at < n && ((unsigned char)s[at] & 0xC0) == 0x80) at++;
    }
    return at;
}

/* str.isspace(): White_Space and the separators of ASCII. */
bool str_is_space(int32_t c)
{
    return (c >= 0x1C && c <= 0x1F) || chars_is_space(c);
}

struct jv str_strip(struct jv v, int sides)
{
    size_t len;
    while ((sides & STR_LEFT) && v.n > 0 && str_is_space(chars_at(v.s, v.n, &len))) {
        v.s += len;
        v.n -= len;
    }
    while ((sides & STR_RIGHT) && v.n > 0 && str_is_space(chars_before(v.s, v.n, &len))) v.n -= len;
    return v;
}

/* *out: the length of the character at an end of v if it is to go, else 0. */
static cz_status strip_one(struct jinja_run *r, struct jv v, bool left, const struct jv *set,
                           size_t *out)
{
    size_t len, set_len;
    const int32_t c = left ? chars_at(v.s, v.n, &len) : chars_before(v.s, v.n, &len);
    *out = 0;
    TRY(run_chars(r, 8 + (set ? set->n : 0)));
    if (!set && str_is_space(c)) *out = len;
    for (size_t at = 0; set && at < set->n && *out == 0; at += set_len)
        if (chars_at(set->s + at, set->n - at, &set_len) == c) *out = len;
    return CZ_OK;
}

cz_status str_strip_set(struct jinja_run *r, struct jv v, int sides, const struct jv *set,
                        struct jv *out)
{
    size_t len = 1;
    while ((sides & STR_LEFT) && v.n > 0) {
        TRY(strip_one(r, v, true, set, &len));
        if (len == 0) break;
        v.s += len;
        v.n -= len;
    }
    while ((sides & STR_RIGHT) && v.n > 0) {
        TRY(strip_one(r, v, false, set, &len));
        if (len == 0) break;
        v.n -= len;
    }
    *out = v;
    return CZ_OK;
}

const char *str_find(const char *s, size_t n, const char *what, size_t m)
{
    if (m == 0) return s;
    return n < m ? NULL : memmem(s, n, what, m);
}

cz_status str_replace(struct jinja_run *r, struct jv v, struct jv old, struct jv with, int64_t max,
                      struct jv *out)
{
    struct text_buf b = {0};
    const char *s = v.s, *end = v.s + v.n;
    cz_status st = run_bytes(r, v.n + old.n);
    for (; max != 0 && st == CZ_OK; max--) {
        const char *found = str_find(s, (size_t)(end - s), old.s, old.n);
        if (!found) break;
        st = run_put(r, &b, s, (size_t)(found - s));
        if (st == CZ_OK) st = run_put(r, &b, with.s, with.n);
        s = found + old.n;
        if (old.n > 0) continue;
        if (s == end) break;
        size_t len = str_offset(s, (size_t)(end - s), 1); /* between all characters */
        if (st == CZ_OK) st = run_put(r, &b, s, len);
        s += len;
    }
    if (st == CZ_OK) st = run_put(r, &b, s, (size_t)(end - s));
    if (st != CZ_OK) {
        run_drop(r, &b);
        return st;
    }
    return jv_take_buf(r, &b, out);
}

cz_status str_escape_html(struct jinja_run *r, struct jv v, struct jv *out)
{
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct text_buf b = {0};
    size_t plain = 0; /* where the characters begin that stay and are not written yet */
    cz_status st = run_chars(r, v.n);
    for (size_t i = 0; i < v.n && st == CZ_OK; i++) {
        static const char special[] = "&<>\"'";
        const char *found = v.s[i] ? strchr(special, v.s[i]) : NULL;
        if (!found) continue;
        st = run_put(r, &b, v.s + plain, i - plain);
        const char *text = names[found - special];
        if (st == CZ_OK) st = run_put(r, &b, text, strlen(text));
        plain = i + 1;
    }
    if (st == CZ_OK) st = run_put(r, &b, v.s + plain, v.n - plain);
    if (st != CZ_OK) {
        run_drop(r, &b);
        return st;
    }
    TRY(jv_take_buf(r, &b, out));
    out->is_safe = true;
    return CZ_OK;
}

/* ---- case --------------------------------------------------------------------------------------
 */

/* Characters whose upper case is several characters, or whose upper case differs from their title
 * case so (Unicode's SpecialCasing.txt, without conditions). */
struct special_case {
    uint16_t from, upper[3], title[3];
};
/* clang-format off */
static const struct special_case special_cases[] = {
    {0xDF, {0x53, 0x53}, {0x53, 0x73}}, {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}},
    {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}}, {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}}, {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1E97, {0x54, 0x308}, {0x54, 0x308}}, {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
    {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}}, {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
    {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}}, {0x1F80, {0x1F08, 0x399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x399}, {0x1F89}}, {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x399}, {0x1F8B}}, {0x1F84, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x399}, {0x1F8D}}, {0x1F86, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x399}, {0x1F8F}}, {0x1F88, {0x1F08, 0x399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x399}, {0x1F89}}, {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}}, {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}}, {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}}, {0x1F90, {0x1F28, 0x399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x399}, {0x1F99}}, {0x1F92, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x399}, {0x1F9B}}, {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x399}, {0x1F9D}}, {0x1F96, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x399}, {0x1F9F}}, {0x1F98, {0x1F28, 0x399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x399}, {0x1F99}}, {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}}, {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}}, {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}}, {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x399}, {0x1FA9}}, {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}}, {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}}, {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}}, {0x1FA8, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x399}, {0x1FA9}}, {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}}, {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}}, {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}}, {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}},
    {0x1FB3, {0x391, 0x399}, {0x1FBC}}, {0x1FB4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}}, {0x1FBC, {0x391, 0x399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}}, {0x1FC3, {0x397, 0x399}, {0x1FCC}},
    {0x1FC4, {0x389, 0x399}, {0x389, 0x345}}, {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}}, {0x1FCC, {0x397, 0x399}, {0x1FCC}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}}, {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}}, {0x1FF3, {0x3A9, 0x399}, {0x1FFC}},
    {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}}, {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}}, {0x1FFC, {0x3A9, 0x399}, {0x1FFC}},
    {0xFB00, {0x46, 0x46}, {0x46, 0x66}}, {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
    {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}}, {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}}, {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB06, {0x53, 0x54}, {0x53, 0x74}}, {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
    {0xFB14, {0x544, 0x535}, {0x544, 0x565}}, {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
    {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}}, {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}},
};
/* clang-format on */

static const struct special_case *special_case_find(int32_t c)
{
    size_t low = 0, high = sizeof special_cases / sizeof *special_cases;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (special_cases[mid].from == c) return &special_cases[mid];
        if (special_cases[mid].from < c)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static bool is_cased(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT || utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
}

/* Marks and such, which the rule of the final sigma looks through. */
static bool is_case_ignorable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019;
    }
}

static bool is_final_sigma(const char *s, size_t n, size_t at)
{
    size_t len, i = at;
    int32_t c = 0;
    while (i > 0) {
        c = chars_before(s, i, &len);
        i -= len;
        if (!is_case_ignorable(c)) break;
        c = 0;
    }
    if (!c || !is_cased(c)) return false;
    for (i = at + 2, c = 0; i < n; i += len) {
        c = chars_at(s + i, n - i, &len);
        if (!is_case_ignorable(c)) break;
        c = 0;
    }
    return !c || !is_cased(c);
}

static cz_status put_char(struct jinja_run *r, struct text_buf *b, uint32_t c)
{
    char bytes[4];
    return run_put(r, b, bytes, utf8_encode(c, bytes));
}

static cz_status put_upper(struct jinja_run *r, struct text_buf *b, int32_t c, bool is_title)
{
    const struct special_case *special = c < 0x80 ? NULL : special_case_find(c);
    if (!special)
        return put_char(r, b, (uint32_t)(is_title ? utf8proc_totitle(c) : utf8proc_toupper(c)));
    const uint16_t *to = is_title ? special->title : special->upper;
    for (int i = 0; i < 3 && to[i]; i++) TRY(put_char(r, b, to[i]));
    return CZ_OK;
}

static cz_status put_lower(struct jinja_run *r, struct text_buf *b, int32_t c, const char *s,
                           size_t n, size_t at)
{
    if (c == 0x130) {
        TRY(put_char(r, b, 'i'));
        return put_char(r, b, 0x307);
    }
    if (c == 0x3A3 && is_final_sigma(s, n, at)) return put_char(r, b, 0x3C2);
    return put_char(r, b, (uint32_t)utf8proc_tolower(c));
}

cz_status str_set_case(struct jinja_run *r, enum str_case how, struct jv v, struct jv *out)
{
    struct text_buf b = {0};
    bool begins = true;
    cz_status st = CZ_OK;
    for (size_t at = 0, len; at < v.n && st == CZ_OK; at += len) {
        int32_t c = chars_at(v.s + at, v.n - at, &len);
        bool raises = how == STR_UPPER || (how != STR_LOWER && begins);
        st = raises ? put_upper(r, &b, c, how != STR_UPPER) : put_lower(r, &b, c, v.s, v.n, at);
        begins = how == STR_TITLE && !is_cased(c);
    }
    if (st != CZ_OK) {
        run_drop(r, &b);
        return st;
    }
    TRY(jv_take_buf(r, &b, out));
    out->is_safe = v.is_safe;
    return CZ_OK;
}

/* ---- repr and JSON ------------------------------------------------------------------------------
 */

static bool is_printable(int32_t c)
{
    if (c < 0x80) return c >= 0x20 && c != 0x7F;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

/* Where escapes stand, the characters before them are written together. */
static cz_status put_escape(struct jinja_run *r, const char *s, size_t *plain, size_t at,
                            size_t len, const char *code, struct text_buf *out)
{
    if (!code[0]) return CZ_OK;
    TRY(run_put(r, out, s + *plain, at - *plain));
    *plain = at + len;
    return run_put(r, out, code, strlen(code));
}

cz_status str_repr(struct jinja_run *r, const char *s, size_t n, struct text_buf *out)
{
    TRY(run_chars(r, n));
    char quote = memchr(s, '\'', n) && !memchr(s, '"', n) ? '"' : '\'';
    size_t plain = 0;
    TRY(run_put(r, out, &quote, 1));
    for (size_t at = 0, len; at < n; at += len) {
        int32_t c = chars_at(s + at, n - at, &len);
        char code[16] = "";
        if (c == quote || c == '\\')
            snprintf(code, sizeof code, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(code, sizeof code, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!is_printable(c))
            snprintf(code, sizeof code,
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     (unsigned)c);
        TRY(put_escape(r, s, &plain, at, len, code, out));
    }
    TRY(run_put(r, out, s + plain, n - plain));
    return run_put(r, out, &quote, 1);
}

cz_status str_json(struct jinja_run *r, const char *s, size_t n, bool escapes_wide,
                   struct text_buf *out)
{
    size_t plain = 0;
    TRY(run_chars(r, n));
    TRY(run_put(r, out, "\"", 1));
    for (size_t at = 0, len; at < n; at += len) {
        static const char letters[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
        int32_t c = chars_at(s + at, n - at, &len);
        const char *found = c > 0 && c < 0x80 ? strchr(letters, c) : NULL;
        char code[16] = "";
        if (found)
            snprintf(code, sizeof code, "\\%c", names[found - letters]);
        else if (c < 0x20 || (escapes_wide && c >= 0x7F && c < 0x10000))
            snprintf(code, sizeof code, "\\u%04x", (unsigned)c);
        else if (escapes_wide && c >= 0x10000)
            snprintf(code, sizeof code, "\\u%04x\\u%04x", 0xD800u + ((unsigned)(c - 0x10000) >> 10),
                     0xDC00u + ((unsigned)(c - 0x10000) & 0x3FF));
        TRY(put_escape(r, s, &plain, at, len, code, out));
    }
    TRY(run_put(r, out, s + plain, n - plain));
    return run_put(r, out, "\"", 1);
}

/* ---- numbers ------------------------------------------------------------------------------------
 */

/* As int(text, base): white space around it, a sign, single underscores between digits. */
bool str_to_int(const char *s, size_t n, int base, int64_t *out)
{
    struct jv v = str_strip(jv_of_str(s, n), STR_LEFT | STR_RIGHT);
    bool is_negative = v.n > 0 && v.s[0] == '-', after_digit = false;
    uint64_t value = 0;
    size_t i = v.n > 0 && (v.s[0] == '-' || v.s[0] == '+') ? 1 : 0;
    if (base < 2 || base > 36) return false;
    for (; i < v.n; i++) {
        char c = v.s[i];
        if (c == '_' && after_digit) {
            after_digit = false;
            continue;
        }
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
                                                         : 99;
        if (digit >= base) return false;
        if (__builtin_mul_overflow(value, (uint64_t)base, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value))
            return false;
        after_digit = true;
    }
    if (!after_digit || value > (uint64_t)INT64_MAX + is_negative) return false;
    *out = is_negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

/* As float(text), without underscores. */
bool str_to_float(const char *s, size_t n, double *out)
{
    struct jv v = str_strip(jv_of_str(s, n), STR_LEFT | STR_RIGHT);
    char text[512], *end;
    if (v.n == 0 || v.n >= sizeof text || memchr(v.s, 'x', v.n) || memchr(v.s, 'X', v.n) ||
        memchr(v.s, '(', v.n) || memchr(v.s, '\0', v.n))
        return false;
    memcpy(text, v.s, v.n);
    text[v.n] = '\0';
    *out = strtod(text, &end);
    return end == text + v.n;
}

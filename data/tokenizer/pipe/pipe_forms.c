/* Unicode's normalization forms, lower case and accents, of whole texts. */
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- normalization forms --------------------------------------------------------------------- */

#define PARTS_MAX 32 /* characters that one decomposes into: 18 at most */

/* Characters since the last one that nothing before it can change. */
struct pending {
    utf8proc_int32_t small[128], *chars;
    uint64_t *keys;
    size_t n, cap;
};

static cz_status pending_add(struct pending *p, const utf8proc_int32_t *chars, size_t n)
{
    if (n > p->cap - p->n) {
        const size_t cap = 2 * p->cap + n;
        utf8proc_int32_t *grown = malloc(cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu characters", cap);
        memcpy(grown, p->chars, p->n * sizeof *grown);
        if (p->chars != p->small) free(p->chars);
        p->chars = grown;
        p->cap = cap;
    }
    memcpy(p->chars + p->n, chars, n * sizeof *chars);
    p->n += n;
    return CZ_OK;
}

static int by_value(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static uint64_t class_of(utf8proc_int32_t c)
{
    return (uint64_t)utf8proc_get_property(c)->combining_class & 0xff;
}

/* Marks by their classes, equal ones as they stand: n log n for a run of any length. */
static cz_status order(struct pending *p)
{
    bool is_sorted = true;
    for (size_t i = 1; i < p->n && is_sorted; i++)
        is_sorted =
            class_of(p->chars[i]) == 0 || class_of(p->chars[i - 1]) <= class_of(p->chars[i]);
    if (is_sorted) return CZ_OK;
    uint64_t *keys = malloc(p->n * sizeof *keys);
    if (!keys) return err_set(CZ_NOMEM, 0, "no memory for %zu marks", p->n);
    for (size_t i = 0; i < p->n;) {
        size_t n_run = 0;
        for (; i + n_run < p->n && class_of(p->chars[i + n_run]) != 0; n_run++)
            keys[n_run] = class_of(p->chars[i + n_run]) << 56 | (uint64_t)n_run << 24 |
                          (uint32_t)p->chars[i + n_run];
        if (n_run > 1) qsort(keys, n_run, sizeof *keys, by_value);
        for (size_t k = 0; k < n_run; k++) p->chars[i + k] = (utf8proc_int32_t)(keys[k] & 0xffffff);
        i += n_run + 1;
    }
    free(keys);
    return CZ_OK;
}

static cz_status flush(struct pending *p, bool compose, struct pipe_text *dst)
{
    if (p->n == 0) return CZ_OK;
    TRY(order(p));
    if (compose) {
        const utf8proc_ssize_t n = utf8proc_normalize_utf32(p->chars, (utf8proc_ssize_t)p->n,
                                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n >= 0) p->n = (size_t)n;
    }
    for (size_t i = 0; i < p->n; i++) TRY(pipe_text_add_char(dst, (uint32_t)p->chars[i]));
    p->n = 0;
    return CZ_OK;
}

static cz_status forms_of(struct pending *p, int form, const char *s, size_t n,
                          struct pipe_text *dst)
{
    const bool compose = form == PIPE_NFC || form == PIPE_NFKC;
    const utf8proc_option_t options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
        (form == PIPE_NFKC || form == PIPE_NFKD ? UTF8PROC_COMPAT : (utf8proc_option_t)0);
    utf8proc_int32_t parts[PARTS_MAX];
    for (size_t at = 0, len; at < n; at += len) {
        const int32_t c = chars_at(s + at, n - at, &len);
        utf8proc_ssize_t n_parts = 1;
        if (chars_is_unknown(c)) {
            TRY(flush(p, compose, dst));
            TRY(pipe_text_add_char(dst, (uint32_t)c));
            continue;
        }
        int boundary = 0;
        parts[0] = c;
        if (c >= 0x80) n_parts = utf8proc_decompose_char(c, parts, PARTS_MAX, options, &boundary);
        if (n_parts < 0 || n_parts > PARTS_MAX) {
            parts[0] = c;
            n_parts = 1;
        }
        if (n_parts > 0 && bpe_is_plain(parts[0])) TRY(flush(p, compose, dst));
        TRY(pending_add(p, parts, (size_t)n_parts));
    }
    return flush(p, compose, dst);
}

/* ASCII, but its last character, with which what follows may be composed. */
static size_t ascii_prefix(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n && (unsigned char)s[at] < 0x80) at++;
    return at < n && at > 0 ? at - 1 : at;
}

static bool may_change(int32_t c, bool is_nfc)
{
    return is_nfc ? !bpe_is_plain(c) : c >= 0x80;
}

cz_status pipe_norm_form(const struct pipe_norm *step, struct pipe_piece *piece,
                         struct pipe_text *dst)
{
    struct pending p = {.chars = p.small, .cap = CZ_ARRAY_LEN(p.small)};
    const bool is_nfc = step->form == PIPE_NFC;
    const char *s = piece->s;
    size_t n = piece->n, len;
    cz_status st = CZ_OK;
    while (st == CZ_OK && n > 0) { /* what stays as it is; one character and what may change it */
        const size_t same = is_nfc ? bpe_plain_prefix(s, n) : ascii_prefix(s, n);
        st = pipe_text_add(dst, s, same);
        s += same;
        n -= same;
        if (n == 0) break;
        size_t run;
        (void)chars_at(s, n, &run);
        while (run < n && may_change(chars_at(s + run, n - run, &len), is_nfc)) run += len;
        if (st == CZ_OK) st = forms_of(&p, step->form, s, run, dst);
        s += run;
        n -= run;
    }
    if (p.chars != p.small) free(p.chars);
    return st;
}

/* ---- accents, case --------------------------------------------------------------------------- */

/* Two letters were marks when the library's table was made. */
static bool is_accent(int32_t c)
{
    if (c < 0x300) return false;
    return (chars_wide_class(c) == CHAR_MARK && !chars_is_unknown(c)) || c == 0x1CF2 || c == 0x1CF3;
}

cz_status pipe_norm_strip_accents(const struct pipe_norm *step, struct pipe_piece *piece,
                                  struct pipe_text *dst)
{
    (void)step;
    for (size_t at = 0, len; at < piece->n; at += len) {
        const int32_t c = chars_at(piece->s + at, piece->n - at, &len);
        if (!is_accent(c))
            TRY(pipe_text_add(dst, piece->s + at, len));
        else if (at == 0)
            piece->is_first = false;
    }
    return CZ_OK;
}

cz_status pipe_norm_lowercase(const struct pipe_norm *step, struct pipe_piece *piece,
                              struct pipe_text *dst)
{
    const char *s = piece->s;
    (void)step;
    for (size_t at = 0, len; at < piece->n; at += len) {
        uint32_t small[2];
        for (len = 0; at + len < piece->n && (unsigned char)s[at + len] < 0x80;) len++;
        if (len > 0) {
            TRY(pipe_text_reserve(dst, len));
            for (size_t i = at; i < at + len; i++)
                dst->s[dst->n++] = (char)(s[i] + (s[i] >= 'A' && s[i] <= 'Z' ? 'a' - 'A' : 0));
            continue;
        }
        const uint32_t c = (uint32_t)chars_at(s + at, piece->n - at, &len);
        if (chars_wide_class((int32_t)c) == CHAR_LETTER) { /* neither a capital nor a small one */
            TRY(pipe_text_add(dst, s + at, len));
            continue;
        }
        const size_t n = wp_lower(c, small);
        for (size_t i = 0; i < n; i++) TRY(pipe_text_add_char(dst, small[i]));
    }
    return CZ_OK;
}

/* Text on its way in: UTF-8 repaired as Python's errors="replace" does, and NFC. */
#include "data/tokenizer/bpe/bpe_impl.h"

#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT        "\xEF\xBF\xBD" /* U+FFFD */
#define REPLACEMENT_NBYTES 3

/* Contents are kept: bpe_normalize() grows its output while it is being written. */
cz_status bpe_work_reserve(struct bpe_work *w, int which, size_t n)
{
    if (n <= w->text_cap[which]) return CZ_OK;
    size_t cap = n + n / 8 + 256;
    char *text = realloc(w->text[which], cap);
    if (!text) return err_set(CZ_NOMEM, 0, "no memory for %zu bytes of text", n);
    w->text[which] = text;
    w->text_cap[which] = cap;
    return CZ_OK;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* Sixteen bytes at a time: most text is ASCII, and then this is all the work there is. */
static bool is_ascii_block(const char *s)
{
    uint64_t v[2];
    memcpy(v, s, sizeof v);
    return ((v[0] | v[1]) & 0x8080808080808080u) == 0;
}

/* Bytes from the beginning that are whole characters. */
static size_t valid_prefix(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        if (n - at >= 16 && is_ascii_block(s + at)) {
            at += 16;
            continue;
        }
        int len = utf8_length(s + at, n - at);
        if (len <= 0) break;
        at += (size_t)len;
    }
    return at;
}

/* Bytes at s that could have begun a character but do not: at least one. */
static size_t broken_length(const char *s, size_t n)
{
    size_t len = 1;
    while (len < n && utf8_length(s, len + 1) == -1) len++;
    return len;
}

/* Text that is valid is not copied. Each broken sequence becomes one U+FFFD, of the length that
 * Python's decoder skips. */
cz_status bpe_repair(struct bpe_work *w, const char **text, size_t *nbytes)
{
    const char *s = *text;
    size_t n = *nbytes, used = 0, good = valid_prefix(s, n);
    if (good == n) return CZ_OK;
    TRY(bpe_work_reserve(w, BPE_TEXT_REPAIRED, REPLACEMENT_NBYTES * n));
    char *dst = w->text[BPE_TEXT_REPAIRED];
    while (n > 0) {
        memcpy(dst + used, s, good);
        used += good;
        s += good;
        n -= good;
        if (n == 0) break;
        size_t skip = utf8_length(s, n) == -1 ? n : broken_length(s, n);
        memcpy(dst + used, REPLACEMENT, REPLACEMENT_NBYTES);
        used += REPLACEMENT_NBYTES;
        s += skip;
        n -= skip;
        good = valid_prefix(s, n);
    }
    *text = dst;
    *nbytes = used;
    return CZ_OK;
}

/* ---- NFC ------------------------------------------------------------------------------------- */

/* One bit per character below LIMIT; none above it is changed by NFC or changes its neighbours. */
#define LIMIT 0x30000
static uint64_t not_plain[LIMIT / 64];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void mark(int32_t c)
{
    not_plain[c / 64] |= (uint64_t)1 << (c % 64);
}

/* What the library does not know is plain. A character is not plain when it combines, is written
 * otherwise in NFC, or follows the first in some character's decomposition (and so may join what is
 * before it). Made once, at the first character above 0x2FF: ASCII text never needs it. */
static void make_not_plain(void)
{
    for (int32_t c = 0x80; c < LIMIT; c++) {
        const utf8proc_property_t *p = utf8proc_get_property(c);
        utf8proc_int32_t parts[8];
        if (chars_is_unknown(c)) continue;
        if (p->combining_class != 0) mark(c);
        if (p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0) continue;
        utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, 8, UTF8PROC_DECOMPOSE, NULL);
        for (utf8proc_ssize_t i = 1; i < n && i < 8; i++)
            if (!chars_is_unknown(parts[i])) mark(parts[i]);
        n = utf8proc_normalize_utf32(parts, n < 8 ? n : 8, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n != 1 || parts[0] != c) mark(c);
    }
    for (int32_t c = 0x1161; c <= 0x11C2; c++) mark(c); /* Hangul vowels and finals */
}

bool bpe_is_plain(int32_t c)
{
    if (c < 0x300) return true;
    (void)pthread_once(&made, make_not_plain);
    return c >= LIMIT || !(not_plain[c / 64] >> (c % 64) & 1);
}

size_t bpe_plain_prefix(const char *s, size_t n)
{
    size_t at = 0, start = 0, len;
    while (at < n) {
        if (n - at >= 16 && is_ascii_block(s + at)) {
            start = at + 15;
            at += 16;
            continue;
        }
        if (!bpe_is_plain(chars_at(s + at, n - at, &len))) return start;
        start = at;
        at += len;
    }
    return n;
}

#define COMPOSED_MAX 64 /* characters that are composed without allocating */

/* Runs are a few characters nearly always, and utf8proc_map allocates. */
static size_t compose_short(const char *s, size_t n, char *dst)
{
    utf8proc_int32_t chars[COMPOSED_MAX + 1];
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t k = utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, chars,
                                            COMPOSED_MAX, options);
    if (k <= 0 || k > COMPOSED_MAX) return 0;
    k = utf8proc_reencode(chars, k, options);
    if (k <= 0) return 0;
    memcpy(dst, chars, (size_t)k);
    return (size_t)k;
}

static int by_value(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Canonical order: in each run of combining marks by their class, equal ones as they stand.
 * utf8proc itself exchanges neighbours, which takes time quadratic in a run; runs that are in order
 * already cost it nothing. `keys` has space for as many. */
static void order_marks(utf8proc_int32_t *chars, size_t n, uint64_t *keys)
{
    for (size_t i = 0; i < n;) {
        size_t n_run = 0;
        for (; i + n_run < n; n_run++) {
            const uint64_t class =
                (uint64_t)utf8proc_get_property(chars[i + n_run])->combining_class & 0xff;
            if (class == 0) break;
            keys[n_run] = class << 56 | (uint64_t)n_run << 24 | (uint32_t)chars[i + n_run];
        }
        if (n_run > 1) qsort(keys, n_run, sizeof *keys, by_value);
        for (size_t k = 0; k < n_run; k++) chars[i + k] = (utf8proc_int32_t)(keys[k] & 0xffffff);
        i += n_run + 1;
    }
}

#define PARTS_MAX 4 /* of a character, decomposed canonically */

static cz_status compose_long(struct bpe_work *w, const char *s, size_t n, size_t *used)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_int32_t *chars = malloc((PARTS_MAX * n + 1) * sizeof *chars);
    uint64_t *keys = malloc((PARTS_MAX * n + 1) * sizeof *keys);
    size_t n_chars = 0, len;
    utf8proc_ssize_t k = chars && keys ? 0 : UTF8PROC_ERROR_NOMEM;
    int boundary = 0;
    for (size_t at = 0; at < n && k >= 0; at += len) {
        k = utf8proc_decompose_char(chars_at(s + at, n - at, &len), chars + n_chars, PARTS_MAX,
                                    options, &boundary);
        if (k > PARTS_MAX) k = UTF8PROC_ERROR_OVERFLOW;
        if (k > 0) n_chars += (size_t)k;
    }
    if (k >= 0) {
        order_marks(chars, n_chars, keys);
        k = utf8proc_reencode(chars, (utf8proc_ssize_t)n_chars, options);
    }
    cz_status st =
        k < 0 ? err_set(CZ_NOMEM, 0, "a text could not be normalized: %s", utf8proc_errmsg(k))
              : bpe_work_reserve(w, BPE_TEXT_NORMALIZED, *used + (size_t)k);
    if (st == CZ_OK && k > 0) memcpy(w->text[BPE_TEXT_NORMALIZED] + *used, chars, (size_t)k);
    if (st == CZ_OK) *used += (size_t)k;
    free(chars);
    free(keys);
    return st;
}

/* NFC of s appended at `used`. */
static cz_status append_composed(struct bpe_work *w, const char *s, size_t n, size_t *used)
{
    TRY(bpe_work_reserve(w, BPE_TEXT_NORMALIZED, *used + 4 * COMPOSED_MAX));
    size_t k = compose_short(s, n, w->text[BPE_TEXT_NORMALIZED] + *used);
    if (k == 0) return compose_long(w, s, n, used);
    *used += k;
    return CZ_OK;
}

/* Only the runs that NFC can change are composed; the text between them is copied. */
cz_status bpe_normalize(struct bpe_work *w, const char **text, size_t *nbytes)
{
    const char *s = *text;
    size_t n = *nbytes, used = 0, good = bpe_plain_prefix(s, n);
    if (good == n) return CZ_OK;
    TRY(bpe_work_reserve(w, BPE_TEXT_NORMALIZED, n + n / 8));
    while (n > 0) {
        TRY(bpe_work_reserve(w, BPE_TEXT_NORMALIZED, used + good));
        memcpy(w->text[BPE_TEXT_NORMALIZED] + used, s, good);
        used += good;
        s += good;
        n -= good;
        if (n == 0) break;
        /* Bytes of a plain character and those behind it that are not. */
        size_t at, len;
        if (chars_is_unknown(chars_at(s, n, &at))) { /* utf8proc knows it: keep it out */
            TRY(bpe_work_reserve(w, BPE_TEXT_NORMALIZED, used + at));
            memcpy(w->text[BPE_TEXT_NORMALIZED] + used, s, at);
            used += at;
            s += at;
            n -= at;
            at = 0;
        }
        while (at < n && !bpe_is_plain(chars_at(s + at, n - at, &len))) at += len;
        size_t mixed = at;
        TRY(append_composed(w, s, mixed, &used));
        s += mixed;
        n -= mixed;
        good = bpe_plain_prefix(s, n);
    }
    *text = w->text[BPE_TEXT_NORMALIZED];
    *nbytes = used;
    return CZ_OK;
}

/* Guessing the encoding of bytes that are not UTF-8. Training takes any bytes, so a table that a
 * spreadsheet has written in GBK would cost a run: the message must say what to do. A guess needs
 * nine of ten characters, because a wrong name costs more than none. */
#include "base/text/encoding.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- the guess ------------------------------------------------------------------------------- */

/* Counts of byte sequences from 0x80 on, by encoding. A pair is two bytes from 0xA1 on, as in EUC.
 */
struct tally {
    size_t n_utf8, n_broken;
    size_t n_pairs;             /* rows 16 to 87: Chinese characters, or Hangul up to row 40 */
    size_t n_hangul, n_kana;    /* of n_pairs; rows 4 and 5 */
    size_t n_marks;             /* rows 1 to 3: punctuation, wide letters */
    size_t n_alone;             /* in front of an ASCII byte or the end */
    size_t n_other;             /* pairs of none of these */
    size_t n_windows, n_unused; /* 0x80 to 0x9F: of Windows-1252, or of no Latin alphabet */
};

static void count_utf8(struct tally *t, const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        const int len = utf8_length(s + at, n - at);
        if (len < 0) break; /* cut off by the sample's end */
        t->n_utf8 += len > 1;
        t->n_broken += len == 0;
        at += len > 0 ? (size_t)len : utf8_broken_length(s + at, n - at);
    }
}

static void count_pair(struct tally *t, unsigned char lead, unsigned char trail)
{
    const bool is_euc = lead >= 0xA1 && lead <= 0xF7 && trail >= 0xA1 && trail != 0xFF;
    if (!is_euc)
        t->n_other++;
    else if (lead >= 0xB0)
        t->n_pairs++;
    else if (lead == 0xA4 || lead == 0xA5)
        t->n_kana++;
    else if (lead <= 0xA3)
        t->n_marks++;
    else
        t->n_other++;
    t->n_hangul += is_euc && lead >= 0xB0 && lead <= 0xC8;
}

static void count_bytes(struct tally *t, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] < 0x80) continue;
        t->n_windows += p[i] < 0xA0;
        t->n_unused += p[i] == 0x81 || p[i] == 0x8D || p[i] == 0x8F || p[i] == 0x90 || p[i] == 0x9D;
        if (i + 1 < n && p[i + 1] >= 0x80) {
            count_pair(t, p[i], p[i + 1]);
            i++;
            t->n_windows += p[i] < 0xA0;
        } else
            t->n_alone++;
    }
}

/* By the mark at the beginning, if there is a NUL, too, as in line ends and spaces; without a mark,
 * mostly of ASCII characters, every other byte is NUL. */
const char *encoding_wide(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    size_t zeros[2] = {0, 0};
    if (n < 4 || !memchr(p, 0, n)) return NULL;
    if (memcmp(p, "\xFF\xFE\0\0", 4) == 0 || memcmp(p, "\0\0\xFE\xFF", 4) == 0) return "utf-32";
    if (memcmp(p, "\xFF\xFE", 2) == 0 || memcmp(p, "\xFE\xFF", 2) == 0) return "utf-16";
    if (n > 512) n = 512;
    for (size_t i = 0; i < n; i++) zeros[i & 1] += p[i] == 0;
    const size_t most = n < 12 ? n : n / 2 * 7 / 10;
    return zeros[1] > most && zeros[0] == 0   ? "utf-16le"
           : zeros[0] > most && zeros[1] == 0 ? "utf-16be"
                                              : NULL;
}

const char *encoding_guess(const void *bytes, size_t nbytes, bool is_beginning)
{
    const char *s = bytes;
    struct tally t = {0};
    const char *wide = is_beginning ? encoding_wide(bytes, nbytes) : NULL;
    if (wide) return wide;
    if (is_beginning && nbytes >= 2 &&
        (memcmp(s, "\xFF\xFE", 2) == 0 || memcmp(s, "\xFE\xFF", 2) == 0))
        return "utf-16";
    count_utf8(&t, s, nbytes);
    if (t.n_utf8 > t.n_broken) return "utf-8";
    count_bytes(&t, bytes, nbytes);
    const size_t n_east = t.n_pairs + t.n_kana + t.n_marks, n_rest = t.n_alone + t.n_other;
    if (n_east > 0 && n_east >= 9 * n_rest) {
        if (2 * t.n_kana > n_east) return "euc-jp";
        /* every third Chinese character is beyond Hangul's rows */
        const bool is_hangul = t.n_pairs >= 16 && t.n_hangul == t.n_pairs;
        return t.n_pairs == 0 ? NULL : is_hangul ? "euc-kr" : "gb18030";
    }
    if (t.n_alone > 0 && t.n_alone >= 9 * (n_east + t.n_other) && t.n_unused == 0)
        return t.n_windows ? "windows-1252" : "latin-1";
    return NULL;
}

/* ---- the check ------------------------------------------------------------------------------- */

cz_status encoding_check(const char *path, uint64_t line, const char *s, size_t n)
{
    char place[32] = "", looks[96] = "";
    size_t at = 0;
    for (int len; at < n && (len = utf8_length(s + at, n - at)) > 0; at += (size_t)len)
        line += line > 0 && s[at] == '\n';
    if (at == n) return CZ_OK;
    const char *guess = encoding_guess(s, n < 65536 ? n : 65536, true);
    if (line > 0) snprintf(place, sizeof place, ":%llu", (unsigned long long)line);
    if (guess && strcmp(guess, "utf-8") != 0)
        snprintf(looks, sizeof looks, "; the text looks like %s: convert it to UTF-8", guess);
    return err_set(CZ_CORRUPT, 0, "%s%s: byte 0x%02x at offset %zu is not UTF-8%s", path, place,
                   (unsigned)(unsigned char)s[at], at, looks);
}

/* UTF-8, one character at a time. */
#ifndef CZ_BASE_UTF8_H
#define CZ_BASE_UTF8_H

#include "base/compiler.h"

#include <string.h>

/* Bytes of the character at s (1 … 4, shortest form, no surrogates, at most U+10FFFF);
 * 0: not UTF-8; -1: what is here could begin a character, but n bytes end inside it. n > 0. */
static inline int utf8_length(const char *s, size_t n)
{
    unsigned char lead = (unsigned char)s[0];
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    size_t len = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    for (size_t i = 1; i < len; i++) {
        if (i == n) return -1;
        unsigned char c = (unsigned char)s[i];
        unsigned char lo = 0x80, hi = 0xBF;
        if (i == 1 && lead == 0xE0)
            lo = 0xA0; /* below: a longer form than needed */
        else if (i == 1 && lead == 0xED)
            hi = 0x9F; /* above: surrogates */
        else if (i == 1 && lead == 0xF0)
            lo = 0x90;
        else if (i == 1 && lead == 0xF4)
            hi = 0x8F; /* above: beyond U+10FFFF */
        if (c < lo || c > hi) return 0;
    }
    return (int)len;
}

/* Bytes at s, where no character is, that one U+FFFD stands for: the longest part that could have
 * begun a character, and at least one (as Python's decode(errors="replace") and browsers do). */
static inline size_t utf8_broken_length(const char *s, size_t n)
{
    size_t len = 1;
    while (len < n && utf8_length(s, len + 1) == -1) len++;
    return len;
}

/* The character that the len bytes at s encode, as utf8_length() gave them. */
static inline uint32_t utf8_decode(const char *s, int len)
{
    const unsigned char *u = (const unsigned char *)s;
    if (len == 1) return u[0];
    if (len == 2) return (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F);
    uint32_t tail = (uint32_t)(u[len - 2] & 0x3F) << 6 | (u[len - 1] & 0x3F);
    if (len == 3) return (uint32_t)(u[0] & 0x0F) << 12 | tail;
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | tail;
}

/* Write c as UTF-8 to dst (4 bytes); returns how many it took. */
static inline size_t utf8_encode(uint32_t c, char *dst)
{
    if (c < 0x80) {
        dst[0] = (char)c;
        return 1;
    }
    size_t len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = len - 1; i > 0; i--, c >>= 6) dst[i] = (char)(0x80 | (c & 0x3F));
    dst[0] = (char)(leads[len] | c);
    return len;
}

static inline bool utf8_is_valid(const char *s, size_t n)
{
    while (n > 0) {
        int len = utf8_length(s, n);
        if (len <= 0) return false;
        s += len;
        n -= (size_t)len;
    }
    return true;
}

/* Bytes of whole characters at text's beginning, at most nbytes_max. */
static inline size_t utf8_fit(const char *text, size_t nbytes_max)
{
    size_t n = 0;
    while (text[n]) {
        int len = utf8_length(text + n, strnlen(text + n, 4));
        size_t step = len > 0 ? (size_t)len : 1;
        if (n + step > nbytes_max) break;
        n += step;
    }
    return n;
}

/* Copy text to dst; what does not fit is cut between characters. */
static inline void utf8_copy(char *dst, size_t dst_nbytes, const char *text)
{
    size_t n = utf8_fit(text, dst_nbytes - 1);
    memcpy(dst, text, n);
    dst[n] = '\0';
}

#endif

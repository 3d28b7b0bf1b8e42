/* UTF-8, one character at a time. */
#ifndef CZ_BASE_UTF8_H
#define CZ_BASE_UTF8_H

#include "base/compiler.h"

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

#endif

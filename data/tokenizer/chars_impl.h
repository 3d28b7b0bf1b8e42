/* Characters of valid UTF-8 and their classes, as the patterns of byte-level tokenizers name them:
 * \p{L}, \p{N}, \p{M}, \s, and the \w of added tokens. Classes are those of Hugging Face's library:
 * utf8proc's, and what that library knows of newer versions of Unicode (chars_tables.c). */
#ifndef CZ_DATA_TOKENIZER_CHARS_IMPL_H
#define CZ_DATA_TOKENIZER_CHARS_IMPL_H

#include "base/compiler.h"

#include <utf8proc.h>

/* One bit for each class; CHAR_NEWLINE (\r and \n) is not in CHAR_SPACE. */
enum {
    CHAR_OTHER = 1,
    CHAR_LETTER = 2, /* \p{L} but those below */
    CHAR_UPPER = 4,  /* \p{Lu}, \p{Lt} */
    CHAR_LOWER = 8,  /* \p{Ll} */
    CHAR_NUMBER = 16,
    CHAR_MARK = 32,
    CHAR_SPACE = 64,
    CHAR_NEWLINE = 128,
    CHAR_L = CHAR_LETTER | CHAR_UPPER | CHAR_LOWER,
    CHAR_S = CHAR_SPACE | CHAR_NEWLINE
};

extern const uint8_t chars_ascii[128];

/* The character at s, n > 0; *len: its bytes. The text is valid UTF-8. */
static inline int32_t chars_at(const char *s, size_t n, size_t *len)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80 || n < 2) return *len = 1, u[0];
    if (u[0] < 0xE0 || n < 3) return *len = 2, (u[0] & 0x1F) << 6 | (u[1] & 0x3F);
    if (u[0] < 0xF0 || n < 4)
        return *len = 3, (u[0] & 0x0F) << 12 | (u[1] & 0x3F) << 6 | (u[2] & 0x3F);
    return *len = 4, (u[0] & 0x07) << 18 | (u[1] & 0x3F) << 12 | (u[2] & 0x3F) << 6 | (u[3] & 0x3F);
}

/* The character that ends at `end` > 0. */
static inline int32_t chars_before(const char *text, size_t end, size_t *len)
{
    size_t n = 1;
    while (n < 4 && n < end && ((unsigned char)text[end - n] & 0xC0) == 0x80) n++;
    return chars_at(text + end - n, n, len);
}

/* The class of a character outside ASCII: from utf8proc and ranges, kept for the next time. */
#define CHARS_KEPT 0x10000
extern uint8_t chars_kept[CHARS_KEPT]; /* 0: not asked for yet */
unsigned chars_find_class(int32_t c);
static inline unsigned chars_wide_class(int32_t c)
{
    const unsigned kept = c < CHARS_KEPT ? __atomic_load_n(&chars_kept[c], __ATOMIC_RELAXED) : 0;
    return kept ? kept : chars_find_class(c);
}

/* The class of the character at s. */
static inline unsigned chars_class(const char *s, size_t n, size_t *len)
{
    if ((unsigned char)s[0] < 0x80) return *len = 1, chars_ascii[(unsigned char)s[0]];
    int32_t c = chars_at(s, n, len);
    return chars_wide_class(c);
}

/* The library's normalizers are older than its patterns: marks and characters with a decomposition
 * that they do not know are letters to them. */
bool chars_is_unknown(int32_t c);

struct chars_range {
    int32_t first, last;
    unsigned class_bit;
};
extern const struct chars_range chars_newer[], chars_unknown[];
extern const size_t chars_n_newer, chars_n_unknown;

bool chars_is_sign(int32_t c);  /* \p{P} and \p{S} */
bool chars_is_space(int32_t c); /* \s, White_Space */
bool chars_is_word(int32_t c);  /* \w: Alphabetic, marks, decimal digits, connectors, joiners */

#endif

/* Eight bytes of a text at once: whether any of them is of a kind. Scanners that look for few bytes
 * in much text pass over it in these steps. */
#ifndef CZ_FORMATS_EIGHT_H
#define CZ_FORMATS_EIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EIGHT_LOWS  0x0101010101010101u
#define EIGHT_HIGHS 0x8080808080808080u

static inline uint64_t eight_at(const char *s)
{
    uint64_t v;
    memcpy(&v, s, sizeof v);
    return v;
}

/* Whether one of them is below `limit`, at most 128. */
static inline bool eight_below(uint64_t v, unsigned char limit)
{
    return ((v - EIGHT_LOWS * limit) & ~v & EIGHT_HIGHS) != 0;
}

static inline bool eight_have(uint64_t v, unsigned char byte)
{
    return eight_below(v ^ EIGHT_LOWS * byte, 1);
}

static inline bool eight_are_ascii(uint64_t v)
{
    return (v & EIGHT_HIGHS) == 0;
}

/* The highest bits of those that are letters of ASCII. */
static inline uint64_t eight_letters(uint64_t v)
{
    const uint64_t low = (v | EIGHT_LOWS * 0x20) & ~EIGHT_HIGHS; /* 'A' as 'a' */
    const uint64_t from_a = low + EIGHT_LOWS * (0x80 - 'a');
    const uint64_t behind_z = low + EIGHT_LOWS * (0x80 - 'z' - 1);
    return from_a & ~behind_z & ~v & EIGHT_HIGHS;
}

/* How many bytes stand in front of the first whose highest bit is set; bits ≠ 0. */
static inline size_t eight_first(uint64_t bits)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (size_t)__builtin_ctzll(bits) / 8;
#else
    return (size_t)__builtin_clzll(bits) / 8;
#endif
}

#endif

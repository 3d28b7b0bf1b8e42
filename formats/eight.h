/* Eight bytes of a text at once: whether any of them is of a kind. Scanners that look for few bytes
 * in much text pass over it in these steps. */
#ifndef CZ_FORMATS_EIGHT_H
#define CZ_FORMATS_EIGHT_H

#include <stdbool.h>
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

#endif

/* Character classes, from utf8proc and, for ASCII, from a table: the patterns of tokenizers ask for
 * the class of every character of a text. */
#include "data/tokenizer/chars_impl.h"

/* clang-format off */
#define NL CHAR_NEWLINE
#define SP CHAR_SPACE
#define NR CHAR_NUMBER
#define UP CHAR_UPPER
#define LO CHAR_LOWER
#define OT CHAR_OTHER
const uint8_t chars_ascii[128] = {
    OT, OT, OT, OT, OT, OT, OT, OT, OT, SP, NL, SP, SP, NL, OT, OT,
    OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT,
    SP, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT, OT,
    NR, NR, NR, NR, NR, NR, NR, NR, NR, NR, OT, OT, OT, OT, OT, OT,
    OT, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP,
    UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, OT, OT, OT, OT, OT,
    OT, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO,
    LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, LO, OT, OT, OT, OT, OT
};
/* clang-format on */

/* Unicode's White_Space, which is what \s means in the patterns. */
bool chars_is_space(int32_t c)
{
    if (c < 0x80) return (chars_ascii[c] & CHAR_S) != 0;
    if (c == 0x85 || c == 0xA0 || c == 0x1680) return true;
    if (c >= 0x2000 && c <= 0x200A) return true;
    return c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* The range that holds c; NULL: none does. */
static const struct chars_range *range_of(const struct chars_range *ranges, size_t n, int32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (c > ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && c >= ranges[low].first ? &ranges[low] : NULL;
}

bool chars_is_unknown(int32_t c)
{
    return range_of(chars_unknown, chars_n_unknown, c) != NULL;
}

static unsigned newer_class(int32_t c)
{
    const struct chars_range *newer = range_of(chars_newer, chars_n_newer, c);
    return newer ? newer->class_bit : CHAR_OTHER;
}

bool chars_is_sign(int32_t c)
{
    const utf8proc_category_t category = utf8proc_category(c);
    if (category == UTF8PROC_CATEGORY_CN) {
        const struct chars_range *newer = range_of(chars_newer, chars_n_newer, c);
        return newer && newer->class_bit == CHAR_OTHER;
    }
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO;
}

static unsigned class_of(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return CHAR_UPPER;
    case UTF8PROC_CATEGORY_LL: return CHAR_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return CHAR_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return CHAR_NUMBER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return CHAR_MARK;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return CHAR_SPACE;
    case UTF8PROC_CATEGORY_CN: return newer_class(c);
    default: return c == 0x85 ? CHAR_SPACE : CHAR_OTHER;
    }
}

uint8_t chars_kept[CHARS_KEPT];

/* Threads that ask for the same character store the same. */
unsigned chars_find_class(int32_t c)
{
    const uint8_t found = (uint8_t)class_of(c);
    if (c < CHARS_KEPT) __atomic_store_n(&chars_kept[c], found, __ATOMIC_RELAXED);
    return found;
}

bool chars_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_CN: return newer_class(c) != CHAR_OTHER;
    /* Symbols that Unicode lists as Other_Alphabetic: circled and squared letters. */
    default:
        return c == 0x200C || c == 0x200D ||
               ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189));
    }
}

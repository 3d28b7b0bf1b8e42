/* SentencePiece's precompiled character maps: a double array (Darts-clone) of byte strings, each
 * leading to a place among terminated texts. Four bytes in front say how long the array is.
 *
 * A unit holds the label in its low byte, bit 8: a value follows, bits 10 to 30 the offset to its
 * children, shifted by 8 more where bit 9 is set; a value is a unit with bit 31. */
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

#define HAS_VALUE 0x100u
#define LABEL     0x800000FFu
#define VALUE     0x7FFFFFFFu

static inline uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200u) >> 6);
}

/* The place must be the beginning of a text: whole characters up to a NUL. */
static cz_status check_texts(const struct charsmap *m)
{
    if (m->n_texts > 0 && m->texts[m->n_texts - 1] == '\0' && utf8_is_valid(m->texts, m->n_texts))
        return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "a character map's texts are no terminated UTF-8");
}

cz_status charsmap_init(struct charsmap *m, const char *blob, size_t nbytes)
{
    uint32_t n_array = 0;
    memset(m, 0, sizeof *m);
    if (nbytes >= 4)
        for (int i = 3; i >= 0; i--) n_array = n_array << 8 | (unsigned char)blob[i];
    if (nbytes < 4 || n_array % 4 != 0 || n_array == 0 || n_array > nbytes - 4)
        return err_set(CZ_CORRUPT, 0, "a character map of %zu bytes has an array of %u", nbytes,
                       (unsigned)n_array);
    m->n_units = n_array / 4;
    m->n_texts = nbytes - 4 - n_array;
    m->units = malloc(n_array);
    m->texts = malloc(m->n_texts + 1);
    if (!m->units || !m->texts) {
        charsmap_free(m);
        return err_set(CZ_NOMEM, 0, "no memory for a character map");
    }
    for (size_t i = 0; i < m->n_units; i++) {
        const unsigned char *u = (const unsigned char *)blob + 4 + 4 * i;
        m->units[i] = u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
    }
    memcpy(m->texts, blob + 4 + n_array, m->n_texts);
    m->texts[m->n_texts] = '\0';
    cz_status st = check_texts(m);
    if (st != CZ_OK) charsmap_free(m);
    return st;
}

void charsmap_free(struct charsmap *m)
{
    free(m->units);
    free(m->texts);
    memset(m, 0, sizeof *m);
}

/* NULL also where the array leads out of itself, or into the middle of a character: a damaged map
 * maps nothing there. */
const char *charsmap_find(const struct charsmap *m, const char *s, size_t n, bool longest,
                          size_t *n_key)
{
    const char *found = NULL;
    if (m->n_units == 0) return NULL;
    size_t at = offset_of(m->units[0]);
    if (n > CHARSMAP_KEY_MAX) n = CHARSMAP_KEY_MAX;
    for (size_t i = 0; i < n && s[i] != '\0'; i++) {
        const unsigned char byte = (unsigned char)s[i];
        at ^= byte;
        if (at >= m->n_units) break;
        const uint32_t unit = m->units[at];
        if ((unit & LABEL) != byte) break;
        at ^= offset_of(unit);
        if (!(unit & HAS_VALUE)) continue;
        if (at >= m->n_units) break;
        const size_t place = m->units[at] & VALUE;
        if (place >= m->n_texts || ((unsigned char)m->texts[place] & 0xC0) == 0x80) continue;
        found = m->texts + place;
        *n_key = i + 1;
        if (!longest) break;
    }
    return found;
}

/* ---- tokenizer.json's step ------------------------------------------------------------------- */

/* Characters that stand alone whatever is around them: the ends of graphemes between two of them
 * need no table. */
static bool is_simple(int32_t c)
{
    return c >= 0x20 && c < 0x300 && c != 0xAD && !(c >= 0x7F && c < 0xA0) && c != 0xA9 &&
           c != 0xAE;
}

#define GRAPHEME_MAX 5

/* Bytes of the first grapheme. */
static size_t grapheme(const char *s, size_t n)
{
    size_t at, len;
    utf8proc_int32_t state = 0;
    int32_t c = chars_at(s, n, &at);
    for (; at < n; at += len) {
        const int32_t next = chars_at(s + at, n - at, &len);
        if (is_simple(c) && is_simple(next)) break;
        if (utf8proc_grapheme_break_stateful(c, next, &state)) break;
        c = next;
    }
    return at;
}

/* As the library does it: a grapheme of up to five bytes becomes the text of the shortest key that
 * it begins with, whole; of others each character becomes that of its own. */
cz_status pipe_norm_precompiled(const struct pipe_norm *step, struct pipe_piece *piece,
                                struct pipe_text *dst)
{
    const char *s = piece->s, *text;
    size_t len, n_key;
    for (size_t n = piece->n; n > 0;) {
        const size_t whole = grapheme(s, n);
        if (whole <= GRAPHEME_MAX && (text = charsmap_find(&step->map, s, whole, false, &n_key))) {
            TRY(pipe_text_add(dst, text, strlen(text)));
        } else {
            for (size_t at = 0; at < whole; at += len) {
                (void)chars_at(s + at, whole - at, &len);
                text = charsmap_find(&step->map, s + at, len, false, &n_key);
                TRY(text ? pipe_text_add(dst, text, strlen(text))
                         : pipe_text_add(dst, s + at, len));
            }
        }
        s += whole;
        n -= whole;
    }
    return CZ_OK;
}

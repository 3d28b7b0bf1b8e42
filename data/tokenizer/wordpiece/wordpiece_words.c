/* A text's words, one character at a time: cleaned, split, without accents, in small letters. */
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include "base/utf8.h"

#include <string.h>

#define REPLACEMENT 0xFFFDu

/* ---- characters into a word ------------------------------------------------------------------ */

static void add_letter(struct wp_word *w, const char *bytes, size_t nbytes)
{
    if (w->n_chars++ >= w->n_chars_max) return;
    memcpy(w->text + w->nbytes, bytes, nbytes);
    w->nbytes += nbytes;
}

/* A mark goes in front of marks of higher classes (Unicode's canonical ordering). */
static void add_mark(struct wp_word *w, const char *bytes, size_t nbytes, uint8_t combining_class)
{
    if (w->n_chars++ >= w->n_chars_max) return;
    size_t at = w->nbytes;
    while (at > w->fence) {
        size_t end = at;
        do end--;
        while (((unsigned char)w->text[end] & 0xC0) == 0x80);
        size_t start = end;
        if (wp_combining_class(utf8_decode(w->text + start, (int)(at - start))) <= combining_class)
            break;
        at = start;
    }
    memmove(w->text + at + nbytes, w->text + at, w->nbytes - at);
    memcpy(w->text + at, bytes, nbytes);
    w->nbytes += nbytes;
}

static void add_changed(struct wp_word *w, const struct wp_rules *rules, uint32_t c)
{
    char bytes[4];
    size_t nbytes = utf8_encode(c, bytes);
    uint8_t combining_class = rules->strip_accents ? wp_combining_class(c) : 0;
    if (combining_class == 0)
        add_letter(w, bytes, nbytes);
    else
        add_mark(w, bytes, nbytes, combining_class);
}

/* The character at s; what is no UTF-8 counts as U+FFFD. */
static uint32_t next_char(const char *s, size_t n, size_t *len)
{
    int found = utf8_length(s, n);
    if (found > 0) {
        *len = (size_t)found;
        return utf8_decode(s, found);
    }
    *len = utf8_broken_length(s, n);
    return REPLACEMENT;
}

/* ---- words ----------------------------------------------------------------------------------- */

struct splitter {
    struct wp_word *word;
    wp_take take;
    void *user;
};

static cz_status end_word(const struct splitter *sp)
{
    struct wp_word *w = sp->word;
    size_t nbytes = w->nbytes, n_chars = w->n_chars;
    if (n_chars == 0) return CZ_OK;
    w->nbytes = w->n_chars = w->fence = 0;
    return sp->take(sp->user, w->text, nbytes, n_chars);
}

static cz_status add_alone(const struct splitter *sp, uint32_t c)
{
    char bytes[4];
    TRY(end_word(sp));
    add_letter(sp->word, bytes, utf8_encode(c, bytes));
    return end_word(sp);
}

static cz_status add_change(const struct splitter *sp, const struct wp_rules *rules, uint32_t c)
{
    uint32_t out[WP_CHANGE_MAX];
    size_t n = wp_change(rules, c, out);
    for (size_t i = 0; i < n; i++) {
        if (out[i] == WP_BREAK) {
            sp->word->fence = sp->word->nbytes;
            continue;
        }
        enum wp_action action = wp_split(out[i]);
        if (action == WP_SPACE)
            TRY(end_word(sp));
        else if (action == WP_ALONE)
            TRY(add_alone(sp, out[i]));
        else
            add_changed(sp->word, rules, out[i]);
    }
    return CZ_OK;
}

static cz_status add_char(const struct splitter *sp, const struct wp_chars *chars, uint32_t c)
{
    char bytes[4];
    switch (wp_action_of(chars, c)) {
    case WP_LETTER: add_letter(sp->word, bytes, utf8_encode(c, bytes)); return CZ_OK;
    case WP_SPACE: return end_word(sp);
    case WP_ALONE: return add_alone(sp, c);
    case WP_CHANGE: return add_change(sp, &chars->rules, c);
    case WP_DROP:
    case WP_N_ACTIONS: break;
    }
    return CZ_OK;
}

/* A run of plain letters. Returns how many bytes it has. */
static size_t add_ascii(struct wp_word *w, const struct wp_chars *chars, const char *s, size_t n)
{
    size_t i = 0, room = w->n_chars < w->n_chars_max ? w->n_chars_max - w->n_chars : 0;
    size_t n_stored = n < room ? n : room;
    char *dst = w->text + w->nbytes, letter;
    for (; i < n_stored && (letter = chars->letters[(unsigned char)s[i]]) != 0; i++)
        dst[i] = letter;
    w->nbytes += i;
    if (i == room)
        while (i < n && chars->letters[(unsigned char)s[i]] != 0) i++;
    w->n_chars += i;
    return i;
}

cz_status wp_words(const struct wp_chars *chars, const char *text, size_t nbytes,
                   struct wp_word *word, wp_take take, void *user)
{
    struct splitter sp = {word, take, user};
    for (size_t i = 0; i < nbytes;) {
        unsigned char byte = (unsigned char)text[i];
        if (chars->letters[byte]) {
            i += add_ascii(word, chars, text + i, nbytes - i);
            continue;
        }
        size_t len = 1;
        uint32_t c = byte < 0x80 ? byte : next_char(text + i, nbytes - i, &len);
        TRY(add_char(&sp, chars, c));
        i += len;
    }
    return end_word(&sp);
}

size_t wp_normalize(const struct wp_chars *chars, const char *text, size_t nbytes, char *dst)
{
    struct wp_word w = {.text = dst, .n_chars_max = SIZE_MAX};
    uint32_t out[WP_CHANGE_MAX];
    size_t len;
    for (size_t i = 0; i < nbytes; i += len) {
        if (chars->letters[(unsigned char)text[i]]) {
            len = add_ascii(&w, chars, text + i, nbytes - i);
            continue;
        }
        const uint32_t c = next_char(text + i, nbytes - i, &len);
        const enum wp_action action = wp_action_of(chars, c);
        size_t n = 0;
        if (action == WP_LETTER || action == WP_ALONE) { /* stays; ideographs get spaces around */
            const bool is_apart = chars->rules.split_chinese && wp_is_chinese(c);
            if (is_apart) out[n++] = ' ';
            out[n++] = c;
            if (is_apart) out[n++] = ' ';
        } else {
            n = wp_change(&chars->rules, c, out);
        }
        for (size_t k = 0; k < n; k++) {
            if (out[k] == WP_BREAK)
                w.fence = w.nbytes;
            else
                add_changed(&w, &chars->rules, out[k]);
        }
    }
    return w.nbytes;
}

/* WordPiece: a text's words, each split into the longest tokens that it begins with; and what the
 * ids decode to. Results equal those of Hugging Face's tokenizers, which tests compare
 * (tests/interop). */
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- encoding -------------------------------------------------------------------------------- */

struct encoder {
    const struct wordpiece *wp;
    struct id_list *out;
};

/* Greedy: the longest token at the beginning, then the longest continuation, and so on; a word of
 * which some part is no token is unknown as a whole. */
static cz_status add_word(void *user, const char *word, size_t nbytes, size_t n_chars)
{
    const struct encoder *e = user;
    const struct wordpiece *wp = e->wp;
    size_t n_before = e->out->n, len = 0;
    int32_t node = 0;
    if (n_chars > wp->n_chars_max) return id_list_add(e->out, wp->unk);
    for (size_t at = 0; at < nbytes; at += len) {
        int32_t id = node < 0 ? -1 : wp_trie_longest(&wp->trie, node, word + at, nbytes - at, &len);
        if (id < 0) {
            e->out->n = n_before;
            return id_list_add(e->out, wp->unk);
        }
        TRY(id_list_add(e->out, id));
        node = wp->inside;
    }
    return CZ_OK;
}

/* Text that the rules have been applied to: added tokens, and words between them. */
static cz_status encode_normalized(const struct wordpiece *wp, const char *text, size_t nbytes,
                                   struct wp_word *word, struct encoder *e)
{
    struct added_token token;
    size_t from = 0, start, end, done = 0;
    while (
        added_tokens_next(&wp->added_normalized, text, nbytes, done, &from, &start, &end, &token)) {
        TRY(wp_words(wp->plain, text + done, start - done, word, add_word, e));
        TRY(id_list_add(e->out, token.id));
        done = end;
    }
    return wp_words(wp->plain, text + done, nbytes - done, word, add_word, e);
}

/* Only where added tokens are searched in normalized text is a normalized copy made; otherwise
 * words are normalized as they are read. */
static cz_status encode_between(const struct wordpiece *wp, const char *text, size_t nbytes,
                                struct wp_word *word, struct encoder *e)
{
    if (nbytes == 0) return CZ_OK;
    if (!wp->plain) return wp_words(wp->chars, text, nbytes, word, add_word, e);
    char *normalized = malloc(wp_normalized_nbytes_max(nbytes));
    if (!normalized) return err_set(CZ_NOMEM, 0, "no memory for a text of %zu bytes", nbytes);
    size_t n = wp_normalize(wp->chars, text, nbytes, normalized);
    cz_status st = encode_normalized(wp, normalized, n, word, e);
    free(normalized);
    return st;
}

static cz_status encode_text(const struct wordpiece *wp, const char *text, size_t nbytes,
                             struct wp_word *word, struct id_list *out)
{
    struct encoder e = {wp, out};
    struct added_token token;
    size_t from = 0, start, end, done = 0;
    while (added_tokens_next(&wp->added, text, nbytes, done, &from, &start, &end, &token)) {
        TRY(encode_between(wp, text + done, start - done, word, &e));
        TRY(id_list_add(out, token.id));
        done = end;
    }
    return encode_between(wp, text + done, nbytes - done, word, &e);
}

#define CHAR_NBYTES 4
#define SMALL_WORD  (CHAR_NBYTES * WP_N_CHARS_DEFAULT)

static cz_status wordpiece_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                                  struct id_list *out)
{
    const struct wordpiece *wp = (const struct wordpiece *)tok;
    char small[SMALL_WORD], *large = NULL;
    struct wp_word word = {.text = small, .n_chars_max = wp->n_chars_max};
    if (wp->n_chars_max > WP_N_CHARS_DEFAULT) {
        word.text = large = malloc(CHAR_NBYTES * wp->n_chars_max);
        if (!large) return err_set(CZ_NOMEM, 0, "no memory for a word");
    }
    cz_status st = encode_text(wp, text, nbytes, &word, out);
    free(large);
    return st;
}

/* At white space, which ends words and marks' reach, unless an added token reaches over it. Added
 * tokens of normalized text may hold white space of any kind: no place is sure then. */
static size_t wordpiece_cut(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                            size_t from)
{
    const struct wordpiece *wp = (const struct wordpiece *)tok;
    int n_tried = 0;
    for (size_t at = from; at < nbytes && !wp->plain; at++) {
        if (text[at] != ' ' && text[at] != '\n') continue;
        if (!added_tokens_touch(&wp->added, text, nbytes, at)) return at;
        if (++n_tried == TOKENIZER_CUTS_TRIED) break;
    }
    return nbytes;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Words are separated by spaces, but . ? ! and , follow directly, as Hugging Face's decoder has
 * it. */
static size_t wordpiece_piece(const struct cz_tokenizer *tok, int64_t id, bool first, char *dst)
{
    const struct wordpiece *wp = (const struct wordpiece *)tok;
    const char *text = wp->text + wp->offs[id];
    size_t n = wp->lens[id], n_prefix = wp->prefix_nbytes, used = 0;
    if (!first && n >= n_prefix && memcmp(text, wp->prefix, n_prefix) == 0) {
        text += n_prefix;
        n -= n_prefix;
    } else if (!first && !(n > 0 && strchr(".?!,", text[0]))) {
        dst[used++] = ' ';
    }
    memcpy(dst + used, text, n);
    return used + n;
}

static bool wordpiece_is_added(const struct cz_tokenizer *tok, int64_t id)
{
    const struct wordpiece *wp = (const struct wordpiece *)tok;
    return added_tokens_have(&wp->added, id) || added_tokens_have(&wp->added_normalized, id);
}

static void wordpiece_close(struct cz_tokenizer *tok)
{
    struct wordpiece *wp = (struct wordpiece *)tok;
    wp_trie_free(&wp->trie);
    added_tokens_free(&wp->added);
    added_tokens_free(&wp->added_normalized);
    free(wp->prefix);
    free(wp->text);
    free(wp->offs);
    free(wp->lens);
    free(wp);
}

const struct tokenizer_class wordpiece_class = {.name = "WordPiece",
                                                .encode = wordpiece_encode,
                                                .cut = wordpiece_cut,
                                                .piece = wordpiece_piece,
                                                .is_added = wordpiece_is_added,
                                                .close = wordpiece_close};

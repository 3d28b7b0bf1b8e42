/* A WordPiece tokenizer from what its files say. wordpiece_vocab.c and wordpiece_json.c gather the
 * same lists from their formats; this file turns them into the trie, the texts of ids and the sets
 * of added tokens, so that both formats give one behaviour. */
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include "base/hash.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- gathering ------------------------------------------------------------------------------- */

/* text is not copied: it belongs to the file, which stays in memory until the build is done. Ids
 * are bounded here, because tables are sized by the largest. */
cz_status wp_source_add_token(struct wp_source *src, const char *text, size_t nbytes, int64_t id)
{
    if (id < 0 || id > WP_ID_MAX)
        return err_set(CZ_CORRUPT, 0, "%s: id %" PRId64 " is outside 0 … %d", src->path, id,
                       WP_ID_MAX);
    if (nbytes > WP_TOKEN_MAX)
        return err_set(CZ_CORRUPT, 0, "%s: token %" PRId64 " has %zu bytes: no token is that long",
                       src->path, id, nbytes);
    if (src->n_tokens == src->cap_tokens) {
        size_t cap = 2 * src->cap_tokens + 1024;
        struct wp_token *tokens = realloc(src->tokens, cap * sizeof *tokens);
        if (!tokens) return err_set(CZ_NOMEM, 0, "no memory for %zu tokens", cap);
        src->tokens = tokens;
        src->cap_tokens = cap;
    }
    src->tokens[src->n_tokens++] = (struct wp_token){text, nbytes, (int32_t)id};
    return CZ_OK;
}

cz_status wp_source_add_added(struct wp_source *src, const struct wp_added *added)
{
    if (src->n_added == src->cap_added) {
        size_t cap = 2 * src->cap_added + 16;
        struct wp_added *grown = realloc(src->added, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu added tokens", cap);
        src->added = grown;
        src->cap_added = cap;
    }
    src->added[src->n_added++] = *added;
    return CZ_OK;
}

void wp_source_free(struct wp_source *src)
{
    free(src->tokens);
    free(src->added);
    memset(src, 0, sizeof *src);
}

/* ---- finding --------------------------------------------------------------------------------- */

static int32_t find_in_model(const struct wordpiece *wp, const char *content)
{
    int32_t node = wp_trie_walk(&wp->trie, 0, content, strlen(content));
    return node < 0 ? -1 : wp->trie.nodes[node].id;
}

/* Linear: a vocabulary has some tens of added tokens, and texts are searched by their tree
 * instead. */
static int64_t find_in_added(const struct wordpiece *wp, const struct added_tokens *set,
                             const char *content)
{
    size_t n = strlen(content);
    for (size_t i = 0; i < set->n; i++) {
        int64_t id = set->tokens[i].id;
        if (wp->lens[id] == n && memcmp(wp->text + wp->offs[id], content, n) == 0) return id;
    }
    return -1;
}

/* The model's tokens come before added ones of the same text: place_added() has given those the
 * same id. */
int64_t wordpiece_find(const void *user, const char *content)
{
    const struct wordpiece *wp = user;
    int64_t id = find_in_model(wp, content);
    if (id < 0) id = find_in_added(wp, &wp->added, content);
    return id < 0 ? find_in_added(wp, &wp->added_normalized, content) : id;
}

const char *wordpiece_usual_name(enum cz_special which)
{
    static const char *const names[CZ_SPECIAL_COUNT] = {
        [CZ_SPECIAL_PAD] = "[PAD]", [CZ_SPECIAL_UNK] = "[UNK]",   [CZ_SPECIAL_CLS] = "[CLS]",
        [CZ_SPECIAL_SEP] = "[SEP]", [CZ_SPECIAL_MASK] = "[MASK]",
    };
    return names[which];
}

/* ---- building -------------------------------------------------------------------------------- */

/* One more than the largest id; a vocab.json may have gaps. */
static int64_t count_model_ids(const struct wp_source *src)
{
    int64_t n = 0;
    for (size_t i = 0; i < src->n_tokens; i++)
        if (src->tokens[i].id >= n) n = src->tokens[i].id + 1;
    return n;
}

struct wanted {
    const struct wp_source *src;
    const char *content;
};

static bool has_content(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->src->added[item].content, w->content) == 0;
}

/* An added token named twice is one token. */
static int64_t id_of_earlier(const struct wp_source *src, const struct hash_index *contents,
                             const char *content)
{
    size_t i =
        hash_index_find(contents, hash_text(content), has_content, &(struct wanted){src, content});
    return i == HASH_NONE ? -1 : src->added[i].token.id;
}

/* Ids of added tokens; optional ones that are not in the vocabulary go. An id inside the model's
 * range is not believed: it would take the place of another token. Such a token, and one without an
 * id, gets the next free id behind the vocabulary. */
static cz_status place_each(const struct wordpiece *wp, struct wp_source *src,
                            struct hash_index *contents)
{
    int64_t n_model = count_model_ids(src), next = n_model;
    size_t n = 0;
    for (size_t i = 0; i < src->n_added; i++) {
        struct wp_added a = src->added[i];
        int64_t id = find_in_model(wp, a.content);
        if (id < 0) id = id_of_earlier(src, contents, a.content);
        if (a.content[0] == '\0' || (id < 0 && a.optional)) continue;
        if (id < 0) id = a.token.id >= n_model ? a.token.id : next;
        if (id > WP_ID_MAX)
            return err_set(CZ_CORRUPT, 0, "%s: added token \"%s\": id %" PRId64 " is above %d",
                           src->path, a.content, id, WP_ID_MAX);
        if (id >= next) next = id + 1;
        a.token.id = (int32_t)id;
        src->added[n] = a;
        if (id_of_earlier(src, contents, a.content) < 0)
            TRY(hash_index_add(contents, hash_text(a.content), n));
        n++;
    }
    src->n_added = n;
    return CZ_OK;
}

static cz_status place_added(const struct wordpiece *wp, struct wp_source *src)
{
    struct hash_index contents = {0};
    cz_status st = place_each(wp, src, &contents);
    hash_index_free(&contents);
    return st;
}

/* piece_nbytes_max leaves a byte for the space that decoding puts before whole words. */
static void put_text(struct wordpiece *wp, int32_t id, const char *text, size_t nbytes,
                     uint64_t *used)
{
    memcpy(wp->text + *used, text, nbytes);
    wp->offs[id] = *used;
    wp->lens[id] = (uint32_t)nbytes;
    *used += nbytes;
    if (nbytes + 1 > wp->tok.piece_nbytes_max) wp->tok.piece_nbytes_max = nbytes + 1;
}

/* One block for all texts. Added tokens come after the model's: one that names a token of the model
 * stores the same text again, which changes nothing. */
static cz_status keep_texts(struct wordpiece *wp, const struct wp_source *src)
{
    uint64_t nbytes = 0, used = 0;
    int64_t n_ids = count_model_ids(src);
    for (size_t i = 0; i < src->n_added; i++)
        if (src->added[i].token.id >= n_ids) n_ids = src->added[i].token.id + 1;
    for (size_t i = 0; i < src->n_tokens; i++) nbytes += src->tokens[i].nbytes;
    for (size_t i = 0; i < src->n_added; i++) nbytes += strlen(src->added[i].content);
    wp->text = malloc(nbytes + 1);
    wp->offs = calloc((size_t)n_ids, sizeof *wp->offs);
    wp->lens = calloc((size_t)n_ids, sizeof *wp->lens);
    if (!wp->text || !wp->offs || !wp->lens)
        return err_set(CZ_NOMEM, 0, "no memory for %" PRId64 " tokens", n_ids);
    wp->tok.vocab_size = n_ids;
    wp->tok.piece_nbytes_max = 1;
    for (size_t i = 0; i < src->n_tokens; i++) {
        const struct wp_token *t = &src->tokens[i];
        if (wp->lens[t->id] > 0)
            return err_set(CZ_CORRUPT, 0, "%s: two tokens have id %d", src->path, t->id);
        put_text(wp, t->id, t->text, t->nbytes, &used);
    }
    for (size_t i = 0; i < src->n_added; i++)
        put_text(wp, src->added[i].token.id, src->added[i].content, strlen(src->added[i].content),
                 &used);
    return CZ_OK;
}

/* wp->plain has no rules: it splits the text around a token that was found in normalized text,
 * which must not be normalized twice. */
static cz_status keep_added(struct wordpiece *wp, const struct wp_source *src)
{
    static const struct wp_rules no_rules = {0};
    for (size_t i = 0; i < src->n_added; i++) {
        const struct wp_added *a = &src->added[i];
        if (a->token.normalized) {
            /* A token that is searched in normalized text is normalized itself. */
            size_t n = strlen(a->content);
            char *normalized = malloc(wp_normalized_nbytes_max(n));
            if (!normalized) return err_set(CZ_NOMEM, 0, "no memory for an added token");
            n = wp_normalize(wp->chars, a->content, n, normalized);
            cz_status st = CZ_OK;
            if (n > 0) st = added_tokens_add(&wp->added_normalized, normalized, n, &a->token);
            free(normalized);
            TRY(st);
        } else
            TRY(added_tokens_add(&wp->added, a->content, strlen(a->content), &a->token));
    }
    if (wp->added_normalized.n == 0) return CZ_OK;
    wp->plain = wp_chars_of(&no_rules);
    return wp->plain ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
}

/* The trie comes first because it sorts the tokens, which shows doubles, and because everything
 * after it looks tokens up. */
static cz_status build(struct wordpiece *wp, struct wp_source *src)
{
    wp->n_chars_max = (size_t)src->n_chars_max;
    wp->prefix_nbytes = strlen(src->prefix);
    wp->prefix = strdup(src->prefix);
    if (!wp->prefix) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    TRY(wp_trie_build(&wp->trie, src->tokens, src->n_tokens));
    /* Tokens are in order now, equal ones beside each other. */
    size_t n_doubles = 0;
    const struct wp_token *example = NULL;
    for (size_t i = 1; i < src->n_tokens; i++) {
        const struct wp_token *a = &src->tokens[i - 1], *b = &src->tokens[i];
        if (a->nbytes != b->nbytes || memcmp(a->text, b->text, a->nbytes) != 0) continue;
        if (!example) example = a;
        n_doubles++;
    }
    if (example)
        LOGV(LOG_WARN, SUB_DATA,
             "%s: %zu tokens occur more than once (for example as ids %d and %d); the last id is "
             "used",
             src->path, n_doubles, example[0].id, example[1].id);
    wp->inside = wp_trie_walk(&wp->trie, 0, src->prefix, wp->prefix_nbytes);
    wp->unk = find_in_model(wp, src->unk);
    if (wp->unk < 0)
        return err_set(CZ_CORRUPT, 0, "%s: the token for unknown words, \"%s\", is missing",
                       src->path, src->unk);
    wp->chars = wp_chars_of(&src->rules);
    if (!wp->chars) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    TRY(place_added(wp, src));
    TRY(keep_texts(wp, src));
    TRY(keep_added(wp, src));
    wp->tok.special[CZ_SPECIAL_UNK] = wp->unk;
    return CZ_OK;
}

cz_status wordpiece_build(struct wp_source *src, struct wordpiece **out)
{
    *out = NULL;
    if (src->n_tokens == 0) return err_set(CZ_CORRUPT, 0, "%s: contains no tokens", src->path);
    if (src->n_chars_max < 1 || src->n_chars_max > WP_N_CHARS_MAX)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: words of at most %" PRId64 " characters (the size must be 1 to %d)",
                       src->path, src->n_chars_max, WP_N_CHARS_MAX);
    struct wordpiece *wp = calloc(1, sizeof *wp);
    if (!wp) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    tokenizer_init(&wp->tok, &wordpiece_class);
    cz_status st = build(wp, src);
    if (st != CZ_OK) {
        cz_tokenizer_close(&wp->tok);
        return st;
    }
    *out = wp;
    return CZ_OK;
}

/* Opening a byte-level BPE tokenizer: tokens, merges, and the model of tokenizer.json. */
#include "data/tokenizer/bpe/bpe_open_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- source ---------------------------------------------------------------------------------- */

/* Repeats are kept with a pointer to the first one and not indexed again: read_added() compares
 * their ids once the vocabulary is there. */
cz_status bpe_source_add(struct bpe_source *src, const struct bpe_added *added)
{
    if (src->n_added == src->cap_added) {
        size_t cap = 2 * src->cap_added + 16;
        struct bpe_added *grown = realloc(src->added, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for added tokens");
        src->added = grown;
        src->cap_added = cap;
    }
    size_t n = strlen(added->content);
    src->added[src->n_added] = *added;
    src->added[src->n_added++].is_repeat = added_tokens_find(&src->index, added->content, n);
    if (n == 0 || src->added[src->n_added - 1].is_repeat) return CZ_OK;
    return added_tokens_add(&src->index, added->content, n, &added->token);
}

void bpe_source_free(struct bpe_source *src)
{
    free(src->added);
    added_tokens_free(&src->index);
    memset(src, 0, sizeof *src);
}

/* The vocabulary first: an added token that it holds, too, has its id from there. */
int64_t bpe_find_token(const void *user, const char *content)
{
    const struct bpe_source *src = user;
    const struct json_node *node = json_get(src->vocab, content);
    int64_t id;
    if (node && json_as_int(node, &id) == CZ_OK) return id;
    const struct added_token *added = added_tokens_find(&src->index, content, strlen(content));
    return added ? added->id : -1;
}

cz_status bpe_create(struct bpe **out)
{
    struct bpe *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    if (pthread_mutex_init(&b->lock, NULL) != 0) {
        free(b);
        return err_set(CZ_NOMEM, 0, "no lock for a tokenizer");
    }
    tokenizer_init(&b->base, &bpe_class);
    b->model.unk_id = -1;
    *out = b;
    return CZ_OK;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* Before anything is sized by ids: a single id of 2⁶⁰ in a file must not ask for that much
 * memory. */
static cz_status check_id(const struct json_node *node, int64_t id)
{
    char where[512];
    if (id >= 0 && id <= BPE_ID_MAX) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: id %lld is outside 0 … %d",
                   json_where(node, where, sizeof where), (long long)id, BPE_ID_MAX);
}

/* Ids may have gaps, so tables are as long as the largest id and not as the number of tokens. */
cz_status bpe_largest_id(const struct bpe_source *src, int64_t *max)
{
    *max = -1;
    for (size_t i = 0; i < json_count(src->vocab); i++) {
        const struct json_node *node = json_child(src->vocab, i);
        int64_t id;
        TRY(json_as_int(node, &id));
        TRY(check_id(node, id));
        if (id > *max) *max = id;
    }
    for (size_t i = 0; i < src->n_added; i++)
        if (src->added[i].token.id > *max) *max = src->added[i].token.id;
    return CZ_OK;
}

/* Take an id for a token; `taken` has a bit for each. */
static cz_status set_token(struct bpe *b, unsigned char *taken, const struct json_node *node,
                           int64_t id, const char *written)
{
    char where[512];
    if (taken[id / 8] >> (id % 8) & 1)
        return err_set(CZ_CORRUPT, 0, "%s: another token has id %lld already",
                       json_where(node, where, sizeof where), (long long)id);
    taken[id / 8] |= (unsigned char)(1 << (id % 8));
    if (b->is_spaced) TRY(bpe_vocab_set_bytes(&b->written, id, written, strlen(written)));
    return bpe_vocab_set(&b->model.vocab, id, written, strlen(written));
}

/* After bpe_largest_id() has checked every id, so they index `taken` unchecked. */
static cz_status read_tokens(struct bpe *b, const struct bpe_source *src, unsigned char *taken)
{
    for (size_t i = 0; i < json_count(src->vocab); i++) {
        const struct json_node *node = json_child(src->vocab, i);
        int64_t id;
        TRY(json_as_int(node, &id));
        TRY(set_token(b, taken, node, id, json_key(node)));
    }
    return CZ_OK;
}

/* An added token may name a token of the vocabulary, by its id, or one that was added before. */
static cz_status read_added(struct bpe *b, const struct bpe_source *src, unsigned char *taken)
{
    char where[512];
    for (size_t i = 0; i < src->n_added; i++) {
        const struct bpe_added *a = &src->added[i];
        int64_t id = bpe_find_token(src, a->content);
        if (!*a->content) continue; /* in no text */
        if (id != a->token.id)
            return err_set(CZ_CORRUPT, 0, "%s: \"%s\" has id %lld here and id %lld before",
                           json_where(a->node, where, sizeof where), a->content,
                           (long long)a->token.id, (long long)id);
        if (a->is_repeat || json_get(src->vocab, a->content)) continue;
        TRY(set_token(b, taken, a->node, id, a->content));
    }
    return CZ_OK;
}

/* Added tokens that are searched in normalized text are normalized themselves, also decoded.
 * Normalized ones go to their own set, since they are searched in another text than the raw
 * ones. */
static cz_status add_to_sets(struct bpe *b, const struct bpe_source *src)
{
    struct bpe_work work = {0};
    cz_status st = CZ_OK;
    for (size_t i = 0; st == CZ_OK && i < src->n_added; i++) {
        const struct added_token *token = &src->added[i].token;
        const char *content = src->added[i].content;
        size_t n = strlen(content);
        if (n == 0) continue;
        if (token->normalized && b->nfc) {
            st = bpe_normalize(&work, &content, &n);
            const bool is_changed = st == CZ_OK && content != src->added[i].content;
            if (is_changed) st = bpe_vocab_set(&b->model.vocab, token->id, content, n);
            if (is_changed && st == CZ_OK && b->is_spaced)
                st = bpe_vocab_set_bytes(&b->written, token->id, content, n);
        }
        if (st == CZ_OK)
            st = added_tokens_add(token->normalized ? &b->normalized : &b->raw, content, n, token);
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(work.text); i++) free(work.text[i]);
    return st;
}

/* What a byte begins as: a token, or the tokens <0xC4><0xA0> of its character's UTF-8. Bytes that
 * have neither are unknown: check_unknown() decides whether that matters. */
static cz_status read_byte(struct bpe *b, const struct bpe_source *src, int byte,
                           bool byte_fallback)
{
    char written[3];
    struct bpe_byte *out = &b->model.bytes[byte];
    int64_t id;
    bpe_alphabet_char((unsigned char)byte, written);
    const struct json_node *node = json_get(src->vocab, written);
    if (node) {
        TRY(json_as_int(node, &id));
        *out = (struct bpe_byte){.ids = {(int32_t)id}, .n = 1, .is_known = true};
        return CZ_OK;
    }
    struct bpe_byte parts = {.n = 0};
    for (const char *c = written; byte_fallback && *c; c++) {
        char name[8];
        (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned)(unsigned char)*c);
        node = json_get(src->vocab, name);
        if (!node) return CZ_OK; /* unknown unless all parts are there */
        TRY(json_as_int(node, &id));
        parts.ids[parts.n++] = (int32_t)id;
    }
    *out = parts;
    return CZ_OK;
}

/* The order counts: ids are checked before tables get their size, the index is made of the model's
 * tokens alone (ignore_merges must not find added ones), bytes come after all tokens. */
cz_status bpe_read_vocab(struct bpe *b, const struct bpe_source *src, bool byte_fallback)
{
    int64_t max;
    char where[512];
    for (size_t i = 0; i < src->n_added; i++)
        TRY(check_id(src->added[i].node, src->added[i].token.id));
    TRY(bpe_largest_id(src, &max));
    if (max < 0)
        return err_set(CZ_CORRUPT, 0, "%s: the vocabulary is empty",
                       json_where(src->vocab, where, sizeof where));
    TRY(bpe_vocab_init(&b->model.vocab, max + 1));
    if (b->is_spaced) TRY(bpe_vocab_init(&b->written, max + 1));
    unsigned char *taken = calloc((size_t)max / 8 + 1, 1);
    if (!taken) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary");
    cz_status st = read_tokens(b, src, taken);
    if (st == CZ_OK && b->model.ignore_merges) st = bpe_vocab_index(&b->model.vocab);
    if (st == CZ_OK) st = read_added(b, src, taken);
    free(taken);
    TRY(st);
    b->model.growth = 1;
    for (int byte = 0; byte < 256; byte++) {
        TRY(read_byte(b, src, byte, byte_fallback));
        if (b->model.bytes[byte].n > b->model.growth) b->model.growth = b->model.bytes[byte].n;
    }
    return add_to_sets(b, src);
}

/* ---- merges ---------------------------------------------------------------------------------- */

/* tokenizer.json has a JSON path, merges.txt a line. */
static const char *place_text(const struct bpe_place *place, char *buf, size_t n)
{
    if (place->node) return json_where(place->node, buf, n);
    (void)snprintf(buf, n, "%s:%zu", place->path, place->line);
    return buf;
}

/* The id of the token s, which is terminated. A merge of tokens that do not exist could never
 * apply; a file that has one is not the one the model was trained with. */
static cz_status need_token(const struct bpe_source *src, const char *s,
                            const struct bpe_place *place, int32_t *id)
{
    const struct json_node *node = json_get(src->vocab, s);
    char where[512];
    int64_t found;
    if (!node)
        return err_set(CZ_CORRUPT, 0,
                       "%s: a merge needs the token \"%s\", which is not in the vocabulary",
                       place_text(place, where, sizeof where), s);
    TRY(json_as_int(node, &found));
    *id = (int32_t)found;
    return CZ_OK;
}

/* The key holds the left part, then the whole with the right part behind: three terminated strings
 * out of one buffer, since most merges are short. */
cz_status bpe_add_merge(struct bpe *b, const struct bpe_source *src, uint32_t rank,
                        const char *left, size_t n_left, const char *right, size_t n_right,
                        const struct bpe_place *place)
{
    char small[256], *key = small;
    int32_t ids[3] = {0};
    if (n_left + n_right >= sizeof small) key = malloc(n_left + n_right + 1);
    if (!key) return err_set(CZ_NOMEM, 0, "no memory for a merge");
    memcpy(key, left, n_left);
    key[n_left] = '\0';
    cz_status st = need_token(src, key, place, &ids[0]);
    if (st == CZ_OK) {
        memcpy(key + n_left, right, n_right);
        key[n_left + n_right] = '\0';
        st = need_token(src, key + n_left, place, &ids[1]);
    }
    if (st == CZ_OK) st = need_token(src, key, place, &ids[2]);
    if (st == CZ_OK) bpe_merges_add(&b->model.merges, ids[0], ids[1], rank, ids[2]);
    if (key != small) free(key);
    return st;
}

cz_status bpe_split_merge(const char *text, size_t n, size_t *n_left, const struct bpe_place *place)
{
    const char *space = memchr(text, ' ', n);
    char where[512];
    size_t at = space ? (size_t)(space - text) : 0;
    if (!space || at == 0 || at + 1 == n || memchr(space + 1, ' ', n - at - 1))
        return err_set(CZ_CORRUPT, 0,
                       "%s: a merge is two tokens with a space between, not \"%.*s\"",
                       place_text(place, where, sizeof where), n < 80 ? (int)n : 80, text);
    *n_left = at;
    return CZ_OK;
}

/* "a b", or ["a", "b"] since tokens may hold spaces. */
static cz_status read_merge(struct bpe *b, const struct bpe_source *src,
                            const struct json_node *node, uint32_t rank)
{
    const struct bpe_place place = {.node = node};
    const char *left, *right;
    size_t n_left;
    if (json_type(node) == JSON_ARRAY && json_count(node) == 2) {
        TRY(json_as_string(json_child(node, 0), &left));
        TRY(json_as_string(json_child(node, 1), &right));
        return bpe_add_merge(b, src, rank, left, strlen(left), right, strlen(right), &place);
    }
    TRY(json_as_string(node, &left));
    TRY(bpe_split_merge(left, strlen(left), &n_left, &place));
    right = left + n_left + 1;
    return bpe_add_merge(b, src, rank, left, n_left, right, strlen(right), &place);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What ends a text where no file says so. A folder with vocab.json and merges.txt alone has no such
 * file. */
static const char *const usual_ends[] = {"<|endoftext|>", "<|end_of_text|>"};

/* A vocabulary may hold a text like "<|endoftext|>" as an ordinary token; only an added one is cut
 * out of the input. */
static bool is_added(const struct bpe_source *src, int64_t id)
{
    for (size_t i = 0; i < src->n_added; i++)
        if (src->added[i].token.id == id) return true;
    return false;
}

/* cuts: places where a text may be divided among threads must be fit for every splitting step. A
 * tokenizer without any step splits nowhere. */
cz_status bpe_finish(struct bpe *b, const struct bpe_source *src, const char *dir)
{
    struct cz_tokenizer *tok = &b->base;
    TRY(bpe_starts_init(&b->model, &b->model.vocab));
    tok->vocab_size = b->model.vocab.size;
    const size_t n = b->is_spaced ? b->written.nbytes_max + (size_t)1 : b->model.vocab.nbytes_max;
    tok->piece_nbytes_max = n > 0 ? n : 1;
    b->cuts = b->n_steps > 0 ? ~0u : BPE_CUTS_NONE;
    bool is_split = false;
    for (size_t i = 0; i < b->n_steps; i++) {
        if (b->steps[i].split->cuts == BPE_CUTS_ANY) continue;
        b->cuts &= b->steps[i].split->cuts;
        is_split = true;
    }
    if (!is_split) b->cuts = BPE_CUTS_NONE;
    TRY(tokenizer_read_specials(dir, bpe_find_token, src, tok));
    for (size_t i = 0; tok->special[CZ_SPECIAL_EOS] < 0 && i < CZ_ARRAY_LEN(usual_ends); i++) {
        int64_t id = bpe_find_token(src, usual_ends[i]);
        if (id >= 0 && is_added(src, id)) tok->special[CZ_SPECIAL_EOS] = id;
    }
    if (tok->special[CZ_SPECIAL_UNK] < 0) tok->special[CZ_SPECIAL_UNK] = b->model.unk_id;
    return CZ_OK;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

/* Options of the model; *byte_fallback is for the vocabulary. Options that change the encoding and
 * are not supported are errors, never ignored. */
static cz_status read_options(struct bpe *b, const struct bpe_source *src,
                              const struct json_node *model, bool *byte_fallback)
{
    double dropout;
    const char *unk;
    char where[512];
    TRY(json_opt_double(model, "dropout", 0.0, &dropout));
    if (dropout != 0.0)
        return err_set(CZ_UNSUPPORTED, 0, "%s: merges are never dropped here; set it to null",
                       json_where(json_get(model, "dropout"), where, sizeof where));
    TRY(json_opt_bool(model, "byte_fallback", false, byte_fallback));
    TRY(json_opt_bool(model, "fuse_unk", false, &b->model.fuse_unk));
    TRY(json_opt_bool(model, "ignore_merges", false, &b->model.ignore_merges));
    TRY(json_opt_string(model, "unk_token", NULL, &unk));
    const struct json_node *node = unk ? json_get(src->vocab, unk) : NULL;
    int64_t id = -1;
    if (node) TRY(json_as_int(node, &id));
    if (node) TRY(check_id(node, id));
    b->model.unk_id = (int32_t)id;
    return CZ_OK;
}

/* An unknown token that there is not does no harm where every byte has a token. */
static cz_status check_unknown(const struct bpe *b, const struct json_node *model)
{
    const struct json_node *unk = json_get(model, "unk_token");
    char where[512];
    if (b->model.unk_id >= 0 || !unk || json_type(unk) == JSON_NULL) return CZ_OK;
    for (int byte = 0; byte <= 0xF4; byte++) /* no UTF-8 has a byte beyond, nor C0 and C1 */
        if (b->model.bytes[byte].n == 0 && byte != 0xC0 && byte != 0xC1)
            return err_set(CZ_CORRUPT, 0,
                           "%s: it is not in the vocabulary, and byte %d needs it for lack of a "
                           "token",
                           json_where(unk, where, sizeof where), byte);
    return CZ_OK;
}

/* In the order of the file: repeats refer to an earlier one. */
static cz_status list_added(struct bpe_source *src, const struct json_node *root)
{
    const struct json_node *list = json_get(root, "added_tokens");
    if (!list || json_type(list) == JSON_NULL) return CZ_OK;
    TRY(json_need(root, "added_tokens", JSON_ARRAY, &list));
    for (size_t i = 0; i < json_count(list); i++) {
        struct bpe_added added = {.node = json_child(list, i)};
        int64_t id;
        TRY(json_need_int(added.node, "id", &id));
        TRY(tokenizer_json_added(added.node, &added.token, &id, &added.content));
        TRY(check_id(added.node, id));
        added.token.id = (int32_t)id;
        TRY(bpe_source_add(src, &added));
    }
    return CZ_OK;
}

/* Steps are read before the vocabulary: added tokens are normalized by them. */
static cz_status read_json(struct bpe *b, struct bpe_source *src, const char *dir,
                           const struct json_node *root)
{
    const struct json_node *model;
    bool byte_fallback;
    TRY(json_need(root, "model", JSON_OBJECT, &model));
    TRY(json_need(model, "vocab", JSON_OBJECT, &src->vocab));
    TRY(list_added(src, root));
    TRY(read_options(b, src, model, &byte_fallback));
    TRY(bpe_read_steps(b, root));
    TRY(bpe_read_vocab(b, src, byte_fallback));
    TRY(check_unknown(b, model));
    const struct json_node *list;
    TRY(json_need(model, "merges", JSON_ARRAY, &list));
    TRY(bpe_merges_init(&b->model.merges, json_count(list)));
    for (size_t i = 0; i < json_count(list); i++)
        TRY(read_merge(b, src, json_child(list, i), (uint32_t)i));
    TRY(tokenizer_json_post(root, bpe_find_token, src, &b->base));
    TRY(bpe_finish(b, src, dir));
    return tokenizer_json_config(dir, root, bpe_find_token, src, &b->base);
}

/* An affix makes other tokens of the same text. */
static bool has_affix(const struct json_node *root, const char *key)
{
    const char *text = NULL;
    const struct json_node *node = json_get(json_get(root, "model"), key);
    return node && json_type(node) == JSON_STRING && json_as_string(node, &text) == CZ_OK && *text;
}

cz_status bpe_is_byte_level(const struct json_node *root, bool *is_it)
{
    struct bpe *b;
    *is_it = false;
    if (has_affix(root, "continuing_subword_prefix") || has_affix(root, "end_of_word_suffix"))
        return CZ_OK;
    TRY(bpe_create(&b));
    const cz_status st = bpe_read_steps(b, root);
    cz_tokenizer_close(&b->base);
    if (st == CZ_NOMEM) return st;
    *is_it = st != CZ_UNSUPPORTED; /* opening it gives another error */
    err_clear();
    return CZ_OK;
}

cz_status bpe_open_json(const char *dir, const struct json_node *root, struct cz_tokenizer **out)
{
    struct bpe_source src = {0};
    struct bpe *b;
    *out = NULL;
    TRY(bpe_create(&b));
    cz_status st = read_json(b, &src, dir, root);
    bpe_source_free(&src);
    if (st != CZ_OK) {
        cz_tokenizer_close(&b->base);
        return st;
    }
    *out = &b->base;
    return CZ_OK;
}

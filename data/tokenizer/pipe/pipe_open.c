/* Opening a tokenizer.json as a chain of steps: vocabulary, added tokens, and what follows from all
 * steps together. */
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- vocabulary ------------------------------------------------------------------------------ */

static cz_status check_id(const struct json_node *node, int64_t id)
{
    char where[512];
    if (id >= 0 && id <= BPE_ID_MAX) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: id %lld is outside 0 … %d",
                   json_where(node, where, sizeof where), (long long)id, BPE_ID_MAX);
}

/* Entry i of the vocabulary: an object's member, or an item [token, score] whose id is its place.
 */
static cz_status vocab_entry(const struct json_node *vocab, size_t i, const char **text,
                             int64_t *id)
{
    const struct json_node *node = json_child(vocab, i);
    char where[512];
    *id = (int64_t)i;
    if (json_type(vocab) == JSON_OBJECT) {
        *text = json_key(node);
        return json_as_int(node, id);
    }
    if (json_type(node) != JSON_ARRAY || json_count(node) != 2)
        return err_set(CZ_CORRUPT, 0, "%s: expected a token and its score",
                       json_where(node, where, sizeof where));
    return json_as_string(json_child(node, 0), text);
}

static const struct json_node *added_of(const struct json_node *root)
{
    const struct json_node *list = json_get(root, "added_tokens");
    return list && json_type(list) == JSON_ARRAY ? list : NULL;
}

/* Before anything is sized by ids. */
static cz_status largest_ids(const struct json_node *root, const struct json_node *vocab,
                             int64_t *max, int64_t *max_all)
{
    const struct json_node *added = added_of(root);
    const char *text;
    int64_t id;
    *max = -1;
    for (size_t i = 0; i < json_count(vocab); i++) {
        TRY(vocab_entry(vocab, i, &text, &id));
        TRY(check_id(json_child(vocab, i), id));
        if (id > *max) *max = id;
    }
    *max_all = *max;
    for (size_t i = 0; i < json_count(added); i++) {
        TRY(json_need_int(json_child(added, i), "id", &id));
        TRY(check_id(json_child(added, i), id));
        if (id > *max_all) *max_all = id;
    }
    return CZ_OK;
}

/* Ids and texts must both differ: of equal texts only one could be found. */
static cz_status check_index(const struct pipe *p, const struct json_node *vocab)
{
    const struct bpe_vocab *v = &p->bpe.vocab;
    char where[512];
    for (int64_t id = 0; id < v->size; id++) {
        if (v->lens[id] == 0) continue;
        if (bpe_vocab_find(v, v->bytes + v->offs[id], v->lens[id]) != (int32_t)id)
            return err_set(CZ_UNSUPPORTED, 0, "%s: token %lld has the text of another",
                           json_where(vocab, where, sizeof where), (long long)id);
    }
    return CZ_OK;
}

static cz_status read_vocab(struct pipe *p, const struct json_node *root,
                            const struct json_node *model)
{
    const struct json_node *vocab = json_get(model, "vocab");
    int64_t max = -1, max_all = -1, id;
    const char *text;
    char where[512];
    const enum json_type want = p->model == &pipe_model_unigram ? JSON_ARRAY : JSON_OBJECT;
    TRY(json_need(model, "vocab", want, &vocab));
    TRY(largest_ids(root, vocab, &max, &max_all));
    if (max < 0)
        return err_set(CZ_CORRUPT, 0, "%s: the vocabulary is empty",
                       json_where(vocab, where, sizeof where));
    TRY(bpe_vocab_init(&p->bpe.vocab, max + 1));
    TRY(bpe_vocab_init(&p->texts, max_all + 1));
    unsigned char *taken = calloc((size_t)max + 1, 1);
    if (!taken) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary");
    cz_status st = CZ_OK;
    for (size_t i = 0; st == CZ_OK && i < json_count(vocab); i++) {
        st = vocab_entry(vocab, i, &text, &id);
        if (st != CZ_OK) break;
        if (taken[id])
            st = err_set(CZ_CORRUPT, 0, "%s: another token has id %lld already",
                         json_where(json_child(vocab, i), where, sizeof where), (long long)id);
        taken[id] = 1;
        if (st == CZ_OK) st = bpe_vocab_set_bytes(&p->bpe.vocab, id, text, strlen(text));
        if (st == CZ_OK) st = bpe_vocab_set_bytes(&p->texts, id, text, strlen(text));
    }
    free(taken);
    TRY(st);
    TRY(bpe_vocab_index(&p->bpe.vocab));
    return check_index(p, vocab);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static bool is_wordlike(char c)
{
    return (unsigned char)c < 0x80 && (chars_ascii[(unsigned char)c] & (CHAR_L | CHAR_NUMBER));
}

/* A cut between a letter and a space before another letter must not be seen by a token that is
 * searched in normalized text, where the space may have become U+2581. */
static bool may_cross(const struct added_token *token, const char *s, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (s[i] == ' ' || (n - i >= 3 && memcmp(s + i, "\xE2\x96\x81", 3) == 0)) return true;
    const bool touches =
        s[0] == ' ' || (unsigned char)s[0] >= 0x80 || is_wordlike(s[0]) || is_wordlike(s[n - 1]);
    return touches && (token->lstrip || token->rstrip || token->single_word);
}

/* A piece that is a text of its own. */
static cz_status normalize_alone(const struct pipe *p, struct pipe_work *w,
                                 struct pipe_piece *piece)
{
    w->growth_free = PIPE_GROWTH_FREE;
    return pipe_normalize(p, w, piece);
}

static cz_status add_one(struct pipe *p, struct pipe_work *w, const struct json_node *node)
{
    struct added_token token;
    const char *content;
    char where[512];
    int64_t id;
    TRY(tokenizer_json_added(node, &token, &id, &content));
    struct pipe_piece piece = {.s = content, .n = strlen(content), .is_first = true};
    if (piece.n == 0) return CZ_OK; /* in no text */
    const int32_t known = bpe_vocab_find(&p->bpe.vocab, content, piece.n);
    if (known >= 0 && known != id)
        return err_set(CZ_CORRUPT, 0, "%s: \"%s\" has id %lld here and id %d before",
                       json_where(node, where, sizeof where), content, (long long)id, known);
    if (known < 0 && p->texts.lens[id] > 0)
        return err_set(CZ_CORRUPT, 0, "%s: another token has id %lld already",
                       json_where(node, where, sizeof where), (long long)id);
    token.id = (int32_t)id;
    if (token.normalized) {
        TRY(normalize_alone(p, w, &piece));
        if (piece.n == 0)
            return err_set(CZ_UNSUPPORTED, 0, "%s: the normalizer leaves nothing of \"%s\"",
                           json_where(node, where, sizeof where), content);
        p->has_crossing |= p->n_norms > 0 && may_cross(&token, piece.s, piece.n);
    }
    TRY(bpe_vocab_set_bytes(&p->texts, id, piece.s, piece.n));
    return added_tokens_add(token.normalized ? &p->normalized : &p->raw, piece.s, piece.n, &token);
}

static cz_status read_added(struct pipe *p, const struct json_node *root)
{
    const struct json_node *list = added_of(root);
    struct pipe_work *w = pipe_work_create();
    cz_status st = w ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for added tokens");
    for (size_t i = 0; st == CZ_OK && i < json_count(list); i++)
        st = add_one(p, w, json_child(list, i));
    pipe_work_destroy(w);
    return st;
}

struct token_finder {
    const struct pipe *p;
    const struct json_node *root;
};

/* The vocabulary first, then added tokens, by the content that the file gives them. */
static int64_t find_token(const void *user, const char *content)
{
    const struct token_finder *finder = user;
    const struct json_node *list = added_of(finder->root);
    const char *text;
    int64_t id = bpe_vocab_find(&finder->p->bpe.vocab, content, strlen(content));
    for (size_t i = 0; id < 0 && i < json_count(list); i++) {
        const struct json_node *node = json_child(list, i);
        if (json_need_string(node, "content", &text) == CZ_OK && strcmp(text, content) == 0 &&
            json_need_int(node, "id", &id) != CZ_OK)
            id = -1;
    }
    return id;
}

/* ---- where a text can be cut ----------------------------------------------------------------- */

/* Each character is looked at alone, or with others of its kind. */
static bool steps_are_local(const struct pipe *p)
{
    for (size_t i = 0; i < p->n_norms; i++) {
        const struct pipe_norm *step = &p->norms[i];
        if (step->cls->name && strcmp(step->cls->name, "ByteLevel") == 0) return false;
        if (step->pattern.match) continue;
        for (size_t k = 0; k < step->pattern.n; k++)
            if (chars_ascii[step->pattern.text[k] & 0x7F] & (CHAR_L | CHAR_NUMBER)) return false;
    }
    for (size_t i = 0; i < p->n_pres; i++) {
        const struct pipe_pre *step = &p->pres[i];
        if (step->length > 0 || (step->split && !(step->split->cuts & BPE_CUTS_AFTER_WORD)))
            return false;
        for (size_t k = 0; !step->pattern.match && k < step->pattern.n; k++)
            if (chars_ascii[step->pattern.text[k] & 0x7F] & (CHAR_L | CHAR_NUMBER)) return false;
    }
    return true;
}

/* Whether some step puts what is before `space` and what begins with it into different pieces. */
static bool splits_before(const struct pipe *p, const char *space, size_t n)
{
    for (size_t i = 0; i < p->n_pres; i++) {
        const struct pipe_pre *step = &p->pres[i];
        bool is_match = false;
        const bool is_space = n == 1 && space[0] == ' ';
        if (step->is_split && step->n_mark > 0) {
            if (is_space || (n == step->n_mark && memcmp(space, step->mark, n) == 0)) return true;
        } else if (step->split || step->use_regex) {
            if (is_space) return true;
        } else if (step->cls->next && !step->cls->change && step->behavior != PIPE_WITH_PREVIOUS) {
            char text[8] = {0};
            memcpy(text, space, n);
            text[n] = 'd';
            const size_t len = step->cls->next(step, text, n + 1, &is_match);
            if (is_match != step->invert && len == n) return true;
        }
    }
    return false;
}

/* c and " d" normalized apart are c and " d" normalized together; *space: what the space became. */
static cz_status parts_are_whole(const struct pipe *p, struct pipe_work *w, char c, int32_t *left,
                                 char *space, size_t *n_space)
{
    const char both[] = {c, ' ', 'd'};
    char alone[64], rest[64];
    size_t len;
    struct pipe_piece piece = {.s = both, .n = 1, .is_first = true};
    *n_space = 0;
    TRY(normalize_alone(p, w, &piece));
    const size_t n_alone = piece.n;
    if (n_alone == 0 || n_alone > sizeof alone) return CZ_OK;
    memcpy(alone, piece.s, n_alone);
    piece = (struct pipe_piece){.s = both + 1, .n = 2, .is_rest = true};
    TRY(normalize_alone(p, w, &piece));
    const size_t n_rest = piece.n;
    if (n_rest == 0 || n_rest > sizeof rest) return CZ_OK;
    memcpy(rest, piece.s, n_rest);
    piece = (struct pipe_piece){.s = both, .n = 3, .is_first = true};
    TRY(normalize_alone(p, w, &piece));
    if (piece.n != n_alone + n_rest || memcmp(piece.s, alone, n_alone) != 0 ||
        memcmp(piece.s + n_alone, rest, n_rest) != 0)
        return CZ_OK;
    *left = chars_before(alone, n_alone, &len);
    (void)chars_at(rest, n_rest, n_space);
    memcpy(space, rest, *n_space);
    return CZ_OK;
}

/* What a space has become when the model sees it. */
static int32_t marked(const struct pipe *p, int32_t space)
{
    size_t len;
    for (size_t i = 0; space == ' ' && i < p->n_pres; i++)
        if (p->pres[i].cls->change && p->pres[i].n_mark > 0)
            space = chars_at(p->pres[i].mark, p->pres[i].n_mark, &len);
    return space;
}

cz_status pipe_finish(struct pipe *p)
{
    struct pipe_work *w;
    cz_status st = CZ_OK;
    size_t len;
    p->base.vocab_size = p->texts.size;
    p->base.piece_nbytes_max = p->texts.nbytes_max > 0 ? p->texts.nbytes_max : 1;
    if (p->base.special[CZ_SPECIAL_UNK] < 0) p->base.special[CZ_SPECIAL_UNK] = p->bpe.unk_id;
    if (p->has_crossing || !steps_are_local(p)) return CZ_OK;
    w = pipe_work_create();
    if (!w) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    for (char c = '0'; st == CZ_OK && c <= 'z'; c++) {
        int32_t left = 0;
        char space[4];
        size_t n_space;
        if (!(chars_ascii[(int)c] & (CHAR_L | CHAR_NUMBER))) continue;
        st = parts_are_whole(p, w, c, &left, space, &n_space);
        if (st != CZ_OK || n_space == 0 || left >= 0x80 ||
            !(chars_ascii[left] & (CHAR_L | CHAR_NUMBER)))
            continue;
        p->can_cut[(int)c] = splits_before(p, space, n_space) ||
                             (p->model == &pipe_model_bpe &&
                              pipe_bpe_parts(p, left, marked(p, chars_at(space, n_space, &len))));
    }
    pipe_work_destroy(w);
    return st;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static cz_status read_model(struct pipe *p, const struct json_node *root)
{
    static const struct pipe_model_class *const models[] = {
        &pipe_model_bpe, &pipe_model_unigram, &pipe_model_wordpiece, &pipe_model_wordlevel};
    const struct json_node *model;
    const char *type;
    char where[512];
    TRY(json_need(root, "model", JSON_OBJECT, &model));
    TRY(tokenizer_json_model_type(root, &type));
    for (size_t i = 0; i < CZ_ARRAY_LEN(models); i++)
        if (strcmp(models[i]->name, type) == 0) p->model = models[i];
    if (!p->model)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: a model of type %s is not known; BPE, Unigram, WordPiece and WordLevel "
                       "are",
                       json_where(model, where, sizeof where), type);
    TRY(read_vocab(p, root, model));
    return p->model->read(p, model);
}

static cz_status read_json(struct pipe *p, const char *dir, const struct json_node *root)
{
    TRY(pipe_norms_read(p, json_get(root, "normalizer"), 0));
    TRY(pipe_pres_read(p, json_get(root, "pre_tokenizer"), 0));
    TRY(pipe_decoders_read(p, json_get(root, "decoder"), 0));
    TRY(read_model(p, root));
    TRY(read_added(p, root));
    const struct token_finder finder = {p, root};
    TRY(tokenizer_json_post(root, find_token, &finder, &p->base));
    TRY(tokenizer_read_specials(dir, find_token, &finder, &p->base));
    TRY(tokenizer_json_config(dir, root, find_token, &finder, &p->base));
    return pipe_finish(p);
}

cz_status pipe_open_json(const char *dir, const struct json_node *root, struct cz_tokenizer **out)
{
    struct pipe *p;
    *out = NULL;
    TRY(pipe_create(&p));
    cz_status st = read_json(p, dir, root);
    if (st != CZ_OK) {
        cz_tokenizer_close(&p->base);
        return st;
    }
    *out = &p->base;
    return CZ_OK;
}

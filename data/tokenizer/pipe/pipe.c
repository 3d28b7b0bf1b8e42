/* A text's ids through a chain of steps. */
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a call works with ------------------------------------------------------------------ */

void pipe_work_destroy(struct pipe_work *w)
{
    if (!w) return;
    bpe_work_destroy(w->bpe);
    for (size_t i = 0; i < CZ_ARRAY_LEN(w->norms); i++) free(w->norms[i].s);
    for (size_t i = 0; i < CZ_ARRAY_LEN(w->pres); i++) free(w->pres[i].s);
    free(w->nodes);
    free(w);
}

struct pipe_work *pipe_work_create(void)
{
    struct pipe_work *w = calloc(1, sizeof *w);
    if (w) w->bpe = bpe_work_create();
    if (w && w->bpe) return w;
    pipe_work_destroy(w);
    return NULL;
}

/* Lent to one thread at a time, so that caches stay warm. */
static struct pipe_work *work_borrow(const struct pipe *p)
{
    struct pipe *mine = (struct pipe *)(uintptr_t)p; /* only the list of idle ones changes */
    pthread_mutex_lock(&mine->lock);
    struct pipe_work *w = mine->idle;
    if (w) mine->idle = w->next;
    pthread_mutex_unlock(&mine->lock);
    return w ? w : pipe_work_create();
}

static void work_return(const struct pipe *p, struct pipe_work *w)
{
    struct pipe *mine = (struct pipe *)(uintptr_t)p;
    pthread_mutex_lock(&mine->lock);
    w->next = mine->idle;
    mine->idle = w;
    pthread_mutex_unlock(&mine->lock);
}

/* ---- encoding -------------------------------------------------------------------------------- */

typedef cz_status encode_section(const struct pipe *p, struct pipe_work *w,
                                 const struct pipe_piece *piece, struct id_list *out);

/* A piece's parts between the tokens of a set. */
static cz_status encode_between(const struct pipe *p, struct pipe_work *w,
                                const struct added_tokens *set, const struct pipe_piece *piece,
                                encode_section *section, struct id_list *out)
{
    size_t from = 0, done = 0, start, end;
    struct added_token token;
    while (added_tokens_next(set, piece->s, piece->n, done, &from, &start, &end, &token)) {
        const struct pipe_piece part = {piece->s + done, start - done, piece->is_first && done == 0,
                                        piece->is_rest && done == 0,
                                        piece->n - start + piece->n_more};
        if (part.n > 0) TRY(section(p, w, &part, out));
        TRY(id_list_add(out, token.id));
        done = end;
    }
    const struct pipe_piece part = {piece->s + done, piece->n - done, piece->is_first && done == 0,
                                    piece->is_rest && done == 0, piece->n_more};
    return part.n > 0 ? section(p, w, &part, out) : CZ_OK;
}

static cz_status encode_words(const struct pipe *p, struct pipe_work *w,
                              const struct pipe_piece *piece, struct id_list *out)
{
    return pipe_pre_tokenize(p, w, 0, piece, out);
}

static cz_status encode_raw(const struct pipe *p, struct pipe_work *w,
                            const struct pipe_piece *piece, struct id_list *out)
{
    struct pipe_piece normal = *piece;
    TRY(pipe_normalize(p, w, &normal));
    return encode_between(p, w, &p->normalized, &normal, encode_words, out);
}

static cz_status encode_part(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                             bool is_rest, struct id_list *out)
{
    const struct pipe *p = (const struct pipe *)tok;
    struct pipe_work *w = work_borrow(p);
    if (!w) return err_set(CZ_NOMEM, 0, "no memory for the words of a text");
    cz_status st = bpe_repair(w->bpe, &text, &nbytes);
    const struct pipe_piece whole = {text, nbytes, !is_rest, is_rest, 0};
    w->growth_free = PIPE_GROWTH_FREE;
    if (st == CZ_OK) st = encode_between(p, w, &p->raw, &whole, encode_raw, out);
    work_return(p, w);
    return st;
}

static cz_status pipe_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                             struct id_list *out)
{
    return encode_part(tok, text, nbytes, false, out);
}

static cz_status pipe_encode_rest(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                                  struct id_list *out)
{
    return encode_part(tok, text, nbytes, true, out);
}

/* ---- cutting --------------------------------------------------------------------------------- */

static bool is_word_char(unsigned char c)
{
    return c < 0x80 && (chars_ascii[c] & (CHAR_L | CHAR_NUMBER));
}

/* Between a letter or digit of ASCII, and a space before another. */
static size_t pipe_cut(const struct cz_tokenizer *tok, const char *text, size_t nbytes, size_t from)
{
    const struct pipe *p = (const struct pipe *)tok;
    int n_tried = 0;
    for (size_t at = from > 0 ? from : 1; at + 1 < nbytes; at++) {
        const unsigned char before = (unsigned char)text[at - 1];
        if (text[at] != ' ' || before >= 0x80 || !p->can_cut[before] ||
            !is_word_char((unsigned char)text[at + 1]))
            continue;
        if (!added_tokens_touch(&p->raw, text, nbytes, at) &&
            (p->n_norms > 0 || !added_tokens_touch(&p->normalized, text, nbytes, at)))
            return at;
        if (++n_tried == TOKENIZER_CUTS_TRIED) break;
    }
    return nbytes;
}

/* ---- the kind -------------------------------------------------------------------------------- */

static size_t pipe_piece_of(const struct cz_tokenizer *tok, int64_t id, bool first, char *dst)
{
    const struct bpe_vocab *v = &((const struct pipe *)tok)->texts;
    (void)first;
    if (v->lens[id] > 0) memcpy(dst, v->bytes + v->offs[id], v->lens[id]);
    return v->lens[id];
}

static bool pipe_is_added(const struct cz_tokenizer *tok, int64_t id)
{
    const struct pipe *p = (const struct pipe *)tok;
    return added_tokens_have(&p->raw, id) || added_tokens_have(&p->normalized, id);
}

static void pipe_close(struct cz_tokenizer *tok)
{
    struct pipe *p = (struct pipe *)tok;
    while (p->idle) {
        struct pipe_work *next = p->idle->next;
        pipe_work_destroy(p->idle);
        p->idle = next;
    }
    pthread_mutex_destroy(&p->lock);
    for (size_t i = 0; i < p->n_norms; i++) pipe_norm_free(&p->norms[i]);
    for (size_t i = 0; i < p->n_pres; i++) pipe_pre_free(&p->pres[i]);
    for (size_t i = 0; i < p->n_decoders; i++) pipe_decoder_free(&p->decoders[i]);
    added_tokens_free(&p->raw);
    added_tokens_free(&p->normalized);
    added_tokens_free(&p->kept);
    bpe_vocab_free(&p->texts);
    bpe_vocab_free(&p->bpe.vocab);
    bpe_starts_free(&p->bpe);
    bpe_merges_free(&p->bpe.merges);
    wp_trie_free(&p->trie);
    free(p->chars.ids);
    free(p->joints);
    free(p->unigram.scores);
    free(p);
}

const struct tokenizer_class pipe_class = {.name = "steps",
                                           .encode = pipe_encode,
                                           .encode_rest = pipe_encode_rest,
                                           .cut = pipe_cut,
                                           .piece = pipe_piece_of,
                                           .is_added = pipe_is_added,
                                           .decode_create = pipe_decode_create,
                                           .decode_destroy = pipe_decode_destroy,
                                           .decode = pipe_decode,
                                           .close = pipe_close};

cz_status pipe_create(struct pipe **out)
{
    struct pipe *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        free(p);
        return err_set(CZ_NOMEM, 0, "no lock for a tokenizer");
    }
    tokenizer_init(&p->base, &pipe_class);
    p->bpe.unk_id = -1;
    *out = p;
    return CZ_OK;
}

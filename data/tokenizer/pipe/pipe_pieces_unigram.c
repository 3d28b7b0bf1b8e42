/* Unigram, word and char of SentencePiece's tokenizer.model. Unigram is the search of
 * pipe_model.c with sums in single precision: where ways are as good as each other, or differ by
 * less than a sum's last bit, rounding decides. */
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_pieces_impl.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* All pieces by their texts, which must differ. */
static cz_status set_vocab(struct pipe *p, const struct pieces_file *f)
{
    struct bpe_vocab *v = &p->bpe.vocab;
    TRY(bpe_vocab_init(v, (int64_t)f->n));
    for (size_t i = 0; i < f->n; i++)
        TRY(bpe_vocab_set_bytes(v, (int64_t)i, f->pieces[i].text, f->pieces[i].n));
    TRY(bpe_vocab_index(v));
    for (size_t i = 0; i < f->n; i++) {
        const int32_t first = bpe_vocab_find(v, f->pieces[i].text, f->pieces[i].n);
        if ((size_t)first != i)
            return err_set(CZ_CORRUPT, 0, "%s: pieces %d and %zu have the same text", f->path,
                           (int)first, i);
    }
    return CZ_OK;
}

/* ---- Unigram --------------------------------------------------------------------------------- */

#define UNK_PENALTY        10.0F
#define USER_DEFINED_BONUS 0.1

/* Normal pieces have their scores. A user-defined one has nearly the best of them per byte, so that
 * it is always taken. */
static cz_status set_scores(struct pipe *p, const struct pieces_file *f)
{
    struct unigram *u = &p->unigram;
    float min = FLT_MAX, max = FLT_MIN;
    u->scores = calloc(f->n, sizeof *u->scores);
    if (!u->scores) return err_set(CZ_NOMEM, 0, "no memory for scores");
    for (size_t i = 0; i < f->n; i++) {
        if (f->pieces[i].kind != PIECE_NORMAL) continue;
        if (f->pieces[i].score < min) min = f->pieces[i].score;
        if (f->pieces[i].score > max) max = f->pieces[i].score;
    }
    for (size_t i = 0; i < f->n; i++) {
        const struct piece *piece = &f->pieces[i];
        const float bonus = (float)piece->n * max;
        u->scores[i] = piece->kind == PIECE_USER_DEFINED
                           ? (double)(float)((double)bonus - USER_DEFINED_BONUS)
                           : (double)piece->score;
    }
    u->unk_score = (double)(min - UNK_PENALTY);
    return CZ_OK;
}

/* What a text is made of: normal and user-defined pieces. */
static cz_status set_trie(struct pipe *p, const struct pieces_file *f)
{
    size_t n = 0;
    struct wp_token *tokens = malloc(f->n * sizeof *tokens);
    if (!tokens) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary's tree");
    for (size_t i = 0; i < f->n; i++) {
        const struct piece *piece = &f->pieces[i];
        if (piece->kind == PIECE_NORMAL || piece->kind == PIECE_USER_DEFINED)
            tokens[n++] = (struct wp_token){piece->text, piece->n, (int32_t)i};
    }
    cz_status st = n > 0 ? wp_trie_build(&p->trie, tokens, n)
                         : err_set(CZ_CORRUPT, 0, "%s: no piece is of type normal", f->path);
    free(tokens);
    return st;
}

cz_status pieces_set_unigram(struct pipe *p, const struct pieces_file *f)
{
    TRY(set_vocab(p, f));
    TRY(set_scores(p, f));
    p->unigram.byte_fallback = f->byte_fallback;
    p->unigram.is_single = true;
    p->model = &pipe_model_unigram;
    return set_trie(p, f);
}

/* ---- word and char --------------------------------------------------------------------------- */

/* A part's piece; what is none becomes its bytes, or one unknown piece with those before it. */
static cz_status add_part(const struct pipe *p, const char *s, size_t n, size_t first,
                          struct id_list *out)
{
    const int32_t unk = p->bpe.unk_id;
    int32_t id = bpe_vocab_find(&p->bpe.vocab, s, n);
    if (id >= 0 && id != unk) return id_list_add(out, id);
    if (p->chars.byte_fallback) {
        for (size_t i = 0; i < n; i++)
            TRY(id_list_add(out, p->bpe.bytes[(unsigned char)s[i]].ids[0]));
        return CZ_OK;
    }
    return out->n > first && out->ids[out->n - 1] == unk ? CZ_OK : id_list_add(out, unk);
}

#define MARK   "\xE2\x96\x81" /* U+2581, which begins a word */
#define N_MARK 3

static cz_status pieces_words(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                              size_t n_more, struct id_list *out)
{
    const size_t first = out->n;
    size_t begin = 0;
    (void)w;
    (void)n_more;
    while (begin < n) {
        const char *mark =
            begin + 1 < n ? memmem(s + begin + 1, n - begin - 1, MARK, N_MARK) : NULL;
        const size_t end = mark ? (size_t)(mark - s) : n;
        TRY(add_part(p, s + begin, end - begin, first, out));
        begin = end;
    }
    return CZ_OK;
}

static cz_status pieces_chars(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                              size_t n_more, struct id_list *out)
{
    const size_t first = out->n;
    (void)w;
    (void)n_more;
    for (size_t at = 0, len; at < n; at += len) {
        if (!added_tokens_at(&p->kept, s + at, n - at, &len)) (void)chars_at(s + at, n - at, &len);
        TRY(add_part(p, s + at, len, first, out));
    }
    return CZ_OK;
}

static const struct pipe_model_class model_words = {"SentencePiece's words", NULL, pieces_words};
static const struct pipe_model_class model_chars = {"SentencePiece's characters", NULL,
                                                    pieces_chars};

cz_status pieces_set_words(struct pipe *p, const struct pieces_file *f)
{
    p->chars.byte_fallback = f->byte_fallback;
    p->model = f->model == PIECES_WORD ? &model_words : &model_chars;
    return set_vocab(p, f);
}

/* BPE of SentencePiece's tokenizer.model: whatever two symbols make a piece are merged, the best
 * score first. */
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_pieces_impl.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_NBYTES_MAX 256 /* each place inside is tried as a merge */

/* Pieces that merges make have their ids. A character that is no piece but part of one gets an id
 * behind them: it may be merged, and is unknown where it is left over. */
static cz_status set_symbols(struct pipe *p, const struct pieces_file *f)
{
    struct bpe_vocab *v = &p->bpe.vocab;
    struct added_tokens chars;
    size_t len, n = f->n;
    cz_status st = CZ_OK;
    added_tokens_init(&chars);
    for (size_t i = 0; st == CZ_OK && i < f->n; i++) {
        const struct piece *piece = &f->pieces[i];
        if (piece->kind != PIECE_NORMAL) continue;
        if (piece->n > PIECE_NBYTES_MAX)
            st = err_set(CZ_UNSUPPORTED, 0, "%s: piece %zu has %zu bytes; at most %d are supported",
                         f->path, i, piece->n, PIECE_NBYTES_MAX);
        for (size_t at = 0; st == CZ_OK && at < piece->n; at += len) {
            (void)chars_at(piece->text + at, piece->n - at, &len);
            const struct added_token token = {.id = len == piece->n ? (int32_t)i : -1};
            const struct added_token *known = added_tokens_find(&chars, piece->text + at, len);
            if (!known || (known->id < 0 && token.id >= 0))
                st = added_tokens_add(&chars, piece->text + at, len, &token);
        }
    }
    for (size_t i = 0; i < chars.n; i++)
        if (chars.tokens[i].id < 0) chars.tokens[i].id = (int32_t)n++;
    if (st == CZ_OK) st = bpe_vocab_init(v, (int64_t)n);
    for (size_t i = 0; st == CZ_OK && i < f->n; i++) {
        const struct piece *piece = &f->pieces[i];
        if (piece->kind != PIECE_NORMAL) continue;
        st = bpe_vocab_set_bytes(v, (int64_t)i, piece->text, piece->n);
        for (size_t at = 0; st == CZ_OK && at < piece->n; at += len) {
            (void)chars_at(piece->text + at, piece->n - at, &len);
            const int32_t id = added_tokens_find(&chars, piece->text + at, len)->id;
            if (id >= (int32_t)f->n && v->lens[id] == 0)
                st = bpe_vocab_set_bytes(v, id, piece->text + at, len);
        }
    }
    added_tokens_free(&chars);
    TRY(st);
    return bpe_vocab_index(v);
}

struct ranked {
    float score;
    uint32_t id;
};

static int by_score(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static size_t count_merges(const struct pieces_file *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 1; f->pieces[i].kind == PIECE_NORMAL && k < f->pieces[i].n; k++)
            n += ((unsigned char)f->pieces[i].text[k] & 0xC0) != 0x80;
    return n;
}

/* Pieces of equal scores have equal ranks: then the leftmost pair is first, whichever it is. */
static cz_status add_merges(struct pipe *p, const struct pieces_file *f, const struct ranked *order,
                            size_t n)
{
    uint32_t rank = 0;
    for (size_t i = 0; i < n; i++) {
        const struct piece *piece = &f->pieces[order[i].id];
        if (i > 0 && order[i].score != order[i - 1].score) rank++;
        const int32_t id = bpe_vocab_find(&p->bpe.vocab, piece->text, piece->n);
        for (size_t k = 1; k < piece->n; k++) {
            if (((unsigned char)piece->text[k] & 0xC0) == 0x80) continue;
            const int32_t left = bpe_vocab_find(&p->bpe.vocab, piece->text, k);
            const int32_t right =
                left < 0 ? -1 : bpe_vocab_find(&p->bpe.vocab, piece->text + k, piece->n - k);
            if (right < 0) continue;
            bpe_merges_add(&p->bpe.merges, left, right, rank, id);
            pipe_joints_add(p, piece->text, k, piece->text + k, piece->n - k);
        }
    }
    return CZ_OK;
}

cz_status pieces_set_bpe(struct pipe *p, const struct pieces_file *f)
{
    struct bpe_byte bytes[256];
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        if (f->pieces[i].kind == PIECE_UNUSED)
            return err_set(CZ_UNSUPPORTED, 0, "%s: piece %zu is unused, which BPE would undo",
                           f->path, i);
    TRY(set_symbols(p, f));
    memcpy(bytes, p->bpe.bytes, sizeof bytes);
    TRY(pipe_finish_bpe(p, "", ""));
    memcpy(p->bpe.bytes, bytes, sizeof bytes); /* by kind, not by text */
    p->chars.byte_fallback = f->byte_fallback;
    p->bpe.fuse_unk = true;
    p->n_pieces = (int32_t)f->n;
    TRY(bpe_merges_init(&p->bpe.merges, count_merges(f)));
    TRY(pipe_joints_init(p, count_merges(f)));
    struct ranked *order = malloc(f->n * sizeof *order);
    if (!order) return err_set(CZ_NOMEM, 0, "no memory for merges");
    for (size_t i = 0; i < f->n; i++)
        if (f->pieces[i].kind == PIECE_NORMAL)
            order[n++] = (struct ranked){f->pieces[i].score, (uint32_t)i};
    if (n > 0) qsort(order, n, sizeof *order, by_score);
    cz_status st = add_merges(p, f, order, n);
    free(order);
    p->model = &pipe_model_pieces;
    return st;
}

/* A character left over that only merges know: its bytes, or the unknown piece. */
static cz_status add_left_over(const struct pipe *p, int32_t id, struct id_list *out)
{
    const struct bpe_vocab *v = &p->bpe.vocab;
    const char *s = v->bytes + v->offs[id];
    if (!p->chars.byte_fallback) return id_list_add(out, p->bpe.unk_id);
    for (uint32_t i = 0; i < v->lens[id]; i++)
        TRY(id_list_add(out, p->bpe.bytes[(unsigned char)s[i]].ids[0]));
    return CZ_OK;
}

/* out->ids[from …]: left over characters replaced, unknown pieces in a row made one. */
static cz_status settle(const struct pipe *p, size_t from, struct id_list *out)
{
    struct id_list settled = {0};
    bool is_needed = false;
    for (size_t i = from; i < out->n && !is_needed; i++)
        is_needed = out->ids[i] >= p->n_pieces ||
                    (out->ids[i] == p->bpe.unk_id && i > from && out->ids[i - 1] == out->ids[i]);
    if (!is_needed) return CZ_OK;
    cz_status st = CZ_OK;
    for (size_t i = from; st == CZ_OK && i < out->n; i++) {
        const size_t n = settled.n;
        st = out->ids[i] >= p->n_pieces ? add_left_over(p, out->ids[i], &settled)
                                        : id_list_add(&settled, out->ids[i]);
        if (st == CZ_OK && n > 0 && settled.n == n + 1 && settled.ids[n] == p->bpe.unk_id &&
            settled.ids[n - 1] == p->bpe.unk_id)
            settled.n = n;
    }
    out->n = from;
    if (st == CZ_OK) st = id_list_reserve(out, settled.n);
    if (st == CZ_OK) memcpy(out->ids + from, settled.ids, settled.n * sizeof *out->ids);
    if (st == CZ_OK) out->n += settled.n;
    free(settled.ids);
    return st;
}

/* User-defined symbols stand where they are found, and nothing is merged over them. */
static cz_status pieces_word(const struct pipe *p, struct pipe_work *w, const char *s, size_t n,
                             size_t n_more, struct id_list *out)
{
    const size_t first = out->n;
    size_t from = 0, done = 0, start, end;
    struct added_token token;
    while (added_tokens_next(&p->kept, s, n, done, &from, &start, &end, &token)) {
        if (start > done)
            TRY(pipe_model_bpe.word(p, w, s + done, start - done, n - start + n_more, out));
        TRY(id_list_add(out, token.id));
        done = end;
    }
    if (done < n) TRY(pipe_model_bpe.word(p, w, s + done, n - done, n_more, out));
    return settle(p, first, out);
}

const struct pipe_model_class pipe_model_pieces = {"SentencePiece's BPE", NULL, pieces_word};

/* SentencePiece's tokenizer.model, read directly: pieces with scores and kinds, how they were
 * trained, and the normalizer. The same chain of steps as a tokenizer.json has, with two
 * differences: the normalizer is SentencePiece's own, and BPE merges whatever two symbols make a
 * piece, the best score first. Unigram is refused: SentencePiece adds its scores in single
 * precision in a way that is not reproduced yet for texts of more than some ten thousand bytes. */
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"
#include "data/tokenizer/pipe/pipe_impl.h"
#include "data/tokenizer/proto_impl.h"
#include "formats/beneath.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_NBYTES_MAX ((size_t)64 << 20)
#define PIECE_NBYTES_MAX 256 /* of BPE: each place inside is tried as a merge */

enum { UNIGRAM = 1, BPE = 2 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

struct piece {
    const char *text;
    size_t n;
    float score;
    int kind;
};

struct pieces_file {
    const char *path;
    struct piece *pieces;
    size_t n, cap;
    int64_t unk, bos, eos, pad;
    uint64_t model;
    bool as_suffix, byte_fallback;
    bool prefix, squeeze, escape;
    const char *map, *unk_surface;
    size_t n_map, n_unk_surface;
    struct proto_field trainer, normalizer;
};

/* ---- the messages ---------------------------------------------------------------------------- */

static cz_status broken(const struct pieces_file *f)
{
    return err_set(CZ_CORRUPT, 0, "%s: is no model of SentencePiece", f->path);
}

static cz_status read_piece(struct pieces_file *f, const struct proto_field *message)
{
    const unsigned char *at = message->bytes, *end = at + message->nbytes;
    struct piece piece = {.kind = NORMAL};
    struct proto_field field;
    while (at < end) {
        if (!proto_next(&at, end, &field)) return broken(f);
        if (field.number == 1 && field.type == 2) {
            piece.text = (const char *)field.bytes;
            piece.n = field.nbytes;
        }
        if (field.number == 2 && field.type == 5) piece.score = proto_float(&field);
        if (field.number == 3 && field.type == 0)
            piece.kind = field.value <= BYTE ? (int)field.value : 0;
    }
    if (piece.n == 0 || !utf8_is_valid(piece.text, piece.n) || !isfinite(piece.score) ||
        piece.kind == 0 || memchr(piece.text, '\0', piece.n))
        return err_set(CZ_CORRUPT, 0, "%s: piece %zu is no text with a score and a known kind",
                       f->path, f->n);
    if (f->n > BPE_ID_MAX) return err_set(CZ_CORRUPT, 0, "%s: too many pieces", f->path);
    if (f->n == f->cap) {
        const size_t cap = 2 * f->cap + 1024;
        struct piece *grown = realloc(f->pieces, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for pieces");
        f->pieces = grown;
        f->cap = cap;
    }
    f->pieces[f->n++] = piece;
    return CZ_OK;
}

static cz_status read_trainer(struct pieces_file *f)
{
    const unsigned char *at = f->trainer.bytes, *end = at + f->trainer.nbytes;
    struct proto_field field;
    while (at < end) {
        if (!proto_next(&at, end, &field)) return broken(f);
        const int64_t value = (int64_t)field.value;
        if (field.type == 0) {
            if (field.number == 3) f->model = field.value;
            if (field.number == 24) f->as_suffix = value != 0;
            if (field.number == 35) f->byte_fallback = value != 0;
            if (field.number == 40) f->unk = value;
            if (field.number == 41) f->bos = value;
            if (field.number == 42) f->eos = value;
            if (field.number == 43) f->pad = value;
        }
        if (field.number == 44 && field.type == 2) {
            f->unk_surface = (const char *)field.bytes;
            f->n_unk_surface = field.nbytes;
        }
    }
    return utf8_is_valid(f->unk_surface, f->n_unk_surface) ? CZ_OK : broken(f);
}

static cz_status read_normalizer(struct pieces_file *f)
{
    const unsigned char *at = f->normalizer.bytes, *end = at + f->normalizer.nbytes;
    struct proto_field field;
    while (at < end) {
        if (!proto_next(&at, end, &field)) return broken(f);
        if (field.type == 0) {
            if (field.number == 3) f->prefix = field.value != 0;
            if (field.number == 4) f->squeeze = field.value != 0;
            if (field.number == 5) f->escape = field.value != 0;
        }
        if (field.number == 2 && field.type == 2) {
            f->map = (const char *)field.bytes;
            f->n_map = field.nbytes;
        }
    }
    return CZ_OK;
}

static cz_status read_messages(struct pieces_file *f, const char *data, size_t nbytes)
{
    const unsigned char *at = (const unsigned char *)data, *end = at + nbytes;
    struct proto_field field;
    while (at < end) {
        if (!proto_next(&at, end, &field)) return broken(f);
        if (field.type != 2 && field.number <= 5) return broken(f);
        if (field.number == 1) TRY(read_piece(f, &field));
        if (field.number == 2) f->trainer = field;
        if (field.number == 3) f->normalizer = field;
    }
    if (f->trainer.bytes) TRY(read_trainer(f));
    if (f->normalizer.bytes) TRY(read_normalizer(f));
    return f->n > 0 ? CZ_OK : broken(f);
}

/* Exactly one piece is the unknown one; ids of no piece mean none. */
static cz_status check_kinds(struct pieces_file *f)
{
    size_t n_unknown = 0, n_bytes = 0;
    for (size_t i = 0; i < f->n; i++) {
        n_unknown += f->pieces[i].kind == UNKNOWN;
        n_bytes += f->pieces[i].kind == BYTE;
        if (f->pieces[i].kind == UNKNOWN) f->unk = (int64_t)i;
        if (f->pieces[i].kind == UNUSED)
            return err_set(CZ_UNSUPPORTED, 0, "%s: piece %zu is unused, which BPE would undo",
                           f->path, i);
    }
    if (n_unknown != 1 || (f->byte_fallback && n_bytes != 256))
        return err_set(CZ_CORRUPT, 0, "%s: %zu unknown pieces and %zu bytes", f->path, n_unknown,
                       n_bytes);
    if (f->model != BPE)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: of SentencePiece's models those of type bpe are read, not %s; save the "
                       "tokenizer with transformers' fast class to get a tokenizer.json",
                       f->path, f->model == UNIGRAM ? "unigram" : "word or char");
    return CZ_OK;
}

/* ---- the chain ------------------------------------------------------------------------------- */

static cz_status set_texts(struct pipe *p, const struct pieces_file *f)
{
    TRY(bpe_vocab_init(&p->texts, (int64_t)f->n));
    for (size_t i = 0; i < f->n; i++) {
        const struct piece *piece = &f->pieces[i];
        const char *text = piece->text;
        size_t n = piece->n;
        if (piece->kind == CONTROL) continue; /* decodes to nothing */
        if (piece->kind == UNKNOWN) {
            text = f->unk_surface;
            n = f->n_unk_surface;
        }
        TRY(bpe_vocab_set_bytes(&p->texts, (int64_t)i, text, n));
        if (piece->kind == USER_DEFINED) {
            const struct added_token token = {.id = (int32_t)i};
            TRY(added_tokens_add(&p->kept, piece->text, piece->n, &token));
        }
        if (piece->kind == BYTE) {
            char name[8];
            int byte = -1;
            if (piece->n == 6 && sscanf(piece->text, "<0x%2X>", (unsigned *)&byte) == 1 &&
                byte >= 0 && byte < 256)
                (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
            if (byte < 0 || byte > 255 || memcmp(name, piece->text, 6) != 0)
                return err_set(CZ_CORRUPT, 0, "%s: piece %zu is no byte", f->path, i);
            p->bpe.bytes[byte] = (struct bpe_byte){.ids = {(int32_t)i}, .n = 1};
        }
    }
    return CZ_OK;
}

static cz_status set_steps(struct pipe *p, const struct pieces_file *f)
{
    struct pipe_norm *norm = &p->norms[p->n_norms++];
    struct pipe_decoder *step;
    *norm = (struct pipe_norm){.cls = &pipe_norm_pieces,
                               .prefix = f->prefix,
                               .squeeze = f->squeeze,
                               .escape = f->escape,
                               .as_suffix = f->as_suffix,
                               .kept = &p->kept};
    if (f->n_map > 0) {
        const cz_status st = charsmap_init(&norm->map, f->map, f->n_map);
        if (st != CZ_OK) return err_prefix("%s", f->path);
    }
    TRY(pipe_decoder_add(p, "SentencePiece", &step));
    step->squeeze = f->squeeze;
    step->prefix = f->prefix;
    return CZ_OK;
}

/* ---- BPE ------------------------------------------------------------------------------------- */

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
        if (piece->kind != NORMAL) continue;
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
        if (piece->kind != NORMAL) continue;
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
        for (size_t k = 1; f->pieces[i].kind == NORMAL && k < f->pieces[i].n; k++)
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

static cz_status set_bpe(struct pipe *p, const struct pieces_file *f)
{
    struct bpe_byte bytes[256];
    size_t n = 0;
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
        if (f->pieces[i].kind == NORMAL)
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
                             struct id_list *out)
{
    const size_t first = out->n;
    size_t from = 0, done = 0, start, end;
    struct added_token token;
    while (added_tokens_next(&p->kept, s, n, done, &from, &start, &end, &token)) {
        if (start > done) TRY(pipe_model_bpe.word(p, w, s + done, start - done, out));
        TRY(id_list_add(out, token.id));
        done = end;
    }
    if (done < n) TRY(pipe_model_bpe.word(p, w, s + done, n - done, out));
    return settle(p, first, out);
}

const struct pipe_model_class pipe_model_pieces = {"SentencePiece's BPE", NULL, pieces_word};

/* ---- opening --------------------------------------------------------------------------------- */

static int64_t find_piece(const void *user, const char *content)
{
    const struct pieces_file *f = user;
    for (size_t i = 0; i < f->n; i++)
        if (f->pieces[i].n == strlen(content) &&
            memcmp(f->pieces[i].text, content, f->pieces[i].n) == 0)
            return (int64_t)i;
    return -1;
}

static int32_t valid_id(const struct pieces_file *f, int64_t id)
{
    return id >= 0 && id < (int64_t)f->n ? (int32_t)id : -1;
}

/* A token in front of each text and one behind it, as tokenizer_config.json says; SentencePiece
 * itself adds none. */
static cz_status set_frames(struct pipe *p, const char *dir)
{
    struct json_doc *doc;
    bool add_bos = false, add_eos = false;
    TRY(tokenizer_load_json(dir, "tokenizer_config.json", &doc));
    if (!doc) return CZ_OK;
    cz_status st = json_opt_bool(json_root(doc), "add_bos_token", false, &add_bos);
    if (st == CZ_OK) st = json_opt_bool(json_root(doc), "add_eos_token", false, &add_eos);
    json_free(doc);
    TRY(st);
    const int32_t bos = (int32_t)p->base.special[CZ_SPECIAL_BOS];
    const int32_t eos = (int32_t)p->base.special[CZ_SPECIAL_EOS];
    for (int which = 0; which < 2; which++) {
        struct tokenizer_frame *f = which ? &p->base.two : &p->base.one;
        for (int text = 0; text <= which && (add_bos || add_eos); text++) {
            if (add_bos && bos >= 0) f->items[f->n++] = bos;
            f->items[f->n++] = text ? TOKENIZER_SECOND : TOKENIZER_FIRST;
            if (add_eos && eos >= 0) f->items[f->n++] = eos;
        }
    }
    return CZ_OK;
}

static cz_status build(struct pipe *p, const char *dir, const struct pieces_file *f)
{
    p->bpe.unk_id = (int32_t)f->unk;
    TRY(set_texts(p, f));
    TRY(set_steps(p, f));
    TRY(set_bpe(p, f));
    p->base.special[CZ_SPECIAL_BOS] = valid_id(f, f->bos);
    p->base.special[CZ_SPECIAL_EOS] = valid_id(f, f->eos);
    p->base.special[CZ_SPECIAL_PAD] = valid_id(f, f->pad);
    TRY(tokenizer_read_specials(dir, find_piece, f, &p->base));
    TRY(set_frames(p, dir));
    return pipe_finish(p);
}

static cz_status open_pieces(const char *dir, const char *name, struct cz_tokenizer **out)
{
    struct pieces_file f = {.path = name,
                            .bos = 1,
                            .eos = 2,
                            .pad = -1,
                            .model = UNIGRAM,
                            .prefix = true,
                            .squeeze = true,
                            .escape = true,
                            .unk_surface = " \xE2\x81\x87 ",
                            .n_unk_surface = 5};
    struct pipe *p = NULL;
    char *data = NULL;
    size_t nbytes;
    *out = NULL;
    if (beneath_is_there(dir, "added_tokens.json"))
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: added_tokens.json beside %s is not read; save the tokenizer with "
                       "transformers' fast class to get a tokenizer.json",
                       dir, name);
    TRY(beneath_load(dir, name, MODEL_NBYTES_MAX, &data, &nbytes));
    cz_status st = read_messages(&f, data, nbytes);
    if (st == CZ_OK) st = check_kinds(&f);
    if (st == CZ_OK) st = pipe_create(&p);
    if (st == CZ_OK) st = build(p, dir, &f);
    free(f.pieces);
    free(data);
    if (st != CZ_OK && p) cz_tokenizer_close(&p->base);
    if (st != CZ_OK) return err_prefix("%s", dir);
    *out = &p->base;
    return CZ_OK;
}

cz_status pipe_open_pieces(const char *dir, struct cz_tokenizer **out)
{
    return open_pieces(dir, "tokenizer.model", out);
}

/* SentencePiece's tokenizer.model, read directly: pieces with scores and kinds, how they were
 * trained, and the normalizer. The same chain of steps as a tokenizer.json has, with the normalizer
 * and the models of SentencePiece's own. */
#include "base/utf8.h"
#include "data/tokenizer/pipe/pipe_pieces_impl.h"
#include "formats/beneath.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_NBYTES_MAX ((size_t)64 << 20)

/* ---- the messages ---------------------------------------------------------------------------- */

static cz_status broken(const struct pieces_file *f)
{
    return err_set(CZ_CORRUPT, 0, "%s: is not a SentencePiece model, or is damaged", f->path);
}

static cz_status read_piece(struct pieces_file *f, const struct proto_field *message)
{
    const unsigned char *at = message->bytes, *end = at + message->nbytes;
    struct piece piece = {.kind = PIECE_NORMAL};
    struct proto_field field;
    while (at < end) {
        if (!proto_next(&at, end, &field)) return broken(f);
        if (field.number == 1 && field.type == 2) {
            piece.text = (const char *)field.bytes;
            piece.n = field.nbytes;
        }
        if (field.number == 2 && field.type == 5) piece.score = proto_float(&field);
        if (field.number == 3 && field.type == 0)
            piece.kind = field.value <= PIECE_BYTE ? (int)field.value : 0;
    }
    if (piece.n == 0 || !utf8_is_valid(piece.text, piece.n) || !isfinite(piece.score) ||
        piece.kind == 0 || memchr(piece.text, '\0', piece.n))
        return err_set(CZ_CORRUPT, 0,
                       "%s: piece %zu needs a text in UTF-8, a finite score and a known type",
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
        n_unknown += f->pieces[i].kind == PIECE_UNKNOWN;
        n_bytes += f->pieces[i].kind == PIECE_BYTE;
        if (f->pieces[i].kind == PIECE_UNKNOWN) f->unk = (int64_t)i;
    }
    if (n_unknown != 1)
        return err_set(CZ_CORRUPT, 0, "%s: %zu pieces are of type unknown; there must be one",
                       f->path, n_unknown);
    const size_t n_wanted = f->byte_fallback ? 256 : 0;
    if (n_bytes != n_wanted)
        return err_set(CZ_CORRUPT, 0,
                       "%s: %zu pieces are of type byte; with byte_fallback %s "
                       "there must be %zu",
                       f->path, n_bytes, f->byte_fallback ? "on" : "off", n_wanted);
    if (f->model < PIECES_UNIGRAM || f->model > PIECES_CHAR)
        return err_set(
            CZ_UNSUPPORTED, 0,
            "%s: a model of type %llu; types 1 to 4 (unigram, bpe, word, char) are known", f->path,
            (unsigned long long)f->model);
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
        if (piece->kind == PIECE_CONTROL) continue; /* decodes to nothing */
        if (piece->kind == PIECE_UNKNOWN) {
            text = f->unk_surface;
            n = f->n_unk_surface;
        }
        TRY(bpe_vocab_set_bytes(&p->texts, (int64_t)i, text, n));
        if (piece->kind == PIECE_USER_DEFINED) {
            const struct added_token token = {.id = (int32_t)i};
            TRY(added_tokens_add(&p->kept, piece->text, piece->n, &token));
        }
        if (piece->kind == PIECE_BYTE) {
            char name[8];
            int byte = -1;
            if (piece->n == 6 && sscanf(piece->text, "<0x%2X>", (unsigned *)&byte) == 1 &&
                byte >= 0 && byte < 256)
                (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
            if (byte < 0 || byte > 255 || memcmp(name, piece->text, 6) != 0)
                return err_set(CZ_CORRUPT, 0,
                               "%s: piece %zu is of type byte, but not written <0xNN>", f->path, i);
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
    TRY(json_load_object(dir, "tokenizer_config.json", &doc));
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

/* ---- DeBERTa's spm.model --------------------------------------------------------------------- */

/* transformers' DebertaV2Tokenizer has these names, [MASK] behind the file's pieces. */
static const struct {
    const char *name;
    enum cz_special special;
    bool needed;
} deberta_specials[] = {{"[CLS]", CZ_SPECIAL_CLS, true},
                        {"[SEP]", CZ_SPECIAL_SEP, true},
                        {"[PAD]", CZ_SPECIAL_PAD, false},
                        {"[UNK]", CZ_SPECIAL_UNK, false},
                        {"[MASK]", CZ_SPECIAL_MASK, true}};

static cz_status add_mask(struct pieces_file *f)
{
    if (find_piece(f, "[MASK]") >= 0) return CZ_OK;
    struct piece *pieces = realloc(f->pieces, (f->n + 1) * sizeof *pieces);
    if (!pieces) return err_set(CZ_NOMEM, 0, "no memory for pieces");
    f->pieces = pieces;
    f->pieces[f->n++] = (struct piece){.text = "[MASK]", .n = 6, .kind = PIECE_CONTROL};
    return CZ_OK;
}

/* What the class does to texts before they are split. */
static cz_status refuse_options(const char *dir)
{
    static const char *const keys[] = {"do_lower_case", "split_by_punct"};
    struct json_doc *doc;
    cz_status st = CZ_OK;
    TRY(json_load_object(dir, "tokenizer_config.json", &doc));
    for (size_t i = 0; doc && st == CZ_OK && i < CZ_ARRAY_LEN(keys); i++) {
        bool on = false;
        st = json_opt_bool(json_root(doc), keys[i], false, &on);
        if (st == CZ_OK && on)
            st = err_set(CZ_UNSUPPORTED, 0,
                         "%s/tokenizer_config.json: %s is not supported beside spm.model; save the "
                         "tokenizer with transformers' fast class to get a tokenizer.json",
                         dir, keys[i]);
    }
    json_free(doc);
    return st;
}

/* The special tokens, found in texts too, and [CLS] a [SEP] b [SEP] around them. */
static cz_status set_deberta(struct pipe *p, const char *dir, const struct pieces_file *f)
{
    TRY(refuse_options(dir));
    for (size_t i = 0; i < CZ_ARRAY_LEN(deberta_specials); i++) {
        const char *name = deberta_specials[i].name;
        const int64_t id = find_piece(f, name);
        const struct added_token token = {.id = (int32_t)id, .special = true};
        if (id < 0 && deberta_specials[i].needed)
            return err_set(CZ_UNSUPPORTED, 0, "%s: no piece is %s: DeBERTa's have it", f->path,
                           name);
        if (id < 0) continue;
        p->base.special[deberta_specials[i].special] = id;
        TRY(added_tokens_add(&p->raw, name, strlen(name), &token));
    }
    const int32_t cls = (int32_t)p->base.special[CZ_SPECIAL_CLS],
                  sep = (int32_t)p->base.special[CZ_SPECIAL_SEP];
    p->base.one = (struct tokenizer_frame){.items = {cls, TOKENIZER_FIRST, sep}, .n = 3};
    p->base.two =
        (struct tokenizer_frame){.items = {cls, TOKENIZER_FIRST, sep, TOKENIZER_SECOND, sep},
                                 .types = {0, 0, 0, 1, 1},
                                 .n = 5};
    return CZ_OK;
}

/* ---- opening a file -------------------------------------------------------------------------- */

static cz_status build(struct pipe *p, const char *dir, const struct pieces_file *f, bool deberta)
{
    p->bpe.unk_id = (int32_t)f->unk;
    TRY(set_texts(p, f));
    TRY(set_steps(p, f));
    TRY(f->model == PIECES_BPE       ? pieces_set_bpe(p, f)
        : f->model == PIECES_UNIGRAM ? pieces_set_unigram(p, f)
                                     : pieces_set_words(p, f));
    p->base.special[CZ_SPECIAL_BOS] = valid_id(f, f->bos);
    p->base.special[CZ_SPECIAL_EOS] = valid_id(f, f->eos);
    p->base.special[CZ_SPECIAL_PAD] = valid_id(f, f->pad);
    if (deberta) {
        TRY(set_deberta(p, dir, f));
        return pipe_finish(p);
    }
    TRY(tokenizer_read_specials(dir, find_piece, f, &p->base));
    TRY(set_frames(p, dir));
    return pipe_finish(p);
}

static cz_status open_pieces(const char *dir, const char *name, bool deberta,
                             struct cz_tokenizer **out)
{
    struct pieces_file f = {.bos = 1,
                            .eos = 2,
                            .pad = -1,
                            .model = PIECES_UNIGRAM,
                            .prefix = true,
                            .squeeze = true,
                            .escape = true,
                            .unk_surface = " \xE2\x81\x87 ",
                            .n_unk_surface = 5};
    struct pipe *p = NULL;
    char *path = NULL, *data = NULL;
    size_t nbytes;
    *out = NULL;
    if (beneath_is_there(dir, "added_tokens.json"))
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: added_tokens.json beside %s is not read; save the tokenizer with "
                       "transformers' fast class to get a tokenizer.json",
                       dir, name);
    TRY(beneath_load(dir, name, MODEL_NBYTES_MAX, &data, &nbytes));
    if (asprintf(&path, "%s/%s", dir, name) < 0) path = NULL;
    f.path = path;
    cz_status st =
        path ? read_messages(&f, data, nbytes) : err_set(CZ_NOMEM, 0, "no memory for a path");
    if (st == CZ_OK) st = check_kinds(&f);
    if (st == CZ_OK && deberta) st = add_mask(&f);
    if (st == CZ_OK) st = pipe_create(&p);
    if (st == CZ_OK) st = build(p, dir, &f, deberta);
    free(f.pieces);
    free(data);
    free(path);
    if (st == CZ_OK)
        *out = &p->base;
    else if (p)
        cz_tokenizer_close(&p->base);
    return st;
}

cz_status pipe_open_pieces(const char *dir, struct cz_tokenizer **out)
{
    return open_pieces(dir, "tokenizer.model", false, out);
}

cz_status pipe_open_deberta(const char *dir, struct cz_tokenizer **out)
{
    return open_pieces(dir, "spm.model", true, out);
}

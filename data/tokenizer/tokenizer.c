/* The bytes tokenizer, and what works for any tokenizer: rows of a model's input with special
 * tokens around texts, and decoding as a stream. */
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_impl.h"

#include "base/host/entry.h"
#include "base/text/encoding.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT        "\xEF\xBF\xBD" /* U+FFFD */
#define REPLACEMENT_NBYTES 3

struct cz_tokenizer_decoder {
    const struct cz_tokenizer *tok;
    bool started;
    char held[4]; /* the beginning of a character */
    size_t n_held;
    char *bytes; /* held and the new piece together */
    char *text;
    void *state; /* of kinds that decode themselves */
};

/* ---- what kinds are made of ------------------------------------------------------------------ */

/* Grows by half. */
cz_status id_list_grow(struct id_list *l, size_t n)
{
    size_t cap = l->cap < 64 ? 64 : l->cap + l->cap / 2;
    if (n > SIZE_MAX / sizeof *l->ids / 2 - l->n)
        return err_set(CZ_NOMEM, 0, "no memory for %zu more tokens", n);
    if (cap < l->n + n) cap = l->n + n;
    int32_t *grown = realloc(l->ids, cap * sizeof *grown);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu tokens", cap);
    l->ids = grown;
    l->cap = cap;
    return CZ_OK;
}

void tokenizer_init(struct cz_tokenizer *tok, const struct tokenizer_class *cls)
{
    memset(tok, 0, sizeof *tok);
    tok->cls = cls;
    for (int i = 0; i < CZ_SPECIAL_COUNT; i++) tok->special[i] = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static cz_status bytes_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                              struct id_list *out)
{
    (void)tok;
    TRY(id_list_reserve(out, nbytes));
    for (size_t i = 0; i < nbytes; i++) out->ids[out->n + i] = (unsigned char)text[i];
    out->n += nbytes;
    return CZ_OK;
}

/* Anywhere: no token reaches beyond its byte. */
static size_t bytes_cut(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                        size_t from)
{
    (void)tok;
    (void)text;
    return from < nbytes ? from : nbytes;
}

static size_t bytes_piece(const struct cz_tokenizer *tok, int64_t id, bool first, char *dst)
{
    (void)tok;
    (void)first;
    dst[0] = (char)id;
    return 1;
}

static void bytes_close(struct cz_tokenizer *tok)
{
    free(tok);
}

static const struct tokenizer_class bytes_class = {.name = "bytes",
                                                   .encode = bytes_encode,
                                                   .cut = bytes_cut,
                                                   .piece = bytes_piece,
                                                   .close = bytes_close};

cz_status tokenizer_bytes_open(struct cz_tokenizer **out)
{
    struct cz_tokenizer *tok = malloc(sizeof *tok);
    if (!tok) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    tokenizer_init(tok, &bytes_class);
    tok->vocab_size = 256;
    tok->piece_nbytes_max = 1;
    *out = tok;
    return CZ_OK;
}

/* ---- any tokenizer --------------------------------------------------------------------------- */

/* Whether a word is other tokens behind a space than by itself: what the second of "a a" adds. */
static cz_status find_spaces(struct cz_tokenizer *tok)
{
    struct id_list list = {0};
    cz_status st = tok->cls->encode(tok, "a", 1, &list);
    const size_t n = list.n;
    if (st == CZ_OK) st = tok->cls->encode(tok, "a a", 3, &list);
    if (st == CZ_OK)
        tok->keeps_spaces = list.n != 3 * n || n == 0 ||
                            memcmp(list.ids, list.ids + 2 * n, n * sizeof *list.ids) != 0;
    free(list.ids);
    if (st != CZ_INVALID) return st;
    err_clear(); /* it has no such letter */
    return CZ_OK;
}

cz_status cz_tokenizer_open(const char *name, struct cz_tokenizer **out)
{
    API_ENTRY;
    NEED(out, "out");
    *out = NULL;
    NEED(name, "name");
    cz_status st =
        strcmp(name, "bytes") == 0 ? tokenizer_bytes_open(out) : tokenizer_folder_open(name, out);
    if (st == CZ_OK) st = find_spaces(*out);
    if (st == CZ_OK) return CZ_OK;
    cz_tokenizer_close(*out);
    *out = NULL;
    return st;
}

void cz_tokenizer_close(struct cz_tokenizer *tok)
{
    API_ENTRY;
    if (!tok) return;
    free(tok->dir);
    free(tok->lines);
    tok->cls->close(tok);
}

const char *cz_tokenizer_name(const struct cz_tokenizer *tok)
{
    NEED_OR(tok, "");
    return tok->cls->name;
}

int64_t cz_tokenizer_vocab_size(const struct cz_tokenizer *tok)
{
    NEED_OR(tok, 0);
    return tok->vocab_size;
}

cz_status cz_tokenizer_check_vocab(const struct cz_tokenizer *tok, int64_t vocab_size,
                                   const char *model)
{
    API_ENTRY;
    NEED(tok, "tokenizer");
    NEED(model, "model");
    if (tok->vocab_size <= vocab_size) return CZ_OK;
    return err_set(CZ_INVALID, 0, "the tokenizer has %lld tokens, %s a vocabulary of %lld",
                   (long long)tok->vocab_size, model, (long long)vocab_size);
}

int64_t cz_tokenizer_special_id(const struct cz_tokenizer *tok, enum cz_special which)
{
    NEED_OR(tok && (unsigned)which < CZ_SPECIAL_COUNT, -1);
    return tok->special[which];
}

int64_t cz_tokenizer_end_id(const struct cz_tokenizer *tok)
{
    NEED_OR(tok, -1);
    return tok->special[CZ_SPECIAL_EOS];
}

/* Any token would do where a mask hides it; one that texts do not hold can also be found by id. */
int32_t cz_tokenizer_padding_id(const struct cz_tokenizer *tok)
{
    NEED_OR(tok, 0);
    int64_t id = cz_tokenizer_special_id(tok, CZ_SPECIAL_PAD);
    if (id < 0) id = cz_tokenizer_end_id(tok);
    return id >= 0 ? (int32_t)id : 0;
}

/* Tokenizers replace damaged bytes, so a text in another encoding would train on U+FFFD. */
static cz_status check_text(const struct cz_tokenizer *tok, const char *what, const char *text,
                            size_t nbytes)
{
    if (tok->cls == &bytes_class || encoding_check(what, 0, text, nbytes) == CZ_OK) return CZ_OK;
    return err_set(CZ_INVALID, 0, "%s", cz_last_error()); /* an argument is no damaged file */
}

cz_status cz_tokenizer_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                              int32_t **ids, size_t *n_ids)
{
    API_ENTRY;
    NEED(tok, "tokenizer");
    NEED(text || nbytes == 0, "text");
    NEED(ids, "ids");
    NEED(n_ids, "n_ids");
    struct id_list list = {0};
    *ids = NULL;
    *n_ids = 0;
    TRY(check_text(tok, "the text", text, nbytes));
    cz_status st = id_list_reserve(&list, 1); /* never NULL on success */
    if (st == CZ_OK) st = tok->cls->encode(tok, text, nbytes, &list);
    if (st != CZ_OK) {
        free(list.ids);
        return st;
    }
    *ids = list.ids;
    *n_ids = list.n;
    return CZ_OK;
}

/* ---- one row of a model's input -------------------------------------------------------------- */

/* How many tokens of each text stay when both may have `n_max` together: those of the longer go
 * first; where both must lose some, each gets half, and the longer (the second when equal) an odd
 * one. */
static void share_tokens(size_t n_max, size_t *first, size_t *second)
{
    bool first_is_longer = *first > *second;
    size_t *shorter = first_is_longer ? second : first;
    size_t *longer = first_is_longer ? first : second;
    if (*shorter + *longer <= n_max) return;
    if (*shorter <= n_max / 2) {
        *longer = n_max - *shorter;
        return;
    }
    *shorter = n_max / 2;
    *longer = n_max - *shorter;
}

/* A frame that adds nothing. */
static const struct tokenizer_frame bare_one = {.items = {TOKENIZER_FIRST}, .n = 1};
static const struct tokenizer_frame bare_two = {
    .items = {TOKENIZER_FIRST, TOKENIZER_SECOND}, .types = {0, 1}, .n = 2};

struct row_part {
    const int32_t *ids;
    size_t n;
};

/* Lays out special tokens and texts (parts[0] and parts[1]) as the frame says. */
static size_t fill_frame(const struct tokenizer_frame *f, const struct row_part *parts,
                         int32_t *ids, int32_t *types)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) {
        int32_t item = f->items[i];
        struct row_part part = {&item, 1};
        if (item < 0) part = parts[item == TOKENIZER_SECOND];
        if (part.n > 0) memcpy(ids + n, part.ids, part.n * sizeof *ids);
        for (size_t k = 0; types && k < part.n; k++) types[n + k] = f->types[i];
        n += part.n;
    }
    return n;
}

/* How many special tokens a frame adds; CZ_INVALID where a row cannot hold them. */
static cz_status count_specials(const struct cz_tokenizer *tok, const struct tokenizer_frame *f,
                                int64_t max_len, const char *to, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < f->n; i++) *n += f->items[i] >= 0;
    if (max_len >= (int64_t)*n) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "a row of %lld tokens is too short for the %zu special tokens that the %s "
                   "tokenizer adds to %s",
                   (long long)max_len, *n, tok->cls->name, to);
}

cz_status cz_tokenizer_encode_input(const struct cz_tokenizer *tok,
                                    const struct cz_tokenizer_input *input, int64_t max_len,
                                    int32_t *ids, int32_t *types, int64_t *n_ids, size_t *n_cut)
{
    API_ENTRY;
    NEED(tok, "tokenizer");
    NEED(input, "input");
    NEED(input->text || input->nbytes == 0, "input->text");
    NEED(ids, "ids");
    NEED(n_ids, "n_ids");
    const struct tokenizer_frame *f = input->pair ? &tok->two : &tok->one;
    const struct tokenizer_frame *frame = f->n > 0 ? f : input->pair ? &bare_two : &bare_one;
    size_t n_specials;
    struct id_list list = {0};
    *n_ids = 0;
    if (n_cut) *n_cut = 0;
    TRY(count_specials(tok, frame, max_len, input->pair ? "two texts" : "a text", &n_specials));
    TRY(check_text(tok, "the text", input->text, input->nbytes));
    if (input->pair) TRY(check_text(tok, "the second text", input->pair, input->pair_nbytes));
    cz_status st = tok->cls->encode(tok, input->text, input->nbytes, &list);
    size_t n_first = list.n, n_second = 0;
    if (st == CZ_OK && input->pair) {
        st = tok->cls->encode(tok, input->pair, input->pair_nbytes, &list);
        n_second = list.n - n_first;
    }
    if (st == CZ_OK) {
        struct row_part parts[2] = {{list.ids, n_first}, {NULL, n_second}};
        if (n_second > 0) parts[1].ids = list.ids + n_first;
        share_tokens((size_t)max_len - n_specials, &parts[0].n, &parts[1].n);
        if (n_cut) *n_cut = list.n - parts[0].n - parts[1].n;
        *n_ids = (int64_t)fill_frame(frame, parts, ids, types);
    }
    free(list.ids);
    return st;
}

cz_status tokenizer_encode_whole(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                                 int32_t **ids, size_t *n_ids)
{
    const struct tokenizer_frame *frame = tok->one.n > 0 ? &tok->one : &bare_one;
    struct row_part parts[2] = {0};
    size_t n_specials;
    int32_t *bare;
    *ids = NULL;
    *n_ids = 0;
    TRY(count_specials(tok, frame, INT64_MAX, "a text", &n_specials));
    TRY(cz_tokenizer_encode(tok, text, nbytes, &bare, &parts[0].n));
    parts[0].ids = bare;
    *ids = malloc((n_specials + parts[0].n + 1) * sizeof **ids); /* + 1: never 0 bytes */
    if (*ids) *n_ids = fill_frame(frame, parts, *ids, NULL);
    free(bare);
    return *ids ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for the tokens of a text");
}

/* The tokens of all words one behind the other, and of each the word that begins with it. */
struct word_row {
    struct id_list ids, starts;
    char *text; /* " word" */
    size_t cap;
};

static cz_status encode_word(const struct cz_tokenizer *tok, const char *word, size_t nbytes,
                             struct word_row *row)
{
    if (!tok->keeps_spaces) return tok->cls->encode(tok, word, nbytes, &row->ids);
    if (nbytes >= row->cap) {
        char *grown = realloc(row->text, 2 * (nbytes + 1));
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for a word of %zu bytes", nbytes);
        row->text = grown;
        row->cap = 2 * (nbytes + 1);
    }
    row->text[0] = ' ';
    memcpy(row->text + 1, word, nbytes);
    return tok->cls->encode(tok, row->text, nbytes + 1, &row->ids);
}

static cz_status check_word(const struct cz_tokenizer *tok, size_t idx, const char *word,
                            size_t nbytes)
{
    char what[48];
    if (utf8_is_valid(word, nbytes)) return CZ_OK;
    snprintf(what, sizeof what, "word %zu", idx + 1);
    return check_text(tok, what, word, nbytes);
}

/* Up to n_max tokens are wanted: words behind them are only counted. */
static cz_status encode_words(const struct cz_tokenizer *tok, const char *text,
                              const struct cz_text_word *words, size_t n_words, size_t n_max,
                              struct word_row *row, size_t *n_cut)
{
    for (size_t i = 0; i < n_words; i++) {
        const size_t first = row->ids.n;
        if (words[i].nbytes == 0) continue;
        TRY(check_word(tok, i, text + words[i].begin, words[i].nbytes));
        if (first >= n_max) {
            ++*n_cut;
            continue;
        }
        TRY(encode_word(tok, text + words[i].begin, words[i].nbytes, row));
        TRY(id_list_reserve(&row->starts, row->ids.n - first));
        for (size_t k = first; k < row->ids.n; k++)
            row->starts.ids[row->starts.n++] = k == first ? (int32_t)i : -1;
    }
    return CZ_OK;
}

cz_status cz_tokenizer_encode_words(const struct cz_tokenizer *tok, const char *text,
                                    const struct cz_text_word *words, size_t n_words,
                                    int64_t max_len, int32_t *ids, int32_t *types, int32_t *starts,
                                    int64_t *n_ids, size_t *n_cut)
{
    API_ENTRY;
    NEED(tok, "tokenizer");
    NEED(text || n_words == 0, "text");
    NEED(words || n_words == 0, "words");
    NEED(ids, "ids");
    NEED(starts, "starts");
    NEED(n_ids, "n_ids");
    const struct tokenizer_frame *frame = tok->one.n > 0 ? &tok->one : &bare_one;
    struct word_row row = {0};
    size_t n_specials, n = 0, n_lost = 0;
    *n_ids = 0;
    if (n_cut) *n_cut = 0;
    TRY(count_specials(tok, frame, max_len, "a text", &n_specials));
    const size_t n_max = (size_t)max_len - n_specials;
    cz_status st = encode_words(tok, text, words, n_words, n_max, &row, &n_lost);
    if (st == CZ_OK) {
        const struct row_part part = {row.ids.ids, row.ids.n < n_max ? row.ids.n : n_max};
        *n_ids = (int64_t)fill_frame(frame, &part, ids, types);
        for (size_t i = 0; i < frame->n; i++) {
            const bool is_text = frame->items[i] < 0;
            if (is_text && part.n > 0) memcpy(starts + n, row.starts.ids, part.n * sizeof *starts);
            if (!is_text) starts[n] = -1;
            n += is_text ? part.n : 1;
        }
        if (n_cut) *n_cut = n_lost;
    }
    free(row.ids.ids);
    free(row.starts.ids);
    free(row.text);
    return st;
}

/* ---- decoding as a stream -------------------------------------------------------------------- */

cz_status cz_tokenizer_decoder_create(const struct cz_tokenizer *tok,
                                      struct cz_tokenizer_decoder **out)
{
    API_ENTRY;
    NEED(out, "out");
    *out = NULL;
    NEED(tok, "tokenizer");
    size_t nbytes_max = sizeof((struct cz_tokenizer_decoder *)0)->held + tok->piece_nbytes_max;
    struct cz_tokenizer_decoder *dec = calloc(1, sizeof *dec);
    if (dec) {
        dec->tok = tok;
        dec->bytes = malloc(nbytes_max);
        dec->text = malloc(nbytes_max * REPLACEMENT_NBYTES + 1);
        if (tok->cls->decode_create) (void)tok->cls->decode_create(tok, &dec->state);
    }
    if (!dec || !dec->bytes || !dec->text || (tok->cls->decode_create && !dec->state)) {
        cz_tokenizer_decoder_destroy(dec);
        return err_set(CZ_NOMEM, 0, "no memory for a decoder");
    }
    *out = dec;
    return CZ_OK;
}

void cz_tokenizer_decoder_destroy(struct cz_tokenizer_decoder *dec)
{
    API_ENTRY;
    if (!dec) return;
    if (dec->state) dec->tok->cls->decode_destroy(dec->state);
    free(dec->bytes);
    free(dec->text);
    free(dec);
}

/* Move whole characters from bytes[0 … n) to the text; keep an unfinished one, unless `at_end`. */
static size_t take_characters(struct cz_tokenizer_decoder *dec, size_t n, bool at_end)
{
    size_t used = 0;
    const char *s = dec->bytes;
    dec->n_held = 0;
    while (n > 0) {
        int len = utf8_length(s, n);
        if (len == -1 && !at_end) {
            memcpy(dec->held, s, n);
            dec->n_held = n;
            break;
        }
        size_t take = len > 0 ? (size_t)len : utf8_broken_length(s, n);
        const char *src = len > 0 ? s : REPLACEMENT;
        size_t put = len > 0 ? take : REPLACEMENT_NBYTES;
        memcpy(dec->text + used, src, put);
        used += put;
        s += take;
        n -= take;
    }
    dec->text[used] = '\0';
    return used;
}

cz_status cz_tokenizer_decode(struct cz_tokenizer_decoder *dec, int64_t id, const char **text,
                              size_t *nbytes)
{
    API_ENTRY;
    NEED(dec, "decoder");
    NEED(text, "text");
    NEED(nbytes, "nbytes");
    const struct cz_tokenizer *tok = dec->tok;
    *text = "";
    *nbytes = 0;
    if (id < 0 || id >= tok->vocab_size)
        return err_set(CZ_INVALID, 0, "token %lld is outside the %s tokenizer's vocabulary of %lld",
                       (long long)id, tok->cls->name, (long long)tok->vocab_size);
    if (dec->state) return tok->cls->decode(tok, dec->state, id, text, nbytes);
    size_t n = dec->n_held;
    memcpy(dec->bytes, dec->held, n);
    n += tok->cls->piece(tok, id, !dec->started, dec->bytes + n);
    dec->started = true;
    *nbytes = take_characters(dec, n, false);
    *text = dec->text;
    return CZ_OK;
}

void cz_tokenizer_decoder_end(struct cz_tokenizer_decoder *dec, const char **text, size_t *nbytes)
{
    API_ENTRY;
    if (!dec || !text || !nbytes) return;
    size_t n = dec->n_held;
    if (dec->state) {
        /* Without memory for the last characters they are left out: an end has no status. */
        (void)dec->tok->cls->decode(dec->tok, dec->state, -1, text, nbytes);
        return;
    }
    memcpy(dec->bytes, dec->held, n);
    dec->started = false;
    *nbytes = take_characters(dec, n, true);
    *text = dec->text;
}

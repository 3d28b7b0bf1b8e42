/* The bytes tokenizer, and decoding as a stream for any tokenizer. */
#include "data/tokenizer_impl.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT        "\xEF\xBF\xBD" /* U+FFFD */
#define REPLACEMENT_NBYTES 3

struct tokenizer_decoder {
    const struct tokenizer *tok;
    bool started;
    char held[4]; /* the beginning of a character */
    size_t n_held;
    char *bytes; /* held and the new piece together */
    char *text;
};

/* ---- what kinds are made of ------------------------------------------------------------------
 */

cz_status id_list_reserve(struct id_list *l, size_t n)
{
    if (n <= l->cap - l->n) return CZ_OK;
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

void tokenizer_init(struct tokenizer *tok, const struct tokenizer_class *cls)
{
    memset(tok, 0, sizeof *tok);
    tok->cls = cls;
    for (int i = 0; i < TOKENIZER_N_SPECIALS; i++) tok->special[i] = -1;
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

static cz_status bytes_encode(const struct tokenizer *tok, const char *text, size_t nbytes,
                              struct id_list *out)
{
    (void)tok;
    TRY(id_list_reserve(out, nbytes));
    for (size_t i = 0; i < nbytes; i++) out->ids[out->n + i] = (unsigned char)text[i];
    out->n += nbytes;
    return CZ_OK;
}

static size_t bytes_piece(const struct tokenizer *tok, int64_t id, bool first, char *dst)
{
    (void)tok;
    (void)first;
    dst[0] = (char)id;
    return 1;
}

static void bytes_close(struct tokenizer *tok)
{
    free(tok);
}

static const struct tokenizer_class bytes_class = {
    .name = "bytes", .encode = bytes_encode, .piece = bytes_piece, .close = bytes_close};

static cz_status bytes_open(struct tokenizer **out)
{
    struct tokenizer *tok = malloc(sizeof *tok);
    if (!tok) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    tokenizer_init(tok, &bytes_class);
    tok->vocab_size = 256;
    tok->piece_nbytes_max = 1;
    *out = tok;
    return CZ_OK;
}

/* ---- any tokenizer ----------------------------------------------------------------------------
 */

cz_status tokenizer_open(const char *name, struct tokenizer **out)
{
    *out = NULL;
    if (strcmp(name, "bytes") == 0) return bytes_open(out);
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: tokenizers from a folder are not read yet; \"bytes\" is built in, and "
                   "token files need no tokenizer",
                   name);
}

void tokenizer_close(struct tokenizer *tok)
{
    if (tok) tok->cls->close(tok);
}

const char *tokenizer_name(const struct tokenizer *tok)
{
    return tok->cls->name;
}

int64_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    return tok->vocab_size;
}

int64_t tokenizer_special_id(const struct tokenizer *tok, enum tokenizer_special which)
{
    return tok->special[which];
}

int64_t tokenizer_end_id(const struct tokenizer *tok)
{
    return tok->special[TOKENIZER_EOS];
}

cz_status tokenizer_encode(const struct tokenizer *tok, const char *text, size_t nbytes,
                           int32_t **ids, size_t *n_ids)
{
    struct id_list list = {0};
    *ids = NULL;
    *n_ids = 0;
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

/* ---- decoding as a stream ---------------------------------------------------------------------
 */

cz_status tokenizer_decoder_create(const struct tokenizer *tok, struct tokenizer_decoder **out)
{
    size_t nbytes_max = sizeof((struct tokenizer_decoder *)0)->held + tok->piece_nbytes_max;
    struct tokenizer_decoder *dec = calloc(1, sizeof *dec);
    *out = NULL;
    if (dec) {
        dec->tok = tok;
        dec->bytes = malloc(nbytes_max);
        dec->text = malloc(nbytes_max * REPLACEMENT_NBYTES + 1);
    }
    if (!dec || !dec->bytes || !dec->text) {
        tokenizer_decoder_destroy(dec);
        return err_set(CZ_NOMEM, 0, "no memory for a decoder");
    }
    *out = dec;
    return CZ_OK;
}

void tokenizer_decoder_destroy(struct tokenizer_decoder *dec)
{
    if (!dec) return;
    free(dec->bytes);
    free(dec->text);
    free(dec);
}

/* Bytes at s that could have begun a character but do not: at least one. */
static size_t broken_length(const char *s, size_t n)
{
    size_t len = 1;
    while (len < n && utf8_length(s, len + 1) == -1) len++;
    return len;
}

/* Move whole characters from bytes[0 … n) to the text; keep an unfinished one, unless `at_end`. */
static size_t take_characters(struct tokenizer_decoder *dec, size_t n, bool at_end)
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
        size_t take = len > 0 ? (size_t)len : broken_length(s, n);
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

cz_status tokenizer_decode(struct tokenizer_decoder *dec, int64_t id, const char **text,
                           size_t *nbytes)
{
    const struct tokenizer *tok = dec->tok;
    *text = "";
    *nbytes = 0;
    if (id < 0 || id >= tok->vocab_size)
        return err_set(CZ_INVALID, 0, "token %lld is outside the %s tokenizer's vocabulary of %lld",
                       (long long)id, tok->cls->name, (long long)tok->vocab_size);
    size_t n = dec->n_held;
    memcpy(dec->bytes, dec->held, n);
    n += tok->cls->piece(tok, id, !dec->started, dec->bytes + n);
    dec->started = true;
    *nbytes = take_characters(dec, n, false);
    *text = dec->text;
    return CZ_OK;
}

void tokenizer_decoder_end(struct tokenizer_decoder *dec, const char **text, size_t *nbytes)
{
    size_t n = dec->n_held;
    memcpy(dec->bytes, dec->held, n);
    dec->started = false;
    *nbytes = take_characters(dec, n, true);
    *text = dec->text;
}

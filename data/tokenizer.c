/* The bytes tokenizer, and decoding as a stream for any tokenizer. */
#include "data/tokenizer.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT        "\xEF\xBF\xBD" /* U+FFFD */
#define REPLACEMENT_NBYTES 3

/* A kind of tokenizer. Pieces are bytes, not characters: the decoder joins them. */
struct tokenizer_class {
    const char *name;
    int64_t vocab_size;
    int64_t end_id;
    size_t piece_nbytes_max; /* of one token */
    cz_status (*encode)(const struct tokenizer *tok, const char *text, size_t nbytes, int32_t *ids,
                        size_t *n_ids); /* at most nbytes ids */
    size_t (*piece)(const struct tokenizer *tok, int64_t id, char *dst);
};

struct tokenizer {
    const struct tokenizer_class *cls;
};

struct tokenizer_decoder {
    const struct tokenizer *tok;
    char held[4]; /* the beginning of a character */
    size_t n_held;
    char *bytes; /* held and the new piece together */
    char *text;
};

/* ---- bytes ------------------------------------------------------------------------------------
 */

static cz_status bytes_encode(const struct tokenizer *tok, const char *text, size_t nbytes,
                              int32_t *ids, size_t *n_ids)
{
    (void)tok;
    for (size_t i = 0; i < nbytes; i++) ids[i] = (unsigned char)text[i];
    *n_ids = nbytes;
    return CZ_OK;
}

static size_t bytes_piece(const struct tokenizer *tok, int64_t id, char *dst)
{
    (void)tok;
    dst[0] = (char)id;
    return 1;
}

static const struct tokenizer_class bytes_class = {.name = "bytes",
                                                   .vocab_size = 256,
                                                   .end_id = -1,
                                                   .piece_nbytes_max = 1,
                                                   .encode = bytes_encode,
                                                   .piece = bytes_piece};

/* ---- any tokenizer ----------------------------------------------------------------------------
 */

cz_status tokenizer_open(const char *name, struct tokenizer **out)
{
    *out = NULL;
    if (strcmp(name, "bytes") != 0)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: tokenizers from a folder are not read yet; \"bytes\" is built in, and "
                       "token files need no tokenizer",
                       name);
    struct tokenizer *tok = malloc(sizeof *tok);
    if (!tok) return err_set(CZ_NOMEM, 0, "no memory for a tokenizer");
    tok->cls = &bytes_class;
    *out = tok;
    return CZ_OK;
}

void tokenizer_close(struct tokenizer *tok)
{
    free(tok);
}

const char *tokenizer_name(const struct tokenizer *tok)
{
    return tok->cls->name;
}

int64_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    return tok->cls->vocab_size;
}

int64_t tokenizer_end_id(const struct tokenizer *tok)
{
    return tok->cls->end_id;
}

cz_status tokenizer_encode(const struct tokenizer *tok, const char *text, size_t nbytes,
                           int32_t **ids, size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    int32_t *list =
        nbytes < SIZE_MAX / sizeof *list - 1 ? malloc((nbytes + 1) * sizeof *list) : NULL;
    if (!list) return err_set(CZ_NOMEM, 0, "no memory for the tokens of %zu bytes", nbytes);
    cz_status st = tok->cls->encode(tok, text, nbytes, list, n_ids);
    if (st != CZ_OK) {
        free(list);
        return st;
    }
    *ids = list;
    return CZ_OK;
}

cz_status tokenizer_decoder_create(const struct tokenizer *tok, struct tokenizer_decoder **out)
{
    size_t nbytes_max = sizeof((struct tokenizer_decoder *)0)->held + tok->cls->piece_nbytes_max;
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
    const struct tokenizer_class *cls = dec->tok->cls;
    *text = "";
    *nbytes = 0;
    if (id < 0 || id >= cls->vocab_size)
        return err_set(CZ_INVALID, 0, "token %lld is outside the %s tokenizer's vocabulary of %lld",
                       (long long)id, cls->name, (long long)cls->vocab_size);
    size_t n = dec->n_held;
    memcpy(dec->bytes, dec->held, n);
    n += cls->piece(dec->tok, id, dec->bytes + n);
    *nbytes = take_characters(dec, n, false);
    *text = dec->text;
    return CZ_OK;
}

void tokenizer_decoder_end(struct tokenizer_decoder *dec, const char **text, size_t *nbytes)
{
    size_t n = dec->n_held;
    memcpy(dec->bytes, dec->held, n);
    *nbytes = take_characters(dec, n, true);
    *text = dec->text;
}

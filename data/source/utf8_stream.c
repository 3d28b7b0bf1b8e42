/* The one place where bytes of a file become text. Tables, rows of JSON, CoNLL, corpora and
 * standard input all come through here, so that none of them can take bytes that are not UTF-8: two
 * labels in GBK would become one class of replacement characters. */
#include "data/source/utf8_stream.h"

#include "base/text/encoding.h"
#include "base/utf8.h"
#include "data/source/content.h"

#include <errno.h>
#include <iconv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define RAW_NBYTES CONTENT_HEAD_NBYTES
#define NO_ICONV   ((iconv_t)-1)
#define BOM        "\xEF\xBB\xBF" /* U+FEFF */
#define BOM_NBYTES 3

struct utf8_stream {
    struct utf8_stream_options o;
    struct byte_stream *bytes;
    iconv_t iconv; /* NO_ICONV: the bytes are UTF-8 */
    char *raw;
    size_t at, n;    /* what of `raw` is not used yet */
    uint64_t n_read; /* bytes of the file, decompressed, to the end of `raw` */
    uint64_t line;
    bool started, ended; /* ended: nothing follows `raw` */
    bool is_broken;      /* what iconv gave next is no character */
    bool has_text;       /* something was given, so that a byte order mark is a character */
    cz_status status;
};

/* ---- converters ------------------------------------------------------------------------------ */

/* Names that Python has and iconv has not. */
static const char *const names[][2] = {
    {"latin-1", "ISO-8859-1"},   {"latin_1", "ISO-8859-1"},  {"utf-8-sig", "UTF-8"},
    {"utf_8", "UTF-8"},          {"utf_8_sig", "UTF-8"},     {"utf_16", "UTF-16"},
    {"utf_32", "UTF-32"},        {"shift-jis", "SHIFT_JIS"}, {"windows1252", "CP1252"},
    {"windows1251", "CP1251"},   {"gb-18030", "GB18030"},    {"big-5", "BIG5"},
    {"iso8859_1", "ISO-8859-1"}, {"euc_kr", "EUC-KR"},       {"euc_jp", "EUC-JP"},
    {"mac-roman", "MACINTOSH"}};

static const char *iconv_name(const char *name)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (strcasecmp(name, names[i][0]) == 0) return names[i][1];
    return name;
}

bool utf8_stream_is_utf8(const char *name)
{
    if (!name) return true;
    name = iconv_name(name);
    return strcasecmp(name, "utf-8") == 0 || strcasecmp(name, "utf8") == 0;
}

/* A "/" begins iconv's suffixes, which would drop or replace characters without an error. */
static cz_status converter_open(const char *name, iconv_t *out)
{
    *out = (iconv_t)-1;
    if (*name && strlen(name) < 64 && !strpbrk(name, "/,"))
        *out = iconv_open("UTF-8", iconv_name(name));
    if (*out != (iconv_t)-1) return CZ_OK;
    if (errno == ENOMEM) return err_set(CZ_NOMEM, 0, "no memory to convert text");
    return err_set(CZ_INVALID, 0,
                   "encoding \"%.64s\": this host's iconv does not have it; iconv --list shows its "
                   "names, such as gb18030, big5, shift_jis, latin-1, windows-1252, utf-16",
                   name);
}

/* ---- opening --------------------------------------------------------------------------------- */

cz_status utf8_stream_open(int fd, const struct utf8_stream_options *options,
                           struct utf8_stream **out)
{
    cz_status st;
    *out = NULL;
    struct utf8_stream *s = calloc(1, sizeof *s);
    if (s) s->raw = malloc(RAW_NBYTES);
    if (!s || !s->raw) {
        free(s);
        return err_set(CZ_NOMEM, 0, "%s: no memory to read it", options->path);
    }
    s->o = *options;
    s->iconv = NO_ICONV;
    s->line = 1;
    st = utf8_stream_is_utf8(s->o.encoding) ? CZ_OK : converter_open(s->o.encoding, &s->iconv);
    if (st == CZ_OK) st = byte_stream_open(fd, s->o.path, &s->bytes);
    if (st != CZ_OK) {
        utf8_stream_close(s);
        return st;
    }
    if (byte_stream_packing(s->bytes) != BYTES_PLAIN) s->o.n_raw = UINT64_MAX;
    if (byte_stream_packing(s->bytes) == BYTES_PARQUET && s->iconv != NO_ICONV) {
        iconv_close(s->iconv); /* its plug-in writes UTF-8 */
        s->iconv = NO_ICONV;
    }
    *out = s;
    return CZ_OK;
}

void utf8_stream_close(struct utf8_stream *s)
{
    if (!s) return;
    byte_stream_close(s->bytes);
    if (s->iconv != NO_ICONV) iconv_close(s->iconv);
    free(s->raw);
    free(s);
}

const struct byte_stream *utf8_stream_bytes(const struct utf8_stream *s)
{
    return s->bytes;
}

/* ---- raw bytes ------------------------------------------------------------------------------- */

/* More bytes behind those that are not used yet, which are the beginning of a character. */
static cz_status fill(struct utf8_stream *s)
{
    size_t got, space;
    s->n -= s->at;
    memmove(s->raw, s->raw + s->at, s->n);
    s->at = 0;
    space = RAW_NBYTES - s->n;
    if (space > s->o.n_raw - s->n_read) space = (size_t)(s->o.n_raw - s->n_read);
    TRY(byte_stream_read(s->bytes, s->raw + s->n, space, &got));
    if (got == 0 && space > 0 && s->o.n_raw != UINT64_MAX)
        return err_set(CZ_CORRUPT, 0, "%s: became shorter while it was read (it had %llu bytes)",
                       s->o.path, (unsigned long long)s->o.n_raw);
    s->n += got;
    s->n_read += got;
    s->ended = got == 0 || s->n_read == s->o.n_raw;
    return CZ_OK;
}

/* What the file is, before its bytes are taken for text. In a named encoding NUL and marks of other
 * encodings are text. */
static cz_status start(struct utf8_stream *s)
{
    s->started = true;
    TRY(fill(s));
    if (s->iconv != NO_ICONV) return CZ_OK;
    return (s->o.refuses_nul ? content_check_text : content_check_format)(s->o.path, s->raw, s->n);
}

/* ---- characters ------------------------------------------------------------------------------ */

static cz_status fail(const struct utf8_stream *s)
{
    char advice[128];
    const uint64_t off = s->n_read - (s->n - s->at);
    const char *guess = encoding_guess(s->raw, s->n, s->n_read == s->n);
    if (s->iconv != NO_ICONV)
        snprintf(advice, sizeof advice, "choose another --encoding, or correct the file");
    else if (!guess)
        snprintf(advice, sizeof advice, "name the encoding: --encoding gb18030, latin-1, …");
    else if (strcmp(guess, "utf-8") == 0)
        snprintf(advice, sizeof advice, "the text around it is UTF-8: correct or remove the byte");
    else
        snprintf(advice, sizeof advice, "the text looks like %s: use --encoding %s", guess, guess);
    return err_set(CZ_CORRUPT, 0, "%s:%llu: byte 0x%02x at offset %llu is not %s; %s", s->o.path,
                   (unsigned long long)s->line, (unsigned)(unsigned char)s->raw[s->at],
                   (unsigned long long)off, s->iconv != NO_ICONV ? s->o.encoding : "UTF-8", advice);
}

/* Bytes of whole characters at the beginning of n. *is_cut: a character begins there and ends
 * behind them. */
static size_t whole_characters(const char *s, size_t n, bool *is_cut)
{
    size_t at = 0;
    *is_cut = false;
    while (at < n) {
        uint64_t eight;
        if (n - at >= sizeof eight) { /* most of it: an alphabet */
            memcpy(&eight, s + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const int len = utf8_length(s + at, n - at);
        *is_cut = len < 0;
        if (len <= 0) break;
        at += (size_t)len;
    }
    return at;
}

/* Characters of `raw` to dst, none where the first one is cut or broken. */
static cz_status copy(struct utf8_stream *s, char *dst, size_t nbytes, size_t *got, bool *is_cut)
{
    const size_t left = s->n - s->at, n = left < nbytes ? left : nbytes;
    *got = whole_characters(s->raw + s->at, n, is_cut);
    memcpy(dst, s->raw + s->at, *got);
    s->at += *got;
    return *got > 0 || *is_cut || left == 0 ? CZ_OK : fail(s);
}

/* iconv can write surrogates, or numbers beyond Unicode. The error names the line alone: s->at is
 * already after the bytes that became such a number. */
static cz_status fail_converted(const struct utf8_stream *s)
{
    return err_set(CZ_CORRUPT, 0, "%s:%llu: is not text in %s; choose another --encoding",
                   s->o.path, (unsigned long long)s->line, s->o.encoding);
}

/* As copy(), through iconv. iconv may read bytes (a byte order mark, a shift) and write none. */
static cz_status convert(struct utf8_stream *s, char *dst, size_t nbytes, size_t *got, bool *is_cut)
{
    char *in = s->raw + s->at, *out = dst;
    size_t n_in = s->n - s->at, n_out = nbytes;
    bool ignored;
    if (s->is_broken) return fail_converted(s);
    const bool flushes = n_in == 0;
    errno = 0;
    const size_t rc = iconv(s->iconv, flushes ? NULL : &in, &n_in, &out, &n_out);
    const int why = rc == (size_t)-1 ? errno : 0;
    if (!flushes) s->at = (size_t)(in - s->raw);
    *got = nbytes - n_out;
    *is_cut = why == EINVAL;
    if (why != 0 && why != EINVAL && *got == 0) return fail(s); /* EILSEQ */
    const size_t n_whole = whole_characters(dst, *got, &ignored);
    s->is_broken = n_whole < *got;
    *got = n_whole;
    return s->is_broken && n_whole == 0 ? fail_converted(s) : CZ_OK;
}

/* A mark at the beginning is left out, from dst, too. */
static cz_status read_some(struct utf8_stream *s, char *dst, size_t nbytes, size_t *got)
{
    if (!s->started) TRY(start(s));
    for (;;) {
        bool is_cut = false;
        if (s->at == s->n && !s->ended) TRY(fill(s));
        const bool at_end = s->at == s->n && s->ended;
        TRY((s->iconv != NO_ICONV ? convert : copy)(s, dst, nbytes, got, &is_cut));
        if (!s->has_text && *got >= BOM_NBYTES && memcmp(dst, BOM, BOM_NBYTES) == 0) {
            *got -= BOM_NBYTES;
            memmove(dst, dst + BOM_NBYTES, *got);
            s->has_text = true;
        }
        s->has_text = s->has_text || *got > 0;
        for (size_t i = 0; i < *got; i++) s->line += dst[i] == '\n';
        if (*got > 0 || at_end) return CZ_OK;
        if (!is_cut) continue;
        if (s->ended || s->n - s->at == RAW_NBYTES) return fail(s);
        TRY(fill(s));
    }
}

cz_status utf8_stream_read(struct utf8_stream *s, void *dst, size_t nbytes, size_t *got)
{
    *got = 0;
    if (s->status == CZ_OK) s->status = read_some(s, dst, nbytes, got);
    if (s->status != CZ_OK) *got = 0;
    return s->status;
}

/* Streaming decompression by zlib and libzstd. Training data is a stranger's: a megabyte may stand
 * for a terabyte, so nothing here depends on the size that a file promises, and what keeps the
 * bytes has to bound them. */
#include "data/source/byte_stream.h"

#include "data/source/parquet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#define INPUT_NBYTES ((size_t)128 << 10)

struct byte_stream {
    int fd;
    const char *path;
    enum byte_packing packing;
    cz_status status; /* of the first failure */
    unsigned char *input;
    size_t at, n; /* what of `input` is not used yet */
    bool input_ended;
    uint64_t n_consumed;
    z_stream gzip;
    ZSTD_DCtx *zstd;
    struct parquet_file *parquet;
    bool in_member; /* inside of a gzip member or a zstd frame */
};

const char *byte_packing_name(enum byte_packing packing)
{
    return packing == BYTES_GZIP      ? "gzip"
           : packing == BYTES_ZSTD    ? "zstd"
           : packing == BYTES_PARQUET ? "Parquet"
                                      : "plain";
}

size_t byte_packing_stem(const char *path)
{
    static const char *const suffixes[] = {".gz", ".gzip", ".zst", ".zstd"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < CZ_ARRAY_LEN(suffixes); i++) {
        const size_t n_suffix = strlen(suffixes[i]);
        if (n > n_suffix && strcasecmp(path + n - n_suffix, suffixes[i]) == 0) return n - n_suffix;
    }
    return n;
}

enum byte_packing byte_stream_packing(const struct byte_stream *s)
{
    return s->packing;
}

uint64_t byte_stream_n_consumed(const struct byte_stream *s)
{
    return s->n_consumed - (s->n - s->at);
}

/* ---- input ----------------------------------------------------------------------------------- */

static cz_status read_some(struct byte_stream *s, void *dst, size_t nbytes, size_t *got)
{
    ssize_t n;
    do n = read(s->fd, dst, nbytes);
    while (n < 0 && errno == EINTR);
    *got = n > 0 ? (size_t)n : 0;
    if (n < 0) return err_set(CZ_IO, errno, "%s: reading failed", s->path);
    s->n_consumed += *got;
    s->input_ended = *got == 0;
    return CZ_OK;
}

/* More bytes into `input`, behind those that are not used yet: a pipe gives its magic number in
 * pieces. */
static cz_status fill(struct byte_stream *s)
{
    size_t got;
    if (s->at > 0) {
        memmove(s->input, s->input + s->at, s->n - s->at);
        s->n -= s->at;
        s->at = 0;
    }
    if (s->n == INPUT_NBYTES || s->input_ended) return CZ_OK;
    TRY(read_some(s, s->input + s->n, INPUT_NBYTES - s->n, &got));
    s->n += got;
    return CZ_OK;
}

/* Whether n bytes (at most 4 count) begin as the magic number does. */
static bool begins(const unsigned char *p, size_t n, const char *magic, size_t n_magic)
{
    return memcmp(p, magic, n < n_magic ? n : n_magic) == 0;
}

#define GZIP_MAGIC "\x1F\x8B\x08"
#define ZSTD_MAGIC "\x28\xB5\x2F\xFD"

static bool is_gzip(const unsigned char *p, size_t n)
{
    return n >= 3 && begins(p, n, GZIP_MAGIC, 3);
}

/* A frame, or one to be skipped, with which some writers begin. */
static bool is_zstd(const unsigned char *p, size_t n)
{
    const bool skipped = n >= 4 && (p[0] & 0xF0) == 0x50 && begins(p + 1, 3, "\x2A\x4D\x18", 3);
    return skipped || (n >= 4 && begins(p, n, ZSTD_MAGIC, 4));
}

enum byte_packing byte_packing_of(const void *head, size_t nbytes)
{
    return is_gzip(head, nbytes) ? BYTES_GZIP : is_zstd(head, nbytes) ? BYTES_ZSTD : BYTES_PLAIN;
}

/* A pipe may give a magic number in pieces, but nothing is waited for behind other first bytes:
 * they may be a short line that is typed. */
static bool may_be_packed(const unsigned char *p, size_t n)
{
    return begins(p, n, GZIP_MAGIC, 3) || begins(p, n, ZSTD_MAGIC, 4) ||
           ((p[0] & 0xF0) == 0x50 && begins(p + 1, n - 1, "\x2A\x4D\x18", 3));
}

cz_status byte_stream_open(int fd, const char *path, struct byte_stream **out)
{
    *out = NULL;
    struct byte_stream *s = calloc(1, sizeof *s);
    if (s) s->input = malloc(INPUT_NBYTES);
    if (!s || !s->input) {
        byte_stream_close(s);
        return err_set(CZ_NOMEM, 0, "%s: no memory to read it", path);
    }
    s->fd = fd;
    s->path = path;
    bool is_parquet;
    cz_status st = parquet_is_file(fd, path, &is_parquet);
    if (st == CZ_OK && is_parquet) {
        s->packing = BYTES_PARQUET;
        st = parquet_open(fd, path, &s->parquet);
    } else if (st == CZ_OK) {
        do st = fill(s);
        while (st == CZ_OK && !s->input_ended && s->n < 4 && may_be_packed(s->input, s->n));
        s->packing = byte_packing_of(s->input, s->n);
    }
    if (s->packing == BYTES_GZIP) {
        /* 15 + 16: windows up to the largest, and gzip's header alone */
        if (st == CZ_OK && inflateInit2(&s->gzip, 15 + 16) != Z_OK)
            st = err_set(CZ_NOMEM, 0, "%s: no memory to decompress it", path);
    } else if (s->packing == BYTES_ZSTD) {
        s->zstd = ZSTD_createDCtx();
        if (st == CZ_OK && !s->zstd)
            st = err_set(CZ_NOMEM, 0, "%s: no memory to decompress it", path);
    }
    if (st != CZ_OK) {
        byte_stream_close(s);
        return st;
    }
    *out = s;
    return CZ_OK;
}

void byte_stream_close(struct byte_stream *s)
{
    if (!s) return;
    if (s->packing == BYTES_GZIP) inflateEnd(&s->gzip); /* accepts one that did not begin */
    ZSTD_freeDCtx(s->zstd);                             /* accepts NULL */
    parquet_close(s->parquet);
    free(s->input);
    free(s);
}

/* ---- decompression --------------------------------------------------------------------------- */

static cz_status fail_truncated(const struct byte_stream *s)
{
    return err_set(CZ_CORRUPT, 0, "%s: truncated: the %s data end in the middle", s->path,
                   byte_packing_name(s->packing));
}

/* Behind a member: another one begins, or the end, before which writers to tape put zeros. */
static cz_status next_member(struct byte_stream *s, bool *ended)
{
    *ended = false;
    for (;;) {
        if (s->n - s->at < 3) TRY(fill(s));
        if (s->n - s->at < 3 && !s->input_ended) continue;
        if (is_gzip(s->input + s->at, s->n - s->at)) {
            if (inflateReset(&s->gzip) == Z_OK) return CZ_OK;
            return err_set(CZ_CORRUPT, 0, "%s: the gzip data cannot be continued", s->path);
        }
        while (s->at < s->n && s->input[s->at] == 0) s->at++;
        if (s->at < s->n && !is_gzip(s->input + s->at, s->n - s->at) &&
            (s->n - s->at >= 3 || s->input_ended))
            return err_set(CZ_CORRUPT, 0, "%s: something else follows the gzip data", s->path);
        *ended = s->at == s->n && s->input_ended;
        if (*ended) return CZ_OK;
    }
}

static cz_status read_gzip(struct byte_stream *s, unsigned char *dst, size_t nbytes, size_t *got)
{
    bool ended;
    for (;;) {
        if (!s->in_member) {
            TRY(next_member(s, &ended));
            if (ended) return CZ_OK;
            s->in_member = true;
        }
        if (s->at == s->n) TRY(fill(s));
        if (s->at == s->n && s->input_ended) return fail_truncated(s);
        s->gzip.next_in = s->input + s->at;
        s->gzip.avail_in = (unsigned)(s->n - s->at);
        s->gzip.next_out = dst;
        s->gzip.avail_out = (unsigned)nbytes;
        const int rc = inflate(&s->gzip, Z_NO_FLUSH);
        s->at = s->n - s->gzip.avail_in;
        *got = nbytes - s->gzip.avail_out;
        if (rc == Z_MEM_ERROR)
            return err_set(CZ_NOMEM, 0, "%s: no memory to decompress it", s->path);
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return err_set(CZ_CORRUPT, 0, "%s: the gzip data are damaged: %s", s->path,
                           s->gzip.msg ? s->gzip.msg : "no reason is known");
        if (rc == Z_STREAM_END) s->in_member = false;
        if (*got > 0) return CZ_OK;
    }
}

static cz_status fail_zstd(const struct byte_stream *s, size_t code)
{
    switch (ZSTD_getErrorCode(code)) {
    case ZSTD_error_memory_allocation:
        return err_set(CZ_NOMEM, 0, "%s: no memory to decompress it", s->path);
    case ZSTD_error_frameParameter_windowTooLarge:
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: compressed with a window of more than 128 MiB: compress it again "
                       "without zstd's --long, or decompress it",
                       s->path);
    case ZSTD_error_dictionary_wrong:
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: compressed with a dictionary, which is not in the file: decompress it "
                       "with that",
                       s->path);
    case ZSTD_error_prefix_unknown:
        return err_set(CZ_CORRUPT, 0, "%s: something else follows the zstd data", s->path);
    default:
        return err_set(CZ_CORRUPT, 0, "%s: the zstd data are damaged: %s", s->path,
                       ZSTD_getErrorName(code));
    }
}

static cz_status read_zstd(struct byte_stream *s, unsigned char *dst, size_t nbytes, size_t *got)
{
    for (;;) {
        if (s->at == s->n) TRY(fill(s));
        /* without new input there may still be output */
        ZSTD_inBuffer in = {s->input, s->n, s->at};
        ZSTD_outBuffer out = {dst, nbytes, 0};
        const bool no_input = s->at == s->n;
        if (no_input && !s->in_member) return CZ_OK;
        const size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
        if (ZSTD_isError(left)) return fail_zstd(s, left);
        s->at = in.pos;
        s->in_member = left != 0;
        *got = out.pos;
        if (*got > 0) return CZ_OK;
        if (no_input && s->in_member) return fail_truncated(s);
    }
}

static cz_status read_plain(struct byte_stream *s, unsigned char *dst, size_t nbytes, size_t *got)
{
    if (s->at == s->n) return read_some(s, dst, nbytes, got);
    *got = s->n - s->at < nbytes ? s->n - s->at : nbytes;
    memcpy(dst, s->input + s->at, *got);
    s->at += *got;
    return CZ_OK;
}

cz_status byte_stream_read(struct byte_stream *s, void *dst, size_t nbytes, size_t *got)
{
    *got = 0;
    if (s->status != CZ_OK || nbytes == 0) return s->status;
    if (nbytes > (size_t)1 << 30) nbytes = (size_t)1 << 30; /* zlib counts in 32 bits */
    s->status = s->packing == BYTES_GZIP      ? read_gzip(s, dst, nbytes, got)
                : s->packing == BYTES_ZSTD    ? read_zstd(s, dst, nbytes, got)
                : s->packing == BYTES_PARQUET ? parquet_read(s->parquet, dst, nbytes, got)
                                              : read_plain(s, dst, nbytes, got);
    if (s->status != CZ_OK) *got = 0;
    return s->status;
}

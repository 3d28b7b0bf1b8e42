/* A file as a stream of characters, and texts that grow. */
#include "data/source/text_source.h"

#include "base/host/cgroup.h"
#include "base/utf8.h"
#include "formats/beneath.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_NBYTES ((size_t)256 << 10)
#define ASKED_NBYTES ((size_t)64 << 20) /* from here on the host's memory is asked */

/* ---- bytes that grow ------------------------------------------------------------------------- */

cz_status text_buf_reserve(struct text_buf *b, size_t n)
{
    if (n <= b->cap - b->n) return CZ_OK;
    if (n > SIZE_MAX / 4 - b->n) return err_set(CZ_NOMEM, 0, "no memory for %zu more bytes", n);
    size_t cap = b->cap < 256 ? 256 : b->cap * 2;
    if (cap < b->n + n) cap = b->n + n;
    if (cap > ASKED_NBYTES && cap > host_memory_left() / 2)
        return err_set(CZ_NOMEM, 0, "a text of %zu bytes needs more than half of the free memory",
                       b->n + n);
    char *grown = realloc(b->s, cap);
    if (!grown) return err_set(CZ_NOMEM, 0, "no memory for a text of %zu bytes", cap);
    b->s = grown;
    b->cap = cap;
    return CZ_OK;
}

cz_status text_buf_put(struct text_buf *b, const char *src, size_t n)
{
    if (n == 0) return CZ_OK;
    TRY(text_buf_reserve(b, n));
    memcpy(b->s + b->n, src, n);
    b->n += n;
    return CZ_OK;
}

void text_buf_free(struct text_buf *b)
{
    free(b->s);
    memset(b, 0, sizeof *b);
}

void text_buf_swap(struct text_buf *a, struct text_buf *b)
{
    struct text_buf was = *a;
    *a = *b;
    *b = was;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* Unicode's property White_Space, of a character of len bytes. */
static bool is_white_space(const char *s, int len)
{
    const unsigned char *u = (const unsigned char *)s;
    if (len == 1) return u[0] == ' ' || (u[0] >= '\t' && u[0] <= '\r');
    if (len == 2) return u[0] == 0xC2 && (u[1] == 0x85 || u[1] == 0xA0);
    if (len != 3) return false;
    switch (u[0] << 8 | u[1]) {
    case 0xE19A: return u[2] == 0x80;
    case 0xE280: return u[2] <= 0x8A || u[2] == 0xA8 || u[2] == 0xA9 || u[2] == 0xAF;
    case 0xE281: return u[2] == 0x9F;
    case 0xE380: return u[2] == 0x80;
    default: return false;
    }
}

cz_status text_put_stripped(const char *s, size_t n, struct text_buf *out)
{
    TRY(text_buf_reserve(out, n));
    char *dst = out->s + out->n;
    for (size_t at = 0; at < n;) {
        const int len = utf8_length(s + at, n - at);
        const size_t used = len > 0 ? (size_t)len : 1;
        if (!is_white_space(s + at, (int)used))
            for (size_t i = 0; i < used; i++) *dst++ = s[at + i];
        at += used;
    }
    out->n = (size_t)(dst - out->s);
    return CZ_OK;
}

/* ---- the stream ------------------------------------------------------------------------------ */

size_t text_packed_limit;

size_t text_packed_nbytes_max(void)
{
    return text_packed_limit ? text_packed_limit : host_memory_left() / 2;
}

/* The block is filled for the first time. */
static cz_status start(struct text_source *s, const char *encoding)
{
    s->block = malloc(BLOCK_NBYTES);
    if (!s->block) return err_set(CZ_NOMEM, 0, "%s: no memory to read it", s->path);
    s->status = utf8_stream_open(
        s->fd,
        &(struct utf8_stream_options){.path = s->path, .encoding = encoding, .n_raw = UINT64_MAX},
        &s->stream);
    text_source_fill(s);
    return s->status;
}

cz_status text_source_open(struct text_source *s, const char *dir, const char *path,
                           const char *shown, const char *encoding)
{
    const bool is_input = !dir && strcmp(path, "-") == 0;
    *s = (struct text_source){.path = is_input ? "standard input" : shown,
                              .fd = STDIN_FILENO, /* a pipe as well as a file */
                              .line = 1,
                              .n_max = UINT64_MAX,
                              .is_input = is_input,
                              .is_lent = is_input};
    if (!is_input) TRY(beneath_open(dir, path, &s->fd, NULL));
    TRY(start(s, encoding));
    if (byte_stream_packing(utf8_stream_bytes(s->stream)) != BYTES_PLAIN)
        s->n_max = text_packed_nbytes_max();
    return s->status;
}

cz_status text_source_open_fd(struct text_source *s, int fd, const char *shown,
                              const char *encoding)
{
    *s = (struct text_source){
        .path = shown, .fd = fd, .line = 1, .n_max = UINT64_MAX, .is_lent = true};
    return start(s, encoding);
}

void text_source_close(struct text_source *s)
{
    utf8_stream_close(s->stream);
    if (s->path && s->fd >= 0 && !s->is_lent) close(s->fd);
    free(s->block);
    memset(s, 0, sizeof *s);
}

bool text_source_fill(struct text_source *s)
{
    if (s->status != CZ_OK) return false;
    if (s->copy) s->status = text_buf_put(s->copy, s->block + s->copy_at, s->n - s->copy_at);
    s->copy_at = 0;
    if (s->status != CZ_OK) return false;
    s->n_before += s->n;
    s->at = s->n = 0;
    s->status = utf8_stream_read(s->stream, s->block, BLOCK_NBYTES, &s->n);
    if (s->status == CZ_OK && s->n_before + s->n > s->n_max)
        s->status = err_set(CZ_NOMEM, 0,
                            "%s: its text takes more than half of the free memory (%llu MiB) when "
                            "it is decompressed",
                            s->path, (unsigned long long)(s->n_max >> 20));
    if (s->status != CZ_OK) s->n = 0;
    return s->n > 0;
}

cz_status text_source_copy_end(struct text_source *s)
{
    struct text_buf *copy = s->copy;
    s->copy = NULL;
    return text_buf_put(copy, s->block + s->copy_at, s->at - s->copy_at);
}

cz_status text_source_fail(const struct text_source *s, cz_status status, const char *fmt, ...)
{
    char what[1024], item[48] = "";
    va_list args;
    if (s->status != CZ_OK) return s->status;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (s->item > 0) snprintf(item, sizeof item, "item %llu: ", (unsigned long long)s->item);
    return err_set(status, 0, "%s:%llu: %s%s", s->path, (unsigned long long)s->line, item, what);
}

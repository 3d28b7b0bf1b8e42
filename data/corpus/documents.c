/* Where the text of a corpus comes from: files, compressed or not, and rows of JSON. Both are read
 * as they stream, a little ahead of the tokenizer: neither the compressed bytes nor the text is
 * ever in memory as a whole. */
#include "data/corpus/documents_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_NBYTES ((size_t)200) /* of a sentence that lists members */

/* ---- texts that wait ------------------------------------------------------------------------- */

static cz_status end_document(struct documents *d)
{
    if (d->n_ends == d->cap) {
        const size_t cap = d->cap ? 2 * d->cap : 256;
        size_t *grown = realloc(d->ends, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "no memory for %zu documents", cap);
        d->ends = grown;
        d->cap = cap;
    }
    d->ends[d->n_ends++] = d->text.n;
    return CZ_OK;
}

void documents_drop(struct documents *d, size_t n)
{
    size_t gone = 0;
    while (gone < d->n_ends && d->ends[gone] <= n) gone++;
    d->n_ends -= gone;
    for (size_t i = 0; i < d->n_ends; i++) d->ends[i] = d->ends[gone + i] - n;
    d->text.n -= n;
    if (n > 0) memmove(d->text.s, d->text.s + n, d->text.n);
}

void documents_free(struct documents *d)
{
    text_buf_free(&d->text);
    free(d->ends);
    memset(d, 0, sizeof *d);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool is_member(const struct document_feed *f, const char *name)
{
    return f->key.n == strlen(name) && memcmp(f->key.s, name, f->key.n) == 0;
}

static cz_status note_name(struct document_feed *f)
{
    if (f->names.n + f->key.n + 2 > NAMES_NBYTES) return CZ_OK;
    if (f->names.n > 0) TRY(text_buf_put(&f->names, ", ", 2));
    return text_buf_put(&f->names, f->key.s, f->key.n);
}

static cz_status fail_missing(const struct document_feed *f, bool is_instruction)
{
    const int n = f->names.n ? (int)f->names.n : 7;
    return text_source_fail(&f->in, CZ_INVALID, "no member \"text\"; there is %.*s%s", n,
                            f->names.n ? f->names.s : "nothing",
                            is_instruction ? ": instructions and chats are read by --task sft"
                                           : "");
}

/* Behind the "{": f->row gets the text. */
static cz_status read_object(struct document_feed *f)
{
    static const char *const of_instructions[] = {"messages",    "conversations", "prompt",
                                                  "instruction", "completion",    "response"};
    struct text_source *in = &f->in;
    bool done = json_stream_peek(in) == '}', has_text = false, is_instruction = false;
    f->names.n = 0;
    if (done) text_source_skip(in);
    while (!done) {
        TRY(json_stream_key(in, &f->key));
        TRY(note_name(f));
        for (size_t i = 0; i < CZ_ARRAY_LEN(of_instructions); i++)
            is_instruction = is_instruction || is_member(f, of_instructions[i]);
        if (is_member(f, "text")) {
            enum json_type type;
            if (has_text)
                return text_source_fail(in, CZ_CORRUPT, "an object has two members \"text\"");
            TRY(json_stream_scalar(in, &f->row, &type));
            if (type != JSON_STRING)
                return text_source_fail(in, CZ_INVALID, "the text is %s, not a string",
                                        json_type_name(type));
            has_text = true;
        } else {
            TRY(json_stream_skip(in, &f->scratch, 2));
        }
        TRY(json_stream_separator(in, '}', &done));
    }
    return has_text ? CZ_OK : fail_missing(f, is_instruction);
}

/* One row, valid UTF-8 with its end; an empty text is no document. At the end of the file
 * f->ended. */
static cz_status read_row(struct document_feed *f, struct documents *d)
{
    struct text_source *in = &f->in;
    int c = json_stream_peek(in);
    bool done;
    if (!f->started && c == '[') {
        text_source_skip(in);
        c = json_stream_peek(in);
        f->is_list = true;
        in->item = 1;
        if (c == ']') {
            text_source_skip(in);
            in->item = 0;
            f->ended = true;
        }
    }
    f->started = true;
    if (c < 0 && in->status != CZ_OK) return in->status;
    if (c < 0 && !f->is_list) f->ended = true;
    if (f->ended) return CZ_OK;
    if (c != '{') return json_stream_fail(in, c, "a row: an object with a member \"text\"");
    text_source_skip(in);
    TRY(read_object(f));
    f->n_rows++;
    if (f->is_list) {
        TRY(json_stream_separator(in, ']', &done));
        in->item++;
        if (done) {
            in->item = 0;
            f->ended = true;
            if (json_stream_peek(in) >= 0)
                return text_source_fail(in, CZ_CORRUPT,
                                        "the file continues after the end of the list");
            TRY(in->status);
        }
    }
    if (f->row.n == 0) return CZ_OK;
    f->n_text += f->row.n;
    TRY(text_buf_put(&d->text, f->row.s, f->row.n));
    return end_document(d);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Reads until the text has `want` bytes, or up to one character more. */
static cz_status read_text(struct document_feed *f, size_t want, struct documents *d)
{
    struct text_buf *text = &d->text;
    TRY(text_buf_reserve(text, want - text->n + UTF8_STREAM_NBYTES_MIN));
    while (text->n < want && !f->ended) {
        size_t n = want - text->n, got;
        if (n < UTF8_STREAM_NBYTES_MIN) n = UTF8_STREAM_NBYTES_MIN;
        TRY(utf8_stream_read(f->stream, text->s + text->n, n, &got));
        text->n += got;
        f->n_text += got;
        f->ended = got == 0;
    }
    return CZ_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* A file that grows while it is read ends where it did. */
cz_status document_feed_open(struct document_feed *f, int fd, const char *path, uint64_t nbytes,
                             bool is_rows, const char *encoding)
{
    *f = (struct document_feed){.path = path, .is_rows = is_rows};
    if (is_rows) return text_source_open_fd(&f->in, fd, path, encoding);
    return utf8_stream_open(
        fd,
        &(struct utf8_stream_options){
            .path = path, .encoding = encoding, .n_raw = nbytes, .refuses_nul = true},
        &f->stream);
}

void document_feed_close(struct document_feed *f)
{
    text_source_close(&f->in);
    utf8_stream_close(f->stream);
    text_buf_free(&f->row);
    text_buf_free(&f->key);
    text_buf_free(&f->scratch);
    text_buf_free(&f->names);
    memset(f, 0, sizeof *f);
}

static const struct byte_stream *bytes_of(const struct document_feed *f)
{
    return utf8_stream_bytes(f->is_rows ? f->in.stream : f->stream);
}

bool document_feed_is_packed(const struct document_feed *f)
{
    return byte_stream_packing(bytes_of(f)) != BYTES_PLAIN;
}

uint64_t document_feed_n_consumed(const struct document_feed *f)
{
    return byte_stream_n_consumed(bytes_of(f));
}

cz_status document_feed_read(struct document_feed *f, size_t want, struct documents *d)
{
    if (!f->is_rows) return d->text.n < want ? read_text(f, want, d) : CZ_OK;
    while (d->text.n < want && !f->ended) TRY(read_row(f, d));
    return CZ_OK;
}

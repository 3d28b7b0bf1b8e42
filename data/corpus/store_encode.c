/* Text that is not read as it is needed: under a trained tokenizer, compressed, or in rows. It is
 * encoded once, when it is opened, by all threads; the ids are kept instead of the text. A wave of
 * parts is read, cut where the tokenizer says that no token reaches across, encoded in parallel,
 * and appended in order: the ids are those of the whole text, whatever the number of threads. Where
 * a text can be cut nowhere in sight, more of it is read. Documents are encoded alone, each with
 * the tokenizer's end behind it; short ones make up a part together. */
#include "base/log.h"
#include "base/threads.h"
#include "data/corpus/documents_impl.h"
#include "data/corpus/store_impl.h"
#include "data/tokenizer/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PART_NBYTES ((size_t)1 << 20)
#define PARTS_MAX   64
/* A place to cut is one also for the text that is not read yet: the next character and an added
 * token decide, which are shorter than this. */
#define SIGHT_NBYTES    ((size_t)1 << 20)
#define REPORTED_NBYTES ((size_t)64 << 20) /* from here on the log says how far it is */

/* Texts of documents one after the other, the last one perhaps without its end, and where they end
 * in the waiting text. */
struct part {
    size_t begin, end;
    const size_t *ends;
    size_t n_ends;
    bool is_rest; /* begins inside a document */
    struct id_list list;
    cz_status st;
};

/* The ids of a file as they come: 8 or 16 bits each when the vocabulary allows. */
struct encoder {
    const struct cz_tokenizer *tok;
    int32_t end_id; /* behind each document; −1: a line end, as text */
    const struct token_file *file;
    struct document_feed feed;
    struct documents waiting;
    unsigned char *ids;
    size_t width, n, cap;
    size_t ids_nbytes_max;
    struct part parts[PARTS_MAX];
    size_t n_parts;
    bool is_inside; /* the last part ended inside a document */
};

/* ---- a wave ---------------------------------------------------------------------------------- */

/* Where the part that begins at `begin` of the waiting text ends; 0: more has to be read.
 * ends[0 … n_ends) are the documents' ends behind it. The tokenizer finds a place in a long one;
 * a tokenizer that cannot (no `cut`) gets the whole text at once. */
static size_t part_end(const struct encoder *e, size_t begin, const size_t *ends, size_t n_ends)
{
    size_t n_whole = 0;
    while (n_whole < n_ends && ends[n_whole] - begin <= PART_NBYTES) n_whole++;
    if (n_whole > 0) return ends[n_whole - 1];
    const bool has_end = n_ends > 0 || e->feed.ended;
    const size_t left = (n_ends > 0 ? ends[0] : e->waiting.text.n) - begin;
    if (has_end && (left <= PART_NBYTES + PART_NBYTES / 2 || !e->tok->cls->cut))
        return begin + left;
    if (!e->tok->cls->cut || (!has_end && left < PART_NBYTES + SIGHT_NBYTES)) return 0;
    const size_t n = e->tok->cls->cut(e->tok, e->waiting.text.s + begin, left, PART_NBYTES);
    return has_end || n + SIGHT_NBYTES <= left ? begin + n : 0;
}

static cz_status encode_text(const struct encoder *e, struct part *p, size_t at, size_t end)
{
    const struct tokenizer_class *cls = e->tok->cls;
    const bool is_rest = p->is_rest && at == p->begin && cls->encode_rest;
    return (is_rest ? cls->encode_rest : cls->encode)(e->tok, e->waiting.text.s + at, end - at,
                                                      &p->list);
}

static cz_status encode_part(const struct encoder *e, struct part *p)
{
    size_t at = p->begin;
    p->list.n = 0;
    for (size_t i = 0; i < p->n_ends; i++) {
        TRY(encode_text(e, p, at, p->ends[i]));
        if (e->end_id >= 0)
            TRY(id_list_add(&p->list, e->end_id));
        else
            TRY(e->tok->cls->encode(e->tok, "\n", 1, &p->list));
        at = p->ends[i];
    }
    return at < p->end ? encode_text(e, p, at, p->end) : CZ_OK;
}

static void encode_parts(struct encoder *e)
{
    struct part *parts = e->parts;
    int n = (int)e->n_parts;
#pragma omp parallel for schedule(dynamic, 1) if (n > 1)
    for (int i = 0; i < n; i++) parts[i].st = encode_part(e, &parts[i]);
}

static cz_status ids_reserve(struct encoder *e, size_t n)
{
    if (n <= e->cap - e->n) return CZ_OK;
    size_t cap = e->cap + e->cap / 4;
    if (cap < e->n + n) cap = e->n + n;
    if (cap > e->ids_nbytes_max / e->width)
        return err_set(CZ_NOMEM, 0,
                       "%s: its tokens take more than half of the free memory (%zu MiB) when it is "
                       "decompressed",
                       e->file->path, e->ids_nbytes_max >> 20);
    unsigned char *ids = cap > SIZE_MAX / e->width ? NULL : realloc(e->ids, cap * e->width);
    if (!ids) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu tokens", e->file->path, cap);
    e->ids = ids;
    e->cap = cap;
    return CZ_OK;
}

static cz_status append_part(struct encoder *e, const struct part *p)
{
    TRY(ids_reserve(e, p->list.n));
    if (e->width == sizeof(int32_t)) {
        if (p->list.n > 0) memcpy(e->ids + e->n * e->width, p->list.ids, p->list.n * e->width);
    } else if (e->width == sizeof(uint8_t)) {
        for (size_t i = 0; i < p->list.n; i++) e->ids[e->n + i] = (unsigned char)p->list.ids[i];
    } else {
        uint16_t *dst = (uint16_t *)(void *)e->ids + e->n;
        for (size_t i = 0; i < p->list.n; i++) dst[i] = (uint16_t)p->list.ids[i];
    }
    e->n += p->list.n;
    return CZ_OK;
}

/* Two parts per thread, so that threads with short texts do not wait long. */
static cz_status encode_wave(struct encoder *e)
{
    const struct documents *d = &e->waiting;
    size_t max = 2 * (size_t)threads_count(), end = 0;
    if (max > PARTS_MAX) max = PARTS_MAX;
    size_t want = max * (PART_NBYTES + PART_NBYTES / 2) + SIGHT_NBYTES;
    for (e->n_parts = 0; e->n_parts == 0; want *= 2) {
        size_t n_ends_used = 0;
        TRY(document_feed_read(&e->feed, want, &e->waiting));
        if (d->text.n == 0) return CZ_OK; /* the end */
        for (size_t at = 0; e->n_parts < max && at < d->text.n; at = end) {
            const size_t *ends = d->ends ? d->ends + n_ends_used : NULL; /* text has none */
            const size_t next = part_end(e, at, ends, d->n_ends - n_ends_used);
            if (next == 0) break;
            size_t n = 0;
            while (n_ends_used + n < d->n_ends && ends[n] <= next) n++;
            struct part *p = &e->parts[e->n_parts++];
            p->begin = at;
            p->end = next;
            p->ends = ends;
            p->n_ends = n;
            p->is_rest = e->is_inside;
            e->is_inside = n == 0 || ends[n - 1] != next;
            n_ends_used += n;
            end = next;
        }
    }
    encode_parts(e);
    for (size_t i = 0; i < e->n_parts; i++) {
        struct part *p = &e->parts[i];
        /* Errors are thread-local: the part that failed is encoded again here, to get its sentence
         * on this thread. */
        if (p->st != CZ_OK && (p->st = encode_part(e, p)) != CZ_OK)
            return err_prefix("%s", e->file->path);
        TRY(append_part(e, p));
    }
    documents_drop(&e->waiting, end);
    return CZ_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A line for each tenth of a long file. */
static void report(const struct encoder *e, uint64_t before, double seconds)
{
    const uint64_t nbytes = e->file->nbytes, tenth = nbytes / 10 + 1;
    const uint64_t done = document_feed_n_consumed(&e->feed);
    if (nbytes < REPORTED_NBYTES || done / tenth == before / tenth) return;
    LOGV(LOG_INFO, SUB_DATA, "%s: %llu%% encoded, %.1f MB/s", e->file->path,
         (unsigned long long)(100 * done / nbytes),
         (double)e->feed.n_text / 1e6 / (seconds > 0 ? seconds : 1));
}

static cz_status encode_all(struct encoder *e)
{
    char rows[64] = "";
    double start = now_seconds();
    while (!e->feed.ended || e->waiting.text.n > 0) {
        const uint64_t before = document_feed_n_consumed(&e->feed);
        TRY(encode_wave(e));
        report(e, before, now_seconds() - start);
    }
    if (e->feed.is_rows)
        snprintf(rows, sizeof rows, " in %llu rows", (unsigned long long)e->feed.n_rows);
    LOGV(LOG_INFO, SUB_DATA, "%s: %.1f MB of text%s are %zu tokens of the %s tokenizer (%.1f s)",
         e->file->path, (double)e->feed.n_text / 1e6, rows, e->n, e->tok->cls->name,
         now_seconds() - start);
    return CZ_OK;
}

static size_t id_width(const struct cz_tokenizer *tok)
{
    return tok->vocab_size <= UINT8_MAX + 1    ? sizeof(uint8_t)
           : tok->vocab_size <= UINT16_MAX + 1 ? sizeof(uint16_t)
                                               : sizeof(int32_t);
}

static cz_status append_end(struct encoder *e)
{
    const struct part end = {.list = {.ids = &e->end_id, .n = 1}};
    return append_part(e, &end);
}

/* What is compressed may become a thousand times as much: its tokens get a part of the memory. */
static cz_status encode_file(struct encoder *e, bool is_rows, const struct token_store *s)
{
    const struct token_file *f = e->file;
    TRY(document_feed_open(&e->feed, f->fd, f->path, f->nbytes, is_rows, s->encoding));
    e->ids_nbytes_max = document_feed_is_packed(&e->feed) ? text_packed_nbytes_max() : SIZE_MAX;
    TRY(encode_all(e));
    if (e->n == 0) return err_set(CZ_INVALID, 0, "%s: contains no tokens", f->path);
    return s->ends_texts && !is_rows && e->end_id >= 0 ? append_end(e) : CZ_OK;
}

/* The text is replaced by its ids; on an error the file stays as it was. */
cz_status store_encode(struct token_store *s, size_t file_idx, const struct cz_tokenizer *tok,
                       bool is_rows)
{
    struct token_file *f = &s->files[file_idx];
    struct cz_tokenizer *bytes = NULL;
    struct encoder *e = calloc(1, sizeof *e);
    if (!e) return err_set(CZ_NOMEM, 0, "%s: no memory to encode it", f->path);
    cz_status st = tok ? CZ_OK : tokenizer_bytes_open(&bytes);
    if (st == CZ_OK) {
        e->tok = tok ? tok : bytes;
        e->end_id = (int32_t)cz_tokenizer_end_id(e->tok);
        e->file = f;
        e->width = id_width(e->tok);
        st = encode_file(e, is_rows, s);
    }
    for (size_t i = 0; i < PARTS_MAX; i++) free(e->parts[i].list.ids);
    document_feed_close(&e->feed);
    documents_free(&e->waiting);
    cz_tokenizer_close(bytes);
    if (st != CZ_OK) {
        free(e->ids);
        free(e);
        return st;
    }
    unsigned char *fitted = realloc(e->ids, e->n * e->width);
    struct token_file encoded = {
        .path = f->path, .fd = -1, .encoded = fitted ? fitted : e->ids, .nbytes = e->n * e->width};
    f->path = NULL;
    store_close(f);
    *f = encoded;
    st = store_add_run(s, file_idx,
                       e->width == 1   ? TOKEN_U8
                       : e->width == 2 ? TOKEN_U16
                                       : TOKEN_I32,
                       0, e->n);
    free(e);
    return st;
}

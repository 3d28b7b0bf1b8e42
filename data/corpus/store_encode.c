/* Text under a trained tokenizer: encoded once, when it is opened, by all threads; the ids are kept
 * instead of the text. A wave of parts is read, cut where the tokenizer says that no token reaches
 * across, encoded in parallel, and appended in order: the ids are those of the whole text, whatever
 * the number of threads. Where a text can be cut nowhere in sight, more of it is read. */
#include "base/log.h"
#include "base/threads.h"
#include "data/corpus/store_impl.h"
#include "data/tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PART_NBYTES ((size_t)1 << 20)
#define PARTS_MAX   64
/* A place to cut is one also for the text that is not read yet: the next character and an added
 * token decide, which are shorter than this. */
#define SIGHT_NBYTES    ((size_t)1 << 20)
#define REPORTED_NBYTES ((size_t)64 << 20) /* from here on the log says how far it is */

struct part {
    const char *text;
    size_t nbytes;
    struct id_list list;
    cz_status st;
};

/* The ids of a file as they come: 16 bits each when the vocabulary allows. */
struct encoder {
    const struct cz_tokenizer *tok;
    const struct token_file *file;
    size_t nbytes, done;
    char *text; /* [done, done + n_text) of the file */
    size_t n_text, text_cap;
    unsigned char *ids;
    size_t width, n, cap;
    struct part parts[PARTS_MAX];
    size_t n_parts;
};

/* ---- a wave ---------------------------------------------------------------------------------- */

/* Reads on until `want` bytes, or all that is left, are in memory. */
static cz_status read_text(struct encoder *e, size_t want)
{
    const size_t left = e->nbytes - e->done;
    if (want > left) want = left;
    if (want <= e->n_text) return CZ_OK;
    if (want > e->text_cap) {
        char *text = realloc(e->text, want);
        if (!text) return err_set(CZ_NOMEM, 0, "%s: no memory to encode it", e->file->path);
        e->text = text;
        e->text_cap = want;
    }
    TRY(store_bytes(e->file, e->done + e->n_text, want - e->n_text, e->text + e->n_text));
    e->n_text = want;
    return CZ_OK;
}

/* Where the part that begins at `begin` of the text in memory ends; 0: more has to be read. The
 * tokenizer finds the place; one that cannot (no `cut`) gets the whole text at once. */
static size_t part_end(const struct encoder *e, size_t begin)
{
    const size_t left = e->n_text - begin;
    const bool has_end = e->done + e->n_text == e->nbytes;
    if (has_end && (left <= PART_NBYTES + PART_NBYTES / 2 || !e->tok->cls->cut)) return e->n_text;
    if (!e->tok->cls->cut || (!has_end && left < PART_NBYTES + SIGHT_NBYTES)) return 0;
    const size_t n = e->tok->cls->cut(e->tok, e->text + begin, left, PART_NBYTES);
    return has_end || n + SIGHT_NBYTES <= left ? begin + n : 0;
}

static void encode_parts(struct encoder *e)
{
    const struct cz_tokenizer *tok = e->tok;
    struct part *parts = e->parts;
    int n = (int)e->n_parts;
#pragma omp parallel for schedule(dynamic, 1) if (n > 1)
    for (int i = 0; i < n; i++)
        parts[i].st = tok->cls->encode(tok, parts[i].text, parts[i].nbytes, &parts[i].list);
}

static cz_status ids_reserve(struct encoder *e, size_t n)
{
    if (n <= e->cap - e->n) return CZ_OK;
    size_t cap = e->cap + e->cap / 4;
    if (cap < e->n + n) cap = e->n + n;
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
    size_t max = 2 * (size_t)threads_count(), end = 0;
    if (max > PARTS_MAX) max = PARTS_MAX;
    size_t want = max * (PART_NBYTES + PART_NBYTES / 2) + SIGHT_NBYTES;
    for (e->n_parts = 0; e->n_parts == 0; want *= 2) {
        TRY(read_text(e, want));
        for (size_t at = 0; e->n_parts < max && at < e->n_text; at = end) {
            const size_t next = part_end(e, at);
            if (next == 0) break;
            struct part *p = &e->parts[e->n_parts++];
            p->text = e->text + at;
            p->nbytes = next - at;
            p->list.n = 0;
            end = next;
        }
    }
    encode_parts(e);
    for (size_t i = 0; i < e->n_parts; i++) {
        struct part *p = &e->parts[i];
        if (p->st != CZ_OK) {
            /* Errors are thread-local: the part that failed is encoded again here, to get its
             * sentence on this thread. */
            p->list.n = 0;
            p->st = e->tok->cls->encode(e->tok, p->text, p->nbytes, &p->list);
            if (p->st != CZ_OK) return err_prefix("%s", e->file->path);
        }
        TRY(append_part(e, p));
    }
    e->done += end;
    e->n_text -= end;
    memmove(e->text, e->text + end, e->n_text);
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
static void report(const struct encoder *e, size_t before, double seconds)
{
    size_t tenth = e->nbytes / 10 + 1;
    if (e->nbytes < REPORTED_NBYTES || e->done / tenth == before / tenth) return;
    LOGV(LOG_INFO, SUB_DATA, "%s: %zu%% encoded, %.1f MB/s", e->file->path,
         100 * e->done / e->nbytes, (double)e->done / 1e6 / (seconds > 0 ? seconds : 1));
}

static cz_status encode_all(struct encoder *e)
{
    double start = now_seconds();
    while (e->done < e->nbytes) {
        size_t before = e->done;
        TRY(encode_wave(e));
        report(e, before, now_seconds() - start);
    }
    LOGV(LOG_INFO, SUB_DATA, "%s: %.1f MB of text are %zu tokens of the %s tokenizer (%.1f s)",
         e->file->path, (double)e->nbytes / 1e6, e->n, e->tok->cls->name, now_seconds() - start);
    return CZ_OK;
}

/* The text is replaced by its ids; on an error the file stays as it was. */
cz_status store_encode(struct token_store *s, size_t file_idx, const struct cz_tokenizer *tok)
{
    struct token_file *f = &s->files[file_idx];
    struct encoder *e = calloc(1, sizeof *e);
    if (!e) return err_set(CZ_NOMEM, 0, "%s: no memory to encode it", f->path);
    e->tok = tok;
    e->file = f;
    e->nbytes = (size_t)f->nbytes;
    e->width = tok->vocab_size <= UINT16_MAX + 1 ? sizeof(uint16_t) : sizeof(int32_t);
    cz_status st = encode_all(e);
    if (st == CZ_OK && e->n == 0) st = err_set(CZ_INVALID, 0, "%s: contains no tokens", f->path);
    for (size_t i = 0; i < PARTS_MAX; i++) free(e->parts[i].list.ids);
    free(e->text);
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
    st = store_add_run(s, file_idx, e->width == 2 ? TOKEN_U16 : TOKEN_I32, 0, e->n);
    free(e);
    return st;
}

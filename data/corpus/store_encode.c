/* Text under a trained tokenizer: encoded once, when it is opened, by all threads; the ids are kept
 * instead of the mapping. A wave of parts is cut where the tokenizer says that no token reaches
 * across, encoded in parallel, and appended in order: the ids are those of the whole text, whatever
 * the number of threads. */
#include "base/log.h"
#include "base/threads.h"
#include "data/corpus/store_impl.h"
#include "data/tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PART_NBYTES     ((size_t)1 << 20)
#define PARTS_MAX       64
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
    const char *path, *text;
    size_t nbytes, done;
    unsigned char *ids;
    size_t width, n, cap;
    struct part parts[PARTS_MAX];
    size_t n_parts;
};

/* ---- a wave ---------------------------------------------------------------------------------- */

/* The tokenizer finds the place; one that cannot (no `cut`) gets the whole text at once. */
static size_t part_end(const struct encoder *e, size_t begin)
{
    size_t left = e->nbytes - begin;
    if (left <= PART_NBYTES + PART_NBYTES / 2 || !e->tok->cls->cut) return e->nbytes;
    return begin + e->tok->cls->cut(e->tok, e->text + begin, left, PART_NBYTES);
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
    if (!ids) return err_set(CZ_NOMEM, 0, "no memory for %zu tokens", cap);
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
    e->done = (size_t)(p->text - e->text) + p->nbytes;
    return CZ_OK;
}

/* Two parts per thread, so that threads with short texts do not wait long. */
static cz_status encode_wave(struct encoder *e)
{
    size_t begin = e->done;
    size_t max = 2 * (size_t)threads_count(), at = e->done;
    if (max > PARTS_MAX) max = PARTS_MAX;
    for (e->n_parts = 0; e->n_parts < max && at < e->nbytes; e->n_parts++) {
        struct part *p = &e->parts[e->n_parts];
        size_t end = part_end(e, at);
        p->text = e->text + at;
        p->nbytes = end - at;
        p->list.n = 0;
        at = end;
    }
    encode_parts(e);
    for (size_t i = 0; i < e->n_parts; i++) {
        struct part *p = &e->parts[i];
        if (p->st != CZ_OK) {
            /* Errors are thread-local: the part that failed is encoded again here, to get its
             * sentence on this thread. */
            p->list.n = 0;
            p->st = e->tok->cls->encode(e->tok, p->text, p->nbytes, &p->list);
            TRY(p->st);
        }
        TRY(append_part(e, p));
    }
    /* Give back the pages of the mapping that were read. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t lo = begin / page * page, hi = e->done / page * page;
    if (hi > lo) /* a hint: failure costs memory, not correctness */
        (void)madvise((void *)(uintptr_t)(e->text + lo), hi - lo, MADV_DONTNEED);
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
    LOGV(LOG_INFO, SUB_DATA, "%s: %zu%% encoded, %.1f MB/s", e->path, 100 * e->done / e->nbytes,
         (double)e->done / 1e6 / (seconds > 0 ? seconds : 1));
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
         e->path, (double)e->nbytes / 1e6, e->n, e->tok->cls->name, now_seconds() - start);
    return CZ_OK;
}

/* The mapped text is replaced by its ids; on an error the file stays as it was. */
cz_status store_encode(struct token_store *s, size_t file_idx, const struct cz_tokenizer *tok)
{
    struct token_file *f = &s->files[file_idx];
    struct encoder *e = calloc(1, sizeof *e);
    if (!e) return err_set(CZ_NOMEM, 0, "%s: no memory to encode it", f->path);
    e->tok = tok;
    e->path = f->path;
    e->text = (const char *)f->bytes;
    e->nbytes = (size_t)f->nbytes;
    e->width = tok->vocab_size <= UINT16_MAX + 1 ? sizeof(uint16_t) : sizeof(int32_t);
    cz_status st = encode_all(e);
    if (st != CZ_OK) st = err_prefix("%s", f->path);
    if (st == CZ_OK && e->n == 0) st = err_set(CZ_INVALID, 0, "%s: contains no tokens", f->path);
    for (size_t i = 0; i < PARTS_MAX; i++) free(e->parts[i].list.ids);
    if (st != CZ_OK) {
        free(e->ids);
        free(e);
        return st;
    }
    unsigned char *fitted = realloc(e->ids, e->n * e->width);
    struct token_file encoded = {
        .path = f->path, .fd = -1, .encoded = fitted ? fitted : e->ids, .nbytes = e->n * e->width};
    encoded.bytes = encoded.encoded;
    f->path = NULL;
    store_unmap(f);
    *f = encoded;
    st = store_add_run(s, file_idx, e->width == 2 ? TOKEN_U16 : TOKEN_I32, 0, e->n);
    free(e);
    return st;
}

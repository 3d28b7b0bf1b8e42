/* Tokens of all files as one sequence: open files, and runs of tokens in them. Files are read in
 * pieces when their tokens are needed, so opening terabytes takes no time and memory stays small;
 * the page cache is shared by the ranks of a host. They are not mapped: a file that is truncated
 * meanwhile would end the process with SIGBUS, and a read is an error that can be told. */
#include "data/corpus/store_impl.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Read and widened at once: in the first-level caches, and a small part of any read's cost. */
#define PIECE_NBYTES ((size_t)16 << 10)

size_t token_kind_size(enum token_kind kind)
{
    switch (kind) {
    case TOKEN_U8:
    case TOKEN_I8: return 1;
    case TOKEN_U16:
    case TOKEN_I16: return 2;
    case TOKEN_U32:
    case TOKEN_I32: return 4;
    case TOKEN_I64: return 8;
    }
    return 0;
}

/* INT64_MAX as the bound means "unknown". */
static int64_t kind_max(enum token_kind kind)
{
    switch (kind) {
    case TOKEN_U8: return UINT8_MAX;
    case TOKEN_I8: return INT8_MAX;
    case TOKEN_U16: return UINT16_MAX;
    case TOKEN_I16: return INT16_MAX;
    case TOKEN_U32: return UINT32_MAX;
    case TOKEN_I32: return INT32_MAX;
    case TOKEN_I64: break;
    }
    return INT64_MAX;
}

int64_t store_id_max(const struct token_store *s)
{
    int64_t max = 0;
    for (size_t r = 0; r < s->n_runs; r++) {
        /* A signed kind can hold a negative id: nothing but a search excludes it. */
        int64_t m = (s->runs[r].kind == TOKEN_I8 || s->runs[r].kind == TOKEN_I16 ||
                     s->runs[r].kind == TOKEN_I32 || s->runs[r].kind == TOKEN_I64)
                        ? INT64_MAX
                        : kind_max(s->runs[r].kind);
        if (m > max) max = m;
    }
    return max;
}

void store_init(struct token_store *s, struct token_file *files)
{
    memset(s, 0, sizeof *s);
    s->files = files;
}

void store_close(struct token_file *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->encoded);
    free(f->path);
    memset(f, 0, sizeof *f);
    f->fd = -1;
}

void store_free(struct token_store *s)
{
    for (size_t i = 0; i < s->n_files; i++) store_close(&s->files[i]);
    free(s->runs);
    memset(s, 0, sizeof *s);
}

cz_status store_open(struct token_store *s, const struct data_path *path, size_t *file_idx)
{
    struct token_file *f = &s->files[s->n_files];
    memset(f, 0, sizeof *f);
    TRY(beneath_open(path->dir, path->name, &f->fd, &f->nbytes));
    s->n_files++; /* from here on store_free() closes it */
    *file_idx = s->n_files - 1;
    f->path = strdup(path->shown);
    if (!f->path) return err_set(CZ_NOMEM, 0, "%s: no memory for its name", path->shown);
    if (f->nbytes == 0) return err_set(CZ_INVALID, 0, "%s: is empty", path->shown);
    return CZ_OK;
}

/* All offsets were checked against the length that the file had. */
cz_status store_bytes(const struct token_file *f, uint64_t off, size_t nbytes, void *dst)
{
    cz_status st = file_pread(f->fd, f->path, dst, nbytes, off);
    if (st != CZ_CORRUPT) return st;
    return err_set(CZ_CORRUPT, 0, "%s: became shorter while it was read (it had %llu bytes)",
                   f->path, (unsigned long long)f->nbytes);
}

/* Runs that continue each other become one, since every read searches the list of runs. file_first
 * is for messages: positions there count tokens of the file. */
cz_status store_add_run(struct token_store *s, size_t file_idx, enum token_kind kind,
                        uint64_t byte_off, uint64_t n_tokens)
{
    struct token_run *last = s->n_runs > 0 ? &s->runs[s->n_runs - 1] : NULL;
    bool same_file = last && last->file_idx == file_idx;
    uint64_t file_first = same_file ? last->file_first + last->n_tokens : 0;
    if (n_tokens == 0) return CZ_OK;
    if (same_file && last->byte_off + last->n_tokens * token_kind_size(kind) == byte_off) {
        last->n_tokens += n_tokens;
        s->n_tokens += n_tokens;
        return CZ_OK;
    }
    if (s->n_runs == s->runs_capacity) {
        size_t capacity = 2 * s->runs_capacity + 4;
        struct token_run *runs = realloc(s->runs, capacity * sizeof *runs);
        if (!runs)
            return err_set(CZ_NOMEM, 0, "%s: no memory for %zu runs of tokens",
                           s->files[file_idx].path, capacity);
        s->runs = runs;
        s->runs_capacity = capacity;
    }
    s->runs[s->n_runs++] = (struct token_run){.file_idx = file_idx,
                                              .kind = kind,
                                              .byte_off = byte_off,
                                              .n_tokens = n_tokens,
                                              .first = s->n_tokens,
                                              .file_first = file_first};
    s->n_tokens += n_tokens;
    return CZ_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* memcpy because ids of a .npy may begin at any byte. */
static int64_t load_token(enum token_kind kind, const unsigned char *src)
{
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    int64_t i64;
    switch (kind) {
    case TOKEN_U8: return memcpy(&u8, src, 1), u8;
    case TOKEN_I8: return memcpy(&i8, src, 1), i8;
    case TOKEN_U16: return memcpy(&u16, src, 2), u16;
    case TOKEN_I16: return memcpy(&i16, src, 2), i16;
    case TOKEN_U32: return memcpy(&u32, src, 4), u32;
    case TOKEN_I32: return memcpy(&i32, src, 4), i32;
    case TOKEN_I64: return memcpy(&i64, src, 8), i64;
    }
    return -1;
}

/* One loop per kind, so that each is a plain widening loop; true when some id is outside. The bad
 * bit collects `id ≥ limit` with ids taken as unsigned, which catches negative ones too. */
static bool widen(enum token_kind kind, const unsigned char *src, size_t n, int64_t vocab_size,
                  int32_t *dst)
{
    const uint64_t limit = (uint64_t)vocab_size;
    const uint32_t limit32 = limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit;
    uint32_t bad = 0;
    uint16_t u16;
    uint32_t u32;
    switch (kind) {
    case TOKEN_U8:
        for (size_t i = 0; i < n; i++) {
            dst[i] = src[i];
            bad |= src[i] >= limit32;
        }
        return bad;
    case TOKEN_U16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&u16, src + 2 * i, 2);
            dst[i] = u16;
            bad |= u16 >= limit32;
        }
        return bad;
    case TOKEN_U32:
    case TOKEN_I32:
        for (size_t i = 0; i < n; i++) {
            memcpy(&u32, src + 4 * i, 4);
            dst[i] = (int32_t)u32;
            bad |= u32 >= limit32;
        }
        return bad;
    default: break;
    }
    for (size_t i = 0; i < n; i++) {
        int64_t id = load_token(kind, src + token_kind_size(kind) * i);
        dst[i] = (int32_t)id;
        bad |= (uint64_t)id >= limit;
    }
    return bad;
}

/* Slow, and only after widen() has seen a bad id: the fast loop keeps no position. `at`: of the
 * first of these tokens in its file. */
static cz_status name_bad_token(const struct token_run *run, const char *path,
                                const unsigned char *src, uint64_t at, size_t n, int64_t vocab_size)
{
    const size_t width = token_kind_size(run->kind);
    size_t i = 0;
    int64_t id = load_token(run->kind, src);
    while (id >= 0 && id < vocab_size && i + 1 < n) id = load_token(run->kind, src + ++i * width);
    return err_set(CZ_INVALID, 0,
                   "token %lld at position %llu of %s is outside the model's vocabulary of %lld",
                   (long long)id, (unsigned long long)(at + i), path, (long long)vocab_size);
}

cz_status store_read(struct token_store *s, uint64_t first, size_t n, int64_t vocab_size,
                     int32_t *dst)
{
    unsigned char piece[PIECE_NBYTES];
    size_t lo = 0, hi = s->n_runs;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->runs[mid].first <= first)
            lo = mid;
        else
            hi = mid;
    }
    for (const struct token_run *run = &s->runs[lo]; n > 0;) {
        const struct token_file *f = &s->files[run->file_idx];
        const size_t width = token_kind_size(run->kind);
        const uint64_t skip = first - run->first, off = run->byte_off + skip * width;
        const unsigned char *src = f->encoded ? f->encoded + off : piece;
        size_t take = run->n_tokens - skip < n ? (size_t)(run->n_tokens - skip) : n;
        if (take > sizeof piece / width) take = sizeof piece / width;
        if (!f->encoded) TRY(store_bytes(f, off, take * width, piece));
        if (widen(run->kind, src, take, vocab_size, dst))
            return name_bad_token(run, f->path, src, run->file_first + skip, take, vocab_size);
        dst += take;
        first += take;
        n -= take;
        if (skip + take == run->n_tokens) run++;
    }
    return CZ_OK;
}

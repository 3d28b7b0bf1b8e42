/* Writing safetensors: the layout is fixed when the writer is created, pieces then go to their
 * offsets in any order and from any thread, and files get their names when all of them are
 * complete. */
#include "base/utf8.h"
#include "formats/file_io.h"
#include "formats/output.h"
#include "formats/safetensors/safetensors_impl.h"
#include "formats/safetensors/shards.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Its place is fixed at creation; only n_written changes afterwards, from any thread. */
struct entry { /* one declared tensor */
    char *name;
    int64_t *shape;
    size_t ndim;
    enum safetensors_dtype dtype;
    uint64_t numel, nbytes;
    size_t file_idx;
    uint64_t data_off; /* from the start of the file's data */
    _Atomic uint64_t n_written;
};

struct out_file {
    struct file_durable disk;
    uint64_t header_nbytes; /* length and padding included */
};

struct safetensors_writer {
    struct entry *entries;
    size_t n_entries;
    struct out_file *files;
    size_t n_files;
    struct out_folder folder; /* not open: a single named file */
    struct file_durable index;
    bool has_index;
    bool done;
};

/* ---- declarations ---------------------------------------------------------------------------- */

/* Declarations are copied and checked at once: a name or shape that the format does not allow must
 * not be found after gigabytes were written. */
static cz_status copy_decl(const char *path, const struct safetensors_decl *decl, struct entry *e)
{
    size_t shape_nbytes = decl->ndim * sizeof *e->shape;
    if (!utf8_is_valid(decl->name, strlen(decl->name)))
        return err_set(CZ_INVALID, 0, "%s: a tensor's name is not UTF-8", path);
    if (strcmp(decl->name, SAFETENSORS_METADATA_KEY) == 0)
        return err_set(CZ_INVALID, 0, "%s: a tensor cannot be called %s", path, decl->name);
    if (safetensors_dtype_bits(decl->dtype) == 0)
        return err_set(CZ_INVALID, 0, "%s: tensor %s: dtype %d is not one of the format's", path,
                       decl->name, (int)decl->dtype);
    for (size_t d = 0; d < decl->ndim; d++)
        if (decl->shape[d] < 0)
            return err_set(CZ_INVALID, 0, "%s: tensor %s: dimension %zu is %lld", path, decl->name,
                           d, (long long)decl->shape[d]);
    if (safetensors_extent(decl->dtype, decl->shape, decl->ndim, &e->numel, &e->nbytes) !=
        EXTENT_OK)
        return err_set(CZ_INVALID, 0, "%s: tensor %s: its shape has no whole number of bytes", path,
                       decl->name);
    e->name = strdup(decl->name);
    e->shape = malloc(shape_nbytes + 1);
    if (!e->name || !e->shape) return err_set(CZ_NOMEM, 0, "%s: no memory for names", path);
    if (decl->ndim > 0) memcpy(e->shape, decl->shape, shape_nbytes);
    e->ndim = decl->ndim;
    e->dtype = decl->dtype;
    return CZ_OK;
}

static int by_name(const void *left, const void *right)
{
    const struct entry *a = *(struct entry *const *)left, *b = *(struct entry *const *)right;
    return strcmp(a->name, b->name);
}

/* By file, then as the reference lays a file out: larger dtypes first, which keeps every tensor
 * aligned, then names. */
static int by_layout(const void *left, const void *right)
{
    const struct entry *a = *(struct entry *const *)left, *b = *(struct entry *const *)right;
    if (a->file_idx != b->file_idx) return a->file_idx < b->file_idx ? -1 : 1;
    if (a->dtype != b->dtype) return a->dtype > b->dtype ? -1 : 1;
    return strcmp(a->name, b->name);
}

static struct entry **sorted_entries(const struct safetensors_writer *w,
                                     int (*order)(const void *, const void *))
{
    struct entry **list = malloc((w->n_entries + 1) * sizeof(struct entry *));
    if (!list) return NULL;
    for (size_t i = 0; i < w->n_entries; i++) list[i] = &w->entries[i];
    qsort(list, w->n_entries, sizeof *list, order);
    return list;
}

/* The format is a JSON object: of two equal keys, readers take one and lose the other's data. */
static cz_status check_names(const struct safetensors_writer *w, const char *path)
{
    struct entry **list = sorted_entries(w, by_name);
    if (!list) return err_set(CZ_NOMEM, 0, "%s: no memory for names", path);
    cz_status st = CZ_OK;
    for (size_t i = 1; i < w->n_entries && st == CZ_OK; i++)
        if (strcmp(list[i - 1]->name, list[i]->name) == 0)
            st = err_set(CZ_INVALID, 0, "%s: tensor %s is declared twice", path, list[i]->name);
    free(list);
    return st;
}

/* ---- the header ------------------------------------------------------------------------------ */

/* A header under construction. Failures are remembered, so that one check at the end is enough. */
struct text {
    char *buf;
    size_t used, capacity;
    bool failed;
};

/* Doubles, so that a header of many thousands of tensors is copied a few times only. */
static void text_add(struct text *t, const char *src, size_t nbytes)
{
    if (t->failed) return;
    if (t->used + nbytes > t->capacity) {
        size_t capacity = 2 * (t->used + nbytes) + 256;
        char *buf = realloc(t->buf, capacity);
        if (!buf) {
            t->failed = true;
            return;
        }
        t->buf = buf;
        t->capacity = capacity;
    }
    memcpy(t->buf + t->used, src, nbytes);
    t->used += nbytes;
}

static void text_put(struct text *t, const char *src)
{
    text_add(t, src, strlen(src));
}

static void text_put_u64(struct text *t, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    text_put(t, digits);
}

/* Escapes as the reference's JSON writer: the short forms, \u00xx for other control characters. */
static void text_put_string(struct text *t, const char *s)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    text_put(t, "\"");
    for (; *s; s++) {
        const char *special = strchr(plain, *s);
        char escape[8] = {'\\', 0};
        if (special)
            escape[1] = letters[special - plain];
        else if ((unsigned char)*s < 0x20)
            snprintf(escape + 1, 7, "u%04x", (unsigned char)*s);
        if (escape[1])
            text_put(t, escape);
        else
            text_add(t, s, 1);
    }
    text_put(t, "\"");
}

/* {"format": "pt"} unless the caller has its own: transformers refuses a file without that key. */
static void put_metadata(struct text *t, const struct safetensors_metadata *metadata, size_t n)
{
    static const struct safetensors_metadata standard = {"format", "pt"};
    if (n == 0) metadata = &standard, n = 1;
    text_put_string(t, SAFETENSORS_METADATA_KEY);
    text_put(t, ":{");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) text_put(t, ",");
        text_put_string(t, metadata[i].key);
        text_put(t, ":");
        text_put_string(t, metadata[i].value);
    }
    text_put(t, "}");
}

/* Padded with spaces, so that the data begins at a multiple of eight bytes. The length in front
 * counts the padding, too. Without padding, a mapped file would give misaligned pointers. */
static cz_status make_header(const char *path, struct entry *const *list, size_t n,
                             const struct safetensors_metadata *metadata, size_t n_metadata,
                             struct text *t)
{
    static const char pad[] = "       ";
    text_add(t, "01234567", SAFETENSORS_LENGTH_NBYTES);
    text_put(t, "{");
    put_metadata(t, metadata, n_metadata);
    for (size_t i = 0; i < n; i++) {
        text_put(t, ",");
        text_put_string(t, list[i]->name);
        text_put(t, ":{\"dtype\":\"");
        text_put(t, safetensors_dtype_name(list[i]->dtype));
        text_put(t, "\",\"shape\":[");
        for (size_t d = 0; d < list[i]->ndim; d++) {
            if (d > 0) text_put(t, ",");
            text_put_u64(t, (uint64_t)list[i]->shape[d]);
        }
        text_put(t, "],\"data_offsets\":[");
        text_put_u64(t, list[i]->data_off);
        text_put(t, ",");
        text_put_u64(t, list[i]->data_off + list[i]->nbytes);
        text_put(t, "]}");
    }
    text_put(t, "}");
    text_add(t, pad, (8 - t->used % 8) % 8);
    if (t->failed) return err_set(CZ_NOMEM, 0, "%s: no memory for its header", path);
    uint64_t nbytes = t->used - SAFETENSORS_LENGTH_NBYTES;
    if (nbytes > SAFETENSORS_HEADER_NBYTES_MAX)
        return err_set(CZ_INVALID, 0, "%s: its header would have %llu bytes (at most %u)", path,
                       (unsigned long long)nbytes, SAFETENSORS_HEADER_NBYTES_MAX);
    for (int i = 0; i < SAFETENSORS_LENGTH_NBYTES; i++) t->buf[i] = (char)(nbytes >> 8 * i);
    return CZ_OK;
}

/* ---- creating -------------------------------------------------------------------------------- */

/* Offsets are fixed before the header is written, and the space on disk is reserved with it. */
static cz_status start_file(struct out_file *file, const struct out_folder *in, const char *name,
                            struct entry **list, size_t n,
                            const struct safetensors_metadata *metadata, size_t n_metadata)
{
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        list[i]->data_off = end;
        if (__builtin_add_overflow(end, list[i]->nbytes, &end) || end > INT64_MAX / 2)
            return err_set(CZ_INVALID, 0, "%s: its tensors are impossibly large together", name);
    }
    struct text header = {0};
    cz_status st;
    TRY_GOTO(make_header(name, list, n, metadata, n_metadata, &header), fail);
    TRY_GOTO(file_durable_create_in(&file->disk, in, name, header.used + end), fail);
    TRY_GOTO(file_pwrite(file->disk.fd, file->disk.path, header.buf, header.used, 0), fail);
    file->header_nbytes = header.used;
fail:
    free(header.buf);
    return st;
}

static const struct shards_kind shards = {"model", ".safetensors"};

/* In the order of declaration, like Hugging Face's writers: the split must not depend on the layout
 * within files. Sets file_idx and n_files. */
static cz_status split_shards(struct safetensors_writer *w, const char *path, uint64_t limit)
{
    uint64_t *nbytes = malloc((w->n_entries + 1) * sizeof *nbytes);
    size_t *file_of = malloc((w->n_entries + 1) * sizeof *file_of);
    cz_status st = CZ_OK;
    if (!nbytes || !file_of) {
        st = err_set(CZ_NOMEM, 0, "%s: no memory for %zu tensors", path, w->n_entries);
        goto done;
    }
    for (size_t i = 0; i < w->n_entries; i++) nbytes[i] = w->entries[i].nbytes;
    shards_split(nbytes, w->n_entries, limit, file_of, &w->n_files);
    for (size_t i = 0; i < w->n_entries; i++) w->entries[i].file_idx = file_of[i];
done:
    free(nbytes);
    free(file_of);
    return st;
}

static const struct out_folder *folder_of(const struct safetensors_writer *w)
{
    return w->folder.path ? &w->folder : NULL;
}

/* by_layout sorts by file first, so each file's tensors are one run of the list. */
static cz_status start_files(struct safetensors_writer *w, const char *path,
                             const struct safetensors_metadata *metadata, size_t n_metadata)
{
    w->files = calloc(w->n_files, sizeof *w->files);
    struct entry **list = sorted_entries(w, by_layout);
    cz_status st = CZ_OK;
    if (!w->files || !list) {
        free(list);
        return err_set(CZ_NOMEM, 0, "%s: no memory for %zu files", path, w->n_files);
    }
    size_t begin = 0;
    for (size_t f = 0; f < w->n_files && st == CZ_OK; f++) {
        size_t end = begin;
        while (end < w->n_entries && list[end]->file_idx == f) end++;
        /* Shards' names carry their number, so the split has to be known before the first name. */
        char name[SHARDS_NAME_NBYTES];
        const struct out_folder *in = folder_of(w);
        st =
            start_file(&w->files[f], in, in ? shards_file_name(&shards, f, w->n_files, name) : path,
                       list + begin, end - begin, metadata, n_metadata);
        begin = end;
    }
    free(list);
    return st;
}

static cz_status index_text(const struct safetensors_writer *w, char **out, size_t *nbytes)
{
    struct shards_entry *list = malloc((w->n_entries + 1) * sizeof *list);
    if (!list) return err_set(CZ_NOMEM, 0, "%s: no memory for the index", w->folder.path);
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_entries; i++) {
        list[i] = (struct shards_entry){w->entries[i].name, w->entries[i].file_idx};
        total += w->entries[i].nbytes;
    }
    cz_status st = shards_index_text(&shards, list, w->n_entries, w->n_files, total, out, nbytes);
    free(list);
    return st;
}

/* Written now, renamed last: the folder has no index of the new set while a shard of it is
 * missing. */
static cz_status start_index(struct safetensors_writer *w)
{
    char *text = NULL;
    size_t nbytes;
    cz_status st;
    TRY_GOTO(index_text(w, &text, &nbytes), fail);
    TRY_GOTO(file_durable_create_in(&w->index, &w->folder, SAFETENSORS_INDEX, nbytes), fail);
    w->has_index = true;
    TRY_GOTO(file_pwrite(w->index.fd, w->index.path, text, nbytes, 0), fail);
fail:
    free(text);
    return st;
}

/* path is only for messages when dir is given. Whatever fails leaves no file behind: destroy
 * removes the temporary ones. */
static cz_status create_writer(const char *path, const char *dir, uint64_t shard_nbytes_max,
                               const struct safetensors_decl *decls, size_t n_decls,
                               const struct safetensors_metadata *metadata, size_t n_metadata,
                               struct safetensors_writer **out)
{
    struct safetensors_writer *w = calloc(1, sizeof *w);
    cz_status st;
    *out = NULL;
    if (!w) return err_set(CZ_NOMEM, 0, "%s: no memory for a writer", path);
    w->entries = calloc(n_decls + 1, sizeof *w->entries);
    if (!w->entries) {
        st = err_set(CZ_NOMEM, 0, "%s: no memory for %zu tensors", path, n_decls);
        goto fail;
    }
    for (w->n_entries = 0; w->n_entries < n_decls;) {
        size_t i = w->n_entries++; /* counted first: destroy frees what copy_decl left */
        TRY_GOTO(copy_decl(path, &decls[i], &w->entries[i]), fail);
    }
    TRY_GOTO(check_names(w, path), fail);
    TRY_GOTO(split_shards(w, path, shard_nbytes_max), fail);
    if (dir) TRY_GOTO(out_folder_open(dir, &w->folder), fail);
    TRY_GOTO(start_files(w, path, metadata, n_metadata), fail);
    if (w->n_files > 1) TRY_GOTO(start_index(w), fail);
    *out = w;
    return CZ_OK;
fail:
    safetensors_writer_destroy(w);
    return st;
}

cz_status safetensors_create(const char *path, const struct safetensors_decl *decls, size_t n_decls,
                             const struct safetensors_metadata *metadata, size_t n_metadata,
                             struct safetensors_writer **out)
{
    return create_writer(path, NULL, 0, decls, n_decls, metadata, n_metadata, out);
}

cz_status safetensors_dir_create(const char *dir, uint64_t shard_nbytes_max,
                                 const struct safetensors_decl *decls, size_t n_decls,
                                 const struct safetensors_metadata *metadata, size_t n_metadata,
                                 struct safetensors_writer **out)
{
    return create_writer(dir, dir, shard_nbytes_max, decls, n_decls, metadata, n_metadata, out);
}

/* ---- writing and finishing ------------------------------------------------------------------- */

/* For callers that write in disk order; they sort their pieces by this. */
void safetensors_place(const struct safetensors_writer *w, size_t decl_idx, size_t *file_idx,
                       uint64_t *file_off)
{
    const struct entry *e = &w->entries[decl_idx];
    *file_idx = e->file_idx;
    *file_off = w->files[e->file_idx].header_nbytes + e->data_off;
}

size_t safetensors_writer_n_files(const struct safetensors_writer *w)
{
    return w->n_files;
}

/* Elements are counted, not marked: writing a piece twice would go unnoticed, leaving one out does
 * not. Pieces of different threads do not overlap, so pwrite needs no lock. */
cz_status safetensors_write(struct safetensors_writer *w, size_t decl_idx, uint64_t elem_off,
                            size_t numel, const void *src)
{
    if (decl_idx >= w->n_entries)
        return err_set(CZ_INVALID, 0, "%s: tensor %zu was not declared (there are %zu)",
                       w->files[0].disk.path, decl_idx, w->n_entries);
    struct entry *e = &w->entries[decl_idx];
    struct out_file *file = &w->files[e->file_idx];
    uint64_t byte_off;
    size_t nbytes;
    TRY(safetensors_piece(file->disk.path, e->name, e->dtype, e->numel, elem_off, numel, &byte_off,
                          &nbytes));
    TRY(file_durable_pwrite(&file->disk, src, nbytes,
                            file->header_nbytes + e->data_off + byte_off));
    atomic_fetch_add(&e->n_written, numel);
    return CZ_OK;
}

/* An older index of equally many shards is removed before the first rename, so an index never names
 * a mixture of two sets. Order: all data on disk, the old index removed, shards renamed, index
 * renamed, shards of an older set that had more files removed, the folder synced. A crash between
 * any two leaves the old set, or a folder without an index, never an index over incomplete
 * shards. */
cz_status safetensors_finish(struct safetensors_writer *w)
{
    for (size_t i = 0; i < w->n_entries; i++) {
        const struct entry *e = &w->entries[i];
        uint64_t n_written = atomic_load(&e->n_written);
        if (n_written != e->numel)
            return err_set(CZ_INVALID, 0, "%s: tensor %s: %llu of %llu elements were written",
                           w->files[e->file_idx].disk.path, e->name, (unsigned long long)n_written,
                           (unsigned long long)e->numel);
    }
    for (size_t f = 0; f < w->n_files; f++) TRY(file_durable_sync(&w->files[f].disk));
    if (w->has_index) {
        TRY(file_durable_sync(&w->index));
        if (out_is_there(&w->folder, w->files[0].disk.name))
            TRY(out_remove(&w->folder, w->index.name));
    }
    for (size_t f = 0; f < w->n_files; f++) TRY(file_durable_rename(&w->files[f].disk));
    if (w->has_index) TRY(file_durable_rename(&w->index));
    w->done = true;
    if (w->folder.path) TRY(shards_remove_replaced(&shards, &w->folder, w->n_files));
    return file_durable_sync_folder(&w->files[0].disk);
}

/* Files that were renamed belong to a set that was not completed. */
static void drop_file(struct file_durable *file, bool keep)
{
    if (!keep) file_durable_take_back(file);
    file_durable_abort(file);
}

void safetensors_writer_destroy(struct safetensors_writer *w)
{
    if (!w) return;
    for (size_t f = 0; w->files && f < w->n_files; f++) drop_file(&w->files[f].disk, w->done);
    if (w->has_index) drop_file(&w->index, w->done);
    for (size_t i = 0; w->entries && i < w->n_entries; i++) {
        free(w->entries[i].name);
        free(w->entries[i].shape);
    }
    free(w->entries);
    free(w->files);
    out_folder_close(&w->folder);
    free(w);
}

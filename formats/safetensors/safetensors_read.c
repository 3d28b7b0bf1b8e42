/* Reading safetensors: the header is checked as strictly as the reference reader does (every byte
 * of the data belongs to exactly one tensor), and data is read in pieces. A folder of shards is one
 * set of tensors, by its index. */
#include "base/hash.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json.h"
#include "formats/safetensors/safetensors_impl.h"
#include "formats/safetensors/shards.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORRUPT(...) err_set(CZ_CORRUPT, 0, __VA_ARGS__)

/* The descriptor stays open as long as the reader, so that a file that is replaced meanwhile is
 * still read as it was opened; one that is written in place is noticed. */
struct st_file {
    char *path;
    int fd;
    struct file_stamp stamp;
    void *pool; /* names, shapes and metadata of this file's tensors */
};

/* infos is one list over all files; within a file it is sorted by offset, so that reading it in
 * order reads the disk in order. */
struct safetensors {
    struct st_file *files;
    size_t n_files;
    struct safetensors_info *infos;
    size_t count, capacity;
    struct hash_index names; /* into infos */
    const char **metadata;   /* key, value, key, value … of the first file */
    size_t n_metadata;
};

/* ---- a file's pool: sized before it is filled ------------------------------------------------ */

/* One block per file for names, shapes and metadata: measured first, then filled, so there is one
 * allocation however many tensors there are. */
struct pool {
    char *base;
    size_t used, nbytes;
};

static size_t pool_need_text(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

static const char *pool_text(struct pool *p, const char *text)
{
    size_t nbytes = strlen(text) + 1;
    char *at = p->base + p->used;
    memcpy(at, text, nbytes);
    p->used += nbytes;
    return at;
}

/* pool_size() has counted every byte before; both walk the header with the same conditions. */
static void *pool_take(struct pool *p, size_t nbytes)
{
    void *at = p->base + p->used;
    p->used += nbytes;
    return at;
}

/* ---- the header ------------------------------------------------------------------------------ */

/* One file's header while it is parsed. data_off is where the offsets of the header count from. */
struct header {
    const char *path;
    struct json_doc *doc;
    uint64_t data_off, data_nbytes;
};

/* The length comes from the file: it is compared with the file's size and the format's limit before
 * memory is asked for. */
static cz_status header_load(struct header *h, const char *path, int fd, uint64_t file_nbytes)
{
    unsigned char length[SAFETENSORS_LENGTH_NBYTES];
    uint64_t n = 0;
    if (file_nbytes < sizeof length)
        return CORRUPT("%s: a file of %llu bytes is too short for safetensors", path,
                       (unsigned long long)file_nbytes);
    TRY(file_pread(fd, path, length, sizeof length, 0));
    for (size_t i = sizeof length; i-- > 0;) n = n << 8 | length[i];
    if (n > SAFETENSORS_HEADER_NBYTES_MAX)
        return CORRUPT("%s: not safetensors: its header would have %llu bytes (at most %u)", path,
                       (unsigned long long)n, SAFETENSORS_HEADER_NBYTES_MAX);
    if (n > file_nbytes - sizeof length)
        return CORRUPT("%s: truncated: its header has %llu bytes, the file %llu", path,
                       (unsigned long long)n, (unsigned long long)file_nbytes);
    char *text = malloc((size_t)n + 1);
    if (!text) return err_set(CZ_NOMEM, 0, "%s: no memory for its header", path);
    cz_status st = file_pread(fd, path, text, (size_t)n, sizeof length);
    /* The format asks for it: a byte-order mark or spaces in front could hide what another reader
     * sees there. */
    if (st == CZ_OK && (n == 0 || text[0] != '{'))
        st = CORRUPT("%s: not safetensors: its header does not begin with \"{\"", path);
    if (st != CZ_OK) {
        free(text);
        return st;
    }
    TRY(json_adopt(text, (size_t)n, path, JSON_STRICT, &h->doc));
    h->path = path;
    h->data_off = sizeof length + n;
    h->data_nbytes = file_nbytes - h->data_off;
    return CZ_OK;
}

static size_t count_of(const struct json_node *node)
{
    return node ? json_count(node) : 0;
}

static bool is_metadata(const struct json_node *entry)
{
    return strcmp(json_key(entry), SAFETENSORS_METADATA_KEY) == 0;
}

/* json_as_int refuses numbers beyond int64 with a message of its own; the caller's, which names the
 * tensor, is the better one. "-0" is no size to the reference reader. */
static bool as_size(const struct json_node *node, int64_t *out)
{
    size_t nbytes;
    if (!node || json_type(node) != JSON_INT || *json_text(node, &nbytes) == '-') return false;
    if (json_as_int(node, out) == CZ_OK && *out >= 0) return true;
    err_clear();
    return false;
}

/* Unknown dtypes make the whole file unreadable, not only that tensor: without its size the
 * coverage of the data cannot be checked. */
static cz_status parse_dtype(const struct header *h, const char *name, const struct json_node *node,
                             enum safetensors_dtype *out)
{
    const char *text;
    if (!node || json_type(node) != JSON_STRING)
        return CORRUPT("%s: tensor %s: no dtype", h->path, name);
    TRY(json_as_string(node, &text));
    for (int d = 0; d < SAFETENSORS_DTYPE_COUNT; d++) {
        if (strcmp(text, safetensors_dtype_name((enum safetensors_dtype)d)) != 0) continue;
        *out = (enum safetensors_dtype)d;
        return CZ_OK;
    }
    return CORRUPT("%s: tensor %s: unknown dtype \"%s\"", h->path, name, text);
}

/* info->file_off is relative to the data until all offsets have been compared. */
static cz_status parse_tensor(const struct header *h, const struct json_node *entry,
                              struct pool *pool, struct safetensors_info *info)
{
    const char *path = h->path, *name = info->name;
    const struct json_node *shape = json_get(entry, "shape");
    const struct json_node *offsets = json_get(entry, "data_offsets");
    int64_t begin, end;
    TRY(parse_dtype(h, name, json_get(entry, "dtype"), &info->dtype));
    if (!shape || json_type(shape) != JSON_ARRAY)
        return CORRUPT("%s: tensor %s: no shape", path, name);
    info->ndim = json_count(shape);
    int64_t *dims = pool_take(pool, info->ndim * sizeof *dims);
    for (size_t d = 0; d < info->ndim; d++)
        if (!as_size(json_child(shape, d), &dims[d]))
            return CORRUPT("%s: tensor %s: dimension %zu is not a size", path, name, d);
    info->shape = dims;
    switch (safetensors_extent(info->dtype, dims, info->ndim, &info->numel, &info->nbytes)) {
    case EXTENT_OK: break;
    case EXTENT_TOO_LARGE: return CORRUPT("%s: tensor %s: impossibly large shape", path, name);
    case EXTENT_NOT_BYTES:
        return CORRUPT("%s: tensor %s: %llu elements of %s do not fill whole bytes", path, name,
                       (unsigned long long)info->numel, safetensors_dtype_name(info->dtype));
    }
    if (!offsets || json_type(offsets) != JSON_ARRAY || json_count(offsets) != 2 ||
        !as_size(json_child(offsets, 0), &begin) || !as_size(json_child(offsets, 1), &end))
        return CORRUPT("%s: tensor %s: data_offsets must be [begin, end]", path, name);
    if (begin > end)
        return CORRUPT("%s: tensor %s: data_offsets end before they begin", path, name);
    if ((uint64_t)(end - begin) != info->nbytes)
        return CORRUPT("%s: tensor %s: shape and dtype need %llu bytes, data_offsets give %llu",
                       path, name, (unsigned long long)info->nbytes,
                       (unsigned long long)(end - begin));
    info->file_off = (uint64_t)begin;
    return CZ_OK;
}

/* Also checks the types of all entries, so that the pass that fills the pool cannot fail
 * half-way. */
static cz_status pool_size(const struct header *h, size_t *n_tensors, size_t *nbytes)
{
    const struct json_node *root = json_root(h->doc);
    *n_tensors = 0;
    *nbytes = 0;
    for (size_t i = 0; i < json_count(root); i++) {
        const struct json_node *entry = json_child(root, i);
        if (is_metadata(entry)) {
            if (json_type(entry) != JSON_OBJECT && json_type(entry) != JSON_NULL)
                return CORRUPT("%s: __metadata__ is not an object", h->path);
            for (size_t k = 0; k < json_count(entry); k++) {
                const char *value;
                if (json_type(json_child(entry, k)) != JSON_STRING)
                    return CORRUPT("%s: __metadata__: \"%s\" is not a string", h->path,
                                   json_key(json_child(entry, k)));
                TRY(json_as_string(json_child(entry, k), &value));
                *nbytes += 2 * sizeof(char *) + pool_need_text(value) +
                           pool_need_text(json_key(json_child(entry, k)));
            }
            continue;
        }
        if (json_type(entry) != JSON_OBJECT)
            return CORRUPT("%s: tensor %s: its entry is not an object", h->path, json_key(entry));
        (*n_tensors)++;
        *nbytes +=
            pool_need_text(json_key(entry)) + count_of(json_get(entry, "shape")) * sizeof(int64_t);
    }
    return CZ_OK;
}

/* Empty tensors come before the one that begins at the same byte; names settle the rest, so that
 * the order does not depend on qsort. */
static int by_offset(const void *left, const void *right)
{
    const struct safetensors_info *a = left, *b = right;
    if (a->file_off != b->file_off) return a->file_off < b->file_off ? -1 : 1;
    if (a->nbytes != b->nbytes) return a->nbytes < b->nbytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Sorted by offset, each tensor begins where the one before ended. Offsets become positions in the
 * file here. */
static cz_status check_coverage(const struct header *h, struct safetensors_info *infos, size_t n)
{
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        struct safetensors_info *t = &infos[i];
        if (t->file_off != end)
            return CORRUPT("%s: tensor %s: starts at byte %llu of the data, %s the one before it",
                           h->path, t->name, (unsigned long long)t->file_off,
                           t->file_off > end ? "leaving a hole after" : "overlapping");
        end += t->nbytes;
        if (end > h->data_nbytes)
            return CORRUPT("%s: truncated: tensor %s ends at byte %llu of the data, which has %llu",
                           h->path, t->name, (unsigned long long)end,
                           (unsigned long long)h->data_nbytes);
        t->file_off += h->data_off;
    }
    if (end != h->data_nbytes)
        return CORRUPT("%s: %llu bytes after the last tensor belong to none", h->path,
                       (unsigned long long)(h->data_nbytes - end));
    return CZ_OK;
}

/* Grows once per file; the size is known from pool_size(). */
static cz_status grow_infos(struct safetensors *st, size_t n_more)
{
    size_t want = st->count + n_more;
    if (want <= st->capacity) return CZ_OK;
    struct safetensors_info *infos = realloc(st->infos, want * sizeof *infos);
    if (!infos) return err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", want);
    st->infos = infos;
    st->capacity = want;
    return CZ_OK;
}

/* Numbers and pointers come first in the pool, then text: nothing needs padding. */
static cz_status parse_header(struct safetensors *st, size_t file_idx, const struct header *h)
{
    const struct json_node *root = json_root(h->doc);
    struct st_file *file = &st->files[file_idx];
    struct pool pool = {0};
    size_t n;
    TRY(pool_size(h, &n, &pool.nbytes));
    TRY(grow_infos(st, n));
    file->pool = pool.base = malloc(pool.nbytes + 1);
    if (!pool.base) return err_set(CZ_NOMEM, 0, "%s: no memory for its tensor list", h->path);
    struct safetensors_info *infos = st->infos ? st->infos + st->count : NULL, *info = infos;
    if (file_idx == 0) {
        st->n_metadata = count_of(json_get(root, SAFETENSORS_METADATA_KEY));
        st->metadata = pool_take(&pool, 2 * st->n_metadata * sizeof *st->metadata);
    }
    for (size_t i = 0; i < json_count(root); i++) {
        const struct json_node *entry = json_child(root, i);
        if (is_metadata(entry)) continue;
        *info = (struct safetensors_info){
            .name = json_key(entry), .path = file->path, .file_idx = file_idx};
        TRY(parse_tensor(h, entry, &pool, info));
        info++;
    }
    if (file_idx == 0) {
        const struct json_node *entry = json_get(root, SAFETENSORS_METADATA_KEY);
        for (size_t k = 0; k < st->n_metadata; k++) {
            const char *value;
            TRY(json_as_string(json_child(entry, k), &value));
            st->metadata[2 * k] = pool_text(&pool, json_key(json_child(entry, k)));
            st->metadata[2 * k + 1] = pool_text(&pool, value);
        }
    }
    for (size_t i = 0; i < n; i++) infos[i].name = pool_text(&pool, infos[i].name);
    if (n > 0) qsort(infos, n, sizeof *infos, by_offset);
    TRY(check_coverage(h, infos, n));
    st->count += n;
    return CZ_OK;
}

/* What it has opened or allocated is in `file` when it fails: safetensors_close() frees it. */
static cz_status add_file(struct safetensors *st, size_t file_idx, const char *dir,
                          const char *name)
{
    struct st_file *file = &st->files[file_idx];
    struct header h = {0};
    uint64_t nbytes;
    file->path = dir ? file_join(dir, name) : strdup(name);
    if (!file->path) return err_set(CZ_NOMEM, 0, "%s: no memory for its name", name);
    TRY(beneath_open(dir, name, &file->fd, &nbytes));
    cz_status status = file_stamp_take(file->fd, file->path, &file->stamp);
    if (status == CZ_OK) status = header_load(&h, file->path, file->fd, nbytes);
    if (status == CZ_OK) status = parse_header(st, file_idx, &h);
    json_free(h.doc);
    return status;
}

/* ---- finding by name ------------------------------------------------------------------------- */

struct wanted {
    const struct safetensors *st;
    const char *name;
};

static bool has_name(const void *key, size_t item)
{
    const struct wanted *w = key;
    return strcmp(w->st->infos[item].name, w->name) == 0;
}

/* HASH_NONE: not there. */
static size_t find_name(const struct safetensors *st, const char *name)
{
    return hash_index_find(&st->names, hash_text(name), has_name, &(struct wanted){st, name});
}

static cz_status index_names(struct safetensors *st)
{
    TRY(hash_index_reserve(&st->names, st->count));
    for (size_t i = 0; i < st->count; i++) {
        const char *name = st->infos[i].name;
        const size_t first = find_name(st, name);
        if (first != HASH_NONE)
            return CORRUPT("%s: tensor %s is also in %s", st->infos[i].path, name,
                           st->infos[first].path);
        TRY(hash_index_add(&st->names, hash_text(name), i));
    }
    return CZ_OK;
}

/* Descriptors begin as -1: 0 is a valid one, and close() must not get it when opening the first
 * file fails. */
static cz_status alloc_reader(size_t n_files, const char *path, struct safetensors **out)
{
    struct safetensors *st = calloc(1, sizeof *st);
    struct st_file *files = calloc(n_files, sizeof *files);
    if (!st || !files) {
        free(st);
        free(files);
        return err_set(CZ_NOMEM, 0, "%s: no memory for a reader of %zu files", path, n_files);
    }
    for (size_t i = 0; i < n_files; i++) files[i].fd = -1;
    st->files = files;
    st->n_files = n_files;
    *out = st;
    return CZ_OK;
}

cz_status safetensors_open_in(const char *dir, const char *name, struct safetensors **out)
{
    struct safetensors *reader = NULL;
    cz_status st;
    *out = NULL;
    TRY(alloc_reader(1, name, &reader));
    TRY_GOTO(add_file(reader, 0, dir, name), fail);
    TRY_GOTO(index_names(reader), fail);
    *out = reader;
    return CZ_OK;
fail:
    safetensors_close(reader);
    return st;
}

cz_status safetensors_open(const char *path, struct safetensors **out)
{
    return safetensors_open_in(NULL, path, out);
}

/* ---- folders --------------------------------------------------------------------------------- */

/* A name that several shards hold is taken from the one that the map names. Afterwards every mapped
 * tensor must be there. */
static cz_status apply_map(struct safetensors *st, const char *path,
                           const struct shards_index *index)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < st->count; i++) {
        const char *shard = shards_index_file(index, st->infos[i].name);
        if (!shard || strcmp(shard, index->files[st->infos[i].file_idx]) == 0)
            st->infos[n_kept++] = st->infos[i];
    }
    st->count = n_kept;
    TRY(index_names(st));
    for (size_t i = 0; i < json_count(index->map); i++) {
        const char *name = json_key(json_child(index->map, i));
        if (!safetensors_find(st, name))
            return CORRUPT("%s: tensor %s should be in %s and is not", path, name,
                           shards_index_file(index, name));
    }
    return CZ_OK;
}

/* Shards are opened in the order of the index's sorted file names, so file_idx is an index into
 * index.files. */
static cz_status open_index(const char *dir, const char *path, struct safetensors **out)
{
    struct shards_index index;
    struct safetensors *reader = NULL;
    cz_status st;
    TRY(shards_index_load(dir, SAFETENSORS_INDEX, &index));
    TRY_GOTO(alloc_reader(index.n_files, path, &reader), done);
    for (size_t i = 0; i < index.n_files; i++)
        TRY_GOTO(add_file(reader, i, dir, index.files[i]), done);
    TRY_GOTO(apply_map(reader, path, &index), done);
    *out = reader;
    reader = NULL;
done:
    shards_index_free(&index);
    safetensors_close(reader);
    return st;
}

/* A single file comes first, as in Hugging Face's loaders. */
cz_status safetensors_dir_open(const char *dir, struct safetensors **out)
{
    *out = NULL;
    if (beneath_is_there(dir, SAFETENSORS_SINGLE))
        return safetensors_open_in(dir, SAFETENSORS_SINGLE, out);
    if (!beneath_is_there(dir, SAFETENSORS_INDEX))
        return err_set(CZ_NOTFOUND, 0, "%s: contains neither %s nor %s", dir, SAFETENSORS_SINGLE,
                       SAFETENSORS_INDEX);
    char *index = file_join(dir, SAFETENSORS_INDEX);
    if (!index) return err_set(CZ_NOMEM, 0, "%s: no memory for file names", dir);
    cz_status st = open_index(dir, index, out);
    free(index);
    return st;
}

/* Accepts a reader whose opening stopped half-way. */
void safetensors_close(struct safetensors *st)
{
    if (!st) return;
    for (size_t i = 0; i < st->n_files; i++) {
        if (st->files[i].fd >= 0) close(st->files[i].fd);
        free(st->files[i].path);
        free(st->files[i].pool);
    }
    free(st->files);
    free(st->infos);
    hash_index_free(&st->names);
    free(st);
}

/* ---- looking and reading --------------------------------------------------------------------- */

size_t safetensors_count(const struct safetensors *st)
{
    return st->count;
}

size_t safetensors_n_files(const struct safetensors *st)
{
    return st->n_files;
}

const struct safetensors_info *safetensors_at(const struct safetensors *st, size_t idx)
{
    return &st->infos[idx];
}

/* By hash; models have up to tens of thousands of names, and loaders ask for each of them. */
const struct safetensors_info *safetensors_find(const struct safetensors *st, const char *name)
{
    const size_t idx = find_name(st, name);
    return idx == HASH_NONE ? NULL : &st->infos[idx];
}

/* Of the first file only, as in the reference's loaders; every shard repeats the same pair. */
const char *safetensors_metadata(const struct safetensors *st, const char *key)
{
    for (size_t k = 0; k < st->n_metadata; k++)
        if (strcmp(st->metadata[2 * k], key) == 0) return st->metadata[2 * k + 1];
    return NULL;
}

struct safetensors_file safetensors_file(const struct safetensors *st, size_t file_idx)
{
    const struct st_file *f = &st->files[file_idx];
    return (struct safetensors_file){.fd = f->fd, .path = f->path, .stamp = f->stamp};
}

size_t safetensors_n_metadata(const struct safetensors *st)
{
    return st->n_metadata;
}

void safetensors_metadata_at(const struct safetensors *st, size_t idx, const char **key,
                             const char **value)
{
    *key = st->metadata[2 * idx];
    *value = st->metadata[2 * idx + 1];
}

/* From any thread: pread keeps no position, and the lists are constant once open. */
cz_status safetensors_read(const struct safetensors *st, const struct safetensors_info *info,
                           uint64_t elem_off, size_t numel, void *dst)
{
    uint64_t byte_off;
    size_t nbytes;
    TRY(safetensors_piece(info->path, info->name, info->dtype, info->numel, elem_off, numel,
                          &byte_off, &nbytes));
    const struct st_file *file = &st->files[info->file_idx];
    cz_status status = file_pread(file->fd, info->path, dst, nbytes, info->file_off + byte_off);
    if (status == CZ_OK) status = file_stamp_check(file->fd, info->path, &file->stamp);
    if (status != CZ_OK) return err_prefix("tensor %s", info->name);
    return CZ_OK;
}

/* In blocks over the stack: dst has half of the bytes that the elements take in the file. */
static cz_status read_f64(const struct safetensors *st, const struct safetensors_info *info,
                          uint64_t elem_off, size_t numel, float *dst)
{
    double block[512];
    for (size_t done = 0; done < numel;) {
        size_t n = numel - done < CZ_ARRAY_LEN(block) ? numel - done : CZ_ARRAY_LEN(block);
        TRY(safetensors_read(st, info, elem_off + done, n, block));
        for (size_t i = 0; i < n; i++) dst[done + i] = (float)block[i];
        done += n;
    }
    return CZ_OK;
}

cz_status safetensors_read_f32(const struct safetensors *st, const struct safetensors_info *info,
                               uint64_t elem_off, size_t numel, float *dst)
{
    void *upper = (uint16_t *)dst + numel;
    switch (info->dtype) {
    case SAFETENSORS_F32: return safetensors_read(st, info, elem_off, numel, dst);
    case SAFETENSORS_F64: return read_f64(st, info, elem_off, numel, dst);
    case SAFETENSORS_F16:
    case SAFETENSORS_BF16:
        TRY(safetensors_read(st, info, elem_off, numel, upper));
        /* The 16-bit values are read into the upper half of dst and widened from there in blocks:
         * elements up to i are stored below byte 4i ≤ 2n + 2i, where those still to come begin. */
        const uint16_t *src = (const uint16_t *)dst + numel;
        uint16_t block[1024];
        for (size_t done = 0; done < numel;) {
            size_t n = numel - done < CZ_ARRAY_LEN(block) ? numel - done : CZ_ARRAY_LEN(block);
            memcpy(block, src + done, n * sizeof *block);
            if (info->dtype == SAFETENSORS_BF16)
                for (size_t i = 0; i < n; i++) dst[done + i] = bf16_to_f32(block[i]);
            else
                for (size_t i = 0; i < n; i++) dst[done + i] = f16_to_f32(block[i]);
            done += n;
        }
        return CZ_OK;
    default:
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: tensor %s is %s; F32, BF16, F16 and F64 can be read as fp32",
                       info->path, info->name, safetensors_dtype_name(info->dtype));
    }
}

cz_status safetensors_check_format(const struct safetensors *st)
{
    static const char *const known[] = {"pt", "np", "mlx"};
    const char *format = safetensors_metadata(st, "format");
    for (size_t i = 0; format && i < CZ_ARRAY_LEN(known); i++)
        if (strcmp(format, known[i]) == 0) return CZ_OK;
    if (!format) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s: its tensors are of the format \"%.40s\" (\"format\" in __metadata__); save "
                   "them from PyTorch (\"pt\")",
                   st->files[0].path, format);
}

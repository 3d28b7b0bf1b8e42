/* Sets of weight files: how Hugging Face splits a model over them, names them, and lists them in an
 * index (docs/deepspeed-behaviour.md, "Consolidation"). Used for .safetensors and .bin. */
#include "formats/safetensors/shards.h"

#include "base/host/process_mark.h"
#include "formats/beneath.h"
#include "formats/file_io.h"
#include "formats/json/json_write.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hugging Face numbers the open shard only when it closes it, so one that is too large for the
 * limit comes before the one that was open at the time. */
void shards_split(const uint64_t *nbytes, size_t n, uint64_t limit, size_t *file_of,
                  size_t *n_files)
{
    const size_t open_shard = SIZE_MAX;
    uint64_t open_nbytes = 0;
    size_t first_open = 0, n_open = 0;
    *n_files = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && limit > 0 && nbytes[i] > limit) {
            file_of[i] = (*n_files)++;
            continue;
        }
        bool full = i == n || (limit > 0 && open_nbytes + nbytes[i] > limit);
        if (n_open > 0 && full) {
            for (size_t k = first_open; k < i; k++)
                if (file_of[k] == open_shard) file_of[k] = *n_files;
            (*n_files)++;
            n_open = 0;
            open_nbytes = 0;
        }
        if (i == n) break;
        if (n_open == 0) first_open = i;
        file_of[i] = open_shard;
        open_nbytes += nbytes[i];
        n_open++;
    }
    if (*n_files == 0) *n_files = 1;
}

const char *shards_file_name(const struct shards_kind *kind, size_t file_idx, size_t n_files,
                             char buf[SHARDS_NAME_NBYTES])
{
    if (n_files == 1)
        snprintf(buf, SHARDS_NAME_NBYTES, "%s%s", kind->stem, kind->ext);
    else
        snprintf(buf, SHARDS_NAME_NBYTES, "%s-%05zu-of-%05zu%s", kind->stem, file_idx + 1, n_files,
                 kind->ext);
    return buf;
}

const char *shards_index_name(const struct shards_kind *kind, char buf[SHARDS_NAME_NBYTES])
{
    snprintf(buf, SHARDS_NAME_NBYTES, "%s%s.index.json", kind->stem, kind->ext);
    return buf;
}

/* ---- the index ------------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct shards_entry *)left)->name,
                  ((const struct shards_entry *)right)->name);
}

/* Sorted by name, as Hugging Face writes it. */
cz_status shards_index_text(const struct shards_kind *kind, struct shards_entry *entries, size_t n,
                            size_t n_files, uint64_t total_size, char **text, size_t *nbytes)
{
    struct json_writer json;
    char name[SHARDS_NAME_NBYTES];
    qsort(entries, n, sizeof *entries, by_name);
    json_writer_init(&json, 2);
    json_begin_object(&json);
    json_write_key(&json, "metadata");
    json_begin_object(&json);
    json_put_int(&json, "total_size", (int64_t)total_size);
    json_end_object(&json);
    json_write_key(&json, "weight_map");
    json_begin_object(&json);
    for (size_t i = 0; i < n; i++) {
        json_put_string(&json, entries[i].name,
                        shards_file_name(kind, entries[i].file_idx, n_files, name));
    }
    json_end_object(&json);
    json_end_object(&json);
    TRY(json_writer_take(&json, text, nbytes));
    (*text)[(*nbytes)++] = '\n'; /* instead of the terminator */
    return CZ_OK;
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The different files of index->map, sorted. */
static cz_status index_files(struct shards_index *index, const char *path)
{
    const size_t n = json_count(index->map);
    if (n == 0) return err_set(CZ_CORRUPT, 0, "%s: its weight_map is empty", path);
    index->files = malloc(n * sizeof *index->files);
    if (!index->files) return err_set(CZ_NOMEM, 0, "%s: no memory for its shards' names", path);
    for (size_t i = 0; i < n; i++) {
        TRY(json_as_string(json_child(index->map, i), &index->files[i]));
        const char *fault = beneath_fault(index->files[i]);
        if (fault)
            return err_set(CZ_CORRUPT, 0, "%s: shard name \"%s\" is refused: %s", path,
                           index->files[i], fault);
    }
    qsort(index->files, n, sizeof *index->files, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(index->files[index->n_files - 1], index->files[i]) != 0)
            index->files[index->n_files++] = index->files[i];
    return CZ_OK;
}

cz_status shards_index_load(const char *dir, const char *name, struct shards_index *out)
{
    memset(out, 0, sizeof *out);
    char *path = file_join(dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: no memory for a path", dir);
    cz_status st = json_load_in(dir, name, JSON_STRICT, &out->doc);
    if (st == CZ_OK) st = json_need(json_root(out->doc), "weight_map", JSON_OBJECT, &out->map);
    if (st == CZ_OK) st = index_files(out, path);
    if (st != CZ_OK) shards_index_free(out);
    free(path);
    return st;
}

void shards_index_free(struct shards_index *index)
{
    free(index->files);
    json_free(index->doc);
    memset(index, 0, sizeof *index);
}

const char *shards_index_file(const struct shards_index *index, const char *tensor)
{
    const struct json_node *entry = json_get(index->map, tensor);
    const char *file;
    return entry && json_as_string(entry, &file) == CZ_OK ? file : NULL;
}

/* ---- an earlier set -------------------------------------------------------------------------- */

/* Past a run of at least five digits, or NULL. */
static const char *skip_number(const char *s)
{
    const char *end = s;
    while (isdigit((unsigned char)*end)) end++;
    return end - s >= 5 ? end : NULL;
}

/* STEM-ddddd-of-ddddd.EXT */
static bool is_shard_name(const struct shards_kind *kind, const char *name)
{
    size_t n = strlen(kind->stem);
    if (strncmp(name, kind->stem, n) != 0 || name[n] != '-') return false;
    const char *s = skip_number(name + n + 1);
    if (!s || strncmp(s, "-of-", 4) != 0) return false;
    s = skip_number(s + 4);
    return s && strcmp(s, kind->ext) == 0;
}

/* Leaves the final name of a temporary file of a process that was killed between two renames; older
 * versions wrote ".tmp" and a number. */
static void strip_temporary(char *name)
{
    size_t n = strlen(name);
    const char *mark = file_temporary_mark(name, &n);
    if (mark) {
        if (process_mark_fate(mark) == PROCESS_ENDED) name[n] = '\0';
        return;
    }
    while (n > 0 && isdigit((unsigned char)name[n - 1])) n--;
    if (name[n] && n > 4 && strncmp(name + n - 4, ".tmp", 4) == 0) name[n - 4] = '\0';
}

/* Whether a file belongs to some set of this kind. */
static bool is_of_kind(const struct shards_kind *kind, const char *file_name)
{
    char other[SHARDS_NAME_NBYTES], name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", file_name);
    strip_temporary(name);
    return is_shard_name(kind, name) || strcmp(name, shards_file_name(kind, 0, 1, other)) == 0 ||
           strcmp(name, shards_index_name(kind, other)) == 0;
}

/* Whether a file belongs to the set that was just written. */
static bool is_of_set(const struct shards_kind *kind, size_t n_files, const char *name)
{
    char mine[SHARDS_NAME_NBYTES];
    if (n_files > 1 && strcmp(name, shards_index_name(kind, mine)) == 0) return true;
    for (size_t i = 0; i < n_files; i++)
        if (strcmp(name, shards_file_name(kind, i, n_files, mine)) == 0) return true;
    return false;
}

/* Shards of an earlier set with another number of files would be loaded by programs that list the
 * folder. Files that are not named like shards are never touched. */
cz_status shards_remove_replaced(const struct shards_kind *kind, const struct out_folder *folder,
                                 size_t n_files)
{
    DIR *listing = out_folder_list(folder);
    if (!listing) return err_set(CZ_IO, errno, "%s: cannot be listed", folder->path);
    cz_status st = CZ_OK;
    for (struct dirent *d; st == CZ_OK && (d = readdir(listing));)
        if (is_of_kind(kind, d->d_name) && !is_of_set(kind, n_files, d->d_name))
            st = out_remove(folder, d->d_name);
    closedir(listing);
    return st;
}

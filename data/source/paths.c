/* Listing folders of data. A downloaded data set is a folder with a README beside its files, so
 * only names with known suffixes count, and the log says what was left out. */
#include "data/source/paths.h"

#include "base/log.h"
#include "data/source/byte_stream.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEPTH_MAX 32

/* One folder of the user's while it is listed. */
struct listing {
    const char *dir;
    const char *const *suffixes;
    struct data_paths *out;
    size_t n_left_out;
    char left_out[256]; /* the first of them */
};

bool data_path_has_suffix(const char *path, const char *suffix)
{
    const size_t n = byte_packing_stem(path), n_suffix = strlen(suffix);
    return n > n_suffix && strncasecmp(path + n - n_suffix, suffix, n_suffix) == 0;
}

static bool has_one_of(const char *path, const char *const *suffixes)
{
    for (; *suffixes; suffixes++)
        if (data_path_has_suffix(path, *suffixes)) return true;
    return false;
}

const char *const data_row_suffixes[] = {".jsonl", ".ndjson", ".json", ".parquet", NULL};

bool data_path_is_rows(const char *path)
{
    return has_one_of(path, data_row_suffixes);
}

bool data_path_is_table(const char *path)
{
    return data_path_has_suffix(path, ".csv") || data_path_has_suffix(path, ".tsv");
}

bool data_path_is_words(const char *path)
{
    static const char *const suffixes[] = {".conll", ".bio", ".iob", ".iob2", NULL};
    return has_one_of(path, suffixes);
}

/* Takes over `name`. */
static cz_status add(struct data_paths *p, const char *dir, char *name)
{
    char *shown = !name ? NULL : dir ? file_join(dir, name) : strdup(name);
    if (shown && p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 16;
        struct data_path *grown = realloc(p->items, cap * sizeof *grown);
        if (grown) {
            p->items = grown;
            p->cap = cap;
        }
    }
    if (!shown || p->n == p->cap) {
        free(name);
        free(shown);
        return err_set(CZ_NOMEM, 0, "no memory for the names of data files");
    }
    p->items[p->n++] = (struct data_path){.dir = dir, .name = name, .shown = shown};
    return CZ_OK;
}

static cz_status list_folder(struct listing *l, const char *name, int depth);

/* An entry of the folder `here`; `name` is its path below l->dir. A link is followed by the rule of
 * formats/beneath.h, to files alone: a folder that a link leads to is listed where it is. */
static cz_status take_entry(struct listing *l, int here, const char *entry, char *name, int depth)
{
    struct stat info;
    if (fstatat(here, entry, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? CZ_OK
                               : err_set(CZ_IO, errno, "%s/%s: cannot be examined", l->dir, name);
    if (S_ISDIR(info.st_mode)) return list_folder(l, name, depth + 1);
    if (S_ISLNK(info.st_mode)) TRY(beneath_stat(l->dir, name, &info));
    if (!S_ISREG(info.st_mode)) return CZ_OK;
    if (has_one_of(entry, l->suffixes)) {
        char *kept = strdup(name);
        return add(l->out, l->dir, kept);
    }
    if (l->n_left_out++ == 0) snprintf(l->left_out, sizeof l->left_out, "%s", name);
    return CZ_OK;
}

/* `name`: a folder below l->dir, "" for that itself. */
static cz_status list_folder(struct listing *l, const char *name, int depth)
{
    int fd;
    if (depth > DEPTH_MAX)
        return err_set(CZ_INVALID, 0, "%s/%s: more than %d folders in one another", l->dir, name,
                       DEPTH_MAX);
    TRY(beneath_open_folder(l->dir, *name ? name : ".", &fd));
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return err_set(CZ_NOMEM, 0, "%s: no memory to list it", l->dir);
    }
    cz_status st = CZ_OK;
    const struct dirent *entry;
    while (st == CZ_OK && (errno = 0, entry = readdir(folder))) {
        if (entry->d_name[0] == '.') continue;
        char *below = file_join(name, entry->d_name);
        st = below ? take_entry(l, dirfd(folder), entry->d_name, below, depth)
                   : err_set(CZ_NOMEM, 0, "%s: no memory to list it", l->dir);
        free(below);
    }
    if (st == CZ_OK && errno != 0)
        st = err_set(CZ_IO, errno, "%s: the folder cannot be read", l->dir);
    closedir(folder);
    return st;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct data_path *)a)->name, ((const struct data_path *)b)->name);
}

/* ".txt, .jsonl or .json". */
static void name_suffixes(const char *const *suffixes, char *dst, size_t nbytes)
{
    size_t used = 0;
    dst[0] = '\0';
    for (size_t i = 0; suffixes[i] && used < nbytes; i++)
        used += (size_t)snprintf(dst + used, nbytes - used, "%s%s",
                                 i == 0            ? ""
                                 : suffixes[i + 1] ? ", "
                                                   : " or ",
                                 suffixes[i]);
}

static cz_status add_folder(struct data_paths *out, const char *dir, const char *const *suffixes)
{
    struct listing l = {.dir = dir, .suffixes = suffixes, .out = out};
    char names[256], other[300] = "";
    const size_t before = out->n;
    TRY(list_folder(&l, "", 0));
    if (l.n_left_out > 0)
        snprintf(other, sizeof other, "; other files, such as %s, are left out", l.left_out);
    if (out->n == before) {
        name_suffixes(suffixes, names, sizeof names);
        return err_set(CZ_INVALID, 0,
                       "%s: the folder has no file that ends in %s (with .gz or .zst or without)%s",
                       dir, names, other);
    }
    qsort(out->items + before, out->n - before, sizeof *out->items, compare_names);
    LOGV(LOG_INFO, SUB_DATA, "data: %s: %zu files%s", dir, out->n - before, other);
    return CZ_OK;
}

cz_status data_paths_expand(const char *const *paths, size_t n_paths, const char *const *suffixes,
                            struct data_paths *out)
{
    *out = (struct data_paths){0};
    for (size_t i = 0; i < n_paths; i++) {
        if (beneath_is_folder(NULL, paths[i]))
            TRY(add_folder(out, paths[i], suffixes));
        else
            TRY(add(out, NULL, strdup(paths[i])));
    }
    return CZ_OK;
}

void data_paths_free(struct data_paths *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free((char *)p->items[i].name);
        free((char *)p->items[i].shown);
    }
    free(p->items);
    *p = (struct data_paths){0};
}

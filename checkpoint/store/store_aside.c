/* A new run in the folder of an earlier one. Both would use the same names (global_step60, best),
 * and removing old checkpoints would remove the earlier run's: so these move into a folder of their
 * own, which is read like any folder of checkpoints. Other files stay where they are. */
#include "checkpoint/store/store_impl.h"

#include "checkpoint/store/store.h"
#include "formats/file_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const pointers[] = {CKPT_LATEST, CKPT_LATEST_UNIVERSAL};

static bool is_named(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

/* A tag's folder, or the file that names one. Links are the user's. */
static bool is_of_run(const char *dir, const char *name, const char *const *others)
{
    struct stat info;
    bool yes = false;
    char *path = file_join(dir, name);
    if (path && name[0] != '.' && lstat(path, &info) == 0 && !S_ISLNK(info.st_mode)) {
        yes = is_named(others, name);
        for (size_t i = 0; i < CZ_ARRAY_LEN(pointers); i++) yes |= strcmp(name, pointers[i]) == 0;
        if (!yes && S_ISDIR(info.st_mode)) yes = ckpt_is_tag_folder(path);
    }
    free(path);
    return yes;
}

cz_status store_find_run(const char *dir, const char *const *others, struct ckpt_list *out)
{
    size_t n = 0;
    *out = (struct ckpt_list){.n = 0};
    cz_status st = ckpt_list_files(dir, "", out);
    if (st == CZ_NOTFOUND) {
        err_clear();
        return CZ_OK;
    }
    TRY(st);
    for (size_t i = 0; i < out->n; i++) {
        char *name = out->names[i];
        if (is_of_run(dir, name, others))
            out->names[n++] = name;
        else
            free(name);
    }
    out->n = n;
    return CZ_OK;
}

/* The first "earlier-N" that nothing has. */
static cz_status make_folder(const char *dir, char name[32], char **path)
{
    struct stat info;
    for (int i = 1;; i++) {
        snprintf(name, 32, STORE_EARLIER "%d", i);
        *path = file_join(dir, name);
        if (!*path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        if (lstat(*path, &info) != 0) break;
        free(*path);
    }
    cz_status st = store_make_dirs(*path);
    if (st != CZ_OK) free(*path);
    return st;
}

static cz_status move(const char *dir, const char *name, const char *into)
{
    char *from = file_join(dir, name), *to = file_join(into, name);
    cz_status st =
        from && to ? store_rename(from, to) : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    free(from);
    free(to);
    return st;
}

cz_status store_set_aside(const char *dir, const struct ckpt_list *run, char name[32])
{
    char *into;
    cz_status st = CZ_OK;
    TRY(make_folder(dir, name, &into));
    for (size_t i = 0; i < run->n && st == CZ_OK; i++) st = move(dir, run->names[i], into);
    if (st == CZ_OK) st = store_sync_dir(into);
    if (st == CZ_OK) st = store_sync_dir(dir);
    free(into);
    return st;
}

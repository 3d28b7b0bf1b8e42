/* What crashes leave behind in a folder of checkpoints. */
#include "checkpoint/store/store_impl.h"

#include "formats/file_io.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), n_suffix = strlen(suffix);
    return n > n_suffix + 1 && strcmp(name + n - n_suffix, suffix) == 0;
}

/* ".TAG.saving" or ".TAG.deleting". */
static bool is_leftover_folder(const char *name)
{
    return name[0] == '.' && (ends_in(name, STORE_SAVING) || ends_in(name, STORE_DELETING));
}

/* "latest.tmpN" (file_io's name for it) of a process N that is gone. */
static bool is_leftover_latest(const char *name)
{
    static const char prefix[] = CKPT_LATEST ".tmp";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    const char *digits = name + sizeof prefix - 1;
    if (!*digits || strlen(digits) > 9) return false;
    for (const char *at = digits; *at; at++)
        if (!isdigit((unsigned char)*at)) return false;
    const int pid = atoi(digits);
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

static cz_status clean_one(const char *dir, const char *name)
{
    const bool is_folder = is_leftover_folder(name);
    if (!is_folder && !is_leftover_latest(name)) return CZ_OK;
    char *path = file_join(dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    cz_status st = CZ_OK;
    if (!is_folder || !store_is_locked_elsewhere(path)) st = store_remove_tree(path);
    free(path);
    return st;
}

static bool any_leftover(const struct ckpt_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (is_leftover_folder(list->names[i]) || is_leftover_latest(list->names[i])) return true;
    return false;
}

/* DIR is synced first: a folder may have got its hidden name by a rename that is not on disk yet,
 * and until it is, its files may be needed after a power cut. */
cz_status store_clean(const char *dir)
{
    struct ckpt_list list;
    TRY(ckpt_list_files(dir, "", &list));
    cz_status st = any_leftover(&list) ? store_sync_dir(dir) : CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) st = clean_one(dir, list.names[i]);
    ckpt_list_free(&list);
    return st;
}

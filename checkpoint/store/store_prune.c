/* Which tags are old, and how one is removed. Only tags that czero saved under the name that they
 * have count: their manifest lists a state that says so. What DeepSpeed or a user put there, copies
 * and renamed tags are never touched. Two tags always stay, whatever `keep` says: the one that
 * `latest` names, and the newest one whose files are all there, because a run must be able to
 * resume. Of a tag only those files go that its manifest lists. */
#include "checkpoint/store/store_impl.h"

#include "base/log.h"
#include "checkpoint/store/store.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "formats/json/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STATE_NBYTES_MAX ((size_t)64 << 20)

struct tag {
    const char *name; /* of the list */
    int64_t step;
    struct timespec time;
};

/* When the manifest was written. False: there is none. Links are not followed: a link to a tag
 * elsewhere is the user's. */
static bool manifest_time(const char *tag_dir, struct timespec *time)
{
    struct stat info;
    if (lstat(tag_dir, &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    char *path = file_join(tag_dir, CKPT_MANIFEST);
    bool yes = path && lstat(path, &info) == 0 && S_ISREG(info.st_mode);
    if (yes) *time = info.st_mtim;
    free(path);
    return yes;
}

/* The state that the manifest lists, byte for byte; NULL: there is none. */
static struct json_doc *listed_state(const char *tag_dir)
{
    struct manifest m;
    struct json_doc *doc = NULL;
    char *path = file_join(tag_dir, CKPT_STATE), *text = NULL;
    size_t nbytes;
    if (manifest_load(tag_dir, &m) == CZ_OK) {
        const struct manifest_file *listed = manifest_find(&m, CKPT_STATE);
        struct stat info;
        if (listed && path && lstat(path, &info) == 0 && S_ISREG(info.st_mode) &&
            file_load(path, STATE_NBYTES_MAX, &text, &nbytes) == CZ_OK &&
            nbytes == listed->nbytes && crc32_update(0, text, nbytes) == listed->crc &&
            json_parse(text, nbytes, path, JSON_STRICT, &doc) != CZ_OK)
            doc = NULL;
    }
    manifest_free(&m);
    free(text);
    free(path);
    return doc;
}

/* Whether czero saved this tag under this name, and at which step. States of version 0.2.0 do not
 * name their tag: then the name must be the one that follows from the step. Any failure means "no":
 * pruning must not stop at a damaged tag, nor remove it. */
static bool is_saved(const char *tag_dir, const char *name, int64_t *step)
{
    struct json_doc *doc = listed_state(tag_dir);
    const char *tag = NULL;
    char by_step[64];
    bool yes = doc && json_opt_int(json_root(doc), "global_steps", -1, step) == CZ_OK &&
               *step >= 0 && json_opt_string(json_root(doc), "tag", NULL, &tag) == CZ_OK;
    if (yes) {
        snprintf(by_step, sizeof by_step, "global_step%" PRId64, *step);
        yes = strcmp(tag ? tag : by_step, name) == 0;
    }
    json_free(doc);
    err_clear();
    return yes;
}

/* Every file that the manifest lists is there, with its size. Contents are not read: that would
 * take as long as loading the checkpoint. */
static bool is_complete(const char *tag_dir)
{
    struct manifest m;
    struct stat info;
    bool complete = manifest_load(tag_dir, &m) == CZ_OK;
    for (size_t i = 0; i < m.n_files && complete; i++) {
        char *path = file_join(tag_dir, m.files[i].name);
        complete = path && lstat(path, &info) == 0 && S_ISREG(info.st_mode) &&
                   (uint64_t)info.st_size == m.files[i].nbytes;
        free(path);
    }
    manifest_free(&m);
    err_clear();
    return complete;
}

/* Steps first, because a copy of a folder gets new times; the manifest's time decides between tags
 * of the same step, and the name makes the order total. */
static int newest_first(const void *left, const void *right)
{
    const struct tag *a = left, *b = right;
    if (a->step != b->step) return a->step > b->step ? -1 : 1;
    if (a->time.tv_sec != b->time.tv_sec) return a->time.tv_sec > b->time.tv_sec ? -1 : 1;
    if (a->time.tv_nsec != b->time.tv_nsec) return a->time.tv_nsec > b->time.tv_nsec ? -1 : 1;
    return strcmp(b->name, a->name);
}

static cz_status find_tags(const char *dir, const struct ckpt_list *list, struct tag *tags,
                           size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (list->names[i][0] == '.') continue;
        struct tag *tag = &tags[*n];
        char *path = file_join(dir, list->names[i]);
        if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        if (manifest_time(path, &tag->time) && is_saved(path, list->names[i], &tag->step)) {
            tag->name = list->names[i];
            ++*n;
        }
        free(path);
    }
    if (*n > 1) qsort(tags, *n, sizeof *tags, newest_first);
    return CZ_OK;
}

/* Which tags stay besides that of `latest`: the newest ones, or those of a list. */
struct kept {
    int64_t newest;
    const char *const *names; /* ends with NULL; NULL: see newest */
};

static bool is_named(const struct kept *kept, const char *tag)
{
    for (size_t i = 0; kept->names[i]; i++)
        if (strcmp(kept->names[i], tag) == 0) return true;
    return false;
}

/* Sets goes[i] for the tags, newest first, that may be removed: not those of `kept`, not the one
 * that `latest` names, and without a list not the newest complete one. */
static cz_status choose(const char *dir, const struct tag *tags, size_t n, const struct kept *kept,
                        bool *goes)
{
    char *named = NULL;
    cz_status st = ckpt_latest_read(dir, false, &named);
    if (st != CZ_OK && st != CZ_NOTFOUND && st != CZ_CORRUPT) return st;
    if (st != CZ_OK) err_clear(); /* no `latest`, or not a tag: it protects nothing */
    bool have_complete = kept->names != NULL;
    for (size_t i = 0; i < n; i++) {
        char *path = have_complete ? NULL : file_join(dir, tags[i].name);
        const bool newest_complete = path && is_complete(path);
        have_complete |= newest_complete;
        free(path);
        const bool stays = kept->names ? is_named(kept, tags[i].name) : (int64_t)i < kept->newest;
        goes[i] = !stays && !newest_complete && !(named && strcmp(named, tags[i].name) == 0);
    }
    free(named);
    return CZ_OK;
}

/* A folder in which something is left that czero did not write gets its name back. */
cz_status store_finish_removal(const char *dir, const char *tag)
{
    bool is_left = false;
    char *path = file_join(dir, tag), *hidden = store_hidden_path(dir, tag, STORE_DELETING);
    cz_status st = path && hidden ? store_remove_listed(hidden, &is_left)
                                  : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    if (st == CZ_OK && is_left && !file_exists(path)) {
        st = store_rename(hidden, path);
        if (st == CZ_OK)
            LOGV(LOG_WARN, SUB_CKPT,
                 "%s: the checkpoint was removed, but not the folder: other files are in it", path);
    }
    free(path);
    free(hidden);
    return st;
}

/* The tag first gets a hidden name, so a crash half-way leaves no folder that looks like a
 * checkpoint. Its files are removed when that name is on disk. A leftover of an earlier removal may
 * have the hidden name already. */
static cz_status remove_tag(const char *dir, const char *tag)
{
    char *path = file_join(dir, tag), *hidden = store_hidden_path(dir, tag, STORE_DELETING);
    bool is_left;
    cz_status st;
    if (!path || !hidden) {
        st = err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        goto done;
    }
    TRY_GOTO(store_remove_listed(hidden, &is_left), done);
    TRY_GOTO(store_rename(path, hidden), done);
    TRY_GOTO(store_sync_dir(dir), done);
    TRY_GOTO(store_finish_removal(dir, tag), done);
done:
    free(path);
    free(hidden);
    return st;
}

/* Oldest first, and on after a failure: the first error is returned when everything else has been
 * tried. */
static cz_status prune(const char *dir, const struct ckpt_list *list, const struct kept *kept,
                       struct tag *tags, bool *goes, size_t *n_removed)
{
    size_t n;
    struct err first = {.status = CZ_OK};
    TRY(find_tags(dir, list, tags, &n));
    TRY(choose(dir, tags, n, kept, goes));
    for (size_t i = n; i-- > 0;) { /* oldest first */
        if (!goes[i]) continue;
        if (remove_tag(dir, tags[i].name) == CZ_OK)
            ++*n_removed;
        else if (first.status == CZ_OK)
            err_capture(&first);
    }
    return first.status == CZ_OK ? CZ_OK : err_restore(&first);
}

static cz_status prune_folder(const char *dir, const struct kept *kept, size_t *n_removed)
{
    struct ckpt_list list;
    size_t removed = 0;
    if (n_removed) *n_removed = 0;
    TRY(ckpt_list_files(dir, "", &list));
    struct tag *tags = calloc(list.n + 1, sizeof *tags);
    bool *goes = calloc(list.n + 1, sizeof *goes);
    cz_status st = tags && goes ? prune(dir, &list, kept, tags, goes, &removed)
                                : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    free(tags);
    free(goes);
    ckpt_list_free(&list);
    if (n_removed) *n_removed = removed;
    return st;
}

cz_status store_prune(const char *dir, int64_t keep, size_t *n_removed)
{
    const struct kept kept = {.newest = keep};
    if (n_removed) *n_removed = 0;
    if (keep < 1) return err_set(CZ_INVALID, 0, "%s: at least one checkpoint has to be kept", dir);
    return prune_folder(dir, &kept, n_removed);
}

cz_status store_prune_others(const char *dir, const char *const *names, size_t *n_removed)
{
    const struct kept kept = {.names = names};
    return prune_folder(dir, &kept, n_removed);
}

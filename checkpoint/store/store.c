/* A save, from the empty staging folder to `latest`, in the order of docs/checkpoint-format.md,
 * "How a save becomes durable".
 *
 * The invariant: at every moment, and after a crash or power cut at any moment, `latest` names a
 * complete tag. It follows from three rules. Files are synced before the folder gets its final
 * name. The parent folder is synced between two renames that depend on each other. Nothing is
 * deleted before the folder was synced in the state in which it is not needed. */
#include "checkpoint/store/store_impl.h"

#include "base/host/process_mark.h"
#include "checkpoint/store/store.h"
#include "formats/crc32.h"
#include "formats/file_io.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LATEST_S_MAX 3600

/* ---- leftovers of earlier saves -------------------------------------------------------------- */

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), n_suffix = strlen(suffix);
    return n > n_suffix + 1 && strcmp(name + n - n_suffix, suffix) == 0;
}

/* The temporary name of `latest`. One of a process that cannot be seen from here has ended if it is
 * old: such a file exists for milliseconds. */
static bool is_leftover_latest(const char *dir, const char *name)
{
    static const char latest[] = CKPT_LATEST;
    struct stat info;
    struct timespec now;
    size_t n;
    const char *mark = file_temporary_mark(name, &n);
    if (!mark || n != sizeof latest - 1 || strncmp(name, latest, n) != 0) return false;
    char *path = file_join(dir, name);
    const bool is_file =
        path && lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
    free(path);
    if (!is_file || process_mark_fate(mark) == PROCESS_RUNS) return false;
    clock_gettime(CLOCK_REALTIME, &now);
    return process_mark_fate(mark) == PROCESS_ENDED ||
           difftime(now.tv_sec, info.st_mtime) > LATEST_S_MAX;
}

/* The tag of a hidden name: ".TAG" and the suffix. False: it is not one. */
static bool tag_of(const char *name, const char *suffix, char tag[256])
{
    if (name[0] != '.' || !ends_in(name, suffix)) return false;
    snprintf(tag, 256, "%.*s", (int)(strlen(name) - strlen(suffix) - 1), name + 1);
    return ckpt_tag_check(tag) == CZ_OK;
}

/* A staging folder is known by its mark, half a removed tag by its manifest. Others of such names
 * are the user's. */
static cz_status clean_one(const char *dir, const char *name)
{
    char tag[256];
    if (tag_of(name, STORE_SAVING STORE_MARK, tag) ||
        tag_of(name, STORE_DELETING STORE_MARK, tag)) {
        char *path = file_join(dir, name);
        if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        path[strlen(path) - strlen(STORE_MARK)] = '\0';
        cz_status st = store_remove_left(dir, path);
        free(path);
        return st;
    }
    if (tag_of(name, STORE_DELETING, tag)) {
        struct stat info;
        char *path = file_join(dir, name);
        if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
        const bool is_ours = lstat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
                             info.st_uid == geteuid() && !store_has_mark(path);
        cz_status st = is_ours ? store_finish_removal(dir, tag) : CZ_OK;
        free(path);
        if (st != CZ_CORRUPT && st != CZ_VERSION) return st;
        err_clear(); /* nothing there can be trusted: it stays */
        return CZ_OK;
    }
    err_clear();
    if (!is_leftover_latest(dir, name)) return CZ_OK;
    char *path = file_join(dir, name);
    cz_status st = path ? file_remove(path) : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    free(path);
    return st;
}

static bool any_leftover(const struct ckpt_list *list)
{
    static const char latest[] = CKPT_LATEST ".tmp";
    for (size_t i = 0; i < list->n; i++)
        if (ends_in(list->names[i], STORE_SAVING STORE_MARK) ||
            ends_in(list->names[i], STORE_DELETING STORE_MARK) ||
            ends_in(list->names[i], STORE_DELETING) ||
            strncmp(list->names[i], latest, sizeof latest - 1) == 0)
            return true;
    return false;
}

/* DIR is synced first: a folder may have got its hidden name by a rename that is not on disk yet,
 * and until it is, its files may be needed after a power cut. The sync is paid only if there is
 * something to remove. */
static cz_status store_clean(const char *dir)
{
    struct ckpt_list list;
    TRY(ckpt_list_files(dir, "", &list));
    cz_status st = any_leftover(&list) ? store_sync_dir(dir) : CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) st = clean_one(dir, list.names[i]);
    ckpt_list_free(&list);
    return st;
}

/* The names of one save. is_new is looked up once, at the beginning: under the lock on the staging
 * folder no other czero process publishes this tag. */
struct save {
    const char *dir, *tag;
    char *staging; /* DIR/.TAG.saving */
    char *final;   /* DIR/TAG */
    char *latest;  /* DIR/latest */
    bool is_new;   /* nothing has the final name yet */
};

static void save_free(struct save *s)
{
    free(s->staging);
    free(s->final);
    free(s->latest);
    memset(s, 0, sizeof *s);
}

/* rename() would fail on a folder named `latest`, after everything has been written; so this is
 * checked first. */
static cz_status check_latest(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s: is a folder, but must be the file that names the newest checkpoint: remove "
                   "or rename it",
                   path);
}

/* Whatever is in the way of the final names is reported before anything is written: a run should
 * not train for hours and then fail to save. A link to a folder is accepted; the exchange replaces
 * the link. */
static cz_status check_names(struct save *s)
{
    struct stat info;
    s->is_new = lstat(s->final, &info) != 0;
    if (s->is_new && errno != ENOENT)
        return err_set(CZ_IO, errno, "%s: cannot be examined", s->final);
    if (!s->is_new && !S_ISDIR(info.st_mode) && !S_ISLNK(info.st_mode))
        return err_set(CZ_INVALID, 0,
                       "%s: a file has the name of this checkpoint: remove it, or choose another "
                       "tag",
                       s->final);
    return check_latest(s->latest);
}

static cz_status save_init(struct save *s, const char *dir, const char *tag)
{
    memset(s, 0, sizeof *s);
    TRY(ckpt_tag_check(tag));
    *s = (struct save){.dir = dir,
                       .tag = tag,
                       .staging = store_staging_path(dir, tag),
                       .final = file_join(dir, tag),
                       .latest = file_join(dir, CKPT_LATEST)};
    cz_status st = CZ_OK;
    if (!s->staging || !s->final || !s->latest) st = err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    if (st == CZ_OK) st = check_names(s);
    if (st != CZ_OK) save_free(s);
    return st;
}

/* Before training starts: can checkpoints be saved here? */
cz_status store_check(const char *dir)
{
    TRY(store_make_dirs(dir));
    if (access(dir, W_OK | X_OK) != 0)
        return err_set(CZ_IO, errno, "%s: cannot be written to", dir);
    char *latest = file_join(dir, CKPT_LATEST);
    cz_status st = latest ? check_latest(latest) : err_set(CZ_NOMEM, 0, "%s: out of memory", dir);
    free(latest);
    return st;
}

char *store_staging_path(const char *dir, const char *tag)
{
    return store_hidden_path(dir, tag, STORE_SAVING);
}

/* ---- staging --------------------------------------------------------------------------------- */

/* The mark is on disk before the folder is there, so a folder with a mark is a save's, also after a
 * power cut. */
cz_status store_stage(const char *dir, const char *tag)
{
    struct save s;
    bool was_marked;
    TRY(ckpt_tag_check(tag));
    TRY(store_make_dirs(dir));
    TRY(save_init(&s, dir, tag));
    cz_status st = store_lock(s.staging, &was_marked);
    if (st != CZ_OK) {
        save_free(&s);
        return st;
    }
    TRY_GOTO(store_sync_dir(dir), done);
    TRY_GOTO(store_clean(dir), done);
    if (was_marked) TRY_GOTO(store_remove_tree(s.staging), done);
    if (mkdir(s.staging, 0777) != 0)
        st = errno == EEXIST
                 ? err_set(CZ_IO, 0,
                           "%s: exists already, and no save of czero made it: remove or rename it",
                           s.staging)
                 : err_set(CZ_IO, errno, "%s: cannot be created", s.staging);
done:
    if (st != CZ_OK) store_unlock(s.staging, !was_marked); /* it proves what is there */
    save_free(&s);
    return st;
}

/* The staging folder may hold the old content after an exchange that did not reach the disk yet. So
 * the parent is synced before anything is removed, and if that fails the folder stays for the next
 * save, with its mark. The current error survives: a caller discards because of it. */
void store_discard(const char *dir, const char *tag)
{
    struct err current;
    err_capture(&current);
    char *staging = store_staging_path(dir, tag);
    if (staging && store_is_ours(staging))
        store_unlock(staging, store_sync_dir(dir) == CZ_OK && store_remove_tree(staging) == CZ_OK &&
                                  store_sync_dir(dir) == CZ_OK);
    else if (staging && ckpt_tag_check(tag) == CZ_OK && store_sync_dir(dir) == CZ_OK)
        (void)store_remove_left(dir, staging); /* rank 0, which staged it, may be dead */
    free(staging);
    err_restore(&current);
}

/* ---- before the rename ----------------------------------------------------------------------- */

/* Hidden names pass: NFS leaves .nfs… files where an open file was removed. A manifest passes
 * because an earlier try may have written it; it is written again. */
static bool is_expected(const char *name, const struct manifest *m,
                        const struct store_extra *extras, size_t n_extras)
{
    if (name[0] == '.' || strcmp(name, CKPT_MANIFEST) == 0) return true; /* .nfs…, an earlier try */
    for (size_t i = 0; i < n_extras; i++)
        if (strcmp(name, extras[i].name) == 0) return true;
    return manifest_find(m, name) != NULL;
}

/* The staged folder holds exactly what the manifest lists, with the listed sizes. Ranks write on
 * their own, perhaps from other hosts over a network file system, so rank 0 sees here what reached
 * the folder; contents are not read again, their sums were computed while writing. */
static cz_status check_staged(const struct save *s, const struct manifest *m,
                              const struct store_extra *extras, size_t n_extras)
{
    struct ckpt_list list;
    for (size_t i = 0; i < m->n_files; i++) {
        bool is_extra = false; /* of an earlier try: will be written again */
        for (size_t k = 0; k < n_extras; k++)
            is_extra |= strcmp(extras[k].name, m->files[i].name) == 0;
        if (!is_extra) {
            struct stat info;
            char *path = file_join(s->staging, m->files[i].name);
            if (!path) return err_set(CZ_NOMEM, 0, "%s: out of memory", s->staging);
            cz_status st = CZ_OK;
            if (lstat(path, &info) != 0)
                st = errno == ENOENT ? err_set(CZ_CORRUPT, 0,
                                               "%s: should have been saved, but is missing", path)
                                     : err_set(CZ_IO, errno, "%s: cannot be examined", path);
            else if (!S_ISREG(info.st_mode))
                st = err_set(CZ_CORRUPT, 0, "%s: is not a file", path);
            else if ((uint64_t)info.st_size != m->files[i].nbytes)
                st = err_set(CZ_CORRUPT, 0, "%s: has %lld bytes, %" PRIu64 " were written", path,
                             (long long)info.st_size, m->files[i].nbytes);
            free(path);
            TRY(st);
        }
    }
    cz_status st = ckpt_list_files(s->staging, "", &list);
    for (size_t i = 0; i < list.n && st == CZ_OK; i++)
        if (!is_expected(list.names[i], m, extras, n_extras))
            st = err_set(CZ_CORRUPT, 0,
                         "%s/%s: is among the files to be saved, but no rank wrote it", s->staging,
                         list.names[i]);
    ckpt_list_free(&list);
    return st;
}

static cz_status write_into(const struct save *s, const char *name, const void *bytes, size_t n)
{
    return store_write_synced(s->staging, name, bytes, n);
}

/* A file that rank 0 adds by itself, such as czero_state.json. An earlier try may have entered it
 * in the manifest with other content. */
static cz_status write_extra(const struct save *s, struct manifest *m,
                             const struct store_extra *extra)
{
    const uint32_t crc = crc32_update(0, extra->bytes, extra->nbytes);
    struct manifest_file *file = (struct manifest_file *)manifest_find(m, extra->name);
    if (!file) TRY(manifest_add_file(m, extra->name, extra->nbytes, crc, &file));
    file->nbytes = extra->nbytes;
    file->crc = crc;
    return write_into(s, extra->name, extra->bytes, extra->nbytes);
}

static cz_status write_manifest(const struct save *s, const struct manifest *m)
{
    char *text;
    size_t nbytes;
    TRY(manifest_to_json(m, &text, &nbytes));
    cz_status st = write_into(s, CKPT_MANIFEST, text, nbytes);
    free(text);
    return st;
}

/* ---- the rename ------------------------------------------------------------------------------ */

/* *yes: whether `latest` names this tag. One that names nothing, or is damaged, protects
 * nothing. */
static cz_status latest_names(const struct save *s, bool *yes)
{
    char *named = NULL;
    cz_status st = ckpt_latest_read(s->dir, false, &named);
    *yes = st == CZ_OK && strcmp(named, s->tag) == 0;
    free(named);
    if (st != CZ_NOTFOUND && st != CZ_CORRUPT) return st;
    err_clear();
    return CZ_OK;
}

/* The temporary is complete and synced before it is renamed, so `latest` is never seen
 * half-written. */
static cz_status write_latest_temp(const struct save *s, const char *tag, struct file_durable *f)
{
    TRY(file_durable_create(f, s->latest, 0));
    cz_status st = file_pwrite(f->fd, s->latest, tag, strlen(tag), 0);
    if (st == CZ_OK) st = file_durable_sync(f);
    if (st != CZ_OK) file_durable_abort(f);
    return st;
}

static cz_status set_latest(const struct save *s, struct file_durable *temp)
{
    TRY(file_durable_rename(temp));
    return store_sync_dir(s->dir);
}

/* A free name for the old content of a tag: TAG.previous, TAG.previous2, … */
static cz_status previous_name(const struct save *s, char name[256], char **path)
{
    struct stat info;
    for (int i = 1; i < 1000; i++) {
        snprintf(name, 256, i == 1 ? "%.180s.previous" : "%.180s.previous%d", s->tag, i);
        *path = file_join(s->dir, name);
        if (!*path) return err_set(CZ_NOMEM, 0, "%s: out of memory", s->dir);
        if (lstat(*path, &info) != 0 && errno == ENOENT) return CZ_OK;
        free(*path);
        *path = NULL;
    }
    return err_set(CZ_IO, 0, "%s: no free name for its previous content", s->final);
}

/* For file systems without an exchange, when `latest` names the very tag that is being replaced:
 * there would be a moment in which neither the old nor the new content has that name. So the old
 * content gets a second name by hard links, and `latest` names that one meanwhile. The links are
 * made under a staging name first, so a crash leaves no incomplete tag behind. */
static cz_status keep_as_previous(const struct save *s, char **previous)
{
    char name[256], *staged = NULL;
    struct file_durable latest = {.fd = -1};
    bool linked = false;
    TRY(previous_name(s, name, previous));
    cz_status st = CZ_OK;
    staged = store_staging_path(s->dir, name);
    bool was_marked = false;
    if (!staged) st = err_set(CZ_NOMEM, 0, "%s: out of memory", s->dir);
    if (st == CZ_OK) st = store_lock(staged, &was_marked);
    if (st == CZ_OK) st = store_sync_dir(s->dir);
    if (st == CZ_OK && was_marked) st = store_remove_tree(staged);
    if (st == CZ_OK) st = store_link_tree(s->final, staged, &linked);
    if (st == CZ_OK && !linked)
        st = err_set(CZ_UNSUPPORTED, 0,
                     "%s: cannot be replaced safely: `latest` names it, and this file system can "
                     "neither exchange folders nor link files; save under another tag",
                     s->final);
    if (st == CZ_OK) st = store_rename(staged, *previous);
    if (st == CZ_OK) st = store_sync_dir(s->dir);
    if (staged) store_unlock(staged, !file_exists(staged));
    if (st == CZ_OK) st = write_latest_temp(s, name, &latest);
    if (st == CZ_OK) st = set_latest(s, &latest);
    file_durable_abort(&latest);
    free(staged);
    return st;
}

/* Old content gets a hidden name with a mark, so that all of it goes, whatever a crash leaves. */
static cz_status hide(const struct save *s, const char *from, const char *hidden)
{
    bool was_marked;
    TRY(store_lock(hidden, &was_marked));
    cz_status st = store_sync_dir(s->dir);
    if (st == CZ_OK && was_marked) st = store_remove_tree(hidden);
    if (st == CZ_OK) st = store_rename(from, hidden);
    if (st != CZ_OK) store_unlock(hidden, !was_marked);
    return st;
}

/* What stays, the next save removes. */
static void remove_hidden(const struct save *s, const char *hidden)
{
    const bool is_gone = store_remove_tree(hidden) == CZ_OK && store_sync_dir(s->dir) == CZ_OK;
    if (strcmp(hidden, s->staging) != 0) store_unlock(hidden, is_gone);
}

/* What publishing leaves to be removed when all is durable. */
struct remains {
    char *old;      /* the old content's hidden name */
    char *previous; /* its second name */
};

/* Gives the staged folder its final name: by one rename if the name is free, by an atomic exchange
 * if not, and step by step where the file system cannot exchange. latest: the temporary that will
 * name the tag; empty when `latest` stays as it is. */
static cz_status put_into_place(const struct save *s, struct file_durable *latest,
                                struct remains *r)
{
    bool exchanged = false;
    if (s->is_new) return store_rename(s->staging, s->final);
    TRY(store_exchange(s->staging, s->final, &exchanged));
    if (!exchanged) {
        bool named;
        TRY(latest_names(s, &named));
        if (named) {
            /* keep_as_previous() writes a temporary under the same name. */
            file_durable_abort(latest);
            TRY(keep_as_previous(s, &r->previous));
            TRY(write_latest_temp(s, s->tag, latest));
        }
        /* Without exchange the final name is free for a moment; `latest` must name something else
         * then. */
        char **old = &r->old;
        *old = store_hidden_path(s->dir, s->tag, STORE_DELETING);
        if (!*old) return err_set(CZ_NOMEM, 0, "%s: out of memory", s->dir);
        TRY(hide(s, s->final, *old));
        return store_rename(s->staging, s->final);
    }
    r->old = strdup(s->staging);
    return r->old ? CZ_OK : err_set(CZ_NOMEM, 0, "%s: out of memory", s->dir);
}

/* Publishes the staged folder: final name, sync, `latest`, sync, and only then removals. */
static cz_status finish(const struct save *s, struct file_durable *latest)
{
    struct remains remains = {NULL, NULL};
    cz_status st;
    TRY_GOTO(put_into_place(s, latest, &remains), done);
    TRY_GOTO(store_sync_dir(s->dir), done);
    if (latest->path) TRY_GOTO(set_latest(s, latest), done);
    /* Nothing needs these any more. The save has succeeded even if they cannot be removed: the next
     * save removes hidden names, and a second name is a tag like any other. */
    if (remains.previous) {
        char *hidden =
            store_hidden_path(s->dir, strrchr(remains.previous, '/') + 1, STORE_DELETING);
        if (hidden && hide(s, remains.previous, hidden) == CZ_OK) {
            if (store_sync_dir(s->dir) == CZ_OK)
                remove_hidden(s, hidden);
            else
                store_unlock(hidden, false);
        }
        free(hidden);
    }
    if (remains.old) remove_hidden(s, remains.old);
    err_clear();
done:
    if (st != CZ_OK && remains.old) store_unlock(remains.old, false);
    free(remains.old);
    free(remains.previous);
    return st;
}

/* The manifest comes last among the files: a folder with a manifest is a complete one. */
cz_status store_publish(const char *dir, const char *tag, struct manifest *m,
                        const struct store_extra *extras, size_t n_extras, bool update_latest)
{
    struct save s;
    struct file_durable latest = {.fd = -1};
    cz_status st;
    TRY(save_init(&s, dir, tag));
    TRY_GOTO(check_staged(&s, m, extras, n_extras), done);
    for (size_t i = 0; i < n_extras; i++) TRY_GOTO(write_extra(&s, m, &extras[i]), done);
    TRY_GOTO(write_manifest(&s, m), done);
    TRY_GOTO(store_sync_dir(s.staging), done);
    /* Written now, so that a full disk shows before anything is visible. */
    if (update_latest) TRY_GOTO(write_latest_temp(&s, tag, &latest), done);
    TRY_GOTO(finish(&s, &latest), done);
    store_unlock(s.staging, !file_exists(s.staging));
done:
    file_durable_abort(&latest);
    save_free(&s);
    return st;
}

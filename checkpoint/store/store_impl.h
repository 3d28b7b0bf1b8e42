/* The file system calls that durable saves are made of, and the lock that keeps two apart. */
#ifndef CZ_CHECKPOINT_STORE_STORE_IMPL_H
#define CZ_CHECKPOINT_STORE_STORE_IMPL_H

#include "checkpoint/read/names.h"

#define STORE_SAVING   ".saving"
#define STORE_DELETING ".deleting"
#define STORE_MARK     ".by" /* of a staging folder: ".TAG.saving.by" */

/* Names in DIR that end so and begin with a dot are ours. NULL: no memory; free() it. */
char *store_hidden_path(const char *dir, const char *tag, const char *suffix);

/* Make what was created, renamed and removed in `dir` survive a power cut. Errors: CZ_IO. */
cz_status store_sync_dir(const char *dir);

/* Create `dir` and its missing parents, each synced into the folder it is in. Errors: CZ_IO. */
cz_status store_make_dirs(const char *dir);

/* A file in the staging folder `path`, which no reader uses yet, synced to disk. Neither is a link.
 * Errors: CZ_IO, CZ_INVALID (a link). */
cz_status store_write_synced(const char *path, const char *name, const void *bytes, size_t nbytes);

/* A file, a link (never what it points to), or a folder with all that is in it; that some of it is
 * gone already is fine. Errors: CZ_IO, for the first thing that stays; the rest is still tried. */
cz_status store_remove_tree(const char *path);

/* rename(2) with a sentence. Errors: CZ_IO. */
cz_status store_rename(const char *from, const char *to);

/* Two existing names change places in one step. *done false: this file system has no such call.
 * Errors: CZ_IO. */
cz_status store_exchange(const char *a, const char *b, bool *done);

/* A second name for every file of folder `from` in the new folder `to`. *done false: this file
 * system has no hard links, or `from` holds folders; `to` is then removed. Errors: CZ_IO. */
cz_status store_link_tree(const char *from, const char *to, bool *done);

/* Remove the regular files in folder `path` that its manifest lists, then the manifest, then the
 * folder. *is_left: other things are in it, and it stays with them. What is gone already is fine;
 * without a manifest nothing but an empty folder goes. Errors: CZ_IO, CZ_CORRUPT and others of
 * manifest_load(). */
cz_status store_remove_listed(const char *path, bool *is_left);

/* The rest of a tag's removal, from the name .TAG.deleting on: what its manifest lists goes; a
 * folder in which other things are left is called TAG again, with a warning. Errors: CZ_IO,
 * CZ_CORRUPT, CZ_NOMEM. */
cz_status store_finish_removal(const char *dir, const char *tag);

/* Mark the staging folder `path`, which need not exist, as in use by this process until it ends or
 * store_unlock(). *was_marked: it had a mark, so what is there is a save's, which has ended.
 * Sync the folder that it is in before the staging folder is made. Errors: CZ_BUSY (another process
 * may be saving there), CZ_IO, CZ_NOMEM. */
cz_status store_lock(const char *path, bool *was_marked);
void store_unlock(const char *path, bool is_gone); /* is_gone: the mark goes, too; any path */
bool store_is_ours(const char *path);
bool store_has_mark(const char *path); /* of whatever process */

/* Remove a staging folder of `dir` and its mark if a process that has ended left them; one that
 * another process may use, and a folder without a mark, stay. Errors: CZ_IO. */
cz_status store_remove_left(const char *dir, const char *path);

#endif

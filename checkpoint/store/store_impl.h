/* The file system calls that durable saves are made of, and the lock that keeps two apart. */
#ifndef CZ_CHECKPOINT_STORE_STORE_IMPL_H
#define CZ_CHECKPOINT_STORE_STORE_IMPL_H

#include "checkpoint/read/names.h"

#define STORE_SAVING   ".saving"
#define STORE_DELETING ".deleting"

/* Names in DIR that end so and begin with a dot are ours. NULL: no memory; free() it. */
char *store_hidden_path(const char *dir, const char *tag, const char *suffix);

/* Make what was created, renamed and removed in `dir` survive a power cut. Errors: CZ_IO. */
cz_status store_sync_dir(const char *dir);

/* Create `dir` and its missing parents, each synced into the folder it is in. Errors: CZ_IO. */
cz_status store_make_dirs(const char *dir);

/* A file in a folder that no reader uses yet, synced to disk. Errors: CZ_IO. */
cz_status store_write_synced(const char *path, const void *bytes, size_t nbytes);

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

/* Mark `path` (a folder) as in use by this process until it ends or store_unlock(path).
 * Errors: CZ_BUSY (another process did), CZ_NOMEM. A file system without locks is fine. */
cz_status store_lock(const char *path);
void store_unlock(const char *path); /* fine when it is not ours */
bool store_is_locked_elsewhere(const char *path);

#endif

/* The folder that checkpoints are saved into: a tag appears whole or not at all.
 *
 * One save; between its steps the caller makes ranks agree:
 *   store_stage()     rank 0: an empty staging folder DIR/.TAG.saving
 *   … every rank writes and syncs its files there …
 *   store_publish()   rank 0: extra files, manifest, the final name, then `latest`
 *   store_prune()     rank 0: removes old tags, oldest first
 *   store_discard()   instead, when the save failed anywhere: nothing of it stays
 *
 * The order of syncs and renames is docs/checkpoint-format.md's.
 * Whatever moment the process is killed at, `latest` names a tag all of whose files are on disk. */
#ifndef CZ_CHECKPOINT_STORE_STORE_H
#define CZ_CHECKPOINT_STORE_STORE_H

#include "checkpoint/read/names.h"
#include "checkpoint/store/manifest.h"

CZ_EXTERN_C_BEGIN

/* Create DIR (and parents) and find out whether a save could begin there: for a run's start, so
 * that it does not train for hours first. Errors: CZ_IO, CZ_INVALID (no name; a folder called
 * `latest` is in the way). */
cz_status store_check(const char *dir);

/* DIR/.TAG.saving, for every rank; free() it. NULL: no memory. */
char *store_staging_path(const char *dir, const char *tag);

/* Create DIR (and parents) and the empty staging folder, which stays locked until it is published
 * or discarded, or this process ends; remove unlocked staging folders and half-deleted tags of
 * earlier crashes. Errors: CZ_INVALID (tag; a file called TAG or a folder called `latest` is in the
 * way), CZ_BUSY (another process saves under this tag), CZ_IO (read-only, no space, …). */
cz_status store_stage(const char *dir, const char *tag);

/* A small file that goes into the tag beside the shards, and into the manifest. */
struct store_extra {
    const char *name;
    const void *bytes;
    size_t nbytes;
};

/* All ranks' files are synced in the staging folder and listed in `m`, whose files are checked to
 * be there with their sizes; extras are written and added. Then the tag gets its name (an existing
 * one is replaced in one step) and `latest` its content, all synced. update_latest false: `latest`
 * stays (save_latest=False). Errors: CZ_IO, CZ_CORRUPT (a listed file is missing or short, another
 * one is there), CZ_UNSUPPORTED (a file system on which TAG cannot be replaced safely), CZ_NOMEM;
 * call store_discard() then. `latest` names a whole checkpoint also after an error. */
cz_status store_publish(const char *dir, const char *tag, struct manifest *m,
                        const struct store_extra *extras, size_t n_extras, bool update_latest);

/* Remove the staging folder, from any rank (rank 0 may be dead); one that another process holds
 * stays. Keeps the current error. */
void store_discard(const char *dir, const char *tag);

/* Keep the `keep` ≥ 1 newest tags that czero saved (by step in their czero_state.json, then time),
 * and always the one that `latest` names and the newest one that is complete by its manifest's
 * sizes. Folders that hold no manifest of ours are never touched. A tag is renamed to .TAG.deleting
 * before its files go. *n_removed (may be NULL). Errors: CZ_IO (the rest is still tried). */
cz_status store_prune(const char *dir, int64_t keep, size_t *n_removed);

CZ_EXTERN_C_END
#endif

/* The folder of checkpoints: a tag appears complete or not at all.
 *
 * The steps of a save; between them the caller makes the ranks agree:
 *   store_stage()     rank 0: an empty staging folder DIR/.TAG.saving
 *   … every rank writes and syncs its files there …
 *   store_publish()   rank 0: extra files, manifest, the final name, then `latest`
 *   store_prune()     rank 0: removes old tags, oldest first; store_prune_others(): all but these
 *   store_discard()   instead, if any rank failed: removes the save
 *
 * docs/checkpoint-format.md defines the order of syncs and renames. If the process is killed at any
 * point, `latest` names a tag whose files are all on disk. */
#ifndef CZ_CHECKPOINT_STORE_STORE_H
#define CZ_CHECKPOINT_STORE_STORE_H

#include "checkpoint/read/names.h"
#include "checkpoint/store/manifest.h"

CZ_EXTERN_C_BEGIN

/* Create DIR (and parents) and check whether a save could begin there, at the start of a run, so
 * that a run does not train for hours first. Errors: CZ_IO, CZ_INVALID (no name; a folder called
 * `latest` is in the way). */
cz_status store_check(const char *dir);

/* DIR/.TAG.saving, for every rank; free() it. NULL: no memory. */
char *store_staging_path(const char *dir, const char *tag);

/* Create DIR (and parents) and the empty staging folder, which stays marked and locked until it is
 * published or discarded, or this process ends; remove staging folders of processes that have
 * ended, and half-deleted tags. Errors: CZ_INVALID (tag; a file called TAG or a folder called
 * `latest` is in the way), CZ_BUSY (another process saves under this tag, or may do so on another
 * host), CZ_IO (read-only, no space, …). */
cz_status store_stage(const char *dir, const char *tag);

/* A small file in the tag's folder, in addition to the shards; the manifest lists it. */
struct store_extra {
    const char *name;
    const void *bytes;
    size_t nbytes;
};

/* The files of all ranks are synced in the staging folder and listed in `m`. Checks that they exist
 * with their sizes, writes the extras and adds them. Then renames the tag (an existing one is
 * replaced in one step) and writes `latest`, all synced. update_latest false: `latest` does not
 * change (save_latest=False). Errors: CZ_IO, CZ_CORRUPT (a listed file is missing or short, another
 * one is there), CZ_UNSUPPORTED (a file system on which TAG cannot be replaced safely), CZ_NOMEM;
 * call store_discard() then. `latest` names a complete checkpoint also after an error. */
cz_status store_publish(const char *dir, const char *tag, struct manifest *m,
                        const struct store_extra *extras, size_t n_extras, bool update_latest);

/* Remove the staging folder, from any rank (rank 0 may be dead); one that another process has
 * locked stays. Keeps the current error. */
void store_discard(const char *dir, const char *tag);

/* Keep the `keep` ≥ 1 newest tags that czero saved under their names (by step in their
 * czero_state.json, then time), and always the one that `latest` names and the newest one that is
 * complete by its manifest's sizes. Other folders are not counted and not changed: without czero's
 * manifest, copied or renamed, with a state that the manifest does not list. A tag is renamed to
 * .TAG.deleting before the files that its manifest lists are removed; if others are in it, it gets
 * its name back with those, and a warning. *n_removed (may be NULL). Errors: CZ_IO (the rest is
 * still tried). */
cz_status store_prune(const char *dir, int64_t keep, size_t *n_removed);

/* The same, but only the tags `names` (ends with NULL) stay, and the one that `latest` names. */
cz_status store_prune_others(const char *dir, const char *const *names, size_t *n_removed);

/* The names in DIR that a run's checkpoints have: folders of tags, `latest`, `latest_universal`,
 * and those of `others` (ends with NULL) that are there. Release with ckpt_list_free(). A missing
 * DIR has none. Errors: CZ_IO, CZ_NOMEM. */
cz_status store_find_run(const char *dir, const char *const *others, struct ckpt_list *out);

#define STORE_EARLIER "earlier-"

/* Move these names into a new folder of DIR, whose name is returned ("earlier-1", or the next
 * number that is free), so that a new run in DIR neither replaces nor removes them. Errors: CZ_IO,
 * CZ_NOMEM. */
cz_status store_set_aside(const char *dir, const struct ckpt_list *run, char name[32]);

CZ_EXTERN_C_END
#endif

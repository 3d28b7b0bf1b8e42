/* Files below a folder of any origin: a checkpoint, a model, an unpacked archive.
 *
 * Every name that a file holds is opened here (ds_id, states, shards, an index's files, `latest`),
 * and so is every fixed name (config.json) in such a folder, because it may be a link there.
 *
 * The rule: `dir` is the folder that the user named; links in that path are the user's and are
 * followed. `name` is relative to it and holds no "..", and no link on the way may be absolute or
 * lead out of `dir`. One exception: where `dir` is in a Hugging Face cache, that is its real path
 * ends in models--NAME/snapshots/REVISION (or datasets--NAME/…) or a folder below, links may lead
 * to anything inside of models--NAME: snapshots consist of links to ../../blobs. openat2() checks
 * this where the kernel has it; elsewhere, and where a sandbox denies it, each component is opened
 * and checked alone.
 *
 * In all calls `dir` may be NULL: then `name` is a path that the user gave, opened as it is.
 * Errors of all calls: CZ_CORRUPT when a name or a link leads out of the folder, CZ_NOTFOUND when
 * nothing is there, CZ_IO, CZ_NOMEM. Thread-safe. */
#ifndef CZ_FORMATS_BENEATH_H
#define CZ_FORMATS_BENEATH_H

#include "base/status.h"

#include <sys/stat.h>

CZ_EXTERN_C_BEGIN

/* Why a name from a file is refused before anything is opened: it is empty, absolute, or has a
 * part ".."; NULL: it is not. */
const char *beneath_fault(const char *name);

/* Open for reading. Only regular files; *nbytes (may be NULL): the size. */
cz_status beneath_open(const char *dir, const char *name, int *fd, uint64_t *nbytes);

/* The whole file with a NUL after it, as file_load(). CZ_INVALID: longer than nbytes_max. */
cz_status beneath_load(const char *dir, const char *name, size_t nbytes_max, char **out,
                       size_t *nbytes);

/* Open a folder, to list it. */
cz_status beneath_open_folder(const char *dir, const char *name, int *fd);

/* As stat(). */
cz_status beneath_stat(const char *dir, const char *name, struct stat *out);

/* Whether there is such a folder; and whether there is anything at all, including what the calls
 * above would refuse, so that opening it says why. No error is set. */
bool beneath_is_folder(const char *dir, const char *name);
bool beneath_is_there(const char *dir, const char *name);

CZ_EXTERN_C_END
#endif

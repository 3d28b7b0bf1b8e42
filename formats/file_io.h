/* Files as bytes: whole reads and writes at offsets, and files that appear only when complete.
 *
 * A durable file: file_durable_create() opens a temporary beside the final name; write with
 * file_pwrite(); file_durable_commit() syncs it and renames it into place; file_durable_abort()
 * removes the temporary. Until the commit nothing changes under the final name, whatever fails.
 * Paths are the user's, or made of constants: names that come from a file go through beneath.h.
 * Sentences name the path, the operation and the system's reason. Calls are thread-safe unless two
 * threads use the same struct. */
#ifndef CZ_FORMATS_FILE_IO_H
#define CZ_FORMATS_FILE_IO_H

#include "base/status.h"

#include <time.h>

CZ_EXTERN_C_BEGIN

struct out_folder; /* output.h */

/* A path made of "dir/name" (just name when dir is ""), NULL when memory ran out; free() it. */
char *file_join(const char *dir, const char *name);

/* `path` from the root, for paths that outlive a change of the working folder: links stay, nothing
 * has to exist. *out is the caller's, NULL on error. Errors: CZ_IO (the working folder is gone),
 * CZ_NOMEM. */
cz_status file_absolute(const char *path, char **out);

/* Open for reading. Only regular files: folders, pipes and devices are refused, without waiting for
 * them. *nbytes: the size (may be NULL).
 * Errors: CZ_NOTFOUND (no such file), CZ_IO. */
cz_status file_open_read(const char *path, int *fd, uint64_t *nbytes);

/* What an opened descriptor must be to be read: a regular file. It is passed on as *fd, or closed.
 * Errors: CZ_IO. */
cz_status file_take_regular(int opened, const char *path, int *fd, uint64_t *nbytes);

/* Read or write exactly nbytes at `off`; interrupted and short transfers are continued.
 * Errors: CZ_IO; CZ_CORRUPT when the file ends before the read does. */
cz_status file_pread(int fd, const char *path, void *dst, size_t nbytes, uint64_t off);
cz_status file_pwrite(int fd, const char *path, const void *src, size_t nbytes, uint64_t off);

/* What an open file was at one moment, to notice that it was written or truncated since: a reader
 * that checked the file when it opened it would else return what was never checked. */
struct file_stamp {
    uint64_t nbytes;
    struct timespec mtime;
};
cz_status file_stamp_take(int fd, const char *path, struct file_stamp *out); /* CZ_IO */

/* After a read: CZ_CORRUPT when the file is not the same any more; CZ_IO. */
cz_status file_stamp_check(int fd, const char *path, const struct file_stamp *stamp);

/* The whole file, with a NUL after it, as a block to free(). Errors: as above, CZ_INVALID when it
 * is longer than nbytes_max, CZ_NOMEM. */
cz_status file_load(const char *path, size_t nbytes_max, char **out, size_t *nbytes);

/* The same of an open file of `size` bytes, which is closed. */
cz_status file_load_opened(int fd, const char *path, uint64_t size, size_t nbytes_max, char **out,
                           size_t *nbytes);

/* The same of a file that the user named: it may also be a pipe or a device, which is read to its
 * end, but no further than nbytes_max. A pipe is waited for, until a signal with a handler arrives
 * (CZ_IO). */
cz_status file_load_named(const char *path, size_t nbytes_max, char **out, size_t *nbytes);

/* Create the folder that the user named and its missing parents, each synced into the folder that
 * it is in. An existing folder is fine, "" too. Errors: CZ_IO, CZ_NOMEM. */
cz_status file_make_dirs(const char *dir);

bool file_exists(const char *path);

/* Remove a file; that it is not there is fine. Errors: CZ_IO. */
cz_status file_remove(const char *path);

/* Make what was created, renamed and removed in a folder survive a power cut: the open folder `at`
 * (path: for messages), or AT_FDCWD and its path. Errors: CZ_IO. */
cz_status file_sync_folder(int at, const char *path);

struct file_durable {
    int fd;        /* -1 when not open */
    int direct_fd; /* the same file past the page cache, for bulk; -1: not here */
    int dir_fd;    /* the folder that it is in */
    bool owns_dir; /* … is closed with it */
    char *path;    /* for messages */
    char *name;    /* in the folder; the end of path */
    char *temp;    /* in the folder, until the commit */
    bool unnamed;  /* `temp` does not exist: a killed process leaves nothing behind */
    bool renamed;  /* committed: the final name is in place */
};

/* Open the temporary, without a name where the file system can. nbytes > 0 reserves that much disk,
 * so that a full disk shows now. A link that has the final name is replaced, never followed.
 * create_in: in a folder of output.h, which stays open until the file is committed or aborted
 * (NULL: `name` is the user's path); create: at a path that the user gave, with one name of ours at
 * most. Errors: CZ_IO (path, or not enough space), CZ_NOMEM; *f is then empty. */
cz_status file_durable_create_in(struct file_durable *f, const struct out_folder *in,
                                 const char *name, uint64_t nbytes);
cz_status file_durable_create(struct file_durable *f, const char *path, uint64_t nbytes);

/* Memory and file offsets that are equal modulo this are written without a copy. */
#define FILE_DIRECT_ALIGN 4096u

/* As file_pwrite(), but the bulk of a large piece goes past the page cache where that works: faster
 * than the disk's share of cached writing, and a long save pushes nothing else out of memory. Any
 * alignment works; best are pieces that begin and end on multiples of FILE_DIRECT_ALIGN in the
 * file, from memory aligned likewise. Threads: different ranges, any. Errors: CZ_IO. */
cz_status file_durable_pwrite(const struct file_durable *f, const void *src, size_t nbytes,
                              uint64_t off);

/* The mark (base/host/process_mark.h) in the name of a temporary that file_durable_create() made,
 * of this process or another, and in *n_final the length of the final name; NULL: it is no such
 * name. */
const char *file_temporary_mark(const char *name, size_t *n_final);

/* Bring the bytes to disk (the file keeps its temporary state); file_durable_rename() puts it into
 * place later. Errors: CZ_IO, after which only file_durable_abort() makes sense. */
cz_status file_durable_sync(struct file_durable *f);
/* Also removes temporaries of this name that killed processes left. */
cz_status file_durable_rename(struct file_durable *f);

/* After the rename: sync the folder. Errors: CZ_IO. */
cz_status file_durable_sync_folder(const struct file_durable *f);

/* Remove the committed file, whose set was not completed. Nothing before the rename. */
void file_durable_take_back(struct file_durable *f);

/* Sync, rename, and sync the folder. On any failure the temporary is removed. */
cz_status file_durable_commit(struct file_durable *f);

/* Remove the temporary if it is still there, release everything. Accepts a zeroed or committed
 * one; idempotent. Keeps the current error. */
void file_durable_abort(struct file_durable *f);

/* A small file in one go, durably. Errors: CZ_IO, CZ_NOMEM. */
cz_status file_save_in(const struct out_folder *in, const char *name, const void *src,
                       size_t nbytes);
cz_status file_save(const char *path, const void *src, size_t nbytes);

CZ_EXTERN_C_END
#endif

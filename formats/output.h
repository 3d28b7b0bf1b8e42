/* Folders and files that czero writes.
 *
 * The rule: nothing is written outside of the folder that the user named. That folder is opened
 * once; links in its path are the user's and are followed. What is below it may come from
 * elsewhere: a run that is continued, an unpacked archive. So names below it are made and opened
 * relative to the open folder, part by part, and no link is followed, also if it is put there
 * meanwhile. A link where a file is written is replaced (file_durable in file_io.h); where a folder
 * or a file that is continued is needed, it is refused (CZ_INVALID).
 *
 * Two folders are the user's own and hold only names of ours, so they are used by path: the folder
 * of checkpoints (checkpoint/store: tags, `latest`, marks) and that of swap files (offload/swap).
 * Each call there acts on the last part without following it: O_NOFOLLOW, O_EXCL, lstat(),
 * rename(), unlink(). A staging folder's files are made through this file.
 *
 * A file that the user named by itself (--curve FILE) is the user's, too: out_fopen() follows a
 * link, so /dev/stdout works. All other code creates, renames and removes through this file and
 * file_io.h (tests/lint/test_writes.sh).
 *
 * Names are one part, without a slash, unless said otherwise. Thread-safe but for one folder's
 * opening and closing. */
#ifndef CZ_FORMATS_OUTPUT_H
#define CZ_FORMATS_OUTPUT_H

#include "base/status.h"

#include <dirent.h>
#include <stdio.h>

CZ_EXTERN_C_BEGIN

struct out_folder {
    int fd;
    char *path; /* for messages, and to read there; NULL: not open */
    bool is_made;
};

/* Open the folder that the user named, and make it with its parents if it is missing. "" is the
 * current folder. Errors: CZ_IO, CZ_NOMEM; *f is then closed. */
cz_status out_folder_open(const char *dir, struct out_folder *f);

/* Open the folder `name` below, of one or more parts; `make`: missing ones are made. Errors:
 * CZ_INVALID (a link or a file is in the way, or the name leads out), CZ_NOTFOUND (it is missing
 * and not to be made), CZ_IO, CZ_NOMEM; *f is then closed. */
cz_status out_folder_below(const struct out_folder *in, const char *name, bool make,
                           struct out_folder *f);

/* Accepts a zeroed or closed one. */
void out_folder_close(struct out_folder *f);

/* Close after a failure: a folder that opening it made is removed, if it is empty. */
void out_folder_abandon(struct out_folder *f);

/* Make what was created, renamed and removed in it survive a power cut. Errors: CZ_IO. */
cz_status out_folder_sync(const struct out_folder *f);

/* To read its entries; closedir() it. NULL: errno says why. */
DIR *out_folder_list(const struct out_folder *f);

/* Open a file to continue it; a missing one is made. `flags` as for open(). Errors: CZ_INVALID (a
 * link, or no regular file), CZ_IO. */
cz_status out_open(const struct out_folder *in, const char *name, int flags, int *fd);

/* Remove a file or a link; that it is not there is fine. Errors: CZ_IO. */
cz_status out_remove(const struct out_folder *in, const char *name);

/* Remove the temporaries under which processes that have ended were writing the file `name`. */
void out_remove_left(const struct out_folder *in, const char *name);

/* Whether anything has this name, a link included. */
bool out_is_there(const struct out_folder *in, const char *name);

/* Give a file that the user named another name. Errors: CZ_IO. */
cz_status out_rename(const char *from, const char *to);

/* fopen() of a file that the user named. NULL: errno says why. */
FILE *out_fopen(const char *path, const char *mode);

CZ_EXTERN_C_END
#endif

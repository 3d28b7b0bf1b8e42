/* One run per folder. Two runs in one folder would overwrite each other's files, and a resumed run
 * would continue one that still runs.
 *
 * folder_lock_take() → folder_lock_release(). The lock is a file in the folder. The kernel locks
 * it, and its text names the process. The lock ends with the process, however that ends. */
#ifndef CZ_FORMATS_FOLDER_LOCK_H
#define CZ_FORMATS_FOLDER_LOCK_H

#include "formats/output.h"

#include <stdbool.h>

CZ_EXTERN_C_BEGIN

#define FOLDER_LOCK_NAME ".czero-run"

struct folder_lock {
    struct out_folder folder; /* not open: nothing is held */
    int fd;
};

/* Creates the folder if it is missing, and locks it. Errors: CZ_BUSY (the sentence names process
 * and host), CZ_INVALID (a link or something that is no file has the lock's name), CZ_IO,
 * CZ_NOMEM. */
cz_status folder_lock_take(struct folder_lock *lock, const char *dir);

/* Accepts a zeroed one. Removes the folder if folder_lock_take() created it and it is empty. */
void folder_lock_release(struct folder_lock *lock);

CZ_EXTERN_C_END
#endif

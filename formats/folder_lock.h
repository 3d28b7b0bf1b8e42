/* One run per folder: two that save or export into the same folder would overwrite each other's
 * files, and a resumed run would continue a checkpoint that another run is still writing.
 *
 * folder_lock_take() → folder_lock_release(). The lock is a file in the folder, locked by the
 * kernel and with a text that says which process has it. It ends with the process, however that
 * ends. */
#ifndef CZ_FORMATS_FOLDER_LOCK_H
#define CZ_FORMATS_FOLDER_LOCK_H

#include "base/status.h"

#include <stdbool.h>

CZ_EXTERN_C_BEGIN

#define FOLDER_LOCK_NAME ".czero-run"

struct folder_lock {
    char *dir; /* NULL: nothing is held */
    int fd;
    bool made_dir;
};

/* Make the folder if it is missing, and take it. Errors: CZ_BUSY (the sentence names process and
 * host), CZ_IO (also: something that is no file has the lock's name), CZ_NOMEM. */
cz_status folder_lock_take(struct folder_lock *lock, const char *dir);

/* Accepts a zeroed one. An empty folder that taking it made goes, too. */
void folder_lock_release(struct folder_lock *lock);

CZ_EXTERN_C_END
#endif

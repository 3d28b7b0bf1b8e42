/* What fuzz targets share. A target is one function over bytes: it must return for every input, and
 * what the reader accepts must keep the reader's promises. docs/fuzzing.md says how they are run.
 */
#ifndef CZ_TESTS_FUZZ_H
#define CZ_TESTS_FUZZ_H

#include "base/printable.h"
#include "base/status.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* libFuzzer's entry, and corpus_main.c's. */
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t nbytes);

/* Never NDEBUG's business: a broken promise must end the run. */
#define FUZZ_CHECK(cond)                                                                           \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: broken promise: %s (%s)\n", __FILE__, __LINE__, #cond,         \
                    cz_last_error());                                                              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A refusal says why, in words that a terminal shows as they are. */
static inline void fuzz_refused(cz_status status)
{
    const char *text = cz_last_error();
    FUZZ_CHECK(status == CZ_CORRUPT || status == CZ_UNSUPPORTED || status == CZ_INVALID ||
               status == CZ_VERSION);
    FUZZ_CHECK(cz_last_status() == status);
    FUZZ_CHECK(text[0] != '\0');
    char escape[PRINTABLE_NBYTES];
    while (*text) {
        text += printable_next(PRINTABLE_TEXT, text, strlen(text), escape);
        FUZZ_CHECK(!escape[0]);
    }
}

/* The bytes as a file in memory; the path is good until the next call. */
static inline const char *fuzz_file(const void *bytes, size_t nbytes)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    FUZZ_CHECK(pwrite(fd, bytes, nbytes, 0) == (ssize_t)nbytes);
    FUZZ_CHECK(ftruncate(fd, (off_t)nbytes) == 0); /* last: its pages are used again */
    return path;
}

/* Set a file of a folder in memory; nbytes bytes, or none of it is there (bytes NULL). */
static inline void fuzz_folder_put(int dir_fd, const char *name, const void *bytes, size_t nbytes)
{
    if (!bytes) {
        unlinkat(dir_fd, name, 0);
        return;
    }
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, nbytes) == (ssize_t)nbytes);
    FUZZ_CHECK(ftruncate(fd, (off_t)nbytes) == 0);
    close(fd);
}

static inline char *fuzz_folder_path(void)
{
    static char path[64];
    return path;
}

static inline void fuzz_folder_remove(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz_folder_path());
    if (system(command) != 0) perror("rm");
}

/* A fresh folder in memory, one for the whole run; its descriptor. */
static inline int fuzz_folder(void)
{
    static int fd = -1;
    if (fd >= 0) return fd;
    snprintf(fuzz_folder_path(), 64, "%s/czero-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    FUZZ_CHECK(mkdtemp(fuzz_folder_path()));
    atexit(fuzz_folder_remove);
    fd = open(fuzz_folder_path(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(fd >= 0);
    return fd;
}

/* A copy of exactly nbytes, so that reading one byte too far is seen. */
static inline char *fuzz_copy(const void *bytes, size_t nbytes)
{
    char *copy = calloc(1, nbytes ? nbytes : 1);
    FUZZ_CHECK(copy);
    if (nbytes > 0) memcpy(copy, bytes, nbytes);
    return copy;
}

#endif

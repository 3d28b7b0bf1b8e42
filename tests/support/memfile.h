/* A file in memory that has a path: for tests that damage files thousands of times. */
#ifndef CZ_TESTS_MEMFILE_H
#define CZ_TESTS_MEMFILE_H

#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <sys/mman.h>
#include <sys/types.h>

struct memfile {
    int fd;
    char path[32];
    unsigned char *bytes; /* as the file was; the caller may change them and memfile_put() */
    size_t nbytes;
};

/* Put `nbytes` of the bytes into the file, from its beginning. */
static inline void memfile_put(struct memfile *m, size_t nbytes)
{
    ck_assert_int_eq(ftruncate(m->fd, 0), 0);
    ck_ok(file_pwrite(m->fd, m->path, m->bytes, nbytes, 0));
}

/* A copy of a file. */
static inline void memfile_init(struct memfile *m, const char *path)
{
    char *bytes;
    ck_ok(file_load(path, (size_t)1 << 28, &bytes, &m->nbytes));
    m->bytes = (unsigned char *)bytes;
    m->fd = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_ge(m->fd, 0);
    snprintf(m->path, sizeof m->path, "/proc/self/fd/%d", m->fd);
    memfile_put(m, m->nbytes);
}

static inline void memfile_free(struct memfile *m)
{
    close(m->fd);
    free(m->bytes);
}

#endif

/* Arrays in numpy's files (.npy, version 1.0): written in pieces at any place, in constant memory.
 *
 * npy_create() → npy_write() … → npy_commit(), or npy_abort(). The file appears under its name when
 * it is complete and on disk. Not thread-safe. */
#ifndef CZ_FORMATS_NPY_NPY_H
#define CZ_FORMATS_NPY_NPY_H

#include "formats/file_io.h"

CZ_EXTERN_C_BEGIN

#define NPY_NDIM_MAX 3

enum npy_type { NPY_F32 = 0, NPY_I64 };

struct npy_writer {
    struct file_durable file;
    enum npy_type type;
    uint64_t begin, numel; /* of the elements: first byte, and how many */
};

/* An array of that shape, in the place of an existing file. Errors: CZ_INVALID (the shape), CZ_IO,
 * CZ_NOMEM. *w is then empty. */
cz_status npy_create(struct npy_writer *w, const char *path, enum npy_type type, int ndim,
                     const int64_t *shape);

/* Elements [first, first + n), row-major, of the array's type. Errors: CZ_INVALID, CZ_IO. */
cz_status npy_write(struct npy_writer *w, uint64_t first, const void *elements, size_t n);

/* Errors: CZ_IO; nothing has changed under the final name then. */
cz_status npy_commit(struct npy_writer *w);
void npy_abort(struct npy_writer *w); /* accepts zeroed or committed */

CZ_EXTERN_C_END
#endif

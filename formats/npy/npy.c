/* The header is the text of a Python dictionary, padded so that the elements begin at a multiple of
 * 64 bytes, as numpy writes it. */
#include "formats/npy/npy.h"

#include <stdio.h>
#include <string.h>

#define MAGIC        "\x93NUMPY"
#define HEADER_ALIGN 64

static const struct type {
    const char *descr;
    size_t nbytes;
} types[] = {[NPY_F32] = {"<f4", sizeof(float)}, [NPY_I64] = {"<i8", sizeof(int64_t)}};

static cz_status count(int ndim, const int64_t *shape, size_t nbytes, uint64_t *numel)
{
    *numel = 1;
    if (ndim < 1 || ndim > NPY_NDIM_MAX)
        return err_set(CZ_INVALID, 0, "an array of %d dimensions cannot be written", ndim);
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0 ||
            (shape[d] > 0 && *numel > (uint64_t)INT64_MAX / nbytes / (uint64_t)shape[d]))
            return err_set(CZ_INVALID, 0, "an array with %lld elements in a dimension is too large",
                           (long long)shape[d]);
        *numel *= (uint64_t)shape[d];
    }
    return CZ_OK;
}

cz_status npy_create(struct npy_writer *w, const char *path, enum npy_type type, int ndim,
                     const int64_t *shape)
{
    char header[4 * HEADER_ALIGN] = MAGIC "\x01";
    const size_t text = sizeof MAGIC - 1 + 4; /* behind the version and the length */
    size_t n = text;
    memset(w, 0, sizeof *w);
    TRY(count(ndim, shape, types[type].nbytes, &w->numel));
    n += (size_t)snprintf(header + n, sizeof header - n,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].descr);
    for (int d = 0; d < ndim; d++)
        n += (size_t)snprintf(header + n, sizeof header - n, "%lld%s", (long long)shape[d],
                              d + 1 < ndim ? ", "
                              : ndim == 1  ? ","
                                           : "");
    n += (size_t)snprintf(header + n, sizeof header - n, "), }");
    const size_t end = (n + HEADER_ALIGN) / HEADER_ALIGN * HEADER_ALIGN;
    memset(header + n, ' ', end - n);
    header[end - 1] = '\n';
    header[text - 2] = (char)((end - text) & 0xff);
    header[text - 1] = (char)((end - text) >> 8);
    w->type = type;
    w->begin = end;
    TRY(file_durable_create(&w->file, path, end + w->numel * types[type].nbytes));
    cz_status st = file_pwrite(w->file.fd, path, header, end, 0);
    if (st != CZ_OK) npy_abort(w);
    return st;
}

cz_status npy_write(struct npy_writer *w, uint64_t first, const void *elements, size_t n)
{
    const size_t nbytes = types[w->type].nbytes;
    if (first > w->numel || n > w->numel - first)
        return err_set(CZ_INVALID, 0, "%s: elements %llu to %llu are outside the array",
                       w->file.path, (unsigned long long)first, (unsigned long long)(first + n));
    return file_pwrite(w->file.fd, w->file.path, elements, n * nbytes, w->begin + first * nbytes);
}

cz_status npy_commit(struct npy_writer *w)
{
    return file_durable_commit(&w->file);
}

void npy_abort(struct npy_writer *w)
{
    file_durable_abort(&w->file);
}

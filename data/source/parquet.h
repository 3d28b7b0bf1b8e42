/* Parquet files as JSON lines, by a plug-in that is built where Arrow's C++ libraries are. */
#ifndef CZ_DATA_SOURCE_PARQUET_H
#define CZ_DATA_SOURCE_PARQUET_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct parquet_file; /* opaque */

/* *is_it: a regular file begins and ends as Parquet files do. Its position stays. CZ_IO. */
cz_status parquet_is_file(int fd, const char *path, bool *is_it);

/* `fd` and `path` are lent until parquet_close(). *out is NULL on error. Errors: CZ_UNSUPPORTED
 * (built without Arrow, encrypted, …), CZ_CORRUPT, CZ_NOMEM. */
cz_status parquet_open(int fd, const char *path, struct parquet_file **out);
void parquet_close(struct parquet_file *p); /* accepts NULL */

/* Up to nbytes of the rows' JSON lines; *got 0 is the end. Errors: CZ_CORRUPT, CZ_UNSUPPORTED,
 * CZ_NOMEM. */
cz_status parquet_read(struct parquet_file *p, void *dst, size_t nbytes, size_t *got);

#endif

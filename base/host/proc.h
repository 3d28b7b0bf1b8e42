/* Numbers out of the kernel's text files: /proc/self/status, /proc/meminfo. */
#ifndef CZ_BASE_HOST_PROC_H
#define CZ_BASE_HOST_PROC_H

#include "base/compiler.h"

#include <stdint.h>

CZ_EXTERN_C_BEGIN

/* The number behind `key` ("VmLck:") at the beginning of a line of the file, in `base`; 0 when the
 * file or the line is not there. Allocates nothing; any thread. */
uint64_t proc_number(const char *path, const char *key, int base);

/* The same of a line that ends in " kB", in bytes. */
size_t proc_nbytes(const char *path, const char *key);

CZ_EXTERN_C_END
#endif

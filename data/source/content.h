/* Whether bytes are text that can be trained on; what they are when not. */
#ifndef CZ_DATA_SOURCE_CONTENT_H
#define CZ_DATA_SOURCE_CONTENT_H

#include "base/status.h"

#define CONTENT_HEAD_NBYTES ((size_t)64 << 10) /* enough of a file's beginning to tell */

/* The beginning of a file, up to CONTENT_HEAD_NBYTES. CZ_UNSUPPORTED: it is a known format that is
 * no text, or text in UTF-16 or UTF-32; the sentence says which, and what to do. `path` is for the
 * sentence. */
cz_status content_check_format(const char *path, const void *head, size_t nbytes);

/* The same, and CZ_UNSUPPORTED for a NUL byte: no format that is known here, but no text, either.
 */
cz_status content_check_text(const char *path, const void *head, size_t nbytes);

#endif

/* What the two halves of the manifest share: building it, and its text. */
#ifndef CZ_CHECKPOINT_STORE_MANIFEST_IMPL_H
#define CZ_CHECKPOINT_STORE_MANIFEST_IMPL_H

#include "checkpoint/store/manifest.h"

#define MANIFEST_FORMAT      "czero manifest"
#define MANIFEST_NBYTES_MAX  ((size_t)256 << 20)
#define MANIFEST_NBYTES_FILE 255 /* of a file's name */

/* Why `name` cannot be a listed file; NULL when it can. */
const char *manifest_name_fault(const char *name);

#endif

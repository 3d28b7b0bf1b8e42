/* inspect: what is inside a checkpoint file or folder, as a tree for people or as JSON. */
#ifndef CZ_CHECKPOINT_INSPECT_INSPECT_H
#define CZ_CHECKPOINT_INSPECT_INSPECT_H

#include "base/status.h"

#include <stdio.h>

CZ_EXTERN_C_BEGIN

struct cz_inspect_options {
    size_t size; /* sizeof(struct cz_inspect_options) */
    const char *path; /* .pt, .safetensors, or a folder: of tags, of one tag, Hugging Face's */
    const char *tag;  /* folders of tags; NULL: latest */
    bool json;
    bool all;  /* people: every entry of long lists and dictionaries, not the first and last few */
    bool sums; /* read tensors: minimum, maximum, mean, count of non-finite values, CRC-32 */
};

/* Write it to `out`. Errors: CZ_NOTFOUND, CZ_CORRUPT, CZ_UNSUPPORTED (not a file we know), CZ_IO.
 */
CZ_API cz_status cz_inspect(const struct cz_inspect_options *options, FILE *out);

CZ_EXTERN_C_END
#endif

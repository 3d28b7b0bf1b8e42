/* What the reader and the writer of safetensors share. */
#ifndef CZ_FORMATS_SAFETENSORS_SAFETENSORS_IMPL_H
#define CZ_FORMATS_SAFETENSORS_SAFETENSORS_IMPL_H

#include "formats/safetensors/safetensors.h"

#define SAFETENSORS_LENGTH_NBYTES 8 /* the header's length, little endian, in front of it */
#define SAFETENSORS_SINGLE        "model.safetensors"
#define SAFETENSORS_INDEX         "model.safetensors.index.json"
#define SAFETENSORS_METADATA_KEY  "__metadata__"

enum extent { EXTENT_OK, EXTENT_TOO_LARGE, EXTENT_NOT_BYTES /* 4- or 6-bit elements left over */ };

/* Elements and bytes of a tensor whose dimensions are not negative. */
enum extent safetensors_extent(enum safetensors_dtype dtype, const int64_t *shape, size_t ndim,
                               uint64_t *numel, uint64_t *nbytes);

/* Where elements [elem_off, elem_off + numel) are inside their tensor. Errors: CZ_INVALID. */
cz_status safetensors_piece(const char *path, const char *name, enum safetensors_dtype dtype,
                            uint64_t tensor_numel, uint64_t elem_off, uint64_t numel,
                            uint64_t *byte_off, size_t *nbytes);

#endif

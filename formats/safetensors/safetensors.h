/* safetensors: named tensors in one file, or spread over shards with an index.
 *
 * Reading: safetensors_open() or safetensors_dir_open() → safetensors_at()/safetensors_find() →
 * safetensors_read() pieces with pread (never mapped) → safetensors_close(). A file is checked
 * whole when it is opened: header bounds, dtypes, shapes, offsets without hole or overlap.
 * Writing: safetensors_create() declares every tensor → safetensors_write() pieces in any order →
 * safetensors_finish() syncs and renames → safetensors_writer_destroy(). Until finish succeeds
 * nothing appears under a final name. What we write has the bytes of the reference writer.
 * Threads: an open reader may be shared; pieces of one writer may be written by several threads. */
#ifndef CZ_FORMATS_SAFETENSORS_SAFETENSORS_H
#define CZ_FORMATS_SAFETENSORS_SAFETENSORS_H

#include "base/dtype.h"
#include "base/status.h"
#include "formats/file_io.h"

CZ_EXTERN_C_BEGIN

#define SAFETENSORS_HEADER_NBYTES_MAX 100000000u

/* The format's dtypes, in the order that the reference writer sorts by. */
enum safetensors_dtype {
    SAFETENSORS_BOOL = 0,
    SAFETENSORS_F4,
    SAFETENSORS_F6_E2M3,
    SAFETENSORS_F6_E3M2,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_F8_E4M3FNUZ,
    SAFETENSORS_F8_E5M2FNUZ,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_C64,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64
};
#define SAFETENSORS_DTYPE_COUNT 22

/* "F32", "BF16", …; "?" outside the enum. Bits per element: 4, 6, 8 … 64. */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
unsigned safetensors_dtype_bits(enum safetensors_dtype dtype);

/* To and from base/dtype.h. The first is false when base has no such type (*out untouched). */
bool safetensors_dtype_to_base(enum safetensors_dtype dtype, enum cz_dtype *out);
enum safetensors_dtype safetensors_dtype_from_base(enum cz_dtype dtype);

/* ---- reading --------------------------------------------------------------------------------- */

struct safetensors; /* an open file, or all files of a folder as one set */

struct safetensors_info { /* owned by the reader, valid until it is closed */
    const char *name;
    const char *path; /* the file that holds it */
    const int64_t *shape;
    size_t ndim; /* 0: a scalar, one element */
    enum safetensors_dtype dtype;
    uint64_t numel, nbytes;
    uint64_t file_off; /* of its first byte, from the start of `path` */
    size_t file_idx;   /* which of the reader's files */
};

/* Open one file. *out is released by safetensors_close(); NULL on error.
 * Errors: CZ_NOTFOUND, CZ_IO, CZ_NOMEM; CZ_CORRUPT naming file, tensor and reason. */
cz_status safetensors_open(const char *path, struct safetensors **out);

/* The same of a file of a folder (formats/beneath.h). */
cz_status safetensors_open_in(const char *dir, const char *name, struct safetensors **out);

/* Open a model folder: model.safetensors if it is there, else the shards that
 * model.safetensors.index.json lists. Errors: as above; CZ_NOTFOUND when the folder has neither, or
 * a shard is missing; CZ_CORRUPT when index and shards disagree. */
cz_status safetensors_dir_open(const char *dir, struct safetensors **out);

/* Accepts NULL. */
void safetensors_close(struct safetensors *st);

size_t safetensors_count(const struct safetensors *st);

/* The reader's files, for callers that read them by other means: what they were when their headers
 * were read. The descriptor stays the reader's. */
struct safetensors_file {
    int fd;
    const char *path;
    struct file_stamp stamp;
};
size_t safetensors_n_files(const struct safetensors *st);
struct safetensors_file safetensors_file(const struct safetensors *st, size_t file_idx);

/* Tensor `idx` (< count), in file order: by file, then by offset. */
const struct safetensors_info *safetensors_at(const struct safetensors *st, size_t idx);

/* By name; NULL when there is none (no error is set). */
const struct safetensors_info *safetensors_find(const struct safetensors *st, const char *name);

/* Value of the first file's __metadata__ entry `key`, or NULL; and all of them, in file order. */
const char *safetensors_metadata(const struct safetensors *st, const char *key);
size_t safetensors_n_metadata(const struct safetensors *st);
void safetensors_metadata_at(const struct safetensors *st, size_t idx, const char **key,
                             const char **value);

/* CZ_UNSUPPORTED when __metadata__ names another framework's format than PyTorch's, NumPy's or
 * MLX's, whose names and layouts are the same; one that names none is taken for PyTorch's. */
cz_status safetensors_check_format(const struct safetensors *st);

/* Elements [elem_off, elem_off + numel) of a tensor, as stored (little endian), into dst.
 * F4 and F6: both bounds must fall on whole bytes. Errors: CZ_INVALID (outside the tensor),
 * CZ_IO, CZ_CORRUPT (the file shrank). */
cz_status safetensors_read(const struct safetensors *st, const struct safetensors_info *info,
                           uint64_t elem_off, size_t numel, void *dst);

/* The same, widened to fp32 in place, without a buffer. F32, BF16, F16 and F64 (rounded);
 * CZ_UNSUPPORTED for the others. */
cz_status safetensors_read_f32(const struct safetensors *st, const struct safetensors_info *info,
                               uint64_t elem_off, size_t numel, float *dst);

/* ---- writing --------------------------------------------------------------------------------- */

struct safetensors_writer;

struct safetensors_decl {
    const char *name;
    enum safetensors_dtype dtype;
    const int64_t *shape;
    size_t ndim;
};

struct safetensors_metadata {
    const char *key, *value;
};

/* Start a file. Declarations are copied; their order does not matter to the file, which is laid
 * out as the reference does it (wider dtypes first, then by name). n_metadata 0 writes
 * {"format": "pt"}, which transformers requires. Disk space is reserved now.
 * *out is released by safetensors_writer_destroy(); NULL on error.
 * Errors: CZ_INVALID (duplicate name, negative or overflowing shape, a name that is not UTF-8 or is
 * "__metadata__"), CZ_IO, CZ_NOMEM. */
cz_status safetensors_create(const char *path, const struct safetensors_decl *decls, size_t n_decls,
                             const struct safetensors_metadata *metadata, size_t n_metadata,
                             struct safetensors_writer **out);

/* Start a model folder (created if missing): dir/model.safetensors, or, when that would exceed
 * shard_nbytes_max > 0, shards model-00001-of-0000N.safetensors filled in declaration order as
 * Hugging Face splits them (a tensor larger than the limit has a shard to itself), with
 * model.safetensors.index.json. finish() also removes model*.safetensors files of an earlier save
 * that the new set replaces. Errors: as above. */
cz_status safetensors_dir_create(const char *dir, uint64_t shard_nbytes_max,
                                 const struct safetensors_decl *decls, size_t n_decls,
                                 const struct safetensors_metadata *metadata, size_t n_metadata,
                                 struct safetensors_writer **out);

/* Where a declared tensor is: which file of the set, and at which byte of it. For callers that cut
 * their pieces at multiples of FILE_DIRECT_ALIGN, which go to disk fastest, or in disk order. */
void safetensors_place(const struct safetensors_writer *w, size_t decl_idx, size_t *file_idx,
                       uint64_t *file_off);
size_t safetensors_writer_n_files(const struct safetensors_writer *w);

/* Elements [elem_off, elem_off + numel) of declared tensor decl_idx. Pieces must not overlap.
 * Errors: CZ_INVALID (outside the tensor), CZ_IO. */
cz_status safetensors_write(struct safetensors_writer *w, size_t decl_idx, uint64_t elem_off,
                            size_t numel, const void *src);

/* Check that every element was written, sync, and put the files under their final names (shards
 * first, index last; an older index of equally many shards is removed before, so that it never
 * names a mixture). Errors: CZ_INVALID naming a tensor that is not complete, CZ_IO. After an
 * error only destroy makes sense; it removes what this writer made. */
cz_status safetensors_finish(struct safetensors_writer *w);

/* Release; before a successful finish, also remove every file this writer made. Accepts NULL. */
void safetensors_writer_destroy(struct safetensors_writer *w);

CZ_EXTERN_C_END
#endif

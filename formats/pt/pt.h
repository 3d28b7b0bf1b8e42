/* The .pt container of torch.save: a zip whose data.pkl describes objects and whose data/<key>
 * records hold the raw storages.
 *
 * Reading: pt_open() checks the zip's structure and parses data.pkl → pt_root() is walked →
 * pt_read() fetches elements of a tensor with pread → pt_close(). Storages are never mapped or
 * loaded whole. torch's own loader checks no CRC; pt_verify() does.
 * Writing: pt_create() lays out the file → pt_write() pieces of storages in any order, from any
 * thread → pt_finish() → pt_writer_destroy(). The bytes are laid out as torch 2.15's (64-byte
 * aligned, data descriptors, zip64).
 *
 * Layout: docs/deepspeed-behaviour.md, "torch.save files". */
#ifndef CZ_FORMATS_PT_PT_H
#define CZ_FORMATS_PT_PT_H

#include "formats/pickle/pickle.h"

CZ_EXTERN_C_BEGIN

struct out_folder;

/* ---- reading --------------------------------------------------------------------------------- */

struct pt; /* an open file */

struct pt_record {
    const char *name;    /* without the archive's folder: "data.pkl", "data/0", "version" */
    uint64_t header_off; /* of its local header in the file */
    uint64_t off;        /* of its first payload byte */
    uint64_t nbytes;
    uint32_t crc; /* as stored in the central directory */
    bool has_crc; /* false: 0 is stored for a payload that is not empty, which torch does when told
                     not to compute any (set_crc32_options(False)) */
};

/* Open, check, parse. A reader of any writer's .pt: storages in any order, optional records absent,
 * zip64 or not, any archive folder, renamed file. *out is released by pt_close(); NULL on error.
 * Errors: CZ_NOTFOUND, CZ_IO, CZ_NOMEM; CZ_CORRUPT naming the file, the record and the offset (no
 * end of central directory, directory outside the file, records that overlap or leave it, local
 * header that disagrees, duplicate names, missing data.pkl or version, a storage that is missing or
 * whose record has another size than the pickle says); CZ_UNSUPPORTED (compressed records, big
 * endian, encryption, TorchScript, and "legacy torch format: save it again with torch.save's
 * default (zip) format"). */
cz_status pt_open(const char *path, struct pt **out);

/* The same of a file of a folder (formats/beneath.h). */
cz_status pt_open_in(const char *dir, const char *name, struct pt **out);
void pt_close(struct pt *pt); /* accepts NULL */

const char *pt_path(const struct pt *pt);
uint64_t pt_nbytes(const struct pt *pt); /* of the file */

/* What all tensors together may take, for a caller that reads every element of files of
 * file_nbytes. Views repeat elements (expand() has a stride of 0) and share storages, so that a
 * file of 1 KB can describe 2^60 elements; real checkpoints stay below four times their files (one
 * byte widened to fp32), small expanded buffers aside. Adds numel
 * elements to *nbytes. CZ_UNSUPPORTED with `name` in front: more than 16 times the files, and 16
 * MiB. */
#define PT_REPEAT_MAX         16
#define PT_REPEAT_FREE_NBYTES ((uint64_t)16 << 20)
cz_status pt_count_elements(const char *name, uint64_t file_nbytes, uint64_t *nbytes,
                            uint64_t numel, size_t elem_nbytes);
const struct pickle_node *pt_root(const struct pt *pt);

size_t pt_n_records(const struct pt *pt); /* in the order in which they are in the file */
const struct pt_record *pt_record_at(const struct pt *pt, size_t idx);
const struct pt_record *pt_record_find(const struct pt *pt, const char *name);

/* The record of a tensor's storage; never NULL for a tensor of this file's root. */
const struct pt_record *pt_storage(const struct pt *pt, const struct pickle_tensor *t);

/* Elements [elem_off, elem_off + numel) in row-major order, as stored, into dst; any strides.
 * Threads: concurrent reads of one pt are fine. Errors: CZ_INVALID (outside the tensor), CZ_IO,
 * CZ_CORRUPT (the file shrank). */
cz_status pt_read(const struct pt *pt, const struct pickle_tensor *t, uint64_t elem_off,
                  size_t numel, void *dst);

/* The same for floating-point tensors (fp32, bf16, fp16, fp64 rounded), widened to fp32;
 * integers are converted. CZ_UNSUPPORTED for other types. */
cz_status pt_read_f32(const struct pt *pt, const struct pickle_tensor *t, uint64_t elem_off,
                      size_t numel, float *dst);

/* A 0-d or one-element tensor, or a plain number, as a double ("step" is either). */
cz_status pt_number(const struct pt *pt, const struct pickle_node *node, double *out);

/* Recompute every record's CRC-32, in 1 MiB pieces. The first bad one: CZ_CORRUPT with the record's
 * name and offset, *bad (may be NULL) = it. *n_unchecked (may be NULL): records without CRC. */
cz_status pt_verify(const struct pt *pt, const struct pt_record **bad, size_t *n_unchecked);

/* For a file whose bytes are known to have changed although every record's CRC holds: the first
 * byte of headers, padding, descriptors or directory that is not as pt_create() writes it around
 * these records. *found false: there is none, or the file is laid out by another writer. Errors:
 * CZ_IO, CZ_NOMEM. */
cz_status pt_find_stray(const struct pt *pt, uint64_t *off, bool *found);

/* The same for one record of this file; one without CRC is fine. */
cz_status pt_verify_record(const struct pt *pt, const struct pt_record *record);

/* ---- writing --------------------------------------------------------------------------------- */

struct pt_writer;

struct pt_create_options {
    const char *path;    /* final name; a temporary beside it is written until the finish */
    const struct out_folder *folder; /* that `path` is in, open (output.h); NULL: a user's path */
    const char *archive; /* top folder; NULL: from the file name as torch does */
    const void *pickle;  /* data.pkl, copied */
    size_t pickle_nbytes;
    const uint64_t *storage_nbytes; /* (n_storages) storage i is record data/i */
    size_t n_storages;
    bool unbuffered; /* pt_write() writes before it returns, and keeps no memory or threads of its
                        own: for several threads with large pieces and many files at a time */
};

/* Lay the file out and reserve the disk. *out is released by pt_writer_destroy(); NULL on error.
 * Errors: CZ_IO (path, no space), CZ_NOMEM, CZ_INVALID (overflow, an empty file stem). */
cz_status pt_create(const struct pt_create_options *options, struct pt_writer **out);

/* Bytes [off, off + nbytes) of a storage, each exactly once. *crc (may be NULL): CRC-32 of these
 * bytes, for sums over pieces (crc32_concat). src is free again at once; the bytes may still be on
 * their way (8 MiB at most, in threads of the writer's own). Threads: any. Errors: CZ_INVALID;
 * CZ_IO, of this write or of an earlier one (then only destroy makes sense). */
cz_status pt_write(struct pt_writer *w, size_t storage_idx, uint64_t off, size_t nbytes,
                   const void *src, uint32_t *crc);

/* What a manifest needs to know of a finished file, without reading it again. */
struct pt_written {
    uint64_t nbytes;
    uint32_t crc; /* of the whole file */
};

/* Check that every byte was written, add descriptors and directory, sync. rename: put it under its
 * final name and sync the folder; false: the caller does so with pt_rename(). Errors: CZ_INVALID
 * (a storage is incomplete), CZ_IO; then only destroy makes sense. */
cz_status pt_finish(struct pt_writer *w, bool rename, struct pt_written *out);
cz_status pt_rename(struct pt_writer *w);

/* Remove a renamed file, whose set was not completed. */
void pt_take_back(struct pt_writer *w);
bool pt_is_renamed(const struct pt_writer *w); /* also where the folder could not be synced then */

/* Where a storage's bytes begin in the file. */
uint64_t pt_storage_off(const struct pt_writer *w, size_t storage_idx);

/* CRC of a storage; after pt_finish(). */
uint32_t pt_storage_crc(const struct pt_writer *w, size_t storage_idx);

/* Release; removes the temporary unless it was renamed. Accepts NULL. */
void pt_writer_destroy(struct pt_writer *w);

CZ_EXTERN_C_END
#endif

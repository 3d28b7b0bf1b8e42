/* The manifest of a saved tag: every file with its size and the CRC-32 of all its bytes, and the
 * CRC-32 of every tensor's bytes in it. czero_manifest.json, written last into the tag's folder
 * before it gets its name. The format's own specification is docs/checkpoint-format.md.
 *
 * Life cycle: manifest_init() → manifest_add_file() → manifest_add_tensor() … → manifest_to_json()
 *             manifest_from_json() / manifest_load() → read → manifest_free() */
#ifndef CZ_CHECKPOINT_STORE_MANIFEST_H
#define CZ_CHECKPOINT_STORE_MANIFEST_H

#include "base/hash.h"

CZ_EXTERN_C_BEGIN

#define MANIFEST_VERSION 1

/* A run of one tensor's bytes in a file. */
struct manifest_tensor {
    char *name;           /* the parameter's name */
    char *what;           /* "param", "frozen", "master", or a state's name: "exp_avg" */
    uint64_t off, nbytes; /* in the file */
    uint32_t crc;
};

struct manifest_file {
    char *name; /* inside the tag's folder */
    uint64_t nbytes;
    uint32_t crc;                    /* of the whole file */
    struct manifest_tensor *tensors; /* by rising offset */
    size_t n_tensors, cap_tensors;
};

struct manifest {
    int world_size, stage;
    struct manifest_file *files;
    size_t n_files, cap_files;
    struct hash_index names; /* of files */
};

void manifest_init(struct manifest *m);
void manifest_free(struct manifest *m); /* accepts zeroed */

/* Append; names are copied. *file (may be NULL) stays valid until the next file is added. Tensors
 * may come in any order; one of no bytes is left out. Errors: CZ_INVALID (a file twice, or a name
 * that leaves the folder; a run outside its file, or over another's bytes), CZ_NOMEM. */
cz_status manifest_add_file(struct manifest *m, const char *name, uint64_t nbytes, uint32_t crc,
                            struct manifest_file **file);
cz_status manifest_add_tensor(struct manifest_file *file, const char *name, const char *what,
                              uint64_t off, uint64_t nbytes, uint32_t crc);

/* Take over all files of `from` (another rank's part), which is left empty; an `m` without world
 * size takes that and the stage as well. Errors, with `from` unchanged: CZ_INVALID (a file is in
 * both; world size or stage differ), CZ_NOMEM. */
cz_status manifest_merge(struct manifest *m, struct manifest *from);

/* As text, NUL-terminated, the caller's to free(). Its last member is a CRC-32 of everything before
 * it, so that damage to the manifest itself is found. Errors: CZ_INVALID (no world size), CZ_NOMEM.
 */
cz_status manifest_to_json(const struct manifest *m, char **text, size_t *nbytes);

/* Strict: CZ_CORRUPT (syntax, a missing or mistyped member, a wrong checksum, ranges outside a file
 * or overlapping, names with '/'), CZ_VERSION (a newer one). label names the source in sentences.
 */
cz_status manifest_from_json(const char *text, size_t nbytes, const char *label,
                             struct manifest *out);

/* From the tag's folder. Errors: as above; CZ_NOTFOUND (it has none: DeepSpeed's own), CZ_IO. */
cz_status manifest_load(const char *tag_dir, struct manifest *out);

const struct manifest_file *manifest_find(const struct manifest *m, const char *name);

CZ_EXTERN_C_END
#endif
